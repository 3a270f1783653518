/* SPDX-License-Identifier: Apache-2.0 */
/* The decode machine over time: contributors, cancels, lost peers, the abort fence, deadlines, identity, limits, want of memory.
 */
#include "protocol/test_dm.h"

/* Everything of one layer for one contributor, read. */
static void serve(struct t_dm *t, uint32_t peer, uint32_t layer, uint32_t member, uint32_t ratio, uint32_t seq) {
  uint32_t nth = t->n_read;
  ready(t, peer, .layer = layer, .member = member, .ratio = ratio, .seq = seq, .req = {R("x", 'a', 0, 4)});
  if (t->n_read > nth)
    read_over(t, nth, RD2H_OK);
}

static void done(struct t_dm *t, uint32_t peer, uint32_t member, uint32_t ratio, uint32_t seq) {
  ready(t, peer, .layer = 1, .member = member, .ratio = ratio, .seq = seq, .done = "x", .done_attempt = 'a');
}

/* ---- contributors ---- */
static void test_members(void **state) {
  (void)state;
  struct t_dm t = t_start(&t_cfg);
  uint32_t p = t_peer(&t, T_OURS), q = t_peer(&t, &(struct t_meta){.ours = true, .inc = 'q'});
  install(&t, "id", "x", 'a');
  ready(&t, p, .layer = 0, .member = 0, .ratio = 2, .seq = 1, .req = {R("x", 'a', 0, 4)});
  ready(&t, q, .layer = 0, .member = 1, .ratio = 2, .seq = 1, .req = {R("x", 'a', 0, 4)});
  expect(&t, "read 6; read 2"); /* main once, the indexer shared out */
  read_over(&t, 0, RD2H_OK);
  read_over(&t, 1, RD2H_OK);
  serve(&t, p, 1, 0, 2, 2);
  serve(&t, q, 1, 1, 2, 2);
  t.log[0] = 0;
  done(&t, p, 0, 2, 3);
  done(&t, p, 0, 2, 4); /* one contributor counts once */
  expect(&t, "done 0 L1 #3; done 0 L1 #4");
  done(&t, q, 1, 2, 3);
  expect(&t, "report id OK; done 1 L1 #3");
  t_stop(&t);
}

static void test_stages(void **state) {
  (void)state;
  struct t_dm t = t_start(&t_cfg);
  uint32_t p = t_peer(&t, &(struct t_meta){.ours = true, .inc = 'p', .pp_size = 2, .only = {"model.layers.0.attn"}});
  uint32_t q =
      t_peer(&t, &(struct t_meta){.ours = true, .inc = 'q', .pp_rank = 1, .pp_size = 2, .only = {"model.layers.1.attn"}});
  install(&t, "id", "x", 'a');
  serve(&t, p, 0, 0, 1, 1);
  done(&t, p, 0, 1, 2); /* names a layer that this stage does not have */
  expect(&t, "read 8; done 0 L0 #1 OK; report id LAYOUT; failed 0 L1 #2");
  install(&t, "id2", "y", 'b');
  ready(&t, p, .layer = 0, .seq = 3, .req = {R("y", 'b', 0, 4)});
  ready(&t, q, .layer = 1, .seq = 1, .req = {R("y", 'b', 0, 4)});
  read_over(&t, 1, RD2H_OK);
  read_over(&t, 2, RD2H_OK);
  ready(&t, p, .layer = 0, .seq = 4, .done = "y", .done_attempt = 'b');
  expect(&t, "read 8; read 8; done 0 L0 #3 OK; done 1 L1 #1 OK; done 0 L0 #4");
  ready(&t, q, .layer = 1, .seq = 2, .done = "y", .done_attempt = 'b');
  expect(&t, "report id2 OK; done 1 L1 #2");
  t_stop(&t);
}

static void test_main_share(void **state) {
  (void)state;
  struct rd2h_dm_cfg c = t_cfg;
  c.main_rank = 1;
  c.main_ranks = 4;
  struct t_dm t = t_start(&c);
  uint32_t p = t_peer(&t, T_OURS);
  install(&t, "id", "x", 'a');
  ready(&t, p, .seq = 1, .req = {R("x", 'a', 0, 4)});
  expect(&t, "read 5"); /* a quarter of main, the whole indexer */
  read_over(&t, 0, RD2H_OK);
  ready(&t, p, .seq = 2, .req = {R("x", 'a', 4, 0)}); /* nothing of it is this rank's: answered all the same */
  expect(&t, "done 0 L0 #1 OK; done 0 L0 #2 OK");
  t_stop(&t);
}

