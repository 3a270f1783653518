/* SPDX-License-Identifier: Apache-2.0 */
/* The decode machine's requests: destinations from installation to the one report, contributors, coverage, tombstones. */
#include "protocol/dm_internal.h"
#include <stdio.h>

uint32_t dm_req_by_ext(const rd2h_dm *m, struct rd2h_str ext) { return rd2h_map_get(m->by_ext, ext.p, ext.n); }

void dm_req_free(struct dm_req *r) {
  rd2h_free(r->id);
  rd2h_free(r->ext);
  rd2h_free(r->main);
  rd2h_free(r->slot);
  rd2h_free(r->high);
}

/* ---- tombstones: the last ended ids, so that what still comes for them is known to be late ---- */
static struct dm_tomb *tomb_find(const rd2h_dm *m, struct rd2h_str ext) {
  uint32_t i = rd2h_map_get(m->tomb_map, ext.p, ext.n);
  return i == RD2H_INDEX_NONE ? NULL : &m->tomb[i];
}

static bool tomb_has(const struct dm_tomb *t, const uint8_t *attempt) {
  for (uint32_t i = 0; i < t->n_attempts; i++)
    if (!memcmp(t->attempt[i], attempt, RD2H_ATTEMPT)) return true;
  return false;
}

bool dm_tomb_match(const rd2h_dm *m, const struct rd2h_wire_req *w) {
  const struct dm_tomb *t = tomb_find(m, w->id);
  return t && (!w->has_attempt || tomb_has(t, w->attempt));
}

bool dm_tomb_refused(const rd2h_dm *m, struct rd2h_str ext, uint64_t now) {
  const struct dm_tomb *t = tomb_find(m, ext);
  return t && t->refused_until > now;
}

void dm_tomb_put(rd2h_dm *m, struct rd2h_str ext, const uint8_t *attempt, uint64_t refused_until) {
  struct dm_tomb *t = tomb_find(m, ext);
  if (!t) {
    uint32_t i = m->tomb_next;
    char *copy = rd2h_strndup(ext.p, ext.n);
    if (!copy || rd2h_map_put(m->tomb_map, ext.p, ext.n, i) != RD2H_OK) {
      rd2h_free(copy); /* without a tombstone a late message is parked and then skipped: slower, not wrong */
      return;
    }
    t = &m->tomb[i];
    if (t->ext) rd2h_map_del(m->tomb_map, t->ext, t->ext_n);
    rd2h_free(t->ext);
    t->ext = copy;
    t->ext_n = ext.n;
    t->refused_until = 0;
    t->n_attempts = t->next_attempt = 0;
    m->tomb_next = (i + 1) % m->cfg.tombstones;
  }
  if (attempt && !tomb_has(t, attempt)) {
    memcpy(t->attempt[t->next_attempt], attempt, RD2H_ATTEMPT);
    t->next_attempt = (t->next_attempt + 1) % DM_TOMB_ATTEMPTS;
    if (t->n_attempts < DM_TOMB_ATTEMPTS) t->n_attempts++;
  }
  if (refused_until > t->refused_until) t->refused_until = refused_until; /* a later tombstone does not lift it */
}

/* ---- installation ---- */
/* Its READYs may come all the same: the tombstone lets them be skipped instead of parked. */
static int report_at_once(rd2h_dm *m, const struct rd2h_dm_grant *g, int status, const char *text, struct rd2h_error *err) {
  char *copy = rd2h_strndup(g->id.p, g->id.n);
  if (!copy) return rd2h_nomem(err, "request");
  m->st.failed_other++;
  if (g->ext_id.n && g->ext_id.n <= RD2H_WIRE_MAX_ID && dm_req_by_ext(m, g->ext_id) == RD2H_INDEX_NONE)
    dm_tomb_put(m, g->ext_id, g->attempt, 0);
  dm_wait_recheck(m, m->now);
  dm_emit(m, RD2H_DA_REPORT, RD2H_INDEX_NONE, copy, text)->status = status;
  return RD2H_OK;
}

