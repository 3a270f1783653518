/* SPDX-License-Identifier: Apache-2.0 */
/* What goes wrong between two processes of the real library: faults [CASE] | --list; --serve: the process that is read from. */
#include "engine/engine.h"
#include "engines/memfabric/memfabric.h"
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>
#include "tests/helpers/one_case.h"

#define MIB (1u << 20)
#define BYTES (4u * MIB)
#define LONG 4096u /* descriptors of a read that takes long */
#define WAIT_MS 20000
#define LIBRARY_GIVES_UP_MS 31000
#define COOKIE 7u

static const char *const options[] = {"protocol=host_tcp", "init_s=5", NULL};

/* ---- the process that is read from ---- */
struct hello {
  uint64_t base;
  uint32_t n;
  char session[64];
  uint8_t conn[512];
};
struct source {
  pid_t pid;
  int control;
  struct hello hello;
};

static int serve(int control) {
  struct rd2h_engine_opts o = {.size = sizeof o, .prefill = true, .options = options};
  struct rd2h_error err = {0};
  struct rd2h_buf conn = {0};
  struct hello h = {0};
  uint32_t region;
  rd2h_eng *e;
  char order;
  uint8_t *p = aligned_alloc(2 * MIB, BYTES);
  memset(p, 0x5a, BYTES);
  if (rd2h_eng_open("memfabric", &o, &e, &err) || rd2h_eng_reg(e, &(struct rd2h_region){.base = p, .len = BYTES}, &region, &err) ||
      rd2h_eng_publish(e, &conn, &err)) {
    fprintf(stderr, "source: %s\n", err.text);
    return 2;
  }
  h.base = (uintptr_t)p;
  h.n = (uint32_t)conn.len;
  snprintf(h.session, sizeof h.session, "%s", rd2h_eng_session(e));
  memcpy(h.conn, conn.p, conn.len);
  if (send(control, &h, sizeof h, 0) != sizeof h)
    return 2;
  recv(control, &order, 1, 0); /* until it is killed */
  _exit(0);
}

/* A config store alone, and an object that uses the one of another process. */
static int bare(int control, const char *session) {
  static struct mf_options o;
  const struct mf_api *api;
  struct rd2h_error err = {0};
  struct hello h = {0};
  void *object;
  char url[80], order;
  uint8_t *p = aligned_alloc(2 * MIB, BYTES);
  memset(p, 0x5a, BYTES);
  if (rd2h_mf_options(options, "127.0.0.1", &o, &err) || rd2h_mf_library(NULL, &api, &err))
    return 2;
  snprintf(h.session, sizeof h.session, "%s", session ? session : "");
  if (!session) {
    uint16_t port = 0;
    close(rd2h_mf_hold_port("127.0.0.1", &port));
    rd2h_mf_id("127.0.0.1", port, h.session);
    snprintf(url, sizeof url, "tcp://%s", h.session);
    if (api->create_config_store(url, 0))
      return 2;
  } else if (rd2h_mf_bind(api, &(struct mf_binding){.prefill = true, .host = "127.0.0.1"}, &o, &err) ||
             rd2h_mf_create(api, &o, MF_SENDER, session, session, &object, &err) || api->register_mem(object, p, BYTES, 0)) {
    return 2;
  }
  h.base = (uintptr_t)p;
  if (send(control, &h, sizeof h, 0) != sizeof h)
    return 2;
  recv(control, &order, 1, 0);
  _exit(0);
}

static void source_start(struct source *s, const char *as) {
  char number[16];
  int pair[2];
  assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
  snprintf(number, sizeof number, "%d", pair[1]);
  s->pid = fork();
  if (!s->pid) {
    close(pair[0]);
    execl("/proc/self/exe", "faults", as, number, (char *)NULL);
    _exit(127);
  }
  close(pair[1]);
  s->control = pair[0];
  assert_int_equal(recv(s->control, &s->hello, sizeof s->hello, 0), sizeof s->hello);
}

static void source_end(struct source *s) {
  kill(s->pid, SIGKILL);
  waitpid(s->pid, NULL, 0);
  close(s->control);
}

/* ---- reads ---- */
struct link {
  struct source source;
  rd2h_eng *eng;
  rd2h_eng_peer *peer;
  uint8_t *dst;
};
struct load {
  struct rd2h_batch b;
  void *local[LONG];
  uint64_t remote[LONG], len[LONG];
};

