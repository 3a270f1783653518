/* SPDX-License-Identifier: Apache-2.0 */
/* Reads that are tried again: same source, same destinations, only while Prefill holds the source and somebody waits for it. */
#include "worker/decode_worker.h"

#define FIRST_REST (10 * RD2H_MS)

void dw_retry_rest(rd2h_dw *w, struct dw_batch *b) {
  b->due = w->now + (FIRST_REST << b->retries);
  b->next = w->resting;
  w->resting = b;
  w->count.retried++;
}

bool dw_retry_later(rd2h_dw *w, struct dw_batch *b, int status) {
  if (status != RD2H_IO || b->retries >= w->o.read_retries || !rd2h_dm_batch_wanted(w->dm, b->handle))
    return false;
  dw_retry_rest(w, b);
  b->retries++;
  RD2H_DEBUG("decode rank %u: read of %u descriptors from %s failed: %s; tried again (%u of %u)", w->o.tp_rank, b->d.n,
             w->peer[b->peer]->session, rd2h_eng_last_error(w->eng, b->handle), b->retries, w->o.read_retries);
  return true;
}

static void take_out(rd2h_dw *w, struct dw_batch *b) {
  struct dw_batch **at = &w->resting;
  while (*at != b)
    at = &(*at)->next;
  *at = b->next;
  b->due = 0;
}

bool dw_retry_cancel(rd2h_dw *w, struct dw_batch *b) {
  if (!b->due)
    return false;
  take_out(w, b);
  return true;
}

uint64_t dw_retry_run(rd2h_dw *w) {
  uint64_t next = RD2H_NEVER;
  for (struct dw_batch *b = w->resting, *after; b; b = after) {
    after = b->next;
    if (b->due > w->now) {
      next = b->due < next ? b->due : next;
      continue;
    }
    take_out(w, b);
    dw_submit(w, b);
  }
  return next;
}
