/* SPDX-License-Identifier: Apache-2.0 */
/* Names, tables and their checks, and the fault wrapper in front of noop. */
#include "engine/engine.h"
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define WAIT_MS 10000

/* ---- an engine that is little more than its table ---- */
static struct {
  uint32_t open, publish_need;
  bool publish_lies;
  struct rd2h_engine_caps caps;
} fake;

static int fake_open(const struct rd2h_host *h, const struct rd2h_engine_opts *o, rd2h_engine **e, struct rd2h_engine_caps *caps,
                     struct rd2h_error *err) {
  (void)o, (void)err;
  assert_int_equal(h->abi, RD2H_ENGINE_ABI);
  assert_int_equal(h->size, sizeof *h);
  assert_true(h->now_ns(h->h) > 0);
  h->log(h->h, 4, "fake: opens");
  void *p = h->alloc(h->h, 16);
  assert_non_null(p);
  h->free(h->h, p);
  *caps = fake.caps;
  *e = (rd2h_engine *)&fake;
  fake.open++;
  return RD2H_OK;
}

static void fake_close(rd2h_engine *e) {
  (void)e;
  fake.open--;
}

static int fake_publish(rd2h_engine *e, uint8_t *buf, uint32_t cap, uint32_t *len) {
  (void)e;
  *len = fake.publish_need;
  if (cap < fake.publish_need)
    return RD2H_RANGE;
  memset(buf, 'x', fake.publish_need);
  *len += fake.publish_lies;
  return RD2H_OK;
}

static int fake_connect(rd2h_engine *e, struct rd2h_blob session, struct rd2h_blob conn, uint64_t cookie, rd2h_peer **p,
                        struct rd2h_error *err) {
  (void)e, (void)session, (void)conn, (void)cookie, (void)err;
  *p = (rd2h_peer *)&fake;
  return RD2H_OK;
}

static void fake_disconnect(rd2h_engine *e, rd2h_peer *p) {
  (void)e, (void)p;
}

static int fake_submit(rd2h_engine *e, rd2h_peer *p, const struct rd2h_batch *b) {
  (void)e, (void)p, (void)b;
  return RD2H_OK;
}

static void fake_cancel(rd2h_engine *e, uint64_t id) {
  (void)e, (void)id;
}

static int fake_poll(rd2h_engine *e, struct rd2h_completion *c, int n) {
  (void)e, (void)c, (void)n;
  return 0;
}

static int fake_fd(rd2h_engine *e) {
  (void)e;
  return -1;
}

static const struct rd2h_engine_ops fake_ops = {
  .abi = RD2H_ENGINE_ABI, .size = sizeof fake_ops, .name = "fake", .open = fake_open, .close = fake_close,
  .publish = fake_publish, .connect = fake_connect, .disconnect = fake_disconnect, .submit = fake_submit, .cancel = fake_cancel,
  .poll = fake_poll, .fd = fake_fd,
};

static rd2h_eng *open_fake(void) {
  struct rd2h_engine_opts o = {.size = sizeof o};
  rd2h_eng *e = NULL;
  assert_int_equal(rd2h_eng_open_ops(&fake_ops, &o, &e, NULL), RD2H_OK);
  return e;
}

static void names(void **state) {
  static const char *const known[][2] = {{"auto", "auto"},   {"local", "local"},      {"tcp", "tcp"},
                                         {"noop", "noop"}, {"fault:local", "local"}, {"fault:auto", "auto"},
                                         {"fault:noop", "noop"}};
  struct rd2h_engine_opts o = {.size = sizeof o};
  struct rd2h_error err;
  rd2h_eng *e = NULL;
  (void)state;
  for (size_t i = 0; i < RD2H_COUNT(known); i++) {
    assert_int_equal(rd2h_eng_open(known[i][0], &o, &e, NULL), RD2H_OK);
    assert_string_equal(rd2h_eng_name(e), known[i][1]);
    rd2h_eng_close(e);
  }
  e = NULL;
  assert_int_equal(rd2h_eng_open("rdma", &o, &e, &err), RD2H_NOT_FOUND);
  assert_non_null(strstr(err.text, "\"rdma\""));
  assert_int_equal(rd2h_eng_open("fault:rdma", &o, &e, &err), RD2H_NOT_FOUND);
  assert_int_equal(rd2h_eng_open("", &o, &e, &err), RD2H_NOT_FOUND);
  o.size = 8;
  assert_int_equal(rd2h_eng_open("noop", &o, &e, &err), RD2H_INVALID);
  assert_int_equal(rd2h_eng_open("fault:noop", &o, &e, &err), RD2H_INVALID);
  assert_null(e);
  rd2h_eng_close(NULL);
}

