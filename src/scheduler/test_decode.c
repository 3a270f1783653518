/* SPDX-License-Identifier: Apache-2.0 */
/* Decode's half: what workers are told, and when a rendezvous is posted, canceled or believed. */
#include "scheduler/test_support.h"

#define PARAMS "{\"do_remote_prefill\":true,\"do_remote_decode\":false,\"metaserver\":\"http://m/v1/metaserver\"}"
#define ID "cmpl-a-0-0123abcd"

struct half {
  rd2h_decode_half *d;
  struct rd2h_arena arena;
  struct rd2h_decode_step_view v;
  struct rd2h_error e;
  /* the metaserver's side */
  int post_status;
  uint32_t posts, cancels;
  char id[128], url[128], body[1024], canceled[128];
};

static int on_post(void *ctx, const char *id, const char *url, const char *body, size_t len, struct rd2h_error *err) {
  struct half *h = ctx;
  if (h->post_status)
    return rd2h_fail(err, h->post_status, "no way");
  h->posts++;
  snprintf(h->id, sizeof h->id, "%s", id);
  snprintf(h->url, sizeof h->url, "%s", url);
  snprintf(h->body, sizeof h->body, "%.*s", (int)len, body);
  return RD2H_OK;
}

static void on_cancel(void *ctx, const char *id) {
  struct half *h = ctx;
  h->cancels++;
  snprintf(h->canceled, sizeof h->canceled, "%s", id);
}

static const struct rd2h_decode_scheduler_opts opts = {.size = sizeof opts, .n_groups = 2, .block_size = {16, 64},
                                                       .indexer_group = 1, .host = "10.1.1.1", .kv_port = 20000,
                                                       .dp_rank = 1, .tp_size = 2, .engine_id = "e"};

static void half_open(struct half *h) {
  memset(h, 0, sizeof *h);
  const struct rd2h_post post = {h, on_post, on_cancel};
  assert_int_equal(rd2h_decode_half_create(&opts, &post, &h->d, NULL), RD2H_OK);
}

static void half_close(struct half *h) {
  rd2h_decode_half_destroy(h->d);
  rd2h_arena_free(&h->arena);
}

static void step(struct half *h) {
  struct rd2h_bytes b;
  assert_int_equal(rd2h_decode_half_step_end(h->d, &b, NULL), RD2H_OK);
  assert_int_equal(rd2h_step_decode_decode(b.p, b.len, &h->arena, &h->v, NULL), RD2H_OK);
}

static void assert_nothing(struct half *h) {
  step(h);
  assert_int_equal(h->v.n_install + h->v.n_end + h->v.n_answered, 0);
}

static void assert_end(struct half *h, const char *id, int status, bool installed) {
  step(h);
  assert_int_equal(h->v.n_install, 0);
  assert_int_equal(h->v.n_end, 1);
  assert_str(h->v.end->id, id);
  assert_int_equal(h->v.end->status, status);
  assert_int_equal(h->v.end->installed, installed);
}

static uint64_t matched(struct half *h, const char *id, const char *params, uint64_t prompt, uint64_t computed) {
  uint64_t tokens;
  assert_int_equal(rd2h_decode_half_matched(h->d, id, params, prompt, computed, &tokens, NULL), RD2H_OK);
  return tokens;
}

static int alloc(struct half *h, const char *id, const char *params, uint64_t prompt, uint64_t external) {
  static const uint32_t a[] = {1, 2, 3, 4, 5, 6, 7}, b[] = {11, 12};
  return rd2h_decode_half_alloc(h->d, id, params, prompt, external, TABLE(a, 7, b, 2), &h->e);
}

/* A request that the workers know and that waits. */
static void load(struct half *h, const char *id) {
  assert_int_equal(alloc(h, id, PARAMS, 100, 100), 1);
  step(h);
  assert_int_equal(h->v.n_install, 1);
  assert_int_equal(h->v.n_end, 0);
}

