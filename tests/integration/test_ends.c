/* SPDX-License-Identifier: Apache-2.0 */
/* How connections end: who is told what, what stays behind, what a restart needs. */
#include "tests/integration/raw.h"
#include <setjmp.h>
#include <cmocka.h>
#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <zmq.h>

static const struct rig_shape shape = {.layers = 2, .blocks = 64, .indexer_mask = 2};

/* ---- a refused Prefill tells which requests need not be waited for ---- */
#define MANY 3000u

static uint32_t count_cancels(struct raw *raw) {
  uint32_t n = 0;
  while (raw_receive(raw, 3000))
    if (rd2h_wire_kind(raw->in.p, raw->in.len) == RD2H_MSG_CANCEL && ++n == MANY)
      break;
  return n;
}

/* More than the sockets' buffers hold, and Decode reads slowly: all of it still arrives. */
static void refused_prefill_tells(void **state) {
  (void)state;
  static struct rd2h_step_send send[MANY];
  static char id[MANY][1001];
  struct rig_side src;
  struct raw raw;
  struct rig_request r;
  struct rd2h_buf b = {0};
  int one = 1, little = 65536;
  rig_side_open(&src, &shape);
  raw_decode(&raw, (const int[][2]){{ZMQ_RCVHWM, one}, {ZMQ_RCVBUF, little}, {0, 0}});
  rd2h_prefill *p = rig_prefill(&src, NULL);
  rig_request(&r, "r", 4, 0, 0);
  for (uint32_t i = 0; i < MANY; i++) {
    memset(id[i], 'x', 1000);
    id[i][snprintf(id[i], 16, "%u", i)] = 'x';
    r.id = r.ext = id[i];
    rig_send(&send[i], &r, raw.port, 0, 4, true);
  }
  rig_step(p, send, MANY, NULL);
  rig_layers(p, 2);
  assert_true(raw_receive(&raw, RIG_WAIT_MS));
  rd2h_wire_encode_meta_nak(&b, "layouts differ");
  raw_send(&raw, b.p, b.len);
  struct rd2h_error err = {0};
  assert_int_equal(rd2h_prefill_wait_layer(p, 0, RIG_WAIT_MS, &err), RD2H_OK); /* the connection is closed by now */
  assert_int_equal(count_cancels(&raw), MANY);
  rd2h_prefill_destroy(p);
  raw_close(&raw);
  rd2h_buf_free(&b);
  rig_side_close(&src);
}

/* ---- state for people ---- */
static void shows(const char *text, const char *what) {
  if (!strstr(text, what))
    fail_msg("\"%s\" is not in:\n%s", what, text);
}

static atomic_bool waits;

static void *wait_in_vain(void *prefill) {
  struct rd2h_error err;
  RIG_CHECK(rd2h_prefill_wait_layer(prefill, 0, 1500, &err) == RD2H_TIMEOUT);
  waits = false;
  return NULL;
}

/* The caller's thread waits for a reader and does the sender's work meanwhile: it answers, too. */
static void shows_while_the_caller_waits(rd2h_prefill *p, char *text, size_t cap) {
  pthread_t thread;
  waits = true;
  assert_int_equal(pthread_create(&thread, NULL, wait_in_vain, p), 0);
  nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL); /* until it waits */
  rd2h_prefill_dump(p, text, cap);
  assert_true(waits);
  pthread_join(thread, NULL);
  shows(text, "  storage kept for 127.0.0.1:");
}

#define ASKERS 8
#define ROUNDS 20

static pthread_barrier_t all_ask;

static void *ask(void *decode) {
  char text[256];
  pthread_barrier_wait(&all_ask);
  struct rd2h_peers peers;
  rd2h_decode_peers(decode, 0, &peers);
  rd2h_decode_dump(decode, text, sizeof text);
  RIG_CHECK(rd2h_decode_peers(decode, RIG_WAIT_MS, &peers) == RD2H_OK);
  return NULL;
}

