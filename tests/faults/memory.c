/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that runs out, once, at any place of a request's life: Prefill and Decode in one process whose n-th allocation fails, from
 * the first connection on. The request is complete or ends, the next one is complete, and the process comes to its end. */
#include "tests/faults/memory.h"
#include "tests/faults/peers.h"
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define TIME_MS 1500u /* deadlines: an end that nobody could be told of comes by them */
#define LIMIT_S 20u

/* What a step says may be refused for want of memory: the engine says it again, or knows that it was not heard. */
static void step(struct rig_pair *x, const struct rig_request *r, const char *finished) {
  struct rd2h_step_send send;
  struct rd2h_error err = {0};
  struct rd2h_buf b = {0};
  struct rd2h_step_ref ref = {.id = {r->id, (uint32_t)strlen(r->id)}};
  rig_send(&send, r, rd2h_decode_port(x->d), 0, r->n, true);
  struct rd2h_prefill_step_view v = {.n_send = !finished, .send = &send, .n_finished = !!finished, .finished = &ref};
  rd2h_step_encode_prefill(&b, &v);
  if (b.failed || rd2h_prefill_step(x->p, b.p, b.len, &err)) {
    rd2h_buf_free(&b);
    rd2h_step_encode_prefill(&b, &v);
    rd2h_prefill_step(x->p, b.p, b.len, &err);
  }
  rd2h_buf_free(&b);
  for (uint32_t l = 0; !finished && l < x->src.shape.layers; l++) {
    RIG_OK(rd2h_prefill_wait_layer(x->p, l, RIG_WAIT_MS, &err), &err);
    rig_write(&x->src, l, 4);
    rd2h_prefill_layer(x->p, l, &err);
  }
}

static bool install(struct rig_pair *x, const struct rig_request *r) {
  struct rd2h_error err;
  struct rd2h_grant g = {.id = r->id, .ext_id = r->ext, .main = r->dst, .indexer = r->dst, .n_main = r->n, .n_indexer = r->n,
                         .main_need = r->n, .indexer_need = r->n};
  strncpy((char *)g.attempt, r->id, sizeof g.attempt - 1);
  return rd2h_decode_install(x->d, &g, &err) == RD2H_OK;
}

static int one(uint64_t n) {
  static const struct rig_shape shape = {.layers = 6, .blocks = 64, .slots = 2, .indexer_mask = 0x2a};
  struct rig_request r, next;
  struct rig_pair x;
  rig_pair_open(&x, &shape,
                &(struct rd2h_prefill_opts){.handshake_ms = TIME_MS, .hold_ms = 2 * TIME_MS, .liveness_ms = TIME_MS},
                &(struct rd2h_decode_opts){.queue_ms = TIME_MS, .progress_ms = TIME_MS, .park_ms = TIME_MS / 4});
  rig_request(&r, "short", 8, 0, 0);
  uint64_t before = rd2h_alloc_count();
  rd2h_alloc_fail_at(n);
  bool installed = install(&x, &r);
  step(&x, &r, NULL);
  step(&x, &r, "end");
  int status = installed ? rig_outcome(x.d, "short", NULL) : RD2H_NOMEM;
  rig_settled(x.p, "short");
  bool fired = rd2h_alloc_count() >= before + n;
  rd2h_alloc_fail_at(0);
  if (status == RD2H_OK)
    rig_expect(&x.dst, &r, 4);
  rig_request(&next, "next", 8, 0, 0);
  rig_install(x.d, &next);
  step(&x, &next, NULL);
  step(&x, &next, "end");
  RIG_CHECK(rig_outcome(x.d, "next", NULL) == RD2H_OK);
  rig_expect(&x.dst, &next, 4);
  RIG_CHECK(rig_settled(x.p, "next") == RD2H_OK);
  rd2h_prefill_destroy(x.p);
  rd2h_decode_destroy(x.d);
  return !fired ? MEMORY_ENOUGH : status == RD2H_OK ? MEMORY_COMPLETE : MEMORY_ENDED;
}

int memory_short(uint64_t n) {
  int status;
  fflush(NULL);
  pid_t pid = fork();
  RIG_CHECK(pid >= 0);
  if (!pid) {
    alarm(LIMIT_S);
    _exit(one(n));
  }
  RIG_CHECK(waitpid(pid, &status, 0) == pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
