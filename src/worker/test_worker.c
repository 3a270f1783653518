/* SPDX-License-Identifier: Apache-2.0 */
/* The workers with real sockets and real bytes, both ranks in this process. */
#include "tests/integration/rig.h"
#include <setjmp.h>
#include <cmocka.h>
#include <poll.h>

/* ---- bytes ---- */
static void one_layer(void **state) {
  (void)state;
  struct rig_pair x;
  struct rig_request r;
  struct rd2h_step_send send;
  rig_pair_open(&x, &(struct rig_shape){.layers = 1, .blocks = 32, .indexer_mask = 1}, NULL, NULL);
  rig_request(&r, "req-1", 5, 3, 10);
  rig_write(&x.src, 0, 1);
  rig_install(x.d, &r);
  rig_send(&send, &r, rd2h_decode_port(x.d), 0, 5, true);
  rig_step(x.p, &send, 1, NULL);
  rig_layers(x.p, 1);
  assert_int_equal(rig_outcome(x.d, "req-1", NULL), RD2H_OK);
  rig_expect(&x.dst, &r, 1);
  rig_step(x.p, NULL, 0, "req-1");
  assert_int_equal(rig_settled(x.p, "req-1"), RD2H_OK);
  rig_pair_close(&x);
}

/* Three requests in chunks of their own sizes; only some layers have an indexer. */
static void chunks_and_requests(void **state) {
  (void)state;
  struct rig_pair x;
  struct rig_request r[3];
  struct rd2h_step_send send[3];
  rig_pair_open(&x, &(struct rig_shape){.layers = 6, .blocks = 128, .indexer_mask = 0x15}, NULL, NULL);
  uint16_t port = rd2h_decode_port(x.d);
  rig_request(&r[0], "a", 9, 0, 40);
  rig_request(&r[1], "b", 4, 30, 2);
  rig_request(&r[2], "c", 1, 60, 100);
  for (int i = 0; i < 3; i++)
    rig_install(x.d, &r[i]);
  rig_write_all(&x.src, 1);
  rig_send(&send[0], &r[0], port, 0, 4, false);
  rig_send(&send[1], &r[1], port, 0, 4, true);
  rig_step(x.p, send, 2, NULL);
  rig_layers(x.p, 6);
  rig_send(&send[0], &r[0], port, 4, 8, false);
  rig_step(x.p, send, 1, NULL);
  rig_layers(x.p, 6);
  rig_send(&send[0], &r[0], port, 8, 9, true);
  rig_send(&send[1], &r[2], port, 0, 1, true);
  rig_step(x.p, send, 2, "b");
  rig_layers(x.p, 6);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(rig_outcome(x.d, r[i].id, NULL), RD2H_OK);
    rig_expect(&x.dst, &r[i], 1);
  }
  assert_int_equal(rig_settled(x.p, "b"), RD2H_OK);
  rig_pair_close(&x);
}

/* Two storage slots for eight layers: the caller overwrites a slot as soon as its gate is open. */
static void gate_holds_sources(void **state) {
  (void)state;
  struct rig_pair x;
  struct rig_request r;
  struct rd2h_step_send send;
  rig_pair_open(&x, &(struct rig_shape){.layers = 8, .blocks = 128, .slots = 2, .indexer_mask = 0xff},
                &(struct rd2h_prefill_opts){.on_read_failure = RD2H_RAISE},
                &(struct rd2h_decode_opts){.engine = "fault:local,delay_ms=2"});
  rig_request(&r, "ring", 40, 0, 0);
  rig_install(x.d, &r);
  for (uint32_t chunk = 0; chunk < 4; chunk++) {
    rig_send(&send, &r, rd2h_decode_port(x.d), chunk * 10, chunk * 10 + 10, chunk == 3);
    rig_step(x.p, &send, 1, NULL);
    rig_produce(x.p, &x.src, 7);
  }
  assert_int_equal(rig_outcome(x.d, "ring", NULL), RD2H_OK);
  rig_expect(&x.dst, &r, 7);
  rig_pair_close(&x);
}