static void test_contributors_disagree(void **state) {
  (void)state;
  struct t_dm t = t_start(&t_cfg);
  uint32_t p = t_peer(&t, T_OURS), q = t_peer(&t, &(struct t_meta){.ours = true, .inc = 'q', .pp_size = 2});
  install(&t, "id", "x", 'a');
  serve(&t, p, 0, 0, 2, 1);
  serve(&t, p, 0, 0, 1, 2);
  expect(&t, "read 6; done 0 L0 #1 OK; report id LAYOUT; failed 0 L0 #2 LAYOUT");
  install(&t, "id2", "y", 'b');
  ready(&t, p, .seq = 3, .req = {R("y", 'b', 0, 4)});
  ready(&t, q, .seq = 1, .member = 0, .req = {R("y", 'b', 0, 4)}); /* one stage, then two */
  expect(&t, "read 8; tell 0 y LAYOUT; failed 1 L0 #1 LAYOUT");
  read_over(&t, 1, RD2H_OK);
  ready(&t, p, .seq = 4, .member = 2, .ratio = 2, .req = {R("y", 'b', 0, 4)});
  expect(&t, "report id2 LAYOUT; done 0 L0 #3 OK; failed 0 L0 #4 LAYOUT");
  t_stop(&t);
}

static void test_slot_belongs_to_the_first(void **state) {
  (void)state;
  struct t_dm t = t_start(&t_cfg);
  uint32_t p = t_peer(&t, T_LEGACY), q = t_peer(&t, T_LEGACY);
  install(&t, "id", "x", 'a');
  ready(&t, p, .layer = 0, .req = {R("x", 0, 0, 4)});
  ready(&t, q, .layer = 0, .req = {R("x", 0, 0, 4)}, .done = "x");
  expect(&t, "read 8; failed 1 L0 REFUSED"); /* and neither fails nor finishes what another serves */
  read_over(&t, 0, RD2H_OK);
  ready(&t, p, .layer = 1, .req = {R("x", 0, 0, 4)}, .done = "x");
  read_over(&t, 1, RD2H_OK);
  expect(&t, "done 0 L0 OK; read 8; report id OK; done 0 L1 OK");
  t_stop(&t);
}

/* ---- cancels ---- */
static void cancel(struct t_dm *t, uint32_t peer, const char *ext, char attempt, int status) {
  struct rd2h_wire_cancel c = {
      .id = {ext, (uint32_t)strlen(ext)}, .has_attempt = attempt != 0, .status = status, .text = {"so", 2}};
  memset(c.attempt, attempt, RD2H_ATTEMPT);
  rd2h_dm_cancel(t->dm, peer, &c, t->now);
  t_drain(t);
}

static void test_cancel_from_prefill(void **state) {
  (void)state;
  struct t_dm t = t_start(&t_cfg);
  uint32_t p = t_peer(&t, T_OURS), q = t_peer(&t, &(struct t_meta){.ours = true, .inc = 'q'});
  install(&t, "id", "x", 'a');
  ready(&t, p, .seq = 1, .ratio = 2, .req = {R("x", 'a', 0, 4)});
  ready(&t, q, .seq = 1, .member = 1, .ratio = 2, .req = {R("x", 'a', 0, 4)});
  cancel(&t, p, "x", 'b', RD2H_ABORTED); /* another attempt */
  cancel(&t, p, "x", 0, RD2H_ABORTED);   /* none named */
  cancel(&t, p, "nobody", 'a', RD2H_ABORTED);
  expect(&t, "read 6; read 2");
  cancel(&t, p, "x", 'a', RD2H_TIMEOUT);
  expect(&t, "tell 1 x TIMEOUT"); /* the other contributor is told, the canceling one knows */
  read_over(&t, 0, RD2H_OK);
  expect(&t, "done 0 L0 #1 OK");
  read_over(&t, 1, RD2H_OK);
  expect(&t, "report id TIMEOUT; done 1 L0 #1 OK");
  t_stop(&t);
}

static void test_end_tells_contributors(void **state) {
  (void)state;
  struct t_dm t = t_start(&t_cfg);
  uint32_t p = t_peer(&t, T_OURS), q = t_peer(&t, T_LEGACY);
  install(&t, "id1", "x", 'a');
  install(&t, "id2", "y", 'b');
  ready(&t, p, .seq = 1, .req = {R("x", 'a', 0, 4)});
  ready(&t, q, .req = {R("y", 0, 0, 4)});
  t.log[0] = 0;
  assert_int_equal(end(&t, "id1", RD2H_ABORTED), RD2H_OK);
  assert_int_equal(end(&t, "id2", RD2H_ABORTED), RD2H_OK);
  assert_int_equal(end(&t, "id1", RD2H_ABORTED), RD2H_NOT_FOUND);
  assert_int_equal(end(&t, "nobody", RD2H_ABORTED), RD2H_NOT_FOUND);
  expect(&t, "tell 0 x ABORTED"); /* the fence: reads of both run, so neither is reported */
  assert_int_equal(t_stats(&t).quarantined, 2);
  read_over(&t, 0, RD2H_OK);
  read_over(&t, 1, RD2H_IO);
  expect(&t, "report id1 ABORTED; done 0 L0 #1 OK; report id2 ABORTED; failed 1 L0 IO");
  assert_int_equal(t_stats(&t).quarantined, 0);
  t_stop(&t);
}

