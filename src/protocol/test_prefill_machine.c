/* SPDX-License-Identifier: Apache-2.0 */
/* The prefill machine, rule by rule: handshake, answers, done means settled, giving up, the end of epochs, of requests, of
 * endpoints. */
#include "protocol/test_pm.h"

/* ---- handshake ---- */
static void test_handshake(void **state) {
  static const struct {
    const char *what;
    uint32_t pp_size;
    struct rd2h_wire_reply reply;
    const char *expect;
  } rows[] = {
    {"version 0", 1, {.kind = RD2H_MSG_ACK}, "batch 0 L0 [0] to 0"},
    {"version 0 cannot serve stages", 2, {.kind = RD2H_MSG_ACK}, "close 0; settled 0 UNSUPPORTED"},
    {"version 1", 2, {.kind = RD2H_MSG_META_ACK}, "batch 0 L0 [0] to 0"},
    {"ours", 2, {.kind = RD2H_MSG_META_ACK, .ext = {.present = true, .caps = RD2H_CAPS_ALL}}, "batch 0 L0 [0] #1 to 0"},
    {"ours without numbers", 1, {.kind = RD2H_MSG_META_ACK, .ext = {.present = true}}, "batch 0 L0 [0] to 0"},
    {"refused", 1, {.kind = RD2H_MSG_META_NAK, .text = {"no", 2}}, "cancel x REFUSED to 0; close 0; settled 0 REFUSED"},
    {"an answer to nothing", 1, {.kind = RD2H_MSG_DONE}, "close 0; settled 0 MALFORMED"},
  };
  (void)state;
  for (size_t i = 0; i < RD2H_COUNT(rows); i++) {
    struct rd2h_pm_cfg c = p_cfg;
    c.pp_size = rows[i].pp_size;
    struct t_pm t = p_start(&c);
    uint32_t e = endpoint(&t, "d:1"), x = bind(&t, "x", e);
    dispatch(&t, e, 0, 0, x);
    connected(&t, e);
    expect(&t, "connect 0; meta 0"); /* nothing before the metadata is acknowledged */
    p_reply(&t, e, &rows[i].reply);
    if (strcmp(t.log, rows[i].expect))
      fail_msg("%s: %s instead of %s", rows[i].what, t.log, rows[i].expect);
    p_stop(&t);
  }
}

static void test_handshake_deadline(void **state) {
  (void)state;
  struct t_pm t = p_start(&p_cfg);
  uint32_t e = endpoint(&t, "d:1"), f = endpoint(&t, "d:2");
  dispatch(&t, e, 0, 0, bind(&t, "x", e));
  dispatch(&t, f, 0, 1, bind(&t, "y", f));
  connected(&t, f);
  pass(&t, 5 * SEC - 1);
  expect(&t, "connect 0; connect 1; meta 1");
  pass(&t, 1);
  expect(&t, "close 0; settled 0 TIMEOUT; close 1; settled 1 TIMEOUT");
  pass(&t, 60 * SEC); /* the epoch of later requests has a deadline of its own */
  t.log[0] = 0;
  dispatch(&t, f, 0, 2, bind(&t, "z", f));
  open_epoch(&t, f, true);
  pass(&t, 5 * SEC);
  expect(&t, "connect 1; meta 1; batch 2 L0 [0] #1 to 1");
  p_stop(&t);
}

static void test_no_such_stage(void **state) {
  (void)state;
  rd2h_pm *pm = NULL;
  struct rd2h_error err = {0};
  assert_int_equal(rd2h_pm_create(&(struct rd2h_pm_cfg){.pp_rank = 2, .pp_size = 2}, &pm, &err), RD2H_INVALID);
  assert_null(pm);
  assert_true(err.text[0] != 0);
}

/* ---- answers ---- */
static void test_kth_answer(void **state) {
  (void)state;
  struct t_pm t = p_start(&p_cfg);
  uint32_t e = endpoint(&t, "d:1"), x = bind(&t, "x", e);
  dispatch(&t, e, 0, 0, x);
  dispatch(&t, e, 1, 1, x);
  open_epoch(&t, e, false);
  dispatch(&t, e, 0, 2, x);
  expect(&t, "connect 0; meta 0; batch 0 L0 [0] to 0; batch 1 L1 [0] to 0; batch 2 L0 [0] to 0");
  assert_int_equal(rd2h_pm_outstanding(t.pm, STR("x-")), 3);
  all_good(&t, e, 0, 0);
  all_good(&t, e, 1, 0);
  expect(&t, "settled 0 OK; settled 1 OK");
  assert_int_equal(rd2h_pm_outstanding(t.pm, STR("x-")), 1);
  all_good(&t, e, 1, 0); /* another layer than the head's */
  expect(&t, "close 0; settled 2 MALFORMED");
  p_stop(&t);
}

