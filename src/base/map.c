/* SPDX-License-Identifier: Apache-2.0 */
/* Linear probing in one table of cache-line slots; deletion shifts the run back, so there are no tombstones. Keys come from the
 * network, hence SipHash-1-3 under a random key a map. */
#include "base/base.h"

#define KEY_INLINE 48u
#define CAP_MIN 16u
#define HASH_USED (UINT64_C(1) << 63) /* set in every stored hash: 0 is an empty slot */

struct slot {
  uint64_t hash;
  uint32_t n, v;
  union {
    uint8_t in[KEY_INLINE];
    uint8_t *out; /* own allocation when n > KEY_INLINE */
  } key;
};

struct rd2h_map {
  struct slot *slot;
  uint32_t cap, size; /* cap: 0 or a power of two */
  uint64_t k0, k1;
};

#define ROTL(x, b) (((x) << (b)) | ((x) >> (64 - (b))))

static inline void sip_round(uint64_t v[4]) {
  v[0] += v[1], v[1] = ROTL(v[1], 13), v[1] ^= v[0], v[0] = ROTL(v[0], 32);
  v[2] += v[3], v[3] = ROTL(v[3], 16), v[3] ^= v[2];
  v[0] += v[3], v[3] = ROTL(v[3], 21), v[3] ^= v[0];
  v[2] += v[1], v[1] = ROTL(v[1], 17), v[1] ^= v[2], v[2] = ROTL(v[2], 32);
}

static uint64_t hash_key(const struct rd2h_map *m, const uint8_t *p, size_t n) {
  uint64_t v[4] = {m->k0 ^ UINT64_C(0x736f6d6570736575), m->k1 ^ UINT64_C(0x646f72616e646f6d),
                   m->k0 ^ UINT64_C(0x6c7967656e657261), m->k1 ^ UINT64_C(0x7465646279746573)};
  uint64_t last = (uint64_t)n << 56, word;
  for (; n >= 8; p += 8, n -= 8) {
    memcpy(&word, p, 8);
    v[3] ^= word;
    sip_round(v);
    v[0] ^= word;
  }
  for (size_t i = 0; i < n; i++)
    last |= (uint64_t)p[i] << (8 * i);
  v[3] ^= last;
  sip_round(v);
  v[0] ^= last;
  v[2] ^= 0xff;
  for (int i = 0; i < 3; i++)
    sip_round(v);
  return (v[0] ^ v[1] ^ v[2] ^ v[3]) | HASH_USED;
}

static const uint8_t *slot_key(const struct slot *s) {
  return s->n <= KEY_INLINE ? s->key.in : s->key.out;
}

static void slot_free(struct slot *s) {
  if (s->hash && s->n > KEY_INLINE)
    rd2h_free(s->key.out);
}

struct rd2h_map *rd2h_map_create(void) {
  uint64_t key[2];
  struct rd2h_map *m;
  if (rd2h_random(key, sizeof key) || !(m = rd2h_zalloc(sizeof *m)))
    return NULL;
  m->k0 = key[0];
  m->k1 = key[1];
  return m;
}

void rd2h_map_destroy(struct rd2h_map *m) {
  if (!m)
    return;
  for (uint32_t i = 0; i < m->cap; i++)
    slot_free(&m->slot[i]);
  rd2h_free(m->slot);
  rd2h_free(m);
}

/* The slot that holds the key, or the empty one where it would go. The table is never full. */
static uint32_t find(const struct rd2h_map *m, uint64_t hash, const void *key, size_t n) {
  uint32_t i = (uint32_t)hash & (m->cap - 1);
  for (; m->slot[i].hash; i = (i + 1) & (m->cap - 1))
    if (m->slot[i].hash == hash && m->slot[i].n == n && !memcmp(slot_key(&m->slot[i]), key, n))
      break;
  return i;
}

uint32_t rd2h_map_get(const struct rd2h_map *m, const void *key, size_t n) {
  return m->size ? rd2h_map_get_expected(m, hash_key(m, key, n), key, n) : RD2H_INDEX_NONE;
}

