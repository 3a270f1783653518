/* SPDX-License-Identifier: Apache-2.0 */
/* The order is cmocka's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "plan/plan.h"
#include "tests/helpers/golden.h"

static void ranges_of_the_reference(void **state) {
  (void)state;
  FILE *f = golden_open("plan_ranges.txt");
  uint32_t n, rank, ranks, start, begin, end, got[2], rows = 0;
  for (; fscanf(f, "%u %u %u %u %u %u", &n, &rank, &ranks, &start, &begin, &end) == 6; rows++) {
    rd2h_plan_range(n, rank, ranks, start, &got[0], &got[1]);
    if (got[0] != begin || got[1] != end)
      fail_msg("n %u, rank %u of %u, start %u: [%u, %u), expected [%u, %u)", n, rank, ranks, start, got[0], got[1], begin, end);
  }
  fclose(f);
  assert_int_equal(rows, 1800);
}

/* Begins in order of the logical rank, which is that of the run's first block first. */
static void ranges_cover_every_block_once(void **state) {
  (void)state;
  static const uint32_t counts[] = {0, 1, 2, 5, 31, 32, 33, 1000, UINT32_MAX};
  for (uint32_t ranks = 1; ranks <= 17; ranks++)
    for (size_t c = 0; c < RD2H_COUNT(counts); c++)
      for (uint32_t start = 0; start < 2 * ranks; start++) {
        uint32_t next = 0, begin, end;
        for (uint32_t logical = 0; logical < ranks; logical++) {
          rd2h_plan_range(counts[c], (start + logical) % ranks, ranks, start, &begin, &end);
          assert_int_equal(begin, next);
          assert_true(end - begin == counts[c] / ranks || end - begin == counts[c] / ranks + 1);
          next = end;
        }
        assert_int_equal(next, counts[c]);
      }
}

/* Chunks of one block take turns over the ranks, wherever the first one begins. */
static void s11_chunks_of_one_block_rotate(void **state) {
  (void)state;
  enum { RANKS = 8, CHUNKS = 64 };
  for (uint32_t first = 0; first < RANKS; first++) {
    uint32_t blocks[RANKS] = {0}, begin, end;
    for (uint32_t c = first; c < first + CHUNKS; c++)
      for (uint32_t rank = 0; rank < RANKS; rank++) {
        rd2h_plan_range(1, rank, RANKS, c, &begin, &end);
        assert_int_equal(end - begin, rank == c % RANKS);
        blocks[rank] += end - begin;
      }
    for (uint32_t rank = 0; rank < RANKS; rank++)
      assert_int_equal(blocks[rank], CHUNKS / RANKS);
  }
}

/* Sizes that the reference refuses are served here; a rank outside and a size of 0 are refused by both. */
static void members_of_the_reference_and_beyond(void **state) {
  (void)state;
  FILE *f = golden_open("plan_members.txt");
  char d[16], r[16], m[16];
  uint32_t p_size, d_size, rows = 0, beyond = 0;
  int p_rank;
  for (; fscanf(f, "%u %u %d %15s %15s %15s", &p_size, &d_size, &p_rank, d, r, m) == 6; rows++) {
    uint32_t first = 99, count = 99, member = 99, ratio = 99, rank = (uint32_t)p_rank;
    struct rd2h_error err = {0};
    int rc = rd2h_plan_targets(rank, p_size, d_size, &first, &count, &err);
    if (!p_size || !d_size || rank >= p_size) {
      assert_int_equal(rc, RD2H_INVALID);
      assert_int_equal(first, 99);
      assert_true(strstr(err.text, "size is 0") || strstr(err.text, "not below its size"));
      continue;
    }
    assert_int_equal(rc, RD2H_OK);
    assert_int_equal(rd2h_plan_member(rank, p_size, first, d_size, &member, &ratio, NULL), RD2H_OK);
    beyond += d[0] == '-';
    if (d[0] == '-')
      continue;
    assert_true(count == 1 && first == (uint32_t)atoi(d) && ratio == (uint32_t)atoi(r) && member == (uint32_t)atoi(m));
    uint16_t port;
    assert_int_equal(rd2h_plan_port(20000, first, d_size, &port, NULL), RD2H_OK);
    assert_int_equal(port, 20000 + first);
  }
  fclose(f);
  assert_int_equal(rows, 73);
  assert_int_equal(beyond, 12); /* 4 -> 8, 8 -> 3, 6 -> 4 */
}

