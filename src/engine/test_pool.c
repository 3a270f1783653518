/* SPDX-License-Identifier: Apache-2.0 */
/* The thread pool in front of an engine whose reads do what the test says. */
#include "engine/engine.h"
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sched.h>
#include <time.h>
#include <cmocka.h>

#define WAIT_MS 10000
#define LOG_MAX 2048u
#define PEERS_MAX 40u

/* What a read does, by its batch's `n`. */
enum { QUICK, AT_GATE, FAILS, DEAF_AT_GATE };

struct rd2h_peer {
  uint64_t cookie;
  int inside; /* reads of this peer that run now */
};
static struct {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  bool gate_open;
  uint32_t begun, n_log, overlaps, peers;
  struct {
    uint64_t cookie, id;
  } log[LOG_MAX];
} world = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static int script_open(const struct rd2h_host *h, const struct rd2h_engine_opts *o, rd2h_engine **e,
                       struct rd2h_engine_caps *caps, struct rd2h_error *err) {
  (void)h, (void)o, (void)err;
  *e = (rd2h_engine *)&world;
  *caps = (struct rd2h_engine_caps){.flags = RD2H_ENG_BLOCKS | RD2H_ENG_CANCEL, .max_inflight_per_peer = 40};
  return RD2H_OK;
}

static void script_close(rd2h_engine *e) {
  (void)e;
  assert_int_equal(world.peers, 0);
}

static int script_connect(rd2h_engine *e, struct rd2h_blob session, struct rd2h_blob conn, uint64_t cookie, rd2h_peer **p,
                          struct rd2h_error *err) {
  (void)e, (void)session, (void)conn, (void)err;
  *p = rd2h_zalloc(sizeof **p);
  (*p)->cookie = cookie;
  world.peers++;
  return RD2H_OK;
}

static void script_disconnect(rd2h_engine *e, rd2h_peer *p) {
  (void)e;
  assert_int_equal(p->inside, 0);
  world.peers--;
  rd2h_free(p);
}

/* Waits for the gate with the stop flag looked at every ms; a deaf read does not look. */
static int wait_gate(const volatile bool *stop, bool deaf) {
  struct timespec until;
  while (!world.gate_open) {
    if (!deaf && __atomic_load_n(stop, __ATOMIC_RELAXED))
      return RD2H_CANCELED;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&world.changed, &world.lock, &until);
  }
  return RD2H_OK;
}

static int script_read(rd2h_engine *e, rd2h_peer *p, const struct rd2h_batch *b, const volatile bool *stop, uint64_t *done,
                       uint32_t *failed_at, struct rd2h_error *err) {
  int rc = RD2H_OK;
  (void)e;
  pthread_mutex_lock(&world.lock);
  world.overlaps += p->inside++ > 0;
  world.log[world.n_log].cookie = p->cookie;
  world.log[world.n_log++].id = b->id;
  world.begun++;
  pthread_cond_broadcast(&world.changed);
  if (b->n == AT_GATE || b->n == DEAF_AT_GATE)
    rc = wait_gate(stop, b->n == DEAF_AT_GATE);
  p->inside--;
  pthread_mutex_unlock(&world.lock);
  *done = b->bytes;
  *failed_at = b->n == FAILS ? 7 : UINT32_MAX;
  return b->n == FAILS ? rd2h_fail(err, RD2H_IO, "read %llu went wrong", (unsigned long long)b->id) : rc;
}

static const struct rd2h_engine_ops script = {
  .abi = RD2H_ENGINE_ABI, .size = sizeof script, .name = "script", .open = script_open, .close = script_close,
  .connect = script_connect, .disconnect = script_disconnect, .read = script_read,
};

static rd2h_eng *open_pool_for(uint32_t threads, uint64_t read_timeout_ms) {
  struct rd2h_engine_opts o = {.size = sizeof o, .threads = threads, .read_timeout_ns = read_timeout_ms * RD2H_MS};
  rd2h_eng *e = NULL;
  world.gate_open = false;
  world.begun = world.n_log = world.overlaps = 0;
  assert_int_equal(rd2h_eng_open_ops(&script, &o, &e, NULL), RD2H_OK);
  return e;
}

