/* SPDX-License-Identifier: Apache-2.0 */
/* A Decode engine: grants blocks, installs them on every rank, ends requests, gathers the ranks' reports. */
#include "sim.h"
#include <stdio.h>

/* ---- layouts: equal on all ranks but for the head that each holds ---- */
void dengine_layouts(struct world *w, uint32_t d) {
  struct dengine *de = &w->d[d];
  struct rd2h_kv_tensor t[MAX_LAYERS * RD2H_MAX_TENSORS];
  char name[MAX_LAYERS][2][56];
  uint32_t n = 0;
  for (uint32_t l = 0; l < w->c.layers; l++) {
    snprintf(name[l][0], sizeof name[l][0], "model.layers.%u.self_attn.attn", l);
    snprintf(name[l][1], sizeof name[l][1], "model.layers.%u.self_attn.indexer.k_cache", l);
    for (uint32_t k = 0; k < RD2H_MAX_TENSORS; k++)
      if (k == 0 || (k == 1 && w->c.two_main) || (k == 2 && w->c.indexer) || (k == 3 && w->c.scale))
        t[n++] = (struct rd2h_kv_tensor){.layer = name[l][k >= 2], .group = k >= 2 && w->c.two_groups,
                                         .base = 0x4000000 + ((uint64_t)(l * RD2H_MAX_TENSORS + k) << 16),
                                         .row_bytes = BLOCK_BYTES / w->c.row_scale, .rows = N_BLOCKS * w->c.row_scale};
  }
  for (uint32_t r = 0; r < de->tp; r++) {
    struct rd2h_layout_opts o = {.size = sizeof o, .num_blocks = N_BLOCKS, .indexer_group = w->c.two_groups};
    struct rd2h_error err;
    if (w->c.heads) {
      o.head_first = r;
      o.head_count = 1;
      o.head_total = de->tp;
    }
    if (rd2h_layout_create(t, n, &o, &de->layout[r], &err) != RD2H_OK)
      broken(w, "SIM", "%s", err.text);
  }
}

/* ---- grants ---- */
static bool take_blocks(struct world *w, struct dengine *de, struct job *j) {
  uint32_t lists = w->c.two_groups ? N_COMP : 1;
  for (uint32_t c = 0; c < lists; c++) {
    uint32_t n = 0;
    for (; n < j->floor[c]; n++)
      j->dst[c][n] = n;
    for (uint32_t b = CACHED_BLOCKS; b < N_BLOCKS && n < j->n_dst[c]; b++)
      if (!de->owner[c][b])
        j->dst[c][n++] = b;
    if (n < j->n_dst[c])
      return false;
  }
  for (uint32_t c = 0; c < lists; c++)
    for (uint32_t i = j->floor[c]; i < j->n_dst[c]; i++)
      de->owner[c][j->dst[c][i]] = (uint32_t)(j - w->job) + 1;
  if (lists == 1)
    memcpy(j->dst[INDEXER], j->dst[MAIN], sizeof j->dst[MAIN]);
  return true;
}

static void give_blocks(struct world *w, struct job *j) {
  struct dengine *de = &w->d[j->d];
  for (uint32_t c = 0; c < (w->c.two_groups ? N_COMP : 1u); c++)
    for (uint32_t i = j->floor[c]; i < j->n_dst[c]; i++)
      if (de->owner[c][j->dst[c][i]] == (uint32_t)(j - w->job) + 1)
        de->owner[c][j->dst[c][i]] = 0;
}

static void used_up(struct world *w, void *obj, uint64_t job) {
  struct job *j = &w->job[job];
  (void)obj;
  if (j->d_state != D_GOOD || j->d_inc != w->d[j->d].inc)
    return;
  give_blocks(w, j);
  j->d_state = D_GONE;
}

