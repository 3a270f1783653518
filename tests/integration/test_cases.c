/* SPDX-License-Identifier: Apache-2.0 */
/* Known faults of systems like this one, each a case with its id (tests/cases): what must not happen here. */
#include "tests/integration/raw.h"
#include <setjmp.h>
#include <cmocka.h>
#include <poll.h>

static const struct rig_shape shape = {.layers = 6, .blocks = 64, .indexer_mask = 0x2a};

/* Serves one request to the end and looks at every byte. */
static void serve(struct rig_pair *x, const char *id, uint32_t write) {
  struct rig_request r;
  rig_request(&r, id, 8, 0, 0);
  rig_write_all(&x->src, write);
  rig_install(x->d, &r);
  rig_pair_send(x, &r, 1);
  assert_int_equal(rig_outcome(x->d, id, NULL), RD2H_OK);
  rig_step(x->p, NULL, 0, id);
  assert_int_equal(rig_settled(x->p, id), RD2H_OK);
  rig_expect(&x->dst, &r, write);
}

static void nothing_left(struct rig_pair *x) {
  struct rd2h_decode_stats st;
  rig_decode_stats(x->d, &st);
  assert_int_equal(st.requests + st.quarantined + st.quarantined_blocks + st.reads_in_flight + st.parked_now, 0);
}

/* ---- life of a request ---- */
/* Aborted with half of the layers there, over and over; what Prefill still sends, done included, is skipped and changes nothing. */
static void L01_L02_aborts_give_everything_back(void **state) {
  (void)state;
  enum { TIMES = 100 };
  struct rig_pair x;
  struct rd2h_decode_stats st;
  struct rd2h_outcome o;
  char id[TIMES][16];
  rig_pair_open(&x, &shape, NULL, NULL);
  for (int i = 0; i < TIMES; i++) {
    struct rig_request r;
    struct rd2h_step_send send;
    struct rd2h_error err = {0};
    snprintf(id[i], sizeof id[i], "a%d", i);
    rig_request(&r, id[i], 16, 0, 0);
    rig_install(x.d, &r);
    rig_send(&send, &r, rd2h_decode_port(x.d), 0, 16, true);
    rig_step(x.p, &send, 1, NULL);
    rig_layers(x.p, 3);
    assert_int_equal(rd2h_decode_abort(x.d, id[i]), RD2H_OK);
    assert_int_equal(rig_outcome(x.d, id[i], NULL), RD2H_ABORTED);
    for (uint32_t l = 3; l < shape.layers; l++)
      RIG_OK(rd2h_prefill_layer(x.p, l, &err), &err);
    rig_step(x.p, NULL, 0, id[i]);
    assert_true(rig_settled(x.p, id[i]) != RD2H_OK);
  }
  serve(&x, "after", 1);
  for (int i = 0; i < 1000; i++)
    assert_int_equal(rd2h_decode_collect(x.d, &o, 1), 0);
  nothing_left(&x);
  rig_decode_stats(x.d, &st);
  assert_int_equal(st.completed, 1);
  assert_true(st.aborted >= TIMES);
  rig_pair_close(&x);
}

/* One of two requests of the same messages is aborted on Decode: Prefill raises nothing, not even when it is told to raise. */
static void L04_abort_spares_prefill(void **state) {
  (void)state;
  struct rig_pair x;
  struct rig_request r[2];
  struct rd2h_error err = {0};
  rig_pair_open(&x, &shape, &(struct rd2h_prefill_opts){.on_read_failure = RD2H_RAISE},
                &(struct rd2h_decode_opts){.engine = "fault:local,delay_ms=20"});
  rig_write_all(&x.src, 2);
  rig_request(&r[0], "A", 6, 0, 0);
  rig_request(&r[1], "B", 6, 20, 20);
  for (int i = 0; i < 2; i++)
    rig_install(x.d, &r[i]);
  rig_pair_send(&x, r, 2);
  assert_int_equal(rd2h_decode_abort(x.d, "A"), RD2H_OK);
  for (uint32_t l = 0; l < shape.layers; l++)
    RIG_OK(rd2h_prefill_wait_layer(x.p, l, RIG_WAIT_MS, &err), &err);
  assert_int_equal(rig_outcome(x.d, "A", NULL), RD2H_ABORTED);
  assert_int_equal(rig_outcome(x.d, "B", NULL), RD2H_OK);
  rig_expect(&x.dst, &r[1], 2);
  serve(&x, "C", 3);
  nothing_left(&x);
  rig_pair_close(&x);
}

