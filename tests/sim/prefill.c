/* SPDX-License-Identifier: Apache-2.0 */
/* A Prefill engine: steps over its running requests, layer by layer on every rank; waits at the gate, writes, dispatches; holds
 * blocks until every rank has settled the request. */
#include "sim.h"
#include <stdio.h>

static void step_begin(struct world *, void *, uint64_t);
static void layer_begin(struct world *, void *, uint64_t);

static uint32_t n_ranks(const struct pengine *pe) {
  return pe->tp * pe->pp;
}

static void kick(struct world *w, struct pengine *pe) {
  if (pe->stepping)
    return;
  pe->stepping = true;
  in(w, rng_between(&w->rng, RD2H_MS / 10, 3 * RD2H_MS), &pe->rank[0].proc, step_begin, pe, 0);
}

/* ---- blocks ---- */
static bool take_blocks(struct world *w, struct pengine *pe, struct job *j) {
  uint32_t lists = w->c.two_groups ? N_COMP : 1;
  for (uint32_t c = 0; c < lists; c++) {
    uint32_t cached = j->prefix / w->c.bs[c], n = 0;
    j->n_src[c] = (j->p_tokens + w->c.bs[c] - 1) / w->c.bs[c];
    for (; n < cached; n++)
      j->src[c][n] = n;
    for (uint32_t b = CACHED_BLOCKS; b < N_BLOCKS && n < j->n_src[c]; b++)
      if (!pe->used[c][b])
        j->src[c][n++] = b;
    if (n < j->n_src[c])
      return false;
  }
  for (uint32_t c = 0; c < lists; c++)
    for (uint32_t i = j->prefix / w->c.bs[c]; i < j->n_src[c]; i++)
      pe->used[c][j->src[c][i]] = true;
  if (lists == 1) {
    j->n_src[INDEXER] = j->n_src[MAIN];
    memcpy(j->src[INDEXER], j->src[MAIN], sizeof j->src[MAIN]);
  }
  return true;
}

static void give_blocks(struct world *w, struct pengine *pe, struct job *j) {
  for (uint32_t c = 0; c < (w->c.two_groups ? N_COMP : 1u); c++)
    for (uint32_t i = j->prefix / w->c.bs[c]; i < j->n_src[c]; i++)
      pe->used[c][j->src[c][i]] = false;
  j->n_src[MAIN] = j->n_src[INDEXER] = 0;
}

/* ---- the end of a request ---- */
static void finish_on_rank(struct world *w, void *obj, uint64_t job) {
  struct job *j = &w->job[job];
  rank_finish(w, obj, j, j->p_abort);
}

/* Prefill's answer goes back by the proxy, and is told to each rank of Decode. */
static void answered(struct world *w, void *obj, uint64_t job) {
  struct drank *dr = obj;
  struct job *j = &w->job[job];
  if (!dr->dm || j->d_inc != w->d[dr->d].inc || !j->on[dr->rank].installed || j->on[dr->rank].reported)
    return;
  j->on[dr->rank].sign = w->now;
  rd2h_dm_answered(dr->dm, (struct rd2h_str){j->id, (uint32_t)strlen(j->id)}, w->now);
  decode_pump(w, dr);
}

static void finish(struct world *w, struct job *j) {
  struct pengine *pe = &w->p[j->p];
  j->p_state = P_COMPUTED;
  for (uint32_t r = 0; r < w->d[j->d].tp; r++)
    in(w, rng_between(&w->rng, RD2H_MS, 50 * RD2H_MS), &w->d[j->d].rank[r].proc, answered, &w->d[j->d].rank[r],
       (uint64_t)(j - w->job));
  for (uint32_t r = 0; r < n_ranks(pe); r++)
    in(w, rng_between(&w->rng, 0, 30 * RD2H_MS), &pe->rank[r].proc, finish_on_rank, &pe->rank[r], (uint64_t)(j - w->job));
}

void job_settled(struct world *w, struct prank *pr, struct job *j, int status) {
  struct pengine *pe = &w->p[pr->p];
  trace(w, "P%u.%u settles %s: %s", pr->p, pr->rank, j->pid, rd2h_status_name(status));
  if (j->at[pr->rank].settled || !j->at[pr->rank].finished || j->p_inc != pe->inc) {
    broken(w, "I5", "P%u.%u settles %s %s", pr->p, pr->rank, j->pid,
           j->at[pr->rank].settled ? "twice" : "before the engine was done with it");
    return;
  }
  j->at[pr->rank].settled = true;
  j->at[pr->rank].status = status;
  if (++j->p_settled < n_ranks(pe))
    return;
  j->p_state = P_ENDED;
  give_blocks(w, pe, j);
  kick(w, pe);
}

/* ---- steps ---- */
static bool runnable(struct world *w, struct pengine *pe, struct job *j) {
  if (j->p != pe->no || j->p_inc != pe->inc)
    return false;
  if (j->p_state == P_WAITING && take_blocks(w, pe, j)) {
    j->p_state = P_RUNNING;
    j->computed = j->prefix;
  }
  return j->p_state == P_RUNNING;
}

