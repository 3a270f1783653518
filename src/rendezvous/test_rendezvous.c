/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "rendezvous/rendezvous.h"
#include "tests/helpers/http_server.h"

#define OK_TEXT "HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{\"status\":\"ok\"}"
#define SCRIPT(...) (const struct action[]){__VA_ARGS__}, sizeof((const struct action[]){__VA_ARGS__}) / sizeof(struct action)

struct world {
  struct server srv;
  rd2h_rendezvous *r;
  char url[128];
};

/* A server that listens, and a client with quick pauses. */
static void world_open(struct world *w, const struct rd2h_rendezvous_opts *o, const struct action *script, size_t n) {
  struct rd2h_rendezvous_opts opts = *o;
  opts.backoff_ms = opts.backoff_ms ? opts.backoff_ms : 1;
  server_start(&w->srv, script, (uint32_t)n);
  snprintf(w->url, sizeof w->url, "http://127.0.0.1:%u/v1/metaserver", w->srv.port);
  assert_int_equal(rd2h_rendezvous_create(&opts, &w->r, NULL), RD2H_OK);
}

static void world_close(struct world *w) {
  rd2h_rendezvous_destroy(w->r);
  server_stop(&w->srv);
}

static void post(struct world *w, const char *id) {
  assert_int_equal(rd2h_rendezvous_post(w->r, id, w->url, id, strlen(id), NULL), RD2H_OK);
}

static struct rd2h_rendezvous_result await(struct world *w) {
  struct pollfd p = {.fd = rd2h_rendezvous_fd(w->r), .events = POLLIN};
  struct rd2h_rendezvous_result res;
  assert_int_equal(poll(&p, 1, 10000), 1);
  assert_int_equal(rd2h_rendezvous_poll(w->r, &res, 1), 1);
  return res;
}

static void forget(struct rd2h_rendezvous_result *res) {
  rd2h_free(res->id);
  rd2h_free(res->text);
}

/* One POST against one script: its status, and how many requests the server saw. */
static struct rd2h_rendezvous_result one(const struct rd2h_rendezvous_opts *o, const struct action *script, size_t n,
                                         uint32_t *requests) {
  struct world w;
  world_open(&w, o, script, n);
  server_listen(&w.srv);
  post(&w, "req");
  struct rd2h_rendezvous_result res = await(&w);
  assert_string_equal(res.id, "req");
  assert_int_equal(rd2h_rendezvous_open(w.r), 0);
  world_close(&w);
  *requests = w.srv.requests;
  return res;
}

static const struct rd2h_rendezvous_opts defaults = {.max_attempts = 3};

