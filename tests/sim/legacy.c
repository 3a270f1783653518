/* SPDX-License-Identifier: Apache-2.0 */
/* Small models of legacy peers, as far as ours can notice them: a Prefill that matches answers by layer, keeps its queue over a
 * reconnection and never sends metadata again, and lets done ride on the last layer; a Decode that is one thread, reads inside
 * it, and answers in order without sequence numbers. */
#include "sim.h"
#include <stdio.h>
#include <stdlib.h>

/* ---- Prefill ---- */
#define LP_QUEUE 512u
struct lp_endpoint {
  uint32_t conn;
  bool live, meta_sent, acked;
  uint32_t queue[LP_QUEUE], n_queue;   /* not sent yet */
  uint32_t flight[LP_QUEUE], n_flight; /* without an answer */
};

static struct lp_endpoint *lp_at(struct prank *pr, uint32_t d, uint32_t drank) {
  return &pr->lp[d * MAX_TP + drank];
}

static struct lp_endpoint *lp_of(struct world *w, uint32_t c) {
  const struct conn *x = &w->conn[c];
  struct prank *pr = &w->p[x->p].rank[x->rank];
  struct lp_endpoint *e = lp_at(pr, x->d, x->drank);
  return e->live && e->conn == c ? e : NULL;
}

void lp_start(struct world *w, struct prank *pr) {
  (void)w;
  pr->lp = calloc(MAX_ENGINES * MAX_TP, sizeof *pr->lp);
}

void lp_stop(struct prank *pr) {
  free(pr->lp);
  pr->lp = NULL;
}

static void lp_settled(struct world *w, struct prank *pr) {
  for (uint32_t i = 0; i < w->n_jobs; i++) {
    struct job *j = &w->job[i];
    if (j->p == pr->p && j->p_inc == w->p[pr->p].inc && j->at[pr->rank].finished && !j->at[pr->rank].settled)
      lp_finish(w, pr, j);
  }
}

void lp_finish(struct world *w, struct prank *pr, struct job *j) {
  if (!rank_outstanding(w, pr, j))
    job_settled(w, pr, j, RD2H_OK);
}

static void lp_send(struct world *w, struct lp_endpoint *e) {
  static const uint32_t all[BATCH_REQS] = {0, 1, 2, 3};
  if (!e->live || w->conn[e->conn].state != CONN_UP)
    return;
  if (!e->meta_sent) {
    e->meta_sent = true;
    net_to_decode(w, e->conn, msg_new(w, RD2H_MSG_META));
  }
  for (uint32_t i = 0; e->acked && i < e->n_queue; i++) {
    struct brec *b = &w->brec[e->queue[i]];
    b->sent = true;
    b->conn = e->conn;
    e->flight[e->n_flight++] = e->queue[i];
    net_to_decode(w, e->conn, ready_message(w, b, all, b->n));
  }
  if (e->acked)
    e->n_queue = 0;
}

void lp_dispatch(struct world *w, struct prank *pr, uint32_t brec) {
  const struct brec *b = &w->brec[brec];
  struct lp_endpoint *e = lp_at(pr, b->d, b->drank);
  if (e->n_queue + e->n_flight == LP_QUEUE) {
    broken(w, "SIM", "the legacy Prefill's queue is full");
    return;
  }
  e->queue[e->n_queue++] = brec;
  if (!e->live) {
    e->live = true;
    e->conn = net_connect(w, pr, b->d, b->drank, 0, 0);
  }
  lp_send(w, e);
}

void lp_connected(struct world *w, uint32_t c) {
  if (lp_of(w, c))
    lp_send(w, lp_of(w, c));
}

static void lp_again(struct world *w, void *obj, uint64_t key) {
  struct prank *pr = obj;
  struct lp_endpoint *e = &pr->lp[key];
  e->conn = net_connect(w, pr, (uint32_t)key / MAX_TP, key % MAX_TP, 0, 0);
}

