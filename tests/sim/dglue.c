/* SPDX-License-Identifier: Apache-2.0 */
/* One Decode rank's worker: carries out what the machine wants and follows every message to its answer. */
#include "sim.h"
#include <stdio.h>

#define MSG_OF(ready) ((struct msg *)((char *)(ready) - offsetof(struct msg, w)))
#define MAX_DESCS 1024u

/* ---- time ---- */
static void timer(struct world *w, void *obj, uint64_t when) {
  struct drank *dr = obj;
  if (when != dr->timer_at)
    return;
  dr->timer_at = RD2H_NEVER;
  for (int i = 0; rd2h_dm_next_deadline(dr->dm) <= w->now; i++) {
    rd2h_dm_tick(dr->dm, w->now);
    if (i == 100) {
      broken(w, "SIM", "Decode %u.%u: tick() does not move its deadline", dr->d, dr->rank);
      return;
    }
  }
  decode_pump(w, dr);
}

static void arm(struct world *w, struct drank *dr) {
  uint64_t next = rd2h_dm_next_deadline(dr->dm);
  if (next >= dr->timer_at || next == RD2H_NEVER)
    return;
  dr->timer_at = next < w->now ? w->now : next;
  at(w, dr->timer_at, &dr->proc, timer, dr, dr->timer_at);
}

/* ---- actions ---- */
static uint32_t conn_of(struct world *w, struct drank *dr, uint32_t peer) {
  if (peer < RD2H_COUNT(dr->peer_conn) && w->conn[dr->peer_conn[peer]].peer == peer &&
      w->conn[dr->peer_conn[peer]].drank == dr->rank)
    return dr->peer_conn[peer];
  broken(w, "SIM", "D%u.%u has an action for peer %u, which is closed", dr->d, dr->rank, peer);
  return 0;
}

static void engine_connected(struct world *w, void *obj, uint64_t key) {
  struct drank *dr = obj;
  struct conn *x = &w->conn[key & 0xffffffff];
  if (x->peer == RD2H_INDEX_NONE || x->peer_gen != key >> 32)
    return;
  rd2h_dm_connected(dr->dm, x->peer, RD2H_OK, "", w->now);
  decode_pump(w, dr);
}

static void do_connect(struct world *w, struct drank *dr, const struct rd2h_da *a) {
  uint32_t c = conn_of(w, dr, a->peer);
  in(w, rng_between(&w->rng, 0, 20 * RD2H_MS), &dr->proc, engine_connected, dr, (uint64_t)w->conn[c].peer_gen << 32 | c);
}

/* What an answer may be: for a message that waits for one, once, in turn where the peer counts, and with its reads over. */
static void check_answer(struct world *w, struct drank *dr, const struct rd2h_da *a, uint32_t c, struct msg *m) {
  struct conn *x = &w->conn[c];
  uint32_t running = 0;
  for (uint32_t i = 0; i < w->n_read; i++)
    running += w->read[i].used && w->read[i].msg == m && w->read[i].d == dr->d && w->read[i].drank == dr->rank;
  if (m->freed || m->answered || m->conn != c)
    broken(w, "I7", "D%u.%u answers a message %s", dr->d, dr->rank, m->conn != c ? "of another connection" : "again");
  else if (a->layer_idx != m->w.layer_idx || (a->ours && a->has_seq != m->w.has_seq) || (a->has_seq && a->seq != m->w.seq))
    broken(w, "I7", "D%u.%u answers layer %u as layer %u", dr->d, dr->rank, m->w.layer_idx, a->layer_idx);
  else if (!a->ours && m->order != x->ready_out)
    broken(w, "I7", "D%u.%u answers message %u of its connection before message %u", dr->d, dr->rank, m->order, x->ready_out);
  else if (running)
    broken(w, "I4", "D%u.%u answers layer %u while %u of its reads run", dr->d, dr->rank, m->w.layer_idx, running);
  x->ready_out++;
}

