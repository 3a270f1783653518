/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/conformance/cases.h"
#include <stdlib.h>

#define BATCHES 500u
#define SMALL 300u
#define MANY 5000u      /* more than any engine may queue */
#define TRIES 100
#define OLD 0xC3

void exactly_once(void **state) {
  struct link l;
  struct load b[BATCHES];
  struct rd2h_completion c[8];
  uint32_t seen[BATCHES] = {0}, sent = 0, ended = 0;
  (void)state;
  link_open(&l, MIB);
  for (uint32_t i = 0; i < BATCHES; i++) {
    load_init(&b[i], i, 1);
    load_add(&b[i], l.dst + i * SMALL, l.source.base + i * SMALL, SMALL);
  }
  while (ended < BATCHES) {
    int rc = sent < BATCHES ? rd2h_eng_submit(l.eng, l.peer, &b[sent].b) : RD2H_AGAIN;
    if (rc == RD2H_OK) {
      sent++;
      continue;
    }
    assert_int_equal(rc, RD2H_AGAIN);
    collect(l.eng, c, 1);
    int more = 1 + rd2h_eng_poll(l.eng, c + 1, 7);
    for (int i = 0; i < more; i++, ended++) {
      assert_int_equal(c[i].status, RD2H_OK);
      assert_int_equal(seen[c[i].id]++, 0);
    }
  }
  expect_silence(l.eng);
  if (conf->moves_data)
    assert_pattern(l.dst, &l.source, 0, BATCHES * SMALL);
  for (uint32_t i = 0; i < BATCHES; i++)
    load_free(&b[i]);
  link_close(&l);
}

/* A full queue takes nothing, and takes again what was refused once completions were polled. */
void queue_full(void **state) {
  struct link l;
  struct load b;
  struct rd2h_completion c;
  uint32_t taken = 0;
  (void)state;
  link_open(&l, 64 * KIB);
  load_init(&b, 0, 1);
  load_add(&b, l.dst, l.source.base, l.source.bytes);
  for (; taken < MANY && rd2h_eng_submit(l.eng, l.peer, &b.b) == RD2H_OK; taken++)
    ;
  assert_in_range(taken, 1, MANY - 1);
  assert_int_equal(rd2h_eng_submit(l.eng, l.peer, &b.b), RD2H_AGAIN);
  for (uint32_t i = 0; i < taken; i++) {
    collect(l.eng, &c, 1);
    assert_int_equal(c.status, RD2H_OK);
  }
  expect_silence(l.eng);
  submit_ok(l.eng, l.peer, &b);
  expect_ok(l.eng, &b);
  load_free(&b);
  link_close(&l);
}

/* One peer's reads run one after the other: the last one's bytes stand in the end. */
void order_per_peer(void **state) {
  enum { N = 50 };
  struct link l;
  struct load b[N];
  struct rd2h_completion c[N];
  const uint64_t len = 32 * KIB;
  (void)state;
  link_open(&l, N * len);
  NEEDS(&l, engine_flags(l.eng) & RD2H_ENG_BLOCKS || !conf->moves_data, "it promises no order between batches");
  for (uint32_t i = 0; i < N; i++) {
    load_init(&b[i], i, 1);
    load_add(&b[i], l.dst, l.source.base + i * len, len);
    submit_ok(l.eng, l.peer, &b[i]);
  }
  collect(l.eng, c, N);
  for (uint32_t i = 0; i < N; i++) {
    assert_int_equal(c[i].id, i);
    assert_int_equal(c[i].bytes, len);
    load_free(&b[i]);
  }
  if (conf->moves_data)
    assert_pattern(l.dst, &l.source, (N - 1) * len, len);
  link_close(&l);
}