static void test_abort_leaves_the_others(void **state) {
  (void)state;
  struct t_dm t = t_start(&t_cfg);
  uint32_t p = t_peer(&t, T_LEGACY);
  install(&t, "id1", "x", 'a');
  install(&t, "id2", "y", 'b');
  ready(&t, p, .layer = 0, .req = {R("x", 0, 0, 4), R("y", 0, 0, 4)});
  end(&t, "id1", RD2H_ABORTED);
  read_over(&t, 0, RD2H_OK);
  ready(&t, p, .layer = 1, .req = {R("x", 0, 0, 4), R("y", 0, 0, 4)}, .done = "y");
  read_over(&t, 1, RD2H_OK);
  expect(&t, "read 16; report id1 ABORTED; done 0 L0 OK,OK; read 8; report id2 OK; done 0 L1 SKIPPED,OK");
  t_stop(&t);
}

/* ---- lost peers ---- */
static void test_peer_lost(void **state) {
  (void)state;
  struct t_dm t = t_start(&t_cfg);
  uint32_t p = t_peer(&t, T_OURS);
  install(&t, "id1", "x", 'a');
  install(&t, "id2", "y", 'b');
  ready(&t, p, .layer = 0, .seq = 1, .req = {R("x", 'a', 0, 4)});
  ready(&t, p, .layer = 1, .seq = 2, .req = {R("later", 'l', 0, 4)}); /* parked: dropped at once */
  expect(&t, "read 8");
  rd2h_dm_peer_lost(t.dm, p, "gone", t.now);
  rd2h_dm_peer_lost(t.dm, p, "gone again", t.now);
  expect(&t, "cancel 0"); /* nothing is reported and the handle lives while a read may write */
  assert_int_equal(t.msgs, 1);
  read_over(&t, 0, RD2H_CANCELED);
  expect(&t, "report id1 PEER_LOST; close 0");
  assert_int_equal(end(&t, "id2", RD2H_ABORTED), RD2H_OK); /* nobody had served it yet: it waited on */
  expect(&t, "report id2 ABORTED");
  t_stop(&t);
}

/* The engine is down, the connection is not: Prefill hears of everything instead of waiting for answers. */
static void test_peer_failed(void **state) {
  (void)state;
  struct t_dm t = t_start(&t_cfg);
  uint32_t p = t_peer(&t, T_OURS);
  install(&t, "id1", "x", 'a');
  install(&t, "id2", "y", 'b');
  ready(&t, p, .layer = 0, .seq = 1, .req = {R("x", 'a', 0, 4)});
  ready(&t, p, .layer = 1, .seq = 2, .req = {R("later", 'l', 0, 4)});
  expect(&t, "read 8");
  rd2h_dm_peer_fail(t.dm, p, "its engine is down", t.now);
  rd2h_dm_peer_fail(t.dm, p, "again", t.now);
  expect(&t, "cancel 0; failed 0 L1 #2 PEER_LOST; nak 0");
  ready(&t, p, .layer = 0, .seq = 3, .req = {R("y", 'b', 0, 4)}); /* was on its way */
  expect(&t, "report id2 PEER_LOST; failed 0 L0 #3 PEER_LOST");
  read_over(&t, 0, RD2H_CANCELED);
  expect(&t, "report id1 PEER_LOST; failed 0 L0 #1 CANCELED");
  pass(&t, SEC);
  expect(&t, "probe 0"); /* it may go without a word */
  rd2h_dm_peer_lost(t.dm, p, "gone", t.now);
  expect(&t, "close 0");
  t_stop(&t);
}

static void test_legacy_peer_failed(void **state) {
  (void)state;
  struct t_dm t = t_start(&t_cfg);
  uint32_t p = t_peer(&t, T_LEGACY);
  install(&t, "id1", "x", 'a');
  ready(&t, p, .layer = 0, .req = {R("later", 0, 0, 4)}); /* waits, and with it the next */
  ready(&t, p, .layer = 0, .req = {R("x", 0, 0, 4)});
  rd2h_dm_malformed(t.dm, p, 1, NULL, "nonsense", t.now);
  ready(&t, p, .layer = 1, .req = {R("last", 0, 0, 4)});
  read_over(&t, 0, RD2H_OK);
  t.log[0] = 0;
  rd2h_dm_peer_fail(t.dm, p, "its engine is down", t.now);
  expect(&t, "failed 0 L0 PEER_LOST; done 0 L0 OK; failed 0 L1; failed 0 L1 PEER_LOST; report id1 PEER_LOST");
  assert_false(rd2h_dm_peer_busy(t.dm, p));
  t_send_meta(&t, p, T_LEGACY); /* it may begin anew on the same connection */
  rd2h_dm_connected(t.dm, p, RD2H_OK, "", t.now);
  expect(&t, "connect 0; ack 0");
  t_stop(&t);
}

static void test_finished_slot_survives(void **state) {
  (void)state;
  struct t_dm t = t_start(&t_cfg);
  uint32_t p = t_peer(&t, T_OURS), q = t_peer(&t, &(struct t_meta){.ours = true, .inc = 'q'});
  install(&t, "id", "x", 'a');
  for (uint32_t l = 0; l < 2; l++) {
    serve(&t, p, l, 0, 2, l + 1);
    serve(&t, q, l, 1, 2, l + 1);
  }
  done(&t, p, 0, 2, 3);
  rd2h_dm_peer_lost(t.dm, p, "gone", t.now);
  t_drain(&t);
  t.log[0] = 0;
  done(&t, q, 1, 2, 3);
  expect(&t, "report id OK; done 1 L1 #3");
  t_stop(&t);
}

