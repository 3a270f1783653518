/* SPDX-License-Identifier: Apache-2.0 */
/* Every payload that was recorded from the reference connector: taken or refused as it should be, read as it says, written back
 * byte for byte where it is in the form that we write. */
#include "wire/wire.h"
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

struct payload {
  uint8_t *p; /* exactly n bytes, so that a sanitizer sees a read past the end */
  size_t n;
  struct rd2h_arena arena;
};

static struct payload payload_of(const json_t *item) {
  const char *hex = json_string_value(json_object_get(item, "hex"));
  struct payload d = {.n = strlen(hex) / 2};
  d.p = malloc(d.n);
  for (size_t i = 0; i < d.n; i++)
    assert_int_equal(sscanf(hex + 2 * i, "%2hhx", &d.p[i]), 1);
  assert_int_equal(rd2h_arena_reserve(&d.arena, rd2h_wire_arena_need(d.n)), RD2H_OK);
  return d;
}

static void payload_free(struct payload *d) {
  free(d->p);
  rd2h_arena_free(&d->arena);
}

static bool flag(const json_t *item, const char *key) {
  return json_is_true(json_object_get(item, key));
}

static uint64_t number(const json_t *object, const char *key) {
  const json_t *v = json_object_get(object, key);
  assert_true(json_is_integer(v));
  return (uint64_t)json_integer_value(v);
}

static void same_text(struct rd2h_str got, const json_t *want) {
  assert_true(json_is_string(want));
  assert_int_equal(got.n, json_string_length(want));
  assert_memory_equal(got.p, json_string_value(want), got.n);
}

static void same_numbers(const uint64_t *got, uint32_t n, const json_t *want) {
  assert_int_equal(n, json_array_size(want));
  for (uint32_t i = 0; i < n; i++)
    assert_int_equal(got[i], json_integer_value(json_array_get(want, i)));
}

static void same_ids(const uint32_t *got, uint32_t n, const json_t *want) {
  assert_int_equal(n, json_array_size(want));
  for (uint32_t i = 0; i < n; i++)
    assert_int_equal(got[i], json_integer_value(json_array_get(want, i)));
}

static void same_bytes(struct rd2h_buf *b, const struct payload *d) {
  assert_false(b->failed);
  assert_int_equal(b->len, d->n);
  assert_memory_equal(b->p, d->p, d->n);
}

static void check_meta(const struct rd2h_wire_meta *m, const json_t *v) {
  const json_t *layers = json_object_get(v, "layers"), *stage = json_object_get(v, "stage");
  same_text(m->session, json_object_get(v, "session"));
  assert_false(m->ext.present);
  assert_int_equal(m->fields, 3 + json_array_size(stage));
  if (m->fields == 6) {
    const uint64_t got[] = {m->version, m->pp_rank, m->pp_size};
    same_numbers(got, 3, stage);
  } else {
    assert_int_equal(m->pp_size, 1);
  }
  assert_int_equal(m->n_layers, json_object_size(layers));
  for (uint32_t i = 0; i < m->n_layers; i++) {
    const struct rd2h_wire_layer *l = &m->layer[i];
    const json_t *want = json_object_getn(layers, l->name.p, l->name.n);
    assert_non_null(want);
    same_numbers(l->addr, l->n_addrs, json_object_get(want, "base_addrs"));
    same_numbers(l->len, l->n_lens, json_object_get(want, "block_len"));
    same_numbers(l->scale, l->n_scales, json_object_get(want, "block_size_scale"));
    same_numbers((const uint64_t *)l->group, l->n_groups, json_object_get(want, "tensor_group_idx"));
    assert_int_equal(l->main_count, number(want, "main_tensor_count"));
    assert_int_equal(l->has_indexer, flag(want, "has_indexer"));
  }
}

static void check_ready(const struct rd2h_wire_ready *m, const json_t *v) {
  const json_t *reqs = json_object_get(v, "reqs"), *done = json_object_get(v, "done");
  assert_int_equal(m->layer_idx, number(v, "layer_idx"));
  same_text(m->layer, json_object_get(v, "layer"));
  assert_int_equal(m->member, number(v, "member"));
  assert_int_equal(m->ratio, number(v, "ratio"));
  assert_false(m->has_seq);
  assert_int_equal(m->n_reqs, json_array_size(reqs));
  for (uint32_t i = 0; i < m->n_reqs; i++) {
    const struct rd2h_wire_req *q = &m->req[i];
    const json_t *want = json_array_get(reqs, i);
    same_text(q->id, json_array_get(want, 0));
    same_ids(q->main, q->n_main, json_array_get(want, 1));
    same_ids(q->indexer, q->n_indexer, json_array_get(want, 2));
    const uint64_t rest[] = {q->main_start, q->indexer_start, q->bad};
    for (size_t k = 0; k < 3; k++)
      assert_int_equal(rest[k], json_integer_value(json_array_get(want, 3 + k)));
    assert_false(q->has_attempt);
  }
  assert_int_equal(m->n_done, json_array_size(done));
  for (uint32_t i = 0; i < m->n_done; i++)
    same_text(m->done[i].id, json_array_get(done, i));
}

