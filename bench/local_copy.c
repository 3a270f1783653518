/* SPDX-License-Identifier: Apache-2.0 */
/* Ways to move scattered blocks between two processes of one host, in one run, each as a ratio to bare process_vm_readv with
 * 1024 iovecs a call and to plain memcpy out of a shared mapping. Engine local reads private memory of the other process, and its
 * shared memory; memcpy and the streaming copy use the very mapping that the engine has made.
 * docs/decisions/0007-process-vm-readv.md has its figures, and how to build it. Usage: local_copy [ROUNDS] */
#include "engine/face.h"
#include "engines/local/local.h"
#include <errno.h>
#include <immintrin.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define POOL (384ull << 20)
#define MAX_DESC 4096u
#define IOVECS 1024u
#define SETS 3u       /* descriptor sets that rounds take in turn, so that no cache holds the next one */
#define MAX_ROUNDS 64u
#define MEMCPY 3u     /* of the ways: what the second ratio is taken to */

struct load {
  const char *name;
  uint32_t n;
  uint64_t len;
};
static const struct load loads[] = {
  {"1000 x 16 KiB", 1000, 16384}, {"1000 x 128 KiB", 1000, 131072}, {"1 x 256 MiB", 1, 256u << 20},
  {"4000 x 4 KiB", 4000, 4096},   {"4000 x 1 KiB", 4000, 1024},     {"4000 x 256 B", 4000, 256},
  {"16 x 16 KiB", 16, 16384},     {"1 x 256 B", 1, 256},
};
struct set {
  uint32_t n;
  uint64_t bytes, src[MAX_DESC], len[MAX_DESC]; /* src: offset */
  void *dst[MAX_DESC];
  uint64_t remote[MAX_DESC], shared[MAX_DESC]; /* addresses in the source: of its private copy, of its shared memory */
};

static struct {
  uint8_t *dst;
  const uint8_t *mapped; /* the source's shared memory, as the engine has mapped it */
  uint64_t remote, shared; /* addresses in the source: of its private copy, of its shared memory */
  pid_t pid;
  int tcp;
  rd2h_eng *eng;
  rd2h_eng_peer *peer;
} w;

static void check(bool ok, const char *what) {
  if (ok)
    return;
  fprintf(stderr, "local_copy: %s: %s\n", what, strerror(errno));
  exit(1);
}

static uint64_t roll(uint64_t *state, uint64_t below) {
  *state = *state * 6364136223846793005ull + 1442695040888963407ull;
  return (*state >> 33) % below;
}

static uint64_t word(uint64_t i) {
  return (i + 1) * 0x9E3779B97F4A7C15ull;
}

/* ---- ways ---- */
static void by_memcpy(const struct set *s) {
  for (uint32_t i = 0; i < s->n; i++)
    memcpy(s->dst[i], w.mapped + s->src[i], s->len[i]);
}

__attribute__((target("avx2"))) static void by_streaming(const struct set *s) {
  for (uint32_t i = 0; i < s->n; i++)
    for (uint64_t at = 0; at < s->len[i]; at += 64) {
      const uint8_t *from = w.mapped + s->src[i] + at;
      uint8_t *to = (uint8_t *)s->dst[i] + at;
      _mm_prefetch((const char *)from + 1024, _MM_HINT_NTA);
      __m256i a = _mm256_loadu_si256((const __m256i *)from), b = _mm256_loadu_si256((const __m256i *)(from + 32));
      _mm256_stream_si256((__m256i *)to, a);
      _mm256_stream_si256((__m256i *)(to + 32), b);
    }
  _mm_sfence();
}

static void readv_of(const struct set *s, uint32_t most) {
  static struct iovec l[IOVECS], r[IOVECS];
  for (uint32_t i = 0; i < s->n;) {
    uint32_t n = 0;
    size_t bytes = 0;
    for (; n < most && i + n < s->n; n++) {
      l[n] = (struct iovec){s->dst[i + n], s->len[i + n]};
      r[n] = (struct iovec){(void *)(uintptr_t)s->remote[i + n], s->len[i + n]};
      bytes += s->len[i + n];
    }
    check(process_vm_readv(w.pid, l, n, r, n, 0) == (ssize_t)bytes, "process_vm_readv");
    i += n;
  }
}

