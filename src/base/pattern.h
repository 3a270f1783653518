/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_BASE_PATTERN_H
#define RD2H_BASE_PATTERN_H
/* Bytes that follow from a seed, the same on every host, by which a way between two processes is tried. Every word depends on its
 * place, so that bytes from elsewhere in the pattern are wrong, too. */
#include <stdint.h>

#define RD2H_PATTERN 4096u /* bytes that a connection is tried with */

static inline uint8_t rd2h_pattern_byte(uint64_t seed, uint32_t at) {
  uint64_t z = seed + (at / 8 + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return (uint8_t)((z ^ z >> 31) >> at % 8 * 8);
}

static inline void rd2h_pattern_fill(uint8_t *p, uint64_t seed) {
  for (uint32_t i = 0; i < RD2H_PATTERN; i++)
    p[i] = rd2h_pattern_byte(seed, i);
}

/* The place of the first wrong byte; RD2H_PATTERN: all are right. */
static inline uint32_t rd2h_pattern_wrong(const uint8_t *p, uint64_t seed) {
  uint32_t i = 0;
  while (i < RD2H_PATTERN && p[i] == rd2h_pattern_byte(seed, i))
    i++;
  return i;
}
#endif
