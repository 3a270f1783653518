/* SPDX-License-Identifier: Apache-2.0 */
/* Where a rank's KV lies: Prefill has storage slots that layers may share, Decode the pool of its engine and indexers of its own. */
#include "demo.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

/* ---- sizes ---- */
static uint64_t tensor_bytes(const struct demo_memory *m, uint32_t part) {
  uint64_t wide = m->prefill && m->d->mismatch == DEMO_OTHER_INDEXER && part == DEMO_MAIN_PARTS ? 2 : 1;
  return m->d->part_bytes[part] * wide * (m->prefill ? m->d->p_blocks : m->d->d_blocks);
}

static uint64_t side_bytes(const struct demo_memory *m, bool indexer) {
  uint32_t p = indexer ? DEMO_MAIN_PARTS : 0;
  return tensor_bytes(m, p) + tensor_bytes(m, p + 1);
}

static uint32_t indexers_before(const struct demo_memory *m, uint32_t layer) {
  uint32_t n = 0;
  for (uint32_t l = m->first; l < layer; l++)
    n += demo_has_indexer(m->d, l);
  return n;
}

/* The first ones keep storage of their own, the others take turns. */
static uint32_t slot_of(const struct demo *d, uint32_t nth) {
  return d->reuse && nth >= d->independent ? d->independent + (nth - d->independent) % d->reuse : nth;
}

static uint32_t slots(const struct demo *d, uint32_t n) {
  return d->reuse && n > d->independent + d->reuse ? d->independent + d->reuse : n;
}

uint32_t demo_slot(const struct demo_memory *m, uint32_t layer, uint32_t part) {
  return slot_of(m->d, part < DEMO_MAIN_PARTS ? layer - m->first : indexers_before(m, layer));
}

/* ---- addresses ---- */
static uint8_t *tensor(const struct demo_memory *m, uint32_t layer, uint32_t part) {
  bool indexer = part >= DEMO_MAIN_PARTS;
  uint64_t within = part % 2 ? tensor_bytes(m, part - 1) : 0;
  if (!m->d->part_bytes[part] || (indexer && !demo_has_indexer(m->d, layer)))
    return NULL;
  if (!m->prefill && !indexer)
    return rd2h_pool_array(m->pool, layer, part);
  if (!m->prefill)
    return m->map + DEMO_GUARD + indexers_before(m, layer) * side_bytes(m, true) + within;
  uint64_t main_bytes = indexer ? slots(m->d, m->end - m->first) * side_bytes(m, false) : 0;
  return m->map + main_bytes + demo_slot(m, layer, part) * side_bytes(m, indexer) + within;
}

uint8_t *demo_block(const struct demo_memory *m, uint32_t layer, uint32_t part, uint32_t block) {
  uint8_t *t = tensor(m, layer, part);
  return t ? t + m->d->part_bytes[part] * block : NULL;
}

uint32_t demo_part_of(const struct demo_memory *m, const void *p) {
  uint64_t at = (uintptr_t)p;
  if (at - m->area[0].base < m->area[0].len) {
    uint64_t v = (uint64_t)((uint8_t *)rd2h_pool_array(m->pool, 0, 1) - (uint8_t *)rd2h_pool_array(m->pool, 0, 0));
    uint64_t layer = m->d->layers > 1 ? (uint64_t)((uint8_t *)rd2h_pool_array(m->pool, 1, 0) - (uint8_t *)rd2h_pool_array(m->pool, 0, 0))
                                      : m->area[0].len;
    return (at - m->area[0].base) % layer >= v;
  }
  return DEMO_MAIN_PARTS + ((at - (uintptr_t)m->map - DEMO_GUARD) % side_bytes(m, true) >= tensor_bytes(m, DEMO_MAIN_PARTS));
}

