/* SPDX-License-Identifier: Apache-2.0 */
/* The decode machine's frame: creation, the action queue, timers. */
#include "protocol/actions.h"
#include "protocol/dm_internal.h"

#define TEXT_BYTES 16384u /* set aside for what actions say */

static uint32_t or_default(uint32_t v, uint32_t d) { return v ? v : d; }
static uint64_t or_default_ns(uint64_t v, uint64_t ms) { return v ? v : ms * RD2H_MS; }

int rd2h_dm_create(const struct rd2h_dm_cfg *cfg, rd2h_dm **out, struct rd2h_error *err) {
  rd2h_dm *m = rd2h_zalloc(sizeof *m);
  if (!m) return rd2h_nomem(err, "decode machine");
  m->cfg = *cfg;
  m->cfg.max_peers = or_default(cfg->max_peers, 4096);
  m->cfg.max_requests = or_default(cfg->max_requests, 65536);
  m->cfg.max_parked = or_default(cfg->max_parked, 4096);
  m->cfg.tombstones = or_default(cfg->tombstones, 4096);
  m->cfg.main_ranks = or_default(cfg->main_ranks, 1);
  m->cfg.max_quarantined = or_default(cfg->max_quarantined, 4096);
  m->cfg.park_ns = or_default_ns(cfg->park_ns, 2000);
  m->cfg.queue_ns = or_default_ns(cfg->queue_ns, 600000);
  m->cfg.progress_ns = or_default_ns(cfg->progress_ns, 120000);
  m->cfg.probe_ns = or_default_ns(cfg->probe_ns, 1000);
  m->cfg.legacy_hold_ns = or_default_ns(cfg->legacy_hold_ns, 240000);
  m->wait_head = m->wait_tail = m->oldest = m->newest = RD2H_INDEX_NONE;
  rd2h_slab_init(&m->peers, sizeof(struct dm_peer), m->cfg.max_peers);
  rd2h_slab_init(&m->batches, sizeof(struct dm_batch), 1u << 20);
  rd2h_slab_init(&m->reqs, sizeof(struct dm_req), m->cfg.max_requests);
  m->by_id = rd2h_map_create();
  m->by_ext = rd2h_map_create();
  m->tomb_map = rd2h_map_create();
  m->tomb = rd2h_calloc(m->cfg.tombstones, sizeof *m->tomb);
  bool spare = dm_reserve(m) && rd2h_slab_reserve(&m->batches, DM_SPARE) == RD2H_OK && rd2h_buf_room(&m->text, TEXT_BYTES);
  if (!m->by_id || !m->by_ext || !m->tomb_map || !m->tomb || !spare) {
    rd2h_dm_destroy(m);
    return rd2h_nomem(err, "decode machine");
  }
  *out = m;
  return RD2H_OK;
}

void rd2h_dm_destroy(rd2h_dm *m) {
  if (!m) return;
  for (uint32_t i = 0; i < m->reqs.next; i++)
    if (rd2h_slab_live(&m->reqs, i)) dm_req_free(dm_req(m, i));
  for (uint32_t i = 0; i < m->peers.next; i++)
    if (rd2h_slab_live(&m->peers, i)) {
      rd2h_free(dm_peer(m, i)->link);
      rd2h_map_destroy(dm_peer(m, i)->extra);
    }
  if (m->tomb)
    for (uint32_t i = 0; i < m->cfg.tombstones; i++) rd2h_free(m->tomb[i].ext);
  rd2h_free(m->tomb);
  rd2h_map_destroy(m->by_id);
  rd2h_map_destroy(m->by_ext);
  rd2h_map_destroy(m->tomb_map);
  rd2h_slab_free(&m->peers);
  rd2h_slab_free(&m->batches);
  rd2h_slab_free(&m->reqs);
  rd2h_heap_free(&m->timers);
  rd2h_buf_free(&m->text);
  for (uint32_t i = m->act_head; i < m->act_n; i++) rd2h_free(m->act[i].id);
  rd2h_free(m->spent);
  rd2h_free(m->act);
  rd2h_free(m);
}

