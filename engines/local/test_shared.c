/* SPDX-License-Identifier: Apache-2.0 */
/* Shared mappings: who gets Prefill's memory, what of it Decode trusts, and that everything else is read the other way. */
#include "engines/local/local.h"
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#define BYTES (2u << 20)
#define NOBODY 65534u
#define FAKE_SOCKET 0x1234567800000000ull
#define WAIT_S 20

static uint8_t pattern(uint64_t i) {
  return (uint8_t)(i * 7 + i / 256 + 1);
}

/* ---- a forked Prefill: BYTES of shared memory and as many of its own, the same pattern in both ---- */
enum role { HONEST, UNSEALED, SHORT, NO_FILE, OTHER_NONCE, FEWER_FDS, NOTHING_SAID };
struct prefill {
  pid_t pid;
  int say, hear; /* 'c': closes its engine, 'x': runs another program */
  struct hello {
    uint8_t *shared, *own;
    uint32_t conn_len;
    uint8_t conn[LOCAL_CONN_MAX];
  } h;
};

static int fake_file(enum role r, const uint8_t *content) {
  if (r == NO_FILE)
    return open("/dev/zero", O_RDONLY | O_CLOEXEC);
  int fd = memfd_create("fake", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (write(fd, content, BYTES) != (ssize_t)BYTES || ftruncate(fd, r == SHORT ? 4096 : BYTES))
    _exit(3);
  if (r != UNSEALED)
    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL);
  return fd;
}

/* A socket under the same pid that says what Prefill would not. */
static void fake_answer(enum role r, int fd, const struct hello *h, const uint8_t nonce[LOCAL_NONCE]) {
  struct rd2h_local_hand m = {.magic = LOCAL_HAND_MAGIC, .version = LOCAL_HAND_VERSION, .n = 1 + (r == FEWER_FDS),
                              .map = {{(uintptr_t)h->shared, BYTES}, {(uintptr_t)h->shared + BYTES, BYTES}}};
  union {
    struct cmsghdr align;
    char room[CMSG_SPACE(sizeof(int))];
  } control = {0};
  struct iovec v = {&m, offsetof(struct rd2h_local_hand, map) + m.n * sizeof m.map[0]};
  struct msghdr msg = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
  int file = fake_file(r, h->shared);
  memcpy(m.nonce, nonce, LOCAL_NONCE);
  m.nonce[3] ^= r == OTHER_NONCE;
  *c = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
  memcpy(CMSG_DATA(c), &file, sizeof file);
  if (r != NOTHING_SAID && sendmsg(fd, &msg, MSG_NOSIGNAL) < 0)
    _exit(4);
  close(file);
}

static int listen_at(uint64_t id) {
  struct sockaddr_un a;
  socklen_t len;
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  rd2h_local_socket_name(id, &a, &len);
  return fd < 0 || bind(fd, (struct sockaddr *)&a, len) || listen(fd, 4) ? -1 : fd;
}

static void fill(struct hello *h) {
  h->shared = rd2h_shared_alloc(BYTES, 0, NULL);
  h->own = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  for (uint64_t i = 0; i < BYTES; i++)
    h->shared[i] = h->own[i] = pattern(i);
}

static void prefill_child(enum role r, int hear, int say) {
  struct rd2h_engine_opts o = {.size = sizeof o, .prefill = true};
  struct rd2h_engine_caps caps;
  struct rd2h_local_conn c;
  struct hello h = {0};
  rd2h_engine *e;
  uint32_t region[2];
  int listener = -1;
  char order = 0;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  fill(&h);
  const struct rd2h_region parts[] = {{.base = h.shared + 4096, .len = BYTES / 2}, {.base = h.own, .len = BYTES}};
  if (rd2h_engine_local.open(NULL, &o, &e, &caps, NULL) || rd2h_engine_local.reg(e, &parts[0], &region[0], NULL) ||
      rd2h_engine_local.reg(e, &parts[0], &region[0], NULL) || rd2h_engine_local.reg(e, &parts[1], &region[1], NULL) ||
      rd2h_engine_local.publish(e, h.conn, sizeof h.conn, &h.conn_len))
    _exit(2);
  if (r != HONEST) {
    if (rd2h_local_decode((struct rd2h_blob){h.conn, h.conn_len}, &c, NULL) || (listener = listen_at(FAKE_SOCKET + c.pid)) < 0)
      _exit(2);
    c.socket = FAKE_SOCKET + c.pid;
    h.conn_len = rd2h_local_encode(&c, h.conn);
  }
  if (write(say, &h, sizeof h) != sizeof h)
    _exit(2);
  if (r != HONEST) {
    int fd = accept(listener, NULL, NULL);
    fake_answer(r, fd, &h, c.nonce);
    close(fd);
  }
  while (read(hear, &order, 1) == 1) {
    if (order == 'x')
      execl("/bin/sleep", "sleep", "60", NULL);
    rd2h_engine_local.close(e);
    if (write(say, &order, 1) != 1)
      break;
  }
  _exit(0);
}

