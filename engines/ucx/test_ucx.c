/* SPDX-License-Identifier: Apache-2.0 */
/* What of engine ucx needs no UCX, and what the common suite does not ask: options, connection data whose checksum fits, ranges,
 * a peer that answers nothing. The last two are skipped where no UCX can be loaded. */
#include "engine/engine.h"
#include "engines/ucx/ucx.h"
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <poll.h>
#include <pthread.h>
#include <rd2h/log.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES (1u << 20)
#define WAIT_MS 20000
#define SEED_AT 56
#define GUARDED_AT 1

/* Engines are opened as ever, and the latest is at hand. */
static rd2h_engine *latest;

static int open_and_keep(const struct rd2h_host *host, const struct rd2h_engine_opts *o, rd2h_engine **out, struct rd2h_engine_caps *caps,
                         struct rd2h_error *err) {
  int rc = rd2h_engine_ucx.open(host, o, out, caps, err);
  latest = rc ? NULL : *out;
  return rc;
}

static int open_with(const char *const *options, bool prefill, uint64_t timeout_ms, rd2h_eng **e, struct rd2h_error *err) {
  const struct rd2h_engine_opts o = {.size = sizeof o, .prefill = prefill, .host = "127.0.0.1", .options = options,
                                     .read_timeout_ns = timeout_ms * RD2H_MS};
  static struct rd2h_engine_ops ops;
  ops = rd2h_engine_ucx;
  ops.open = open_and_keep;
  return rd2h_eng_open_ops(&ops, &o, e, err);
}

/* ---- options ---- */
static void options_are_checked(void **state) {
  static const char *const bad[] = {"rdma=1", "require_rdma=2", "require_rdma=", "emulation=", "emulation=yes", "emulation=01", "tls=",
                                    "lib=", ""};
  (void)state;
  for (size_t i = 0; i < RD2H_COUNT(bad); i++) {
    struct rd2h_error err = {0};
    rd2h_eng *e;
    assert_int_equal(open_with((const char *const[]){bad[i], NULL}, false, 0, &e, &err), RD2H_INVALID);
    assert_non_null(strstr(err.text, "require_rdma=0 or 1"));
  }
}

static void a_missing_library_is_named(void **state) {
  struct rd2h_error err = {0};
  rd2h_eng *e;
  (void)state;
  assert_int_equal(open_with((const char *const[]){"lib=/nowhere/libucp.so.0", NULL}, false, 0, &e, &err), RD2H_UNSUPPORTED);
  assert_non_null(strstr(err.text, "/nowhere/libucp.so.0"));
}

static void T08_rdma_is_required_and_not_there(void **state) {
  struct rd2h_error err = {0};
  rd2h_eng *e;
  (void)state;
  if (!access("/sys/class/infiniband", F_OK))
    skip();
  assert_int_equal(open_with((const char *const[]){"require_rdma=1", NULL}, false, 0, &e, &err), RD2H_UNSUPPORTED);
  assert_non_null(strstr(err.text, "/sys/class/infiniband"));
}

