/* SPDX-License-Identifier: Apache-2.0 */
#include "bench.h"
#include <stdio.h>

#define BLOCK_TOKENS 128u

int bench_source_open(struct bench_source *x, const char *engine, const struct rd2h_memory *memory) {
  struct rd2h_prefill_opts o = {.size = sizeof o, .layout = x->layout, .memory = memory, .n_memory = memory != NULL, .tp_size = 1,
                                .pp_size = 1, .engine = engine, .digest = x->digest};
  struct rd2h_prefill_scheduler_opts so = {.size = sizeof so, .n_groups = x->groups, .block_size = {BLOCK_TOKENS, BLOCK_TOKENS},
                                           .indexer_group = x->groups - 1};
  int rc = rd2h_prefill_create(&o, &x->rank, &x->err);
  return rc ? rc : rd2h_prefill_scheduler_create(&so, &x->half, &x->err);
}

void bench_source_close(struct bench_source *x) {
  rd2h_prefill_destroy(x->rank);
  rd2h_prefill_scheduler_destroy(x->half);
  x->rank = NULL;
  x->half = NULL;
}

int bench_source_request(struct bench_source *x, uint32_t request) {
  char params[512];
  uint32_t n = x->blocks * x->steps;
  struct rd2h_block_table t = {.n_groups = x->groups, .ids = {x->ids, x->ids}, .count = {n, n}};
  snprintf(x->id, sizeof x->id, "req-%u-%08x", request, request);
  snprintf(params, sizeof params,
           "{\"do_remote_decode\":true,\"do_remote_prefill\":false,\"remote_engine_id\":\"bench\",\"remote_host\":\"127.0.0.1\","
           "\"remote_port\":%u,\"remote_tp_size\":1,\"remote_cached_tokens\":0,\"request_id\":\"req-%u\","
           "\"rd2h\":{\"v\":1,\"attempt\":\"%032d\",\"inc\":\"%032d\"}}", x->port, request, 0, 1);
  int rc = rd2h_prefill_scheduler_alloc(x->half, x->id, params, (uint64_t)n * BLOCK_TOKENS, &t, &x->err);
  return rc == 1 ? RD2H_OK : rc < 0 ? rc : RD2H_INTERNAL;
}

int bench_source_step(struct bench_source *x, uint32_t step) {
  struct rd2h_bytes b;
  uint64_t tokens = (uint64_t)x->blocks * BLOCK_TOKENS;
  rd2h_prefill_scheduler_step_begin(x->half);
  int rc = rd2h_prefill_scheduler_step_add(x->half, x->id, step * tokens, tokens, 0, NULL, false, &x->err);
  rc = rc ? rc : rd2h_prefill_scheduler_step_end(x->half, &b, &x->err);
  return rc ? rc : rd2h_prefill_step(x->rank, b.p, b.len, &x->err);
}

void bench_source_end(struct bench_source *x) {
  rd2h_prefill_scheduler_finish(x->half, x->id, false);
  rd2h_prefill_scheduler_released(x->half, x->id);
}
