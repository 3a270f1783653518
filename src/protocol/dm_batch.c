/* SPDX-License-Identifier: Apache-2.0 */
/* The decode machine's batches: a READY is admitted request by request, planned, read, and answered in its turn. Requests whose
 * destinations are not installed yet wait; the others of the message do not wait for them. */
#include "protocol/dm_internal.h"
#include <stdio.h>

/* ---- lists ---- */
static void link_batch(rd2h_dm *m, uint32_t i) {
  struct dm_batch *b = dm_batch(m, i);
  struct dm_peer *p = dm_peer(m, b->peer);
  b->next = RD2H_INDEX_NONE;
  b->prev = p->tail;
  if (p->tail == RD2H_INDEX_NONE) p->head = i;
  else dm_batch(m, p->tail)->next = i;
  p->tail = i;
  p->n_batches++;
}

static void unlink_batch(rd2h_dm *m, uint32_t i) {
  struct dm_batch *b = dm_batch(m, i);
  struct dm_peer *p = dm_peer(m, b->peer);
  if (b->prev == RD2H_INDEX_NONE) p->head = b->next;
  else dm_batch(m, b->prev)->next = b->next;
  if (b->next == RD2H_INDEX_NONE) p->tail = b->prev;
  else dm_batch(m, b->next)->prev = b->prev;
  p->n_batches--;
}

static void wait_add(rd2h_dm *m, uint32_t i, uint64_t now) {
  struct dm_batch *b = dm_batch(m, i);
  b->in_wait = true;
  b->wait_until = now + m->cfg.park_ns;
  b->wait_next = RD2H_INDEX_NONE;
  b->wait_prev = m->wait_tail;
  if (m->wait_tail == RD2H_INDEX_NONE) m->wait_head = i;
  else dm_batch(m, m->wait_tail)->wait_next = i;
  m->wait_tail = i;
  m->n_wait++;
  m->st.parked++;
  dm_timer(m, b->wait_until, DM_TIMER_WAIT, i, 0);
}

static void wait_remove(rd2h_dm *m, uint32_t i) {
  struct dm_batch *b = dm_batch(m, i);
  if (!b->in_wait) return;
  if (b->wait_prev == RD2H_INDEX_NONE) m->wait_head = b->wait_next;
  else dm_batch(m, b->wait_prev)->wait_next = b->wait_next;
  if (b->wait_next == RD2H_INDEX_NONE) m->wait_tail = b->wait_prev;
  else dm_batch(m, b->wait_next)->wait_prev = b->wait_prev;
  b->in_wait = false;
  m->n_wait--;
}

/* ---- admission ---- */
static void note_failure(struct dm_batch *b, const char *text) {
  if (!b->text[0]) snprintf(b->text, sizeof b->text, "%.*s", DM_TEXT - 1, text);
}

/* Decides about one request of the message, as far as that is possible now. */
static void admit(rd2h_dm *m, uint32_t i, struct rd2h_wire_req *w, uint64_t now) {
  struct dm_batch *b = dm_batch(m, i);
  char text[DM_TEXT] = "";
  uint32_t r = dm_req_by_ext(m, w->id);
  if (r == RD2H_INDEX_NONE) {
    if (dm_tomb_match(m, w)) {
      w->status = RD2H_SKIPPED;
      m->st.skipped++;
    } else if (w->status != DM_WAITING) {
      w->status = DM_WAITING;
      b->n_waiting++;
    }
    return;
  }
  w->handle = r;
  w->status = dm_req_admit(m, r, b->peer, b, w, now, text);
  if (w->status == RD2H_OK) {
    w->status = DM_PENDING;
    b->n_pending++;
  } else if (w->status == RD2H_SKIPPED) {
    m->st.skipped++;
  } else {
    note_failure(b, text);
  }
}