/* Its transport connects again by itself. What was in flight is lost, and so is the metadata, which it does not know. */
void lp_disconnected(struct world *w, uint32_t c) {
  const struct conn *x = &w->conn[c];
  struct prank *pr = &w->p[x->p].rank[x->rank];
  if (lp_of(w, c) && w->now < 300 * SEC)
    in(w, rng_between(&w->rng, 100 * RD2H_MS, SEC), &pr->proc, lp_again, pr, x->d * MAX_TP + x->drank);
}

static void lp_raise(struct world *w, void *obj, uint64_t inc) {
  struct pengine *pe = obj;
  if (pe->inc == inc)
    pengine_crash(w, pe->no, false);
}

void lp_message(struct world *w, uint32_t c, struct msg *m) {
  struct conn *x = &w->conn[c];
  struct prank *pr = &w->p[x->p].rank[x->rank];
  struct lp_endpoint *e = lp_of(w, c);
  bool failed = m->kind == RD2H_MSG_FAILED;
  if (!e)
    return;
  if (m->kind == RD2H_MSG_ACK || m->kind == RD2H_MSG_META_ACK) {
    e->acked = true;
    if (m->kind != (w->p[x->p].version ? RD2H_MSG_META_ACK : RD2H_MSG_ACK) || m->reply.ext.present)
      broken(w, "SIM", "a legacy Prefill of version %u does not understand this acknowledgement", w->p[x->p].version);
  } else if (m->kind == RD2H_MSG_DONE || failed) {
    uint32_t i = 0;
    while (i < e->n_flight && w->brec[e->flight[i]].layer != m->reply.layer_idx)
      i++;
    if (i == e->n_flight) {
      broken(w, "I7", "a legacy Prefill got an answer for layer %u that it does not wait for", m->reply.layer_idx);
      return;
    }
    uint32_t b = e->flight[i];
    memmove(&e->flight[i], &e->flight[i + 1], (--e->n_flight - i) * sizeof e->flight[0]);
    w->brec[b].delivered = true;
    batch_settled(w, b, failed ? RD2H_IO : RD2H_OK);
    lp_settled(w, pr);
    if (failed && rng_chance(&w->rng, 500)) /* it raises in the forward */
      in(w, RD2H_MS, NULL, lp_raise, &w->p[x->p], w->p[x->p].inc);
  } else {
    broken(w, "SIM", "a legacy Prefill got a message of kind %d", (int)m->kind);
  }
  msg_free(m);
  lp_send(w, e);
}

/* ---- Decode ---- */
struct ld_job {
  bool live, failed;
  uint64_t dones;
  uint32_t expected;
};
struct ld_state {
  struct msg *busy, *queue[LP_QUEUE];
  uint64_t busy_since;
  struct ld_job job[MAX_JOBS];
  bool ended[MAX_JOBS];
  int end_status[MAX_JOBS];
  uint32_t n_queue, gen;
};

static void ld_next(struct world *, struct drank *);

void ld_start(struct world *w, struct drank *dr) {
  (void)w;
  dr->ld = calloc(1, sizeof *dr->ld);
}

void ld_stop(struct drank *dr) {
  free(dr->ld);
  dr->ld = NULL;
}

static struct job *ld_live(struct world *w, struct drank *dr, const char *ext) {
  for (uint32_t i = w->n_jobs; i-- > 0;) {
    struct job *j = &w->job[i];
    if (j->d == dr->d && j->d_inc == w->d[dr->d].inc && dr->ld->job[i].live && !strcmp(j->ext, ext))
      return j;
  }
  return NULL;
}

static void ld_report(struct world *w, struct drank *dr, struct job *j, int status) {
  dr->ld->job[j - w->job].live = false;
  decode_reported(w, dr, j, status, "");
}

static void ld_fail_all(struct world *w, struct drank *dr, struct msg *m) {
  for (uint32_t k = 0; k < m->w.n_reqs; k++)
    job_fault(w, &w->job[m->job[k]], "a legacy Decode fails the whole message");
  for (uint32_t k = 0; k < m->w.n_reqs + m->w.n_done; k++) {
    struct job *j = ld_live(w, dr, k < m->w.n_reqs ? m->ext[k] : m->done_ext[k - m->w.n_reqs]);
    if (j)
      ld_report(w, dr, j, RD2H_IO);
  }
}

