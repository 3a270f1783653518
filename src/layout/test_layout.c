/* SPDX-License-Identifier: Apache-2.0 */
/* The order is cmocka's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "layout/layout.h"
#include "layout/names.h"
#include "tests/helpers/golden.h"

#define MAIN0 "model.layers.0.self_attn.attn"
#define INDEXER0 "model.layers.0.self_attn.indexer.k_cache"

static const struct rd2h_layout_opts opts16 = {.size = sizeof(struct rd2h_layout_opts), .num_blocks = 16};

static void fails(const struct rd2h_kv_tensor *t, uint32_t n, const struct rd2h_layout_opts *o, int status, const char *word) {
  rd2h_layout *l = (void *)1;
  struct rd2h_error err = {0};
  assert_int_equal(rd2h_layout_create(t, n, o, &l, &err), status);
  assert_int_equal(err.status, status);
  if (!strstr(err.text, word))
    fail_msg("\"%s\" does not name \"%s\"", err.text, word);
  assert_ptr_equal(l, (void *)1);
}

static void groups_of_the_reference(void **state) {
  (void)state;
  json_t *all = golden_json("layout_tables.json"), *cases = json_object_get(all, "groups"), *c, *group, *name;
  size_t i, g, k;
  json_array_foreach(cases, i, c) {
    const char *names[32];
    uint32_t counts[8] = {0}, n = 0, main_group = 77, indexer_group = 77;
    json_t *groups = json_array_get(c, 0), *ids = json_array_get(c, 1);
    json_array_foreach(groups, g, group) {
      json_array_foreach(group, k, name) names[n++] = json_string_value(name);
      counts[g] = (uint32_t)k;
    }
    struct rd2h_error err;
    int rc = rd2h_layout_groups(names, counts, (uint32_t)json_array_size(groups), &main_group, &indexer_group, &err);
    assert_int_equal(rc, json_is_null(ids) ? RD2H_INVALID : RD2H_OK);
    assert_int_equal(main_group, rc ? 77 : golden_u64(ids, 0));
    assert_int_equal(indexer_group, rc ? 77 : golden_u64(ids, 1));
  }
  assert_int_equal(i, 8);
  json_decref(all);
}

static void check_slots(json_t *c) {
  json_t *layers = json_object_get(c, "layers"), *expected = json_object_get(c, "slots"), *j;
  struct rd2h_layer layer[64] = {0};
  size_t n = json_array_size(layers), i;
  json_array_foreach(layers, i, j) {
    json_t *addrs = json_array_get(j, 1);
    struct rd2h_layer *l = &layer[i];
    l->number = rd2h_name_number(json_string_value(json_array_get(j, 0)));
    l->n_main = (uint32_t)golden_u64(j, 2);
    l->has_indexer = json_is_true(json_array_get(j, 3));
    l->n = (uint32_t)json_array_size(addrs);
    for (size_t k = 0; k < l->n; k++)
      l->t[k].base = golden_u64(addrs, k);
  }
  uint32_t n_slots = rd2h_layout_infer_slots(layer, (uint32_t)n), highest = 0;
  for (i = 0; i < n; i++) {
    char key[16];
    snprintf(key, sizeof key, "%u", layer[i].number);
    for (uint32_t s = 0; s < layer[i].n_slots; s++)
      highest = layer[i].slot[s] + 1 > highest ? layer[i].slot[s] + 1 : highest;
    if (i + 1 < n && layer[i + 1].number == layer[i].number)
      continue; /* the reference keeps the later of two layers with one number; a layout refuses them */
    json_t *slots = json_object_get(expected, key);
    assert_int_equal(layer[i].n_slots, json_array_size(slots));
    for (uint32_t s = 0; s < layer[i].n_slots; s++)
      assert_int_equal(layer[i].slot[s], golden_u64(slots, s));
  }
  assert_int_equal(n_slots, highest);
}

static void slots_of_the_reference(void **state) {
  (void)state;
  json_t *all = golden_json("layout_tables.json"), *c;
  size_t i;
  json_array_foreach(json_object_get(all, "slots"), i, c) check_slots(c);
  assert_int_equal(i, 11);
  json_decref(all);
}

static void one_main_tensor_and_an_indexer_never_share_a_slot(void **state) {
  (void)state;
  struct rd2h_layer l[2] = {{.n_main = 1, .has_indexer = true, .n = 2, .t = {{.base = 5}, {.base = 6}}},
                            {.n_main = 1, .has_indexer = true, .n = 2, .t = {{.base = 6}, {.base = 5}}}};
  assert_int_equal(rd2h_layout_infer_slots(l, 2), 4);
}