static void any_two_sizes_fit(void **state) {
  (void)state;
  for (uint32_t p = 1; p <= 24; p++)
    for (uint32_t d = 1; d <= 24; d++) {
      uint32_t served[24] = {0}, size[24] = {0}, members[24] = {0};
      for (uint32_t q = 0; q < p; q++) {
        uint32_t first, count;
        assert_int_equal(rd2h_plan_targets(q, p, d, &first, &count, NULL), RD2H_OK);
        assert_true(count >= 1 && first + count <= d);
        for (uint32_t r = 0; r < d; r++) {
          uint32_t member = 99, ratio = 99;
          int rc = rd2h_plan_member(q, p, r, d, &member, &ratio, NULL);
          /* the rule itself: floor, never modulo */
          bool serves = p >= d ? q * d / p == r : r * p / d == q;
          assert_int_equal(rc, serves ? RD2H_OK : RD2H_INVALID);
          assert_int_equal(serves, r >= first && r < first + count);
          if (!serves)
            continue;
          assert_int_equal(member, served[r]++);
          assert_true(size[r] == 0 || size[r] == ratio);
          size[r] = ratio;
          members[r] |= 1u << member;
        }
      }
      for (uint32_t r = 0; r < d; r++) {
        assert_int_equal(served[r], size[r]);
        assert_int_equal(members[r], (1u << size[r]) - 1);
      }
    }
}

static void huge_sizes_do_not_overflow(void **state) {
  (void)state;
  uint32_t first, count, member, ratio;
  assert_int_equal(rd2h_plan_targets(UINT32_MAX - 1, UINT32_MAX, UINT32_MAX, &first, &count, NULL), RD2H_OK);
  assert_true(first == UINT32_MAX - 1 && count == 1);
  assert_int_equal(rd2h_plan_targets(1, 2, UINT32_MAX, &first, &count, NULL), RD2H_OK);
  assert_true(first == UINT32_C(0x80000000) && count == UINT32_C(0x7fffffff));
  assert_int_equal(rd2h_plan_member(UINT32_MAX - 1, UINT32_MAX, 1, 2, &member, &ratio, NULL), RD2H_OK);
  assert_true(member == UINT32_C(0x7ffffffe) && ratio == UINT32_C(0x7fffffff));
}

static void bad_ranks_are_named(void **state) {
  (void)state;
  uint32_t member = 9, ratio = 9;
  struct rd2h_error err;
  assert_int_equal(rd2h_plan_member(0, 4, 1, 2, &member, &ratio, &err), RD2H_INVALID);
  assert_non_null(strstr(err.text, "ranks 2 to 3 do"));
  assert_int_equal(rd2h_plan_member(0, 4, 2, 2, &member, &ratio, &err), RD2H_INVALID);
  assert_non_null(strstr(err.text, "Decode tensor-parallel rank 2"));
  assert_true(member == 9 && ratio == 9);
}

static void ports_are_checked(void **state) {
  (void)state;
  struct rd2h_error err;
  uint16_t port = 7;
  assert_int_equal(rd2h_plan_port(65535, 0, 1, &port, NULL), RD2H_OK);
  assert_int_equal(port, 65535);
  assert_int_equal(rd2h_plan_port(65535, 1, 2, &port, &err), RD2H_RANGE);
  assert_non_null(strstr(err.text, "65536"));
  assert_int_equal(rd2h_plan_port(UINT32_MAX, 1, 2, &port, &err), RD2H_RANGE);
  assert_int_equal(rd2h_plan_port(0, 1, 2, &port, &err), RD2H_RANGE);
  assert_int_equal(rd2h_plan_port(20000, 2, 2, &port, &err), RD2H_INVALID);
  assert_int_equal(rd2h_plan_base_port(20000, 3, 4, &port, NULL), RD2H_OK);
  assert_int_equal(port, 20012);
  assert_int_equal(rd2h_plan_base_port(65528, 1, 4, &port, NULL), RD2H_OK); /* 65532 to 65535 */
  assert_int_equal(rd2h_plan_base_port(65529, 1, 4, &port, &err), RD2H_RANGE);
  assert_non_null(strstr(err.text, "65533 to 65536"));
  assert_int_equal(rd2h_plan_base_port(0, 0, 1, &port, &err), RD2H_RANGE);
  assert_int_equal(rd2h_plan_base_port(1, UINT32_MAX, UINT32_MAX, &port, &err), RD2H_RANGE);
  assert_int_equal(rd2h_plan_base_port(20000, 0, 0, &port, &err), RD2H_INVALID);
  assert_int_equal(port, 65532);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(ranges_of_the_reference),
    cmocka_unit_test(ranges_cover_every_block_once),
    cmocka_unit_test(s11_chunks_of_one_block_rotate),
    cmocka_unit_test(members_of_the_reference_and_beyond),
    cmocka_unit_test(any_two_sizes_fit),
    cmocka_unit_test(huge_sizes_do_not_overflow),
    cmocka_unit_test(bad_ranks_are_named),
    cmocka_unit_test(ports_are_checked),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