static void test_unreachable_while_answering(void **state) {
  (void)state;
  struct t_dm t = t_start(&t_cfg);
  uint32_t p = t_peer(&t, T_LEGACY);
  install(&t, "id", "x", 'a');
  ready(&t, p, .layer = 0, .req = {R("x", 0, 0, 4)});
  ready(&t, p, .layer = 1, .req = {R("x", 0, 0, 4)});
  t.unreachable = p;
  read_over(&t, 0, RD2H_OK);
  expect(&t, "read 8; read 8; done 0 L0 OK; cancel 0");
  read_over(&t, 1, RD2H_OK); /* its answer has nobody to go to */
  expect(&t, "report id PEER_LOST; close 0");
  t_stop(&t);
}

/* A Prefill that breaks the rule and says done early must not make unread blocks count. */
static void test_lost_before_it_was_read(void **state) {
  (void)state;
  struct t_dm t = t_start(&t_cfg);
  uint32_t p = t_peer(&t, T_OURS);
  install(&t, "id1", "x", 'a');
  ready(&t, p, .layer = 0, .seq = 1, .req = {R("x", 'a', 0, 4), R("y", 'b', 0, 4)});
  ready(&t, p, .layer = 1, .seq = 2, .req = {R("y", 'b', 0, 4)});
  install(&t, "id2", "y", 'b');
  read_over(&t, 1, RD2H_OK); /* layer 1 of y is there; layer 0 waits behind x's read */
  ready(&t, p, .layer = 1, .seq = 3, .done = "y", .done_attempt = 'b');
  expect(&t, "read 8; read 8; done 0 L1 #2 OK; done 0 L1 #3");
  rd2h_dm_peer_lost(t.dm, p, "gone", t.now);
  read_over(&t, 0, RD2H_OK);
  expect(&t, "cancel 0; report id1 PEER_LOST; report id2 PEER_LOST; close 0");
  t_stop(&t);
}

static void test_second_connection_of_a_process(void **state) {
  (void)state;
  struct t_dm t = t_start(&t_cfg);
  uint32_t p = t_peer(&t, T_OURS), q = t_peer(&t, &(struct t_meta){.ours = true, .inc = 'q'});
  install(&t, "id", "x", 'a');
  serve(&t, p, 0, 0, 1, 1);
  t.log[0] = 0;
  uint32_t again = rd2h_dm_peer_open(t.dm, t.now);
  t_send_meta(&t, again, T_OURS);
  expect(&t, "report id PEER_LOST; close 0; connect 2"); /* what the old one served is over */
  assert_int_equal(q, 1);
  t_stop(&t);
}

static void test_metadata_while_batches_are_open(void **state) {
  (void)state;
  struct t_dm t = t_start(&t_cfg);
  uint32_t p = t_peer(&t, T_OURS);
  install(&t, "id", "x", 'a');
  ready(&t, p, .seq = 1, .req = {R("x", 'a', 0, 4)});
  t_send_meta(&t, p, T_OURS);
  expect(&t, "read 8; nak 0");
  read_over(&t, 0, RD2H_OK);
  expect(&t, "done 0 L0 #1 OK");
  t_send_meta(&t, p, T_OURS); /* between batches it may change its mind */
  expect(&t, "connect 0");
  t_stop(&t);
}

/* ---- time ---- */
static void test_deadlines(void **state) {
  (void)state;
  struct t_dm t = t_start(&t_cfg);
  uint32_t p = t_peer(&t, T_LEGACY);
  install(&t, "id1", "never", 'n');
  install(&t, "id2", "x", 'a');
  ready(&t, p, .req = {R("x", 0, 0, 4)});
  pass(&t, 15 * SEC);
  read_over(&t, 0, RD2H_OK); /* a sign of life */
  t.log[0] = 0;
  for (int i = 0; i < 19; i++)
    pass(&t, SEC);
  assert_null(strstr(t.log, "report"));
  pass(&t, SEC);
  assert_non_null(strstr(t.log, "report id2 TIMEOUT"));
  t.log[0] = 0;
  pass(&t, 24 * SEC);
  assert_null(strstr(t.log, "report"));
  pass(&t, SEC);
  assert_non_null(strstr(t.log, "report id1 TIMEOUT"));
  assert_int_equal(t_stats(&t).failed_expired, 2);
  t_stop(&t);
}