struct outcome_row {
  const char *name;
  struct action act;
  int status;
  long http;
  const char *says; /* part of the text, NULL where there must be none */
};
static const struct outcome_row outcome[] = {
  {"200", {ACT_REPLY, OK_TEXT}, RD2H_OK, 200, NULL},
  {"204 without body", {ACT_REPLY, "HTTP/1.1 204 No Content\r\n\r\n"}, RD2H_OK, 204, NULL},
  {"100 before 200", {ACT_REPLY, "HTTP/1.1 100 Continue\r\n\r\n" OK_TEXT}, RD2H_OK, 200, NULL},
  {"byte by byte", {ACT_DRIP, OK_TEXT}, RD2H_OK, 200, NULL},
  {"HTTP/1.0", {ACT_REPLY, "HTTP/1.0 200 OK\r\n\r\nok"}, RD2H_OK, 200, NULL},
  {"X16 404", {ACT_REPLY, "HTTP/1.1 404 Not Found\r\nContent-Length: 10\r\n\r\nunknown id"}, RD2H_REFUSED, 404,
   "/v1/metaserver answered 404 to the rendezvous of req: unknown id"},
  {"X16 502", {ACT_REPLY, "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 7\r\n\r\nprefill"}, RD2H_REFUSED, 502, "answered 502"},
  {"answer made one line", {ACT_REPLY, "HTTP/1.1 500 E\r\nContent-Length: 11\r\n\r\na\r\nb\tc\xff\xc3\xa9\x1b."}, RD2H_REFUSED,
   500, "req: a  b c?\xc3\xa9 ."},
  {"no redirect followed", {ACT_REPLY, "HTTP/1.1 302 Found\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n"}, RD2H_REFUSED, 302,
   "answered 302 to the rendezvous of req; redirects are not followed"},
  {"200 cut in its body", {ACT_REPLY, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"}, RD2H_OK, 200, NULL},
  {"404 cut in its body", {ACT_REPLY, "HTTP/1.1 404 No\r\nContent-Length: 100\r\n\r\ngone"}, RD2H_REFUSED, 404, "req: gone"},
  {"cut in its headers", {ACT_REPLY, "HTTP/1.1 200 OK\r\nContent-Len"}, RD2H_IO, 0, "ended before the answer was complete"},
  {"closed without a word", {ACT_CLOSE, NULL}, RD2H_IO, 0, "ended before the answer was complete"},
  {"garbage", {ACT_REPLY, "SSH-2.0-OpenSSH_9.2\r\n"}, RD2H_IO, 0, "does not speak HTTP"},
  {"binary garbage", {ACT_REPLY, "\x92\xc4\x09read_done\x07"}, RD2H_IO, 0, "does not speak HTTP"},
  {"headers without end", {ACT_FLOOD, "HTTP/1.1 200 OK\r\n"}, RD2H_IO, 0, "headers of more than"},
  {"body without end", {ACT_FLOOD, "HTTP/1.1 500 No\r\n\r\n"}, RD2H_REFUSED, 500, "answered 500"},
};

/* Every one of these is final: one request, whatever came back. */
static void outcome_case(void **state) {
  const struct outcome_row *row = *state;
  uint32_t requests;
  struct rd2h_rendezvous_result res = one(&defaults, &row->act, 1, &requests);
  assert_int_equal(res.status, row->status);
  assert_int_equal(res.http, row->http);
  assert_int_equal(requests, 1);
  if (!row->says) {
    assert_null(res.text);
  } else {
    assert_non_null(res.text);
    if (!strstr(res.text, row->says))
      fail_msg("\"%s\" does not say \"%s\"", res.text, row->says);
    for (const char *c = res.text; *c; c++)
      assert_false(*c > 0 && *c < ' ');
  }
  forget(&res);
}

static void test_request_as_sent(void **state) {
  struct world w;
  char body[64];
  (void)state;
  setenv("http_proxy", "http://127.0.0.1:9", 1);
  setenv("all_proxy", "http://127.0.0.1:9", 1);
  world_open(&w, &defaults, SCRIPT({ACT_REPLY, OK_TEXT}));
  server_listen(&w.srv);
  assert_int_equal(rd2h_rendezvous_post(w.r, "x", w.url, "{\"request_id\":\"x\"}", 18, NULL), RD2H_OK);
  struct rd2h_rendezvous_result res = await(&w);
  assert_int_equal(res.status, RD2H_OK);
  forget(&res);
  world_close(&w);
  unsetenv("http_proxy");
  unsetenv("all_proxy");
  assert_memory_equal(w.srv.last, "POST /v1/metaserver HTTP/1.1\r\n", 30);
  assert_non_null(strstr(w.srv.last, "\r\nContent-Type: application/json\r\n"));
  assert_non_null(strstr(w.srv.last, "\r\nContent-Length: 18\r\n"));
  assert_null(strstr(w.srv.last, "Expect"));
  snprintf(body, sizeof body, "%s", strstr(w.srv.last, "\r\n\r\n") + 4);
  assert_string_equal(body, "{\"request_id\":\"x\"}");
}

/* ---- repeats ---- */
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static char log_line[512];
static int repeat_fd = -1; /* a pipe's end that learns of each repeat */

static void on_log(void *user, int level, const char *line) {
  (void)user;
  (void)level;
  pthread_mutex_lock(&log_lock);
  snprintf(log_line, sizeof log_line, "%s", line);
  if (repeat_fd >= 0 && strstr(line, "it will be repeated"))
    assert_int_equal(write(repeat_fd, "r", 1), 1);
  pthread_mutex_unlock(&log_lock);
}

static void test_refused_connections_are_bounded(void **state) {
  struct world w;
  (void)state;
  world_open(&w, &defaults, SCRIPT({ACT_REPLY, OK_TEXT})); /* never listens */
  post(&w, "req");
  struct rd2h_rendezvous_result res = await(&w);
  assert_int_equal(res.status, RD2H_IO);
  assert_int_equal(res.http, 0);
  assert_non_null(strstr(res.text, "attempt 3 of 3: not reachable"));
  forget(&res);
  world_close(&w);
}

#define LATER_TEXT(more) "HTTP/1.1 503 Later\r\n" more "Content-Length: 4\r\n\r\nfull"

static void test_x16_503_is_tried_again(void **state) {
  uint32_t requests;
  (void)state;
  struct rd2h_rendezvous_result res =
      one(&defaults, SCRIPT({ACT_KEEP, LATER_TEXT("")}, {ACT_REPLY, LATER_TEXT("")}, {ACT_REPLY, OK_TEXT}), &requests);
  assert_int_equal(res.status, RD2H_OK);
  assert_null(res.text);
  assert_int_equal(requests, 3);
  forget(&res);
}

static void test_x16_503_is_bounded(void **state) {
  uint32_t requests;
  (void)state;
  struct rd2h_rendezvous_result res = one(&defaults, SCRIPT({ACT_REPLY, LATER_TEXT("")}), &requests);
  assert_int_equal(res.status, RD2H_REFUSED);
  assert_int_equal(res.http, 503);
  assert_non_null(strstr(res.text, "answered 503 to the rendezvous of req, attempt 3 of 3: full"));
  assert_int_equal(requests, 3);
  forget(&res);
  /* A pause that ends too late is not begun. */
  res = one(&(struct rd2h_rendezvous_opts){.answer_timeout_ms = 5000}, SCRIPT({ACT_REPLY, LATER_TEXT("Retry-After: 60\r\n")}), &requests);
  assert_int_equal(res.status, RD2H_REFUSED);
  assert_int_equal(requests, 1);
  forget(&res);
  /* What comes after it is final as ever. */
  res = one(&defaults, SCRIPT({ACT_REPLY, LATER_TEXT("")}, {ACT_REPLY, "HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n"}), &requests);
  assert_int_equal(res.http, 404);
  assert_int_equal(requests, 2);
  forget(&res);
}

static void test_x16_503_keeps_its_pause(void **state) {
  uint32_t requests;
  uint64_t begin = rd2h_now_ns();
  (void)state;
  struct rd2h_rendezvous_result res =
      one(&defaults, SCRIPT({ACT_REPLY, LATER_TEXT("Retry-After: 1\r\n")}, {ACT_REPLY, OK_TEXT}), &requests);
  assert_int_equal(res.status, RD2H_OK);
  assert_int_equal(requests, 2);
  assert_true(rd2h_now_ns() - begin >= 1000 * RD2H_MS);
  forget(&res);
}

static void test_d10_repeat_reaches_a_late_server(void **state) {
  struct world w;
  int end[2];
  char c;
  (void)state;
  assert_int_equal(pipe(end), 0);
  repeat_fd = end[1];
  world_open(&w, &(struct rd2h_rendezvous_opts){.max_attempts = 1000, .backoff_ms = 1}, SCRIPT({ACT_REPLY, OK_TEXT}));
  post(&w, "req");
  assert_int_equal(read(end[0], &c, 1), 1); /* refused once at least */
  server_listen(&w.srv);
  struct rd2h_rendezvous_result res = await(&w);
  assert_int_equal(res.status, RD2H_OK);
  forget(&res);
  world_close(&w);
  assert_int_equal(w.srv.requests, 1);
  pthread_mutex_lock(&log_lock);
  repeat_fd = -1;
  pthread_mutex_unlock(&log_lock);
  close(end[0]);
  close(end[1]);
}

static void test_dead_kept_connection_is_replaced(void **state) {
  struct world w;
  (void)state;
  world_open(&w, &(struct rd2h_rendezvous_opts){.max_attempts = 1},
             SCRIPT({ACT_KEEP, OK_TEXT}, {ACT_CLOSE, NULL}, {ACT_KEEP, OK_TEXT}));
  server_listen(&w.srv);
  for (int i = 0; i < 2; i++) {
    post(&w, "req");
    struct rd2h_rendezvous_result res = await(&w);
    assert_int_equal(res.status, RD2H_OK);
    forget(&res);
  }
  world_close(&w);
  assert_int_equal(w.srv.requests, 3);
  assert_int_equal(w.srv.connections, 2);
}

static void test_no_answer_in_time(void **state) {
  uint32_t requests;
  const struct rd2h_rendezvous_opts o = {.connect_timeout_ms = 50, .answer_timeout_ms = 60, .max_attempts = 3};
  (void)state;
  struct rd2h_rendezvous_result res = one(&o, SCRIPT({ACT_HANG, NULL}), &requests);
  assert_int_equal(res.status, RD2H_TIMEOUT);
  assert_non_null(strstr(res.text, "did not answer the rendezvous of req within 60 ms"));
  assert_int_equal(requests, 1);
  forget(&res);
}

static void test_legacy_takes_errors_as_delivered(void **state) {
  uint32_t requests;
  const struct rd2h_rendezvous_opts o = {.legacy_metaserver = true};
  (void)state;
  struct rd2h_rendezvous_result res = one(&o, SCRIPT({ACT_REPLY, "HTTP/1.1 500 E\r\nContent-Length: 2\r\n\r\nno"}), &requests);
  assert_int_equal(res.status, RD2H_OK);
  assert_int_equal(res.http, 500);
  assert_null(res.text);
  assert_non_null(strstr(log_line, "answered 500 to the rendezvous of req: no; taken as delivered"));
  forget(&res);
}

/* ---- cancel, limits, end ---- */
static void assert_silent(struct world *w) {
  struct pollfd p = {.fd = rd2h_rendezvous_fd(w->r), .events = POLLIN};
  struct rd2h_rendezvous_result res;
  assert_int_equal(poll(&p, 1, 0), 0);
  assert_int_equal(rd2h_rendezvous_poll(w->r, &res, 1), 0);
}

static void test_cancel_on_the_wire(void **state) {
  struct world w;
  (void)state;
  world_open(&w, &defaults, SCRIPT({ACT_HANG, NULL}, {ACT_REPLY, OK_TEXT}));
  server_listen(&w.srv);
  post(&w, "a");
  assert_true(server_wait(&w.srv, &w.srv.hung, 1));
  rd2h_rendezvous_cancel(w.r, "a");
  rd2h_rendezvous_cancel(w.r, "a");
  rd2h_rendezvous_cancel(w.r, "never posted");
  assert_int_equal(rd2h_rendezvous_open(w.r), 0);
  assert_true(server_wait(&w.srv, &w.srv.hung_closed, 1)); /* the connection is really gone */
  assert_silent(&w);
  post(&w, "a"); /* the id is free again */
  struct rd2h_rendezvous_result res = await(&w);
  assert_int_equal(res.status, RD2H_OK);
  forget(&res);
  world_close(&w);
}

static void test_cancel_in_the_queue_and_order(void **state) {
  struct world w;
  (void)state;
  world_open(&w, &(struct rd2h_rendezvous_opts){.max_inflight = 1}, SCRIPT({ACT_HANG, NULL}, {ACT_REPLY, OK_TEXT}));
  server_listen(&w.srv);
  for (const char *id = "a\0b\0c\0d\0"; *id; id += 2)
    post(&w, id);
  assert_true(server_wait(&w.srv, &w.srv.hung, 1));
  rd2h_rendezvous_cancel(w.r, "b");
  server_release(&w.srv, OK_TEXT);
  for (const char *id = "a\0c\0d\0"; *id; id += 2) {
    struct rd2h_rendezvous_result res = await(&w);
    assert_string_equal(res.id, id);
    assert_int_equal(res.status, RD2H_OK);
    forget(&res);
  }
  world_close(&w);
  assert_memory_equal(w.srv.order, "acd", 4);
}

static void test_cancel_of_a_result(void **state) {
  struct world w;
  (void)state;
  world_open(&w, &defaults, SCRIPT({ACT_REPLY, OK_TEXT}));
  server_listen(&w.srv);
  post(&w, "a");
  assert_int_equal(poll(&(struct pollfd){.fd = rd2h_rendezvous_fd(w.r), .events = POLLIN}, 1, 10000), 1);
  rd2h_rendezvous_cancel(w.r, "a");
  assert_silent(&w);
  assert_int_equal(rd2h_rendezvous_open(w.r), 0);
  world_close(&w);
}

static void test_cancel_in_a_pause(void **state) {
  struct world w;
  int end[2];
  char c;
  (void)state;
  assert_int_equal(pipe(end), 0);
  repeat_fd = end[1];
  world_open(&w, &(struct rd2h_rendezvous_opts){.backoff_ms = 1000}, SCRIPT({ACT_REPLY, OK_TEXT})); /* refuses */
  post(&w, "a");
  post(&w, "b");
  assert_int_equal(read(end[0], &c, 1), 1);
  assert_int_equal(read(end[0], &c, 1), 1);
  rd2h_rendezvous_cancel(w.r, "a");
  server_listen(&w.srv);
  struct rd2h_rendezvous_result res = await(&w);
  assert_string_equal(res.id, "b");
  forget(&res);
  world_close(&w);
  assert_int_equal(w.srv.requests, 1);
  pthread_mutex_lock(&log_lock);
  repeat_fd = -1;
  pthread_mutex_unlock(&log_lock);
  close(end[0]);
  close(end[1]);
}

static void test_queue_is_bounded(void **state) {
  struct world w;
  struct rd2h_error e;
  (void)state;
  world_open(&w, &(struct rd2h_rendezvous_opts){.max_inflight = 1, .max_queued = 1}, SCRIPT({ACT_HANG, NULL}));
  server_listen(&w.srv);
  post(&w, "a");
  assert_int_equal(rd2h_rendezvous_post(w.r, "a", w.url, "", 0, &e), RD2H_EXISTS);
  assert_non_null(strstr(e.text, "request a: its rendezvous is open already"));
  post(&w, "b");
  assert_int_equal(rd2h_rendezvous_post(w.r, "c", w.url, "", 0, &e), RD2H_LIMIT);
  assert_non_null(strstr(e.text, "2 rendezvous are open already"));
  rd2h_rendezvous_cancel(w.r, "b");
  post(&w, "c");
  world_close(&w); /* with one on the wire and one queued */
}

static void test_bad_addresses(void **state) {
  static char long_url[5000];
  const char *bad[] = {"", "metaserver", "ftp://h/x", "file:///etc/passwd", "http://", "http://h:99999/", "http://user:pw@h/",
                       "h:80/x", long_url};
  struct rd2h_error e;
  struct world w;
  (void)state;
  memcpy(long_url, "http://h/", 9);
  memset(long_url + 9, 'x', sizeof long_url - 10);
  world_open(&w, &defaults, SCRIPT({ACT_HANG, NULL}));
  for (size_t i = 0; i < RD2H_COUNT(bad); i++) {
    assert_int_equal(rd2h_rendezvous_post(w.r, "a", bad[i], "{}", 2, &e), RD2H_INVALID);
    assert_non_null(strstr(e.text, "must be http://host:port/path"));
  }
  assert_int_equal(rd2h_rendezvous_open(w.r), 0);
  world_close(&w);
}

static uint32_t threads_now(void) {
  DIR *d = opendir("/proc/self/task");
  uint32_t n = 0;
  for (struct dirent *e; (e = readdir(d));)
    n += e->d_name[0] != '.';
  closedir(d);
  return n;
}

static void test_many_on_one_thread(void **state) {
  enum { MANY = 300 };
  struct world w;
  char id[16];
  (void)state;
  world_open(&w, &(struct rd2h_rendezvous_opts){.max_inflight = MANY}, SCRIPT({ACT_HANG, NULL}));
  server_listen(&w.srv);
  uint32_t threads = threads_now();
  for (int i = 0; i < MANY; i++) {
    snprintf(id, sizeof id, "r%d", i);
    post(&w, id);
  }
  assert_true(server_wait(&w.srv, &w.srv.hung, MANY));
  assert_int_equal(threads_now(), threads);
  server_release(&w.srv, OK_TEXT);
  for (int i = 0; i < MANY; i++) {
    struct rd2h_rendezvous_result res = await(&w);
    assert_int_equal(res.status, RD2H_OK);
    forget(&res);
  }
  assert_int_equal(rd2h_rendezvous_open(w.r), 0);
  world_close(&w);
}

static void test_host_names_are_looked_up(void **state) {
  struct world w;
  (void)state;
  world_open(&w, &defaults, SCRIPT({ACT_REPLY, OK_TEXT}));
  server_listen(&w.srv);
  snprintf(w.url, sizeof w.url, "http://localhost:%u/", w.srv.port);
  post(&w, "a");
  struct rd2h_rendezvous_result res = await(&w);
  assert_int_equal(res.status, RD2H_OK);
  forget(&res);
  world_close(&w);
}

/* Wake-ups of the client's thread so far. */
static uint64_t wakeups(void) {
  DIR *d = opendir("/proc/self/task");
  uint64_t sum = 0, v;
  for (struct dirent *e; (e = readdir(d));) {
    char path[300], line[128];
    bool ours = false;
    snprintf(path, sizeof path, "/proc/self/task/%s/status", e->d_name);
    FILE *f = e->d_name[0] == '.' ? NULL : fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) {
      ours |= !strcmp(line, "Name:\trd2h-rendezvous\n");
      if (ours && sscanf(line, "voluntary_ctxt_switches: %lu", &v) == 1)
        sum += v;
    }
    if (f)
      fclose(f);
  }
  closedir(d);
  return sum;
}

static void test_waiting_costs_nothing(void **state) {
  struct world w;
  (void)state;
  world_open(&w, &defaults, SCRIPT({ACT_HANG, NULL}));
  server_listen(&w.srv);
  post(&w, "a");
  assert_true(server_wait(&w.srv, &w.srv.hung, 1));
  uint64_t woken = UINT64_MAX;
  for (int i = 0; i < 10 && woken > 2; i++) { /* on a busy machine threads settle late */
    uint64_t before = wakeups();
    poll(NULL, 0, 400); /* what is measured: a pause in which nothing happens */
    woken = wakeups() - before;
  }
  assert_true(wakeups() > 0);
  assert_in_range(woken, 0, 2);
  world_close(&w);
}

static void test_out_of_memory(void **state) {
  struct world w;
  struct rd2h_rendezvous_result res;
  struct rd2h_error e;
  (void)state;
  server_start(&w.srv, SCRIPT({ACT_REPLY, OK_TEXT}));
  server_listen(&w.srv);
  snprintf(w.url, sizeof w.url, "http://127.0.0.1:%u/", w.srv.port);
  bool failed = true;
  for (uint64_t n = 1; failed; n++) {
    assert_in_range(n, 1, 100);
    rd2h_alloc_fail_at(n);
    int rc = rd2h_rendezvous_create(&defaults, &w.r, &e);
    failed = rc != RD2H_OK;
    if (rc) {
      assert_int_equal(rc, RD2H_NOMEM);
      continue;
    }
    rc = rd2h_rendezvous_post(w.r, "a request id that is too long for the table's own slots", w.url, "{}", 2, &e);
    rd2h_alloc_fail_at(0);
    failed = rc != RD2H_OK;
    assert_int_equal(rd2h_rendezvous_open(w.r), !failed);
    if (!failed) {
      res = await(&w);
      assert_int_equal(res.status, RD2H_OK);
      forget(&res);
    }
    rd2h_rendezvous_destroy(w.r);
  }
  rd2h_alloc_fail_at(0);
  server_stop(&w.srv);
}

int main(void) {
  static struct CMUnitTest tests[64];
  const struct CMUnitTest more[] = {
    cmocka_unit_test(test_request_as_sent), cmocka_unit_test(test_refused_connections_are_bounded),
    cmocka_unit_test(test_x16_503_is_tried_again), cmocka_unit_test(test_x16_503_is_bounded),
    cmocka_unit_test(test_x16_503_keeps_its_pause),
    cmocka_unit_test(test_d10_repeat_reaches_a_late_server), cmocka_unit_test(test_dead_kept_connection_is_replaced),
    cmocka_unit_test(test_no_answer_in_time), cmocka_unit_test(test_legacy_takes_errors_as_delivered),
    cmocka_unit_test(test_cancel_on_the_wire), cmocka_unit_test(test_cancel_in_the_queue_and_order),
    cmocka_unit_test(test_cancel_of_a_result), cmocka_unit_test(test_cancel_in_a_pause), cmocka_unit_test(test_queue_is_bounded),
    cmocka_unit_test(test_bad_addresses), cmocka_unit_test(test_many_on_one_thread),
    cmocka_unit_test(test_host_names_are_looked_up), cmocka_unit_test(test_waiting_costs_nothing),
    cmocka_unit_test(test_out_of_memory),
  };
  size_t n = 0;
  for (size_t i = 0; i < RD2H_COUNT(outcome); i++)
    tests[n++] = (struct CMUnitTest){.name = outcome[i].name, .test_func = outcome_case, .initial_state = (void *)&outcome[i]};
  for (size_t i = 0; i < RD2H_COUNT(more); i++)
    tests[n++] = more[i];
  rd2h_log_set(on_log, NULL, RD2H_LOG_INFO);
  return _cmocka_run_group_tests("rendezvous", tests, n, NULL, NULL);
}
