/* SPDX-License-Identifier: Apache-2.0 */
/* One Prefill a hundred times slower than the others of its Decode: their layers take as long as without it, its answers keep their
 * order, what waits for it costs no more than its messages, and it ends well. */
#include "tests/integration/throttle.h"
#include <pthread.h>
#include <rd2h/trace.h>
#include <setjmp.h>
#include <cmocka.h>

#define OTHERS 3u
#define LAYERS 16u
#define CHUNKS 8u          /* of every request */
#define CHUNK 8u           /* blocks */
#define BLOCKS (2 * CHUNKS * CHUNK * (OTHERS + 1))
#define MESSAGES (CHUNKS * LAYERS) /* of one peer: twice what the engine takes from one at a time */
#define MESSAGE_BYTES (CHUNK * (256 + 128))
#define TIMES_SLOWER 100u
/* Bounds of what is expected, all within one run. */
#define MEDIAN_TIMES 3u           /* beside the median without the slow peer */
#define LATE_MEDIANS TIMES_SLOWER /* p99, in such medians: a message of the slow peer */
#define HELD_A_MESSAGE 16384u     /* bytes of librd2h, on both sides together */

static const struct rig_shape shape = {.layers = LAYERS, .blocks = BLOCKS};

/* ---- what was answered when ---- */
static struct {
  pthread_mutex_t lock;
  uint32_t n;
  uint64_t begin[4 * MESSAGES * (OTHERS + 1)], end[4 * MESSAGES * (OTHERS + 1)];
} answers = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void on_trace(void *user, const struct rd2h_trace *t) {
  (void)user;
  if (t->kind != RD2H_TRACE_ANSWER)
    return;
  pthread_mutex_lock(&answers.lock);
  if (answers.n < RD2H_COUNT(answers.begin)) {
    answers.begin[answers.n] = t->begin_ns;
    answers.end[answers.n++] = t->end_ns;
  }
  pthread_mutex_unlock(&answers.lock);
}

/* Answers to what was dispatched between the two times, which must have come in the order of dispatch; how long the n-th of them took.
 * (By several streams one may overtake another, since each has its number: here the engine has one.) */
static uint32_t answered_between(uint64_t from, uint64_t to, uint32_t nth, uint64_t *took) {
  uint64_t last = 0, before = from;
  uint32_t n = 0;
  pthread_mutex_lock(&answers.lock);
  for (uint32_t i = 0; i < answers.n; i++) {
    if (answers.begin[i] < from || answers.begin[i] > to)
      continue;
    assert_true(answers.begin[i] >= last);
    last = answers.begin[i];
    if (n++ == nth)
      *took = answers.end[i] - before; /* since the one before it was answered */
    before = answers.end[i];
  }
  pthread_mutex_unlock(&answers.lock);
  return n;
}

/* ---- bytes that librd2h holds ---- */
static int64_t held;

static void *count_alloc(void *user, size_t n) {
  size_t *p = malloc(n + 16);
  (void)user;
  if (!p)
    return NULL;
  *p = n;
  __atomic_add_fetch(&held, (int64_t)n, __ATOMIC_RELAXED);
  return p + 2;
}
static void count_free(void *user, void *p) {
  (void)user;
  if (!p)
    return;
  __atomic_sub_fetch(&held, (int64_t)((size_t *)p)[-2], __ATOMIC_RELAXED);
  free((size_t *)p - 2);
}
static void *count_realloc(void *user, void *p, size_t n) {
  void *q = count_alloc(user, n);
  if (p && q) {
    size_t had = ((size_t *)p)[-2];
    memcpy(q, p, had < n ? had : n);
    count_free(user, p);
  }
  return q;
}
static int64_t held_now(void) {
  return __atomic_load_n(&held, __ATOMIC_RELAXED);
}

/* ---- ranks ---- */
struct peer {
  struct rig_side side;
  rd2h_prefill *rank;
  struct rig_request r;
  char id[16];
  uint32_t chunk; /* next */
};
struct cluster {
  struct rig_side dst;
  rd2h_decode *d;
  struct peer slow, other[OTHERS];
};

static void peer_open(struct peer *p, struct cluster *c, uint32_t number, const struct rd2h_prefill_opts *o) {
  rig_side_open(&p->side, &shape);
  for (uint32_t l = 0; l < LAYERS; l++)
    rig_write(&p->side, l, 5 + number);
  p->rank = rig_prefill(&p->side, o);
  p->chunk = 0;
  snprintf(p->id, sizeof p->id, "peer-%u", number);
  rig_request(&p->r, p->id, CHUNKS * CHUNK, 0, 2 * CHUNKS * CHUNK * number);
  rig_install(c->d, &p->r);
}

static void cluster_open(struct cluster *c, const char *engine, const char *decode, const struct rd2h_prefill_opts *slow) {
  rig_side_open(&c->dst, &shape);
  c->d = rig_decode(&c->dst, &(struct rd2h_decode_opts){.engine = decode});
  peer_open(&c->slow, c, 0, slow);
  for (uint32_t i = 0; i < OTHERS; i++)
    peer_open(&c->other[i], c, i + 1, &(struct rd2h_prefill_opts){.engine = engine});
}

static void peer_step(struct cluster *c, struct peer *p) {
  struct rd2h_step_send send;
  rig_send(&send, &p->r, rd2h_decode_port(c->d), p->chunk * CHUNK, (p->chunk + 1) * CHUNK, p->chunk == CHUNKS - 1);
  rig_step(p->rank, &send, 1, NULL);
  p->chunk++;
}

