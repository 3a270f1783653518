/* SPDX-License-Identifier: Apache-2.0 */
/* A request to an engine in the flow's books: the engine's load goes up when it starts and down once, however it ends. */
#include "proxy/flow_inner.h"

/* Of a whole answer: how many tokens it says there were, and whether the engine gave the request up. */
static const char *const NAME[] = {"usage", "choices", NULL};
static const struct px_scan_plan ANSWER = {.name = NAME, .in = "choices", .key = "stop_reason", .value = "recomputed"};

bool rd2h_px_leg_start(struct px_leg *leg, struct px_engine *e, double cost) {
  struct px_flow *f = leg->parent->flow;
  leg->engine = e;
  leg->cost = cost;
  leg->status = 0;
  leg->type[0] = leg->retry_after[0] = 0;
  rd2h_px_clear(&leg->answer);
  rd2h_px_scan_begin(&leg->scan, &ANSWER);
  leg->started = f->now;
  leg->open = true;
  rd2h_px_engine_take(e, cost);
  if (f->io->send(f->ctx, leg))
    return true;
  rd2h_px_leg_close(leg);
  return false;
}

bool rd2h_px_leg_keep(struct px_leg *leg, struct px_span s) {
  if (s.n > leg->parent->flow->limits.max_answer - leg->answer.n)
    leg->answer.failed = true;
  rd2h_px_put(&leg->answer, s);
  if (leg->status == 200 && !leg->answer.failed)
    rd2h_px_scan_more(&leg->scan, px_of(&leg->answer));
  return !leg->answer.failed;
}

void rd2h_px_leg_close(struct px_leg *leg) {
  if (!leg->open)
    return;
  leg->open = false;
  leg->wire = NULL;
  rd2h_px_rope_free(&leg->body);
  rd2h_px_engine_give(leg->parent->flow->pool, leg->engine, leg->cost);
}

void rd2h_px_leg_cancel(struct px_leg *leg) {
  struct px_flow *f;
  if (!leg->open)
    return;
  f = leg->parent->flow;
  f->io->cancel(f->ctx, leg);
  rd2h_px_leg_close(leg);
}

void rd2h_px_leg_free(struct px_leg *leg) {
  rd2h_px_rope_free(&leg->body);
  rd2h_px_free(&leg->answer);
  rd2h_px_scan_free(&leg->scan);
}

bool rd2h_px_leg_worth_a_retry(const struct px_leg *leg) {
  return leg->status == 0 || (leg->status >= 502 && leg->status <= 504);
}