static void layers_are_sorted_and_named(void **state) {
  (void)state;
  struct rd2h_kv_tensor t[] = {
    {"model.layers.10.self_attn.INDEXER.k", 1, 0x9000, 32, 16}, {"model.layers.10.self_attn.INDEXER.k", 1, 0xa000, 2, 16},
    {"model.layers.2.self_attn", 0, 0x1000, 64, 32},            {"model.layers.2.self_attn", 0, 0x2000, 8, 16},
    {"model.layers.10.self_attn", 0, 0x3000, 64, 16},           {"model.layers.10.self_attn", 0, 0x4000, 8, 16}};
  struct rd2h_layout_opts o = opts16;
  o.indexer_group = 1;
  o.head_first = 2, o.head_count = 2, o.head_total = 8;
  o.fingerprint = "bf16";
  rd2h_layout *l;
  assert_int_equal(rd2h_layout_create(t, RD2H_COUNT(t), &o, &l, NULL), RD2H_OK);
  assert_int_equal(rd2h_layout_layers(l), 2);
  assert_string_equal(rd2h_layout_layer_name(l, 0), "model.layers.2.self_attn");
  assert_string_equal(rd2h_layout_layer_name(l, 1), "model.layers.10.self_attn");
  assert_null(rd2h_layout_layer_name(l, 2));
  assert_int_equal(rd2h_layout_find(l, "model.layers.10.self_attn.INDEXER.k"), 1);
  assert_int_equal(rd2h_layout_find(l, "model.layers.2.self_attn"), 0);
  assert_int_equal(rd2h_layout_find(l, "model.layers.3.self_attn"), RD2H_NONE);
  const struct rd2h_layer *a = &l->layer[0], *b = &l->layer[1];
  assert_true(a->n == 2 && a->n_main == 2 && !a->has_indexer && !a->has_scale);
  assert_true(b->n == 4 && b->n_main == 2 && b->has_indexer && b->has_scale);
  assert_true(a->t[0].scale == 2 && a->t[1].scale == 1 && a->t[0].block_len == 64 && a->t[0].blocks == 16);
  assert_true(b->t[2].base == 0x9000 && b->t[3].base == 0xa000 && b->t[3].group == 1);
  uint32_t slot[2];
  assert_int_equal(rd2h_layout_layer_slots(l, 0, slot), 1);
  assert_true(slot[0] == 0 && slot[1] == RD2H_NONE);
  assert_int_equal(rd2h_layout_layer_slots(l, 1, slot), 2);
  assert_true(slot[0] == 1 && slot[1] == 2);
  assert_int_equal(rd2h_layout_layer_slots(l, 2, slot), 0);
  assert_int_equal(rd2h_layout_slots(l), 3);
  assert_true(l->heads[0] == 2 && l->heads[1] == 2 && l->heads[2] == 8 && l->num_blocks == 16 && l->indexer_group == 1);
  assert_string_equal(l->fingerprint, "bf16");
  rd2h_layout_destroy(l);
}

static void names_give_numbers(void **state) {
  (void)state;
  assert_int_equal(rd2h_name_number("model.layers.61.self_attn"), 61);
  assert_int_equal(rd2h_name_number("layers.layers.7"), 7);
  assert_int_equal(rd2h_name_number("layers.2147483647.x"), INT32_MAX);
  assert_int_equal(rd2h_name_number("layers.2147483648.x"), RD2H_NONE);
  assert_int_equal(rd2h_name_number("layers.99999999999999999999999.x"), RD2H_NONE);
  assert_int_equal(rd2h_name_number("model.layers.x"), RD2H_NONE);
  assert_int_equal(rd2h_name_number(""), RD2H_NONE);
}

static void bad_tensors_y10_are_refused(void **state) {
  (void)state;
  struct rd2h_kv_tensor ok = {MAIN0, 0, 0x1000, 64, 16};
#define TWO(...) (struct rd2h_kv_tensor[]){ok, __VA_ARGS__}, 2, &opts16
  fails(&ok, 0, &opts16, RD2H_INVALID, "no KV tensor");
  fails(TWO({NULL, 0, 0x1000, 64, 16}), RD2H_INVALID, "tensor 1 has no layer name");
  fails(TWO({"lm_head", 0, 0x1000, 64, 16}), RD2H_INVALID, "lm_head");
  fails(TWO({MAIN0, 0, 0, 64, 16}), RD2H_INVALID, "may be 0");
  fails(TWO({MAIN0, 0, 0x1000, 0, 16}), RD2H_INVALID, "may be 0");
  fails(TWO({MAIN0, 0, 0x1000, 64, 0}), RD2H_INVALID, "may be 0");
  fails(TWO({MAIN0, 0, 0x1000, 64, 24}), RD2H_LAYOUT, "24 rows, no multiple of the 16 blocks");
  fails(TWO({MAIN0, 0, 0x1000, 64, 33}), RD2H_LAYOUT, MAIN0);
  fails(TWO({MAIN0, 0, 0x1000, 64, UINT64_C(16) << 32}), RD2H_LAYOUT, "no multiple");
  fails(TWO({MAIN0, 0, UINT64_MAX - 1000, 64, 16}), RD2H_RANGE, "end of the address space");
  fails(TWO({MAIN0, 0, 0x1000, UINT64_MAX / 2, 16}), RD2H_RANGE, "end of the address space");
  fails(TWO({"model.layers.1.self_attn", 3, 0x1000, 64, 16}), RD2H_INVALID, "group 3");
  fails(TWO({"model.layers.0.cross_attn", 0, 0x1000, 64, 16}), RD2H_INVALID, "model.layers.0.cross_attn");
  fails(TWO({"model.layers.1.indexer", 0, 0x1000, 64, 16}), RD2H_INVALID, "no main KV");
  struct rd2h_kv_tensor three[] = {ok, ok, ok};
  fails(three, 3, &opts16, RD2H_INVALID, "3 tensors");
  struct rd2h_kv_tensor indexers[] = {ok, {INDEXER0, 0, 1, 1, 16}, {INDEXER0, 0, 1, 1, 16}, {INDEXER0, 0, 1, 1, 16}};
  fails(indexers, 4, &opts16, RD2H_INVALID, INDEXER0);
  static char name[RD2H_LAYOUT_MAX_TEXT + 2];
  memset(name, 'x', sizeof name - 1);
  fails(TWO({name, 0, 0x1000, 64, 16}), RD2H_LIMIT, "too long");
}

