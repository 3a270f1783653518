/* SPDX-License-Identifier: Apache-2.0 */
/* The Prefill side of the suite: this program again, started anew, so that it shares nothing with the reader. */
#include "tests/conformance/rig.h"
#include <errno.h>
#include <fcntl.h>
#include <rd2h/memory.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OP_HOLE = 1, OP_END };
struct order {
  uint64_t op, at, len;
};
struct hello {
  uint64_t base;
  uint32_t conn_len;
  uint8_t conn[sizeof((struct source *)0)->conn];
};

static uint64_t pattern_word(uint64_t seed, uint64_t word) {
  uint64_t x = (word + 1 + (seed << 40)) * 0x9E3779B97F4A7C15ull;
  return x ^ x >> 29;
}

uint8_t pattern_byte(uint64_t seed, uint64_t offset) {
  return (uint8_t)(pattern_word(seed, offset / 8) >> offset % 8 * 8);
}

void pattern_fill(void *p, uint64_t seed, uint64_t offset, uint64_t n) {
  uint8_t *out = p;
  for (uint64_t i = 0; i < n;) {
    uint64_t at = offset + i, word = pattern_word(seed, at / 8), k = 8 - at % 8;
    k = k < n - i ? k : n - i;
    memcpy(out + i, (uint8_t *)&word + at % 8, k);
    i += k;
  }
}

static bool serve(int control) {
  struct order o;
  char done = 0;
  if (recv(control, &o, sizeof o, 0) != sizeof o || o.op == OP_END)
    return false;
  munmap((void *)(uintptr_t)o.at, o.len);
  return send(control, &done, 1, 0) == 1;
}

static int publish(rd2h_eng *e, const struct rd2h_region *r, struct hello *h) {
  struct rd2h_buf buf = {0};
  uint32_t region;
  int rc = rd2h_eng_reg(e, r, &region, NULL);
  if (!rc)
    rc = rd2h_eng_publish(e, &buf, NULL);
  if (!rc && buf.len <= sizeof h->conn) {
    h->conn_len = (uint32_t)buf.len;
    memcpy(h->conn, buf.p, buf.len);
  }
  rd2h_buf_free(&buf);
  return rc;
}

static void *memory(uint64_t bytes) {
  if (conf->shared)
    return rd2h_shared_alloc(bytes, 0, NULL);
  void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return p == MAP_FAILED ? NULL : p;
}

int source_main(int control, uint64_t bytes, uint64_t seed) {
  struct rd2h_engine_opts o = {.size = sizeof o, .prefill = true, .host = "127.0.0.1", .options = conf->options};
  struct rd2h_error err;
  rd2h_eng *e;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  void *p = memory(bytes);
  struct hello h = {.base = (uintptr_t)p};
  if (!p)
    return 2;
  pattern_fill(p, seed, 0, bytes);
  if (rd2h_eng_open(conf->engine, &o, &e, &err)) {
    fprintf(stderr, "source: %s\n", err.text);
    return 2;
  }
  if (!publish(e, &(struct rd2h_region){.base = p, .len = bytes}, &h) && send(control, &h, sizeof h, 0) == sizeof h)
    while (serve(control))
      ;
  rd2h_eng_close(e);
  if (conf->shared)
    rd2h_shared_free(p);
  else
    munmap(p, bytes);
  return 0;
}

void source_start(struct source *s, uint64_t bytes, uint64_t seed) {
  char control[16], size[32], number[32];
  char *args[] = {"conformance", "--source", control, size, number, NULL};
  struct hello h;
  int pair[2];
  assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
  snprintf(control, sizeof control, "%d", pair[1]);
  snprintf(size, sizeof size, "%llu", (unsigned long long)bytes);
  snprintf(number, sizeof number, "%llu", (unsigned long long)seed);
  *s = (struct source){.control = pair[0], .bytes = bytes, .seed = seed};
  s->pid = fork();
  if (!s->pid) {
    fcntl(pair[1], F_SETFD, 0);
    execv("/proc/self/exe", args);
    _exit(127);
  }
  close(pair[1]);
  assert_int_equal(recv(s->control, &h, sizeof h, 0), sizeof h);
  s->base = h.base;
  s->conn_len = h.conn_len;
  memcpy(s->conn, h.conn, h.conn_len);
}

void source_hole(struct source *s, uint64_t offset, uint64_t len) {
  struct order o = {OP_HOLE, s->base + offset, len};
  char done;
  assert_int_equal(send(s->control, &o, sizeof o, 0), sizeof o);
  assert_int_equal(recv(s->control, &done, 1, 0), 1);
}

/* Waits without reaping, as for the process of somebody else. */
void source_signal(const struct source *s, int signal) {
  siginfo_t info;
  assert_int_equal(kill(s->pid, signal), 0);
  assert_int_equal(waitid(P_PID, (id_t)s->pid, &info, WNOWAIT | (signal == SIGKILL ? WEXITED : WSTOPPED)), 0);
}

void source_end(struct source *s) {
  if (!s->pid)
    return;
  kill(s->pid, SIGCONT);
  send(s->control, &(struct order){.op = OP_END}, sizeof(struct order), MSG_NOSIGNAL);
  close(s->control);
  while (waitpid(s->pid, NULL, 0) < 0 && errno == EINTR)
    ;
  s->pid = 0;
}