static void peer_end(struct cluster *c, struct peer *p, uint32_t number) {
  assert_int_equal(rig_outcome(c->d, p->id, NULL), RD2H_OK);
  rig_expect(&c->dst, &p->r, 5 + number);
  rig_step(p->rank, NULL, 0, p->id);
  assert_int_equal(rig_settled(p->rank, p->id), RD2H_OK);
  rd2h_prefill_destroy(p->rank);
}

/* ---- latencies ---- */
struct latencies {
  uint32_t n;
  uint64_t ns[MESSAGES * OTHERS];
};

static int ascending(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}
static uint64_t quantile(struct latencies *v, uint32_t percent) {
  qsort(v->ns, v->n, sizeof v->ns[0], ascending);
  return v->ns[(uint64_t)(v->n - 1) * percent / 100];
}

/* So many chunks of each of the others, a layer in lockstep after the other. */
static void measure(struct cluster *c, uint32_t chunks, struct latencies *v) {
  struct rd2h_error err = {0};
  for (uint32_t k = 0; k < chunks; k++) {
    for (uint32_t i = 0; i < OTHERS; i++)
      peer_step(c, &c->other[i]);
    for (uint32_t l = 0; l < LAYERS; l++)
      for (uint32_t i = 0; i < OTHERS; i++) {
        uint64_t begin = rd2h_now_ns();
        RIG_OK(rd2h_prefill_layer(c->other[i].rank, l, &err), &err);
        RIG_OK(rd2h_prefill_wait_layer(c->other[i].rank, l, RIG_WAIT_MS, &err), &err);
        v->ns[v->n++] = rd2h_now_ns() - begin;
      }
  }
}

/* All its messages at once: nobody waits for their answers. */
static void dispatch_slow(struct cluster *c) {
  for (uint32_t k = 0; k < CHUNKS; k++) {
    peer_step(c, &c->slow);
    rig_layers(c->slow.rank, LAYERS);
  }
}

static void others_stay(struct cluster *c, struct throttle *t) {
  struct latencies without = {0}, beside = {0};
  struct rd2h_decode_stats st;
  measure(c, 1, &(struct latencies){0}); /* connects */
  measure(c, 3, &without);
  uint64_t median = quantile(&without, 50), late = quantile(&without, 99), took = 0;
  throttle_pace(t, median * TIMES_SLOWER, MESSAGE_BYTES);
  int64_t before = held_now();
  uint64_t from = rd2h_now_ns();
  dispatch_slow(c);
  uint64_t to = rd2h_now_ns();
  measure(c, CHUNKS - 4, &beside);
  uint32_t answered = answered_between(from, to, UINT32_MAX, &took);
  int64_t grown = held_now() - before;
  rd2h_decode_stats(c->d, &st);
  assert_true(answered < MESSAGES - 64); /* it was there all the time, with more than the engine takes at once */
  assert_in_range(st.reads_in_flight, 1, MESSAGES + OTHERS); /* an answer may be out before the counters tell of it */
  throttle_release(t);
  for (uint32_t i = 0; i < OTHERS; i++)
    peer_end(c, &c->other[i], i + 1);
  peer_end(c, &c->slow, 0);
  assert_int_equal(answered_between(from, to, 0, &took), MESSAGES);
  print_message("# without: median %llu us, p99 %llu; beside: %llu, %llu; the slow one's first answer after %llu; %lld bytes more\n",
                (unsigned long long)median / 1000, (unsigned long long)late / 1000,
                (unsigned long long)quantile(&beside, 50) / 1000, (unsigned long long)quantile(&beside, 99) / 1000,
                (unsigned long long)took / 1000, (long long)grown);
  assert_true(took >= median * TIMES_SLOWER / 2);
  assert_true(quantile(&beside, 50) <= MEDIAN_TIMES * median);
  assert_true(quantile(&beside, 99) <= (3 * late > LATE_MEDIANS * median ? 3 * late : LATE_MEDIANS * median));
  assert_true(grown <= (int64_t)MESSAGES * HELD_A_MESSAGE);
  rd2h_decode_destroy(c->d);
  rig_side_close(&c->dst);
  for (uint32_t i = 0; i < OTHERS; i++)
    rig_side_close(&c->other[i].side);
}

/* Its data connection passes a relay that lets little through. */
static void over_tcp(void **state) {
  static struct cluster c;
  struct throttle *t = throttle_relay();
  (void)state;
  answers.n = 0;
  cluster_open(&c, "tcp", "tcp,streams=1", &(struct rd2h_prefill_opts){.engine = "tcp,bind=" THROTTLE_BIND, .host = THROTTLE_HOST});
  throttle_relay_start(t);
  others_stay(&c, t);
  rig_side_close(&c.slow.side);
  throttle_close(t);
}

/* Its pages come slowly. */
static void over_local(void **state) {
  static struct cluster c;
  (void)state;
  answers.n = 0;
  cluster_open(&c, "local", "local", &(struct rd2h_prefill_opts){.engine = "local"});
  struct throttle *t = throttle_pages((void *)(uintptr_t)c.slow.side.area.base, c.slow.side.area.len);
  if (t)
    others_stay(&c, t);
  rig_side_close(&c.slow.side);
  throttle_close(t);
  if (!t)
    skip(); /* this kernel lets no process of this user serve its own page faults */
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(over_tcp), cmocka_unit_test(over_local)};
  const struct rd2h_allocator counting = {.alloc = count_alloc, .realloc = count_realloc, .free = count_free};
  if (rd2h_allocator_set(&counting))
    return 1;
  rd2h_trace_set(on_trace, NULL);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