static void test_numbered_answers(void **state) {
  static const struct {
    struct rd2h_wire_reply reply;
    const char *expect;
  } rows[] = {
    {{.kind = RD2H_MSG_DONE, .layer_idx = 1, .has_seq = true, .seq = 2}, "settled 1 OK"},
    {{.kind = RD2H_MSG_DONE, .layer_idx = 0, .has_seq = true, .seq = 2}, "close 0; settled 0 MALFORMED; settled 1 MALFORMED; connect 0"},
    {{.kind = RD2H_MSG_DONE, .layer_idx = 1, .has_seq = true, .seq = 9}, "close 0; settled 0 MALFORMED; settled 1 MALFORMED; connect 0"},
    {{.kind = RD2H_MSG_FAILED, .layer_idx = 0}, "close 0; settled 0 MALFORMED; settled 1 MALFORMED; connect 0"}, /* has forgotten us */
    {{.kind = RD2H_MSG_META_ACK}, "close 0; settled 0 MALFORMED; settled 1 MALFORMED; connect 0"},
    {{.kind = RD2H_MSG_META_NAK, .text = {"why", 3}}, "close 0; settled 0 PEER_LOST; settled 1 PEER_LOST; connect 0"},
  };
  (void)state;
  for (size_t i = 0; i < RD2H_COUNT(rows); i++) {
    struct t_pm t = p_start(&p_cfg);
    uint32_t e = endpoint(&t, "d:1"), x = bind(&t, "x", e);
    dispatch(&t, e, 0, 0, x);
    dispatch(&t, e, 1, 1, x);
    open_epoch(&t, e, true);
    expect(&t, "connect 0; meta 0; batch 0 L0 [0] #1 to 0; batch 1 L1 [0] #2 to 0");
    p_reply(&t, e, &rows[i].reply);
    expect(&t, rows[i].expect);
    p_stop(&t);
  }
}

/* What a Decode of ours could not read it cannot tell the requests of: they are told by name. */
static void test_unread_message(void **state) {
  (void)state;
  struct t_pm t = p_start(&p_cfg);
  uint32_t e = endpoint(&t, "d:1"), x = bind(&t, "x", e), y = bind(&t, "y", e);
  dispatch(&t, e, 0, 0, x, y);
  dispatch(&t, e, 0, 1, y);
  open_epoch(&t, e, true);
  t.log[0] = 0;
  answer(&t, e, RD2H_MSG_FAILED, 0, 1, NULL);
  expect(&t, "cancel x IO to 0; cancel y IO to 0; settled 0 IO");
  answer(&t, e, RD2H_MSG_FAILED, 0, 2, (const int32_t[]){RD2H_RANGE, 1});
  expect(&t, "settled 1 IO");
  p_stop(&t);
}

static void test_answer_before_sending(void **state) {
  (void)state;
  struct t_pm t = p_start(&p_cfg);
  uint32_t e = endpoint(&t, "d:1"), x = bind(&t, "x", e);
  dispatch(&t, e, 0, 0, x);
  open_epoch(&t, e, false);
  all_good(&t, e, 0, 0);
  all_good(&t, e, 0, 0);
  expect(&t, "connect 0; meta 0; batch 0 L0 [0] to 0; settled 0 OK; close 0");
  p_stop(&t);
}

static void test_statuses(void **state) {
  (void)state;
  struct t_pm t = p_start(&p_cfg);
  uint32_t e = endpoint(&t, "d:1"), x = bind(&t, "x", e), y = bind(&t, "y", e), z = bind(&t, "z", e);
  dispatch(&t, e, 0, 0, x, y, z);
  open_epoch(&t, e, true);
  answer(&t, e, RD2H_MSG_DONE, 0, 1, (const int32_t[]){RD2H_OK, RD2H_SKIPPED, RD2H_RANGE, 1});
  dispatch(&t, e, 1, 1, x, y, z); /* only who is wanted goes on */
  expect(&t, "connect 0; meta 0; batch 0 L0 [0,1,2] #1 to 0; settled 0 OK; batch 1 L1 [0] #2 to 0");
  for (uint32_t r = 0; r < 3; r++)
    last(&t, (const uint32_t[]){x, y, z}[r], e);
  finish(&t, "y-", false);
  finish(&t, "z-", false);
  finish(&t, "x-", false);
  expect(&t, "finished y- SKIPPED; finished z- RANGE");
  answer(&t, e, RD2H_MSG_DONE, 1, 2, (const int32_t[]){RD2H_OK, 1});
  expect(&t, "done x L1 to 0; settled 1 OK");
  answer(&t, e, RD2H_MSG_DONE, 1, 3, NULL);
  expect(&t, "finished x- OK");
  assert_int_equal(p_stats(&t).requests_failed, 2);
  p_stop(&t);
}

static void test_failed_without_statuses(void **state) {
  (void)state;
  struct t_pm t = p_start(&p_cfg);
  uint32_t e = endpoint(&t, "d:1"), x = bind(&t, "x", e), y = bind(&t, "y", e);
  dispatch(&t, e, 0, 0, x, y);
  open_epoch(&t, e, false);
  answer(&t, e, RD2H_MSG_FAILED, 0, 0, NULL);
  dispatch(&t, e, 1, 1, x, y);
  last(&t, x, e);
  finish(&t, "x-", false);
  finish(&t, "y-", false);
  expect(&t, "connect 0; meta 0; batch 0 L0 [0,1] to 0; settled 0 IO; settled 1 SKIPPED; finished x- IO; finished y- IO");
  p_stop(&t);
}