static rd2h_eng *open_pool(uint32_t threads) {
  return open_pool_for(threads, 0);
}

static rd2h_eng_peer *add_peer(rd2h_eng *e, uint64_t cookie) {
  rd2h_eng_peer *p = NULL;
  assert_int_equal(rd2h_eng_connect(e, (struct rd2h_blob){0}, (struct rd2h_blob){0}, cookie, &p, NULL), RD2H_OK);
  return p;
}

static struct rd2h_batch batches[LOG_MAX];

/* So many bytes may take long: a peer is not slow when its read waits at the gate. */
static uint64_t bytes_of_a_read = UINT64_C(1) << 40;

static int submit(rd2h_eng *e, rd2h_eng_peer *p, uint64_t id, uint32_t what) {
  static void *const local[DEAF_AT_GATE];
  static const uint64_t nothing[DEAF_AT_GATE];
  batches[id] = (struct rd2h_batch){.id = id, .n = what, .bytes = bytes_of_a_read, .local = local, .remote = nothing, .len = nothing};
  return rd2h_eng_submit(e, p, &batches[id]);
}

static void collect(rd2h_eng *e, struct rd2h_completion *c, int n) {
  struct pollfd fd = {.fd = rd2h_eng_fd(e), .events = POLLIN};
  for (int got = 0; got < n;) {
    assert_int_equal(poll(&fd, 1, WAIT_MS), 1);
    got += rd2h_eng_poll(e, c + got, n - got);
  }
}

static void open_gate(void) {
  pthread_mutex_lock(&world.lock);
  world.gate_open = true;
  pthread_cond_broadcast(&world.changed);
  pthread_mutex_unlock(&world.lock);
}

static void wait_begun(uint32_t n) {
  pthread_mutex_lock(&world.lock);
  while (world.begun < n)
    pthread_cond_wait(&world.changed, &world.lock);
  pthread_mutex_unlock(&world.lock);
}

/* One thread, a peer with a long queue, then one with a short queue: they take turns. */
static void busy_peer_does_not_starve_others(void **state) {
  struct rd2h_completion c[13];
  rd2h_eng *e = open_pool(1);
  rd2h_eng_peer *busy = add_peer(e, 1), *other = add_peer(e, 2);
  (void)state;
  for (uint64_t i = 0; i < 10; i++)
    assert_int_equal(submit(e, busy, i, i ? QUICK : AT_GATE), RD2H_OK);
  wait_begun(1);
  for (uint64_t i = 10; i < 13; i++)
    assert_int_equal(submit(e, other, i, QUICK), RD2H_OK);
  open_gate();
  collect(e, c, 13);
  static const uint64_t order[] = {0, 10, 1, 11, 2, 12, 3, 4, 5, 6, 7, 8, 9};
  for (uint32_t i = 0; i < RD2H_COUNT(order); i++) {
    assert_int_equal(world.log[i].id, order[i]);
    assert_int_equal(c[i].id, order[i]);
  }
  rd2h_eng_close(e);
}

static void one_read_a_peer_in_order(void **state) {
  enum { PEERS = 3, EACH = 200 };
  struct rd2h_completion c;
  uint64_t sent[PEERS] = {0}, ended[PEERS] = {0};
  rd2h_eng_peer *p[PEERS];
  rd2h_eng *e = open_pool(4);
  (void)state;
  for (uint64_t i = 0; i < PEERS; i++)
    p[i] = add_peer(e, i);
  for (uint32_t total = 0; total < PEERS * EACH; total++) {
    for (uint64_t i = 0; i < PEERS; i++)
      while (sent[i] < EACH && submit(e, p[i], i * EACH + sent[i], QUICK) == RD2H_OK)
        sent[i]++;
    collect(e, &c, 1);
    assert_int_equal(c.id % EACH, ended[c.id / EACH]++);
  }
  assert_int_equal(world.overlaps, 0);
  rd2h_eng_close(e);
}