static rd2h_eng_peer *connect_to(rd2h_eng *e, const char *session, const uint8_t *conn, uint32_t n) {
  struct rd2h_error err = {0};
  rd2h_eng_peer *p = NULL;
  struct rd2h_blob at = {(const uint8_t *)session, (uint32_t)strlen(session)};
  if (rd2h_eng_connect(e, at, (struct rd2h_blob){conn, n}, COOKIE, &p, &err))
    fail_msg("%s", err.text);
  return p;
}

static rd2h_eng *decode_open(void) {
  struct rd2h_engine_opts o = {.size = sizeof o, .options = options};
  struct rd2h_error err = {0};
  rd2h_eng *e = NULL;
  if (rd2h_eng_open("memfabric", &o, &e, &err))
    fail_msg("%s", err.text);
  return e;
}

static void load_set(struct load *l, uint64_t id, void *dst, uint64_t remote, uint64_t len, uint32_t n) {
  l->b = (struct rd2h_batch){.id = id, .n = n, .bytes = n * len, .local = l->local, .remote = l->remote, .len = l->len};
  for (uint32_t i = 0; i < n; i++) {
    l->local[i] = dst;
    l->remote[i] = remote;
    l->len[i] = len;
  }
}

/* The completion of whatever ends next, and the text of a failure. */
static struct rd2h_completion next(rd2h_eng *e, const char **why, int ms) {
  struct rd2h_completion c = {.status = 1};
  uint64_t until = rd2h_now_ns() + (uint64_t)ms * RD2H_MS;
  while (!rd2h_eng_poll(e, &c, 1)) {
    assert_true(rd2h_now_ns() < until);
    poll(&(struct pollfd){.fd = rd2h_eng_fd(e), .events = POLLIN}, 1, 50);
  }
  *why = c.status ? rd2h_eng_last_error(e, c.id) : "";
  return c;
}

static void read_ok(struct link *l, uint64_t id) {
  static struct load one;
  const char *why;
  load_set(&one, id, l->dst, l->source.hello.base + 100, 1000, 1);
  assert_int_equal(rd2h_eng_submit(l->eng, l->peer, &one.b), RD2H_OK);
  struct rd2h_completion c = next(l->eng, &why, WAIT_MS);
  assert_string_equal(why, "");
  assert_int_equal(c.bytes, 1000);
  assert_int_equal(l->dst[999], 0x5a);
}

static void link_open(struct link *l) {
  source_start(&l->source, "--serve");
  l->eng = decode_open();
  l->peer = connect_to(l->eng, l->source.hello.session, l->source.hello.conn, l->source.hello.n);
  l->dst = calloc(1, BYTES);
  read_ok(l, 1);
}

static void link_close(struct link *l) {
  rd2h_eng_disconnect(l->eng, l->peer);
  rd2h_eng_close(l->eng);
  source_end(&l->source);
  free(l->dst);
}

static void expect_down(rd2h_eng *e) {
  struct rd2h_peer_event ev = {0};
  uint64_t until = rd2h_now_ns() + WAIT_MS * RD2H_MS;
  while (!rd2h_eng_events(e, &ev, 1))
    assert_true(rd2h_now_ns() < until);
  assert_int_equal(ev.cookie, COOKIE);
  assert_int_equal(ev.status, RD2H_PEER_LOST);
}

/* ---- the cases ---- */
static struct load a, b;

/* What waits fails at once, and the peers are told; the read under way ends when its object is down, which takes the library a while. */
static void peer_killed_in_mid_read(void **state) {
  struct link l;
  const char *why;
  (void)state;
  link_open(&l);
  load_set(&a, 2, l.dst, l.source.hello.base, MIB, LONG);
  load_set(&b, 3, l.dst, l.source.hello.base, 1000, 1);
  assert_int_equal(rd2h_eng_submit(l.eng, l.peer, &a.b), RD2H_OK);
  assert_int_equal(rd2h_eng_submit(l.eng, l.peer, &b.b), RD2H_OK);
  poll(NULL, 0, 100);
  kill(l.source.pid, SIGKILL);
  waitid(P_PID, (id_t)l.source.pid, &(siginfo_t){0}, WNOWAIT | WEXITED);
  for (int i = 0; i < 2; i++) {
    struct rd2h_completion c = next(l.eng, &why, i ? 2 * WAIT_MS : 3000);
    assert_int_equal(c.id, i ? 2 : 3);
    assert_int_equal(c.status, RD2H_PEER_LOST);
    assert_non_null(strstr(why, l.source.hello.session));
    assert_true(c.bytes < (c.id == 2 ? a.b.bytes : b.b.bytes));
    if (!i)
      expect_down(l.eng);
  }
  assert_int_equal(rd2h_eng_submit(l.eng, l.peer, &b.b), RD2H_PEER_LOST);
  link_close(&l);
}

