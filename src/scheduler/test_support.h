/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_SCHEDULER_TEST_SUPPORT_H
#define RD2H_SCHEDULER_TEST_SUPPORT_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include "scheduler/scheduler.h"

#define IDS(...) (const uint32_t[]){__VA_ARGS__}, (uint32_t)(sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))
#define NO_IDS NULL, 0

/* A table of two groups: TABLE(IDS(1, 2), IDS(7)). */
static inline struct rd2h_block_table table(const uint32_t *a, uint32_t na, const uint32_t *b, uint32_t nb) {
  return (struct rd2h_block_table){2, {a, b}, {na, nb}};
}
#define TABLE(...) (&(struct rd2h_block_table[]){table(__VA_ARGS__)}[0])

static inline void assert_ids(const uint32_t *got, uint32_t n_got, const uint32_t *want, uint32_t n_want) {
  assert_int_equal(n_got, n_want);
  if (n_want)
    assert_memory_equal(got, want, n_want * sizeof *want);
}

static inline void assert_str(struct rd2h_str got, const char *want) {
  assert_int_equal(got.n, strlen(want));
  assert_memory_equal(got.p, want, got.n);
}

static inline void assert_says(const struct rd2h_error *e, const char *part) {
  if (!strstr(e->text, part))
    fail_msg("\"%s\" does not say \"%s\"", e->text, part);
  assert_null(strchr(e->text, '\n'));
}
#endif
