/* SPDX-License-Identifier: Apache-2.0 */
/* One world from one seed: its requests, its faults; run until nothing is left to happen. */
#include "sim.h"
#include <stdio.h>
#include <stdlib.h>

enum { USER_RETRY = 1000, USER_LATE = 2000 }; /* users who are not planned: they come because of others */

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
static void name_job(struct world *w, struct rng *r, struct job *j, const struct job *old) {
  uint32_t i = (uint32_t)(j - w->job);
  snprintf(j->id, sizeof j->id, "d%u-req%u", j->d, i);
  snprintf(j->pid, sizeof j->pid, "p%u-req%u", j->p, i);
  snprintf(j->ext, sizeof j->ext, "user%u", i);
  j->has_attempt = !w->d[j->d].legacy;
  for (uint32_t k = 0; k < RD2H_ATTEMPT; k++)
    j->attempt[k] = (uint8_t)rng_next(r);
  if (!i || w->d[j->d].legacy || !w->c.faults || w->cut.off & OFF_RETRIES || (!old && !rng_chance(r, 250)))
    return;
  if (!old)
    old = &w->job[rng_below(r, i)];
  if (old->d != j->d || (any_legacy_prefill(w) && old->d_inc != w->d[j->d].inc))
    return; /* a legacy Prefill has no nonce: after a restart of Decode nobody could tell the two apart */
  bool live = false;
  for (uint32_t k = 0; k < i; k++)
    live |= w->job[k].d_state == D_WAITING && !strcmp(w->job[k].ext, old->ext);
  memcpy(j->ext, old->ext, sizeof j->ext);
  w->tally.retries++;
  if (live || any_legacy_prefill(w))
    job_fault(w, j, "its external id may be in use");
}