/* ---- done means settled ---- */
static void test_done(void **state) {
  (void)state;
  struct t_pm t = p_start(&p_cfg);
  uint32_t e = endpoint(&t, "d:1"), x = bind(&t, "x", e);
  dispatch(&t, e, 0, 0, x);
  dispatch(&t, e, 1, 1, x);
  open_epoch(&t, e, true);
  last(&t, x, e);
  finish(&t, "x-", false);
  t.log[0] = 0;
  all_good(&t, e, 1, 2);
  expect(&t, "settled 1 OK"); /* the other is open */
  all_good(&t, e, 0, 1);
  expect(&t, "done x L1 to 0; settled 0 OK");
  last(&t, x, e);
  expect(&t, "");
  answer(&t, e, RD2H_MSG_DONE, 1, t.seq, NULL);
  expect(&t, "finished x- OK");
  p_stop(&t);
}

static void test_done_before_finish(void **state) {
  (void)state;
  struct t_pm t = p_start(&p_cfg);
  uint32_t e = endpoint(&t, "d:1"), f = endpoint(&t, "d:2"), x = bind(&t, "x", e);
  assert_int_equal(bind(&t, "x", f), x); /* two readers of one request */
  dispatch(&t, e, 1, 0, x);
  dispatch(&t, f, 1, 1, x);
  open_epoch(&t, e, true);
  open_epoch(&t, f, false);
  t.log[0] = 0;
  all_good(&t, e, 1, 1);
  last(&t, x, e);
  answer(&t, e, RD2H_MSG_DONE, 1, 2, NULL);
  expect(&t, "settled 0 OK; done x L1 to 0");
  finish(&t, "x-", false); /* which ends it at the second: there its chunk was never finished */
  expect(&t, "poison x to 1");
  answer(&t, f, RD2H_MSG_DONE, 1, 0, NULL);
  expect(&t, "finished x- ABORTED; settled 1 OK"); /* poison names no source: its answer holds nothing up */
  assert_int_equal(p_stats(&t).requests, 1);
  answer(&t, f, RD2H_MSG_FAILED, 1, 0, NULL);
  assert_int_equal(p_stats(&t).requests, 0);
  expect(&t, "");
  p_stop(&t);
}

static void test_done_without_batches(void **state) {
  (void)state;
  struct t_pm t = p_start(&p_cfg);
  uint32_t e = endpoint(&t, "d:1"), x = bind(&t, "x", e);
  last(&t, x, e); /* everything was there already */
  open_epoch(&t, e, true);
  expect(&t, "connect 0; meta 0; done x L1 to 0");
  finish(&t, "x-", false);
  answer(&t, e, RD2H_MSG_FAILED, 1, 1, NULL);
  expect(&t, "finished x- IO");
  p_stop(&t);
}

/* ---- giving up ---- */
static void test_hold(void **state) {
  (void)state;
  struct t_pm t = p_start(&p_cfg);
  uint32_t e = endpoint(&t, "d:1"), x = bind(&t, "x", e), y = bind(&t, "y", e);
  dispatch(&t, e, 0, 0, x);
  open_epoch(&t, e, false);
  last(&t, x, e);
  pass(&t, 20 * SEC);
  dispatch(&t, e, 0, 1, y);
  t.log[0] = 0;
  pass(&t, 10 * SEC);
  expect(&t, "poison x to 0; settled 0 TIMEOUT"); /* never done */
  all_good(&t, e, 0, 0); /* late: it answers the one given up, not y's of the same layer */
  expect(&t, "");
  all_good(&t, e, 0, 0);
  expect(&t, "settled 1 OK");
  answer(&t, e, RD2H_MSG_FAILED, 1, 0, NULL);
  finish(&t, "x-", false);
  expect(&t, "finished x- TIMEOUT");
  assert_int_equal(p_stats(&t).given_up, 1);
  p_stop(&t);
}

/* ---- who has not answered ---- */
static void see_wait(void *arg, uint32_t endpoint, uint32_t waiting, uint64_t since) {
  char *text = arg;
  size_t n = strlen(text);
  snprintf(text + n, 200 - n, "%s%u:%u since %u", n ? " " : "", endpoint, waiting, (unsigned)(since / SEC));
}

static void waits_are(struct t_pm *t, const char *want) {
  char text[200] = "";
  rd2h_pm_waits(t->pm, see_wait, text);
  assert_string_equal(text, want);
}

/* Layer messages count, sent or not, until they are answered or given up; what else is sent does not. */
static void test_who_has_not_answered(void **state) {
  (void)state;
  struct t_pm t = p_start(&p_cfg);
  uint32_t e = endpoint(&t, "d:1"), f = endpoint(&t, "d:2"), x = bind(&t, "x", e), y = bind(&t, "y", f);
  waits_are(&t, "");
  dispatch(&t, e, 0, 0, x); /* in second 1, before there is a connection */
  waits_are(&t, "0:1 since 1");
  open_epoch(&t, e, true);
  pass(&t, 20 * SEC);
  dispatch(&t, e, 1, 1, x);
  dispatch(&t, f, 0, 2, y);
  open_epoch(&t, f, true);
  waits_are(&t, "0:2 since 1 1:1 since 21");
  pass(&t, 10 * SEC); /* the first is given up */
  waits_are(&t, "0:1 since 21 1:1 since 21");
  all_good(&t, f, 0, 1);
  last(&t, y, f); /* done is on its way now */
  waits_are(&t, "0:1 since 21");
  p_stop(&t);
}

