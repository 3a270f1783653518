/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_STEP_H
#define RD2H_STEP_H
/* What a scheduler half tells the workers of its engine for one step, as bytes (msgpack, revision in front). Pure. Both halves
 * are of one version of the library: another revision is refused by name, never guessed at. Views point into bytes and arena. */
#include "base/base.h"

#define RD2H_STEP_REVISION 2u
#define RD2H_ATTEMPT_LEN 16u
#define RD2H_STEP_MAX_ID 1024u     /* bytes of a request id, internal or external */
#define RD2H_STEP_MAX_HOST 255u
#define RD2H_STEP_MAX_ENGINE 1024u

/* One request that publishes blocks in this step (or only ends, with empty lists). */
struct rd2h_step_send {
  struct rd2h_str id, ext_id;
  struct rd2h_str host;      /* Decode's control address */
  uint32_t base_port, d_tp;  /* rank r listens at base_port + r; d_tp 0: Decode has not said, as many ranks as Prefill has */
  struct rd2h_str engine_id; /* Decode's, with "/<incarnation>" where the rendezvous names it: another one at the same
                                address is a new incarnation */
  bool has_attempt;          /* the rendezvous came from a Decode that knows the extension */
  bool has_dspark;           /* it carried dspark_context_generation: never send poison batches */
  uint8_t attempt[RD2H_ATTEMPT_LEN];
  const uint32_t *main, *indexer;
  uint32_t n_main, n_indexer, main_start, indexer_start;
  bool last;                 /* the finishing chunk: after it the request is complete at Prefill */
};
struct rd2h_step_ref {
  struct rd2h_str id;
  bool aborted;
};
struct rd2h_prefill_step_view {
  uint32_t n_send, n_finished, n_preempted;
  struct rd2h_step_send *send;
  struct rd2h_step_ref *finished;  /* the engine is done with them: report when settled */
  struct rd2h_step_ref *preempted; /* blocks about to be taken away */
};

struct rd2h_step_install {
  struct rd2h_str id, ext_id;
  uint8_t attempt[RD2H_ATTEMPT_LEN];
  const uint32_t *main, *indexer;
  uint32_t n_main, n_indexer, main_floor, indexer_floor, main_need, indexer_need;
};
struct rd2h_step_end {
  struct rd2h_str id;
  /* An install of this id went out in an earlier step. A worker that does not know the id then has reported it already and does
   * nothing; without the flag it has never heard of it and reports it now: either way every worker reports every id once. */
  bool installed;
  int status; /* ABORTED, or why the rendezvous failed */
  struct rd2h_str text;
};
struct rd2h_decode_step_view {
  uint32_t n_install, n_end, n_answered;
  struct rd2h_step_install *install;
  struct rd2h_step_end *end;
  struct rd2h_str *answered; /* ids whose rendezvous says that Prefill has finished: what is not there soon does not come */
};

void rd2h_step_encode_prefill(struct rd2h_buf *, const struct rd2h_prefill_step_view *);
void rd2h_step_encode_decode(struct rd2h_buf *, const struct rd2h_decode_step_view *);
/* The arena is reserved by the decoder as needed. OK, MALFORMED, UNSUPPORTED (other revision), NOMEM. An empty payload is an
 * empty step. */
int rd2h_step_decode_prefill(const uint8_t *p, size_t n, struct rd2h_arena *, struct rd2h_prefill_step_view *,
                             struct rd2h_error *);
int rd2h_step_decode_decode(const uint8_t *p, size_t n, struct rd2h_arena *, struct rd2h_decode_step_view *, struct rd2h_error *);
#endif
