/* SPDX-License-Identifier: Apache-2.0 */
/* One world from one seed: its shape, its requests, its faults; run until nothing is left to happen. */
#include "sim.h"
#include <stdio.h>
#include <stdlib.h>

static const char *const names[] = {
#define SIM_MUT_NAME(name, text) #name,
  SIM_MUTATIONS(SIM_MUT_NAME)
#undef SIM_MUT_NAME
};
static const char *const texts[] = {
#define SIM_MUT_TEXT(name, text) text,
  SIM_MUTATIONS(SIM_MUT_TEXT)
#undef SIM_MUT_TEXT
};

const char *mutation_name(enum sim_mutation m) {
  return names[m];
}

const char *mutation_text(enum sim_mutation m) {
  return texts[m];
}

/* ---- shape ---- */
static void shape_cache(struct world *w, bool heads) {
  struct sim_cfg *c = &w->c;
  struct rng *r = &w->rng;
  c->heads = heads;
  c->indexer = !heads && rng_chance(r, 700);
  c->scale = c->indexer && rng_chance(r, 400);
  c->two_main = heads || rng_chance(r, 400);
  c->row_scale = rng_chance(r, 300) ? 2 : 1;
  c->pooled = !heads && rng_chance(r, 500);
  c->two_groups = c->indexer && rng_chance(r, 500);
  c->bs[MAIN] = c->bs[INDEXER] = rng_chance(r, 500) ? 4 : 8;
  if (c->two_groups && rng_chance(r, 500))
    c->bs[INDEXER] = 12 - c->bs[MAIN];
}

static void shape_engines(struct world *w) {
  struct sim_cfg *c = &w->c;
  struct rng *r = &w->rng;
  uint32_t kind = rng_below(r, 100);
  bool legacy_p = kind < 18, legacy_d = kind >= 18 && kind < 36, version = rng_chance(r, 500);
  bool heads = kind >= 90;
  uint32_t pp = (legacy_p || legacy_d) && !version ? 1 : rng_chance(r, 250) ? 2 : 1;
  c->n_p = rng_chance(r, 300) ? 2 : 1;
  c->n_d = !heads && rng_chance(r, 400) ? 2 : 1;
  c->stage_layers = 1 + rng_below(r, 3);
  c->layers = c->stage_layers * pp;
  shape_cache(w, heads);
  for (uint32_t i = 0; i < c->n_d; i++) {
    w->d[i] = (struct dengine){
        .w = w, .no = i, .tp = 1 + rng_below(r, heads ? 2 : MAX_TP), .version = legacy_d ? version : 1, .legacy = legacy_d};
    if (legacy_p) /* its reference asks for a Prefill that divides */
      w->d[i].tp = 1u << rng_below(r, 2);
  }
  for (uint32_t i = 0; i < c->n_p; i++) {
    struct pengine *pe = &w->p[i];
    *pe = (struct pengine){
        .w = w, .no = i, .tp = 1 + rng_below(r, MAX_TP), .pp = pp, .version = legacy_p ? version : 1, .legacy = legacy_p};
    if (legacy_p)
      pe->tp = 2u << rng_below(r, 2);
    if (heads)
      pe->tp = w->d[0].tp * (1 + rng_below(r, MAX_TP / w->d[0].tp));
    bool ring = rng_chance(r, 500);
    for (uint32_t comp = 0; comp < N_COMP; comp++)
      pe->n_slots[comp] = ring ? 1 + rng_below(r, c->stage_layers) : c->stage_layers;
  }
  w->tally.legacy = legacy_p || legacy_d;
}

static void build(struct world *w) {
  shape_engines(w);
  w->c.faults = rng_chance(&w->rng, 700);
  if (w->c.faults) {
    w->c.fail_permille = rng_chance(&w->rng, 300) ? 20 : 0;
    w->c.hang_permille = rng_chance(&w->rng, 150) ? 10 : 0;
    w->c.slow_permille = rng_chance(&w->rng, 200) ? 30 : 0;
  }
  for (uint32_t i = 0; i < w->c.n_p; i++)
    for (uint32_t k = 0; k < w->p[i].tp * w->p[i].pp; k++) {
      w->p[i].rank[k].w = w;
      w->p[i].rank[k].p = i;
      w->p[i].rank[k].rank = k;
    }
  for (uint32_t i = 0; i < w->c.n_d; i++) {
    for (uint32_t k = 0; k < w->d[i].tp; k++) {
      w->d[i].rank[k].w = w;
      w->d[i].rank[k].d = i;
      w->d[i].rank[k].rank = k;
    }
    dengine_layouts(w, i);
    dengine_start(w, i);
  }
  for (uint32_t i = 0; i < w->c.n_p; i++)
    pengine_start(w, i);
}

