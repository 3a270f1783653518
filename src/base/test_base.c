/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"
#include <rd2h/version.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

static void test_status(void **state) {
  (void)state;
  assert_string_equal(rd2h_status_text(RD2H_OK), "success");
  assert_string_equal(rd2h_status_name(RD2H_PEER_LOST), "PEER_LOST");
  assert_string_equal(rd2h_status_text(RD2H_PEER_LOST), "peer lost");
  assert_string_equal(rd2h_status_name(12345), "UNKNOWN");
  assert_non_null(rd2h_status_text(-12345));
  assert_string_equal(rd2h_version(), RD2H_VERSION_STRING);
  char built[32];
  snprintf(built, sizeof built, "%d.%d.%d", RD2H_VERSION_MAJOR, RD2H_VERSION_MINOR, RD2H_VERSION_PATCH);
  assert_string_equal(built, RD2H_VERSION_STRING);
}

static void test_error(void **state) {
  (void)state;
  struct rd2h_error err = {0};
  assert_int_equal(rd2h_fail(&err, RD2H_RANGE, "id %d\nof %s", 7, "x"), RD2H_RANGE);
  assert_int_equal(err.status, RD2H_RANGE);
  assert_string_equal(err.text, "id 7 of x");
  assert_int_equal(rd2h_fail(NULL, RD2H_IO, "unseen"), RD2H_IO);
  assert_int_equal(rd2h_fail(&err, RD2H_IO, "%*s", 2 * RD2H_ERROR_TEXT, "cut"), RD2H_IO);
  assert_int_equal(strlen(err.text), RD2H_ERROR_TEXT - 1);
  assert_int_equal(rd2h_nomem(&err, "the peer table"), RD2H_NOMEM);
  assert_non_null(strstr(err.text, "the peer table"));
}

static int hooked;
static void *hook_alloc(void *user, size_t n) {
  ++*(int *)user;
  return malloc(n);
}
static void *hook_realloc(void *user, void *p, size_t n) {
  ++*(int *)user;
  return realloc(p, n);
}
static void hook_free(void *user, void *p) {
  --*(int *)user;
  free(p);
}

static void test_memory(void **state) {
  (void)state;
  assert_int_equal(rd2h_allocator_set(&(struct rd2h_allocator){.alloc = hook_alloc}), RD2H_INVALID);
  assert_int_equal(rd2h_allocator_set(&(struct rd2h_allocator){hook_alloc, hook_realloc, hook_free, &hooked}), RD2H_OK);
  char *s = rd2h_strndup("abcdef", 3);
  assert_int_equal(hooked, 1);
  assert_string_equal(s, "abc");
  rd2h_free(s);
  rd2h_free(NULL);
  assert_int_equal(hooked, 0);
  assert_int_equal(rd2h_allocator_set(NULL), RD2H_OK);

  uint64_t before = rd2h_alloc_count();
  s = rd2h_strdup("whole");
  assert_string_equal(s, "whole");
  assert_int_equal(rd2h_alloc_count(), before + 1);
  rd2h_free(s);
  assert_int_equal(hooked, 0);

  assert_null(rd2h_calloc(SIZE_MAX / 2, 3));
  uint8_t *z = rd2h_calloc(5, 7);
  for (int i = 0; i < 35; i++)
    assert_int_equal(z[i], 0);
  rd2h_free(z);

  rd2h_alloc_fail_at(2);
  void *first = rd2h_alloc(1), *second = rd2h_alloc(1), *third = rd2h_alloc(1);
  rd2h_alloc_fail_at(0);
  assert_non_null(first);
  assert_null(second);
  assert_non_null(third);
  rd2h_free(first);
  rd2h_free(third);
}

static char logged[256];
static int logged_level, logged_n;
static void log_sink(void *user, int level, const char *line) {
  (void)user;
  logged_level = level;
  logged_n++;
  snprintf(logged, sizeof logged, "%s", line);
}

static void test_log(void **state) {
  (void)state;
  rd2h_log_set(log_sink, NULL, RD2H_LOG_INFO);
  RD2H_DEBUG("not this");
  assert_int_equal(logged_n, 0);
  assert_false(rd2h_log_on(RD2H_LOG_DEBUG));
  RD2H_INFO("from %s", "peer\r\nforged");
  assert_int_equal(logged_n, 1);
  assert_int_equal(logged_level, RD2H_LOG_INFO);
  assert_string_equal(logged, "from peer  forged");
  rd2h_log_set(NULL, NULL, 0);
}

