/* SPDX-License-Identifier: Apache-2.0 */
/* The order is cmocka's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "layout/layout.h"

#define NAME "model.layers.4.self_attn"

/* Decode: K 64 x 2, V 16, indexer 32, scale 4 bytes a block, 8 blocks; Prefill the same with other rows. */
static rd2h_layout *make_layout(bool indexer, bool scale) {
  struct rd2h_kv_tensor t[] = {{NAME, 0, 0x10000, 64, 16}, {NAME, 0, 0x20000, 16, 8}, {NAME ".indexer", 0, 0x30000, 32, 8},
                               {NAME ".indexer", 0, 0x40000, 4, 8}};
  struct rd2h_layout_opts o = {.size = sizeof o, .num_blocks = 8};
  rd2h_layout *l;
  assert_int_equal(rd2h_layout_create(t, 2 + indexer + scale, &o, &l, NULL), RD2H_OK);
  return l;
}

static uint64_t addr[5], len[5], scale[5];
static struct rd2h_peer_layer peer;

static int reset(void **state) {
  memcpy(addr, (uint64_t[5]){0x1000, 0x2000, 0x3000, 0x4000, 0x5000}, sizeof addr);
  memcpy(len, (uint64_t[5]){128, 8, 16, 2, 1}, sizeof len);
  memcpy(scale, (uint64_t[5]){1, 2, 2, 2, 1}, sizeof scale);
  peer = (struct rd2h_peer_layer){.name = {NAME, sizeof NAME - 1}, .n_addrs = 4, .n_lens = 4, .n_scales = 4, .addr = addr,
                                  .len = len, .scale = scale, .main_count = 2, .has_indexer = true, .main_blocks = UINT32_MAX,
                                  .indexer_blocks = UINT32_MAX};
  *state = make_layout(true, true);
  return 0;
}

static int drop(void **state) {
  rd2h_layout_destroy(*state);
  return 0;
}

/* The link is not touched, and the text names the layer and both words. */
static void refused(const rd2h_layout *l, const struct rd2h_memory *region, uint32_t n, int status, const char *a, const char *b) {
  struct rd2h_link link, before;
  memset(&link, 0x5a, sizeof link);
  memcpy(&before, &link, sizeof link);
  struct rd2h_error err = {0};
  assert_int_equal(rd2h_link_build(&peer, l, 0, region, n, &link, &err), status);
  assert_memory_equal(&link, &before, sizeof link);
  assert_int_equal(err.status, status);
  if (!strstr(err.text, NAME) || !strstr(err.text, a) || !strstr(err.text, b))
    fail_msg("\"%s\" does not name \"%s\" and \"%s\"", err.text, a, b);
}

static void a_matching_layer_is_linked(void **state) {
  struct rd2h_link link;
  assert_int_equal(rd2h_link_build(&peer, *state, 0, NULL, 0, &link, NULL), RD2H_OK);
  assert_true(link.layer == 0 && link.n_parts == 4);
  const uint64_t bytes[4] = {128, 16, 32, 4};
  for (uint32_t i = 0; i < 4; i++) {
    const struct rd2h_link_part *p = &link.part[i];
    assert_int_equal(p->bytes, bytes[i]);
    assert_int_equal(p->src_base, 0x1000 * (i + 1));
    assert_int_equal(p->dst_base, 0x10000 * (i + 1));
    assert_int_equal(p->dst_blocks, 8);
    assert_int_equal(p->src_blocks, UINT32_MAX);
    assert_int_equal(p->src_region, RD2H_NONE);
    assert_int_equal(p->component, i < 2 ? RD2H_MAIN : RD2H_INDEXER);
  }
}

static void one_main_tensor_is_linked(void **state) {
  (void)state;
  struct rd2h_kv_tensor t = {NAME, 0, 0x10000, 128, 8};
  struct rd2h_layout_opts o = {.size = sizeof o, .num_blocks = 8};
  rd2h_layout *l;
  assert_int_equal(rd2h_layout_create(&t, 1, &o, &l, NULL), RD2H_OK);
  peer.main_count = 1;
  peer.n_addrs = peer.n_lens = peer.n_scales = 1;
  peer.has_indexer = false;
  struct rd2h_link link;
  assert_int_equal(rd2h_link_build(&peer, l, 0, NULL, 0, &link, NULL), RD2H_OK);
  assert_true(link.n_parts == 1 && link.part[0].component == RD2H_MAIN);
  len[0] = 64;
  refused(l, NULL, 0, RD2H_LAYOUT, "main KV", "64");
  rd2h_layout_destroy(l);
}

static void counts_and_presence_are_compared(void **state) {
  rd2h_layout *bare = make_layout(false, false), *no_scale = make_layout(true, false);
  peer.main_count = 1;
  refused(*state, NULL, 0, RD2H_LAYOUT, "1 tensors on Prefill", "2 on Decode");
  peer.main_count = 2;
  refused(bare, NULL, 0, RD2H_LAYOUT, "indexer is present on Prefill", "absent on Decode");
  refused(no_scale, NULL, 0, RD2H_LAYOUT, "scale is present on Prefill", "absent on Decode");
  peer.n_addrs = peer.n_lens = peer.n_scales = 3;
  refused(*state, NULL, 0, RD2H_LAYOUT, "scale is absent on Prefill", "present on Decode");
  peer.n_addrs = peer.n_lens = peer.n_scales = 2;
  refused(*state, NULL, 0, RD2H_LAYOUT, "lists 2 tensors", "are 3");
  peer.has_indexer = false;
  refused(*state, NULL, 0, RD2H_LAYOUT, "indexer is absent on Prefill", "present on Decode");
  peer.n_addrs = peer.n_lens = peer.n_scales = 0;
  refused(bare, NULL, 0, RD2H_LAYOUT, "lists 0 tensors", "are 2");
  peer.main_count = UINT32_MAX;
  refused(bare, NULL, 0, RD2H_LAYOUT, "4294967295 tensors", "2 on Decode");
  rd2h_layout_destroy(bare);
  rd2h_layout_destroy(no_scale);
}

