/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/faults/peers.h"
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const struct rig_shape ring = {.layers = 6, .blocks = 64, .slots = 2, .indexer_mask = 0x2a};

uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void request(struct rig_request *r, char id[16], uint32_t k) {
  snprintf(id, 16, "r%u", k);
  rig_request(r, id, PEER_BLOCKS, 0, 0);
}

static void say(int fd, const struct peer_told *t) {
  if (write(fd, t, sizeof *t) != sizeof *t)
    _exit(1);
}

/* ---- Prefill ---- */
static void chunk(rd2h_prefill *p, struct rig_side *src, const struct rig_request *r, const struct peer_opts *o,
                  const struct peer_ask *a, uint32_t c, struct peer_told *t) {
  struct rd2h_step_send send;
  struct rd2h_error err = {0};
  uint32_t chunks = o->chunks ? o->chunks : PEER_CHUNKS, each = PEER_BLOCKS / chunks;
  rig_send(&send, r, a->port, c * each, (c + 1) * each, c == chunks - 1);
  if (o->host)
    send.host = (struct rd2h_str){o->host, (uint32_t)strlen(o->host)};
  rig_step(p, &send, 1, NULL);
  for (uint32_t l = 0; l < src->shape.layers; l++) {
    uint64_t from = now_ns();
    RIG_OK(rd2h_prefill_wait_layer(p, l, RIG_WAIT_MS, &err), &err);
    uint64_t waited = now_ns() - from;
    t->gate_ns = waited > t->gate_ns ? waited : t->gate_ns;
    rig_write(src, l, a->k);
    RIG_OK(rd2h_prefill_layer(p, l, &err), &err);
  }
}

static void be_prefill(const struct peer_opts *o, int in, int out) {
  struct rig_shape shape = ring;
  struct rig_side src;
  struct peer_ask a;
  shape.slots = o->flat ? 0 : shape.slots;
  rig_side_open(&src, &shape);
  rd2h_prefill *p = rig_prefill(&src, &(struct rd2h_prefill_opts){.engine = o->engine, .host = o->bind, .hold_ms = o->hold_ms,
                                                                  .handshake_ms = o->handshake_ms,
                                                                  .liveness_ms = o->liveness_ms});
  say(out, &(struct peer_told){0});
  while (read(in, &a, sizeof a) == sizeof a && a.op == PEER_RUN) {
    struct peer_told t = {.began = now_ns()};
    struct rig_request r;
    char id[16];
    request(&r, id, a.k);
    for (uint32_t c = 0; c < (o->chunks ? o->chunks : PEER_CHUNKS); c++)
      chunk(p, &src, &r, o, &a, c, &t);
    rig_step(p, NULL, 0, id);
    t.status = rig_settled(p, id);
    t.ended = now_ns();
    say(out, &t);
  }
  rd2h_prefill_destroy(p);
}

/* ---- Decode ---- */
static uint32_t wrong_blocks(const struct rig_side *dst, const struct rig_request *r, uint32_t k, bool complete) {
  uint32_t wrong = 0;
  for (uint32_t l = 0; l < dst->shape.layers; l++)
    for (uint32_t i = 0; i < r->n; i++)
      wrong += (complete && !rig_holds(dst, l, r->dst[i], l, r->src[i], k)) + !rig_untouched(dst, l, r->dst[i] + 1);
  return wrong;
}

static void be_decode(const struct peer_opts *o, int in, int out) {
  struct rig_shape shape = {.layers = ring.layers, .blocks = o->blocks ? o->blocks : ring.blocks, .indexer_mask = ring.indexer_mask};
  struct rig_side dst;
  struct peer_ask a;
  rig_side_open(&dst, &shape);
  rd2h_decode *d = rig_decode(&dst, &(struct rd2h_decode_opts){.engine = o->engine, .bind_host = o->bind, .port = o->port,
                                                               .progress_ms = o->progress_ms, .probe_ms = o->probe_ms,
                                                               .queue_ms = o->progress_ms, .read_timeout_ms = o->read_ms});
  say(out, &(struct peer_told){.port = rd2h_decode_port(d)});
  while (read(in, &a, sizeof a) == sizeof a && a.op == PEER_RUN) {
    struct peer_told t = {.began = now_ns()};
    struct rig_request r;
    char id[16];
    request(&r, id, a.k);
    rig_install(d, &r);
    if (a.abort_ms) {
      poll(NULL, 0, (int)a.abort_ms);
      t.aborted = now_ns();
      rd2h_decode_abort(d, id);
    }
    t.status = rig_outcome(d, id, NULL);
    t.ended = now_ns();
    t.wrong = wrong_blocks(&dst, &r, a.k, t.status == RD2H_OK);
    say(out, &t);
  }
  rd2h_decode_destroy(d);
}

/* ---- the test's side ---- */
void peer_start(struct peer *p, const struct peer_opts *o) {
  int to[2], from[2];
  struct peer_told t;
  fflush(NULL);
  RIG_CHECK(!pipe(to) && !pipe(from));
  p->pid = fork();
  RIG_CHECK(p->pid >= 0);
  if (!p->pid) {
    close(to[1]);
    close(from[0]);
    signal(SIGPIPE, SIG_IGN);
    if (o->enter && o->enter(o->arg))
      _exit(3);
    (o->prefill ? be_prefill : be_decode)(o, to[0], from[1]);
    _exit(0);
  }
  close(to[0]);
  close(from[1]);
  p->to = to[1];
  p->from = from[0];
  RIG_CHECK(peer_answer(p, &t, RIG_WAIT_MS));
  p->port = t.port;
}

void peer_end(struct peer *p, int how) {
  struct peer_ask quit = {.op = PEER_QUIT};
  int status;
  if (how)
    kill(p->pid, how);
  else
    RIG_CHECK(write(p->to, &quit, sizeof quit) == sizeof quit);
  RIG_CHECK(waitpid(p->pid, &status, 0) == p->pid);
  RIG_CHECK(how ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0);
  close(p->to);
  close(p->from);
}

void peer_ask(struct peer *p, uint32_t k, uint16_t port, uint32_t abort_ms) {
  struct peer_ask a = {.op = PEER_RUN, .k = k, .port = port, .abort_ms = abort_ms};
  RIG_CHECK(write(p->to, &a, sizeof a) == sizeof a);
}

bool peer_answer(struct peer *p, struct peer_told *t, uint32_t timeout_ms) {
  struct pollfd pfd = {.fd = p->from, .events = POLLIN};
  return poll(&pfd, 1, (int)timeout_ms) > 0 && read(p->from, t, sizeof *t) == sizeof *t;
}