/* Each batch has its own time, also behind one that was given up. */
static void test_hold_of_each(void **state) {
  (void)state;
  for (int ours = 0; ours < 2; ours++) {
    struct t_pm t = p_start(&p_cfg);
    uint32_t e = endpoint(&t, "d:1"), x = bind(&t, "x", e), y = bind(&t, "y", e);
    dispatch(&t, e, 0, 0, x);
    open_epoch(&t, e, ours);
    pass(&t, MS);
    dispatch(&t, e, 1, 1, y);
    t.log[0] = 0;
    pass(&t, 30 * SEC - MS);
    expect(&t, ours ? "cancel x TIMEOUT to 0; settled 0 TIMEOUT" : "poison x to 0; settled 0 TIMEOUT");
    pass(&t, MS);
    expect(&t, ours ? "cancel y TIMEOUT to 0; settled 1 TIMEOUT" : "poison y to 0; settled 1 TIMEOUT");
    pass(&t, 30 * SEC - 2 * MS);
    expect(&t, "");
    pass(&t, MS); /* silent for twice its time */
    expect(&t, "close 0");
    p_stop(&t);
  }
}

static void test_hold_of_what_was_not_sent(void **state) {
  (void)state;
  struct rd2h_pm_cfg c = p_cfg;
  c.handshake_ns = 100 * SEC;
  struct t_pm t = p_start(&c);
  uint32_t e = endpoint(&t, "d:1"), x = bind(&t, "x", e);
  dispatch(&t, e, 0, 0, x);
  connected(&t, e);
  pass(&t, 30 * SEC);
  p_reply(&t, e, &(struct rd2h_wire_reply){.kind = RD2H_MSG_ACK});
  expect(&t, "connect 0; meta 0; settled 0 TIMEOUT; poison x to 0"); /* and is not sent any more */
  answer(&t, e, RD2H_MSG_FAILED, 1, 0, NULL);
  finish(&t, "x-", false);
  expect(&t, "finished x- TIMEOUT");
  p_stop(&t);
}

/* The answer of a batch that was given up, or an answer twice: the next step's batch of the same layer waits for its own. */
static void test_s07_late_and_repeated_answers(void **state) {
  (void)state;
  for (uint32_t ours = 0; ours < 2; ours++) {
    struct t_pm t = p_start(&p_cfg);
    uint32_t e = endpoint(&t, "d:1"), x = bind(&t, "x", e), y = bind(&t, "y", e), z = bind(&t, "z", e);
    dispatch(&t, e, 5, 0, x);
    open_epoch(&t, e, ours);
    pass(&t, 20 * SEC);
    dispatch(&t, e, 5, 1, y);
    t.log[0] = 0;
    pass(&t, 10 * SEC);
    expect(&t, ours ? "cancel x TIMEOUT to 0; settled 0 TIMEOUT" : "poison x to 0; settled 0 TIMEOUT");
    all_good(&t, e, 5, ours * 1);
    expect(&t, ""); /* the late one */
    assert_int_equal(rd2h_pm_outstanding(t.pm, STR("y-")), 1);
    all_good(&t, e, 5, ours * 2);
    expect(&t, "settled 1 OK");
    dispatch(&t, e, 5, 2, z);
    t.log[0] = 0;
    if (ours) {
      all_good(&t, e, 5, 2);
      assert_null(strstr(t.log, "settled 2 OK"));
      assert_non_null(strstr(t.log, "close 0")); /* a peer that miscounts is not trusted any further */
    }
    p_stop(&t);
  }
}

/* A reader that has answered nothing for its time gets nothing new; its first answer makes it a reader again. */
static void test_silent_reader(void **state) {
  (void)state;
  struct t_pm t = p_start(&p_cfg);
  uint32_t e = endpoint(&t, "d:1"), x = bind(&t, "x", e), y = bind(&t, "y", e), z = bind(&t, "z", e);
  dispatch(&t, e, 0, 0, x);
  open_epoch(&t, e, true);
  pass(&t, 30 * SEC);
  t.log[0] = 0;
  dispatch(&t, e, 0, 1, y);
  finish(&t, "y-", true);
  expect(&t, "cancel y PEER_LOST to 0; settled 1 PEER_LOST; finished y- PEER_LOST");
  all_good(&t, e, 0, 1);
  dispatch(&t, e, 0, 2, z);
  expect(&t, "batch 2 L0 [0] #2 to 0");
  pass(&t, 10 * SEC);
  dispatch(&t, e, 1, 3, z);
  all_good(&t, e, 1, 3);
  t.log[0] = 0;
  pass(&t, 20 * SEC); /* one batch hangs, the others do not: only its requests end */
  expect(&t, "cancel z TIMEOUT to 0; settled 2 TIMEOUT");
  dispatch(&t, e, 0, 4, bind(&t, "u", e));
  expect(&t, "batch 4 L0 [0] #4 to 0");
  p_stop(&t);
}

