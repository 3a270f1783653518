/* SPDX-License-Identifier: Apache-2.0 */
/* Digests of what is read: damage on the way and at the source is found, ends what it must and nothing else; who does not want them
 * pays nothing. */
#include "tests/integration/rig.h"
#include <setjmp.h>
#include <cmocka.h>

#define TENSORS 4u /* of a layer with an indexer */
#define DAMAGE "fault:local,corrupt_every=1"

static void open_pair(struct rig_pair *x, uint32_t layers, enum rd2h_digest prefill, const struct rd2h_decode_opts *o) {
  const struct rig_shape shape = {.layers = layers, .blocks = 64, .indexer_mask = 0xff};
  rig_pair_open(x, &shape, &(struct rd2h_prefill_opts){.digest = prefill}, o);
  rig_write_all(&x->src, 1);
}

static void expect_counts(struct rig_pair *x, uint64_t checked, uint64_t wrong, uint64_t missing) {
  struct rd2h_decode_stats st;
  rig_decode_stats(x->d, &st);
  assert_int_equal(st.digests_checked, checked);
  assert_int_equal(st.digests_wrong, wrong);
  assert_int_equal(st.digests_missing, missing);
}

/* Three layers of five blocks and four tensors; main KV whole, then the second half of it alone. */
static void what_is_read_is_checked(void **state) {
  (void)state;
  struct rig_pair x;
  struct rig_request r;
  for (uint32_t ranks = 1; ranks <= 2; ranks++) {
    open_pair(&x, 3, RD2H_DIGEST_LOG,
              &(struct rd2h_decode_opts){.digest = RD2H_DIGEST_FAIL, .main_rank = ranks - 1, .main_ranks = ranks});
    rig_request(&r, "clean", 5, 3, 20);
    rig_install(x.d, &r);
    rig_pair_send(&x, &r, 1);
    assert_int_equal(rig_outcome(x.d, "clean", NULL), RD2H_OK);
    struct rd2h_decode_stats st;
    rig_decode_stats(x.d, &st);
    if (ranks == 1) {
      rig_expect(&x.dst, &r, 1);
      assert_int_equal(st.digests_checked, 3 * TENSORS * r.n);
    } else {
      assert_true(st.digests_checked >= 3 * (2 * 2 + 2 * r.n) && st.digests_checked <= 3 * (2 * 3 + 2 * r.n));
    }
    assert_int_equal(st.digests_wrong + st.digests_missing, 0);
    rig_pair_close(&x);
  }
}

static void log_counts_and_goes_on(void **state) {
  (void)state;
  struct rig_pair x;
  struct rig_request r;
  open_pair(&x, 2, RD2H_DIGEST_LOG, &(struct rd2h_decode_opts){.digest = RD2H_DIGEST_LOG, .engine = DAMAGE});
  rig_request(&r, "damaged", 4, 0, 0);
  rig_install(x.d, &r);
  rig_pair_send(&x, &r, 1);
  assert_int_equal(rig_outcome(x.d, "damaged", NULL), RD2H_OK);
  expect_counts(&x, 2 * TENSORS * 4, 2, 0);
  rig_pair_close(&x);
}

/* The first request of the message is damaged, the second is not. */
static void fail_ends_the_damaged_one_alone(void **state) {
  (void)state;
  struct rig_pair x;
  struct rig_request r[2];
  struct rd2h_decode_stats st;
  char text[RD2H_ERROR_TEXT];
  open_pair(&x, 1, RD2H_DIGEST_FAIL, &(struct rd2h_decode_opts){.digest = RD2H_DIGEST_FAIL, .engine = DAMAGE});
  rig_request(&r[0], "damaged", 4, 7, 0);
  rig_request(&r[1], "whole", 6, 20, 30);
  for (int i = 0; i < 2; i++)
    rig_install(x.d, &r[i]);
  rig_pair_send(&x, r, 2);
  assert_int_equal(rig_outcome(x.d, "damaged", text), RD2H_IO);
  assert_non_null(strstr(text, "model.layers.0"));
  assert_non_null(strstr(text, "tensor 0: block 7 "));
  assert_int_equal(rig_outcome(x.d, "whole", NULL), RD2H_OK);
  rig_expect(&x.dst, &r[1], 1);
  rig_decode_stats(x.d, &st);
  assert_int_equal(st.digests_wrong, 2); /* it was read twice */
  assert_int_equal(st.retried, 1);
  assert_int_equal(st.failed_transport, 1);
  assert_int_equal(st.completed, 1);
  rig_step(x.p, NULL, 0, "whole");
  assert_int_equal(rig_settled(x.p, "whole"), RD2H_OK);
  rig_step(x.p, NULL, 0, "damaged");
  assert_true(rig_settled(x.p, "damaged") != RD2H_OK);
  rig_pair_close(&x);
}