static void wait_layer_is_bounded(void **state) {
  (void)state;
  struct rig_pair x;
  struct rig_request r;
  struct rd2h_step_send send;
  struct rd2h_error err = {0};
  struct rd2h_prefill_stats st;
  rig_pair_open(&x, &(struct rig_shape){.layers = 2, .blocks = 8}, &(struct rd2h_prefill_opts){.settle_ms = 1},
                &(struct rd2h_decode_opts){.engine = "fault:local,hang_every=1", .progress_ms = 60000});
  rig_request(&r, "slow", 2, 0, 0);
  rig_install(x.d, &r);
  rig_send(&send, &r, rd2h_decode_port(x.d), 0, 2, true);
  rig_step(x.p, &send, 1, NULL);
  RIG_OK(rd2h_prefill_layer(x.p, 1, &err), &err);
  assert_int_equal(rd2h_prefill_wait_layer(x.p, 0, 20, &err), RD2H_OK);
  assert_int_equal(rd2h_prefill_wait_layer(x.p, 1, 20, &err), RD2H_TIMEOUT);
  assert_non_null(strstr(err.text, "model.layers.1.self_attn.attn"));
  rd2h_prefill_stats(x.p, &st);
  assert_int_equal(st.slots_closed, 1);
  assert_int_equal(rd2h_prefill_wait_layer(x.p, 2, 20, &err), RD2H_RANGE);
  rig_pair_close(&x);
}

static void preemption_waits_for_its_requests(void **state) {
  (void)state;
  struct rig_pair x;
  struct rig_request r;
  struct rd2h_step_send send;
  struct rd2h_error err = {0};
  struct rd2h_buf b = {0}, other = {0};
  struct rd2h_step_ref gone = {.id = {"victim", 6}}, stranger = {.id = {"someone", 7}};
  rig_pair_open(&x, &(struct rig_shape){.layers = 1, .blocks = 8}, &(struct rd2h_prefill_opts){.settle_ms = 1},
                &(struct rd2h_decode_opts){.engine = "fault:local,hang_every=1"});
  rig_request(&r, "victim", 2, 0, 0);
  rig_install(x.d, &r);
  rig_send(&send, &r, rd2h_decode_port(x.d), 0, 2, false);
  rig_step(x.p, &send, 1, NULL);
  rig_layers(x.p, 1);
  rd2h_step_encode_prefill(&b, &(struct rd2h_prefill_step_view){.n_preempted = 1, .preempted = &gone});
  rd2h_step_encode_prefill(&other, &(struct rd2h_prefill_step_view){.n_preempted = 1, .preempted = &stranger});
  assert_int_equal(rd2h_prefill_wait_preempted(x.p, other.p, other.len, 20, &err), RD2H_OK);
  assert_int_equal(rd2h_prefill_wait_preempted(x.p, b.p, b.len, 20, &err), RD2H_TIMEOUT);
  assert_non_null(strstr(err.text, "victim"));
  rd2h_decode_destroy(x.d); /* its death answers for it */
  x.d = NULL;
  assert_int_equal(rd2h_prefill_wait_preempted(x.p, b.p, b.len, RIG_WAIT_MS, &err), RD2H_OK);
  rd2h_buf_free(&b);
  rd2h_buf_free(&other);
  rig_pair_close(&x);
}

/* ---- ends ---- */
/* Aborted while every read hangs: its neighbour of the same message fails only by its own means, and blocks come back after
 * the read. */