static void prefill_start(struct prefill *p, enum role r) {
  int to[2], from[2];
  assert_int_equal(pipe2(to, O_CLOEXEC), 0);
  assert_int_equal(pipe2(from, O_CLOEXEC), 0);
  p->pid = fork();
  if (!p->pid) {
    close(to[1]);
    close(from[0]);
    prefill_child(r, to[0], from[1]);
  }
  close(to[0]);
  close(from[1]);
  p->say = to[1];
  p->hear = from[0];
  assert_int_equal(read(p->hear, &p->h, sizeof p->h), sizeof p->h);
}

static void prefill_end(struct prefill *p) {
  kill(p->pid, SIGKILL);
  waitpid(p->pid, NULL, 0);
  close(p->say);
  close(p->hear);
}

/* ---- Decode ---- */
static rd2h_engine *decode_open(void) {
  struct rd2h_engine_opts o = {.size = sizeof o, .slice_bytes = 65536};
  struct rd2h_engine_caps caps;
  rd2h_engine *e = NULL;
  assert_int_equal(rd2h_engine_local.open(NULL, &o, &e, &caps, NULL), RD2H_OK);
  return e;
}

static rd2h_peer *connect_to(rd2h_engine *e, const struct hello *h) {
  struct rd2h_error err = {0};
  rd2h_peer *p = NULL;
  int rc = rd2h_engine_local.connect(e, (struct rd2h_blob){0}, (struct rd2h_blob){h->conn, h->conn_len}, 1, &p, &err);
  assert_string_equal(err.text, "");
  assert_int_equal(rc, RD2H_OK);
  return p;
}

/* Until Prefill has answered, in whatever way. Returns the number of mappings. */
static uint32_t answered(rd2h_peer *p) {
  uint64_t until = rd2h_now_ns() + WAIT_S * 1000 * RD2H_MS;
  for (rd2h_local_receive(p); p->sock >= 0; rd2h_local_receive(p)) {
    assert_true(rd2h_now_ns() < until);
    nanosleep(&(struct timespec){.tv_nsec = RD2H_MS}, NULL);
  }
  return p->n_maps;
}

struct pieces {
  uint32_t n;
  void *local[64];
  uint64_t remote[64], len[64];
};

static void put(struct pieces *s, void *local, const uint8_t *remote, uint64_t len) {
  s->local[s->n] = local;
  s->remote[s->n] = (uintptr_t)remote;
  s->len[s->n++] = len;
}

static int read_pieces(rd2h_engine *e, rd2h_peer *p, const struct pieces *s, uint64_t *done, uint32_t *failed_at) {
  const bool stop = false;
  struct rd2h_error err = {0};
  struct rd2h_batch b = {.n = s->n, .local = s->local, .remote = s->remote, .len = s->len};
  return rd2h_engine_local.read(e, p, &b, &stop, done, failed_at, &err);
}

static int read_all(rd2h_engine *e, rd2h_peer *p, uint8_t *to, const uint8_t *from) {
  struct pieces s = {0};
  uint64_t done;
  uint32_t failed_at;
  memset(to, 0, BYTES);
  put(&s, to, from, BYTES);
  return read_pieces(e, p, &s, &done, &failed_at);
}

static void assert_pattern(const uint8_t *p, uint64_t offset, uint64_t n) {
  for (uint64_t i = 0; i < n; i++)
    if (p[i] != pattern(offset + i))
      fail_msg("byte %llu of %llu is wrong", (unsigned long long)i, (unsigned long long)n);
}

static int descriptors(void) {
  int n = 0;
  for (int fd = 0; fd < 1024; fd++)
    n += fcntl(fd, F_GETFD) >= 0;
  return n;
}

