/* SPDX-License-Identifier: Apache-2.0 */
/* Prefill and Decode in processes of their own: bytes across the border, and what happens when one of them dies. Children are
 * forked before this process has threads. */
#include "tests/integration/rig.h"
#include <setjmp.h>
#include <cmocka.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct rig_shape ring = {.layers = 6, .blocks = 64, .slots = 2, .indexer_mask = 0x2a};
static const struct rig_shape flat = {.layers = 6, .blocks = 64, .indexer_mask = 0x2a};

/* ---- children ---- */
static void send_chunk(rd2h_prefill *p, struct rig_side *src, struct rig_request *r, uint16_t port, uint32_t from, uint32_t to,
                       bool last) {
  struct rd2h_step_send send;
  rig_send(&send, r, port, from, to, last);
  rig_step(p, &send, 1, NULL);
  rig_produce(p, src, 4);
}

/* Serves request "all" in three chunks, waits until it is settled. */
static void whole_prefill(int in, int out) {
  struct rig_side src;
  struct rig_request r;
  uint16_t port = (uint16_t)rig_get(in);
  rig_side_open(&src, &ring);
  rd2h_prefill *p = rig_prefill(&src, NULL);
  rig_request(&r, "all", 12, 0, 0);
  for (uint32_t c = 0; c < 3; c++)
    send_chunk(p, &src, &r, port, 4 * c, 4 * c + 4, c == 2);
  rig_step(p, NULL, 0, "all");
  rig_put(out, (uint32_t)-rig_settled(p, "all"));
  rig_get(in);
  rd2h_prefill_destroy(p);
}

/* Sends the first of three chunks and then nothing more. */
static void dying_prefill(int in, int out) {
  struct rig_side src;
  struct rig_request r;
  struct rd2h_error err = {0};
  uint16_t port = (uint16_t)rig_get(in);
  rig_side_open(&src, &ring);
  rd2h_prefill *p = rig_prefill(&src, NULL);
  rig_request(&r, "dies", 12, 0, 0);
  send_chunk(p, &src, &r, port, 0, 4, false);
  RIG_OK(rd2h_prefill_wait_layer(p, 5, RIG_WAIT_MS, &err), &err);
  rig_put(out, 0);
  rig_get(in);
}

static void decode_with(const char *engine, const char *id, int in, int out) {
  struct rig_side dst;
  struct rig_request r;
  rig_side_open(&dst, &flat);
  rd2h_decode *d = rig_decode(&dst, &(struct rd2h_decode_opts){.engine = engine, .port = (uint16_t)rig_get(in)});
  rig_request(&r, id, 12, 0, 0);
  rig_install(d, &r);
  rig_put(out, rd2h_decode_port(d));
  rig_put(out, (uint32_t)-rig_outcome(d, id, NULL));
  rig_expect(&dst, &r, 4);
  rig_get(in);
  rd2h_decode_destroy(d);
}

static void hanging_decode(int in, int out) {
  decode_with("fault:local,hang_every=1", "stuck", in, out);
}

static void good_decode(int in, int out) {
  decode_with("local", "next", in, out);
}

/* ---- tests ---- */
static void two_processes(void **state) {
  (void)state;
  struct rig_child c = rig_fork(whole_prefill);
  struct rig_side dst;
  struct rig_request r;
  rig_side_open(&dst, &flat);
  rd2h_decode *d = rig_decode(&dst, NULL);
  rig_request(&r, "all", 12, 0, 0);
  rig_install(d, &r);
  rig_put(c.to, rd2h_decode_port(d));
  assert_int_equal(rig_outcome(d, "all", NULL), RD2H_OK);
  rig_expect(&dst, &r, 4);
  assert_int_equal(rig_get(c.from), 0);
  rig_put(c.to, 0);
  assert_int_equal(rig_reap(&c, 0), 0);
  rd2h_decode_destroy(d);
  rig_side_close(&dst);
}

/* Killed between two chunks: noticed by a probe; its successor is served as if nothing had been. */
static void prefill_dies(void **state) {
  (void)state;
  struct rig_child dying = rig_fork(dying_prefill), next = rig_fork(whole_prefill);
  struct rig_side dst;
  struct rig_request r, again;
  char text[RD2H_ERROR_TEXT];
  rig_side_open(&dst, &flat);
  rd2h_decode *d = rig_decode(&dst, &(struct rd2h_decode_opts){.probe_ms = 50});
  rig_request(&r, "dies", 12, 0, 0);
  rig_install(d, &r);
  rig_put(dying.to, rd2h_decode_port(d));
  assert_int_equal(rig_get(dying.from), 0);
  rig_reap(&dying, SIGKILL);
  assert_int_equal(rig_outcome(d, "dies", text), RD2H_PEER_LOST);
  assert_true(text[0]);
  rig_request(&again, "all", 12, 0, 0);
  rig_install(d, &again);
  rig_put(next.to, rd2h_decode_port(d));
  assert_int_equal(rig_outcome(d, "all", NULL), RD2H_OK);
  rig_expect(&dst, &again, 4);
  assert_int_equal(rig_get(next.from), 0);
  rig_put(next.to, 0);
  assert_int_equal(rig_reap(&next, 0), 0);
  rd2h_decode_destroy(d);
  rig_side_close(&dst);
}

/* Decode hangs in a read and then dies, or stops for good: the gate opens and only its request fails. Another Decode takes
 * the same port and is served without a restart of Prefill. */