/* Law 1: floors and the rendezvous come from prompt - external. */
static void test_what_an_install_carries(void **state) {
  struct half h;
  (void)state;
  half_open(&h);
  assert_int_equal(matched(&h, ID, PARAMS, 100, 48), 52);
  assert_int_equal(alloc(&h, ID, PARAMS, 100, 20), 1);
  assert_int_equal(h.posts, 1);
  assert_string_equal(h.id, ID);
  assert_string_equal(h.url, "http://m/v1/metaserver");
  assert_non_null(strstr(h.body, "\"remote_port\":20002,\"remote_tp_size\":2,"));
  assert_non_null(strstr(h.body, "\"remote_cached_tokens\":80,\"rd2h\":{\"v\":1,\"attempt\":\""));
  step(&h);
  const struct rd2h_step_install *i = h.v.install;
  assert_int_equal(h.v.n_install, 1);
  assert_str(i->id, ID);
  assert_str(i->ext_id, "cmpl-a-0");
  assert_ids(i->main, i->n_main, IDS(1, 2, 3, 4, 5, 6, 7));
  assert_ids(i->indexer, i->n_indexer, IDS(11, 12));
  assert_int_equal(i->main_floor, 5);
  assert_int_equal(i->indexer_floor, 1);
  assert_int_equal(i->main_need, 7);
  assert_int_equal(i->indexer_need, 2);
  char hex[2 * RD2H_ATTEMPT_LEN + 1];
  for (uint32_t k = 0; k < RD2H_ATTEMPT_LEN; k++)
    snprintf(hex + 2 * k, 3, "%02x", i->attempt[k]);
  assert_non_null(strstr(h.body, hex));
  half_close(&h);
}

static void test_attempts_differ_incarnation_stays(void **state) {
  struct half h;
  char body[1024];
  (void)state;
  half_open(&h);
  load(&h, "a");
  snprintf(body, sizeof body, "%s", h.body);
  load(&h, "b");
  const char *one = strstr(body, "\"attempt\""), *two = strstr(h.body, "\"attempt\"");
  assert_memory_not_equal(one + 11, two + 11, 32);
  assert_string_equal(strstr(one, "\"inc\""), strstr(two, "\"inc\""));
  half_close(&h);
}

static void test_matched(void **state) {
  struct half h;
  uint64_t tokens = 7;
  (void)state;
  half_open(&h);
  assert_int_equal(matched(&h, "a", NULL, 100, 0), 0);
  assert_int_equal(matched(&h, "a", "{}", 100, 0), 0);
  assert_int_equal(matched(&h, "a", "{\"do_remote_prefill\":false}", 100, 0), 0);
  assert_int_equal(matched(&h, "a", PARAMS, 100, 100), 0);
  assert_int_equal(matched(&h, "a", PARAMS, 100, 120), 0);
  assert_int_equal(matched(&h, "a", PARAMS, 1, 0), 1);
  for (int i = 0; i < 3; i++) /* pure */
    assert_int_equal(matched(&h, "a", PARAMS, 100, 96), 4);
  assert_int_equal(rd2h_decode_half_matched(h.d, "a", "{\"do_remote_prefill\":\"yes\"}", 9, 0, &tokens, &h.e), RD2H_INVALID);
  assert_says(&h.e, "\"do_remote_prefill\" must be true or false and is a string");
  assert_int_equal(rd2h_decode_half_matched(h.d, "", PARAMS, 9, 0, &tokens, &h.e), RD2H_INVALID);
  assert_int_equal(rd2h_decode_half_matched(h.d, "a", PARAMS, UINT64_MAX, 0, &tokens, &h.e), RD2H_INVALID);
  assert_int_equal(tokens, 0);
  assert_int_equal(h.posts, 0);
  assert_nothing(&h);
  half_close(&h);
}