/* The engine aborts a request before anything of it was sent: its Decode is told all the same. */
static void test_abort_without_an_epoch(void **state) {
  (void)state;
  struct t_pm t = p_start(&p_cfg);
  uint32_t e = endpoint(&t, "d:1");
  bind(&t, "x", e);
  p_bind(&t, "y-", "y", 0, false, e); /* of a legacy Decode */
  finish(&t, "y-", true);
  finish(&t, "x-", true);
  expect(&t, "finished y- ABORTED; connect 0; finished x- ABORTED"); /* nobody waits for that */
  open_epoch(&t, e, true);
  expect(&t, "meta 0; cancel x ABORTED to 0");
  bind(&t, "z", endpoint(&t, "d:2"));
  finish(&t, "z-", true);
  lost(&t, 1); /* not to be reached: once is enough */
  expect(&t, "connect 1; finished z- ABORTED; close 1");
  assert_int_equal(p_stats(&t).requests, 0);
  p_stop(&t);
}

/* The engine had finished the request before its reader was given up: telling the reader must not free it in the middle. */
static void test_give_up_a_finished_request(void **state) {
  (void)state;
  struct t_pm t = p_start(&p_cfg);
  uint32_t e = endpoint(&t, "d:1"), x = bind(&t, "x", e);
  dispatch(&t, e, 1, 0, x);
  open_epoch(&t, e, true);
  last(&t, x, e);
  finish(&t, "x-", false);
  t.log[0] = 0;
  pass(&t, 30 * SEC);
  expect(&t, "cancel x TIMEOUT to 0; finished x- TIMEOUT; settled 0 TIMEOUT");
  assert_int_equal(p_stats(&t).requests, 0);
  p_stop(&t);
}

static void test_no_poison_with_dspark(void **state) {
  (void)state;
  struct t_pm t = p_start(&p_cfg);
  uint32_t e = endpoint(&t, "d:1"), x = p_bind(&t, "x-", "x", 'a', true, e);
  dispatch(&t, e, 0, 0, x);
  open_epoch(&t, e, false);
  finish(&t, "x-", true);
  expect(&t, "connect 0; meta 0; batch 0 L0 [0] to 0");
  all_good(&t, e, 0, 0);
  expect(&t, "finished x- ABORTED; settled 0 OK");
  p_stop(&t);
}

static void test_abort(void **state) {
  (void)state;
  struct t_pm t = p_start(&p_cfg);
  uint32_t e = endpoint(&t, "d:1"), x = bind(&t, "x", e), y = bind(&t, "y", e);
  dispatch(&t, e, 0, 0, x, y);
  open_epoch(&t, e, true);
  finish(&t, "x-", true);
  expect(&t, "connect 0; meta 0; batch 0 L0 [0,1] #1 to 0; cancel x ABORTED to 0"); /* held until its reader has answered */
  answer(&t, e, RD2H_MSG_DONE, 0, 1, (const int32_t[]){RD2H_OK, RD2H_OK, 1});
  expect(&t, "finished x- ABORTED; settled 0 OK");
  dispatch(&t, e, 1, 1, y);
  last(&t, y, e);
  answer(&t, e, RD2H_MSG_DONE, 1, 2, (const int32_t[]){RD2H_OK, 1});
  expect(&t, "batch 1 L1 [0] #2 to 0; done y L1 to 0; settled 1 OK");
  finish(&t, "nobody", true);
  finish(&t, "nobody", false);
  expect(&t, "finished nobody ABORTED; finished nobody OK");
  p_stop(&t);
}

static void test_sending_leaves_out_the_ended(void **state) {
  (void)state;
  struct t_pm t = p_start(&p_cfg);
  uint32_t e = endpoint(&t, "d:1"), x = bind(&t, "x", e), y = bind(&t, "y", e), z = bind(&t, "z", e);
  dispatch(&t, e, 0, 0, x, y, z);
  dispatch(&t, e, 0, 1, y);
  finish(&t, "y-", true);
  expect(&t, "connect 0");
  open_epoch(&t, e, true);
  expect(&t, "meta 0; batch 0 L0 [0,2] #1 to 0; cancel y ABORTED to 0; finished y- ABORTED; settled 1 SKIPPED");
  answer(&t, e, RD2H_MSG_DONE, 0, 1, (const int32_t[]){RD2H_OK, RD2H_IO, 1}); /* statuses are of what was sent */
  last(&t, x, e);
  last(&t, z, e);
  finish(&t, "z-", false);
  expect(&t, "settled 0 OK; done x L1 to 0; finished z- IO");
  p_stop(&t);
}

