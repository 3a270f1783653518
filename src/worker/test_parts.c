/* SPDX-License-Identifier: Apache-2.0 */
/* Gate, message pool and dump alone. */
#include "worker/dump.h"
#include "worker/gate.h"
#include "worker/msgpool.h"
#include "worker/thread.h"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <limits.h>
#include <stdio.h>

static void gate_counts_batches(void **state) {
  (void)state;
  struct rd2h_gate g;
  const uint32_t both[] = {0, 2}, one[] = {2};
  assert_int_equal(rd2h_gate_init(&g, 3), RD2H_OK);
  pthread_mutex_lock(&g.mu);
  rd2h_gate_close(&g, both, 2, 2); /* a layer with an indexer, to two readers */
  rd2h_gate_close(&g, one, 1, 1);
  rd2h_gate_close(&g, one, 1, 0); /* nobody reads: stays as it is */
  assert_int_equal(g.closed, 2);
  rd2h_gate_open(&g, both, 2);
  assert_false(rd2h_gate_is_open(&g, both, 2));
  rd2h_gate_open(&g, both, 2);
  assert_true(rd2h_gate_is_open(&g, both, 1));
  assert_false(rd2h_gate_is_open(&g, one, 1));
  rd2h_gate_open(&g, one, 1);
  assert_int_equal(g.closed, 0);
  pthread_mutex_unlock(&g.mu);
  rd2h_gate_free(&g);
}

struct opener {
  struct rd2h_gate g;
  uint32_t slot;
  int asked;
};

static void *open_it(void *arg) {
  struct opener *o = arg;
  pthread_mutex_lock(&o->g.mu);
  rd2h_gate_open(&o->g, &o->slot, 1);
  pthread_mutex_unlock(&o->g.mu);
  return NULL;
}

static bool is_open(void *arg) {
  struct opener *o = arg;
  o->asked++;
  return rd2h_gate_is_open(&o->g, &o->slot, 1);
}

static void gate_waits_with_a_bound(void **state) {
  (void)state;
  struct opener o = {.slot = 0};
  pthread_t t;
  assert_int_equal(rd2h_gate_init(&o.g, 1), RD2H_OK);
  rd2h_gate_close(&o.g, &o.slot, 1, 1);
  assert_int_equal(rd2h_gate_wait(&o.g, 0, is_open, &o), RD2H_TIMEOUT);
  pthread_mutex_unlock(&o.g.mu);
  assert_int_equal(rd2h_thread_start(&t, "opener", open_it, &o, NULL), RD2H_OK);
  assert_int_equal(rd2h_gate_wait(&o.g, 60000, is_open, &o), RD2H_OK);
  pthread_mutex_unlock(&o.g.mu);
  pthread_join(t, NULL);
  assert_true(o.asked >= 2);
  rd2h_gate_free(&o.g);
}

/* A message with one request of n ids, decoded into scratch. */
struct decoded {
  zmq_msg_t payload;
  struct rd2h_wire_ready ready;
  struct rd2h_arena scratch;
};

static void decode(struct decoded *x, uint32_t n) {
  struct rd2h_error err = {0};
  struct rd2h_buf b = {0};
  uint32_t idx, *ids = rd2h_calloc(n + 1, sizeof *ids);
  for (uint32_t i = 0; i < n; i++)
    ids[i] = 1000 + i;
  struct rd2h_wire_req q = {.id = {"request", 7}, .main = ids, .indexer = ids, .n_main = n, .n_indexer = n};
  struct rd2h_wire_done d = {.id = {"over", 4}};
  rd2h_wire_encode_ready(&b, &(struct rd2h_wire_ready){.layer = {"a", 1}, .n_reqs = 1, .req = &q, .n_done = 1, .done = &d,
                                                       .ratio = 1});
  zmq_msg_init_size(&x->payload, b.len);
  memcpy(zmq_msg_data(&x->payload), b.p, b.len);
  rd2h_arena_reset(&x->scratch);
  assert_int_equal(rd2h_arena_reserve(&x->scratch, rd2h_wire_arena_need(b.len)), RD2H_OK);
  assert_int_equal(rd2h_wire_decode_ready(zmq_msg_data(&x->payload), b.len, &x->scratch, &x->ready, &idx, &err), RD2H_OK);
  rd2h_buf_free(&b);
  rd2h_free(ids);
}

static struct rd2h_msg *take(struct rd2h_msgpool *pool, uint32_t n, size_t *held, struct rd2h_error *err) {
  struct decoded x = {0};
  decode(&x, n);
  struct rd2h_msg *m = rd2h_msg_take(pool, &x.payload, &x.ready, &x.scratch, held, err);
  memset(x.scratch.p, 0xAA, x.scratch.cap); /* nothing may look here any more */
  rd2h_arena_free(&x.scratch);
  zmq_msg_close(&x.payload);
  return m;
}