/* What the default sink writes on standard error under RD2H_LOG=value. */
static void stderr_under(const char *value, char *out, size_t cap) {
  int fd[2], saved = dup(STDERR_FILENO);
  assert_int_equal(pipe(fd), 0);
  dup2(fd[1], STDERR_FILENO);
  close(fd[1]);
  value ? setenv("RD2H_LOG", value, 1) : unsetenv("RD2H_LOG");
  rd2h_log_set(NULL, NULL, 0);
  RD2H_WARN("careful %d", 1);
  RD2H_INFO("told");
  dup2(saved, STDERR_FILENO);
  close(saved);
  ssize_t n, len = 0;
  while ((n = read(fd[0], out + len, cap - 1 - (size_t)len)) > 0)
    len += n;
  out[len] = 0;
  close(fd[0]);
}

static void test_log_default(void **state) {
  (void)state;
  char out[512];
  stderr_under(NULL, out, sizeof out);
  assert_non_null(strstr(out, "warn: careful 1\n"));
  assert_null(strstr(out, "told"));
  stderr_under("info", out, sizeof out);
  assert_non_null(strstr(out, "info: told\n"));
  stderr_under("error", out, sizeof out);
  assert_string_equal(out, "");
  unsetenv("RD2H_LOG");
  rd2h_log_set(NULL, NULL, 0);
}

static void test_clock(void **state) {
  (void)state;
  uint64_t a = rd2h_now_ns(), b = rd2h_now_ns();
  assert_true(a > 0 && b >= a);
  uint8_t x[16] = {0}, y[16] = {0};
  assert_int_equal(rd2h_random(x, sizeof x), RD2H_OK);
  assert_int_equal(rd2h_random(y, sizeof y), RD2H_OK);
  assert_memory_not_equal(x, y, sizeof x);
}

static void test_arena(void **state) {
  (void)state;
  struct rd2h_arena a = {0};
  assert_null(rd2h_arena_alloc(&a, 1));
  assert_int_equal(rd2h_arena_reserve(&a, 100), RD2H_OK);
  void *p = rd2h_arena_alloc(&a, 1), *q = rd2h_arena_alloc(&a, 84);
  assert_int_equal((uint8_t *)q - (uint8_t *)p, 16);
  assert_null(rd2h_arena_alloc(&a, 1));
  assert_int_equal(rd2h_arena_reserve(&a, 1000), RD2H_STATE);
  rd2h_arena_reset(&a);
  assert_null(rd2h_arena_alloc(&a, SIZE_MAX));
  assert_ptr_equal(rd2h_arena_alloc(&a, 100), p);
  rd2h_arena_reset(&a);
  rd2h_alloc_fail_at(1);
  assert_int_equal(rd2h_arena_reserve(&a, 1000), RD2H_NOMEM);
  rd2h_alloc_fail_at(0);
  assert_int_equal(a.cap, 100);
  assert_int_equal(rd2h_arena_reserve(&a, 1000), RD2H_OK);
  rd2h_arena_free(&a);
}

static void test_buf(void **state) {
  (void)state;
  struct rd2h_buf b = {0};
  for (uint32_t i = 0; i < 1000; i++)
    rd2h_buf_put(&b, &i, sizeof i);
  assert_false(b.failed);
  assert_int_equal(b.len, 4000);
  for (uint32_t i = 0; i < 1000; i++)
    assert_memory_equal(b.p + 4 * i, &i, 4);
  assert_false(rd2h_buf_room(&b, SIZE_MAX));
  assert_true(b.failed);
  rd2h_buf_reset(&b);
  assert_true(rd2h_buf_room(&b, 4000));
  rd2h_alloc_fail_at(1);
  assert_false(rd2h_buf_room(&b, 1 << 20));
  rd2h_alloc_fail_at(0);
  rd2h_buf_put(&b, "x", 1); /* stays failed: nothing is written into the middle of a message that has lost a part */
  assert_int_equal(b.len, 0);
  rd2h_buf_free(&b);
}