static void readmit(rd2h_dm *m, uint32_t i, uint64_t now) {
  struct dm_batch *b = dm_batch(m, i);
  for (uint32_t k = 0; k < b->msg->n_reqs && b->n_waiting; k++) {
    struct rd2h_wire_req *w = &b->msg->req[k];
    if (w->status != DM_WAITING) continue;
    admit(m, i, w, now);
    if (w->status != DM_WAITING) b->n_waiting--;
  }
  if (!b->n_waiting) wait_remove(m, i);
  dm_batch_step(m, i, now);
}

/* Something was installed or ended: requests that wait are looked at again, oldest message first. */
void dm_wait_recheck(rd2h_dm *m, uint64_t now) {
  for (uint32_t i = m->wait_head, next; i != RD2H_INDEX_NONE; i = next) {
    next = dm_batch(m, i)->wait_next;
    readmit(m, i, now);
  }
}

static void give_up_waiting(rd2h_dm *m, uint32_t i) {
  struct dm_batch *b = dm_batch(m, i);
  for (uint32_t k = 0; k < b->msg->n_reqs; k++) {
    struct rd2h_wire_req *w = &b->msg->req[k];
    if (w->status != DM_WAITING) continue;
    dm_tomb_put(m, w->id, w->has_attempt ? w->attempt : NULL, 0);
    w->status = RD2H_SKIPPED;
    m->st.skipped++;
    b->n_waiting--;
  }
  wait_remove(m, i);
}

void dm_wait_due(rd2h_dm *m, uint32_t i, uint64_t now) {
  if (now < dm_batch(m, i)->wait_until) return;
  give_up_waiting(m, i);
  dm_batch_step(m, i, now);
  dm_wait_recheck(m, now); /* the same ids in younger messages are decided by the tombstones now */
}

/* *spare: there is no memory for what serving it may take, it can only be answered failed; such a batch comes from what is set aside,
 * so that the peer gets its answers in order. NONE: that is used up, too. */
static uint32_t new_batch(rd2h_dm *m, uint32_t peer, uint32_t layer_idx, bool *spare) {
  *spare = !dm_reserve(m) || rd2h_slab_reserve(&m->batches, DM_SPARE + 1) != RD2H_OK;
  uint32_t i = rd2h_slab_take(&m->batches);
  if (i == RD2H_INDEX_NONE) return i;
  struct dm_batch *b = dm_batch(m, i);
  b->peer = peer;
  b->layer_idx = layer_idx;
  b->layer = RD2H_INDEX_NONE;
  link_batch(m, i);
  return i;
}

/* What is wrong with the whole message, if anything. */
static bool layer_problem(const rd2h_dm *m, const struct dm_peer *p, const struct rd2h_wire_ready *msg, uint32_t *layer, char *text) {
  const char *name = msg->layer.p;
  int n = (int)(msg->layer.n > 200 ? 200 : msg->layer.n);
  if (p->state == DM_PEER_REFUSED) snprintf(text, DM_TEXT, "this connection was refused: %.240s", p->why);
  else if (p->state != DM_PEER_READY) snprintf(text, DM_TEXT, "layer %.*s was announced before this connection's metadata", n, name);
  else if (msg->member >= msg->ratio || (uint64_t)msg->ratio * p->pp_size > DM_MAX_SLOTS)
    snprintf(text, DM_TEXT, "contributor %u of %u (pipeline size %u) is not possible, layer %.*s", msg->member, msg->ratio, p->pp_size,
             n, name);
  else {
    const struct rd2h_layout *l = m->cfg.layout;
    uint32_t at = rd2h_map_get(l->by_name, name, msg->layer.n);
    if (at != RD2H_INDEX_NONE && p->link[at].n_parts && strlen(l->layer[at].name) == msg->layer.n &&
        !memcmp(l->layer[at].name, name, msg->layer.n)) {
      *layer = at;
      return false;
    }
    if (p->extra && rd2h_map_get(p->extra, name, msg->layer.n) != RD2H_INDEX_NONE) return false; /* nothing of it is wanted here */
    snprintf(text, DM_TEXT, "layer %.*s is not in this connection's metadata", n, name);
  }
  return true;
}