/* ---- epochs ---- */
static void test_lost(void **state) {
  (void)state;
  struct t_pm t = p_start(&p_cfg);
  uint32_t e = endpoint(&t, "d:1"), x = bind(&t, "x", e), y = bind(&t, "y", e);
  dispatch(&t, e, 1, 0, x);
  open_epoch(&t, e, true);
  last(&t, x, e);
  dispatch(&t, e, 0, 1, y);
  finish(&t, "x-", false);
  t.log[0] = 0;
  uint32_t old = t.epoch[e];
  lost(&t, e);
  /* The reader never heard of them: it is told. */
  expect(&t, "close 0; finished x- PEER_LOST; settled 0 PEER_LOST; settled 1 PEER_LOST; connect 0");
  dispatch(&t, e, 1, 2, y); /* what was lost there stays lost */
  expect(&t, "settled 2 SKIPPED");
  uint32_t z = bind(&t, "z", e);
  dispatch(&t, e, 0, 3, z);
  expect(&t, "");
  rd2h_pm_connected(t.pm, e, old, t.now); /* echoes of the old epoch */
  rd2h_pm_garbage(t.pm, e, old, "noise", t.now);
  rd2h_pm_disconnected(t.pm, e, old, "noise", t.now);
  rd2h_pm_reply(t.pm, e, old, &(struct rd2h_wire_reply){.kind = RD2H_MSG_ACK}, t.now);
  rd2h_pm_connected(t.pm, 7, old, t.now);
  expect(&t, "");
  open_epoch(&t, e, true);
  expect(&t, "meta 0; cancel x PEER_LOST to 0; cancel y PEER_LOST to 0; batch 3 L0 [0] #1 to 0");
  all_good(&t, e, 0, 1); /* metadata and numbers had begun again */
  expect(&t, "settled 3 OK");
  dispatch(&t, e, 1, 4, z);
  rd2h_pm_garbage(t.pm, e, t.epoch[e], "noise", t.now);
  expect(&t, "batch 4 L1 [0] #2 to 0; close 0; settled 4 MALFORMED"); /* who has answered for it notices */
  assert_int_equal(p_stats(&t).epochs_lost, 2);
  p_stop(&t);
}

/* The reader has dropped a request with the epoch, also one of which nothing was on its way. */
static void test_lost_between_chunks(void **state) {
  (void)state;
  struct t_pm t = p_start(&p_cfg);
  uint32_t e = endpoint(&t, "d:1"), x = bind(&t, "x", e);
  dispatch(&t, e, 1, 0, x);
  open_epoch(&t, e, true);
  all_good(&t, e, 1, 1);
  lost(&t, e);
  t.log[0] = 0;
  dispatch(&t, e, 1, 1, x);
  last(&t, x, e);
  finish(&t, "x-", false);
  expect(&t, "settled 1 SKIPPED; finished x- PEER_LOST");
  p_stop(&t);
}

static void test_lost_while_done_is_on_its_way(void **state) {
  (void)state;
  struct t_pm t = p_start(&p_cfg);
  uint32_t e = endpoint(&t, "d:1"), x = bind(&t, "x", e);
  last(&t, x, e);
  open_epoch(&t, e, true);
  finish(&t, "x-", false);
  t.log[0] = 0;
  lost(&t, e);
  expect(&t, "close 0; finished x- PEER_LOST; connect 0");
  dispatch(&t, e, 0, 0, bind(&t, "y", e));
  open_epoch(&t, e, true); /* done is not sent again in the next epoch */
  expect(&t, "meta 0; cancel x PEER_LOST to 0; batch 0 L0 [0] #1 to 0");
  p_stop(&t);
}

static void test_another_engine(void **state) {
  (void)state;
  struct t_pm t = p_start(&p_cfg);
  uint32_t e = endpoint(&t, "d:1"), x = bind(&t, "x", e);
  dispatch(&t, e, 0, 0, x);
  open_epoch(&t, e, true);
  t.log[0] = 0;
  assert_int_equal(rd2h_pm_endpoint(t.pm, STR("d:1"), STR("engine-1"), t.now), e);
  assert_int_equal(rd2h_pm_endpoint(t.pm, STR("d:1"), STR(""), t.now), e); /* has not said */
  expect(&t, "");
  assert_int_equal(rd2h_pm_endpoint(t.pm, STR("d:1"), STR("engine-2"), t.now), e);
  expect(&t, "close 0; settled 0 PEER_LOST; connect 0");
  assert_string_equal(rd2h_pm_endpoint_address(t.pm, e), "d:1");
  p_stop(&t);
}

static void test_close_all(void **state) {
  (void)state;
  struct t_pm t = p_start(&p_cfg);
  uint32_t e = endpoint(&t, "d:1"), f = endpoint(&t, "d:2"), x = bind(&t, "x", e);
  dispatch(&t, e, 0, 0, x);
  dispatch(&t, f, 0, 1, bind(&t, "y", f));
  open_epoch(&t, e, true);
  finish(&t, "x-", true);
  t.log[0] = 0;
  rd2h_pm_close_all(t.pm, t.now);
  expect(&t, "close 0; finished x- ABORTED; settled 0 CANCELED; close 1; settled 1 CANCELED");
  finish(&t, "y-", true);
  expect(&t, "finished y- CANCELED");
  p_stop(&t);
}

static void test_idle(void **state) {
  (void)state;
  struct t_pm t = p_start(&p_cfg);
  uint32_t e = endpoint(&t, "d:1"), x = bind(&t, "x", e);
  endpoint(&t, "d:2"); /* nothing is ever wanted of it */
  last(&t, x, e);
  open_epoch(&t, e, true);
  pass(&t, SEC);
  answer(&t, e, RD2H_MSG_DONE, 1, 1, NULL);
  t.log[0] = 0;
  pass(&t, 120 * SEC);
  expect(&t, ""); /* a request is bound there */
  assert_int_equal(p_stats(&t).endpoints, 1);
  finish(&t, "x-", false);
  pass(&t, 60 * SEC);
  pass(&t, 60 * SEC);
  expect(&t, "finished x- OK; close 0");
  assert_int_equal(p_stats(&t).endpoints, 0);
  assert_int_equal(endpoint(&t, "d:1"), e);
  p_stop(&t);
}