/* ---- users ---- */
static void rendezvous(struct world *w, void *obj, uint64_t i) {
  struct job *j = &w->job[i];
  (void)obj;
  if (!w->p[j->p].rank[0].proc.alive)
    decode_abort(w, j, RD2H_REFUSED, "Prefill is down");
  else
    prefill_rendezvous(w, j);
}

static void refused(struct world *w, void *obj, uint64_t i) {
  (void)obj;
  decode_abort(w, &w->job[i], RD2H_REFUSED, "the rendezvous was refused");
}

static void abort_decode(struct world *w, void *obj, uint64_t i) {
  (void)obj;
  w->tally.aborts++;
  decode_abort(w, &w->job[i], RD2H_ABORTED, "Decode's user aborts");
}

static void abort_prefill(struct world *w, void *obj, uint64_t i) {
  (void)obj;
  prefill_abort(w, &w->job[i]);
}

static void preempt(struct world *w, void *obj, uint64_t i) {
  (void)obj;
  prefill_preempt(w, &w->job[i]);
}

/* `old`: the request that this one retries, NULL: a new user, or by chance an old one, who may have a live request still. */
static void name_job(struct world *w, struct job *j, const struct job *old) {
  uint32_t i = (uint32_t)(j - w->job);
  snprintf(j->id, sizeof j->id, "d%u-req%u", j->d, i);
  snprintf(j->pid, sizeof j->pid, "p%u-req%u", j->p, i);
  snprintf(j->ext, sizeof j->ext, "user%u", i);
  j->has_attempt = !w->d[j->d].legacy;
  for (uint32_t k = 0; k < RD2H_ATTEMPT; k++)
    j->attempt[k] = (uint8_t)rng_next(&w->rng);
  if (!i || w->d[j->d].legacy || !w->c.faults || (!old && !rng_chance(&w->rng, 250)))
    return;
  if (!old)
    old = &w->job[rng_below(&w->rng, i)];
  if (old->d != j->d || (w->p[0].legacy && old->d_inc != w->d[j->d].inc))
    return; /* a legacy Prefill has no nonce: after a restart of Decode nobody could tell the two apart */
  bool live = false;
  for (uint32_t k = 0; k < i; k++)
    live |= w->job[k].d_state == D_WAITING && !strcmp(w->job[k].ext, old->ext);
  memcpy(j->ext, old->ext, sizeof j->ext);
  w->tally.retries++;
  if (live || w->p[0].legacy)
    job_fault(w, j, "its external id may be in use");
}

static void shape_job(struct world *w, struct job *j) {
  struct rng *r = &w->rng;
  j->floor_tokens = rng_chance(r, 250) ? 8 : 0;
  j->tokens = j->floor_tokens + 1 + rng_below(r, 40);
  j->prefix = rng_chance(r, 200) ? 8 : 0;
  j->p_tokens = j->tokens;
  j->p_floor = j->floor_tokens;
  for (uint32_t c = 0; c < N_COMP; c++) {
    j->need[c] = (j->tokens + w->c.bs[c] - 1) / w->c.bs[c];
    j->floor[c] = j->floor_tokens / w->c.bs[c];
    j->n_dst[c] = j->need[c] + rng_below(r, 2);
  }
  if (!w->c.two_groups)
    j->n_dst[INDEXER] = j->n_dst[MAIN];
  if (!w->c.faults || w->d[j->d].legacy || !rng_chance(r, 60))
    return;
  switch (rng_below(r, 3)) { /* what a Prefill with another idea of the request would do */
  case 0:
    j->p_tokens += 16;
    job_fault(w, j, "Prefill publishes more than was granted");
    break;
  case 1:
    j->p_floor = 0;
    if (j->floor_tokens)
      job_fault(w, j, "Prefill publishes below the prefix hit");
    break;
  default:
    j->skips_a_chunk = true;
    job_fault(w, j, "Prefill leaves out a chunk");
  }
}

static void give_up_on_legacy(struct world *w, void *obj, uint64_t i) {
  (void)obj;
  decode_abort(w, &w->job[i], RD2H_ABORTED, "nothing comes");
}

