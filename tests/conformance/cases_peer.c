/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/conformance/cases.h"
#include <signal.h>
#include <unistd.h>

#define MANY_FAILURES 200u
#define OLD 0xC3
#define FLIPS 2000u

static struct rd2h_blob text(const char *s) {
  return (struct rd2h_blob){(const uint8_t *)s, (uint32_t)strlen(s)};
}

/* Every single allocation of open and connect fails once: the call fails cleanly, and the next one works. */
void open_and_connect_without_memory(void **state) {
  struct rd2h_engine_opts o = {.size = sizeof o, .options = conf->options};
  struct source s;
  rd2h_eng *e = NULL;
  rd2h_eng_peer *p = NULL;
  struct rd2h_error err;
  uint32_t n = 1;
  (void)state;
  source_start(&s, 4 * KIB, 1);
  for (int rc = RD2H_NOMEM; rc; n++) {
    rd2h_alloc_fail_at(n);
    rc = rd2h_eng_open(conf->engine, &o, &e, &err);
    assert_true(rc == RD2H_OK || rc == RD2H_NOMEM);
    assert_in_range(n, 1, MANY_FAILURES);
  }
  assert_in_range(n, 3, MANY_FAILURES);
  n = 1;
  for (int rc = RD2H_NOMEM; rc; n++) {
    rd2h_alloc_fail_at(n);
    rc = rd2h_eng_connect(e, text("h:1"), (struct rd2h_blob){s.conn, s.conn_len}, 1, &p, &err);
    assert_true(rc == RD2H_OK || rc == RD2H_NOMEM);
    assert_in_range(n, 1, MANY_FAILURES);
  }
  rd2h_alloc_fail_at(0);
  assert_in_range(n, 3, MANY_FAILURES);
  rd2h_eng_disconnect(e, p);
  rd2h_eng_close(e);
  source_end(&s);
}

void prefill_does_not_connect(void **state) {
  struct rd2h_engine_opts o = {.size = sizeof o, .prefill = true, .options = conf->options};
  struct rd2h_error err = {0};
  struct source s;
  rd2h_eng *e;
  rd2h_eng_peer *p;
  (void)state;
  source_start(&s, 4 * KIB, 1);
  assert_int_equal(rd2h_eng_open(conf->engine, &o, &e, &err), RD2H_OK);
  assert_int_equal(rd2h_eng_connect(e, text("h:1"), (struct rd2h_blob){s.conn, s.conn_len}, 1, &p, &err), RD2H_STATE);
  assert_int_equal(err.status, RD2H_STATE);
  rd2h_eng_close(e);
  source_end(&s);
}

void dead_before_the_read(void **state) {
  struct link l;
  struct load b;
  struct rd2h_completion c = {.status = RD2H_PEER_LOST};
  (void)state;
  link_open(&l, 4 * KIB);
  NEEDS(&l, engine_flags(l.eng) & RD2H_ENG_PEER_DOWN, "it does not notice a peer's death");
  source_signal(&l.source, SIGKILL);
  if (!conf->late_death)
    expect_event_down(l.eng, COOKIE);
  expect_silence(l.eng);
  memset(l.dst, OLD, 64);
  load_init(&b, 1, 1);
  load_add(&b, l.dst, l.source.base, 64);
  int rc = rd2h_eng_submit(l.eng, l.peer, &b.b);
  if (rc == RD2H_OK)
    collect(l.eng, &c, 1);
  assert_true(rc == RD2H_OK || rc == RD2H_PEER_LOST);
  assert_int_equal(c.status, RD2H_PEER_LOST);
  assert_true(*rd2h_eng_last_error(l.eng, 1));
  assert_filled(l.dst, OLD, 64);
  load_free(&b);
  link_close(&l);
}

void dead_during_the_read(void **state) {
  struct link l;
  struct load b[2];
  struct rd2h_completion c[2];
  (void)state;
  link_open(&l, 2 * MIB);
  NEEDS(&l, engine_flags(l.eng) & RD2H_ENG_PEER_DOWN, "it does not notice a peer's death");
  for (uint32_t i = 0; i < 2; i++) {
    load_long(&b[i], i, l.dst, &l.source);
    submit_ok(l.eng, l.peer, &b[i]);
  }
  let_begin(l.eng);
  source_signal(&l.source, SIGKILL);
  expect_event_down(l.eng, COOKIE);
  collect(l.eng, c, 2);
  for (uint32_t i = 0; i < 2; i++) {
    assert_int_equal(c[i].status, RD2H_PEER_LOST);
    assert_true(c[i].bytes < b[i].b.bytes);
    load_free(&b[i]);
  }
  memset(l.dst, OLD, l.source.bytes);
  expect_silence(l.eng);
  assert_filled(l.dst, OLD, l.source.bytes);
  link_close(&l);
}

/* A process that stands still is not dead: it is read where the engine needs nothing of it; else the read can be cancelled. */
void stopped_peer(void **state) {
  struct link l;
  struct load b;
  struct rd2h_completion c;
  (void)state;
  link_open(&l, MIB);
  source_signal(&l.source, SIGSTOP);
  load_init(&b, 1, 1);
  load_add(&b, l.dst, l.source.base, MIB);
  submit_ok(l.eng, l.peer, &b);
  if (conf->served || engine_flags(l.eng) & RD2H_ENG_TARGET_PROGRESS) {
    rd2h_eng_cancel(l.eng, 1);
    collect(l.eng, &c, 1);
    assert_int_equal(c.status, RD2H_CANCELED);
  } else {
    expect_ok(l.eng, &b);
    if (conf->moves_data)
      assert_pattern(l.dst, &l.source, 0, MIB);
  }
  load_free(&b);
  link_close(&l);
}

