/* SPDX-License-Identifier: Apache-2.0 */
/* Every byte of a Decode engine's memory: what was pulled against what it must be, all else against what it was painted with. The
 * ranks of an engine share the pool out by layer; each looks through its own indexers. */
#include "demo.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD_BYTE 0xa5

struct owner {
  uint32_t request, place;
};

static bool responsible(const struct demo *d, const struct demo_rank *r, uint32_t layer, uint32_t part) {
  return part >= DEMO_MAIN_PARTS || layer % d->d_tp == r->tp;
}

/* Every block starts as one that nobody has written: what is left of that afterwards shows that nothing else was touched. */
void demo_paint(const struct demo_memory *m, const struct demo_rank *r) {
  const struct demo *d = m->d;
  for (uint32_t l = 0; l < d->layers && !demo_stopped(d); l++)
    for (uint32_t p = 0; p < DEMO_PARTS; p++)
      for (uint32_t b = 0; responsible(d, r, l, p) && demo_block(m, l, p, 0) && b < d->d_blocks; b++)
        demo_fill(d, demo_block(m, l, p, b), DEMO_NOBODY, l, p, b);
  memset(m->map, GUARD_BYTE, DEMO_GUARD);
  memset(m->map + m->bytes - DEMO_GUARD, GUARD_BYTE, DEMO_GUARD);
}

static void check_fill(struct demo_rank *r, const uint8_t *p, const uint8_t *end, uint8_t value) {
  bool bad = false;
  r->checked += (uint64_t)(end - p);
  for (; p < end; p++)
    bad |= *p != value;
  r->disturbed += bad;
}

/* Bytes between two arrays of the pool belong to nobody. */
static void check_gap(const struct demo_memory *m, struct demo_rank *r, uint32_t layer, uint32_t part) {
  const uint8_t *end = (const uint8_t *)(uintptr_t)(m->area[0].base + m->area[0].len);
  if (part + 1 < DEMO_MAIN_PARTS)
    end = demo_block(m, layer, part + 1, 0);
  else if (layer + 1 < m->d->layers)
    end = demo_block(m, layer + 1, 0, 0);
  check_fill(r, demo_block(m, layer, part, m->d->d_blocks), end, 0);
}

static void check_tensor(const struct demo_memory *m, struct demo_rank *r, const struct owner *own, uint32_t layer, uint32_t part) {
  const struct demo *d = m->d;
  for (uint32_t b = 0; b < d->d_blocks; b++) {
    const struct owner *o = &own[b];
    uint64_t bad = demo_differ(d, demo_block(m, layer, part, b), o->request, layer, part, o->request == DEMO_NOBODY ? b : o->place);
    r->checked += d->part_bytes[part];
    if (o->request == DEMO_NOBODY)
      r->disturbed += bad != 0;
    else
      r->wrong += bad;
  }
  if (part < DEMO_MAIN_PARTS)
    check_gap(m, r, layer, part);
}

static void owners(const struct demo *d, uint32_t engine, uint32_t group, struct owner *own) {
  for (uint32_t b = 0; b < d->d_blocks; b++)
    own[b] = (struct owner){DEMO_NOBODY, 0};
  for (uint32_t i = 0; i < d->n_requests; i++)
    for (uint32_t k = d->request[i].cached; d->request[i].to == engine && k < d->request[i].blocks; k++)
      own[d->request[i].target[group][k]] = (struct owner){i, k};
}

int demo_verify(const struct demo_memory *m, struct demo_rank *r, struct rd2h_error *err) {
  const struct demo *d = m->d;
  struct owner *own = malloc(d->d_blocks * sizeof *own);
  if (!own)
    return RD2H_NOMEM;
  for (uint32_t p = 0; p < DEMO_PARTS; p++) {
    owners(d, r->engine, p / DEMO_MAIN_PARTS, own);
    for (uint32_t l = 0; l < d->layers && !demo_stopped(d); l++)
      if (responsible(d, r, l, p) && demo_block(m, l, p, 0))
        check_tensor(m, r, own, l, p);
  }
  free(own);
  check_fill(r, m->map, m->map + DEMO_GUARD, GUARD_BYTE);
  check_fill(r, m->map + m->bytes - DEMO_GUARD, m->map + m->bytes, GUARD_BYTE);
  if (!r->wrong && !r->disturbed)
    return RD2H_OK;
  snprintf(err->text, sizeof err->text, "%llu bytes are wrong and %llu blocks that nobody may write have changed",
           (unsigned long long)r->wrong, (unsigned long long)r->disturbed);
  return RD2H_INTERNAL;
}