static struct msg *answer_of(struct world *w, struct drank *dr, const struct rd2h_da *a, uint32_t c) {
  struct msg *reply = msg_new(w, a->reply), *m;
  reply->reply = (struct rd2h_wire_reply){.kind = a->reply, .layer_idx = a->layer_idx, .has_seq = a->has_seq, .seq = a->seq};
  reply->reply.ext =
      (struct rd2h_wire_ext){.present = a->ours && a->reply == RD2H_MSG_META_ACK, .revision = 1, .caps = RD2H_CAPS_ALL};
  snprintf(reply->text, sizeof reply->text, "%s", a->text);
  reply->reply.text = (struct rd2h_str){reply->text, (uint32_t)strlen(reply->text)};
  if (a->reply != RD2H_MSG_DONE && a->reply != RD2H_MSG_FAILED)
    return reply;
  if (!a->msg) {
    broken(w, "I7", "D%u.%u answers nobody's message", dr->d, dr->rank);
    return reply;
  }
  m = MSG_OF(a->msg);
  check_answer(w, dr, a, c, m);
  m->answered = true;
  reply->brec = m->brec;
  if (a->ours) {
    reply->reply.status = reply->status;
    reply->reply.n_status = m->w.n_reqs;
  }
  for (uint32_t k = 0, at_brec = 0; k < m->w.n_reqs; k++) {
    reply->status[k] = m->req[k].status;
    if (m->req[k].status > 0)
      broken(w, "I7", "D%u.%u answers with the status %d", dr->d, dr->rank, m->req[k].status);
    w->tally.skipped += m->req[k].status == RD2H_SKIPPED;
    if (m->brec == RD2H_INDEX_NONE)
      continue;
    struct brec *b = &w->brec[m->brec];
    while (!b->carried[at_brec])
      at_brec++;
    b->status[at_brec++] = m->req[k].status;
    b->answered = true;
  }
  return reply;
}

static void do_reply(struct world *w, struct drank *dr, const struct rd2h_da *a) {
  uint32_t c = conn_of(w, dr, a->peer);
  struct msg *m = answer_of(w, dr, a, c);
  trace(w, "D%u.%u answers %d layer %d on connection %u%s%s", dr->d, dr->rank, (int)a->reply, (int)a->layer_idx, c,
        *a->text ? ": " : "", a->text);
  if (!(a->msg && MSG_OF(a->msg)->echo) && !net_to_prefill(w, c, m))
    rd2h_dm_peer_lost(dr->dm, w->conn[c].peer, "unreachable", w->now);
}

static void do_plan(struct world *w, struct drank *dr, const struct rd2h_da *a) {
  static void *local[MAX_DESCS];
  static uint64_t remote[MAX_DESCS], len[MAX_DESCS];
  static uint32_t region[MAX_DESCS];
  struct rd2h_descs ds = {.local = local, .remote = remote, .len = len, .region = region, .cap = MAX_DESCS};
  uint32_t batch = a->batch, c = conn_of(w, dr, a->peer);
  struct msg *m = MSG_OF(a->msg);
  uint64_t bound = rd2h_dm_plan_bound(dr->dm, batch);
  rd2h_dm_plan(dr->dm, batch, &ds);
  if (ds.n > bound)
    broken(w, "PLAN", "D%u.%u plans %u descriptors, at most %llu were said to come", dr->d, dr->rank, ds.n,
           (unsigned long long)bound);
  rd2h_dm_planned(dr->dm, batch, ds.n, w->now);
  trace(w, "D%u.%u plans batch %u (%s layer %u): %u descriptors", dr->d, dr->rank, batch, "of", m->w.layer_idx, ds.n);
  if (!ds.n)
    return;
  struct read *r = read_start(w, dr, c, batch, m, &ds);
  if (w->mut == MUT_REPLY_EARLY) {
    r->fenced_off = true;
    rd2h_dm_read_done(dr->dm, batch, RD2H_OK, "", w->now);
  }
}

static void do_cancel(struct world *w, struct drank *dr, const struct rd2h_da *a) {
  read_cancel(w, dr, a->batch);
}

static void do_free_msg(struct world *w, struct drank *dr, const struct rd2h_da *a) {
  struct msg *m = MSG_OF(a->msg);
  if (m->freed)
    broken(w, "I10", "D%u.%u frees a message twice", dr->d, dr->rank);
  m->freed = true;
  memset(m->req, 0x5a, sizeof m->req); /* whoever still looks at it sees nonsense */
  memset(m->done, 0x5a, sizeof m->done);
}

