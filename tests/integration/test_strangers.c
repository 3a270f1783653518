/* SPDX-License-Identifier: Apache-2.0 */
/* Peers that are not ours: legacy ones, and ones that send what they should not. */
#include "tests/integration/raw.h"
#include "base/msgpack.h"
#include <setjmp.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>
#include <zmq.h>

#define SOON 300 /* ms: how long silence is listened to */

static const struct rig_shape shape = {.layers = 2, .blocks = 32, .indexer_mask = 1};

/* ---- a Decode rank and a bare Prefill ---- */
struct decode_case {
  struct rig_side src, dst;
  rd2h_decode *d;
  struct raw raw;
  struct rd2h_buf b;
};

static void open_case(struct decode_case *x, const struct rd2h_decode_opts *o) {
  *x = (struct decode_case){0};
  rig_side_open(&x->src, &shape);
  rig_side_open(&x->dst, &shape);
  x->d = rig_decode(&x->dst, o);
  raw_prefill(&x->raw, rd2h_decode_port(x->d));
}

static void close_case(struct decode_case *x) {
  raw_close(&x->raw);
  rd2h_buf_free(&x->b);
  rd2h_decode_destroy(x->d);
  rig_side_close(&x->src);
  rig_side_close(&x->dst);
}

static void send_b(struct decode_case *x) {
  raw_send(&x->raw, x->b.p, x->b.len);
}

static void expect_reply(struct decode_case *x, int kind, struct rd2h_wire_reply *r) {
  assert_true(raw_receive(&x->raw, RIG_WAIT_MS));
  assert_int_equal(raw_reply_kind(&x->raw, r), kind);
}

/* (dspark_draft_kv, id, generation, …) of a newer version: refused at once, whatever it holds, and the peer goes on. */
static void draft_kv_is_answered(void **state) {
  (void)state;
  static const struct {
    const char *id, *generation; /* NULL: not there */
  } cases[] = {{"cmpl-7", "gen-1"}, {"cmpl-8", NULL}, {NULL, NULL}};
  struct decode_case x;
  struct rd2h_buf want = {0};
  open_case(&x, NULL);
  for (size_t i = 0; i < RD2H_COUNT(cases); i++) {
    const char *id = cases[i].id ? cases[i].id : "", *generation = cases[i].generation ? cases[i].generation : "";
    rd2h_buf_reset(&x.b);
    rd2h_mp_put_array(&x.b, 1 + !!cases[i].id + !!cases[i].generation);
    rd2h_mp_put_bin(&x.b, "dspark_draft_kv", 15);
    if (cases[i].id)
      rd2h_mp_put_str(&x.b, id, (uint32_t)strlen(id));
    if (cases[i].generation)
      rd2h_mp_put_str(&x.b, generation, (uint32_t)strlen(generation));
    send_b(&x);
    rd2h_buf_reset(&want);
    rd2h_mp_put_array(&want, 4);
    rd2h_mp_put_bin(&want, "dspark_draft_kv_ack", 19);
    rd2h_mp_put_str(&want, id, (uint32_t)strlen(id));
    rd2h_mp_put_str(&want, generation, (uint32_t)strlen(generation));
    rd2h_mp_put_bin(&want, "failed", 6);
    assert_true(raw_receive(&x.raw, RIG_WAIT_MS));
    assert_int_equal(x.raw.in.len, want.len);
    assert_memory_equal(x.raw.in.p, want.p, want.len);
  }
  rd2h_buf_free(&want);
  close_case(&x);
}