/* An aborted request is gone for good once no read is in the thread: the reference frees its blocks even earlier. */
static void ld_bury(struct world *w, struct drank *dr) {
  for (uint32_t i = 0; i < w->n_jobs; i++)
    if (dr->ld->ended[i] && !dr->ld->busy) {
      dr->ld->ended[i] = false;
      ld_report(w, dr, &w->job[i], dr->ld->end_status[i]);
    }
}

static void ld_answer(struct world *w, struct drank *dr, struct msg *m, bool failed) {
  struct msg *reply = msg_new(w, failed ? RD2H_MSG_FAILED : RD2H_MSG_DONE);
  reply->reply = (struct rd2h_wire_reply){.kind = reply->kind, .layer_idx = m->w.layer_idx};
  reply->brec = m->brec;
  if (m->brec != RD2H_INDEX_NONE) {
    struct brec *b = &w->brec[m->brec];
    b->answered = true;
    for (uint32_t k = 0; k < b->n; k++)
      b->status[k] = failed ? RD2H_IO : RD2H_OK;
  }
  net_to_prefill(w, m->conn, reply);
  dr->ld->busy = NULL;
  msg_free(m);
  ld_bury(w, dr);
  ld_next(w, dr);
}

static void ld_finish(struct world *w, struct drank *dr, struct msg *m, int status) {
  if (status) {
    ld_fail_all(w, dr, m);
    ld_answer(w, dr, m, true);
    return;
  }
  const struct pengine *pe = &w->p[w->conn[m->conn].p];
  for (uint32_t k = 0; k < m->w.n_done; k++) {
    struct job *j = ld_live(w, dr, m->done_ext[k]);
    if (!j)
      continue;
    struct ld_job *l = &dr->ld->job[j - w->job];
    l->dones |= UINT64_C(1) << (w->conn[m->conn].rank / pe->tp * m->w.ratio + m->w.member);
    if ((uint32_t)__builtin_popcountll(l->dones) == m->w.ratio * pe->pp)
      ld_report(w, dr, j, RD2H_OK);
  }
  ld_answer(w, dr, m, false);
}

void ld_read_over(struct world *w, struct read *r, int status) {
  struct drank *dr = &w->d[r->d].rank[r->drank];
  struct msg *m = r->msg;
  dr->ld->busy = NULL;
  ld_bury(w, dr);
  ld_finish(w, dr, m, status);
}

static bool ld_plan(struct world *w, struct drank *dr, struct msg *m, struct rd2h_descs *ds, uint32_t layer) {
  const struct rd2h_link *link = &w->conn[m->conn].link[layer];
  struct rd2h_share share = {w->c.pooled ? dr->rank : 0, w->c.pooled ? w->d[dr->d].tp : 1, m->w.member, m->w.ratio};
  for (uint32_t k = 0; k < m->w.n_reqs; k++) {
    const struct job *j = ld_live(w, dr, m->ext[k]);
    const struct rd2h_wire_req *q = &m->req[k];
    struct rd2h_plan_request p = {q->main,        q->indexer,        q->n_main,      w->c.indexer ? q->n_indexer : 0,
                                  q->main_start,  q->indexer_start,  j->dst[MAIN],   j->dst[INDEXER],
                                  j->n_dst[MAIN], j->n_dst[INDEXER], j->floor[MAIN], j->floor[INDEXER]};
    struct rd2h_error err;
    if (rd2h_plan_build(link, &share, &p, ds, &err) != RD2H_OK)
      return false;
  }
  return true;
}