static void decode_dies_by(int signal) {
  struct rig_child first = rig_fork(hanging_decode), second = rig_fork(good_decode);
  struct rig_side src;
  struct rig_request r, next;
  struct rd2h_step_send send;
  struct rd2h_error err = {0};
  struct rd2h_prefill_stats st;
  rig_put(first.to, 0);
  uint16_t port = (uint16_t)rig_get(first.from);
  rig_side_open(&src, &ring);
  rd2h_prefill *p = rig_prefill(&src, &(struct rd2h_prefill_opts){.liveness_ms = 1000});
  rig_request(&r, "stuck", 12, 0, 0);
  rig_send(&send, &r, port, 0, 12, true);
  rig_step(p, &send, 1, NULL);
  rig_write(&src, 0, 4);
  RIG_OK(rd2h_prefill_layer(p, 0, &err), &err);
  assert_int_equal(rd2h_prefill_wait_layer(p, 0, 100, &err), RD2H_TIMEOUT);
  if (signal == SIGKILL)
    rig_reap(&first, SIGKILL);
  else
    kill(first.pid, signal);
  assert_int_equal(rd2h_prefill_wait_layer(p, 0, RIG_WAIT_MS, &err), RD2H_OK);
  if (signal != SIGKILL)
    rig_reap(&first, SIGKILL);
  rig_step(p, NULL, 0, "stuck");
  assert_int_equal(rig_settled(p, "stuck"), RD2H_PEER_LOST);
  rig_put(second.to, port);
  assert_int_equal(rig_get(second.from), port);
  rig_request(&next, "next", 12, 0, 0);
  send_chunk(p, &src, &next, port, 0, 12, true);
  assert_int_equal(rig_get(second.from), 0);
  rig_step(p, NULL, 0, "next");
  assert_int_equal(rig_settled(p, "next"), RD2H_OK);
  rig_put(second.to, 0);
  assert_int_equal(rig_reap(&second, 0), 0);
  rd2h_prefill_stats(p, &st);
  assert_int_equal(st.failed_peer_lost, 1);
  assert_int_equal(st.epochs, 3); /* one was tried to tell the first of what it had not taken */
  assert_int_equal(st.slots_closed, 0);
  rd2h_prefill_destroy(p);
  rig_side_close(&src);
}

/* Fifty Prefill processes one after the other, each killed in the middle; Decode is never touched and grows by nothing. */
static void D03_prefill_dies_fifty_times(void **state) {
  (void)state;
  enum { TIMES = 50 };
  static struct rig_child c[TIMES];
  struct rig_side dst;
  struct rig_request r;
  struct rd2h_decode_stats st;
  for (int i = 0; i < TIMES; i++)
    c[i] = rig_fork(dying_prefill);
  struct rig_child next = rig_fork(whole_prefill);
  rig_side_open(&dst, &flat);
  rd2h_decode *d = rig_decode(&dst, &(struct rd2h_decode_opts){.probe_ms = 20});
  for (int i = 0; i < TIMES; i++) {
    rig_request(&r, "dies", 12, 0, 0);
    rig_install(d, &r);
    rig_put(c[i].to, rd2h_decode_port(d));
    assert_int_equal(rig_get(c[i].from), 0);
    rig_reap(&c[i], SIGKILL);
    assert_int_equal(rig_outcome(d, "dies", NULL), RD2H_PEER_LOST);
  }
  rig_request(&r, "all", 12, 0, 0);
  rig_install(d, &r);
  rig_put(next.to, rd2h_decode_port(d));
  assert_int_equal(rig_outcome(d, "all", NULL), RD2H_OK);
  rig_expect(&dst, &r, 4);
  assert_int_equal(rig_get(next.from), 0);
  do /* the last of the dead is noticed by a probe */
    rig_decode_stats(d, &st);
  while (st.peers > 1);
  assert_int_equal(st.requests, 0);
  rig_put(next.to, 0);
  rig_reap(&next, 0);
  rd2h_decode_destroy(d);
  rig_side_close(&dst);
}

/* Prefill has begun and is stopped, its connection lives: Decode gives up after progress_ms, and what comes later finds nothing. */
static void D04_D05_prefill_stops(void **state) {
  (void)state;
  struct rig_child c = rig_fork(dying_prefill);
  struct rig_side dst;
  struct rig_request r;
  char text[RD2H_ERROR_TEXT];
  rig_side_open(&dst, &flat);
  rd2h_decode *d = rig_decode(&dst, &(struct rd2h_decode_opts){.progress_ms = 200});
  rig_request(&r, "dies", 12, 0, 0);
  rig_install(d, &r);
  rig_put(c.to, rd2h_decode_port(d));
  assert_int_equal(rig_get(c.from), 0);
  kill(c.pid, SIGSTOP);
  uint64_t begun = rd2h_now_ns();
  for (int i = 0; i < 10; i++) { /* whoever asks Decode meanwhile is answered */
    uint64_t asked = rd2h_now_ns();
    assert_true(rd2h_decode_dump(d, text, sizeof text) > 0);
    assert_non_null(strstr(text, "decode rank 0 of 1 at"));
    assert_true(rd2h_now_ns() - asked < 1500 * RD2H_MS);
  }
  assert_int_equal(rig_outcome(d, "dies", text), RD2H_TIMEOUT);
  assert_non_null(strstr(text, "progress_ms"));
  assert_true(rd2h_now_ns() - begun < 5000 * RD2H_MS);
  kill(c.pid, SIGCONT);
  rig_reap(&c, SIGKILL);
  rd2h_decode_destroy(d);
  rig_side_close(&dst);
}

static void D01_decode_dies(void **state) {
  (void)state;
  decode_dies_by(SIGKILL);
}

static void D06_decode_stops(void **state) {
  (void)state;
  decode_dies_by(SIGSTOP);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(two_processes), cmocka_unit_test(prefill_dies),
                                     cmocka_unit_test(D03_prefill_dies_fifty_times), cmocka_unit_test(D04_D05_prefill_stops),
                                     cmocka_unit_test(D01_decode_dies), cmocka_unit_test(D06_decode_stops)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