static void do_probe(struct world *w, struct drank *dr, const struct rd2h_da *a) {
  uint32_t c = conn_of(w, dr, a->peer);
  if (!net_to_prefill(w, c, NULL))
    rd2h_dm_peer_lost(dr->dm, w->conn[c].peer, "unreachable", w->now);
}

static void do_send_cancel(struct world *w, struct drank *dr, const struct rd2h_da *a) {
  uint32_t c = conn_of(w, dr, a->peer);
  struct msg *m = msg_new(w, RD2H_MSG_CANCEL);
  if (w->p[w->conn[c].p].legacy)
    broken(w, "SIM", "D%u.%u sends a cancel to a peer that did not announce itself", dr->d, dr->rank);
  struct job *j = job_by_id(w, a->id);
  snprintf(m->ext[0], sizeof m->ext[0], "%s", j ? j->ext : a->id);
  snprintf(m->text, sizeof m->text, "%s", a->text);
  m->cancel = (struct rd2h_wire_cancel){.id = {m->ext[0], (uint32_t)strlen(m->ext[0])}, .has_attempt = true, .status = a->status,
                                        .text = {m->text, (uint32_t)strlen(m->text)}};
  memcpy(m->cancel.attempt, a->attempt, RD2H_ATTEMPT);
  w->tally.cancels++;
  if (!net_to_prefill(w, c, m))
    rd2h_dm_peer_lost(dr->dm, w->conn[c].peer, "unreachable", w->now);
}

static void do_pong(struct world *w, struct drank *dr, const struct rd2h_da *a) {
  broken(w, "SIM", "D%u.%u answers peer %u's ping, nobody pings", dr->d, dr->rank, a->peer);
}

static void late_failure(struct world *w, void *obj, uint64_t job) {
  decode_reported(w, obj, &w->job[job], RD2H_ABORTED, "a glue that is broken on purpose");
}

static void do_report(struct world *w, struct drank *dr, const struct rd2h_da *a) {
  struct job *j = job_by_id(w, a->id);
  int status = a->status;
  if (!j) {
    broken(w, "I5", "D%u.%u reports %s, which is no request", dr->d, dr->rank, a->id);
    return;
  }
  uint32_t contributors = 0, member, ratio = 0;
  for (uint32_t q = 0; q < w->p[j->p].tp; q++)
    if (rd2h_plan_member(q, w->p[j->p].tp, dr->rank, w->d[dr->d].tp, &member, &ratio, NULL) == RD2H_OK)
      contributors = ratio * w->p[j->p].pp;
  if (w->mut == MUT_DONE_CLEARS_FAILED && contributors && (uint32_t)__builtin_popcountll(j->on[dr->rank].dones) == contributors)
    status = RD2H_OK;
  decode_reported(w, dr, j, status, a->text);
  if (w->mut == MUT_REPORT_TWICE && rng_chance(&w->rng, 100))
    decode_reported(w, dr, j, status, a->text);
  if (w->mut == MUT_FAIL_AFTER_DONE && status == RD2H_OK && rng_chance(&w->rng, 100))
    in(w, RD2H_MS, &dr->proc, late_failure, dr, (uint64_t)(j - w->job));
}

static void do_close(struct world *w, struct drank *dr, const struct rd2h_da *a) {
  uint32_t c = conn_of(w, dr, a->peer), n = reads_of_conn(w, c);
  if (n)
    broken(w, "I3", "D%u.%u closes peer %u while %u of its reads run", dr->d, dr->rank, a->peer, n);
  w->conn[c].peer = RD2H_INDEX_NONE;
}

void decode_pump(struct world *w, struct drank *dr) {
  static void (*const todo[])(struct world *, struct drank *, const struct rd2h_da *) = {[RD2H_DA_CONNECT] = do_connect,
                                                                                         [RD2H_DA_REPLY] = do_reply,
                                                                                         [RD2H_DA_PLAN] = do_plan,
                                                                                         [RD2H_DA_CANCEL] = do_cancel,
                                                                                         [RD2H_DA_FREE_MSG] = do_free_msg,
                                                                                         [RD2H_DA_PROBE] = do_probe,
                                                                                         [RD2H_DA_SEND_CANCEL] = do_send_cancel,
                                                                                         [RD2H_DA_PONG] = do_pong,
                                                                                         [RD2H_DA_REPORT] = do_report,
                                                                                         [RD2H_DA_CLOSE] = do_close};
  struct rd2h_da a;
  while (!w->failed && rd2h_dm_next(dr->dm, &a))
    todo[a.kind](w, dr, &a);
  if (!w->failed)
    arm(w, dr);
}

