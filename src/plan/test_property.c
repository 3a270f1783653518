/* SPDX-License-Identifier: Apache-2.0 */
/* Random links, shares and requests against the block-by-block oracle; seeds are fixed. The include order is cmocka's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "plan/test_oracle.h"

#define BLOCKS 600 /* entries of a list at most: more than two chunks of the inner loops */
#define IDS 4096
#if defined(__SANITIZE_THREAD__)
#define ROUNDS 300u /* there is one thread here: ThreadSanitizer only makes it slow */
#else
#define ROUNDS 3000u
#endif

static uint64_t seed;
static uint32_t rnd(uint32_t below) {
  seed ^= seed << 13;
  seed ^= seed >> 7;
  seed ^= seed << 17;
  return (uint32_t)((seed >> 16) % below);
}

static void random_link(struct rd2h_link *link) {
  static const uint64_t bytes[] = {1, 12, 256, 12345, 16384, 131072, UINT64_C(1) << 33};
  uint32_t n_main = 1 + rnd(2), n_indexer = rnd(3);
  *link = (struct rd2h_link){.layer = rnd(61), .n_parts = n_main + n_indexer};
  for (uint32_t i = 0; i < link->n_parts; i++)
    link->part[i] = (struct rd2h_link_part){
      .src_base = UINT64_C(0x100000000000) * (i + 1) + rnd(4096), .dst_base = UINT64_C(0x500000000000) * (i + 1) + rnd(4096),
      .bytes = bytes[rnd(RD2H_COUNT(bytes))], .src_blocks = rnd(4) ? IDS : UINT32_MAX, .dst_blocks = IDS - rnd(2),
      .src_region = rnd(5), .component = i < n_main ? RD2H_MAIN : RD2H_INDEXER};
}

/* Ids of one list: `mode` 0 scattered, 1 one run, 2 downwards, 3 runs of random length, 4 mostly runs with repeats. */
static void random_ids(uint32_t *id, uint32_t n, uint32_t mode) {
  uint32_t next = rnd(IDS / 2);
  for (uint32_t i = 0; i < n; i++) {
    if (mode == 0 || (mode == 3 && !rnd(6)))
      next = rnd(IDS - BLOCKS - 1);
    else if (mode == 4 && !rnd(20))
      next = next ? next - 1 : 0;
    id[i] = next;
    next = mode == 2 ? (next ? next - 1 : IDS - 2) : next + 1;
    if (next >= IDS - 1)
      next = 0;
  }
}

struct made {
  uint32_t src_main[BLOCKS], src_indexer[BLOCKS], dst_main[BLOCKS], dst_indexer[BLOCKS];
  struct rd2h_plan_request r;
};

static uint32_t random_count(void) {
  static const uint32_t edges[] = {0, 1, 2, 4, 5, 8, 9, 255, 256, 257, 512, 513};
  return rnd(2) ? edges[rnd(RD2H_COUNT(edges))] : rnd(40);
}

/* A request that can be served. */
static void random_request(struct made *m) {
  struct rd2h_plan_request *r = &m->r;
  *r = (struct rd2h_plan_request){.src_main = m->src_main, .src_indexer = m->src_indexer, .dst_main = m->dst_main,
                                  .dst_indexer = m->dst_indexer, .n_src_main = random_count(), .n_src_indexer = random_count(),
                                  .main_start = rnd(20), .indexer_start = rnd(20)};
  r->n_dst_main = r->main_start + r->n_src_main + rnd(3);
  r->n_dst_indexer = r->indexer_start + r->n_src_indexer + rnd(3);
  r->main_floor = rnd(r->main_start + 1);
  r->indexer_floor = rnd(r->indexer_start + 1);
  uint32_t mode = rnd(5), other = rnd(3) ? mode : rnd(5);
  random_ids(m->src_main, r->n_src_main, mode);
  random_ids(m->dst_main, r->n_dst_main, other);
  random_ids(m->src_indexer, r->n_src_indexer, mode);
  random_ids(m->dst_indexer, r->n_dst_indexer, other);
}

