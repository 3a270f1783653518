/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_SRC_SCHEDULER_H
#define RD2H_SRC_SCHEDULER_H
/* The scheduler halves; pure. Prefill's is the public object (rd2h/scheduler.h). Decode's has one effect, posting a rendezvous,
 * and takes it as a table, so that the public object, tests and the simulation each bring their own. */
#include "base/base.h"
#include "scheduler/step.h"
#include <rd2h/scheduler.h>

/* Whether chunks of the request are still to be published. */
bool rd2h_prefill_scheduler_tracks(const rd2h_prefill_scheduler *, const char *id);

struct rd2h_post {
  void *ctx;
  /* Queues the POST; an answer comes by rd2h_decode_half_answer, never from inside. */
  int (*post)(void *ctx, const char *id, const char *url, const char *body, size_t len, struct rd2h_error *);
  /* After it returns no answer comes for the id; unknown ids are ignored. */
  void (*cancel)(void *ctx, const char *id);
};
typedef struct rd2h_decode_half rd2h_decode_half;
/* Functions without a comment are those of rd2h_decode_scheduler_*. */
int rd2h_decode_half_create(const struct rd2h_decode_scheduler_opts *, const struct rd2h_post *, rd2h_decode_half **,
                            struct rd2h_error *);
void rd2h_decode_half_destroy(rd2h_decode_half *); /* posts nothing, cancels nothing */
int rd2h_decode_half_matched(rd2h_decode_half *, const char *id, const char *params, uint64_t prompt_tokens, uint64_t computed,
                             uint64_t *tokens, struct rd2h_error *);
int rd2h_decode_half_alloc(rd2h_decode_half *, const char *id, const char *params, uint64_t prompt_tokens, uint64_t external,
                           const struct rd2h_block_table *, struct rd2h_error *);
/* The rendezvous of a request was answered or given up: anything but OK ends the request. */
void rd2h_decode_half_answer(rd2h_decode_half *, const char *id, int status, const char *text, bool finished);
int rd2h_decode_half_step_end(rd2h_decode_half *, struct rd2h_bytes *, struct rd2h_error *);
void rd2h_decode_half_finish(rd2h_decode_half *, const char *id);
void rd2h_decode_half_received(rd2h_decode_half *, const char *id, bool failed);
uint32_t rd2h_decode_half_waiting(const rd2h_decode_half *);
#endif
