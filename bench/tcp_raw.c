/* SPDX-License-Identifier: Apache-2.0 */
/* Engine tcp beside bare sockets with as many streams, between two processes of one host, alternating in one run. The bare reader
 * sends each stream's offsets and lengths and scatters by readv as bytes come; the bare server sends by writev. Each side has one
 * thread, as the engine; the serving process is pinned to the first CPU, the reading one to the last. DEPTH messages are in flight at
 * once. docs/decisions/0008-tcp.md has its figures and how to build it. Usage: tcp_raw [ROUNDS [STREAMS [DEPTH]]] */
#include "engine/engine.h"
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define POOL (384ull << 20)
#define MAX_DESC 4096u
#define IOVECS 1024u
#define MAX_ROUNDS 64u
#define MAX_STREAMS 16u
#define MAX_DEPTH 16u
#define SAMPLE (32ull << 20) /* bytes that one sample moves at least */

static const struct load {
  const char *name;
  uint32_t n;
  uint64_t len;
} loads[] = {{"512 x 16 KiB", 512, 16384},   {"64 x 128 KiB", 64, 131072}, {"1 x 8 MiB", 1, 8u << 20},
             {"4000 x 16 KiB", 4000, 16384}, {"512 x 128 KiB", 512, 131072}, {"1 x 64 MiB", 1, 64u << 20},
             {"4000 x 256 B", 4000, 256},    {"1 x 256 B", 1, 256}};

/* What one stream brings. */
struct part {
  int fd;
  uint32_t more; /* messages behind this one */
  uint64_t n, i, off;
  uint64_t src[MAX_DESC], len[MAX_DESC];
  uint8_t *at[MAX_DESC]; /* on the reader: destination; on the server: source */
};
static struct part part[MAX_STREAMS];
static uint8_t *memory;
static uint32_t streams = 2, depth = 1;
static rd2h_eng *eng;
static rd2h_eng_peer *peer;
static uint64_t remote_base;

static void check(bool ok, const char *what) {
  if (ok)
    return;
  fprintf(stderr, "tcp_raw: %s: %s\n", what, strerror(errno));
  exit(1);
}

static void pin(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  check(!sched_setaffinity(0, sizeof set, &set), "pinning");
}

static bool all(int fd, void *p, size_t n, bool out) {
  for (uint8_t *at = p; n;) {
    ssize_t k = out ? write(fd, at, n) : read(fd, at, n);
    if (k < 0 && errno == EAGAIN) {
      poll(&(struct pollfd){.fd = fd, .events = out ? POLLOUT : POLLIN}, 1, 1000);
      continue;
    }
    if (k <= 0)
      return false;
    at += k;
    n -= (size_t)k;
  }
  return true;
}

static int next_iovecs(const struct part *p, struct iovec *v) {
  int k = 0;
  for (uint64_t off = p->off; k < (int)IOVECS && p->i + (uint64_t)k < p->n; k++, off = 0)
    v[k] = (struct iovec){p->at[p->i + k] + off, p->len[p->i + k] - off};
  return k;
}

static void moved(struct part *p, uint64_t n) {
  for (n += p->off; p->i < p->n && n >= p->len[p->i]; p->i++)
    n -= p->len[p->i];
  p->off = n;
}

static bool take_request(struct part *p) {
  if (!all(p->fd, &p->n, 8, false) || !all(p->fd, p->src, p->n * 8, false) || !all(p->fd, p->len, p->n * 8, false))
    return false;
  for (uint64_t i = 0; i < p->n; i++)
    p->at[i] = memory + p->src[i];
  p->i = p->off = 0;
  return true;
}

/* One thread for all streams, as the engine has: on a busy machine a second one would get a second share of the processors. */
static void serve(void) {
  struct pollfd fd[MAX_STREAMS];
  struct iovec v[IOVECS];
  for (;;) {
    for (uint32_t s = 0; s < streams; s++)
      fd[s] = (struct pollfd){.fd = part[s].fd, .events = part[s].i < part[s].n ? POLLOUT : POLLIN};
    check(poll(fd, streams, -1) > 0, "poll");
    for (uint32_t s = 0; s < streams; s++) {
      struct part *p = &part[s];
      if (!fd[s].revents)
        continue;
      if (p->i == p->n) {
        if (!take_request(p))
          return;
        continue;
      }
      ssize_t n = writev(p->fd, v, next_iovecs(p, v));
      if (n > 0)
        moved(p, (uint64_t)n);
    }
  }
}

