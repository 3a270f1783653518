/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_PARAMS_H
#define RD2H_PARAMS_H
/* kv_transfer_params: JSON of an engine's request -> what the scheduler halves need of it. */
#include "base/base.h"
#include "scheduler/step.h"

#define RD2H_PARAMS_MAX_TOKENS INT32_MAX

/* Prefill's: where the Decode that wants this request listens. */
struct rd2h_send_params {
  bool wanted; /* do_remote_decode; all else is unset without it */
  char *host, *engine_id; /* owned; engine_id with "/<incarnation>" appended where it is known */
  char *ext_id; /* owned; the id that Decode knows the request by where it says so, else NULL: Prefill's own external id */
  uint32_t base_port, d_tp; /* d_tp 0: not said */
  uint32_t cached_tokens;   /* Decode holds these already */
  bool has_attempt, has_dspark;
  uint8_t attempt[RD2H_ATTEMPT_LEN];
};
/* json may be NULL: nothing wanted. Of a prompt list's params those of ext_id are taken. */
int rd2h_send_params_read(const char *json, struct rd2h_str ext_id, struct rd2h_send_params *, struct rd2h_error *);
void rd2h_send_params_free(struct rd2h_send_params *);

/* Decode's: whether to pull, and whom to tell. */
struct rd2h_recv_params {
  bool wanted; /* do_remote_prefill */
  bool is_virtual;
  char *metaserver; /* owned, NULL when there is none */
};
int rd2h_recv_params_read(const char *json, struct rd2h_recv_params *, struct rd2h_error *);
void rd2h_recv_params_free(struct rd2h_recv_params *);

/* The rendezvous body: one JSON object, compact, appended to the buffer (not NUL-terminated). */
struct rd2h_rendezvous_body {
  struct rd2h_str ext_id;
  const char *engine_id, *host;
  uint32_t base_port, tp_size;
  uint64_t cached_tokens;
  const uint8_t *attempt, *incarnation; /* RD2H_ATTEMPT_LEN each */
};
int rd2h_rendezvous_body_write(const struct rd2h_rendezvous_body *, struct rd2h_buf *, struct rd2h_error *);
#endif