/* The time between two signs of progress is short, that before the first is not. */
/* Before anything came the answer of the rendezvous starts the shorter clock; what comes starts it anew, and a late answer does not. */
static void test_answered(void **state) {
  (void)state;
  struct t_dm t = t_start(&t_cfg);
  uint32_t p = t_peer(&t, T_OURS);
  install(&t, "id1", "x", 'a');
  install(&t, "id2", "y", 'b');
  install(&t, "id3", "z", 'c');
  pass(&t, 10 * SEC);
  rd2h_dm_answered(t.dm, (struct rd2h_str){"id1", 3}, t.now);
  rd2h_dm_answered(t.dm, (struct rd2h_str){"id3", 3}, t.now);
  rd2h_dm_answered(t.dm, (struct rd2h_str){"id4", 3}, t.now); /* nobody's */
  pass(&t, 15 * SEC);
  rd2h_dm_answered(t.dm, (struct rd2h_str){"id1", 3}, t.now); /* once counts */
  serve(&t, p, 0, 0, 1, 1);
  t.log[0] = 0;
  pass(&t, 5 * SEC);
  expect(&t, "probe 0; report id3 TIMEOUT");
  rd2h_dm_answered(t.dm, (struct rd2h_str){"id1", 3}, t.now);
  pass(&t, 15 * SEC);
  expect(&t, "probe 0; tell 0 x TIMEOUT; report id1 TIMEOUT");
  pass(&t, 15 * SEC);
  expect(&t, "report id2 TIMEOUT"); /* queue_ns after its installation */
  t_stop(&t);
}

static void test_short_progress(void **state) {
  (void)state;
  struct rd2h_dm_cfg c = t_cfg;
  c.progress_ns = SEC;
  struct t_dm t = t_start(&c);
  uint32_t p = t_peer(&t, T_OURS);
  install(&t, "id", "x", 'a');
  for (int i = 0; i < 30; i++)
    pass(&t, SEC / 10);
  ready(&t, p, .seq = 1, .req = {R("x", 'a', 0, 4)});
  read_over(&t, 0, RD2H_OK);
  t.log[0] = 0;
  for (int i = 0; i < 20; i++) /* at most twice the time */
    pass(&t, SEC / 10);
  assert_non_null(strstr(t.log, "report id TIMEOUT"));
  t_stop(&t);
}

static void test_deadline_waits_for_the_read(void **state) {
  (void)state;
  struct t_dm t = t_start(&t_cfg);
  uint32_t p = t_peer(&t, T_OURS);
  install(&t, "id", "x", 'a');
  ready(&t, p, .seq = 1, .req = {R("x", 'a', 0, 4)});
  pass(&t, 20 * SEC);
  assert_non_null(strstr(t.log, "tell 0 x TIMEOUT"));
  assert_null(strstr(t.log, "report"));
  t.log[0] = 0;
  read_over(&t, 0, RD2H_OK);
  expect(&t, "report id TIMEOUT; done 0 L0 #1 OK");
  t_stop(&t);
}

static void test_probe(void **state) {
  (void)state;
  struct t_dm t = t_start(&t_cfg);
  uint32_t p = t_peer(&t, T_OURS);
  pass(&t, 5 * SEC);
  expect(&t, ""); /* nothing is open there */
  install(&t, "id", "x", 'a');
  serve(&t, p, 0, 0, 1, 1);
  t.log[0] = 0;
  pass(&t, SEC);
  pass(&t, SEC);
  expect(&t, "probe 0; probe 0");
  end(&t, "id", RD2H_ABORTED);
  pass(&t, SEC);
  pass(&t, SEC);
  expect(&t, "tell 0 x ABORTED; report id ABORTED");
  rd2h_dm_ping(t.dm, p, 77, t.now);
  expect(&t, "pong 0 77");
  t_stop(&t);
}

static void test_next_deadline(void **state) {
  (void)state;
  struct t_dm t = t_start(&t_cfg);
  assert_true(rd2h_dm_next_deadline(t.dm) == RD2H_NEVER);
  install(&t, "id", "x", 'a');
  for (int i = 0; i < 1000 && !t.log[0]; i++) { /* a worker that sleeps until it is told to look */
    uint64_t next = rd2h_dm_next_deadline(t.dm);
    assert_true(next != RD2H_NEVER && next > t.now);
    pass(&t, next - t.now);
  }
  expect(&t, "report id TIMEOUT");
  assert_true(t.now == 61 * SEC);
  t_stop(&t);
}

/* ---- identity ---- */
static void test_external_id_in_use(void **state) {
  (void)state;
  struct t_dm t = t_start(&t_cfg);
  install(&t, "id1", "x", 'a');
  assert_int_equal(t_install(&t, "id1", "y", 'b', 0, 4), RD2H_EXISTS);
  expect(&t, "");
  install(&t, "id2", "x", 'b');
  expect(&t, "report id2 EXISTS");
  end(&t, "id1", RD2H_ABORTED);
  install(&t, "id3", "x", 'c');
  expect(&t, "report id1 ABORTED");
  assert_int_equal(t_stats(&t).requests, 1);
  t_stop(&t);
}