void fd_is_level_triggered(void **state) {
  struct link l;
  struct load b[3];
  struct rd2h_completion c;
  (void)state;
  link_open(&l, 4 * KIB);
  assert_false(fd_ready(l.eng, 0));
  for (uint32_t i = 0; i < 3; i++) {
    load_init(&b[i], i, 1);
    load_add(&b[i], l.dst, l.source.base, 16);
    submit_ok(l.eng, l.peer, &b[i]);
  }
  for (uint32_t left = 3; left; left--) {
    collect(l.eng, &c, 1);
    if (left > 1)
      assert_true(fd_ready(l.eng, WAIT_MS) && fd_ready(l.eng, 0));
  }
  expect_silence(l.eng);
  for (uint32_t i = 0; i < 3; i++)
    load_free(&b[i]);
  link_close(&l);
}

void steady_state_allocates_nothing(void **state) {
  struct link l;
  struct load b;
  (void)state;
  link_open(&l, 4 * KIB);
  load_init(&b, 9, 2);
  load_add(&b, l.dst, l.source.base, 1000);
  load_add(&b, l.dst + 1000, l.source.base, 24);
  uint64_t grown = 1;
  for (uint32_t round = 0; round < 10 && grown; round++) { /* what a connection needs may come while the first reads go by */
    uint64_t before = rd2h_alloc_count();
    for (uint32_t i = 0; i < 100; i++) {
      submit_ok(l.eng, l.peer, &b);
      expect_ok(l.eng, &b);
    }
    grown = rd2h_alloc_count() - before;
  }
  assert_int_equal(grown, 0);
  load_free(&b);
  link_close(&l);
}

void stats_add_up(void **state) {
  struct link l;
  struct load b;
  struct rd2h_engine_stats s;
  (void)state;
  link_open(&l, 4 * KIB);
  load_init(&b, 9, 2);
  load_add(&b, l.dst, l.source.base, 1000);
  load_add(&b, l.dst + 1000, l.source.base, 24);
  for (uint32_t i = 0; i < 3; i++) {
    submit_ok(l.eng, l.peer, &b);
    expect_ok(l.eng, &b);
  }
  rd2h_eng_stats(l.eng, &s);
  assert_int_equal(s.reads, 3);
  assert_int_equal(s.descriptors, 6);
  assert_int_equal(s.bytes, 3 * 1024);
  assert_int_equal(s.failures + s.canceled, 0);
  load_free(&b);
  link_close(&l);
}

void cancel_unknown(void **state) {
  struct link l;
  (void)state;
  link_open(&l, 4 * KIB);
  rd2h_eng_cancel(l.eng, 77);
  expect_silence(l.eng);
  link_close(&l);
}

/* The second read of a peer waits for the first: cancelled, it ends without a byte, while the first goes on. */
void cancel_queued(void **state) {
  struct link l;
  struct load first, second;
  struct rd2h_completion c[2];
  (void)state;
  link_open(&l, 2 * MIB);
  NEEDS(&l, engine_flags(l.eng) & RD2H_ENG_CANCEL, "a read of it is over when submit returns");
  memset(l.dst, OLD, SMALL);
  load_long(&first, 1, l.dst + MIB, &l.source);
  for (uint32_t i = 0; i < first.b.n; i++)
    first.len[i] = MIB;
  load_init(&second, 2, 1);
  load_add(&second, l.dst, l.source.base, SMALL);
  submit_ok(l.eng, l.peer, &first);
  submit_ok(l.eng, l.peer, &second);
  rd2h_eng_cancel(l.eng, 2);
  collect(l.eng, c, 1);
  assert_int_equal(c[0].id, 2);
  assert_int_equal(c[0].status, RD2H_CANCELED);
  assert_int_equal(c[0].bytes, 0);
  assert_true(*rd2h_eng_last_error(l.eng, 2));
  rd2h_eng_cancel(l.eng, 1);
  collect(l.eng, c, 1);
  assert_int_equal(c[0].id, 1);
  assert_int_equal(c[0].status, RD2H_CANCELED);
  assert_filled(l.dst, OLD, SMALL);
  load_free(&first);
  load_free(&second);
  link_close(&l);
}

