/* SPDX-License-Identifier: Apache-2.0 */
#include "base/msgpack.h"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define BYTES(...) (const uint8_t[]){__VA_ARGS__}, sizeof((const uint8_t[]){__VA_ARGS__})
static struct rd2h_mp reader(const uint8_t *p, size_t n) {
  return (struct rd2h_mp){p, p + n};
}

struct int_form {
  uint8_t bytes[9], n;
  int64_t v;
};
static const struct int_form int_forms[] = {
  {{0x00}, 1, 0}, {{0x7f}, 1, 127}, {{0xff}, 1, -1}, {{0xe0}, 1, -32},
  {{0xcc, 5}, 2, 5}, {{0xcc, 255}, 2, 255}, {{0xcd, 0, 5}, 3, 5}, {{0xcd, 255, 255}, 3, 65535},
  {{0xce, 0, 0, 0, 5}, 5, 5}, {{0xce, 255, 255, 255, 255}, 5, UINT32_MAX}, {{0xcf, 0, 0, 0, 0, 0, 0, 0, 5}, 9, 5},
  {{0xcf, 127, 255, 255, 255, 255, 255, 255, 255}, 9, INT64_MAX},
  {{0xd0, 5}, 2, 5}, {{0xd0, 0x80}, 2, -128}, {{0xd1, 0, 5}, 3, 5}, {{0xd1, 0xff, 0xfe}, 3, -2},
  {{0xd2, 0, 0, 0, 5}, 5, 5}, {{0xd2, 0x80, 0, 0, 0}, 5, INT32_MIN},
  {{0xd3, 0, 0, 0, 0, 0, 0, 0, 5}, 9, 5}, {{0xd3, 0x80, 0, 0, 0, 0, 0, 0, 0}, 9, INT64_MIN},
};

static void test_integers(void **state) {
  (void)state;
  for (size_t i = 0; i < RD2H_COUNT(int_forms); i++) {
    const struct int_form *f = &int_forms[i];
    struct rd2h_mp r = reader(f->bytes, f->n);
    int64_t s;
    uint64_t u;
    assert_int_equal(rd2h_mp_peek(&r), RD2H_MP_INT);
    assert_true(rd2h_mp_int(&r, &s));
    assert_int_equal(s, f->v);
    assert_ptr_equal(r.p, r.end);
    r = reader(f->bytes, f->n);
    assert_int_equal(rd2h_mp_uint(&r, &u), f->v >= 0);
    assert_ptr_equal(r.p, f->v >= 0 ? r.end : f->bytes);
    for (size_t cut = 0; cut < f->n; cut++) {
      r = reader(f->bytes, cut);
      assert_false(rd2h_mp_int(&r, &s));
      assert_false(rd2h_mp_skip(&r));
      assert_ptr_equal(r.p, f->bytes);
    }
  }
  struct rd2h_mp r = reader(BYTES(0xcf, 255, 255, 255, 255, 255, 255, 255, 255));
  int64_t s;
  uint64_t u;
  uint32_t v;
  assert_false(rd2h_mp_int(&r, &s));
  assert_false(rd2h_mp_uint_max(&r, UINT32_MAX, &v));
  assert_true(rd2h_mp_uint(&r, &u));
  assert_true(u == UINT64_MAX);
}

static void test_other_values(void **state) {
  (void)state;
  struct rd2h_mp r = reader(BYTES(0xc0, 0xc2, 0xc3, 0xca, 0, 0, 0, 0, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0, 0xd4, 1, 2,
                                  0xc7, 2, 1, 0, 0, 0xc1));
  bool b;
  assert_false(rd2h_mp_bool(&r, &b));
  assert_true(rd2h_mp_nil(&r));
  assert_true(rd2h_mp_bool(&r, &b) && !b);
  assert_true(rd2h_mp_bool(&r, &b) && b);
  const enum rd2h_mp_type skipped[] = {RD2H_MP_FLOAT, RD2H_MP_FLOAT, RD2H_MP_EXT, RD2H_MP_EXT};
  for (size_t i = 0; i < RD2H_COUNT(skipped); i++) {
    assert_int_equal(rd2h_mp_peek(&r), skipped[i]);
    assert_true(rd2h_mp_skip(&r));
  }
  assert_string_equal(rd2h_mp_found(&r), "data that is broken or cut off");
  assert_false(rd2h_mp_skip(&r)); /* 0xc1 is no value */
  r.p++;
  assert_string_equal(rd2h_mp_found(&r), "the end of the data");
  r = reader(BYTES(0x91, 0xc0));
  assert_string_equal(rd2h_mp_found(&r), "an array");
}

