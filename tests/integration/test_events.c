/* SPDX-License-Identifier: Apache-2.0 */
/* KV that a device's streams write: no byte of a layer goes out before its event. The device is a stand-in whose streams stand still
 * until told. */
#include "tests/integration/rig.h"
#include "tests/standin/ascendcl.h"
#include <setjmp.h>
#include <cmocka.h>

int aclrtSetDevice(int32_t);

static struct standin_stream stream; /* of the case at work */

static void open_streamed(struct rig_pair *x, uint32_t layers, const struct rd2h_prefill_opts *tweak) {
  struct rig_shape shape = {.layers = layers, .blocks = 32, .indexer_mask = 1};
  struct rd2h_prefill_opts po = tweak ? *tweak : (struct rd2h_prefill_opts){0};
  standin_reset();
  assert_int_equal(aclrtSetDevice(3), 0);
  stream = (struct standin_stream){0};
  po.device = po.device ? po.device : "ascend,id=3";
  rig_pair_open(x, &shape, &po, NULL);
}

static void close_streamed(struct rig_pair *x) {
  rig_pair_close(x);
  assert_int_equal(standin_events(), 0);
}

static void layer_on(struct rig_pair *x, uint32_t layer) {
  struct rd2h_error err = {0};
  RIG_OK(rd2h_prefill_layer_on(x->p, layer, &stream, &err), &err);
}

/* A request of n blocks, known on Decode; its only step begins. */
static void begin(struct rig_pair *x, struct rig_request *r, const char *id, uint32_t first) {
  struct rd2h_step_send send;
  rig_request(r, id, 3, first, first);
  rig_install(x->d, r);
  rig_send(&send, r, rd2h_decode_port(x->d), 0, 3, true);
  rig_step(x->p, &send, 1, NULL);
}

/* ---- order ---- */
static void nothing_goes_out_before_it_is_written(void **state) {
  (void)state;
  struct rig_pair x;
  struct rig_request r;
  struct rd2h_decode_stats st;
  open_streamed(&x, 2, NULL);
  rig_write_all(&x.src, 1); /* what a reader must not see */
  stream.held = true;
  begin(&x, &r, "held", 0);
  layer_on(&x, 0);
  layer_on(&x, 1);
  assert_true(standin_await(STANDIN_WAIT_EVENT, 2, RIG_WAIT_MS));
  rig_decode_stats(x.d, &st);
  assert_int_equal(st.batches, 0);
  rig_write_all(&x.src, 2);
  standin_run(&stream, 2);
  assert_int_equal(rig_outcome(x.d, "held", NULL), RD2H_OK);
  rig_expect(&x.dst, &r, 2);
  close_streamed(&x);
}

static void each_layer_goes_out_when_it_is_written(void **state) {
  (void)state;
  struct rig_pair x;
  struct rig_request r;
  struct rd2h_error err = {0};
  open_streamed(&x, 3, NULL);
  stream.held = true;
  begin(&x, &r, "one by one", 0);
  for (uint32_t l = 0; l < 3; l++)
    layer_on(&x, l);
  for (uint32_t l = 0; l < 3; l++) {
    assert_int_equal(rd2h_prefill_wait_layer(x.p, l, 20, &err), RD2H_TIMEOUT); /* closed from the call on */
    rig_write(&x.src, l, 4);
    standin_run(&stream, 1);
    /* Its answer is taken in while the next one is waited for. */
    RIG_OK(rd2h_prefill_wait_layer(x.p, l, RIG_WAIT_MS, &err), &err);
  }
  assert_int_equal(rig_outcome(x.d, "one by one", NULL), RD2H_OK);
  rig_expect(&x.dst, &r, 4);
  close_streamed(&x);
}

static void a_step_waits_behind_the_layers_before_it(void **state) {
  (void)state;
  struct rig_pair x;
  struct rig_request r;
  open_streamed(&x, 1, NULL);
  rig_write_all(&x.src, 1);
  stream.held = true;
  begin(&x, &r, "ends", 0);
  layer_on(&x, 0);
  rig_step(x.p, NULL, 0, "ends"); /* the engine is done with it: its layer still goes out */
  assert_true(standin_await(STANDIN_WAIT_EVENT, 2, RIG_WAIT_MS));
  rig_write_all(&x.src, 2);
  standin_run(&stream, 1);
  assert_int_equal(rig_outcome(x.d, "ends", NULL), RD2H_OK);
  assert_int_equal(rig_settled(x.p, "ends"), RD2H_OK);
  rig_expect(&x.dst, &r, 2);
  close_streamed(&x);
}