/* ---- messages ---- */
static struct job *live_by_ext(struct world *w, struct drank *dr, const char *ext) {
  for (uint32_t i = w->n_jobs; i-- > 0;) {
    struct job *j = &w->job[i];
    if (j->d == dr->d && j->d_inc == w->d[dr->d].inc && !strcmp(j->ext, ext) && j->on[dr->rank].installed &&
        !j->on[dr->rank].reported)
      return j;
  }
  return NULL;
}

static void forge_attempts(struct world *w, struct drank *dr, struct msg *m) {
  struct job *j;
  for (uint32_t k = 0; k < m->w.n_reqs; k++)
    if ((j = live_by_ext(w, dr, m->ext[k])))
      memcpy(m->req[k].attempt, j->attempt, RD2H_ATTEMPT);
  for (uint32_t k = 0; k < m->w.n_done; k++)
    if ((j = live_by_ext(w, dr, m->done_ext[k])))
      memcpy(m->done[k].attempt, j->attempt, RD2H_ATTEMPT);
}

/* A message may wait for destinations, then for two rounds of reads; one for ended requests only waits for its turn. */
static uint64_t answer_bound(const struct msg *m) {
  return m->all_ended && m->w.has_seq ? SLACK_NS / 5 : PARK_NS + 2 * ENGINE_NS + SLACK_NS;
}

/* Ended here, and no other attempt has its external id: everything that comes for it is late. */
static bool ended_for_good(struct world *w, struct drank *dr, struct job *j) {
  if (j->d_inc != w->d[dr->d].inc || !j->on[dr->rank].reported || j->on[dr->rank].status == RD2H_EXISTS)
    return false;
  for (struct job *k = w->job; k < w->job + w->n_jobs; k++)
    if (k != j && k->d == dr->d && !strcmp(k->ext, j->ext))
      return false;
  return true;
}

static void answered_in_time(struct world *w, void *obj, uint64_t d) {
  struct msg *m = obj;
  struct conn *x = &w->conn[m->conn];
  struct drank *dr = &w->d[d].rank[x->drank];
  uint64_t bound = m->arrived + answer_bound(m) + (dr->proc.paused_ns - m->paused);
  if (m->answered || m->freed || x->state != CONN_UP || x->d_knows != RD2H_NEVER) {
    if (m->freed)
      msg_free(m);
    return;
  }
  if (w->now < bound)
    at(w, bound, &dr->proc, answered_in_time, m, d);
  else
    broken(w, "I7", "D%u.%u has not answered layer %u of connection %u after %.3f s", dr->d, dr->rank, m->w.layer_idx, m->conn,
           (double)(w->now - m->arrived) / 1e9);
}

static void note_arrival(struct world *w, struct drank *dr, struct msg *m) {
  const struct conn *x = &w->conn[m->conn];
  m->arrived = w->now;
  m->paused = dr->proc.paused_ns;
  m->at_decode = true;
  m->order = w->conn[m->conn].ready_in++;
  m->all_ended = m->w.n_reqs > 0;
  for (uint32_t k = 0; k < m->w.n_reqs; k++) {
    struct job *j = &w->job[m->job[k]];
    m->all_ended &= ended_for_good(w, dr, j);
    if (x->peer_gen > 1)
      job_fault(w, j, "Decode had given up this connection");
    if (j->d_inc == w->d[dr->d].inc)
      j->on[dr->rank].sign = w->now;
  }
  for (uint32_t k = 0; k < m->w.n_done; k++) {
    struct job *j = job_by_attempt(w, m->done_ext[k], m->done[k].has_attempt ? m->done[k].attempt : NULL);
    if (j)
      j->on[dr->rank].done_on[x->rank] = m->conn + 1;
    if (j && m->w.member < 16)
      j->on[dr->rank].dones |= UINT64_C(1) << (m->w.member * MAX_PP + x->rank / w->p[x->p].tp);
  }
  at(w, w->now + answer_bound(m), &dr->proc, answered_in_time, m, dr->d);
}