/* Versions 0 and 1 of the protocol, by the session string alone; answers come in the order of the messages. */
static void legacy_prefill(void **state) {
  (void)state;
  for (uint32_t fields = 3; fields <= 6; fields += 3) {
    struct decode_case x;
    struct rig_request r;
    struct rd2h_wire_reply w;
    char session[64];
    open_case(&x, &(struct rd2h_decode_opts){.legacy_session = true});
    snprintf(session, sizeof session, "127.0.0.1:%d", (int)getpid());
    rig_request(&r, "legacy", 4, 1, 7);
    rig_install(x.d, &r);
    raw_meta(&x.b, &x.src, session, fields);
    send_b(&x);
    expect_reply(&x, fields == 3 ? RD2H_MSG_ACK : RD2H_MSG_META_ACK, &w);
    assert_false(w.ext.present);
    for (uint32_t l = 0; l < 2; l++) {
      rig_write(&x.src, l, 9);
      raw_ready(&x.b, &x.src, l, &r, 0, 4, l == 1);
      send_b(&x);
    }
    for (uint32_t l = 0; l < 2; l++) {
      expect_reply(&x, RD2H_MSG_DONE, &w);
      assert_int_equal(w.layer_idx, l);
      assert_false(w.has_seq);
      assert_int_equal(w.n_status, 0);
    }
    assert_int_equal(rig_outcome(x.d, "legacy", NULL), RD2H_OK);
    rig_expect(&x.dst, &r, 9);
    close_case(&x);
  }
}

static void legacy_prefill_without_engine_data(void **state) {
  (void)state;
  struct decode_case x;
  struct rd2h_wire_reply w;
  open_case(&x, NULL);
  raw_meta(&x.b, &x.src, "10.0.0.1:14000", 6);
  send_b(&x);
  expect_reply(&x, RD2H_MSG_META_NAK, &w);
  assert_non_null(strstr((const char *)x.raw.in.p, "10.0.0.1:14000"));
  close_case(&x);
  open_case(&x, &(struct rd2h_decode_opts){.engine = "noop"});
  raw_meta(&x.b, &x.src, "10.0.0.1:14000", 6);
  send_b(&x);
  expect_reply(&x, RD2H_MSG_META_ACK, &w);
  close_case(&x);
}

/* Everything malformed: counted; answered where a layer index can be read; nobody else notices. */
static void Z02_malformed_messages(void **state) {
  (void)state;
  static const struct {
    const char *bytes;
    size_t n;
    bool answered;
  } bad[] = {
      {"x", 1, false},                                  /* an integer */
      {"\x90", 1, false},                               /* an empty array */
      {"\x91\xc4\x04mf_m", 7, false},                   /* cut off */
      {"\x92\xa7mf_meta\x01", 10, false},               /* tag as a str */
      {"\x91\xc4\x10read_ready_batch", 19, false},      /* no field */
      {"\x92\xc4\x10read_ready_batch\x05", 20, true},   /* a layer index alone */
      {"\x95\xc4\x10read_ready_batch\x05\x01\x90\x90", 23, true},       /* layer name an integer */
      {"\x94\xc4\x10read_ready_batch\x05\xa1l\xdd\xff\xff\xff\xff", 27, true}, /* four billion requests */
      {"\x94\xc4\x10read_ready_batch\xff\xa1l\x90", 23, false},         /* layer -1 */
      {"\x92\xc4\x09read_done\x01", 13, false},         /* a reply */
      {"ACK", 3, false},
      {"\xc1\xc1\xc1\xc1", 4, false},
  };
  static const char *const two[] = {"one", "two"};
  struct decode_case x;
  struct rd2h_wire_reply w;
  struct rd2h_decode_stats st;
  struct rig_request r;
  struct rd2h_step_send send;
  uint32_t answered = 0;
  open_case(&x, &(struct rd2h_decode_opts){.max_message_mb = 1});
  for (size_t i = 0; i < RD2H_COUNT(bad); i++) {
    raw_send(&x.raw, bad[i].bytes, bad[i].n);
    answered += bad[i].answered;
  }
  raw_send_frames(&x.raw, two, 2);
  raw_send(&x.raw, "\x92\xc4\x10read_ready_batch\x05", 20); /* its answer says that all the others have been seen */
  answered++;
  for (; answered; answered--) {
    expect_reply(&x, RD2H_MSG_FAILED, &w);
    assert_int_equal(w.layer_idx, 5);
  }
  rd2h_prefill *p = rig_prefill(&x.src, NULL); /* a good peer all the same */
  rig_request(&r, "good", 3, 0, 0);
  rig_install(x.d, &r);
  rig_write(&x.src, 0, 1);
  rig_write(&x.src, 1, 1);
  rig_send(&send, &r, rd2h_decode_port(x.d), 0, 3, true);
  rig_step(p, &send, 1, NULL);
  rig_layers(p, 2);
  assert_int_equal(rig_outcome(x.d, "good", NULL), RD2H_OK);
  rig_expect(&x.dst, &r, 1);
  rig_decode_stats(x.d, &st);
  assert_int_equal(st.malformed, RD2H_COUNT(bad) + 2);
  rd2h_prefill_destroy(p);
  close_case(&x);
}