static void L03_abort_while_reading(void **state) {
  (void)state;
  struct rig_pair x;
  struct rig_request r[2];
  struct rd2h_step_send send[2];
  rig_pair_open(&x, &(struct rig_shape){.layers = 3, .blocks = 64, .indexer_mask = 7}, NULL,
                &(struct rd2h_decode_opts){.engine = "fault:local,delay_ms=30"});
  rig_request(&r[0], "stays", 8, 0, 0);
  rig_request(&r[1], "goes", 8, 20, 20);
  rig_write_all(&x.src, 3);
  for (int i = 0; i < 2; i++) {
    rig_install(x.d, &r[i]);
    rig_send(&send[i], &r[i], rd2h_decode_port(x.d), 0, 8, true);
  }
  rig_step(x.p, send, 2, NULL);
  rig_layers(x.p, 3);
  assert_int_equal(rd2h_decode_abort(x.d, "goes"), RD2H_OK);
  assert_int_equal(rig_outcome(x.d, "goes", NULL), RD2H_ABORTED);
  for (uint32_t l = 0; l < 3; l++) /* its blocks are another request's from here on: no late read may write to them */
    for (uint32_t i = 0; i < r[1].n; i++)
      memset(rig_block(&x.dst, l, 0, r[1].dst[i]), 0xBB, rig_block_bytes(0));
  assert_int_equal(rd2h_decode_abort(x.d, "goes"), RD2H_NOT_FOUND);
  assert_int_equal(rig_outcome(x.d, "stays", NULL), RD2H_OK);
  rig_expect(&x.dst, &r[0], 3);
  for (uint32_t l = 0; l < 3; l++)
    for (uint32_t i = 0; i < r[1].n; i++)
      for (uint32_t k = 0; k < rig_block_bytes(0); k++)
        assert_int_equal(rig_block(&x.dst, l, 0, r[1].dst[i])[k], 0xBB);
  rig_step(x.p, NULL, 0, "goes");
  assert_true(rig_settled(x.p, "goes") != RD2H_OK);
  rig_step(x.p, NULL, 0, "stays");
  assert_int_equal(rig_settled(x.p, "stays"), RD2H_OK);
  rig_pair_close(&x);
}

static void prefill_aborts(void **state) {
  (void)state;
  struct rig_pair x;
  struct rig_request r;
  struct rd2h_step_send send;
  struct rd2h_error err = {0};
  char text[RD2H_ERROR_TEXT];
  rig_pair_open(&x, &(struct rig_shape){.layers = 2, .blocks = 16}, NULL, NULL);
  rig_request(&r, "half", 4, 0, 0);
  rig_install(x.d, &r);
  rig_send(&send, &r, rd2h_decode_port(x.d), 0, 2, false);
  rig_step(x.p, &send, 1, NULL);
  rig_layers(x.p, 2);
  RIG_OK(rd2h_prefill_wait_layer(x.p, 1, RIG_WAIT_MS, &err), &err);
  rig_step(x.p, NULL, 0, "half");
  assert_true(rig_settled(x.p, "half") != RD2H_OK);
  assert_true(rig_outcome(x.d, "half", text) != RD2H_OK);
  assert_true(text[0]);
  rig_pair_close(&x);
}

/* A read that fails ends its requests, nothing else; with `raise` the hook of that layer says so once. */
static void failed_read(void **state) {
  (void)state;
  struct rig_pair x;
  struct rig_request r;
  struct rd2h_step_send send;
  struct rd2h_error err = {0};
  char text[RD2H_ERROR_TEXT];
  rig_pair_open(&x, &(struct rig_shape){.layers = 1, .blocks = 16}, &(struct rd2h_prefill_opts){.on_read_failure = RD2H_RAISE},
                &(struct rd2h_decode_opts){.engine = "fault:local,fail_every=1"});
  rig_request(&r, "fails", 4, 0, 0);
  rig_install(x.d, &r);
  rig_send(&send, &r, rd2h_decode_port(x.d), 0, 4, true);
  rig_step(x.p, &send, 1, NULL);
  rig_layers(x.p, 1);
  assert_int_equal(rig_outcome(x.d, "fails", text), RD2H_IO);
  assert_true(text[0]);
  assert_true(rd2h_prefill_wait_layer(x.p, 0, RIG_WAIT_MS, &err) < 0);
  assert_non_null(strstr(err.text, "model.layers.0"));
  assert_int_equal(rd2h_prefill_wait_layer(x.p, 0, RIG_WAIT_MS, &err), RD2H_OK);
  rig_pair_close(&x);
}

