/* SPDX-License-Identifier: Apache-2.0 */
/* With thousands of live requests what a message needs of each lies in memory, not in the caches, and behind four pointers in turn. Asked
 * for request by request, that is waited for request by request; here it is asked for by all of a message, step by step. */
#include "protocol/dm_internal.h"

#define REQS_MIN 4u    /* of a message */
#define LIVE_MIN 1024u /* requests, below which all is in the caches anyway */
#define AT_ONCE 16u    /* about as many lines as a core can wait for */
#define LINE 64u

static void ask(const void *p, size_t n) {
  for (size_t i = 0; i < n; i += LINE)
    __builtin_prefetch((const char *)p + i);
}

static void warm(const rd2h_dm *m, const struct rd2h_wire_req *w, uint32_t n) {
  uint64_t expected[AT_ONCE];
  const struct dm_req *r[AT_ONCE];
  for (uint32_t i = 0; i < n; i++)
    expected[i] = rd2h_map_expect(m->by_ext, w[i].id.p, w[i].id.n);
  for (uint32_t i = 0; i < n; i++) {
    uint32_t at = rd2h_map_get_expected(m->by_ext, expected[i], w[i].id.p, w[i].id.n);
    r[i] = at == RD2H_INDEX_NONE ? NULL : dm_req(m, at);
    if (r[i])
      ask(r[i], offsetof(struct dm_req, text));
  }
  for (uint32_t i = 0; i < n; i++) {
    if (!r[i])
      continue;
    __builtin_prefetch(r[i]->slot);
    __builtin_prefetch(r[i]->high);
    if (w[i].main_start < r[i]->n_main)
      __builtin_prefetch(r[i]->main + w[i].main_start);
    if (w[i].indexer_start < r[i]->n_indexer)
      __builtin_prefetch(r[i]->indexer + w[i].indexer_start);
  }
}

void dm_warm(const rd2h_dm *m, const struct rd2h_wire_ready *msg) {
  if (msg->n_reqs < REQS_MIN || rd2h_map_size(m->by_ext) < LIVE_MIN)
    return;
  for (uint32_t i = 0; i < msg->n_reqs; i += AT_ONCE)
    warm(m, &msg->req[i], msg->n_reqs - i < AT_ONCE ? msg->n_reqs - i : AT_ONCE);
}
