/* SPDX-License-Identifier: Apache-2.0 */
/* What a trace says: every read with its bytes and places, every answer, in order of time; nothing when nobody listens. */
#include "tests/integration/rig.h"
#include <pthread.h>
#include <rd2h/trace.h>
#include <setjmp.h>
#include <cmocka.h>

static const struct rig_shape shape = {.layers = 3, .blocks = 64, .indexer_mask = 5};
static struct {
  pthread_mutex_t mu;
  uint32_t reads[4], answers[4], failed, elsewhere;
  uint64_t bytes, lens, last_read[4], first_answer[4];
  const struct rig_side *dst;
} seen = {.mu = PTHREAD_MUTEX_INITIALIZER};

static void hear(void *user, const struct rd2h_trace *t) {
  unsigned layer = 3;
  assert_ptr_equal(user, &seen);
  sscanf(t->layer, "model.layers.%u", &layer);
  pthread_mutex_lock(&seen.mu);
  seen.failed += t->status != 0 || t->begin_ns == 0 || t->begin_ns > t->end_ns || !t->peer[0];
  if (t->kind == RD2H_TRACE_ANSWER) {
    seen.answers[layer]++;
    seen.first_answer[layer] = t->end_ns;
  } else {
    seen.reads[layer]++;
    seen.bytes += t->bytes;
    seen.last_read[layer] = t->end_ns;
  }
  for (uint32_t i = 0; i < t->n; i++) {
    seen.lens += t->len[i];
    seen.elsewhere += (uintptr_t)t->local[i] - seen.dst->area.base >= seen.dst->area.len;
  }
  pthread_mutex_unlock(&seen.mu);
}

static void one_transfer(const char *id) {
  struct rig_side src, dst;
  struct rig_request r;
  struct rd2h_step_send send;
  rig_side_open(&src, &shape);
  rig_side_open(&dst, &shape);
  seen.dst = &dst;
  rd2h_decode *d = rig_decode(&dst, NULL);
  rd2h_prefill *p = rig_prefill(&src, NULL);
  rig_request(&r, id, 5, 2, 9);
  rig_install(d, &r);
  for (uint32_t l = 0; l < shape.layers; l++)
    rig_write(&src, l, 3);
  rig_send(&send, &r, rd2h_decode_port(d), 0, 5, true);
  rig_step(p, &send, 1, NULL);
  rig_layers(p, shape.layers);
  rig_step(p, NULL, 0, id);
  assert_int_equal(rig_outcome(d, id, NULL), RD2H_OK);
  assert_int_equal(rig_settled(p, id), RD2H_OK);
  rig_expect(&dst, &r, 3);
  rd2h_prefill_destroy(p);
  rd2h_decode_destroy(d);
  rig_side_close(&src);
  rig_side_close(&dst);
}

static void reads_and_answers(void **state) {
  (void)state;
  uint64_t want = 0;
  for (uint32_t l = 0; l < shape.layers; l++)
    for (uint32_t t = 0; t < RIG_TENSORS; t++)
      want += t < 2 || (shape.indexer_mask >> l & 1) ? 5ull * rig_block_bytes(t) : 0;
  rd2h_trace_set(hear, &seen);
  one_transfer("traced");
  rd2h_trace_set(NULL, NULL);
  for (uint32_t l = 0; l < shape.layers; l++) {
    assert_int_equal(seen.reads[l], 1);
    assert_int_equal(seen.answers[l], 1);
    assert_true(seen.last_read[l] <= seen.first_answer[l]); /* an answer never comes before the read */
  }
  assert_int_equal(seen.bytes, want);
  assert_int_equal(seen.lens, want);
  assert_int_equal(seen.failed + seen.elsewhere + seen.reads[3] + seen.answers[3], 0);
  one_transfer("not traced");
  assert_int_equal(seen.bytes, want);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(reads_and_answers)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
