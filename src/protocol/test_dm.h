/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_TEST_DM_H
#define RD2H_TEST_DM_H
/* A worker without sockets around the decode machine: carries actions out and writes what they were into a line that tests
 * compare. Two layers, one main tensor each and an indexer, 64 blocks; attempts are one letter. */
#include "protocol/decode_machine.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#define MS RD2H_MS
#define SEC (1000 * RD2H_MS)
#define T_REQS 4u

struct t_msg {
  struct rd2h_wire_ready w;
  struct rd2h_wire_req req[T_REQS];
  struct rd2h_wire_done done;
  uint32_t ids[T_REQS][16];
};
struct t_dm {
  rd2h_dm *dm;
  rd2h_layout *layout;
  uint64_t now;
  uint32_t read[64], n_read; /* batches in the order of their planning */
  uint32_t msgs;             /* borrowed by the machine */
  uint32_t unreachable;      /* this peer's transport refuses to send; NONE: all reach */
  uint32_t bytes;            /* of the last plan, in blocks */
  char log[4096];
};

static const struct rd2h_dm_cfg t_cfg = {.park_ns = 2 * SEC, .queue_ns = 60 * SEC, .progress_ns = 20 * SEC, .probe_ns = SEC,
                                         .legacy_hold_ns = 30 * SEC, .main_ranks = 1, .tombstones = 8};

__attribute__((unused)) static rd2h_layout *t_layout(uint32_t heads) {
  static const char *const names[] = {"model.layers.0.attn", "model.layers.0.indexer", "model.layers.1.attn",
                                      "model.layers.1.indexer"};
  struct rd2h_kv_tensor t[4];
  struct rd2h_layout_opts o = {
      .size = sizeof o, .num_blocks = 64, .fingerprint = "fp8", .head_count = heads, .head_total = 2 * heads};
  rd2h_layout *l = NULL;
  for (uint32_t i = 0; i < 4; i++)
    t[i] = (struct rd2h_kv_tensor){.layer = names[i], .base = (uint64_t)(i + 1) << 20, .row_bytes = 64, .rows = 64};
  assert_int_equal(rd2h_layout_create(t, 4, &o, &l, NULL), RD2H_OK);
  return l;
}

__attribute__((unused)) static struct t_dm t_start(const struct rd2h_dm_cfg *cfg) {
  struct t_dm t = {.now = SEC, .unreachable = RD2H_INDEX_NONE, .layout = t_layout(0)};
  struct rd2h_dm_cfg c = *cfg;
  c.layout = t.layout;
  assert_int_equal(rd2h_dm_create(&c, &t.dm, NULL), RD2H_OK);
  return t;
}

__attribute__((unused)) static void t_stop(struct t_dm *t) {
  assert_int_equal(t->msgs, 0);
  rd2h_dm_destroy(t->dm);
  rd2h_layout_destroy(t->layout);
}

/* ---- carrying out ---- */
static void t_say(struct t_dm *t, const char *fmt, ...) RD2H_PRINTF(2, 3);
static void t_say(struct t_dm *t, const char *fmt, ...) {
  size_t n = strlen(t->log);
  va_list ap;
  va_start(ap, fmt);
  if (n)
    n += (size_t)snprintf(t->log + n, sizeof t->log - n, "; ");
  vsnprintf(t->log + n, sizeof t->log - n, fmt, ap);
  va_end(ap);
}

static void t_reply(struct t_dm *t, const struct rd2h_da *a) {
  static const char *const names[] = {[RD2H_MSG_ACK] = "ack", [RD2H_MSG_META_ACK] = "meta_ack", [RD2H_MSG_META_NAK] = "nak",
                                      [RD2H_MSG_DONE] = "done", [RD2H_MSG_FAILED] = "failed"};
  char more[160] = "";
  if (a->reply == RD2H_MSG_META_NAK || a->reply == RD2H_MSG_FAILED)
    assert_true(a->text[0] != 0);
  if (a->reply == RD2H_MSG_META_ACK && a->ours)
    snprintf(more, sizeof more, " ours");
  if (a->reply == RD2H_MSG_DONE || a->reply == RD2H_MSG_FAILED) {
    snprintf(more, sizeof more, " L%u", a->layer_idx);
    if (a->has_seq)
      snprintf(more + strlen(more), sizeof more - strlen(more), " #%u", (unsigned)a->seq);
    for (uint32_t k = 0; a->msg && k < a->msg->n_reqs; k++)
      snprintf(more + strlen(more), sizeof more - strlen(more), "%s%s", k ? "," : " ", rd2h_status_name(a->msg->req[k].status));
  }
  t_say(t, "%s %u%s", names[a->reply], a->peer, more);
}

static void t_plan(struct t_dm *t, uint32_t batch) {
  void *local[256];
  uint64_t remote[256], len[256];
  struct rd2h_descs d = {.local = local, .remote = remote, .len = len, .cap = 256};
  uint64_t bound = rd2h_dm_plan_bound(t->dm, batch);
  rd2h_dm_plan(t->dm, batch, &d);
  assert_true(d.n <= bound);
  rd2h_dm_planned(t->dm, batch, d.n, t->now);
  t->bytes = (uint32_t)(d.bytes / 64);
  if (d.n) {
    t_say(t, "read %u", t->bytes);
    t->read[t->n_read++ % 64] = batch;
  }
}

