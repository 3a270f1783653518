/* SPDX-License-Identifier: Apache-2.0 */
#include "base/pattern.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>

#define SEED 0x1122334455667788u

static uint8_t p[RD2H_PATTERN];

/* What two hosts, and two versions, agree on. */
static void it_is_the_same_everywhere(void **state) {
  static const uint8_t begin[] = {0xa9, 0x1b, 0x22, 0xfe, 0x5d, 0xe8, 0x7a, 0x75, 0x15, 0x9a, 0x0a, 0xbf, 0x66, 0x7d, 0xc9, 0x22};
  (void)state;
  rd2h_pattern_fill(p, SEED);
  assert_memory_equal(p, begin, sizeof begin);
}

static void every_byte_is_looked_at(void **state) {
  (void)state;
  rd2h_pattern_fill(p, SEED);
  assert_int_equal(rd2h_pattern_wrong(p, SEED), RD2H_PATTERN);
  assert_int_not_equal(rd2h_pattern_wrong(p, SEED + 1), RD2H_PATTERN);
  for (uint32_t i = 0; i < RD2H_PATTERN; i++) {
    p[i] ^= 1;
    assert_int_equal(rd2h_pattern_wrong(p, SEED), i);
    p[i] ^= 1;
  }
}

/* No part of it stands in another place, too. */
static void no_word_comes_twice(void **state) {
  (void)state;
  rd2h_pattern_fill(p, SEED);
  for (uint32_t i = 0; i < RD2H_PATTERN; i += 8)
    for (uint32_t k = 0; k < i; k += 8)
      assert_memory_not_equal(p + i, p + k, 8);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(it_is_the_same_everywhere), cmocka_unit_test(every_byte_is_looked_at), cmocka_unit_test(no_word_comes_twice),
  };
  return cmocka_run_group_tests_name("pattern", tests, NULL, NULL);
}