static bool act_room(rd2h_dm *m, uint32_t more) {
  if (m->act_head == m->act_n) m->act_head = m->act_n = 0;
  if (m->act_cap - m->act_n >= more) return true;
  struct dm_act *a = act_grow(m->act, sizeof *a, m->act_n, more, &m->act_cap);
  if (a) m->act = a;
  return a != NULL;
}

/* A record sets at most two deadlines before the next one is made; every peer may set one at any time. A spare batch is answered and
 * its message given back. */
bool dm_reserve(rd2h_dm *m) {
  return act_room(m, 8 * (m->peers.live + m->batches.live + m->reqs.live + 1) + 2 * DM_SPARE) &&
         rd2h_heap_reserve(&m->timers, m->peers.live + 4) == RD2H_OK;
}

struct rd2h_da *dm_emit(rd2h_dm *m, enum rd2h_da_kind kind, uint32_t peer, char *id, const char *text) {
  if (!act_room(m, 1)) { /* only notices to many contributors pass what dm_reserve() set aside */
    RD2H_ERR("rd2h decode: out of memory, an action of kind %d for peer %u is lost", (int)kind, peer);
    rd2h_free(id);
    return &m->lost;
  }
  struct dm_act *x = &m->act[m->act_n++];
  memset(x, 0, sizeof *x);
  x->a.kind = kind;
  x->a.peer = peer;
  x->a.batch = x->a.layer_idx = RD2H_INDEX_NONE;
  x->id = id;
  x->text = text ? act_keep_text(&m->text, text) : SIZE_MAX;
  return &x->a;
}

bool rd2h_dm_next(rd2h_dm *m, struct rd2h_da *out) {
  rd2h_free(m->spent);
  m->spent = NULL;
  if (m->act_head == m->act_n) {
    m->act_head = m->act_n = 0;
    rd2h_buf_reset(&m->text);
    return false;
  }
  const struct dm_act *x = &m->act[m->act_head++];
  *out = x->a;
  m->spent = x->id;
  out->id = x->id ? x->id : "";
  out->text = x->text == SIZE_MAX ? "" : (const char *)m->text.p + x->text;
  return true;
}

/* ---- timers: a key names kind, record and the low bits of its generation; a stale one means nothing ---- */
void dm_timer(rd2h_dm *m, uint64_t at, enum dm_timer kind, uint32_t index, uint32_t gen) {
  uint64_t key = (uint64_t)kind << 56 | (uint64_t)(gen & 0xffffff) << 32 | index;
  if (rd2h_heap_push(&m->timers, at, key) != RD2H_OK) RD2H_ERR("rd2h decode: out of memory, a deadline is lost");
}

static void timer_due(rd2h_dm *m, uint64_t key, uint64_t now) {
  uint32_t index = (uint32_t)key, gen = (uint32_t)(key >> 32) & 0xffffff;
  switch ((enum dm_timer)(key >> 56)) {
  case DM_TIMER_REQ:
    if (rd2h_slab_live(&m->reqs, index) && (dm_req(m, index)->gen & 0xffffff) == gen) dm_req_due(m, index, now);
    break;
  case DM_TIMER_WAIT:
    if (rd2h_slab_live(&m->batches, index) && dm_batch(m, index)->in_wait) dm_wait_due(m, index, now);
    break;
  case DM_TIMER_PROBE:
    if (rd2h_slab_live(&m->peers, index) && (dm_peer(m, index)->gen & 0xffffff) == gen) dm_peer_probe_due(m, index, now);
    break;
  }
}

void rd2h_dm_tick(rd2h_dm *m, uint64_t now) {
  uint64_t key;
  m->now = now;
  while (rd2h_heap_pop(&m->timers, now, &key)) timer_due(m, key, now);
}

uint64_t rd2h_dm_next_deadline(const rd2h_dm *m) { return rd2h_heap_next(&m->timers); }

void rd2h_dm_stats(const rd2h_dm *m, struct rd2h_dm_stats *st) {
  *st = m->st;
  st->peers = m->peers.live;
  st->requests = m->reqs.live;
  st->parked_now = m->n_wait;
  st->oldest = m->oldest == RD2H_INDEX_NONE ? 0 : dm_req(m, m->oldest)->installed;
}