static void a_full_queue_says_again(void **state) {
  struct rd2h_completion c;
  rd2h_eng *e = open_pool(1);
  rd2h_eng_peer *p = add_peer(e, 1), *q = add_peer(e, 2);
  (void)state;
  for (uint64_t i = 0; i < 40; i++)
    assert_int_equal(submit(e, p, i, QUICK), RD2H_OK);
  assert_int_equal(submit(e, p, 40, QUICK), RD2H_AGAIN);
  assert_int_equal(submit(e, q, 41, QUICK), RD2H_OK);
  collect(e, &c, 1);
  if (c.id == 41)
    collect(e, &c, 1);
  assert_int_equal(submit(e, p, 40, QUICK), RD2H_OK);
  assert_int_equal(submit(e, p, 42, QUICK), RD2H_AGAIN);
  rd2h_eng_close(e);
}

/* The bound over all peers holds, too, and everything that was taken still completes once. */
static void the_pool_is_bounded(void **state) {
  uint32_t seen[LOG_MAX] = {0}, taken = 0;
  struct rd2h_completion c;
  rd2h_eng *e = open_pool(2);
  rd2h_eng_peer *p[PEERS_MAX];
  (void)state;
  for (uint64_t i = 0; i < PEERS_MAX; i++) {
    p[i] = add_peer(e, i);
    for (int k = 0; k < 40 && submit(e, p[i], taken, QUICK) == RD2H_OK; k++)
      taken++;
  }
  assert_int_equal(taken, 1024);
  for (uint32_t i = 0; i < taken; i++) {
    collect(e, &c, 1);
    assert_int_equal(seen[c.id]++, 0);
  }
  assert_int_equal(rd2h_eng_poll(e, &c, 1), 0);
  rd2h_eng_close(e);
}

static void cancel_ends_queued_and_running(void **state) {
  struct rd2h_completion c[3];
  struct rd2h_engine_stats s;
  rd2h_eng *e = open_pool(1);
  rd2h_eng_peer *p = add_peer(e, 1);
  (void)state;
  for (uint64_t i = 0; i < 3; i++)
    assert_int_equal(submit(e, p, i, AT_GATE), RD2H_OK);
  wait_begun(1);
  rd2h_eng_cancel(e, 1);
  collect(e, c, 1);
  assert_int_equal(c[0].id, 1);
  assert_int_equal(c[0].status, RD2H_CANCELED);
  assert_int_equal(c[0].bytes, 0);
  rd2h_eng_cancel(e, 1);
  rd2h_eng_cancel(e, 0);
  collect(e, c, 1);
  assert_int_equal(c[0].id, 0);
  assert_int_equal(c[0].status, RD2H_CANCELED);
  open_gate();
  collect(e, c, 1);
  assert_int_equal(c[0].id, 2);
  assert_int_equal(c[0].status, RD2H_OK);
  assert_int_equal(world.n_log, 2);
  rd2h_eng_stats(e, &s);
  assert_int_equal(s.reads, 3);
  assert_int_equal(s.canceled, 2);
  assert_int_equal(s.failures, 0);
  rd2h_eng_close(e);
}

static void *open_gate_later(void *arg) {
  struct timespec ms = {.tv_nsec = 30000000};
  (void)arg;
  nanosleep(&ms, NULL);
  open_gate();
  return NULL;
}

