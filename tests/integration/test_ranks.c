/* SPDX-License-Identifier: Apache-2.0 */
/* Several ranks on either side: any pair of TP sizes, pipeline stages, several readers of one Prefill. */
#include "tests/integration/rig.h"
#include <setjmp.h>
#include <cmocka.h>

#define MAX_RANKS 8u
static const struct rig_shape shape = {.layers = 3, .blocks = 64, .indexer_mask = 5};

/* Every Prefill rank holds the same KV (as with MLA) and sends all of it; every Decode rank must end up with all of it. */
static void tp_sizes(uint32_t p_size, uint32_t d_size) {
  struct rig_side src[MAX_RANKS], dst[MAX_RANKS] = {0};
  rd2h_prefill *p[MAX_RANKS];
  rd2h_decode *d[MAX_RANKS];
  struct rig_request r;
  struct rd2h_step_send send;
  for (uint32_t i = 0; i < d_size; i++)
    rig_side_open(&dst[i], &shape);
  uint16_t base = rig_decode_ranks(d, dst, d_size, false);
  rig_request(&r, "tp", 7, 3, 20);
  for (uint32_t i = 0; i < d_size; i++)
    rig_install(d[i], &r);
  for (uint32_t i = 0; i < p_size; i++) {
    rig_side_open(&src[i], &shape);
    p[i] = rig_prefill(&src[i], &(struct rd2h_prefill_opts){.tp_rank = i, .tp_size = p_size});
    for (uint32_t l = 0; l < shape.layers; l++)
      rig_write(&src[i], l, 2);
    for (uint32_t c = 0; c < 2; c++) {
      rig_send(&send, &r, base, c ? 4 : 0, c ? 7 : 4, c);
      send.d_tp = p_size == d_size ? 0 : d_size; /* 0: Decode has not said, it has as many */
      rig_step(p[i], &send, 1, NULL);
      rig_layers(p[i], shape.layers);
    }
    rig_step(p[i], NULL, 0, "tp");
  }
  for (uint32_t i = 0; i < d_size; i++) {
    assert_int_equal(rig_outcome(d[i], "tp", NULL), RD2H_OK);
    rig_expect(&dst[i], &r, 2);
  }
  for (uint32_t i = 0; i < p_size; i++) {
    assert_int_equal(rig_settled(p[i], "tp"), RD2H_OK);
    rd2h_prefill_destroy(p[i]);
    rig_side_close(&src[i]);
  }
  for (uint32_t i = 0; i < d_size; i++) {
    rd2h_decode_destroy(d[i]);
    rig_side_close(&dst[i]);
  }
}

static void any_tp_sizes(void **state) {
  (void)state;
  static const uint32_t sizes[][2] = {{1, 1}, {2, 1}, {3, 1}, {4, 2}, {2, 2}, {1, 2}, {3, 2}, {2, 3}};
  for (size_t i = 0; i < RD2H_COUNT(sizes); i++)
    tp_sizes(sizes[i][0], sizes[i][1]);
}

/* Every fourth layer has an indexer, the prompt is one block: seven of eight ranks own nothing of the other layers. They answer
 * all the same, and read nothing. */
