/* SPDX-License-Identifier: Apache-2.0 */
/* The Prefill process: chunked prefill of a prompt list, each layer published as soon as it is "computed" (written). */
#include "demo.h"
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

struct prefill {
  struct demo *d;
  struct demo_memory mem;
  rd2h_prefill *rank;
  rd2h_prefill_scheduler *half;
  uint32_t done[DEMO_MAX_REQUESTS], now[DEMO_MAX_REQUESTS]; /* tokens computed before, and in, the step */
  struct rd2h_error err;
};

/* What the rendezvous of every child of the prompt list says, as a proxy hands it on. */
static void params_json(const struct demo *d, char *out, size_t cap) {
  size_t n = (size_t)snprintf(out, cap, "{\"do_remote_decode\":true,\"remote_host\":\"127.0.0.1\",\"remote_port\":%u,"
                              "\"batch_kv_transfer_params\":{", d->port);
  for (uint32_t i = 0; i < d->n_requests; i++) {
    const struct demo_request *r = &d->request[i];
    char hex[2 * RD2H_ATTEMPT_BYTES + 1];
    for (uint32_t k = 0; k < RD2H_ATTEMPT_BYTES; k++)
      snprintf(hex + 2 * k, 3, "%02x", r->attempt[k]);
    n += (size_t)snprintf(out + n, cap - n,
                          "%s\"%s\":{\"do_remote_decode\":true,\"do_remote_prefill\":false,\"remote_engine_id\":\"demo\","
                          "\"remote_host\":\"127.0.0.1\",\"remote_port\":%u,\"remote_tp_size\":1,\"remote_cached_tokens\":%u,"
                          "\"rd2h\":{\"v\":1,\"attempt\":\"%s\",\"inc\":\"%032llx\"}}",
                          i ? "," : "", r->ext_id, d->port, r->cached * DEMO_BLOCK_TOKENS, hex, (unsigned long long)d->seed);
  }
  snprintf(out + n, cap - n, "}}");
}

static int track(struct prefill *p) {
  size_t cap = 512 * (DEMO_MAX_REQUESTS + 1);
  char *params = malloc(cap);
  int rc = params ? 1 : RD2H_NOMEM;
  if (params)
    params_json(p->d, params, cap);
  for (uint32_t i = 0; i < p->d->n_requests && rc == 1; i++) {
    const struct demo_request *r = &p->d->request[i];
    struct rd2h_block_table t = {.n_groups = 2, .ids = {r->source, r->source}, .count = {r->blocks, r->blocks}};
    rc = rd2h_prefill_scheduler_alloc(p->half, r->id, params, r->tokens, &t, &p->err);
  }
  free(params);
  return rc == 1 ? RD2H_OK : rc < 0 ? rc : RD2H_INTERNAL;
}

/* The next chunk: tokens of the oldest unfinished prompts, at most `chunk` of them together. */
static bool schedule(struct prefill *p) {
  uint32_t left = p->d->chunk;
  bool any = false;
  for (uint32_t i = 0; i < p->d->n_requests; i++) {
    uint32_t rest = p->d->request[i].tokens - p->done[i];
    p->now[i] = rest < left ? rest : left;
    left -= p->now[i];
    any |= p->now[i] > 0;
  }
  return any;
}

static void compute(struct prefill *p, uint32_t layer) {
  const struct demo *d = p->d;
  uint64_t begin = demo_now(), until = begin + d->compute_us * UINT64_C(1000);
  for (uint32_t i = 0; i < d->n_requests; i++) {
    const struct demo_request *r = &d->request[i];
    uint32_t end = (p->done[i] + p->now[i] + DEMO_BLOCK_TOKENS - 1) / DEMO_BLOCK_TOKENS;
    for (uint32_t k = p->done[i] / DEMO_BLOCK_TOKENS; p->now[i] && k < end; k++)
      for (uint32_t part = 0; part < DEMO_PARTS; part++)
        if (d->part_bytes[part])
          demo_fill(d, demo_block(d, &p->mem, layer, part, r->source[k]), i, layer, part, k);
  }
  while (demo_now() < until)
    ;
  p->d->time.compute += demo_now() - begin;
}