/* Short ones live inside of zmq_msg_t, long ones outside. */
static void pool_moves_messages(void **state) {
  (void)state;
  for (uint32_t n = 0; n < 3000; n = n * 3 + 1) {
    struct rd2h_error err = {0};
    struct rd2h_msgpool pool = {.held_max = 1 << 20, .peer_max = 1 << 20};
    size_t held = 0;
    struct rd2h_msg *m = take(&pool, n, &held, &err);
    assert_non_null(m);
    assert_memory_equal(m->ready.req[0].id.p, "request", 7);
    assert_memory_equal(m->ready.done[0].id.p, "over", 4);
    assert_int_equal(*m->ready.layer.p, 'a');
    assert_int_equal(m->ready.req[0].n_main, n);
    for (uint32_t i = 0; i < n; i++)
      assert_true(m->ready.req[0].main[i] == 1000 + i && m->ready.req[0].indexer[i] == 1000 + i);
    rd2h_msg_give(&pool, m, &held);
    assert_int_equal(held, 0);
    rd2h_msgpool_free(&pool);
  }
}

static void pool_reuses_and_limits(void **state) {
  (void)state;
  struct rd2h_error err = {0};
  size_t a = 0, b = 0;
  struct rd2h_msgpool pool = {.held_max = 100000, .peer_max = 50000};
  struct rd2h_msg *m[64], *o[64];
  uint32_t mine = 0, others = 0;
  while ((m[mine] = take(&pool, 100, &a, &err)))
    mine++;
  assert_true(mine > 2);
  assert_int_equal(err.status, RD2H_LIMIT);
  assert_non_null(strstr(err.text, "this peer"));
  assert_true(a <= pool.peer_max && a + a / mine > pool.peer_max);
  while ((o[others] = take(&pool, 100, &b, &err)))
    others++;
  assert_true(others > 2 && pool.held <= pool.held_max);
  while (mine)
    rd2h_msg_give(&pool, m[--mine], &a);
  while (others)
    rd2h_msg_give(&pool, o[--others], &b);
  assert_int_equal(a + b + pool.held, 0);
  struct decoded x = {0};
  decode(&x, 100);
  uint64_t before = rd2h_alloc_count();
  assert_non_null(rd2h_msg_take(&pool, &x.payload, &x.ready, &x.scratch, &a, &err));
  assert_int_equal(rd2h_alloc_count(), before);
  rd2h_arena_free(&x.scratch);
  rd2h_msgpool_free(&pool); /* with a busy slot */
}

/* One message is always taken, whatever its size: the transport has limited it. */
static void pool_takes_one_large_message(void **state) {
  (void)state;
  struct rd2h_error err = {0};
  size_t held = 0, other = 0;
  struct rd2h_msgpool pool = {.held_max = 1000, .peer_max = 1000};
  struct rd2h_msg *m = take(&pool, 100000, &held, &err);
  assert_non_null(m);
  assert_null(take(&pool, 1, &held, &err));
  assert_null(take(&pool, 1, &other, &err));
  assert_non_null(strstr(err.text, "all peers"));
  rd2h_msg_give(&pool, m, &held);
  assert_int_equal(held, 0);
  struct decoded x = {0};
  decode(&x, 500000);
  rd2h_alloc_fail_at(1);
  m = rd2h_msg_take(&pool, &x.payload, &x.ready, &x.scratch, &held, &err);
  rd2h_alloc_fail_at(0);
  assert_null(m);
  assert_int_equal(err.status, RD2H_NOMEM);
  assert_int_equal(held, 0);
  zmq_msg_close(&x.payload);
  rd2h_arena_free(&x.scratch);
  rd2h_msgpool_free(&pool);
}

static void timeouts_round_up(void **state) {
  (void)state;
  assert_int_equal(rd2h_epoll_timeout(RD2H_NEVER, 5), -1);
  assert_int_equal(rd2h_epoll_timeout(5, 5), 0);
  assert_int_equal(rd2h_epoll_timeout(4, 5), 0);
  assert_int_equal(rd2h_epoll_timeout(6, 5), 1);
  assert_int_equal(rd2h_epoll_timeout(5 + RD2H_MS, 5), 1);
  assert_int_equal(rd2h_epoll_timeout(6 + RD2H_MS, 5), 2);
  assert_true(rd2h_epoll_timeout(RD2H_NEVER - 1, 5) > 0);
}

/* ---- state for people ---- */
static void count_wake(void *arg) {
  ++*(int *)arg;
}