static bool part_problem(const char *part, const uint32_t *ids, uint32_t n, uint32_t need, uint32_t floor, uint64_t blocks, char *text) {
  if (need > n) snprintf(text, DM_TEXT, "%u %s blocks were allocated, its prompt needs %u", n, part, need);
  else if (floor > n) snprintf(text, DM_TEXT, "%u of its %s blocks are said to be cached, it has %u", floor, part, n);
  for (uint32_t i = 0; i < n && !text[0]; i++)
    if (ids[i] >= blocks)
      snprintf(text, DM_TEXT, "%s block %u is outside the cache, which has %llu", part, ids[i], (unsigned long long)blocks);
  return text[0] != 0;
}

static bool grant_problem(const struct rd2h_dm_grant *g, const struct rd2h_layout *l, char text[DM_TEXT]) {
  text[0] = 0;
  if (!g->id.n || !g->ext_id.n || g->ext_id.n > RD2H_WIRE_MAX_ID) snprintf(text, DM_TEXT, "its id is empty or too long");
  return text[0] || part_problem("main", g->main, g->n_main, g->main_need, g->main_floor, l->num_blocks, text) ||
         part_problem("indexer", g->indexer, g->n_indexer, g->indexer_need, g->indexer_floor, l->num_blocks, text);
}

static int fill_request(struct dm_req *r, const struct rd2h_dm_grant *g) {
  size_t n = (size_t)g->n_main + g->n_indexer;
  r->id = rd2h_strndup(g->id.p, g->id.n);
  r->ext = rd2h_strndup(g->ext_id.p, g->ext_id.n);
  r->main = rd2h_alloc((n ? n : 1) * sizeof(uint32_t));
  if (!r->id || !r->ext || !r->main) return RD2H_NOMEM;
  r->indexer = r->main + g->n_main;
  if (g->n_main) memcpy(r->main, g->main, g->n_main * sizeof(uint32_t));
  if (g->n_indexer) memcpy(r->indexer, g->indexer, g->n_indexer * sizeof(uint32_t));
  r->id_n = g->id.n;
  r->ext_n = g->ext_id.n;
  memcpy(r->attempt, g->attempt, RD2H_ATTEMPT);
  r->n_main = g->n_main;
  r->n_indexer = g->n_indexer;
  r->main_floor = g->main_floor;
  r->indexer_floor = g->indexer_floor;
  r->main_need = g->main_need;
  r->indexer_need = g->indexer_need;
  return RD2H_OK;
}

/* ---- requests that have not ended, oldest first ---- */
static void live_add(rd2h_dm *m, uint32_t i) {
  struct dm_req *r = dm_req(m, i);
  r->newer = RD2H_INDEX_NONE;
  r->older = m->newest;
  if (m->newest == RD2H_INDEX_NONE) m->oldest = i;
  else dm_req(m, m->newest)->newer = i;
  m->newest = i;
}

/* From here on its ids may be used again; what still comes for this attempt finds its tombstone. */
static void live_remove(rd2h_dm *m, uint32_t i) {
  struct dm_req *r = dm_req(m, i);
  bool unsettled = r->status != RD2H_OK && r->legacy && r->slots_done < r->n_slots;
  if (r->older == RD2H_INDEX_NONE) m->oldest = r->newer;
  else dm_req(m, r->older)->newer = r->newer;
  if (r->newer == RD2H_INDEX_NONE) m->newest = r->older;
  else dm_req(m, r->newer)->older = r->older;
  rd2h_map_del(m->by_ext, r->ext, r->ext_n);
  dm_tomb_put(m, (struct rd2h_str){r->ext, r->ext_n}, r->attempt, unsettled ? m->now + m->cfg.legacy_hold_ns : 0);
}

/* Looked at again every 10 s at the latest, so that what ended requests leave in the heap is bounded by recent ones; and no later
 * than a limit that a first READY may set meanwhile. */
static void dm_req_arm(rd2h_dm *m, uint32_t i, uint64_t limit, uint64_t now) {
  uint64_t again = 10000 * RD2H_MS, soon = now + (m->cfg.progress_ns < again ? m->cfg.progress_ns : again);
  dm_timer(m, limit < soon ? limit : soon, DM_TIMER_REQ, i, dm_req(m, i)->gen);
}