/* Law 6: after the load the hooks come again, for a 1-token prompt with nothing computed. */
static void test_pulled_once(void **state) {
  struct half h;
  (void)state;
  half_open(&h);
  assert_int_equal(matched(&h, "a", PARAMS, 1, 0), 1);
  assert_int_equal(alloc(&h, "a", PARAMS, 1, 1), 1);
  step(&h);
  assert_int_equal(rd2h_decode_half_waiting(h.d), 1);
  rd2h_decode_half_answer(h.d, "a", RD2H_OK, NULL, true);
  rd2h_decode_half_received(h.d, "a", false);
  rd2h_decode_half_received(h.d, "a", false);
  assert_int_equal(rd2h_decode_half_waiting(h.d), 0);
  assert_int_equal(matched(&h, "a", PARAMS, 1, 0), 0);
  assert_int_equal(alloc(&h, "a", PARAMS, 1, 0), 0);
  assert_int_equal(alloc(&h, "a", PARAMS, 1, 1), 0);
  rd2h_decode_half_finish(h.d, "a");
  assert_nothing(&h);
  assert_int_equal(h.posts, 1);
  assert_int_equal(h.cancels, 0);
  assert_int_equal(matched(&h, "a", PARAMS, 1, 0), 1); /* forgotten with its end */
  half_close(&h);
}

static void test_s08_failed_load_is_computed_here(void **state) {
  struct half h;
  (void)state;
  half_open(&h);
  load(&h, "a");
  rd2h_decode_half_received(h.d, "a", true);
  assert_int_equal(h.cancels, 1); /* nobody waits for Prefill any more */
  assert_int_equal(matched(&h, "a", PARAMS, 100, 0), 0);
  assert_nothing(&h);
  half_close(&h);
}

static void test_success_does_not_hang_up(void **state) {
  struct half h;
  (void)state;
  half_open(&h);
  load(&h, "a");
  rd2h_decode_half_received(h.d, "a", false);
  assert_int_equal(h.cancels, 0);
  rd2h_decode_half_answer(h.d, "a", RD2H_REFUSED, "too late to matter", true);
  assert_nothing(&h);
  load(&h, "b");
  rd2h_decode_half_received(h.d, "b", false);
  rd2h_decode_half_finish(h.d, "b");
  assert_int_equal(h.cancels, 1);
  assert_string_equal(h.canceled, "b");
  half_close(&h);
}

/* Workers hear once that Prefill has finished; not of an answer that says less, nor when the request has ended meanwhile. */
static void test_rendezvous_answered(void **state) {
  struct half h;
  (void)state;
  half_open(&h);
  assert_int_equal(alloc(&h, "a", PARAMS, 100, 100), 1);
  rd2h_decode_half_answer(h.d, "a", RD2H_OK, NULL, true);
  step(&h);
  assert_int_equal(h.v.n_install, 1);
  assert_int_equal(h.v.n_answered, 1);
  assert_str(h.v.answered[0], "a");
  assert_nothing(&h);
  load(&h, "b");
  rd2h_decode_half_answer(h.d, "b", RD2H_OK, NULL, false);
  assert_nothing(&h);
  load(&h, "c");
  rd2h_decode_half_answer(h.d, "c", RD2H_OK, NULL, true);
  rd2h_decode_half_finish(h.d, "c");
  assert_end(&h, "c", RD2H_ABORTED, true);
  assert_int_equal(h.v.n_answered, 0);
  half_close(&h);
}

static void test_rendezvous_failed(void **state) {
  struct half h;
  (void)state;
  half_open(&h);
  load(&h, "a");
  rd2h_decode_half_answer(h.d, "a", RD2H_REFUSED, "metaserver answered 404", true);
  rd2h_decode_half_answer(h.d, "a", RD2H_IO, "again", true);
  assert_end(&h, "a", RD2H_REFUSED, true);
  assert_str(h.v.end->text, "metaserver answered 404");
  rd2h_decode_half_finish(h.d, "a"); /* ended already: not twice */
  assert_nothing(&h);
  assert_int_equal(h.cancels, 0);
  assert_int_equal(rd2h_decode_half_waiting(h.d), 1); /* until every worker has reported it */
  rd2h_decode_half_received(h.d, "a", true);
  assert_int_equal(rd2h_decode_half_waiting(h.d), 0);
  assert_int_equal(matched(&h, "a", PARAMS, 100, 0), 100);
  half_close(&h);
}

