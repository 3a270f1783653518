/* SPDX-License-Identifier: Apache-2.0 */
/* Prefill's half beyond the recorded schedules: preemption, ends, repeats, bad parameters, failing memory. */
#include "scheduler/test_support.h"

#define ENDPOINT "\"do_remote_decode\":true,\"remote_host\":\"10.0.0.2\",\"remote_port\":7000,\"remote_tp_size\":2"
#define PARAMS "{" ENDPOINT "}"
#define ID "cmpl-a-0-0123abcd"
#define HEX_A "00112233445566778899aabbccddeeff"
#define HEX_B "ffeeddccbbaa99887766554433221100"
/* Of a Decode of ours, which knows the request by this id. */
#define OURS(request_id) "{" ENDPOINT ",\"request_id\":" request_id ",\"rd2h\":{\"v\":1,\"attempt\":\"" HEX_A "\",\"inc\":\"" \
  HEX_B "\"}}"

static const struct rd2h_prefill_scheduler_opts opts = {.size = sizeof opts, .n_groups = 2, .block_size = {16, 32},
                                                        .indexer_group = 1};
struct half {
  rd2h_prefill_scheduler *s;
  struct rd2h_arena arena;
  struct rd2h_prefill_step_view v;
};

static void half_open(struct half *h) {
  *h = (struct half){.s = NULL};
  assert_int_equal(rd2h_prefill_scheduler_create(&opts, &h->s, NULL), RD2H_OK);
}

static void half_close(struct half *h) {
  rd2h_prefill_scheduler_destroy(h->s);
  rd2h_arena_free(&h->arena);
}

static void alloc(struct half *h, const char *id, uint64_t tokens, const struct rd2h_block_table *t) {
  assert_int_equal(rd2h_prefill_scheduler_alloc(h->s, id, PARAMS, tokens, t, NULL), 1);
}

static void add(struct half *h, const char *id, uint64_t computed, uint64_t scheduled, const struct rd2h_block_table *more) {
  assert_int_equal(rd2h_prefill_scheduler_step_add(h->s, id, computed, scheduled, 0, more, false, NULL), RD2H_OK);
}

static void end(struct half *h) {
  struct rd2h_bytes b;
  assert_int_equal(rd2h_prefill_scheduler_step_end(h->s, &b, NULL), RD2H_OK);
  assert_int_equal(rd2h_step_decode_prefill(b.p, b.len, &h->arena, &h->v, NULL), RD2H_OK);
}

/* A step in which only this chunk is scheduled. */
static void step(struct half *h, const char *id, uint64_t computed, uint64_t scheduled, const struct rd2h_block_table *more) {
  rd2h_prefill_scheduler_step_begin(h->s);
  add(h, id, computed, scheduled, more);
  end(h);
}

static void empty_step(struct half *h) {
  rd2h_prefill_scheduler_step_begin(h->s);
  end(h);
}

static void assert_empty(const struct half *h) {
  assert_int_equal(h->v.n_send + h->v.n_finished + h->v.n_preempted, 0);
}

static void assert_ref(const struct rd2h_step_ref *r, uint32_t n, const char *id, bool aborted) {
  assert_int_equal(n, 1);
  assert_str(r->id, id);
  assert_int_equal(r->aborted, aborted);
}

static void test_what_a_send_carries(void **state) {
  struct half h;
  (void)state;
  half_open(&h);
  assert_int_equal(rd2h_prefill_scheduler_alloc(h.s, ID, "{" ENDPOINT ",\"remote_engine_id\":\"e7\",\"remote_cached_tokens\":32,"
                                                "\"dspark_context_generation\":0,\"rd2h\":{\"v\":1,"
                                                "\"attempt\":\"" HEX_A "\",\"inc\":\""
                                                HEX_B "\",\"later\":1}}", 70, TABLE(IDS(1, 2, 3, 4, 5), IDS(7, 8, 9)), NULL), 1);
  step(&h, ID, 0, 70, NULL);
  assert_int_equal(h.v.n_send, 1);
  const struct rd2h_step_send *s = h.v.send;
  assert_str(s->id, ID);
  assert_str(s->ext_id, "cmpl-a-0");
  assert_str(s->host, "10.0.0.2");
  assert_int_equal(s->base_port, 7000);
  assert_int_equal(s->d_tp, 2);
  assert_str(s->engine_id, "e7/" HEX_B);
  assert_true(s->has_attempt && s->has_dspark && s->last);
  assert_memory_equal(s->attempt, "\x00\x11\x22\x33\x44\x55\x66\x77\x88\x99\xaa\xbb\xcc\xdd\xee\xff", 16);
  assert_ids(s->main, s->n_main, IDS(3, 4, 5));
  assert_ids(s->indexer, s->n_indexer, IDS(8, 9));
  assert_int_equal(s->main_start, 2);
  assert_int_equal(s->indexer_start, 1);
  half_close(&h);
}

