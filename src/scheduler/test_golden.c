/* SPDX-License-Identifier: Apache-2.0 */
/* Recorded runs of a reference scheduler, a test each. What a step publishes is turned into the messages of every layer and held
 * against the recorded ones. Where this library does better on purpose the test's name says so. */
#include "scheduler/test_support.h"
#include "tests/helpers/golden.h"

#define MAX_LAYERS 8
#define MAX_TABLE 4096

/* alloc or step_add must refuse what the reference lets pass or fails on in the sender. */
static const struct own_way {
  const char *tag;
  int alloc, add;
  const char *says, *why;
} own_way[] = {
  {"no-endpoint", RD2H_INVALID, RD2H_OK, "remote_host", "refused by name"},
  {"too-few-blocks", 1, RD2H_RANGE, "need main blocks up to 4, its table has 1", "refused when scheduled"},
};

static const struct own_way *own_way_of(const json_t *c) {
  const char *tag = json_string_value(json_object_get(c, "tag"));
  for (size_t i = 0; i < RD2H_COUNT(own_way); i++)
    if (!strcmp(own_way[i].tag, tag))
      return &own_way[i];
  return NULL;
}

static const char *text(const json_t *array, size_t i) {
  return json_string_value(json_array_get(array, i));
}

static struct rd2h_block_table read_table(const json_t *groups, uint32_t *room) {
  struct rd2h_block_table t = {0};
  json_t *g, *id;
  size_t i, k;
  json_array_foreach(groups, i, g) {
    t.ids[i] = room;
    t.count[i] = (uint32_t)json_array_size(g);
    json_array_foreach(g, k, id)
      *room++ = (uint32_t)json_integer_value(id);
  }
  t.n_groups = (uint32_t)i;
  return t;
}

static json_t *ids(const uint32_t *id, uint32_t n) {
  json_t *a = json_array();
  for (uint32_t i = 0; i < n; i++)
    json_array_append_new(a, json_integer(id[i]));
  return a;
}

static bool same_endpoint(const struct rd2h_step_send *a, const struct rd2h_step_send *b) {
  return a->base_port == b->base_port && a->host.n == b->host.n && !memcmp(a->host.p, b->host.p, a->host.n);
}

static json_t *request_of(const struct rd2h_step_send *s, bool indexer) {
  return json_pack("[s%, o, o, i, i]", s->ext_id.p, (size_t)s->ext_id.n, ids(s->main, s->n_main),
                   ids(s->indexer, indexer ? s->n_indexer : 0), (int)s->main_start, indexer ? (int)s->indexer_start : 0);
}

/* The message of one layer to the endpoint of send `first`, appended when there is anything to say. */
static void layer_message(const struct rd2h_prefill_step_view *v, uint32_t first, uint32_t layer, bool indexer, bool last_layer,
                          json_t *out) {
  json_t *reqs = json_array(), *done = json_array();
  for (uint32_t i = first; i < v->n_send; i++) {
    const struct rd2h_step_send *s = &v->send[i];
    if (!same_endpoint(s, &v->send[first]))
      continue;
    if (s->n_main || (indexer && s->n_indexer))
      json_array_append_new(reqs, request_of(s, indexer));
    if (s->last && last_layer)
      json_array_append_new(done, json_stringn(s->ext_id.p, s->ext_id.n));
  }
  if (json_array_size(reqs) || json_array_size(done))
    json_array_append_new(out, json_pack("[i, O, O]", (int)layer, reqs, done));
  json_decref(reqs);
  json_decref(done);
}

static json_t *messages(const struct rd2h_prefill_step_view *v, const json_t *has_indexer) {
  json_t *out = json_array();
  size_t layers = json_array_size(has_indexer);
  for (size_t l = 0; l < layers; l++)
    for (uint32_t i = 0; i < v->n_send; i++) {
      bool seen = false;
      for (uint32_t k = 0; k < i; k++)
        seen |= same_endpoint(&v->send[k], &v->send[i]);
      if (!seen)
        layer_message(v, i, (uint32_t)l, json_is_true(json_array_get(has_indexer, l)), l + 1 == layers, out);
    }
  return out;
}

