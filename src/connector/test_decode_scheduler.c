/* SPDX-License-Identifier: Apache-2.0 */
/* Decode's public scheduler object against a real HTTP server: a rendezvous goes out, its answer reaches the workers' bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <poll.h>
#include <stdio.h>
#include "scheduler/step.h"
#include "tests/helpers/http_server.h"
#include <rd2h/scheduler.h>

#define OK_TEXT "HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{\"status\":\"ok\"}"
#define GONE_TEXT "HTTP/1.1 404 Not Found\r\nContent-Length: 10\r\n\r\nunknown id"

struct world {
  struct server srv;
  rd2h_decode_scheduler *d;
  struct rd2h_arena arena;
  char params[256];
};
static const struct rd2h_decode_scheduler_opts opts = {.size = sizeof opts, .n_groups = 1, .block_size = {16},
                                                       .host = "127.0.0.1", .kv_port = 20000, .tp_size = 1, .engine_id = "e"};
static const struct rd2h_block_table blocks = {1, {(const uint32_t[]){3, 4}}, {2}};

static void world_open(struct world *w) {
  static const struct action hang = {ACT_HANG, NULL};
  *w = (struct world){.d = NULL};
  server_start(&w->srv, &hang, 1);
  server_listen(&w->srv);
  snprintf(w->params, sizeof w->params, "{\"do_remote_prefill\":true,\"metaserver\":\"http://127.0.0.1:%u/v1/metaserver\"}",
           w->srv.port);
  assert_int_equal(rd2h_decode_scheduler_create(&opts, &w->d, NULL), RD2H_OK);
}

static void world_close(struct world *w) {
  rd2h_decode_scheduler_destroy(w->d);
  server_stop(&w->srv);
  rd2h_arena_free(&w->arena);
}

static struct rd2h_decode_step_view step(struct world *w) {
  struct rd2h_decode_step_view v;
  struct rd2h_bytes b;
  assert_int_equal(rd2h_decode_scheduler_step_end(w->d, &b, NULL), RD2H_OK);
  assert_int_equal(rd2h_step_decode_decode(b.p, b.len, &w->arena, &v, NULL), RD2H_OK);
  return v;
}

static void load(struct world *w, const char *id) {
  uint64_t tokens;
  assert_int_equal(rd2h_decode_scheduler_matched(w->d, id, w->params, 20, 0, &tokens, NULL), RD2H_OK);
  assert_int_equal(tokens, 20);
  assert_int_equal(rd2h_decode_scheduler_alloc(w->d, id, w->params, 20, tokens, &blocks, NULL), 1);
  struct rd2h_decode_step_view v = step(w);
  assert_int_equal(v.n_install, 1);
  assert_int_equal(v.n_end, 0);
  assert_int_equal(rd2h_decode_scheduler_waiting(w->d), 1);
}

/* Only now: an answer that comes before the first step is part of it. */
static void answer(struct world *w, const char *text) {
  assert_true(server_wait(&w->srv, &w->srv.hung, 1));
  server_release(&w->srv, text);
  assert_int_equal(poll(&(struct pollfd){.fd = rd2h_decode_scheduler_fd(w->d), .events = POLLIN}, 1, 10000), 1);
}

static void test_delivered(void **state) {
  struct world w;
  (void)state;
  world_open(&w);
  load(&w, "cmpl-a-0-12345678");
  answer(&w, OK_TEXT);
  struct rd2h_decode_step_view v = step(&w);
  assert_int_equal(v.n_end, 0);
  assert_int_equal(v.n_answered, 1); /* Prefill has finished: the workers are told, once */
  assert_memory_equal(v.answered[0].p, "cmpl-a-0-12345678", v.answered[0].n);
  assert_int_equal(step(&w).n_answered, 0);
  rd2h_decode_scheduler_received(w.d, "cmpl-a-0-12345678", false);
  rd2h_decode_scheduler_finish(w.d, "cmpl-a-0-12345678");
  assert_int_equal(step(&w).n_end, 0);
  assert_int_equal(rd2h_decode_scheduler_waiting(w.d), 0);
  world_close(&w);
  assert_non_null(strstr(w.srv.last, "\r\n\r\n{\"request_id\":\"cmpl-a-0\",\"do_remote_prefill\":false,"));
}