static void refused_metadata(void **state) {
  (void)state;
  struct decode_case x;
  struct rd2h_wire_reply w;
  struct rd2h_decode_stats st;
  struct rig_request r;
  struct rig_side other;
  open_case(&x, &(struct rd2h_decode_opts){.engine = "noop"});
  raw_send(&x.raw, "\x91\xc4\x07mf_meta", 10); /* metadata without fields */
  expect_reply(&x, RD2H_MSG_META_NAK, &w);
  rig_side_open(&other, &(struct rig_shape){.layers = 1, .blocks = 32, .indexer_mask = 1});
  raw_meta(&x.b, &other, "s:1", 6); /* one layer of two */
  send_b(&x);
  expect_reply(&x, RD2H_MSG_META_NAK, &w);
  assert_true(w.text.n > 0);
  rig_request(&r, "none", 1, 0, 0);
  raw_ready(&x.b, &x.src, 0, &r, 0, 1, false); /* goes on all the same */
  send_b(&x);
  expect_reply(&x, RD2H_MSG_FAILED, &w);
  rig_decode_stats(x.d, &st);
  assert_true(st.refused_meta >= 1);
  rig_side_close(&other);
  close_case(&x);
}

/* Block ids, starts and destinations outside: the request fails by itself and no byte moves. */
static void Z03_requests_out_of_range(void **state) {
  (void)state;
  struct decode_case x;
  struct rd2h_wire_reply w;
  char session[64], text[RD2H_ERROR_TEXT];
  open_case(&x, &(struct rd2h_decode_opts){.legacy_session = true});
  snprintf(session, sizeof session, "127.0.0.1:%d", (int)getpid());
  raw_meta(&x.b, &x.src, session, 6);
  send_b(&x);
  expect_reply(&x, RD2H_MSG_META_ACK, &w);
  struct rig_request dst, bad;
  rig_request(&dst, "beyond", 2, 0, 0);
  rig_install(x.d, &dst);
  rig_request(&bad, "beyond", 4, 0, 0); /* two blocks more than Decode has for it */
  raw_ready(&x.b, &x.src, 0, &bad, 0, 4, false);
  send_b(&x);
  expect_reply(&x, RD2H_MSG_FAILED, &w);
  assert_int_equal(rig_outcome(x.d, "beyond", text), RD2H_RANGE);
  for (uint32_t b = 0; b < shape.blocks; b++)
    assert_true(rig_untouched(&x.dst, 0, b));
  close_case(&x);
}

static void oversized_message(void **state) {
  (void)state;
  struct decode_case x;
  struct rd2h_wire_reply w;
  struct raw again;
  open_case(&x, &(struct rd2h_decode_opts){.engine = "noop", .max_message_mb = 1});
  uint8_t *big = calloc(1, 2 << 20);
  raw_send(&x.raw, big, 2 << 20);
  assert_false(raw_receive(&x.raw, SOON));
  free(big);
  raw_prefill(&again, rd2h_decode_port(x.d)); /* Decode lives */
  raw_meta(&x.b, &x.src, "s:1", 3);
  raw_send(&again, x.b.p, x.b.len);
  assert_true(raw_receive(&again, RIG_WAIT_MS));
  assert_int_equal(raw_reply_kind(&again, &w), RD2H_MSG_ACK);
  raw_close(&again);
  close_case(&x);
}