static void add_to_step(struct world *w, struct pengine *pe, struct job *j) {
  uint32_t s = pe->n_step++, chunk = rng_chance(&w->rng, 400) ? j->p_tokens : 1 + rng_below(&w->rng, 16);
  pe->step_job[s] = (uint32_t)(j - w->job);
  pe->step_from[s] = j->computed;
  pe->step_to[s] = j->computed + chunk < j->p_tokens ? j->computed + chunk : j->p_tokens;
  pe->step_last[s] = pe->step_to[s] == j->p_tokens;
  j->chunk_skipped = j->skips_a_chunk && !j->published && pe->step_to[s] / w->c.bs[0] * w->c.bs[0] > j->floor_tokens;
}

static void wait_preempted(struct world *w, void *obj, uint64_t job) {
  struct pengine *pe = obj;
  struct job *j = &w->job[job];
  for (uint32_t r = 0; r < n_ranks(pe); r++)
    if (rank_outstanding(w, &pe->rank[r], j)) {
      in(w, 5 * RD2H_MS, &pe->rank[0].proc, wait_preempted, pe, job);
      return;
    }
  tell(w, "P%u preempts %s", pe->no, j->pid);
  w->tally.preemptions++;
  give_blocks(w, pe, j);
  j->p_state = P_WAITING;
  pe->stepping = false;
  kick(w, pe);
}

static void step_begin(struct world *w, void *obj, uint64_t a) {
  struct pengine *pe = obj;
  (void)a;
  pe->n_step = 0;
  for (uint32_t i = 0; i < w->n_jobs && pe->n_step < BATCH_REQS; i++) {
    struct job *j = &w->job[i];
    if (!runnable(w, pe, j))
      continue;
    if (j->p_abort) {
      finish(w, j);
    } else if (j->preempt && j->computed > j->prefix) {
      j->preempt = false;
      wait_preempted(w, pe, i);
      return;
    } else {
      add_to_step(w, pe, j);
    }
  }
  if (!pe->n_step) {
    pe->stepping = false;
    return;
  }
  pe->ranks_left = n_ranks(pe);
  for (uint32_t r = 0; r < n_ranks(pe); r++) {
    pe->rank[r].at_layer = r / pe->tp * w->c.stage_layers;
    in(w, rng_between(&w->rng, RD2H_MS / 10, 4 * RD2H_MS), &pe->rank[r].proc, layer_begin, &pe->rank[r], 0);
  }
}

static void step_end(struct world *w, struct pengine *pe) {
  for (uint32_t s = 0; s < pe->n_step; s++) {
    struct job *j = &w->job[pe->step_job[s]];
    j->computed = pe->step_to[s];
    if (j->computed > j->published)
      j->published = j->computed;
    if (pe->step_last[s])
      finish(w, j);
  }
  pe->stepping = false;
  kick(w, pe);
}

static bool gate_open(const struct prank *pr) {
  const struct pengine *pe = &pr->w->p[pr->p];
  uint32_t slot;
  for (uint32_t c = 0; c < N_COMP; c++)
    if (slot_of(pe, pr->at_layer, c, &slot) && pr->busy[c][slot])
      return false;
  return true;
}

static void write_layer(struct world *w, struct prank *pr) {
  struct pengine *pe = &w->p[pr->p];
  for (uint32_t s = 0; s < pe->n_step; s++) {
    struct job *j = &w->job[pe->step_job[s]];
    for (uint32_t t = 0; t < RD2H_MAX_TENSORS; t++) {
      uint32_t c = t >= 2, slot;
      if (!slot_of(pe, pr->at_layer, c, &slot))
        continue;
      for (uint32_t e = pe->step_from[s] / w->c.bs[c]; e * w->c.bs[c] < pe->step_to[s]; e++)
        pr->cell[slot][t][j->src[c][e]] =
          (struct stamp){.job = (uint16_t)(pe->step_job[s] + 1), .prank = (uint8_t)pr->rank, .layer = (uint8_t)pr->at_layer,
                         .tensor = (uint8_t)t, .head = (uint8_t)(w->c.heads ? pr->rank % pe->tp * w->d[0].tp / pe->tp : 0),
                         .block = (uint16_t)e, .write = ++j->writes};
    }
  }
}

static void layer_end(struct world *w, void *obj, uint64_t a) {
  struct prank *pr = obj;
  struct pengine *pe = &w->p[pr->p];
  (void)a;
  rank_dispatch(w, pr, pr->at_layer);
  if (++pr->at_layer % w->c.stage_layers)
    in(w, rng_between(&w->rng, RD2H_MS / 20, 2 * RD2H_MS), &pr->proc, layer_begin, pr, 0);
  else if (!--pe->ranks_left)
    step_end(w, pe);
}

static void layer_begin(struct world *w, void *obj, uint64_t a) {
  struct prank *pr = obj;
  (void)a;
  if (!gate_open(pr)) {
    pr->waiting = true;
    pr->wait_from = w->now;
    pr->wait_paused = pr->proc.paused_ns;
    return;
  }
  write_layer(w, pr);
  in(w, rng_between(&w->rng, RD2H_MS / 10, 3 * RD2H_MS), &pr->proc, layer_end, pr, 0);
}

