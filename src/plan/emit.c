/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/emit.h"
#include <stddef.h>
#include <string.h>

/* Four ids at once, in what every CPU of interest has; loads are unaligned. */
typedef uint32_t lanes __attribute__((vector_size(16)));
#define LANES 4
_Static_assert(sizeof(void *) == sizeof(uint64_t), "addresses are 64 bits");

static inline lanes load(const uint32_t *p) {
  lanes v;
  memcpy(&v, p, sizeof v);
  return v;
}

static inline lanes splat(uint32_t v) {
  return (lanes){v, v, v, v};
}

static inline bool joins(const uint32_t *src, const uint32_t *dst, size_t i) {
  return (src[i] - src[i - 1] == 1) & (dst[i] - dst[i - 1] == 1);
}

/* All ones in the lanes i … i + 3 that continue the block before them. i >= 1. */
static inline lanes joins4(const uint32_t *src, const uint32_t *dst, size_t i) {
  return (lanes)(load(src + i) - load(src + i - 1) == 1) & (lanes)(load(dst + i) - load(dst + i - 1) == 1);
}

bool rd2h_blocks_scan(struct rd2h_blocks *b, uint32_t src_limit, uint32_t dst_limit) {
  const uint32_t *src = b->src, *dst = b->dst;
  lanes src_max = splat(src_limit), dst_max = splat(dst_limit), bad = splat(0), joined = splat(0);
  size_t n = b->n, i = 1;
  if (!n)
    return b->runs = 0, true;
  bool fine = src[0] < src_limit && dst[0] < dst_limit;
  for (; i + LANES <= n; i += LANES) {
    bad |= (lanes)(load(src + i) >= src_max) | (lanes)(load(dst + i) >= dst_max);
    joined -= joins4(src, dst, i);
  }
  uint32_t inner = joined[0] + joined[1] + joined[2] + joined[3];
  for (; i < n; i++) {
    fine &= (src[i] < src_limit) & (dst[i] < dst_limit);
    inner += joins(src, dst, i);
  }
  b->runs = b->n - inner;
  return fine && !(bad[0] | bad[1] | bad[2] | bad[3]);
}

/* No two blocks in a row continue each other: one descriptor a block. */
static void emit_singles(const struct rd2h_blocks *b, const struct rd2h_link_part *part, struct rd2h_descs *d, uint32_t at) {
  const uint32_t *restrict src = b->src, *restrict dst = b->dst;
  void **restrict local = d->local + at;
  uint64_t *restrict remote = d->remote + at, *restrict len = d->len + at;
  uint64_t src_base = part->src_base, dst_base = part->dst_base, bytes = part->bytes;
  for (size_t i = 0, n = b->n; i < n; i++) {
    local[i] = (void *)(uintptr_t)(dst_base + dst[i] * bytes);
    remote[i] = src_base + src[i] * bytes;
    len[i] = bytes;
  }
}

/* The run starts are found for so many blocks at a time, on the stack, once for all parts of a list. */
#define CHUNK 256
struct starts {
  uint32_t n;
  uint32_t at[CHUNK + 1]; /* index of a run's first block; at[n]: end of the chunk */
};

/* Bit k: block i + k joins the one before it. */
static inline uint32_t join_bits(const uint32_t *src, const uint32_t *dst, size_t i) {
  lanes bits = (joins4(src, dst, i) & (lanes){1, 2, 4, 8}) | (joins4(src, dst, i + LANES) & (lanes){16, 32, 64, 128});
  uint64_t half[2];
  memcpy(half, &bits, sizeof half);
  half[0] |= half[1];
  return (uint32_t)(half[0] | half[0] >> 32);
}

/* Without a branch on a single block: whether it joins the one before is hard to foretell. */
static void find_starts(const uint32_t *src, const uint32_t *dst, uint32_t from, uint32_t to, struct starts *s) {
  uint32_t n = 0, i = from;
  if (!i)
    s->at[n++] = i++;
  for (; i + 2 * LANES <= to; i += 2 * LANES) {
    uint32_t starts = ~join_bits(src, dst, i) & 0xff;
    if (!starts)
      continue;
#pragma GCC unroll 8
    for (uint32_t k = 0; k < 2 * LANES; k++) {
      s->at[n] = i + k;
      n += starts >> k & 1;
    }
  }
  for (; i < to; i++) {
    s->at[n] = i;
    n += !joins(src, dst, i);
  }
  s->at[n] = to;
  s->n = n;
}

static void emit_runs(const struct rd2h_blocks *b, const struct starts *s, const struct rd2h_link_part *part,
                      struct rd2h_descs *d, uint32_t at) {
  const uint32_t *restrict src = b->src, *restrict dst = b->dst;
  void **restrict local = d->local + at;
  uint64_t *restrict remote = d->remote + at, *restrict len = d->len + at;
  uint64_t src_base = part->src_base, dst_base = part->dst_base, bytes = part->bytes;
  for (size_t r = 0, n = s->n; r < n; r++) {
    uint32_t i = s->at[r];
    local[r] = (void *)(uintptr_t)(dst_base + dst[i] * bytes);
    remote[r] = src_base + src[i] * bytes;
    len[r] = (s->at[r + 1] - i) * bytes;
  }
}

static void emit_mixed(const struct rd2h_blocks *b, const struct rd2h_link_part *part, uint32_t n_parts, struct rd2h_descs *d) {
  struct starts s;
  uint32_t done = 0; /* runs begun in earlier chunks */
  for (uint32_t from = 0, to; from < b->n; from = to) {
    to = b->n - from < CHUNK ? b->n : from + CHUNK;
    find_starts(b->src, b->dst, from, to, &s);
    for (uint32_t p = 0; p < n_parts; p++) {
      uint32_t at = d->n + p * b->runs + done;
      if (s.at[0] != from) /* the last run of the chunk before goes on */
        d->len[at - 1] += (s.at[0] - from) * part[p].bytes;
      emit_runs(b, &s, &part[p], d, at);
    }
    done += s.n;
  }
}

/* One run: nothing to search. */
static void emit_one(const struct rd2h_blocks *b, const struct rd2h_link_part *part, uint32_t n_parts, struct rd2h_descs *d) {
  for (uint32_t p = 0, at = d->n; p < n_parts; p++, at++) {
    d->local[at] = (void *)(uintptr_t)(part[p].dst_base + b->dst[0] * part[p].bytes);
    d->remote[at] = part[p].src_base + b->src[0] * part[p].bytes;
    d->len[at] = b->n * part[p].bytes;
  }
}

static void fill_region(uint32_t *region, size_t n, uint32_t value) {
  lanes v = splat(value);
  size_t i = 0;
  for (; i + LANES <= n; i += LANES)
    memcpy(region + i, &v, sizeof v);
  for (; i < n; i++)
    region[i] = value;
}

void rd2h_blocks_emit(const struct rd2h_blocks *b, const struct rd2h_link_part *part, uint32_t n_parts, struct rd2h_descs *d) {
  if (b->runs == b->n)
    for (uint32_t p = 0; p < n_parts; p++)
      emit_singles(b, &part[p], d, d->n + p * b->runs);
  else if (b->runs == 1)
    emit_one(b, part, n_parts, d);
  else
    emit_mixed(b, part, n_parts, d);
  for (uint32_t p = 0; p < n_parts; p++) {
    if (d->region)
      fill_region(d->region + d->n + p * b->runs, b->runs, part[p].src_region);
    d->bytes += b->n * part[p].bytes;
  }
  d->n += n_parts * b->runs;
}
