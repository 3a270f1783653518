/* SPDX-License-Identifier: Apache-2.0 */
/* The shared pool, with real processes: what one writes another reads, and nothing of a dead one is taken for alive. */
#include "pool/pool.h"
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#define WAIT_S 20

static const struct rd2h_pool_opts small = {.size = sizeof small, .shape = {3, 2, 10, {1000, 24}}, .lock = RD2H_LOCK_OFF};

static rd2h_pool *create(const struct rd2h_pool_opts *o) {
  struct rd2h_error err = {0};
  rd2h_pool *p = NULL;
  if (rd2h_pool_create(o, &p, &err))
    fail_msg("%s", err.text);
  return p;
}

static void expect_create(int status, const struct rd2h_pool_opts *o, const char *word) {
  struct rd2h_error err = {0};
  rd2h_pool *p = NULL;
  assert_int_equal(rd2h_pool_create(o, &p, &err), status);
  assert_non_null(strstr(err.text, word));
  assert_null(p);
}

static void expect_attach(int status, const char *handle, const struct rd2h_pool_opts *o, const char *word) {
  struct rd2h_error err = {0};
  rd2h_pool *p = NULL;
  assert_int_equal(rd2h_pool_attach(handle, o, &p, &err), status);
  if (!strstr(err.text, word))
    fail_msg("\"%s\" lacks \"%s\"", err.text, word);
  assert_null(p);
}

/* ---- a rank as a process of its own ---- */
struct rank {
  pid_t pid;
  int in, out; /* a byte in: go on; out: what it says */
};

static void rank_say(const struct rank *r, const char *text) {
  if (write(r->out, text, RD2H_POOL_HANDLE) != RD2H_POOL_HANDLE)
    _exit(3);
}

static void rank_hear(const struct rank *r, char text[RD2H_POOL_HANDLE]) {
  assert_int_equal(read(r->in, text, RD2H_POOL_HANDLE), RD2H_POOL_HANDLE);
}

static bool rank_told(const struct rank *r) {
  char c;
  return read(r->in, &c, 1) == 1;
}

/* In the child returns a rank with pid 0. Its life is bounded. */
static struct rank rank_start(void) {
  int up[2], down[2];
  assert_int_equal(pipe2(up, O_CLOEXEC) | pipe2(down, O_CLOEXEC), 0);
  fflush(NULL);
  struct rank r = {.pid = fork()};
  assert_true(r.pid >= 0);
  if (!r.pid)
    alarm(WAIT_S);
  r.in = r.pid ? up[0] : down[0];
  r.out = r.pid ? down[1] : up[1];
  close(r.pid ? up[1] : up[0]);
  close(r.pid ? down[0] : down[1]);
  return r;
}

static int rank_end(struct rank *r, int signal) {
  int status = 0;
  if (signal)
    kill(r->pid, signal);
  close(r->out);
  close(r->in);
  assert_int_equal(waitpid(r->pid, &status, 0), r->pid);
  return status;
}

/* Creates a pool, says its handle and stays until told. */
static struct rank creator(char handle[RD2H_POOL_HANDLE]) {
  struct rank r = rank_start();
  if (!r.pid) {
    rd2h_pool *p;
    char text[RD2H_POOL_HANDLE] = "";
    if (rd2h_pool_create(&small, &p, NULL))
      _exit(2);
    memset(rd2h_pool_array(p, 1, 0), 0x5a, 10000);
    snprintf(text, sizeof text, "%s", rd2h_pool_handle(p));
    rank_say(&r, text);
    _exit(rank_told(&r)); /* nobody tells it: it is killed, or the pipe ends */
  }
  rank_hear(&r, handle);
  return r;
}

static bool all(const uint8_t *p, uint8_t value, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (p[i] != value)
      return false;
  return true;
}