static void a_hole_is_not_registered(void **state) {
  const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
  struct rd2h_error err = {0};
  uint32_t region;
  rd2h_eng *e;
  (void)state;
  if (open_with(NULL, true, 0, &e, NULL))
    skip();
  uint8_t *p = mmap(NULL, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_int_equal(munmap(p + 2 * page, page), 0);
  assert_int_equal(rd2h_eng_reg(e, &(struct rd2h_region){.base = p + 8, .len = 3 * page}, &region, &err), RD2H_INVALID);
  assert_non_null(strstr(err.text, "not all are mapped"));
  assert_int_equal(rd2h_eng_reg(e, &(struct rd2h_region){.base = p + 8, .len = 2 * page - 8}, &region, &err), RD2H_OK);
  rd2h_eng_close(e);
  munmap(p, 4 * page);
}

/* ---- connection data ---- */
static const struct ucx_key keys[] = {{.base = 4096, .len = 100, .key = (const uint8_t *)"key", .key_len = 3}, {0},
                                      {.base = UINT64_MAX - 9, .len = 9, .key = (const uint8_t *)"k", .key_len = 1}};
static const struct ucx_conn sample = {.process = {.pid = 7, .start = 8, .pid_ns = 9, .boot_id = {1, 2, 3}},
                                       .address = (const uint8_t *)"address", .address_len = 7, .n = 3,
                                       .key = (struct ucx_key *)keys, .seed = 0x1122334455667788, .guarded = true,
                                       .pattern = {.base = 8192, .len = RD2H_PATTERN, .key = (const uint8_t *)"kk", .key_len = 2}};

static void connection_data_comes_back(void **state) {
  uint8_t data[256];
  struct ucx_conn c;
  uint32_t n = rd2h_ucx_conn_size(&sample);
  (void)state;
  assert_in_range(n, 60, sizeof data);
  rd2h_ucx_conn_encode(&sample, data);
  assert_int_equal(rd2h_ucx_conn_decode((struct rd2h_blob){data, n}, &c, NULL), RD2H_OK);
  assert_memory_equal(&c.process, &sample.process, sizeof c.process);
  assert_int_equal(c.n, 3);
  assert_true(c.seed == sample.seed);
  assert_true(c.guarded);
  assert_int_equal(c.pattern.base, 8192);
  assert_int_equal(c.pattern.len, RD2H_PATTERN);
  assert_memory_equal(c.pattern.key, "kk", 2);
  assert_int_equal(c.address_len, 7);
  assert_memory_equal(c.address, "address", 7);
  for (uint32_t i = 0; i < 3; i++) {
    assert_int_equal(c.key[i].base, keys[i].base);
    assert_int_equal(c.key[i].len, keys[i].len);
    assert_int_equal(c.key[i].key_len, keys[i].key_len);
  }
  rd2h_free(c.key);
}

/* Wrong in one place, with a checksum that fits. */
static void each_field_is_checked(void **state) {
  static const struct {
    uint32_t at;
    uint8_t value;
    const char *word;
  } wrong[] = {{0, 1, "schema"}, {1, 2, "reserved"}, {2, 1, "reserved"}, {6, 0xFF, "pid"}, {41, 0xFF, "regions"},
               {40, 2, "length of the pattern"},
               {40, 4, "bytes of region 4"}, {44, 0xFF, "address"}, {46, 0xFF, "address"}, {64 + 7 + 16, 0, "bounds of region 0"},
               {64 + 7 + 17, 0xFF, "key"}, {64 + 7 + 16, 0xFF, "key"}, {64 + 7 + 15, 0xFF, ""},
               {64 + 7 + 3 * 20 + 4 + 8, 1, "length of the pattern 4097"}, {64 + 7 + 3 * 20 + 4 + 16, 1, "behind its end"}};
  uint8_t data[256];
  struct ucx_conn c;
  uint32_t n = rd2h_ucx_conn_size(&sample);
  (void)state;
  for (size_t i = 0; i < RD2H_COUNT(wrong); i++) {
    struct rd2h_error err = {0};
    rd2h_ucx_conn_encode(&sample, data);
    data[wrong[i].at] = wrong[i].value;
    rd2h_ucx_conn_seal(data, n);
    int rc = rd2h_ucx_conn_decode((struct rd2h_blob){data, n}, &c, &err);
    if (!*wrong[i].word) { /* a large region, and no fault */
      assert_int_equal(rc, RD2H_OK);
      rd2h_free(c.key);
      continue;
    }
    assert_int_equal(rc, i ? RD2H_MALFORMED : RD2H_UNSUPPORTED);
    if (!strstr(err.text, wrong[i].word))
      fail_msg("byte %u: \"%s\" says nothing of %s", wrong[i].at, err.text, wrong[i].word);
  }
}

/* ---- with a UCX ---- */
/* What the engine logs, from its thread too, up to the first line that holds `wanted`. */
static struct {
  pthread_mutex_t lock;
  const char *wanted;
  int level;
  char line[512];
} heard = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void on_line(void *user, int level, const char *line) {
  (void)user;
  pthread_mutex_lock(&heard.lock);
  if (!*heard.line && heard.wanted && strstr(line, heard.wanted)) {
    snprintf(heard.line, sizeof heard.line, "%s", line);
    heard.level = level;
  }
  pthread_mutex_unlock(&heard.lock);
}

static void listen_for(const char *wanted) {
  pthread_mutex_lock(&heard.lock);
  heard.wanted = wanted;
  heard.line[0] = 0;
  pthread_mutex_unlock(&heard.lock);
}

static void expect_heard(int level, const char *text) {
  pthread_mutex_lock(&heard.lock);
  bool good = heard.level == level && strstr(heard.line, text);
  pthread_mutex_unlock(&heard.lock);
  if (!good)
    fail_msg("level %d, \"%s\": not level %d with \"%s\"", heard.level, heard.line, level, text);
}

struct pair {
  pid_t pid;
  uint64_t base;
  rd2h_eng *eng;
  rd2h_eng_peer *peer;
  uint8_t *memory;
  uint8_t conn[4096];
  struct rd2h_blob blob;
  struct rd2h_batch batch;
  void *local;
  uint64_t remote, len;
  atomic_bool gone; /* disconnect has returned */
};

static void prefill(int fd, const char *const *options) {
  struct rd2h_buf b = {0};
  rd2h_eng *e;
  uint32_t region;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  uint8_t *p = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  uint64_t base = (uintptr_t)p;
  memset(p, 0x5A, BYTES);
  bool good = !open_with(options, true, 0, &e, NULL) && !rd2h_eng_reg(e, &(struct rd2h_region){.base = p, .len = BYTES}, &region,
                                                                      NULL) &&
              !rd2h_eng_publish(e, &b, NULL) && write(fd, &base, sizeof base) == sizeof base && write(fd, b.p,
                                                                                                      b.len) == (ssize_t)b.len;
  while (good)
    pause();
  _exit(1);
}

/* foretell_wrong: another pattern than Prefill's. */
static void pair_connect(struct pair *x, bool foretell_wrong) {
  struct rd2h_blob session = {(const uint8_t *)"x", 1};
  x->conn[SEED_AT] ^= foretell_wrong;
  rd2h_ucx_conn_seal(x->conn, x->blob.len);
  assert_int_equal(rd2h_eng_connect(x->eng, session, x->blob, 1, &x->peer, NULL), RD2H_OK);
}

/* False: there is no UCX. */
static bool source_open(struct pair *x, const char *const *options) {
  int fd[2];
  assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fd), 0);
  *x = (struct pair){.pid = fork(), .memory = calloc(1, BYTES)};
  if (!x->pid)
    prefill(fd[1], options);
  close(fd[1]);
  if (read(fd[0], &x->base, sizeof x->base) != sizeof x->base) {
    close(fd[0]);
    waitpid(x->pid, NULL, 0);
    free(x->memory);
    return false;
  }
  x->blob = (struct rd2h_blob){x->conn, (uint32_t)read(fd[0], x->conn, sizeof x->conn)};
  close(fd[0]);
  return true;
}