static void by_readv(const struct set *s) {
  readv_of(s, IOVECS);
}

static void by_single_readv(const struct set *s) {
  readv_of(s, 1);
}

static void engine_of(const struct set *s, const uint64_t *remote) {
  struct rd2h_batch b = {.id = 1, .n = s->n, .bytes = s->bytes, .local = s->dst, .remote = remote, .len = s->len};
  struct pollfd fd = {.fd = rd2h_eng_fd(w.eng), .events = POLLIN};
  struct rd2h_completion c;
  check(!rd2h_eng_submit(w.eng, w.peer, &b), "submit");
  while (!rd2h_eng_poll(w.eng, &c, 1))
    poll(&fd, 1, 1000);
  if (c.status) {
    fprintf(stderr, "local_copy: %s\n", rd2h_eng_last_error(w.eng, 1));
    exit(1);
  }
}

static void by_engine(const struct set *s) {
  engine_of(s, s->remote);
}

static void by_engine_shared(const struct set *s) {
  engine_of(s, s->shared);
}

/* The same on the caller's thread: without the hand-over to a thread of the engine and back. */
static void by_engine_read(const struct set *s) {
  const struct rd2h_batch b = {.id = 1, .n = s->n, .bytes = s->bytes, .local = s->dst, .remote = s->shared, .len = s->len};
  const bool stop = false;
  struct rd2h_error err;
  uint64_t done;
  uint32_t failed_at;
  check(!rd2h_engine_local.read(((struct rd2h_module *)w.eng)->self, w.peer->peer, &b, &stop, &done, &failed_at, &err), "read");
}

static bool all(int fd, void *p, size_t n, bool out) {
  for (uint8_t *at = p; n;) {
    ssize_t k = out ? write(fd, at, n) : read(fd, at, n);
    if (k <= 0)
      return false;
    at += k;
    n -= (size_t)k;
  }
  return true;
}

/* The request names offsets and lengths; the answer is the bytes, scattered by readv. */
static void by_tcp(const struct set *s) {
  struct iovec v[IOVECS];
  uint64_t n = s->n;
  check(all(w.tcp, &n, sizeof n, true) && all(w.tcp, (void *)s->src, n * 8, true) && all(w.tcp, (void *)s->len, n * 8, true),
        "tcp");
  for (uint64_t i = 0, off = 0; i < n;) {
    int k = 0;
    for (; k < (int)IOVECS && i + (uint64_t)k < n; k++)
      v[k] = (struct iovec){(uint8_t *)s->dst[i + k] + (k ? 0 : off), s->len[i + k] - (k ? 0 : off)};
    ssize_t got = readv(w.tcp, v, k);
    check(got > 0, "tcp");
    for (uint64_t left = (uint64_t)got + off; i < n; left -= s->len[i++])
      if (left < s->len[i]) {
        off = left;
        break;
      } else {
        off = 0;
      }
  }
}

static const struct {
  const char *name;
  void (*run)(const struct set *);
} ways[] = {
  {"process_vm_readv, 1024 iovecs", by_readv},
  {"rd2h engine local", by_engine},
  {"process_vm_readv, 1 iovec", by_single_readv},
  {"memcpy from a shared mapping", by_memcpy}, /* MEMCPY */
  {"rd2h engine local, shared", by_engine_shared},
  {"the same, caller's thread", by_engine_read},
  {"streaming copy from it", by_streaming},
  {"TCP, loopback", by_tcp},
  {"memcpy again", by_memcpy},
  {"the first again", by_readv}, /* how far two equal rows lie apart is the noise of the run */
};