/* A message that cannot be served ends the requests it names: this peer will never fill that layer of them. */
static void fail_named(rd2h_dm *m, uint32_t peer, const struct rd2h_wire_ready *msg, int status, const char *text) {
  for (uint32_t k = 0; k < msg->n_reqs + msg->n_done; k++) {
    bool is_req = k < msg->n_reqs;
    struct rd2h_wire_req w = {0};
    if (is_req) w = msg->req[k];
    else {
      const struct rd2h_wire_done *d = &msg->done[k - msg->n_reqs];
      w.id = d->id;
      w.has_attempt = d->has_attempt;
      memcpy(w.attempt, d->attempt, RD2H_ATTEMPT);
    }
    uint32_t r = dm_req_by_ext(m, w.id);
    if (is_req) msg->req[k].status = status;
    if (r == RD2H_INDEX_NONE || (w.has_attempt && memcmp(w.attempt, dm_req(m, r)->attempt, RD2H_ATTEMPT))) continue;
    if (dm_req_may_fail(m, r, peer)) dm_req_end(m, r, status, text, peer);
  }
}

#define NO_MEMORY "out of memory at Decode"

/* Not even what is set aside is left: the answer goes out at once, before those of older messages, which is better than none, and the
 * connection cannot go on. */
static void answer_at_once(rd2h_dm *m, uint32_t peer, uint32_t layer_idx, const uint64_t *seq, uint64_t now) {
  struct rd2h_da *a = dm_emit(m, RD2H_DA_REPLY, peer, NULL, NO_MEMORY);
  a->reply = RD2H_MSG_FAILED;
  a->layer_idx = layer_idx;
  a->ours = dm_peer(m, peer)->ours;
  a->has_seq = seq && a->ours;
  a->seq = seq ? *seq : 0;
  m->st.replies++;
  rd2h_dm_peer_fail(m, peer, NO_MEMORY, now);
}

void rd2h_dm_ready(rd2h_dm *m, uint32_t peer, struct rd2h_wire_ready *msg, uint64_t now) {
  struct dm_peer *p = dm_peer(m, peer);
  m->now = now;
  m->st.messages++;
  bool spare, lost = p->state == DM_PEER_LOST;
  uint32_t i = lost ? RD2H_INDEX_NONE : new_batch(m, peer, msg->layer_idx, &spare);
  if (i == RD2H_INDEX_NONE) {
    if (!lost) answer_at_once(m, peer, msg->layer_idx, msg->has_seq ? &msg->seq : NULL, now);
    dm_emit(m, RD2H_DA_FREE_MSG, peer, NULL, NULL)->msg = msg;
    return;
  }
  struct dm_batch *b = dm_batch(m, i);
  b->msg = msg;
  b->has_seq = msg->has_seq && p->ours;
  b->seq = msg->seq;
  if (spare) snprintf(b->text, sizeof b->text, NO_MEMORY);
  if (spare || layer_problem(m, p, msg, &b->layer, b->text)) {
    b->layer_failed = true;
    fail_named(m, peer, msg, spare ? RD2H_NOMEM : p->state == DM_PEER_REFUSED ? p->refusal : RD2H_LAYOUT, b->text);
  } else {
    m->st.batches++;
    dm_warm(m, msg);
    for (uint32_t k = 0; k < msg->n_reqs; k++) {
      msg->req[k].status = RD2H_OK;
      if (b->layer != RD2H_INDEX_NONE) admit(m, i, &msg->req[k], now);
    }
    if (b->n_waiting) wait_add(m, i, now);
    if (m->n_wait > m->cfg.max_parked) give_up_waiting(m, i);
    dm_peer_arm_probe(m, peer, now);
  }
  dm_batch_step(m, i, now);
}