static void source_close(struct pair *x) {
  kill(x->pid, SIGKILL);
  waitpid(x->pid, NULL, 0);
  free(x->memory);
}

static bool pair_open(struct pair *x, const char *const *options, uint64_t timeout_ms) {
  if (!source_open(x, options))
    return false;
  assert_int_equal(open_with(options, false, timeout_ms, &x->eng, NULL), RD2H_OK);
  pair_connect(x, false);
  return true;
}

static void pair_close(struct pair *x) {
  rd2h_eng_disconnect(x->eng, x->peer);
  rd2h_eng_close(x->eng);
  source_close(x);
}

static void submit_some(struct pair *x, uint64_t remote, uint64_t len, const uint32_t *region) {
  x->local = x->memory;
  x->remote = remote;
  x->len = len;
  x->batch = (struct rd2h_batch){.id = 5, .n = 1, .bytes = len, .local = &x->local, .remote = &x->remote, .len = &x->len,
                                 .remote_region = region};
  assert_int_equal(rd2h_eng_submit(x->eng, x->peer, &x->batch), RD2H_OK);
}

static struct rd2h_completion completion_of(struct pair *x) {
  struct rd2h_completion c = {0};
  struct pollfd fd = {.fd = rd2h_eng_fd(x->eng), .events = POLLIN};
  uint64_t until = rd2h_now_ns() + WAIT_MS * RD2H_MS;
  while (!rd2h_eng_poll(x->eng, &c, 1)) {
    struct rd2h_peer_event ev;
    rd2h_eng_events(x->eng, &ev, 1);
    assert_true(rd2h_now_ns() < until);
    poll(&fd, 1, 100);
  }
  return c;
}