static void test_legacy_id_stays_refused(void **state) {
  (void)state;
  struct t_dm t = t_start(&t_cfg);
  uint32_t p = t_peer(&t, T_LEGACY);
  install(&t, "id1", "x", 'a');
  ready(&t, p, .layer = 0, .req = {R("x", 0, 0, 4)});
  read_over(&t, 0, RD2H_OK);
  end(&t, "id1", RD2H_ABORTED);
  t.log[0] = 0;
  install(&t, "id2", "x", 'b'); /* the Prefill may still send it, and could not be told apart */
  expect(&t, "report id2 REFUSED");
  ready(&t, p, .layer = 1, .req = {R("x", 0, 0, 4)}, .done = "x");
  expect(&t, "done 0 L1 SKIPPED");
  t.now += 31 * SEC;
  install(&t, "id3", "x", 'c');
  expect(&t, "");
  ready(&t, p, .layer = 0, .req = {R("x", 0, 0, 4)});
  read_over(&t, 1, RD2H_OK);
  ready(&t, p, .layer = 1, .req = {R("x", 0, 0, 4)}, .done = "x");
  read_over(&t, 2, RD2H_OK);
  install(&t, "id4", "x", 'd'); /* settled: free at once */
  expect(&t, "read 8; done 0 L0 OK; read 8; report id3 OK; done 0 L1 OK");
  t_stop(&t);
}

static void test_refusal_is_not_lifted(void **state) {
  (void)state;
  struct t_dm t = t_start(&t_cfg);
  uint32_t p = t_peer(&t, T_LEGACY), q = t_peer(&t, T_OURS);
  install(&t, "id1", "x", 'a');
  ready(&t, p, .layer = 0, .req = {R("x", 0, 0, 4)});
  read_over(&t, 0, RD2H_OK);
  end(&t, "id1", RD2H_ABORTED);
  ready(&t, q, .seq = 1, .req = {R("x", 'b', 0, 4)}); /* a retry's READY, before its destinations */
  t.log[0] = 0;
  install(&t, "id2", "x", 'b');
  pass(&t, 3 * SEC);
  assert_non_null(strstr(t.log, "report id2 REFUSED"));
  t.log[0] = 0;
  install(&t, "id3", "x", 'c');
  expect(&t, "report id3 REFUSED");
  t_stop(&t);
}

/* While reads of the ended attempt still write to its blocks, the next one has its own and goes on. */
static void test_retry_beside_a_quarantined_attempt(void **state) {
  (void)state;
  struct t_dm t = t_start(&t_cfg);
  uint32_t p = t_peer(&t, T_OURS);
  install(&t, "id1", "x", 'a');
  ready(&t, p, .layer = 0, .seq = 1, .req = {R("x", 'a', 0, 4)});
  end(&t, "id1", RD2H_ABORTED);
  install(&t, "id2", "x", 'b');
  ready(&t, p, .layer = 1, .seq = 2, .req = {R("x", 'a', 0, 4)}); /* late */
  ready(&t, p, .layer = 0, .seq = 3, .req = {R("x", 'b', 0, 4)});
  expect(&t, "read 8; tell 0 x ABORTED; done 0 L1 #2 SKIPPED; read 8");
  assert_int_equal(t_stats(&t).quarantined_blocks, 16);
  read_over(&t, 0, RD2H_OK);
  expect(&t, "report id1 ABORTED; done 0 L0 #1 OK");
  read_over(&t, 1, RD2H_OK);
  ready(&t, p, .layer = 1, .seq = 4, .req = {R("x", 'b', 0, 4)});
  read_over(&t, 2, RD2H_OK);
  ready(&t, p, .layer = 1, .seq = 5, .done = "x", .done_attempt = 'a');
  expect(&t, "done 0 L0 #3 OK; read 8; done 0 L1 #4 OK; done 0 L1 #5");
  ready(&t, p, .layer = 1, .seq = 6, .done = "x", .done_attempt = 'b');
  expect(&t, "report id2 OK; done 0 L1 #6");
  for (uint32_t i = 0; i < 2; i++) /* both attempts are remembered: neither waits for destinations */
    ready(&t, p, .layer = 0, .seq = 7 + i, .req = {R("x", (char)('a' + i), 0, 4)});
  expect(&t, "done 0 L0 #7 SKIPPED; done 0 L0 #8 SKIPPED");
  assert_int_equal(t_stats(&t).quarantined_blocks, 0);
  t_stop(&t);
}

/* An engine whose reads do not end may not take the whole pool, one aborted request after the other. */
static void test_quarantine_is_limited(void **state) {
  (void)state;
  struct rd2h_dm_cfg c = t_cfg;
  c.max_quarantined = 1;
  struct t_dm t = t_start(&c);
  uint32_t p = t_peer(&t, T_OURS);
  install(&t, "id1", "x", 'a');
  ready(&t, p, .layer = 0, .seq = 1, .req = {R("x", 'a', 0, 4)});
  end(&t, "id1", RD2H_ABORTED);
  t.log[0] = 0;
  install(&t, "id2", "y", 'b');
  expect(&t, "report id2 LIMIT");
  read_over(&t, 0, RD2H_OK);
  install(&t, "id3", "z", 'c');
  expect(&t, "report id1 ABORTED; done 0 L0 #1 OK");
  assert_int_equal(t_stats(&t).oldest, t.now);
  end(&t, "id3", RD2H_ABORTED);
  assert_int_equal(t_stats(&t).oldest, 0);
  t_stop(&t);
}

