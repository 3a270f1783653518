/* SPDX-License-Identifier: Apache-2.0 */
/* The recorded cases of a reference peer, a test each: equal descriptors in order, or a refusal where it refuses. Where this
 * library does better on purpose the name says so, with the row of the list of differences. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "plan/test_oracle.h"
#include "tests/helpers/golden.h"

/* What is expected of the last request where the reference's answer is not taken over; the others are served. */
static const struct {
  const char *tag;
  int status;
  const char *why;
} own_way[] = {
  {"ratio", RD2H_OK, "row 13: nothing to read is no failure"},
  {"random", RD2H_OK, "row 13: nothing to read is no failure"},
  {"both-empty", RD2H_OK, "row 13: nothing to read is no failure"},
  {"ratio8-member-owns-none-main-empty", RD2H_OK, "row 13: nothing to read is no failure"},
  {"second-request-bad-nothing-read", RD2H_RANGE, "row 4: the other request is served"},
  {"no-destination", RD2H_RANGE, "refused"},
  {"main-range", RD2H_RANGE, "refused"},
  {"indexer-range", RD2H_RANGE, "refused"},
  {"main-range-tp-member0-ratio2", RD2H_RANGE, "refused"},
  {"negative-start", RD2H_RANGE, "refused"},
  {"member-ge-ratio", RD2H_INVALID, "row 14: a member outside its group is refused"},
  {"negative-member", RD2H_INVALID, "row 14: a member outside its group is refused"},
  {"k-layout", RD2H_LAYOUT, "refused"},
  {"indexer-layout", RD2H_LAYOUT, "refused"},
  {"indexer-presence-p", RD2H_LAYOUT, "refused"},
  {"indexer-presence-d", RD2H_LAYOUT, "refused"},
  {"scale-presence-p", RD2H_LAYOUT, "refused"},
  {"scale-presence-d", RD2H_LAYOUT, "refused"},
  {"main-count", RD2H_LAYOUT, "refused"},
};

/* Index into own_way, or -1 where the descriptors must equal the recorded ones. */
static int own_way_of(const json_t *c) {
  const char *tag = json_string_value(json_object_get(c, "tag"));
  for (size_t i = 0; i < RD2H_COUNT(own_way); i++)
    if (!strcmp(tag, own_way[i].tag) && (json_is_true(json_object_get(c, "fails")) || own_way[i].status == RD2H_INVALID))
      return (int)i;
  return -1;
}

static rd2h_layout *make_layout(const json_t *c) {
  static const char *const name[4] = {"model.layers.0.self_attn", "model.layers.0.self_attn", "model.layers.0.self_attn.indexer",
                                      "model.layers.0.self_attn.indexer"};
  uint64_t blocks = (uint64_t)json_integer_value(json_object_get(c, "blocks"));
  struct rd2h_kv_tensor t[4];
  uint32_t n = 0;
  json_t *row;
  size_t i;
  json_array_foreach(json_object_get(c, "dst"), i, row) {
    if (json_is_array(row))
      t[n++] = (struct rd2h_kv_tensor){name[i], 0, golden_u64(row, 0), golden_u64(row, 1), golden_u64(row, 2) * blocks};
  }
  struct rd2h_layout_opts o = {.size = sizeof o, .num_blocks = blocks};
  rd2h_layout *l;
  assert_int_equal(rd2h_layout_create(t, n, &o, &l, NULL), RD2H_OK);
  return l;
}

static uint32_t read_u64(const json_t *list, uint64_t *out) {
  uint32_t n = (uint32_t)json_array_size(list);
  for (uint32_t i = 0; i < n; i++)
    out[i] = golden_u64(list, i);
  return n;
}

static int make_link(const json_t *c, const rd2h_layout *l, struct rd2h_link *link) {
  uint64_t addr[8], len[8], scale[8];
  const json_t *src = json_object_get(c, "src");
  struct rd2h_peer_layer p = {.addr = addr, .len = len, .scale = scale, .main_blocks = UINT32_MAX, .indexer_blocks = UINT32_MAX};
  p.n_addrs = read_u64(json_array_get(src, 0), addr);
  p.n_lens = read_u64(json_array_get(src, 1), len);
  p.n_scales = read_u64(json_array_get(src, 2), scale);
  p.main_count = (uint32_t)golden_u64(src, 3);
  p.has_indexer = json_is_true(json_array_get(src, 4));
  return rd2h_link_build(&p, l, 0, NULL, 0, link, NULL);
}