/* A step whose layers never all come does not complete its requests. */
/* Every second read fails: with retries nobody notices, and each is tried once again. */
static void failed_read_is_tried_again(void **state) {
  (void)state;
  struct rig_pair x;
  struct rig_request r;
  struct rd2h_step_send send;
  struct rd2h_decode_stats st;
  char text[RD2H_ERROR_TEXT];
  const struct rig_shape shape = {.layers = 6, .blocks = 32};
  rig_pair_open(&x, &shape, NULL, &(struct rd2h_decode_opts){.engine = "fault:local,fail_every=2", .read_retries = 1});
  for (uint32_t l = 0; l < shape.layers; l++)
    rig_write(&x.src, l, 1);
  rig_request(&r, "again", 12, 0, 0);
  rig_install(x.d, &r);
  rig_send(&send, &r, rd2h_decode_port(x.d), 0, 12, true);
  rig_step(x.p, &send, 1, NULL);
  for (uint32_t l = 0; l < shape.layers; l++) { /* one after the other: a retry is never the next to fail */
    struct rd2h_error err = {0};
    RIG_OK(rd2h_prefill_layer(x.p, l, &err), &err);
    RIG_OK(rd2h_prefill_wait_layer(x.p, l, RIG_WAIT_MS, &err), &err);
  }
  assert_int_equal(rig_outcome(x.d, "again", NULL), RD2H_OK);
  rig_expect(&x.dst, &r, 1);
  rig_decode_stats(x.d, &st);
  assert_true(st.retried >= 2 && st.retried == st.reads - shape.layers);
  rig_pair_close(&x);
  rig_pair_open(&x, &shape, NULL, &(struct rd2h_decode_opts){.engine = "fault:local,fail_every=1", .read_retries = 2});
  rig_install(x.d, &r); /* what fails for good does so after the last */
  rig_send(&send, &r, rd2h_decode_port(x.d), 0, 12, true);
  rig_step(x.p, &send, 1, NULL);
  rig_layers(x.p, 1);
  assert_int_equal(rig_outcome(x.d, "again", text), RD2H_IO);
  rig_decode_stats(x.d, &st);
  assert_int_equal(st.retried, 2);
  rig_pair_close(&x);
  rig_pair_open(&x, &shape, NULL, &(struct rd2h_decode_opts){.engine = "fault:local,fail_every=1", .read_retries = 10});
  rig_install(x.d, &r);
  rig_send(&send, &r, rd2h_decode_port(x.d), 0, 12, true);
  rig_step(x.p, &send, 1, NULL);
  rig_layers(x.p, 1);
  do
    rd2h_decode_stats(x.d, &st);
  while (st.retried < 2);
  assert_int_equal(rd2h_decode_abort(x.d, "again"), RD2H_OK); /* nobody waits for it any more */
  assert_int_equal(rig_outcome(x.d, "again", NULL), RD2H_ABORTED);
  rig_decode_stats(x.d, &st);
  assert_true(st.retried < 5);
  rig_pair_close(&x);
}

static void broken_step(void **state) {
  (void)state;
  struct rig_pair x;
  struct rig_request r;
  struct rd2h_step_send send;
  struct rd2h_error err = {0};
  rig_pair_open(&x, &(struct rig_shape){.layers = 3, .blocks = 16}, NULL, NULL);
  rig_request(&r, "broken", 4, 0, 0);
  rig_install(x.d, &r);
  rig_send(&send, &r, rd2h_decode_port(x.d), 0, 4, true);
  rig_step(x.p, &send, 1, NULL);
  RIG_OK(rd2h_prefill_layer(x.p, 0, &err), &err);
  RIG_OK(rd2h_prefill_layer(x.p, 0, &err), &err); /* a repeat does nothing */
  rig_step(x.p, NULL, 0, "broken");
  assert_true(rig_settled(x.p, "broken") != RD2H_OK);
  assert_true(rig_outcome(x.d, "broken", NULL) != RD2H_OK);
  rig_pair_close(&x);
}

