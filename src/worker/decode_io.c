/* SPDX-License-Identifier: Apache-2.0 */
/* The ROUTER socket: identities to peer handles, frames to messages, replies out. */
#include "worker/decode_worker.h"
#include <errno.h>

#define TURN_MAX 64u /* messages of one turn */
#define DESCS_UNPOLLED 16384u /* held by reads before completions are looked for within a turn */
#define SWEEP_PAUSE (1000 * RD2H_MS)

#define SCRATCH_KEPT ((size_t)32 << 20) /* room for decoding that outlives a message */
#define LINES_A_SECOND 10u

/* Lines that any stranger can cause are few a second; the counters tell of the rest. */
bool dw_may_log(rd2h_dw *w) {
  uint64_t second = w->now / (1000 * RD2H_MS);
  if (second != w->log_second) {
    if (w->log_lines > LINES_A_SECOND)
      RD2H_WARN("decode rank %u: %u more lines about bad messages were left out", w->o.tp_rank, w->log_lines - LINES_A_SECOND);
    w->log_second = second;
    w->log_lines = 0;
  }
  return ++w->log_lines <= LINES_A_SECOND;
}

/* ---- peers ---- */
static bool peer_room(rd2h_dw *w, uint32_t peer) {
  if (peer >= w->n_peers) {
    uint32_t n = w->n_peers ? w->n_peers : 16;
    while (n <= peer)
      n *= 2;
    struct dw_peer **t = rd2h_realloc(w->peer, n * sizeof *t);
    if (!t)
      return false;
    memset(t + w->n_peers, 0, (n - w->n_peers) * sizeof *t);
    w->peer = t;
    w->n_peers = n;
  }
  if (!w->peer[peer])
    w->peer[peer] = rd2h_zalloc(sizeof **w->peer);
  return w->peer[peer] != NULL;
}

/* The transport tells of a vanished peer only when something is sent to it: an empty frame, which every version drops. Done
 * when the table of peers is full, so that peers which left without open requests make room. */
static void sweep(rd2h_dw *w) {
  if (w->now < w->next_sweep)
    return;
  w->next_sweep = w->now + SWEEP_PAUSE;
  for (uint32_t i = 0; i < w->n_peers; i++)
    if (w->peer[i] && w->peer[i]->open)
      dw_send(w, i, "", 0);
  dw_drain(w);
}

static uint32_t peer_open(rd2h_dw *w, const void *identity, size_t n) {
  uint32_t peer = rd2h_dm_peer_open(w->dm, w->now);
  if (peer == RD2H_INDEX_NONE) {
    sweep(w);
    peer = rd2h_dm_peer_open(w->dm, w->now);
  }
  if (peer == RD2H_INDEX_NONE)
    return peer;
  if (!peer_room(w, peer) || rd2h_map_put(w->by_identity, identity, n, peer)) {
    rd2h_dm_peer_lost(w->dm, peer, "out of memory", w->now);
    dw_drain(w);
    return RD2H_INDEX_NONE;
  }
  struct dw_peer *p = w->peer[peer];
  *p = (struct dw_peer){.open = true, .identity_n = (uint8_t)n, .session = "a peer without metadata"};
  memcpy(p->identity, identity, n);
  return peer;
}

void dw_forget_peer(rd2h_dw *w, uint32_t peer) {
  struct dw_peer *p = peer < w->n_peers ? w->peer[peer] : NULL;
  if (!p || !p->open)
    return;
  if (p->conn)
    rd2h_eng_disconnect(w->eng, p->conn);
  p->conn = NULL;
  p->open = false;
  if (rd2h_map_get(w->by_identity, p->identity, p->identity_n) == peer)
    rd2h_map_del(w->by_identity, p->identity, p->identity_n);
  RD2H_DEBUG("decode rank %u: connection of %s is over", w->o.tp_rank, p->session);
}

/* ---- out ---- */
int dw_send(rd2h_dw *w, uint32_t peer, const void *p, size_t n) {
  const struct dw_peer *to = w->peer[peer];
  bool payload = n != 0;
  w->sent = true;
  if (!rd2h_zmq_send(w->router, to->identity, to->identity_n, true) && !rd2h_zmq_send(w->router, "", 0, payload) &&
      (!payload || !rd2h_zmq_send(w->router, p, n, false)))
    return 0;
  rd2h_dm_peer_lost(w->dm, peer, errno == EHOSTUNREACH ? "its connection is closed" : zmq_strerror(errno), w->now);
  return -1;
}