int rd2h_dm_install(rd2h_dm *m, const struct rd2h_dm_grant *g, uint64_t now, struct rd2h_error *err) {
  m->now = now;
  if (rd2h_map_get(m->by_id, g->id.p, g->id.n) != RD2H_INDEX_NONE)
    return rd2h_fail(err, RD2H_EXISTS, "request %.*s is installed already", (int)g->id.n, g->id.p);
  if (!dm_reserve(m)) return rd2h_nomem(err, "request");
  char why[DM_TEXT];
  if (grant_problem(g, m->cfg.layout, why)) return report_at_once(m, g, RD2H_RANGE, why, err);
  if (dm_req_by_ext(m, g->ext_id) != RD2H_INDEX_NONE)
    return report_at_once(m, g, RD2H_EXISTS, "another live request has the same external id", err);
  if (dm_tomb_refused(m, g->ext_id, now))
    return report_at_once(m, g, RD2H_REFUSED, "an earlier request of this id may still be served by its Prefill; use a new id", err);
  if (m->st.quarantined >= m->cfg.max_quarantined)
    return report_at_once(m, g, RD2H_LIMIT, "too many ended requests wait for the end of their reads", err);
  uint32_t i = rd2h_slab_take(&m->reqs);
  if (i == RD2H_INDEX_NONE) return report_at_once(m, g, RD2H_LIMIT, "too many requests wait for KV (max_requests)", err);
  struct dm_req *r = dm_req(m, i);
  if (fill_request(r, g) != RD2H_OK) goto undo_record;
  if (rd2h_map_put(m->by_id, g->id.p, g->id.n, i) != RD2H_OK) goto undo_record;
  if (rd2h_map_put(m->by_ext, g->ext_id.p, g->ext_id.n, i) != RD2H_OK) goto undo_id;
  r->gen = ++m->gen;
  r->installed = r->progress = now;
  live_add(m, i);
  dm_req_arm(m, i, now + m->cfg.queue_ns, now);
  dm_wait_recheck(m, now);
  return RD2H_OK;
undo_id:
  rd2h_map_del(m->by_id, g->id.p, g->id.n);
undo_record:
  dm_req_free(r);
  rd2h_slab_give(&m->reqs, i);
  return rd2h_nomem(err, "request");
}

/* ---- the end ---- */
static void count_end(rd2h_dm *m, int status) {
  uint64_t *const by_cause[] = {
      [RD2H_CAUSE_NONE] = &m->st.completed, [RD2H_CAUSE_ABORTED] = &m->st.aborted,
      [RD2H_CAUSE_TRANSPORT] = &m->st.failed_transport, [RD2H_CAUSE_PEER] = &m->st.failed_peer_lost,
      [RD2H_CAUSE_LAYOUT] = &m->st.failed_layout, [RD2H_CAUSE_EXPIRED] = &m->st.failed_expired,
      [RD2H_CAUSE_OTHER] = &m->st.failed_other};
  ++*by_cause[rd2h_status_cause(status)];
}

static void report(rd2h_dm *m, uint32_t i) {
  struct dm_req *r = dm_req(m, i);
  for (uint32_t k = 0; k < r->n_slots; k++) {
    const struct dm_slot *s = &r->slot[k];
    if (s->bound && !s->done && rd2h_slab_live(&m->peers, s->peer) && dm_peer(m, s->peer)->gen == s->peer_gen)
      dm_peer(m, s->peer)->n_bound--;
  }
  rd2h_map_del(m->by_id, r->id, r->id_n);
  if (r->status != RD2H_OK) {
    m->st.quarantined--;
    m->st.quarantined_blocks -= (uint64_t)r->n_main + r->n_indexer;
  }
  dm_emit(m, RD2H_DA_REPORT, RD2H_INDEX_NONE, r->id, r->text)->status = r->status;
  r->id = NULL;
  dm_req_free(r);
  rd2h_slab_give(&m->reqs, i);
}

