/* SPDX-License-Identifier: Apache-2.0 */
/* The transfer engine: a read copies its cells in a few pieces over some time, so that a source overwritten meanwhile shows. It
 * may fail, be slow, ignore a cancel, or hang until it is canceled or its own time limit ends it.
 *
 * In some worlds its calls block: threads take one read at a time, one call in flight a session, and a stopped Prefill holds up
 * whoever reads from it. A call that lasts makes its session suspect: what waits for it fails at once. */
#include "sim.h"
#include <stdlib.h>

#define SRC_BASE UINT64_C(0x100000)
#define DST_BASE UINT64_C(0x4000000)

static uint32_t tensor_at(uint64_t addr, uint64_t base, uint32_t *row, uint32_t *block) {
  uint64_t off = addr - base;
  *row = (uint32_t)(off >> 16) / RD2H_MAX_TENSORS;
  *block = (uint32_t)(off & 0xffff) / BLOCK_BYTES;
  return (uint32_t)(off >> 16) % RD2H_MAX_TENSORS;
}

static struct read *slot(struct world *w) {
  for (uint32_t i = 0; i < w->n_read; i++)
    if (!w->read[i].used)
      return &w->read[i];
  if (w->n_read == w->cap_read) {
    w->cap_read = w->cap_read ? 2 * w->cap_read : 32;
    w->read = realloc(w->read, w->cap_read * sizeof *w->read);
    memset(w->read + w->n_read, 0, (w->cap_read - w->n_read) * sizeof *w->read);
  }
  return &w->read[w->n_read++];
}

/* One descriptor's blocks, each with the request that owns the destination at present. */
static void add_cells(struct world *w, struct read *r, uint64_t remote, uint64_t local, uint64_t len) {
  struct dengine *de = &w->d[r->d];
  uint32_t slot_no, src, layer, dst;
  uint32_t ts = tensor_at(remote, SRC_BASE, &slot_no, &src), td = tensor_at(local, DST_BASE, &layer, &dst);
  if (ts != td || layer >= w->c.layers || len % BLOCK_BYTES || src + len / BLOCK_BYTES > N_BLOCKS ||
      dst + len / BLOCK_BYTES > N_BLOCKS) {
    broken(w, "PLAN", "a descriptor reads tensor %u of block %u into tensor %u of layer %u, %llu bytes", ts, src, td, layer,
           (unsigned long long)len);
    return;
  }
  for (uint32_t k = 0; k < len / BLOCK_BYTES && r->n < MAX_CELLS; k++) {
    uint32_t owner = de->owner[w->c.two_groups && td >= 2 ? INDEXER : MAIN][dst + k];
    struct cell_ref *c = &r->cell[r->n++];
    *c = (struct cell_ref){.slot = (uint8_t)slot_no, .layer = (uint8_t)layer, .tensor = (uint8_t)td, .src = (uint8_t)(src + k),
                           .dst = (uint8_t)(dst + k), .job = owner, .entry = RD2H_INDEX_NONE};
    if (!owner || owner == JOB_CACHE) {
      broken(w, "I2", "D%u.%u plans to write block %u, which %s", r->d, r->drank, dst + k,
             owner ? "a prefix cache holds" : "is free");
      return;
    }
    const struct job *j = &w->job[owner - 1];
    for (uint32_t e = 0; e < j->n_dst[td >= 2]; e++)
      if (j->dst[td >= 2][e] == dst + k)
        c->entry = e;
  }
}

/* What a message may move: blocks of the very attempts that it was sent for. */
static void check_origin(struct world *w, const struct read *r, const struct msg *m) {
  for (uint32_t i = 0; i < r->n && !w->failed; i++) {
    bool found = false;
    for (uint32_t k = 0; k < m->w.n_reqs; k++)
      found |= m->job[k] + 1 == r->cell[i].job;
    if (!found)
      broken(w, "I12", "D%u.%u reads into %s for a message that was not sent for this attempt", r->d, r->drank,
             w->job[r->cell[i].job - 1].id);
  }
}

static void piece(struct world *, void *, uint64_t);
static void next_call(struct world *, struct drank *);

static uint64_t key_of(const struct world *w, const struct read *r) {
  return (uint64_t)r->gen << 16 | (uint32_t)(r - w->read);
}

static struct read *read_of(struct world *w, uint64_t key) {
  struct read *r = &w->read[key & 0xffff];
  return r->used && r->gen == key >> 16 ? r : NULL;
}

static void end_call(struct world *w, struct drank *dr, const struct read *r) {
  if (!w->c.threads || w->d[dr->d].legacy || r->queued)
    return;
  dr->reading--;
  if (!--w->conn[r->conn].reading)
    w->conn[r->conn].suspect = false;
}

