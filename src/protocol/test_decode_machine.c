/* SPDX-License-Identifier: Apache-2.0 */
/* The decode machine, rule by rule: handshake, messages, answers, parking, tombstones, coverage, contributors. */
#include "protocol/test_dm.h"

/* ---- handshake ---- */
static void test_handshake(void **state) {
  static const struct {
    const char *what;
    struct t_meta meta;
    const char *expect; /* after the engine connected */
  } rows[] = {
    {"version 0", {.fields = 3}, "connect 0; ack 0"},
    {"version 0 must name every layer", {.fields = 3, .only = {"model.layers.1.attn"}}, "nak 0"},
    {"version 1", {0}, "connect 0; meta_ack 0"},
    {"a stage may name a part", {.pp_rank = 1, .pp_size = 2, .only = {"model.layers.1.attn"}}, "connect 0; meta_ack 0"},
    {"ours", {.ours = true}, "connect 0; meta_ack 0 ours"},
    {"ours with the same cache layout", {.ours = true, .fp = "fp8"}, "connect 0; meta_ack 0 ours"},
    {"another cache layout", {.ours = true, .fp = "bf16"}, "nak 0"},
    {"heads sharded there only", {.ours = true, .heads = {0, 1, 2}}, "nak 0"},
    {"all heads there", {.ours = true, .heads = {0, 2, 2}}, "connect 0; meta_ack 0 ours"},
    {"a version to come", {.version = 2}, "nak 0"},
    {"the only stage names a part", {.only = {"model.layers.1.attn"}}, "nak 0"},
    {"a stage that cannot be", {.pp_rank = 2, .pp_size = 2}, "nak 0"},
    {"no layer", {.only = {""}}, "nak 0"},
    {"a layer more than Decode has", {.only = {"model.layers.0.attn", "model.layers.1.attn", "model.layers.2.attn"}},
     "connect 0; meta_ack 0"},
    {"none of a stage's layers is known", {.pp_size = 2, .only = {"model.layers.7.attn"}}, "nak 0"},
    {"an unknown layer for a known one", {.only = {"model.layers.0.attn", "model.layers.7.attn"}}, "nak 0"},
    {"an indexer's name", {.only = {"model.layers.0.indexer", "model.layers.1.attn"}}, "nak 0"},
    {"a layer twice", {.only = {"model.layers.0.attn", "model.layers.1.attn", "model.layers.0.attn"}}, "nak 0"},
    {"other lengths", {.len = 128}, "nak 0"},
    {"no indexer", {.no_indexer = true}, "nak 0"},
  };
  (void)state;
  for (size_t i = 0; i < RD2H_COUNT(rows); i++) {
    struct t_dm t = t_start(&t_cfg);
    uint32_t p = rd2h_dm_peer_open(t.dm, t.now);
    t_send_meta(&t, p, &rows[i].meta);
    rd2h_dm_connected(t.dm, p, RD2H_OK, "", t.now);
    t_drain(&t);
    if (strcmp(t.log, rows[i].expect))
      fail_msg("%s: %s instead of %s", rows[i].what, t.log, rows[i].expect);
    assert_int_equal(t_stats(&t).refused_meta, strstr(rows[i].expect, "nak") != NULL);
    t_stop(&t);
  }
}

static void test_handshake_heads(void **state) {
  (void)state;
  static const struct {
    struct t_meta meta;
    const char *expect;
  } rows[] = {
    {{.ours = true, .heads = {0, 4, 8}}, "connect 0"}, {{.ours = true, .heads = {4, 4, 8}}, "nak 0"}, {{.ours = true}, "nak 0"},
    {{.fields = 3}, "nak 0"}, /* equal lengths prove nothing */
  };
  for (size_t i = 0; i < RD2H_COUNT(rows); i++) {
    struct t_dm t = {.now = SEC, .unreachable = RD2H_INDEX_NONE, .layout = t_layout(4)};
    struct rd2h_dm_cfg c = t_cfg;
    c.layout = t.layout;
    assert_int_equal(rd2h_dm_create(&c, &t.dm, NULL), RD2H_OK);
    t_send_meta(&t, rd2h_dm_peer_open(t.dm, t.now), &rows[i].meta);
    expect(&t, rows[i].expect);
    t_stop(&t);
  }
}