/* A request must end in bounded time after the last sign of it. */
static void ended_in_time(struct world *w, void *obj, uint64_t job) {
  struct drank *dr = obj;
  struct job *j = &w->job[job];
  uint64_t sign = j->on[dr->rank].sign, extra = dr->proc.paused_ns - j->on[dr->rank].paused;
  uint64_t bound = sign + (QUEUE_NS > PROGRESS_NS + PARK_NS ? QUEUE_NS : PROGRESS_NS + PARK_NS) + ENGINE_NS + SLACK_NS + extra;
  if (j->on[dr->rank].end_asked)
    bound = sign + 2 * ENGINE_NS + SLACK_NS + extra;
  if (j->on[dr->rank].reported)
    return;
  if (w->now < bound)
    at(w, bound, &dr->proc, ended_in_time, dr, job);
  else
    broken(w, "I6", "D%u.%u has not reported %s %.3f s after %s", dr->d, dr->rank, j->id, (double)(w->now - sign) / 1e9,
           j->on[dr->rank].end_asked ? "it was ended" : "its last sign");
}

static void install(struct world *w, void *obj, uint64_t job) {
  struct drank *dr = obj;
  struct job *j = &w->job[job];
  struct rd2h_error err;
  bool all = w->mut != MUT_COVERAGE_DROPPED;
  j->on[dr->rank].installed = true;
  j->on[dr->rank].sign = w->now;
  j->on[dr->rank].paused = dr->proc.paused_ns;
  if (dr->ld) {
    ld_install(w, dr, j);
    return;
  }
  struct rd2h_dm_grant g = {.id = {j->id, (uint32_t)strlen(j->id)},
                            .ext_id = {j->ext, (uint32_t)strlen(j->ext)},
                            .main = j->dst[MAIN],
                            .n_main = j->n_dst[MAIN],
                            .main_floor = j->floor[MAIN],
                            .main_need = all ? j->need[MAIN] : j->floor[MAIN]};
  if (w->c.indexer) {
    g.indexer = j->dst[INDEXER];
    g.n_indexer = j->n_dst[INDEXER];
    g.indexer_floor = j->floor[INDEXER];
    g.indexer_need = all ? j->need[INDEXER] : j->floor[INDEXER];
  }
  memcpy(g.attempt, j->attempt, RD2H_ATTEMPT);
  trace(w, "D%u.%u installs %s (%s)", dr->d, dr->rank, j->id, j->ext);
  at(w, w->now + QUEUE_NS + ENGINE_NS + SLACK_NS, &dr->proc, ended_in_time, dr, job);
  if (rd2h_dm_install(dr->dm, &g, w->now, &err) != RD2H_OK)
    broken(w, "SIM", "install of %s: %s", j->id, err.text);
  decode_pump(w, dr);
}

static void end_on_rank(struct world *w, void *obj, uint64_t key) {
  struct drank *dr = obj;
  struct job *j = &w->job[key & 0xffff];
  int status = -(int)(key >> 16);
  if (j->on[dr->rank].reported)
    return;
  j->on[dr->rank].end_asked = true;
  j->on[dr->rank].sign = w->now;
  if (dr->ld) {
    ld_end(w, dr, j, status);
    return;
  }
  int rc = rd2h_dm_end(dr->dm, (struct rd2h_str){j->id, (uint32_t)strlen(j->id)}, status, "the simulation ends it", w->now);
  if (rc != RD2H_OK && rc != RD2H_NOT_FOUND)
    broken(w, "SIM", "end of %s: %s", j->id, rd2h_status_name(rc));
  at(w, w->now + ENGINE_NS + SLACK_NS, &dr->proc, ended_in_time, dr, key & 0xffff);
  decode_pump(w, dr);
}

/* What the scheduler decides reaches each rank in the same order. */
static void step(struct world *w, struct drank *dr, bool late, event_fn *fn, uint64_t a) {
  uint64_t when = w->now + (late ? rng_between(&w->rng, SEC, 4 * SEC) : rng_between(&w->rng, 0, 20 * RD2H_MS));
  dr->step_at = when > dr->step_at ? when : dr->step_at;
  at(w, dr->step_at, &dr->proc, fn, dr, a);
}

void decode_abort(struct world *w, struct job *j, int status, const char *why) {
  struct dengine *de = &w->d[j->d];
  if (j->d_state != D_WAITING || j->d_inc != de->inc || j->aborted)
    return;
  tell(w, "Decode ends %s: %s", j->id, why);
  j->aborted = true;
  job_fault(w, j, why);
  for (uint32_t r = 0; r < de->tp; r++) {
    step(w, &de->rank[r], false, end_on_rank, (uint64_t)-status << 16 | (uint64_t)(j - w->job));
  }
  if (w->mut == MUT_FREE_EARLY) {
    j->early_freed = true;
    give_blocks(w, j);
  }
}