static void t_carry_out(struct t_dm *t, const struct rd2h_da *a) {
  switch (a->kind) {
  case RD2H_DA_CONNECT: t_say(t, "connect %u", a->peer); break;
  case RD2H_DA_REPLY:
    t_reply(t, a);
    if (a->peer == t->unreachable)
      rd2h_dm_peer_lost(t->dm, a->peer, "unreachable", t->now);
    break;
  case RD2H_DA_PLAN: t_plan(t, a->batch); break;
  case RD2H_DA_CANCEL: t_say(t, "cancel %u", a->peer); break;
  case RD2H_DA_FREE_MSG:
    free(a->msg);
    t->msgs--;
    break;
  case RD2H_DA_PROBE: t_say(t, "probe %u", a->peer); break;
  case RD2H_DA_SEND_CANCEL: t_say(t, "tell %u %s %s", a->peer, a->id, rd2h_status_name(a->status)); break;
  case RD2H_DA_PONG: t_say(t, "pong %u %u", a->peer, (unsigned)a->value); break;
  case RD2H_DA_REPORT: t_say(t, "report %s %s", a->id, rd2h_status_name(a->status)); break;
  case RD2H_DA_CLOSE: t_say(t, "close %u", a->peer); break;
  }
}

static void t_drain(struct t_dm *t) {
  struct rd2h_da a;
  while (rd2h_dm_next(t->dm, &a))
    t_carry_out(t, &a);
}

/* What happened since the last look is exactly this. */
#define expect(t, line) t_expect(t, line, __FILE__, __LINE__)
__attribute__((unused)) static void t_expect(struct t_dm *t, const char *line, const char *file, int at) {
  t_drain(t);
  if (strcmp(t->log, line))
    print_error("expected: %s\nhappened: %s\n", line, t->log);
  _assert_string_equal(t->log, line, file, at);
  t->log[0] = 0;
}

/* ---- peers ---- */
struct t_meta {
  uint32_t fields, version, pp_rank, pp_size, len; /* fields 0: 6, version 1; pp_size 0: 1; len: bytes of a main block, 0: 64 */
  bool ours, no_indexer;
  char inc;               /* incarnation */
  const char *only[3];    /* layers, both when empty */
  const char *fp;
  uint32_t heads[3];
};

__attribute__((unused)) static void t_send_meta(struct t_dm *t, uint32_t peer, const struct t_meta *m) {
  static const uint64_t addr[2][2] = {{0x1000000, 0x2000000}, {0x3000000, 0x4000000}}, scale[2] = {1, 1};
  static const int64_t group[2];
  static const char *const both[3] = {"model.layers.0.attn", "model.layers.1.attn"};
  const char *const *names = m->only[0] ? m->only : both;
  uint64_t len[2] = {m->len ? m->len : 64, 64};
  struct rd2h_wire_layer layer[3];
  struct rd2h_wire_meta w = {.session = {"host:1", 6},
                             .fields = m->fields ? m->fields : 6,
                             .version = m->version,
                             .pp_rank = m->pp_rank,
                             .pp_size = m->pp_size ? m->pp_size : 1,
                             .layer = layer};
  if (w.fields == 6 && !w.version)
    w.version = 1;
  uint32_t n = m->no_indexer ? 1 : 2;
  for (; w.n_layers < 3 && names[w.n_layers] && names[w.n_layers][0]; w.n_layers++)
    layer[w.n_layers] = (struct rd2h_wire_layer){.name = {names[w.n_layers], (uint32_t)strlen(names[w.n_layers])},
                                                 .n_addrs = n,
                                                 .n_lens = n,
                                                 .n_scales = n,
                                                 .n_groups = n,
                                                 .addr = addr[w.n_layers % 2],
                                                 .len = len,
                                                 .scale = scale,
                                                 .group = group,
                                                 .main_count = 1,
                                                 .has_indexer = !m->no_indexer};
  if (m->ours) {
    w.ext = (struct rd2h_wire_ext){.present = true, .revision = 1, .caps = RD2H_CAPS_ALL, .blocks = {64, 64}};
    w.ext.incarnation[0] = (uint8_t)m->inc;
    if (m->fp)
      w.ext.fingerprint = (struct rd2h_str){m->fp, (uint32_t)strlen(m->fp)};
    memcpy(w.ext.heads, m->heads, sizeof w.ext.heads);
  }
  rd2h_dm_meta(t->dm, peer, &w, t->now);
  t_drain(t);
}