/* A read that does not hear of the stop: disconnect returns after it, not before; what was queued is never read. */
static void disconnect_waits_for_the_read(void **state) {
  struct rd2h_completion c;
  pthread_t later;
  rd2h_eng *e = open_pool(2);
  rd2h_eng_peer *p = add_peer(e, 1);
  (void)state;
  for (uint64_t i = 0; i < 5; i++)
    assert_int_equal(submit(e, p, i, DEAF_AT_GATE), RD2H_OK);
  wait_begun(1);
  pthread_create(&later, NULL, open_gate_later, NULL);
  rd2h_eng_disconnect(e, p); /* script_disconnect looks that nothing is inside */
  assert_true(world.gate_open);
  assert_int_equal(world.n_log, 1);
  assert_int_equal(rd2h_eng_poll(e, &c, 1), 0);
  pthread_join(later, NULL);
  rd2h_eng_close(e);
}

static void disconnect_spares_other_peers(void **state) {
  struct rd2h_completion c[4];
  rd2h_eng *e = open_pool(1);
  rd2h_eng_peer *p = add_peer(e, 1), *q = add_peer(e, 2), *r = add_peer(e, 3);
  (void)state;
  assert_int_equal(submit(e, p, 0, AT_GATE), RD2H_OK);
  wait_begun(1);
  for (uint64_t i = 1; i < 5; i++) {
    assert_int_equal(submit(e, i % 2 ? q : r, i, QUICK), RD2H_OK);
    assert_int_equal(submit(e, i % 2 ? q : r, i + 10, QUICK), RD2H_OK);
  }
  rd2h_eng_disconnect(e, q);
  open_gate();
  collect(e, c, 4);
  static const uint64_t order[] = {0, 2, 12, 4};
  for (uint32_t i = 0; i < 4; i++)
    assert_int_equal(c[i].id, order[i]);
  collect(e, c, 1);
  assert_int_equal(c[0].id, 14);
  assert_int_equal(rd2h_eng_poll(e, c, 1), 0);
  rd2h_eng_close(e);
}

static void failures_keep_their_text(void **state) {
  struct rd2h_completion c[3];
  rd2h_eng *e = open_pool(1);
  rd2h_eng_peer *p = add_peer(e, 1);
  (void)state;
  assert_int_equal(submit(e, p, 5, FAILS), RD2H_OK);
  assert_int_equal(submit(e, p, 6, QUICK), RD2H_OK);
  assert_int_equal(submit(e, p, 7, FAILS), RD2H_OK);
  for (int got = 0; got < 3;) {
    collect(e, c, 1);
    got++;
    if (c[0].id == 6)
      continue;
    char text[32];
    snprintf(text, sizeof text, "read %d went wrong", (int)c[0].id);
    assert_int_equal(c[0].status, RD2H_IO);
    assert_int_equal(c[0].failed_at, 7);
    assert_string_equal(rd2h_eng_last_error(e, c[0].id), text);
  }
  assert_string_equal(rd2h_eng_last_error(e, 6), "the engine gave no reason");
  rd2h_eng_poll(e, c, 1);
  assert_string_equal(rd2h_eng_last_error(e, 7), "the engine gave no reason");
  rd2h_eng_close(e);
}

/* More peers whose reads do not end than there are threads: the others' reads go on, and at the pace that they had. */
static void slow_peers_leave_others_alone(void **state) {
  enum { SLOW = 6, READS = 200 };
  struct rd2h_completion c[2 * SLOW];
  uint64_t took[READS], id = 0;
  rd2h_eng *e = open_pool(2);
  rd2h_eng_peer *quick = add_peer(e, 100);
  (void)state;
  bytes_of_a_read = 0;
  for (uint64_t i = 0; i < SLOW; i++) {
    rd2h_eng_peer *slow = add_peer(e, i);
    assert_int_equal(submit(e, slow, id++, AT_GATE), RD2H_OK);
    assert_int_equal(submit(e, slow, id++, AT_GATE), RD2H_OK);
  }
  for (uint32_t i = 0; i < READS; i++) {
    uint64_t begin = rd2h_now_ns();
    assert_int_equal(submit(e, quick, id, QUICK), RD2H_OK);
    collect(e, c, 1);
    took[i] = rd2h_now_ns() - begin;
    assert_int_equal(c[0].id, id++);
  }
  uint32_t quick_ones = 0; /* on a busy machine some; a thread that is waited for would show in all */
  for (uint32_t i = READS / 2; i < READS; i++)
    quick_ones += took[i] < 15 * RD2H_MS;
  assert_true(quick_ones > READS / 20);
  open_gate();
  collect(e, c, 2 * SLOW);
  rd2h_eng_close(e);
  bytes_of_a_read = UINT64_C(1) << 40;
}

