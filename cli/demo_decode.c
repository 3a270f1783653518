/* SPDX-License-Identifier: Apache-2.0 */
/* A Decode rank: destinations installed, KV pulled, what it is responsible for compared. */
#include "demo.h"
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define PROGRESS_MS 50
#define MEMCPY_BUFFER ((size_t)256 << 20)
#define MEMCPY_RUNS 3

struct decode {
  struct demo *d;
  struct demo_rank *r;
  struct demo_memory mem;
  rd2h_decode *rank;
  struct rd2h_error err;
};

static bool mine(const struct decode *x, uint32_t i) {
  return x->d->request[i].to == x->r->engine;
}

static size_t dump(void *rank, char *out, size_t cap) {
  return rd2h_decode_dump(rank, out, cap);
}

static int prepare(struct decode *x) {
  struct demo *d = x->d;
  int rc = demo_memory_open(d, x->r, &x->mem, &x->err);
  if (rc)
    return rc;
  demo_paint(&x->mem, x->r);
  demo_trace_listen(d, x->r, &x->mem);
  struct rd2h_decode_opts o = {.size = sizeof o, .layout = x->mem.layout, .memory = x->mem.area, .n_memory = x->mem.n_areas,
                               .port = (uint16_t)(d->port[x->r->engine] + x->r->tp), .tp_rank = x->r->tp, .tp_size = d->d_tp,
                               .main_rank = x->r->tp, .main_ranks = d->d_tp, .engine = d->engine};
  rc = rd2h_decode_create(&o, &x->rank, &x->err);
  if (!rc)
    demo_speaker(x->r, dump, x->rank);
  return rc;
}

static int install(struct decode *x) {
  int rc = RD2H_OK;
  for (uint32_t i = 0; i < x->d->n_requests && !rc; i++) {
    const struct demo_request *r = &x->d->request[i];
    if (!mine(x, i))
      continue;
    struct rd2h_grant g = {.id = r->id, .ext_id = r->ext_id, .main = r->target[0], .indexer = r->target[1], .n_main = r->blocks,
                           .n_indexer = r->blocks, .main_floor = r->cached, .indexer_floor = r->cached, .main_need = r->blocks,
                           .indexer_need = r->blocks};
    memcpy(g.attempt, r->attempt, sizeof g.attempt);
    rc = rd2h_decode_install(x->rank, &g, &x->err);
  }
  return rc;
}

static int collect(struct decode *x, uint32_t *left) {
  struct rd2h_outcome o[16];
  uint32_t n = rd2h_decode_collect(x->rank, o, 16);
  *left -= n;
  for (uint32_t i = 0; i < n; i++)
    if (o[i].status) {
      snprintf(x->err.text, sizeof x->err.text, "%s: %s", o[i].id, o[i].text);
      return o[i].status;
    }
  return RD2H_OK;
}

/* A signal ends it: nothing is asked for any more, and what is being read ends. */
static void give_up(struct decode *x) {
  struct rd2h_outcome o[16];
  struct rd2h_decode_stats st;
  uint64_t until = demo_now() + DEMO_LAST_MS * UINT64_C(1000000);
  struct pollfd fd = {.fd = rd2h_decode_fd(x->rank), .events = POLLIN};
  for (uint32_t i = 0; i < x->d->n_requests; i++)
    if (mine(x, i))
      rd2h_decode_abort(x->rank, x->d->request[i].id); /* or it is through already */
  do {
    poll(&fd, 1, PROGRESS_MS);
    while (rd2h_decode_collect(x->rank, o, 16))
      ;
    rd2h_decode_stats(x->rank, &st);
  } while (st.requests && demo_now() < until);
}

static int pull(struct decode *x) {
  uint32_t left = 0;
  uint64_t until = demo_now() + DEMO_WAIT_MS * UINT64_C(1000000);
  struct pollfd fd = {.fd = rd2h_decode_fd(x->rank), .events = POLLIN};
  int rc = RD2H_OK;
  for (uint32_t i = 0; i < x->d->n_requests; i++)
    left += mine(x, i);
  while (left && !rc && !demo_stopped(x->d)) {
    poll(&fd, 1, PROGRESS_MS); /* wakes for the progress bar, too */
    rc = collect(x, &left);
    rd2h_decode_stats(x->rank, &x->r->stats);
    __atomic_store_n(&x->r->bytes, x->r->stats.bytes, __ATOMIC_RELAXED);
    if (left && !rc && demo_now() > until) {
      snprintf(x->err.text, sizeof x->err.text, "%u requests are not complete after %d s", left, DEMO_WAIT_MS / 1000);
      rc = RD2H_TIMEOUT;
    }
  }
  x->r->complete = demo_now();
  return rc;
}

/* What one thread's memcpy does here with blocks of the same sizes: the limit to compare with. */
static uint64_t memcpy_speed(const struct demo *d) {
  uint64_t oracle = demo_total(d->oracle), best = 0;
  size_t room = oracle < MEMCPY_BUFFER ? (size_t)oracle : MEMCPY_BUFFER;
  uint8_t *from = malloc(room), *to = malloc(room);
  if (from && to) {
    memset(from, 1, room);
    memset(to, 2, room);
  }
  for (uint32_t run = 0; from && to && run < MEMCPY_RUNS; run++) {
    uint64_t begin = demo_now(), bytes = 0;
    for (uint32_t p = 0; bytes + d->part_bytes[p] <= room; p = (p + 1) % DEMO_PARTS) {
      memcpy(to + bytes, from + bytes, d->part_bytes[p]);
      bytes += d->part_bytes[p];
    }
    uint64_t speed = (uint64_t)((double)bytes * 1e9 / (double)(demo_now() - begin + 1));
    best = speed > best ? speed : best;
  }
  free(from);
  free(to);
  return best;
}

/* Nothing is compared before all ranks that write to the engine's pool are through, and all sources have settled. */
static int run(struct decode *x) {
  struct demo *d = x->d;
  int rc = prepare(x);
  rc = rc ? rc : install(x);
  if (rc)
    return rc;
  demo_post(&d->installed);
  __atomic_store_n(&d->phase, DEMO_TRANSFER, __ATOMIC_RELAXED);
  rc = pull(x);
  if (rc)
    return rc;
  demo_post(&d->pulled[x->r->engine]);
  if (!demo_await(d, &d->pulled[x->r->engine], d->d_tp, "ranks of the engine were complete", &x->err) ||
      !demo_await(d, &d->settled, d->p_engines * d->p_pp * d->p_tp, "Prefill ranks had settled", &x->err))
    return RD2H_TIMEOUT;
  rd2h_decode_stats(x->rank, &x->r->stats);
  __atomic_store_n(&d->phase, DEMO_VERIFY, __ATOMIC_RELAXED);
  rc = demo_verify(&x->mem, x->r, &x->err);
  if (!x->r->engine && !x->r->tp)
    d->memcpy_bytes_s = memcpy_speed(d);
  return rc;
}

int demo_decode(struct demo *d, struct demo_rank *r) {
  struct decode x = {.d = d, .r = r};
  struct rusage u;
  int rc = run(&x);
  demo_speaker_end();
  if (demo_stopped(d)) {
    rc = RD2H_OK;
    if (x.rank)
      give_up(&x);
  }
  if (rc)
    demo_fail(r, x.err.text[0] ? x.err.text : rd2h_status_text(rc));
  rd2h_decode_destroy(x.rank);
  demo_memory_close(&x.mem);
  getrusage(RUSAGE_SELF, &u);
  r->rss_kib = (uint64_t)u.ru_maxrss;
  return rc ? 1 : 0;
}