/* A second of silence: what waits fails, nothing new is taken; when the peer goes on, so does the read. */
static void peer_stopped_for_a_while(void **state) {
  struct link l;
  const char *why;
  (void)state;
  link_open(&l);
  kill(l.source.pid, SIGSTOP);
  load_set(&a, 2, l.dst, l.source.hello.base, MIB, 4);
  load_set(&b, 3, l.dst, l.source.hello.base, 1000, 1);
  assert_int_equal(rd2h_eng_submit(l.eng, l.peer, &a.b), RD2H_OK);
  assert_int_equal(rd2h_eng_submit(l.eng, l.peer, &b.b), RD2H_OK);
  struct rd2h_completion c = next(l.eng, &why, 3000);
  assert_int_equal(c.id, 3);
  assert_int_equal(c.status, RD2H_TIMEOUT);
  assert_non_null(strstr(why, "has hung for"));
  assert_int_equal(rd2h_eng_submit(l.eng, l.peer, &b.b), RD2H_TIMEOUT);
  kill(l.source.pid, SIGCONT);
  c = next(l.eng, &why, WAIT_MS);
  assert_string_equal(why, "");
  assert_int_equal(c.id, 2);
  read_ok(&l, 4);
  link_close(&l);
}

/* The library gives up a read after half a minute, but takes no object down while its peer hangs. Only then are the destinations given
 * back: here once the peer's process has ended. Another peer is served all the while. */
static void peer_stopped_for_good(void **state) {
  struct link l;
  const char *why;
  (void)state;
  link_open(&l);
  kill(l.source.pid, SIGSTOP);
  load_set(&a, 2, l.dst, l.source.hello.base, MIB, 4);
  assert_int_equal(rd2h_eng_submit(l.eng, l.peer, &a.b), RD2H_OK);
  poll(NULL, 0, 200);
  rd2h_eng_cancel(l.eng, 2);
  poll(NULL, 0, LIBRARY_GIVES_UP_MS + 2000);
  assert_int_equal(rd2h_eng_poll(l.eng, &(struct rd2h_completion){0}, 1), 0);
  struct link other = {.eng = l.eng, .dst = l.dst};
  source_start(&other.source, "--serve");
  other.peer = connect_to(l.eng, other.source.hello.session, other.source.hello.conn, other.source.hello.n);
  read_ok(&other, 3);
  kill(l.source.pid, SIGKILL);
  struct rd2h_completion c = next(l.eng, &why, 4 * WAIT_MS);
  assert_int_equal(c.status, RD2H_TIMEOUT);
  assert_non_null(strstr(why, "the peer hangs"));
  rd2h_eng_disconnect(l.eng, other.peer);
  link_close(&l);
  source_end(&other.source);
}

static void unknown_peer(void **state) {
  rd2h_eng *e = decode_open();
  rd2h_eng_peer *p = connect_to(e, "127.0.0.1:1", NULL, 0);
  const char *why;
  (void)state;
  load_set(&a, 1, &a, 4096, 100, 1);
  uint64_t begin = rd2h_now_ns();
  assert_int_equal(rd2h_eng_submit(e, p, &a.b), RD2H_OK);
  struct rd2h_completion c = next(e, &why, 3000);
  assert_int_equal(c.status, RD2H_PEER_LOST);
  assert_non_null(strstr(why, "nobody is at 127.0.0.1:1"));
  assert_true(rd2h_now_ns() - begin < 2000 * RD2H_MS);
  rd2h_eng_disconnect(e, p);
  rd2h_eng_close(e);
}

/* Its memory is still there, and who has a connection reads on; who comes new finds nobody. */
static void store_gone(void **state) {
  struct link l = {.dst = calloc(1, BYTES)};
  struct source store;
  const char *why;
  (void)state;
  source_start(&store, "--store");
  source_start(&l.source, store.hello.session);
  l.eng = decode_open();
  l.peer = connect_to(l.eng, store.hello.session, NULL, 0);
  read_ok(&l, 1);
  source_end(&store);
  read_ok(&l, 2);
  rd2h_eng_disconnect(l.eng, l.peer);
  l.peer = connect_to(l.eng, store.hello.session, NULL, 0);
  load_set(&a, 3, l.dst, l.source.hello.base, 1000, 1);
  assert_int_equal(rd2h_eng_submit(l.eng, l.peer, &a.b), RD2H_OK);
  struct rd2h_completion c = next(l.eng, &why, WAIT_MS);
  assert_int_equal(c.status, RD2H_PEER_LOST);
  assert_non_null(strstr(why, "config store"));
  link_close(&l);
}