static void y09_ranks_without_a_share_answer(void **state) {
  (void)state;
  enum { RANKS = 8, LAYERS = 32, INDEXERS = LAYERS / 4 };
  static const struct rig_shape s = {.layers = LAYERS, .blocks = 4, .indexer_mask = 0x11111111};
  struct rig_side src, dst[RANKS];
  rd2h_decode *d[RANKS];
  struct rig_request r;
  struct rd2h_step_send send;
  for (uint32_t i = 0; i < RANKS; i++)
    rig_side_open(&dst[i], &s);
  uint16_t base = rig_decode_ranks(d, dst, RANKS, true);
  rig_request(&r, "one", 1, 2, 1);
  for (uint32_t i = 0; i < RANKS; i++)
    rig_install(d[i], &r);
  rig_side_open(&src, &s);
  rd2h_prefill *p = rig_prefill(&src, NULL);
  for (uint32_t l = 0; l < LAYERS; l++)
    rig_write(&src, l, 5);
  rig_send(&send, &r, base, 0, 1, true);
  send.d_tp = RANKS;
  rig_step(p, &send, 1, NULL);
  rig_layers(p, LAYERS);
  for (uint32_t i = 0; i < RANKS; i++) {
    struct rd2h_decode_stats st;
    uint64_t indexer = INDEXERS * (rig_block_bytes(2) + rig_block_bytes(3));
    uint64_t main = LAYERS * (rig_block_bytes(0) + rig_block_bytes(1));
    assert_int_equal(rig_outcome(d[i], "one", NULL), RD2H_OK);
    rig_decode_stats(d[i], &st);
    assert_int_equal(st.replies, LAYERS + 1); /* and the done */
    assert_int_equal(st.reads, i ? INDEXERS : LAYERS);
    assert_int_equal(st.bytes, i ? indexer : indexer + main);
    assert_int_equal(st.completed, 1);
  }
  rig_expect(&dst[0], &r, 5);
  rig_step(p, NULL, 0, "one");
  assert_int_equal(rig_settled(p, "one"), RD2H_OK);
  rd2h_prefill_destroy(p);
  rig_side_close(&src);
  for (uint32_t i = 0; i < RANKS; i++) {
    rd2h_decode_destroy(d[i]);
    rig_side_close(&dst[i]);
  }
}

/* Two stages with three layers each; success only when both are through. */
static void pipeline_stages(void **state) {
  (void)state;
  struct rig_side src[2], dst;
  rd2h_prefill *p[2];
  struct rig_request r;
  struct rd2h_step_send send;
  rig_side_open(&dst, &(struct rig_shape){.layers = 6, .blocks = 64, .indexer_mask = 0x2d});
  rd2h_decode *d = rig_decode(&dst, NULL);
  rig_request(&r, "pp", 5, 0, 9);
  rig_install(d, &r);
  for (uint32_t stage = 0; stage < 2; stage++) {
    rig_side_open(&src[stage], &(struct rig_shape){.layers = 3, .first = 3 * stage, .blocks = 64, .indexer_mask = 5});
    p[stage] = rig_prefill(&src[stage], &(struct rd2h_prefill_opts){.pp_rank = stage, .pp_size = 2});
    for (uint32_t l = 0; l < 3; l++)
      rig_write(&src[stage], l, 6);
    rig_send(&send, &r, rd2h_decode_port(d), 0, 5, true);
    rig_step(p[stage], &send, 1, NULL);
    rig_layers(p[stage], 3);
    rig_step(p[stage], NULL, 0, "pp");
    assert_int_equal(rig_settled(p[stage], "pp"), RD2H_OK);
    struct rd2h_outcome o;
    assert_int_equal(stage || !rd2h_decode_collect(d, &o, 1), 1); /* one stage alone completes nothing */
  }
  assert_int_equal(rig_outcome(d, "pp", NULL), RD2H_OK);
  rig_expect(&dst, &r, 6);
  for (uint32_t stage = 0; stage < 2; stage++) {
    rd2h_prefill_destroy(p[stage]);
    rig_side_close(&src[stage]);
  }
  rd2h_decode_destroy(d);
  rig_side_close(&dst);
}

/* One step for two Decode engines, of which one does not exist: the other one's request is not touched by that. */
static void one_reader_of_two(void **state) {
  (void)state;
  struct rig_side src, dst;
  struct rig_request good, lost;
  struct rd2h_step_send send[2];
  rig_side_open(&src, &shape);
  rig_side_open(&dst, &shape);
  rd2h_decode *gone = rig_decode(&dst, NULL);
  uint16_t nobody = rd2h_decode_port(gone);
  rd2h_decode *d = rig_decode(&dst, NULL);
  rd2h_decode_destroy(gone);
  rd2h_prefill *p = rig_prefill(&src, NULL);
  rig_request(&good, "good", 4, 0, 0);
  rig_request(&lost, "lost", 4, 20, 20);
  rig_install(d, &good);
  for (uint32_t l = 0; l < shape.layers; l++)
    rig_write(&src, l, 8);
  rig_send(&send[0], &lost, nobody, 0, 4, true);
  rig_send(&send[1], &good, rd2h_decode_port(d), 0, 4, true);
  rig_step(p, send, 2, NULL);
  rig_layers(p, shape.layers);
  assert_int_equal(rig_outcome(d, "good", NULL), RD2H_OK);
  rig_expect(&dst, &good, 8);
  rig_step(p, NULL, 0, "lost");
  assert_int_equal(rig_settled(p, "lost"), RD2H_PEER_LOST);
  rig_step(p, NULL, 0, "good");
  assert_int_equal(rig_settled(p, "good"), RD2H_OK);
  rd2h_prefill_destroy(p);
  rd2h_decode_destroy(d);
  rig_side_close(&src);
  rig_side_close(&dst);
}

