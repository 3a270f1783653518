/* SPDX-License-Identifier: Apache-2.0 */
/* The rules. */
#include "sim.h"

/* ---- who is excused ---- */
void job_fault(struct world *w, struct job *j, const char *why) {
  if (j->faulted)
    return;
  trace(w, "%s may fail from now on: %s", j->id, why);
  j->faulted = true;
  j->why = why;
}

static bool over(const struct job *j) {
  return j->d_state != D_WAITING && (j->p_state == P_ENDED || j->p_state == P_GONE || j->p_state == P_NONE);
}

/* Something that can hold up a Prefill's forward, and so everybody who waits for it. */
void fault_all(struct world *w, const char *why, uint64_t window) {
  for (uint32_t i = 0; i < w->n_jobs; i++)
    if (!over(&w->job[i]))
      job_fault(w, &w->job[i], why);
  if (w->unclean_all < w->now + window)
    w->unclean_all = w->now + window;
}

/* Something happened to an engine: what lives there may fail, and what begins there before everybody has noticed. */
void fault_pair(struct world *w, uint32_t p, uint32_t d, const char *why, uint64_t window) {
  for (uint32_t i = 0; i < w->n_jobs; i++) {
    struct job *j = &w->job[i];
    if ((p == RD2H_INDEX_NONE || j->p == p) && (d == RD2H_INDEX_NONE || j->d == d) && !over(j))
      job_fault(w, j, why);
  }
  if (any_legacy_prefill(w) && d != RD2H_INDEX_NONE) { /* it never sends metadata again, and its forward waits for ever */
    fault_all(w, why, 3600 * SEC);
    return;
  }
  uint64_t until = w->now + window;
  if (p != RD2H_INDEX_NONE && d == RD2H_INDEX_NONE && w->unclean_p[p] < until)
    w->unclean_p[p] = until;
  if (d != RD2H_INDEX_NONE && w->unclean_d[d] < until)
    w->unclean_d[d] = until;
}

bool job_born_clean(struct world *w, const struct job *j) {
  return w->now >= w->unclean_all && w->now >= w->unclean_p[j->p] && w->now >= w->unclean_d[j->d];
}

/* ---- finding requests ---- */
struct job *job_by_id(struct world *w, const char *id) {
  for (uint32_t i = w->n_jobs; i-- > 0;)
    if (!strcmp(w->job[i].id, id))
      return &w->job[i];
  return NULL;
}

struct job *job_by_pid(struct world *w, const char *id) {
  for (uint32_t i = w->n_jobs; i-- > 0;)
    if (!strcmp(w->job[i].pid, id))
      return &w->job[i];
  return NULL;
}

struct job *job_by_attempt(struct world *w, const char *ext, const uint8_t *attempt) {
  for (uint32_t i = w->n_jobs; i-- > 0;)
    if (!strcmp(w->job[i].ext, ext) && (!attempt || !memcmp(w->job[i].attempt, attempt, RD2H_ATTEMPT)))
      return &w->job[i];
  return NULL;
}

/* ---- reads ---- */
void check_copy(struct world *w, struct read *r, const struct cell_ref *c) {
  const struct dengine *de = &w->d[r->d];
  struct job *j = &w->job[c->job - 1];
  uint32_t owner = de->owner[w->c.two_groups && c->tensor >= 2 ? INDEXER : MAIN][c->dst];
  if (owner != c->job || j->on[r->drank].reported) {
    broken(w, "I2", "D%u.%u writes block %u for %s, which %s", r->d, r->drank, c->dst, j->id,
           owner != c->job ? "does not own it any more" : "was reported");
    return;
  }
  if (c->entry == RD2H_INDEX_NONE || j->written[r->drank][c->layer][c->tensor][c->entry]++)
    broken(w, "I13", "D%u.%u pulls layer %u tensor %u entry %d of %s again", r->d, r->drank, c->layer, c->tensor, (int)c->entry,
           j->id);
}

