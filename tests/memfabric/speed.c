/* SPDX-License-Identifier: Apache-2.0 */
/* The engine beside the library's own batch read, through the same transfer object, in turns: speed [ROUNDS]. A JSON line a shape. */
#include "engine/face.h"
#include "engines/memfabric/client.h"
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES (64ull << 20)
#define N_MAX 4096u
#define ROUNDS 15u
#define ROUNDS_MAX 101u

static const char *const options[] = {"protocol=host_tcp", NULL};
static const struct shape {
  const char *name;
  uint32_t n;
  uint64_t len;
} shapes[] = {{"2000 x 256 B", 2000, 256}, {"1000 x 16 KiB", 1000, 16384}, {"400 x 128 KiB", 400, 131072}, {"1 x 64 MiB", 1, BYTES}};

#define CHECK(x) \
  do { \
    if (!(x)) { \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #x, err.text); \
      exit(1); \
    } \
  } while (0)

static struct rd2h_error err;

struct hello {
  uint64_t base;
  char session[MF_ID_MAX];
};

static void serve(int control) {
  struct rd2h_engine_opts o = {.size = sizeof o, .prefill = true, .options = options};
  struct hello h = {0};
  struct rd2h_buf conn = {0};
  rd2h_eng *e;
  uint32_t region;
  char end;
  uint8_t *p = aligned_alloc(MF_PAGE, BYTES);
  memset(p, 7, BYTES);
  CHECK(!rd2h_eng_open("memfabric", &o, &e, &err));
  CHECK(!rd2h_eng_reg(e, &(struct rd2h_region){.base = p, .len = BYTES}, &region, &err) && !rd2h_eng_publish(e, &conn, &err));
  h.base = (uintptr_t)p;
  snprintf(h.session, sizeof h.session, "%s", rd2h_eng_session(e));
  CHECK(send(control, &h, sizeof h, 0) == sizeof h);
  recv(control, &end, 1, 0);
  _exit(0);
}

struct load {
  struct rd2h_batch b;
  void *local[N_MAX];
  uint64_t remote[N_MAX], len[N_MAX];
};

static void load_set(struct load *l, const struct shape *s, uint8_t *dst, uint64_t base) {
  l->b = (struct rd2h_batch){.id = 1, .n = s->n, .bytes = s->n * s->len, .local = l->local, .remote = l->remote, .len = l->len};
  for (uint32_t i = 0; i < s->n; i++) { /* sources in another order than destinations */
    l->local[i] = dst + i * s->len;
    l->remote[i] = base + (uint64_t)i * 7 % s->n * s->len;
    l->len[i] = s->len;
  }
}

static double ours(rd2h_eng *e, rd2h_eng_peer *p, const struct load *l) {
  struct rd2h_completion c = {0};
  uint64_t begin = rd2h_now_ns();
  CHECK(!rd2h_eng_submit(e, p, &l->b));
  while (!rd2h_eng_poll(e, &c, 1))
    poll(&(struct pollfd){.fd = rd2h_eng_fd(e), .events = POLLIN}, 1, 30000);
  CHECK(!c.status);
  return (double)l->b.bytes / (double)(rd2h_now_ns() - begin);
}

static double theirs(const struct mf_api *api, void *object, const char *session, struct load *l) {
  uint64_t begin = rd2h_now_ns();
  CHECK(!api->batch_read(object, l->local, session, (const void **)(void *)l->remote, (size_t *)l->len, l->b.n, 0));
  return (double)l->b.bytes / (double)(rd2h_now_ns() - begin);
}

static int ascending(const void *a, const void *b) {
  return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

static double median(double *v, uint32_t n) {
  qsort(v, n, sizeof *v, ascending);
  return v[n / 2];
}

int main(int argc, char **argv) {
  static struct load l;
  const struct mf_api *api;
  struct hello h;
  int pair[2];
  uint32_t rounds = argc > 1 ? (uint32_t)atoi(argv[1]) : ROUNDS;
  CHECK(rounds && rounds <= ROUNDS_MAX && !socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair));
  pid_t pid = fork();
  if (!pid)
    serve(pair[1]);
  close(pair[1]);
  CHECK(recv(pair[0], &h, sizeof h, 0) == sizeof h);
  struct rd2h_engine_opts o = {.size = sizeof o, .options = options};
  rd2h_eng *e;
  rd2h_eng_peer *p;
  uint8_t *dst = aligned_alloc(MF_PAGE, BYTES);
  memset(dst, 0, BYTES);
  CHECK(!rd2h_eng_open("memfabric", &o, &e, &err) && !rd2h_mf_library(NULL, &api, &err));
  struct rd2h_blob at = {(const uint8_t *)h.session, (uint32_t)strlen(h.session)};
  CHECK(!rd2h_eng_connect(e, at, (struct rd2h_blob){0}, 1, &p, &err));
  load_set(&l, &shapes[1], dst, h.base);
  ours(e, p, &l);
  void *object = p->peer->session->object;
  for (uint32_t s = 0; s < RD2H_COUNT(shapes); s++) {
    double a[ROUNDS_MAX], b[ROUNDS_MAX], ratio[ROUNDS_MAX];
    load_set(&l, &shapes[s], dst, h.base);
    for (uint32_t i = 0; i < rounds; i++) { /* who begins changes, too */
      if (i % 2)
        a[i] = ours(e, p, &l);
      b[i] = theirs(api, object, h.session, &l);
      if (i % 2 == 0)
        a[i] = ours(e, p, &l);
      ratio[i] = a[i] / b[i];
    }
    printf("{\"shape\": \"%s\", \"ours_gb_s\": %.3f, \"library_gb_s\": %.3f, \"ratio\": %.3f}\n", shapes[s].name, median(a, rounds),
           median(b, rounds), median(ratio, rounds));
    fflush(stdout);
  }
  rd2h_eng_disconnect(e, p);
  rd2h_eng_close(e);
  kill(pid, SIGKILL);
  waitpid(pid, NULL, 0);
  return 0;
}