static void not_installed_in_time(void **state) {
  (void)state;
  struct rig_pair x;
  struct rig_request early, never;
  struct rd2h_step_send send[2];
  struct rd2h_decode_stats st;
  rig_pair_open(&x, &(struct rig_shape){.layers = 2, .blocks = 32}, NULL, &(struct rd2h_decode_opts){.park_ms = 1000});
  rig_request(&early, "early", 4, 0, 0);
  rig_request(&never, "never", 4, 10, 10);
  rig_write_all(&x.src, 1);
  rig_send(&send[0], &early, rd2h_decode_port(x.d), 0, 4, true);
  rig_send(&send[1], &never, rd2h_decode_port(x.d), 0, 4, true);
  rig_step(x.p, send, 2, NULL);
  rig_layers(x.p, 2);
  rig_install(x.d, &early);
  assert_int_equal(rig_outcome(x.d, "early", NULL), RD2H_OK);
  rig_expect(&x.dst, &early, 1);
  rig_step(x.p, NULL, 0, "never");
  assert_true(rig_settled(x.p, "never") != RD2H_OK);
  rig_decode_stats(x.d, &st);
  assert_true(st.parked > 0 && st.skipped > 0);
  rig_pair_close(&x);
}

/* Prefill has finished, says its answer to the rendezvous, and nothing came: that is known long before queue_ms is over. */
static void nothing_came_of_a_finished_prefill(void **state) {
  (void)state;
  struct rig_pair x;
  struct rig_request r;
  struct rd2h_error err = {0};
  struct rd2h_buf b = {0};
  struct rd2h_str id = {"none", 4};
  char text[RD2H_ERROR_TEXT];
  rig_pair_open(&x, &(struct rig_shape){.layers = 1, .blocks = 8}, NULL,
                &(struct rd2h_decode_opts){.progress_ms = 150, .read_timeout_ms = 100, .park_ms = 40});
  rig_request(&r, "none", 4, 0, 0);
  rig_install(x.d, &r);
  rd2h_step_encode_decode(&b, &(struct rd2h_decode_step_view){.n_answered = 1, .answered = &id});
  RIG_OK(rd2h_decode_step(x.d, b.p, b.len, &err), &err);
  assert_int_equal(rig_outcome(x.d, "none", text), RD2H_TIMEOUT);
  assert_non_null(strstr(text, "the answer to the rendezvous"));
  rd2h_buf_free(&b);
  rig_pair_close(&x);
}

/* ---- back-pressure, memory ---- */
/* More reads than an engine takes of one peer at once. */
static void engine_is_full(void **state) {
  (void)state;
  struct rig_pair x;
  struct rig_request r;
  struct rd2h_step_send send;
  rig_pair_open(&x, &(struct rig_shape){.layers = 32, .blocks = 128}, NULL,
                &(struct rd2h_decode_opts){.engine = "fault:local,delay_ms=1"});
  rig_request(&r, "many", 6, 0, 0);
  rig_install(x.d, &r);
  rig_write_all(&x.src, 5);
  for (uint32_t chunk = 0; chunk < 6; chunk++) {
    rig_send(&send, &r, rd2h_decode_port(x.d), chunk, chunk + 1, chunk == 5);
    rig_step(x.p, &send, 1, NULL);
    rig_layers(x.p, 32);
  }
  assert_int_equal(rig_outcome(x.d, "many", NULL), RD2H_OK);
  rig_expect(&x.dst, &r, 5);
  rig_pair_close(&x);
}