/* Submits a long read, cancels it shortly after. True when it had begun. */
static bool cancel_one(struct link *l, struct load *b) {
  struct rd2h_completion c;
  submit_ok(l->eng, l->peer, b);
  let_begin(l->eng);
  rd2h_eng_cancel(l->eng, b->b.id);
  collect(l->eng, &c, 1);
  assert_int_equal(c.id, b->b.id);
  assert_int_equal(c.status, RD2H_CANCELED);
  assert_true(c.bytes < b->b.bytes);
  memset(l->dst, OLD, l->source.bytes);
  expect_silence(l->eng);
  assert_filled(l->dst, OLD, l->source.bytes);
  return c.bytes > 0;
}

void cancel_running(void **state) {
  struct link l;
  struct load b;
  bool begun = false;
  (void)state;
  link_open(&l, 2 * MIB);
  NEEDS(&l, engine_flags(l.eng) & RD2H_ENG_CANCEL, "a read of it is over when submit returns");
  load_long(&b, 1, l.dst, &l.source);
  for (int i = 0; i < TRIES && !begun; i++)
    begun = cancel_one(&l, &b);
  assert_true(begun);
  load_free(&b);
  link_close(&l);
}

/* On return of disconnect no byte lands any more and no completion comes, for the running and for the queued. */
void fence_queued_and_running(void **state) {
  struct link l;
  struct load b[3];
  (void)state;
  link_open(&l, 2 * MIB);
  for (uint32_t i = 0; i < 3; i++)
    load_long(&b[i], i, l.dst, &l.source);
  for (uint32_t round = 0; round < 5; round++) {
    for (uint32_t i = 0; i < 3; i++)
      submit_ok(l.eng, l.peer, &b[i]);
    fd_ready(l.eng, (int)round);
    rd2h_eng_disconnect(l.eng, l.peer);
    memset(l.dst, OLD, l.source.bytes);
    expect_silence(l.eng);
    assert_filled(l.dst, OLD, l.source.bytes);
    l.peer = engine_connect(l.eng, &l.source, round);
  }
  for (uint32_t i = 0; i < 3; i++)
    load_free(&b[i]);
  link_close(&l);
}

void fence_finished(void **state) {
  struct link l;
  struct load mine, other;
  (void)state;
  link_open(&l, 4 * KIB);
  rd2h_eng_peer *second = engine_connect(l.eng, &l.source, 5);
  load_init(&mine, 1, 1);
  load_add(&mine, l.dst, l.source.base, 64);
  load_init(&other, 2, 1);
  load_add(&other, l.dst + 64, l.source.base, 64);
  submit_ok(l.eng, l.peer, &mine);
  assert_true(fd_ready(l.eng, WAIT_MS));
  submit_ok(l.eng, second, &other);
  rd2h_eng_disconnect(l.eng, l.peer);
  expect_ok(l.eng, &other);
  expect_silence(l.eng);
  l.peer = second;
  load_free(&mine);
  load_free(&other);
  link_close(&l);
}

void close_with_reads_in_flight(void **state) {
  struct link l;
  struct load b[3];
  (void)state;
  link_open(&l, 2 * MIB);
  for (uint32_t i = 0; i < 3; i++) {
    load_long(&b[i], i, l.dst, &l.source);
    submit_ok(l.eng, l.peer, &b[i]);
  }
  fd_ready(l.eng, BEGIN_MS);
  rd2h_eng_close(l.eng);
  memset(l.dst, OLD, l.source.bytes);
  l.eng = engine_open(SLICE);
  l.peer = engine_connect(l.eng, &l.source, 1);
  expect_silence(l.eng);
  assert_filled(l.dst, OLD, l.source.bytes);
  for (uint32_t i = 0; i < 3; i++)
    load_free(&b[i]);
  link_close(&l);
}