static uint64_t word(uint64_t i) {
  return (i + 1) * 0x9E3779B97F4A7C15ull;
}

static void source(int control, int listener) {
  struct rd2h_engine_opts o = {.size = sizeof o, .prefill = true};
  struct rd2h_buf conn = {0};
  rd2h_eng *e;
  uint32_t region;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  pin(0);
  for (uint64_t i = 0; i < POOL / 8; i++)
    ((uint64_t *)memory)[i] = word(i);
  check(!rd2h_eng_open("tcp", &o, &e, NULL) && !rd2h_eng_publish(e, &conn, NULL) &&
        !rd2h_eng_reg(e, &(struct rd2h_region){.base = memory, .len = POOL}, &region, NULL), "engine");
  remote_base = (uintptr_t)memory;
  all(control, &remote_base, 8, true);
  all(control, &conn.len, sizeof conn.len, true);
  all(control, conn.p, conn.len, true);
  for (uint32_t i = 0; i < streams; i++) {
    int one = 1;
    part[i].fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
    setsockopt(part[i].fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  }
  serve();
  _exit(0);
}

static void start(void) {
  int pair[2], listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t at_len = sizeof at;
  char option[32];
  snprintf(option, sizeof option, "streams=%u", streams);
  const char *const options[] = {option, NULL};
  struct rd2h_engine_opts o = {.size = sizeof o, .options = options};
  uint8_t conn[256];
  size_t len = 0;
  struct rd2h_error err = {0};
  check(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair) && !bind(listener, (void *)&at, sizeof at) &&
        !listen(listener, MAX_STREAMS) && !getsockname(listener, (void *)&at, &at_len), "sockets");
  memory = mmap(NULL, POOL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  check(memory != MAP_FAILED, "mmap");
  if (!fork())
    source(pair[1], listener);
  check(all(pair[0], &remote_base, 8, false) && all(pair[0], &len, sizeof len, false) && len <= sizeof conn &&
        all(pair[0], conn, len, false), "source");
  for (uint32_t i = 0; i < streams; i++) {
    part[i].fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    check(!connect(part[i].fd, (void *)&at, sizeof at), "connect");
    setsockopt(part[i].fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  }
  pin((int)sysconf(_SC_NPROCESSORS_ONLN) - 1);
  memset(memory, 1, POOL);
  if (rd2h_eng_open("tcp", &o, &eng, &err) ||
      rd2h_eng_connect(eng, (struct rd2h_blob){0}, (struct rd2h_blob){conn, (uint32_t)len}, 1, &peer, &err))
    check(false, err.text);
}

/* Distinct slots on both sides, scattered: nothing could be merged. */
static uint64_t slot_of(const struct load *l, uint64_t i, uint64_t step) {
  return i * step % (POOL / l->len) * l->len;
}

/* A single large block is cut, as the engine does it too. */
static void deal(const struct load *l, uint32_t s) {
  struct part *p = &part[s];
  uint64_t cut = l->n < streams ? l->len / streams : 0;
  for (p->n = p->i = p->off = 0; cut && !p->n; p->n = 1) {
    p->src[0] = s * cut;
    p->at[0] = memory + s * cut;
    p->len[0] = s == streams - 1 ? l->len - s * cut : cut;
  }
  for (uint64_t i = s; !cut && i < l->n; i += streams, p->n++) {
    p->src[p->n] = slot_of(l, i, 7);
    p->at[p->n] = memory + slot_of(l, i, 11);
    p->len[p->n] = l->len;
  }
}

/* All requests go out first, then the answers are taken in one after the other. */
static void by_sockets(const struct load *l) {
  struct pollfd fd[MAX_STREAMS];
  struct iovec v[IOVECS];
  uint32_t left = streams;
  for (uint32_t s = 0; s < streams; s++) {
    struct part *p = &part[s];
    deal(l, s);
    for (uint32_t k = 0; k < depth; k++)
      check(all(p->fd, &p->n, 8, true) && all(p->fd, p->src, p->n * 8, true) && all(p->fd, p->len, p->n * 8, true), "request");
    p->more = depth - 1;
    fd[s] = (struct pollfd){.fd = p->fd, .events = POLLIN};
  }
  while (left && poll(fd, streams, 5000) > 0)
    for (uint32_t s = 0; s < streams; s++) {
      if (!fd[s].revents)
        continue;
      ssize_t n = readv(fd[s].fd, v, next_iovecs(&part[s], v));
      check(n > 0, "readv");
      moved(&part[s], (uint64_t)n);
      if (part[s].i < part[s].n)
        continue;
      if (part[s].more) {
        part[s].more--;
        part[s].i = part[s].off = 0;
        continue;
      }
      fd[s].fd = -1;
      left--;
    }
  check(!left, "bare sockets");
}

static void by_engine(const struct load *l) {
  static void *local[MAX_DESC];
  static uint64_t remote[MAX_DESC], len[MAX_DESC];
  static struct rd2h_batch b[MAX_DEPTH];
  struct pollfd fd = {.fd = rd2h_eng_fd(eng), .events = POLLIN};
  struct rd2h_completion c[MAX_DEPTH];
  for (uint64_t i = 0; i < l->n; i++) {
    local[i] = memory + slot_of(l, i, 11);
    remote[i] = remote_base + slot_of(l, i, 7);
    len[i] = l->len;
  }
  for (uint32_t k = 0; k < depth; k++) {
    b[k] = (struct rd2h_batch){.id = k, .n = l->n, .bytes = l->n * l->len, .local = local, .remote = remote, .len = len};
    check(!rd2h_eng_submit(eng, peer, &b[k]), "submit");
  }
  for (uint32_t left = depth; left;) {
    int n = rd2h_eng_poll(eng, c, MAX_DEPTH);
    for (int k = 0; k < n; k++)
      check(!c[k].status, rd2h_eng_last_error(eng, c[k].id));
    left -= (uint32_t)n;
    if (!n)
      poll(&fd, 1, 1000);
  }
}

static void verify(const struct load *l, const char *way) {
  for (uint64_t i = 0; i < l->n; i++)
    for (uint64_t k = 0; k < l->len; k += 8)
      if (*(uint64_t *)(memory + slot_of(l, i, 11) + k) != word((slot_of(l, i, 7) + k) / 8)) {
        fprintf(stderr, "tcp_raw: %s, %s: block %llu is wrong\n", l->name, way, (unsigned long long)i);
        exit(1);
      }
}

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void compare(const struct load *l, uint32_t rounds) {
  static const struct {
    const char *name;
    void (*run)(const struct load *);
  } ways[] = {{"bare sockets", by_sockets}, {"engine tcp", by_engine}, {"bare sockets again", by_sockets}};
  double took[3][MAX_ROUNDS], ratio[3][MAX_ROUNDS];
  uint32_t times = (uint32_t)(SAMPLE / (l->n * l->len * depth) + 1);
  times = times > 100 ? 100 : times;
  for (int i = 0; i < 3; i++) {
    memset(memory, 1, POOL);
    ways[i].run(l);
    verify(l, ways[i].name);
  }
  for (uint32_t r = 0; r < rounds; r++)
    for (int k = 0; k < 3; k++) {
      int i = (int)(r + (uint32_t)k) % 3;
      double begin = seconds();
      for (uint32_t t = 0; t < times; t++)
        ways[i].run(l);
      took[i][r] = (seconds() - begin) / times / depth;
    }
  for (int i = 0; i < 3; i++)
    for (uint32_t r = 0; r < rounds; r++)
      ratio[i][r] = took[0][r] / took[i][r];
  for (int i = 0; i < 3; i++) {
    qsort(ratio[i], rounds, sizeof(double), ascending);
    qsort(took[i], rounds, sizeof(double), ascending);
    printf("%-14s %-19s %5.2f of bare (median of %u)  a message: median %6.0f us, best %6.0f  %5.2f GB/s\n", l->name, ways[i].name,
           ratio[i][rounds / 2], rounds, took[i][rounds / 2] * 1e6, took[i][0] * 1e6,
           (double)l->n * (double)l->len / took[i][rounds / 2] * 1e-9);
  }
}

int main(int argc, char **argv) {
  uint32_t rounds = argc > 1 ? (uint32_t)atoi(argv[1]) : 15;
  streams = argc > 2 ? (uint32_t)atoi(argv[2]) : streams;
  depth = argc > 3 ? (uint32_t)atoi(argv[3]) : depth;
  check(rounds && rounds <= MAX_ROUNDS && streams && streams <= MAX_STREAMS && depth && depth <= MAX_DEPTH,
        "usage: tcp_raw [ROUNDS [STREAMS [DEPTH]]]");
  start();
  for (size_t i = 0; i < RD2H_COUNT(loads); i++)
    compare(&loads[i], rounds);
  return 0;
}