static void over(struct world *w, struct read *r, int status) {
  struct drank *dr = &w->d[r->d].rank[r->drank];
  bool legacy = w->d[r->d].legacy, told = r->fenced_off;
  uint32_t batch = r->batch;
  end_call(w, dr, r);
  r->used = false;
  r->gen++;
  if (status && status != RD2H_CANCELED)
    w->tally.read_failures++;
  trace(w, "D%u.%u read of batch %u is over: %s", r->d, r->drank, batch, rd2h_status_name(status));
  if (told)
    return;
  if (legacy) {
    ld_read_over(w, r, status);
    return;
  }
  rd2h_dm_read_done(dr->dm, batch, status, status ? "the simulated engine says so" : "", w->now);
  decode_pump(w, dr);
  next_call(w, dr);
}

/* ---- an engine that blocks ---- */
static void fail_queued(struct world *w, void *obj, uint64_t key) {
  struct read *r = read_of(w, key);
  (void)obj;
  if (!r || !r->queued)
    return;
  for (uint32_t i = 0; i < r->msg->w.n_reqs; i++)
    job_fault(w, &w->job[r->msg->job[i]], "its session is suspect");
  over(w, r, RD2H_IO);
}

static void lasts_long(struct world *w, void *obj, uint64_t key) {
  struct read *r = read_of(w, key);
  struct drank *dr = obj;
  if (!r || w->mut == MUT_SUSPECT_ENTERED)
    return;
  w->tally.suspect++;
  w->conn[r->conn].suspect = true;
  for (uint32_t i = 0; i < w->n_read; i++)
    if (w->read[i].used && w->read[i].queued && w->read[i].conn == r->conn)
      in(w, 0, &dr->proc, fail_queued, NULL, key_of(w, &w->read[i]));
}

static struct read *oldest_queued(struct world *w, const struct drank *dr) {
  struct read *best = NULL;
  for (uint32_t i = 0; i < w->n_read; i++) {
    struct read *r = &w->read[i];
    bool free = !w->conn[r->conn].reading || w->mut == MUT_SUSPECT_ENTERED;
    if (r->used && r->queued && r->d == dr->d && r->drank == dr->rank && free && (!best || r->started < best->started))
      best = r;
  }
  return best;
}

/* One stuck session costs one thread: while fewer are stuck than there are threads, the others do not wait. */
static void check_wait(struct world *w, const struct drank *dr, const struct read *r) {
  uint32_t stuck = 0;
  for (uint32_t c = 0; c < w->n_conn; c++)
    stuck += w->conn[c].d == dr->d && w->conn[c].drank == dr->rank &&
             (w->conn[c].held_at >= r->born || w->conn[c].stuck_until >= r->born || w->conn[c].suspect);
  bool excused = stuck >= w->c.threads || w->c.slow_permille || w->conn[r->conn].held_at >= r->born || r->paused != dr->proc.paused_ns;
  if (w->now - r->born > SUSPECT_NS + SLACK_NS && !excused)
    broken(w, "I7", "D%u.%u lets a read wait %.3f s for one of %u threads, though only %u sessions are stuck", dr->d, dr->rank,
           (double)(w->now - r->born) / 1e9, w->c.threads, stuck);
}

static void next_call(struct world *w, struct drank *dr) {
  struct read *r;
  while (w->c.threads && dr->reading < w->c.threads && !w->failed && (r = oldest_queued(w, dr))) {
    check_wait(w, dr, r);
    r->queued = false;
    r->started = w->now;
    dr->reading++;
    w->conn[r->conn].reading++;
    in(w, rng_between(&w->rng, RD2H_MS / 10, 4 * RD2H_MS), &dr->proc, piece, NULL, key_of(w, r));
    in(w, SUSPECT_NS, &dr->proc, lasts_long, dr, key_of(w, r));
  }
}

static void queue_call(struct world *w, struct drank *dr, struct read *r) {
  r->queued = true;
  if (w->conn[r->conn].suspect)
    in(w, RD2H_MS / 20, &dr->proc, fail_queued, NULL, key_of(w, r));
  next_call(w, dr);
}

/* A call of a blocking engine does not return while its session is stuck or the other side stands still. */
static bool held_up(struct world *w, const struct read *r) {
  bool blocks = w->c.threads && !w->d[r->d].legacy;
  return blocks && (w->now < w->conn[r->conn].stuck_until || w->p[r->p].rank[r->prank].proc.paused);
}

static void copy(struct world *w, struct read *r, uint32_t upto) {
  struct pengine *pe = &w->p[r->p];
  struct dengine *de = &w->d[r->d];
  for (; r->copied < upto; r->copied++) {
    const struct cell_ref *c = &r->cell[r->copied];
    uint32_t rank = c->tensor < 2 && w->c.pooled ? 0 : r->drank;
    check_copy(w, r, c);
    de->cell[rank][c->layer][c->tensor][c->dst] = pe->rank[r->prank].cell[c->slot][c->tensor][c->src];
  }
}