static void assert_json(const json_t *got, const json_t *want) {
  if (json_equal(got, want))
    return;
  char *a = json_dumps(got, JSON_ENCODE_ANY), *b = json_dumps(want, JSON_ENCODE_ANY);
  print_message("got  %s\nwant %s\n", a, b);
  free(a);
  free(b);
  fail();
}

static void run_alloc(rd2h_prefill_scheduler *s, const json_t *a, const struct own_way *own) {
  uint32_t room[MAX_TABLE];
  struct rd2h_block_table t = read_table(json_array_get(a, 2), room);
  struct rd2h_error e;
  const json_t *params = json_array_get(a, 3);
  char *json = json_dumps(params, 0);
  int want = own ? own->alloc : json_is_true(json_object_get(params, "do_remote_decode"));
  assert_int_equal(rd2h_prefill_scheduler_alloc(s, text(a, 0), json, golden_u64(a, 1), &t, &e), want);
  if (want < 0)
    assert_says(&e, own->says);
  free(json);
}

static void run_add(rd2h_prefill_scheduler *s, const json_t *a, const struct own_way *own) {
  uint32_t room[MAX_TABLE];
  const json_t *more = json_array_get(a, 4);
  struct rd2h_block_table t = read_table(more, room);
  struct rd2h_error e;
  int want = own ? own->add : RD2H_OK;
  assert_int_equal(rd2h_prefill_scheduler_step_add(s, text(a, 0), golden_u64(a, 1), golden_u64(a, 2), golden_u64(a, 3),
                                                   json_is_null(more) ? NULL : &t, false, &e), want);
  if (want < 0)
    assert_says(&e, own->says);
}

static void check_sends(rd2h_prefill_scheduler *s, const json_t *c, const json_t *step, const struct own_way *own) {
  struct rd2h_bytes b;
  struct rd2h_arena arena = {0};
  struct rd2h_prefill_step_view v;
  assert_int_equal(rd2h_prefill_scheduler_step_end(s, &b, NULL), RD2H_OK);
  assert_int_equal(rd2h_step_decode_prefill(b.p, b.len, &arena, &v, NULL), RD2H_OK);
  json_t *got = messages(&v, json_object_get(c, "indexer")), *none = json_array();
  assert_json(got, own ? none : json_object_get(step, "sends"));
  json_decref(none);
  json_decref(got);
  rd2h_arena_free(&arena);
}

static void check_tracked(const rd2h_prefill_scheduler *s, const json_t *c, const json_t *step) {
  const json_t *first = json_array_get(json_object_get(c, "steps"), 0);
  json_t *got = json_array(), *a;
  size_t i;
  json_array_foreach(json_object_get(first, "alloc"), i, a)
    if (rd2h_prefill_scheduler_tracks(s, text(a, 0)))
      json_array_append(got, json_array_get(a, 0));
  assert_json(got, json_object_get(step, "tracked"));
  json_decref(got);
}

static void run_step(rd2h_prefill_scheduler *s, const json_t *c, const json_t *step) {
  const struct own_way *own = own_way_of(c);
  json_t *x;
  size_t i;
  json_array_foreach(json_object_get(step, "alloc"), i, x)
    run_alloc(s, x, own);
  rd2h_prefill_scheduler_step_begin(s);
  json_array_foreach(json_object_get(step, "add"), i, x)
    run_add(s, x, own);
  check_sends(s, c, step, own);
  json_array_foreach(json_object_get(step, "finish"), i, x)
    assert_int_equal(rd2h_prefill_scheduler_finish(s, json_string_value(x), true), 1);
  check_tracked(s, c, step);
}

