/* SPDX-License-Identifier: Apache-2.0 */
/* A chunk is a head with one live bit a record, then 64 records. A free record's first 4 bytes link to the next free one. */
#include "base/base.h"

#define PER_CHUNK 64u
#define HEAD_BYTES 16u /* the 64-bit live mask, padded so that records are 16-byte aligned when their size is */

static uint64_t *live_mask(const struct rd2h_slab *s, uint32_t i) {
  return (uint64_t *)s->chunk[i / PER_CHUNK];
}

static uint8_t *record(const struct rd2h_slab *s, uint32_t i) {
  return s->chunk[i / PER_CHUNK] + HEAD_BYTES + (size_t)(i % PER_CHUNK) * s->item;
}

/* limit 0: none but that of the index. */
void rd2h_slab_init(struct rd2h_slab *s, size_t item_size, uint32_t limit) {
  uint32_t limit_max = RD2H_INDEX_NONE - PER_CHUNK;
  *s = (struct rd2h_slab){.item = (uint32_t)((item_size + 7) & ~(size_t)7), .free_head = RD2H_INDEX_NONE,
                          .limit = limit && limit < limit_max ? limit : limit_max};
}

static bool add_chunk(struct rd2h_slab *s) {
  if (s->n_chunk == s->cap_chunk) {
    uint32_t cap = s->cap_chunk ? s->cap_chunk * 2 : 4;
    uint8_t **chunk = rd2h_realloc(s->chunk, cap * sizeof *chunk);
    if (!chunk)
      return false;
    s->chunk = chunk;
    s->cap_chunk = cap;
  }
  uint8_t *p = rd2h_alloc(HEAD_BYTES + (size_t)PER_CHUNK * s->item);
  if (!p)
    return false;
  memset(p, 0, HEAD_BYTES);
  s->chunk[s->n_chunk++] = p;
  return true;
}

int rd2h_slab_reserve(struct rd2h_slab *s, uint32_t n) {
  if (n > s->limit - s->live)
    return RD2H_LIMIT;
  while (s->n_chunk * PER_CHUNK - s->live < n)
    if (!add_chunk(s))
      return RD2H_NOMEM;
  return RD2H_OK;
}

uint32_t rd2h_slab_take(struct rd2h_slab *s) {
  uint32_t i = s->free_head;
  if (s->live >= s->limit)
    return RD2H_INDEX_NONE;
  if (i != RD2H_INDEX_NONE) {
    memcpy(&s->free_head, record(s, i), sizeof s->free_head);
  } else {
    if (s->next == s->n_chunk * PER_CHUNK && !add_chunk(s))
      return RD2H_INDEX_NONE;
    i = s->next++;
  }
  *live_mask(s, i) |= UINT64_C(1) << (i % PER_CHUNK);
  memset(record(s, i), 0, s->item);
  s->live++;
  return i;
}

void rd2h_slab_give(struct rd2h_slab *s, uint32_t i) {
  if (!rd2h_slab_live(s, i))
    return;
  *live_mask(s, i) &= ~(UINT64_C(1) << (i % PER_CHUNK));
  memcpy(record(s, i), &s->free_head, sizeof s->free_head);
  s->free_head = i;
  s->live--;
}

void *rd2h_slab_at(const struct rd2h_slab *s, uint32_t i) {
  return i < s->next ? record(s, i) : NULL;
}

bool rd2h_slab_live(const struct rd2h_slab *s, uint32_t i) {
  return i < s->next && (*live_mask(s, i) >> (i % PER_CHUNK) & 1);
}

void rd2h_slab_free(struct rd2h_slab *s) {
  for (uint32_t i = 0; i < s->n_chunk; i++)
    rd2h_free(s->chunk[i]);
  rd2h_free(s->chunk);
  rd2h_slab_init(s, s->item, s->limit);
}
