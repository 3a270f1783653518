/* SPDX-License-Identifier: Apache-2.0 */
/* What is engine local's own: its connection data, and whom it refuses to read. What every engine promises is in the suite. */
#include "engines/local/local.h"
#include <fcntl.h>
#include <linux/sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#define SOURCE_BYTES 65536u
#define NOBODY 65534u

/* ---- a forked Prefill ---- */
struct prefill {
  pid_t pid;
  int say, hear; /* a byte written to `say` makes it run another program; `hear` closes when that runs */
  uint8_t conn[LOCAL_CONN_MAX];
  uint32_t conn_len;
  uint8_t *memory;
};

static void prefill_child(int hear, int say) {
  struct rd2h_engine_opts o = {.size = sizeof o, .prefill = true};
  struct rd2h_engine_caps caps;
  rd2h_engine *e;
  uint8_t conn[LOCAL_CONN_MAX];
  uint32_t len;
  char order;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  prctl(PR_SET_NAME, "odd) name (1 2");
  if (rd2h_engine_local.open(NULL, &o, &e, &caps, NULL) || rd2h_engine_local.publish(e, conn, sizeof conn, &len) ||
      write(say, conn, len) != (ssize_t)len)
    _exit(2);
  if (read(hear, &order, 1) == 1)
    execl("/bin/sleep", "sleep", "60", NULL);
  rd2h_engine_local.close(e);
  _exit(0);
}