/* A connected peer; the log is left empty. */
__attribute__((unused)) static uint32_t t_peer(struct t_dm *t, const struct t_meta *m) {
  uint32_t p = rd2h_dm_peer_open(t->dm, t->now);
  assert_int_not_equal(p, RD2H_INDEX_NONE);
  t_send_meta(t, p, m);
  rd2h_dm_connected(t->dm, p, RD2H_OK, "", t->now);
  t_drain(t);
  assert_non_null(strstr(t->log, "ack"));
  t->log[0] = 0;
  return p;
}
#define T_OURS &(struct t_meta){.ours = true, .inc = 'p'}
#define T_LEGACY &(struct t_meta){.fields = 3}

/* ---- messages ---- */
struct t_req {
  const char *ext;
  char attempt;           /* 0: none */
  uint32_t start, n, first; /* first: source block id of the first; the indexer's are the same */
  uint8_t bad;
};
#define R(ext_, attempt_, start_, n_, ...) {.ext = ext_, .attempt = attempt_, .start = start_, .n = n_ __VA_OPT__(, ) __VA_ARGS__}
struct t_ready {
  uint32_t layer, member, ratio; /* ratio 0: 1 */
  uint32_t seq;                  /* 0: none */
  struct t_req req[T_REQS];
  const char *done, *name;
  char done_attempt;
};

static void t_attempt(char letter, bool *has, uint8_t *to) {
  *has = letter != 0;
  memset(to, letter, RD2H_ATTEMPT);
}

__attribute__((unused)) static void t_send(struct t_dm *t, uint32_t peer, const struct t_ready *r) {
  static const char *const names[] = {"model.layers.0.attn", "model.layers.1.attn"};
  const char *name = r->name ? r->name : names[r->layer];
  struct t_msg *m = calloc(1, sizeof *m);
  m->w = (struct rd2h_wire_ready){.layer_idx = r->layer, .layer = {name, (uint32_t)strlen(name)}, .req = m->req, .done = &m->done,
                                  .member = r->member, .ratio = r->ratio ? r->ratio : 1, .has_seq = r->seq != 0, .seq = r->seq};
  for (const struct t_req *q = r->req; q < r->req + T_REQS && q->ext; q++) {
    struct rd2h_wire_req *w = &m->req[m->w.n_reqs];
    uint32_t *ids = m->ids[m->w.n_reqs++];
    for (uint32_t i = 0; i < q->n; i++)
      ids[i] = q->first + i;
    *w = (struct rd2h_wire_req){.id = {q->ext, (uint32_t)strlen(q->ext)},
                                .main = ids,
                                .indexer = ids,
                                .n_main = q->n,
                                .n_indexer = q->n,
                                .main_start = q->start,
                                .indexer_start = q->start,
                                .bad = q->bad};
    t_attempt(q->attempt, &w->has_attempt, w->attempt);
  }
  if (r->done) {
    m->done.id = (struct rd2h_str){r->done, (uint32_t)strlen(r->done)};
    t_attempt(r->done_attempt, &m->done.has_attempt, m->done.attempt);
    m->w.n_done = 1;
  }
  t->msgs++;
  rd2h_dm_ready(t->dm, peer, &m->w, t->now);
  t_drain(t);
}
#define ready(t, peer, ...) t_send(t, peer, &(struct t_ready){__VA_ARGS__})

__attribute__((unused)) static void read_over(struct t_dm *t, uint32_t nth, int status) {
  rd2h_dm_read_done(t->dm, t->read[nth], status, status ? "the engine failed" : "", t->now);
  t_drain(t);
}

/* ---- requests ---- */
__attribute__((unused)) static int t_install(struct t_dm *t, const char *id, const char *ext, char attempt, uint32_t floor,
                                             uint32_t need) {
  static const uint32_t blocks[] = {10, 11, 12, 13, 14, 15, 16, 17};
  struct rd2h_dm_grant g = {.id = {id, (uint32_t)strlen(id)},
                            .ext_id = {ext, (uint32_t)strlen(ext)},
                            .main = blocks,
                            .indexer = blocks,
                            .n_main = 8,
                            .n_indexer = 8,
                            .main_floor = floor,
                            .indexer_floor = floor,
                            .main_need = need,
                            .indexer_need = need};
  memset(g.attempt, attempt, RD2H_ATTEMPT);
  int rc = rd2h_dm_install(t->dm, &g, t->now, NULL);
  t_drain(t);
  return rc;
}

__attribute__((unused)) static void install(struct t_dm *t, const char *id, const char *ext, char attempt) {
  assert_int_equal(t_install(t, id, ext, attempt, 0, 4), RD2H_OK);
}

__attribute__((unused)) static int end(struct t_dm *t, const char *id, int status) {
  int rc = rd2h_dm_end(t->dm, (struct rd2h_str){id, (uint32_t)strlen(id)}, status, "", t->now);
  t_drain(t);
  return rc;
}

__attribute__((unused)) static void pass(struct t_dm *t, uint64_t ns) {
  t->now += ns;
  rd2h_dm_tick(t->dm, t->now);
  t_drain(t);
}

__attribute__((unused)) static struct rd2h_dm_stats t_stats(const struct t_dm *t) {
  struct rd2h_dm_stats st;
  rd2h_dm_stats(t->dm, &st);
  return st;
}
#endif