/* ---- connection data ---- */
static void schema_with_a_socket(void **state) {
  struct rd2h_local_conn c = {.pid = 9, .nonce_addr = 0x1000, .socket = 0x1122334455667788, .host_len = 2, .host = "ab"}, got;
  uint8_t data[LOCAL_CONN_MAX], old[LOCAL_CONN_MAX];
  struct rd2h_error err;
  (void)state;
  uint32_t n = rd2h_local_encode(&c, data);
  assert_int_equal(n, 82);
  assert_int_equal(data[0], 2);
  assert_int_equal(rd2h_local_decode((struct rd2h_blob){data, n}, &got, NULL), RD2H_OK);
  assert_true(got.socket == c.socket && !strcmp(got.host, "ab"));
  for (uint32_t k = 0; k < n; k++)
    assert_int_not_equal(rd2h_local_decode((struct rd2h_blob){data, k}, &got, NULL), RD2H_OK);
  memset(data + 72, 0, 8);
  assert_int_equal(rd2h_local_decode((struct rd2h_blob){data, n}, &got, &err), RD2H_MALFORMED);
  assert_non_null(strstr(err.text, "socket id"));
  c.socket = 0;
  assert_int_equal(rd2h_local_encode(&c, old), 74);
  assert_int_equal(old[0], 1); /* without shared memory: what every version reads */
  assert_int_equal(rd2h_local_decode((struct rd2h_blob){old, 74}, &got, NULL), RD2H_OK);
  assert_int_equal(got.socket, 0);
}

static void hand_messages(void **state) {
  static const uint8_t nonce[LOCAL_NONCE] = {1, 2, 3};
  const size_t head = offsetof(struct rd2h_local_hand, map), two = head + 2 * sizeof(struct rd2h_local_hand_map);
  static const struct {
    uint32_t version, n, fds;
    int32_t cut;
    uint64_t base, len; /* of the second range */
    const char *bad;    /* NULL: good */
  } rows[] = {
    {1, 2, 2, 0, 0x5000, 0x1000, NULL},        {1, 2, 2, 0, 0x9000, 0x200000, NULL},      {2, 2, 2, 0, 0x5000, 0x1000, "version"},
    {1, 2, 1, 0, 0x5000, 0x1000, "length"},    {1, 2, 3, 0, 0x5000, 0x1000, "length"},    {1, 1, 1, 0, 0x5000, 0x1000, "length"},
    {1, 3, 3, 0, 0x5000, 0x1000, "length"},    {1, 2, 2, 1, 0x5000, 0x1000, "length"},    {1, 2, 2, 33, 0x5000, 0x1000, "version"},
    {1, 0, 0, 32, 0x5000, 0x1000, "length"},   {1, 0x10000001, 2, 0, 0x5000, 0x1000, "length"}, {1, 2, 2, 0, 0x4000, 0x1000, "overlap"},
    {1, 2, 2, 0, 0x1000, 0x1000, "overlap"},   {1, 2, 2, 0, 0x5000, 0x1001, "pages"},     {1, 2, 2, 0, 0x5008, 0x1000, "pages"},
    {1, 2, 2, 0, 0x5000, 0, "pages"},          {1, 2, 2, 0, 0xfffffffffffff000, 0x1000, "overlap"},
    {1, 2, 2, 0, 0x5000, 0xfffffffffffff000, "overlap"},
  };
  (void)state;
  for (size_t i = 0; i < RD2H_COUNT(rows); i++) {
    struct rd2h_local_hand h = {.magic = LOCAL_HAND_MAGIC, .version = rows[i].version, .n = rows[i].n,
                                .map = {{0x2000, 0x3000}, {rows[i].base, rows[i].len}}};
    memcpy(h.nonce, nonce, sizeof nonce);
    const char *bad = rd2h_local_hand_check(&h, two - (size_t)rows[i].cut, nonce, rows[i].fds);
    assert_int_equal(!bad, !rows[i].bad);
    assert_true(!bad || strstr(bad, rows[i].bad));
    h.nonce[15] ^= 1;
    assert_non_null(rd2h_local_hand_check(&h, two - (size_t)rows[i].cut, nonce, rows[i].fds));
  }
}

/* ---- an honest Prefill ---- */
static void mapped_and_copied(void **state) {
  struct prefill f;
  int before = descriptors();
  uint8_t *to = malloc(BYTES);
  rd2h_engine *e = decode_open();
  (void)state;
  prefill_start(&f, HONEST);
  assert_int_equal(f.h.conn[0], 2);
  rd2h_peer *p = connect_to(e, &f.h);
  assert_int_equal(answered(p), 1); /* two regions of one allocation */
  assert_true(p->map[0].base == (uintptr_t)f.h.shared && p->map[0].len == BYTES);
  assert_int_equal(mprotect((void *)p->map[0].at, 4096, PROT_READ | PROT_WRITE), -1); /* never writable here */
  assert_int_equal(read_all(e, p, to, f.h.shared), RD2H_OK);
  assert_pattern(to, 0, BYTES);
  assert_string_equal(rd2h_engine_local.way(e, p), "shared mapping");
  assert_int_equal(read_all(e, p, to, f.h.own), RD2H_OK);
  assert_pattern(to, 0, BYTES);
  assert_string_equal(rd2h_engine_local.way(e, p), "process_vm_readv");
  rd2h_engine_local.disconnect(e, p);
  rd2h_engine_local.close(e);
  prefill_end(&f);
  free(to);
  assert_int_equal(descriptors(), before);
}