/* ---- cases ---- */
static void arrays_lie_apart(void **state) {
  (void)state;
  rd2h_pool *p = create(&small);
  struct rd2h_memory area = rd2h_pool_memory(p);
  struct rd2h_pool_info info;
  rd2h_pool_info(p, &info);
  uint8_t *base = (uint8_t *)(uintptr_t)area.base;
  assert_int_equal(area.base % POOL_HUGE_PAGE, 0);
  assert_int_equal(area.len, 3 * (12288 + 4096));
  assert_true(all(base, 0, area.len));
  assert_ptr_equal(rd2h_pool_array(p, 0, 0), base);
  assert_ptr_equal(rd2h_pool_array(p, 0, 1), base + 12288);
  assert_ptr_equal(rd2h_pool_array(p, 2, 1), base + 2 * 16384 + 12288);
  assert_null(rd2h_pool_array(p, 3, 0));
  assert_null(rd2h_pool_array(p, 0, 2));
  assert_int_equal(info.bytes, POOL_HUGE_PAGE);
  assert_true(info.creator && info.creator_pid == getpid() && !info.locked);
  assert_false(rd2h_pool_orphaned(p));
  rd2h_pool_destroy(p);
  rd2h_pool_destroy(NULL);
}

static void a_layout_over_it(void **state) {
  (void)state;
  struct rd2h_error err = {0};
  rd2h_layout *l;
  rd2h_pool *p = create(&small);
  struct rd2h_kv_tensor t[6];
  char name[3][32];
  for (uint32_t i = 0; i < 6; i++) {
    snprintf(name[i / 2], sizeof name[0], "model.layers.%u.attn", i / 2);
    t[i] = (struct rd2h_kv_tensor){.layer = name[i / 2], .base = (uintptr_t)rd2h_pool_array(p, i / 2, i % 2),
                                   .row_bytes = small.shape.block_bytes[i % 2], .rows = small.shape.blocks};
  }
  struct rd2h_layout_opts o = {.size = sizeof o, .num_blocks = small.shape.blocks};
  assert_int_equal(rd2h_layout_create(t, 6, &o, &l, &err), RD2H_OK);
  assert_int_equal(rd2h_layout_layers(l), 3);
  assert_int_equal(rd2h_layout_slots(l), 3);
  rd2h_layout_destroy(l);
  rd2h_pool_destroy(p);
}

/* Four ranks fill a quarter each of every array; a fifth sees all of it. */
static void ranks_share_it(void **state) {
  (void)state;
  enum { RANKS = 4 };
  struct rank r[RANKS];
  rd2h_pool *p = create(&small);
  for (uint32_t i = 0; i < RANKS; i++) {
    r[i] = rank_start();
    if (r[i].pid)
      continue;
    rd2h_pool *q;
    if (rd2h_pool_attach(rd2h_pool_handle(p), &small, &q, NULL))
      _exit(2);
    for (uint32_t l = 0; l < 3; l++)
      memset((uint8_t *)rd2h_pool_array(q, l, 0) + i * 2500, (int)(16 * l + i + 1), 2500);
    _exit(rd2h_pool_array(q, 0, 0) == rd2h_pool_array(p, 0, 0)); /* a mapping of its own */
  }
  for (uint32_t i = 0; i < RANKS; i++)
    assert_int_equal(rank_end(&r[i], 0), 0);
  for (uint32_t l = 0; l < 3; l++)
    for (uint32_t i = 0; i < RANKS; i++)
      assert_true(all((uint8_t *)rd2h_pool_array(p, l, 0) + i * 2500, (uint8_t)(16 * l + i + 1), 2500));
  rd2h_pool_destroy(p);
}

/* kill -9 of rank 0: who is attached keeps whole memory and can see it; nobody new gets in; nothing is left behind. */
static void the_creator_is_killed(void **state) {
  (void)state;
  char handle[RD2H_POOL_HANDLE];
  struct rd2h_error err = {0};
  rd2h_pool *p;
  struct rank r = creator(handle);
  assert_int_equal(rd2h_pool_attach(handle, &small, &p, &err), RD2H_OK);
  assert_false(rd2h_pool_orphaned(p));
  assert_int_equal(WTERMSIG(rank_end(&r, SIGKILL)), SIGKILL);
  assert_true(rd2h_pool_orphaned(p));
  assert_true(all(rd2h_pool_array(p, 1, 0), 0x5a, 10000));
  memset(rd2h_pool_array(p, 2, 0), 1, 10000);
  expect_attach(RD2H_NOT_FOUND, handle, &small, "has ended");
  expect_attach(RD2H_NOT_FOUND, handle, &small, strrchr(handle, ':') + 1); /* names the pool */
  rd2h_pool_destroy(p);
}

