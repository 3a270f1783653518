/* SPDX-License-Identifier: Apache-2.0 */
/* Decode's scheduler object: the pure half and the rendezvous client that carries out its posts. */
#include "rendezvous/rendezvous.h"
#include "scheduler/scheduler.h"

#define RESULTS_AT_ONCE 32u

struct rd2h_decode_scheduler {
  rd2h_decode_half *half;
  rd2h_rendezvous *rendezvous;
};

static int post(void *ctx, const char *id, const char *url, const char *body, size_t len, struct rd2h_error *err) {
  rd2h_decode_scheduler *s = ctx;
  return rd2h_rendezvous_post(s->rendezvous, id, url, body, len, err);
}

static void cancel(void *ctx, const char *id) {
  rd2h_decode_scheduler *s = ctx;
  rd2h_rendezvous_cancel(s->rendezvous, id);
}

int rd2h_decode_scheduler_create(const struct rd2h_decode_scheduler_opts *o, rd2h_decode_scheduler **out,
                                 struct rd2h_error *err) {
  rd2h_decode_scheduler *s = rd2h_zalloc(sizeof *s);
  if (!s)
    return rd2h_nomem(err, "Decode's scheduler");
  const struct rd2h_post table = {s, post, cancel};
  int rc = rd2h_decode_half_create(o, &table, &s->half, err);
  if (rc)
    goto free_object;
  const struct rd2h_rendezvous_opts r = {.connect_timeout_ms = o->connect_timeout_ms, .max_attempts = o->max_attempts,
                                         .answer_timeout_ms = o->answer_timeout_ms, .max_inflight = o->max_inflight,
                                         .legacy_metaserver = o->legacy_metaserver, .ca = o->rendezvous_ca};
  rc = rd2h_rendezvous_create(&r, &s->rendezvous, err);
  if (rc)
    goto destroy_half;
  *out = s;
  return RD2H_OK;
destroy_half:
  rd2h_decode_half_destroy(s->half);
free_object:
  rd2h_free(s);
  return rc;
}

void rd2h_decode_scheduler_destroy(rd2h_decode_scheduler *s) {
  if (!s)
    return;
  rd2h_decode_half_destroy(s->half);
  rd2h_rendezvous_destroy(s->rendezvous);
  rd2h_free(s);
}

int rd2h_decode_scheduler_matched(rd2h_decode_scheduler *s, const char *id, const char *params, uint64_t prompt_tokens,
                                  uint64_t computed, uint64_t *tokens, struct rd2h_error *err) {
  return rd2h_decode_half_matched(s->half, id, params, prompt_tokens, computed, tokens, err);
}

int rd2h_decode_scheduler_alloc(rd2h_decode_scheduler *s, const char *id, const char *params, uint64_t prompt_tokens,
                                uint64_t external, const struct rd2h_block_table *blocks, struct rd2h_error *err) {
  return rd2h_decode_half_alloc(s->half, id, params, prompt_tokens, external, blocks, err);
}

static void take_answers(rd2h_decode_scheduler *s) {
  struct rd2h_rendezvous_result res[RESULTS_AT_ONCE];
  uint32_t n;
  do {
    n = rd2h_rendezvous_poll(s->rendezvous, res, RESULTS_AT_ONCE);
    for (uint32_t i = 0; i < n; i++) {
      /* legacy_metaserver takes any answer as delivered, but only a good one says that Prefill has finished. */
      rd2h_decode_half_answer(s->half, res[i].id, res[i].status, res[i].text, res[i].http >= 200 && res[i].http < 300);
      rd2h_free(res[i].id);
      rd2h_free(res[i].text);
    }
  } while (n == RESULTS_AT_ONCE);
}

int rd2h_decode_scheduler_step_end(rd2h_decode_scheduler *s, struct rd2h_bytes *out, struct rd2h_error *err) {
  take_answers(s);
  return rd2h_decode_half_step_end(s->half, out, err);
}

void rd2h_decode_scheduler_finish(rd2h_decode_scheduler *s, const char *id) {
  rd2h_decode_half_finish(s->half, id);
}

void rd2h_decode_scheduler_received(rd2h_decode_scheduler *s, const char *id, bool failed) {
  rd2h_decode_half_received(s->half, id, failed);
}

int rd2h_decode_scheduler_fd(const rd2h_decode_scheduler *s) {
  return rd2h_rendezvous_fd(s->rendezvous);
}

uint32_t rd2h_decode_scheduler_waiting(const rd2h_decode_scheduler *s) {
  return rd2h_decode_half_waiting(s->half);
}