static int publish_step(struct prefill *p) {
  struct rd2h_bytes b;
  int rc = rd2h_prefill_scheduler_step_end(p->half, &b, &p->err);
  return rc ? rc : rd2h_prefill_step(p->rank, b.p, b.len, &p->err);
}

static int run_step(struct prefill *p) {
  int rc = RD2H_OK;
  rd2h_prefill_scheduler_step_begin(p->half);
  for (uint32_t i = 0; i < p->d->n_requests && !rc; i++)
    if (p->now[i])
      rc = rd2h_prefill_scheduler_step_add(p->half, p->d->request[i].id, p->done[i], p->now[i], 0, NULL, false, &p->err);
  rc = rc ? rc : publish_step(p);
  for (uint32_t l = 0; l < p->d->layers && !rc; l++) {
    compute(p, l);
    p->d->time.last_layer = demo_now();
    rc = rd2h_prefill_layer(p->rank, l, &p->err);
  }
  for (uint32_t i = 0; i < p->d->n_requests; i++)
    p->done[i] += p->now[i];
  return rc;
}

/* Sources may be freed when every reader has answered: waits for that. */
static int settle(struct prefill *p) {
  uint32_t held = 0;
  for (uint32_t i = 0; i < p->d->n_requests; i++)
    held += rd2h_prefill_scheduler_finish(p->half, p->d->request[i].id, false) == 1;
  rd2h_prefill_scheduler_step_begin(p->half);
  int rc = publish_step(p);
  struct pollfd fd = {.fd = rd2h_prefill_fd(p->rank), .events = POLLIN};
  while (held && !rc) {
    struct rd2h_settled s[16];
    uint32_t n = rd2h_prefill_collect(p->rank, s, 16);
    for (uint32_t i = 0; i < n; i++) {
      rd2h_prefill_scheduler_released(p->half, s[i].id);
      if (s[i].status) {
        snprintf(p->err.text, sizeof p->err.text, "%s ended with: %s", s[i].id, rd2h_status_text(s[i].status));
        rc = s[i].status;
      }
    }
    held -= n;
    if (held && !n && poll(&fd, 1, DEMO_WAIT_MS) <= 0) {
      snprintf(p->err.text, sizeof p->err.text, "%u requests were not answered within %d s", held, DEMO_WAIT_MS / 1000);
      rc = RD2H_TIMEOUT;
    }
  }
  return rc;
}

static int prepare(struct prefill *p) {
  const struct demo *d = p->d;
  if (!demo_memory_open(d, &p->mem, &p->err))
    return RD2H_NOMEM;
  struct rd2h_memory area = {(uintptr_t)p->mem.base, p->mem.bytes};
  struct rd2h_prefill_opts o = {.size = sizeof o, .layout = p->mem.layout, .memory = &area, .n_memory = 1, .tp_size = 1, .pp_size = 1,
                                .engine = d->engine};
  struct rd2h_prefill_scheduler_opts so = {.size = sizeof so, .n_groups = 2, .block_size = {DEMO_BLOCK_TOKENS, DEMO_BLOCK_TOKENS},
                                           .indexer_group = 1};
  int rc = rd2h_prefill_create(&o, &p->rank, &p->err);
  return rc ? rc : rd2h_prefill_scheduler_create(&so, &p->half, &p->err);
}

static int run(struct prefill *p) {
  int rc = prepare(p);
  if (!rc && !demo_wait(&p->d->installed)) {
    snprintf(p->err.text, sizeof p->err.text, "Decode did not get ready within %d s", DEMO_WAIT_MS / 1000);
    rc = RD2H_TIMEOUT;
  }
  rc = rc ? rc : track(p);
  p->d->time.begin = demo_now();
  while (!rc && schedule(p))
    rc = run_step(p);
  return rc ? rc : settle(p);
}

int demo_prefill(struct demo *d) {
  struct prefill p = {.d = d};
  struct rusage u;
  int rc = run(&p);
  if (rc)
    demo_fail(&d->prefill, "Prefill", p.err.text[0] ? p.err.text : rd2h_status_text(rc));
  sem_post(&d->settled);
  rd2h_prefill_destroy(p.rank);
  rd2h_prefill_scheduler_destroy(p.half);
  demo_memory_close(&p.mem);
  getrusage(RUSAGE_SELF, &u);
  d->rss_kib[0] = (uint64_t)u.ru_maxrss;
  return rc ? 1 : 0;
}