/* The same process and number, but another pool, or something else altogether. */
static void a_stale_handle(void **state) {
  (void)state;
  char old[RD2H_POOL_HANDLE], now[RD2H_POOL_HANDLE];
  rd2h_pool *p = create(&small);
  snprintf(old, sizeof old, "%s", rd2h_pool_handle(p));
  rd2h_pool_destroy(p);
  expect_attach(RD2H_NOT_FOUND, old, &small, strrchr(old, ':') + 1);
  p = create(&small);
  snprintf(now, sizeof now, "%s", rd2h_pool_handle(p));
  assert_int_equal(strrchr(old, ':') - old, strrchr(now, ':') - now); /* the number is taken again */
  assert_memory_equal(old, now, (size_t)(strrchr(old, ':') - old));
  assert_string_not_equal(old, now);
  expect_attach(RD2H_NOT_FOUND, old, &small, strrchr(old, ':') + 1);
  expect_attach(RD2H_NOT_FOUND, old, &small, strrchr(now, ':') + 1); /* both are named */
  rd2h_pool_destroy(p);
  int number = atoi(strchr(strchr(old + strlen(POOL_NAME) + 1, ':') + 1, ':') + 1);
  int other = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (other != number) {
    assert_int_equal(dup3(other, number, O_CLOEXEC), number);
    close(other);
  }
  expect_attach(RD2H_NOT_FOUND, old, &small, "/dev/null");
  close(number);
}

/* A memfd with the right name that is no pool. */
static void a_forged_pool(void **state) {
  (void)state;
  static const char nonce[] = "00112233445566778899aabbccddeeff";
  char name[64], handle[RD2H_POOL_HANDLE];
  snprintf(name, sizeof name, POOL_NAME "-%s", nonce);
  int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  assert_int_equal(ftruncate(fd, POOL_HUGE_PAGE), 0);
  snprintf(handle, sizeof handle, POOL_NAME ":1:%d:%d:%s", (int)getpid(), fd, nonce);
  expect_attach(RD2H_REFUSED, handle, &small, "not sealed");
  assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  expect_attach(RD2H_NOT_FOUND, handle, &small, "does not say so");
  close(fd);
}

static void what_is_no_handle(void **state) {
  (void)state;
  static const char *const bad[] = {"", "rd2h-pool", "rd2h-pool:1:1:3:", "rd2h-pool:1:0:3:00112233445566778899aabbccddeeff",
      "rd2h-pool:1:1:-3:00112233445566778899aabbccddeeff", "rd2h-pool:2:1:3:00112233445566778899aabbccddeeff",
      "rd2h-pool:1:1:3:00112233445566778899aabbccddeef", "rd2h-pool:1:1:3:00112233445566778899aabbccddeeff0",
      "rd2h-pool:1: 1:3:00112233445566778899aabbccddeeff", "rd2h-pool:1:9999999999:3:00112233445566778899aabbccddeeff"};
  for (size_t i = 0; i < RD2H_COUNT(bad); i++)
    expect_attach(RD2H_INVALID, bad[i], &small, "no handle");
  expect_attach(RD2H_INVALID, NULL, &small, "no handle");
}

static void another_shape(void **state) {
  (void)state;
  rd2h_pool *p = create(&small);
  struct rd2h_pool_opts o = small;
  o.shape.blocks = 11;
  expect_attach(RD2H_LAYOUT, rd2h_pool_handle(p), &o, "3 layers of 10 blocks of 1000 + 24 bytes");
  expect_attach(RD2H_LAYOUT, rd2h_pool_handle(p), &o, "3 layers of 11 blocks of 1000 + 24 bytes");
  o = small;
  o.shape.layers = 2;
  expect_attach(RD2H_LAYOUT, rd2h_pool_handle(p), &o, "wants 2 layers");
  o = small;
  o.shape.arrays = 1;
  expect_attach(RD2H_LAYOUT, rd2h_pool_handle(p), &o, "1000 + 0 bytes");
  rd2h_pool_destroy(p);
}

