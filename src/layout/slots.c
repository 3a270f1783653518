/* SPDX-License-Identifier: Apache-2.0 */
#include "layout/layout.h"

/* The tensors of a slot: the main ones, or the indexer and its scale. */
struct span {
  const struct rd2h_tensor *t;
  uint32_t n;
};

static struct span main_span(const struct rd2h_layer *l) {
  return (struct span){l->t, l->n_main};
}

static struct span indexer_span(const struct rd2h_layer *l) {
  return (struct span){l->t + l->n_main, l->has_indexer ? l->n - l->n_main : 0};
}

static bool same(struct span a, struct span b) {
  if (a.n != b.n)
    return false;
  for (uint32_t i = 0; i < a.n; i++)
    if (a.t[i].base != b.t[i].base)
      return false;
  return true;
}

/* The slot of an earlier layer with the same addresses, or a new one. */
static uint32_t slot_of(const struct rd2h_layer *layer, uint32_t i, bool indexer, uint32_t *n_slots) {
  struct span own = indexer ? indexer_span(&layer[i]) : main_span(&layer[i]);
  for (uint32_t j = 0; j < i; j++)
    if (same(own, indexer ? indexer_span(&layer[j]) : main_span(&layer[j])))
      return layer[j].slot[indexer];
  return (*n_slots)++;
}

uint32_t rd2h_layout_infer_slots(struct rd2h_layer *layer, uint32_t n) {
  uint32_t n_slots = 0;
  for (uint32_t i = 0; i < n; i++) {
    struct rd2h_layer *l = &layer[i];
    l->slot[0] = slot_of(layer, i, false, &n_slots);
    l->n_slots = 1;
    l->slot[1] = RD2H_NONE;
    if (l->has_indexer) {
      l->slot[1] = slot_of(layer, i, true, &n_slots);
      l->n_slots = 2;
    }
  }
  return n_slots;
}