/* An answer that comes after all was given up leaves an endpoint that nobody needs. */
static void test_idle_after_a_late_answer(void **state) {
  (void)state;
  struct t_pm t = p_start(&p_cfg);
  uint32_t e = endpoint(&t, "d:1"), x = bind(&t, "x", e);
  pass(&t, 40 * SEC);
  dispatch(&t, e, 0, 0, x);
  open_epoch(&t, e, true);
  finish(&t, "x-", true);
  pass(&t, 25 * SEC); /* past the first look for idleness */
  pass(&t, 5 * SEC);
  t.log[0] = 0;
  all_good(&t, e, 0, 1);
  pass(&t, 60 * SEC);
  pass(&t, 60 * SEC);
  expect(&t, "close 0");
  assert_int_equal(p_stats(&t).endpoints, 0);
  p_stop(&t);
}

/* ---- identity, limits ---- */
static void test_cancel_from_decode(void **state) {
  (void)state;
  struct t_pm t = p_start(&p_cfg);
  uint32_t e = endpoint(&t, "d:1"), x = bind(&t, "x", e);
  struct rd2h_wire_cancel c = {.id = STR("x"), .has_attempt = true, .status = RD2H_ABORTED, .text = STR("user left")};
  dispatch(&t, e, 0, 0, x);
  open_epoch(&t, e, true);
  t.log[0] = 0;
  memset(c.attempt, 'b', RD2H_ATTEMPT);
  rd2h_pm_peer_cancel(t.pm, e, t.epoch[e], &c, t.now); /* another attempt */
  memset(c.attempt, 'a', RD2H_ATTEMPT);
  rd2h_pm_peer_cancel(t.pm, e, t.epoch[e] + 1, &c, t.now); /* another epoch */
  dispatch(&t, e, 1, 1, x);
  expect(&t, "batch 1 L1 [0] #2 to 0");
  rd2h_pm_peer_cancel(t.pm, e, t.epoch[e], &c, t.now);
  dispatch(&t, e, 0, 2, x);
  last(&t, x, e);
  finish(&t, "x-", false);
  all_good(&t, e, 0, 1);
  expect(&t, "settled 2 SKIPPED; settled 0 OK"); /* what it may still read is held */
  all_good(&t, e, 1, 2);
  expect(&t, "finished x- ABORTED; settled 1 OK");
  p_stop(&t);
}

static void test_external_ids(void **state) {
  (void)state;
  struct t_pm t = p_start(&p_cfg);
  uint32_t e = endpoint(&t, "d:1"), f = endpoint(&t, "d:2");
  uint32_t a = p_bind(&t, "1", "x", 'a', false, e);
  assert_int_equal(p_bind(&t, "1", "x", 'a', false, e), a);
  assert_int_not_equal(p_bind(&t, "2", "x", 'b', false, e), RD2H_INDEX_NONE);
  assert_int_equal(p_bind(&t, "3", "x", 'a', false, e), RD2H_INDEX_NONE);
  assert_int_not_equal(p_bind(&t, "3", "x", 'a', false, f), RD2H_INDEX_NONE); /* another reader */
  assert_int_not_equal(p_bind(&t, "4", "x", 0, false, e), RD2H_INDEX_NONE);
  assert_int_equal(p_bind(&t, "5", "x", 0, false, e), RD2H_INDEX_NONE); /* nobody could tell 4 and 5 apart */
  assert_int_equal(p_bind(&t, "", "y", 0, false, e), RD2H_INDEX_NONE);
  assert_int_equal(p_bind(&t, "6", "", 0, false, e), RD2H_INDEX_NONE);
  assert_int_equal(p_stats(&t).requests, 4);
  finish(&t, "4", true);
  expect(&t, "finished 4 ABORTED");
  assert_int_not_equal(p_bind(&t, "5", "x", 0, false, e), RD2H_INDEX_NONE);
  p_stop(&t);
}

/* Binds, and returns why that did not work. */
static int unbound(struct t_pm *t, const char *id, const char *ext, char attempt, uint32_t e) {
  struct rd2h_pm_request q = {.id = STR(id), .ext_id = STR(ext), .has_attempt = attempt != 0};
  memset(q.attempt, attempt, RD2H_ATTEMPT);
  assert_int_equal(p_bind(t, id, ext, attempt, false, e), RD2H_INDEX_NONE);
  return rd2h_pm_unbound(t->pm, &q, e);
}

static void test_why_it_was_not_bound(void **state) {
  (void)state;
  struct rd2h_pm_cfg c = p_cfg;
  c.max_requests = 2;
  struct t_pm t = p_start(&c);
  uint32_t e = endpoint(&t, "d:1");
  assert_int_not_equal(p_bind(&t, "1", "x", 'a', false, e), RD2H_INDEX_NONE);
  assert_int_equal(unbound(&t, "2", "x", 'a', e), RD2H_EXISTS);
  assert_int_equal(unbound(&t, "2", "", 'a', e), RD2H_INVALID);
  rd2h_alloc_fail_at(1);
  int why = unbound(&t, "a request whose id is too long for a place in the table itself, as ids of requests are", "y", 'a', e);
  rd2h_alloc_fail_at(0);
  assert_int_equal(why, RD2H_NOMEM);
  assert_int_not_equal(p_bind(&t, "2", "y", 'a', false, e), RD2H_INDEX_NONE);
  assert_int_equal(unbound(&t, "3", "z", 'a', e), RD2H_LIMIT);
  p_stop(&t);
}

