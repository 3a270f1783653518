/* SPDX-License-Identifier: Apache-2.0 */
/* The workers with real sockets and real bytes, both ranks in this process. */
#include "tests/integration/rig.h"
#include <setjmp.h>
#include <cmocka.h>

static void one_layer(void **state) {
  (void)state;
  struct rig_shape shape = {.layers = 1, .blocks = 32, .indexer_mask = 1};
  struct rig_side src, dst;
  struct rig_request r;
  struct rd2h_step_send send;
  rig_side_open(&src, &shape);
  rig_side_open(&dst, &shape);
  rd2h_decode *d = rig_decode(&dst, NULL);
  rd2h_prefill *p = rig_prefill(&src, NULL);
  rig_request(&r, "req-1", 5, 3, 10);
  rig_write(&src, 0, 1);
  rig_install(d, &r);
  rig_send(&send, &r, rd2h_decode_port(d), 0, 5, true);
  rig_step(p, &send, 1, NULL);
  rig_layers(p, 1);
  assert_int_equal(rig_outcome(d, "req-1", NULL), RD2H_OK);
  rig_expect(&dst, &r, 1);
  rig_step(p, NULL, 0, "req-1");
  assert_int_equal(rig_settled(p, "req-1"), RD2H_OK);
  rd2h_prefill_destroy(p);
  rd2h_decode_destroy(d);
  rig_side_close(&src);
  rig_side_close(&dst);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(one_layer)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
