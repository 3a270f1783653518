/* SPDX-License-Identifier: Apache-2.0 */
/* The flow with engines and clients that are a few arrays: random histories, in which every client must get exactly one answer, every
 * rendezvous exactly one, and nothing may be left in the books. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

#include "proxy/flow.h"

enum { MAX = 512 };

struct client {
  struct px_parent *parent;
  int replies, begun, ended, done;
  bool gone;
};

struct rendezvous {
  struct px_waiter *waiter;
  int answers, status;
};

struct world {
  struct px_pool pool;
  struct px_flow flow;
  struct client client[MAX];
  struct rendezvous rendezvous[4 * MAX];
  struct px_leg *leg[4 * MAX]; /* open ones */
  size_t clients, posts, legs;
  uint64_t random;
  int64_t now;
};

static uint64_t draw(struct world *w, uint64_t below) {
  w->random = w->random * 6364136223846793005u + 1442695040888963407u;
  return (w->random >> 33) % below;
}

/* ---- the flow's other side ---- */
static bool io_send(void *io, struct px_leg *leg) {
  struct world *w = io;
  size_t at;
  const char *why;
  struct px_buf body = {0};
  rd2h_px_rope_put(&leg->body, &body);
  if (!rd2h_px_json_check(px_of(&body), &at, &why))
    fail_msg("a body with %s at byte %zu: %.*s", why, at, (int)body.n, body.p);
  rd2h_px_free(&body);
  assert_true(w->legs < 4 * MAX);
  if (draw(w, 50) == 0)
    return false;
  w->leg[w->legs++] = leg;
  return true;
}

static void close_leg(struct world *w, struct px_leg *leg) {
  size_t i = 0;
  while (i < w->legs && w->leg[i] != leg)
    i++;
  assert_true(i < w->legs);
  w->leg[i] = w->leg[--w->legs];
}

static void io_cancel(void *io, struct px_leg *leg) {
  close_leg(io, leg);
}

static void io_answer(void *io, void *rendezvous, int status, struct px_span body) {
  struct rendezvous *r = rendezvous;
  (void)io, (void)body;
  r->answers++;
  r->status = status;
  r->waiter = NULL;
}

static void io_reply(void *io, void *client, const struct px_reply *r) {
  struct client *c = client;
  (void)io;
  assert_true(r->status >= 200);
  assert_false(c->gone);
  assert_int_equal(c->begun, 0);
  c->replies++;
}

static void io_begin(void *io, void *client, const struct px_reply *head) {
  struct client *c = client;
  (void)io, (void)head;
  assert_int_equal(c->replies + c->begun, 0);
  c->begun++;
}

static void io_data(void *io, void *client, struct px_span s) {
  struct client *c = client;
  (void)io, (void)s;
  assert_true(c->begun && !c->ended && !c->gone);
}

static void io_end(void *io, void *client) {
  struct client *c = client;
  (void)io;
  assert_true(c->begun);
  c->ended++;
}

static void io_done(void *io, void *client, const struct px_parent *p) {
  struct client *c = client;
  (void)io, (void)p;
  c->done++;
  c->parent = NULL;
}

static void io_note(void *io, const struct px_parent *p, const char *text) {
  (void)io, (void)p, (void)text;
}

static void io_wake(void *io, int64_t at) {
  (void)io, (void)at;
}

static bool io_random(void *io, void *out, size_t n) {
  for (size_t i = 0; i < n; i++)
    ((uint8_t *)out)[i] = (uint8_t)draw(io, 256);
  return true;
}

static const struct px_io IO = {io_send, io_cancel, io_answer, io_reply, io_begin, io_data, io_end, io_done, io_note, io_wake, io_random};

/* ---- what may happen ---- */
static struct px_scan_plan plan;

static void new_request(struct world *w) {
  static const char *const body[] = {"{\"prompt\":\"a\"}", "{\"prompt\":\"a\",\"stream\":true}", "{\"prompt\":[\"a\",\"b\",\"c\"]}", "{",
                                     "{\"prompt\":[[1],[2]],\"n\":2,\"stream\":true}", "{\"messages\":[]}"};
  if (w->clients == MAX)
    return;
  struct client *c = w->client + w->clients++;
  struct px_buf b = {0};
  size_t which = draw(w, 6);
  rd2h_px_puts(&b, body[which]);
  struct px_scan scan = {0};
  rd2h_px_scan_begin(&scan, &plan);
  struct px_parent *p = rd2h_px_flow_request(&w->flow, c, which == 5 ? PX_CHAT : PX_COMPLETIONS, &b, &scan, w->now);
  c->parent = p;
  rd2h_px_free(&b);
  rd2h_px_scan_free(&scan);
}