static struct rd2h_completion read_some(struct pair *x, uint64_t remote, uint64_t len, const uint32_t *region) {
  submit_some(x, remote, len, region);
  return completion_of(x);
}

/* Nothing outside of what was published is asked for, however the numbers wrap; the peer goes on. */
static void ranges_are_checked_here(void **state) {
  static const char *const options[] = {"tls=tcp", NULL};
  static const uint32_t first = 0, second = 1;
  struct pair x;
  (void)state;
  if (!pair_open(&x, options, 0))
    skip();
  const struct {
    uint64_t remote, len;
    const uint32_t *region;
  } bad[] = {{x.base - 1, 16, NULL}, {x.base + BYTES - 8, 16, NULL}, {x.base + BYTES, 1, &first}, {x.base, 16, &second},
             {UINT64_MAX - 3, 16, NULL}, {x.base, UINT64_MAX, &first}, {x.base + 8, UINT64_MAX - 4, NULL}};
  for (size_t i = 0; i < RD2H_COUNT(bad); i++) {
    struct rd2h_completion c = read_some(&x, bad[i].remote, bad[i].len, bad[i].region);
    assert_int_equal(c.status, RD2H_RANGE);
    assert_int_equal(c.failed_at, 0);
    assert_int_equal(c.bytes, 0);
    assert_non_null(strstr(rd2h_eng_last_error(x.eng, 5), "no region"));
  }
  assert_int_equal(read_some(&x, x.base, BYTES, &first).status, RD2H_OK);
  assert_int_equal(x.memory[BYTES - 1], 0x5A);
  pair_close(&x);
}

/* On return it stands still: the signal alone may arrive after a read that follows. */
static void stop_peer(struct pair *x) {
  int how = 0;
  kill(x->pid, SIGSTOP);
  assert_int_equal(waitpid(x->pid, &how, WUNTRACED), x->pid);
  assert_true(WIFSTOPPED(how));
}

/* A read ends with its time; the peer is given up, since what it still sends could land. */
static void a_peer_that_stands_still(void **state) {
  static const char *const options[] = {"tls=tcp", NULL};
  struct pair x;
  (void)state;
  if (!pair_open(&x, options, 3000))
    skip();
  assert_int_equal(read_some(&x, x.base, 64, NULL).status, RD2H_OK);
  stop_peer(&x);
  struct rd2h_completion c = read_some(&x, x.base, BYTES, NULL);
  assert_int_equal(c.status, RD2H_TIMEOUT);
  assert_non_null(strstr(rd2h_eng_last_error(x.eng, 5), "3000 ms"));
  pair_close(&x);
}

/* A UCX that does not end the first endpoint before `may_close`, as a transport would that does not let go of its memory. */
static struct {
  struct ucx_api api;
  const struct ucx_api *real;
  void *ep, *request;
  struct ucx_request_param how;
  bool taken;
  atomic_bool may_close;
} held;

static void *close_held(void *ep, const struct ucx_request_param *how) {
  if (held.taken)
    return held.real->ep_close_nbx(ep, how);
  held.taken = true;
  held.ep = ep;
  held.how = *how;
  return &held;
}

static ucx_status check_held(void *request) {
  if (request != &held)
    return held.real->request_check_status(request);
  if (!atomic_load(&held.may_close))
    return UCX_INPROGRESS;
  if (held.ep)
    held.request = held.real->ep_close_nbx(held.ep, &held.how);
  held.ep = NULL;
  return held.request ? held.real->request_check_status(held.request) : UCX_OK;
}

static void free_held(void *request) {
  request = request == &held ? held.request : request;
  if (request)
    held.real->request_free(request);
}

static void hold_closing(rd2h_engine *e) {
  held.real = e->ucx;
  held.api = *e->ucx;
  held.api.ep_close_nbx = close_held;
  held.api.request_check_status = check_held;
  held.api.request_free = free_held;
  held.ep = held.request = NULL;
  held.taken = false;
  atomic_store(&held.may_close, false);
  e->ucx = &held.api;
  e->deaf_ns = 500 * RD2H_MS;
}

static int nothing(rd2h_engine *e, void *arg, struct rd2h_error *err) {
  (void)e;
  (void)arg;
  (void)err;
  return RD2H_OK;
}

