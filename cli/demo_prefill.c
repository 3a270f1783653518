/* SPDX-License-Identifier: Apache-2.0 */
/* A Prefill rank: chunked prefill of its engine's prompts, each layer published as soon as it is "computed" (written). */
#include "demo.h"
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define GATE_MS 30000

/* Blocks [from, to) of a request that a step writes. */
struct span {
  uint32_t from, to;
};

struct prefill {
  struct demo *d;
  struct demo_rank *r;
  struct demo_memory mem;
  rd2h_prefill *rank;
  rd2h_prefill_scheduler *half;
  uint32_t done[DEMO_MAX_REQUESTS], now[DEMO_MAX_REQUESTS]; /* tokens computed before, and in, the step */
  struct span span[DEMO_MAX_REQUESTS], last[DEMO_MAX_REQUESTS]; /* of this step and of the one before */
  uint32_t slot_step[DEMO_GROUPS][DEMO_MAX_LAYERS]; /* step that wrote to a storage slot; they count from 1 */
  struct rd2h_error err;
};

static bool mine(const struct prefill *p, uint32_t i) {
  return p->d->request[i].from == p->r->engine;
}

/* ---- what the scheduler is told ---- */
/* What the rendezvous of every child of the prompt list says, as a proxy hands it on. */
static void params_json(const struct prefill *p, char *out, size_t cap) {
  const struct demo *d = p->d;
  const char *comma = "";
  size_t n = (size_t)snprintf(out, cap, "{\"do_remote_decode\":true,\"remote_host\":\"127.0.0.1\",\"remote_port\":%u,"
                              "\"batch_kv_transfer_params\":{", d->port[0]);
  for (uint32_t i = 0; i < d->n_requests; i++) {
    const struct demo_request *r = &d->request[i];
    char hex[2 * RD2H_ATTEMPT_BYTES + 1];
    if (!mine(p, i))
      continue;
    for (uint32_t k = 0; k < RD2H_ATTEMPT_BYTES; k++)
      snprintf(hex + 2 * k, 3, "%02x", r->attempt[k]);
    n += (size_t)snprintf(out + n, cap - n,
                          "%s\"%s\":{\"do_remote_decode\":true,\"do_remote_prefill\":false,\"remote_engine_id\":\"demo-%u\","
                          "\"remote_host\":\"127.0.0.1\",\"remote_port\":%u,\"remote_tp_size\":%u,\"remote_cached_tokens\":%u,"
                          "\"rd2h\":{\"v\":1,\"attempt\":\"%s\",\"inc\":\"%016x%016llx\"}}",
                          comma, r->ext_id, r->to, d->port[r->to], d->d_tp, r->cached * d->block_tokens, hex, r->to + 1,
                          (unsigned long long)d->seed);
    comma = ",";
  }
  snprintf(out + n, cap - n, "}}");
}

static int track(struct prefill *p) {
  size_t cap = 512 * (DEMO_MAX_REQUESTS + 1);
  char *params = malloc(cap);
  int rc = params ? 1 : RD2H_NOMEM;
  if (params)
    params_json(p, params, cap);
  for (uint32_t i = 0; i < p->d->n_requests && rc == 1; i++) {
    const struct demo_request *r = &p->d->request[i];
    if (!mine(p, i))
      continue;
    struct rd2h_block_table t = {.n_groups = DEMO_GROUPS, .ids = {r->source[0], r->source[1]}, .count = {r->blocks, r->blocks}};
    rc = rd2h_prefill_scheduler_alloc(p->half, r->id, params, r->tokens, &t, &p->err);
    p->done[i] = r->hit * p->d->block_tokens;
  }
  free(params);
  return rc == 1 ? RD2H_OK : rc < 0 ? rc : RD2H_INTERNAL;
}

/* The next chunk: tokens of the oldest unfinished prompts, half of `chunk` to all of it, the same on every rank of the engine. */
static bool schedule(struct prefill *p) {
  uint64_t state = p->d->seed ^ (uint64_t)(p->r->engine + 1) << 56 ^ (uint64_t)p->r->steps << 20;
  uint32_t left = p->d->chunk - (uint32_t)(demo_random(&state) % (p->d->chunk / 2 + 1)), tokens = p->d->block_tokens;
  bool any = false;
  for (uint32_t i = 0; i < p->d->n_requests; i++) {
    uint32_t rest = mine(p, i) ? p->d->request[i].tokens - p->done[i] : 0;
    p->now[i] = rest < left ? rest : left;
    left -= p->now[i];
    any |= p->now[i] > 0;
    p->last[i] = p->span[i];
    p->span[i] = (struct span){0};
    if (!p->now[i])
      continue;
    uint32_t begun = p->done[i] == p->d->request[i].hit * tokens ? 0 : p->done[i]; /* the first step brings the prefix along */
    p->span[i] = (struct span){begun / tokens, (p->done[i] + p->now[i] + tokens - 1) / tokens};
  }
  return any;
}

/* ---- a layer ---- */
static void write_blocks(struct prefill *p, const struct span *span, uint32_t layer, uint32_t first_part, uint32_t parts, bool garbage) {
  const struct demo *d = p->d;
  for (uint32_t i = 0; i < d->n_requests; i++)
    for (uint32_t k = span[i].from; k < span[i].to; k++)
      for (uint32_t part = first_part; part < first_part + parts; part++) {
        uint8_t *block = demo_block(&p->mem, layer, part, d->request[i].source[part / DEMO_MAIN_PARTS][k]);
        if (block)
          demo_fill(d, block, garbage ? DEMO_NOBODY : i, layer, part, k);
      }
}

