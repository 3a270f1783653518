/* SPDX-License-Identifier: Apache-2.0 */
/* The prefill machine's state for people. */
#include "protocol/pm_internal.h"

#define LINES_MAX 1000u /* of one kind */

static uint32_t count_entries(const rd2h_pm *m, const struct pm_ep *e, uint32_t *unsent, uint32_t *given_up, uint64_t *first) {
  uint32_t n = 0;
  *unsent = *given_up = 0;
  *first = RD2H_NEVER;
  for (uint32_t i = e->head; i != RD2H_INDEX_NONE; i = pm_entry(m, i)->next, n++) {
    const struct pm_entry *x = pm_entry(m, i);
    *unsent += !x->sent;
    *given_up += x->zombie;
    if (x->deadline - m->cfg.hold_ns < *first) *first = x->deadline - m->cfg.hold_ns;
  }
  return n;
}

void rd2h_pm_waits(const rd2h_pm *m, void (*see)(void *, uint32_t, uint32_t, uint64_t), void *arg) {
  for (uint32_t i = 0; i < m->eps.next; i++) {
    uint32_t waiting = 0;
    uint64_t first = RD2H_NEVER;
    for (uint32_t k = rd2h_slab_live(&m->eps, i) ? pm_ep(m, i)->head : RD2H_INDEX_NONE; k != RD2H_INDEX_NONE; k = pm_entry(m, k)->next) {
      const struct pm_entry *x = pm_entry(m, k);
      if (x->kind != PM_BATCH || x->zombie) continue;
      if (!waiting++) first = x->deadline - m->cfg.hold_ns;
    }
    if (waiting) see(arg, i, waiting, first);
  }
}

static void dump_endpoint(const rd2h_pm *m, uint32_t i, uint64_t now, struct rd2h_buf *b) {
  static const char *const names[] = {"not connected", "connecting", "waits for the acknowledgement", "open"};
  const struct pm_ep *e = pm_ep(m, i);
  uint32_t unsent, given_up;
  uint64_t first;
  uint32_t n = count_entries(m, e, &unsent, &given_up, &first);
  rd2h_buf_line(b, "  endpoint %s: %s%s%s: %u messages unanswered, the oldest for %llu ms, %u not sent, %u given up, %u requests",
                e->address, names[e->state], e->state == PM_OPEN ? e->ours ? ", ours" : ", legacy" : "", e->silent ? ", silent" : "",
                n - unsent, (unsigned long long)(first < now ? (now - first) / RD2H_MS : 0), unsent, given_up, e->n_links);
}

static void dump_link(const rd2h_pm *m, const struct pm_link *l, struct rd2h_buf *b) {
  const struct pm_req *r = pm_req(m, l->req);
  const char *state = l->ended ? rd2h_status_name(l->status) : l->done_queued ? "done is said" : l->last ? "all is published"
                                                                                               : "is published";
  rd2h_buf_line(b, "  request %s (%s) for %s: %s, %u messages unanswered%s%s%s", r->id ? r->id : "-", r->ext, pm_ep(m, l->ep)->address,
                state, l->outstanding, r->finished ? ", the engine is done with it" : "", r->text[0] ? ": " : "", r->text);
}

void rd2h_pm_dump(const rd2h_pm *m, uint64_t now, struct rd2h_buf *b) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < m->eps.next; i++)
    if (rd2h_slab_live(&m->eps, i) && n++ < LINES_MAX) dump_endpoint(m, i, now, b);
  if (n > LINES_MAX) rd2h_buf_line(b, "  and %u more endpoints", n - LINES_MAX);
  n = 0;
  for (uint32_t i = 0; i < m->links.next; i++)
    if (rd2h_slab_live(&m->links, i) && n++ < LINES_MAX) dump_link(m, pm_link(m, i), b);
  if (n > LINES_MAX) rd2h_buf_line(b, "  and %u more requests at endpoints", n - LINES_MAX);
}