/* Head of `kind` in each width, over n bytes of content: taken when all bytes are there, refused when one lacks. */
static void check_bytes(uint8_t first, unsigned wide, uint32_t n, bool str) {
  struct rd2h_buf b = {0};
  uint8_t head[5] = {first};
  for (unsigned i = 0; i < wide; i++)
    head[1 + i] = (uint8_t)(n >> (8 * (wide - 1 - i)));
  rd2h_buf_put(&b, head, 1 + wide);
  for (uint32_t i = 0; i < n; i++)
    rd2h_buf_put(&b, "x", 1);
  struct rd2h_mp r = reader(b.p, b.len), cut = reader(b.p, b.len - 1);
  struct rd2h_str s;
  bool (*take)(struct rd2h_mp *, struct rd2h_str *) = str ? rd2h_mp_str : rd2h_mp_bin;
  bool (*other)(struct rd2h_mp *, struct rd2h_str *) = str ? rd2h_mp_bin : rd2h_mp_str;
  assert_false(other(&r, &s));
  assert_false(take(&cut, &s));
  assert_false(rd2h_mp_skip(&cut));
  assert_true(take(&r, &s));
  assert_int_equal(s.n, n);
  assert_ptr_equal(r.p, r.end);
  rd2h_buf_free(&b);
}

static void test_bytes(void **state) {
  (void)state;
  check_bytes(0xa0, 0, 0, true);
  check_bytes(0xbf, 0, 31, true);
  for (unsigned w = 0; w < 3; w++) {
    check_bytes((uint8_t)(0xd9 + w), 1u << w, 3, true);
    check_bytes((uint8_t)(0xc4 + w), 1u << w, 3, false);
  }
  check_bytes(0xda, 2, 65535, true);
  check_bytes(0xdb, 4, 65536, true);
  check_bytes(0xc6, 4, 65536, false);
}

static void test_counts(void **state) {
  (void)state;
  uint32_t n;
  struct rd2h_mp r = reader(BYTES(0x93, 1, 2));
  assert_false(rd2h_mp_array(&r, &n)); /* three elements cannot lie in two bytes */
  r = reader(BYTES(0xdd, 255, 255, 255, 255, 0));
  assert_false(rd2h_mp_array(&r, &n));
  assert_false(rd2h_mp_skip(&r));
  r = reader(BYTES(0xdf, 255, 255, 255, 255, 0));
  assert_false(rd2h_mp_map(&r, &n));
  assert_false(rd2h_mp_skip(&r));
  r = reader(BYTES(0x82, 1, 2, 3));
  assert_false(rd2h_mp_map(&r, &n));
  r = reader(BYTES(0xdc, 0, 2, 7, 7, 0xdd, 0, 0, 0, 1, 7, 0xde, 0, 1, 7, 7, 0xdf, 0, 0, 0, 1, 7, 7));
  assert_true(rd2h_mp_array(&r, &n) && n == 2);
  r.p += n;
  assert_true(rd2h_mp_array(&r, &n) && n == 1);
  r.p += n;
  assert_true(rd2h_mp_map(&r, &n) && n == 1);
  r.p += 2 * n;
  assert_true(rd2h_mp_map(&r, &n) && n == 1);
}

static void test_skip_nested(void **state) {
  (void)state;
  const uint8_t bytes[] = {0x93, 0x82, 0xa1, 'k', 0x91, 7, 0xc0, 0x80, 0xc4, 1, 9, 0xde, 0, 1, 1, 0x90, 0x55};
  struct rd2h_mp r = reader(bytes, sizeof bytes);
  assert_true(rd2h_mp_skip(&r));
  assert_ptr_equal(r.p, bytes + sizeof bytes - 1); /* the one behind it is left */
}

/* A million open arrays: a reader that recursed would run out of stack. */
static void test_depth(void **state) {
  (void)state;
  enum { DEPTH = 1000000 };
  struct rd2h_buf b = {0};
  assert_true(rd2h_buf_room(&b, DEPTH + 1));
  memset(b.p, 0x91, DEPTH);
  b.p[DEPTH] = 0xc0;
  struct rd2h_mp whole = reader(b.p, DEPTH + 1), cut = reader(b.p, DEPTH);
  assert_true(rd2h_mp_skip(&whole));
  assert_ptr_equal(whole.p, whole.end);
  assert_false(rd2h_mp_skip(&cut));
  rd2h_buf_free(&b);
}