/* Drafts that were scheduled with the last prompt tokens are no computed tokens: neither do they complete a prompt, nor a block. */
static void test_s05_drafts_are_not_computed(void **state) {
  struct half h;
  (void)state;
  half_open(&h);
  alloc(&h, ID, 64, TABLE(IDS(1, 2, 3, 4), IDS(7, 8)));
  step(&h, ID, 0, 46, NULL);
  assert_int_equal(h.v.send[0].n_main, 2);
  rd2h_prefill_scheduler_step_begin(h.s);
  assert_int_equal(rd2h_prefill_scheduler_step_add(h.s, ID, 46, 16, 3, NULL, false, NULL), RD2H_OK); /* 59 of 64 */
  end(&h);
  assert_int_equal(h.v.n_send, 1);
  assert_int_equal(h.v.send[0].n_main, 1);
  assert_false(h.v.send[0].last);
  rd2h_prefill_scheduler_step_begin(h.s);
  assert_int_equal(rd2h_prefill_scheduler_step_add(h.s, ID, 59, 8, 3, NULL, false, NULL), RD2H_OK); /* 64 of 64 */
  end(&h);
  assert_int_equal(h.v.send[0].n_main, 1);
  assert_true(h.v.send[0].last);
  half_close(&h);
}

/* One child of a list that comes alone has an id of its own here; Decode hears of it under the id that it posted. */
static void test_id_on_decode(void **state) {
  struct half h;
  (void)state;
  half_open(&h);
  assert_int_equal(rd2h_prefill_scheduler_alloc(h.s, ID, OURS("\"cmpl-b-7\""), 70, TABLE(IDS(1, 2, 3, 4, 5), IDS(7, 8, 9)),
                                                NULL), 1);
  step(&h, ID, 0, 70, NULL);
  assert_str(h.v.send->id, ID);
  assert_str(h.v.send->ext_id, "cmpl-b-7");
  half_close(&h);
}

static void test_plain_rendezvous(void **state) {
  struct half h;
  (void)state;
  half_open(&h);
  assert_int_equal(rd2h_prefill_scheduler_alloc(h.s, "a",
                                                "{\"do_remote_decode\":true,\"remote_host\":\"h\",\"remote_port\":65535}", 16,
                                                TABLE(IDS(1), IDS(2)), NULL), 1);
  step(&h, "a", 0, 16, NULL);
  assert_false(h.v.send->has_attempt || h.v.send->has_dspark);
  assert_int_equal(h.v.send->d_tp, 0); /* not said */
  assert_str(h.v.send->engine_id, "");
  half_close(&h);
}

/* Law 7: a preempted request starts over with a new table; what Decode has already is not sent again. */
static void test_preempted_prefill_goes_on(void **state) {
  struct half h;
  (void)state;
  half_open(&h);
  alloc(&h, ID, 100, TABLE(IDS(1, 2, 3), IDS(1, 2)));
  step(&h, ID, 0, 40, NULL);
  assert_ids(h.v.send->main, h.v.send->n_main, IDS(1, 2));
  rd2h_prefill_scheduler_step_begin(h.s);
  rd2h_prefill_scheduler_step_preempted(h.s, ID);
  rd2h_prefill_scheduler_step_preempted(h.s, ID);
  end(&h);
  assert_int_equal(h.v.n_send, 0);
  assert_int_equal(h.v.n_preempted, 1);
  assert_str(h.v.preempted->id, ID);
  alloc(&h, ID, 100, TABLE(IDS(50, 51, 52, 53, 54, 55, 56), IDS(60, 61, 62, 63)));
  step(&h, ID, 0, 24, NULL); /* behind what is published */
  assert_empty(&h);
  step(&h, ID, 24, 48, NULL);
  assert_ids(h.v.send->main, h.v.send->n_main, IDS(52, 53));
  assert_int_equal(h.v.send->main_start, 2);
  assert_ids(h.v.send->indexer, h.v.send->n_indexer, IDS(61));
  step(&h, ID, 72, 28, NULL);
  assert_ids(h.v.send->main, h.v.send->n_main, IDS(54, 55, 56));
  assert_ids(h.v.send->indexer, h.v.send->n_indexer, IDS(62, 63));
  assert_true(h.v.send->last);
  half_close(&h);
}