/* The storage is free the instant the gate opens: what the step before left there is made garbage at once. */
static int take_storage(struct prefill *p, uint32_t layer) {
  uint64_t begin = demo_now();
  int rc = rd2h_prefill_wait_layer(p->rank, layer - p->mem.first, GATE_MS, &p->err);
  uint64_t end = demo_now();
  p->r->gates++;
  p->r->gate_ns += end - begin;
  demo_trace_event(p->d, p->r, DEMO_GATE, layer, begin, end, 0);
  for (uint32_t side = 0; side < DEMO_GROUPS && !rc; side++) {
    if (side && !demo_has_indexer(p->d, layer))
      break;
    uint32_t *step = &p->slot_step[side][demo_slot(&p->mem, layer, side * DEMO_MAIN_PARTS)];
    if (*step && *step != p->r->steps)
      write_blocks(p, p->last, layer, side * DEMO_MAIN_PARTS, DEMO_MAIN_PARTS, true);
    *step = p->r->steps;
  }
  return rc;
}

static int run_layer(struct prefill *p, uint32_t layer) {
  const struct demo *d = p->d;
  int rc = d->reuse ? take_storage(p, layer) : RD2H_OK;
  if (rc)
    return rc;
  uint64_t begin = demo_now(), until = begin + d->compute_us * UINT64_C(1000);
  write_blocks(p, p->span, layer, 0, DEMO_PARTS, false);
  while (demo_now() < until)
    ;
  p->r->last_layer = demo_now();
  p->r->compute += p->r->last_layer - begin;
  demo_trace_event(p->d, p->r, DEMO_COMPUTE, layer, begin, p->r->last_layer, 0);
  rc = rd2h_prefill_layer(p->rank, layer - p->mem.first, &p->err);
  demo_trace_event(p->d, p->r, DEMO_DISPATCH, layer, p->r->last_layer, demo_now(), 0);
  return rc;
}

/* ---- steps ---- */
static int publish_step(struct prefill *p) {
  struct rd2h_bytes b;
  int rc = rd2h_prefill_scheduler_step_end(p->half, &b, &p->err);
  return rc ? rc : rd2h_prefill_step(p->rank, b.p, b.len, &p->err);
}

static int run_step(struct prefill *p) {
  int rc = RD2H_OK;
  p->r->steps++;
  rd2h_prefill_scheduler_step_begin(p->half);
  for (uint32_t i = 0; i < p->d->n_requests && !rc; i++)
    if (p->now[i])
      rc = rd2h_prefill_scheduler_step_add(p->half, p->d->request[i].id, p->done[i], p->now[i], 0, NULL, false, &p->err);
  rc = rc ? rc : publish_step(p);
  for (uint32_t l = p->mem.first; l < p->mem.end && !rc && !demo_stopped(p->d); l++)
    rc = run_layer(p, l);
  for (uint32_t i = 0; i < p->d->n_requests; i++)
    p->done[i] += p->now[i];
  return rc;
}

/* Sources may be freed when every reader has answered: waits for that. */
static int settle(struct prefill *p) {
  uint32_t held = 0;
  for (uint32_t i = 0; i < p->d->n_requests; i++)
    held += mine(p, i) && rd2h_prefill_scheduler_finish(p->half, p->d->request[i].id, false) == 1;
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

/* ---- the process ---- */
static size_t dump(void *rank, char *out, size_t cap) {
  return rd2h_prefill_dump(rank, out, cap);
}

static int prepare(struct prefill *p) {
  const struct demo *d = p->d;
  int rc = demo_memory_open(p->d, p->r, &p->mem, &p->err);
  struct rd2h_prefill_opts o = {.size = sizeof o, .layout = p->mem.layout, .memory = p->mem.area, .n_memory = p->mem.n_areas,
                                .tp_rank = p->r->tp, .tp_size = d->p_tp, .pp_rank = p->r->pp, .pp_size = d->p_pp, .engine = d->engine};
  struct rd2h_prefill_scheduler_opts so = {.size = sizeof so, .n_groups = DEMO_GROUPS, .block_size = {d->block_tokens, d->block_tokens},
                                           .indexer_group = 1};
  demo_trace_listen(p->d, p->r, NULL);
  rc = rc ? rc : rd2h_prefill_create(&o, &p->rank, &p->err);
  if (!rc)
    demo_speaker(p->r, dump, p->rank);
  return rc ? rc : rd2h_prefill_scheduler_create(&so, &p->half, &p->err);
}

static int run(struct prefill *p) {
  int rc = prepare(p);
  if (!rc && !demo_await(p->d, &p->d->installed, p->d->d_engines * p->d->d_tp, "Decode ranks were ready", &p->err))
    rc = RD2H_TIMEOUT;
  rc = rc ? rc : track(p);
  p->r->begin = p->r->last_layer = demo_now();
  while (!rc && !demo_stopped(p->d) && schedule(p))
    rc = run_step(p);
  return rc || demo_stopped(p->d) ? rc : settle(p);
}

int demo_prefill(struct demo *d, struct demo_rank *r) {
  static struct prefill p;
  struct rusage u;
  p = (struct prefill){.d = d, .r = r};
  int rc = run(&p);
  demo_speaker_end();
  if (demo_stopped(d)) {
    rc = RD2H_OK;
    if (p.rank)
      rd2h_prefill_drain(p.rank, DEMO_LAST_MS);
  }
  if (rc)
    demo_fail(r, p.err.text[0] ? p.err.text : rd2h_status_text(rc));
  else
    demo_post(&d->settled);
  rd2h_prefill_destroy(p.rank);
  rd2h_prefill_scheduler_destroy(p.half);
  demo_memory_close(&p.mem);
  getrusage(RUSAGE_SELF, &u);
  r->rss_kib = (uint64_t)u.ru_maxrss;
  return rc ? 1 : 0;
}