/* Some legacy senders say done twice. */
static struct msg *echo_of(struct world *w, const struct msg *m) {
  struct msg *e = msg_new(w, RD2H_MSG_READY);
  w->tally.echoes++;
  memcpy(e->layer, m->layer, sizeof e->layer);
  memcpy(e->done_ext, m->done_ext, sizeof e->done_ext);
  memcpy(e->done, m->done, sizeof e->done);
  e->w = m->w;
  e->w.layer.p = e->layer;
  e->w.req = e->req;
  e->w.n_reqs = 0;
  e->w.done = e->done;
  for (uint32_t k = 0; k < e->w.n_done; k++)
    e->done[k].id.p = e->done_ext[k];
  e->conn = m->conn;
  e->echo = true;
  return e;
}

void decode_message(struct world *w, uint32_t c, struct msg *m) {
  struct conn *x = &w->conn[c];
  struct drank *dr = &w->d[x->d].rank[x->drank];
  if (w->d[x->d].legacy) {
    ld_message(w, c, m);
    return;
  }
  if (x->peer == RD2H_INDEX_NONE) {
    x->peer = rd2h_dm_peer_open(dr->dm, w->now);
    x->peer_gen++;
    x->ready_in = x->ready_out = 0;
    if (x->peer >= RD2H_COUNT(dr->peer_conn)) {
      broken(w, "SIM", "D%u.%u has no handle for another peer", dr->d, dr->rank);
      return;
    }
    dr->peer_conn[x->peer] = c;
  }
  struct rd2h_arena arena = {0};
  struct msg *again = NULL;
  if (m->kind == RD2H_MSG_META) {
    rd2h_dm_meta(dr->dm, x->peer, meta_of(w, &w->p[x->p].rank[x->rank], &arena), w->now);
  } else if (m->kind == RD2H_MSG_CANCEL) {
    rd2h_dm_cancel(dr->dm, x->peer, &m->cancel, w->now);
  } else {
    note_arrival(w, dr, m);
    if (w->mut == MUT_NONCE_IGNORED)
      forge_attempts(w, dr, m);
    rd2h_dm_ready(dr->dm, x->peer, &m->w, w->now);
    if (m->w.n_done && !m->echo && w->c.faults && rng_chance(&w->rng, 50))
      again = echo_of(w, m);
  }
  decode_pump(w, dr);
  if (m->kind != RD2H_MSG_READY)
    msg_free(m);
  rd2h_arena_free(&arena);
  if (again && !w->failed && x->peer != RD2H_INDEX_NONE)
    decode_message(w, c, again);
}

/* ---- life ---- */
void drank_start(struct world *w, struct drank *dr) {
  struct dengine *de = &w->d[dr->d];
  struct rd2h_error err;
  dr->proc.alive = true;
  dr->proc.paused = false;
  dr->timer_at = RD2H_NEVER;
  dr->step_at = w->now;
  memset(dr->peer_conn, 0, sizeof dr->peer_conn);
  if (de->legacy) {
    ld_start(w, dr);
    return;
  }
  struct rd2h_dm_cfg cfg = {.layout = de->layout[dr->rank],
                            .main_rank = w->c.pooled ? dr->rank : 0,
                            .main_ranks = w->c.pooled ? de->tp : 1,
                            .max_peers = 64,
                            .max_requests = 64,
                            .max_parked = 256,
                            .tombstones = w->mut == MUT_TOMBSTONES_OFF ? 1 : 256,
                            .park_ns = w->mut == MUT_PARK_FOREVER ? 60 * SEC : PARK_NS,
                            .queue_ns = QUEUE_NS,
                            .progress_ns = PROGRESS_NS,
                            .probe_ns = PROBE_NS,
                            .legacy_hold_ns = HOLD_NS,
                            .reply_on_read_failure = w->seed % 7 == 0};
  cfg.incarnation[0] = (uint8_t)(dr->d + 1);
  cfg.incarnation[1] = (uint8_t)dr->rank;
  cfg.incarnation[2] = (uint8_t)de->inc;
  if (rd2h_dm_create(&cfg, &dr->dm, &err) != RD2H_OK)
    broken(w, "SIM", "%s", err.text);
}
