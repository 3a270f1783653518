/* SPDX-License-Identifier: Apache-2.0 */
/* What the public objects refuse, each with a line that says what to do. */
#include "tests/integration/rig.h"
#include <setjmp.h>
#include <cmocka.h>

static struct rig_side side;

static struct rd2h_decode_opts decode_opts(void) {
  return (struct rd2h_decode_opts){.size = sizeof(struct rd2h_decode_opts), .layout = side.layout, .memory = &side.area,
                                   .n_memory = 1, .tp_size = 1, .engine = "noop"};
}

static struct rd2h_prefill_opts prefill_opts(void) {
  return (struct rd2h_prefill_opts){.size = sizeof(struct rd2h_prefill_opts), .layout = side.layout, .memory = &side.area,
                                    .n_memory = 1, .tp_size = 1, .pp_size = 1, .engine = "noop"};
}

static void decode_refuses(const struct rd2h_decode_opts *o, int status, const char *word) {
  struct rd2h_error err = {0};
  rd2h_decode *d = NULL;
  assert_int_equal(rd2h_decode_create(o, &d, &err), status);
  assert_null(d);
  if (!strstr(err.text, word))
    fail_msg("\"%s\" is not in: %s", word, err.text);
}

static void prefill_refuses(const struct rd2h_prefill_opts *o, int status, const char *word) {
  struct rd2h_error err = {0};
  rd2h_prefill *p = NULL;
  assert_int_equal(rd2h_prefill_create(o, &p, &err), status);
  assert_null(p);
  if (!strstr(err.text, word))
    fail_msg("\"%s\" is not in: %s", word, err.text);
}

#define DECODE_BAD(field, value, status, word) \
  do { \
    struct rd2h_decode_opts bad = decode_opts(); \
    bad.field = value; \
    decode_refuses(&bad, status, word); \
  } while (0)
#define PREFILL_BAD(field, value, status, word) \
  do { \
    struct rd2h_prefill_opts bad = prefill_opts(); \
    bad.field = value; \
    prefill_refuses(&bad, status, word); \
  } while (0)

static void bad_decode_options(void **state) {
  (void)state;
  static const struct rd2h_memory beyond = {.base = UINT64_MAX - 10, .len = 100};
  decode_refuses(NULL, RD2H_INVALID, "options");
  DECODE_BAD(size, 0, RD2H_INVALID, "size");
  DECODE_BAD(size, 4096, RD2H_INVALID, "4096");
  DECODE_BAD(layout, NULL, RD2H_INVALID, "layout");
  DECODE_BAD(engine, NULL, RD2H_INVALID, "auto, local");
  DECODE_BAD(engine, "", RD2H_INVALID, "auto, local");
  DECODE_BAD(engine, "infiniband", RD2H_NOT_FOUND, "infiniband");
  DECODE_BAD(engine, "noop,a=1,b=2,c=3,d,e,f,g,h,i,j,k,l,m,n,o,p,q", RD2H_INVALID, "options");
  DECODE_BAD(tp_rank, 1, RD2H_INVALID, "rank 1 of 1");
  DECODE_BAD(tp_size, 70000, RD2H_INVALID, "tp_size is 70000");
  DECODE_BAD(main_rank, 3, RD2H_INVALID, "rank 3 of 1");
  DECODE_BAD(memory, NULL, RD2H_INVALID, "storage areas");
  DECODE_BAD(memory, &beyond, RD2H_INVALID, "end of memory");
  DECODE_BAD(bind_host, "no such host", RD2H_INVALID, "bind_host");
  DECODE_BAD(bind_host, "192.0.2.1", RD2H_IO, "192.0.2.1");
  DECODE_BAD(max_message_mb, 5000, RD2H_INVALID, "max_message_mb is 5000");
  DECODE_BAD(read_timeout_ms, UINT64_MAX, RD2H_INVALID, "read_timeout_ms");
  DECODE_BAD(digest, 3, RD2H_INVALID, "off (0), log (1) or fail (2)");
}