/* The table of a resumed request comes with the step, too; until it does nothing of the old one may be published. */
static void test_l10_resumed_by_the_step(void **state) {
  struct half h;
  struct rd2h_error e;
  (void)state;
  half_open(&h);
  alloc(&h, "a", 64, TABLE(IDS(1, 2, 3, 4), IDS(1, 2)));
  step(&h, "a", 0, 32, NULL);
  rd2h_prefill_scheduler_step_begin(h.s);
  rd2h_prefill_scheduler_step_preempted(h.s, "a");
  assert_int_equal(rd2h_prefill_scheduler_step_add(h.s, "a", 0, 64, 0, NULL, false, &e), RD2H_RANGE);
  assert_says(&e, "request a: 64 computed tokens need main blocks up to 4, its table has 0 in group 0");
  end(&h);
  assert_int_equal(h.v.n_send, 0);
  step(&h, "a", 0, 64, NULL); /* said once */
  assert_empty(&h);
  rd2h_prefill_scheduler_step_begin(h.s);
  assert_int_equal(rd2h_prefill_scheduler_step_add(h.s, "a", 0, 64, 0, TABLE(IDS(5, 6, 7, 8), IDS(9, 10)), true, NULL), RD2H_OK);
  end(&h);
  assert_ids(h.v.send->main, h.v.send->n_main, IDS(7, 8));
  assert_ids(h.v.send->indexer, h.v.send->n_indexer, IDS(10));
  half_close(&h);
}

/* Law 13: a finished prefill may be preempted and run again. */
static void test_complete_and_rerun(void **state) {
  struct half h;
  (void)state;
  half_open(&h);
  alloc(&h, "a", 20, TABLE(IDS(1, 2), IDS(1)));
  step(&h, "a", 0, 20, NULL);
  assert_true(h.v.send->last);
  rd2h_prefill_scheduler_step_begin(h.s);
  rd2h_prefill_scheduler_step_preempted(h.s, "a");
  end(&h);
  assert_int_equal(h.v.n_preempted, 1);
  alloc(&h, "a", 20, TABLE(IDS(8, 9), IDS(8)));
  step(&h, "a", 0, 20, NULL);
  step(&h, "a", 20, 1, TABLE(IDS(10), NO_IDS));
  assert_empty(&h);
  assert_int_equal(rd2h_prefill_scheduler_finish(h.s, "a", false), 1);
  end(&h);
  assert_ref(h.v.finished, h.v.n_finished, "a", false);
  half_close(&h);
}

static void test_preempted_before_anything_was_published(void **state) {
  struct half h;
  (void)state;
  half_open(&h);
  alloc(&h, "a", 64, TABLE(IDS(1), IDS(1)));
  step(&h, "a", 0, 10, NULL); /* no block is complete */
  assert_empty(&h);
  rd2h_prefill_scheduler_step_begin(h.s);
  add(&h, "a", 10, 6, NULL);
  rd2h_prefill_scheduler_step_preempted(h.s, "a"); /* also takes back what the open step was to publish */
  end(&h);
  assert_empty(&h);
  assert_int_equal(rd2h_prefill_scheduler_finish(h.s, "a", true), 0);
  half_close(&h);
}

