/* SPDX-License-Identifier: Apache-2.0 */
/* Requests to engines whose names have several addresses, some of them dead, or cannot be looked up. The name server is a few variables. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "proxy/client.h"
#include "proxy/clock.h"
#include "proxy/resolve.h"

enum { CONNECT_MS = 1500, HOLES = 3 };

/* ---- the name server ---- */
enum says { NOTHING_STARTS, NEVER, FOUND, NO_NAME };
struct px_lookup {
  struct event *event;
  px_lookup_fn *done;
  void *user;
};
static struct {
  enum says says;
  struct px_addresses found;
  int asked;
} names;

static void on_asked(evutil_socket_t fd, short what, void *arg) {
  struct px_lookup *l = arg;
  (void)fd, (void)what;
  event_free(l->event);
  l->done(l->user, &names.found, names.says == NO_NAME ? "no such name" : NULL);
  free(l);
}

struct px_lookup *rd2h_px_lookup_start(struct event_base *base, const char *host, uint16_t port, px_lookup_fn *done, void *user) {
  (void)host, (void)port;
  names.asked++;
  if (names.says == NOTHING_STARTS)
    return NULL;
  struct px_lookup *l = calloc(1, sizeof *l);
  *l = (struct px_lookup){event_new(base, -1, 0, on_asked, l), done, user};
  if (names.says != NEVER)
    event_active(l->event, EV_TIMEOUT, 1);
  return l;
}

void rd2h_px_lookup_cancel(struct px_lookup *l) {
  event_free(l->event);
  free(l);
}

bool rd2h_px_resolve_numeric(const char *host, uint16_t port, struct px_addresses *out) {
  (void)host, (void)port, (void)out;
  return false;
}

/* ---- engines: one that answers, one that nobody accepts for, one that refuses ---- */
static int listen_on(int backlog, struct sockaddr_in *at) {
  socklen_t n = sizeof *at;
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  *at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  assert_true(bind(fd, (struct sockaddr *)at, sizeof *at) == 0 && listen(fd, backlog) == 0);
  getsockname(fd, (struct sockaddr *)at, &n);
  return fd;
}

struct world {
  struct event_base *base;
  struct px_client *client;
  pthread_t server;
  int live, hole, filler[HOLES];
  struct sockaddr_in live_at, hole_at, dead_at;
};

static void *serve(void *arg) {
  static const char text[] = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
  const struct world *w = arg;
  char request[4096];
  for (int c; (c = accept(w->live, NULL, NULL)) >= 0; close(c))
    if (read(c, request, sizeof request) > 0 && write(c, text, sizeof text - 1) < 0)
      break;
  return NULL;
}

static void add_address(const struct sockaddr_in *a) {
  memcpy(&names.found.of[names.found.n].address, a, sizeof *a);
  names.found.of[names.found.n++].length = sizeof *a;
}