static void spoil_id(uint32_t *id, uint32_t n) {
  static const uint32_t bad[] = {IDS, IDS + 1, UINT32_C(0x7fffffff), UINT32_C(0x80000000), UINT32_MAX};
  if (n)
    id[rnd(n)] = bad[rnd(RD2H_COUNT(bad))];
}

static void spoil(struct made *m) {
  struct rd2h_plan_request *r = &m->r;
  switch (rnd(8)) {
  case 0: spoil_id(m->src_main, r->n_src_main); break;
  case 1: spoil_id(m->src_indexer, r->n_src_indexer); break;
  case 2: spoil_id(m->dst_main, r->n_dst_main); break;
  case 3: spoil_id(m->dst_indexer, r->n_dst_indexer); break;
  case 4: r->main_start = rnd(2) ? UINT32_MAX - rnd(3) : r->main_start + 3; break;
  case 5: r->indexer_start = rnd(2) ? UINT32_MAX - rnd(3) : r->indexer_start + 3; break;
  case 6: r->main_floor = r->main_start + 1; break;
  default: r->indexer_floor = r->indexer_start + 1; break;
  }
}

static struct rd2h_share random_share(void) {
  struct rd2h_share s = {.main_ranks = 1 + rnd(8), .ratio = 1 + rnd(8)};
  s.main_rank = rnd(s.main_ranks);
  s.member = rnd(3) ? 0 : rnd(s.ratio);
  return s;
}

/* Several requests into one array, some of them bad: as the oracle says, and nothing else is touched. */
static void t05_equal_to_the_oracle(void **state) {
  (void)state;
  static struct oracle expected;
  static struct made m;
  uint32_t refused = 0, served = 0;
  for (uint32_t round = 0; round < ROUNDS; round++) {
    seed = round * UINT64_C(0x9e3779b97f4a7c15) + 1;
    struct rd2h_link link;
    random_link(&link);
    struct rd2h_share share = random_share();
    struct guarded g;
    guarded_init(&g, 4 * 4 * BLOCKS, rnd(2));
    expected.n = 0, expected.bytes = 0;
    for (uint32_t k = 0; k < 4; k++) {
      random_request(&m);
      if (!rnd(3))
        spoil(&m);
      struct rd2h_error err = {0};
      bool fine = oracle_build(&link, &share, &m.r, &expected);
      int rc = rd2h_plan_build(&link, &share, &m.r, &g.d, &err);
      if (rc != (fine ? RD2H_OK : RD2H_RANGE) || !oracle_equal(&expected, &g.d) || !guarded_intact(&g))
        fail_msg("round %u, request %u: %s, %u descriptors of %u (%s)", round, k, rd2h_status_name(rc), g.d.n, expected.n, err.text);
      served += fine;
      refused += !fine;
    }
    guarded_free(&g);
  }
  assert_true(served > 2 * ROUNDS && refused > ROUNDS / 6);
}

/* How often each destination block of a part is written by one rank. */
static void count_blocks(const struct rd2h_link *link, uint32_t part, const struct rd2h_descs *d, uint32_t *times) {
  const struct rd2h_link_part *p = &link->part[part];
  for (uint32_t i = 0; i < d->n; i++) {
    uint64_t at = (uint64_t)(uintptr_t)d->local[i] - p->dst_base;
    if ((uint64_t)(uintptr_t)d->local[i] < p->dst_base || at >= IDS * p->bytes)
      continue;
    assert_int_equal(at % p->bytes, 0);
    assert_int_equal(d->len[i] % p->bytes, 0);
    for (uint64_t b = at / p->bytes; b < (at + d->len[i]) / p->bytes; b++)
      times[b]++;
  }
}

static void check_times(const uint32_t *times, const uint32_t *dst, uint32_t start, uint32_t n, uint32_t expected) {
  uint64_t sum = 0;
  for (uint32_t b = 0; b < IDS; b++)
    sum += times[b];
  assert_int_equal(sum, (uint64_t)n * expected);
  for (uint32_t j = 0; j < n; j++)
    assert_int_equal(times[dst[start + j]], expected);
}