/* ---- batches ---- */
static bool source_intact(struct world *w, const struct brec *b, uint32_t k) {
  const struct pengine *pe = &w->p[b->p];
  const struct job *j = &w->job[b->job[k]];
  for (uint32_t t = 0; t < RD2H_MAX_TENSORS; t++) {
    uint32_t c = t >= 2, slot;
    if (!slot_of(pe, b->layer, c, &slot))
      continue;
    for (uint32_t e = b->start[k][c]; e < b->start[k][c] + b->count[k][c]; e++)
      if (memcmp(&pe->rank[b->rank].cell[slot][t][j->src[c][e]], &j->named[b->rank][b->layer][t][e], sizeof(struct stamp)))
        return false;
  }
  return true;
}

void check_batch_settled(struct world *w, struct brec *b, int status) {
  for (uint32_t k = 0; k < b->n; k++) {
    if (!b->carried[k] || w->job[b->job[k]].p_inc != b->p_inc)
      continue;
    if (status == RD2H_OK && !b->delivered)
      broken(w, "I4", "P%u.%u takes batch %u of layer %u as read, but it was not answered", b->p, b->rank,
             (uint32_t)(b - w->brec), b->layer);
    if (b->delivered && !w->job[b->job[k]].at[b->rank].settled && !source_intact(w, b, k))
      broken(w, "I4", "P%u.%u accepts the answer for layer %u of %s, whose source was overwritten", b->p, b->rank, b->layer,
             w->job[b->job[k]].pid);
  }
}

void check_done(struct world *w, struct prank *pr, struct job *j, uint32_t d, uint32_t drank) {
  if (j->d != d || j->at[pr->rank].done_sent[drank])
    broken(w, "I8", "P%u.%u sends done of %s again, or to another engine", pr->p, pr->rank, j->pid);
  j->at[pr->rank].done_sent[drank] = true;
  for (uint32_t i = 0; i < w->n_brec; i++) {
    const struct brec *b = &w->brec[i];
    if (b->p != pr->p || b->p_inc != w->p[pr->p].inc || b->rank != pr->rank || b->d != d || b->drank != drank)
      continue;
    for (uint32_t k = 0; k < b->n; k++)
      if (&w->job[b->job[k]] == j && (!b->carried[k] || !b->delivered || b->given_up || b->status[k] != RD2H_OK))
        broken(w, "I8", "P%u.%u sends done of %s to D%u.%u, but batch %u of layer %u %s", pr->p, pr->rank, j->pid, d, drank, i,
               b->layer,
               !b->carried[k]  ? "did not name it"
               : !b->delivered ? "was not answered"
               : b->given_up   ? "was given up"
                               : "was not served");
  }
}

static bool served_by(struct world *w, const struct job *j, uint32_t c) {
  for (uint32_t i = 0; i < w->n_brec; i++) {
    const struct brec *b = &w->brec[i];
    for (uint32_t k = 0; b->conn == c && b->answered && k < b->n; k++)
      if (&w->job[b->job[k]] == j && b->carried[k] && b->status[k] == RD2H_OK)
        return true;
  }
  return false;
}

/* Decode's transport has known for a probe's time that the other side is gone, and no read lasts longer than an engine call. */
void check_lost(struct world *w, void *obj, uint64_t c) {
  const struct conn *x = &w->conn[c];
  struct drank *dr = obj;
  uint64_t bound = x->d_since + PROBE_NS + ENGINE_NS + SLACK_NS + (dr->proc.paused_ns - x->d_paused);
  if (w->now < bound) {
    at(w, bound, &dr->proc, check_lost, dr, c);
    return;
  }
  for (uint32_t i = 0; i < w->n_jobs; i++) {
    const struct job *j = &w->job[i];
    if (j->d == x->d && j->d_inc == x->d_inc && j->on[dr->rank].installed && !j->on[dr->rank].reported &&
        j->on[dr->rank].done_on[x->rank] != c + 1 && served_by(w, j, (uint32_t)c))
      broken(w, "I6", "D%u.%u has not ended %s, whose Prefill rank %u.%u was lost %.3f s ago", dr->d, dr->rank, j->id, x->p,
             x->rank, (double)(w->now - x->d_knows) / 1e9);
  }
}