/* Whose message is not in our hands: its answer is all that is due. */
static void answer_failed_in_turn(rd2h_dm *m, uint32_t peer, uint32_t layer_idx, const uint64_t *seq, const char *text, uint64_t now) {
  const struct dm_peer *p = dm_peer(m, peer);
  bool spare;
  uint32_t i = new_batch(m, peer, layer_idx, &spare);
  if (i == RD2H_INDEX_NONE) {
    answer_at_once(m, peer, layer_idx, seq, now);
    return;
  }
  struct dm_batch *b = dm_batch(m, i);
  b->has_seq = seq && p->ours;
  b->seq = seq ? *seq : 0;
  b->layer_failed = true;
  snprintf(b->text, sizeof b->text, "%s", text);
  dm_batch_step(m, i, now);
}

void rd2h_dm_malformed(rd2h_dm *m, uint32_t peer, uint32_t layer_idx, const uint64_t *seq, const char *text, uint64_t now) {
  m->now = now;
  m->st.malformed++;
  if (dm_peer(m, peer)->state != DM_PEER_LOST && layer_idx != RD2H_INDEX_NONE)
    answer_failed_in_turn(m, peer, layer_idx, seq, text, now);
}

void rd2h_dm_not_held(rd2h_dm *m, uint32_t peer, const struct rd2h_wire_ready *msg, int status, const char *text, uint64_t now) {
  m->now = now;
  m->st.messages++;
  if (dm_peer(m, peer)->state == DM_PEER_LOST) return;
  fail_named(m, peer, msg, status, text);
  answer_failed_in_turn(m, peer, msg->layer_idx, msg->has_seq ? &msg->seq : NULL, text, now);
}

/* ---- planning and reading ---- */
static struct rd2h_plan_request plan_request(const struct dm_req *r, const struct rd2h_wire_req *w, bool has_indexer) {
  return (struct rd2h_plan_request){
      .src_main = w->main, .n_src_main = w->n_main, .main_start = w->main_start,
      .src_indexer = w->indexer, .n_src_indexer = has_indexer ? w->n_indexer : 0, .indexer_start = w->indexer_start,
      .dst_main = r->main, .n_dst_main = r->n_main, .main_floor = r->main_floor,
      .dst_indexer = r->indexer, .n_dst_indexer = r->n_indexer, .indexer_floor = r->indexer_floor};
}

uint64_t rd2h_dm_plan_bound(rd2h_dm *m, uint32_t batch) {
  const struct dm_batch *b = dm_batch(m, batch);
  const struct dm_peer *p = dm_peer(m, b->peer);
  uint64_t n = 0;
  if (p->state != DM_PEER_READY || b->layer == RD2H_INDEX_NONE) return 0;
  const struct rd2h_link *l = &p->link[b->layer];
  for (uint32_t k = 0; k < b->msg->n_reqs; k++) {
    const struct rd2h_wire_req *w = &b->msg->req[k];
    if (w->status != DM_PENDING) continue;
    struct rd2h_plan_request q = plan_request(dm_req(m, w->handle), w, m->cfg.layout->layer[b->layer].has_indexer);
    n += rd2h_plan_bound(l, &q);
  }
  return n;
}

/* What was announced counts as covered: a request whose announced blocks are not going to be read cannot succeed any more. */
static void never_read(rd2h_dm *m, uint32_t req, uint32_t peer) {
  char text[DM_TEXT];
  snprintf(text, sizeof text, "Prefill was lost before its KV was read: %.200s", dm_peer(m, peer)->why);
  dm_req_end(m, req, RD2H_PEER_LOST, text, peer);
}