/* Questions that come while an earlier one is answered: a rank that has answered them all sleeps. */
static void asking_keeps_nobody_awake(void **state) {
  (void)state;
  struct rig_side dst;
  pthread_t thread[ASKERS];
  clock_t awake = 0;
  pthread_barrier_init(&all_ask, NULL, ASKERS);
  rig_side_open(&dst, &shape);
  rd2h_decode *d = rig_decode(&dst, &(struct rd2h_decode_opts){.engine = "noop"});
  for (int round = 0; round < ROUNDS; round++) {
    for (int i = 0; i < ASKERS; i++)
      assert_int_equal(pthread_create(&thread[i], NULL, ask, d), 0);
    for (int i = 0; i < ASKERS; i++)
      pthread_join(thread[i], NULL);
    clock_t begin = clock();
    nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    awake += clock() - begin;
  }
  assert_true(awake < ROUNDS * CLOCKS_PER_SEC / 1000);
  pthread_barrier_destroy(&all_ask);
  rd2h_decode_destroy(d);
  rig_side_close(&dst);
}

/* One Prefill rank waits for an answer, of which Decode waits for a request that it has begun and one that nobody has. */
static void rows_of_both(rd2h_prefill *p, rd2h_decode *d) {
  struct rd2h_peers peers;
  struct rig_request r;
  char port[8];
  rig_request(&r, "early", 4, 0, 8);
  rig_install(d, &r);
  assert_int_equal(rd2h_decode_peers(d, RIG_WAIT_MS, &peers), RD2H_OK);
  assert_int_equal(peers.n_transports, 1);
  assert_string_equal(peers.transport[0].engine, "noop");
  assert_string_equal(peers.transport[0].way, "");
  assert_int_equal(peers.transport[0].peers, 1);
  assert_int_equal(peers.connected, 1);
  assert_int_equal(peers.n_waits, 2);
  assert_int_equal(peers.awaited, 2);
  shows(peers.wait[0].peer, "127.0.0.1:"); /* which was installed earlier */
  assert_string_equal(peers.wait[1].peer, "");
  assert_true(peers.wait[0].waiting == 1 && peers.wait[1].waiting == 1);
  assert_true(peers.wait[0].wait_ms < RIG_WAIT_MS);
  assert_int_equal(rd2h_decode_abort(d, "early"), RD2H_OK);
  assert_int_equal(rig_outcome(d, "early", NULL), RD2H_ABORTED);
  assert_int_equal(rd2h_prefill_peers(p, RIG_WAIT_MS, &peers), RD2H_OK);
  assert_int_equal(peers.n_transports, 0);
  assert_int_equal(peers.connected, 1);
  assert_int_equal(peers.n_waits, 1);
  snprintf(port, sizeof port, ":%u", rd2h_decode_port(d));
  shows(peers.wait[0].peer, port);
  assert_int_equal(peers.wait[0].waiting, 1);
}