/* With announced areas it is refused here, by its number; without them the library refuses, after it had time to know the peer. */
static void range_outside_a_region(void **state) {
  struct link l;
  const char *why;
  (void)state;
  link_open(&l);
  load_set(&a, 2, l.dst, l.source.hello.base, 64, 3);
  a.remote[1] = l.source.hello.base + BYTES - 10;
  memset(l.dst, 1, 64);
  assert_int_equal(rd2h_eng_submit(l.eng, l.peer, &a.b), RD2H_OK);
  struct rd2h_completion c = next(l.eng, &why, 3000);
  assert_int_equal(c.status, RD2H_RANGE);
  assert_non_null(strstr(why, "descriptor 1 of 3"));
  assert_int_equal(l.dst[0], 1);
  rd2h_eng_peer *bare = connect_to(l.eng, l.source.hello.session, NULL, 0);
  load_set(&a, 2, l.dst, l.source.hello.base, MIB, 3); /* the first one is good: it must not be there, either */
  a.remote[2] = l.source.hello.base + BYTES + 100 * MIB;
  memset(l.dst, 1, MIB);
  assert_int_equal(rd2h_eng_submit(l.eng, bare, &a.b), RD2H_OK);
  c = next(l.eng, &why, WAIT_MS);
  assert_int_equal(c.status, RD2H_RANGE);
  assert_non_null(strstr(why, "INVALID_PARAM (-2000)"));
  for (uint32_t i = 0; i < MIB; i++)
    assert_int_equal(l.dst[i], 1);
  rd2h_eng_disconnect(l.eng, bare);
  read_ok(&l, 4);
  link_close(&l);
}

static void second_role_in_a_process(void **state) {
  static const char *const other_device[] = {"protocol=host_tcp", "device=3", NULL};
  struct rd2h_engine_opts o = {.size = sizeof o, .options = options};
  struct rd2h_error err = {0};
  rd2h_eng *e = decode_open(), *second = NULL;
  (void)state;
  o.prefill = true;
  assert_int_equal(rd2h_eng_open("memfabric", &o, &second, &err), RD2H_STATE);
  assert_non_null(strstr(err.text, "Decode on device 0 at 127.0.0.1"));
  assert_non_null(strstr(err.text, "Prefill on device 0"));
  o.prefill = false;
  o.host = "127.0.0.2";
  assert_int_equal(rd2h_eng_open("memfabric", &o, &second, &err), RD2H_STATE);
  o.host = NULL;
  o.options = other_device;
  assert_int_equal(rd2h_eng_open("memfabric", &o, &second, &err), RD2H_STATE);
  rd2h_eng_close(e);
}

static void store_tls(void **state) {
  static const char *const tls[] = {"protocol=host_tcp", "store_tls=tlsCaPath: /x;tlsCert: /x/c;tlsCaFile: ca", NULL};
  struct rd2h_engine_opts o = {.size = sizeof o, .options = tls};
  struct rd2h_error err = {0};
  rd2h_eng *e = NULL;
  (void)state;
  assert_int_equal(rd2h_eng_open("memfabric", &o, &e, &err), RD2H_UNSUPPORTED);
  assert_non_null(strstr(err.text, "plain text"));
}

static const struct CMUnitTest cases[] = {
  cmocka_unit_test(peer_stopped_for_good), cmocka_unit_test(peer_killed_in_mid_read), cmocka_unit_test(peer_stopped_for_a_while),
  cmocka_unit_test(unknown_peer), cmocka_unit_test(store_gone), cmocka_unit_test(range_outside_a_region),
  cmocka_unit_test(second_role_in_a_process), cmocka_unit_test(store_tls),
};

int main(int argc, char **argv) {
  if (argc == 3)
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a source that is stopped would outlive a case that failed */
  if (argc == 3 && !strcmp(argv[1], "--serve"))
    return serve(atoi(argv[2]));
  if (argc == 3)
    return bare(atoi(argv[2]), !strcmp(argv[1], "--store") ? NULL : argv[1]);
  if (cases_listed(cases, RD2H_COUNT(cases), argc, argv))
    return 0;
  return cmocka_run_group_tests_name("faults", cases, NULL, NULL);
}
