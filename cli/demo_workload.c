/* SPDX-License-Identifier: Apache-2.0 */
/* What the demonstration moves: prompts, block tables and the bytes in every block, all from one seed. */
#include "demo.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

const char *const demo_part_name[DEMO_PARTS] = {"K", "V", "indexer", "scale"};

uint64_t demo_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int demo_fail(struct demo_result *r, const char *what, const char *why) {
  r->failed = true;
  snprintf(r->text, sizeof r->text, "%s: %s", what, why);
  return 1;
}

bool demo_wait(sem_t *s) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  t.tv_sec += DEMO_WAIT_MS / 1000;
  while (sem_timedwait(s, &t))
    if (errno != EINTR)
      return false;
  return true;
}

static uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

static uint64_t next(uint64_t *state) {
  return mix(*state += 0x9e3779b97f4a7c15u);
}

/* ---- prompts and block tables ---- */
/* All block ids of a side in random order: requests take theirs from the front, the rest belongs to nobody. */
static uint32_t *shuffled(uint32_t n, uint64_t *state) {
  uint32_t *ids = malloc(n * sizeof *ids);
  for (uint32_t i = 0; ids && i < n; i++) {
    uint32_t at = (uint32_t)(next(state) % (i + 1));
    ids[i] = ids[at];
    ids[at] = i;
  }
  return ids;
}

static void describe(struct demo *d, uint32_t i, uint64_t *state) {
  struct demo_request *r = &d->request[i];
  uint32_t spread = d->prompt_tokens / 2;
  r->tokens = d->prompt_tokens - spread / 2 + (uint32_t)(next(state) % (spread + 1));
  r->blocks = (r->tokens + DEMO_BLOCK_TOKENS - 1) / DEMO_BLOCK_TOKENS;
  r->cached = i % 3 == 1 ? r->blocks / 4 : 0; /* every third prompt shares a prefix that Decode has seen */
  snprintf(r->ext_id, sizeof r->ext_id, "cmpl-demo-%u", i);
  snprintf(r->id, sizeof r->id, "cmpl-demo-%u-%08x", i, (uint32_t)next(state));
  for (uint32_t k = 0; k < sizeof r->attempt; k++)
    r->attempt[k] = (uint8_t)next(state);
}

static void count_oracle(struct demo *d) {
  for (uint32_t p = 0; p < DEMO_PARTS; p++)
    for (uint32_t i = 0; i < d->n_requests; i++)
      d->oracle[p] += (uint64_t)(d->request[i].blocks - d->request[i].cached) * d->part_bytes[p] * d->layers;
}

bool demo_workload(struct demo *d) {
  uint64_t state = d->seed;
  uint32_t total = 0;
  d->part_bytes[0] = 131072;
  d->part_bytes[1] = 16384;
  d->part_bytes[2] = d->lic8 ? 16384 : 32768;
  d->part_bytes[3] = d->lic8 ? 256 : 0;
  for (uint32_t i = 0; i < d->n_requests; i++) {
    describe(d, i, &state);
    total += d->request[i].blocks;
  }
  d->num_blocks = total + total / 8 + 4;
  uint32_t *source = shuffled(d->num_blocks, &state), *target = shuffled(d->num_blocks, &state);
  if (!source || !target) {
    free(source);
    free(target);
    return false;
  }
  for (uint32_t i = 0, at = 0; i < d->n_requests; at += d->request[i++].blocks) {
    d->request[i].source = source + at;
    d->request[i].target = target + at;
  }
  count_oracle(d);
  return true;
}

void demo_workload_free(struct demo *d) {
  if (d->n_requests) {
    free(d->request[0].source);
    free(d->request[0].target);
  }
}

uint64_t demo_total(const uint64_t part[DEMO_PARTS]) {
  uint64_t n = 0;
  for (uint32_t p = 0; p < DEMO_PARTS; p++)
    n += part[p];
  return n;
}

/* ---- memory ---- */
static size_t tensor_at(const struct demo *d, uint32_t layer, uint32_t part) {
  size_t layer_bytes = (size_t)demo_total(d->part_bytes) * d->num_blocks, at = layer * layer_bytes;
  for (uint32_t p = 0; p < part; p++)
    at += (size_t)d->part_bytes[p] * d->num_blocks;
  return at;
}

uint8_t *demo_block(const struct demo *d, const struct demo_memory *m, uint32_t layer, uint32_t part, uint32_t block) {
  return m->base + tensor_at(d, layer, part) + (size_t)block * d->part_bytes[part];
}

static int make_layout(const struct demo *d, struct demo_memory *m, struct rd2h_error *err) {
  static char name[DEMO_MAX_LAYERS][2][48];
  static struct rd2h_kv_tensor t[DEMO_MAX_LAYERS * DEMO_PARTS];
  struct rd2h_layout_opts o = {.size = sizeof o, .num_blocks = d->num_blocks, .main_group = 0, .indexer_group = 1};
  uint32_t n = 0;
  for (uint32_t l = 0; l < d->layers; l++) {
    snprintf(name[l][0], sizeof name[l][0], "model.layers.%u.self_attn", l);
    snprintf(name[l][1], sizeof name[l][1], "model.layers.%u.self_attn.indexer", l);
    for (uint32_t p = 0; p < DEMO_PARTS; p++)
      if (d->part_bytes[p])
        t[n++] = (struct rd2h_kv_tensor){.layer = name[l][p >= 2], .group = p >= 2, .row_bytes = d->part_bytes[p], .rows = d->num_blocks,
                                         .base = (uintptr_t)demo_block(d, m, l, p, 0)};
  }
  return rd2h_layout_create(t, n, &o, &m->layout, err);
}

bool demo_memory_open(const struct demo *d, struct demo_memory *m, struct rd2h_error *err) {
  m->bytes = tensor_at(d, d->layers, 0);
  m->base = mmap(NULL, m->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  m->layout = NULL;
  if (m->base == MAP_FAILED) {
    m->base = NULL;
    snprintf(err->text, sizeof err->text, "%zu MiB of memory: %s; use fewer layers, requests or tokens", m->bytes >> 20, strerror(errno));
    return false;
  }
  madvise(m->base, m->bytes, MADV_HUGEPAGE);
  return make_layout(d, m, err) == RD2H_OK;
}

void demo_memory_close(struct demo_memory *m) {
  rd2h_layout_destroy(m->layout);
  if (m->base)
    munmap(m->base, m->bytes);
}

/* ---- content ---- */
static uint64_t first_word(const struct demo *d, uint32_t request, uint32_t layer, uint32_t part, uint32_t place) {
  return mix(d->seed + ((uint64_t)request << 48 ^ (uint64_t)layer << 36 ^ (uint64_t)part << 32 ^ place));
}

void demo_fill(const struct demo *d, uint8_t *block, uint32_t request, uint32_t layer, uint32_t part, uint32_t place) {
  uint64_t *w = (uint64_t *)(void *)block, x = first_word(d, request, layer, part, place);
  for (size_t i = 0; i < d->part_bytes[part] / sizeof *w; i++)
    w[i] = x + i * 0x9e3779b97f4a7c15u;
}

uint64_t demo_differ(const struct demo *d, const uint8_t *block, uint32_t request, uint32_t layer, uint32_t part, uint32_t place) {
  const uint64_t *w = (const uint64_t *)(const void *)block;
  uint64_t x = first_word(d, request, layer, part, place), bad = 0;
  for (size_t i = 0; i < d->part_bytes[part] / sizeof *w; i++)
    bad += w[i] != x + i * 0x9e3779b97f4a7c15u;
  return bad * sizeof *w;
}