/* Fork shares the page contents: memory that the test filled is readable in the child at the same address. */
static void prefill_start(struct prefill *p) {
  int to[2], from[2];
  p->memory = mmap(NULL, SOURCE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_ptr_not_equal(p->memory, MAP_FAILED);
  for (uint32_t i = 0; i < SOURCE_BYTES; i++)
    p->memory[i] = (uint8_t)(i * 7 + i / 256);
  assert_int_equal(pipe2(to, O_CLOEXEC), 0);
  assert_int_equal(pipe2(from, O_CLOEXEC), 0);
  p->pid = fork();
  if (!p->pid) {
    close(to[1]);
    close(from[0]);
    prefill_child(to[0], from[1]);
  }
  close(to[0]);
  close(from[1]);
  p->say = to[1];
  p->hear = from[0];
  ssize_t n = read(p->hear, p->conn, sizeof p->conn);
  assert_in_range(n, 72, LOCAL_CONN_MAX);
  p->conn_len = (uint32_t)n;
}

static void prefill_end(struct prefill *p) {
  if (p->pid) {
    kill(p->pid, SIGKILL);
    waitpid(p->pid, NULL, 0);
  }
  close(p->say);
  close(p->hear);
  munmap(p->memory, SOURCE_BYTES);
}

static rd2h_engine *decode_open(bool legacy) {
  struct rd2h_engine_opts o = {.size = sizeof o, .legacy_session = legacy, .slice_bytes = 4096};
  struct rd2h_engine_caps caps;
  rd2h_engine *e = NULL;
  assert_int_equal(rd2h_engine_local.open(NULL, &o, &e, &caps, NULL), RD2H_OK);
  return e;
}

static int try_conn(rd2h_engine *e, const char *session, const uint8_t *conn, uint32_t len, rd2h_peer **out,
                    struct rd2h_error *err) {
  *err = (struct rd2h_error){0};
  *out = NULL;
  return rd2h_engine_local.connect(e, (struct rd2h_blob){(const uint8_t *)session, (uint32_t)strlen(session)},
                                   (struct rd2h_blob){conn, len}, 1, out, err);
}

static int read_n(rd2h_engine *e, rd2h_peer *p, uint32_t n, void *const *local, const uint64_t *remote, const uint64_t *len,
                  uint64_t *done, uint32_t *failed_at, struct rd2h_error *err) {
  const bool stop = false;
  struct rd2h_batch b = {.n = n, .local = local, .remote = remote, .len = len};
  *err = (struct rd2h_error){0};
  return rd2h_engine_local.read(e, p, &b, &stop, done, failed_at, err);
}

static int read_one(rd2h_engine *e, rd2h_peer *p, void *local, const void *remote, uint64_t len, struct rd2h_error *err) {
  uint64_t done, from = (uintptr_t)remote;
  uint32_t failed_at;
  return read_n(e, p, 1, &local, &from, &len, &done, &failed_at, err);
}

/* ---- connection data ---- */
static uint32_t sample(uint8_t out[LOCAL_CONN_MAX]) {
  struct rd2h_local_conn c = {.pid = 1234, .uid = 1000, .start = 0x1122334455667788, .pid_ns = 4026531836,
                              .nonce_addr = 0x7f0000001000, .host_len = 4, .host = "host"};
  memset(c.boot_id, 0xB0, sizeof c.boot_id);
  memset(c.nonce, 0x0C, sizeof c.nonce);
  return rd2h_local_encode(&c, out);
}

static void connection_data_round_trip(void **state) {
  uint8_t data[LOCAL_CONN_MAX], again[LOCAL_CONN_MAX];
  struct rd2h_local_conn c;
  uint32_t n = sample(data);
  (void)state;
  assert_int_equal(n, 76);
  assert_int_equal(rd2h_local_decode((struct rd2h_blob){data, n}, &c, NULL), RD2H_OK);
  assert_int_equal(c.pid, 1234);
  assert_int_equal(c.uid, 1000);
  assert_int_equal(c.start, 0x1122334455667788);
  assert_int_equal(c.nonce_addr, 0x7f0000001000);
  assert_string_equal(c.host, "host");
  assert_int_equal(rd2h_local_encode(&c, again), n);
  assert_memory_equal(again, data, n);
}

/* One byte changed at a time: what each damage is refused as. */
static void damaged_connection_data(void **state) {
  static const struct {
    uint32_t at;
    uint8_t value;
    int status;
    const char *text;
  } damage[] = {
    {0, 3, RD2H_UNSUPPORTED, "schema 3"}, {0, 0, RD2H_UNSUPPORTED, "schema 0"}, {0, 2, RD2H_MALFORMED, "length"},
    {1, 3, RD2H_MALFORMED, "length"},     {1, 200, RD2H_MALFORMED, "length"},   {2, 1, RD2H_MALFORMED, "reserved"},
    {15, 1, RD2H_MALFORMED, "reserved"},  {7, 1, RD2H_MALFORMED, "pid"},        {48, 8, RD2H_MALFORMED, "nonce"},
    {72, ' ', RD2H_MALFORMED, "host name"}, {75, 0x80, RD2H_MALFORMED, "host name"},
  };
  struct rd2h_local_conn c;
  struct rd2h_error err;
  uint8_t data[LOCAL_CONN_MAX];
  (void)state;
  for (size_t i = 0; i < RD2H_COUNT(damage); i++) {
    uint32_t n = sample(data);
    data[damage[i].at] = damage[i].value;
    assert_int_equal(rd2h_local_decode((struct rd2h_blob){data, n}, &c, &err), damage[i].status);
    assert_non_null(strstr(err.text, damage[i].text));
  }
}

static void legacy_sessions(void **state) {
  static const struct {
    const char *session;
    uint32_t pid; /* 0: refused */
  } rows[] = {
    {"10.0.0.1:4242", 4242}, {"[::1]:7", 7}, {":1", 1},   {"h:4194304", 4194304}, {"h:4194305", 0}, {"h:99999999999999999999", 0},
    {"h:0", 0},              {"h:", 0},      {"h:1x", 0}, {"h:-5", 0},            {"4242", 0},      {"", 0},
  };
  (void)state;
  for (size_t i = 0; i < RD2H_COUNT(rows); i++) {
    uint32_t pid = 0;
    struct rd2h_blob s = {(const uint8_t *)rows[i].session, (uint32_t)strlen(rows[i].session)};
    assert_int_equal(rd2h_local_legacy_pid(s, &pid, NULL), rows[i].pid ? RD2H_OK : RD2H_MALFORMED);
    assert_int_equal(pid, rows[i].pid);
  }
}

/* ---- whom it refuses ---- */
struct refusal {
  uint32_t at; /* offset of the byte that is changed */
  int status;
  const char *text;
};

static void other_identity_is_refused(void **state) {
  static const struct refusal rows[] = {
    {16, RD2H_PEER_LOST, "started at tick"},     /* start time: the pid is another's now */
    {32, RD2H_UNSUPPORTED, "boot id"},           /* another host */
    {24, RD2H_UNSUPPORTED, "pid namespace"},     /* another container */
    {56, RD2H_PEER_LOST, "is not the one"},      /* other bytes stand where the nonce should */
    {53, RD2H_PEER_LOST, "runs another program"}, /* nothing is mapped there */
  };
  struct prefill f;
  struct rd2h_error err;
  rd2h_peer *p;
  rd2h_engine *e = decode_open(false);
  (void)state;
  prefill_start(&f);
  for (size_t i = 0; i < RD2H_COUNT(rows); i++) {
    f.conn[rows[i].at] ^= 1;
    assert_int_equal(try_conn(e, "h:1", f.conn, f.conn_len, &p, &err), rows[i].status);
    assert_non_null(strstr(err.text, rows[i].text));
    assert_null(p);
    f.conn[rows[i].at] ^= 1;
  }
  assert_int_equal(try_conn(e, "h:1", f.conn, f.conn_len, &p, &err), RD2H_OK);
  rd2h_engine_local.disconnect(e, p);
  rd2h_engine_local.close(e);
  prefill_end(&f);
}

/* Same pid, same start time, process alive: only the nonce tells that the memory is another program's. */
static void another_program_under_the_same_pid(void **state) {
  struct prefill f;
  struct rd2h_error err;
  struct rd2h_peer_event ev;
  rd2h_peer *p;
  char byte = 1, to[64];
  rd2h_engine *e = decode_open(false);
  (void)state;
  prefill_start(&f);
  assert_int_equal(try_conn(e, "h:1", f.conn, f.conn_len, &p, &err), RD2H_OK);
  assert_int_equal(read_one(e, p, to, f.memory, sizeof to, &err), RD2H_OK);
  assert_int_equal(write(f.say, &byte, 1), 1);
  assert_int_equal(read(f.hear, &byte, 1), 0);
  assert_int_equal(rd2h_engine_local.events(e, &ev, 1), 0);
  assert_int_equal(rd2h_local_probe(e, p, &err), RD2H_PEER_LOST);
  assert_non_null(strstr(err.text, "another program"));
  assert_int_not_equal(read_one(e, p, to, f.memory, sizeof to, &err), RD2H_OK);
  rd2h_engine_local.disconnect(e, p);
  assert_int_equal(try_conn(e, "h:1", f.conn, f.conn_len, &p, &err), RD2H_PEER_LOST);
  rd2h_engine_local.close(e);
  prefill_end(&f);
}

static void dead_process(void **state) {
  struct prefill f;
  struct rd2h_error err;
  siginfo_t info;
  rd2h_peer *p;
  rd2h_engine *e = decode_open(false);
  (void)state;
  prefill_start(&f);
  kill(f.pid, SIGKILL);
  waitid(P_PID, (id_t)f.pid, &info, WEXITED | WNOWAIT);
  assert_int_equal(try_conn(e, "h:1", f.conn, f.conn_len, &p, &err), RD2H_PEER_LOST); /* not reaped yet */
  waitpid(f.pid, NULL, 0);
  f.pid = 0;
  assert_int_equal(try_conn(e, "h:1", f.conn, f.conn_len, &p, &err), RD2H_PEER_LOST);
  rd2h_engine_local.close(e);
  prefill_end(&f);
}

static void session_alone_serves_legacy_peers(void **state) {
  struct prefill f;
  struct rd2h_error err;
  rd2h_peer *p;
  char session[32], to[5000];
  rd2h_engine *strict = decode_open(false), *e = decode_open(true);
  (void)state;
  prefill_start(&f);
  snprintf(session, sizeof session, "127.0.0.1:%d", (int)f.pid);
  assert_int_equal(try_conn(strict, session, NULL, 0, &p, &err), RD2H_UNSUPPORTED);
  assert_non_null(strstr(err.text, session));
  assert_int_equal(try_conn(e, "127.0.0.1", NULL, 0, &p, &err), RD2H_MALFORMED);
  assert_int_equal(try_conn(e, session, NULL, 0, &p, &err), RD2H_OK);
  assert_int_equal(read_one(e, p, to, f.memory + 100, sizeof to, &err), RD2H_OK);
  assert_memory_equal(to, f.memory + 100, sizeof to);
  kill(f.pid, SIGKILL);
  waitpid(f.pid, NULL, 0);
  f.pid = 0;
  assert_int_equal(read_one(e, p, to, f.memory, 8, &err), RD2H_PEER_LOST);
  rd2h_engine_local.disconnect(e, p);
  assert_int_equal(try_conn(e, session, NULL, 0, &p, &err), RD2H_PEER_LOST);
  rd2h_engine_local.close(strict);
  rd2h_engine_local.close(e);
  prefill_end(&f);
}

/* Forks a child under the pid of one that has ended. Returns 0 in the child, -1 where this user may not choose pids. */
static pid_t fork_as(pid_t pid) {
  struct clone_args a = {.exit_signal = SIGCHLD, .set_tid = (uintptr_t)&pid, .set_tid_size = 1};
  return (pid_t)syscall(SYS_clone3, &a, sizeof a);
}

/* A legacy peer has no nonce: the pidfd alone tells that its pid is another's now, and not a byte of that one is copied. */
static void reused_pid(void **state) {
  struct prefill f;
  struct rd2h_error err;
  rd2h_peer *p;
  char session[32];
  uint8_t to[64] = {0};
  rd2h_engine *e = decode_open(true);
  (void)state;
  prefill_start(&f);
  snprintf(session, sizeof session, "h:%d", (int)f.pid);
  assert_int_equal(try_conn(e, session, NULL, 0, &p, &err), RD2H_OK);
  kill(f.pid, SIGKILL);
  waitpid(f.pid, NULL, 0);
  pid_t same = fork_as(f.pid);
  if (!same) {
    pause();
    _exit(0);
  }
  f.pid = same < 0 ? 0 : same;
  int rc = read_one(e, p, to, f.memory + 1, sizeof to, &err);
  rd2h_engine_local.disconnect(e, p);
  int again = try_conn(e, "h:1", f.conn, f.conn_len, &p, &err);
  rd2h_engine_local.close(e);
  prefill_end(&f);
  assert_int_equal(rc, RD2H_PEER_LOST);
  assert_int_equal(to[0], 0);
  assert_int_equal(again, RD2H_PEER_LOST);
  if (same < 0)
    skip();
}

/* ---- permission ---- */
static void permission_texts_say_what_to_do(void **state) {
  static const struct {
    uint32_t theirs;
    int scope;
    const char *text;
  } rows[] = {
    {2000, -1, "user id 2000, this one as 1000"}, {2000, 1, "user id 2000"},     {1000, 1, "yama=any"},
    {1000, 2, "ptrace_scope is 2"},               {1000, 3, "ptrace_scope is 3"}, {1000, 0, "seccomp"},
    {1000, -1, "CAP_SYS_PTRACE"},                 {1000, 4, "CAP_SYS_PTRACE"},
  };
  (void)state;
  for (size_t i = 0; i < RD2H_COUNT(rows); i++) {
    struct rd2h_local_conn c = {.pid = 77, .uid = rows[i].theirs};
    struct rd2h_error err;
    assert_int_equal(rd2h_local_denied(&c, 1000, rows[i].scope, &err), RD2H_PERMISSION);
    assert_non_null(strstr(err.text, rows[i].text));
    assert_non_null(strstr(err.text, "process 77"));
    assert_true(strlen(err.text) < sizeof err.text - 1);
  }
}

/* A reader of another user, for real: needs a test that runs as root to become one. */
static void other_user_is_told_so(void **state) {
  struct prefill f;
  int status;
  (void)state;
  if (getuid())
    skip();
  prefill_start(&f);
  pid_t reader = fork();
  if (!reader) {
    struct rd2h_error err;
    rd2h_peer *p;
    if (setgid(NOBODY) || setuid(NOBODY))
      _exit(3);
    rd2h_engine *e = decode_open(false);
    int rc = try_conn(e, "h:1", f.conn, f.conn_len, &p, &err);
    _exit(rc == RD2H_PERMISSION && strstr(err.text, "user id 0, this one as 65534") ? 0 : 1);
  }
  waitpid(reader, &status, 0);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 0);
  prefill_end(&f);
}

