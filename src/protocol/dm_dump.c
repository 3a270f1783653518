/* SPDX-License-Identifier: Apache-2.0 */
/* The decode machine's state for people. */
#include "protocol/dm_internal.h"

#define LINES_MAX 1000u /* of one kind */

static unsigned long long ms(uint64_t now, uint64_t then) { return now > then ? (now - then) / RD2H_MS : 0; }

static const char *peer_state(const struct dm_peer *p) {
  static const char *const names[] = {"without metadata", "connecting", "ready", "refused", "lost"};
  return names[p->state];
}

static void dump_peer(const rd2h_dm *m, uint32_t i, const char *name, struct rd2h_buf *b) {
  const struct dm_peer *p = dm_peer(m, i);
  rd2h_buf_line(b, "  peer %u (%s): %s, %s, stage %u of %u: %u batches open, serves %u requests%s%s", i, name, peer_state(p),
                p->ours ? "ours" : "legacy", p->pp_rank, p->pp_size, p->n_batches, p->n_bound, p->why[0] ? ": " : "", p->why);
}

static const char *batch_state(const struct dm_batch *x) {
  if (x->reading) return "is read";
  if (x->complete) return "answered after those before it";
  return x->n_waiting ? "waits for destinations" : "is planned";
}

static void dump_batch(const rd2h_dm *m, uint32_t i, struct rd2h_buf *b) {
  const struct dm_batch *x = dm_batch(m, i);
  const char *layer = x->layer == RD2H_INDEX_NONE ? "unknown" : m->cfg.layout->layer[x->layer].name;
  rd2h_buf_line(b, "  batch of peer %u, layer %s: %u requests, %s", x->peer, layer, x->msg ? x->msg->n_reqs : 0, batch_state(x));
}

static void dump_request(const struct dm_req *r, uint64_t now, struct rd2h_buf *b) {
  const char *state = r->ended ? rd2h_status_name(r->status) : r->started ? "is received" : "waits for Prefill";
  rd2h_buf_line(b, "  request %s (%s): %s%s for %llu ms, last sign %llu ms ago: %u reads open, %u of %u contributors done, "
                "%u main and %u indexer blocks%s%s", r->id, r->ext, r->ended ? "quarantined after " : "", state,
                ms(now, r->installed), ms(now, r->progress), r->inflight, r->slots_done, r->n_slots, r->n_main, r->n_indexer,
                r->text[0] ? ": " : "", r->text);
}

/* ---- whom requests wait for ---- */
static bool waits_for(rd2h_dm *m, const struct dm_req *r, const struct dm_slot *s) {
  if (!s->bound || s->done || !rd2h_slab_live(&m->peers, s->peer) || dm_peer(m, s->peer)->gen != s->peer_gen) return false;
  struct dm_peer *p = dm_peer(m, s->peer);
  if (!p->waiting++) p->waiting_since = r->installed; /* requests come oldest first */
  return true;
}

void rd2h_dm_waits(rd2h_dm *m, void (*see)(void *, uint32_t, uint32_t, uint64_t), void *arg) {
  uint32_t nobodys = 0;
  uint64_t since = 0;
  for (uint32_t i = 0; i < m->peers.next; i++)
    if (rd2h_slab_live(&m->peers, i)) dm_peer(m, i)->waiting = 0;
  for (uint32_t i = m->oldest; i != RD2H_INDEX_NONE; i = dm_req(m, i)->newer) {
    const struct dm_req *r = dm_req(m, i);
    bool known = false;
    for (uint32_t k = 0; k < r->n_slots; k++)
      if (waits_for(m, r, &r->slot[k])) known = true;
    if (!known && !nobodys++) since = r->installed;
  }
  if (nobodys) see(arg, RD2H_INDEX_NONE, nobodys, since);
  for (uint32_t i = 0; i < m->peers.next; i++)
    if (rd2h_slab_live(&m->peers, i) && dm_peer(m, i)->waiting) see(arg, i, dm_peer(m, i)->waiting, dm_peer(m, i)->waiting_since);
}

static void left_out(struct rd2h_buf *b, uint32_t n, const char *what) {
  if (n > LINES_MAX) rd2h_buf_line(b, "  and %u more %s", n - LINES_MAX, what);
}

void rd2h_dm_dump(const rd2h_dm *m, const char *(*peer_name)(void *, uint32_t), void *arg, uint64_t now, struct rd2h_buf *b) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < m->peers.next; i++)
    if (rd2h_slab_live(&m->peers, i) && n++ < LINES_MAX) dump_peer(m, i, peer_name(arg, i), b);
  left_out(b, n, "peers");
  n = 0;
  for (uint32_t i = 0; i < m->reqs.next; i++)
    if (rd2h_slab_live(&m->reqs, i) && n++ < LINES_MAX) dump_request(dm_req(m, i), now, b);
  left_out(b, n, "requests");
  n = 0;
  for (uint32_t i = 0; i < m->batches.next; i++)
    if (rd2h_slab_live(&m->batches, i) && n++ < LINES_MAX) dump_batch(m, i, b);
  left_out(b, n, "batches");
}
