/* SPDX-License-Identifier: Apache-2.0 */
/* Both scheduler halves under any sequence of an engine's calls, also impossible ones. What each step says must decode; a rendezvous
 * is posted once a life; at the end nothing is waited for and nothing held. */
#include "scheduler/scheduler.h"
#include <stdio.h>
#include <stdlib.h>

#define IDS 4u
#define GROUPS 2u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct input {
  const uint8_t *p, *end;
};
static const char *const send_params[] = {
  NULL,
  "{\"do_remote_decode\":true,\"remote_host\":\"10.0.0.2\",\"remote_port\":7000,\"remote_engine_id\":\"d\",\"remote_tp_size\":2}",
  "{\"do_remote_decode\":true,\"remote_host\":\"10.0.0.2\",\"remote_port\":7000,\"remote_engine_id\":\"d\",\"remote_cached_tokens\":9}",
  "{\"do_remote_decode\":true}"};
static const char *const recv_params[] = {
  NULL, "{\"do_remote_prefill\":true,\"metaserver\":\"http://10.0.0.3:1/x\"}",
  "{\"do_remote_prefill\":true,\"metaserver\":\"http://10.0.0.3:1/x\",\"do_virtual\":true}", "{\"do_remote_prefill\":true}"};
static bool posted[IDS];

static uint32_t byte_of(struct input *in) {
  return in->p < in->end ? *in->p++ : 0;
}

static const char *id_of(uint32_t i) {
  static const char *const ids[IDS] = {"cmpl-0-0-01234567", "cmpl-1-0-01234567", "0_cmpl-2-0-01234567", "short"};
  return ids[i % IDS];
}

static uint32_t index_of(const char *id) {
  for (uint32_t i = 0; i < IDS; i++)
    if (!strcmp(id, id_of(i)))
      return i;
  abort();
}

static struct rd2h_block_table blocks_of(struct input *in, uint32_t ids[GROUPS][8]) {
  struct rd2h_block_table t = {.n_groups = GROUPS, .ids = {ids[0], ids[1]}};
  for (uint32_t g = 0; g < GROUPS; g++) {
    t.count[g] = byte_of(in) % 9;
    for (uint32_t i = 0; i < t.count[g]; i++)
      ids[g][i] = byte_of(in);
  }
  return t;
}

/* ---- Prefill ---- */
static void check_prefill_step(rd2h_prefill_scheduler *s) {
  struct rd2h_bytes b;
  struct rd2h_prefill_step_view v;
  struct rd2h_arena a = {0};
  struct rd2h_error err;
  if (rd2h_prefill_scheduler_step_end(s, &b, &err) || (b.len && rd2h_step_decode_prefill(b.p, b.len, &a, &v, &err)))
    abort();
  rd2h_arena_free(&a);
  rd2h_prefill_scheduler_step_begin(s);
}

static void prefill_call(rd2h_prefill_scheduler *s, struct input *in) {
  uint32_t op = byte_of(in) % 6, i = byte_of(in), ids[GROUPS][8];
  struct rd2h_error err;
  struct rd2h_block_table t;
  uint64_t computed, scheduled;
  switch (op) {
  case 0:
    t = blocks_of(in, ids);
    rd2h_prefill_scheduler_alloc(s, id_of(i), send_params[i / IDS % RD2H_COUNT(send_params)], byte_of(in), &t, &err);
    break;
  case 1:
    t = blocks_of(in, ids);
    computed = byte_of(in);
    scheduled = byte_of(in);
    rd2h_prefill_scheduler_step_add(s, id_of(i), computed, scheduled, byte_of(in) % 4, i & 64 ? &t : NULL, i & 128, &err);
    break;
  case 2:
    rd2h_prefill_scheduler_step_preempted(s, id_of(i));
    break;
  case 3:
    rd2h_prefill_scheduler_finish(s, id_of(i), i & 64);
    break;
  case 4:
    rd2h_prefill_scheduler_released(s, id_of(i));
    break;
  default:
    check_prefill_step(s);
  }
}