static void test_rendezvous_failed_before_the_step(void **state) {
  struct half h;
  (void)state;
  half_open(&h);
  assert_int_equal(alloc(&h, "a", PARAMS, 100, 100), 1);
  rd2h_decode_half_answer(h.d, "a", RD2H_TIMEOUT, NULL, true);
  assert_end(&h, "a", RD2H_TIMEOUT, false);
  assert_str(h.v.end->text, rd2h_status_text(RD2H_TIMEOUT));
  half_close(&h);
}

/* Law 4: workers are told once, and report the id even if it was never installed. */
static void test_abort_while_waiting(void **state) {
  struct half h;
  (void)state;
  half_open(&h);
  load(&h, "a");
  rd2h_decode_half_finish(h.d, "a");
  rd2h_decode_half_finish(h.d, "a");
  assert_int_equal(h.cancels, 1);
  rd2h_decode_half_answer(h.d, "a", RD2H_IO, "crossed the cancel", true);
  assert_end(&h, "a", RD2H_ABORTED, true);
  rd2h_decode_half_received(h.d, "a", true);
  assert_nothing(&h);
  assert_int_equal(alloc(&h, "b", PARAMS, 100, 100), 1);
  rd2h_decode_half_finish(h.d, "b");
  assert_end(&h, "b", RD2H_ABORTED, false);
  half_close(&h);
}

/* With policy "fail" the engine ends the request before it passes on what the workers have reported. */
static void test_finish_crosses_the_report(void **state) {
  struct half h;
  (void)state;
  half_open(&h);
  load(&h, "a");
  rd2h_decode_half_finish(h.d, "a");
  rd2h_decode_half_received(h.d, "a", true);
  assert_nothing(&h);
  assert_int_equal(rd2h_decode_half_waiting(h.d), 0);
  half_close(&h);
}

/* Rule 16: chunks on the wire carry the external id alone. */
static void test_external_id_in_use(void **state) {
  struct half h;
  (void)state;
  half_open(&h);
  load(&h, "x-00000001");
  assert_int_equal(alloc(&h, "x-00000002", PARAMS, 100, 100), RD2H_EXISTS);
  assert_says(&h.e, "request x-00000002: external id x is in use by request x-00000001");
  assert_int_equal(h.posts, 1);
  assert_end(&h, "x-00000002", RD2H_EXISTS, false);
  rd2h_decode_half_finish(h.d, "x-00000002");
  assert_nothing(&h);
  rd2h_decode_half_received(h.d, "x-00000002", true);
  assert_int_equal(alloc(&h, "x-00000003", PARAMS, 100, 100), RD2H_EXISTS); /* the first is still live */
  rd2h_decode_half_received(h.d, "x-00000001", false);
  assert_int_equal(alloc(&h, "x-00000004", PARAMS, 100, 100), 1);
  half_close(&h);
}

static void test_alloc_again(void **state) {
  struct half h;
  (void)state;
  half_open(&h);
  assert_int_equal(alloc(&h, "a", PARAMS, 100, 100), 1);
  assert_int_equal(alloc(&h, "a", PARAMS, 100, 100), 1);
  assert_int_equal(rd2h_decode_half_alloc(h.d, "a", "{}", 100, 100, TABLE(IDS(8, 2, 3, 4, 5, 6, 7), IDS(11, 12)), NULL), 1);
  step(&h);
  assert_int_equal(h.v.n_install, 1);
  assert_int_equal(h.v.install->main[0], 8);
  assert_int_equal(h.posts, 1);
  assert_int_equal(rd2h_decode_half_alloc(h.d, "a", PARAMS, 100, 100, TABLE(IDS(8, 2, 3, 4, 5, 6, 7), IDS(11, 12)), NULL), 1);
  assert_nothing(&h);
  assert_int_equal(alloc(&h, "a", PARAMS, 100, 100), RD2H_STATE); /* reads may run into the first ones */
  assert_says(&h.e, "other blocks were allocated while its KV is being pulled");
  assert_end(&h, "a", RD2H_STATE, true);
  assert_int_equal(h.cancels, 1);
  half_close(&h);
}