/* ---- limits ---- */
static void test_bad_grants(void **state) {
  (void)state;
  struct t_dm t = t_start(&t_cfg);
  static const uint32_t far[] = {64}, near[] = {63};
  static const uint8_t zero[RD2H_ATTEMPT];
  const struct {
    struct rd2h_dm_grant g;
    int status;
  } rows[] = {
    {{.ext_id = {"x", 1}, .main = far, .n_main = 1}, RD2H_RANGE},
    {{.ext_id = {"x", 1}, .main = near, .n_main = 1, .indexer = far, .n_indexer = 1}, RD2H_RANGE},
    {{.ext_id = {"x", 1}, .main = near, .n_main = 1, .main_need = 2}, RD2H_RANGE},
    {{.ext_id = {"x", 1}, .main = near, .n_main = 1, .main_floor = 2}, RD2H_RANGE},
    {{.ext_id = {"", 0}, .main = near, .n_main = 1}, RD2H_RANGE},
  };
  for (size_t i = 0; i < RD2H_COUNT(rows); i++) {
    struct rd2h_dm_grant g = rows[i].g;
    g.id = (struct rd2h_str){"id", 2};
    memcpy(g.attempt, zero, sizeof zero);
    assert_int_equal(rd2h_dm_install(t.dm, &g, t.now, NULL), RD2H_OK);
    expect(&t, "report id RANGE");
  }
  assert_int_equal(t_stats(&t).requests, 0);
  t_stop(&t);
}

static void test_limits(void **state) {
  (void)state;
  struct rd2h_dm_cfg c = t_cfg;
  c.max_requests = 2;
  c.max_peers = 1;
  struct t_dm t = t_start(&c);
  install(&t, "id1", "x", 'a');
  install(&t, "id2", "y", 'b');
  install(&t, "id3", "z", 'c');
  expect(&t, "report id3 LIMIT");
  uint32_t p = rd2h_dm_peer_open(t.dm, t.now);
  assert_int_equal(rd2h_dm_peer_open(t.dm, t.now), RD2H_INDEX_NONE);
  rd2h_dm_peer_lost(t.dm, p, "gone", t.now);
  expect(&t, "close 0");
  assert_int_not_equal(rd2h_dm_peer_open(t.dm, t.now), RD2H_INDEX_NONE);
  t_stop(&t);
}

static void test_tombstones_are_bounded(void **state) {
  (void)state;
  struct t_dm t = t_start(&t_cfg); /* eight */
  uint32_t p = t_peer(&t, T_LEGACY);
  char id[16];
  for (int i = 0; i < 9; i++) {
    snprintf(id, sizeof id, "x%d", i);
    install(&t, id, id, 'a');
    end(&t, id, RD2H_ABORTED);
  }
  t.log[0] = 0;
  ready(&t, p, .req = {R("x8", 0, 0, 4)});
  expect(&t, "done 0 L0 SKIPPED");
  ready(&t, p, .req = {R("x0", 0, 0, 4)}); /* forgotten: parked, then skipped */
  expect(&t, "");
  pass(&t, 2 * SEC);
  expect(&t, "probe 0; done 0 L0 SKIPPED");
  t_stop(&t);
}

/* Each allocation fails once, in a life that has everything in it: nothing leaks, nothing is reported twice or complete by
 * mistake. */
static void test_out_of_memory(void **state) {
  (void)state;
  bool failed = true;
  for (uint64_t n = 1; failed; n++) {
    struct t_dm t = t_start(&t_cfg);
    uint64_t before = rd2h_alloc_count();
    rd2h_alloc_fail_at(n);
    uint32_t p = rd2h_dm_peer_open(t.dm, t.now);
    int rc = t_install(&t, "id", "x", 'a', 0, 4);
    if (p != RD2H_INDEX_NONE) {
      t_send_meta(&t, p, T_OURS);
      if (!strstr(t.log, "nak"))
        rd2h_dm_connected(t.dm, p, RD2H_OK, "", t.now);
      for (uint32_t l = 0; l < 2 && !strstr(t.log, "close"); l++)
        serve(&t, p, l, 0, 1, l + 1);
      if (!strstr(t.log, "close"))
        done(&t, p, 0, 1, 3);
    }
    pass(&t, 200 * SEC);
    pass(&t, 200 * SEC);
    failed = rd2h_alloc_count() - before >= n;
    rd2h_alloc_fail_at(0);
    const char *first = strstr(t.log, "report id");
    assert_true(rc == RD2H_OK ? first && !strstr(first + 1, "report id") : !first);
    if (strstr(t.log, "report id OK"))
      assert_non_null(strstr(t.log, "read 8; done 0 L0 #1 OK; read 8; done 0 L1 #2 OK"));
    if (!failed)
      assert_non_null(strstr(t.log, "report id OK"));
    if (p != RD2H_INDEX_NONE && !strstr(t.log, "close"))
      rd2h_dm_peer_lost(t.dm, p, "over", t.now);
    t_drain(&t);
    t_stop(&t);
  }
}

/* ---- no memory at all, for as long as it lasts ---- */
static bool no_memory;
static void *poor_alloc(void *user, size_t n) {
  (void)user;
  return no_memory ? NULL : malloc(n);
}
static void *poor_realloc(void *user, void *p, size_t n) {
  (void)user;
  return no_memory ? NULL : realloc(p, n);
}
static void poor_free(void *user, void *p) {
  (void)user;
  free(p);
}

