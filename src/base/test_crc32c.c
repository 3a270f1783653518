/* SPDX-License-Identifier: Apache-2.0 */
/* Answers known from RFC 3720, B.4, and both ways against each other at every length and offset around their steps. */
#include "base/base.h"
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

static void known(const void *p, size_t n, uint32_t want) {
  assert_int_equal(rd2h_crc32c(p, n), want);
  assert_int_equal(rd2h_crc32c_table(p, n), want);
}

static void answers_known(void **state) {
  (void)state;
  uint8_t up[32], down[32], zero[32] = {0}, ones[32];
  memset(ones, 0xff, sizeof ones);
  for (uint8_t i = 0; i < 32; i++) {
    up[i] = i;
    down[i] = 31 - i;
  }
  known("", 0, 0);
  known("123456789", 9, 0xe3069283);
  known(zero, 32, 0x8a9136aa);
  known(ones, 32, 0x62a8ab43);
  known(up, 32, 0x46dd794e);
  known(down, 32, 0x113fdb5c);
}

static void both_ways_agree(void **state) {
  (void)state;
  static uint8_t p[8192];
  uint32_t x = 1;
  for (size_t i = 0; i < sizeof p; i++)
    p[i] = (uint8_t)((x = x * 1664525 + 1013904223) >> 24);
  for (size_t n = 0; n < 70; n++)
    for (size_t at = 0; at < 9; at++)
      assert_int_equal(rd2h_crc32c(p + at, n), rd2h_crc32c_table(p + at, n));
  for (size_t n = 3060; n < 3085; n++)
    assert_int_equal(rd2h_crc32c(p + n % 8, n), rd2h_crc32c_table(p + n % 8, n));
  assert_int_equal(rd2h_crc32c(p, sizeof p), rd2h_crc32c_table(p, sizeof p));
  assert_int_equal(rd2h_crc32c(p + 3, 6151), rd2h_crc32c_table(p + 3, 6151));
}

static void every_bit_counts(void **state) {
  (void)state;
  uint8_t p[4096] = {0};
  uint32_t clean = rd2h_crc32c(p, sizeof p);
  for (uint32_t bit = 0; bit < 8 * sizeof p; bit += 7) {
    p[bit / 8] ^= (uint8_t)(1u << bit % 8);
    assert_true(rd2h_crc32c(p, sizeof p) != clean);
    p[bit / 8] ^= (uint8_t)(1u << bit % 8);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(answers_known), cmocka_unit_test(both_ways_agree),
                                     cmocka_unit_test(every_bit_counts)};
  return cmocka_run_group_tests_name("crc32c", tests, NULL, NULL);
}
