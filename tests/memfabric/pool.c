/* SPDX-License-Identifier: Apache-2.0 */
/* Pools in memory of MemFabric's offload API: pool [CASE] | --list. Every rank is a process; this one loads no library, it is the
 * Prefill that is read from. */
#include "engine/engine.h"
#include <rd2h/pool.h>
#include <arpa/inet.h>
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
#include <unistd.h>
#include <cmocka.h>
#include "tests/helpers/one_case.h"

#define BLOCK 65536u
#define BLOCKS 64u
#define LAYERS 3u
#define PULLED 4u
#define WAIT_MS 20000

/* In a rank: what fails ends it with a line. */
#define CHECK(condition) \
  do { \
    if (!(condition)) { \
      fprintf(stderr, "pool.c:%d: not so: %s: %s\n", __LINE__, #condition, err.text); \
      _exit(1); \
    } \
  } while (0)

static struct rd2h_error err;
static uint16_t port;

static void choose_port(void) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t n = sizeof a;
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  assert_int_equal(bind(fd, (struct sockaddr *)&a, n) | getsockname(fd, (struct sockaddr *)&a, &n), 0);
  port = ntohs(a.sin_port);
  close(fd);
}

static struct rd2h_pool_opts opts_of(const char *rank, const char *world, const char *more) {
  static char provider[256];
  snprintf(provider, sizeof provider, "memfabric,rank=%s,world=%s,store=tcp://127.0.0.1:%u,init_s=20%s", rank, world, port, more);
  return (struct rd2h_pool_opts){.size = sizeof(struct rd2h_pool_opts), .provider = provider,
                                 .shape = {LAYERS, 2, BLOCKS, {BLOCK, BLOCK / 2}}};
}

/* ---- ranks ---- */
struct rank {
  pid_t pid;
  int control;
};

static struct rank start(void (*run)(int control)) {
  struct rank r;
  int pair[2];
  assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
  r.pid = fork();
  if (!r.pid) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(pair[0]);
    run(pair[1]);
    exit(0); /* by the library's own way out, too */
  }
  close(pair[1]);
  r.control = pair[0];
  return r;
}

static void end(const struct rank *r) {
  int status = -1;
  for (int ms = 0; ms < WAIT_MS && !waitpid(r->pid, &status, WNOHANG); ms += 10)
    poll(NULL, 0, 10);
  if (status == -1)
    kill(r->pid, SIGKILL);
  close(r->control);
  assert_int_equal(status, 0);
}

static void tell(int control, const void *p, size_t n) {
  if (send(control, p, n, MSG_NOSIGNAL) != (ssize_t)n)
    abort();
}

/* A packet of up to n bytes; false when the other side has ended. */
static bool hear(int control, void *p, size_t n) {
  struct pollfd f = {.fd = control, .events = POLLIN};
  return poll(&f, 1, WAIT_MS) == 1 && recv(control, p, n, 0) > 0;
}

/* ---- one pool, two ranks ---- */
struct source {
  uint64_t base;
  uint32_t n;
  uint8_t conn[512];
};

static void pull(const struct source *s, rd2h_pool *p) {
  struct rd2h_engine_opts o = {.size = sizeof o};
  uint64_t remote[PULLED], len[PULLED];
  void *local[PULLED];
  struct rd2h_memory m = rd2h_pool_memory(p);
  struct rd2h_completion c = {0};
  rd2h_eng_peer *peer;
  rd2h_eng *e;
  uint32_t region;
  CHECK(!rd2h_eng_open("local", &o, &e, &err));
  CHECK(!rd2h_eng_reg(e, &(struct rd2h_region){.base = (void *)(uintptr_t)m.base, .len = m.len}, &region, &err));
  CHECK(!rd2h_eng_connect(e, (struct rd2h_blob){0}, (struct rd2h_blob){s->conn, s->n}, 1, &peer, &err));
  for (uint32_t i = 0; i < PULLED; i++) {
    local[i] = (uint8_t *)rd2h_pool_array(p, 1, 0) + (size_t)(2 * i + 1) * BLOCK;
    remote[i] = s->base + (uint64_t)i * BLOCK;
    len[i] = BLOCK;
  }
  struct rd2h_batch b = {.id = 1, .n = PULLED, .bytes = PULLED * BLOCK, .local = local, .remote = remote, .len = len};
  CHECK(!rd2h_eng_submit(e, peer, &b));
  for (int ms = 0; ms < WAIT_MS && !rd2h_eng_poll(e, &c, 1); ms++)
    poll(NULL, 0, 1);
  CHECK(c.id == 1 && !c.status && c.bytes == b.bytes);
  rd2h_eng_close(e);
}

static bool pulled(rd2h_pool *p) {
  const uint8_t *k = rd2h_pool_array(p, 1, 0);
  for (uint32_t at = 0; at < (2 * PULLED + 1) * BLOCK; at++)
    if (k[at] != (at / BLOCK % 2 ? 0x10 + at / BLOCK / 2 : 0))
      return false;
  return true;
}