static void submit(struct world *w, void *obj, uint64_t a) {
  const struct job *old = obj;
  (void)a;
  if (w->n_jobs == MAX_JOBS)
    return;
  uint32_t i = w->n_jobs;
  struct job *j = &w->job[i];
  struct rng *r = &w->rng;
  *j = (struct job){.no = i, .d = old ? old->d : rng_below(r, w->c.n_d), .p = rng_below(r, w->c.n_p)};
  name_job(w, j, old);
  shape_job(w, j);
  if (!decode_submit(w, j))
    return;
  w->tally.jobs++;
  if (!job_born_clean(w, j))
    job_fault(w, j, "born while others were recovering");
  trace(w, "%s (%s) is born: %u tokens, %u cached, Prefill %u", j->id, j->ext, j->tokens, j->floor_tokens, j->p);
  uint32_t fate = w->c.faults ? rng_below(r, 100) : 99;
  if (fate < 3)
    job_fault(w, j, "its rendezvous is lost");
  else
    in(w, fate < 6 ? rng_between(r, SEC / 2, 3 * SEC) : rng_between(r, RD2H_MS, 30 * RD2H_MS), NULL,
       fate < 9 && fate >= 6 ? refused : rendezvous, NULL, i);
  uint64_t soon = rng_chance(r, 700) ? 150 * RD2H_MS : 4 * SEC;
  if (w->c.faults && rng_chance(r, 150))
    in(w, rng_between(r, 0, soon), NULL, abort_decode, NULL, i);
  if (w->c.faults && rng_chance(r, 80))
    in(w, rng_between(r, 0, soon), NULL, abort_prefill, NULL, i);
  if (rng_chance(r, 100) && !w->p[j->p].legacy)
    in(w, rng_between(r, 0, 60 * RD2H_MS), NULL, preempt, NULL, i);
  if (w->d[j->d].legacy)
    in(w, 90 * SEC, NULL, give_up_on_legacy, NULL, i);
}

void user_sees_failure(struct world *w, struct job *j) {
  if (w->c.faults && rng_chance(&w->rng, 300))
    in(w, rng_between(&w->rng, RD2H_MS / 10, 40 * RD2H_MS), NULL, submit, j, 0);
}

/* ---- faults ---- */
static void fault_crash_d(struct world *w) {
  dengine_crash(w, rng_below(&w->rng, w->c.n_d), rng_chance(&w->rng, 200));
}

static void fault_crash_p(struct world *w) {
  pengine_crash(w, rng_below(&w->rng, w->c.n_p), rng_chance(&w->rng, 200));
}

static void fault_break(struct world *w) {
  uint32_t live = 0, pick;
  bool slow = rng_chance(&w->rng, 200);
  for (uint32_t c = 0; c < w->n_conn; c++)
    live += w->conn[c].state == CONN_UP;
  if (!live)
    return;
  pick = rng_below(&w->rng, live);
  for (uint32_t c = 0; c < w->n_conn; c++)
    if (w->conn[c].state == CONN_UP && !pick--) {
      w->tally.breaks++;
      fault_pair(w, w->conn[c].p, w->conn[c].d, "its connection broke", 6 * SEC);
      if (slow)
        fault_all(w, "a connection broke, noticed late", 60 * SEC);
      net_break(w, c, slow);
      return;
    }
}

static void fault_deaf(struct world *w) {
  for (uint32_t c = w->n_conn; c-- > 0;)
    if (w->conn[c].state == CONN_UP && !w->d[w->conn[c].d].legacy && rng_chance(&w->rng, 300)) {
      trace(w, "Decode %u's next send on connection %u is refused", w->conn[c].d, c);
      w->tally.deaf++;
      w->conn[c].deaf = true;
      return;
    }
}

/* A rank of Decode, rather one that is reading; or one of Prefill. */
static struct proc *somebody(struct world *w) {
  struct rng *r = &w->rng;
  if (rng_chance(r, 300)) {
    struct pengine *pe = &w->p[rng_below(r, w->c.n_p)];
    return &pe->rank[rng_below(r, pe->tp * pe->pp)].proc;
  }
  for (uint32_t i = 0; i < w->n_read && rng_chance(r, 900); i++)
    if (w->read[i].used)
      return &w->d[w->read[i].d].rank[w->read[i].drank].proc;
  struct dengine *de = &w->d[rng_below(r, w->c.n_d)];
  return &de->rank[rng_below(r, de->tp)].proc;
}

