/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_SCHEDULER_H
#define RD2H_SCHEDULER_H
/* The scheduler halves: no sockets but the rendezvous client's, no KV memory. What they decide in one engine step goes to every
 * worker of the engine as bytes, made by *_step_end and read by rd2h_prefill_step or rd2h_decode_step.
 * One object belongs to one thread. Request ids are the engine's internal ones. */
#include <rd2h/layout.h>
#include <stddef.h>
#ifdef __cplusplus
extern "C" {
#endif

#define RD2H_MAX_GROUPS 16
/* Block ids of one request, by KV group: ids[g] has count[g] entries. */
struct rd2h_block_table {
  uint32_t n_groups;
  const uint32_t *ids[RD2H_MAX_GROUPS];
  uint32_t count[RD2H_MAX_GROUPS];
};
struct rd2h_bytes {
  const uint8_t *p; /* valid until the next step_end on the object, or its destruction */
  size_t len;
};

/* The external id of an internal one: without its last 9 characters if they are "-" and 8 hex digits (or, with `strict` false,
 * whatever they are, as the reference does) and something remains. Returns its length. */
RD2H_API size_t rd2h_external_id_len(const char *id, bool strict);

/* ---- Prefill ------------------------------------------------------------------------------------------------------------- */
typedef struct rd2h_prefill_scheduler rd2h_prefill_scheduler;
struct rd2h_prefill_scheduler_opts {
  uint32_t size;
  uint32_t n_groups;
  uint32_t block_size[RD2H_MAX_GROUPS]; /* tokens of a block, by group */
  uint32_t main_group, indexer_group;
  bool loose_ids; /* cut 9 characters whatever they are (the reference's rule) */
};
RD2H_API int rd2h_prefill_scheduler_create(const struct rd2h_prefill_scheduler_opts *, rd2h_prefill_scheduler **, struct rd2h_error *);
RD2H_API void rd2h_prefill_scheduler_destroy(rd2h_prefill_scheduler *);
/* A request got blocks (again). params: its kv_transfer_params as JSON, or NULL. `blocks` is its whole table, cached blocks too,
 * and replaces what was known. Returns 1 when it is tracked (do_remote_decode with an endpoint), 0 when it is none of ours
 * (also a request without blocks), an error for params that cannot be served. */
RD2H_API int rd2h_prefill_scheduler_alloc(rd2h_prefill_scheduler *, const char *id, const char *params, uint64_t num_tokens,
                                          const struct rd2h_block_table *blocks, struct rd2h_error *);
RD2H_API void rd2h_prefill_scheduler_step_begin(rd2h_prefill_scheduler *);
/* One scheduled request of this step. computed: tokens computed before it; scheduled: tokens of this step; spec: how many of those
 * are speculative. more: blocks new in this step (appended), or, with `resumed`, the whole table (replaces). NULL: none. */
RD2H_API int rd2h_prefill_scheduler_step_add(rd2h_prefill_scheduler *, const char *id, uint64_t computed, uint64_t scheduled,
                                             uint64_t spec, const struct rd2h_block_table *more, bool resumed, struct rd2h_error *);
/* Blocks of this request are about to be taken away (preemption): workers wait for its reads before they go on. */
RD2H_API void rd2h_prefill_scheduler_step_preempted(rd2h_prefill_scheduler *, const char *id);
RD2H_API int rd2h_prefill_scheduler_step_end(rd2h_prefill_scheduler *, struct rd2h_bytes *, struct rd2h_error *);
/* The request has ended. Returns 1 when its blocks must be held until every worker reports it, else 0. */
RD2H_API int rd2h_prefill_scheduler_finish(rd2h_prefill_scheduler *, const char *id, bool aborted);
/* Every worker has reported it: blocks are free. */
RD2H_API void rd2h_prefill_scheduler_released(rd2h_prefill_scheduler *, const char *id);
/* Requests whose blocks are held at present. */
RD2H_API uint32_t rd2h_prefill_scheduler_held(const rd2h_prefill_scheduler *);

/* ---- Decode -------------------------------------------------------------------------------------------------------------- */
typedef struct rd2h_decode_scheduler rd2h_decode_scheduler;
struct rd2h_decode_scheduler_opts {
  uint32_t size;
  uint32_t n_groups;
  uint32_t block_size[RD2H_MAX_GROUPS];
  uint32_t main_group, indexer_group;
  const char *host;      /* advertised: where Prefill reaches the control sockets */
  uint32_t kv_port;      /* base_port = kv_port + dp_rank * tp_size */
  uint32_t dp_rank, tp_size;
  const char *engine_id; /* this engine's id, as the rendezvous names it */
  bool loose_ids;
  bool legacy_metaserver;      /* HTTP error answers count as delivered */
  uint32_t connect_timeout_ms; /* of one attempt; 0: 3000 */
  uint32_t max_attempts;       /* connect and send errors and 503 only; 0: 5, backed off from 100 ms, or by Retry-After */
  uint32_t answer_timeout_ms;  /* the answer may take as long as the request; 0: 600000 */
  uint32_t max_inflight;       /* rendezvous on the wire at once, more wait in order; 0: 4096 */
  const char *rendezvous_ca;   /* PEM file: the authorities that a metaserver's https is trusted by; NULL: the machine's own store */
};
RD2H_API int rd2h_decode_scheduler_create(const struct rd2h_decode_scheduler_opts *, rd2h_decode_scheduler **, struct rd2h_error *);
RD2H_API void rd2h_decode_scheduler_destroy(rd2h_decode_scheduler *);
/* Prompt tokens to pull beyond `computed`: 0 unless params ask for it (do_remote_prefill) or when it is pulled already.
 * Pure: may be asked any number of times. */
RD2H_API int rd2h_decode_scheduler_matched(rd2h_decode_scheduler *, const char *id, const char *params, uint64_t prompt_tokens,
                                           uint64_t computed, uint64_t *tokens, struct rd2h_error *);
/* Destinations were allocated: `blocks` is the whole table, `external` the tokens to pull. Records them, makes an attempt nonce,
 * posts the rendezvous (not with do_virtual). Repeats for a live request replace its blocks only when they differ, and never post
 * twice. Returns 1 when it waits for KV now, 0 when nothing is to be pulled, or an error: then the request will be reported failed
 * by the workers, and err says why. */
RD2H_API int rd2h_decode_scheduler_alloc(rd2h_decode_scheduler *, const char *id, const char *params, uint64_t prompt_tokens,
                                         uint64_t external, const struct rd2h_block_table *blocks, struct rd2h_error *);
/* What is new for the workers: installs, aborts, rendezvous that failed. */
RD2H_API int rd2h_decode_scheduler_step_end(rd2h_decode_scheduler *, struct rd2h_bytes *, struct rd2h_error *);
/* The request has ended in the engine (done, aborted, rejected); its rendezvous is canceled if it is still open. */
RD2H_API void rd2h_decode_scheduler_finish(rd2h_decode_scheduler *, const char *id);
/* All workers have reported it (finished receiving). */
RD2H_API void rd2h_decode_scheduler_received(rd2h_decode_scheduler *, const char *id, bool failed);
/* Readable when rendezvous results wait for a step_end; for engines that sleep. */
RD2H_API int rd2h_decode_scheduler_fd(const rd2h_decode_scheduler *);
RD2H_API uint32_t rd2h_decode_scheduler_waiting(const rd2h_decode_scheduler *);

#ifdef __cplusplus
}
#endif
#endif