/* ---- bad addresses ---- */
static void bad_addresses_name_their_descriptor(void **state) {
  enum { N = 200, BAD = 150 };
  struct prefill f;
  struct rd2h_error err;
  rd2h_peer *p;
  void *local[N];
  uint64_t remote[N], len[N], done;
  uint32_t failed_at;
  uint8_t to[N * 64];
  rd2h_engine *e = decode_open(false);
  (void)state;
  prefill_start(&f);
  assert_int_equal(try_conn(e, "h:1", f.conn, f.conn_len, &p, &err), RD2H_OK);
  static const struct {
    uint64_t local, remote, len; /* 0: as it should be */
  } rows[] = {{16, 0, 0},
              {UINT64_C(0xdead000000000000), 0, 0},
              {0, 16, 0},
              {0, UINT64_C(0xffffffffffffff00), 0},
              {0, 0, UINT64_MAX - 5}};
  for (size_t r = 0; r < RD2H_COUNT(rows); r++) {
    for (uint32_t i = 0; i < N; i++) {
      local[i] = to + i * 64;
      remote[i] = (uintptr_t)f.memory + i * 64;
      len[i] = 64;
    }
    local[BAD] = rows[r].local ? (void *)(uintptr_t)rows[r].local : local[BAD];
    remote[BAD] = rows[r].remote ? rows[r].remote : remote[BAD];
    len[BAD - 1] = 0;
    memset(to, 0xEE, sizeof to);
    if (rows[r].len) { /* the destination ends with its mapping, so that a read this long must fail there */
      local[BAD] = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      len[BAD] = rows[r].len;
    }
    assert_int_equal(read_n(e, p, N, local, remote, len, &done, &failed_at, &err), RD2H_IO);
    assert_int_equal(failed_at, BAD);
    assert_int_equal(done, (BAD - 1) * 64);
    assert_non_null(strstr(err.text, "descriptor 150 of 200"));
    assert_memory_equal(to, f.memory, (BAD - 1) * 64);
    assert_int_equal(to[BAD * 64], 0xEE);
    if (rows[r].len)
      munmap(local[BAD], 4096);
  }
  rd2h_engine_local.disconnect(e, p);
  rd2h_engine_local.close(e);
  prefill_end(&f);
}