/* What waits for whom can be asked for while it waits. */
static void state_of_both(void **state) {
  (void)state;
  static char text[1 << 16];
  struct rig_side src, dst;
  struct rig_request r;
  struct rd2h_step_send send;
  struct rd2h_prefill_stats ps;
  struct rd2h_decode_stats ds;
  rig_side_open(&src, &shape);
  rig_side_open(&dst, &shape);
  rd2h_decode *d = rig_decode(&dst, &(struct rd2h_decode_opts){.engine = "fault:noop,hang_every=1", .park_ms = 60000});
  rd2h_prefill *p = rig_prefill(&src, &(struct rd2h_prefill_opts){.engine = "noop", .settle_ms = 1});
  rig_request(&r, "stuck", 4, 0, 0);
  rig_send(&send, &r, rd2h_decode_port(d), 0, 4, true);
  rig_step(p, &send, 1, NULL);
  rig_layers(p, 1);
  do /* until the message has arrived and is parked */
    rd2h_decode_dump(d, text, sizeof text);
  while (!strstr(text, "waits for destinations"));
  shows(text, "decode rank 0 of 1 at 127.0.0.1:");
  shows(text, "1 messages parked");
  shows(text, "ready, ours, stage 0 of 1: 1 batches open");
  rig_install(d, &r);
  do
    rd2h_decode_dump(d, text, sizeof text);
  while (!strstr(text, "is read"));
  shows(text, "request stuck (stuck): is received");
  shows(text, "1 reads open, 0 of 1 contributors done, 4 main and 4 indexer blocks");
  rows_of_both(p, d);
  assert_int_equal(rd2h_decode_abort(d, "stuck"), RD2H_OK);
  do
    rd2h_decode_dump(d, text, sizeof text);
  while (!strstr(text, "quarantined after ABORTED"));
  rd2h_decode_stats(d, &ds);
  assert_int_equal(ds.quarantined, 1);
  assert_int_equal(ds.quarantined_blocks, 8);
  assert_int_equal(ds.oldest_wait_ms, 0);
  struct rd2h_peers peers;
  assert_int_equal(rd2h_decode_peers(d, RIG_WAIT_MS, &peers), RD2H_OK);
  assert_int_equal(peers.awaited, 0);
  size_t n = rd2h_prefill_dump(p, text, sizeof text);
  assert_int_equal(n, strlen(text));
  shows(text, "prefill rank 0 of 1, stage 0 of 1");
  shows(text, "1 of 3 storage slots closed");
  shows(text, "  storage kept for 127.0.0.1:");
  shows(text, ": 1 messages unanswered, the oldest for ");
  shows(text, "request stuck (stuck) for 127.0.0.1:");
  char little[8] = "xxxxxxx";
  assert_int_equal(rd2h_prefill_dump(p, little, sizeof little) > sizeof little, true);
  assert_string_equal(little, "prefill");
  rd2h_prefill_stats(p, &ps);
  assert_true(ps.oldest_wait_ms < RIG_WAIT_MS);
  shows_while_the_caller_waits(p, text, sizeof text);
  rd2h_prefill_destroy(p);
  rd2h_decode_destroy(d);
  rig_side_close(&src);
  rig_side_close(&dst);
}

/* ---- restarts ---- */
static void transfer(rd2h_prefill *p, struct rig_side *src, rd2h_decode *d, struct rig_side *dst, const char *engine,
                     const char *id) {
  struct rig_request r;
  struct rd2h_step_send send;
  rig_request(&r, id, 12, 0, 0);
  for (uint32_t l = 0; l < shape.layers; l++)
    rig_write(src, l, 1);
  rig_install(d, &r);
  rig_send(&send, &r, rd2h_decode_port(d), 0, 12, true);
  send.engine_id = (struct rd2h_str){engine, (uint32_t)strlen(engine)}; /* a process has its own, as the rendezvous says */
  rig_step(p, &send, 1, NULL);
  rig_layers(p, 2);
  assert_int_equal(rig_outcome(d, id, NULL), RD2H_OK);
  rig_step(p, NULL, 0, id);
  assert_int_equal(rig_settled(p, id), RD2H_OK);
  rig_expect(dst, &r, 1);
}

/* Decode, then Prefill, each again at its address, with a request of the old one still open: the next request finds the new one. */
static void D02_D03_restart_of_either(void **state) {
  (void)state;
  struct rig_side src, dst;
  struct rig_request r;
  struct rd2h_step_send send;
  rig_side_open(&src, &shape);
  rig_side_open(&dst, &shape);
  rd2h_decode *d = rig_decode(&dst, NULL);
  rd2h_prefill *p = rig_prefill(&src, NULL);
  transfer(p, &src, d, &dst, "decode-1", "one");
  rig_request(&r, "left", 4, 0, 0);
  rig_send(&send, &r, rd2h_decode_port(d), 0, 2, false);
  rig_install(d, &r);
  rig_step(p, &send, 1, NULL);
  rig_layers(p, 2);
  uint16_t port = rd2h_decode_port(d);
  rd2h_decode_destroy(d);
  d = rig_decode(&dst, &(struct rd2h_decode_opts){.port = port});
  transfer(p, &src, d, &dst, "decode-2", "two");
  rig_step(p, NULL, 0, "left");
  assert_int_equal(rig_settled(p, "left"), RD2H_PEER_LOST);
  rig_request(&r, "cut", 4, 0, 0);
  rig_send(&send, &r, port, 0, 2, false);
  send.engine_id = (struct rd2h_str){"decode-2", 8};
  rig_install(d, &r);
  rig_step(p, &send, 1, NULL);
  rig_layers(p, 2);
  struct rd2h_error err = {0};
  for (uint32_t l = 0; l < 2; l++)
    assert_int_equal(rd2h_prefill_wait_layer(p, l, RIG_WAIT_MS, &err), RD2H_OK);
  rd2h_prefill_destroy(p);
  p = rig_prefill(&src, NULL);
  transfer(p, &src, d, &dst, "decode-2", "three");
  assert_int_equal(rig_outcome(d, "cut", NULL), RD2H_PEER_LOST);
  rd2h_prefill_destroy(p);
  rd2h_decode_destroy(d);
  rig_side_close(&src);
  rig_side_close(&dst);
}