static void bad_options_are_refused(void **state) {
  (void)state;
  struct rd2h_kv_tensor ok = {MAIN0, 0, 0x1000, 64, 16};
  struct rd2h_layout_opts o = opts16;
  o.size = 4;
  fails(&ok, 1, &o, RD2H_INVALID, "size is 4");
  o = opts16, o.num_blocks = 0;
  fails(&ok, 1, &o, RD2H_INVALID, "num_blocks is 0");
  o = opts16, o.num_blocks = UINT64_C(1) << 31;
  fails(&ok, 1, &o, RD2H_LIMIT, "num_blocks is 2147483648");
  o = opts16, o.head_first = 6, o.head_count = 4, o.head_total = 8;
  fails(&ok, 1, &o, RD2H_INVALID, "[6, 10)");
  o = opts16, o.head_total = 8;
  fails(&ok, 1, &o, RD2H_INVALID, "heads");
  fails(&ok, UINT32_MAX, &opts16, RD2H_LIMIT, "at most");
  static char text[RD2H_LAYOUT_MAX_TEXT + 2];
  memset(text, 'f', sizeof text - 1);
  o = opts16, o.fingerprint = text;
  fails(&ok, 1, &o, RD2H_LIMIT, "fingerprint");
}

static void too_many_layers_are_refused(void **state) {
  (void)state;
  enum { N = RD2H_LAYOUT_MAX_LAYERS + 1 };
  static char name[N][24];
  static struct rd2h_kv_tensor t[N];
  for (uint32_t i = 0; i < N; i++) {
    snprintf(name[i], sizeof name[i], "layers.%u.attn", i);
    t[i] = (struct rd2h_kv_tensor){name[i], 0, 0x1000 + i, 1, 16};
  }
  fails(t, N, &opts16, RD2H_LIMIT, "1024");
  rd2h_layout *l;
  assert_int_equal(rd2h_layout_create(t, N - 1, &opts16, &l, NULL), RD2H_OK);
  assert_int_equal(rd2h_layout_find(l, "layers.1023.attn"), 1023);
  rd2h_layout_destroy(l);
}

static void every_failed_allocation_is_survived(void **state) {
  (void)state;
  struct rd2h_kv_tensor t[] = {{MAIN0, 0, 0x1000, 64, 16}, {INDEXER0 ".of.a.name.that.is.kept.outside.the.slot", 0, 0x2000, 64, 16}};
  rd2h_layout *l = NULL;
  struct rd2h_error err;
  uint64_t n = 0;
  int rc;
  do {
    rd2h_alloc_fail_at(++n);
    rc = rd2h_layout_create(t, RD2H_COUNT(t), &opts16, &l, &err);
    rd2h_alloc_fail_at(0);
    if (rc != RD2H_OK)
      assert_int_equal(rc, RD2H_NOMEM);
  } while (rc != RD2H_OK);
  assert_true(n > 6);
  rd2h_layout_destroy(l);
  rd2h_layout_destroy(NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(groups_of_the_reference),
    cmocka_unit_test(slots_of_the_reference),
    cmocka_unit_test(one_main_tensor_and_an_indexer_never_share_a_slot),
    cmocka_unit_test(layers_are_sorted_and_named),
    cmocka_unit_test(names_give_numbers),
    cmocka_unit_test(bad_tensors_y10_are_refused),
    cmocka_unit_test(bad_options_are_refused),
    cmocka_unit_test(too_many_layers_are_refused),
    cmocka_unit_test(every_failed_allocation_is_survived),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