static void bad_prefill_options(void **state) {
  (void)state;
  prefill_refuses(NULL, RD2H_INVALID, "options");
  PREFILL_BAD(size, 3, RD2H_INVALID, "size");
  PREFILL_BAD(layout, NULL, RD2H_INVALID, "layout");
  PREFILL_BAD(engine, NULL, RD2H_INVALID, "auto, local");
  PREFILL_BAD(engine, "magic", RD2H_NOT_FOUND, "magic");
  PREFILL_BAD(tp_rank, 2, RD2H_INVALID, "rank 2 of 1");
  PREFILL_BAD(pp_rank, 1, RD2H_INVALID, "pipeline rank 1 of 1");
  PREFILL_BAD(host, "", RD2H_INVALID, "host");
  PREFILL_BAD(on_read_failure, 7, RD2H_INVALID, "isolate (0) or raise (1)");
  PREFILL_BAD(digest, 3, RD2H_INVALID, "off (0), log (1) or fail (2)");
  PREFILL_BAD(liveness_ms, 3, RD2H_INVALID, "liveness_ms is 3");
}

/* Digests are made and checked by the CPU. */
static void digests_need_host_memory(void **state) {
  (void)state;
  struct rd2h_error err = {0};
  struct rd2h_prefill_opts p = prefill_opts();
  struct rd2h_decode_opts d = decode_opts();
  rd2h_prefill *no_p;
  rd2h_decode *no_d;
  p.device = d.device = "ascend,device=0";
  p.digest = d.digest = RD2H_DIGEST_LOG;
  assert_int_equal(rd2h_prefill_create(&p, &no_p, &err), RD2H_UNSUPPORTED);
  assert_non_null(strstr(err.text, "Prefill: digest needs KV in host memory, device is \"ascend,device=0\""));
  assert_int_equal(rd2h_decode_create(&d, &no_d, &err), RD2H_UNSUPPORTED);
  assert_non_null(strstr(err.text, "Decode: digest needs KV in host memory"));
}

static void D10_T01_port_in_use(void **state) {
  (void)state;
  struct rd2h_error err = {0};
  struct rd2h_decode_opts o = decode_opts();
  rd2h_decode *d;
  RIG_OK(rd2h_decode_create(&o, &d, &err), &err);
  char port[16];
  snprintf(port, sizeof port, ":%u", rd2h_decode_port(d));
  DECODE_BAD(port, rd2h_decode_port(d), RD2H_IO, port);
  rd2h_decode_destroy(d);
}

static char heard[256];
static void hear(void *user, int level, const char *line) {
  (void)user;
  if (level == RD2H_LOG_WARN)
    snprintf(heard, sizeof heard, "%s", line);
}

static void times_in_the_wrong_order(void **state) {
  (void)state;
  struct rd2h_error err = {0};
  for (uint32_t i = 0; i < 2; i++) {
    struct rd2h_decode_opts o = decode_opts();
    rd2h_decode *d;
    o.read_timeout_ms = 5000;
    o.park_ms = 1000;
    o.progress_ms = 6000 + i;
    heard[0] = 0;
    rd2h_log_set(hear, NULL, RD2H_LOG_WARN);
    RIG_OK(rd2h_decode_create(&o, &d, &err), &err);
    rd2h_log_set(NULL, NULL, RD2H_LOG_WARN);
    rd2h_decode_destroy(d);
    assert_true(i ? !heard[0] : strstr(heard, "progress_ms (6000) should be above read_timeout_ms + park_ms (6000)") != NULL);
  }
}

/* A caller built with older headers: what it does not know has its default. */
static void shorter_options(void **state) {
  (void)state;
  struct rd2h_error err = {0};
  struct rd2h_prefill_opts o = prefill_opts();
  rd2h_prefill *p;
  o.size = offsetof(struct rd2h_prefill_opts, handshake_ms);
  o.handshake_ms = UINT32_MAX; /* beyond its end */
  RIG_OK(rd2h_prefill_create(&o, &p, &err), &err);
  rd2h_prefill_destroy(p);
}