static void creator(int control) {
  struct rd2h_pool_opts o = opts_of("0", "2", "");
  struct rd2h_pool_info i;
  rd2h_pool *p, *second;
  char word;
  CHECK(rd2h_pool_create(&o, &p, &err) == RD2H_STATE && strstr(err.text, "rd2h_pool_join"));
  CHECK(!rd2h_pool_join(&o, &err));
  CHECK(rd2h_pool_join(&o, &err) == RD2H_STATE);
  CHECK(rd2h_pool_attach("rd2h-pool-memfabric:1:1:200000:00000000000000000000000000000000", &o, &p, &err) == RD2H_STATE);
  o.shape.blocks = 1000;
  CHECK(rd2h_pool_create(&o, &p, &err) == RD2H_STATE && strstr(err.text, "joined with"));
  o.shape.blocks = BLOCKS;
  CHECK(!rd2h_pool_create(&o, &p, &err));
  CHECK(rd2h_pool_create(&o, &second, &err) == RD2H_STATE);
  rd2h_pool_info(p, &i);
  CHECK(i.creator && i.creator_pid == getpid() && !i.locked && !i.pinned && !i.page_bytes && !rd2h_pool_orphaned(p));
  uint8_t *last = rd2h_pool_array(p, 2, 1);
  memset(last + (BLOCKS - 1) * (BLOCK / 2), 0x77, BLOCK / 2);
  tell(control, rd2h_pool_handle(p), strlen(rd2h_pool_handle(p)) + 1);
  CHECK(hear(control, &word, 1));
  CHECK(pulled(p));
  CHECK(last[0] == 0x42);
  rd2h_pool_destroy(p);
  CHECK(rd2h_pool_join(&o, &err) == RD2H_STATE && strstr(err.text, "process life"));
}

static void attached(int control) {
  struct rd2h_pool_opts o = opts_of("1", "2", "");
  char handle[RD2H_POOL_HANDLE], wrong[RD2H_POOL_HANDLE];
  struct source s;
  rd2h_pool *p;
  CHECK(!rd2h_pool_join(&o, &err));
  CHECK(hear(control, handle, sizeof handle) && hear(control, &s, sizeof s));
  CHECK(rd2h_pool_create(&o, &p, &err) == RD2H_STATE);
  CHECK(rd2h_pool_attach("rd2h-pool:1:1:1:00000000000000000000000000000000", &o, &p, &err) == RD2H_INVALID);
  snprintf(wrong, sizeof wrong, "%s", handle);
  char *digit = wrong + strlen(wrong) - 1;
  *digit = *digit == '0' ? '1' : '0';
  CHECK(rd2h_pool_attach(wrong, &o, &p, &err) == RD2H_NOT_FOUND && strstr(err.text, "stale"));
  snprintf(wrong, sizeof wrong, "rd2h-pool-memfabric:1:%d:200000:%s", (int)getppid(), strrchr(handle, ':') + 1);
  CHECK(rd2h_pool_attach(wrong, &o, &p, &err) == RD2H_NOT_FOUND && strstr(err.text, "not mapped"));
  o.shape.block_bytes[0] = BLOCK / 2, o.shape.block_bytes[1] = BLOCK; /* as large */
  CHECK(rd2h_pool_attach(handle, &o, &p, &err) == RD2H_LAYOUT);
  o.shape.block_bytes[0] = BLOCK, o.shape.block_bytes[1] = BLOCK / 2;
  CHECK(!rd2h_pool_attach(handle, &o, &p, &err));
  uint8_t *last = rd2h_pool_array(p, 2, 1);
  CHECK(last[BLOCKS * (BLOCK / 2) - 1] == 0x77 && last[(BLOCKS - 1) * (BLOCK / 2)] == 0x77 && !last[0]);
  CHECK((uintptr_t)rd2h_pool_memory(p).base == (uintptr_t)rd2h_pool_array(p, 0, 0) && !rd2h_pool_array(p, LAYERS, 0));
  last[0] = 0x42;
  pull(&s, p);
  CHECK(pulled(p) && !rd2h_pool_orphaned(p));
  tell(control, "d", 1);
  CHECK(hear(control, handle, 1)); /* the creator has ended */
  CHECK(rd2h_pool_orphaned(p) && pulled(p));
  rd2h_pool_destroy(p);
}

static void two_ranks_share_one_pool(void **state) {
  struct rd2h_engine_opts o = {.size = sizeof o, .prefill = true};
  char handle[RD2H_POOL_HANDLE], word;
  struct rd2h_buf conn = {0};
  struct source s = {0};
  uint32_t region;
  rd2h_eng *e;
  (void)state;
  choose_port();
  struct rank one = start(attached), zero = start(creator);
  uint8_t *kv = malloc(PULLED * BLOCK);
  for (uint32_t i = 0; i < PULLED; i++)
    memset(kv + (size_t)i * BLOCK, 0x10 + (int)i, BLOCK);
  assert_int_equal(rd2h_eng_open("local", &o, &e, &err), 0);
  assert_int_equal(rd2h_eng_reg(e, &(struct rd2h_region){.base = kv, .len = PULLED * BLOCK}, &region, &err), 0);
  assert_int_equal(rd2h_eng_publish(e, &conn, &err), 0);
  assert_true(conn.len <= sizeof s.conn);
  s.base = (uintptr_t)kv;
  s.n = (uint32_t)conn.len;
  memcpy(s.conn, conn.p, conn.len);
  assert_true(hear(zero.control, handle, sizeof handle));
  tell(one.control, handle, strlen(handle) + 1);
  tell(one.control, &s, sizeof s);
  assert_true(hear(one.control, &word, 1));
  tell(zero.control, "g", 1);
  end(&zero);
  tell(one.control, "g", 1);
  end(&one);
  rd2h_eng_close(e);
  rd2h_buf_free(&conn);
  free(kv);
}