static void test_engine_refuses(void **state) {
  (void)state;
  struct t_dm t = t_start(&t_cfg);
  uint32_t p = rd2h_dm_peer_open(t.dm, t.now);
  install(&t, "id", "x", 'a');
  t_send_meta(&t, p, T_OURS);
  rd2h_dm_connected(t.dm, p, RD2H_PERMISSION, "not allowed to read", t.now);
  expect(&t, "connect 0; nak 0");
  ready(&t, p, .seq = 1, .req = {R("x", 'a', 0, 4)}); /* from the only Prefill that it could come from */
  expect(&t, "report id LAYOUT; failed 0 L0 #1 LAYOUT");
  t_send_meta(&t, p, T_OURS); /* a second try is welcome */
  rd2h_dm_connected(t.dm, p, RD2H_OK, "", t.now);
  expect(&t, "connect 0; meta_ack 0 ours");
  t_stop(&t);
}

static void test_ready_before_meta(void **state) {
  (void)state;
  struct t_dm t = t_start(&t_cfg);
  uint32_t p = rd2h_dm_peer_open(t.dm, t.now);
  install(&t, "id", "x", 'a');
  ready(&t, p, .req = {R("x", 0, 0, 4)});
  expect(&t, "failed 0 L0 LAYOUT"); /* says nothing about the request: it lives */
  uint32_t q = t_peer(&t, T_OURS);
  for (uint32_t l = 0; l < 2; l++) {
    ready(&t, q, .layer = l, .seq = l + 1, .req = {R("x", 'a', 0, 4)});
    read_over(&t, l, RD2H_OK);
  }
  ready(&t, q, .layer = 1, .seq = 3, .done = "x", .done_attempt = 'a');
  expect(&t, "read 8; done 1 L0 #1 OK; read 8; done 1 L1 #2 OK; report id OK; done 1 L1 #3");
  t_stop(&t);
}

static void test_unknown_layer(void **state) {
  (void)state;
  struct t_dm t = t_start(&t_cfg);
  uint32_t p = t_peer(&t, T_LEGACY), q = t_peer(&t, T_OURS);
  install(&t, "id1", "x", 'a');
  install(&t, "id2", "y", 'b');
  ready(&t, p, .name = "rd2h.ended", .req = {R("x", 0, 0, 0)}); /* how a legacy Prefill's counterpart ends one request */
  expect(&t, "report id1 LAYOUT; failed 0 L0 LAYOUT");
  ready(&t, q, .seq = 1, .name = "model.layers.0.indexer", .req = {R("y", 'z', 0, 0)}); /* another attempt: not concerned */
  expect(&t, "failed 1 L0 #1 LAYOUT");
  assert_int_equal(end(&t, "id2", RD2H_ABORTED), RD2H_OK);
  expect(&t, "report id2 ABORTED");
  t_stop(&t);
}

/* Prefill has a draft model's layer, Decode has none: it is answered, nothing of it is read, and done may come with it. */
static void test_y05_layer_more_than_decode_has(void **state) {
  (void)state;
  static const char *const more = "model.layers.2.attn";
  for (uint32_t fields = 3; fields <= 6; fields += 3) {
    struct t_dm t = t_start(&t_cfg);
    uint32_t p = t_peer(&t, &(struct t_meta){.fields = fields, .only = {"model.layers.0.attn", "model.layers.1.attn", more}});
    install(&t, "id", "x", 'a');
    for (uint32_t l = 0; l < 2; l++) {
      ready(&t, p, .layer = l, .req = {R("x", 0, 0, 4)});
      read_over(&t, l, RD2H_OK);
    }
    expect(&t, "read 8; done 0 L0 OK; read 8; done 0 L1 OK");
    ready(&t, p, .name = more, .req = {R("x", 0, 0, 4)}, .done = "x");
    expect(&t, "report id OK; done 0 L0 OK");
    t_stop(&t);
  }
}

