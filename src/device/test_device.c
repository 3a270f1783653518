/* SPDX-License-Identifier: Apache-2.0 */
/* Devices by their specs; the Ascend backend against a stand-in for libascendcl.so, which this program has loaded as a process that
 * computes on the device would. */
#include "device/device.h"
#include "tests/standin/ascendcl.h"
#include <rd2h/pool.h>
#include <poll.h>
#include <stdio.h>
#include <setjmp.h>
#include <cmocka.h>

#define LONG_MS 10000u
int aclrtSetDevice(int32_t);

static uint64_t in_ms(uint64_t ms) {
  return rd2h_now_ns() + ms * RD2H_MS;
}

static bool readable(const rd2h_dev *d, int ms) {
  struct pollfd p = {.fd = rd2h_dev_fd(d), .events = POLLIN};
  return poll(&p, 1, ms) == 1;
}

static rd2h_dev *ascend(void) {
  struct rd2h_error err = {0};
  rd2h_dev *d = NULL;
  standin_reset();
  assert_int_equal(aclrtSetDevice(1), 0);
  if (rd2h_dev_open("ascend,id=1", &d, &err) || rd2h_dev_events(d, &err))
    fail_msg("%s", err.text);
  assert_int_equal(rd2h_dev_events(d, &err), RD2H_OK); /* there already */
  assert_true(standin_await_threads(1, 2, LONG_MS)); /* this one and the device's own */
  return d;
}

static rd2h_dev_event *record(rd2h_dev *d, struct standin_stream *s) {
  struct rd2h_error err = {0};
  rd2h_dev_event *e;
  if (rd2h_dev_record(d, s, &e, &err))
    fail_msg("%s", err.text);
  assert_non_null(e);
  return e;
}

/* ---- specs ---- */
static void specs_are_checked(void **state) {
  (void)state;
  static const struct {
    const char *spec;
    int status;
    const char *text;
  } bad[] = {
      {"tpu", RD2H_NOT_FOUND, "\"tpu\": choose host or ascend"},
      {"host,id=1", RD2H_INVALID, "option id is unknown"},
      {"ascend,id", RD2H_INVALID, "an option without a value: \"id\""},
      {"ascend,id=-1", RD2H_INVALID, "id is \"-1\""},
      {"ascend,id=x", RD2H_INVALID, "id is \"x\""},
      {"ascend,id=8", RD2H_RANGE, "id is 8, this process sees 8 devices"},
      {"ascend,speed=9", RD2H_INVALID, "option speed is unknown; known are id and library"},
      {"ascend,id=0,id=0,id=0,id=0,id=0", RD2H_INVALID, "too many options"},
      {"ascend,library=/no/libascendcl.so", RD2H_NOT_FOUND, "/no/libascendcl.so cannot be loaded"},
      {"ascend,library=libm.so.6", RD2H_UNSUPPORTED, "libm.so.6 has no function aclrtGetDeviceCount"},
  };
  standin_reset();
  for (size_t i = 0; i < RD2H_COUNT(bad); i++) {
    struct rd2h_error err = {0};
    rd2h_dev *d;
    assert_int_equal(rd2h_dev_open(bad[i].spec, &d, &err), bad[i].status);
    if (!strstr(err.text, bad[i].text))
      fail_msg("%s: %s", bad[i].spec, err.text);
  }
}

static void host_has_no_streams(void **state) {
  (void)state;
  struct rd2h_error err = {0};
  struct rd2h_device_info info = {.size = sizeof info};
  rd2h_dev *d;
  rd2h_dev_event *e = (void *)&d;
  assert_int_equal(rd2h_dev_open(NULL, &d, &err), RD2H_OK);
  assert_string_equal(rd2h_dev_name(d), "host");
  assert_int_equal(rd2h_dev_record(d, NULL, &e, &err), RD2H_OK);
  assert_null(e);
  assert_int_equal(rd2h_dev_events(d, &err), RD2H_OK);
  assert_int_equal(rd2h_dev_fd(d), -1);
  assert_int_equal(rd2h_dev_bind_thread(d), RD2H_OK);
  assert_int_equal(rd2h_dev_pin(d, &err, sizeof err, &err), RD2H_OK);
  rd2h_dev_unpin(d, &err);
  rd2h_dev_close(d);
  assert_int_equal(rd2h_device_probe("host", &info, &err), RD2H_OK);
  assert_false(info.streams);
  assert_int_equal(info.devices, 1);
}