/* ---- no memory at Decode ---- */
static pthread_t test_thread;
static atomic_bool no_memory;

static bool is_poor(void) {
  return no_memory && !pthread_equal(pthread_self(), test_thread);
}
static void *poor_alloc(void *user, size_t n) {
  (void)user;
  return is_poor() ? NULL : malloc(n);
}
static void *poor_realloc(void *user, void *p, size_t n) {
  (void)user;
  return is_poor() ? NULL : realloc(p, n);
}
static void poor_free(void *user, void *p) {
  (void)user;
  free(p);
}

/* A legacy peer counts its answers: each batch has its own, in order, also where there is no memory to keep or even to read it. What it
 * names ends as soon as that is known. */
static void batches_without_memory_are_answered(void **state) {
  (void)state;
  struct decode_case x;
  struct rd2h_wire_reply w;
  struct rig_request r, wide;
  char session[64], text[RD2H_ERROR_TEXT];
  test_thread = pthread_self();
  rd2h_allocator_set(&(struct rd2h_allocator){poor_alloc, poor_realloc, poor_free, NULL});
  open_case(&x, &(struct rd2h_decode_opts){.legacy_session = true});
  snprintf(session, sizeof session, "127.0.0.1:%d", (int)getpid());
  rig_request(&r, "poor", 4, 1, 7);
  rig_request(&wide, "wide", 32, 0, 0);
  rig_install(x.d, &r);
  raw_meta(&x.b, &x.src, session, 6);
  send_b(&x);
  expect_reply(&x, RD2H_MSG_META_ACK, &w);
  no_memory = true;
  raw_ready(&x.b, &x.src, 0, &r, 0, 4, false); /* can be read, not kept */
  send_b(&x);
  raw_long_ready(&x.b, 1, 100000); /* cannot even be read */
  send_b(&x);
  raw_ready(&x.b, &x.src, 0, &wide, 0, 1, false);
  send_b(&x);
  for (uint32_t i = 0; i < 3; i++) {
    expect_reply(&x, RD2H_MSG_FAILED, &w);
    assert_int_equal(w.layer_idx, i % 2);
    assert_non_null(memmem(w.text.p, w.text.n, "memory", 6));
  }
  no_memory = false;
  assert_int_equal(rig_outcome(x.d, "poor", text), RD2H_NOMEM);
  raw_ready(&x.b, &x.src, 1, &r, 0, 4, true); /* late: skipped, as if nothing had been */
  send_b(&x);
  expect_reply(&x, RD2H_MSG_DONE, &w);
  assert_int_equal(w.layer_idx, 1);
  close_case(&x);
  rd2h_allocator_set(NULL);
}

/* More connections than max_peers: those that have left make room, a living one is turned away with a reason. */
static void peers_come_and_go(void **state) {
  (void)state;
  struct decode_case x;
  struct rd2h_wire_reply w;
  struct raw second, third;
  open_case(&x, &(struct rd2h_decode_opts){.engine = "noop", .max_peers = 2});
  raw_meta(&x.b, &x.src, "s:1", 3);
  send_b(&x);
  expect_reply(&x, RD2H_MSG_ACK, &w);
  raw_prefill(&second, rd2h_decode_port(x.d));
  raw_send(&second, x.b.p, x.b.len);
  assert_true(raw_receive(&second, RIG_WAIT_MS));
  assert_int_equal(raw_reply_kind(&second, &w), RD2H_MSG_ACK);
  raw_prefill(&third, rd2h_decode_port(x.d));
  raw_send(&third, x.b.p, x.b.len);
  assert_true(raw_receive(&third, RIG_WAIT_MS));
  assert_int_equal(raw_reply_kind(&third, &w), RD2H_MSG_META_NAK);
  raw_close(&second);
  bool in = false;
  for (int tries = 0; tries < 30 && !in; tries++) { /* the sweep is made at most once a second */
    raw_send(&third, x.b.p, x.b.len);
    assert_true(raw_receive(&third, RIG_WAIT_MS));
    in = raw_reply_kind(&third, &w) == RD2H_MSG_ACK;
    if (!in)
      raw_receive(&third, 100);
  }
  assert_true(in);
  raw_close(&third);
  close_case(&x);
}