/* ---- answers ---- */
static void test_order(void **state) {
  (void)state;
  struct t_dm t = t_start(&t_cfg);
  uint32_t legacy = t_peer(&t, T_LEGACY), ours = t_peer(&t, T_OURS);
  install(&t, "id1", "x", 'a');
  install(&t, "id2", "y", 'b');
  ready(&t, legacy, .layer = 0, .req = {R("x", 0, 0, 4)});
  ready(&t, legacy, .layer = 1, .req = {R("x", 0, 0, 4)});
  ready(&t, ours, .layer = 0, .seq = 1, .req = {R("y", 'b', 0, 4)});
  ready(&t, ours, .layer = 1, .seq = 2, .req = {R("y", 'b', 0, 4)});
  expect(&t, "read 8; read 8; read 8; read 8");
  read_over(&t, 1, RD2H_OK);
  expect(&t, ""); /* a peer that counts waits for its turn */
  read_over(&t, 0, RD2H_OK);
  expect(&t, "done 0 L0 OK; done 0 L1 OK");
  read_over(&t, 3, RD2H_OK);
  read_over(&t, 2, RD2H_OK);
  expect(&t, "done 1 L1 #2 OK; done 1 L0 #1 OK");
  t_stop(&t);
}

static void test_malformed(void **state) {
  (void)state;
  struct t_dm t = t_start(&t_cfg);
  uint32_t legacy = t_peer(&t, T_LEGACY), ours = t_peer(&t, T_OURS);
  install(&t, "id1", "x", 'a');
  install(&t, "id2", "y", 'b');
  ready(&t, legacy, .layer = 0, .req = {R("x", 0, 0, 4)});
  ready(&t, ours, .layer = 0, .seq = 1, .req = {R("y", 'b', 0, 4)});
  rd2h_dm_malformed(t.dm, legacy, 1, NULL, "field 3 is no list", t.now);
  rd2h_dm_malformed(t.dm, ours, 1, &(uint64_t){7}, "field 3 is no list", t.now);
  rd2h_dm_malformed(t.dm, legacy, RD2H_INDEX_NONE, NULL, "no array", t.now); /* nobody to answer */
  expect(&t, "read 8; read 8; failed 1 L1 #7"); /* its number could be read: answered at once, and as that one */
  read_over(&t, 0, RD2H_OK);
  expect(&t, "done 0 L0 OK; failed 0 L1");
  read_over(&t, 1, RD2H_OK);
  expect(&t, "done 1 L0 #1 OK");
  assert_int_equal(t_stats(&t).malformed, 3);
  t_stop(&t);
}

static void test_outcome_of_each(void **state) {
  (void)state;
  struct t_dm t = t_start(&t_cfg);
  uint32_t p = t_peer(&t, T_OURS);
  install(&t, "id1", "good", 'a');
  install(&t, "id2", "bad", 'b');
  install(&t, "id3", "far", 'c');
  install(&t, "id4", "gap", 'd');
  ready(&t, p, .seq = 1,
        .req = {R("good", 'a', 0, 4), R("bad", 'b', 0, 4, .bad = 1), R("far", 'c', 0, 4, .first = 62), R("gap", 'd', 1, 3)});
  expect(&t, "report id2 RANGE; report id4 LAYOUT; read 8; report id3 RANGE");
  read_over(&t, 0, RD2H_OK);
  expect(&t, "done 0 L0 #1 OK,RANGE,RANGE,LAYOUT");
  ready(&t, p, .seq = 2, .req = {R("good", 'a', 4, 5)}); /* nine blocks, eight were granted */
  expect(&t, "report id1 RANGE; failed 0 L0 #2 RANGE");
  t_stop(&t);
}

static void test_answer_to_legacy(void **state) {
  static const struct {
    struct t_req a, b;
    int read;
    bool strict;
    const char *expect;
  } rows[] = {
    {R("x", 0, 0, 4), R("gone", 0, 0, 0), RD2H_OK, false, "done 0 L0 OK,SKIPPED"},
    {R("x", 0, 0, 4), R("gone", 0, 0, 0), RD2H_IO, false, "report id IO; done 0 L0 IO,SKIPPED"},
    {R("x", 0, 0, 4), R("gone", 0, 0, 0), RD2H_IO, true, "report id IO; failed 0 L0 IO,SKIPPED"},
    {R("x", 0, 0, 4), {.ext = NULL}, RD2H_IO, false, "report id IO; failed 0 L0 IO"}, /* hopeless as a whole */
    {R("gone", 0, 0, 0), {.ext = NULL}, RD2H_OK, false, "done 0 L0 SKIPPED"},
  };
  (void)state;
  for (size_t i = 0; i < RD2H_COUNT(rows); i++) {
    struct rd2h_dm_cfg c = t_cfg;
    c.reply_on_read_failure = rows[i].strict;
    struct t_dm t = t_start(&c);
    uint32_t p = t_peer(&t, T_LEGACY);
    install(&t, "gone", "gone", 'g');
    install(&t, "id", "x", 'a');
    end(&t, "gone", RD2H_ABORTED);
    t.log[0] = 0;
    ready(&t, p, .req = {rows[i].a, rows[i].b});
    if (t.n_read) {
      t.log[0] = 0;
      read_over(&t, 0, rows[i].read);
    }
    expect(&t, rows[i].expect);
    t_stop(&t);
  }
}