static void test_finish_holds_what_was_published(void **state) {
  struct half h;
  (void)state;
  half_open(&h);
  alloc(&h, "none", 64, TABLE(IDS(1, 2, 3, 4), IDS(1, 2)));
  alloc(&h, "part", 64, TABLE(IDS(5, 6, 7, 8), IDS(3, 4)));
  alloc(&h, "whole", 20, TABLE(IDS(9, 10), IDS(5)));
  rd2h_prefill_scheduler_step_begin(h.s);
  add(&h, "part", 0, 32, NULL);
  add(&h, "whole", 0, 20, NULL);
  end(&h);
  assert_int_equal(h.v.n_send, 2);
  assert_int_equal(rd2h_prefill_scheduler_finish(h.s, "none", true), 0);
  assert_int_equal(rd2h_prefill_scheduler_held(h.s), 0);
  assert_int_equal(rd2h_prefill_scheduler_finish(h.s, "part", false), 1); /* ended early, whatever the engine calls it */
  empty_step(&h);
  assert_ref(h.v.finished, h.v.n_finished, "part", true);
  assert_int_equal(rd2h_prefill_scheduler_finish(h.s, "whole", true), 1); /* readers have all of it */
  assert_int_equal(rd2h_prefill_scheduler_finish(h.s, "whole", true), 1);
  assert_int_equal(rd2h_prefill_scheduler_held(h.s), 2);
  empty_step(&h);
  assert_ref(h.v.finished, h.v.n_finished, "whole", false);
  empty_step(&h);
  assert_empty(&h);
  rd2h_prefill_scheduler_released(h.s, "part");
  rd2h_prefill_scheduler_released(h.s, "whole");
  rd2h_prefill_scheduler_released(h.s, "whole");
  assert_int_equal(rd2h_prefill_scheduler_held(h.s), 0);
  assert_int_equal(rd2h_prefill_scheduler_finish(h.s, "whole", false), 0);
  half_close(&h);
}

/* Nothing is to be read, but Decode waits for the word that this is all; so the workers report the id, too. */
static void test_l08_all_cached_on_decode(void **state) {
  struct half h;
  (void)state;
  half_open(&h);
  assert_int_equal(rd2h_prefill_scheduler_alloc(h.s, "a", "{" ENDPOINT ",\"remote_cached_tokens\":64}", 50,
                                                TABLE(IDS(1, 2, 3, 4), IDS(1, 2)), NULL), 1);
  step(&h, "a", 0, 50, NULL);
  assert_int_equal(h.v.n_send, 1);
  assert_int_equal(h.v.send->n_main + h.v.send->n_indexer, 0);
  assert_true(h.v.send->last);
  assert_int_equal(rd2h_prefill_scheduler_finish(h.s, "a", false), 1);
  half_close(&h);
}

static void test_finish_in_the_step_that_publishes(void **state) {
  struct half h;
  (void)state;
  half_open(&h);
  alloc(&h, "a", 20, TABLE(IDS(1, 2), IDS(1)));
  rd2h_prefill_scheduler_step_begin(h.s);
  add(&h, "a", 0, 20, NULL);
  assert_int_equal(rd2h_prefill_scheduler_finish(h.s, "a", false), 1);
  end(&h);
  assert_int_equal(h.v.n_send, 1);
  assert_ref(h.v.finished, h.v.n_finished, "a", false);
  half_close(&h);
}

/* A step whose bytes were never made has published nothing. */
static void test_dropped_step(void **state) {
  struct half h;
  (void)state;
  half_open(&h);
  alloc(&h, "a", 64, TABLE(IDS(1, 2, 3, 4), IDS(1, 2)));
  rd2h_prefill_scheduler_step_begin(h.s);
  add(&h, "a", 0, 32, NULL);
  step(&h, "a", 32, 32, NULL);
  assert_ids(h.v.send->main, h.v.send->n_main, IDS(1, 2, 3, 4));
  half_close(&h);
}

static void test_repeats(void **state) {
  struct half h;
  struct rd2h_error e;
  (void)state;
  half_open(&h);
  alloc(&h, "a", 64, TABLE(IDS(1, 2), IDS(1)));
  alloc(&h, "a", 64, TABLE(IDS(1, 2), IDS(1)));
  rd2h_prefill_scheduler_step_begin(h.s);
  add(&h, "a", 0, 48, TABLE(IDS(3), IDS(2)));
  add(&h, "a", 0, 48, TABLE(IDS(3), IDS(2)));
  end(&h);
  assert_int_equal(h.v.n_send, 1);
  assert_ids(h.v.send->main, h.v.send->n_main, IDS(1, 2, 3));
  step(&h, "a", 48, 16, TABLE(IDS(4), NO_IDS)); /* appended behind one 3, not two */
  assert_ids(h.v.send->main, h.v.send->n_main, IDS(4));
  assert_int_equal(rd2h_prefill_scheduler_finish(h.s, "a", false), 1);
  assert_int_equal(rd2h_prefill_scheduler_alloc(h.s, "a", PARAMS, 64, TABLE(IDS(9), IDS(9)), &e), RD2H_EXISTS);
  assert_says(&e, "request a has ended and its blocks are still held");
  half_close(&h);
}