/* ---- a Prefill rank and a bare Decode ---- */
struct prefill_case {
  struct rig_side src;
  rd2h_prefill *p;
  struct raw raw;
  struct rd2h_buf b;
  struct rig_request r;
  struct rd2h_step_send send;
};

static void open_prefill(struct prefill_case *x, struct rd2h_prefill_opts o, bool answer_meta) {
  *x = (struct prefill_case){0};
  o.settle_ms = o.settle_ms ? o.settle_ms : 1;
  rig_side_open(&x->src, &shape);
  raw_decode(&x->raw, NULL);
  x->p = rig_prefill(&x->src, &o);
  rig_request(&x->r, "r", 4, 0, 0);
  rig_send(&x->send, &x->r, x->raw.port, 0, 4, true);
  x->send.has_attempt = false;
  rig_step(x->p, &x->send, 1, NULL);
  rig_layers(x->p, 2);
  assert_true(raw_receive(&x->raw, RIG_WAIT_MS));
  assert_int_equal(rd2h_wire_kind(x->raw.in.p, x->raw.in.len), RD2H_MSG_META);
  if (answer_meta) {
    rd2h_wire_encode_ack(&x->b);
    raw_send(&x->raw, x->b.p, x->b.len);
  }
}

static void close_prefill(struct prefill_case *x) {
  rd2h_prefill_destroy(x->p);
  raw_close(&x->raw);
  rd2h_buf_free(&x->b);
  rig_side_close(&x->src);
}

static void expect_ready(struct prefill_case *x, uint32_t layer, uint32_t n_reqs, uint32_t n_done) {
  struct rd2h_arena a = {0};
  struct rd2h_wire_ready m;
  struct rd2h_error err = {0};
  uint32_t idx;
  assert_true(raw_receive(&x->raw, RIG_WAIT_MS));
  rd2h_arena_reserve(&a, rd2h_wire_arena_need(x->raw.in.len));
  RIG_OK(rd2h_wire_decode_ready(x->raw.in.p, x->raw.in.len, &a, &m, &idx, &err), &err);
  assert_int_equal(m.layer_idx, layer);
  assert_int_equal(m.n_reqs, n_reqs);
  assert_int_equal(m.n_done, n_done);
  assert_false(m.has_seq);
  rd2h_arena_free(&a);
}

static void answer_done(struct prefill_case *x, uint32_t layer) {
  rd2h_buf_reset(&x->b);
  rd2h_wire_encode_done(&x->b, layer, NULL, NULL, 0);
  raw_send(&x->raw, x->b.p, x->b.len);
}

static void expect_open(struct prefill_case *x) {
  struct rd2h_error err = {0};
  for (uint32_t l = 0; l < 2; l++)
    assert_int_equal(rd2h_prefill_wait_layer(x->p, l, RIG_WAIT_MS, &err), RD2H_OK);
}

/* Done comes as a message of its own, once everything before it was answered. */
static void legacy_decode(void **state) {
  (void)state;
  struct prefill_case x;
  struct rd2h_error err = {0};
  open_prefill(&x, (struct rd2h_prefill_opts){0}, true);
  expect_ready(&x, 0, 1, 0);
  expect_ready(&x, 1, 1, 0);
  assert_false(raw_receive(&x.raw, SOON)); /* no done before the answers */
  assert_int_equal(rd2h_prefill_wait_layer(x.p, 0, 20, &err), RD2H_TIMEOUT);
  answer_done(&x, 0);
  answer_done(&x, 1);
  expect_open(&x);
  expect_ready(&x, 1, 0, 1);
  rig_step(x.p, NULL, 0, "r");
  answer_done(&x, 1);
  assert_int_equal(rig_settled(x.p, "r"), RD2H_OK);
  close_prefill(&x);
}

