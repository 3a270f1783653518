/* SPDX-License-Identifier: Apache-2.0 */
/* Speed by block size: the same read as contiguous and as scattered blocks, every byte compared once. */
#include "pd_read.h"
#include "table.h"
#include <stdio.h>
#include <stdlib.h>

#define BLOCK_MIN 256u
#define BLOCK_MAX (UINT64_C(16) << 20)
#define BLOCK_STEP 4u
#define SAMPLE (UINT64_C(64) << 20) /* bytes of one read */
#define BLOCKS_MAX 16384u
#define ROUNDS 5
#define ROUND_NS 300e6               /* one should not take longer */
#define CASE_NS (1500 * RD2H_MS)     /* no new round after so long */
#define PROBE_BLOCKS 64u

struct lists {
  void **local;
  uint64_t *from, *len;
  uint32_t *source, *target; /* block ids */
};

static void free_lists(struct lists *l) {
  free(l->local);
  free(l->from);
  free(l->len);
  free(l->source);
  free(l->target);
}

/* n of all block ids: in order, or drawn without repetition. */
static void draw(uint32_t *ids, uint32_t all, uint32_t n, bool scattered, uint64_t seed) {
  for (uint32_t i = 0; i < all; i++)
    ids[i] = i;
  for (uint32_t i = 0; i < n && scattered; i++) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    uint32_t k = i + (uint32_t)((seed >> 33) % (all - i)), was = ids[i];
    ids[i] = ids[k];
    ids[k] = was;
  }
}