static size_t key_of(char *out, size_t cap, uint32_t i) {
  return (size_t)snprintf(out, cap, i % 3 ? "%u" : "cmpl-0123456789abcdef0123456789abcdef-0123456789abcdef-%u", i);
}

/* Compares a map with a plain array under a random sequence of puts and deletes. */
static void test_map(void **state) {
  (void)state;
  enum { KEYS = 700 };
  static uint32_t want[KEYS];
  memset(want, 0xff, sizeof want);
  struct rd2h_map *m = rd2h_map_create();
  char key[128];
  uint32_t size = 0, rnd = 1;
  for (int step = 0; step < 60000; step++) {
    rnd = rnd * 1664525u + 1013904223u;
    uint32_t i = (rnd >> 8) % KEYS;
    size_t n = key_of(key, sizeof key, i);
    if ((step / 5000 % 2 ? 3u : 1u) > (rnd >> 28) % 4) {
      assert_int_equal(rd2h_map_del(m, key, n), want[i]);
      size -= want[i] != RD2H_INDEX_NONE;
      want[i] = RD2H_INDEX_NONE;
    } else {
      assert_int_equal(rd2h_map_put(m, key, n, rnd >> 1), RD2H_OK);
      size += want[i] == RD2H_INDEX_NONE;
      want[i] = rnd >> 1;
    }
    assert_int_equal(rd2h_map_size(m), size);
  }
  for (uint32_t i = 0; i < KEYS; i++) {
    size_t len = key_of(key, sizeof key, i);
    assert_int_equal(rd2h_map_get(m, key, len), want[i]);
    assert_int_equal(rd2h_map_get_expected(m, rd2h_map_expect(m, key, len), key, len), want[i]);
  }
  uint32_t it = 0, v, seen = 0;
  const void *k;
  size_t n;
  while (rd2h_map_next(m, &it, &k, &n, &v)) {
    assert_int_equal(rd2h_map_get(m, k, n), v);
    seen++;
  }
  assert_int_equal(seen, size);
  rd2h_map_destroy(m);
  rd2h_map_destroy(NULL);
}

static void test_map_edges(void **state) {
  (void)state;
  struct rd2h_map *m = rd2h_map_create();
  char long_key[300] = {0};
  assert_int_equal(rd2h_map_get(m, "a", 1), RD2H_INDEX_NONE);
  assert_int_equal(rd2h_map_del(m, "a", 1), RD2H_INDEX_NONE);
  assert_int_equal(rd2h_map_put(m, "a", 1, RD2H_INDEX_NONE), RD2H_INVALID);
  assert_int_equal(rd2h_map_put(m, "", 0, 5), RD2H_OK);
  assert_int_equal(rd2h_map_put(m, "a\0b", 3, 6), RD2H_OK);
  assert_int_equal(rd2h_map_get(m, "a", 1), RD2H_INDEX_NONE);
  assert_int_equal(rd2h_map_get(m, "", 0), 5);
  assert_int_equal(rd2h_map_get(m, "a\0b", 3), 6);
  rd2h_alloc_fail_at(1);
  assert_int_equal(rd2h_map_put(m, long_key, sizeof long_key, 7), RD2H_NOMEM);
  rd2h_alloc_fail_at(0);
  assert_int_equal(rd2h_map_size(m), 2);
  assert_int_equal(rd2h_map_put(m, long_key, sizeof long_key, 7), RD2H_OK);
  assert_int_equal(rd2h_map_put(m, long_key, sizeof long_key, 8), RD2H_OK);
  assert_int_equal(rd2h_map_size(m), 3);
  assert_int_equal(rd2h_map_get(m, long_key, sizeof long_key), 8);
  rd2h_map_destroy(m);
}