static struct px_parent *any_parent(struct world *w) {
  size_t i = w->flow.parents ? draw(w, w->flow.parents) : 0;
  struct px_parent *p = w->flow.first;
  while (p && i--)
    p = p->next;
  return p;
}

static void post(struct world *w) {
  struct px_parent *p = any_parent(w);
  struct px_buf body = {0};
  const char *why;
  if (!p || w->posts == 4 * MAX)
    return;
  uint32_t k = (uint32_t)draw(w, p->ask.prompts), i = (uint32_t)draw(w, p->ask.n);
  bool between = p->phase == PX_WAIT_RETRY; /* no attempt is under way */
  char prefix[16] = "";
  if (p->ask.n > 1)
    snprintf(prefix, sizeof prefix, "%u_", i);
  if (p->ask.api == PX_CHAT)
    rd2h_px_printf(&body, "{\"request_id\":\"%schatcmpl-%s\"", prefix, p->uuid);
  else
    rd2h_px_printf(&body, "{\"request_id\":\"%scmpl-%s-%u\"", prefix, p->uuid, k);
  rd2h_px_printf(&body, ",\"do_remote_decode\":true,\"remote_host\":\"h\",\"remote_port\":1%s}", draw(w, 2) ? ",\"rd2h\":{}" : "");
  struct rendezvous *r = w->rendezvous + w->posts++;
  int status = rd2h_px_flow_rendezvous(&w->flow, px_of(&body), PX_LIT(""), true, r, w->now, &r->waiter, &why);
  if (status) {
    assert_true(status == (between ? 404 : status == 429 ? 429 : 200));
    assert_null(r->waiter);
    r->answers++;
  }
  rd2h_px_free(&body);
}

static void answer_leg(struct world *w) {
  static const int status[] = {200, 200, 200, 200, 200, 400, 500, 503};
  if (!w->legs)
    return;
  struct px_leg *leg = w->leg[draw(w, w->legs)];
  bool stream = leg->role == PX_DECODE && leg->parent->ask.stream;
  if (!leg->status && draw(w, 8)) {
    leg->status = status[draw(w, 8)];
    snprintf(leg->type, sizeof leg->type, "%s", stream && leg->status == 200 ? "text/event-stream" : "application/json");
  } else if (leg->status && draw(w, 2)) {
    static const char *const part[] = {"data: {\"choices\":[{\"text\":\"a\"}]}\n\n", "data: {\"choi", "ces\":[]}\n\n", "data: [DONE]\n\n",
                                       "data: {\"choices\":[{\"text\":\"\",\"stop_reason\":\"recomputed\"}]}\n\n"};
    rd2h_px_flow_leg_data(&w->flow, leg, px_str(stream ? part[draw(w, 5)] : "{\"choices\":[]}"), w->now);
  } else {
    close_leg(w, leg);
    rd2h_px_flow_leg_done(&w->flow, leg, leg->status && draw(w, 4) ? NULL : "cut", w->now);
  }
}

static void hang_up(struct world *w) {
  struct px_parent *p = any_parent(w);
  if (!p)
    return;
  struct client *c = p->client;
  c->gone = true;
  rd2h_px_flow_client_gone(&w->flow, p, w->now);
}

static void drop_waiter(struct world *w) {
  for (size_t i = 0; i < w->posts; i++)
    if (w->rendezvous[i].waiter && draw(w, 4) == 0) {
      rd2h_px_flow_waiter_gone(w->rendezvous[i].waiter);
      w->rendezvous[i].waiter = NULL;
      w->rendezvous[i].answers++;
      return;
    }
}

static void pass_time(struct world *w) {
  w->now += (int64_t)draw(w, 60);
  rd2h_px_flow_tick(&w->flow, w->now);
  for (struct px_engine *e = w->pool.first; e; e = e->next)
    if (draw(w, 4) == 0)
      rd2h_px_engine_good(e);
}

static void remove_engine(struct world *w) {
  const char *why;
  struct px_engine *e = w->pool.first;
  for (size_t i = draw(w, 4); e && i--;)
    e = e->next;
  if (e && !e->draining && rd2h_px_pool_count(&w->pool, e->role, false) > 1)
    rd2h_px_pool_remove(&w->pool, e);
  rd2h_px_pool_add(&w->pool, draw(w, 2) ? PX_DECODE : PX_PREFILL, "http", "host", (uint16_t)(1 + draw(w, 3)), &why);
}