static void lists_must_be_as_long(void **state) {
  peer.n_lens = 3;
  refused(*state, NULL, 0, RD2H_LAYOUT, "4 addresses", "3 lengths");
  peer.n_lens = 4;
  peer.n_scales = 5;
  refused(*state, NULL, 0, RD2H_LAYOUT, "4 addresses", "5 scales");
}

static void tensors_past_the_scale_are_ignored(void **state) {
  struct rd2h_link link;
  peer.n_addrs = peer.n_lens = peer.n_scales = 5;
  assert_int_equal(rd2h_link_build(&peer, *state, 0, NULL, 0, &link, NULL), RD2H_OK);
  assert_int_equal(link.n_parts, 4);
}

static void block_bytes_are_compared(void **state) {
  static const char *const part[4] = {"K", "V", "indexer", "indexer scale"};
  for (uint32_t i = 0; i < 4; i++) {
    uint64_t good = len[i];
    len[i] = 77;
    refused(*state, NULL, 0, RD2H_LAYOUT, part[i], "77");
    len[i] = (UINT64_C(1) << 63) + good; /* wraps to the right product when doubled */
    if (scale[i] == 2)
      refused(*state, NULL, 0, RD2H_LAYOUT, part[i], "on Decode");
    len[i] = 0;
    refused(*state, NULL, 0, RD2H_LAYOUT, part[i], "0 x");
    len[i] = good;
  }
  scale[2] = 0;
  refused(*state, NULL, 0, RD2H_LAYOUT, "indexer", "x 0");
}

static void row14_addresses_past_the_end_are_refused(void **state) {
  struct rd2h_link link;
  addr[1] = UINT64_MAX - 8;
  refused(*state, NULL, 0, RD2H_RANGE, "V", "address space");
  addr[1] = UINT64_MAX - 16 * 5;
  assert_int_equal(rd2h_link_build(&peer, *state, 0, NULL, 0, &link, NULL), RD2H_OK);
  assert_int_equal(link.part[1].src_blocks, 5); /* not said: as many as have addresses */
  peer.main_blocks = 5;
  assert_int_equal(rd2h_link_build(&peer, *state, 0, NULL, 0, &link, NULL), RD2H_OK);
  peer.main_blocks = 6;
  refused(*state, NULL, 0, RD2H_RANGE, "V", "6 blocks of 16");
}

static void announced_blocks_bound_ids(void **state) {
  struct rd2h_link link;
  peer.main_blocks = 7;
  peer.indexer_blocks = 9;
  assert_int_equal(rd2h_link_build(&peer, *state, 0, NULL, 0, &link, NULL), RD2H_OK);
  assert_true(link.part[0].src_blocks == 7 && link.part[1].src_blocks == 7);
  assert_true(link.part[2].src_blocks == 9 && link.part[3].src_blocks == 9);
}

static void row14_published_regions_hold_the_tensors(void **state) {
  struct rd2h_link link;
  struct rd2h_memory region[] = {{0x4000, 0x100}, {0x1000, 0x2800}};
  assert_int_equal(rd2h_link_build(&peer, *state, 0, region, 2, &link, NULL), RD2H_OK);
  assert_true(link.part[0].src_region == 1 && link.part[3].src_region == 0);
  assert_int_equal(link.part[0].src_blocks, 0x2800 / 128);
  assert_int_equal(link.part[2].src_blocks, 0x800 / 32);
  peer.indexer_blocks = 0x800 / 32;
  assert_int_equal(rd2h_link_build(&peer, *state, 0, region, 2, &link, NULL), RD2H_OK);
  peer.indexer_blocks++;
  refused(*state, region, 2, RD2H_RANGE, "indexer", "2 memory regions");
  peer.indexer_blocks = UINT32_MAX;
  refused(*state, region, 1, RD2H_RANGE, "K", "1 memory regions");
  region[1].base = 0x1001;
  refused(*state, region, 2, RD2H_RANGE, "K", "[0x1000, 0x1080)");
  region[1] = (struct rd2h_memory){0x1000, UINT64_MAX};
  assert_int_equal(rd2h_link_build(&peer, *state, 0, region, 2, &link, NULL), RD2H_OK);
  region[1] = (struct rd2h_memory){0x2000, UINT64_MAX}; /* its end passes 2^64: no reason to hold what lies before it */
  refused(*state, region, 2, RD2H_RANGE, "K", "regions");
}

static void unknown_ordinals_are_refused(void **state) {
  struct rd2h_link link;
  assert_int_equal(rd2h_link_build(&peer, *state, 1, NULL, 0, &link, NULL), RD2H_RANGE);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, reset, drop)
int main(void) {
  const struct CMUnitTest tests[] = {
    TEST(a_matching_layer_is_linked),
    TEST(one_main_tensor_is_linked),
    TEST(counts_and_presence_are_compared),
    TEST(lists_must_be_as_long),
    TEST(tensors_past_the_scale_are_ignored),
    TEST(block_bytes_are_compared),
    TEST(row14_addresses_past_the_end_are_refused),
    TEST(announced_blocks_bound_ids),
    TEST(row14_published_regions_hold_the_tensors),
    TEST(unknown_ordinals_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
