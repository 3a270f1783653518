/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes -> step, of either kind: refused, or a view that can be written again and reads the same. */
#include "scheduler/step.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(struct rd2h_buf *b, struct rd2h_buf *again) {
  if (b->len != again->len || memcmp(b->p, again->p, b->len))
    abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct rd2h_arena a = {0};
  struct rd2h_buf one = {0}, two = {0};
  struct rd2h_prefill_step_view p;
  struct rd2h_decode_step_view d;
  if (size && rd2h_step_decode_prefill(data, size, &a, &p, NULL) == RD2H_OK && p.n_send + p.n_finished + p.n_preempted) {
    rd2h_step_encode_prefill(&one, &p);
    if (rd2h_step_decode_prefill(one.p, one.len, &a, &p, NULL))
      abort();
    rd2h_step_encode_prefill(&two, &p);
    check(&one, &two);
  } else if (size && rd2h_step_decode_decode(data, size, &a, &d, NULL) == RD2H_OK && d.n_install + d.n_end + d.n_answered) {
    rd2h_step_encode_decode(&one, &d);
    if (rd2h_step_decode_decode(one.p, one.len, &a, &d, NULL))
      abort();
    rd2h_step_encode_decode(&two, &d);
    check(&one, &two);
  }
  rd2h_buf_free(&one);
  rd2h_buf_free(&two);
  rd2h_arena_free(&a);
  return 0;
}