static void setup(struct world *w, uint64_t seed) {
  const char *why;
  memset(w, 0, sizeof *w);
  w->random = seed;
  w->now = 1000;
  w->pool.eject_after = 5;
  for (uint16_t i = 1; i <= 2; i++) {
    rd2h_px_pool_add(&w->pool, PX_PREFILL, "http", "host", i, &why);
    rd2h_px_pool_add(&w->pool, PX_DECODE, "http", "host", i, &why);
  }
  w->flow = (struct px_flow){.io = &IO, .ctx = w, .pool = &w->pool, .metaserver = "http://h:1/v1/metaserver"};
  w->flow.limits = (struct px_limits){.max_children = 16, .max_waiters = 3, .attempts = 3, .max_continuations = 2, .max_answer = 100,
                                      .retry_ms = 5, .grace_ms = 50, .rendezvous_ms = 400, .prefill_ms = 400, .first_ms = 400,
                                      .idle_ms = 400, .total_ms = 2000, .mode = (enum px_dispatch_mode)(seed % 3), .tokens = seed % 2};
}

static void check_end(struct world *w) {
  assert_int_equal(w->flow.parents, 0);
  assert_int_equal(w->flow.children, 0);
  assert_int_equal(w->flow.dispatches, 0);
  assert_int_equal(w->legs, 0);
  for (size_t i = 0; i < w->clients; i++) {
    const struct client *c = w->client + i;
    assert_int_equal(c->done, 1);
    assert_int_equal(c->replies + c->ended, c->gone ? 0 : 1);
  }
  for (size_t i = 0; i < w->posts; i++)
    assert_int_equal(w->rendezvous[i].answers, 1);
  for (const struct px_engine *e = w->pool.first; e; e = e->next)
    assert_true(e->requests == 0 && e->active == 0 && e->kv == 0 && !e->draining);
}

#if defined(__SANITIZE_THREAD__)
#define SEEDS 40 /* there is one thread here: ThreadSanitizer only makes it slow */
#else
#define SEEDS 400
#endif

static void test_histories(void **state) {
  static void (*const happen[])(struct world *) = {new_request, post,       post,       post,     answer_leg,
                                                   answer_leg,  answer_leg, answer_leg, pass_time};
  static void (*const rarely[])(struct world *) = {hang_up, drop_waiter, remove_engine};
  struct world *w = malloc(sizeof *w);
  (void)state;
  for (uint64_t seed = 1; seed <= SEEDS; seed++) {
    setup(w, seed);
    for (int step = 0; step < 1500; step++) {
      if (draw(w, 12) == 0)
        rarely[draw(w, 3)](w);
      else
        happen[draw(w, 9)](w);
    }
    if (seed % 4 == 0)
      rd2h_px_flow_stop(&w->flow, w->now);
    else
      rd2h_px_flow_tick(&w->flow, w->now += 5000);
    check_end(w);
    rd2h_px_pool_free(&w->pool);
  }
  free(w);
}

static void test_turns(void **state) {
  struct px_pool pool = {.eject_after = 2};
  const char *why;
  (void)state;
  struct px_engine *a = rd2h_px_pool_add(&pool, PX_DECODE, "http", "10.0.0.1", 1, &why);
  struct px_engine *b = rd2h_px_pool_add(&pool, PX_DECODE, "http", "::1", 1, &why);
  assert_string_equal(b->url, "http://[::1]:1");
  assert_null(rd2h_px_pool_add(&pool, PX_DECODE, "http", "::1", 1, &why));
  assert_null(rd2h_px_pool_add(&pool, PX_DECODE, "http", "1.2.3.41.2.3.4", 1, &why));
  for (int i = 0; i < 4; i++)
    assert_ptr_equal(rd2h_px_pool_pick(&pool, PX_DECODE, 0), i % 2 ? b : a);
  rd2h_px_engine_take(a, 10);
  assert_ptr_equal(rd2h_px_pool_pick(&pool, PX_DECODE, 0), b);
  assert_ptr_equal(rd2h_px_pool_pick(&pool, PX_DECODE, px_engine_bit(b)), a);
  assert_false(rd2h_px_engine_bad(&pool, b, 5));
  assert_true(rd2h_px_engine_bad(&pool, b, 5));
  assert_ptr_equal(rd2h_px_pool_pick(&pool, PX_DECODE, 0), a);
  assert_true(rd2h_px_engine_good(b));
  rd2h_px_engine_give(&pool, a, 10);
  rd2h_px_pool_free(&pool);
}

int main(void) {
  plan = rd2h_px_body_plan;
  plan.max_elements = 64;
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_turns), cmocka_unit_test(test_histories)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