static int try_table(const struct rd2h_engine_ops *ops) {
  struct rd2h_engine_opts o = {.size = sizeof o};
  struct rd2h_error err = {0};
  rd2h_eng *e = NULL;
  int rc = rd2h_eng_open_ops(ops, &o, &e, &err);
  assert_null(e);
  assert_int_equal(err.status, rc);
  assert_int_equal(fake.open, 0);
  return rc;
}

static void tables_of_another_abi(void **state) {
  struct rd2h_engine_ops t = fake_ops;
  (void)state;
  t.abi = RD2H_ENGINE_ABI + 1;
  assert_int_equal(try_table(&t), RD2H_UNSUPPORTED);
  t = fake_ops;
  t.size = sizeof t - 8;
  assert_int_equal(try_table(&t), RD2H_UNSUPPORTED);
}

/* A slot that the flags promise is missing: found before the first use, and what was opened is closed again. */
static void tables_with_holes(void **state) {
  struct rd2h_engine_ops t = fake_ops;
  (void)state;
  t.name = "";
  assert_int_equal(try_table(&t), RD2H_INVALID);
  t = fake_ops;
  t.connect = NULL;
  assert_int_equal(try_table(&t), RD2H_INVALID);
  t = fake_ops;
  t.poll = NULL;
  assert_int_equal(try_table(&t), RD2H_INVALID);
  t = fake_ops;
  fake.caps.flags = RD2H_ENG_BLOCKS;
  assert_int_equal(try_table(&t), RD2H_INVALID);
  fake.caps.flags = 0;
}

static void slots_that_may_be_missing(void **state) {
  struct rd2h_engine_ops t = fake_ops;
  struct rd2h_engine_opts o = {.size = sizeof o};
  struct rd2h_engine_stats s = {.reads = 5};
  struct rd2h_peer_event ev;
  struct rd2h_buf buf = {0};
  rd2h_eng *e;
  uint32_t region = 9;
  (void)state;
  t.publish = NULL;
  assert_int_equal(rd2h_eng_open_ops(&t, &o, &e, NULL), RD2H_OK);
  assert_int_equal(rd2h_eng_reg(e, &(struct rd2h_region){.base = &s, .len = 8}, &region, NULL), RD2H_OK);
  assert_int_equal(region, 0);
  assert_int_equal(rd2h_eng_publish(e, &buf, NULL), RD2H_OK);
  assert_int_equal(buf.len, 0);
  assert_int_equal(rd2h_eng_events(e, &ev, 1), 0);
  rd2h_eng_stats(e, &s);
  assert_int_equal(s.reads, 0);
  rd2h_eng_close(e);
}

static void publish_appends(void **state) {
  struct rd2h_buf buf = {0};
  struct rd2h_error err;
  rd2h_eng *e = open_fake();
  (void)state;
  rd2h_buf_put(&buf, "head", 4);
  fake.publish_need = 1000;
  assert_int_equal(rd2h_eng_publish(e, &buf, NULL), RD2H_OK);
  assert_int_equal(buf.len, 1004);
  assert_memory_equal(buf.p, "headxxx", 7);
  fake.publish_lies = true;
  assert_int_equal(rd2h_eng_publish(e, &buf, &err), RD2H_INTERNAL);
  assert_int_equal(buf.len, 1004);
  fake.publish_lies = false;
  fake.publish_need = 2u << 20;
  assert_int_equal(rd2h_eng_publish(e, &buf, &err), RD2H_INTERNAL);
  assert_int_equal(buf.len, 1004);
  rd2h_buf_free(&buf);
  rd2h_eng_close(e);
}

