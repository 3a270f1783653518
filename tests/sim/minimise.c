/* SPDX-License-Identifier: Apache-2.0 */
/* A failing seed with everything left out that its failure does not need: users, faults, kinds of trouble, peers, ranks. What is
 * left out changes the order of the rest, so each try is made with a few orders of what was not scheduled. */
#include "sim.h"
#include <stdio.h>

#define ORDERS 12u

static bool fails(struct world *w, uint64_t seed, enum sim_mutation mut, struct sim_cut *cut, const char *rule) {
  uint32_t was = cut->noise;
  for (uint32_t i = 0; i < ORDERS; i++) {
    cut->noise = i ? i : was;
    world_run(w, seed, mut, cut, SILENT);
    bool same = w->failed && !strncmp(w->failure, rule, strlen(rule));
    world_free(w);
    if (same)
      return true;
  }
  cut->noise = was;
  return false;
}

static bool try_bits(struct world *w, uint64_t seed, enum sim_mutation mut, struct sim_cut *best, size_t field, uint32_t end,
                     const char *rule) {
  bool better = false;
  for (uint32_t bit = 1; bit && bit < end; bit <<= 1) {
    struct sim_cut cut = *best;
    uint32_t *bits = (uint32_t *)((char *)&cut + field);
    if (*bits & bit)
      continue;
    *bits |= bit;
    if (!fails(w, seed, mut, &cut, rule))
      continue;
    *best = cut;
    better = true;
  }
  return better;
}

void minimise(struct world *w, uint64_t seed, enum sim_mutation mut, const struct sim_cut *start) {
  struct sim_cut best = *start;
  char rule[16], text[400];
  world_run(w, seed, mut, &best, SILENT);
  if (!w->failed) {
    printf("# it does not fail again\n");
    world_free(w);
    return;
  }
  snprintf(rule, sizeof rule, "%.*s ", (int)strcspn(w->failure, " "), w->failure);
  world_free(w);
  for (bool better = true; better;) {
    better = try_bits(w, seed, mut, &best, offsetof(struct sim_cut, users), 1u << 14, rule);
    better |= try_bits(w, seed, mut, &best, offsetof(struct sim_cut, faults), 1u << 5, rule);
    better |= try_bits(w, seed, mut, &best, offsetof(struct sim_cut, off), OFF_END, rule);
  }
  printf("# the least of it that still fails:\n");
  world_run(w, seed, mut, &best, STORY);
  printf("#   %s\n#   %s\n", world_describe(w, text, sizeof text), w->failure);
  print_again(w, mut);
  world_free(w);
}