static void dump_is_bounded(void **state) {
  (void)state;
  struct rd2h_dump d;
  pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
  char text[64];
  int wakes = 0;
  assert_int_equal(rd2h_dump_init(&d), RD2H_OK);
  size_t n = rd2h_dump_ask(&d, &mu, count_wake, &wakes, "rank 7", text, sizeof text); /* nobody there to answer */
  assert_string_equal(text, "rank 7: its thread has not answered for 1000 ms\n");
  assert_int_equal(n, strlen(text));
  assert_int_equal(wakes, 1);
  assert_true(rd2h_dump_wanted(&d));
  rd2h_buf_line(&d.text, "late %s", "but\nhere");
  rd2h_ask_made(&d.ask);
  assert_false(rd2h_dump_wanted(&d));
  assert_memory_equal(d.text.p, "late but here\n", d.text.len);
  rd2h_dump_free(&d);
}

/* ---- rows of peers ---- */
static void rows_of_waits_are_those_longest(void **state) {
  (void)state;
  struct rd2h_peers_view v = {0};
  struct rd2h_peers p;
  pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
  int wakes = 0;
  char name[100];
  uint64_t now = rd2h_now_ns();
  assert_int_equal(rd2h_ask_init(&v.ask), RD2H_OK);
  assert_false(rd2h_peers_wanted(&v));
  assert_int_equal(rd2h_peers_ask(&v, &mu, count_wake, &wakes, 0, &p), RD2H_TIMEOUT);
  assert_int_equal(p.n_waits + p.n_transports + p.connected + p.awaited, 0);
  assert_true(rd2h_peers_wanted(&v));
  for (uint32_t i = 0; i < 20; i++) { /* 7 i mod 20: every number once, in no order */
    snprintf(name, sizeof name, "peer-%u", i * 7 % 20);
    rd2h_peers_awaited(&v, name, i + 1, now - (i * 7 % 20) * 1000 * RD2H_MS);
  }
  rd2h_ask_made(&v.ask);
  rd2h_peers_ask(&v, &mu, count_wake, &wakes, 0, &p);
  assert_int_equal(p.n_waits, RD2H_PEERS_ROWS);
  assert_int_equal(p.awaited, 20);
  for (uint32_t i = 0; i < RD2H_PEERS_ROWS; i++) {
    snprintf(name, sizeof name, "peer-%u", 19 - i);
    assert_string_equal(p.wait[i].peer, name);
    assert_int_equal(p.wait[i].wait_ms / 1000, 19 - i);
    assert_int_equal((p.wait[i].waiting - 1) * 7 % 20, 19 - i);
  }
  assert_true(rd2h_peers_wanted(&v)); /* what was said once is not said again */
  rd2h_ask_made(&v.ask);
  rd2h_peers_ask(&v, &mu, count_wake, &wakes, 0, &p);
  assert_int_equal(p.n_waits + p.awaited, 0);
  assert_int_equal(wakes, 3);
  rd2h_ask_free(&v.ask);
}

static void rows_of_transports_have_a_last_one(void **state) {
  (void)state;
  struct rd2h_peers_view v = {0};
  struct rd2h_peers *p = &v.rows;
  char way[200];
  memset(way, 'x', sizeof way - 1);
  way[sizeof way - 1] = 0;
  for (int twice = 0; twice < 2; twice++) {
    rd2h_peers_connected(&v, "ucx", way);
    rd2h_peers_connected(&v, "tcp", "");
  }
  assert_int_equal(p->n_transports, 2);
  assert_int_equal(p->transport[0].peers, 2);
  assert_int_equal(strlen(p->transport[0].way), sizeof p->transport[0].way - 1);
  assert_string_equal(p->transport[1].engine, "tcp");
  for (int i = 0; i < 20; i++) {
    snprintf(way, sizeof way, "device %d", i);
    rd2h_peers_connected(&v, "ucx", way);
  }
  assert_int_equal(p->n_transports, RD2H_PEERS_ROWS);
  assert_int_equal(p->connected, 24);
  assert_string_equal(p->transport[RD2H_PEERS_ROWS - 2].way, "device 4");
  assert_string_equal(p->transport[RD2H_PEERS_ROWS - 1].engine, "other");
  assert_string_equal(p->transport[RD2H_PEERS_ROWS - 1].way, "");
  assert_int_equal(p->transport[RD2H_PEERS_ROWS - 1].peers, 15);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(gate_counts_batches),    cmocka_unit_test(gate_waits_with_a_bound),
      cmocka_unit_test(pool_moves_messages),    cmocka_unit_test(pool_reuses_and_limits),
      cmocka_unit_test(pool_takes_one_large_message), cmocka_unit_test(timeouts_round_up),
      cmocka_unit_test(dump_is_bounded),        cmocka_unit_test(rows_of_waits_are_those_longest),
      cmocka_unit_test(rows_of_transports_have_a_last_one),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