/* A request that was given fewer blocks than it needs fails, with both numbers; small ones are served. */
static void L13_too_large_a_request(void **state) {
  (void)state;
  struct rig_pair x;
  struct rig_request r;
  char text[RD2H_ERROR_TEXT];
  rig_pair_open(&x, &shape, NULL, NULL);
  rig_request(&r, "large", 40, 0, 0); /* entries reach past the cache's 64 blocks */
  rig_install(x.d, &r);
  assert_int_equal(rig_outcome(x.d, "large", text), RD2H_RANGE);
  assert_non_null(strstr(text, "64"));
  serve(&x, "small", 1);
  rig_pair_close(&x);
}

/* Prefill is ready long before Decode's worker knows the destinations. */
static void L14_early_ready_is_parked(void **state) {
  (void)state;
  static char text[1 << 14];
  struct rig_pair x;
  struct rig_request r;
  struct rd2h_decode_stats st;
  rig_pair_open(&x, &shape, NULL, &(struct rd2h_decode_opts){.park_ms = 60000});
  rig_write_all(&x.src, 4);
  rig_request(&r, "early", 1, 3, 5);
  rig_pair_send(&x, &r, 1);
  do
    rd2h_decode_dump(x.d, text, sizeof text);
  while (!strstr(text, "6 messages parked"));
  assert_non_null(strstr(text, " by local, process_vm_readv): ready"));
  rig_install(x.d, &r);
  assert_int_equal(rig_outcome(x.d, "early", NULL), RD2H_OK);
  rig_expect(&x.dst, &r, 4);
  rig_decode_stats(x.d, &st);
  assert_int_equal(st.parked, shape.layers);
  rig_pair_close(&x);
}

/* ---- peers ---- */
/* A reader that is slow but alive keeps its source for as long as it takes; only silence ends it (D06_decode_stops, test_deaths). */
static void D06_slow_reader_is_no_dead_one(void **state) {
  (void)state;
  struct rig_pair x;
  struct rd2h_prefill_stats st;
  rig_pair_open(&x, &shape, &(struct rd2h_prefill_opts){.liveness_ms = 400},
                &(struct rd2h_decode_opts){.engine = "fault:local,delay_ms=1200"});
  serve(&x, "slow", 1);
  rd2h_prefill_stats(x.p, &st);
  assert_int_equal(st.epochs_lost + st.given_up + st.failed_expired + st.failed_peer_lost, 0);
  rig_pair_close(&x);
}

/* Every 16th read fails: each request is whole or failed, nothing else, and Prefill never waits. */
static void D07_failed_reads_are_told(void **state) {
  (void)state;
  enum { REQUESTS = 200 };
  struct rig_pair x;
  struct rd2h_error err = {0};
  struct rd2h_decode_stats st;
  uint32_t failed = 0;
  char id[8];
  rig_pair_open(&x, &shape, NULL, &(struct rd2h_decode_opts){.engine = "fault:local,fail_every=16"});
  for (uint32_t i = 0; i < REQUESTS; i++) {
    struct rig_request r;
    snprintf(id, sizeof id, "q%u", i);
    rig_request(&r, id, 2 + i % 7, i % 8, i % 16);
    for (uint32_t l = 0; l < shape.layers; l++)
      RIG_OK(rd2h_prefill_wait_layer(x.p, l, RIG_WAIT_MS, &err), &err);
    memset((void *)(uintptr_t)x.dst.area.base, RIG_CANARY, x.dst.area.len);
    rig_write_all(&x.src, i);
    rig_install(x.d, &r);
    rig_pair_send(&x, &r, 1);
    int status = rig_outcome(x.d, id, NULL);
    assert_true(status == RD2H_OK || status == RD2H_IO);
    if (status == RD2H_OK)
      rig_expect(&x.dst, &r, i);
    failed += status != RD2H_OK;
    rig_step(x.p, NULL, 0, id);
    assert_int_equal(rig_settled(x.p, id) == RD2H_OK, status == RD2H_OK);
  }
  rig_decode_stats(x.d, &st);
  assert_int_equal(st.failed_transport, failed);
  assert_true(failed > REQUESTS / 8 && failed < REQUESTS);
  nothing_left(&x);
  rig_pair_close(&x);
}