void gate_opened(struct world *w, struct prank *pr) {
  if (!pr->waiting || !gate_open(pr))
    return;
  pr->waiting = false;
  uint64_t waited = w->now - pr->wait_from, bound = HOLD_NS + SLACK_NS + (pr->proc.paused_ns - pr->wait_paused);
  if (!pr->lp && waited > bound)
    broken(w, "I11", "P%u.%u waited %.3f s at the gate of layer %u", pr->p, pr->rank, (double)waited / 1e9, pr->at_layer);
  in(w, RD2H_MS / 50, &pr->proc, layer_begin, pr, 0);
}

/* ---- from outside ---- */
void prefill_rendezvous(struct world *w, struct job *j) {
  struct pengine *pe = &w->p[j->p];
  j->p_state = P_WAITING;
  j->p_inc = pe->inc;
  j->prefix = !j->prefix || pe->n_slots[MAIN] < w->c.stage_layers || pe->n_slots[INDEXER] < w->c.stage_layers ? 0 : j->prefix;
  if (j->prefix >= j->p_tokens)
    j->prefix = 0;
  kick(w, pe);
}

void prefill_abort(struct world *w, struct job *j) {
  if (j->p_inc != w->p[j->p].inc || (j->p_state != P_WAITING && j->p_state != P_RUNNING))
    return;
  tell(w, "Prefill's user aborts %s", j->pid);
  w->tally.aborts++;
  job_fault(w, j, "aborted at Prefill");
  j->p_abort = true;
  kick(w, &w->p[j->p]);
}

void prefill_preempt(struct world *w, struct job *j) {
  if (j->p_state == P_RUNNING && j->p_inc == w->p[j->p].inc)
    j->preempt = true;
}

/* A legacy engine that waits for an answer which will never come is restarted by whoever runs it. */
static void watchdog(struct world *w, void *obj, uint64_t inc) {
  struct pengine *pe = obj;
  if (pe->inc != inc || !pe->rank[0].proc.alive)
    return;
  for (uint32_t i = 0; i < w->n_brec; i++)
    if (w->brec[i].p == pe->no && w->brec[i].p_inc == inc && !w->brec[i].settled && w->now - w->brec[i].dispatched > 60 * SEC) {
      pengine_crash(w, pe->no, false);
      return;
    }
  if (w->now < 600 * SEC)
    in(w, 20 * SEC, NULL, watchdog, pe, inc);
}

void pengine_start(struct world *w, uint32_t p) {
  struct pengine *pe = &w->p[p];
  pe->stepping = false;
  pe->n_step = 0;
  memset(pe->used, 0, sizeof pe->used);
  for (uint32_t r = 0; r < n_ranks(pe); r++) {
    struct prank *pr = &pe->rank[r];
    pr->proc.alive = true;
    pr->waiting = false;
    pr->proc.paused = false;
    memset(pr->cell, 0, sizeof pr->cell);
    for (uint32_t slot = 0; slot < w->c.stage_layers; slot++)
      for (uint32_t t = 0; t < RD2H_MAX_TENSORS; t++)
        for (uint32_t b = 0; b < CACHED_BLOCKS; b++)
          pr->cell[slot][t][b] = (struct stamp){.job = JOB_CACHE, .prank = (uint8_t)r, .tensor = (uint8_t)t, .block = (uint16_t)b,
                                                .layer = (uint8_t)(r / pe->tp * w->c.stage_layers + slot),
                                                .head = (uint8_t)(w->c.heads ? r % pe->tp * w->d[0].tp / pe->tp : 0)};
    rank_start(w, pr);
  }
  if (pe->legacy)
    in(w, 20 * SEC, NULL, watchdog, pe, pe->inc);
}

static void restart(struct world *w, void *obj, uint64_t inc) {
  struct pengine *pe = obj;
  if (pe->inc == inc)
    pengine_start(w, pe->no);
}

void pengine_crash(struct world *w, uint32_t p, bool slow) {
  struct pengine *pe = &w->p[p];
  if (!pe->rank[0].proc.alive)
    return;
  tell(w, "Prefill engine %u crashes%s", p, slow ? ", slowly noticed" : "");
  w->tally.crashes++;
  fault_pair(w, p, RD2H_INDEX_NONE, "Prefill crashed", 12 * SEC);
  for (uint32_t r = 0; r < n_ranks(pe); r++) {
    net_crash(w, &pe->rank[r].proc, slow);
    proc_kill(w, &pe->rank[r].proc);
    rank_stop(w, &pe->rank[r]);
  }
  for (uint32_t i = 0; i < w->n_jobs; i++)
    if (w->job[i].p == p && w->job[i].p_inc == pe->inc && w->job[i].p_state != P_NONE &&
        w->job[i].p_state != P_ENDED)
      w->job[i].p_state = P_GONE;
  pe->inc++;
  in(w, rng_between(&w->rng, SEC / 10, 4 * SEC), NULL, restart, pe, pe->inc);
}