static void arguments_are_checked(void **state) {
  struct rd2h_batch b = {.n = 3};
  struct rd2h_error err;
  rd2h_eng_peer *p;
  uint32_t region;
  fake.caps.max_desc = 2;
  rd2h_eng *e = open_fake();
  (void)state;
  assert_int_equal(rd2h_eng_connect(e, (struct rd2h_blob){0}, (struct rd2h_blob){0}, 1, &p, NULL), RD2H_OK);
  assert_int_equal(rd2h_eng_submit(e, p, &b), RD2H_INVALID);
  b.local = (void *const *)&b;
  b.remote = b.len = (const uint64_t *)&b;
  assert_int_equal(rd2h_eng_submit(e, p, &b), RD2H_RANGE);
  b.n = 2;
  assert_int_equal(rd2h_eng_submit(e, p, &b), RD2H_OK);
  static const struct rd2h_region bad[] = {{.len = 8}, {.base = &fake}, {.base = &fake, .len = UINT64_MAX}};
  for (size_t i = 0; i < RD2H_COUNT(bad); i++)
    assert_int_equal(rd2h_eng_reg(e, &bad[i], &region, &err), RD2H_INVALID);
  rd2h_eng_disconnect(e, NULL);
  fake.caps.max_desc = 0;
  rd2h_eng_close(e);
}

/* ---- faults ---- */
static rd2h_eng *open_faulty(const char *a, const char *b, rd2h_eng_peer **p) {
  const char *const options[] = {a, b, NULL};
  struct rd2h_engine_opts o = {.size = sizeof o, .options = options};
  rd2h_eng *e = NULL;
  assert_int_equal(rd2h_eng_open("fault:noop", &o, &e, NULL), RD2H_OK);
  assert_int_equal(rd2h_eng_connect(e, (struct rd2h_blob){0}, (struct rd2h_blob){0}, 1, p, NULL), RD2H_OK);
  return e;
}

static bool ready(rd2h_eng *e, int ms) {
  struct pollfd fd = {.fd = rd2h_eng_fd(e), .events = POLLIN};
  return poll(&fd, 1, ms) == 1;
}

static struct rd2h_completion next(rd2h_eng *e) {
  struct rd2h_completion c;
  for (int tries = 0; tries < 100; tries++) {
    assert_true(ready(e, WAIT_MS));
    if (rd2h_eng_poll(e, &c, 1) == 1)
      return c;
  }
  fail_msg("no completion");
  return c;
}

static void every_third_read_fails(void **state) {
  struct rd2h_batch b[9];
  struct rd2h_engine_stats s;
  uint32_t failed = 0;
  rd2h_eng_peer *p;
  rd2h_eng *e = open_faulty("fail_every=3", NULL, &p);
  (void)state;
  for (uint64_t i = 0; i < 9; i++) {
    b[i] = (struct rd2h_batch){.id = i + 1, .bytes = 100};
    assert_int_equal(rd2h_eng_submit(e, p, &b[i]), RD2H_OK);
  }
  for (int i = 0; i < 9; i++) {
    struct rd2h_completion c = next(e);
    assert_int_equal(c.status, c.id % 3 ? RD2H_OK : RD2H_IO);
    assert_int_equal(c.bytes, c.id % 3 ? 100 : 0);
    failed += c.status != RD2H_OK;
    if (c.status)
      assert_non_null(strstr(rd2h_eng_last_error(e, c.id), "injected"));
  }
  assert_int_equal(failed, 3);
  assert_false(ready(e, 0));
  rd2h_eng_stats(e, &s);
  assert_int_equal(s.reads, 9);
  assert_int_equal(s.failures, 3);
  rd2h_eng_close(e);
}

static void every_second_read_is_damaged(void **state) {
  struct rd2h_batch b[4];
  uint8_t byte[4] = {0};
  void *local[4];
  uint64_t remote = 0, len = 1;
  rd2h_eng_peer *p;
  rd2h_eng *e = open_faulty("corrupt_every=2", NULL, &p);
  (void)state;
  for (uint64_t i = 0; i < 4; i++) {
    local[i] = &byte[i];
    b[i] = (struct rd2h_batch){.id = i + 1, .n = 1, .bytes = 1, .local = &local[i], .remote = &remote, .len = &len};
    assert_int_equal(rd2h_eng_submit(e, p, &b[i]), RD2H_OK);
  }
  for (int i = 0; i < 4; i++)
    assert_int_equal(next(e).status, RD2H_OK);
  assert_memory_equal(byte, ((const uint8_t[]){0, 1, 0, 1}), 4);
  rd2h_eng_close(e);
}

