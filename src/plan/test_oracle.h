/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_SRC_PLAN_TEST_ORACLE_H
#define RD2H_SRC_PLAN_TEST_ORACLE_H
/* Planning as the rules say it, block by block, for the tests to compare with; and descriptor arrays between canaries. */
#include "plan/plan.h"
#include <stdlib.h>

struct oracle_desc {
  uint64_t local, remote, len;
  uint32_t region;
};
struct oracle {
  struct oracle_desc d[1 << 16];
  uint32_t n;
  uint64_t bytes;
};

/* Does rank own block i of n? Ranks are counted from the owner of the run's first block; the first n mod ranks own one more. */
static inline bool oracle_owns(uint32_t i, uint32_t n, uint32_t rank, uint32_t ranks, uint32_t start) {
  uint32_t first = 0;
  for (uint32_t logical = 0; logical < ranks; logical++) {
    uint32_t own = n / ranks + (logical < n % ranks);
    if ((start + (uint64_t)logical) % ranks == rank)
      return i >= first && i < first + own;
    first += own;
  }
  return false;
}

/* Is the block none of the side's, no id of the protocol, or past the end of the address space? */
static inline bool oracle_outside(uint64_t base, uint64_t bytes, uint32_t blocks, uint32_t id) {
  return id >= blocks || id > INT32_MAX || (unsigned __int128)base + (unsigned __int128)bytes * (id + 1ull) > UINT64_MAX;
}

static inline void oracle_block(struct oracle *o, bool *open, const struct rd2h_link_part *p, uint32_t src, uint32_t dst) {
  struct oracle_desc next = {p->dst_base + dst * p->bytes, p->src_base + src * p->bytes, p->bytes, p->src_region};
  struct oracle_desc *last = *open ? &o->d[o->n - 1] : NULL;
  if (last && last->local + last->len == next.local && last->remote + last->len == next.remote)
    last->len += p->bytes;
  else
    o->d[o->n++] = next;
  *open = true;
  o->bytes += p->bytes;
}

/* Appends what the request moves; false (and nothing appended) when it must be refused. */
static inline bool oracle_build(const struct rd2h_link *link, const struct rd2h_share *s, const struct rd2h_plan_request *r,
                                struct oracle *o) {
  uint32_t n = o->n;
  uint64_t bytes = o->bytes;
  for (uint32_t i = 0; i < link->n_parts; i++) {
    const struct rd2h_link_part *p = &link->part[i];
    bool is_main = p->component == RD2H_MAIN, open = false;
    const uint32_t *src = is_main ? r->src_main : r->src_indexer, *dst = is_main ? r->dst_main : r->dst_indexer;
    uint32_t n_src = is_main ? r->n_src_main : r->n_src_indexer, n_dst = is_main ? r->n_dst_main : r->n_dst_indexer;
    uint32_t start = is_main ? r->main_start : r->indexer_start, floor = is_main ? r->main_floor : r->indexer_floor;
    for (uint32_t j = 0; j < n_src && (!is_main || s->member == 0); j++) {
      bool bad = start + (uint64_t)j >= n_dst || start + j < floor;
      bool own = is_main ? oracle_owns(j, n_src, s->main_rank, s->main_ranks, start)
                         : oracle_owns(j, n_src, s->member, s->ratio, start);
      bad = bad || (own && (oracle_outside(p->src_base, p->bytes, p->src_blocks, src[j]) ||
                            oracle_outside(p->dst_base, p->bytes, p->dst_blocks, dst[start + j])));
      if (bad) {
        o->n = n;
        o->bytes = bytes;
        return false;
      }
      if (own)
        oracle_block(o, &open, p, src[j], dst[start + j]);
    }
  }
  return true;
}

/* ---- descriptor arrays between canaries ---- */
#define CANARY UINT64_C(0xfeedface0badcafe)
#define GUARD 8
struct guarded {
  struct rd2h_descs d;
  uint64_t *block[4];
};

static inline void guarded_init(struct guarded *g, uint32_t cap, bool region) {
  for (int i = 0; i < 4; i++) {
    g->block[i] = malloc((cap + 2 * GUARD) * sizeof(uint64_t));
    for (uint32_t k = 0; k < cap + 2 * GUARD; k++)
      g->block[i][k] = CANARY;
  }
  g->d = (struct rd2h_descs){.local = (void **)(void *)(g->block[0] + GUARD), .remote = g->block[1] + GUARD,
                             .len = g->block[2] + GUARD, .region = region ? (uint32_t *)(g->block[3] + GUARD) : NULL, .cap = cap};
}

/* Nothing but the first n descriptors was written. */
static inline bool guarded_intact(const struct guarded *g) {
  for (int i = 0; i < 3; i++)
    for (uint32_t k = 0; k < g->d.cap + 2 * GUARD; k++)
      if ((k < GUARD || k >= GUARD + g->d.n) && g->block[i][k] != CANARY)
        return false;
  const uint32_t *half = (const uint32_t *)g->block[3], canary[2] = {(uint32_t)CANARY, (uint32_t)(CANARY >> 32)};
  uint32_t used = g->d.region ? g->d.n : 0;
  for (uint32_t k = 0; k < 2 * (g->d.cap + 2 * GUARD); k++)
    if ((k < 2 * GUARD || k >= 2 * GUARD + used) && half[k] != canary[k % 2])
      return false;
  return true;
}

static inline void guarded_free(struct guarded *g) {
  for (int i = 0; i < 4; i++)
    free(g->block[i]);
}

static inline bool oracle_equal(const struct oracle *o, const struct rd2h_descs *d) {
  if (o->n != d->n || o->bytes != d->bytes)
    return false;
  for (uint32_t i = 0; i < d->n; i++)
    if (o->d[i].local != (uint64_t)(uintptr_t)d->local[i] || o->d[i].remote != d->remote[i] || o->d[i].len != d->len[i] ||
        (d->region && o->d[i].region != d->region[i]))
      return false;
  return true;
}
#endif