static void prefill_case(void **state) {
  const json_t *c = *state, *sizes = json_object_get(c, "block_sizes"), *groups = json_object_get(c, "groups");
  struct rd2h_prefill_scheduler_opts o = {.size = sizeof o, .n_groups = (uint32_t)json_array_size(sizes),
                                          .main_group = (uint32_t)golden_u64(groups, 0),
                                          .indexer_group = (uint32_t)golden_u64(groups, 1)};
  rd2h_prefill_scheduler *s;
  json_t *step;
  size_t i;
  for (i = 0; i < o.n_groups; i++)
    o.block_size[i] = (uint32_t)golden_u64(sizes, i);
  assert_int_equal(rd2h_prefill_scheduler_create(&o, &s, NULL), RD2H_OK);
  json_array_foreach(json_object_get(c, "steps"), i, step)
    run_step(s, c, step);
  rd2h_prefill_scheduler_destroy(s);
}

static void external_ids(void **state) {
  json_t *row;
  size_t i;
  json_array_foreach(*state, i, row) {
    const char *internal = text(row, 0), *external = text(row, 1);
    size_t n = rd2h_external_id_len(internal, false), strict = rd2h_external_id_len(internal, true);
    assert_int_equal(n, strlen(external));
    assert_memory_equal(internal, external, n);
    const char *suffix = internal + n;
    bool hex = *suffix == '-' && strspn(suffix + 1, "0123456789abcdef") == 8;
    assert_int_equal(strict, hex ? n : strlen(internal));
  }
  assert_int_equal(rd2h_external_id_len("0_chatcmpl-a-DEADBEEF", true), 21); /* the engine writes lower case */
  assert_int_equal(rd2h_external_id_len("0123456789abcdef", true), 16);      /* an id of 16 hex digits is left whole */
  assert_int_equal(rd2h_external_id_len("-01234567", true), 9);              /* something must remain */
}

/* ---- rendezvous ---- */
struct mailbox {
  char url[256], body[1024];
  int posts;
};

static int record_post(void *ctx, const char *id, const char *url, const char *body, size_t len, struct rd2h_error *err) {
  struct mailbox *m = ctx;
  (void)id;
  (void)err;
  m->posts++;
  snprintf(m->url, sizeof m->url, "%s", url);
  snprintf(m->body, sizeof m->body, "%.*s", (int)len, body);
  return RD2H_OK;
}

static void no_cancel(void *ctx, const char *id) {
  (void)ctx;
  (void)id;
}

static const char *str_field(const json_t *c, const char *key) {
  return json_string_value(json_object_get(c, key));
}

static uint64_t int_field(const json_t *c, const char *key) {
  return (uint64_t)json_integer_value(json_object_get(c, key));
}

/* The recorded body, with our own key before its closing brace. */
static void check_body(const char *got, const char *recorded) {
  size_t n = strlen(recorded) - 1;
  unsigned char attempt[33], inc[33];
  int end = 0;
  assert_memory_equal(got, recorded, n);
  assert_int_equal(sscanf(got + n, ",\"rd2h\":{\"v\":1,\"attempt\":\"%32[0-9a-f]\",\"inc\":\"%32[0-9a-f]\"}}%n", attempt, inc,
                          &end), 2);
  assert_int_equal(got[n + (size_t)end], 0);
  assert_int_equal(strlen((char *)attempt), 32);
  assert_int_equal(strlen((char *)inc), 32);
}

static void check_install(rd2h_decode_half *d, const json_t *c) {
  struct rd2h_arena arena = {0};
  struct rd2h_decode_step_view v;
  struct rd2h_bytes b;
  assert_int_equal(rd2h_decode_half_step_end(d, &b, NULL), RD2H_OK);
  assert_int_equal(rd2h_step_decode_decode(b.p, b.len, &arena, &v, NULL), RD2H_OK);
  assert_int_equal(v.n_install, 1);
  assert_str(v.install[0].id, str_field(c, "id"));
  json_t *main = ids(v.install[0].main, v.install[0].n_main), *indexer = ids(v.install[0].indexer, v.install[0].n_indexer);
  assert_json(main, json_object_get(c, "main"));
  assert_json(indexer, json_object_get(c, "indexer"));
  json_decref(main);
  json_decref(indexer);
  assert_int_equal(rd2h_decode_half_step_end(d, &b, NULL), RD2H_OK);
  assert_int_equal(b.len, 0); /* once */
  rd2h_arena_free(&arena);
}