/* Law 9, and ids that were never seen. */
static void test_ghosts_and_strangers(void **state) {
  struct half h;
  (void)state;
  half_open(&h);
  assert_int_equal(rd2h_prefill_scheduler_alloc(h.s, "0123456789abcdef", PARAMS, 1, TABLE(NO_IDS, NO_IDS), NULL), 0);
  assert_int_equal(rd2h_prefill_scheduler_alloc(h.s, "x", NULL, 9, TABLE(IDS(1), IDS(1)), NULL), 0);
  assert_int_equal(rd2h_prefill_scheduler_alloc(h.s, "x", "null", 9, TABLE(IDS(1), IDS(1)), NULL), 0);
  assert_int_equal(rd2h_prefill_scheduler_alloc(h.s, "x", "{\"do_remote_decode\":null}", 9, TABLE(IDS(1), IDS(1)), NULL), 0);
  rd2h_prefill_scheduler_step_begin(h.s);
  add(&h, "x", 0, 9, TABLE(IDS(1), IDS(1)));
  rd2h_prefill_scheduler_step_preempted(h.s, "x");
  assert_int_equal(rd2h_prefill_scheduler_finish(h.s, "x", true), 0);
  rd2h_prefill_scheduler_released(h.s, "x");
  end(&h);
  assert_empty(&h);
  half_close(&h);
}

static void test_children_of_a_list(void **state) {
  static const char batch[] = "{\"do_remote_decode\":true,\"batch_kv_transfer_params\":{\"cmpl-p-0\":{\"remote_host\":\"a\","
                              "\"remote_port\":1},\"cmpl-p-1\":{\"remote_host\":\"b\",\"remote_port\":2}}}";
  struct half h;
  struct rd2h_error e;
  (void)state;
  half_open(&h);
  assert_int_equal(rd2h_prefill_scheduler_alloc(h.s, "cmpl-p-1-00000000", batch, 16, TABLE(IDS(1), IDS(1)), NULL), 1);
  step(&h, "cmpl-p-1-00000000", 0, 16, NULL);
  assert_str(h.v.send->host, "b");
  assert_str(h.v.send->ext_id, "cmpl-p-1");
  assert_int_equal(rd2h_prefill_scheduler_alloc(h.s, "cmpl-p-2-00000000", batch, 16, TABLE(IDS(1), IDS(1)), &e), RD2H_INVALID);
  assert_says(&e, "names 2 requests, none is cmpl-p-2");
  half_close(&h);
}

struct refusal {
  const char *params;
  int status;
  const char *says;
};
static const struct refusal refused[] = {
  {"{", RD2H_INVALID, "no JSON (line 1, column 1)"},
  {"[1]", RD2H_INVALID, "must be a JSON object"},
  {"{\"do_remote_decode\":1}", RD2H_INVALID, "\"do_remote_decode\" must be true or false and is an integer"},
  {"{\"do_remote_decode\":true}", RD2H_INVALID, "\"remote_host\" is missing"},
  {OURS("7"), RD2H_INVALID, "\"request_id\" must be a string"},
  {OURS("\"\""), RD2H_RANGE, "\"request_id\" has 0 bytes"},
  {"{\"do_remote_decode\":true,\"remote_host\":\"h\"}", RD2H_INVALID, "\"remote_port\" is missing"},
  {"{\"do_remote_decode\":true,\"remote_host\":7,\"remote_port\":1}", RD2H_INVALID,
   "\"remote_host\" must be a string and is an integer"},
  {"{\"do_remote_decode\":true,\"remote_host\":\"\",\"remote_port\":1}", RD2H_RANGE, "\"remote_host\" has 0 bytes"},
  {"{\"do_remote_decode\":true,\"remote_host\":\"h\",\"remote_port\":0}", RD2H_RANGE, "\"remote_port\" is 0, must be 1 to 65535"},
  {"{\"do_remote_decode\":true,\"remote_host\":\"h\",\"remote_port\":65536}", RD2H_RANGE, "\"remote_port\" is 65536"},
  {"{\"do_remote_decode\":true,\"remote_host\":\"h\",\"remote_port\":-1}", RD2H_RANGE, "\"remote_port\" is -1"},
  {"{\"do_remote_decode\":true,\"remote_host\":\"h\",\"remote_port\":\"80\"}", RD2H_INVALID,
   "must be an integer and is a string"},
  {"{\"do_remote_decode\":true,\"remote_host\":\"h\",\"remote_port\":80.5}", RD2H_INVALID,
   "must be an integer and is a fraction"},
  {"{\"do_remote_decode\":true,\"remote_host\":\"h\",\"remote_port\":65535,\"remote_tp_size\":2}", RD2H_RANGE, "65535"},
  {"{" ENDPOINT ",\"remote_cached_tokens\":-5}", RD2H_RANGE, "\"remote_cached_tokens\" is -5"},
  {"{" ENDPOINT ",\"remote_engine_id\":[]}", RD2H_INVALID, "\"remote_engine_id\" must be a string and is an array"},
  {"{" ENDPOINT ",\"batch_kv_transfer_params\":true}", RD2H_INVALID,
   "\"batch_kv_transfer_params\" must be an object and is true"},
  {"{" ENDPOINT ",\"rd2h\":\"1\"}", RD2H_INVALID, "\"rd2h\" must be an object and is a string"},
  {"{" ENDPOINT ",\"rd2h\":{\"attempt\":\"" HEX_A "\"}}", RD2H_INVALID, "\"inc\" is missing"},
  {"{" ENDPOINT ",\"rd2h\":{\"attempt\":\"00\",\"inc\":\"" HEX_A "\"}}", RD2H_RANGE, "\"attempt\" has 2 bytes, must have 32"},
  {"{" ENDPOINT ",\"rd2h\":{\"inc\":\"" HEX_A "\",\"attempt\":\"0x112233445566778899aabbccddeeff\"}}", RD2H_INVALID,
   "\"attempt\" must be 32 lower-case hex digits"},
};