/* Over all ranks and members every block moves once for main, once per Decode rank for the indexer and its scale. */
static void shares_are_disjoint_and_complete(void **state) {
  (void)state;
  static struct made m;
  static uint32_t times[RD2H_MAX_TENSORS][IDS];
  for (uint32_t round = 0; round < ROUNDS / 10; round++) {
    seed = round * UINT64_C(0x2545f4914f6cdd1d) + 7;
    struct rd2h_link link;
    random_link(&link);
    random_request(&m);
    for (uint32_t i = 0; i < BLOCKS; i++)
      m.dst_main[i] = m.dst_indexer[i] = (i * 7 + (i & 1)) % IDS; /* distinct */
    memset(times, 0, sizeof times);
    struct guarded g;
    guarded_init(&g, 4 * BLOCKS, true);
    struct rd2h_share s = {.main_ranks = 1 + rnd(8), .ratio = 1 + rnd(8)};
    for (s.main_rank = 0; s.main_rank < s.main_ranks; s.main_rank++)
      for (s.member = 0; s.member < s.ratio; s.member++) {
        g.d.n = 0, g.d.bytes = 0;
        assert_int_equal(rd2h_plan_build(&link, &s, &m.r, &g.d, NULL), RD2H_OK);
        for (uint32_t p = 0; p < link.n_parts; p++)
          count_blocks(&link, p, &g.d, times[p]);
      }
    for (uint32_t p = 0; p < link.n_parts; p++) {
      if (link.part[p].component == RD2H_MAIN)
        check_times(times[p], m.dst_main, m.r.main_start, m.r.n_src_main, 1);
      else
        check_times(times[p], m.dst_indexer, m.r.indexer_start, m.r.n_src_indexer, s.main_ranks);
    }
    guarded_free(&g);
  }
}

/* One engine of p ranks to one of d: what all of its ranks send, planned by the Decode ranks that they send it to. */
static void plan_pair(uint32_t p_size, uint32_t d_size, const struct rd2h_link *link, const struct made *m,
                      uint32_t times[RD2H_MAX_TENSORS][IDS]) {
  uint32_t first, count;
  for (uint32_t q = 0; q < p_size; q++) {
    assert_int_equal(rd2h_plan_targets(q, p_size, d_size, &first, &count, NULL), RD2H_OK);
    for (uint32_t rank = first; rank < first + count; rank++) {
      struct rd2h_share s = {.main_rank = rank, .main_ranks = d_size};
      struct guarded g;
      guarded_init(&g, 4 * BLOCKS, true);
      assert_int_equal(rd2h_plan_member(q, p_size, rank, d_size, &s.member, &s.ratio, NULL), RD2H_OK);
      assert_int_equal(rd2h_plan_build(link, &s, &m->r, &g.d, NULL), RD2H_OK);
      for (uint32_t i = 0; i < link->n_parts; i++)
        count_blocks(link, i, &g.d, times[i]);
      guarded_free(&g);
    }
  }
}

/* Every pair of sizes, with and without an indexer, with fewer blocks than ranks and more, from any start. */
static void y03_main_moves_once_the_indexer_once_a_rank(void **state) {
  (void)state;
  static const uint32_t sizes[] = {1, 2, 3, 4, 8};
  static const struct rd2h_link both = {.n_parts = 2, .part = {{0x1000, 0x100000, 16, UINT32_MAX, IDS, RD2H_NONE, RD2H_MAIN},
                                                               {0x9000, 0x900000, 4, UINT32_MAX, IDS, RD2H_NONE, RD2H_INDEXER}}};
  static struct made m;
  static uint32_t times[RD2H_MAX_TENSORS][IDS];
  for (uint32_t i = 0; i < BLOCKS; i++)
    m.src_main[i] = m.src_indexer[i] = m.dst_main[i] = m.dst_indexer[i] = (i * 7) % IDS;
  for (uint32_t c = 0; c < RD2H_COUNT(sizes) * RD2H_COUNT(sizes) * 2 * 18; c++) {
    uint32_t n = c / 2 % 18, p = sizes[c / 36 % RD2H_COUNT(sizes)], d = sizes[c / 36 / RD2H_COUNT(sizes)], start = c % 5;
    struct rd2h_link link = both;
    link.n_parts = 1 + c % 2;
    m.r = (struct rd2h_plan_request){.src_main = m.src_main, .src_indexer = m.src_indexer, .dst_main = m.dst_main,
                                     .dst_indexer = m.dst_indexer, .n_src_main = n, .n_src_indexer = c % 2 ? n : 0,
                                     .main_start = start, .indexer_start = start, .n_dst_main = BLOCKS, .n_dst_indexer = BLOCKS};
    memset(times, 0, sizeof times);
    plan_pair(p, d, &link, &m, times);
    check_times(times[0], m.dst_main, start, n, 1);
    check_times(times[1], m.dst_indexer, start, c % 2 ? n : 0, d);
  }
}