/* ---- layout ---- */
static int make_layout(struct demo_memory *m, struct rd2h_error *err) {
  static char name[DEMO_MAX_LAYERS][2][48];
  static struct rd2h_kv_tensor t[DEMO_MAX_LAYERS * DEMO_PARTS];
  const struct demo *d = m->d;
  struct rd2h_layout_opts o = {.size = sizeof o, .num_blocks = m->prefill ? d->p_blocks : d->d_blocks,
                               .indexer_group = indexers_before(m, m->end) ? 1 : 0};
  uint32_t n = 0;
  if (d->mismatch == DEMO_OTHER_HEADS) {
    o.head_first = m->prefill;
    o.head_count = 1;
    o.head_total = 2;
  }
  for (uint32_t l = m->first; l < m->end; l++) {
    snprintf(name[l][0], sizeof name[l][0], "model.layers.%u.self_attn", l);
    snprintf(name[l][1], sizeof name[l][1], "model.layers.%u.self_attn.indexer", l);
    for (uint32_t p = 0; p < DEMO_PARTS; p++)
      if (tensor(m, l, p))
        t[n++] = (struct rd2h_kv_tensor){.layer = name[l][p / DEMO_MAIN_PARTS], .group = p / DEMO_MAIN_PARTS, .rows = o.num_blocks,
                                         .row_bytes = tensor_bytes(m, p) / o.num_blocks, .base = (uintptr_t)tensor(m, l, p)};
  }
  return rd2h_layout_create(t, n, &o, &m->layout, err);
}

/* ---- opening ---- */
/* Prefill's memory is one that Decode can map, where both are on one host. */
static int open_map(struct demo_memory *m, struct rd2h_error *err) {
  uint64_t indexers = indexers_before(m, m->end);
  m->bytes = m->prefill ? slots(m->d, m->end - m->first) * side_bytes(m, false) + slots(m->d, (uint32_t)indexers) * side_bytes(m, true)
                        : indexers * side_bytes(m, true) + 2 * DEMO_GUARD;
  void *p = m->prefill ? rd2h_shared_alloc(m->bytes, RD2H_SHARED_HUGE, err)
                       : mmap(NULL, m->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (!p)
    return err->status;
  if (p == MAP_FAILED) {
    snprintf(err->text, sizeof err->text, "%zu MiB of memory: %s; use fewer layers, requests or tokens", m->bytes >> 20, strerror(errno));
    return RD2H_NOMEM;
  }
  if (!m->prefill)
    madvise(p, m->bytes, MADV_HUGEPAGE);
  m->map = p;
  m->area[m->n_areas++] = (struct rd2h_memory){(uintptr_t)p, m->bytes};
  return RD2H_OK;
}

/* Rank 0 makes the engine's pool, the others attach to it. */
static int open_pool(struct demo *d, const struct demo_rank *r, struct demo_memory *m, struct rd2h_error *err) {
  struct rd2h_pool_opts o = {.size = sizeof o, .lock = RD2H_LOCK_OFF,
                             .shape = {d->layers, DEMO_MAIN_PARTS, d->d_blocks, {d->part_bytes[0], d->part_bytes[1]}}};
  int rc = RD2H_TIMEOUT;
  if (!r->tp) {
    rc = rd2h_pool_create(&o, &m->pool, err);
    if (!rc) {
      snprintf(d->pool[r->engine], sizeof d->pool[0], "%s", rd2h_pool_handle(m->pool));
      demo_post(&d->pool_there[r->engine]);
    }
  } else if (demo_await(d, &d->pool_there[r->engine], 1, "pools were there", err)) {
    rc = rd2h_pool_attach(d->pool[r->engine], &o, &m->pool, err);
  }
  if (!rc)
    m->area[m->n_areas++] = rd2h_pool_memory(m->pool);
  return rc;
}

int demo_memory_open(struct demo *d, const struct demo_rank *r, struct demo_memory *m, struct rd2h_error *err) {
  *m = (struct demo_memory){.d = d, .prefill = r->prefill, .end = d->layers};
  if (r->prefill)
    demo_stage(d, r->pp, &m->first, &m->end);
  if (r->prefill && d->mismatch == DEMO_OTHER_LAYERS)
    m->end--;
  int rc = r->prefill ? RD2H_OK : open_pool(d, r, m, err);
  rc = rc ? rc : open_map(m, err);
  return rc ? rc : make_layout(m, err);
}

void demo_memory_close(struct demo_memory *m) {
  rd2h_layout_destroy(m->layout);
  rd2h_pool_destroy(m->pool);
  if (m->prefill)
    rd2h_shared_free(m->map);
  else if (m->map)
    munmap(m->map, m->bytes);
}