/* Decodes a payload on its way to Decode; when it is taken, checks it and writes it again. */
static int to_decode(struct payload *d, const json_t *item, struct rd2h_buf *back, uint32_t *layer_idx) {
  const json_t *v = json_object_get(item, "value");
  struct rd2h_wire_meta meta;
  struct rd2h_wire_ready ready;
  int rc = RD2H_MALFORMED, kind = rd2h_wire_kind(d->p, d->n);
  if (kind == RD2H_MSG_META && !(rc = rd2h_wire_decode_meta(d->p, d->n, &d->arena, &meta, NULL)) && v) {
    check_meta(&meta, v);
    rd2h_wire_encode_meta(back, &meta);
  } else if (kind == RD2H_MSG_READY && !(rc = rd2h_wire_decode_ready(d->p, d->n, &d->arena, &ready, layer_idx, NULL)) && v) {
    check_ready(&ready, v);
    rd2h_wire_encode_ready(back, &ready);
  }
  return rc;
}

static void encode_reply(struct rd2h_buf *back, const struct rd2h_wire_reply *m) {
  char text[RD2H_WIRE_MAX_TEXT + 1];
  snprintf(text, sizeof text, "%.*s", (int)m->text.n, m->text.p);
  if (m->kind == RD2H_MSG_ACK)
    rd2h_wire_encode_ack(back);
  else if (m->kind == RD2H_MSG_META_ACK)
    rd2h_wire_encode_meta_ack(back, NULL);
  else if (m->kind == RD2H_MSG_DONE)
    rd2h_wire_encode_done(back, m->layer_idx, NULL, NULL, 0);
  else if (m->kind == RD2H_MSG_FAILED)
    rd2h_wire_encode_failed(back, m->layer_idx, text, NULL, NULL, 0);
}

static int to_prefill(struct payload *d, const json_t *item, struct rd2h_buf *back) {
  static const struct {
    const char *name;
    enum rd2h_wire_kind kind;
  } kinds[] = {{"ACK", RD2H_MSG_ACK}, {"mf_meta_ack", RD2H_MSG_META_ACK}, {"read_done", RD2H_MSG_DONE},
               {"read_failed", RD2H_MSG_FAILED}};
  const json_t *v = json_object_get(item, "value");
  struct rd2h_wire_reply m;
  int rc = rd2h_wire_decode_reply(d->p, d->n, &d->arena, &m, NULL);
  if (rc || !v)
    return rc;
  for (size_t i = 0; i < RD2H_COUNT(kinds); i++)
    if (!strcmp(kinds[i].name, json_string_value(json_object_get(item, "kind"))))
      assert_int_equal(m.kind, kinds[i].kind);
  assert_false(m.has_seq);
  if (json_object_get(v, "layer_idx"))
    assert_int_equal(m.layer_idx, number(v, "layer_idx"));
  if (json_object_get(v, "text"))
    same_text(m.text, json_object_get(v, "text"));
  encode_reply(back, &m);
  return RD2H_OK;
}

static void check_item(const json_t *item) {
  bool ok = flag(item, "ok"), for_decode = !strcmp(json_string_value(json_object_get(item, "to")), "decode");
  const json_t *answerable = json_object_get(item, "layer_idx");
  struct payload d = payload_of(item);
  struct rd2h_buf back = {0};
  uint32_t layer_idx = UINT32_MAX;
  int rc = for_decode ? to_decode(&d, item, &back, &layer_idx) : to_prefill(&d, item, &back);
  if (rc != (ok ? RD2H_OK : RD2H_MALFORMED))
    fail_msg("%s of %s: %s", json_string_value(json_object_get(item, "hex")),
             json_string_value(json_array_get(json_object_get(item, "in"), 0)), rd2h_status_name(rc));
  if (!ok)
    assert_int_equal(layer_idx, answerable ? json_integer_value(answerable) : UINT32_MAX);
  if (flag(item, "exact"))
    same_bytes(&back, &d);
  rd2h_buf_free(&back);
  payload_free(&d);
}

static int load(void **state) {
  char path[4096];
  json_error_t e;
  snprintf(path, sizeof path, "%s/wire.json", getenv("RD2H_FIXTURES"));
  *state = json_load_file(path, 0, &e);
  return *state ? 0 : (fprintf(stderr, "%s: %s\n", path, e.text), -1);
}

static int unload(void **state) {
  json_decref(*state);
  return 0;
}

static void test_items(void **state) {
  const json_t *items = json_object_get(*state, "items");
  size_t i, taken = 0, refused = 0, exact = 0;
  json_t *item;
  json_array_foreach(items, i, item) {
    check_item(item);
    *(flag(item, "ok") ? &taken : &refused) += 1;
    exact += flag(item, "exact");
  }
  assert_true(taken > 90 && refused > 50 && exact > 70); /* the fixture is the whole one */
}

static void test_all_recordings_count(void **state) {
  json_t *seen = json_object(), *item, *name;
  size_t i, k;
  json_array_foreach(json_object_get(*state, "items"), i, item)
    json_array_foreach(json_object_get(item, "in"), k, name)
      json_object_set_new(seen, json_string_value(name), json_true());
  assert_int_equal(json_object_size(seen), number(*state, "recordings"));
  json_decref(seen);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_items), cmocka_unit_test(test_all_recordings_count)};
  return cmocka_run_group_tests_name("wire_golden", tests, load, unload);
}