struct refusal {
  const char *params;
  int status;
  const char *says;
};
static const struct refusal refused[] = {
  {"{\"do_remote_prefill\":true}", RD2H_INVALID, "\"metaserver\" is missing"},
  {"{\"do_remote_prefill\":true,\"metaserver\":null}", RD2H_INVALID, "\"metaserver\" is missing"},
  {"{\"do_remote_prefill\":true,\"metaserver\":7}", RD2H_INVALID, "\"metaserver\" must be a string and is an integer"},
  {"{\"do_remote_prefill\":true,\"metaserver\":\"\"}", RD2H_RANGE, "\"metaserver\" has 0 bytes"},
  {"{\"do_remote_prefill\":true,\"do_virtual\":1}", RD2H_INVALID, "\"do_virtual\" must be true or false"},
  {"not JSON", RD2H_INVALID, "kv_transfer_params is no JSON"},
};

/* Law 3: what cannot even begin is reported by all workers. */
static void test_refused_is_reported(void **state) {
  struct half h;
  char id[16];
  (void)state;
  half_open(&h);
  for (size_t i = 0; i < RD2H_COUNT(refused); i++) {
    snprintf(id, sizeof id, "r%zu", i);
    assert_int_equal(alloc(&h, id, refused[i].params, 100, 100), refused[i].status);
    assert_says(&h.e, refused[i].says);
    assert_end(&h, id, refused[i].status, false);
    assert_non_null(memmem(h.v.end->text.p, h.v.end->text.n, refused[i].says, strlen(refused[i].says)));
    rd2h_decode_half_received(h.d, id, true);
    rd2h_decode_half_finish(h.d, id);
  }
  assert_int_equal(rd2h_decode_half_alloc(h.d, "few", PARAMS, 100, 100, TABLE(IDS(1, 2), IDS(1, 2)), &h.e), RD2H_RANGE);
  assert_says(&h.e, "100 prompt tokens need 7 main blocks, 2 are allocated in group 0");
  assert_end(&h, "few", RD2H_RANGE, false);
  assert_int_equal(alloc(&h, "more", PARAMS, 100, 101), RD2H_INVALID);
  assert_end(&h, "more", RD2H_INVALID, false);
  h.post_status = RD2H_LIMIT;
  assert_int_equal(alloc(&h, "full", PARAMS, 100, 100), RD2H_LIMIT);
  assert_end(&h, "full", RD2H_LIMIT, false);
  assert_str(h.v.end->text, "no way");
  assert_int_equal(h.cancels, 0);
  assert_int_equal(h.posts, 0);
  half_close(&h);
}

/* Law 9, and calls that mean nothing. */
static void test_ghosts_and_strangers(void **state) {
  struct half h;
  (void)state;
  half_open(&h);
  assert_int_equal(rd2h_decode_half_alloc(h.d, "0123456789abcdef", PARAMS, 1, 1, TABLE(NO_IDS, NO_IDS), NULL), 0);
  assert_int_equal(alloc(&h, "a", PARAMS, 100, 0), 0);
  assert_int_equal(alloc(&h, "a", "{}", 100, 100), 0);
  assert_int_equal(alloc(&h, "a", NULL, 100, 100), 0);
  assert_int_equal(alloc(&h, "", PARAMS, 100, 100), RD2H_INVALID);
  rd2h_decode_half_finish(h.d, "0123456789abcdef");
  rd2h_decode_half_received(h.d, "x", true);
  rd2h_decode_half_answer(h.d, "x", RD2H_IO, "x", true);
  assert_nothing(&h);
  assert_int_equal(h.posts + h.cancels, 0);
  assert_int_equal(rd2h_decode_half_waiting(h.d), 0);
  half_close(&h);
}