static void probe_tells(void **state) {
  (void)state;
  struct rd2h_error err = {0};
  struct rd2h_device_info info = {.size = sizeof info};
  standin_reset();
  assert_int_equal(rd2h_device_probe("ascend,id=7", &info, &err), RD2H_OK);
  assert_true(info.streams);
  assert_int_equal(info.devices, STANDIN_DEVICES);
  assert_string_equal(info.model, "Standin910");
  info.size = 4;
  assert_int_equal(rd2h_device_probe("ascend", &info, &err), RD2H_INVALID);
  assert_int_equal(rd2h_device_probe("ascend", NULL, &err), RD2H_INVALID);
  assert_int_equal(rd2h_device_probe("none", &(struct rd2h_device_info){.size = sizeof info}, &err), RD2H_NOT_FOUND);
}

/* ---- events ---- */
static void event_that_is_reached(void **state) {
  (void)state;
  struct standin_stream s = {0};
  rd2h_dev *d = ascend();
  rd2h_dev_event *e = record(d, &s);
  assert_int_equal(rd2h_dev_reached(d, e, in_ms(LONG_MS), NULL), RD2H_OK);
  rd2h_dev_release(d, e);
  assert_ptr_equal(record(d, &s), e); /* used again */
  rd2h_dev_release(d, NULL);
  assert_int_equal(standin_events(), 1);
  rd2h_dev_close(d);
  assert_int_equal(standin_events(), 0);
}

static void event_that_is_waited_for(void **state) {
  (void)state;
  struct standin_stream s = {.held = true};
  rd2h_dev *d = ascend();
  rd2h_dev_event *e = record(d, &s);
  assert_int_equal(rd2h_dev_reached(d, e, in_ms(LONG_MS), NULL), RD2H_AGAIN);
  assert_true(standin_await(STANDIN_WAIT_EVENT, 3, LONG_MS)); /* one call does not wait for ever */
  assert_int_equal(rd2h_dev_reached(d, e, in_ms(LONG_MS), NULL), RD2H_AGAIN);
  assert_false(readable(d, 0));
  standin_run(&s, 1);
  assert_true(readable(d, LONG_MS));
  assert_int_equal(rd2h_dev_reached(d, e, in_ms(LONG_MS), NULL), RD2H_OK);
  assert_false(readable(d, 0));
  rd2h_dev_release(d, e);
  rd2h_dev_close(d);
}

static void event_that_never_comes(void **state) {
  (void)state;
  struct standin_stream s = {.held = true}, other = {0};
  struct rd2h_error err = {0};
  rd2h_dev *d = ascend();
  rd2h_dev_event *e = record(d, &s), *next = record(d, &other);
  uint64_t deadline = in_ms(30);
  assert_int_equal(rd2h_dev_reached(d, e, deadline, &err), RD2H_AGAIN);
  assert_true(readable(d, LONG_MS));
  assert_true(rd2h_now_ns() >= deadline);
  assert_int_equal(rd2h_dev_reached(d, e, deadline, &err), RD2H_TIMEOUT);
  assert_non_null(strstr(err.text, "device ascend did not get to its event in time"));
  rd2h_dev_release(d, e);
  assert_int_equal(rd2h_dev_reached(d, next, in_ms(LONG_MS), &err), RD2H_OK);
  rd2h_dev_close(d);
}

static void close_leaves_what_it_waits_for(void **state) {
  (void)state;
  struct standin_stream s = {.held = true};
  rd2h_dev *d = ascend();
  rd2h_dev_event *e = record(d, &s);
  assert_int_equal(rd2h_dev_reached(d, e, in_ms(3600000), NULL), RD2H_AGAIN);
  assert_true(standin_await(STANDIN_WAIT_EVENT, 1, LONG_MS));
  rd2h_dev_release(d, e);
  rd2h_dev_close(d);
  assert_int_equal(standin_events(), 0);
}