/* In steady state a layer's message costs librd2h no allocation, on either side. Pools grow to what was under way at once, which is for
 * the machine's other work to say, but has an end: after it, steps and all their layers go by without an allocation. */
static void steady_state_allocates_nothing(void **state) {
  (void)state;
  enum { LAYERS = 16, STEPS = 4, ROUNDS = 11 };
  struct rig_pair x;
  struct rig_request r[4];
  struct rd2h_step_send send[4];
  struct rd2h_error err = {0};
  uint64_t grown = 1;
  uint32_t at = 0;
  static const char *const ids[] = {"w", "x", "y", "z"};
  rig_pair_open(&x, &(struct rig_shape){.layers = LAYERS, .blocks = 512, .slots = 4, .indexer_mask = 0xaaaa}, NULL,
                &(struct rd2h_decode_opts){.engine = "fault:local,delay_ms=1"});
  for (int i = 0; i < 4; i++) {
    rig_request(&r[i], ids[i], 48, (uint32_t)i * 100, (uint32_t)i * 100);
    rig_install(x.d, &r[i]);
  }
  struct rd2h_buf b = {0};
  for (uint32_t round = 0; round < ROUNDS && grown; round++) {
    uint64_t before = rd2h_alloc_count();
    for (uint32_t step = 0; step < STEPS; step++, at++) {
      for (int i = 0; i < 4; i++)
        rig_send(&send[i], &r[i], rd2h_decode_port(x.d), at, at + 1, false);
      rd2h_buf_reset(&b);
      rd2h_step_encode_prefill(&b, &(struct rd2h_prefill_step_view){.n_send = 4, .send = send});
      RIG_OK(rd2h_prefill_step(x.p, b.p, b.len, &err), &err);
      for (uint32_t l = 0; l < LAYERS; l++) {
        if (round) /* the first one's go out without waiting */
          RIG_OK(rd2h_prefill_wait_layer(x.p, l, RIG_WAIT_MS, &err), &err);
        RIG_OK(rd2h_prefill_layer(x.p, l, &err), &err);
      }
    }
    for (uint32_t l = 0; l < LAYERS; l++)
      RIG_OK(rd2h_prefill_wait_layer(x.p, l, RIG_WAIT_MS, &err), &err);
    grown = rd2h_alloc_count() - before;
  }
  assert_int_equal(grown, 0);
  for (int i = 0; i < 4; i++)
    rig_send(&send[i], &r[i], rd2h_decode_port(x.d), at, 48, true);
  rig_step(x.p, send, 4, NULL);
  rig_layers(x.p, LAYERS);
  for (int i = 0; i < 4; i++)
    assert_int_equal(rig_outcome(x.d, ids[i], NULL), RD2H_OK);
  rd2h_buf_free(&b);
  rig_pair_close(&x);
}