/* A Decode that takes the connection and then says nothing: readers beside it notice nothing. */
static void D11_T06_silent_decode_blocks_nobody(void **state) {
  (void)state;
  struct rig_pair x;
  struct raw silent;
  struct rig_request r;
  struct rd2h_step_send send;
  rig_pair_open(&x, &shape, &(struct rd2h_prefill_opts){.handshake_ms = 3000}, NULL);
  raw_decode(&silent, NULL);
  rig_request(&r, "silent", 4, 0, 0);
  rig_send(&send, &r, silent.port, 0, 4, true);
  rig_step(x.p, &send, 1, NULL);
  rig_layers(x.p, shape.layers);
  uint64_t begun = rd2h_now_ns();
  for (int i = 0; i < 10; i++) {
    char id[16];
    snprintf(id, sizeof id, "h%d", i);
    struct rig_request q;
    rig_request(&q, id, 8, 0, 0);
    rig_install(x.d, &q);
    rig_pair_send(&x, &q, 1);
    assert_int_equal(rig_outcome(x.d, id, NULL), RD2H_OK);
  }
  assert_true(rd2h_now_ns() - begun < 2000 * RD2H_MS); /* the handshake beside it takes three seconds */
  rig_step(x.p, NULL, 0, "silent");
  assert_int_equal(rig_settled(x.p, "silent"), RD2H_TIMEOUT);
  raw_close(&silent);
  rig_pair_close(&x);
}

/* 200 requests at once, nine of ten aborted at once on either side: the others are whole, nothing stays. */
static void D12_abort_storm(void **state) {
  (void)state;
  enum { REQUESTS = 200, AT_ONCE = 10 };
  struct rig_pair x;
  char id[REQUESTS][16];
  struct rig_request r[REQUESTS];
  rig_pair_open(&x, &shape, NULL, NULL);
  rig_write_all(&x.src, 9);
  for (uint32_t i = 0; i < REQUESTS; i++) {
    snprintf(id[i], sizeof id[i], "s%u", i);
    rig_request(&r[i], id[i], 1, i % 20, i % AT_ONCE ? 40 + 2 * (i % AT_ONCE) : 2 * i / AT_ONCE);
    rig_install(x.d, &r[i]);
  }
  for (uint32_t i = 0; i < REQUESTS; i += AT_ONCE) {
    rig_pair_send(&x, &r[i], AT_ONCE);
    for (uint32_t k = 1; k < AT_ONCE; k++) {
      if (k % 2)
        rd2h_decode_abort(x.d, id[i + k]);
      rig_step(x.p, NULL, 0, id[i + k]);
    }
  }
  for (uint32_t i = 0; i < REQUESTS; i++) {
    int status = rig_outcome(x.d, id[i], NULL);
    assert_true(status == RD2H_OK || (i % AT_ONCE && status == RD2H_ABORTED));
    if (!(i % AT_ONCE))
      rig_step(x.p, NULL, 0, id[i]);
    rig_settled(x.p, id[i]);
  }
  for (uint32_t i = 0; i < REQUESTS; i += AT_ONCE)
    rig_expect(&x.dst, &r[i], 9);
  nothing_left(&x);
  memset((void *)(uintptr_t)x.dst.area.base, RIG_CANARY, x.dst.area.len);
  serve(&x, "after", 10);
  rig_pair_close(&x);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(L01_L02_aborts_give_everything_back), cmocka_unit_test(L04_abort_spares_prefill),
      cmocka_unit_test(L13_too_large_a_request),             cmocka_unit_test(L14_early_ready_is_parked),
      cmocka_unit_test(D06_slow_reader_is_no_dead_one),      cmocka_unit_test(D07_failed_reads_are_told),
      cmocka_unit_test(D11_T06_silent_decode_blocks_nobody), cmocka_unit_test(D12_abort_storm),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
