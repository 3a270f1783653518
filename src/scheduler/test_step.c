/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/test_support.h"

#define STR(s) {s, sizeof(s) - 1}

static struct rd2h_step_send sends[] = {
  {.id = STR("cmpl-a-0-00000001"), .ext_id = STR("cmpl-a-0"), .host = STR("10.0.0.2"), .base_port = 7000, .d_tp = 4,
   .engine_id = STR("engine-7/00"), .has_attempt = true, .has_dspark = true, .attempt = {1, 2, 3, 16},
   .main = (const uint32_t[]){0, 127, 128, 65536, INT32_MAX}, .n_main = 5, .indexer = (const uint32_t[]){9}, .n_indexer = 1,
   .main_start = 4, .indexer_start = 300, .last = true},
  {.id = STR("x"), .ext_id = STR("x"), .host = STR("::1"), .base_port = 65535, .engine_id = STR(""), .last = false},
};
static struct rd2h_step_ref finished[] = {{STR("f1"), true}, {STR("f2"), false}}, preempted[] = {{STR("p"), true}};
static const struct rd2h_prefill_step_view prefill_view = {2, 2, 1, sends, finished, preempted};

static struct rd2h_step_install installs[] = {
  {.id = STR("i-12345678"), .ext_id = STR("i"), .attempt = {7, 7}, .main = (const uint32_t[]){5, 6}, .n_main = 2,
   .indexer = (const uint32_t[]){1, 2, 3}, .n_indexer = 3, .main_floor = 1, .indexer_floor = 2, .main_need = 2,
   .indexer_need = 3},
};
static struct rd2h_step_end ends[] = {{STR("e1"), true, RD2H_ABORTED, STR("over")}, {STR("e2"), false, RD2H_REFUSED, STR("404")}};
static struct rd2h_str answered[] = {STR("i-12345678")};
static const struct rd2h_decode_step_view decode_view = {1, 2, 1, installs, ends, answered};

static bool same(struct rd2h_str a, struct rd2h_str b) {
  return a.n == b.n && !memcmp(a.p, b.p, a.n);
}

static void assert_send(const struct rd2h_step_send *a, const struct rd2h_step_send *b) {
  assert_true(same(a->id, b->id) && same(a->ext_id, b->ext_id) && same(a->host, b->host) && same(a->engine_id, b->engine_id));
  assert_int_equal(a->base_port, b->base_port);
  assert_int_equal(a->d_tp, b->d_tp);
  assert_int_equal(a->has_attempt, b->has_attempt);
  assert_int_equal(a->has_dspark, b->has_dspark);
  assert_int_equal(a->last, b->last);
  assert_memory_equal(a->attempt, b->attempt, RD2H_ATTEMPT_LEN);
  assert_int_equal(a->main_start, b->main_start);
  assert_int_equal(a->indexer_start, b->indexer_start);
  assert_ids(a->main, a->n_main, b->main, b->n_main);
  assert_ids(a->indexer, a->n_indexer, b->indexer, b->n_indexer);
}

static void assert_refs(const struct rd2h_step_ref *a, const struct rd2h_step_ref *b, uint32_t n) {
  for (uint32_t i = 0; i < n; i++)
    assert_true(same(a[i].id, b[i].id) && a[i].aborted == b[i].aborted);
}

static void test_prefill_round_trip(void **state) {
  struct rd2h_buf b = {0};
  struct rd2h_arena arena = {0};
  struct rd2h_prefill_step_view v;
  (void)state;
  rd2h_step_encode_prefill(&b, &prefill_view);
  assert_int_equal(rd2h_step_decode_prefill(b.p, b.len, &arena, &v, NULL), RD2H_OK);
  assert_int_equal(v.n_send, 2);
  assert_int_equal(v.n_finished, 2);
  assert_int_equal(v.n_preempted, 1);
  for (uint32_t i = 0; i < 2; i++)
    assert_send(&v.send[i], &sends[i]);
  assert_refs(v.finished, finished, 2);
  assert_refs(v.preempted, preempted, 1);
  rd2h_buf_free(&b);
  rd2h_arena_free(&arena);
}

