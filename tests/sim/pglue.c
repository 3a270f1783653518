/* SPDX-License-Identifier: Apache-2.0 */
/* One Prefill rank's worker: carries out what the machine wants, keeps the gate, follows every batch to its end. */
#include "sim.h"
#include <stdio.h>
#include <stdlib.h>

static void pump(struct world *, struct prank *);

uint32_t stage_of(const struct world *w, uint32_t layer) {
  return layer / w->c.stage_layers;
}

bool slot_of(const struct pengine *pe, uint32_t layer, uint32_t comp, uint32_t *slot) {
  *slot = layer % pe->w->c.stage_layers % pe->n_slots[comp];
  return comp == MAIN || pe->w->c.indexer;
}

/* ---- time ---- */
static void timer(struct world *w, void *obj, uint64_t when) {
  struct prank *pr = obj;
  if (when != pr->timer_at)
    return;
  pr->timer_at = RD2H_NEVER;
  for (int i = 0; rd2h_pm_next_deadline(pr->pm) <= w->now; i++) {
    rd2h_pm_tick(pr->pm, w->now);
    if (i == 100) {
      broken(w, "SIM", "Prefill %u.%u: tick() does not move its deadline", pr->p, pr->rank);
      return;
    }
  }
  pump(w, pr);
}

static void arm(struct world *w, struct prank *pr) {
  uint64_t next = rd2h_pm_next_deadline(pr->pm);
  if (next >= pr->timer_at || next == RD2H_NEVER)
    return;
  pr->timer_at = next < w->now ? w->now : next;
  at(w, pr->timer_at, &pr->proc, timer, pr, pr->timer_at);
}

/* ---- messages ---- */
/* Which contributor of the endpoint this rank is, as it says in its messages. */
static void contributor(struct world *w, const struct prank *pr, uint32_t d, uint32_t drank, uint32_t *member, uint32_t *ratio) {
  const struct pengine *pe = &w->p[pr->p];
  uint32_t q = pr->rank % pe->tp, dtp = w->d[d].tp;
  struct rd2h_error err;
  if (w->mut == MUT_ONE_RATIO)
    dtp = w->d[0].tp;
  if (w->mut == MUT_MODULO && pe->tp >= dtp && pe->tp % dtp == 0) {
    *member = q / dtp;
    *ratio = pe->tp / dtp;
  } else if (w->mut == MUT_ONE_RATIO && pe->tp >= dtp && pe->tp % dtp == 0) {
    *ratio = pe->tp / dtp;
    *member = q % *ratio;
  } else if (rd2h_plan_member(q, pe->tp, drank, w->d[d].tp, member, ratio, &err) != RD2H_OK) {
    broken(w, "PLAN", "%s", err.text);
  }
}

static struct msg *ready_of(struct world *w, struct prank *pr, uint32_t d, uint32_t drank, uint32_t layer) {
  struct msg *m = msg_new(w, RD2H_MSG_READY);
  snprintf(m->layer, sizeof m->layer, "model.layers.%u.self_attn.attn", layer);
  m->w = (struct rd2h_wire_ready){
      .layer_idx = layer, .layer = {m->layer, (uint32_t)strlen(m->layer)}, .req = m->req, .done = m->done, .ratio = 1};
  contributor(w, pr, d, drank, &m->w.member, &m->w.ratio);
  return m;
}

static void set_attempt(const struct job *j, bool *has, uint8_t *to) {
  *has = j->has_attempt;
  if (j->has_attempt)
    memcpy(to, j->attempt, RD2H_ATTEMPT);
}

static void add_done(struct msg *m, const struct job *j) {
  struct rd2h_wire_done *x = &m->done[m->w.n_done];
  char *ext = m->done_ext[m->w.n_done++];
  memcpy(ext, j->ext, sizeof j->ext);
  x->id = (struct rd2h_str){ext, (uint32_t)strlen(ext)};
  set_attempt(j, &x->has_attempt, x->attempt);
}