static void plan_one(rd2h_dm *m, struct dm_batch *b, struct rd2h_wire_req *w, struct rd2h_descs *d) {
  struct dm_peer *p = dm_peer(m, b->peer);
  struct dm_req *r = dm_req(m, w->handle);
  struct rd2h_error err = {0};
  b->n_pending--;
  if (r->ended) {
    w->status = RD2H_SKIPPED;
  } else if (p->state != DM_PEER_READY) {
    w->status = RD2H_PEER_LOST;
    never_read(m, w->handle, b->peer);
  } else {
    struct rd2h_share share = {m->cfg.main_rank, m->cfg.main_ranks, b->msg->member, b->msg->ratio};
    struct rd2h_plan_request q = plan_request(r, w, m->cfg.layout->layer[b->layer].has_indexer);
    int rc = rd2h_plan_build(&p->link[b->layer], &share, &q, d, &err);
    if (rc == RD2H_OK) {
      w->status = DM_READING;
      return;
    }
    w->status = rc;
    note_failure(b, err.text);
    dm_req_end(m, w->handle, rc, err.text, b->peer);
  }
  r->inflight--;
  dm_req_settle(m, w->handle);
}

void rd2h_dm_plan(rd2h_dm *m, uint32_t batch, struct rd2h_descs *d) {
  struct dm_batch *b = dm_batch(m, batch);
  for (uint32_t k = 0; k < b->msg->n_reqs && b->n_pending; k++)
    if (b->msg->req[k].status == DM_PENDING) plan_one(m, b, &b->msg->req[k], d);
}

void dm_read_over(rd2h_dm *m, struct dm_batch *b, struct rd2h_wire_req *w, int status, const char *text, uint64_t now) {
  struct dm_req *r = dm_req(m, w->handle);
  w->status = status;
  r->progress = now;
  if (status != RD2H_OK) {
    dm_req_end(m, w->handle, status, text, b->peer);
    b->read_failed = true;
    note_failure(b, text);
  }
  r->inflight--;
  dm_req_settle(m, w->handle);
}

static void phase_over(rd2h_dm *m, uint32_t i, int status, const char *text, uint64_t now) {
  struct dm_batch *b = dm_batch(m, i);
  for (uint32_t k = 0; k < b->msg->n_reqs; k++) {
    struct rd2h_wire_req *w = &b->msg->req[k];
    if (w->status != DM_READING) continue;
    dm_read_over(m, b, w, status, text, now);
  }
  dm_batch_step(m, i, now);
}

void rd2h_dm_planned(rd2h_dm *m, uint32_t batch, uint32_t n, uint64_t now) {
  struct dm_batch *b = dm_batch(m, batch);
  b->plan_queued = false;
  if (n) {
    b->reading = true;
    m->st.reads++;
    if (dm_peer(m, b->peer)->state == DM_PEER_LOST) dm_emit(m, RD2H_DA_CANCEL, b->peer, NULL, NULL)->batch = batch;
    return;
  }
  phase_over(m, batch, RD2H_OK, "", now);
}

void rd2h_dm_read_done(rd2h_dm *m, uint32_t batch, int status, const char *text, uint64_t now) {
  struct dm_batch *b = dm_batch(m, batch);
  m->now = now;
  if (!b->reading) return;
  b->reading = false;
  m->st.reads--;
  phase_over(m, batch, status, text && text[0] ? text : rd2h_status_text(status), now);
}

bool rd2h_dm_batch_wanted(const rd2h_dm *m, uint32_t batch) {
  const struct dm_batch *b = dm_batch(m, batch);
  if (dm_peer(m, b->peer)->state != DM_PEER_READY) return false;
  for (uint32_t k = 0; k < b->msg->n_reqs; k++)
    if (b->msg->req[k].status == DM_READING && !dm_req(m, b->msg->req[k].handle)->ended) return true;
  return false;
}

uint32_t rd2h_dm_batch_peer(const rd2h_dm *m, uint32_t batch) { return dm_batch(m, batch)->peer; }

uint32_t rd2h_dm_batch_layer(const rd2h_dm *m, uint32_t batch) { return dm_batch(m, batch)->layer; }

/* ---- answers ---- */
/* Either answer means that the source will not be touched again. Failed: nothing of the message was served or skipped; a peer that
 * reads statuses learns of each request, another one must not fail requests for what failed here alone. */