static void shape_job(struct world *w, struct rng *r, struct job *j) {
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

/* What becomes of a request: its rendezvous is late, lost or refused, its users abort, it is preempted. */
static void plan_fate(struct world *w, struct rng *r, struct job *j) {
  uint32_t i = j->no, fate = w->c.faults && !(w->cut.off & OFF_RENDEZVOUS) ? rng_below(r, 100) : 99;
  if (fate < 9)
    w->tally.rendezvous++;
  if (fate < 3)
    job_fault(w, j, "its rendezvous is lost");
  else
    in(w, fate < 6 ? rng_between(r, SEC / 2, 3 * SEC) : rng_between(r, RD2H_MS, 30 * RD2H_MS), NULL,
       fate < 9 && fate >= 6 ? refused : rendezvous, NULL, i);
  uint64_t soon = rng_chance(r, 700) ? 150 * RD2H_MS : 4 * SEC;
  bool aborts = w->c.faults && !(w->cut.off & OFF_ABORTS);
  if (aborts && rng_chance(r, 150))
    in(w, rng_between(r, 0, soon), NULL, abort_decode, NULL, i);
  if (aborts && rng_chance(r, 80))
    in(w, rng_between(r, 0, soon), NULL, abort_prefill, NULL, i);
  if (rng_chance(r, 100) && !w->p[j->p].legacy && !(w->cut.off & OFF_PREEMPTION))
    in(w, rng_between(r, 0, 60 * RD2H_MS), NULL, preempt, NULL, i);
  if (w->d[j->d].legacy)
    in(w, 90 * SEC, NULL, give_up_on_legacy, NULL, i);
}

static void submit(struct world *w, void *obj, uint64_t user) {
  const struct job *old = obj;
  struct rng r;
  if (w->n_jobs == MAX_JOBS)
    return;
  uint32_t i = w->n_jobs;
  struct job *j = &w->job[i];
  rng_stream(w, &r, STREAM_USER, (uint32_t)user);
  *j = (struct job){.no = i, .d = old ? old->d : rng_below(&r, w->c.n_d), .p = rng_below(&r, w->c.n_p)};
  name_job(w, &r, j, old);
  shape_job(w, &r, j);
  if (!decode_submit(w, j))
    return;
  w->tally.jobs++;
  if (!job_born_clean(w, j))
    job_fault(w, j, "born while others were recovering");
  tell(w, "user %u: %s (%s) is born: %u tokens, %u cached, Prefill %u, Decode %u", (uint32_t)user, j->id, j->ext, j->tokens,
       j->floor_tokens, j->p, j->d);
  plan_fate(w, &r, j);
}

void user_sees_failure(struct world *w, struct job *j) {
  if (w->c.faults && !(w->cut.off & OFF_RETRIES) && rng_chance(&w->rng, 300))
    in(w, rng_between(&w->rng, RD2H_MS / 10, 40 * RD2H_MS), NULL, submit, j, USER_RETRY + w->uncounted++);
}

/* ---- faults ---- */
static void fault_crash_d(struct world *w, struct rng *r) {
  dengine_crash(w, rng_below(r, w->c.n_d), rng_chance(r, 200));
}

static void fault_crash_p(struct world *w, struct rng *r) {
  pengine_crash(w, rng_below(r, w->c.n_p), rng_chance(r, 200));
}

static void fault_break(struct world *w, struct rng *r) {
  uint32_t live = 0, pick;
  bool slow = rng_chance(r, 200);
  for (uint32_t c = 0; c < w->n_conn; c++)
    live += w->conn[c].state == CONN_UP;
  if (!live)
    return;
  pick = rng_below(r, live);
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

static void fault_deaf(struct world *w, struct rng *r) {
  for (uint32_t c = w->n_conn; c-- > 0;)
    if (w->conn[c].state == CONN_UP && !w->d[w->conn[c].d].legacy && rng_chance(r, 300)) {
      tell(w, "Decode %u's next send on connection %u is refused", w->conn[c].d, c);
      w->tally.deaf++;
      w->conn[c].deaf = true;
      return;
    }
}

static void part(struct world *w, void *obj, uint64_t c) {
  (void)obj;
  net_break(w, (uint32_t)c, false);
}

/* Decode's engine says that the other process is gone; the connection, and maybe the process, lives on. A legacy Prefill is told by
 * failed answers alone and stays until somebody restarts it: Decode asks every second whether it has gone. */
static void engine_lost(struct world *w, void *obj, uint64_t c) {
  struct drank *dr = obj;
  struct conn *x = &w->conn[c];
  if (x->peer == RD2H_INDEX_NONE)
    return;
  tell(w, "D%u.%u: its engine lost P%u.%u on connection %u", dr->d, dr->rank, x->p, x->rank, (uint32_t)c);
  w->tally.engine_lost++;
  fault_pair(w, x->p, x->d, "Decode's engine lost Prefill", 6 * SEC);
  if (w->p[x->p].legacy)
    in(w, rng_between(&w->rng, SEC, 60 * SEC), NULL, part, NULL, c);
  rd2h_dm_peer_fail(dr->dm, x->peer, "its engine lost the process", w->now);
  decode_pump(w, dr);
}

static void fault_engine_lost(struct world *w, struct rng *r) {
  for (uint32_t c = w->n_conn; c-- > 0;) {
    struct drank *dr = &w->d[w->conn[c].d].rank[w->conn[c].drank];
    if (w->conn[c].state == CONN_UP && w->conn[c].peer != RD2H_INDEX_NONE && dr->dm && rng_chance(r, 300)) {
      in(w, 0, &dr->proc, engine_lost, dr, c);
      return;
    }
  }
}

/* A short one only delays; a longer one is taken for the death of the other side, by both. */
static void fault_partition(struct world *w, struct rng *r) {
  uint32_t p = rng_below(r, w->c.n_p), d = rng_below(r, w->c.n_d);
  uint64_t ns = rng_chance(r, 500) ? rng_between(r, SEC / 10, 4 * SEC) : rng_between(r, 4 * SEC, 30 * SEC);
  w->tally.partitions++;
  fault_all(w, "the network was parted", ns + 60 * SEC);
  net_partition(w, p, d, ns);
}

static const struct read *some_read(struct world *w, struct rng *r) {
  for (uint32_t i = 0; i < w->n_read && rng_chance(r, 900); i++)
    if (w->read[i].used)
      return &w->read[i];
  return NULL;
}

/* A rank of Decode, rather one that is reading; or one of Prefill, rather one that is being read where that hurts. */
static struct proc *somebody(struct world *w, struct rng *r) {
  const struct read *x = some_read(w, r);
  if (w->c.threads && x && rng_chance(r, 700))
    return &w->p[x->p].rank[x->prank].proc;
  if (rng_chance(r, 300)) {
    struct pengine *pe = &w->p[rng_below(r, w->c.n_p)];
    return &pe->rank[rng_below(r, pe->tp * pe->pp)].proc;
  }
  if (x)
    return &w->d[x->d].rank[x->drank].proc;
  struct dengine *de = &w->d[rng_below(r, w->c.n_d)];
  return &de->rank[rng_below(r, de->tp)].proc;
}

static void fault_pause(struct world *w, struct rng *r) {
  uint32_t how = rng_below(r, 10);
  uint64_t ns = how < 5   ? rng_between(r, SEC / 10, 2 * SEC)
                : how < 7 ? rng_between(r, 2 * SEC, 12 * SEC)
                          : rng_between(r, HOLD_NS, 50 * SEC);
  tell(w, "a rank is stopped for %.3f s", (double)ns / 1e9);
  w->tally.pauses++;
  fault_all(w, "a process was stopped", ns + 60 * SEC);
  proc_pause(w, somebody(w, r), ns);
  for (uint32_t i = 0; i < 2 && ns > HOLD_NS; i++) /* somebody takes the blocks that were given up */
    in(w, HOLD_NS + rng_between(r, 0, 4 * SEC), NULL, submit, NULL, USER_LATE + w->uncounted++);
}

static void fault(struct world *w, void *obj, uint64_t i) {
  static void (*const kinds[])(struct world *, struct rng *) = {fault_crash_d, fault_crash_p, fault_break,    fault_break,
                                                                fault_deaf,    fault_pause,   fault_partition, fault_engine_lost};
  struct rng r;
  (void)obj;
  rng_stream(w, &r, STREAM_FAULT, (uint32_t)i);
  tell(w, "fault %u:", (uint32_t)i);
  kinds[rng_below(&r, RD2H_COUNT(kinds))](w, &r);
}

static bool left_out(uint32_t bits, uint32_t i) {
  return bits >> i & 1;
}

static void schedule(struct world *w) {
  struct rng r;
  rng_stream(w, &r, STREAM_PLAN, 0);
  uint32_t n = 2 + rng_below(&r, 8), faults = w->c.faults ? rng_below(&r, 5) : 0;
  uint64_t span = rng_chance(&r, 500) ? SEC / 2 : rng_chance(&r, 700) ? 10 * SEC : 40 * SEC, when;
  for (uint32_t i = 0; i < n; i++) {
    when = rng_between(&r, 0, span);
    if (!left_out(w->cut.users, i))
      at(w, when, NULL, submit, NULL, i);
  }
  for (uint32_t i = 0; i < faults; i++) {
    when = rng_between(&r, 0, span + SEC / 10);
    if (!left_out(w->cut.faults, i))
      at(w, when, NULL, fault, NULL, i);
  }
  for (uint32_t i = n; w->c.faults && i < n + 3; i++) { /* and some who come later */
    when = span + rng_between(&r, SEC, 100 * SEC);
    if (!left_out(w->cut.users, i))
      at(w, when, NULL, submit, NULL, i);
  }
}

/* ---- run ---- */
void world_run(struct world *w, uint64_t seed, enum sim_mutation mut, const struct sim_cut *cut, enum sim_voice voice) {
  memset(w, 0, sizeof *w);
  w->seed = seed;
  w->mut = mut;
  w->cut = *cut;
  w->c.verbose = voice == VERBOSE;
  w->c.story = voice == STORY;
  rng_stream(w, &w->rng, STREAM_SHAPE, 0);
  world_build(w);
  schedule(w);
  rng_stream(w, &w->rng, STREAM_NOISE, cut->noise);
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