static void a_read_ends_at_its_timeout(void **state) {
  struct rd2h_completion c[3];
  rd2h_eng *e = open_pool_for(2, 400);
  rd2h_eng_peer *stuck = add_peer(e, 1), *other = add_peer(e, 2);
  (void)state;
  assert_int_equal(submit(e, stuck, 1, AT_GATE), RD2H_OK);
  assert_int_equal(submit(e, stuck, 2, QUICK), RD2H_OK); /* behind it: never begun */
  assert_int_equal(submit(e, other, 3, QUICK), RD2H_OK);
  for (int got = 0; got < 3; got++) {
    collect(e, &c[got], 1);
    assert_int_equal(c[got].status, c[got].id == 3 ? RD2H_OK : RD2H_TIMEOUT);
    if (c[got].id != 3)
      assert_non_null(strstr(rd2h_eng_last_error(e, c[got].id), "within 400 ms (read_timeout_ms)"));
  }
  open_gate();
  assert_int_equal(submit(e, stuck, 4, QUICK), RD2H_OK);
  collect(e, c, 1);
  assert_int_equal(c[0].id, 4);
  assert_int_equal(c[0].status, RD2H_OK);
  assert_int_equal(rd2h_eng_poll(e, c, 3), 0);
  rd2h_eng_close(e);
}

/* Destinations of a read that does not hear are still written to: its batch ends when it does, with what it did. */
static void a_deaf_read_keeps_its_batch(void **state) {
  struct rd2h_completion c;
  struct pollfd fd;
  rd2h_eng *e = open_pool_for(1, 20);
  rd2h_eng_peer *p = add_peer(e, 1);
  (void)state;
  assert_int_equal(submit(e, p, 1, DEAF_AT_GATE), RD2H_OK);
  wait_begun(1);
  fd = (struct pollfd){.fd = rd2h_eng_fd(e), .events = POLLIN};
  assert_int_equal(poll(&fd, 1, 100), 0);
  open_gate();
  collect(e, &c, 1);
  assert_int_equal(c.status, RD2H_OK);
  rd2h_eng_close(e);
}

/* ---- an engine whose reads come in pieces ---- */
#define PARTS 64u
static uint32_t times_read[PARTS], pieces, most_inside, now_inside;
static uint32_t company; /* so many pieces are waited for to be inside at once */
static uint64_t held; /* cookie of a peer whose pieces that are inside stay there */

static int cut_open(const struct rd2h_host *h, const struct rd2h_engine_opts *o, rd2h_engine **e, struct rd2h_engine_caps *caps,
                    struct rd2h_error *err) {
  int rc = script_open(h, o, e, caps, err);
  caps->flags |= RD2H_ENG_PARALLEL;
  return rc;
}

/* remote says what becomes of a descriptor: 0 it is read, 1 it fails. */
static int cut_read(rd2h_engine *e, rd2h_peer *p, const struct rd2h_batch *b, const volatile bool *stop, uint64_t *done,
                    uint32_t *failed_at, struct rd2h_error *err) {
  (void)e, (void)stop;
  uint32_t inside = __atomic_add_fetch(&now_inside, 1, __ATOMIC_SEQ_CST);
  if (inside > __atomic_load_n(&most_inside, __ATOMIC_RELAXED))
    __atomic_store_n(&most_inside, inside, __ATOMIC_RELAXED);
  __atomic_add_fetch(&pieces, 1, __ATOMIC_RELAXED);
  int turns = 0;
  do
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
  while (__atomic_load_n(&held, __ATOMIC_RELAXED) == p->cookie ||
         (__atomic_load_n(&most_inside, __ATOMIC_RELAXED) < company && ++turns < 2500));
  int rc = RD2H_OK;
  for (uint32_t i = 0; i < b->n && !rc; i++) {
    if (b->remote[i])
      rc = rd2h_fail(err, RD2H_IO, "bad descriptor %u", *failed_at = i);
    else
      ++*(uint32_t *)b->local[i];
    *done += rc ? 0 : b->len[i];
  }
  __atomic_sub_fetch(&now_inside, 1, __ATOMIC_SEQ_CST);
  return rc;
}