/* ---- parking, tombstones, attempts ---- */
static void test_park(void **state) {
  (void)state;
  struct t_dm t = t_start(&t_cfg);
  uint32_t p = t_peer(&t, T_OURS);
  ready(&t, p, .seq = 1, .req = {R("x", 'a', 0, 4)});
  ready(&t, p, .seq = 2, .req = {R("y", 'b', 0, 4)});
  pass(&t, SEC);
  t.log[0] = 0; /* probes */
  ready(&t, p, .seq = 3, .layer = 1, .req = {R("y", 'b', 0, 4)});
  assert_int_equal(t_stats(&t).parked_now, 3);
  install(&t, "id", "x", 'a');
  expect(&t, "read 8");
  pass(&t, SEC); /* 2 s after the first of y's: once an id, so that its second does not wait any longer */
  expect(&t, "done 0 L0 #2 SKIPPED; done 0 L1 #3 SKIPPED; probe 0");
  ready(&t, p, .seq = 4, .req = {R("y", 'b', 0, 4)});
  expect(&t, "done 0 L0 #4 SKIPPED");
  read_over(&t, 0, RD2H_OK);
  expect(&t, "done 0 L0 #1 OK");
  assert_int_equal(t_stats(&t).parked_now, 0);
  t_stop(&t);
}

static void test_park_in_part(void **state) {
  (void)state;
  struct t_dm t = t_start(&t_cfg);
  uint32_t p = t_peer(&t, T_OURS);
  install(&t, "id1", "x", 'a');
  ready(&t, p, .seq = 1, .req = {R("x", 'a', 0, 4), R("y", 'b', 0, 4)});
  expect(&t, "read 8"); /* x does not wait for y */
  install(&t, "id2", "y", 'b');
  expect(&t, "");
  read_over(&t, 0, RD2H_OK);
  expect(&t, "read 8");
  read_over(&t, 1, RD2H_OK);
  expect(&t, "done 0 L0 #1 OK,OK");
  t_stop(&t);
}

static void test_park_limit(void **state) {
  (void)state;
  struct rd2h_dm_cfg c = t_cfg;
  c.max_parked = 2;
  struct t_dm t = t_start(&c);
  uint32_t p = t_peer(&t, T_OURS);
  ready(&t, p, .seq = 1, .req = {R("x", 'a', 0, 4)});
  ready(&t, p, .seq = 2, .req = {R("y", 'b', 0, 4)});
  expect(&t, "");
  ready(&t, p, .seq = 3, .req = {R("z", 'c', 0, 4)});
  expect(&t, "done 0 L0 #3 SKIPPED");
  rd2h_dm_peer_lost(t.dm, p, "gone", t.now);
  expect(&t, "close 0");
  t_stop(&t);
}

static void test_tombstones(void **state) {
  (void)state;
  struct t_dm t = t_start(&t_cfg);
  uint32_t p = t_peer(&t, T_OURS), q = t_peer(&t, T_LEGACY);
  install(&t, "id1", "x", 'a');
  end(&t, "id1", RD2H_ABORTED);
  ready(&t, p, .seq = 1, .req = {R("x", 'a', 0, 4)});
  ready(&t, q, .req = {R("x", 0, 0, 4)});
  expect(&t, "report id1 ABORTED; done 0 L0 #1 SKIPPED; done 1 L0 SKIPPED");
  install(&t, "id2", "x", 'b'); /* the same user again */
  ready(&t, p, .seq = 2, .req = {R("x", 'a', 0, 4)});
  expect(&t, "done 0 L0 #2 SKIPPED"); /* a Prefill that still sends the first attempt */
  ready(&t, p, .seq = 3, .done = "x", .done_attempt = 'a');
  ready(&t, p, .seq = 4, .req = {R("x", 'b', 0, 4)});
  expect(&t, "done 0 L0 #3; read 8");
  ready(&t, p, .seq = 5, .req = {R("x", 'c', 0, 4)});
  expect(&t, "done 0 L0 #5 SKIPPED");
  read_over(&t, 0, RD2H_OK);
  expect(&t, "done 0 L0 #4 OK");
  t_stop(&t);
}