static void test_slab(void **state) {
  (void)state;
  struct rd2h_slab s;
  rd2h_slab_init(&s, 12, 200);
  void *at[200];
  for (uint32_t i = 0; i < 200; i++) {
    assert_int_equal(rd2h_slab_take(&s), i);
    at[i] = rd2h_slab_at(&s, i);
    memset(at[i], 0xaa, 12);
  }
  assert_int_equal(rd2h_slab_take(&s), RD2H_INDEX_NONE);
  for (uint32_t i = 0; i < 200; i++)
    assert_ptr_equal(rd2h_slab_at(&s, i), at[i]);
  rd2h_slab_give(&s, 77);
  rd2h_slab_give(&s, 77); /* giving back twice changes nothing */
  rd2h_slab_give(&s, 3);
  assert_int_equal(s.live, 198);
  assert_false(rd2h_slab_live(&s, 77));
  assert_true(rd2h_slab_live(&s, 78));
  assert_false(rd2h_slab_live(&s, 200));
  assert_null(rd2h_slab_at(&s, 200));
  assert_int_equal(rd2h_slab_take(&s), 3);
  assert_int_equal(rd2h_slab_take(&s), 77);
  assert_memory_equal(rd2h_slab_at(&s, 77), "\0\0\0\0\0\0\0\0\0\0\0", 12);
  assert_memory_equal(at[78], "\xaa\xaa\xaa\xaa\xaa\xaa\xaa\xaa\xaa\xaa\xaa\xaa", 12);
  rd2h_slab_free(&s);
  for (uint64_t n = 1; n <= 2; n++) {
    rd2h_alloc_fail_at(n);
    assert_int_equal(rd2h_slab_take(&s), RD2H_INDEX_NONE);
    rd2h_alloc_fail_at(0);
    rd2h_slab_free(&s);
  }
  assert_int_equal(rd2h_slab_take(&s), 0);
  assert_int_equal(rd2h_slab_reserve(&s, 200), RD2H_LIMIT);
  assert_int_equal(rd2h_slab_reserve(&s, 150), RD2H_OK);
  rd2h_alloc_fail_at(1);
  for (uint32_t i = 1; i <= 150; i++)
    assert_int_equal(rd2h_slab_take(&s), i);
  assert_int_equal(rd2h_slab_reserve(&s, 41), RD2H_OK);
  rd2h_slab_free(&s);
  assert_int_equal(rd2h_slab_reserve(&s, 1), RD2H_NOMEM);
  rd2h_alloc_fail_at(0);
  rd2h_slab_free(&s);
}

static void test_heap(void **state) {
  (void)state;
  struct rd2h_heap h = {0};
  uint64_t key, last = 0;
  uint32_t rnd = 7;
  assert_int_equal(rd2h_heap_next(&h), RD2H_NEVER);
  assert_false(rd2h_heap_pop(&h, RD2H_NEVER, &key));
  for (uint32_t i = 0; i < 500; i++) {
    rnd = rnd * 1664525u + 1013904223u;
    assert_int_equal(rd2h_heap_push(&h, rnd % 100, rnd % 100 + 1000), RD2H_OK);
  }
  for (uint32_t i = 0; i < 500; i++) {
    uint64_t at = rd2h_heap_next(&h);
    assert_true(at >= last);
    assert_false(at && rd2h_heap_pop(&h, at - 1, &key));
    assert_true(rd2h_heap_pop(&h, at, &key));
    assert_int_equal(key, at + 1000);
    last = at;
  }
  assert_int_equal(h.n, 0);
  rd2h_heap_free(&h);
  rd2h_alloc_fail_at(1);
  assert_int_equal(rd2h_heap_push(&h, 1, 1), RD2H_NOMEM);
  rd2h_alloc_fail_at(0);
  assert_int_equal(rd2h_heap_next(&h), RD2H_NEVER);
  rd2h_heap_free(&h);
  assert_int_equal(rd2h_heap_reserve(&h, 100), RD2H_OK);
  rd2h_alloc_fail_at(1);
  for (uint32_t i = 0; i < 100; i++)
    assert_int_equal(rd2h_heap_push(&h, i, i), RD2H_OK); /* from what was reserved */
  rd2h_alloc_fail_at(0);
  assert_int_equal(rd2h_heap_reserve(&h, UINT32_MAX), RD2H_NOMEM);
  rd2h_heap_free(&h);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_status), cmocka_unit_test(test_error), cmocka_unit_test(test_memory), cmocka_unit_test(test_log),
    cmocka_unit_test(test_log_default), cmocka_unit_test(test_clock), cmocka_unit_test(test_arena), cmocka_unit_test(test_buf),
    cmocka_unit_test(test_map), cmocka_unit_test(test_map_edges), cmocka_unit_test(test_slab), cmocka_unit_test(test_heap),
  };
  return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}