static void test_decode_round_trip(void **state) {
  struct rd2h_buf b = {0};
  struct rd2h_arena arena = {0};
  struct rd2h_decode_step_view v;
  (void)state;
  rd2h_step_encode_decode(&b, &decode_view);
  assert_int_equal(rd2h_step_decode_decode(b.p, b.len, &arena, &v, NULL), RD2H_OK);
  assert_int_equal(v.n_install, 1);
  assert_int_equal(v.n_end, 2);
  assert_int_equal(v.n_answered, 1);
  assert_true(same(v.answered[0], answered[0]));
  const struct rd2h_step_install *a = &v.install[0], *w = &installs[0];
  assert_true(same(a->id, w->id) && same(a->ext_id, w->ext_id));
  assert_memory_equal(a->attempt, w->attempt, RD2H_ATTEMPT_LEN);
  assert_ids(a->main, a->n_main, w->main, w->n_main);
  assert_ids(a->indexer, a->n_indexer, w->indexer, w->n_indexer);
  assert_int_equal(a->main_floor, 1);
  assert_int_equal(a->indexer_floor, 2);
  assert_int_equal(a->main_need, 2);
  assert_int_equal(a->indexer_need, 3);
  for (uint32_t i = 0; i < 2; i++) {
    assert_true(same(v.end[i].id, ends[i].id) && same(v.end[i].text, ends[i].text));
    assert_int_equal(v.end[i].status, ends[i].status);
    assert_int_equal(v.end[i].installed, ends[i].installed);
  }
  rd2h_buf_free(&b);
  rd2h_arena_free(&arena);
}

static void test_empty(void **state) {
  struct rd2h_buf b = {0};
  struct rd2h_arena arena = {0};
  struct rd2h_prefill_step_view p = {.n_send = 9};
  struct rd2h_decode_step_view d = {.n_end = 9};
  (void)state;
  rd2h_step_encode_prefill(&b, &(struct rd2h_prefill_step_view){0});
  rd2h_step_encode_decode(&b, &(struct rd2h_decode_step_view){0});
  assert_int_equal(b.len, 0);
  assert_int_equal(rd2h_step_decode_prefill(NULL, 0, &arena, &p, NULL), RD2H_OK);
  assert_int_equal(rd2h_step_decode_decode(NULL, 0, &arena, &d, NULL), RD2H_OK);
  assert_int_equal(p.n_send + p.n_finished + p.n_preempted + d.n_install + d.n_end + d.n_answered, 0);
}

/* An exact copy on the heap, so that a sanitizer sees one byte too many. */
static int decode_exactly(const struct rd2h_buf *b, size_t n, bool prefill, struct rd2h_arena *arena) {
  struct rd2h_prefill_step_view p;
  struct rd2h_decode_step_view d;
  uint8_t *copy = malloc(n ? n : 1);
  memcpy(copy, b->p, n);
  int rc = prefill ? rd2h_step_decode_prefill(copy, n, arena, &p, NULL) : rd2h_step_decode_decode(copy, n, arena, &d, NULL);
  free(copy);
  return rc;
}

static void encode(struct rd2h_buf *b, bool prefill) {
  rd2h_buf_reset(b);
  if (prefill)
    rd2h_step_encode_prefill(b, &prefill_view);
  else
    rd2h_step_encode_decode(b, &decode_view);
}

static void test_every_cut(void **state) {
  struct rd2h_buf b = {0};
  struct rd2h_arena arena = {0};
  (void)state;
  for (int prefill = 0; prefill < 2; prefill++) {
    encode(&b, prefill);
    for (size_t n = 1; n < b.len; n++)
      assert_int_equal(decode_exactly(&b, n, prefill, &arena), RD2H_MALFORMED);
    rd2h_buf_put(&b, "", 1); /* and one byte too many */
    assert_int_equal(decode_exactly(&b, b.len, prefill, &arena), RD2H_MALFORMED);
  }
  rd2h_buf_free(&b);
  rd2h_arena_free(&arena);
}

static void test_every_byte_changed(void **state) {
  struct rd2h_buf b = {0};
  struct rd2h_arena arena = {0};
  (void)state;
  for (int prefill = 0; prefill < 2; prefill++) {
    encode(&b, prefill);
    for (size_t i = 0; i < b.len; i++) {
      uint8_t was = b.p[i];
      for (unsigned v = 0; v < 256; v += 3) {
        b.p[i] = (uint8_t)v;
        int rc = decode_exactly(&b, b.len, prefill, &arena);
        assert_true(rc == RD2H_OK || rc == RD2H_MALFORMED || rc == RD2H_UNSUPPORTED);
      }
      b.p[i] = was;
    }
    assert_int_equal(decode_exactly(&b, b.len, prefill, &arena), RD2H_OK);
  }
  rd2h_buf_free(&b);
  rd2h_arena_free(&arena);
}

