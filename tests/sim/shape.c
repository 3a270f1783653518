/* SPDX-License-Identifier: Apache-2.0 */
/* What a world consists of: engines, ranks, cache layout, which peers are of the older protocol, how bad its engine is. */
#include "sim.h"
#include <stdio.h>

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

/* Who is of the older protocol: nobody, all of a side, or one of a side's two engines. Two of them never meet. */
struct legacy {
  bool p[MAX_ENGINES], d[MAX_ENGINES], any_p, any, version;
};

static struct legacy shape_legacy(struct world *w, uint32_t kind) {
  struct legacy x = {.version = rng_chance(&w->rng, 500)};
  bool both = kind < 30 || rng_chance(&w->rng, 500);
  uint32_t one = rng_below(&w->rng, 2);
  if (kind >= 30 && kind < 40) /* mixed */
    w->c.n_p = w->c.n_d = 2;
  for (uint32_t i = 0; i < MAX_ENGINES; i++) {
    bool in_mix = kind >= 30 && kind < 40 && i == one;
    x.p[i] = kind < 15 || (in_mix && both);
    x.d[i] = (kind >= 15 && kind < 30) || (in_mix && !both);
    x.any_p |= x.p[i];
    x.any |= x.p[i] || x.d[i];
  }
  return x;
}

static void shape_decode(struct world *w, uint32_t i, const struct legacy *old, bool heads) {
  w->d[i] = (struct dengine){.w = w, .no = i, .tp = 1 + rng_below(&w->rng, heads ? 2 : MAX_TP),
                             .version = old->d[i] ? old->version : 1, .legacy = old->d[i]};
  if (old->any_p) /* its reference asks for a Prefill that divides */
    w->d[i].tp = 1u << rng_below(&w->rng, 2);
}

static void shape_prefill(struct world *w, uint32_t i, const struct legacy *old, bool heads, uint32_t pp) {
  struct rng *r = &w->rng;
  struct pengine *pe = &w->p[i];
  *pe = (struct pengine){.w = w, .no = i, .tp = 1 + rng_below(r, MAX_TP), .pp = pp, .version = old->p[i] ? old->version : 1,
                         .legacy = old->p[i]};
  if (pe->legacy)
    pe->tp = 2u << rng_below(r, 2);
  if (heads)
    pe->tp = w->d[0].tp * (1 + rng_below(r, MAX_TP / w->d[0].tp));
  bool ring = rng_chance(r, 500);
  for (uint32_t comp = 0; comp < N_COMP; comp++)
    pe->n_slots[comp] = ring ? 1 + rng_below(r, w->c.stage_layers) : w->c.stage_layers;
}

bool any_legacy_prefill(const struct world *w) {
  bool any = false;
  for (uint32_t i = 0; i < w->c.n_p; i++)
    any |= w->p[i].legacy;
  return any;
}

/* What the minimiser leaves out of the shape. */
static void cut_shape(struct world *w) {
  if (w->cut.off & OFF_SECOND_P)
    w->c.n_p = 1;
  if (w->cut.off & OFF_SECOND_D)
    w->c.n_d = 1;
  for (uint32_t i = 0; i < MAX_ENGINES && w->cut.off & OFF_RANKS && !w->c.heads; i++) {
    w->d[i].tp = 1;
    w->p[i].tp = w->p[i].legacy ? 2 : 1;
  }
}

static void shape_engines(struct world *w) {
  struct sim_cfg *c = &w->c;
  struct rng *r = &w->rng;
  uint32_t kind = rng_below(r, 100);
  bool heads = kind >= 92;
  c->n_p = rng_chance(r, 300) ? 2 : 1;
  c->n_d = !heads && rng_chance(r, 400) ? 2 : 1;
  struct legacy old = shape_legacy(w, kind);
  uint32_t pp = old.any && !old.version ? 1 : rng_chance(r, 250) ? 2 : 1;
  c->stage_layers = 1 + rng_below(r, 3);
  c->layers = c->stage_layers * pp;
  shape_cache(w, heads);
  for (uint32_t i = 0; i < c->n_d; i++)
    shape_decode(w, i, &old, heads);
  for (uint32_t i = 0; i < c->n_p; i++)
    shape_prefill(w, i, &old, heads, pp);
  cut_shape(w);
  w->tally.worlds = 1;
  w->tally.legacy = old.any;
  w->tally.mixed = kind >= 30 && kind < 40;
}

void world_build(struct world *w) {
  shape_engines(w);
  w->c.faults = rng_chance(&w->rng, 700);
  if (w->c.faults) {
    w->c.fail_permille = rng_chance(&w->rng, 300) ? 20 : 0;
    w->c.hang_permille = rng_chance(&w->rng, 150) ? 10 : 0;
    w->c.slow_permille = rng_chance(&w->rng, 200) ? 30 : 0;
  }
  w->c.threads = rng_chance(&w->rng, 300) ? 2 + rng_below(&w->rng, 2) : 0;
  if (w->cut.off & OFF_READ_FAULTS)
    w->c.fail_permille = w->c.hang_permille = w->c.slow_permille = 0;
  w->tally.faulty = w->c.faults;
  w->tally.blocking = w->c.threads > 0;
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

const char *world_describe(struct world *w, char *buf, size_t n) {
  char p[120] = "", d[64] = "";
  for (uint32_t i = 0; i < w->c.n_p; i++)
    snprintf(p + strlen(p), sizeof p - strlen(p), "%s tp %u x pp %u, slots %u/%u;", w->p[i].legacy ? " (legacy)" : "",
             w->p[i].tp, w->p[i].pp, w->p[i].n_slots[0], w->p[i].n_slots[1]);
  for (uint32_t i = 0; i < w->c.n_d; i++)
    snprintf(d + strlen(d), sizeof d - strlen(d), "%s tp %u;", w->d[i].legacy ? " (legacy)" : "", w->d[i].tp);
  snprintf(buf, n, "Prefill%s Decode%s %u layers%s%s%s%s, blocks of %u/%u tokens%s%s", p, d, w->c.layers,
           w->c.indexer ? ", indexer" : "", w->c.scale ? ", scale" : "",
           w->c.heads ? ", heads" : "", w->c.pooled ? ", pooled main" : "", w->c.bs[0], w->c.bs[1],
           w->c.threads ? ", an engine that blocks" : "", w->c.faults ? ", faults" : "");
  return buf;
}