/* ---- failures: the call and its code are named ---- */
static void expect_text(const struct rd2h_error *err, const char *call, int code) {
  char want[128];
  snprintf(want, sizeof want, "ascend: %s returned %d: ", call, code);
  if (!strstr(err->text, want) || !strstr(err->text, "E30003: said by the stand-in") || strchr(err->text, '\n'))
    fail_msg("%s is not in: %s", want, err->text);
}

static void failed_calls_are_named(void **state) {
  (void)state;
  struct standin_stream s = {.held = true};
  struct rd2h_error err = {0};
  rd2h_dev_event *e;
  rd2h_dev *d, *none;
  d = ascend();
  standin_fail(STANDIN_INIT, 500000);
  assert_int_equal(rd2h_dev_open("ascend", &none, &err), RD2H_IO);
  expect_text(&err, "aclInit", 500000);
  standin_fail(STANDIN_INIT, 100002); /* the process has done so already */
  standin_fail(STANDIN_DEVICE_COUNT, 507033);
  assert_int_equal(rd2h_dev_open("ascend", &none, &err), RD2H_IO);
  expect_text(&err, "aclrtGetDeviceCount", 507033);
  assert_non_null(strstr(err.text, "the device could not be opened"));
  standin_fail(STANDIN_SET_DEVICE, 107001);
  assert_int_equal(rd2h_dev_bind(d, &err), RD2H_IO);
  expect_text(&err, "aclrtSetDevice", 107001);
  assert_int_equal(rd2h_dev_bind_thread(d), RD2H_IO);
  standin_fail(STANDIN_CREATE_EVENT, 207003);
  assert_int_equal(rd2h_dev_record(d, &s, &e, &err), RD2H_IO);
  expect_text(&err, "aclrtCreateEvent", 207003);
  standin_fail(STANDIN_CREATE_EVENT, 0);
  standin_fail(STANDIN_RECORD_EVENT, 107003);
  assert_int_equal(rd2h_dev_record(d, &s, &e, &err), RD2H_IO);
  expect_text(&err, "aclrtRecordEvent", 107003);
  assert_null(e);
  standin_fail(STANDIN_RECORD_EVENT, 0);
  e = record(d, &s); /* what was created for the failed one */
  assert_int_equal(standin_count(STANDIN_CREATE_EVENT), 2);
  standin_fail(STANDIN_QUERY_EVENT, 507015);
  assert_int_equal(rd2h_dev_reached(d, e, in_ms(LONG_MS), &err), RD2H_IO);
  expect_text(&err, "aclrtQueryEventStatus", 507015);
  standin_fail(STANDIN_QUERY_EVENT, 0);
  rd2h_dev_release(d, e);
  e = record(d, &s);
  assert_int_equal(rd2h_dev_reached(d, e, in_ms(LONG_MS), &err), RD2H_AGAIN);
  standin_fail(STANDIN_WAIT_EVENT, 507001);
  assert_true(readable(d, LONG_MS));
  assert_int_equal(rd2h_dev_reached(d, e, in_ms(LONG_MS), &err), RD2H_IO);
  expect_text(&err, "aclrtSynchronizeEventWithTimeout", 507001);
  rd2h_dev_release(d, e);
  standin_fail(STANDIN_DESTROY_EVENT, 107004); /* said in the log, nobody is left to be told */
  rd2h_dev_close(d);
}

static void a_thread_without_its_device_fails_its_events(void **state) {
  (void)state;
  struct standin_stream s = {.held = true};
  struct rd2h_error err = {0};
  rd2h_dev *d;
  rd2h_dev_close(ascend()); /* this thread has its device */
  standin_fail(STANDIN_SET_DEVICE, 507033);
  assert_int_equal(rd2h_dev_open("ascend", &d, &err), RD2H_OK);
  assert_int_equal(rd2h_dev_events(d, &err), RD2H_OK);
  rd2h_dev_event *e = record(d, &s);
  assert_int_equal(rd2h_dev_reached(d, e, in_ms(LONG_MS), &err), RD2H_AGAIN);
  assert_true(readable(d, LONG_MS));
  assert_int_equal(rd2h_dev_reached(d, e, in_ms(LONG_MS), &err), RD2H_IO);
  expect_text(&err, "aclrtSetDevice", 507033);
  rd2h_dev_close(d);
}