/* What lies before the hole arrives, byte by byte up to its edge; the failure names the descriptor; the peer stays usable. */
void hole_in_the_source(void **state) {
  enum { N = 40, BAD = 17 };
  struct link l;
  struct load b;
  struct rd2h_completion c;
  const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), len = 4 * page;
  (void)state;
  link_open(&l, N * len);
  NEEDS(&l, conf->moves_data, "it reads no memory");
  NEEDS(&l, !conf->shared, "its memory stays mapped");
  NEEDS(&l, !conf->holes_kill, "what is registered must stay mapped");
  source_hole(&l.source, BAD * len + 2 * page, page);
  memset(l.dst, OLD, l.source.bytes);
  load_init(&b, 1, N);
  for (uint32_t i = 0; i < N; i++)
    load_add(&b, l.dst + i * len, l.source.base + i * len, len);
  submit_ok(l.eng, l.peer, &b);
  collect(l.eng, &c, 1);
  assert_int_equal(c.status, RD2H_IO);
  if (engine_flags(l.eng) & RD2H_ENG_IN_ORDER) {
    assert_int_equal(c.failed_at, BAD);
    assert_int_equal(c.bytes, BAD * len + 2 * page);
    assert_pattern(l.dst, &l.source, 0, c.bytes);
    assert_filled(l.dst + c.bytes, OLD, l.source.bytes - c.bytes);
  }
  assert_non_null(strstr(rd2h_eng_last_error(l.eng, 1), "17"));
  b.b.n = BAD;
  b.b.bytes = BAD * len;
  submit_ok(l.eng, l.peer, &b);
  expect_ok(l.eng, &b);
  load_free(&b);
  link_close(&l);
}

/* Memory that is mapped here, too, is not lost with its owner's mapping: nothing fails, least of all by a signal. */
void hole_behind_a_mapping(void **state) {
  struct link l;
  struct load b;
  (void)state;
  link_open(&l, 4 * MIB);
  NEEDS(&l, conf->shared, "its memory is read from its owner's mapping");
  source_hole(&l.source, MIB, 2 * MIB);
  load_init(&b, 1, 1);
  load_add(&b, l.dst, l.source.base, 4 * MIB);
  submit_ok(l.eng, l.peer, &b);
  expect_ok(l.eng, &b);
  assert_pattern(l.dst, &l.source, 0, 4 * MIB);
  load_free(&b);
  link_close(&l);
}

static int try_connect(rd2h_eng *e, const uint8_t *p, uint32_t n) {
  struct rd2h_error err = {0};
  rd2h_eng_peer *peer = NULL;
  int rc = rd2h_eng_connect(e, text("127.0.0.1:1"), (struct rd2h_blob){p, n}, 1, &peer, &err);
  if (rc) {
    assert_null(peer);
    assert_int_equal(err.status, rc);
    assert_true(err.text[0]);
  }
  rd2h_eng_disconnect(e, peer);
  return rc;
}

void truncated_connection_data(void **state) {
  struct link l;
  (void)state;
  link_open(&l, 4 * KIB);
  for (uint32_t n = 1; n < l.source.conn_len; n++) {
    uint8_t *exact = rd2h_alloc(n); /* so that a read behind its end shows */
    memcpy(exact, l.source.conn, n);
    assert_int_not_equal(try_connect(l.eng, exact, n), RD2H_OK);
    rd2h_free(exact);
  }
  l.source.conn[l.source.conn_len] = 0;
  assert_int_not_equal(try_connect(l.eng, l.source.conn, l.source.conn_len + 1), RD2H_OK);
  assert_int_equal(try_connect(l.eng, l.source.conn, l.source.conn_len), RD2H_OK);
  link_close(&l);
}

/* Whatever stands in it: a clear refusal or a connection, never a crash, and the real peer goes on. */
void damaged_connection_data(void **state) {
  struct link l;
  struct load b;
  struct dice d = {3};
  uint8_t bad[sizeof l.source.conn];
  uint32_t refused = 0;
  (void)state;
  link_open(&l, 4 * KIB);
  for (uint32_t i = 0; i < FLIPS; i++) {
    memcpy(bad, l.source.conn, l.source.conn_len);
    for (uint64_t k = 1 + dice_roll(&d, 4); k--;)
      bad[dice_roll(&d, l.source.conn_len)] ^= (uint8_t)(1 + dice_roll(&d, 255));
    refused += try_connect(l.eng, bad, l.source.conn_len) != RD2H_OK;
  }
  assert_true(refused > FLIPS / 2);
  load_init(&b, 1, 1);
  load_add(&b, l.dst, l.source.base, 64);
  submit_ok(l.eng, l.peer, &b);
  expect_ok(l.eng, &b);
  load_free(&b);
  link_close(&l);
}

void no_connection_data(void **state) {
  struct link l;
  (void)state;
  link_open(&l, 4 * KIB);
  assert_int_equal(try_connect(l.eng, NULL, 0), conf->needs_conn ? RD2H_UNSUPPORTED : RD2H_OK);
  link_close(&l);
}