static void prefill(struct input *in) {
  struct rd2h_prefill_scheduler_opts o = {.size = sizeof o, .n_groups = GROUPS, .block_size = {4, 8}, .indexer_group = 1};
  rd2h_prefill_scheduler *s;
  struct rd2h_error err;
  if (rd2h_prefill_scheduler_create(&o, &s, &err))
    abort();
  rd2h_prefill_scheduler_step_begin(s);
  while (in->p < in->end)
    prefill_call(s, in);
  for (uint32_t i = 0; i < IDS; i++)
    rd2h_prefill_scheduler_finish(s, id_of(i), true);
  check_prefill_step(s);
  for (uint32_t i = 0; i < IDS; i++)
    rd2h_prefill_scheduler_released(s, id_of(i));
  if (rd2h_prefill_scheduler_held(s))
    abort();
  rd2h_prefill_scheduler_destroy(s);
}

/* ---- Decode ---- */
static int post(void *ctx, const char *id, const char *url, const char *body, size_t len, struct rd2h_error *err) {
  (void)ctx, (void)url, (void)body, (void)len, (void)err;
  if (posted[index_of(id)])
    abort();
  posted[index_of(id)] = true;
  return RD2H_OK;
}

static void cancel(void *ctx, const char *id) {
  (void)ctx;
  posted[index_of(id)] = false;
}

static void check_decode_step(rd2h_decode_half *s) {
  struct rd2h_bytes b;
  struct rd2h_decode_step_view v;
  struct rd2h_arena a = {0};
  struct rd2h_error err;
  if (rd2h_decode_half_step_end(s, &b, &err) || (b.len && rd2h_step_decode_decode(b.p, b.len, &a, &v, &err)))
    abort();
  rd2h_arena_free(&a);
}

static void decode_call(rd2h_decode_half *s, struct input *in) {
  uint32_t op = byte_of(in) % 6, i = byte_of(in), ids[GROUPS][8];
  const char *params = recv_params[i / IDS % RD2H_COUNT(recv_params)];
  struct rd2h_error err;
  struct rd2h_block_table t;
  uint64_t prompt, tokens;
  switch (op) {
  case 0:
    prompt = byte_of(in);
    rd2h_decode_half_matched(s, id_of(i), params, prompt, byte_of(in), &tokens, &err);
    break;
  case 1:
    t = blocks_of(in, ids);
    prompt = byte_of(in);
    rd2h_decode_half_alloc(s, id_of(i), params, prompt, byte_of(in), &t, &err);
    break;
  case 2:
    if (posted[i % IDS])
      rd2h_decode_half_answer(s, id_of(i), i & 64 ? RD2H_OK : RD2H_REFUSED, "said the fuzzer", true);
    posted[i % IDS] = false;
    break;
  case 3:
    rd2h_decode_half_finish(s, id_of(i));
    break;
  case 4:
    rd2h_decode_half_received(s, id_of(i), i & 64);
    break;
  default:
    check_decode_step(s);
  }
}

static void decode(struct input *in) {
  struct rd2h_decode_scheduler_opts o = {.size = sizeof o, .n_groups = GROUPS, .block_size = {4, 8}, .indexer_group = 1,
                                         .host = "10.0.0.1", .kv_port = 7000, .tp_size = 2, .engine_id = "d"};
  struct rd2h_post p = {.post = post, .cancel = cancel};
  rd2h_decode_half *s;
  struct rd2h_error err;
  memset(posted, 0, sizeof posted);
  if (rd2h_decode_half_create(&o, &p, &s, &err))
    abort();
  while (in->p < in->end)
    decode_call(s, in);
  for (uint32_t i = 0; i < IDS; i++)
    rd2h_decode_half_finish(s, id_of(i));
  check_decode_step(s);
  for (uint32_t i = 0; i < IDS; i++)
    rd2h_decode_half_received(s, id_of(i), false);
  if (rd2h_decode_half_waiting(s))
    abort();
  rd2h_decode_half_destroy(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct input in = {data + 1, data + size};
  if (size > 1)
    (data[0] & 1 ? prefill : decode)(&in);
  return 0;
}