/* ---- single rules, on a link of K and indexer ---- */
static struct rd2h_link simple(void) {
  return (struct rd2h_link){.n_parts = 2, .part = {{0x1000, 0x100000, 16, UINT32_MAX, 64, 3, RD2H_MAIN},
                                                   {0x9000, 0x900000, 4, UINT32_MAX, 64, RD2H_NONE, RD2H_INDEXER}}};
}

static const struct rd2h_share alone = {0, 1, 0, 1};
static const uint32_t some_ids[] = {5, 6, 9, 2, 3, 4};
static struct rd2h_plan_request six(void) {
  return (struct rd2h_plan_request){.src_main = some_ids, .src_indexer = some_ids, .dst_main = some_ids, .dst_indexer = some_ids,
                                    .n_src_main = 6, .n_src_indexer = 6, .n_dst_main = 6, .n_dst_indexer = 6};
}

static void refuse(const struct rd2h_link *link, const struct rd2h_share *s, const struct rd2h_plan_request *r, int status,
                   const char *word) {
  struct guarded g;
  struct rd2h_error err = {0};
  guarded_init(&g, 16, true);
  assert_int_equal(rd2h_plan_build(link, s, r, &g.d, &err), status);
  if (!strstr(err.text, word))
    fail_msg("\"%s\" does not name \"%s\"", err.text, word);
  assert_true(g.d.n == 0 && g.d.bytes == 0 && guarded_intact(&g));
  guarded_free(&g);
}

static void refusals_name_values(void **state) {
  (void)state;
  struct rd2h_link link = simple();
  struct rd2h_plan_request r = six();
  r.n_dst_main = 5;
  refuse(&link, &alone, &r, RD2H_RANGE, "main destination entries 0 to 6 pass the end of the 5");
  r = six(), r.indexer_floor = 1;
  refuse(&link, &alone, &r, RD2H_RANGE, "indexer destination entries begin at 0, but those below 1");
  r = six(), link.part[0].src_blocks = 9;
  refuse(&link, &alone, &r, RD2H_RANGE, "main source block id 9 (entry 2 of the list) is outside the 9");
  link = simple(), link.part[1].dst_blocks = 6;
  refuse(&link, &alone, &r, RD2H_RANGE, "indexer destination block id 6 (entry 1 of the list) is outside the 6");
  link = simple(), link.part[0].src_base = UINT64_MAX - 16 * 9;
  refuse(&link, &alone, &r, RD2H_RANGE, "main source block id 9");
  link = simple(), link.part[1].bytes = 0;
  refuse(&link, &alone, &r, RD2H_INVALID, "0 bytes");
  link = simple(), link.n_parts = 5;
  refuse(&link, &alone, &r, RD2H_INVALID, "5 parts");
}

static void row14_members_and_ranks_outside_are_refused(void **state) {
  (void)state;
  struct rd2h_link link = simple();
  struct rd2h_plan_request r = six();
  refuse(&link, &(struct rd2h_share){0, 1, 2, 2}, &r, RD2H_INVALID, "contributor 2 is not below its group's size 2");
  refuse(&link, &(struct rd2h_share){0, 1, 0, 0}, &r, RD2H_INVALID, "contributor 0");
  refuse(&link, &(struct rd2h_share){3, 3, 0, 1}, &r, RD2H_INVALID, "rank 3 is not below the 3");
  refuse(&link, &(struct rd2h_share){0, 0, 0, 1}, &r, RD2H_INVALID, "rank 0");
}