bool decode_submit(struct world *w, struct job *j) {
  struct dengine *de = &w->d[j->d];
  if (!de->rank[0].proc.alive || !take_blocks(w, de, j))
    return false;
  j->d_inc = de->inc;
  j->born = w->now;
  w->n_jobs++;
  for (uint32_t r = 0; r < de->tp; r++) {
    bool late = w->c.faults && rng_chance(&w->rng, 10);
    if (late)
      fault_pair(w, RD2H_INDEX_NONE, j->d, "installed late", 5 * SEC);
    step(w, &de->rank[r], late, install, (uint64_t)(j - w->job));
  }
  return true;
}

void decode_reported(struct world *w, struct drank *dr, struct job *j, int status, const char *text) {
  struct dengine *de = &w->d[dr->d];
  trace(w, "D%u.%u reports %s: %s %s", dr->d, dr->rank, j->id, rd2h_status_name(status), text);
  if (j->d != dr->d || j->d_inc != de->inc || !j->on[dr->rank].installed || j->on[dr->rank].reported) {
    broken(w, "I5", "D%u.%u reports %s %s", dr->d, dr->rank, j->id, j->on[dr->rank].reported ? "again" : "without having it");
    return;
  }
  if (!j->early_freed && reads_of_job(w, dr->rank, j))
    broken(w, "I3", "D%u.%u reports %s while reads of it run", dr->d, dr->rank, j->id);
  if (status == RD2H_OK)
    check_rank_good(w, dr, j);
  j->on[dr->rank].reported = true;
  j->on[dr->rank].status = status;
  bool good = true;
  for (uint32_t r = 0; r < de->tp; r++) {
    if (!j->on[r].reported)
      return;
    good &= j->on[r].status == RD2H_OK;
  }
  if (good)
    check_engine_good(w, j);
  j->d_state = good ? D_GOOD : D_BAD;
  if (good) {
    in(w, rng_between(&w->rng, 50 * RD2H_MS, 500 * RD2H_MS), NULL, used_up, NULL, (uint64_t)(j - w->job));
  } else {
    give_blocks(w, j);
    user_sees_failure(w, j);
  }
}

/* ---- life ---- */
void dengine_start(struct world *w, uint32_t d) {
  struct dengine *de = &w->d[d];
  memset(de->owner, 0, sizeof de->owner);
  memset(de->cell, 0, sizeof de->cell);
  for (uint32_t c = 0; c < N_COMP; c++)
    for (uint32_t b = 0; b < CACHED_BLOCKS; b++)
      de->owner[c][b] = JOB_CACHE;
  for (uint32_t r = 0; r < de->tp; r++)
    drank_start(w, &de->rank[r]);
}

static void restart(struct world *w, void *obj, uint64_t inc) {
  struct dengine *de = obj;
  if (de->inc == inc)
    dengine_start(w, de->no);
}

void dengine_crash(struct world *w, uint32_t d, bool slow) {
  struct dengine *de = &w->d[d];
  if (!de->rank[0].proc.alive)
    return;
  tell(w, "Decode engine %u crashes%s", d, slow ? ", slowly noticed" : "");
  w->tally.crashes++;
  if (slow)
    fault_all(w, "Decode crashed, noticed late", 60 * SEC);
  fault_pair(w, RD2H_INDEX_NONE, d, "Decode crashed", 12 * SEC);
  for (uint32_t r = 0; r < de->tp; r++) {
    struct drank *dr = &de->rank[r];
    net_crash(w, &dr->proc, slow);
    proc_kill(w, &dr->proc);
    rd2h_dm_destroy(dr->dm);
    dr->dm = NULL;
    ld_stop(dr);
  }
  reads_of_stopped(w, d);
  for (uint32_t i = 0; i < w->n_jobs; i++)
    if (w->job[i].d == d && w->job[i].d_inc == de->inc && w->job[i].born)
      w->job[i].d_state = D_GONE;
  de->inc++;
  in(w, rng_between(&w->rng, SEC / 10, 4 * SEC), NULL, restart, de, de->inc);
}