static void add_req(struct world *w, struct msg *m, const struct brec *b, uint32_t k) {
  uint32_t to = m->w.n_reqs++;
  struct rd2h_wire_req *x = &m->req[to];
  const struct job *j = &w->job[b->job[k]];
  m->job[to] = b->job[k];
  memcpy(m->ext[to], j->ext, sizeof j->ext);
  x->id = (struct rd2h_str){m->ext[to], (uint32_t)strlen(j->ext)};
  set_attempt(j, &x->has_attempt, x->attempt);
  for (int c = 0; c < N_COMP; c++)
    memcpy(m->block[to][c], j->src[c] + b->start[k][c], b->count[k][c] * sizeof(uint32_t));
  x->main = m->block[to][MAIN];
  x->n_main = b->count[k][MAIN];
  x->main_start = b->start[k][MAIN];
  x->indexer = m->block[to][INDEXER];
  x->n_indexer = b->count[k][INDEXER];
  x->indexer_start = b->start[k][INDEXER];
}

struct msg *ready_message(struct world *w, struct brec *b, const uint32_t *idx, uint32_t n) {
  struct prank *pr = &w->p[b->p].rank[b->rank];
  struct msg *m = ready_of(w, pr, b->d, b->drank, b->layer);
  for (uint32_t i = 0; i < n; i++) {
    b->carried[idx[i]] = true;
    add_req(w, m, b, idx[i]);
    if (b->last[idx[i]] && (pr->lp || w->mut == MUT_DONE_RIDES))
      add_done(m, &w->job[b->job[idx[i]]]);
  }
  m->brec = (uint32_t)(b - w->brec);
  return m;
}

struct rd2h_wire_meta *meta_of(struct world *w, struct prank *pr, struct rd2h_arena *a) {
  const struct pengine *pe = &w->p[pr->p];
  rd2h_arena_reserve(a, 16384);
  rd2h_arena_reset(a);
  struct rd2h_wire_meta *m = rd2h_arena_alloc(a, sizeof *m);
  struct rd2h_wire_layer *l = rd2h_arena_alloc(a, w->c.stage_layers * sizeof *l);
  uint32_t stage = pr->rank / pe->tp, n_main = w->c.two_main ? 2 : 1, n = n_main + w->c.indexer + w->c.scale;
  *m = (struct rd2h_wire_meta){.session = {"10.0.0.1:7000", 13}, .fields = pe->version ? 6 : 3, .version = pe->version,
                               .pp_rank = stage, .pp_size = pe->pp, .n_layers = w->c.stage_layers, .layer = l};
  for (uint32_t i = 0; i < w->c.stage_layers; i++) {
    char *name = rd2h_arena_alloc(a, 48);
    uint64_t *v = rd2h_arena_alloc(a, 3 * RD2H_MAX_TENSORS * sizeof *v);
    int64_t *g = rd2h_arena_alloc(a, RD2H_MAX_TENSORS * sizeof *g);
    l[i] = (struct rd2h_wire_layer){
        .name = {name, (uint32_t)snprintf(name, 48, "model.layers.%u.self_attn.attn", stage * w->c.stage_layers + i)},
        .n_addrs = n,
        .n_lens = n,
        .n_scales = n,
        .n_groups = n,
        .addr = v,
        .len = v + RD2H_MAX_TENSORS,
        .scale = v + 2 * RD2H_MAX_TENSORS,
        .group = g,
        .main_count = n_main,
        .has_indexer = w->c.indexer};
    for (uint32_t t = 0; t < n; t++) {
      uint32_t tensor = t < n_main ? t : t - n_main + 2, slot;
      slot_of(pe, i, tensor >= 2, &slot);
      v[t] = 0x100000 + ((uint64_t)(slot * RD2H_MAX_TENSORS + tensor) << 16);
      v[RD2H_MAX_TENSORS + t] = BLOCK_BYTES / w->c.row_scale;
      v[2 * RD2H_MAX_TENSORS + t] = w->c.row_scale;
      g[t] = tensor >= 2;
    }
  }
  if (!pe->legacy) {
    m->ext = (struct rd2h_wire_ext){
        .present = true, .revision = RD2H_EXT_REVISION, .caps = RD2H_CAPS_ALL, .blocks = {N_BLOCKS, N_BLOCKS}};
    m->ext.incarnation[0] = (uint8_t)pr->p;
    m->ext.incarnation[1] = (uint8_t)pr->rank;
    m->ext.incarnation[2] = (uint8_t)pe->inc;
    uint32_t d_tp = w->d[0].tp;
    if (w->c.heads)
      memcpy(m->ext.heads, (uint32_t[]){pr->rank % pe->tp * d_tp / pe->tp, 1, d_tp}, sizeof m->ext.heads);
  }
  return m;
}