/* On return the thread has posted what was submitted: it takes reads in with the first order, and posts before the second. */
static void wait_posted(void) {
  for (int i = 0; i < 2; i++)
    rd2h_ucx_order(latest, nothing, NULL, NULL);
}

static void *disconnect_main(void *pair) {
  struct pair *x = pair;
  rd2h_eng_disconnect(x->eng, x->peer);
  atomic_store(&x->gone, true);
  return NULL;
}

static void wait_heard(void) {
  const uint64_t until = rd2h_now_ns() + WAIT_MS * RD2H_MS;
  bool yes = false;
  while (!yes) {
    assert_true(rd2h_now_ns() < until);
    poll(NULL, 0, 20);
    pthread_mutex_lock(&heard.lock);
    yes = *heard.line;
    pthread_mutex_unlock(&heard.lock);
  }
}

/* Nobody gets back what may still be written to: the read stays open and an error says so, while another peer is served. */
static void a_read_that_ucx_does_not_end(void **state) {
  static const char *const options[] = {"tls=tcp", NULL};
  struct rd2h_completion c;
  struct pair x, other;
  (void)state;
  if (!source_open(&other, options)) /* before there is an engine here: UCX does not bear being forked */
    skip();
  assert_true(pair_open(&x, options, 3000));
  hold_closing(latest);
  assert_int_equal(read_some(&x, x.base, 64, NULL).status, RD2H_OK);
  listen_for("has not ended");
  stop_peer(&x);
  submit_some(&x, x.base, BYTES, NULL);
  wait_heard();
  expect_heard(RD2H_LOG_ERROR, "cannot be given back");
  assert_int_equal(rd2h_eng_poll(x.eng, &c, 1), 0);
  other.eng = x.eng;
  pair_connect(&other, false);
  assert_int_equal(read_some(&other, other.base, BYTES, NULL).status, RD2H_OK);
  rd2h_eng_disconnect(x.eng, other.peer);
  atomic_store(&held.may_close, true);
  c = completion_of(&x);
  assert_int_equal(c.status, RD2H_TIMEOUT);
  kill(x.pid, SIGCONT);
  source_close(&other);
  pair_close(&x);
}

/* The fence holds as long as UCX may write, and not longer. */
static void a_fence_that_ucx_holds_up(void **state) {
  static const char *const options[] = {"tls=tcp", NULL};
  pthread_t thread;
  struct pair x;
  (void)state;
  if (!pair_open(&x, options, 0))
    skip();
  hold_closing(latest);
  assert_int_equal(read_some(&x, x.base, 64, NULL).status, RD2H_OK);
  listen_for("has not ended");
  stop_peer(&x);
  memset(x.memory, 0, BYTES);
  submit_some(&x, x.base, BYTES, NULL);
  wait_posted();
  assert_int_equal(pthread_create(&thread, NULL, disconnect_main, &x), 0);
  wait_heard();
  assert_false(atomic_load(&x.gone));
  kill(x.pid, SIGCONT); /* now it lands, late */
  while (!atomic_load(&x.gone))
    poll(NULL, 0, 20);
  pthread_join(thread, NULL);
  assert_int_equal(x.memory[BYTES - 1], 0x5A);
  atomic_store(&held.may_close, true);
  rd2h_eng_close(x.eng);
  source_close(&x);
}

/* A bit of what is read is wrong. */
static void damage_pattern(struct pair *x, uint32_t at) {
  struct ucx_conn c;
  uint8_t byte;
  assert_int_equal(rd2h_ucx_conn_decode(x->blob, &c, NULL), RD2H_OK);
  struct iovec here = {&byte, 1}, there = {(void *)(uintptr_t)(c.pattern.base + at), 1};
  rd2h_free(c.key);
  assert_int_equal(process_vm_readv(x->pid, &here, 1, &there, 1, 0), 1);
  byte ^= 0x10;
  assert_int_equal(process_vm_writev(x->pid, &here, 1, &there, 1, 0), 1);
}

