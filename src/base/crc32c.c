/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"
#include <pthread.h>
#include <string.h>

#define POLYNOMIAL 0x82f63b78u /* bits reversed */
#define WIDTH 8u               /* bytes a step of the table's way takes at once */

/* table[k][b]: what byte b does to the sum when k more bytes follow it. */
static uint32_t table[WIDTH][256];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void fill_table(void) {
  for (uint32_t b = 0; b < 256; b++) {
    uint32_t c = b;
    for (int bit = 0; bit < 8; bit++)
      c = c >> 1 ^ (c & 1 ? POLYNOMIAL : 0);
    table[0][b] = c;
  }
  for (uint32_t k = 1; k < WIDTH; k++)
    for (uint32_t b = 0; b < 256; b++)
      table[k][b] = table[k - 1][b] >> 8 ^ table[0][table[k - 1][b] & 0xff];
}

uint32_t rd2h_crc32c_table(const void *bytes, size_t n) {
  const uint8_t *p = bytes;
  uint32_t c = UINT32_MAX;
  pthread_once(&once, fill_table);
  for (; n >= WIDTH; n -= WIDTH, p += WIDTH) {
    uint32_t sum = 0;
#pragma GCC unroll 8
    for (uint32_t k = 0; k < WIDTH; k++)
      sum ^= table[WIDTH - 1 - k][p[k] ^ (k < 4 ? c >> 8 * k & 0xff : 0)];
    c = sum;
  }
  for (; n; n--, p++)
    c = c >> 8 ^ table[0][(c ^ *p) & 0xff];
  return ~c;
}

#if defined(__x86_64__)
/* The instruction takes 3 cycles, but a new one can begin in each: three stretches go side by side. A stretch's sum is carried over the
 * bytes behind it by multiplication, which for a fixed length is four look-ups. */
#define STRETCH 1024u
static uint32_t carry[4][256]; /* over STRETCH bytes of 0 */
static pthread_once_t carry_once = PTHREAD_ONCE_INIT;

static void fill_carry(void) {
  pthread_once(&once, fill_table);
  for (uint32_t k = 0; k < 4; k++)
    for (uint32_t b = 0; b < 256; b++) {
      uint32_t c = b << 8 * k;
      for (uint32_t i = 0; i < STRETCH; i++)
        c = c >> 8 ^ table[0][c & 0xff];
      carry[k][b] = c;
    }
}

static inline uint32_t carried(uint64_t c) {
  return carry[0][c & 0xff] ^ carry[1][c >> 8 & 0xff] ^ carry[2][c >> 16 & 0xff] ^ carry[3][c >> 24 & 0xff];
}

static inline uint64_t word(const uint8_t *p) {
  uint64_t v;
  memcpy(&v, p, sizeof v);
  return v;
}

__attribute__((target("sse4.2"))) static uint32_t by_instruction(const uint8_t *p, size_t n) {
  uint64_t c = UINT32_MAX;
  for (; n >= 3 * STRETCH; n -= 3 * STRETCH, p += 3 * STRETCH) {
    uint64_t second = 0, third = 0;
    for (uint32_t i = 0; i < STRETCH; i += 8) {
      c = __builtin_ia32_crc32di(c, word(p + i));
      second = __builtin_ia32_crc32di(second, word(p + STRETCH + i));
      third = __builtin_ia32_crc32di(third, word(p + 2 * STRETCH + i));
    }
    c = carried(carried(c) ^ second) ^ third;
  }
  for (; n >= 8; n -= 8, p += 8)
    c = __builtin_ia32_crc32di(c, word(p));
  for (; n; n--, p++)
    c = __builtin_ia32_crc32qi((uint32_t)c, *p);
  return ~(uint32_t)c;
}

uint32_t rd2h_crc32c(const void *p, size_t n) {
  if (!__builtin_cpu_supports("sse4.2"))
    return rd2h_crc32c_table(p, n);
  pthread_once(&carry_once, fill_carry);
  return by_instruction(p, n);
}
#else
uint32_t rd2h_crc32c(const void *p, size_t n) {
  return rd2h_crc32c_table(p, n);
}
#endif