/* Damage that does not come again ends nothing: the second of two messages is read a second time, and is right then. */
static void damage_on_the_way_is_read_again(void **state) {
  (void)state;
  struct rig_pair x;
  struct rig_request r;
  struct rd2h_decode_stats st;
  open_pair(&x, 2, RD2H_DIGEST_FAIL, &(struct rd2h_decode_opts){.digest = RD2H_DIGEST_FAIL, .engine = "fault:local,corrupt_every=2"});
  rig_request(&r, "once", 4, 7, 0);
  rig_install(x.d, &r);
  rig_pair_send(&x, &r, 1);
  assert_int_equal(rig_outcome(x.d, "once", NULL), RD2H_OK);
  rig_expect(&x.dst, &r, 1);
  rig_decode_stats(x.d, &st);
  assert_int_equal(st.retried, 1);
  expect_counts(&x, 3 * TENSORS * 4, 1, 0);
  rig_pair_close(&x);
}

/* The message waits for its destinations while a byte of the source changes that nobody may write. */
static void damage_at_the_source(void **state) {
  (void)state;
  struct rig_pair x;
  struct rig_request r;
  struct rd2h_prefill_stats st;
  char text[RD2H_ERROR_TEXT];
  open_pair(&x, 1, RD2H_DIGEST_FAIL, &(struct rd2h_decode_opts){.digest = RD2H_DIGEST_FAIL, .park_ms = RIG_WAIT_MS});
  rig_request(&r, "late", 3, 10, 0);
  rig_pair_send(&x, &r, 1);
  do
    rd2h_prefill_stats(x.p, &st);
  while (st.digests < TENSORS * 3);
  rig_block(&x.src, 0, 2, 12)[5] ^= 0x40;
  rig_install(x.d, &r);
  assert_int_equal(rig_outcome(x.d, "late", text), RD2H_IO);
  assert_non_null(strstr(text, "tensor 2: block 12 "));
  rig_pair_close(&x);
}

/* Either side alone: nothing is made, or nothing is checked and that is counted; all goes on. */
static void one_side_alone(void **state) {
  (void)state;
  struct rig_pair x;
  struct rig_request r;
  struct rd2h_prefill_stats st;
  static const struct {
    enum rd2h_digest prefill, decode;
    uint64_t missing;
  } rows[] = {{RD2H_DIGEST_OFF, RD2H_DIGEST_OFF, 0}, {RD2H_DIGEST_FAIL, RD2H_DIGEST_OFF, 0}, {RD2H_DIGEST_OFF, RD2H_DIGEST_FAIL, 2}};
  for (size_t i = 0; i < RD2H_COUNT(rows); i++) {
    open_pair(&x, 2, rows[i].prefill, &(struct rd2h_decode_opts){.digest = rows[i].decode});
    rig_request(&r, "alone", 4, 0, 0);
    rig_install(x.d, &r);
    rig_pair_send(&x, &r, 1);
    assert_int_equal(rig_outcome(x.d, "alone", NULL), RD2H_OK);
    rig_expect(&x.dst, &r, 1);
    expect_counts(&x, 0, 0, rows[i].missing);
    rd2h_prefill_stats(x.p, &st);
    assert_int_equal(st.digests, 0);
    rig_pair_close(&x);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_is_read_is_checked), cmocka_unit_test(log_counts_and_goes_on),
      cmocka_unit_test(fail_ends_the_damaged_one_alone), cmocka_unit_test(damage_at_the_source),
      cmocka_unit_test(damage_on_the_way_is_read_again),
      cmocka_unit_test(one_side_alone),
  };
  return cmocka_run_group_tests_name("digests", tests, NULL, NULL);
}