static int check(const struct pd_read *r, const struct lists *l, uint64_t block, uint32_t n, struct rd2h_error *err) {
  for (uint32_t i = 0; i < n; i++) {
    uint64_t at = pd_pattern_differs(l->local[i], r->seed, l->source[i] * block, block);
    if (at < block)
      return rd2h_fail(err, RD2H_IO, "sweep, blocks of %llu bytes: byte %llu of block %u differs from Prefill's",
                       (unsigned long long)block,
                       (unsigned long long)at, l->source[i]);
  }
  return RD2H_OK;
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Batches of what the engine takes at once. */
static int round_of(struct pd_read *r, struct pd_remote *remote, const struct lists *l, uint64_t block, uint32_t n,
                    struct rd2h_error *err) {
  uint32_t cap = rd2h_eng_caps(r->eng)->max_desc;
  cap = cap ? cap : n;
  for (uint32_t i = 0, k; i < n; i += k) {
    k = n - i < cap ? n - i : cap;
    const struct rd2h_batch b = {.id = 1, .n = k, .bytes = k * block, .local = l->local + i, .remote = l->from + i,
                                 .len = l->len + i};
    r->deadline = rd2h_now_ns() + r->timeout_s * 1000 * RD2H_MS;
    int rc = pd_read_batch(r, remote, &b, err);
    if (rc)
      return rc;
  }
  return RD2H_OK;
}

/* The first round is compared and not counted; median of the others. */
static int measure(struct pd_read *r, struct pd_remote *remote, struct lists *l, const struct pd_row *row, bool scattered,
                   double *gb_s, struct rd2h_error *err) {
  uint32_t all = (uint32_t)(r->bytes / row->block), k = 0;
  double took[ROUNDS];
  int rc = RD2H_OK;
  draw(l->source, all, row->blocks, scattered, 1);
  draw(l->target, all, row->blocks, scattered, 2);
  for (uint32_t i = 0; i < row->blocks; i++) {
    l->local[i] = memset(r->memory_base + l->target[i] * row->block, 0, row->block);
    l->from[i] = remote->base + l->source[i] * row->block;
    l->len[i] = row->block;
  }
  for (uint64_t begin = rd2h_now_ns(); !rc && k < ROUNDS && (k < 2 || rd2h_now_ns() - begin < CASE_NS); k++) {
    uint64_t t = rd2h_now_ns();
    rc = round_of(r, remote, l, row->block, row->blocks, err);
    took[k] = (double)(rd2h_now_ns() - t);
    if (!rc && !k)
      rc = check(r, l, row->block, row->blocks, err);
  }
  if (rc)
    return rc;
  qsort(took + 1, k - 1, sizeof *took, by_value);
  *gb_s = (double)row->blocks * (double)row->block / took[1 + (k - 1) / 2];
  return RD2H_OK;
}

static double slower_ns(const struct pd_row *row) {
  return (double)row->block / (row->contiguous < row->scattered ? row->contiguous : row->scattered);
}

/* As many as SAMPLE holds, or fewer where a block takes long. */
static uint32_t blocks_of(const struct pd_read *r, uint64_t block, double ns_a_block) {
  uint64_t fit = (r->bytes < SAMPLE ? r->bytes : SAMPLE) / block, few = (uint64_t)(ROUND_NS / ns_a_block) + 1;
  fit = fit < BLOCKS_MAX ? fit : BLOCKS_MAX;
  return (uint32_t)(fit < few ? fit : few);
}

/* One row; the time of a block is known from the one before, or from a few blocks first. */
static int sweep_row(struct pd_read *r, struct pd_remote *remote, struct lists *l, uint64_t block, const struct pd_row *before,
                     struct pd_row *row, struct rd2h_error *err) {
  int rc = RD2H_OK;
  *row = (struct pd_row){.block = block, .blocks = PROBE_BLOCKS < r->bytes / block ? PROBE_BLOCKS : 1};
  if (!before)
    rc = measure(r, remote, l, row, true, &row->scattered, err);
  if (rc)
    return rc;
  row->contiguous = row->scattered;
  row->blocks = blocks_of(r, block, before ? BLOCK_STEP * slower_ns(before) : slower_ns(row));
  rc = measure(r, remote, l, row, false, &row->contiguous, err);
  return rc ? rc : measure(r, remote, l, row, true, &row->scattered, err);
}

int pd_sweep(struct pd_read *r, struct pd_remote *remote, struct pd_row rows[PD_ROWS], uint32_t *n,
             struct rd2h_error *err) {
  uint64_t all = r->bytes / BLOCK_MIN;
  struct lists l = {calloc(BLOCKS_MAX, sizeof *l.local), calloc(BLOCKS_MAX, sizeof *l.from), calloc(BLOCKS_MAX, sizeof *l.len),
                    calloc(all, sizeof *l.source), calloc(all, sizeof *l.target)};
  int rc = l.local && l.from && l.len && l.source && l.target && all <= UINT32_MAX ? RD2H_OK : rd2h_nomem(err, "the sweep");
  uint32_t done = 0;
  char size[32];
  pd_step(r);
  for (uint64_t block = BLOCK_MIN; !rc && block <= BLOCK_MAX && block <= r->bytes && done < PD_ROWS; block *= BLOCK_STEP,
       done++) {
    pd_progress(r, "blocks of %s", size_text(block, size));
    rc = sweep_row(r, remote, &l, block, done ? &rows[done - 1] : NULL, &rows[done], err);
  }
  pd_progress_end(r);
  free_lists(&l);
  *n = rc ? 0 : done;
  return rc;
}

static const char *time_of(uint64_t block, double gb_s, char out[32]) {
  double ns = (double)block / gb_s;
  snprintf(out, 32, ns < 1e3 ? "%.0f ns" : ns < 1e6 ? "%.1f us" : "%.1f ms", ns < 1e3 ? ns : ns < 1e6 ? ns / 1e3 : ns / 1e6);
  return out;
}

void pd_sweep_table(const struct pd_row *rows, uint32_t n) {
  static const char *const heads[] = {"block", "blocks a read", "contiguous GB/s", "each", "scattered GB/s", "each", NULL};
  struct table t;
  char size[32];
  puts("");
  if (!table_begin(&t, heads))
    return;
  for (uint32_t i = 0; i < n; i++) {
    table_cell(&t, "%s", size_text(rows[i].block, size));
    table_cell(&t, "%u", rows[i].blocks);
    table_cell(&t, rows[i].contiguous < 0.1 ? "%.3f" : "%.2f", rows[i].contiguous);
    table_cell(&t, "%s", time_of(rows[i].block, rows[i].contiguous, size));
    table_cell(&t, rows[i].scattered < 0.1 ? "%.3f" : "%.2f", rows[i].scattered);
    table_cell(&t, "%s", time_of(rows[i].block, rows[i].scattered, size));
    table_row_end(&t);
  }
  table_end(&t);
  puts("");
}