static void test_bad_params(void **state) {
  struct half h;
  struct rd2h_error e;
  (void)state;
  half_open(&h);
  for (size_t i = 0; i < RD2H_COUNT(refused); i++) {
    int rc = rd2h_prefill_scheduler_alloc(h.s, "a", refused[i].params, 16, TABLE(IDS(1), IDS(1)), &e);
    if (rc != refused[i].status)
      fail_msg("%s: %d %s", refused[i].params, rc, rc < 0 ? e.text : "");
    assert_says(&e, refused[i].says);
    assert_false(rd2h_prefill_scheduler_tracks(h.s, "a"));
  }
  half_close(&h);
}

static void test_bad_arguments(void **state) {
  static char long_id[RD2H_STEP_MAX_ID + 2];
  struct half h;
  struct rd2h_error e;
  (void)state;
  half_open(&h);
  memset(long_id, 'x', sizeof long_id - 1);
  assert_int_equal(rd2h_prefill_scheduler_alloc(h.s, long_id, PARAMS, 1, TABLE(IDS(1), IDS(1)), &e), RD2H_INVALID);
  assert_says(&e, "has 1025 bytes, must have 1 to 1024");
  assert_int_equal(rd2h_prefill_scheduler_alloc(h.s, "", PARAMS, 1, TABLE(IDS(1), IDS(1)), &e), RD2H_INVALID);
  assert_int_equal(rd2h_prefill_scheduler_alloc(h.s, "a\xff", PARAMS, 1, TABLE(IDS(1), IDS(1)), &e), RD2H_INVALID);
  assert_says(&e, "not UTF-8 from byte 1 on, after \"a\"");
  assert_int_equal(rd2h_prefill_scheduler_alloc(h.s, "a", PARAMS, 0, TABLE(IDS(1), IDS(1)), &e), RD2H_INVALID);
  assert_int_equal(rd2h_prefill_scheduler_alloc(h.s, "a", PARAMS, UINT64_MAX, TABLE(IDS(1), IDS(1)), &e), RD2H_INVALID);
  assert_int_equal(rd2h_prefill_scheduler_alloc(h.s, "a", PARAMS, 1, TABLE(IDS(UINT32_MAX), IDS(1)), &e), RD2H_RANGE);
  assert_says(&e, "entry 0 of group 0 is block 4294967295, ids end at 2147483647");
  struct rd2h_block_table one_group = {1, {(const uint32_t[]){1}}, {1}};
  assert_int_equal(rd2h_prefill_scheduler_alloc(h.s, "a", PARAMS, 1, &one_group, &e), RD2H_RANGE);
  assert_says(&e, "block table has 1 KV cache groups, the engine has 2");
  alloc(&h, "a", 16, TABLE(IDS(1), IDS(1)));
  assert_int_equal(rd2h_prefill_scheduler_step_add(h.s, "a", UINT64_MAX, 2, 0, NULL, false, &e), RD2H_INVALID);
  alloc(&h, "a", 16, TABLE(IDS(1), IDS(1)));
  assert_int_equal(rd2h_prefill_scheduler_step_add(h.s, "a", 0, 2, 3, NULL, false, &e), RD2H_INVALID);
  assert_says(&e, "0 computed, 2 scheduled, 3 speculative tokens");
  half_close(&h);
}

