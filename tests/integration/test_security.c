/* SPDX-License-Identifier: Apache-2.0 */
/* Who may talk to whom: keys, what listens where, and what a stranger's bytes do. */
#include "tests/integration/rig.h"
#include <setjmp.h>
#include <cmocka.h>
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

static const struct rig_shape shape = {.layers = 2, .blocks = 32, .indexer_mask = 2};
static char d_public[41], d_secret[41], p_public[41], p_secret[41], other_public[41], other_secret[41];

struct sides {
  struct rig_side src, dst;
  rd2h_decode *d;
};

static void open_sides(struct sides *x, const char *secret, const char *allow) {
  rig_side_open(&x->src, &shape);
  rig_side_open(&x->dst, &shape);
  x->d = rig_decode(&x->dst, &(struct rd2h_decode_opts){.curve_secret = secret, .curve_allow = allow});
}

static void close_sides(struct sides *x) {
  rd2h_decode_destroy(x->d);
  rig_side_close(&x->src);
  rig_side_close(&x->dst);
}

/* One request by a Prefill rank with these keys, which is served or refused. */
static void run(struct sides *x, const char *secret, const char *servers, const char *id, bool served) {
  struct rig_request r;
  struct rd2h_step_send send;
  rd2h_prefill *p = rig_prefill(&x->src, &(struct rd2h_prefill_opts){.curve_secret = secret, .curve_servers = servers,
                                                                     .handshake_ms = served ? RIG_WAIT_MS : 300, .settle_ms = 1});
  rig_request(&r, id, 6, 0, 0);
  for (uint32_t l = 0; l < shape.layers; l++)
    rig_write(&x->src, l, 1);
  rig_install(x->d, &r);
  rig_send(&send, &r, rd2h_decode_port(x->d), 0, 6, true);
  rig_step(p, &send, 1, NULL);
  rig_layers(p, 2);
  rig_step(p, NULL, 0, id);
  assert_true((rig_settled(p, id) == RD2H_OK) == served);
  if (served) {
    assert_int_equal(rig_outcome(x->d, id, NULL), RD2H_OK);
    rig_expect(&x->dst, &r, 1);
  } else {
    assert_int_equal(rd2h_decode_abort(x->d, id), RD2H_OK); /* it heard nothing of it */
    assert_int_equal(rig_outcome(x->d, id, NULL), RD2H_ABORTED);
  }
  rd2h_prefill_destroy(p);
}

static void listed_keys_are_served(void **state) {
  (void)state;
  struct sides x;
  char allow[100], servers[200];
  snprintf(allow, sizeof allow, "%s,\n %s", other_public, p_public);
  open_sides(&x, d_secret, allow);
  run(&x, p_secret, d_public, "any", true);
  snprintf(servers, sizeof servers, "127.0.0.1:%u=%s 127.0.0.1=%s %s", rd2h_decode_port(x.d), d_public, other_public, other_public);
  run(&x, p_secret, servers, "port", true);
  snprintf(servers, sizeof servers, "%s 127.0.0.1:1=%s 127.0.0.1=%s", other_public, other_public, d_public);
  run(&x, p_secret, servers, "host", true);
  close_sides(&x);
  open_sides(&x, d_secret, "*");
  run(&x, other_secret, d_public, "anybody", true);
  close_sides(&x);
}

static void throw_bytes(uint16_t port, const void *p, size_t n) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  char back[256];
  assert_int_equal(connect(fd, (void *)&a, sizeof a), 0);
  assert_true(send(fd, p, n, MSG_NOSIGNAL) > 0);
  shutdown(fd, SHUT_WR);
  while (recv(fd, back, sizeof back, 0) > 0)
    ;
  close(fd);
}

static void others_are_refused(void **state) {
  (void)state;
  struct sides x;
  struct rd2h_decode_stats st;
  open_sides(&x, d_secret, p_public);
  run(&x, other_secret, d_public, "unlisted", false);
  rig_decode_stats(x.d, &st);
  assert_int_equal(st.refused_keys, 1);
  assert_int_equal(st.peers, 0);
  run(&x, NULL, NULL, "plain", false);
  run(&x, p_secret, other_public, "wrong server", false);
  run(&x, p_secret, "192.0.2.7=0000000000000000000000000000000000000000", "no server", false);
  for (int i = 0; i < 5; i++) /* peers of the oldest protocol send without a greeting */
    throw_bytes(rd2h_decode_port(x.d), "\x05\0abcd\x05\0efgh", 12);
  run(&x, p_secret, d_public, "listed", true); /* and nobody else is disturbed */
  rig_decode_stats(x.d, &st);
  assert_int_equal(st.malformed, 0);
  close_sides(&x);
  open_sides(&x, NULL, NULL);
  run(&x, p_secret, d_public, "keys for a plain one", false); /* no falling back */
  run(&x, NULL, NULL, "both plain", true);
  close_sides(&x);
}