static void ld_process(struct world *w, void *obj, uint64_t gen) {
  struct drank *dr = obj;
  struct msg *m = dr->ld->busy;
  static void *local[1024];
  static uint64_t remote[1024], len[1024];
  struct rd2h_descs ds = {.local = local, .remote = remote, .len = len, .cap = 1024};
  uint32_t layer;
  if (gen != dr->ld->gen || !m)
    return;
  if (!w->conn[m->conn].link || sscanf(m->layer, "model.layers.%u.", &layer) != 1 || layer >= w->c.layers) {
    ld_finish(w, dr, m, RD2H_LAYOUT);
    return;
  }
  bool all = true;
  for (uint32_t k = 0; k < m->w.n_reqs; k++)
    all &= ld_live(w, dr, m->ext[k]) != NULL;
  if (!all)
    fault_all(w, "a legacy Decode's thread waits for an installation", 60 * SEC);
  if (!all && w->d[dr->d].version && w->now - dr->ld->busy_since < 2 * SEC) {
    in(w, 20 * RD2H_MS, &dr->proc, ld_process, dr, gen);
    return;
  }
  if (!all || !ld_plan(w, dr, m, &ds, layer))
    ld_finish(w, dr, m, RD2H_NOT_FOUND);
  else if (!ds.n)
    ld_finish(w, dr, m, RD2H_OK);
  else
    read_start(w, dr, m->conn, 0, m, &ds);
}

static void ld_next(struct world *w, struct drank *dr) {
  if (dr->ld->busy || !dr->ld->n_queue)
    return;
  dr->ld->busy = dr->ld->queue[0];
  dr->ld->busy_since = w->now;
  memmove(dr->ld->queue, dr->ld->queue + 1, --dr->ld->n_queue * sizeof dr->ld->queue[0]);
  in(w, RD2H_MS / 20, &dr->proc, ld_process, dr, ++dr->ld->gen);
}

static void ld_meta(struct world *w, uint32_t c) {
  struct conn *x = &w->conn[c];
  struct rd2h_arena arena = {0};
  const struct rd2h_wire_meta *meta = meta_of(w, &w->p[x->p].rank[x->rank], &arena);
  struct rd2h_error err;
  if (!x->link)
    x->link = calloc(MAX_LAYERS, sizeof *x->link);
  for (uint32_t i = 0; i < meta->n_layers; i++) {
    const struct rd2h_wire_layer *l = &meta->layer[i];
    uint32_t at_layer = rd2h_layout_find(w->d[x->d].layout[x->drank], l->name.p);
    struct rd2h_peer_layer pl = {l->name,  l->n_addrs,    l->n_lens,      l->n_scales, l->addr,   l->len,
                                 l->scale, l->main_count, l->has_indexer, UINT32_MAX,  UINT32_MAX};
    if (rd2h_link_build(&pl, w->d[x->d].layout[x->drank], at_layer, NULL, 0, &x->link[at_layer], &err) != RD2H_OK)
      broken(w, "SIM", "%s", err.text);
  }
  struct msg *reply = msg_new(w, w->d[x->d].version && meta->fields == 6 ? RD2H_MSG_META_ACK : RD2H_MSG_ACK);
  reply->reply.kind = reply->kind;
  net_to_prefill(w, c, reply);
  rd2h_arena_free(&arena);
}

void ld_message(struct world *w, uint32_t c, struct msg *m) {
  struct drank *dr = &w->d[w->conn[c].d].rank[w->conn[c].drank];
  if (m->kind == RD2H_MSG_META) {
    ld_meta(w, c);
    msg_free(m);
    return;
  }
  if (m->kind != RD2H_MSG_READY || m->w.has_seq || dr->ld->n_queue == LP_QUEUE) {
    broken(w, "SIM", "a legacy Decode got a message of kind %d%s", (int)m->kind, m->w.has_seq ? " with a sequence number" : "");
    return;
  }
  m->at_decode = true;
  dr->ld->queue[dr->ld->n_queue++] = m;
  ld_next(w, dr);
}

void ld_install(struct world *w, struct drank *dr, struct job *j) {
  struct ld_job *l = &dr->ld->job[j - w->job];
  *l = (struct ld_job){.live = true};
}

/* Ended by its user; or never begun, and swept away some day. */
void ld_end(struct world *w, struct drank *dr, struct job *j, int status) {
  uint32_t i = (uint32_t)(j - w->job);
  if (!dr->ld->job[i].live)
    return;
  dr->ld->job[i].live = false;
  dr->ld->ended[i] = true;
  dr->ld->end_status[i] = status;
  ld_bury(w, dr);
}