/* ---- what is refused ---- */
static void refused(const char *rank, const char *world, const char *more, int status, const char *complaint) {
  struct rd2h_pool_opts o = opts_of(rank, world, more);
  int rc = rd2h_pool_join(&o, &err);
  if (rc != status || !strstr(err.text, complaint)) {
    fprintf(stderr, "%s: %d, \"%s\" instead of %d, \"%s\"\n", o.provider, rc, err.text, status, complaint);
    _exit(1);
  }
}

static void refusals(int control) {
  (void)control;
  refused("2", "2", "", RD2H_INVALID, "rank 2 of a world of 2");
  refused("0", "0", "", RD2H_INVALID, "1 to 1024");
  refused("-1", "2", "", RD2H_INVALID, "0 to 1023");
  refused("0", "1", ",device=x", RD2H_INVALID, "device=x");
  refused("0", "1", ",pages=huge", RD2H_INVALID, "unknown option");
  refused("0", "1", ",store=tcp://here:1", RD2H_INVALID, "tcp://A.B.C.D:PORT");
  refused("0", "1", ",lib=/nowhere/libmf_acc_offload.so", RD2H_NOT_FOUND, "/nowhere/libmf_acc_offload.so");
  refused("1", "2", ",init_s=1", RD2H_PEER_LOST, "no store at tcp://127.0.0.1");
  struct rd2h_pool_opts o = opts_of("0", "1", "");
  rd2h_pool *p;
  o.shape.blocks = 0;
  CHECK(rd2h_pool_join(&o, &err) == RD2H_INVALID);
  o.shape.blocks = UINT64_C(1) << 27;
  CHECK(rd2h_pool_join(&o, &err) == RD2H_LIMIT);
  o.shape.blocks = BLOCKS;
  o.pages = RD2H_PAGES_HUGE;
  CHECK(rd2h_pool_join(&o, &err) == RD2H_UNSUPPORTED && strstr(err.text, "pages=huge"));
  o.pages = RD2H_PAGES_AUTO, o.numa_nodes = 1;
  CHECK(rd2h_pool_create(&o, &p, &err) == RD2H_UNSUPPORTED && strstr(err.text, "numa_nodes"));
  o.numa_nodes = 0, o.provider = "memfabric";
  CHECK(rd2h_pool_join(&o, &err) == RD2H_INVALID && strstr(err.text, "rank="));
  o.provider = "cuda";
  CHECK(rd2h_pool_join(&o, &err) == RD2H_INVALID && strstr(err.text, "own, or memfabric"));
  o.provider = "own";
  CHECK(!rd2h_pool_join(&o, &err) && !rd2h_pool_create(&o, &p, &err));
  rd2h_pool_destroy(p);
}

static void what_cannot_be_is_refused(void **state) {
  (void)state;
  choose_port();
  struct rank r = start(refusals);
  end(&r);
}

static void alone(int control) {
  (void)control;
  struct rd2h_pool_opts o = opts_of("0", "2", ",init_s=2");
  rd2h_pool *p;
  CHECK(rd2h_pool_join(&o, &err) == RD2H_TIMEOUT && strstr(err.text, "not all ranks"));
  CHECK(rd2h_pool_join(&o, &err) == RD2H_STATE && rd2h_pool_create(&o, &p, &err) == RD2H_STATE);
  _exit(0); /* the library is still waiting */
}

static void ranks_that_are_missing(void **state) {
  (void)state;
  choose_port();
  struct rank r = start(alone);
  end(&r);
}

/* The library's own refusal, with its code and its reason. */
static void code(int control) {
  (void)control;
  struct rd2h_pool_opts o = opts_of("0", "1", ",store=tcp://192.0.2.1:1"); /* no address of this host */
  CHECK(rd2h_pool_join(&o, &err) == RD2H_IO && strstr(err.text, "offload_init returned -1"));
}

static void the_librarys_codes(void **state) {
  (void)state;
  choose_port();
  struct rank r = start(code);
  end(&r);
}

static const struct CMUnitTest cases[] = {
  cmocka_unit_test(two_ranks_share_one_pool), cmocka_unit_test(what_cannot_be_is_refused), cmocka_unit_test(ranks_that_are_missing),
  cmocka_unit_test(the_librarys_codes),
};

int main(int argc, char **argv) {
  if (cases_listed(cases, RD2H_COUNT(cases), argc, argv))
    return 0;
  return cmocka_run_group_tests_name("pool", cases, NULL, NULL);
}