/* To a peer that the machine has no room for. */
static void turn_away(rd2h_dw *w, const void *identity, size_t n) {
  static const char text[] = "this Decode rank serves as many connections as max_peers allows";
  w->count.refused_meta++;
  if (dw_may_log(w))
    RD2H_WARN("decode rank %u: a connection is turned away: all %u peers are in use", w->o.tp_rank, w->o.max_peers);
  rd2h_buf_reset(&w->out);
  rd2h_wire_encode_meta_nak(&w->out, text);
  if (!w->out.failed && !rd2h_zmq_send(w->router, identity, n, true) && !rd2h_zmq_send(w->router, "", 0, true))
    rd2h_zmq_send(w->router, w->out.p, w->out.len, false);
}

/* ---- in ---- */
static void refuse_meta(rd2h_dw *w, uint32_t peer, const struct rd2h_error *err) {
  if (dw_may_log(w))
    RD2H_WARN("decode rank %u: metadata of a connection is not usable: %s", w->o.tp_rank, err->text);
  rd2h_buf_reset(&w->out);
  rd2h_wire_encode_meta_nak(&w->out, err->text);
  if (!w->out.failed)
    dw_send(w, peer, w->out.p, w->out.len);
  rd2h_dm_malformed(w->dm, peer, RD2H_INDEX_NONE, NULL, err->text, w->now);
}

static void on_meta(rd2h_dw *w, uint32_t peer, const uint8_t *p, size_t n) {
  struct rd2h_error err = {0};
  struct rd2h_wire_meta meta;
  int rc = rd2h_arena_reserve(&w->scratch, rd2h_wire_arena_need(n));
  rc = rc ? rd2h_nomem(&err, "metadata") : rd2h_wire_decode_meta(p, n, &w->scratch, &meta, &err);
  if (rc)
    refuse_meta(w, peer, &err);
  else
    rd2h_dm_meta(w->dm, peer, &meta, w->now);
  dw_drain(w);
}

static void malformed(rd2h_dw *w, uint32_t peer, uint32_t layer_idx, const uint64_t *seq, const char *text) {
  if (dw_may_log(w))
    RD2H_WARN("decode rank %u: bad message from %s: %s", w->o.tp_rank, w->peer[peer]->session, text);
  rd2h_dm_malformed(w->dm, peer, layer_idx, seq, text, w->now);
}

static void not_held(rd2h_dw *w, uint32_t peer, const struct rd2h_wire_ready *ready, const struct rd2h_error *err) {
  if (dw_may_log(w))
    RD2H_WARN("decode rank %u: a message of %s cannot be kept, what it names fails: %s", w->o.tp_rank, w->peer[peer]->session,
              err->text);
  rd2h_dm_not_held(w->dm, peer, ready, err->status, err->text, w->now);
}

static void on_ready(rd2h_dw *w, uint32_t peer, const uint8_t *p, size_t n) {
  struct rd2h_error err = {0};
  struct rd2h_wire_ready ready;
  uint32_t layer_idx = RD2H_INDEX_NONE;
  uint64_t seq;
  bool room = !rd2h_arena_reserve(&w->scratch, rd2h_wire_arena_need(n));
  int rc = rd2h_wire_decode_ready(p, n, &w->scratch, &ready, &layer_idx, &err); /* without room, too: for whom to answer */
  if (rc && !room)
    rd2h_nomem(&err, "a message");
  if (rc) {
    malformed(w, peer, layer_idx, rd2h_wire_ready_seq(p, n, &seq) ? &seq : NULL, err.text);
    return;
  }
  struct rd2h_msg *m = rd2h_msg_take(&w->pool, &w->payload, &ready, &w->scratch, &w->peer[peer]->held, &err);
  if (m) {
    m->peer = peer;
    rd2h_dm_ready(w->dm, peer, &m->ready, w->now);
  } else {
    not_held(w, peer, &ready, &err);
  }
}