/* ---- success ---- */
static bool serves(struct world *w, const struct job *j, uint32_t prank, uint32_t layer, uint32_t drank, uint32_t *member) {
  const struct pengine *pe = &w->p[j->p];
  uint32_t ratio;
  return prank < pe->tp * pe->pp && prank / pe->tp == stage_of(w, layer) &&
         rd2h_plan_member(prank % pe->tp, pe->tp, drank, w->d[j->d].tp, member, &ratio, NULL) == RD2H_OK;
}

/* Holds the destination the write that some READY named? `drank`: whose cell; for pooled main, any rank's share. */
static void check_cell(struct world *w, struct job *j, uint32_t drank, uint32_t layer, uint32_t t, uint32_t e) {
  uint32_t c = t >= 2, member = 0, rank = c == MAIN && w->c.pooled ? 0 : drank;
  const struct stamp *s = &w->d[j->d].cell[rank][layer][t][j->dst[c][e]];
  bool cached = s->job == JOB_CACHE;
  bool right = s->layer == layer && s->tensor == t && s->prank < MAX_RANKS &&
               !memcmp(s, &j->named[s->prank][layer][t][e], sizeof *s) &&
               (cached ? e < j->prefix / w->c.bs[c] : s->job == (uint16_t)(j - w->job + 1) && s->block == e) &&
               (!w->c.heads || s->head == drank);
  if (right && c == MAIN && w->c.pooled) {
    right = false;
    for (uint32_t r = 0; r < w->d[j->d].tp; r++)
      right |= serves(w, j, s->prank, layer, r, &member) && member == 0;
  } else if (right) {
    right = serves(w, j, s->prank, layer, drank, &member) && (c == INDEXER || member == 0);
  }
  if (!right)
    broken(w, "I1",
           "D%u.%u reports %s complete, but layer %u tensor %u entry %u holds job %u layer %u block %u write %u of P rank %u",
           j->d, drank, j->id, layer, t, e, s->job, s->layer, s->block, s->write, s->prank);
}

static bool has_tensor(const struct world *w, uint32_t t) {
  return t == 0 || (t == 1 && w->c.two_main) || (t == 2 && w->c.indexer) || (t == 3 && w->c.scale);
}

static void check_cells(struct world *w, struct job *j, uint32_t drank, bool main, bool indexer) {
  for (uint32_t l = 0; l < w->c.layers; l++)
    for (uint32_t t = 0; t < RD2H_MAX_TENSORS; t++)
      for (uint32_t e = j->floor[t >= 2]; has_tensor(w, t) && (t >= 2 ? indexer : main) && e < j->need[t >= 2] && !w->failed; e++)
        check_cell(w, j, drank, l, t, e);
}

void check_rank_good(struct world *w, struct drank *dr, struct job *j) {
  check_cells(w, j, dr->rank, !w->c.pooled, true);
}

/* Main of a pooled engine is complete when all ranks are; main and indexer of each request then were pulled exactly once. */
void check_engine_good(struct world *w, struct job *j) {
  if (w->c.pooled)
    check_cells(w, j, 0, true, false);
  for (uint32_t r = 0; r < w->d[j->d].tp; r++)
    check_cells(w, j, r, !w->c.pooled, true);
  for (uint32_t l = 0; l < w->c.layers; l++)
    for (uint32_t t = 0; t < RD2H_MAX_TENSORS; t++)
      for (uint32_t e = 0; has_tensor(w, t) && e < j->need[t >= 2]; e++) {
        uint32_t n = 0, want = e < j->floor[t >= 2] ? 0 : t < 2 && w->c.pooled ? 1 : w->d[j->d].tp;
        for (uint32_t r = 0; r < w->d[j->d].tp; r++)
          n += j->written[r][l][t][e];
        if (n != want)
          broken(w, "I13", "layer %u tensor %u entry %u of %s was pulled %u times, %u are right", l, t, e, j->id, n, want);
      }
}

