/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#define MIB (1u << 20)

static int descriptors(void) {
  int n = 0;
  for (int fd = 0; fd < 1024; fd++)
    n += fcntl(fd, F_GETFD) >= 0;
  return n;
}

static void aligned_zeroed_sealed(void **state) {
  static const uint64_t sizes[] = {1, 4096, 2 * MIB, 2 * MIB + 1, 7 * MIB};
  int before = descriptors();
  (void)state;
  for (size_t i = 0; i < RD2H_COUNT(sizes); i++)
    for (uint32_t flags = 0; flags <= RD2H_SHARED_HUGE; flags += RD2H_SHARED_HUGE) {
      struct rd2h_error err = {0};
      struct stat st;
      uint8_t *p = rd2h_shared_alloc(sizes[i], flags, &err);
      assert_non_null(p);
      assert_int_equal((uintptr_t)p % RD2H_SHARED_ALIGN, 0);
      struct rd2h_shared *s = rd2h_shared_hold(p + sizes[i] - 1, 1);
      assert_non_null(s);
      assert_int_equal(s->len % RD2H_SHARED_ALIGN, 0);
      assert_true(s->len >= sizes[i] && s->len < sizes[i] + RD2H_SHARED_ALIGN);
      for (uint64_t k = 0; k < s->len; k++)
        assert_int_equal(p[k], 0);
      assert_int_equal(fstat(s->fd, &st), 0);
      assert_int_equal(st.st_size, s->len);
      assert_int_equal(ftruncate(s->fd, 0), -1);
      assert_int_equal(ftruncate(s->fd, (off_t)s->len + 2 * MIB), -1);
      assert_int_equal(fallocate(s->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
      assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0), MAP_FAILED);
      assert_int_equal(fcntl(s->fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
      rd2h_shared_drop(s);
      rd2h_shared_free(p);
      assert_null(rd2h_shared_hold(p, 1));
    }
  assert_int_equal(descriptors(), before);
}

/* What others map are the same pages; a held allocation outlives its memory. */
static void mapped_elsewhere(void **state) {
  int before = descriptors();
  uint8_t *p = rd2h_shared_alloc(3 * MIB, 0, NULL);
  (void)state;
  struct rd2h_shared *s = rd2h_shared_hold(p, 4 * MIB);
  assert_non_null(s);
  p[5] = 6;
  const uint8_t *other = rd2h_map_aligned(s->len, PROT_READ, s->fd);
  assert_non_null(other);
  assert_int_equal((uintptr_t)other % RD2H_SHARED_ALIGN, 0);
  p[6] = 7;
  assert_true(other[5] == 6 && other[6] == 7);
  rd2h_shared_free(p);
  assert_null(rd2h_shared_hold(p, 1));
  assert_true(other[5] == 6 && fcntl(s->fd, F_GETFD) >= 0);
  munmap((void *)other, s->len);
  rd2h_shared_drop(s);
  assert_int_equal(descriptors(), before);
}

static void which_allocation_holds_a_range(void **state) {
  uint8_t *a = rd2h_shared_alloc(2 * MIB, 0, NULL), *b = rd2h_shared_alloc(4 * MIB, 0, NULL), stack;
  (void)state;
  const struct {
    const uint8_t *p;
    uint64_t len;
    const uint8_t *base;
  } rows[] = {
    {a, 2 * MIB, a},     {b, 4 * MIB, b},  {a + 1, 2 * MIB - 1, a},        {b + 3 * MIB, MIB, b}, {b + 4 * MIB - 1, 1, b},
    {a, 2 * MIB + 1, NULL}, {a + 1, 2 * MIB, NULL}, {&stack, 1, NULL}, {b + 1, UINT64_MAX, NULL}, {NULL, 1, NULL},
  };
  for (size_t i = 0; i < RD2H_COUNT(rows); i++) {
    struct rd2h_shared *s = rd2h_shared_hold(rows[i].p, rows[i].len);
    assert_ptr_equal(s ? s->base : NULL, rows[i].base);
    rd2h_shared_drop(s);
  }
  rd2h_shared_free(a);
  rd2h_shared_free(a); /* not known any more: nothing happens */
  rd2h_shared_free(b + 4096);
  rd2h_shared_free(NULL);
  b[4096] = 1;
  rd2h_shared_free(b);
}

static void refusals(void **state) {
  struct rd2h_error err;
  (void)state;
  static const struct {
    uint64_t size;
    uint32_t flags;
    int status;
  } rows[] = {{0, 0, RD2H_INVALID}, {1, 2, RD2H_INVALID}, {UINT64_MAX, 0, RD2H_INVALID}, {INT64_MAX, 0, RD2H_INVALID},
              {UINT64_C(1) << 50, 0, RD2H_NOMEM}, {UINT64_C(1) << 50, RD2H_SHARED_HUGE, RD2H_NOMEM}};
  int before = descriptors();
  for (size_t i = 0; i < RD2H_COUNT(rows); i++) {
    err = (struct rd2h_error){0};
    assert_null(rd2h_shared_alloc(rows[i].size, rows[i].flags, &err));
    assert_int_equal(err.status, rows[i].status);
    assert_true(err.text[0]);
  }
  rd2h_alloc_fail_at(1);
  assert_null(rd2h_shared_alloc(1, 0, &err));
  assert_int_equal(err.status, RD2H_NOMEM);
  assert_int_equal(descriptors(), before);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(aligned_zeroed_sealed),
    cmocka_unit_test(mapped_elsewhere),
    cmocka_unit_test(which_allocation_holds_a_range),
    cmocka_unit_test(refusals),
  };
  return cmocka_run_group_tests_name("shared", tests, NULL, NULL);
}
