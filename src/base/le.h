/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_BASE_LE_H
#define RD2H_BASE_LE_H
/* What engines write for their like: little-endian integers of n bytes, and a sum against damage. */
#include <stdint.h>

static inline void rd2h_le_put(uint8_t *p, uint64_t v, uint32_t n) {
  for (uint32_t i = 0; i < n; i++)
    p[i] = (uint8_t)(v >> 8 * i);
}

static inline uint64_t rd2h_le_get(const uint8_t *p, uint32_t n) {
  uint64_t v = 0;
  for (uint32_t i = 0; i < n; i++)
    v |= (uint64_t)p[i] << 8 * i;
  return v;
}

/* FNV-1a over n bytes but for the four at `at`, where the sum itself stands: against damage, not against anybody. */
static inline uint32_t rd2h_sum_but(const uint8_t *p, uint32_t n, uint32_t at) {
  uint32_t h = 2166136261u;
  for (uint32_t i = 0; i < n; i++)
    if (i - at >= 4)
      h = (h ^ p[i]) * 16777619u;
  return h;
}
#endif