/* Ids of the four lists live in `ids`. A missing list is an empty one. */
static struct rd2h_plan_request make_request(const json_t *r, uint32_t ids[4][256]) {
  uint32_t n[4];
  for (int k = 0; k < 4; k++) {
    const json_t *list = json_array_get(r, (size_t)k + 2);
    n[k] = (uint32_t)json_array_size(list);
    assert_true(n[k] <= 256);
    for (uint32_t i = 0; i < n[k]; i++)
      ids[k][i] = (uint32_t)golden_u64(list, i);
  }
  return (struct rd2h_plan_request){.src_main = ids[0], .src_indexer = ids[1], .n_src_main = n[0], .n_src_indexer = n[1],
                                    .main_start = (uint32_t)golden_u64(r, 0), .indexer_start = (uint32_t)golden_u64(r, 1),
                                    .dst_main = ids[2], .dst_indexer = ids[3], .n_dst_main = n[2], .n_dst_indexer = n[3]};
}

static void record(const json_t *c, struct oracle *o) {
  json_t *d;
  size_t i;
  json_array_foreach(json_object_get(c, "desc"), i, d) {
    o->d[o->n++] = (struct oracle_desc){golden_u64(d, 0), golden_u64(d, 1), golden_u64(d, 2), RD2H_NONE};
    o->bytes += golden_u64(d, 2);
  }
}

/* Plans every request; expects `last` of the last one, OK of the others. */
static void plan_all(const json_t *c, const struct rd2h_link *link, int last, struct guarded *g, struct oracle *served) {
  const json_t *s = json_object_get(c, "share"), *reqs = json_object_get(c, "reqs");
  struct rd2h_share share = {(uint32_t)golden_u64(s, 0), (uint32_t)golden_u64(s, 1), (uint32_t)golden_u64(s, 2),
                             (uint32_t)golden_u64(s, 3)};
  static uint32_t ids[4][256];
  for (size_t i = 0, n = json_array_size(reqs); i < n; i++) {
    struct rd2h_plan_request r = make_request(json_array_get(reqs, i), ids);
    struct rd2h_error err = {0};
    int expected = i + 1 == n ? last : RD2H_OK, rc = rd2h_plan_build(link, &share, &r, &g->d, &err);
    if (rc != expected)
      fail_msg("request %zu: %s, expected %s: %s", i, rd2h_status_name(rc), rd2h_status_name(expected), err.text);
    if (served && rc == RD2H_OK)
      assert_true(oracle_build(link, &share, &r, served));
    assert_true(rc == RD2H_OK || strlen(err.text) > 0);
  }
}

static void recorded_case(void **state) {
  const json_t *c = *state;
  static struct oracle expected;
  expected.n = 0, expected.bytes = 0;
  int own = own_way_of(c);
  rd2h_layout *l = make_layout(c);
  struct rd2h_link link;
  struct guarded g;
  guarded_init(&g, 1024, true);
  int rc = make_link(c, l, &link);
  bool layout = own >= 0 && own_way[own].status == RD2H_LAYOUT;
  assert_int_equal(rc, layout ? RD2H_LAYOUT : RD2H_OK);
  if (own < 0) {
    assert_false(json_is_true(json_object_get(c, "fails")));
    record(c, &expected);
    plan_all(c, &link, RD2H_OK, &g, NULL);
  } else if (!layout) {
    plan_all(c, &link, own_way[own].status, &g, &expected);
  }
  assert_true(oracle_equal(&expected, &g.d));
  assert_true(guarded_intact(&g));
  guarded_free(&g);
  rd2h_layout_destroy(l);
}

int main(void) {
  static char names[512][96];
  static struct CMUnitTest tests[512];
  json_t *cases = golden_json("plan_descriptors.json"), *c;
  size_t i;
  json_array_foreach(cases, i, c) {
    int own = own_way_of(c);
    snprintf(names[i], sizeof names[i], "descriptors %zu %s (%s)", i, json_string_value(json_object_get(c, "tag")),
             own < 0 ? "equal" : own_way[own].why);
    tests[i] = (struct CMUnitTest){.name = names[i], .test_func = recorded_case, .initial_state = c};
  }
  int failed = _cmocka_run_group_tests("recorded descriptors", tests, i, NULL, NULL);
  json_decref(cases);
  return failed;
}