static void host_has_nothing_to_wait_for(void **state) {
  (void)state;
  struct rig_pair x;
  struct rig_request r;
  open_streamed(&x, 2, &(struct rd2h_prefill_opts){.device = "host"});
  rig_write_all(&x.src, 5);
  begin(&x, &r, "host", 0);
  layer_on(&x, 0);
  layer_on(&x, 1);
  assert_int_equal(rig_outcome(x.d, "host", NULL), RD2H_OK);
  rig_expect(&x.dst, &r, 5);
  assert_int_equal(standin_count(STANDIN_RECORD_EVENT), 0);
  close_streamed(&x);
}

/* ---- a device that fails ---- */
/* The request of the failed layer ends on both sides, its gate is open, and the next one is served. */
static void ends_alone(struct rig_pair *x, int status, const char *text) {
  struct rig_request next;
  struct rd2h_error err = {0};
  char why[RD2H_ERROR_TEXT];
  assert_int_equal(rig_outcome(x->d, "failed", why), status);
  if (!strstr(why, text))
    fail_msg("%s is not in: %s", text, why);
  RIG_OK(rd2h_prefill_wait_layer(x->p, 0, RIG_WAIT_MS, &err), &err);
  for (int call = 0; call < STANDIN_CALLS; call++)
    standin_fail(call, 0);
  stream = (struct standin_stream){0};
  rig_write_all(&x->src, 3);
  begin(x, &next, "next", 8);
  layer_on(x, 0);
  layer_on(x, 1);
  assert_int_equal(rig_outcome(x->d, "next", NULL), RD2H_OK);
  rig_expect(&x->dst, &next, 3);
  rig_step(x->p, NULL, 0, "failed");
  assert_int_equal(rig_settled(x->p, "failed"), status);
}

static void event_that_never_comes(void **state) {
  (void)state;
  struct rig_pair x;
  struct rig_request r;
  open_streamed(&x, 2, &(struct rd2h_prefill_opts){.event_ms = 400});
  struct standin_stream hung = {.held = true}, old = stream;
  stream = hung;
  begin(&x, &r, "failed", 0);
  layer_on(&x, 0);
  layer_on(&x, 1);
  ends_alone(&x, RD2H_TIMEOUT, "device ascend did not get to its event in time");
  stream = old;
  close_streamed(&x);
}

static void failed_calls(void **state) {
  (void)state;
  static const struct {
    enum standin_call call;
    int code;
    const char *text;
  } cases[] = {
      {STANDIN_QUERY_EVENT, 507015, "aclrtQueryEventStatus returned 507015: a kernel failed"},
      {STANDIN_WAIT_EVENT, 507001, "aclrtSynchronizeEventWithTimeout returned 507001: the device is lost"},
  };
  for (size_t i = 0; i < RD2H_COUNT(cases); i++) {
    struct rig_pair x;
    struct rig_request r;
    open_streamed(&x, 2, NULL);
    stream.held = true;
    standin_fail(cases[i].call, cases[i].code);
    begin(&x, &r, "failed", 0);
    layer_on(&x, 0);
    ends_alone(&x, RD2H_IO, cases[i].text);
    close_streamed(&x);
  }
}

static void event_that_cannot_be_recorded(void **state) {
  (void)state;
  struct rig_pair x;
  struct rig_request r;
  struct rd2h_error err = {0};
  open_streamed(&x, 2, NULL);
  standin_fail(STANDIN_RECORD_EVENT, 107003);
  begin(&x, &r, "failed", 0);
  assert_int_equal(rd2h_prefill_layer_on(x.p, 0, &stream, &err), RD2H_IO);
  assert_non_null(strstr(err.text, "layer model.layers.0.self_attn.attn: ascend: aclrtRecordEvent returned 107003"));
  ends_alone(&x, RD2H_IO, "aclrtRecordEvent returned 107003");
  close_streamed(&x);
}

