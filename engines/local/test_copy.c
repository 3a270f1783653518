/* SPDX-License-Identifier: Apache-2.0 */
/* Every way of copying that works here moves exactly the bytes it should, at every alignment. */
#include "engines/local/local.h"
#include <setjmp.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

#define ROOM 65536u
#define CANARY 0xC3

static void copy_and_check(const struct rd2h_local_copier *c, uint8_t *to, const uint8_t *from, size_t n, const uint8_t *whole) {
  memset((void *)whole, CANARY, ROOM);
  c->copy(to, from, n);
  c->settle();
  assert_memory_equal(to, from, n);
  for (const uint8_t *p = whole; p < whole + ROOM; p++)
    if ((p < to || p >= to + n) && *p != CANARY)
      fail_msg("%s: %zu bytes: byte %td beside the destination was written", c->name, n, p - to);
}

static void all_sizes_and_alignments(void **state) {
  static const size_t sizes[] = {0, 1, 63, 64, 100, 4095, 4096, 4097, 4159, 4160, 4223, 8192, 16384, 20001};
  static const size_t shifts[] = {0, 1, 8, 15, 16, 31, 32, 33, 63};
  uint8_t *from = aligned_alloc(64, ROOM), *to = aligned_alloc(64, ROOM);
  uint32_t kinds = 0;
  (void)state;
  for (uint32_t i = 0; i < ROOM; i++)
    from[i] = (uint8_t)(i * 31 + i / 251);
  for (const struct rd2h_local_copier *c; (c = rd2h_local_copier(kinds)); kinds++)
    for (size_t s = 0; (!c->works || c->works()) && s < RD2H_COUNT(sizes); s++)
      for (size_t a = 0; a < RD2H_COUNT(shifts); a++)
        copy_and_check(c, to + 128 + shifts[a], from + shifts[(a * 5 + s) % RD2H_COUNT(shifts)], sizes[s], to);
  assert_in_range(kinds, 1, 8);
  assert_null(rd2h_local_copier(kinds));
  free(from);
  free(to);
}

/* Asking for lines ahead of the last byte touches no page behind it. */
static void ends_at_the_edge_of_a_page(void **state) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE), n = 4 * page;
  uint8_t *from = mmap(NULL, n + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  uint8_t *to = mmap(NULL, n + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  (void)state;
  memset(from, 0x5A, n);
  mprotect(from + n, page, PROT_NONE);
  mprotect(to + n, page, PROT_NONE);
  for (uint32_t i = 0; rd2h_local_copier(i); i++) {
    const struct rd2h_local_copier *c = rd2h_local_copier(i);
    if (c->works && !c->works())
      continue;
    memset(to, 0, n);
    c->copy(to + 3, from + 3, n - 3);
    c->settle();
    assert_memory_equal(to + 3, from + 3, n - 3);
  }
  munmap(from, n + page);
  munmap(to, n + page);
}

static void the_best_works_here(void **state) {
  const struct rd2h_local_copier *c = rd2h_local_best_copier();
  (void)state;
  assert_non_null(c);
  assert_true(!c->works || c->works());
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(all_sizes_and_alignments),
    cmocka_unit_test(ends_at_the_edge_of_a_page),
    cmocka_unit_test(the_best_works_here),
  };
  return cmocka_run_group_tests_name("local_copy", tests, NULL, NULL);
}
