/* SPDX-License-Identifier: Apache-2.0 */
/* The Prefill rank's state for people. */
#include "layout/layout.h"
#include "worker/prefill_worker.h"
#include <stdio.h>

#define ENDPOINTS_MAX 32u
#define BATCHES_MAX 4096u

struct closed {
  const char *address, *layer;
  uint32_t batches;
  uint64_t since;
};

static struct closed *closed_for(struct closed *t, uint32_t *n, const struct pw_batch *b, const struct rd2h_layout *l) {
  for (uint32_t i = 0; i < *n; i++)
    if (!strcmp(t[i].address, b->group->address))
      return &t[i];
  if (*n == ENDPOINTS_MAX)
    return NULL;
  t[*n] = (struct closed){.address = b->group->address, .layer = l->layer[b->layer].name, .since = b->closed};
  return &t[(*n)++];
}

/* Which readers keep storage closed, those first that have done so longest. */
static void dump_closed(rd2h_pw *w, struct rd2h_buf *to) {
  struct closed t[ENDPOINTS_MAX], *c;
  uint32_t n = 0, seen = 0;
  pthread_mutex_lock(&w->gate.mu);
  for (const struct pw_batch *b = w->oldest; b && seen < BATCHES_MAX; b = b->earlier, seen++)
    if ((c = closed_for(t, &n, b, w->o.layout)))
      c->batches++;
  for (uint32_t i = 0; i < n; i++)
    rd2h_buf_line(to, "  storage kept for %s: %u layer messages, the first (%s) for %llu ms", t[i].address, t[i].batches, t[i].layer,
                  (unsigned long long)(w->now > t[i].since ? (w->now - t[i].since) / RD2H_MS : 0));
  pthread_mutex_unlock(&w->gate.mu);
}

static void dump(rd2h_pw *w) {
  const struct rd2h_prefill_stats *s = &w->stats;
  pthread_mutex_lock(&w->gate.mu);
  uint32_t closed = w->gate.closed;
  pthread_mutex_unlock(&w->gate.mu);
  rd2h_buf_line(&w->dump.text, "prefill rank %u of %u, stage %u of %u, session %s, engine %s: %u endpoints, %u messages unanswered, "
                "%u of %u storage slots closed, %u ended requests held", w->o.tp_rank, w->o.tp_size, w->o.pp_rank, w->o.pp_size,
                w->session, rd2h_eng_name(w->eng), s->endpoints, s->outstanding, closed, w->o.layout->n_slots, s->held);
  dump_closed(w, &w->dump.text);
  rd2h_pm_dump(w->pm, w->now, &w->dump.text);
  rd2h_ask_made(&w->dump.ask);
}

/* ---- rows of peers ---- */
static void see_wait(void *arg, uint32_t endpoint, uint32_t waiting, uint64_t since) {
  rd2h_pw *w = arg;
  rd2h_peers_awaited(&w->peers, rd2h_pm_endpoint_address(w->pm, endpoint), waiting, since);
}

static void tell_peers(rd2h_pw *w) {
  rd2h_pm_waits(w->pm, see_wait, w);
  w->peers.rows.connected = w->stats.endpoints;
  rd2h_ask_made(&w->peers.ask);
}

void pw_tell(rd2h_pw *w) {
  if (rd2h_dump_wanted(&w->dump))
    dump(w);
  if (rd2h_peers_wanted(&w->peers))
    tell_peers(w);
}

/* With mu held. */
static void wake(void *arg) {
  rd2h_pw *w = arg;
  if (!w->item_signalled)
    rd2h_eventfd_set(w->item_fd);
  w->item_signalled = true;
}

size_t rd2h_pw_dump(rd2h_pw *w, char *out, size_t cap) {
  char who[64];
  snprintf(who, sizeof who, "prefill rank %u of %u", w->o.tp_rank, w->o.tp_size);
  return rd2h_dump_ask(&w->dump, &w->mu, wake, w, who, out, cap);
}

int rd2h_pw_peers(rd2h_pw *w, uint32_t timeout_ms, struct rd2h_peers *out) {
  return rd2h_peers_ask(&w->peers, &w->mu, wake, w, timeout_ms, out);
}