static void raise_says_it_at_the_next_hook(void **state) {
  (void)state;
  struct rig_pair x;
  struct rig_request r;
  struct rd2h_error err = {0};
  open_streamed(&x, 1, &(struct rd2h_prefill_opts){.on_read_failure = RD2H_RAISE});
  stream.held = true;
  standin_fail(STANDIN_WAIT_EVENT, 507001);
  begin(&x, &r, "raises", 0);
  layer_on(&x, 0);
  assert_int_equal(rd2h_prefill_wait_layer(x.p, 0, RIG_WAIT_MS, &err), RD2H_IO);
  assert_non_null(strstr(err.text, "aclrtSynchronizeEventWithTimeout returned 507001"));
  close_streamed(&x);
}

static void shutdown_is_bounded(void **state) {
  (void)state;
  struct rig_pair x;
  struct rig_request r;
  open_streamed(&x, 2, &(struct rd2h_prefill_opts){.settle_ms = 30, .event_ms = 3600000});
  stream.held = true;
  begin(&x, &r, "open", 0);
  layer_on(&x, 0);
  layer_on(&x, 1);
  uint64_t before = rd2h_now_ns();
  rd2h_prefill_destroy(x.p);
  assert_true(rd2h_now_ns() - before < 2000 * RD2H_MS);
  x.p = NULL;
  assert_int_equal(rd2h_decode_abort(x.d, "open"), RD2H_OK);
  assert_int_equal(rig_outcome(x.d, "open", NULL), RD2H_ABORTED);
  for (uint32_t l = 0; l < 2; l++)
    for (uint32_t b = 0; b < 32; b++)
      assert_true(rig_untouched(&x.dst, l, b));
  close_streamed(&x);
}

/* ---- threads ---- */
static void T09_every_thread_has_its_device(void **state) {
  (void)state;
  struct rig_pair x;
  open_streamed(&x, 1, NULL);
  assert_true(standin_await_threads(3, 3, RIG_WAIT_MS)); /* this one, the sender, the one that waits for events */
  rd2h_decode_destroy(x.d);
  x.d = rig_decode(&x.dst, &(struct rd2h_decode_opts){.device = "ascend,id=2", .engine_threads = 3});
  assert_true(standin_await_threads(2, 4, RIG_WAIT_MS)); /* control, three that read */
  assert_false(standin_await_threads(0, 1, 0)); /* nobody had the first device, which is what a thread without one would use */
  close_streamed(&x);
}

static void a_device_that_is_not_there_is_refused(void **state) {
  (void)state;
  struct rig_side side;
  struct rd2h_error err = {0};
  rd2h_prefill *p;
  rd2h_decode *d;
  standin_reset();
  rig_side_open(&side, &(struct rig_shape){.layers = 1, .blocks = 4});
  struct rd2h_prefill_opts po = {.size = sizeof po, .layout = side.layout, .memory = &side.area, .n_memory = 1, .engine = "local",
                                 .device = "ascend,id=9"};
  assert_int_equal(rd2h_prefill_create(&po, &p, &err), RD2H_RANGE);
  assert_non_null(strstr(err.text, "id is 9, this process sees 8 devices"));
  struct rd2h_decode_opts o = {.size = sizeof o, .layout = side.layout, .memory = &side.area, .n_memory = 1, .engine = "local",
                               .device = "gpu"};
  assert_int_equal(rd2h_decode_create(&o, &d, &err), RD2H_NOT_FOUND);
  po.device = NULL;
  po.event_ms = 3600001;
  assert_int_equal(rd2h_prefill_create(&po, &p, &err), RD2H_INVALID);
  assert_non_null(strstr(err.text, "event_ms is 3600001"));
  rig_side_close(&side);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(nothing_goes_out_before_it_is_written),
      cmocka_unit_test(each_layer_goes_out_when_it_is_written),
      cmocka_unit_test(a_step_waits_behind_the_layers_before_it),
      cmocka_unit_test(host_has_nothing_to_wait_for),
      cmocka_unit_test(event_that_never_comes),
      cmocka_unit_test(failed_calls),
      cmocka_unit_test(event_that_cannot_be_recorded),
      cmocka_unit_test(raise_says_it_at_the_next_hook),
      cmocka_unit_test(shutdown_is_bounded),
      cmocka_unit_test(T09_every_thread_has_its_device),
      cmocka_unit_test(a_device_that_is_not_there_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