struct answers {
  uint32_t n, layer[512], failed;
};

static void take_answers(struct t_dm *t, struct answers *got) {
  struct rd2h_da a;
  while (rd2h_dm_next(t->dm, &a)) {
    if (a.kind == RD2H_DA_REPLY && a.reply != RD2H_MSG_META_NAK) {
      assert_true(got->n < RD2H_COUNT(got->layer));
      assert_true(!a.has_seq || a.seq == a.layer_idx + 1);
      got->failed += a.reply == RD2H_MSG_FAILED;
      got->layer[got->n++] = a.layer_idx;
    }
    t_carry_out(t, &a);
    t->log[0] = 0;
  }
}

/* Every batch gets its answer though there is no memory to serve it: in its turn where that matters and something is set aside. */
static void answers_without_memory(const struct t_meta *peer, uint32_t n, struct answers *got) {
  struct t_dm t = t_start(&t_cfg);
  uint32_t p = t_peer(&t, peer);
  install(&t, "id", "x", 'a');
  ready(&t, p, .layer = 0, .seq = peer->ours, .req = {R("x", peer->ours ? 'a' : 0, 0, 4)});
  expect(&t, "read 8");
  no_memory = true;
  *got = (struct answers){0};
  for (uint32_t i = 1; i <= n; i++) {
    struct t_msg *m = calloc(1, sizeof *m);
    m->w = (struct rd2h_wire_ready){.layer_idx = i, .layer = {"model.layers.1.attn", 19}, .req = m->req, .ratio = 1, .n_reqs = 1,
                                    .has_seq = peer->ours, .seq = i + 1};
    m->req[0] = (struct rd2h_wire_req){.id = {"unknown", 7}};
    t.msgs++;
    rd2h_dm_ready(t.dm, p, &m->w, t.now);
    take_answers(&t, got);
  }
  rd2h_dm_read_done(t.dm, t.read[0], RD2H_OK, "", t.now);
  take_answers(&t, got);
  rd2h_dm_tick(t.dm, t.now += 3 * SEC);
  take_answers(&t, got);
  no_memory = false;
  bool seen[512] = {0};
  for (uint32_t i = 0; i < got->n; i++) {
    assert_true(got->layer[i] <= n && !seen[got->layer[i]]);
    seen[got->layer[i]] = true;
  }
  assert_int_equal(got->n, n + 1); /* each once */
  rd2h_dm_peer_lost(t.dm, p, "over", t.now);
  t_drain(&t);
  t_stop(&t);
}

static void test_answers_need_no_memory(void **state) {
  (void)state;
  struct answers got;
  assert_int_equal(rd2h_allocator_set(&(struct rd2h_allocator){poor_alloc, poor_realloc, poor_free, NULL}), RD2H_OK);
  answers_without_memory(T_LEGACY, 300, &got);
  for (uint32_t i = 0; i <= 300; i++)
    assert_int_equal(got.layer[i], i); /* in order */
  assert_true(got.failed >= 200);
  answers_without_memory(T_OURS, 300, &got);
  answers_without_memory(T_LEGACY, 450, &got); /* more than is set aside */
  assert_true(got.failed >= 350);
  rd2h_allocator_set(NULL);
}

static void drop_line(void *user, int level, const char *line) {
  (void)user;
  (void)level;
  (void)line;
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_members),
    cmocka_unit_test(test_stages),
    cmocka_unit_test(test_main_share),
    cmocka_unit_test(test_contributors_disagree),
    cmocka_unit_test(test_slot_belongs_to_the_first),
    cmocka_unit_test(test_cancel_from_prefill),
    cmocka_unit_test(test_end_tells_contributors),
    cmocka_unit_test(test_abort_leaves_the_others),
    cmocka_unit_test(test_peer_lost),
    cmocka_unit_test(test_peer_failed),
    cmocka_unit_test(test_legacy_peer_failed),
    cmocka_unit_test(test_retry_beside_a_quarantined_attempt),
    cmocka_unit_test(test_quarantine_is_limited),
    cmocka_unit_test(test_finished_slot_survives),
    cmocka_unit_test(test_unreachable_while_answering),
    cmocka_unit_test(test_lost_before_it_was_read),
    cmocka_unit_test(test_second_connection_of_a_process),
    cmocka_unit_test(test_metadata_while_batches_are_open),
    cmocka_unit_test(test_deadlines),
    cmocka_unit_test(test_answered),
    cmocka_unit_test(test_short_progress),
    cmocka_unit_test(test_deadline_waits_for_the_read),
    cmocka_unit_test(test_probe),
    cmocka_unit_test(test_next_deadline),
    cmocka_unit_test(test_external_id_in_use),
    cmocka_unit_test(test_legacy_id_stays_refused),
    cmocka_unit_test(test_refusal_is_not_lifted),
    cmocka_unit_test(test_bad_grants),
    cmocka_unit_test(test_limits),
    cmocka_unit_test(test_tombstones_are_bounded),
    cmocka_unit_test(test_out_of_memory),
    cmocka_unit_test(test_answers_need_no_memory),
  };
  rd2h_log_set(drop_line, NULL, RD2H_LOG_ERROR);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