/* Whichever allocation fails on the way: both sides end the request, within their deadlines, and report it once. */
static uint64_t run_short_of_memory(uint64_t n, uint32_t ms) {
  struct rig_pair x;
  struct rig_request r;
  struct rd2h_step_send send;
  struct rd2h_step_ref gone = {.id = {"short", 5}};
  struct rd2h_error err = {0};
  struct rd2h_buf b = {0}, end = {0};
  rig_pair_open(&x, &(struct rig_shape){.layers = 2, .blocks = 16, .indexer_mask = 1},
                &(struct rd2h_prefill_opts){.handshake_ms = ms, .hold_ms = ms},
                &(struct rd2h_decode_opts){.queue_ms = ms, .progress_ms = ms, .park_ms = ms / 2, .probe_ms = 20});
  rig_request(&r, "short", 3, 0, 0);
  struct rd2h_grant g = {.id = r.id, .ext_id = r.ext, .main = r.dst, .n_main = 3, .main_need = 3, .indexer = r.dst,
                         .n_indexer = 3, .indexer_need = 3, .attempt = "short"};
  rig_send(&send, &r, rd2h_decode_port(x.d), 0, 3, true);
  rd2h_step_encode_prefill(&b, &(struct rd2h_prefill_step_view){.n_send = 1, .send = &send});
  rd2h_step_encode_prefill(&end, &(struct rd2h_prefill_step_view){.n_finished = 1, .finished = &gone});
  struct rd2h_decode_stats st;
  rig_decode_stats(x.d, &st); /* its table of deadlines exists */
  uint64_t before = rd2h_alloc_count();
  rd2h_alloc_fail_at(n);
  bool installed = !rd2h_decode_install(x.d, &g, &err);
  bool sent = !rd2h_prefill_step(x.p, b.p, b.len, &err);
  for (uint32_t l = 0; l < 2 && sent; l++)
    if (rd2h_prefill_layer(x.p, l, &err))
      assert_int_equal(err.status, RD2H_NOMEM);
  int outcome = installed ? rig_outcome(x.d, "short", NULL) : RD2H_NOMEM;
  bool ended = !rd2h_prefill_step(x.p, end.p, end.len, &err);
  int settled = ended ? rig_settled(x.p, "short") : RD2H_NOMEM;
  rd2h_alloc_fail_at(0);
  if (!ended) {
    RIG_OK(rd2h_prefill_step(x.p, end.p, end.len, &err), &err);
    rig_settled(x.p, "short");
  }
  uint64_t made = rd2h_alloc_count() - before;
  if (ms == RIG_WAIT_MS) { /* nothing failed */
    assert_int_equal(outcome, RD2H_OK);
    assert_int_equal(settled, RD2H_OK);
  }
  for (uint32_t l = 0; l < 2; l++)
    assert_int_equal(rd2h_prefill_wait_layer(x.p, l, RIG_WAIT_MS, &err), RD2H_OK);
  rd2h_buf_free(&b);
  rd2h_buf_free(&end);
  rig_pair_close(&x);
  return made;
}

static void short_of_memory(void **state) {
  (void)state;
  uint64_t most = run_short_of_memory(UINT64_MAX / 2, RIG_WAIT_MS);
  for (uint64_t n = 1; n <= most; n++)
    run_short_of_memory(n, 80);
}

/* A step for which there is no memory is not taken by halves: repeated, it reports each of its ends once. */
static void a_step_is_taken_whole(void **state) {
  (void)state;
  static const char *const ids[] = {"a", "b", "c"};
  struct rig_pair x;
  struct rd2h_error err = {0};
  struct rd2h_buf b = {0};
  struct rd2h_step_ref gone[3];
  struct rd2h_settled out[8];
  for (uint32_t i = 0; i < 3; i++)
    gone[i] = (struct rd2h_step_ref){.id = {ids[i], 1}};
  rd2h_step_encode_prefill(&b, &(struct rd2h_prefill_step_view){.n_finished = 3, .finished = gone});
  bool failed = true;
  for (uint64_t n = 1; failed; n++) {
    rig_pair_open(&x, &(struct rig_shape){.layers = 1, .blocks = 8}, NULL, NULL);
    uint32_t seen[3] = {0};
    rd2h_alloc_fail_at(n);
    int rc = rd2h_prefill_step(x.p, b.p, b.len, &err);
    rd2h_alloc_fail_at(0);
    failed = rc == RD2H_NOMEM;
    while (rc) {
      assert_int_equal(rc, RD2H_NOMEM);
      rc = rd2h_prefill_step(x.p, b.p, b.len, &err);
    }
    rig_step(x.p, NULL, 0, "last"); /* reported behind all of the step before */
    for (bool last = false; !last;) {
      struct pollfd fd = {.fd = rd2h_prefill_fd(x.p), .events = POLLIN};
      assert_int_equal(poll(&fd, 1, RIG_WAIT_MS), 1);
      uint32_t got = rd2h_prefill_collect(x.p, out, RD2H_COUNT(out));
      for (uint32_t i = 0; i < got; i++) {
        last |= !strcmp(out[i].id, "last");
        for (uint32_t k = 0; k < 3; k++)
          seen[k] += !strcmp(out[i].id, ids[k]);
      }
    }
    for (uint32_t k = 0; k < 3; k++)
      assert_int_equal(seen[k], 1);
    rig_pair_close(&x);
  }
  rd2h_buf_free(&b);
}