static void on_cancel(rd2h_dw *w, uint32_t peer, const uint8_t *p, size_t n) {
  struct rd2h_error err = {0};
  struct rd2h_wire_cancel c;
  if (rd2h_wire_decode_cancel(p, n, &c, &err))
    malformed(w, peer, RD2H_INDEX_NONE, NULL, err.text);
  else
    rd2h_dm_cancel(w->dm, peer, &c, w->now);
}

static void on_ping(rd2h_dw *w, uint32_t peer, const uint8_t *p, size_t n) {
  struct rd2h_error err = {0};
  uint64_t value;
  if (rd2h_wire_decode_ping(p, n, &value, &err))
    malformed(w, peer, RD2H_INDEX_NONE, NULL, err.text);
  else
    rd2h_dm_ping(w->dm, peer, value, w->now);
}

/* Draft KV of DSpark: refused, so that Prefill does not wait. */
static void on_draft(rd2h_dw *w, uint32_t peer, const uint8_t *p, size_t n) {
  rd2h_buf_reset(&w->out);
  rd2h_wire_encode_draft_failed(&w->out, p, n);
  if (dw_may_log(w))
    RD2H_WARN("decode rank %u: %s offers KV of a draft model (DSpark), which is not served: answered failed", w->o.tp_rank,
              w->peer[peer]->session);
  if (!w->out.failed)
    dw_send(w, peer, w->out.p, w->out.len);
}

static void on_other(rd2h_dw *w, uint32_t peer, const uint8_t *p, size_t n) {
  (void)p;
  (void)n;
  malformed(w, peer, RD2H_INDEX_NONE, NULL, "no message that a Decode rank knows");
}

static void (*const handlers[])(rd2h_dw *, uint32_t, const uint8_t *, size_t) = {
    [RD2H_MSG_META] = on_meta, [RD2H_MSG_READY] = on_ready, [RD2H_MSG_CANCEL] = on_cancel, [RD2H_MSG_PING] = on_ping,
    [RD2H_MSG_DRAFT] = on_draft};

/* Reads the frames behind the identity; returns how many had bytes. The first of those is in w->payload. */
static uint32_t read_frames(rd2h_dw *w) {
  uint32_t payloads = 0;
  bool more = zmq_msg_more(&w->identity);
  while (more && zmq_msg_recv(&w->frame, w->router, ZMQ_DONTWAIT) >= 0) {
    more = zmq_msg_more(&w->frame);
    if (zmq_msg_size(&w->frame) && !payloads++)
      zmq_msg_move(&w->payload, &w->frame);
  }
  return payloads;
}

static bool receive_one(rd2h_dw *w) {
  if (zmq_msg_recv(&w->identity, w->router, ZMQ_DONTWAIT) < 0)
    return false;
  const void *identity = zmq_msg_data(&w->identity);
  size_t n = zmq_msg_size(&w->identity);
  uint32_t payloads = read_frames(w);
  if (!payloads || n > DW_IDENTITY_MAX)
    return true;
  uint32_t peer = rd2h_map_get(w->by_identity, identity, n);
  if (peer == RD2H_INDEX_NONE && (peer = peer_open(w, identity, n)) == RD2H_INDEX_NONE) {
    turn_away(w, identity, n);
    return true;
  }
  const uint8_t *p = zmq_msg_data(&w->payload);
  size_t size = zmq_msg_size(&w->payload);
  uint32_t kind = payloads == 1 ? (uint32_t)rd2h_wire_kind(p, size) : 0;
  (kind < RD2H_COUNT(handlers) && handlers[kind] ? handlers[kind] : on_other)(w, peer, p, size);
  dw_drain(w);
  bool large = w->scratch.used > SCRATCH_KEPT; /* what was never used of it is no memory yet */
  rd2h_arena_reset(&w->scratch);
  if (large)
    rd2h_arena_free(&w->scratch);
  return true;
}

/* Descriptors of reads that have ended by now are used again for the next message, while they are in the caches. Where
 * messages come one by one none is looked for behind the first: that turn_wait does, after the answer. */
uint32_t dw_receive(rd2h_dw *w) {
  uint32_t n = 0, most = w->burst ? TURN_MAX : 1;
  while (n < most && receive_one(w)) {
    n++;
    if (w->descs_held > DESCS_UNPOLLED)
      dw_complete(w);
  }
  return n;
}