static void test_refused_install_is_remembered(void **state) {
  (void)state;
  struct t_dm t = t_start(&t_cfg);
  uint32_t p = t_peer(&t, T_OURS);
  ready(&t, p, .seq = 1, .req = {R("x", 'a', 0, 4)});
  assert_int_equal(t_install(&t, "id", "x", 'a', 0, 9), RD2H_OK); /* eight blocks for nine */
  ready(&t, p, .seq = 2, .req = {R("x", 'a', 0, 4)});
  expect(&t, "done 0 L0 #1 SKIPPED; report id RANGE; done 0 L0 #2 SKIPPED");
  t_stop(&t);
}

/* ---- coverage and done ---- */
static void test_done_before_reads(void **state) {
  (void)state;
  struct t_dm t = t_start(&t_cfg);
  uint32_t p = t_peer(&t, T_OURS);
  install(&t, "id", "x", 'a');
  ready(&t, p, .layer = 0, .seq = 1, .req = {R("x", 'a', 0, 4)});
  ready(&t, p, .layer = 1, .seq = 2, .req = {R("x", 'a', 0, 4)});
  ready(&t, p, .layer = 1, .seq = 3, .done = "x", .done_attempt = 'a');
  read_over(&t, 1, RD2H_OK);
  expect(&t, "read 8; read 8; done 0 L1 #3; done 0 L1 #2 OK");
  read_over(&t, 0, RD2H_OK);
  expect(&t, "report id OK; done 0 L0 #1 OK");
  t_stop(&t);
}

static void test_done_with_the_last_batch(void **state) {
  (void)state;
  struct t_dm t = t_start(&t_cfg);
  uint32_t p = t_peer(&t, T_LEGACY);
  install(&t, "id", "x", 'a');
  ready(&t, p, .layer = 0, .req = {R("x", 0, 0, 4)});
  ready(&t, p, .layer = 1, .req = {R("x", 0, 0, 4)}, .done = "x");
  read_over(&t, 1, RD2H_OK);
  expect(&t, "read 8; read 8");
  read_over(&t, 0, RD2H_OK);
  expect(&t, "done 0 L0 OK; report id OK; done 0 L1 OK");
  t_stop(&t);
}

static void test_done_does_not_heal(void **state) {
  (void)state;
  struct t_dm t = t_start(&t_cfg);
  uint32_t p = t_peer(&t, T_OURS);
  install(&t, "id", "x", 'a');
  ready(&t, p, .layer = 0, .seq = 1, .req = {R("x", 'a', 0, 4)});
  ready(&t, p, .layer = 1, .seq = 2, .req = {R("x", 'a', 0, 4)});
  read_over(&t, 0, RD2H_IO);
  ready(&t, p, .layer = 1, .seq = 3, .done = "x", .done_attempt = 'a');
  expect(&t, "read 8; read 8; failed 0 L0 #1 IO; done 0 L1 #3");
  read_over(&t, 1, RD2H_OK);
  expect(&t, "report id IO; done 0 L1 #2 OK");
  t_stop(&t);
}

static void test_gap(void **state) {
  static const struct {
    uint32_t start0, n0, start1, n1; /* of layer 0 and 1, four are needed from the second on */
    const char *expect;
  } rows[] = {
    {1, 3, 1, 3, "OK"}, {1, 3, 1, 2, "LAYOUT"}, {1, 2, 1, 3, "LAYOUT"}, {1, 3, 0, 0, "LAYOUT"}, {1, 7, 1, 4, "OK"},
  };
  (void)state;
  for (size_t i = 0; i < RD2H_COUNT(rows); i++) {
    char report[32];
    struct t_dm t = t_start(&t_cfg);
    uint32_t p = t_peer(&t, T_OURS);
    assert_int_equal(t_install(&t, "id", "x", 'a', 1, 4), RD2H_OK);
    ready(&t, p, .layer = 0, .seq = 1, .req = {R("x", 'a', rows[i].start0, rows[i].n0)});
    read_over(&t, 0, RD2H_OK);
    ready(&t, p, .layer = 1, .seq = 2, .req = {R("x", 'a', rows[i].start1, rows[i].n1)});
    if (t.n_read > 1)
      read_over(&t, 1, RD2H_OK);
    ready(&t, p, .layer = 1, .seq = 3, .done = "x", .done_attempt = 'a');
    snprintf(report, sizeof report, "report id %s", rows[i].expect);
    assert_non_null(strstr(t.log, report));
    t_stop(&t);
  }
}