/* The same at Decode: a step goes on where memory ended, nothing of it is lost and nothing comes twice. */
static void a_decode_step_goes_on(void **state) {
  (void)state;
  static const char *const ids[] = {"a", "b", "never-installed"};
  static const uint32_t blocks[] = {1, 2};
  struct rd2h_step_install in[2];
  struct rd2h_step_end ends[2], gone = {.id = {ids[2], 15}, .status = RD2H_REFUSED};
  struct rd2h_buf begin = {0}, end = {0};
  struct rd2h_error err = {0};
  for (uint32_t i = 0; i < 2; i++) {
    struct rd2h_str id = {ids[i], 1};
    in[i] = (struct rd2h_step_install){.id = id, .ext_id = id, .main = blocks, .n_main = 2, .indexer = blocks, .n_indexer = 2};
    ends[i] = (struct rd2h_step_end){.id = id, .installed = true, .status = RD2H_ABORTED};
  }
  rd2h_step_encode_decode(&begin, &(struct rd2h_decode_step_view){.n_install = 2, .install = in, .n_end = 1, .end = &gone});
  rd2h_step_encode_decode(&end, &(struct rd2h_decode_step_view){.n_end = 2, .end = ends});
  bool failed = true;
  for (uint64_t n = 1; failed; n++) {
    struct rig_pair x;
    uint32_t seen[3] = {0};
    rig_pair_open(&x, &(struct rig_shape){.layers = 1, .blocks = 8}, NULL, NULL);
    rd2h_alloc_fail_at(n);
    int rc = rd2h_decode_step(x.d, begin.p, begin.len, &err);
    rd2h_alloc_fail_at(0);
    failed = rc == RD2H_NOMEM;
    if (failed)
      rc = rd2h_decode_step(x.d, begin.p, begin.len, &err);
    assert_int_equal(rc, RD2H_OK);
    RIG_OK(rd2h_decode_step(x.d, end.p, end.len, &err), &err);
    for (uint32_t all = 0; all < 3;) {
      struct rd2h_outcome out[4];
      struct pollfd fd = {.fd = rd2h_decode_fd(x.d), .events = POLLIN};
      assert_int_equal(poll(&fd, 1, RIG_WAIT_MS), 1);
      uint32_t got = rd2h_decode_collect(x.d, out, 4);
      for (uint32_t i = 0; i < got; i++, all++)
        for (uint32_t k = 0; k < 3; k++)
          seen[k] += !strcmp(out[i].id, ids[k]);
    }
    for (uint32_t k = 0; k < 3; k++)
      assert_int_equal(seen[k], 1);
    rig_pair_close(&x);
  }
  rd2h_buf_free(&begin);
  rd2h_buf_free(&end);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(one_layer),
      cmocka_unit_test(chunks_and_requests),
      cmocka_unit_test(gate_holds_sources),
      cmocka_unit_test(wait_layer_is_bounded),
      cmocka_unit_test(preemption_waits_for_its_requests),
      cmocka_unit_test(L03_abort_while_reading),
      cmocka_unit_test(prefill_aborts),
      cmocka_unit_test(failed_read),
      cmocka_unit_test(failed_read_is_tried_again),
      cmocka_unit_test(broken_step),
      cmocka_unit_test(not_installed_in_time),
      cmocka_unit_test(nothing_came_of_a_finished_prefill),
      cmocka_unit_test(engine_is_full),
      cmocka_unit_test(steady_state_allocates_nothing),
      cmocka_unit_test(short_of_memory),
      cmocka_unit_test(a_step_is_taken_whole),
      cmocka_unit_test(a_decode_step_goes_on),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