static void ids_at_the_protocol_limit(void **state) {
  (void)state;
  struct rd2h_link link = simple();
  uint32_t src = INT32_MAX, dst = 1;
  struct rd2h_plan_request r = {.src_main = &src, .n_src_main = 1, .dst_main = &dst, .n_dst_main = 1};
  struct guarded g;
  guarded_init(&g, 1, true);
  assert_int_equal(rd2h_plan_build(&link, &alone, &r, &g.d, NULL), RD2H_OK);
  assert_true(g.d.n == 1 && g.d.remote[0] == 0x1000 + UINT64_C(16) * INT32_MAX && g.d.region[0] == 3);
  guarded_free(&g);
  src++;
  refuse(&link, &alone, &r, RD2H_RANGE, "2147483648");
}

static void row13_nothing_to_read_is_no_failure(void **state) {
  (void)state;
  struct rd2h_link link = simple();
  struct rd2h_plan_request r = {.main_start = 5, .indexer_start = 9};
  struct guarded g;
  guarded_init(&g, 4, true);
  assert_int_equal(rd2h_plan_build(&link, &alone, &r, &g.d, NULL), RD2H_OK);
  assert_true(g.d.n == 0 && g.d.bytes == 0 && guarded_intact(&g));
  guarded_free(&g);
}

static void room_is_exact(void **state) {
  (void)state;
  struct rd2h_link link = simple();
  struct rd2h_plan_request r = six();
  struct guarded g;
  struct rd2h_error err;
  assert_int_equal(rd2h_plan_bound(&link, &r), 12);
  guarded_init(&g, 6, true); /* 3 runs each of main and indexer */
  assert_int_equal(rd2h_plan_build(&link, &alone, &r, &g.d, NULL), RD2H_OK);
  assert_true(g.d.n == 6 && guarded_intact(&g));
  assert_int_equal(rd2h_plan_build(&link, &alone, &r, &g.d, &err), RD2H_LIMIT);
  assert_non_null(strstr(err.text, "12 descriptors are needed, there is room for 6"));
  assert_true(g.d.n == 6 && g.d.bytes == 6 * 20 && guarded_intact(&g));
  guarded_free(&g);
  guarded_init(&g, 5, true);
  assert_int_equal(rd2h_plan_build(&link, &alone, &r, &g.d, &err), RD2H_LIMIT);
  assert_true(g.d.n == 0 && guarded_intact(&g));
  guarded_free(&g);
  guarded_init(&g, 6, true);
  g.d.bytes = UINT64_MAX - 119;
  assert_int_equal(rd2h_plan_build(&link, &alone, &r, &g.d, &err), RD2H_LIMIT);
  assert_non_null(strstr(err.text, "2^64"));
  assert_true(g.d.n == 0 && guarded_intact(&g));
  g.d.bytes--;
  assert_int_equal(rd2h_plan_build(&link, &alone, &r, &g.d, &err), RD2H_OK);
  guarded_free(&g);
}

static void nothing_is_allocated(void **state) {
  (void)state;
  struct rd2h_link link = simple();
  struct rd2h_plan_request r = six();
  struct guarded g;
  guarded_init(&g, 12, true);
  uint64_t before = rd2h_alloc_count();
  assert_int_equal(rd2h_plan_build(&link, &alone, &r, &g.d, NULL), RD2H_OK);
  assert_int_equal(rd2h_alloc_count(), before);
  guarded_free(&g);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(t05_equal_to_the_oracle),
    cmocka_unit_test(shares_are_disjoint_and_complete),
    cmocka_unit_test(y03_main_moves_once_the_indexer_once_a_rank),
    cmocka_unit_test(refusals_name_values),
    cmocka_unit_test(row14_members_and_ranks_outside_are_refused),
    cmocka_unit_test(ids_at_the_protocol_limit),
    cmocka_unit_test(row13_nothing_to_read_is_no_failure),
    cmocka_unit_test(room_is_exact),
    cmocka_unit_test(nothing_is_allocated),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
