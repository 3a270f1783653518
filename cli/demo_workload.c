/* SPDX-License-Identifier: Apache-2.0 */
/* What the demonstration moves: prompts, block tables and the bytes in every block, all from one seed. */
#include "demo.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const demo_part_name[DEMO_PARTS] = {"K", "V", "indexer", "scale"};

const struct demo_model demo_models[] = {
    {"deepseek-v3.2", "DeepSeek-V3.2", NULL, 61, 1},
    {"glm-5", "GLM-5", "block shapes of DeepSeek-V3.2, 78 layers, an indexer in one layer of four", 78, 4},
    {0}};

static uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

uint64_t demo_random(uint64_t *state) {
  return mix(*state += 0x9e3779b97f4a7c15u);
}

uint64_t demo_total(const uint64_t part[DEMO_PARTS]) {
  uint64_t n = 0;
  for (uint32_t p = 0; p < DEMO_PARTS; p++)
    n += part[p];
  return n;
}

bool demo_has_indexer(const struct demo *d, uint32_t layer) {
  return layer % d->model->indexer_every == 0;
}

void demo_stage(const struct demo *d, uint32_t pp, uint32_t *first, uint32_t *end) {
  *first = d->layers * pp / d->p_pp;
  *end = d->layers * (pp + 1) / d->p_pp;
}

/* ---- prompts ---- */
static void describe(struct demo *d, uint32_t i, uint64_t *state) {
  struct demo_request *r = &d->request[i];
  uint32_t spread = d->prompt_tokens / 2;
  r->tokens = d->prompt_tokens - spread / 2 + (uint32_t)(demo_random(state) % (spread + 1));
  r->blocks = (r->tokens + d->block_tokens - 1) / d->block_tokens;
  uint32_t whole = (r->tokens - 1) / d->block_tokens; /* at least one token is computed */
  r->cached = i % 3 == 1 ? (uint32_t)(demo_random(state) % (r->blocks / 2 + 1)) : 0;
  r->hit = i % 3 == 2 ? (uint32_t)(demo_random(state) % (whole / 2 + 1)) : 0;
  r->from = i < d->p_engines ? i : (uint32_t)(demo_random(state) % d->p_engines); /* every engine gets work, if there is enough */
  r->to = i < d->d_engines ? i : (uint32_t)(demo_random(state) % d->d_engines);
  snprintf(r->ext_id, sizeof r->ext_id, "cmpl-demo-%u", i);
  snprintf(r->id, sizeof r->id, "cmpl-demo-%u-%08x", i, (uint32_t)demo_random(state));
  for (uint32_t k = 0; k < sizeof r->attempt; k++)
    r->attempt[k] = (uint8_t)demo_random(state);
}

/* ---- block tables ---- */
/* All block ids of an engine in random order: requests take theirs from the front, the rest belongs to nobody. */
static uint32_t *shuffled(uint32_t n, uint64_t *state) {
  uint32_t *ids = malloc(n * sizeof *ids);
  for (uint32_t i = 0; ids && i < n; i++) {
    uint32_t at = (uint32_t)(demo_random(state) % (i + 1));
    ids[i] = ids[at];
    ids[at] = i;
  }
  return ids;
}

/* Blocks that every engine of a side has: what the busiest one needs, and some more. */
static uint32_t blocks_of(const struct demo *d, bool prefill) {
  uint32_t n[DEMO_MAX_ENGINES] = {0}, most = 0;
  for (uint32_t i = 0; i < d->n_requests; i++) {
    uint32_t e = prefill ? d->request[i].from : d->request[i].to;
    n[e] += d->request[i].blocks;
    most = n[e] > most ? n[e] : most;
  }
  return most + most / 8 + 4;
}

static bool deal(struct demo *d, bool prefill, uint32_t engine, uint32_t group, uint64_t *state) {
  uint32_t *ids = shuffled(prefill ? d->p_blocks : d->d_blocks, state);
  for (uint32_t i = 0, at = 0; ids && i < d->n_requests; i++) {
    struct demo_request *r = &d->request[i];
    if ((prefill ? r->from : r->to) != engine)
      continue;
    uint32_t **list = prefill ? &r->source[group] : &r->target[group];
    *list = malloc(r->blocks * sizeof **list);
    if (!*list) {
      free(ids);
      return false;
    }
    memcpy(*list, ids + at, r->blocks * sizeof **list);
    at += r->blocks;
  }
  free(ids);
  return ids != NULL;
}

static bool block_tables(struct demo *d, uint64_t *state) {
  d->p_blocks = blocks_of(d, true);
  d->d_blocks = blocks_of(d, false);
  for (uint32_t g = 0; g < DEMO_GROUPS; g++) {
    for (uint32_t e = 0; e < d->p_engines; e++)
      if (!deal(d, true, e, g, state))
        return false;
    for (uint32_t e = 0; e < d->d_engines; e++)
      if (!deal(d, false, e, g, state))
        return false;
  }
  return true;
}

/* Main KV goes to a Decode engine once, indexer and scale to each of its ranks. */
static void count_oracle(struct demo *d) {
  for (uint32_t i = 0; i < d->n_requests; i++) {
    uint64_t blocks = d->request[i].blocks - d->request[i].cached;
    for (uint32_t p = 0; p < DEMO_PARTS; p++)
      d->oracle[p] += blocks * d->part_bytes[p] * (p < DEMO_MAIN_PARTS ? d->layers : (uint64_t)d->indexer_layers * d->d_tp);
  }
}

bool demo_workload(struct demo *d) {
  uint64_t state = d->seed;
  d->part_bytes[0] = 1024ull * d->block_tokens; /* bf16: 512 of the latent, 64 rotary */
  d->part_bytes[1] = 128ull * d->block_tokens;
  d->part_bytes[2] = (d->lic8 ? 128ull : 256ull) * d->block_tokens;
  d->part_bytes[3] = d->lic8 ? 2ull * d->block_tokens : 0;
  for (uint32_t l = 0; l < d->layers; l++)
    d->indexer_layers += demo_has_indexer(d, l);
  for (uint32_t i = 0; i < d->n_requests; i++)
    describe(d, i, &state);
  if (!block_tables(d, &state))
    return false;
  count_oracle(d);
  return true;
}

void demo_workload_free(struct demo *d) {
  for (uint32_t i = 0; i < d->n_requests; i++)
    for (uint32_t g = 0; g < DEMO_GROUPS; g++) {
      free(d->request[i].source[g]);
      free(d->request[i].target[g]);
    }
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