/* A Prefill that stands still has not handed anything over: its memory is read all the same, and mapped once it goes on. */
static void read_before_it_is_mapped(void **state) {
  struct prefill f;
  uint8_t *to = malloc(BYTES);
  rd2h_engine *e = decode_open();
  (void)state;
  prefill_start(&f, HONEST);
  kill(f.pid, SIGSTOP);
  waitpid(f.pid, NULL, WUNTRACED);
  rd2h_peer *p = connect_to(e, &f.h);
  assert_int_equal(read_all(e, p, to, f.h.shared), RD2H_OK);
  assert_pattern(to, 0, BYTES);
  assert_int_equal(p->n_maps, 0);
  assert_string_equal(rd2h_engine_local.way(e, p), "process_vm_readv");
  kill(f.pid, SIGCONT);
  assert_int_equal(answered(p), 1);
  assert_string_equal(rd2h_engine_local.way(e, p), "process_vm_readv"); /* nothing has been read by the mapping yet */
  assert_int_equal(read_all(e, p, to, f.h.shared), RD2H_OK);
  assert_pattern(to, 0, BYTES);
  assert_string_equal(rd2h_engine_local.way(e, p), "shared mapping");
  rd2h_engine_local.disconnect(e, p);
  rd2h_engine_local.close(e);
  prefill_end(&f);
  free(to);
}

/* Shared and own memory by turns, and empty pieces; then a hole in the own memory. */
static void both_kinds_in_one_batch(void **state) {
  enum { N = 60, STEP = 20000 };
  struct prefill f;
  struct pieces s = {0};
  uint64_t done;
  uint32_t failed_at;
  uint8_t *to = malloc(BYTES);
  rd2h_engine *e = decode_open();
  (void)state;
  prefill_start(&f, HONEST);
  rd2h_peer *p = connect_to(e, &f.h);
  assert_int_equal(answered(p), 1);
  for (uint32_t i = 0; i < N; i++)
    put(&s, to + i * STEP, (i * i % 3 ? f.h.shared : f.h.own) + i * 1001, i % 7 == 3 ? 0 : STEP - 1 - i);
  memset(to, 0, BYTES);
  assert_int_equal(read_pieces(e, p, &s, &done, &failed_at), RD2H_OK);
  for (uint32_t i = 0; i < N; i++) {
    assert_pattern(to + i * STEP, i * 1001, s.len[i]);
    assert_int_equal(to[i * STEP + s.len[i]], 0);
  }
  assert_string_equal(rd2h_engine_local.way(e, p), "shared mapping and process_vm_readv");
  s.remote[40] = 4096; /* nothing is mapped there */
  memset(to, 0, BYTES);
  assert_int_equal(read_pieces(e, p, &s, &done, &failed_at), RD2H_IO);
  assert_int_equal(failed_at, 40);
  for (uint32_t i = 0; i < 40; i++) {
    assert_pattern(to + i * STEP, i * 1001, s.len[i]);
    done -= s.len[i];
  }
  assert_int_equal(done, 0);
  for (uint32_t i = 40 * STEP; i < BYTES; i++)
    assert_int_equal(to[i], 0);
  rd2h_engine_local.disconnect(e, p);
  rd2h_engine_local.close(e);
  prefill_end(&f);
  free(to);
}

/* The mapping outlives its owner; what is read then is worth nothing, and is said so. */
static void the_end_of_its_owner_is_seen(void **state) {
  static const char orders[] = {'c', 'x', 'k'};
  (void)state;
  for (size_t i = 0; i < sizeof orders; i++) {
    struct prefill f;
    char got;
    uint8_t *to = malloc(BYTES);
    rd2h_engine *e = decode_open();
    prefill_start(&f, HONEST);
    rd2h_peer *p = connect_to(e, &f.h);
    assert_int_equal(answered(p), 1);
    assert_int_equal(read_all(e, p, to, f.h.shared), RD2H_OK);
    if (orders[i] == 'k') {
      siginfo_t info;
      kill(f.pid, SIGKILL);
      waitid(P_PID, (id_t)f.pid, &info, WEXITED | WNOWAIT);
    } else {
      assert_int_equal(write(f.say, &orders[i], 1), 1);
      assert_int_equal(read(f.hear, &got, 1), orders[i] == 'c');
    }
    assert_int_equal(read_all(e, p, to, f.h.shared), RD2H_PEER_LOST);
    rd2h_engine_local.disconnect(e, p);
    rd2h_engine_local.close(e);
    prefill_end(&f);
    free(to);
  }
}