static rd2h_eng *open_cutter(uint32_t threads) {
  static struct rd2h_engine_ops cutter;
  struct rd2h_engine_opts o = {.size = sizeof o, .threads = threads};
  rd2h_eng *e = NULL;
  cutter = script;
  cutter.open = cut_open;
  cutter.read = cut_read;
  assert_int_equal(rd2h_eng_open_ops(&cutter, &o, &e, NULL), RD2H_OK);
  return e;
}

struct parts {
  void *local[PARTS];
  uint64_t remote[PARTS], len[PARTS];
  struct rd2h_batch b;
};

/* A batch of which one descriptor fails: `bad`, or none of them. */
static void cut(struct parts *x, uint64_t id, uint64_t bytes_each, uint32_t bad) {
  for (uint32_t i = 0; i < PARTS; i++) {
    x->local[i] = &times_read[i];
    x->len[i] = bytes_each;
    x->remote[i] = i == bad;
  }
  x->b = (struct rd2h_batch){.id = id, .n = PARTS, .bytes = PARTS * bytes_each, .local = x->local, .remote = x->remote, .len = x->len};
}

static struct rd2h_completion read_in_pieces(uint64_t bytes_each, uint32_t bad) {
  struct rd2h_completion c;
  struct parts x;
  rd2h_eng *e = open_cutter(4);
  memset(times_read, 0, sizeof times_read);
  pieces = most_inside = 0;
  company = bytes_each < 1 << 20 ? 1 : 2;
  rd2h_eng_peer *p = add_peer(e, 1);
  cut(&x, 9, bytes_each, bad);
  assert_int_equal(rd2h_eng_submit(e, p, &x.b), RD2H_OK);
  collect(e, &c, 1);
  struct rd2h_completion more;
  assert_int_equal(rd2h_eng_poll(e, &more, 1), 0);
  rd2h_eng_close(e);
  company = 0;
  return c;
}

static void large_reads_come_in_pieces(void **state) {
  (void)state;
  struct rd2h_completion c = read_in_pieces(1 << 20, PARTS);
  assert_int_equal(c.status, RD2H_OK);
  assert_int_equal(c.bytes, PARTS << 20);
  assert_int_equal(c.failed_at, UINT32_MAX);
  assert_int_equal(pieces, 8);
  assert_in_range(most_inside, 2, 4);
  for (uint32_t i = 0; i < PARTS; i++)
    assert_int_equal(times_read[i], 1);
  c = read_in_pieces(1 << 10, PARTS); /* small ones do not */
  assert_int_equal(c.bytes, PARTS << 10);
  assert_int_equal(pieces, 1);
}

/* What stands before the bad descriptor has landed, though other threads were given it. */
static void a_piece_that_fails_is_told_by_its_place(void **state) {
  (void)state;
  for (uint32_t bad = 0; bad < PARTS; bad += 21) {
    struct rd2h_completion c = read_in_pieces(1 << 20, bad);
    assert_int_equal(c.status, RD2H_IO);
    assert_int_equal(c.failed_at, bad);
    for (uint32_t i = 0; i < bad; i++)
      assert_int_equal(times_read[i], 1);
    assert_int_equal(times_read[bad], 0);
  }
}