static bool no_metaserver(const json_t *c) {
  return json_is_null(json_object_get(json_object_get(c, "extra"), "metaserver"));
}

static void check_alloc(rd2h_decode_half *d, const json_t *c, const char *params, uint64_t external, const struct mailbox *m) {
  uint32_t room[MAX_TABLE];
  struct rd2h_error e;
  json_t *groups = json_pack("[O, O]", json_object_get(c, "main"), json_object_get(c, "indexer"));
  struct rd2h_block_table t = read_table(groups, room);
  json_decref(groups);
  int rc = rd2h_decode_half_alloc(d, str_field(c, "id"), params, int_field(c, "prompt"), external, &t, &e);
  if (no_metaserver(c)) {
    assert_int_equal(rc, RD2H_INVALID);
    assert_says(&e, "\"metaserver\" is missing");
    return;
  }
  assert_int_equal(rc, 1);
  const char *url = str_field(c, "url");
  assert_int_equal(m->posts, url ? 1 : 0);
  if (url) {
    assert_string_equal(m->url, url);
    check_body(m->body, str_field(c, "body"));
  }
  check_install(d, c);
}

static void rendezvous_case(void **state) {
  const json_t *c = *state;
  struct mailbox m = {.posts = 0};
  const struct rd2h_post post = {&m, record_post, no_cancel};
  struct rd2h_decode_scheduler_opts o = {.size = sizeof o, .n_groups = 2, .block_size = {128, 512}, .indexer_group = 1,
                                         .host = str_field(c, "host"), .kv_port = (uint32_t)int_field(c, "kv_port"),
                                         .dp_rank = (uint32_t)int_field(c, "dp_rank"),
                                         .tp_size = (uint32_t)int_field(c, "tp_size"),
                                         .engine_id = "engine-7"};
  rd2h_decode_half *d;
  uint64_t matched;
  json_t *p = json_pack("{s:b, s:b, s:s}", "do_remote_prefill", 1, "do_remote_decode", 0, "metaserver",
                        "http://127.0.0.1:9000/v1/metaserver");
  json_object_update(p, json_object_get(c, "extra"));
  char *params = json_dumps(p, 0);
  json_decref(p);
  assert_int_equal(rd2h_decode_half_create(&o, &post, &d, NULL), RD2H_OK);
  assert_int_equal(rd2h_decode_half_matched(d, str_field(c, "id"), params, int_field(c, "prompt"), int_field(c, "computed"),
                                            &matched, NULL), RD2H_OK);
  assert_int_equal(matched, int_field(c, "matched"));
  check_alloc(d, c, params, matched, &m);
  free(params);
  rd2h_decode_half_destroy(d);
}

int main(void) {
  static char name[256][128];
  static struct CMUnitTest tests[256];
  json_t *all = golden_json("scheduler.json"), *c;
  size_t i, n = 0;
  json_array_foreach(json_object_get(all, "prefill"), i, c) {
    const struct own_way *own = own_way_of(c);
    snprintf(name[n], sizeof name[n], "prefill %zu %s%s%s", i, str_field(c, "tag"), own ? ": " : "", own ? own->why : "");
    tests[n] = (struct CMUnitTest){.name = name[n], .test_func = prefill_case, .initial_state = c};
    n++;
  }
  json_array_foreach(json_object_get(all, "rendezvous"), i, c) {
    snprintf(name[n], sizeof name[n], "rendezvous %zu, row 20: cached tokens are prompt - external%s", i,
             no_metaserver(c) ? "; no metaserver is refused" : "");
    tests[n] = (struct CMUnitTest){.name = name[n], .test_func = rendezvous_case, .initial_state = c};
    n++;
  }
  tests[n++] = (struct CMUnitTest){.name = "external ids, loose as recorded and strict", .test_func = external_ids,
                                   .initial_state = json_object_get(all, "external_ids")};
  int failed = _cmocka_run_group_tests("recorded schedules", tests, n, NULL, NULL);
  json_decref(all);
  return failed;
}