static void shapes_that_cannot_be(void **state) {
  (void)state;
  static const struct rd2h_pool_shape none[] = {{0, 2, 1, {1, 1}}, {1, 0, 1, {1, 1}}, {1, 3, 1, {1, 1}}, {1, 2, 0, {1, 1}},
                                                {UINT32_MAX, 2, 1, {1, 1}}};
  static const struct rd2h_pool_shape wide[] = {{1, 2, 1, {1, 0}}, {1, 2, UINT64_MAX, {1, 1}}, {2, 1, UINT64_MAX / 2, {2, 0}},
                                                {65536, 2, UINT64_C(1) << 31, {1, 2}}};
  struct rd2h_pool_opts o = small;
  for (size_t i = 0; i < RD2H_COUNT(none); i++) {
    o.shape = none[i];
    expect_create(RD2H_INVALID, &o, "cannot be");
  }
  for (size_t i = 0; i < RD2H_COUNT(wide); i++) {
    o.shape = wide[i];
    expect_create(RD2H_RANGE, &o, "possible");
  }
  o = small;
  o.size = 8;
  expect_create(RD2H_INVALID, &o, "options of 8 bytes");
  o = small;
  o.lock = (enum rd2h_pool_lock)9;
  expect_create(RD2H_INVALID, &o, "lock 9");
}

static void too_large_for_the_machine(void **state) {
  (void)state;
  struct pool_room room;
  assert_true(pool_room("", &room));
  struct rd2h_pool_opts o = small;
  o.shape = (struct rd2h_pool_shape){1, 1, 2 * (room.total >> 20), {1u << 20, 0}};
  expect_create(RD2H_LIMIT, &o, "do not fit");
  o = small;
  o.keep_free = UINT64_MAX; /* no overflow */
  expect_create(RD2H_LIMIT, &o, "at most 0 blocks");
}

/* ---- limits, from made-up files ---- */
static char root[64];

static void put(const char *path, const char *text) {
  char name[256];
  snprintf(name, sizeof name, "%s%s", root, path);
  for (char *at = strchr(name + strlen(root) + 1, '/'); at; at = strchr(at + 1, '/')) {
    *at = 0;
    assert_true(!mkdir(name, 0700) || errno == EEXIST);
    *at = '/';
  }
  FILE *f = fopen(name, "w");
  assert_non_null(f);
  fputs(text, f);
  fclose(f);
}

static void scratch(void) {
  snprintf(root, sizeof root, "/tmp/rd2h-pool-test-XXXXXX");
  assert_non_null(mkdtemp(root));
}

static void scratch_end(void) {
  char command[128];
  snprintf(command, sizeof command, "rm -r %s", root);
  assert_int_equal(system(command), 0);
}

static void limits_of_groups(void **state) {
  (void)state;
  struct pool_room r;
  scratch();
  assert_false(pool_room(root, &r));
  put("/proc/meminfo", "MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:   800 kB\n");
  assert_true(pool_room(root, &r));
  assert_int_equal(r.available, 800 << 10);
  assert_int_equal(r.total, 1000 << 10);
  assert_string_equal(r.where, "this machine");
  put("/proc/self/cgroup", "0::/a/b\n");
  put("/sys/fs/cgroup/a/b/memory.max", "max\n");
  put("/sys/fs/cgroup/a/b/memory.current", "10\n");
  assert_true(pool_room(root, &r));
  assert_int_equal(r.available, 800 << 10);
  put("/sys/fs/cgroup/a/memory.max", "500000\n"); /* of the folder above */
  put("/sys/fs/cgroup/a/memory.current", "400000\n");
  put("/sys/fs/cgroup/a/memory.stat", "anon 5\ninactive_file 50000\n");
  assert_true(pool_room(root, &r));
  assert_int_equal(r.available, 150000);
  assert_int_equal(r.total, 500000);
  assert_string_equal(r.where, "control group /sys/fs/cgroup/a");
  put("/proc/self/cgroup", "9:name=systemd:/x\n8:cpu,memory:/x\n4:memory:/elsewhere/c\n"); /* version 1, as a container sees it */
  put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "90000\n");
  put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "100000\n");
  put("/sys/fs/cgroup/memory/memory.stat", "total_inactive_file 0\n");
  assert_true(pool_room(root, &r));
  assert_int_equal(r.available, 0); /* over its limit already */
  assert_string_equal(r.where, "control group /sys/fs/cgroup/memory");
  uint64_t n_free, total;
  put("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "7\n");
  put("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "9\n");
  pool_huge_pages(root, &n_free, &total);
  assert_int_equal(n_free, 7);
  assert_int_equal(total, 9);
  scratch_end();
}

static void huge_pages(void **state) {
  (void)state;
  uint64_t n_free, total;
  struct rd2h_pool_opts o = small;
  struct rd2h_pool_info info;
  pool_huge_pages("", &n_free, &total);
  o.pages = RD2H_PAGES_HUGE;
  if (!n_free) {
    expect_create(RD2H_LIMIT, &o, "1 huge pages of 2 MiB are needed, 0 of");
    return;
  }
  rd2h_pool *p = create(&o);
  rd2h_pool_info(p, &info);
  assert_int_equal(info.page_bytes, POOL_HUGE_PAGE);
  rd2h_pool_destroy(p);
}

/* Locked where this process may, refused where it must and may not: as a user without rights. */
static void t03_locking(void **state) {
  (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  skip(); /* their runtimes answer mlock without calling it */
#endif
  struct rank r = rank_start();
  if (!r.pid) {
    struct rd2h_pool_opts o = small;
    struct rd2h_error err = {0};
    struct rd2h_pool_info info;
    rd2h_pool *p;
    if (setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){1 << 20, 1 << 20}) || (!getuid() && setuid(65534)))
      _exit(2);
    o.lock = RD2H_LOCK_MUST;
    if (rd2h_pool_create(&o, &p, &err) != RD2H_PERMISSION || !strstr(err.text, "2 MiB cannot be locked, the limit is 1 MiB"))
      _exit(3);
    o.lock = RD2H_LOCK_AUTO;
    if (rd2h_pool_create(&o, &p, &err))
      _exit(4);
    rd2h_pool_info(p, &info);
    _exit(info.locked ? 5 : 0);
  }
  assert_int_equal(rank_end(&r, 0), 0);
}