/* ---- the source ---- */
static void serve_tcp(int fd, const uint8_t *mem) {
  static uint64_t src[MAX_DESC], len[MAX_DESC], n;
  struct iovec v[IOVECS];
  while (all(fd, &n, sizeof n, false) && all(fd, src, n * 8, false) && all(fd, len, n * 8, false))
    for (uint64_t i = 0, off = 0; i < n;) {
      int k = 0;
      for (; k < (int)IOVECS && i + (uint64_t)k < n; k++)
        v[k] = (struct iovec){(void *)(mem + src[i + k] + (k ? 0 : off)), len[i + k] - (k ? 0 : off)};
      ssize_t put = writev(fd, v, k);
      if (put <= 0)
        return;
      uint64_t left = (uint64_t)put + off;
      for (; i < n && left >= len[i]; i++)
        left -= len[i];
      off = left;
    }
}

static uint8_t *pool(void) {
  uint8_t *p = mmap(NULL, POOL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  check(p != MAP_FAILED, "mmap");
  madvise(p, POOL, MADV_NOHUGEPAGE);
  return p;
}

static void source(int control, int listener) {
  struct rd2h_engine_opts o = {.size = sizeof o, .prefill = true};
  struct rd2h_buf conn = {0};
  rd2h_eng *e;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  uint64_t *shared = rd2h_shared_alloc(POOL, 0, NULL), *mine = (uint64_t *)pool();
  const struct rd2h_region r = {.base = shared, .len = POOL};
  uint32_t region;
  check(shared, "shared memory");
  for (uint64_t i = 0; i < POOL / 8; i++)
    shared[i] = mine[i] = word(i);
  check(!rd2h_eng_open("local", &o, &e, NULL) && !rd2h_eng_reg(e, &r, &region, NULL) && !rd2h_eng_publish(e, &conn, NULL),
        "engine");
  uint64_t base[2] = {(uintptr_t)mine, (uintptr_t)shared};
  all(control, base, sizeof base, true);
  all(control, &conn.len, sizeof conn.len, true);
  all(control, conn.p, conn.len, true);
  int fd = accept(listener, NULL, NULL);
  serve_tcp(fd, (uint8_t *)mine);
  _exit(0);
}

static void start(void) {
  int pair[2], listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t at_len = sizeof at;
  struct rd2h_engine_opts o = {.size = sizeof o};
  uint8_t conn[256];
  size_t conn_len;
  struct rd2h_error err = {0};
  check(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair), "socketpair");
  check(!bind(listener, (void *)&at, sizeof at) && !listen(listener, 1) && !getsockname(listener, (void *)&at, &at_len),
        "listen");
  w.pid = fork();
  if (!w.pid)
    source(pair[1], listener);
  check(all(pair[0], &w.remote, 8, false) && all(pair[0], &w.shared, 8, false) &&
            all(pair[0], &conn_len, sizeof conn_len, false) && conn_len <= sizeof conn &&
            all(pair[0], conn, conn_len, false), "source");
  w.tcp = socket(AF_INET, SOCK_STREAM, 0);
  check(!connect(w.tcp, (void *)&at, sizeof at), "connect");
  setsockopt(w.tcp, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  w.dst = pool();
  memset(w.dst, 1, POOL);
  if (rd2h_eng_open("local", &o, &w.eng, &err) ||
      rd2h_eng_connect(w.eng, (struct rd2h_blob){0}, (struct rd2h_blob){conn, (uint32_t)conn_len}, 1, &w.peer, &err))
    check(false, err.text);
  rd2h_peer *p = w.peer->peer;
  for (int i = 0; i < 1000 && !p->n_maps; i++, usleep(1000))
    rd2h_local_receive(p);
  check(p->n_maps, "the source's shared memory was not handed over");
  w.mapped = p->map[0].at;
  for (uint64_t i = 0; i < POOL; i += 4096)
    *(const volatile uint8_t *)(w.mapped + i);
}

/* Distinct slots on both sides, in random order: nothing could be merged. */
static void fill(struct set *s, const struct load *l, uint64_t seed) {
  uint64_t slots = POOL / l->len, step = slots > 7 ? (roll(&seed, slots) | 1) : 1;
  while (slots > 7 && (slots % step == 0 || step % 3 == 0))
    step += 2;
  s->n = l->n;
  s->bytes = l->n * l->len;
  uint64_t a = roll(&seed, slots), b = roll(&seed, slots);
  for (uint32_t i = 0; i < l->n; i++) {
    s->src[i] = (a + i * step) % slots * l->len;
    s->dst[i] = w.dst + (b + i * step * 5) % slots * l->len;
    s->len[i] = l->len;
    s->remote[i] = w.remote + s->src[i];
    s->shared[i] = w.shared + s->src[i];
  }
}

static void verify(const struct set *s, const char *way) {
  for (uint32_t i = 0; i < s->n; i++)
    for (uint64_t k = 0; k < s->len[i] / 8; k++)
      if (((uint64_t *)s->dst[i])[k] != word(s->src[i] / 8 + k)) {
        fprintf(stderr, "local_copy: %s: block %u is wrong at byte %llu\n", way, i, (unsigned long long)k * 8);
        exit(1);
      }
}

/* CLOCK_PROCESS_CPUTIME_ID tells the reading process's work, whatever else the machine does meanwhile. */
static double seconds(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void compare(const struct load *l, uint32_t rounds) {
  static struct set sets[SETS];
  double took[RD2H_COUNT(ways)][MAX_ROUNDS], cpu[RD2H_COUNT(ways)][MAX_ROUNDS];
  for (uint32_t k = 0; k < SETS; k++)
    fill(&sets[k], l, 11 + k);
  for (uint32_t i = 0; i < RD2H_COUNT(ways); i++) {
    memset(w.dst, 1, POOL);
    ways[i].run(&sets[0]);
    verify(&sets[0], ways[i].name);
  }
  for (uint32_t r = 0; r < rounds; r++)
    for (uint32_t i = 0; i < RD2H_COUNT(ways); i++) {
      double begin = seconds(CLOCK_MONOTONIC), begin_cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
      ways[i].run(&sets[(r + i) % SETS]);
      cpu[i][r] = seconds(CLOCK_PROCESS_CPUTIME_ID) - begin_cpu;
      took[i][r] = seconds(CLOCK_MONOTONIC) - begin;
    }
  printf("%-32s   best us     GB/s | speed to bare readv: best, median | to memcpy: best, median | work: best, median\n", l->name);
  for (uint32_t i = 0; i < RD2H_COUNT(ways); i++) {
    qsort(took[i], rounds, sizeof took[i][0], ascending);
    qsort(cpu[i], rounds, sizeof cpu[i][0], ascending);
  }
  const uint32_t mid = rounds / 2;
  for (uint32_t i = 0; i < RD2H_COUNT(ways); i++)
    printf("  %-30s %9.1f %8.2f | %21.3f %12.3f | %12.3f %11.3f | %9.3f %7.3f\n", ways[i].name, took[i][0] * 1e6,
           (double)sets[0].bytes / took[i][0] * 1e-9, took[0][0] / took[i][0], took[0][mid] / took[i][mid],
           took[MEMCPY][0] / took[i][0], took[MEMCPY][mid] / took[i][mid], cpu[i][0] / cpu[0][0], cpu[i][mid] / cpu[0][mid]);
}

int main(int argc, char **argv) {
  long rounds = argc > 1 ? strtol(argv[1], NULL, 10) : 15;
  rounds = rounds < 3 ? 3 : rounds > (long)MAX_ROUNDS ? (long)MAX_ROUNDS : rounds;
  start();
  for (uint32_t i = 0; i < RD2H_COUNT(loads); i++)
    compare(&loads[i], (uint32_t)rounds);
  rd2h_eng_disconnect(w.eng, w.peer);
  rd2h_eng_close(w.eng);
  kill(w.pid, SIGKILL);
  waitpid(w.pid, NULL, 0);
  return 0;
}
