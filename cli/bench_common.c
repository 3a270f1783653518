/* SPDX-License-Identifier: Apache-2.0 */
#include "bench.h"
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const uint64_t bench_part_bytes[BENCH_PARTS] = {131072, 16384, 16384, 256};
const struct bench_pattern bench_patterns[BENCH_PATTERNS] = {{"scatter", 1}, {"runs8", 8}, {"contig", 0}};

const struct bench_pattern *bench_pattern(const char *what, const char *name) {
  for (int i = 0; i < BENCH_PATTERNS; i++)
    if (!strcmp(name, bench_patterns[i].name))
      return &bench_patterns[i];
  fprintf(stderr, "%s \"%s\": scatter, runs8 or contig is wanted\n", what, name);
  return NULL;
}

static uint64_t clock_ns(clockid_t id) {
  struct timespec t;
  clock_gettime(id, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t bench_now(void) {
  return clock_ns(CLOCK_MONOTONIC);
}

uint64_t bench_cpu(void) {
  return clock_ns(CLOCK_PROCESS_CPUTIME_ID);
}

static int by_value(const void *pa, const void *pb) {
  double a = *(const double *)pa, b = *(const double *)pb;
  return (a > b) - (a < b);
}

double bench_median(double *v, uint64_t n) {
  qsort(v, n, sizeof *v, by_value);
  return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

int bench_pin(uint32_t nth) {
  cpu_set_t may, one;
  int cpu = -1;
  if (sched_getaffinity(0, sizeof may, &may))
    return -1;
  for (int i = 0; i < CPU_SETSIZE; i++)
    if (CPU_ISSET(i, &may)) {
      cpu = i;
      if (!nth--)
        break;
    }
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  return sched_setaffinity(0, sizeof one, &one) ? -1 : cpu;
}

int bench_layout(uint64_t base, rd2h_layout **out, struct rd2h_error *err) {
  char name[BENCH_LAYERS][2][48];
  struct rd2h_kv_tensor t[BENCH_LAYERS * BENCH_PARTS];
  struct rd2h_layout_opts o = {.size = sizeof o, .num_blocks = BENCH_BLOCKS, .main_group = 0, .indexer_group = 1};
  uint32_t n = 0;
  for (uint32_t l = 0; l < BENCH_LAYERS; l++) {
    snprintf(name[l][0], sizeof name[l][0], "model.layers.%u.self_attn", l);
    snprintf(name[l][1], sizeof name[l][1], "model.layers.%u.self_attn.indexer", l);
    for (uint32_t p = 0; p < BENCH_PARTS; p++) {
      t[n++] = (struct rd2h_kv_tensor){.layer = name[l][p >= 2], .group = p >= 2, .base = base, .row_bytes = bench_part_bytes[p],
                                       .rows = BENCH_BLOCKS};
      base += bench_part_bytes[p] * BENCH_BLOCKS;
    }
  }
  return rd2h_layout_create(t, n, &o, out, err);
}

static uint64_t roll(uint64_t *state) {
  uint64_t z = *state += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

bool bench_ids(uint64_t seed, uint32_t cache, uint32_t requests, uint32_t blocks, const struct bench_pattern *pattern, uint32_t *out) {
  uint32_t n = requests * blocks, run = pattern->run ? pattern->run : n;
  uint32_t places = pattern->run ? cache / run : 1, *place = malloc(places * sizeof *place);
  uint32_t first = pattern->run ? 0 : (uint32_t)(roll(&seed) % (cache - n + 1));
  if (!place)
    return false;
  for (uint32_t i = 0; i < places; i++)
    place[i] = i;
  for (uint32_t i = 0; i < n; i++) {
    uint32_t k = i / run;
    if (i % run == 0) {
      uint32_t other = k + (uint32_t)(roll(&seed) % (places - k)), was = place[k];
      place[k] = place[other];
      place[other] = was;
    }
    out[i] = first + place[k] * run + i % run;
  }
  free(place);
  return true;
}
