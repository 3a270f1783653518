/* SPDX-License-Identifier: Apache-2.0 */
/* Digests of what a message announces, from the source itself: its slots are closed, nobody writes there until Decode has answered. */
#include "layout/layout.h"
#include "worker/prefill_worker.h"

/* False: an id is none of this rank's blocks. */
static bool put(rd2h_pw *w, const struct rd2h_tensor *t, const uint32_t *id, uint32_t n) {
  uint64_t bytes = t->block_len * t->scale;
  for (uint32_t i = 0; i < n; i++) {
    if (id[i] >= w->o.layout->num_blocks)
      return false;
    uint32_t c = __builtin_bswap32(rd2h_crc32c((const void *)(uintptr_t)(t->base + id[i] * bytes), bytes));
    rd2h_buf_put(&w->digest, &c, sizeof c);
  }
  return true;
}

/* Main KV is read from member 0 only. */
static bool put_request(rd2h_pw *w, const struct pw_batch *b, const struct rd2h_step_send *x) {
  const struct rd2h_layer *l = &w->o.layout->layer[b->layer];
  for (uint32_t t = b->group->member ? l->n_main : 0; t < l->n; t++) {
    bool main = t < l->n_main;
    if (!put(w, &l->t[t], main ? x->main : x->indexer, main ? x->n_main : x->n_indexer))
      return false;
  }
  return true;
}

struct rd2h_str pw_digests(rd2h_pw *w, const struct pw_batch *b, const uint32_t *idx, uint32_t n) {
  const struct pw_group *g = b->group;
  rd2h_buf_reset(&w->digest);
  for (uint32_t i = 0; i < n; i++)
    if (!put_request(w, b, &b->step->view.send[g->send[g->list[b->variant].at[idx[i]]]]))
      return (struct rd2h_str){0};
  if (w->digest.failed)
    return (struct rd2h_str){0};
  w->n_digests += w->digest.len / 4;
  return (struct rd2h_str){(const char *)w->digest.p, (uint32_t)w->digest.len};
}