static void test_ids(void **state) {
  (void)state;
  struct rd2h_buf b = {0};
  enum { COPIES = 20 }; /* long enough for the reader to change its ways */
  uint32_t want[COPIES * RD2H_COUNT(int_forms)], got[COPIES * RD2H_COUNT(int_forms)], n = 0;
  for (int round = 0; round < COPIES; round++)
    for (size_t i = 0; i < RD2H_COUNT(int_forms); i++)
      if (int_forms[i].v >= 0 && int_forms[i].v <= INT32_MAX) {
        rd2h_buf_put(&b, int_forms[i].bytes, int_forms[i].n);
        want[n++] = (uint32_t)int_forms[i].v;
      }
  struct rd2h_mp r = reader(b.p, b.len);
  bool in_range = false;
  assert_true(rd2h_mp_ids(&r, got, n, &in_range));
  assert_true(in_range);
  assert_ptr_equal(r.p, r.end);
  assert_memory_equal(got, want, n * sizeof *got);
  for (size_t cut = 0; cut < b.len; cut++) {
    uint8_t *copy = rd2h_alloc(cut); /* exact, so that the address sanitizer sees a byte too many */
    memcpy(copy, b.p, cut);
    r = reader(copy, cut);
    assert_false(rd2h_mp_ids(&r, got, n, &in_range));
    rd2h_free(copy);
  }
  rd2h_buf_free(&b);
}

static void test_ids_range(void **state) {
  (void)state;
  static const struct {
    uint8_t bytes[9], n;
    bool ok, in_range;
  } row[] = {
    {{0xce, 0x7f, 0xff, 0xff, 0xff}, 5, true, true}, {{0xce, 0x80, 0, 0, 0}, 5, true, false}, {{0xff}, 1, true, false},
    {{0xd0, 0x80}, 2, true, false}, {{0xcf, 0, 0, 0, 1, 0, 0, 0, 0}, 9, true, false},
    {{0xd3, 0, 0, 0, 1, 0, 0, 0, 0}, 9, true, false},
    {{0xc0}, 1, false, false}, {{0xa1, 'x'}, 2, false, false}, {{0xcb, 0, 0, 0, 0, 0, 0, 0, 0}, 9, false, false},
    {{0xc1}, 1, false, false},
  };
  static const uint8_t mixed[] = {0xcd, 1, 1, 0xce, 0, 1, 1, 1};
  for (size_t i = 0; i < RD2H_COUNT(row); i++)
    for (uint32_t ahead = 0; ahead <= 64; ahead += 32)
      for (size_t pad = 0; pad < 12; pad += 11) { /* with and without room behind, after none, few and many ids of mixed width */
        uint8_t bytes[64 * sizeof mixed + 24] = {0};
        for (uint32_t k = 0; k < ahead; k++)
          memcpy(bytes + k * sizeof mixed, mixed, sizeof mixed);
        memcpy(bytes + ahead * sizeof mixed, row[i].bytes, row[i].n);
        struct rd2h_mp r = reader(bytes, ahead * sizeof mixed + row[i].n + pad);
        uint32_t out[129];
        bool in_range = !row[i].in_range;
        assert_int_equal(rd2h_mp_ids(&r, out, 2 * ahead + 1, &in_range), row[i].ok);
        if (row[i].ok)
          assert_int_equal(in_range, row[i].in_range);
        if (row[i].in_range)
          assert_int_equal(out[2 * ahead], INT32_MAX);
      }
}

static void test_write_shortest(void **state) {
  (void)state;
  static const struct {
    int64_t v;
    uint8_t n;
  } row[] = {{0, 1}, {127, 1}, {128, 2}, {255, 2}, {256, 3}, {65535, 3}, {65536, 5}, {UINT32_MAX, 5}, {INT64_C(1) << 32, 9},
             {INT64_MAX, 9}, {-1, 1}, {-32, 1}, {-33, 2}, {-128, 2}, {-129, 3}, {-32768, 3}, {-32769, 5}, {INT32_MIN, 5},
             {(int64_t)INT32_MIN - 1, 9}, {INT64_MIN, 9}};
  for (size_t i = 0; i < RD2H_COUNT(row); i++) {
    struct rd2h_buf b = {0};
    int64_t back;
    rd2h_mp_put_int(&b, row[i].v);
    assert_int_equal(b.len, row[i].n);
    struct rd2h_mp r = reader(b.p, b.len);
    assert_true(rd2h_mp_int(&r, &back));
    assert_int_equal(back, row[i].v);
    rd2h_buf_free(&b);
  }
}

