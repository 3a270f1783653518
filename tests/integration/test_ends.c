/* SPDX-License-Identifier: Apache-2.0 */
/* How connections end: who is told what, what stays behind, what a restart needs. */
#include "tests/integration/raw.h"
#include <setjmp.h>
#include <cmocka.h>
#include <zmq.h>

static const struct rig_shape shape = {.layers = 2, .blocks = 64, .indexer_mask = 2};

/* ---- a refused Prefill tells which requests need not be waited for ---- */
#define MANY 3000u

static uint32_t count_cancels(struct raw *raw) {
  uint32_t n = 0;
  while (raw_receive(raw, 3000))
    if (rd2h_wire_kind(raw->in.p, raw->in.len) == RD2H_MSG_CANCEL && ++n == MANY)
      break;
  return n;
}

/* More than the sockets' buffers hold, and Decode reads slowly: all of it still arrives. */
static void refused_prefill_tells(void **state) {
  (void)state;
  static struct rd2h_step_send send[MANY];
  static char id[MANY][1001];
  struct rig_side src;
  struct raw raw;
  struct rig_request r;
  struct rd2h_buf b = {0};
  int one = 1, little = 4096;
  rig_side_open(&src, &shape);
  raw_decode(&raw, (const int[][2]){{ZMQ_RCVHWM, one}, {ZMQ_RCVBUF, little}, {0, 0}});
  rd2h_prefill *p = rig_prefill(&src, NULL);
  rig_request(&r, "r", 4, 0, 0);
  for (uint32_t i = 0; i < MANY; i++) {
    memset(id[i], 'x', 1000);
    id[i][snprintf(id[i], 16, "%u", i)] = 'x';
    r.id = r.ext = id[i];
    rig_send(&send[i], &r, raw.port, 0, 4, true);
  }
  rig_step(p, send, MANY, NULL);
  rig_layers(p, 2);
  assert_true(raw_receive(&raw, RIG_WAIT_MS));
  rd2h_wire_encode_meta_nak(&b, "layouts differ");
  raw_send(&raw, b.p, b.len);
  struct rd2h_error err = {0};
  assert_int_equal(rd2h_prefill_wait_layer(p, 0, RIG_WAIT_MS, &err), RD2H_OK); /* the connection is closed by now */
  assert_int_equal(count_cancels(&raw), MANY);
  rd2h_prefill_destroy(p);
  raw_close(&raw);
  rd2h_buf_free(&b);
  rig_side_close(&src);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(refused_prefill_tells)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