/* ---- the gate: here, as in a worker ---- */
static void gate(struct world *w, struct brec *b, bool close) {
  struct prank *pr = &w->p[b->p].rank[b->rank];
  uint32_t slot;
  if (b->gate_held == close)
    return;
  b->gate_held = close;
  for (uint32_t c = 0; c < N_COMP; c++) {
    if (!slot_of(&w->p[b->p], b->layer, c, &slot))
      continue;
    if (close)
      pr->busy[c][slot]++;
    else if (w->mut == MUT_GATE_BOOLEAN)
      pr->busy[c][slot] = 0;
    else if (pr->busy[c][slot])
      pr->busy[c][slot]--;
  }
  if (!close)
    gate_opened(w, pr);
}

static struct prank *rank_of(struct world *w, const struct brec *b) {
  struct prank *pr = &w->p[b->p].rank[b->rank];
  return pr->proc.alive && w->p[b->p].inc == b->p_inc ? pr : NULL;
}

/* A glue that is broken on purpose: done for what was given up. */
static void done_all_the_same(struct world *w, void *obj, uint64_t i) {
  struct brec *b = &w->brec[i];
  struct prank *pr = obj;
  struct msg *m = ready_of(w, pr, b->d, b->drank, (stage_of(w, b->layer) + 1) * w->c.stage_layers - 1);
  for (uint32_t k = 0; k < b->n; k++)
    if (b->carried[k])
      add_done(m, &w->job[b->job[k]]);
  net_to_decode(w, b->conn, m);
}

void batch_settled(struct world *w, uint32_t i, int status) {
  struct brec *b = &w->brec[i];
  struct prank *pr = rank_of(w, b);
  if (b->settled || !pr) {
    broken(w, "I10", "batch %u is settled %s", i, b->settled ? "twice" : "after its process died");
    return;
  }
  trace(w, "P%u.%u batch %u of layer %u settled: %s", b->p, b->rank, i, b->layer, rd2h_status_name(status));
  b->settled = true;
  b->given_up = !b->delivered;
  check_batch_settled(w, b, status);
  for (uint32_t k = 0; k < b->n; k++)
    if (!b->delivered)
      w->job[b->job[k]].at[b->rank].given_up[b->drank] = true;
  if (b->sent && !b->delivered)
    w->tally.given_up++;
  if (w->mut == MUT_DONE_AFTER_GIVING_UP && b->sent && !b->delivered)
    in(w, 50 * RD2H_MS, &pr->proc, done_all_the_same, pr, i);
  gate(w, b, false);
}

/* ---- actions ---- */
static uint32_t current_conn(struct prank *pr, const struct rd2h_pa *a) {
  return a->endpoint < RD2H_COUNT(pr->ep) ? pr->ep[a->endpoint].conn : 0;
}

static void do_connect(struct world *w, struct prank *pr, const struct rd2h_pa *a) {
  uint32_t d, drank;
  if (sscanf(rd2h_pm_endpoint_address(pr->pm, a->endpoint), "d%u.%u", &d, &drank) != 2 || a->endpoint >= RD2H_COUNT(pr->ep)) {
    broken(w, "SIM", "endpoint %u has no address", a->endpoint);
    return;
  }
  trace(w, "P%u.%u connects to D%u.%u, endpoint %u epoch %u", pr->p, pr->rank, d, drank, a->endpoint, a->epoch);
  pr->ep[a->endpoint].d = d;
  pr->ep[a->endpoint].drank = drank;
  pr->ep[a->endpoint].conn = net_connect(w, pr, d, drank, a->endpoint, a->epoch);
  pr->epochs[d][drank]++;
}