static void stop_is_seen_before_the_first_byte(void **state) {
  struct prefill f;
  struct rd2h_error err;
  rd2h_peer *p;
  uint64_t done = 1, remote, len = 64;
  uint32_t failed_at;
  uint8_t to[64] = {0};
  void *local = to;
  const bool stop = true;
  rd2h_engine *e = decode_open(false);
  (void)state;
  prefill_start(&f);
  assert_int_equal(try_conn(e, "h:1", f.conn, f.conn_len, &p, &err), RD2H_OK);
  remote = (uintptr_t)f.memory + 1;
  struct rd2h_batch b = {.n = 1, .bytes = 64, .local = &local, .remote = &remote, .len = &len};
  assert_int_equal(rd2h_engine_local.read(e, p, &b, &stop, &done, &failed_at, &err), RD2H_CANCELED);
  assert_int_equal(done, 0);
  assert_int_equal(to[0], 0);
  rd2h_engine_local.disconnect(e, p);
  rd2h_engine_local.close(e);
  prefill_end(&f);
}

/* The first byte that is copied, a 1, lands on the stop flag: the read ends after exactly one slice, inside a descriptor. */
static void stop_is_seen_after_each_slice(void **state) {
  enum { SLICE = 4096, N = 100, ONE = 183 };
  static const uint64_t lengths[] = {60000, 100};
  struct prefill f;
  struct rd2h_error err;
  rd2h_peer *p;
  static uint8_t to[60000];
  void *local[N];
  uint64_t remote[N], len[N], done;
  uint32_t failed_at;
  rd2h_engine *e = decode_open(false);
  (void)state;
  prefill_start(&f);
  assert_int_equal(f.memory[ONE], 1);
  assert_int_equal(try_conn(e, "h:1", f.conn, f.conn_len, &p, &err), RD2H_OK);
  for (size_t r = 0; r < RD2H_COUNT(lengths); r++) {
    for (uint32_t i = 0; i < N; i++) {
      local[i] = to + i * 100;
      remote[i] = (uintptr_t)f.memory + ONE + i * 100;
      len[i] = lengths[r];
    }
    memset(to, 0, sizeof to);
    struct rd2h_batch b = {.n = N, .local = local, .remote = remote, .len = len};
    assert_int_equal(rd2h_engine_local.read(e, p, &b, (const volatile bool *)to, &done, &failed_at, &err), RD2H_CANCELED);
    assert_int_equal(done, SLICE);
    assert_memory_equal(to, f.memory + ONE, SLICE);
    assert_int_equal(to[SLICE] | to[SLICE + 1], 0);
  }
  rd2h_engine_local.disconnect(e, p);
  rd2h_engine_local.close(e);
  prefill_end(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(connection_data_round_trip),
    cmocka_unit_test(damaged_connection_data),
    cmocka_unit_test(legacy_sessions),
    cmocka_unit_test(other_identity_is_refused),
    cmocka_unit_test(another_program_under_the_same_pid),
    cmocka_unit_test(dead_process),
    cmocka_unit_test(reused_pid),
    cmocka_unit_test(session_alone_serves_legacy_peers),
    cmocka_unit_test(permission_texts_say_what_to_do),
    cmocka_unit_test(other_user_is_told_so),
    cmocka_unit_test(bad_addresses_name_their_descriptor),
    cmocka_unit_test(stop_is_seen_before_the_first_byte),
    cmocka_unit_test(stop_is_seen_after_each_slice),
  };
  return cmocka_run_group_tests_name("local", tests, NULL, NULL);
}