/* The peer is down at once, and nothing is read of it. */
static void T04_wrong_bytes_end_the_peer(void **state) {
  static const char *const options[] = {"tls=tcp", NULL};
  struct rd2h_peer_event ev = {.up = true};
  struct pair x;
  (void)state;
  listen_for("nothing is read of x");
  if (!pair_open(&x, options, 0))
    skip();
  rd2h_eng_disconnect(x.eng, x.peer);
  damage_pattern(&x, 4001);
  pair_connect(&x, false);
  struct pollfd fd = {.fd = rd2h_eng_fd(x.eng), .events = POLLIN};
  assert_int_equal(poll(&fd, 1, WAIT_MS), 1);
  assert_int_equal(rd2h_eng_events(x.eng, &ev, 1), 1);
  assert_false(ev.up);
  assert_int_equal(ev.status, RD2H_PEER_LOST);
  expect_heard(RD2H_LOG_ERROR, "tcp over ");
  expect_heard(RD2H_LOG_ERROR, "byte 4001 is 0x");
  void *local[] = {x.memory};
  const uint64_t len = BYTES;
  const struct rd2h_batch b = {.id = 5, .n = 1, .bytes = len, .local = local, .remote = &x.base, .len = &len};
  assert_int_equal(rd2h_eng_submit(x.eng, x.peer, &b), RD2H_PEER_LOST);
  pair_close(&x);
}

/* Reads that were submitted while the pattern was on its way. */
static void T04_reads_wait_for_the_pattern(void **state) {
  static const char *const options[] = {"tls=tcp", NULL};
  struct pair x;
  (void)state;
  if (!pair_open(&x, options, 3000))
    skip();
  assert_int_equal(read_some(&x, x.base, BYTES, NULL).status, RD2H_OK);
  rd2h_eng_disconnect(x.eng, x.peer);
  stop_peer(&x);
  pair_connect(&x, true);
  memset(x.memory, 0, BYTES);
  submit_some(&x, x.base, BYTES, NULL);
  kill(x.pid, SIGCONT);
  struct rd2h_completion c = completion_of(&x);
  assert_int_equal(c.status, RD2H_PEER_LOST);
  assert_int_equal(c.bytes, 0);
  assert_non_null(strstr(rd2h_eng_last_error(x.eng, 5), "pattern"));
  for (uint32_t i = 0; i < BYTES; i++)
    assert_int_equal(x.memory[i], 0);
  pair_close(&x);
}

/* What a Decode may ask that lies or has gone wrong: a read of an address where there is nothing. */
static void pattern_at(struct pair *x, uint64_t base) {
  struct ucx_conn c;
  assert_int_equal(rd2h_ucx_conn_decode(x->blob, &c, NULL), RD2H_OK);
  uint8_t *at = (uint8_t *)(uintptr_t)(c.pattern.key - 20);
  rd2h_free(c.key);
  memcpy(at, &base, sizeof base);
  x->conn[GUARDED_AT] = 0;
  rd2h_ucx_conn_seal(x->conn, x->blob.len);
}

static bool lives(pid_t pid) {
  siginfo_t how = {0};
  assert_int_equal(waitid(P_PID, (id_t)pid, &how, WEXITED | WNOHANG | WNOWAIT), 0);
  return !how.si_pid;
}

/* UCX's own answer to an emulated read looks at no range. A Prefill with emulation=0 gives none. */
static void a_guarded_prefill_outlives_a_bad_address(void **state) {
  static const char *const guarded[] = {"tls=tcp", "emulation=0", NULL}, *const open[] = {"tls=tcp", NULL};
  (void)state;
  for (int guard = 0; guard < 2; guard++) {
    struct rd2h_peer_event ev = {.up = true};
    struct pair x;
    if (!source_open(&x, guard ? guarded : open))
      skip();
    pattern_at(&x, 4096);
    assert_int_equal(open_with(open, false, guard ? 1000 : 0, &x.eng, NULL), RD2H_OK);
    pair_connect(&x, false);
    const uint64_t until = rd2h_now_ns() + WAIT_MS * RD2H_MS;
    while (!rd2h_eng_events(x.eng, &ev, 1)) {
      assert_true(rd2h_now_ns() < until);
      poll(&(struct pollfd){.fd = rd2h_eng_fd(x.eng), .events = POLLIN}, 1, 100);
    }
    assert_int_equal(ev.status, RD2H_PEER_LOST);
    while (!guard && lives(x.pid)) { /* its sockets close first */
      assert_true(rd2h_now_ns() < until);
      poll(NULL, 0, 10);
    }
    assert_int_equal(lives(x.pid), guard);
    pair_close(&x);
  }
}