static void test_prefix_hit_is_not_overwritten(void **state) {
  (void)state;
  struct t_dm t = t_start(&t_cfg);
  uint32_t p = t_peer(&t, T_OURS);
  assert_int_equal(t_install(&t, "id", "x", 'a', 2, 4), RD2H_OK);
  ready(&t, p, .layer = 0, .seq = 1, .req = {R("x", 'a', 1, 3)});
  expect(&t, "report id RANGE; failed 0 L0 #1 RANGE");
  t_stop(&t);
}

/* ---- whom requests wait for ---- */
static void see_wait(void *arg, uint32_t peer, uint32_t waiting, uint64_t since) {
  char *text = arg;
  size_t n = strlen(text);
  snprintf(text + n, 200 - n, "%s%d:%u since %u", n ? " " : "", (int)peer, waiting, (unsigned)(since / SEC));
}

static void waits_are(struct t_dm *t, const char *want) {
  char text[200] = "";
  rd2h_dm_waits(t->dm, see_wait, text);
  assert_string_equal(text, want);
}

/* Two stages: a request waits for those that have begun it and not said done; for nobody in particular while none of them is known. */
static void test_whom_requests_wait_for(void **state) {
  (void)state;
  struct t_dm t = t_start(&t_cfg);
  uint32_t p = t_peer(&t, &(struct t_meta){.ours = true, .inc = 'p', .pp_size = 2, .only = {"model.layers.0.attn"}});
  uint32_t q = t_peer(&t, &(struct t_meta){.ours = true, .inc = 'q', .pp_rank = 1, .pp_size = 2, .only = {"model.layers.1.attn"}});
  waits_are(&t, "");
  install(&t, "id1", "x", 'a'); /* in second 1 */
  pass(&t, SEC);
  install(&t, "id2", "y", 'b');
  waits_are(&t, "-1:2 since 1");
  ready(&t, q, .layer = 1, .seq = 1, .req = {R("y", 'b', 0, 4)});
  waits_are(&t, "-1:1 since 1 1:1 since 2");
  pass(&t, SEC);
  ready(&t, p, .layer = 0, .seq = 1, .req = {R("x", 'a', 0, 4), R("y", 'b', 0, 4)});
  waits_are(&t, "0:2 since 1 1:1 since 2"); /* x at one stage, y at both */
  read_over(&t, 0, RD2H_OK);
  ready(&t, q, .layer = 1, .seq = 2, .done = "y", .done_attempt = 'b');
  waits_are(&t, "0:2 since 1");
  read_over(&t, 1, RD2H_OK);
  ready(&t, p, .layer = 0, .seq = 2, .done = "x", .done_attempt = 'a');
  waits_are(&t, "-1:1 since 1 0:1 since 2"); /* x's other stage has not begun it */
  end(&t, "id1", RD2H_ABORTED);
  end(&t, "id2", RD2H_ABORTED);
  waits_are(&t, "");
  t_stop(&t);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_handshake),
    cmocka_unit_test(test_handshake_heads),
    cmocka_unit_test(test_engine_refuses),
    cmocka_unit_test(test_ready_before_meta),
    cmocka_unit_test(test_unknown_layer),
    cmocka_unit_test(test_y05_layer_more_than_decode_has),
    cmocka_unit_test(test_order),
    cmocka_unit_test(test_malformed),
    cmocka_unit_test(test_outcome_of_each),
    cmocka_unit_test(test_answer_to_legacy),
    cmocka_unit_test(test_park),
    cmocka_unit_test(test_park_in_part),
    cmocka_unit_test(test_park_limit),
    cmocka_unit_test(test_tombstones),
    cmocka_unit_test(test_refused_install_is_remembered),
    cmocka_unit_test(test_done_before_reads),
    cmocka_unit_test(test_done_with_the_last_batch),
    cmocka_unit_test(test_done_does_not_heal),
    cmocka_unit_test(test_gap),
    cmocka_unit_test(test_prefix_hit_is_not_overwritten),
    cmocka_unit_test(test_whom_requests_wait_for),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