static void do_close(struct world *w, struct prank *pr, const struct rd2h_pa *a) {
  uint32_t c = current_conn(pr, a);
  trace(w, "P%u.%u closes endpoint %u epoch %u", pr->p, pr->rank, a->endpoint, a->epoch);
  if (w->conn[c].epoch != a->epoch || w->conn[c].endpoint != a->endpoint)
    broken(w, "SIM", "P%u.%u closes epoch %u of endpoint %u, open is %u", pr->p, pr->rank, a->epoch, a->endpoint,
           w->conn[c].epoch);
  net_close(w, c);
}

static void meta_answered(struct world *w, void *obj, uint64_t c) {
  struct prank *pr = obj;
  rd2h_pm_reply(
      pr->pm, w->conn[c].endpoint, w->conn[c].epoch,
      &(struct rd2h_wire_reply){.kind = RD2H_MSG_META_ACK, .ext = {.present = true, .revision = 1, .caps = RD2H_CAPS_ALL}},
      w->now);
  pump(w, pr);
}

static void do_send_meta(struct world *w, struct prank *pr, const struct rd2h_pa *a) {
  uint32_t c = current_conn(pr, a);
  if (w->mut == MUT_NO_META_AGAIN && pr->epochs[w->conn[c].d][w->conn[c].drank] > 1)
    in(w, RD2H_MS, &pr->proc, meta_answered, pr, c);
  else
    net_to_decode(w, c, msg_new(w, RD2H_MSG_META));
}

static void set_seq(struct msg *m, const struct rd2h_pa *a) {
  m->w.has_seq = a->has_seq;
  m->w.seq = a->seq;
}

static void do_send_batch(struct world *w, struct prank *pr, const struct rd2h_pa *a) {
  struct rd2h_pa act = *a;
  uint32_t c = current_conn(pr, a), idx[BATCH_REQS];
  if (act.cookie >= w->n_brec || w->brec[act.cookie].settled || w->brec[act.cookie].sent) {
    broken(w, "I8", "P%u.%u sends batch %llu, which was settled or sent", pr->p, pr->rank, (unsigned long long)act.cookie);
    return;
  }
  struct brec *b = &w->brec[act.cookie];
  uint32_t n = rd2h_pm_sending(pr->pm, act.batch, idx, w->now);
  if (!n)
    return;
  if (act.layer != b->layer || w->conn[c].d != b->d || w->conn[c].drank != b->drank)
    broken(w, "SIM", "P%u.%u sends batch %llu to another endpoint or layer", pr->p, pr->rank, (unsigned long long)act.cookie);
  b->conn = c;
  b->sent = true;
  b->has_seq = act.has_seq;
  b->seq = act.seq;
  if (w->mut == MUT_GATE_AT_SEND)
    gate(w, b, true);
  struct msg *m = ready_message(w, b, idx, n);
  set_seq(m, &act);
  trace(w, "P%u.%u sends batch %llu, layer %u, %u requests, to D%u.%u", pr->p, pr->rank, (unsigned long long)act.cookie, b->layer,
        n, b->d, b->drank);
  net_to_decode(w, c, m);
}

static void do_send_done(struct world *w, struct prank *pr, const struct rd2h_pa *a) {
  uint32_t c = current_conn(pr, a);
  struct job *j = job_by_pid(w, a->id);
  if (!j || strcmp(j->ext, a->ext_id)) {
    broken(w, "SIM", "P%u.%u sends done for %s, which is no request", pr->p, pr->rank, a->id);
    return;
  }
  trace(w, "P%u.%u sends done of %s to D%u.%u", pr->p, pr->rank, j->pid, w->conn[c].d, w->conn[c].drank);
  check_done(w, pr, j, w->conn[c].d, w->conn[c].drank);
  struct msg *m = ready_of(w, pr, w->conn[c].d, w->conn[c].drank, a->layer);
  add_done(m, j);
  set_seq(m, a);
  net_to_decode(w, c, m);
}