/* What the kernel reads needs no answer of Prefill: all sizes come, and both sides must be set alike. */
static void reads_without_emulation(void **state) {
  static const char *const guarded[] = {"tls=posix+cma", "emulation=0", NULL}, *const open[] = {"tls=posix+cma", NULL};
  static const uint64_t sizes[] = {1, 64, 256, 4097, BYTES};
  struct rd2h_error err = {0};
  struct pair x;
  rd2h_eng *e;
  (void)state;
  if (!pair_open(&x, guarded, 5000))
    skip();
  for (size_t i = 0; i < RD2H_COUNT(sizes); i++) {
    memset(x.memory, 0, BYTES);
    assert_int_equal(read_some(&x, x.base, sizes[i], NULL).status, RD2H_OK);
    assert_int_equal(x.memory[sizes[i] - 1], 0x5A);
  }
  assert_int_equal(open_with(open, false, 0, &e, NULL), RD2H_OK);
  rd2h_eng_peer *p;
  assert_int_equal(rd2h_eng_connect(e, (struct rd2h_blob){(const uint8_t *)"x", 1}, x.blob, 1, &p, &err), RD2H_UNSUPPORTED);
  assert_non_null(strstr(err.text, "emulation=0"));
  rd2h_eng_close(e);
  pair_close(&x);
}

static void tcp_cannot_do_without_emulation(void **state) {
  static const char *const options[] = {"tls=tcp", "emulation=0", NULL};
  struct rd2h_error err = {0};
  rd2h_eng_peer *p;
  struct pair x;
  (void)state;
  if (!source_open(&x, options))
    skip();
  assert_int_equal(open_with(options, false, 0, &x.eng, NULL), RD2H_OK);
  assert_int_equal(rd2h_eng_connect(x.eng, (struct rd2h_blob){(const uint8_t *)"x", 1}, x.blob, 1, &p, &err), RD2H_UNSUPPORTED);
  assert_non_null(strstr(err.text, "of x by tcp over "));
  assert_non_null(strstr(err.text, "with emulation=0 only"));
  rd2h_eng_close(x.eng);
  source_close(&x);
}

static void T04_the_log_names_transport_and_device(void **state) {
  static const char *const options[] = {"tls=tcp", "devices=lo", NULL};
  struct pair x;
  (void)state;
  listen_for("connected to x");
  if (!pair_open(&x, options, 0))
    skip();
  expect_heard(RD2H_LOG_INFO, "by tcp over lo");
  assert_int_equal(read_some(&x, x.base, 64, NULL).status, RD2H_OK);
  pair_close(&x);
}

static void T08_tcp_is_warned_of(void **state) {
  static const char *const options[] = {"tls=tcp", NULL};
  struct pair x;
  (void)state;
  listen_for("without RDMA");
  if (!pair_open(&x, options, 0))
    skip();
  expect_heard(RD2H_LOG_WARN, "tcp over ");
  expect_heard(RD2H_LOG_WARN, "require_rdma=1");
  assert_non_null(strstr(rd2h_eng_way(x.eng, x.peer), "tcp over "));
  pair_close(&x);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(options_are_checked),        cmocka_unit_test(a_missing_library_is_named),
    cmocka_unit_test(T08_rdma_is_required_and_not_there), cmocka_unit_test(connection_data_comes_back),
    cmocka_unit_test(each_field_is_checked),      cmocka_unit_test(ranges_are_checked_here),
    cmocka_unit_test(a_peer_that_stands_still),   cmocka_unit_test(T04_wrong_bytes_end_the_peer),
    cmocka_unit_test(T04_reads_wait_for_the_pattern), cmocka_unit_test(T04_the_log_names_transport_and_device),
    cmocka_unit_test(T08_tcp_is_warned_of),       cmocka_unit_test(a_read_that_ucx_does_not_end),
    cmocka_unit_test(a_fence_that_ucx_holds_up),  cmocka_unit_test(reads_without_emulation),
    cmocka_unit_test(a_guarded_prefill_outlives_a_bad_address), cmocka_unit_test(a_hole_is_not_registered),
    cmocka_unit_test(tcp_cannot_do_without_emulation),
  };
  rd2h_log_set(on_line, NULL, RD2H_LOG_INFO);
  return cmocka_run_group_tests_name("ucx", tests, NULL, NULL);
}