/* One thread holds a piece and the peer waits for the next one: then the read is cancelled, and the queue is empty. */
static void canceled_between_pieces(void **state) {
  struct rd2h_completion c;
  struct parts x;
  rd2h_eng *e = open_cutter(1);
  rd2h_eng_peer *p = add_peer(e, 1);
  (void)state;
  cut(&x, 1, 1 << 20, PARTS);
  for (int round = 0; round < 5; round++) {
    pieces = 0;
    __atomic_store_n(&held, 1, __ATOMIC_RELAXED);
    assert_int_equal(rd2h_eng_submit(e, p, &x.b), RD2H_OK);
    while (!__atomic_load_n(&pieces, __ATOMIC_RELAXED))
      sched_yield();
    rd2h_eng_cancel(e, 1);
    __atomic_store_n(&held, 0, __ATOMIC_RELAXED);
    collect(e, &c, 1);
    assert_int_equal(c.status, RD2H_CANCELED);
    assert_int_equal(pieces, 1);
  }
  rd2h_eng_close(e);
}

/* The only thread has left one peer's read for another's, where it stays: the first read ends all the same. */
static void stopped_while_nobody_is_inside(void **state) {
  struct rd2h_completion c;
  struct parts a, b;
  (void)state;
  cut(&a, 1, 1 << 20, PARTS);
  cut(&b, 2, 1 << 20, PARTS);
  for (int disconnect = 0; disconnect < 2; disconnect++) {
    rd2h_eng *e = open_cutter(1);
    rd2h_eng_peer *p = add_peer(e, 1), *q = add_peer(e, 2);
    pieces = 0;
    __atomic_store_n(&held, 2, __ATOMIC_RELAXED);
    assert_int_equal(rd2h_eng_submit(e, p, &a.b), RD2H_OK);
    assert_int_equal(rd2h_eng_submit(e, q, &b.b), RD2H_OK);
    while (__atomic_load_n(&pieces, __ATOMIC_RELAXED) < 2)
      sched_yield();
    if (disconnect) {
      rd2h_eng_disconnect(e, p);
    } else {
      rd2h_eng_cancel(e, 1);
      collect(e, &c, 1);
      assert_int_equal(c.id, 1);
      assert_int_equal(c.status, RD2H_CANCELED);
    }
    __atomic_store_n(&held, 0, __ATOMIC_RELAXED);
    collect(e, &c, 1);
    assert_int_equal(c.id, 2);
    assert_int_equal(c.status, RD2H_OK);
    rd2h_eng_close(e);
  }
}

static void threads_are_bounded(void **state) {
  struct rd2h_engine_opts o = {.size = sizeof o, .threads = 65};
  struct rd2h_error err;
  rd2h_eng *e = NULL;
  (void)state;
  assert_int_equal(rd2h_eng_open_ops(&script, &o, &e, &err), RD2H_RANGE);
  assert_non_null(strstr(err.text, "65"));
  assert_null(e);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(busy_peer_does_not_starve_others), cmocka_unit_test(one_read_a_peer_in_order),
    cmocka_unit_test(a_full_queue_says_again),          cmocka_unit_test(the_pool_is_bounded),
    cmocka_unit_test(cancel_ends_queued_and_running),   cmocka_unit_test(disconnect_waits_for_the_read),
    cmocka_unit_test(disconnect_spares_other_peers),    cmocka_unit_test(failures_keep_their_text),
    cmocka_unit_test(slow_peers_leave_others_alone),    cmocka_unit_test(a_read_ends_at_its_timeout),
    cmocka_unit_test(a_deaf_read_keeps_its_batch),      cmocka_unit_test(large_reads_come_in_pieces),
    cmocka_unit_test(a_piece_that_fails_is_told_by_its_place),
    cmocka_unit_test(canceled_between_pieces),          cmocka_unit_test(stopped_while_nobody_is_inside),
    cmocka_unit_test(threads_are_bounded),
  };
  return cmocka_run_group_tests_name("pool", tests, NULL, NULL);
}