static void do_send_poison(struct world *w, struct prank *pr, const struct rd2h_pa *a) {
  uint32_t c = current_conn(pr, a);
  struct job *j = job_by_pid(w, a->id);
  struct msg *m = ready_of(w, pr, w->conn[c].d, w->conn[c].drank, a->layer);
  if (w->conn[c].ours)
    broken(w, "SIM", "P%u.%u poisons a request at one of ours", pr->p, pr->rank);
  w->tally.poison++;
  m->w.layer.n = (uint32_t)snprintf(m->layer, sizeof m->layer, "rd2h.ended");
  struct brec none = {.job = {(uint32_t)(j - w->job)}};
  add_req(w, m, &none, 0);
  set_seq(m, a);
  net_to_decode(w, c, m);
}

static void do_send_cancel(struct world *w, struct prank *pr, const struct rd2h_pa *a) {
  uint32_t c = current_conn(pr, a);
  struct msg *m = msg_new(w, RD2H_MSG_CANCEL);
  if (!w->conn[c].ours && !(w->conn[c].refused && a->has_attempt)) /* an attempt in the rendezvous announces it, too */
    broken(w, "SIM", "P%u.%u sends a cancel to a peer that did not announce itself", pr->p, pr->rank);
  w->tally.cancels++;
  snprintf(m->ext[0], sizeof m->ext[0], "%s", a->ext_id);
  snprintf(m->text, sizeof m->text, "%s", a->text);
  m->cancel = (struct rd2h_wire_cancel){.id = {m->ext[0], (uint32_t)strlen(m->ext[0])},
                                        .has_attempt = a->has_attempt,
                                        .status = a->status,
                                        .text = {m->text, (uint32_t)strlen(m->text)}};
  memcpy(m->cancel.attempt, a->attempt, RD2H_ATTEMPT);
  net_to_decode(w, c, m);
}

static void do_batch_settled(struct world *w, struct prank *pr, const struct rd2h_pa *a) {
  (void)pr;
  batch_settled(w, (uint32_t)a->cookie, a->status);
}

static void do_req_settled(struct world *w, struct prank *pr, const struct rd2h_pa *a) {
  struct job *j = job_by_pid(w, a->id);
  if (!j)
    broken(w, "I5", "P%u.%u settles %s, which is no request", pr->p, pr->rank, a->id);
  else
    job_settled(w, pr, j, a->status);
}

static void pump(struct world *w, struct prank *pr) {
  static void (*const todo[])(struct world *, struct prank *, const struct rd2h_pa *) = {
    [RD2H_PA_CONNECT] = do_connect, [RD2H_PA_CLOSE] = do_close, [RD2H_PA_SEND_META] = do_send_meta,
    [RD2H_PA_SEND_BATCH] = do_send_batch, [RD2H_PA_SEND_DONE] = do_send_done, [RD2H_PA_SEND_POISON] = do_send_poison,
    [RD2H_PA_SEND_CANCEL] = do_send_cancel, [RD2H_PA_BATCH_SETTLED] = do_batch_settled, [RD2H_PA_REQ_SETTLED] = do_req_settled};
  struct rd2h_pa a;
  while (!w->failed && rd2h_pm_next(pr->pm, &a))
    todo[a.kind](w, pr, &a);
  if (!w->failed)
    arm(w, pr);
}

