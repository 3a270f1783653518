/* SPDX-License-Identifier: Apache-2.0 */
/* The Decode process: destinations installed, KV pulled, every byte compared with what it must be. */
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
  struct demo_memory mem;
  rd2h_decode *rank;
  struct rd2h_error err;
};

/* Every block starts as one that nobody has written: what is left of that afterwards shows that nothing else was touched. */
static void paint(const struct decode *x) {
  for (uint32_t l = 0; l < x->d->layers; l++)
    for (uint32_t p = 0; p < DEMO_PARTS; p++)
      for (uint32_t b = 0; x->d->part_bytes[p] && b < x->d->num_blocks; b++)
        demo_fill(x->d, demo_block(x->d, &x->mem, l, p, b), DEMO_MAX_REQUESTS, l, p, b);
}

static int prepare(struct decode *x) {
  struct demo *d = x->d;
  if (!demo_memory_open(d, &x->mem, &x->err))
    return RD2H_NOMEM;
  paint(x);
  struct rd2h_memory area = {(uintptr_t)x->mem.base, x->mem.bytes};
  struct rd2h_decode_opts o = {.size = sizeof o, .layout = x->mem.layout, .memory = &area, .n_memory = 1, .tp_size = 1, .main_ranks = 1,
                               .engine = d->engine};
  int rc = rd2h_decode_create(&o, &x->rank, &x->err);
  if (!rc)
    d->port = rd2h_decode_port(x->rank);
  return rc;
}

static int install(struct decode *x) {
  int rc = RD2H_OK;
  for (uint32_t i = 0; i < x->d->n_requests && !rc; i++) {
    const struct demo_request *r = &x->d->request[i];
    struct rd2h_grant g = {.id = r->id, .ext_id = r->ext_id, .main = r->target, .indexer = r->target, .n_main = r->blocks,
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

static int pull(struct decode *x) {
  uint32_t left = x->d->n_requests;
  uint64_t until = demo_now() + DEMO_WAIT_MS * UINT64_C(1000000);
  struct pollfd fd = {.fd = rd2h_decode_fd(x->rank), .events = POLLIN};
  int rc = RD2H_OK;
  while (left && !rc) {
    poll(&fd, 1, PROGRESS_MS); /* wakes for the progress bar, too */
    rc = collect(x, &left);
    rd2h_decode_stats(x->rank, &x->d->stats);
    __atomic_store_n(&x->d->moved, x->d->stats.bytes, __ATOMIC_RELAXED);
    if (left && !rc && demo_now() > until) {
      snprintf(x->err.text, sizeof x->err.text, "%u requests are not complete after %d s", left, DEMO_WAIT_MS / 1000);
      rc = RD2H_TIMEOUT;
    }
  }
  x->d->time.complete = demo_now();
  return rc;
}

/* ---- the check ---- */
struct owner {
  uint32_t request, place;
};

static void check_tensor(struct decode *x, const struct owner *own, uint32_t layer, uint32_t part) {
  struct demo *d = x->d;
  for (uint32_t b = 0; b < d->num_blocks; b++) {
    const struct owner *o = &own[b];
    uint64_t bad = demo_differ(d, demo_block(d, &x->mem, layer, part, b), o->request, layer, part,
                               o->request == DEMO_MAX_REQUESTS ? b : o->place);
    d->checked += d->part_bytes[part];
    if (o->request == DEMO_MAX_REQUESTS)
      d->disturbed += bad != 0;
    else
      d->wrong += bad;
  }
}

static int verify(struct decode *x) {
  struct demo *d = x->d;
  struct owner *own = malloc(d->num_blocks * sizeof *own);
  if (!own)
    return RD2H_NOMEM;
  for (uint32_t b = 0; b < d->num_blocks; b++)
    own[b] = (struct owner){DEMO_MAX_REQUESTS, 0};
  for (uint32_t i = 0; i < d->n_requests; i++)
    for (uint32_t k = d->request[i].cached; k < d->request[i].blocks; k++)
      own[d->request[i].target[k]] = (struct owner){i, k};
  for (uint32_t l = 0; l < d->layers; l++)
    for (uint32_t p = 0; p < DEMO_PARTS; p++)
      if (d->part_bytes[p])
        check_tensor(x, own, l, p);
  free(own);
  if (!d->wrong && !d->disturbed)
    return RD2H_OK;
  snprintf(x->err.text, sizeof x->err.text, "%llu bytes are wrong and %llu blocks that nobody may write have changed",
           (unsigned long long)d->wrong, (unsigned long long)d->disturbed);
  return RD2H_INTERNAL;
}

/* What one thread's memcpy does here with blocks of the same sizes: the limit to compare with. */
static uint64_t memcpy_speed(const struct demo *d) {
  uint8_t *from = malloc(MEMCPY_BUFFER), *to = malloc(MEMCPY_BUFFER);
  uint64_t best = 0;
  if (from && to) {
    memset(from, 1, MEMCPY_BUFFER);
    memset(to, 2, MEMCPY_BUFFER);
  }
  for (uint32_t run = 0; from && to && run < MEMCPY_RUNS; run++) {
    uint64_t begin = demo_now(), bytes = 0;
    for (uint32_t p = 0; bytes + d->part_bytes[p] <= MEMCPY_BUFFER; p = (p + 1) % DEMO_PARTS) {
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

static int run(struct decode *x) {
  struct demo *d = x->d;
  int rc = prepare(x);
  rc = rc ? rc : install(x);
  if (rc)
    return rc;
  __atomic_store_n(&d->phase, DEMO_TRANSFER, __ATOMIC_RELAXED);
  sem_post(&d->installed);
  rc = pull(x);
  if (!rc && !demo_wait(&d->settled)) {
    snprintf(x->err.text, sizeof x->err.text, "Prefill has not settled within %d s", DEMO_WAIT_MS / 1000);
    rc = RD2H_TIMEOUT;
  }
  rd2h_decode_stats(x->rank, &d->stats);
  __atomic_store_n(&d->phase, DEMO_VERIFY, __ATOMIC_RELAXED);
  rc = rc ? rc : verify(x);
  d->memcpy_bytes_s = memcpy_speed(d);
  return rc;
}

int demo_decode(struct demo *d) {
  struct decode x = {.d = d};
  struct rusage u;
  int rc = run(&x);
  if (rc)
    demo_fail(&d->decode, "Decode", x.err.text[0] ? x.err.text : rd2h_status_text(rc));
  rd2h_decode_destroy(x.rank);
  demo_memory_close(&x.mem);
  getrusage(RUSAGE_SELF, &u);
  d->rss_kib[1] = (uint64_t)u.ru_maxrss;
  return rc ? 1 : 0;
}