static void test_write_ids(void **state) {
  (void)state;
  uint32_t id[200], back[200], n;
  for (uint32_t i = 0; i < 200; i++)
    id[i] = (uint32_t)(UINT64_C(0x9e3779b1) * i) >> (1 + i % 31);
  struct rd2h_buf b = {0};
  rd2h_mp_put_ids(&b, id, 200);
  struct rd2h_buf one_by_one = {0};
  rd2h_mp_put_array(&one_by_one, 200);
  for (uint32_t i = 0; i < 200; i++)
    rd2h_mp_put_uint(&one_by_one, id[i]);
  assert_int_equal(b.len, one_by_one.len);
  assert_memory_equal(b.p, one_by_one.p, b.len);
  struct rd2h_mp r = reader(b.p, b.len);
  bool in_range;
  assert_true(rd2h_mp_array(&r, &n) && n == 200);
  assert_true(rd2h_mp_ids(&r, back, n, &in_range) && in_range);
  assert_memory_equal(id, back, sizeof id);
  rd2h_buf_free(&b);
  rd2h_buf_free(&one_by_one);
}

static void test_write_bin_around(void **state) {
  (void)state;
  static const uint32_t sizes[] = {0, 1, 255, 256, 65535, 65536};
  static uint8_t data[65536];
  for (size_t i = 0; i < RD2H_COUNT(sizes); i++) {
    struct rd2h_buf b = {0}, plain = {0};
    memset(data, 'a' + (int)i, sizes[i]);
    size_t at = rd2h_mp_bin_begin(&b);
    rd2h_buf_put(&b, data, sizes[i]);
    rd2h_mp_bin_end(&b, at);
    rd2h_mp_put_bin(&plain, data, sizes[i]);
    assert_int_equal(b.len, plain.len);
    assert_memory_equal(b.p, plain.p, b.len);
    rd2h_buf_free(&b);
    rd2h_buf_free(&plain);
  }
}

static void test_utf8(void **state) {
  (void)state;
  static const struct {
    const char *s;
    size_t n, good;
  } row[] = {
    {"", 0, 0}, {"plain ascii, longer than a word", 31, 31}, {"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", 9, 9},
    {"12345678\xc3", 9, 8}, {"\xc0\x80", 2, 0}, {"\xc1\xbf", 2, 0}, {"\xe0\x80\x80", 3, 0}, {"\xed\xa0\x80", 3, 0},
    {"\xf0\x80\x80\x80", 4, 0}, {"\xf4\x90\x80\x80", 4, 0}, {"\xf4\x8f\xbf\xbf", 4, 4}, {"\xf5\x80\x80\x80", 4, 0},
    {"ab\x80", 3, 2}, {"\xe2\x82", 2, 0}, {"\xe2\x82z", 3, 0}, {"\xff", 1, 0},
  };
  for (size_t i = 0; i < RD2H_COUNT(row); i++)
    assert_int_equal(rd2h_utf8_prefix(row[i].s, row[i].n), row[i].good);
  struct rd2h_mp r = reader(BYTES(0xa2, 0xc3, 0x28));
  struct rd2h_str s;
  assert_false(rd2h_mp_str(&r, &s));
  assert_true(rd2h_mp_skip(&r)); /* a value that nobody reads need not be text */
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_integers), cmocka_unit_test(test_other_values), cmocka_unit_test(test_bytes),
    cmocka_unit_test(test_counts), cmocka_unit_test(test_skip_nested), cmocka_unit_test(test_depth),
    cmocka_unit_test(test_ids), cmocka_unit_test(test_ids_range),
    cmocka_unit_test(test_write_shortest), cmocka_unit_test(test_write_ids), cmocka_unit_test(test_write_bin_around),
    cmocka_unit_test(test_utf8),
  };
  return cmocka_run_group_tests_name("msgpack", tests, NULL, NULL);
}