/* ---- what the engine asks of its rank ---- */
static uint32_t bind(struct world *w, struct prank *pr, struct job *j, uint32_t drank, uint32_t *endpoint) {
  char address[24], engine[24];
  snprintf(address, sizeof address, "d%u.%u", j->d, drank);
  snprintf(engine, sizeof engine, "D%u/%u", j->d, j->d_inc);
  *endpoint = rd2h_pm_endpoint(pr->pm, (struct rd2h_str){address, (uint32_t)strlen(address)},
                               (struct rd2h_str){engine, (uint32_t)strlen(engine)}, w->now);
  if (*endpoint == RD2H_INDEX_NONE)
    return RD2H_INDEX_NONE;
  struct rd2h_pm_request q = {.id = {j->pid, (uint32_t)strlen(j->pid)}, .ext_id = {j->ext, (uint32_t)strlen(j->ext)},
                              .has_attempt = j->has_attempt};
  memcpy(q.attempt, j->attempt, RD2H_ATTEMPT);
  return rd2h_pm_bind(pr->pm, &q, *endpoint, w->now);
}

static void name_source(struct world *w, struct prank *pr, const struct brec *b, uint32_t k) {
  const struct pengine *pe = &w->p[pr->p];
  struct job *j = &w->job[b->job[k]];
  for (uint32_t t = 0; t < RD2H_MAX_TENSORS; t++) {
    uint32_t c = t >= 2, slot;
    if (!slot_of(pe, b->layer, c, &slot))
      continue;
    for (uint32_t e = b->start[k][c]; e < b->start[k][c] + b->count[k][c]; e++)
      j->named[pr->rank][b->layer][t][e] = pr->cell[slot][t][j->src[c][e]];
  }
}

static struct brec *new_brec(struct world *w, struct prank *pr, uint32_t d, uint32_t drank, uint32_t layer) {
  if (!w->brec) /* never moves: machines borrow from it */
    w->brec = malloc(MAX_BATCHES * sizeof *w->brec);
  if (w->n_brec == MAX_BATCHES) {
    broken(w, "SIM", "more batches than anybody asked for");
    w->n_brec--;
  }
  struct brec *b = &w->brec[w->n_brec++];
  *b = (struct brec){.p = pr->p, .rank = pr->rank, .p_inc = w->p[pr->p].inc, .d = d, .drank = drank, .layer = layer,
                     .conn = RD2H_INDEX_NONE, .dispatched = w->now};
  w->tally.batches++;
  return b;
}

static bool fill(struct world *w, struct brec *b, uint32_t step) {
  const struct pengine *pe = &w->p[b->p];
  struct job *j = &w->job[pe->step_job[step]];
  uint32_t min_bs = w->c.bs[0] < w->c.bs[1] ? w->c.bs[0] : w->c.bs[1], k = b->n;
  uint32_t from = j->published / min_bs * min_bs, to = pe->step_to[step];
  from = from > j->p_floor ? from : j->p_floor;
  for (uint32_t c = 0; c < N_COMP; c++) {
    uint32_t begin = from / w->c.bs[c], end = pe->step_last[step] ? (to + w->c.bs[c] - 1) / w->c.bs[c] : to / w->c.bs[c];
    b->start[k][c] = begin;
    b->count[k][c] = end > begin && !j->chunk_skipped && (c == MAIN || w->c.indexer) ? end - begin : 0;
  }
  b->last[k] = pe->step_last[step] && (b->layer + 1) % w->c.stage_layers == 0;
  if (!b->count[k][MAIN] && !b->count[k][INDEXER] && !b->last[k])
    return false;
  b->job[k] = pe->step_job[step];
  return true;
}