static void test_refused(void **state) {
  struct world w;
  (void)state;
  world_open(&w);
  load(&w, "a");
  answer(&w, GONE_TEXT);
  struct rd2h_decode_step_view v = step(&w);
  assert_int_equal(v.n_end, 1);
  assert_int_equal(v.end[0].status, RD2H_REFUSED);
  assert_true(v.end[0].installed);
  assert_non_null(memmem(v.end[0].text.p, v.end[0].text.n, "answered 404", 12));
  rd2h_decode_scheduler_received(w.d, "a", true);
  rd2h_decode_scheduler_finish(w.d, "a");
  world_close(&w);
}

static void test_abort_hangs_up(void **state) {
  struct world w;
  (void)state;
  world_open(&w);
  load(&w, "a");
  assert_true(server_wait(&w.srv, &w.srv.hung, 1));
  rd2h_decode_scheduler_finish(w.d, "a");
  struct rd2h_decode_step_view v = step(&w);
  assert_int_equal(v.n_end, 1);
  assert_int_equal(v.end[0].status, RD2H_ABORTED);
  assert_true(server_wait(&w.srv, &w.srv.hung_closed, 1));
  world_close(&w);
}

static void test_bad_metaserver_is_reported(void **state) {
  struct world w;
  struct rd2h_error e;
  (void)state;
  world_open(&w);
  assert_int_equal(rd2h_decode_scheduler_alloc(w.d, "a", "{\"do_remote_prefill\":true,\"metaserver\":\"ftp://h/\"}", 20, 20,
                                               &blocks, &e), RD2H_INVALID);
  assert_non_null(strstr(e.text, "metaserver \"ftp://h/\" cannot be used"));
  struct rd2h_decode_step_view v = step(&w);
  assert_int_equal(v.n_install, 0);
  assert_int_equal(v.n_end, 1);
  assert_false(v.end[0].installed);
  world_close(&w);
}

static void test_destroy_hangs_up(void **state) {
  struct world w;
  (void)state;
  world_open(&w);
  load(&w, "a");
  assert_true(server_wait(&w.srv, &w.srv.hung, 1));
  rd2h_decode_scheduler_destroy(w.d);
  assert_true(server_wait(&w.srv, &w.srv.hung_closed, 1));
  w.d = NULL;
  world_close(&w);
}

static void test_bad_authority_is_refused(void **state) {
  struct rd2h_decode_scheduler_opts o = opts;
  rd2h_decode_scheduler *d = NULL;
  struct rd2h_error e;
  (void)state;
  o.rendezvous_ca = "/nowhere/ca.pem";
  assert_int_equal(rd2h_decode_scheduler_create(&o, &d, &e), RD2H_INVALID);
  assert_non_null(strstr(e.text, "rendezvous_ca \"/nowhere/ca.pem\" cannot be read: No such file"));
  o.rendezvous_ca = "/dev/null";
  assert_int_equal(rd2h_decode_scheduler_create(&o, &d, &e), RD2H_INVALID);
  assert_non_null(strstr(e.text, "rendezvous_ca \"/dev/null\" holds no certificate"));
  assert_null(d);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_delivered), cmocka_unit_test(test_refused), cmocka_unit_test(test_abort_hangs_up),
    cmocka_unit_test(test_bad_metaserver_is_reported), cmocka_unit_test(test_destroy_hangs_up),
    cmocka_unit_test(test_bad_authority_is_refused),
  };
  return cmocka_run_group_tests_name("Decode's scheduler object", tests, NULL, NULL);
}