static void placement(void **state) {
  (void)state;
  struct rd2h_pool_opts o = small;
  struct rd2h_pool_info info;
  o.numa_nodes = 1;
  rd2h_pool *p = create(&o);
  rd2h_pool_info(p, &info);
  assert_true(info.numa_nodes == 1 || info.numa_nodes == 0); /* 0 where a container forbids mbind */
  bool allowed = info.numa_nodes;
  rd2h_pool_destroy(p);
  o.numa_nodes = UINT64_C(1) << 63;
  if (allowed && access("/sys/devices/system/node/node63", F_OK))
    expect_create(RD2H_INVALID, &o, "0x8000000000000000");
}

/* Another user's pool is not opened, and the error says so. */
static void another_user(void **state) {
  (void)state;
  if (getuid())
    skip(); /* only root can become somebody else */
  rd2h_pool *p = create(&small);
  struct rank r = rank_start();
  if (!r.pid) {
    rd2h_pool *q;
    struct rd2h_error err = {0};
    if (setuid(65534))
      _exit(2);
    int rc = rd2h_pool_attach(rd2h_pool_handle(p), &small, &q, &err);
    _exit(rc == RD2H_PERMISSION && strstr(err.text, "one user") ? 0 : 3);
  }
  assert_int_equal(rank_end(&r, 0), 0);
  rd2h_pool_destroy(p);
}

/* Nothing stays mapped or open, whichever allocation fails. */
static void memory_ends(void **state) {
  (void)state;
  struct rd2h_error err;
  rd2h_pool *p = create(&small), *q = NULL;
  rd2h_alloc_fail_at(1);
  assert_int_equal(rd2h_pool_create(&small, &q, &err), RD2H_NOMEM);
  rd2h_alloc_fail_at(1);
  assert_int_equal(rd2h_pool_attach(rd2h_pool_handle(p), &small, &q, &err), RD2H_NOMEM);
  rd2h_alloc_fail_at(0);
  assert_null(q);
  rd2h_pool_destroy(p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(arrays_lie_apart), cmocka_unit_test(a_layout_over_it), cmocka_unit_test(ranks_share_it),
      cmocka_unit_test(the_creator_is_killed), cmocka_unit_test(a_stale_handle), cmocka_unit_test(a_forged_pool),
      cmocka_unit_test(what_is_no_handle), cmocka_unit_test(another_shape), cmocka_unit_test(shapes_that_cannot_be),
      cmocka_unit_test(too_large_for_the_machine), cmocka_unit_test(limits_of_groups), cmocka_unit_test(huge_pages),
      cmocka_unit_test(t03_locking), cmocka_unit_test(placement), cmocka_unit_test(another_user), cmocka_unit_test(memory_ends)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