static void hung_reads_end_with_cancel_or_disconnect(void **state) {
  struct rd2h_batch b[4];
  struct rd2h_completion c;
  rd2h_eng_peer *p;
  rd2h_eng *e = open_faulty("hang_every=2", NULL, &p);
  (void)state;
  for (uint64_t i = 0; i < 4; i++) {
    b[i] = (struct rd2h_batch){.id = i + 1};
    assert_int_equal(rd2h_eng_submit(e, p, &b[i]), RD2H_OK);
  }
  assert_int_equal(next(e).id, 1);
  assert_int_equal(next(e).id, 3);
  assert_false(ready(e, 30));
  rd2h_eng_cancel(e, 2);
  c = next(e);
  assert_int_equal(c.id, 2);
  assert_int_equal(c.status, RD2H_CANCELED);
  rd2h_eng_disconnect(e, p);
  assert_false(ready(e, 30));
  rd2h_eng_cancel(e, 4);
  assert_int_equal(rd2h_eng_poll(e, &c, 1), 0);
  rd2h_eng_close(e);
}

static void delayed_reads_come_late_and_in_order(void **state) {
  struct rd2h_batch b[50];
  rd2h_eng_peer *p;
  rd2h_eng *e = open_faulty("delay_ms=20", "fail_every=7", &p);
  uint64_t begin = rd2h_now_ns();
  (void)state;
  for (uint64_t i = 0; i < 50; i++) {
    b[i] = (struct rd2h_batch){.id = i + 1};
    assert_int_equal(rd2h_eng_submit(e, p, &b[i]), RD2H_OK);
  }
  uint64_t last_good = 0, last_bad = 0;
  for (int i = 0; i < 50; i++) {
    struct rd2h_completion c = next(e);
    uint64_t *last = c.status ? &last_bad : &last_good;
    assert_true(c.id > *last);
    *last = c.id;
    assert_int_equal(c.status, c.id % 7 ? RD2H_OK : RD2H_IO);
  }
  assert_true(rd2h_now_ns() - begin >= 20 * RD2H_MS);
  assert_false(ready(e, 0));
  rd2h_eng_close(e);
}

static void options_are_checked(void **state) {
  static const char *const bad[] = {"fail_every=", "fail_every=x", "delay_ms=-1", "hang_every=99999999999", "speed=9"};
  struct rd2h_error err;
  rd2h_eng *e = NULL;
  (void)state;
  for (size_t i = 0; i < RD2H_COUNT(bad); i++) {
    const char *const options[] = {"delay_ms=1", bad[i], NULL};
    struct rd2h_engine_opts o = {.size = sizeof o, .options = options};
    assert_int_equal(rd2h_eng_open("fault:local", &o, &e, &err), RD2H_INVALID);
    assert_non_null(strstr(err.text, bad[i]));
    o.options++;
    assert_int_equal(rd2h_eng_open("local", &o, &e, &err), RD2H_INVALID);
    assert_int_equal(rd2h_eng_open("noop", &o, &e, &err), RD2H_INVALID);
  }
  assert_null(e);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(names),
    cmocka_unit_test(tables_of_another_abi),
    cmocka_unit_test(tables_with_holes),
    cmocka_unit_test(slots_that_may_be_missing),
    cmocka_unit_test(publish_appends),
    cmocka_unit_test(arguments_are_checked),
    cmocka_unit_test(every_third_read_fails), cmocka_unit_test(every_second_read_is_damaged),
    cmocka_unit_test(hung_reads_end_with_cancel_or_disconnect),
    cmocka_unit_test(delayed_reads_come_late_and_in_order),
    cmocka_unit_test(options_are_checked),
  };
  return cmocka_run_group_tests_name("engine", tests, NULL, NULL);
}