static void tell_contributors(rd2h_dm *m, const struct dm_req *r, uint32_t cause_peer) {
  for (uint32_t k = 0; k < r->n_slots; k++) {
    const struct dm_slot *s = &r->slot[k];
    if (!s->bound || s->done || s->peer == cause_peer || !rd2h_slab_live(&m->peers, s->peer)) continue;
    const struct dm_peer *p = dm_peer(m, s->peer);
    if (p->gen != s->peer_gen || p->state != DM_PEER_READY || !(p->caps & RD2H_CAP_CANCEL)) continue;
    struct rd2h_da *a = dm_emit(m, RD2H_DA_SEND_CANCEL, s->peer, rd2h_strndup(r->ext, r->ext_n), r->text);
    a->status = r->status;
    memcpy(a->attempt, r->attempt, RD2H_ATTEMPT);
  }
}

void dm_req_end(rd2h_dm *m, uint32_t i, int status, const char *text, uint32_t cause_peer) {
  struct dm_req *r = dm_req(m, i);
  if (r->ended) return;
  r->ended = true;
  r->status = status;
  snprintf(r->text, sizeof r->text, "%s", text);
  count_end(m, status);
  m->st.quarantined++;
  m->st.quarantined_blocks += (uint64_t)r->n_main + r->n_indexer;
  live_remove(m, i);
  tell_contributors(m, r, cause_peer);
  dm_req_settle(m, i);
}

/* Which layer lacks blocks, RD2H_INDEX_NONE when all are there. A layer is covered by one pipeline stage: main by its member 0,
 * the indexer by all its members. */
static bool stage_covers(const struct dm_req *r, uint32_t n_layers, uint32_t stage, uint32_t layer, bool has_indexer) {
  const uint32_t *h = &r->high[((size_t)stage * r->ratio * n_layers + layer) * 2];
  if (h[0] < r->main_need) return false;
  for (uint32_t k = 0; has_indexer && k < r->ratio; k++)
    if (h[(size_t)k * n_layers * 2 + 1] < r->indexer_need) return false;
  return true;
}

static uint32_t uncovered_layer(const rd2h_dm *m, const struct dm_req *r) {
  const struct rd2h_layout *l = m->cfg.layout;
  for (uint32_t i = 0; i < l->n_layers; i++) {
    bool covered = false;
    for (uint32_t s = 0; s < r->pp_size && !covered; s++) covered = stage_covers(r, l->n_layers, s, i, l->layer[i].has_indexer);
    if (!covered) return i;
  }
  return RD2H_INDEX_NONE;
}

void dm_req_settle(rd2h_dm *m, uint32_t i) {
  struct dm_req *r = dm_req(m, i);
  if (r->inflight) return;
  if (!r->ended) {
    if (!r->n_slots || r->slots_done < r->n_slots) return;
    uint32_t missing = uncovered_layer(m, r);
    if (missing == RD2H_INDEX_NONE) {
      r->ended = true;
      m->st.completed++;
      live_remove(m, i);
    } else {
      char text[DM_TEXT];
      snprintf(text, sizeof text, "Prefill said done, but layer %s is not complete (%u main and %u indexer blocks are needed)",
               m->cfg.layout->layer[missing].name, r->main_need, r->indexer_need);
      dm_req_end(m, i, RD2H_LAYOUT, text, RD2H_INDEX_NONE); /* comes back here and reports */
      return;
    }
  }
  report(m, i);
}

int rd2h_dm_end(rd2h_dm *m, struct rd2h_str id, int status, const char *text, uint64_t now) {
  m->now = now;
  uint32_t i = rd2h_map_get(m->by_id, id.p, id.n);
  if (i == RD2H_INDEX_NONE || dm_req(m, i)->ended) return RD2H_NOT_FOUND;
  dm_req_end(m, i, status, text && text[0] ? text : rd2h_status_text(status), RD2H_INDEX_NONE);
  return RD2H_OK;
}

void rd2h_dm_answered(rd2h_dm *m, struct rd2h_str id, uint64_t now) {
  uint32_t i = rd2h_map_get(m->by_id, id.p, id.n);
  struct dm_req *r = i == RD2H_INDEX_NONE ? NULL : dm_req(m, i);
  if (!r || r->ended || r->started || r->answered) return;
  r->answered = true;
  r->progress = now;
}