uint64_t rd2h_map_expect(const struct rd2h_map *m, const void *key, size_t n) {
  uint64_t hash = hash_key(m, key, n);
  const struct slot *s = m->cap ? &m->slot[(uint32_t)hash & (m->cap - 1)] : NULL;
  if (s) {
    __builtin_prefetch(s);
    __builtin_prefetch((const char *)(s + 1) - 1);
  }
  return hash;
}

uint32_t rd2h_map_get_expected(const struct rd2h_map *m, uint64_t hash, const void *key, size_t n) {
  const struct slot *s = m->size ? &m->slot[find(m, hash, key, n)] : NULL;
  return s && s->hash ? s->v : RD2H_INDEX_NONE;
}

static int grow(struct rd2h_map *m) {
  if (m->cap > UINT32_MAX / 4)
    return RD2H_NOMEM;
  uint32_t cap = m->cap ? m->cap * 2 : CAP_MIN;
  struct slot *slot = rd2h_calloc(cap, sizeof *slot);
  if (!slot)
    return RD2H_NOMEM;
  for (uint32_t i = 0; i < m->cap; i++) {
    if (!m->slot[i].hash)
      continue;
    uint32_t j = (uint32_t)m->slot[i].hash & (cap - 1);
    while (slot[j].hash)
      j = (j + 1) & (cap - 1);
    slot[j] = m->slot[i];
  }
  rd2h_free(m->slot);
  m->slot = slot;
  m->cap = cap;
  return RD2H_OK;
}

int rd2h_map_put(struct rd2h_map *m, const void *key, size_t n, uint32_t v) {
  if (n > UINT32_MAX || v == RD2H_INDEX_NONE)
    return RD2H_INVALID;
  uint64_t hash = hash_key(m, key, n);
  struct slot *s = m->cap ? &m->slot[find(m, hash, key, n)] : NULL;
  if (s && s->hash) {
    s->v = v;
    return RD2H_OK;
  }
  if (m->size >= m->cap / 4 * 3) {
    int rc = grow(m);
    if (rc)
      return rc;
    s = &m->slot[find(m, hash, key, n)];
  }
  uint8_t *to = s->key.in;
  if (n > KEY_INLINE && !(to = rd2h_alloc(n)))
    return RD2H_NOMEM;
  if (n)
    memcpy(to, key, n);
  if (n > KEY_INLINE)
    s->key.out = to;
  s->hash = hash;
  s->n = (uint32_t)n;
  s->v = v;
  m->size++;
  return RD2H_OK;
}

/* Closes the hole at i: every later slot of the run whose home does not lie after the hole moves into it. */
static void shift_back(struct rd2h_map *m, uint32_t hole) {
  uint32_t mask = m->cap - 1;
  for (uint32_t j = (hole + 1) & mask; m->slot[j].hash; j = (j + 1) & mask) {
    uint32_t home = (uint32_t)m->slot[j].hash & mask;
    if (((j - home) & mask) < ((j - hole) & mask))
      continue;
    m->slot[hole] = m->slot[j];
    hole = j;
  }
  m->slot[hole].hash = 0;
}

uint32_t rd2h_map_del(struct rd2h_map *m, const void *key, size_t n) {
  if (!m->size)
    return RD2H_INDEX_NONE;
  uint32_t i = find(m, hash_key(m, key, n), key, n);
  if (!m->slot[i].hash)
    return RD2H_INDEX_NONE;
  uint32_t v = m->slot[i].v;
  slot_free(&m->slot[i]);
  shift_back(m, i);
  m->size--;
  return v;
}

uint32_t rd2h_map_size(const struct rd2h_map *m) {
  return m->size;
}

bool rd2h_map_next(const struct rd2h_map *m, uint32_t *it, const void **key, size_t *n, uint32_t *v) {
  while (*it < m->cap && !m->slot[*it].hash)
    ++*it;
  if (*it >= m->cap)
    return false;
  const struct slot *s = &m->slot[(*it)++];
  *key = slot_key(s);
  *n = s->n;
  *v = s->v;
  return true;
}