static void test_other_revision_and_kind(void **state) {
  struct rd2h_buf b = {0};
  struct rd2h_arena arena = {0};
  struct rd2h_prefill_step_view p;
  struct rd2h_decode_step_view d;
  struct rd2h_error e;
  (void)state;
  encode(&b, true);
  assert_int_equal(rd2h_step_decode_decode(b.p, b.len, &arena, &d, &e), RD2H_MALFORMED);
  assert_says(&e, "Decode step: these are the bytes of a Prefill step");
  b.p[1] = RD2H_STEP_REVISION + 1;
  assert_int_equal(rd2h_step_decode_prefill(b.p, b.len, &arena, &p, &e), RD2H_UNSUPPORTED);
  assert_says(&e, "revision 3, this library reads 2");
  assert_int_equal(rd2h_step_decode_prefill((const uint8_t *)"\x91\x09", 2, &arena, &p, &e), RD2H_UNSUPPORTED);
  rd2h_buf_free(&b);
  rd2h_arena_free(&arena);
}

/* Counts that the payload cannot hold reserve nothing. */
static void test_lying_counts(void **state) {
  static const uint8_t many_sends[] = {0x96, 2, 1, 0xce, 255, 255, 255, 255, 0, 0, 0},
                       many_ids[] = {0x96, 2, 1, 0, 0, 0, 0xce, 255, 255, 255, 255},
                       many_ends[] = {0x96, 2, 2, 0, 0xce, 0, 1, 0, 0, 0, 0}, many_answers[] = {0x96, 2, 2, 0, 0, 0xce, 0, 1, 0, 0, 0},
                       ids_left[] = {0x96, 2, 2, 0, 1, 0, 1, 0x94, 0xa1, 'e', 0xc2, 18, 0xa0};
  struct rd2h_arena arena = {0};
  struct rd2h_prefill_step_view p;
  struct rd2h_decode_step_view d;
  (void)state;
  assert_int_equal(rd2h_step_decode_prefill(many_sends, sizeof many_sends, &arena, &p, NULL), RD2H_MALFORMED);
  assert_int_equal(rd2h_step_decode_prefill(many_ids, sizeof many_ids, &arena, &p, NULL), RD2H_MALFORMED);
  assert_int_equal(rd2h_step_decode_decode(many_ends, sizeof many_ends, &arena, &d, NULL), RD2H_MALFORMED);
  assert_int_equal(rd2h_step_decode_decode(many_answers, sizeof many_answers, &arena, &d, NULL), RD2H_MALFORMED);
  assert_null(arena.p);
  assert_int_equal(rd2h_step_decode_decode(ids_left, sizeof ids_left, &arena, &d, NULL), RD2H_MALFORMED);
  rd2h_arena_free(&arena);
}

static void test_out_of_memory(void **state) {
  struct rd2h_buf b = {0};
  struct rd2h_arena arena = {0};
  struct rd2h_prefill_step_view p;
  struct rd2h_error e;
  (void)state;
  rd2h_alloc_fail_at(1);
  encode(&b, true);
  assert_true(b.failed);
  encode(&b, true);
  rd2h_alloc_fail_at(1);
  assert_int_equal(rd2h_step_decode_prefill(b.p, b.len, &arena, &p, &e), RD2H_NOMEM);
  rd2h_alloc_fail_at(0);
  rd2h_buf_free(&b);
  rd2h_arena_free(&arena);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_prefill_round_trip), cmocka_unit_test(test_decode_round_trip), cmocka_unit_test(test_empty),
    cmocka_unit_test(test_every_cut), cmocka_unit_test(test_every_byte_changed), cmocka_unit_test(test_other_revision_and_kind),
    cmocka_unit_test(test_lying_counts), cmocka_unit_test(test_out_of_memory),
  };
  return cmocka_run_group_tests_name("step codec", tests, NULL, NULL);
}