static void dispatch_to(struct world *w, struct prank *pr, uint32_t layer, uint32_t d, uint32_t drank) {
  const struct pengine *pe = &w->p[pr->p];
  struct brec *b = new_brec(w, pr, d, drank, layer);
  uint32_t endpoint = RD2H_INDEX_NONE, cookie = (uint32_t)(b - w->brec);
  for (uint32_t s = 0; s < pe->n_step; s++) {
    struct job *j = &w->job[pe->step_job[s]];
    if (j->d != d || j->p_state != P_RUNNING || !fill(w, b, s))
      continue;
    if (!pr->lp && (b->handle[b->n] = bind(w, pr, j, drank, &endpoint)) == RD2H_INDEX_NONE)
      continue;
    j->at[pr->rank].handle[drank] = b->handle[b->n];
    name_source(w, pr, b, b->n++);
  }
  if (!b->n) {
    b->settled = true;
    return;
  }
  contributor(w, pr, d, drank, &b->member, &b->ratio);
  trace(w, "P%u.%u dispatches batch %u, layer %u for D%u.%u", pr->p, pr->rank, cookie, layer, d, drank);
  if (w->mut != MUT_GATE_AT_SEND || pr->lp)
    gate(w, b, true);
  if (pr->lp) {
    lp_dispatch(w, pr, cookie);
    return;
  }
  rd2h_pm_dispatch(pr->pm, endpoint, layer, b->handle, b->n, cookie, w->now);
  for (uint32_t k = 0; k < b->n; k++)
    if (b->last[k])
      rd2h_pm_last(pr->pm, w->job[b->job[k]].at[pr->rank].handle[drank], endpoint, w->now);
  pump(w, pr);
}

void rank_dispatch(struct world *w, struct prank *pr, uint32_t layer) {
  const struct pengine *pe = &w->p[pr->p];
  struct rd2h_error err;
  for (uint32_t d = 0; d < w->c.n_d && !w->failed; d++) {
    uint32_t first, count, tp = w->d[d].tp;
    if (rd2h_plan_targets(pr->rank % pe->tp, pe->tp, tp, &first, &count, &err) != RD2H_OK)
      broken(w, "PLAN", "%s", err.text);
    if (w->mut == MUT_MODULO && pe->tp >= tp && pe->tp % tp == 0)
      first = pr->rank % pe->tp % tp;
    for (uint32_t i = 0; i < count && !w->failed; i++)
      dispatch_to(w, pr, layer, d, first + i);
  }
}

void rank_finish(struct world *w, struct prank *pr, struct job *j, bool aborted) {
  j->at[pr->rank].finished = true;
  if (pr->lp) {
    lp_finish(w, pr, j);
    return;
  }
  rd2h_pm_finish(pr->pm, (struct rd2h_str){j->pid, (uint32_t)strlen(j->pid)}, aborted, w->now);
  pump(w, pr);
}

/* Unsettled batches whose message carries, or may still carry, the request. */
uint32_t rank_outstanding(struct world *w, struct prank *pr, struct job *j) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < w->n_brec; i++) {
    const struct brec *b = &w->brec[i];
    for (uint32_t k = 0; k < b->n; k++)
      n += &w->job[b->job[k]] == j && b->rank == pr->rank && !b->settled &&
           (b->sent ? b->carried[k] : b->handle[k] != RD2H_INDEX_NONE);
  }
  if (pr->lp)
    return n;
  uint32_t said = rd2h_pm_outstanding(pr->pm, (struct rd2h_str){j->pid, (uint32_t)strlen(j->pid)});
  if (said < n && !j->p_abort)
    broken(w, "I4", "P%u.%u counts %u open batches of %s, there are %u", pr->p, pr->rank, said, j->pid, n);
  return said;
}

/* ---- what the network says ---- */
void prefill_connected(struct world *w, uint32_t c) {
  struct conn *x = &w->conn[c];
  struct prank *pr = &w->p[x->p].rank[x->rank];
  if (pr->lp) {
    lp_connected(w, c);
    return;
  }
  rd2h_pm_connected(pr->pm, x->endpoint, x->epoch, w->now);
  pump(w, pr);
}

/* A glue that is broken on purpose: the transport connects again by itself, with what it had not delivered. */
static void reconnect_quietly(struct world *w, struct prank *pr, uint32_t old) {
  uint32_t c = net_connect(w, pr, w->conn[old].d, w->conn[old].drank, w->conn[old].endpoint, w->conn[old].epoch);
  struct proc *d = proc_of_conn_d(w, c);
  w->conn[c].ours = w->conn[old].ours;
  if (d->alive) {
    w->conn[c].state = CONN_UP;
    w->conn[c].d_inc = w->d[w->conn[c].d].inc;
  }
  pr->ep[w->conn[old].endpoint].conn = c;
  for (struct msg *m = w->msgs, *next; m; m = next) {
    next = m->next;
    if (m->conn == old && m->kind == RD2H_MSG_READY && !m->at_decode)
      net_to_decode(w, c, m);
  }
}