static void test_limits(void **state) {
  (void)state;
  struct rd2h_pm_cfg c = p_cfg;
  c.max_endpoints = c.max_requests = 1;
  c.max_batches = 2;
  struct t_pm t = p_start(&c);
  uint32_t e = endpoint(&t, "d:1"), x = bind(&t, "x", e);
  assert_int_equal(endpoint(&t, "d:2"), RD2H_INDEX_NONE);
  assert_int_equal(p_bind(&t, "y-", "y", 'a', false, e), RD2H_INDEX_NONE);
  dispatch(&t, e, 0, 0, x);
  dispatch(&t, e, 1, 1, x);
  dispatch(&t, e, 0, 2, x);
  expect(&t, "connect 0; settled 2 LIMIT");
  open_epoch(&t, e, true); /* an incomplete request: what of it is not sent yet is not wanted any more, and its reader is told */
  expect(&t, "meta 0; cancel x LIMIT to 0; settled 0 SKIPPED; settled 1 SKIPPED");
  last(&t, x, e);
  finish(&t, "x-", false);
  expect(&t, "finished x- LIMIT");
  p_stop(&t);
}

/* Each allocation fails once: every batch settles once, every request finishes once. */
static void test_out_of_memory(void **state) {
  (void)state;
  bool failed = true;
  for (uint64_t n = 1; failed; n++) {
    struct t_pm t = p_start(&p_cfg);
    uint64_t before = rd2h_alloc_count();
    uint32_t x = RD2H_INDEX_NONE;
    rd2h_alloc_fail_at(n);
    uint32_t e = endpoint(&t, "d:1");
    if (e != RD2H_INDEX_NONE)
      x = p_bind(&t, "x-", "x", 'a', false, e);
    if (x != RD2H_INDEX_NONE) {
      dispatch(&t, e, 0, 0, x);
      dispatch(&t, e, 1, 1, x);
      last(&t, x, e);
      open_epoch(&t, e, true);
      all_good(&t, e, 1, 2);
      all_good(&t, e, 0, 1);
      answer(&t, e, RD2H_MSG_DONE, 1, 3, NULL);
      finish(&t, "x-", false);
    }
    for (int i = 0; i < 8; i++)
      pass(&t, 100 * SEC);
    failed = rd2h_alloc_count() - before >= n;
    rd2h_alloc_fail_at(0);
    if (x != RD2H_INDEX_NONE) {
      assert_true(t.settled[0] && t.settled[1]);
      const char *first = strstr(t.log, "finished ");
      assert_true(first && !strstr(first + 1, "finished "));
    }
    if (!failed)
      assert_non_null(strstr(t.log, "finished x- OK"));
    p_stop(&t);
  }
}

static void drop_line(void *user, int level, const char *line) {
  (void)user;
  (void)level;
  (void)line;
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_handshake),
    cmocka_unit_test(test_handshake_deadline),
    cmocka_unit_test(test_no_such_stage),
    cmocka_unit_test(test_kth_answer),
    cmocka_unit_test(test_numbered_answers),
    cmocka_unit_test(test_unread_message),
    cmocka_unit_test(test_s07_late_and_repeated_answers),
    cmocka_unit_test(test_silent_reader),
    cmocka_unit_test(test_abort_without_an_epoch),
    cmocka_unit_test(test_answer_before_sending),
    cmocka_unit_test(test_statuses),
    cmocka_unit_test(test_failed_without_statuses),
    cmocka_unit_test(test_done),
    cmocka_unit_test(test_done_before_finish),
    cmocka_unit_test(test_done_without_batches),
    cmocka_unit_test(test_hold),
    cmocka_unit_test(test_hold_of_each),
    cmocka_unit_test(test_hold_of_what_was_not_sent),
    cmocka_unit_test(test_give_up_a_finished_request),
    cmocka_unit_test(test_no_poison_with_dspark),
    cmocka_unit_test(test_abort),
    cmocka_unit_test(test_sending_leaves_out_the_ended),
    cmocka_unit_test(test_lost),
    cmocka_unit_test(test_lost_between_chunks),
    cmocka_unit_test(test_lost_while_done_is_on_its_way),
    cmocka_unit_test(test_another_engine),
    cmocka_unit_test(test_close_all),
    cmocka_unit_test(test_idle),
    cmocka_unit_test(test_idle_after_a_late_answer),
    cmocka_unit_test(test_cancel_from_decode),
    cmocka_unit_test(test_external_ids), cmocka_unit_test(test_who_has_not_answered),
    cmocka_unit_test(test_why_it_was_not_bound), cmocka_unit_test(test_limits),
    cmocka_unit_test(test_out_of_memory),
  };
  rd2h_log_set(drop_line, NULL, RD2H_LOG_ERROR);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