static void no_acknowledgement(void **state) {
  (void)state;
  struct prefill_case x;
  open_prefill(&x, (struct rd2h_prefill_opts){.handshake_ms = 150}, false);
  expect_open(&x);
  rig_step(x.p, NULL, 0, "r");
  assert_int_equal(rig_settled(x.p, "r"), RD2H_TIMEOUT);
  close_prefill(&x);
}

static void wrong_acknowledgement(void **state) {
  (void)state;
  struct prefill_case x;
  open_prefill(&x, (struct rd2h_prefill_opts){0}, false);
  raw_send(&x.raw, "NACK", 4);
  expect_open(&x);
  rig_step(x.p, NULL, 0, "r");
  assert_int_equal(rig_settled(x.p, "r"), RD2H_MALFORMED);
  close_prefill(&x);
}

static void wrong_reply(void **state) {
  (void)state;
  struct prefill_case x;
  open_prefill(&x, (struct rd2h_prefill_opts){0}, true);
  expect_ready(&x, 0, 1, 0);
  answer_done(&x, 1); /* the first answer must be the first layer's */
  expect_open(&x);
  rig_step(x.p, NULL, 0, "r");
  assert_true(rig_settled(x.p, "r") != RD2H_OK);
  close_prefill(&x);
}

static void L07_reader_never_answers(void **state) {
  (void)state;
  struct prefill_case x;
  struct rd2h_prefill_stats st;
  open_prefill(&x, (struct rd2h_prefill_opts){.hold_ms = 150}, true);
  expect_ready(&x, 0, 1, 0);
  expect_open(&x);
  rig_step(x.p, NULL, 0, "r");
  assert_int_equal(rig_settled(x.p, "r"), RD2H_TIMEOUT);
  rd2h_prefill_stats(x.p, &st);
  assert_true(st.given_up > 0);
  close_prefill(&x);
}

/* One reader that answers nothing may not make Prefill hoard messages. */
static void queue_is_capped(void **state) {
  (void)state;
  struct prefill_case x;
  struct rd2h_prefill_stats st = {0};
  static uint32_t ids[200000];
  open_prefill(&x, (struct rd2h_prefill_opts){.max_queue_bytes_mb = 1}, true);
  x.send.main = x.send.indexer = ids;
  x.send.n_main = x.send.n_indexer = 200000; /* 400 kB a message */
  x.send.last = false;
  for (int i = 0; i < 3 && !st.epochs_lost; i++) {
    rig_step(x.p, &x.send, 1, NULL);
    rig_layers(x.p, 2);
    if (i == 2)
      expect_open(&x);
    rd2h_prefill_stats(x.p, &st);
  }
  rig_step(x.p, NULL, 0, "r");
  assert_true(rig_settled(x.p, "r") != RD2H_OK);
  rd2h_prefill_stats(x.p, &st);
  assert_true(st.epochs_lost > 0);
  close_prefill(&x);
}

static void nobody_listens(void **state) {
  (void)state;
  struct prefill_case x = {0};
  rig_side_open(&x.src, &shape);
  raw_decode(&x.raw, NULL);
  uint16_t port = x.raw.port;
  raw_close(&x.raw);
  x.p = rig_prefill(&x.src, &(struct rd2h_prefill_opts){.settle_ms = 1});
  rig_request(&x.r, "r", 4, 0, 0);
  rig_send(&x.send, &x.r, port, 0, 4, true);
  rig_step(x.p, &x.send, 1, NULL);
  rig_layers(x.p, 2);
  expect_open(&x);
  rig_step(x.p, NULL, 0, "r");
  assert_int_equal(rig_settled(x.p, "r"), RD2H_PEER_LOST);
  rd2h_prefill_destroy(x.p);
  rig_side_close(&x.src);
}

/* ---- who sends on and on ---- */
#define MAX_UNREAD (1u << 19) /* of a connection, in either role */
#define IN_TRANSIT (1u << 19) /* no more small messages than that lie in TCP's buffers and in the sender's queue */