void prefill_disconnected(struct world *w, uint32_t c) {
  struct conn *x = &w->conn[c];
  struct prank *pr = &w->p[x->p].rank[x->rank];
  x->p_closed = true;
  trace(w, "P%u.%u is told that endpoint %u epoch %u is gone", pr->p, pr->rank, x->endpoint, x->epoch);
  if (pr->lp) {
    lp_disconnected(w, c);
    return;
  }
  if (w->mut == MUT_QUEUE_SURVIVES && x->acked) {
    reconnect_quietly(w, pr, c);
    return;
  }
  rd2h_pm_disconnected(pr->pm, x->endpoint, x->epoch, "the simulated connection broke", w->now);
  pump(w, pr);
}

static void note_reply(struct world *w, struct msg *m) {
  if (m->brec == RD2H_INDEX_NONE)
    return;
  struct brec *b = &w->brec[m->brec];
  b->delivered = true;
}

static void pop_any(struct world *w, uint32_t c, struct rd2h_wire_reply *r) {
  for (uint32_t i = 0; i < w->n_brec; i++) {
    const struct brec *b = &w->brec[i];
    if (b->conn == c && b->sent && !b->settled) {
      r->layer_idx = b->layer;
      r->seq = b->seq;
      return;
    }
  }
}

void prefill_message(struct world *w, uint32_t c, struct msg *m) {
  struct conn *x = &w->conn[c];
  struct prank *pr = &w->p[x->p].rank[x->rank];
  if (pr->lp) {
    lp_message(w, c, m);
    return;
  }
  if (m->kind == RD2H_MSG_CANCEL) {
    rd2h_pm_peer_cancel(pr->pm, x->endpoint, x->epoch, &m->cancel, w->now);
  } else {
    if (m->kind == RD2H_MSG_ACK || m->kind == RD2H_MSG_META_ACK) {
      x->acked = true;
      x->ours = m->reply.ext.present;
    }
    x->refused |= m->kind == RD2H_MSG_META_NAK && !x->acked;
    note_reply(w, m);
    if (w->mut == MUT_POP_ANY && m->brec != RD2H_INDEX_NONE)
      pop_any(w, c, &m->reply);
    rd2h_pm_reply(pr->pm, x->endpoint, x->epoch, &m->reply, w->now);
  }
  msg_free(m);
  pump(w, pr);
}

/* ---- life ---- */
void rank_start(struct world *w, struct prank *pr) {
  const struct pengine *pe = &w->p[pr->p];
  struct rd2h_error err;
  uint32_t stage = pr->rank / pe->tp;
  pr->timer_at = RD2H_NEVER;
  memset(pr->ep, 0, sizeof pr->ep);
  memset(pr->busy, 0, sizeof pr->busy);
  memset(pr->epochs, 0, sizeof pr->epochs);
  if (pe->legacy) {
    lp_start(w, pr);
    return;
  }
  struct rd2h_pm_cfg cfg = {.pp_rank = stage,
                            .pp_size = pe->pp,
                            .last_layer = (stage + 1) * w->c.stage_layers - 1,
                            .max_endpoints = 32,
                            .max_requests = 64,
                            .max_batches = 4096,
                            .handshake_ns = HANDSHAKE_NS,
                            .hold_ns = HOLD_NS,
                            .idle_ns = IDLE_NS};
  if (rd2h_pm_create(&cfg, &pr->pm, &err) != RD2H_OK)
    broken(w, "SIM", "%s", err.text);
}

void rank_stop(struct world *w, struct prank *pr) {
  (void)w;
  rd2h_pm_destroy(pr->pm);
  pr->pm = NULL;
  lp_stop(pr);
}