static bool answer_failed(const rd2h_dm *m, const struct dm_batch *b) {
  if (b->layer_failed) return true;
  if (b->read_failed && m->cfg.reply_on_read_failure) return true;
  for (uint32_t k = 0; k < b->msg->n_reqs; k++)
    if (b->msg->req[k].status == RD2H_OK || b->msg->req[k].status == RD2H_SKIPPED) return false;
  return b->msg->n_reqs > 0;
}

static void answer(rd2h_dm *m, uint32_t i, uint64_t now) {
  struct dm_batch *b = dm_batch(m, i);
  uint32_t peer = b->peer;
  bool failed = answer_failed(m, b);
  if (b->msg && !b->layer_failed)
    for (uint32_t k = 0; k < b->msg->n_done; k++) dm_req_done(m, peer, b->msg, &b->msg->done[k], now);
  struct rd2h_da *a = dm_emit(m, RD2H_DA_REPLY, peer, NULL, failed ? b->text : NULL);
  a->reply = failed ? RD2H_MSG_FAILED : RD2H_MSG_DONE;
  a->layer_idx = b->layer_idx;
  a->msg = b->msg;
  a->ours = dm_peer(m, peer)->ours;
  a->has_seq = b->has_seq;
  a->seq = b->seq;
  m->st.replies++;
  dm_batch_drop(m, i);
}

void dm_batch_drop(rd2h_dm *m, uint32_t i) {
  struct dm_batch *b = dm_batch(m, i);
  wait_remove(m, i);
  for (uint32_t k = 0; b->msg && k < b->msg->n_reqs && b->n_pending; k++)
    if (b->msg->req[k].status == DM_PENDING) {
      never_read(m, b->msg->req[k].handle, b->peer);
      dm_req(m, b->msg->req[k].handle)->inflight--;
      b->n_pending--;
      dm_req_settle(m, b->msg->req[k].handle);
    }
  unlink_batch(m, i);
  if (b->msg) dm_emit(m, RD2H_DA_FREE_MSG, b->peer, NULL, NULL)->msg = b->msg;
  rd2h_slab_give(&m->batches, i);
}

void dm_batch_fail(rd2h_dm *m, uint32_t i, const char *text, uint64_t now) {
  struct dm_batch *b = dm_batch(m, i);
  note_failure(b, text);
  for (uint32_t k = 0; b->msg && k < b->msg->n_reqs && b->n_waiting; k++)
    if (b->msg->req[k].status == DM_WAITING) {
      b->msg->req[k].status = RD2H_PEER_LOST;
      b->n_waiting--;
    }
  wait_remove(m, i);
  dm_batch_step(m, i, now);
}

/* A peer with sequence numbers gets each answer at once, another one in the order of its messages. */
static void answer_ready(rd2h_dm *m, uint32_t peer, uint32_t i, uint64_t now) {
  struct dm_peer *p = dm_peer(m, peer);
  if (dm_batch(m, i)->has_seq) answer(m, i, now);
  while (p->head != RD2H_INDEX_NONE && dm_batch(m, p->head)->complete && p->state != DM_PEER_LOST) answer(m, p->head, now);
}

void dm_batch_step(rd2h_dm *m, uint32_t i, uint64_t now) {
  struct dm_batch *b = dm_batch(m, i);
  uint32_t peer = b->peer;
  if (b->plan_queued || b->reading || b->complete) return;
  if (dm_peer(m, peer)->state == DM_PEER_LOST) {
    dm_batch_drop(m, i);
    dm_peer_maybe_close(m, peer);
    return;
  }
  if (b->n_pending) {
    b->plan_queued = true;
    struct rd2h_da *a = dm_emit(m, RD2H_DA_PLAN, peer, NULL, NULL);
    a->batch = i;
    a->msg = b->msg;
    return;
  }
  if (b->n_waiting) return;
  b->complete = true;
  answer_ready(m, peer, i, now);
}