/* The other thread that writes a line next is held up until the test lets it go on. */
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool armed, held_up;
static void hold_up(void *user, int level, const char *line) {
  (void)user;
  (void)level;
  (void)line;
  if (pthread_equal(pthread_self(), test_thread) || !atomic_exchange(&armed, false))
    return;
  held_up = true;
  pthread_mutex_lock(&gate);
  pthread_mutex_unlock(&gate);
}

static void hold_up_next(void) {
  held_up = false;
  pthread_mutex_lock(&gate);
  armed = true;
}

static void wait_held_up(void) {
  for (uint64_t until = rd2h_now_ns() + RIG_WAIT_MS * RD2H_MS; !held_up && rd2h_now_ns() < until;)
    usleep(1000);
  assert_true(held_up);
}

static bool try_send(const struct raw *r) {
  if (r->port && zmq_send(r->socket, r->from, r->from_n, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0)
    return false;
  return zmq_send(r->socket, "no message that anybody knows", 29, ZMQ_DONTWAIT) >= 0;
}

/* Sends until the other side takes no more for a while: as much as one connection may leave unread, not what memory holds. */
static void flood(const struct raw *r) {
  uint32_t sent = 0, limit = MAX_UNREAD + IN_TRANSIT;
  for (uint32_t refused = 0; sent <= limit && refused < SOON;) {
    bool ok = try_send(r);
    sent += ok;
    refused = ok ? 0 : refused + 1;
    if (!ok)
      usleep(1000);
  }
  assert_in_range(sent, MAX_UNREAD, limit);
}

static void decode_is_flooded(void **state) {
  (void)state;
  struct decode_case x;
  test_thread = pthread_self();
  rd2h_log_set(hold_up, NULL, RD2H_LOG_WARN);
  open_case(&x, NULL);
  hold_up_next();
  raw_send(&x.raw, "x", 1); /* malformed: a line of the log */
  wait_held_up();
  flood(&x.raw);
  pthread_mutex_unlock(&gate);
  close_case(&x);
  rd2h_log_set(NULL, NULL, 0);
}

static void prefill_is_flooded(void **state) {
  (void)state;
  struct prefill_case x;
  struct raw mute;
  struct rig_request other;
  int one = 1;
  test_thread = pthread_self();
  rd2h_log_set(hold_up, NULL, RD2H_LOG_INFO);
  open_prefill(&x, (struct rd2h_prefill_opts){.handshake_ms = 500}, true);
  expect_ready(&x, 0, 1, 0);
  zmq_setsockopt(x.raw.socket, ZMQ_ROUTER_MANDATORY, &one, sizeof one);
  raw_decode(&mute, NULL);
  hold_up_next();
  rig_request(&other, "other", 4, 0, 0);
  rig_send(&x.send, &other, mute.port, 0, 4, true); /* never acknowledged: a line of the log, by the sender thread's clock */
  rig_step(x.p, &x.send, 1, NULL);
  rig_layers(x.p, 2);
  wait_held_up();
  flood(&x.raw);
  pthread_mutex_unlock(&gate);
  close_prefill(&x);
  raw_close(&mute);
  rd2h_log_set(NULL, NULL, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(draft_kv_is_answered),
      cmocka_unit_test(legacy_prefill),
      cmocka_unit_test(legacy_prefill_without_engine_data),
      cmocka_unit_test(Z02_malformed_messages),
      cmocka_unit_test(refused_metadata),
      cmocka_unit_test(Z03_requests_out_of_range),
      cmocka_unit_test(oversized_message),
      cmocka_unit_test(peers_come_and_go),
      cmocka_unit_test(legacy_decode),
      cmocka_unit_test(no_acknowledgement),
      cmocka_unit_test(wrong_acknowledgement),
      cmocka_unit_test(wrong_reply),
      cmocka_unit_test(L07_reader_never_answers),
      cmocka_unit_test(queue_is_capped),
      cmocka_unit_test(nobody_listens),
      cmocka_unit_test(batches_without_memory_are_answered),
      cmocka_unit_test(decode_is_flooded),
      cmocka_unit_test(prefill_is_flooded),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
