/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/test_gen.h"
#include <stdlib.h>

void gen_start(struct gen *g, uint64_t seed) {
  g->state = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
  rd2h_arena_reset(&g->arena);
  if (rd2h_arena_reserve(&g->arena, 4u << 20))
    abort();
}

void gen_free(struct gen *g) {
  rd2h_arena_free(&g->arena);
}

uint64_t gen_u64(struct gen *g) {
  uint64_t z = g->state += UINT64_C(0x9e3779b97f4a7c15);
  z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
  return z ^ z >> 31;
}

uint32_t gen_below(struct gen *g, uint32_t end) {
  return (uint32_t)(gen_u64(g) % end);
}

uint64_t gen_number(struct gen *g, uint64_t max) {
  uint64_t v = gen_u64(g) >> gen_below(g, 64);
  return v <= max ? v : max - v % 3;
}

static void *room(struct gen *g, size_t n, size_t size) {
  void *p = rd2h_arena_alloc(&g->arena, n * size);
  if (!p)
    abort();
  return memset(p, 0, n * size);
}

struct rd2h_str gen_str(struct gen *g, uint32_t max) {
  static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789-._/ ";
  uint32_t n = gen_below(g, 8) ? gen_below(g, (max < 48 ? max : 48) + 1) : gen_below(g, max + 1);
  char *p = room(g, n + 1, 1);
  for (uint32_t i = 0; i < n; i++)
    p[i] = letters[gen_below(g, sizeof letters - 1)];
  for (uint32_t i = 0; i + 2 <= n && !gen_below(g, 3); i += 2)
    memcpy(p + i, "\xc3\xa9", 2);
  return (struct rd2h_str){p, n};
}

static void gen_attempt(struct gen *g, bool *has, uint8_t attempt[RD2H_ATTEMPT]) {
  uint64_t v[2] = {gen_u64(g), gen_u64(g)};
  *has = gen_below(g, 2);
  if (*has)
    memcpy(attempt, v, RD2H_ATTEMPT);
}

void gen_ext(struct gen *g, struct rd2h_wire_ext *e) {
  uint64_t inc[2] = {gen_u64(g), gen_u64(g)};
  *e = (struct rd2h_wire_ext){.present = true, .revision = 1 + (uint32_t)gen_number(g, 100), .caps = (uint32_t)gen_u64(g)};
  memcpy(e->incarnation, inc, sizeof inc);
  e->live_ms = (uint32_t)gen_number(g, UINT32_MAX);
  e->n_engines = gen_below(g, RD2H_WIRE_MAX_ENGINES + 1);
  for (uint32_t i = 0; i < e->n_engines; i++) {
    e->engine[i].name = gen_str(g, 20);
    e->engine[i].conn_len = (uint32_t)gen_number(g, 400);
    e->engine[i].conn = room(g, e->engine[i].conn_len + 1, 1);
  }
  e->n_regions = (uint32_t)gen_number(g, 60);
  struct rd2h_memory *region = room(g, e->n_regions + 1, sizeof *region);
  for (uint32_t i = 0; i < e->n_regions; i++)
    region[i] = (struct rd2h_memory){gen_number(g, UINT64_MAX / 2), gen_number(g, UINT64_MAX / 2)};
  e->region = region;
  for (int i = 0; i < 2; i++)
    e->blocks[i] = (uint32_t)gen_number(g, INT32_MAX);
  if (gen_below(g, 2)) {
    e->heads[0] = gen_below(g, 100);
    e->heads[1] = gen_below(g, 100);
    e->heads[2] = e->heads[0] + e->heads[1] + 1 + gen_below(g, 50);
  }
  e->fingerprint = gen_str(g, RD2H_WIRE_MAX_NAME);
}

static uint64_t *u64s(struct gen *g, uint32_t n) {
  uint64_t *v = room(g, n + 1, sizeof *v);
  for (uint32_t i = 0; i < n; i++)
    v[i] = gen_number(g, UINT64_MAX);
  return v;
}