/* ---- the end: everything is as at the start ---- */
static void check_prefill_end(struct world *w, struct pengine *pe) {
  for (uint32_t c = 0; c < N_COMP; c++)
    for (uint32_t b = 0; b < N_BLOCKS; b++)
      if (pe->used[c][b])
        broken(w, "I10", "block %u of Prefill %u is still held", b, pe->no);
  for (uint32_t r = 0; r < pe->tp * pe->pp; r++) {
    struct prank *pr = &pe->rank[r];
    struct rd2h_pm_stats st;
    if (pr->waiting)
      broken(w, "I11", "P%u.%u waits at its gate for ever", pe->no, r);
    for (uint32_t s = 0; s < MAX_LAYERS; s++)
      if (pr->busy[MAIN][s] || pr->busy[INDEXER][s])
        broken(w, "I10", "slot %u of P%u.%u is still closed", s, pe->no, r);
    if (!pr->pm)
      continue;
    rd2h_pm_stats(pr->pm, &st);
    if (st.requests || st.outstanding || st.endpoints)
      broken(w, "I10", "P%u.%u still has %u requests, %u batches, %u endpoints", pe->no, r, st.requests, st.outstanding,
             st.endpoints);
  }
}

static void check_decode_end(struct world *w, struct dengine *de) {
  for (uint32_t c = 0; c < N_COMP; c++)
    for (uint32_t b = 0; b < N_BLOCKS; b++)
      if (de->owner[c][b] && de->owner[c][b] != JOB_CACHE)
        broken(w, "I10", "block %u of Decode %u still belongs to %s", b, de->no, w->job[de->owner[c][b] - 1].id);
  for (uint32_t r = 0; r < de->tp; r++) {
    struct rd2h_dm_stats st;
    if (!de->rank[r].dm)
      continue;
    rd2h_dm_stats(de->rank[r].dm, &st);
    if (st.requests || st.reads || st.parked_now || st.quarantined)
      broken(w, "I10", "D%u.%u still has %u requests, %u reads, %u parked, %u quarantined", de->no, r, st.requests, st.reads,
             st.parked_now, st.quarantined);
  }
}

static void check_job_end(struct world *w, struct job *j) {
  if (j->born && j->d_state == D_WAITING)
    broken(w, "I5", "%s never ended at Decode", j->id);
  if (j->p_state == P_WAITING || j->p_state == P_RUNNING || j->p_state == P_COMPUTED)
    broken(w, "I5", "%s never ended at Prefill", j->pid);
  if (!j->faulted) {
    w->tally.must++;
    int d_status = RD2H_OK;
    for (uint32_t r = 0; r < w->d[j->d].tp; r++)
      d_status = d_status ? d_status : j->on[r].status;
    if (d_status || j->d_state != D_GONE || j->p_state != P_ENDED)
      broken(w, "I9", "nothing happened to %s, but it ended with %s", j->id, rd2h_status_name(d_status));
    for (uint32_t r = 0; r < w->p[j->p].tp * w->p[j->p].pp; r++)
      if (j->at[r].status)
        broken(w, "I9", "nothing happened to %s, but P%u.%u settled it with %s", j->pid, j->p, r,
               rd2h_status_name(j->at[r].status));
  }
}

void check_end(struct world *w) {
  for (uint32_t i = 0; i < w->c.n_p; i++)
    check_prefill_end(w, &w->p[i]);
  for (uint32_t i = 0; i < w->c.n_d; i++)
    check_decode_end(w, &w->d[i]);
  for (uint32_t i = 0; i < w->n_brec; i++)
    if (!w->brec[i].settled && w->brec[i].p_inc == w->p[w->brec[i].p].inc)
      broken(w, "I10", "batch %u was never settled", i);
  for (uint32_t i = 0; i < w->n_jobs && !w->failed; i++)
    check_job_end(w, &w->job[i]);
}