void dm_req_due(rd2h_dm *m, uint32_t i, uint64_t now) {
  struct dm_req *r = dm_req(m, i);
  char text[DM_TEXT];
  if (r->ended) return;
  uint64_t limit = r->started || r->answered ? r->progress + m->cfg.progress_ns : r->installed + m->cfg.queue_ns;
  if (now < limit) {
    dm_req_arm(m, i, limit, now);
    return;
  }
  if (r->started)
    snprintf(text, sizeof text, "no progress for %llu ms (progress_ms): Prefill published nothing and no read ended",
             (unsigned long long)(m->cfg.progress_ns / RD2H_MS));
  else if (r->answered)
    snprintf(text, sizeof text, "Prefill finished %llu ms ago, as the answer to the rendezvous says, and has published nothing "
             "(progress_ms)", (unsigned long long)(m->cfg.progress_ns / RD2H_MS));
  else
    snprintf(text, sizeof text, "Prefill published nothing within %llu ms of installation (queue_ms)",
             (unsigned long long)(m->cfg.queue_ns / RD2H_MS));
  dm_req_end(m, i, RD2H_TIMEOUT, text, RD2H_INDEX_NONE);
}

/* ---- contributors ---- */
static int open_slots(rd2h_dm *m, struct dm_req *r, uint32_t ratio, uint32_t pp_size) {
  uint32_t n = ratio * pp_size, layers = m->cfg.layout->n_layers;
  struct dm_slot *slot = rd2h_calloc(n, sizeof *slot);
  uint32_t *high = rd2h_calloc((size_t)n * layers, 2 * sizeof *high);
  if (!slot || !high) {
    rd2h_free(slot);
    rd2h_free(high);
    return RD2H_NOMEM;
  }
  for (size_t k = 0; k < (size_t)n * layers; k++) {
    high[2 * k] = r->main_floor;
    high[2 * k + 1] = r->indexer_floor;
  }
  r->slot = slot;
  r->high = high;
  r->n_slots = n;
  r->ratio = ratio;
  r->pp_size = pp_size;
  return RD2H_OK;
}

/* The contributor slot that this peer serves with `msg`, or NULL and why not. The first peer that serves a slot keeps it. */
static struct dm_slot *take_slot(rd2h_dm *m, struct dm_req *r, uint32_t peer, const struct rd2h_wire_ready *msg, int *status, char *text) {
  struct dm_peer *p = dm_peer(m, peer);
  *status = RD2H_NOMEM;
  if (!r->n_slots && open_slots(m, r, msg->ratio, p->pp_size) != RD2H_OK) {
    snprintf(text, DM_TEXT, "out of memory");
    return NULL;
  }
  if (r->ratio != msg->ratio || r->pp_size != p->pp_size) {
    snprintf(text, DM_TEXT, "contributors changed from %u per stage of %u stages to %u of %u", r->ratio, r->pp_size, msg->ratio,
             p->pp_size);
    *status = RD2H_LAYOUT;
    return NULL;
  }
  struct dm_slot *s = &r->slot[p->pp_rank * r->ratio + msg->member];
  if (s->bound && (s->peer != peer || s->peer_gen != p->gen)) {
    snprintf(text, DM_TEXT, "contributor %u of stage %u of this request is served by another connection", msg->member, p->pp_rank);
    *status = RD2H_REFUSED;
    return NULL;
  }
  if (!s->bound) {
    *s = (struct dm_slot){.peer = peer, .peer_gen = p->gen, .bound = true};
    p->n_bound++;
    r->legacy |= !p->ours;
  }
  return s;
}

/* Blocks must come without a gap: what is never announced must not count as done. Moves the mark when they do. */
static bool extend(uint32_t *high, uint32_t start, uint32_t n, const char *what, const char *layer, char *text) {
  if (!n) return true;
  if (start > *high) {
    snprintf(text, DM_TEXT, "layer %.150s: %s blocks from %u were announced, those from %u never were", layer, what, start, *high);
    return false;
  }
  uint64_t end = (uint64_t)start + n;
  if (end > *high) *high = end > UINT32_MAX ? UINT32_MAX : (uint32_t)end;
  return true;
}