static void bad_keys_are_named(void **state) {
  (void)state;
  static const struct {
    const char *secret, *list, *word;
  } rows[] = {{"short", "*", "curve_secret: a secret key must be"}, {NULL, "*", "curve_secret is not set"},
              {p_secret, NULL, "is empty"},   {p_secret, " , ", "is empty"},
              {p_secret, "nokey", "entry 1 is no public key"}};
  struct rig_side side;
  rig_side_open(&side, &shape);
  for (size_t i = 0; i < RD2H_COUNT(rows); i++) {
    struct rd2h_error err = {0};
    rd2h_decode *d;
    rd2h_prefill *p;
    struct rd2h_decode_opts o = {.size = sizeof o, .layout = side.layout, .engine = "noop", .tp_size = 1,
                                 .curve_secret = rows[i].secret, .curve_allow = rows[i].list};
    assert_int_equal(rd2h_decode_create(&o, &d, &err), RD2H_INVALID);
    assert_non_null(strstr(err.text, rows[i].word));
    struct rd2h_prefill_opts q = {.size = sizeof q, .layout = side.layout, .engine = "noop", .tp_size = 1, .pp_size = 1,
                                  .curve_secret = rows[i].secret, .curve_servers = rows[i].list};
    assert_int_equal(rd2h_prefill_create(&q, &p, &err), RD2H_INVALID);
    assert_non_null(strstr(err.text, rows[i].word));
  }
  rig_side_close(&side);
}

/* ---- what listens, and what a stranger can do there ---- */
/* Listening TCP sockets of this process: how many, and whether one is at this address. */
static uint32_t listening(uint16_t port, bool *at_loopback) {
  uint32_t n = 0;
  DIR *dir = opendir("/proc/self/fd");
  *at_loopback = false;
  for (struct dirent *e; (e = readdir(dir));) {
    int fd = atoi(e->d_name), on = 0;
    struct sockaddr_in a;
    socklen_t size = sizeof on, len = sizeof a;
    if (e->d_name[0] == '.' || getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &on, &size) || !on || getsockname(fd, (void *)&a, &len) ||
        a.sin_family == AF_UNIX)
      continue;
    n++;
    *at_loopback |= a.sin_family == AF_INET && ntohs(a.sin_port) == port && a.sin_addr.s_addr == htonl(INADDR_LOOPBACK);
  }
  closedir(dir);
  return n;
}

static void Z01_garbage_at_the_only_port(void **state) {
  (void)state;
  static const char pickle[] = "\x80\x04\x95\x20\0\0\0\0\0\0\0\x8c\x05posix\x8c\x06system\x93\x94\x8c\x02id\x85R.";
  static const char json[] = "{\"request_id\": \"x\"}", http[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
  /* A ZMTP greeting that breaks off, and one that goes on with a frame of 2^62 bytes. */
  static const char zmtp[] = "\xff\0\0\0\0\0\0\0\x01\x7f\x03";
  static const char ready[] = "\x04\x19\x05READY\x0bSocket-Type\0\0\0\x06""DEALER", frame[] = "\x02\x40\0\0\0\0\0\0";
  char greedy[64 + sizeof ready - 1 + sizeof frame] = {0};
  memcpy(greedy, zmtp, sizeof zmtp);
  memcpy(greedy + 12, "NULL", 4);
  memcpy(greedy + 64, ready, sizeof ready - 1);
  memcpy(greedy + 64 + sizeof ready - 1, frame, sizeof frame);
  uint8_t noise[4096];
  struct sides x;
  bool here;
  open_sides(&x, NULL, NULL);
  uint16_t port = rd2h_decode_port(x.d);
  assert_int_equal(listening(port, &here), 1);
  assert_true(here);
  rd2h_prefill *p = rig_prefill(&x.src, &(struct rd2h_prefill_opts){.engine = "noop"});
  assert_int_equal(listening(port, &here), 1); /* Prefill opens none */
  rd2h_prefill_destroy(p);
  throw_bytes(port, pickle, sizeof pickle - 1);
  throw_bytes(port, json, sizeof json - 1);
  throw_bytes(port, http, sizeof http - 1);
  throw_bytes(port, zmtp, sizeof zmtp - 1);
  throw_bytes(port, greedy, sizeof greedy);
  for (int i = 0; i < 20; i++) {
    assert_int_equal(rd2h_random(noise, sizeof noise), 0);
    throw_bytes(port, noise, sizeof noise);
  }
  run(&x, NULL, NULL, "after", true);
  close_sides(&x);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(listed_keys_are_served), cmocka_unit_test(others_are_refused),
                                     cmocka_unit_test(bad_keys_are_named), cmocka_unit_test(Z01_garbage_at_the_only_port)};
  struct rd2h_error err = {0};
  RIG_OK(rd2h_keys_new(d_public, d_secret, &err), &err);
  RIG_OK(rd2h_keys_new(p_public, p_secret, &err), &err);
  RIG_OK(rd2h_keys_new(other_public, other_secret, &err), &err);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