static void bad_grants(void **state) {
  (void)state;
  static const uint32_t ids[] = {1, 2};
  struct rd2h_error err = {0};
  struct rd2h_decode_opts o = decode_opts();
  rd2h_decode *d;
  RIG_OK(rd2h_decode_create(&o, &d, &err), &err);
  struct rd2h_grant good = {.id = "a", .ext_id = "a", .main = ids, .n_main = 2, .main_need = 2}, g;
  g = good, g.id = NULL;
  assert_int_equal(rd2h_decode_install(d, &g, &err), RD2H_INVALID);
  g = good, g.ext_id = "";
  assert_int_equal(rd2h_decode_install(d, &g, &err), RD2H_INVALID);
  g = good, g.main = NULL;
  assert_int_equal(rd2h_decode_install(d, &g, &err), RD2H_INVALID);
  g = good, g.main_need = 3;
  assert_int_equal(rd2h_decode_install(d, &g, &err), RD2H_INVALID);
  g = good, g.indexer_floor = 1;
  assert_int_equal(rd2h_decode_install(d, &g, &err), RD2H_INVALID);
  assert_int_equal(rd2h_decode_install(d, &good, &err), RD2H_OK);
  assert_int_equal(rd2h_decode_install(d, &good, &err), RD2H_EXISTS);
  assert_int_equal(rd2h_decode_abort(d, "nobody"), RD2H_NOT_FOUND);
  assert_int_equal(rd2h_decode_fail(d, "a", RD2H_OK, "no failure"), RD2H_INVALID);
  assert_int_equal(rd2h_decode_fail(d, "a", RD2H_REFUSED, "the metaserver refused it"), RD2H_OK);
  char text[RD2H_ERROR_TEXT];
  assert_int_equal(rig_outcome(d, "a", text), RD2H_REFUSED);
  assert_string_equal(text, "the metaserver refused it");
  rd2h_decode_destroy(d);
  rd2h_decode_destroy(NULL);
  rd2h_prefill_destroy(NULL);
}

static void bad_step_bytes(void **state) {
  (void)state;
  struct rd2h_error err = {0};
  struct rd2h_decode_opts dopts = decode_opts();
  struct rd2h_prefill_opts popts = prefill_opts();
  rd2h_decode *d;
  rd2h_prefill *p;
  RIG_OK(rd2h_decode_create(&dopts, &d, &err), &err);
  RIG_OK(rd2h_prefill_create(&popts, &p, &err), &err);
  assert_int_equal(rd2h_decode_step(d, "garbage", 7, &err), RD2H_MALFORMED);
  assert_int_equal(rd2h_prefill_step(p, "garbage", 7, &err), RD2H_MALFORMED);
  assert_int_equal(rd2h_prefill_wait_preempted(p, "garbage", 7, 10, &err), RD2H_MALFORMED);
  assert_int_equal(rd2h_decode_step(d, NULL, 7, &err), RD2H_INVALID);
  assert_int_equal(rd2h_prefill_step(p, NULL, 7, NULL), RD2H_INVALID);
  assert_int_equal(rd2h_decode_step(d, NULL, 0, &err), RD2H_OK);
  assert_int_equal(rd2h_prefill_step(p, NULL, 0, &err), RD2H_OK);
  assert_int_equal(rd2h_prefill_layer(p, 0, &err), RD2H_OK);
  assert_int_equal(rd2h_prefill_layer(p, 99, &err), RD2H_RANGE);
  rd2h_prefill_destroy(p);
  rd2h_decode_destroy(d);
}

/* Whichever allocation fails while an object is made: nothing leaks, nothing stays behind, the error says so. */
static void out_of_memory(void **state) {
  (void)state;
  struct rd2h_error err = {0};
  struct rd2h_decode_opts dopts = decode_opts();
  struct rd2h_prefill_opts popts = prefill_opts();
  rd2h_decode *d = NULL;
  rd2h_prefill *p = NULL;
  int rc = -1;
  for (uint64_t n = 1; n < 1000 && rc; n++) {
    rd2h_alloc_fail_at(n);
    rc = rd2h_decode_create(&dopts, &d, &err);
    rd2h_alloc_fail_at(0);
    assert_true(!rc || rc == RD2H_NOMEM);
  }
  assert_int_equal(rc, RD2H_OK);
  rd2h_decode_destroy(d);
  rc = -1;
  for (uint64_t n = 1; n < 1000 && rc; n++) {
    rd2h_alloc_fail_at(n);
    rc = rd2h_prefill_create(&popts, &p, &err);
    rd2h_alloc_fail_at(0);
    assert_true(!rc || rc == RD2H_NOMEM);
  }
  assert_int_equal(rc, RD2H_OK);
  rd2h_prefill_destroy(p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(bad_decode_options), cmocka_unit_test(bad_prefill_options),
      cmocka_unit_test(digests_need_host_memory), cmocka_unit_test(D10_T01_port_in_use),
      cmocka_unit_test(times_in_the_wrong_order),
      cmocka_unit_test(shorter_options),    cmocka_unit_test(bad_grants),          cmocka_unit_test(bad_step_bytes),
      cmocka_unit_test(out_of_memory),
  };
  rig_side_open(&side, &(struct rig_shape){.layers = 2, .blocks = 8});
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  rig_side_close(&side);
  return failed;
}