/* ---- a thousand readers that died ---- */
static uint32_t open_files(void) {
  uint32_t n = 0;
  DIR *dir = opendir("/proc/self/fd");
  while (readdir(dir))
    n++;
  closedir(dir);
  return n;
}

static void files_fall_to(uint32_t most) {
  for (int i = 0; i < 500 && open_files() > most; i++)
    poll(NULL, 0, 10);
  assert_true(open_files() <= most);
}

static void thousand_dead_endpoints(void **state) {
  (void)state;
  enum { DEAD = 1000, AT_ONCE = 50 };
  static char id[AT_ONCE][16];
  struct rig_side src;
  struct rd2h_step_send send[AT_ONCE];
  struct rig_request r;
  struct rd2h_prefill_stats st;
  struct rd2h_error err = {0};
  rig_side_open(&src, &shape);
  struct raw raw;
  raw_decode(&raw, NULL); /* its port stays ours, so that nobody listens at the addresses below */
  rd2h_prefill *p = rig_prefill(&src, &(struct rd2h_prefill_opts){.engine = "noop", .idle_ms = 300});
  uint32_t files = open_files();
  for (uint32_t done = 0; done < DEAD; done += AT_ONCE) {
    for (uint32_t i = 0; i < AT_ONCE; i++) {
      snprintf(id[i], sizeof id[i], "r%u", done + i);
      rig_request(&r, id[i], 2, 0, 0);
      rig_send(&send[i], &r, raw.port, 0, 2, true);
      char *host = malloc(20);
      snprintf(host, 20, "127.1.%u.%u", (done + i) / 200, (done + i) % 200 + 1);
      send[i].host = (struct rd2h_str){host, (uint32_t)strlen(host)};
    }
    rig_step(p, send, AT_ONCE, NULL);
    rig_layers(p, 2);
    for (uint32_t l = 0; l < 2; l++)
      assert_int_equal(rd2h_prefill_wait_layer(p, l, RIG_WAIT_MS, &err), RD2H_OK);
    for (uint32_t i = 0; i < AT_ONCE; i++) {
      rig_step(p, NULL, 0, id[i]);
      assert_int_equal(rig_settled(p, id[i]), RD2H_PEER_LOST);
      free((void *)(uintptr_t)send[i].host.p);
    }
    files_fall_to(files + 4 * AT_ONCE); /* they close on a thread of the socket library */
  }
  do { /* idle ones are forgotten, with their sockets */
    poll(NULL, 0, 20);
    rd2h_prefill_stats(p, &st);
  } while (st.endpoints);
  files_fall_to(files + 8); /* 8: the library's own of its first socket */
  assert_true(st.epochs >= DEAD);
  rd2h_prefill_destroy(p);
  raw_close(&raw);
  rig_side_close(&src);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(refused_prefill_tells), cmocka_unit_test(state_of_both),
                                     cmocka_unit_test(asking_keeps_nobody_awake),
                                     cmocka_unit_test(D02_D03_restart_of_either), cmocka_unit_test(thousand_dead_endpoints)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