static void test_bad_options(void **state) {
  struct rd2h_prefill_scheduler_opts o[] = {opts, opts, opts, opts, opts};
  rd2h_prefill_scheduler *s = NULL;
  (void)state;
  o[0].size = 8;
  o[1].n_groups = 0;
  o[2].n_groups = RD2H_MAX_GROUPS + 1;
  o[3].indexer_group = 2;
  o[4].block_size[1] = 0;
  for (size_t i = 0; i < RD2H_COUNT(o); i++)
    assert_int_equal(rd2h_prefill_scheduler_create(&o[i], &s, NULL), RD2H_INVALID);
  assert_null(s);
  rd2h_prefill_scheduler_destroy(NULL);
}

/* Makes the n-th allocation fail, for every n: an error or success, and what was refused can be asked again. */
static bool run_with_failure(uint64_t n) {
  static const char id[] = "an id longer than the slots of the table hold inside themselves-00000000";
  struct half h = {.s = NULL};
  struct rd2h_bytes b;
  rd2h_alloc_fail_at(n);
  int rc = rd2h_prefill_scheduler_create(&opts, &h.s, NULL);
  if (rc) {
    assert_int_equal(rc, RD2H_NOMEM);
    return true;
  }
  int first = rd2h_prefill_scheduler_alloc(h.s, id, OURS("\"cmpl-b-7\""), 64, TABLE(IDS(1), IDS(1)), NULL);
  rd2h_prefill_scheduler_step_begin(h.s);
  int added = RD2H_NOMEM;
  if (first == 1)
    added = rd2h_prefill_scheduler_step_add(h.s, id, 0, 64, 0, TABLE(IDS(2, 3, 4), IDS(2)), false, NULL);
  int ended = added ? RD2H_NOMEM : rd2h_prefill_scheduler_step_end(h.s, &b, NULL);
  rd2h_alloc_fail_at(0);
  bool failed = first != 1 || added || ended;
  if (first == 1 && !added) {
    assert_int_equal(ended ? rd2h_prefill_scheduler_step_end(h.s, &b, NULL) : RD2H_OK, RD2H_OK);
    assert_int_equal(rd2h_step_decode_prefill(b.p, b.len, &h.arena, &h.v, NULL), RD2H_OK);
    assert_ids(h.v.send->main, h.v.send->n_main, IDS(1, 2, 3, 4));
  }
  half_close(&h);
  return failed;
}

static void test_failing_memory(void **state) {
  uint64_t n = 1;
  (void)state;
  while (run_with_failure(n))
    assert_in_range(++n, 1, 100);
  assert_in_range(n, 8, 100);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_what_a_send_carries), cmocka_unit_test(test_s05_drafts_are_not_computed),
    cmocka_unit_test(test_id_on_decode), cmocka_unit_test(test_plain_rendezvous),
    cmocka_unit_test(test_preempted_prefill_goes_on), cmocka_unit_test(test_l10_resumed_by_the_step),
    cmocka_unit_test(test_complete_and_rerun), cmocka_unit_test(test_preempted_before_anything_was_published),
    cmocka_unit_test(test_finish_holds_what_was_published), cmocka_unit_test(test_l08_all_cached_on_decode),
    cmocka_unit_test(test_finish_in_the_step_that_publishes), cmocka_unit_test(test_dropped_step), cmocka_unit_test(test_repeats),
    cmocka_unit_test(test_ghosts_and_strangers), cmocka_unit_test(test_children_of_a_list), cmocka_unit_test(test_bad_params),
    cmocka_unit_test(test_bad_arguments), cmocka_unit_test(test_bad_options), cmocka_unit_test(test_failing_memory),
  };
  return cmocka_run_group_tests_name("Prefill's scheduler half", tests, NULL, NULL);
}