static const char *const bad_text[] = {"", "a block id is outside 0 to 2^31 - 1", "a start block is outside 0 to 2^31 - 1",
                                       "a block list is too long"};

int dm_req_admit(rd2h_dm *m, uint32_t i, uint32_t peer, const struct dm_batch *b, const struct rd2h_wire_req *w, uint64_t now,
                 char text[DM_TEXT]) {
  struct dm_req *r = dm_req(m, i);
  const struct rd2h_layer *l = &m->cfg.layout->layer[b->layer];
  int status;
  if (r->ended || (w->has_attempt && memcmp(w->attempt, r->attempt, RD2H_ATTEMPT))) return RD2H_SKIPPED;
  struct dm_slot *s = take_slot(m, r, peer, b->msg, &status, text);
  if (!s && status == RD2H_REFUSED) return status;
  if (!s) goto end;
  if (s->done) return RD2H_SKIPPED;
  status = RD2H_RANGE;
  if (w->bad) {
    snprintf(text, DM_TEXT, "layer %.150s: %s", l->name, bad_text[w->bad < RD2H_COUNT(bad_text) ? w->bad : 1]);
    goto end;
  }
  uint32_t *high = &r->high[((size_t)(s - r->slot) * m->cfg.layout->n_layers + b->layer) * 2];
  status = RD2H_LAYOUT;
  if (b->msg->member == 0 && !extend(&high[0], w->main_start, w->n_main, "main", l->name, text)) goto end;
  if (l->has_indexer && !extend(&high[1], w->indexer_start, w->n_indexer, "indexer", l->name, text)) goto end;
  r->started = true;
  r->progress = now;
  r->inflight++;
  return RD2H_OK;
end:
  dm_req_end(m, i, status, text, peer);
  return status;
}

void dm_req_done(rd2h_dm *m, uint32_t peer, const struct rd2h_wire_ready *msg, const struct rd2h_wire_done *d, uint64_t now) {
  uint32_t i = dm_req_by_ext(m, d->id);
  char text[DM_TEXT];
  int status;
  if (i == RD2H_INDEX_NONE) return;
  struct dm_req *r = dm_req(m, i);
  if (r->ended || (d->has_attempt && memcmp(d->attempt, r->attempt, RD2H_ATTEMPT))) return;
  struct dm_slot *s = take_slot(m, r, peer, msg, &status, text);
  if (!s) {
    if (status != RD2H_REFUSED) dm_req_end(m, i, status, text, peer);
    return;
  }
  if (s->done) return;
  s->done = true;
  dm_peer(m, peer)->n_bound--;
  r->slots_done++;
  r->started = true;
  r->progress = now;
  dm_req_settle(m, i);
}

/* Prefill says that it will not go on with a request. The nonce proves that it means this attempt. */
void rd2h_dm_cancel(rd2h_dm *m, uint32_t peer, const struct rd2h_wire_cancel *c, uint64_t now) {
  uint32_t i = dm_req_by_ext(m, c->id);
  char text[DM_TEXT];
  m->now = now;
  if (i == RD2H_INDEX_NONE || !c->has_attempt || memcmp(c->attempt, dm_req(m, i)->attempt, RD2H_ATTEMPT)) return;
  snprintf(text, sizeof text, "Prefill ended the request: %.*s", (int)(c->text.n > 240 ? 240 : c->text.n), c->text.p ? c->text.p : "");
  dm_req_end(m, i, c->status < 0 ? c->status : RD2H_CANCELED, text, peer);
}

bool dm_req_may_fail(const rd2h_dm *m, uint32_t i, uint32_t peer) {
  const struct dm_req *r = dm_req(m, i);
  const struct dm_peer *p = dm_peer(m, peer);
  bool bound = false;
  if (p->state != DM_PEER_READY && p->state != DM_PEER_REFUSED) return false;
  for (uint32_t k = 0; k < r->n_slots; k++) {
    if (!r->slot[k].bound) continue;
    if (r->slot[k].peer == peer && r->slot[k].peer_gen == p->gen) return true;
    bound = true;
  }
  return !bound;
}