static void gen_layer(struct gen *g, struct rd2h_wire_layer *l, uint32_t i) {
  struct rd2h_str tail = gen_str(g, RD2H_WIRE_MAX_NAME - 6);
  char *name = room(g, tail.n + 6, 1);
  for (uint32_t k = 0; k < 6; k++)
    name[k] = (char)('0' + i / (uint32_t[]){100000, 10000, 1000, 100, 10, 1}[k] % 10); /* names must differ */
  memcpy(name + 6, tail.p, tail.n);
  l->name = (struct rd2h_str){name, tail.n + 6};
  l->n_addrs = gen_below(g, 6);
  l->n_lens = gen_below(g, 6);
  l->n_scales = gen_below(g, 6);
  l->n_groups = gen_below(g, 20) ? gen_below(g, 6) : RD2H_WIRE_MAX_TENSORS;
  l->addr = u64s(g, l->n_addrs);
  l->len = u64s(g, l->n_lens);
  l->scale = u64s(g, l->n_scales);
  l->group = (const int64_t *)u64s(g, l->n_groups);
  l->main_count = gen_below(g, 5);
  l->has_indexer = gen_below(g, 2);
}

void gen_meta(struct gen *g, struct rd2h_wire_meta *m) {
  *m = (struct rd2h_wire_meta){.session = gen_str(g, RD2H_WIRE_MAX_NAME), .fields = gen_below(g, 2) ? 3 : 6, .pp_size = 1};
  if (m->fields == 6) {
    m->version = gen_below(g, 3);
    m->pp_size = 1 + (uint32_t)gen_number(g, RD2H_WIRE_MAX_RATIO - 1);
    m->pp_rank = gen_below(g, m->pp_size);
  }
  m->n_layers = (uint32_t)gen_number(g, 80);
  struct rd2h_wire_layer *layer = room(g, m->n_layers + 1, sizeof *layer);
  for (uint32_t i = 0; i < m->n_layers; i++)
    gen_layer(g, &layer[i], i);
  m->layer = layer;
  if (m->n_layers && gen_below(g, 2))
    gen_ext(g, &m->ext);
}

static uint32_t *ids(struct gen *g, uint32_t *n) {
  *n = (uint32_t)gen_number(g, 300);
  uint32_t *v = room(g, *n + 1, sizeof *v);
  for (uint32_t i = 0; i < *n; i++)
    v[i] = (uint32_t)gen_number(g, INT32_MAX);
  return v;
}

void gen_ready(struct gen *g, struct rd2h_wire_ready *m) {
  *m = (struct rd2h_wire_ready){.layer_idx = (uint32_t)gen_number(g, INT32_MAX), .layer = gen_str(g, RD2H_WIRE_MAX_NAME)};
  m->n_reqs = (uint32_t)gen_number(g, 40);
  m->req = room(g, m->n_reqs + 1, sizeof *m->req);
  for (uint32_t i = 0; i < m->n_reqs; i++) {
    struct rd2h_wire_req *q = &m->req[i];
    q->id = gen_str(g, RD2H_WIRE_MAX_ID);
    q->main = ids(g, &q->n_main);
    q->indexer = ids(g, &q->n_indexer);
    q->main_start = (uint32_t)gen_number(g, INT32_MAX - q->n_main);
    q->indexer_start = (uint32_t)gen_number(g, INT32_MAX - q->n_indexer);
    gen_attempt(g, &q->has_attempt, q->attempt);
  }
  m->n_done = (uint32_t)gen_number(g, 40);
  m->done = room(g, m->n_done + 1, sizeof *m->done);
  for (uint32_t i = 0; i < m->n_done; i++) {
    m->done[i].id = gen_str(g, RD2H_WIRE_MAX_ID);
    gen_attempt(g, &m->done[i].has_attempt, m->done[i].attempt);
  }
  m->member = (uint32_t)gen_number(g, RD2H_WIRE_MAX_RATIO - 1);
  m->ratio = 1 + (uint32_t)gen_number(g, RD2H_WIRE_MAX_RATIO - 1);
  m->has_seq = gen_below(g, 2);
  m->seq = m->has_seq ? gen_number(g, UINT64_MAX) : 0;
  if (gen_below(g, 2)) {
    m->digests = gen_str(g, 400);
    m->digests.n &= ~3u;
  }
}

void gen_cancel(struct gen *g, struct rd2h_wire_cancel *m) {
  *m = (struct rd2h_wire_cancel){.id = gen_str(g, RD2H_WIRE_MAX_ID), .status = (int)gen_u64(g), .text = gen_str(g, 200)};
  gen_attempt(g, &m->has_attempt, m->attempt);
}

struct rd2h_wire_req *gen_outcomes(struct gen *g, uint32_t n) {
  struct rd2h_wire_req *q = room(g, n + 1, sizeof *q);
  for (uint32_t i = 0; i < n; i++)
    q[i].status = gen_below(g, 2) ? 0 : (int)gen_u64(g) >> gen_below(g, 32);
  return q;
}