static void test_virtual_posts_nothing(void **state) {
  struct half h;
  (void)state;
  half_open(&h);
  assert_int_equal(alloc(&h, "a", "{\"do_remote_prefill\":true,\"do_virtual\":true}", 100, 100), 1);
  step(&h);
  assert_int_equal(h.v.n_install, 1);
  rd2h_decode_half_finish(h.d, "a");
  assert_int_equal(h.posts + h.cancels, 0);
  half_close(&h);
}

static void test_bad_options(void **state) {
  static char long_text[1200];
  struct rd2h_decode_scheduler_opts o[] = {opts, opts, opts, opts, opts, opts, opts};
  const struct rd2h_post post = {NULL, on_post, on_cancel};
  rd2h_decode_half *d = NULL;
  (void)state;
  memset(long_text, 'x', sizeof long_text - 1);
  o[0].size = 4;
  o[1].host = NULL;
  o[2].host = "";
  o[3].host = long_text;
  o[4].engine_id = NULL;
  o[5].engine_id = long_text;
  o[6].main_group = 9;
  for (size_t i = 0; i < RD2H_COUNT(o); i++)
    assert_int_equal(rd2h_decode_half_create(&o[i], &post, &d, NULL), RD2H_INVALID);
  o[0] = opts;
  o[0].kv_port = 65535;
  assert_true(rd2h_decode_half_create(&o[0], &post, &d, NULL) < 0); /* the last rank's port does not fit */
  assert_null(d);
  rd2h_decode_half_destroy(NULL);
}

/* Makes the n-th allocation fail, for every n: what was posted and not installed is canceled, what was begun is reported. */
static bool run_with_failure(uint64_t n) {
  static const char id[] = "an id longer than the slots of the table hold inside themselves-00000000";
  struct half h;
  memset(&h, 0, sizeof h);
  const struct rd2h_post post = {&h, on_post, on_cancel};
  struct rd2h_bytes b;
  rd2h_alloc_fail_at(n);
  int rc = rd2h_decode_half_create(&opts, &post, &h.d, NULL);
  if (rc) {
    assert_int_equal(rc, RD2H_NOMEM);
    return true;
  }
  int first = alloc(&h, id, PARAMS, 100, 100);
  int ended = rd2h_decode_half_step_end(h.d, &b, NULL);
  rd2h_alloc_fail_at(0);
  assert_int_equal(ended ? rd2h_decode_half_step_end(h.d, &b, NULL) : RD2H_OK, RD2H_OK);
  assert_int_equal(rd2h_step_decode_decode(b.p, b.len, &h.arena, &h.v, NULL), RD2H_OK);
  assert_int_equal(h.v.n_install, first == 1);
  assert_int_equal(h.v.n_end, rd2h_decode_half_waiting(h.d) - h.v.n_install);
  assert_int_equal(h.posts, first == 1);
  half_close(&h);
  return first != 1 || ended;
}

static void test_failing_memory(void **state) {
  uint64_t n = 1;
  (void)state;
  while (run_with_failure(n))
    assert_in_range(++n, 1, 100);
  assert_in_range(n, 10, 100);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_what_an_install_carries), cmocka_unit_test(test_attempts_differ_incarnation_stays),
    cmocka_unit_test(test_matched), cmocka_unit_test(test_pulled_once), cmocka_unit_test(test_s08_failed_load_is_computed_here),
    cmocka_unit_test(test_success_does_not_hang_up), cmocka_unit_test(test_rendezvous_answered), cmocka_unit_test(test_rendezvous_failed),
    cmocka_unit_test(test_rendezvous_failed_before_the_step), cmocka_unit_test(test_abort_while_waiting),
    cmocka_unit_test(test_finish_crosses_the_report), cmocka_unit_test(test_external_id_in_use),
    cmocka_unit_test(test_alloc_again), cmocka_unit_test(test_refused_is_reported),
    cmocka_unit_test(test_ghosts_and_strangers), cmocka_unit_test(test_virtual_posts_nothing),
    cmocka_unit_test(test_bad_options), cmocka_unit_test(test_failing_memory),
  };
  return cmocka_run_group_tests_name("Decode's scheduler half", tests, NULL, NULL);
}