/* A port or host that cannot be: the request is left out, others of the step go on. */
static void T02_unusable_address(void **state) {
  (void)state;
  struct rig_side src, dst;
  struct rig_request good, bad;
  struct rd2h_step_send send[3];
  rig_side_open(&src, &shape);
  rig_side_open(&dst, &shape);
  rd2h_decode *d = rig_decode(&dst, NULL);
  rd2h_prefill *p = rig_prefill(&src, NULL);
  rig_request(&good, "good", 4, 0, 0);
  rig_request(&bad, "bad", 4, 20, 20);
  rig_install(d, &good);
  rig_send(&send[0], &bad, 1, 0, 4, true);
  send[0].base_port = 65535;
  send[0].d_tp = 4;
  rig_send(&send[1], &good, rd2h_decode_port(d), 0, 4, true);
  rig_send(&send[2], &bad, 1, 0, 4, true);
  send[2].id = send[2].ext_id = (struct rd2h_str){"bad-2", 5};
  send[2].host = (struct rd2h_str){"no host", 7};
  rig_step(p, send, 3, NULL);
  rig_layers(p, shape.layers);
  assert_int_equal(rig_outcome(d, "good", NULL), RD2H_OK);
  rig_step(p, NULL, 0, "bad-2");
  assert_int_equal(rig_settled(p, "bad-2"), RD2H_INVALID);
  rig_step(p, NULL, 0, "bad");
  assert_int_equal(rig_settled(p, "bad"), RD2H_RANGE);
  rig_step(p, NULL, 0, "never heard of");
  assert_int_equal(rig_settled(p, "never heard of"), RD2H_OK); /* nobody reads it */
  rd2h_prefill_destroy(p);
  rd2h_decode_destroy(d);
  rig_side_close(&src);
  rig_side_close(&dst);
}

static void ip_version_6(void **state) {
  (void)state;
  struct rig_side src, dst;
  struct rig_request r;
  struct rd2h_step_send send;
  struct rd2h_error err = {0};
  rd2h_decode *d;
  rig_side_open(&dst, &shape);
  struct rd2h_decode_opts o = {.size = sizeof o, .layout = dst.layout, .memory = &dst.area, .n_memory = 1, .tp_size = 1,
                               .engine = "local", .bind_host = "::1"};
  if (rd2h_decode_create(&o, &d, &err)) {
    rig_side_close(&dst);
    skip(); /* this host has no IPv6 */
  }
  rig_side_open(&src, &shape);
  rd2h_prefill *p = rig_prefill(&src, &(struct rd2h_prefill_opts){.host = "::1"});
  rig_request(&r, "six", 4, 0, 0);
  rig_install(d, &r);
  for (uint32_t l = 0; l < shape.layers; l++)
    rig_write(&src, l, 1);
  rig_send(&send, &r, rd2h_decode_port(d), 0, 4, true);
  send.host = (struct rd2h_str){"::1", 3};
  rig_step(p, &send, 1, NULL);
  rig_layers(p, shape.layers);
  assert_int_equal(rig_outcome(d, "six", NULL), RD2H_OK);
  rig_expect(&dst, &r, 1);
  rd2h_prefill_destroy(p);
  rd2h_decode_destroy(d);
  rig_side_close(&src);
  rig_side_close(&dst);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(any_tp_sizes), cmocka_unit_test(y09_ranks_without_a_share_answer),
                                     cmocka_unit_test(pipeline_stages),
                                     cmocka_unit_test(one_reader_of_two), cmocka_unit_test(T02_unusable_address),
                                     cmocka_unit_test(ip_version_6)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