static void open_world(struct world *w, uint32_t max_connections) {
  const struct px_client_limits limits = {.connect_ms = CONNECT_MS, .max_connections = max_connections, .max_idle = 4, .idle_ms = 4000};
  const char *why;
  memset(&names, 0, sizeof names);
  names.says = FOUND;
  w->base = event_base_new();
  w->client = rd2h_px_client_new(w->base, &limits, &why);
  assert_non_null(w->client);
  w->live = listen_on(16, &w->live_at);
  assert_int_equal(pthread_create(&w->server, NULL, serve, w), 0);
  close(listen_on(1, &w->dead_at));
  w->hole = listen_on(0, &w->hole_at);
  for (int i = 0; i < HOLES; i++) { /* its queue is full: what comes now gets no answer */
    w->filler[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    assert_true(connect(w->filler[i], (struct sockaddr *)&w->hole_at, sizeof w->hole_at) == 0 || errno == EINPROGRESS);
  }
}

static void close_world(struct world *w) {
  rd2h_px_client_free(w->client);
  event_base_free(w->base);
  shutdown(w->live, SHUT_RDWR);
  pthread_join(w->server, NULL);
  close(w->live);
  close(w->hole);
  for (int i = 0; i < HOLES; i++)
    close(w->filler[i]);
}

/* ---- requests ---- */
struct asked {
  struct px_call *call;
  int status, done;
  char error[128];
  int64_t begun, ms;
};

static void on_head(void *user, int status, const char *type, const char *retry_after) {
  (void)type, (void)retry_after;
  ((struct asked *)user)->status = status;
}

static bool on_data(void *user, struct px_span s) {
  (void)user, (void)s;
  return true;
}

static void on_done(void *user, const char *error) {
  struct asked *a = user;
  snprintf(a->error, sizeof a->error, "%s", error ? error : "");
  a->ms = px_now() - a->begun;
  a->done++;
}

static void ask(struct world *w, struct asked *a) {
  static const struct px_call_events events = {on_head, on_data, on_done};
  const struct px_request q = {.origin = "http://engine.test:80", .path = PX_LIT("/health"), .headers = PX_LIT("")};
  *a = (struct asked){.begun = px_now()};
  a->call = rd2h_px_call(w->client, &q, &events, a);
  assert_non_null(a->call);
}

/* Until all have ended, or within twice the limit. */
static void run(struct world *w, const struct asked *a, size_t n) {
  int64_t end = px_now() + 2 * CONNECT_MS;
  for (bool all = false; !all && px_now() < end;) {
    event_base_loopexit(w->base, &(struct timeval){0, 20000});
    event_base_dispatch(w->base);
    all = true;
    for (size_t i = 0; i < n; i++)
      all = all && a[i].done;
  }
  for (size_t i = 0; i < n; i++)
    assert_int_equal(a[i].done, 1);
}

static void a_dead_first_address_costs_a_moment_once(void **state) {
  struct world w;
  struct asked a;
  (void)state;
  open_world(&w, 0);
  add_address(&w.hole_at);
  add_address(&w.hole_at);
  add_address(&w.live_at);
  ask(&w, &a);
  run(&w, &a, 1);
  assert_string_equal(a.error, "");
  assert_int_equal(a.status, 200);
  assert_in_range(a.ms, 300, CONNECT_MS - 200);
  ask(&w, &a);
  run(&w, &a, 1);
  assert_int_equal(a.status, 200);
  assert_in_range(a.ms, 0, 200); /* the one that answered comes first now */
  close_world(&w);
}

static void addresses_that_refuse_cost_no_time(void **state) {
  struct world w;
  struct asked a;
  (void)state;
  open_world(&w, 0);
  add_address(&w.dead_at);
  add_address(&w.live_at);
  ask(&w, &a);
  run(&w, &a, 1);
  assert_int_equal(a.status, 200);
  assert_in_range(a.ms, 0, 200);
  close_world(&w);
}

static void all_dead_ends_within_the_limit(void **state) {
  struct world w;
  struct asked a;
  (void)state;
  open_world(&w, 0);
  add_address(&w.hole_at);
  add_address(&w.dead_at);
  add_address(&w.hole_at);
  ask(&w, &a);
  run(&w, &a, 1);
  assert_non_null(strstr(a.error, "connect-timeout"));
  assert_in_range(a.ms, CONNECT_MS - 50, CONNECT_MS + 500);
  assert_int_equal(a.status, 0);
  close_world(&w);
}

static void tries_are_one_connection_for_the_limit(void **state) {
  struct world w;
  struct asked a[3];
  (void)state;
  open_world(&w, 1);
  add_address(&w.hole_at);
  add_address(&w.live_at);
  for (int i = 0; i < 3; i++)
    ask(&w, a + i);
  run(&w, a, 3);
  for (int i = 0; i < 3; i++)
    assert_int_equal(a[i].status, 200);
  close_world(&w);
}

static void who_waits_is_told_when_no_lookup_can_begin(void **state) {
  struct world w;
  struct asked a[3];
  (void)state;
  open_world(&w, 1);
  add_address(&w.dead_at);
  for (int i = 0; i < 2; i++)
    ask(&w, a + i); /* the second waits for the first one's connection */
  for (int i = 0; i < 100 && names.asked == 0; i++)
    event_base_loop(w.base, EVLOOP_ONCE);
  names.says = NOTHING_STARTS;
  run(&w, a, 2);
  assert_non_null(strstr(a[1].error, "could not be looked up"));
  ask(&w, a + 2);
  run(&w, a + 2, 1);
  assert_non_null(strstr(a[2].error, "could not be looked up"));
  close_world(&w);
}

static void a_name_server_without_an_answer_counts_as_connecting(void **state) {
  struct world w;
  struct asked a[2];
  (void)state;
  open_world(&w, 0);
  names.says = NEVER;
  ask(&w, a);
  ask(&w, a + 1);
  run(&w, a, 2);
  for (int i = 0; i < 2; i++) {
    assert_non_null(strstr(a[i].error, "name"));
    assert_in_range(a[i].ms, CONNECT_MS - 50, CONNECT_MS + 500);
  }
  assert_int_equal(names.asked, 1);
  close_world(&w);
}

static void what_was_known_holds_while_the_name_server_fails(void **state) {
  struct world w;
  struct asked a;
  (void)state;
  open_world(&w, 0);
  add_address(&w.dead_at);
  ask(&w, &a);
  run(&w, &a, 1);
  assert_string_equal(a.error, strerror(ECONNREFUSED));
  names.says = NO_NAME; /* asked again after the failure */
  ask(&w, &a);
  run(&w, &a, 1);
  assert_string_equal(a.error, strerror(ECONNREFUSED));
  assert_int_equal(names.asked, 2);
  close_world(&w);
}

static void cancelled_while_it_is_connected(void **state) {
  struct world w;
  struct asked a, b;
  (void)state;
  open_world(&w, 1);
  add_address(&w.hole_at);
  add_address(&w.hole_at);
  ask(&w, &a);
  ask(&w, &b);
  event_base_loopexit(w.base, &(struct timeval){1, 0});
  event_base_dispatch(w.base);
  rd2h_px_call_cancel(a.call);
  rd2h_px_call_cancel(b.call);
  assert_int_equal(a.done + b.done, 0);
  assert_int_equal(rd2h_px_client_open(w.client), 0);
  close_world(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_dead_first_address_costs_a_moment_once),
    cmocka_unit_test(addresses_that_refuse_cost_no_time),
    cmocka_unit_test(all_dead_ends_within_the_limit),
    cmocka_unit_test(tries_are_one_connection_for_the_limit),
    cmocka_unit_test(who_waits_is_told_when_no_lookup_can_begin),
    cmocka_unit_test(a_name_server_without_an_answer_counts_as_connecting),
    cmocka_unit_test(what_was_known_holds_while_the_name_server_fails),
    cmocka_unit_test(cancelled_while_it_is_connected),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