/* ---- answers that are not to be trusted ---- */
static void bad_answers_are_not_mapped(void **state) {
  (void)state;
  for (enum role r = UNSEALED; r <= NOTHING_SAID; r++) {
    struct prefill f;
    int before = descriptors();
    uint8_t *to = malloc(BYTES);
    rd2h_engine *e = decode_open();
    prefill_start(&f, r);
    rd2h_peer *p = connect_to(e, &f.h);
    assert_int_equal(answered(p), 0);
    assert_int_equal(read_all(e, p, to, f.h.shared), RD2H_OK);
    assert_pattern(to, 0, BYTES);
    rd2h_engine_local.disconnect(e, p);
    rd2h_engine_local.close(e);
    prefill_end(&f);
    free(to);
    assert_int_equal(descriptors(), before);
  }
}

/* A socket of another process, and one that does not exist, are not asked. */
static void another_process_at_the_socket(void **state) {
  struct prefill f;
  struct rd2h_local_conn c;
  uint8_t *to = malloc(BYTES);
  rd2h_engine *e = decode_open();
  (void)state;
  prefill_start(&f, HONEST);
  assert_int_equal(rd2h_local_decode((struct rd2h_blob){f.h.conn, f.h.conn_len}, &c, NULL), RD2H_OK);
  c.socket = FAKE_SOCKET + (uint64_t)getpid();
  f.h.conn_len = rd2h_local_encode(&c, f.h.conn);
  for (int round = 0; round < 2; round++) {
    int listener = round ? listen_at(c.socket) : -1;
    rd2h_peer *p = connect_to(e, &f.h);
    assert_int_equal(p->sock, -1);
    assert_int_equal(read_all(e, p, to, f.h.shared), RD2H_OK);
    assert_pattern(to, 0, BYTES);
    rd2h_engine_local.disconnect(e, p);
    close(listener);
  }
  rd2h_engine_local.close(e);
  prefill_end(&f);
  free(to);
}

static void without_memory_it_is_read_the_other_way(void **state) {
  struct prefill f;
  uint8_t *to = malloc(BYTES);
  rd2h_engine *e = decode_open();
  (void)state;
  prefill_start(&f, HONEST);
  rd2h_peer *p = connect_to(e, &f.h);
  rd2h_alloc_fail_at(1);
  assert_int_equal(answered(p), 0);
  rd2h_alloc_fail_at(0);
  assert_int_equal(read_all(e, p, to, f.h.shared), RD2H_OK);
  assert_pattern(to, 0, BYTES);
  rd2h_engine_local.disconnect(e, p);
  rd2h_engine_local.close(e);
  prefill_end(&f);
  free(to);
}

/* Needs a test that runs as root to become another user. */
static void another_user_gets_nothing(void **state) {
  struct prefill f;
  struct rd2h_local_conn c;
  int status;
  (void)state;
  if (getuid())
    skip();
  prefill_start(&f, HONEST);
  assert_int_equal(rd2h_local_decode((struct rd2h_blob){f.h.conn, f.h.conn_len}, &c, NULL), RD2H_OK);
  pid_t asker = fork();
  if (!asker) {
    struct sockaddr_un a;
    socklen_t len;
    char byte;
    rd2h_local_socket_name(c.socket, &a, &len);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    if (setgid(NOBODY) || setuid(NOBODY) || connect(fd, (struct sockaddr *)&a, len))
      _exit(3);
    _exit(recv(fd, &byte, 1, 0) == 0 ? 0 : 1);
  }
  waitpid(asker, &status, 0);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 0);
  prefill_end(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(schema_with_a_socket),
    cmocka_unit_test(hand_messages),
    cmocka_unit_test(mapped_and_copied),
    cmocka_unit_test(read_before_it_is_mapped),
    cmocka_unit_test(both_kinds_in_one_batch),
    cmocka_unit_test(the_end_of_its_owner_is_seen),
    cmocka_unit_test(bad_answers_are_not_mapped),
    cmocka_unit_test(another_process_at_the_socket),
    cmocka_unit_test(without_memory_it_is_read_the_other_way),
    cmocka_unit_test(another_user_gets_nothing),
  };
  return cmocka_run_group_tests_name("local_shared", tests, NULL, NULL);
}