static void fault_pause(struct world *w) {
  uint32_t how = rng_below(&w->rng, 10);
  uint64_t ns = how < 5   ? rng_between(&w->rng, SEC / 10, 2 * SEC)
                : how < 7 ? rng_between(&w->rng, 2 * SEC, 12 * SEC)
                          : rng_between(&w->rng, HOLD_NS, 50 * SEC);
  trace(w, "a rank is stopped for %.3f s", (double)ns / 1e9);
  w->tally.pauses++;
  fault_all(w, "a process was stopped", ns + 60 * SEC);
  proc_pause(w, somebody(w), ns);
  for (int i = 0; i < 2 && ns > HOLD_NS; i++) /* somebody takes the blocks that were given up */
    in(w, HOLD_NS + rng_between(&w->rng, 0, 4 * SEC), NULL, submit, NULL, 0);
}

static void fault(struct world *w, void *obj, uint64_t a) {
  static void (*const kinds[])(struct world *) = {fault_crash_d, fault_crash_p, fault_break,
                                                  fault_break,   fault_deaf,    fault_pause};
  (void)obj;
  (void)a;
  kinds[rng_below(&w->rng, RD2H_COUNT(kinds))](w);
}

static void schedule(struct world *w) {
  struct rng *r = &w->rng;
  uint32_t n = 2 + rng_below(r, 8), faults = w->c.faults ? rng_below(r, 5) : 0;
  uint64_t span = rng_chance(r, 500) ? SEC / 2 : rng_chance(r, 700) ? 10 * SEC : 40 * SEC;
  for (uint32_t i = 0; i < n; i++)
    at(w, rng_between(r, 0, span), NULL, submit, NULL, 0);
  for (uint32_t i = 0; i < faults; i++)
    at(w, rng_between(r, 0, span + SEC / 10), NULL, fault, NULL, 0);
  if (w->c.faults) /* and some who come later */
    for (uint32_t i = 0; i < 3; i++)
      at(w, span + rng_between(r, SEC, 100 * SEC), NULL, submit, NULL, 0);
}

/* ---- run ---- */
void world_run(struct world *w, uint64_t seed, enum sim_mutation mut, bool verbose) {
  memset(w, 0, sizeof *w);
  w->seed = seed;
  w->mut = mut;
  w->c.verbose = verbose;
  rng_seed(&w->rng, seed);
  build(w);
  schedule(w);
  while (!w->failed && world_step(w))
    if (w->now > 3600 * SEC || w->events > 3000000)
      broken(w, "I10", "it never becomes quiet");
  if (!w->failed)
    check_end(w);
  for (uint32_t i = 0; i < w->n_jobs; i++) {
    bool good = true;
    for (uint32_t r = 0; r < w->d[w->job[i].d].tp; r++)
      good &= w->job[i].on[r].reported && w->job[i].on[r].status == RD2H_OK;
    *(good ? &w->tally.good : &w->tally.bad) += 1;
  }
}

void world_free(struct world *w) {
  core_free(w);
  for (uint32_t i = 0; i < MAX_ENGINES; i++) {
    for (uint32_t r = 0; r < MAX_RANKS; r++)
      if (w->p[i].w)
        rank_stop(w, &w->p[i].rank[r]);
    for (uint32_t r = 0; r < MAX_TP; r++) {
      rd2h_dm_destroy(w->d[i].rank[r].dm);
      ld_stop(&w->d[i].rank[r]);
      rd2h_layout_destroy(w->d[i].layout[r]);
    }
  }
  for (uint32_t c = 0; c < w->n_conn; c++)
    free(w->conn[c].link);
  free(w->brec);
  free(w->read);
}

const char *world_describe(struct world *w, char *buf, size_t n) {
  char p[64] = "", d[64] = "";
  for (uint32_t i = 0; i < w->c.n_p; i++)
    snprintf(p + strlen(p), sizeof p - strlen(p), " tp %u x pp %u, slots %u/%u;", w->p[i].tp, w->p[i].pp, w->p[i].n_slots[0],
             w->p[i].n_slots[1]);
  for (uint32_t i = 0; i < w->c.n_d; i++)
    snprintf(d + strlen(d), sizeof d - strlen(d), " tp %u;", w->d[i].tp);
  snprintf(buf, n, "Prefill%s%s Decode%s%s %u layers%s%s%s%s, blocks of %u/%u tokens%s", w->p[0].legacy ? " (legacy)" : "", p,
           w->d[0].legacy ? " (legacy)" : "", d, w->c.layers, w->c.indexer ? ", indexer" : "", w->c.scale ? ", scale" : "",
           w->c.heads ? ", heads" : "", w->c.pooled ? ", pooled main" : "", w->c.bs[0], w->c.bs[1],
           w->c.faults ? ", faults" : "");
  return buf;
}