static void piece(struct world *w, void *obj, uint64_t key) {
  (void)obj;
  struct read *r = read_of(w, key);
  if (!r)
    return;
  bool source = w->p[r->p].rank[r->prank].proc.alive && w->p[r->p].inc == r->p_inc;
  if ((r->hangs && r->piece >= 1) || held_up(w, r)) { /* until a cancel or its own limit */
    w->conn[r->conn].held_at = w->now;
    if (w->now - r->started >= ENGINE_NS - RD2H_MS)
      over(w, r, RD2H_TIMEOUT);
    else
      at(w, r->started + ENGINE_NS - RD2H_MS / 2, &w->d[r->d].rank[r->drank].proc, piece, NULL, key);
    return;
  }
  if (!source || (r->fails && r->piece >= 1)) {
    over(w, r, source ? RD2H_IO : RD2H_PEER_LOST);
    return;
  }
  r->piece++;
  copy(w, r, r->piece == 3 ? r->n : r->n * r->piece / 3);
  if (r->piece == 3) {
    over(w, r, RD2H_OK);
    return;
  }
  uint64_t step = rng_chance(&w->rng, w->c.slow_permille) ? rng_between(&w->rng, 200 * RD2H_MS, 1200 * RD2H_MS)
                                                         : rng_between(&w->rng, RD2H_MS / 10, 8 * RD2H_MS);
  if (w->now + step > r->started + ENGINE_NS)
    step = RD2H_MS;
  in(w, step, &w->d[r->d].rank[r->drank].proc, piece, NULL, key);
}

struct read *read_start(struct world *w, struct drank *dr, uint32_t conn, uint32_t batch, struct msg *m,
                        const struct rd2h_descs *ds) {
  struct read *r = slot(w);
  uint32_t gen = r->gen + 1;
  const struct conn *x = &w->conn[conn];
  *r = (struct read){.d = dr->d,
                     .drank = dr->rank,
                     .d_inc = w->d[dr->d].inc,
                     .conn = conn,
                     .batch = batch,
                     .p = x->p,
                     .prank = x->rank,
                     .p_inc = x->p_inc,
                     .gen = gen,
                     .started = w->now,
                     .born = w->now,
                     .paused = dr->proc.paused_ns,
                     .used = true,
                     .msg = m};
  for (uint32_t i = 0; i < ds->n && !w->failed; i++)
    add_cells(w, r, ds->remote[i], (uint64_t)(uintptr_t)ds->local[i], ds->len[i]);
  if (!w->d[dr->d].legacy)
    check_origin(w, r, m);
  r->fails = rng_chance(&w->rng, w->c.fail_permille);
  r->hangs = rng_chance(&w->rng, w->c.hang_permille);
  r->cancelable = rng_chance(&w->rng, 700);
  if (r->hangs) {
    w->tally.hangs++;
    fault_all(w, "a read hangs", 60 * SEC);
    if (w->c.threads)
      w->conn[conn].stuck_until = w->now + rng_between(&w->rng, SEC, 30 * SEC);
  }
  for (uint32_t i = 0; (r->fails || r->hangs) && m && i < m->w.n_reqs; i++)
    job_fault(w, &w->job[m->job[i]], "its read fails");
  if (w->c.threads && dr->dm)
    queue_call(w, dr, r);
  else
    in(w, rng_between(&w->rng, RD2H_MS / 10, 4 * RD2H_MS), &dr->proc, piece, NULL, key_of(w, r));
  return r;
}

static void canceled(struct world *w, void *obj, uint64_t key) {
  (void)obj;
  struct read *r = read_of(w, key);
  if (r)
    over(w, r, RD2H_CANCELED);
}

void read_cancel(struct world *w, struct drank *dr, uint32_t batch) {
  for (uint32_t i = 0; i < w->n_read; i++) {
    struct read *r = &w->read[i];
    if (!r->used || r->d != dr->d || r->drank != dr->rank || r->batch != batch || r->fenced_off)
      continue;
    r->cancel = true;
    if (r->cancelable || r->queued)
      in(w, rng_between(&w->rng, RD2H_MS / 10, 3 * RD2H_MS), &dr->proc, canceled, NULL, (uint64_t)r->gen << 16 | i);
    return;
  }
  broken(w, "SIM", "D%u.%u cancels batch %u, which is not being read", dr->d, dr->rank, batch);
}

void reads_of_stopped(struct world *w, uint32_t d) {
  for (uint32_t i = 0; i < MAX_TP; i++)
    w->d[d].rank[i].reading = 0;
  for (uint32_t i = 0; i < w->n_read; i++)
    if (w->read[i].used && w->read[i].d == d) {
      w->read[i].used = false;
      w->read[i].gen++;
    }
}

uint32_t reads_of_job(struct world *w, uint32_t drank, const struct job *j) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < w->n_read; i++) {
    const struct read *r = &w->read[i];
    if (!r->used || r->d != j->d || r->drank != drank)
      continue;
    for (uint32_t k = 0; k < r->n; k++)
      if (r->cell[k].job == (uint32_t)(j - w->job) + 1) {
        n++;
        break;
      }
  }
  return n;
}

uint32_t reads_of_conn(struct world *w, uint32_t conn) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < w->n_read; i++)
    n += w->read[i].used && w->read[i].conn == conn;
  return n;
}