static void host_memory_is_pinned(void **state) {
  (void)state;
  static char area[4096];
  struct rd2h_error err = {0};
  rd2h_dev *d = ascend();
  assert_int_equal(rd2h_dev_pin(d, area, sizeof area, &err), RD2H_OK);
  assert_int_equal(standin_pinned(), 1);
  rd2h_dev_unpin(d, area);
  assert_int_equal(standin_pinned(), 0);
  standin_fail(STANDIN_REGISTER_HOST, 207001);
  assert_int_equal(rd2h_dev_pin(d, area, sizeof area, &err), RD2H_IO);
  expect_text(&err, "aclrtHostRegister", 207001);
  standin_fail(STANDIN_UNREGISTER_HOST, 107000);
  rd2h_dev_unpin(d, area); /* said in the log */
  rd2h_dev_close(d);
}

/* Every rank's mapping of the shared pool, for its own device. */
static void a_pool_is_pinned(void **state) {
  (void)state;
  struct rd2h_pool_opts o = {.size = sizeof o, .shape = {2, 2, 8, {64, 16}}, .lock = RD2H_LOCK_OFF, .device = "ascend,id=4"};
  struct rd2h_error err = {0};
  struct rd2h_pool_info info;
  rd2h_pool *mine, *other;
  standin_reset();
  assert_int_equal(rd2h_pool_create(&o, &mine, &err), RD2H_OK);
  assert_int_equal(rd2h_pool_attach(rd2h_pool_handle(mine), &o, &other, &err), RD2H_OK);
  assert_int_equal(standin_pinned(), 2);
  rd2h_pool_info(other, &info);
  assert_true(info.pinned);
  rd2h_pool_destroy(other);
  standin_fail(STANDIN_REGISTER_HOST, 207001);
  assert_int_equal(rd2h_pool_attach(rd2h_pool_handle(mine), &o, &other, &err), RD2H_IO);
  expect_text(&err, "aclrtHostRegister", 207001);
  assert_int_equal(rd2h_pool_create(&o, &other, &err), RD2H_IO);
  o.device = "ascend,id=9";
  assert_int_equal(rd2h_pool_create(&o, &other, &err), RD2H_RANGE);
  o.size = offsetof(struct rd2h_pool_opts, device); /* older headers */
  assert_int_equal(rd2h_pool_attach(rd2h_pool_handle(mine), &o, &other, &err), RD2H_OK);
  rd2h_pool_info(other, &info);
  assert_false(info.pinned);
  rd2h_pool_destroy(other);
  rd2h_pool_destroy(mine);
  assert_int_equal(standin_pinned(), 0);
}

static void every_allocation_may_fail(void **state) {
  (void)state;
  struct standin_stream s = {0};
  int rc = RD2H_NOMEM;
  for (uint64_t n = 1; rc == RD2H_NOMEM; n++) {
    struct rd2h_error err = {0};
    rd2h_dev_event *e;
    rd2h_dev *d = NULL;
    rd2h_alloc_fail_at(n);
    rc = rd2h_dev_open("ascend,id=2", &d, &err);
    rc = rc ? rc : rd2h_dev_record(d, &s, &e, &err);
    rd2h_alloc_fail_at(0);
    assert_true(rc == RD2H_OK || rc == RD2H_NOMEM);
    rd2h_dev_close(d);
    assert_true(n < 50);
  }
  assert_int_equal(standin_events(), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(specs_are_checked),
      cmocka_unit_test(host_has_no_streams),
      cmocka_unit_test(probe_tells),
      cmocka_unit_test(event_that_is_reached),
      cmocka_unit_test(event_that_is_waited_for),
      cmocka_unit_test(event_that_never_comes),
      cmocka_unit_test(close_leaves_what_it_waits_for),
      cmocka_unit_test(failed_calls_are_named),
      cmocka_unit_test(a_thread_without_its_device_fails_its_events),
      cmocka_unit_test(host_memory_is_pinned),
      cmocka_unit_test(a_pool_is_pinned),
      cmocka_unit_test(every_allocation_may_fail),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
