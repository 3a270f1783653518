/* SPDX-License-Identifier: Apache-2.0 */
/* Rendezvous and the requests to Prefill: one for the whole list when all children have posted, or one for each as it posts. */
#include "proxy/flow_inner.h"

#include <stdio.h>
#include <stdlib.h>

static const char *const PATH[] = {[PX_COMPLETIONS] = "/v1/completions", [PX_CHAT] = "/v1/chat/completions"};

/* ---- answers to rendezvous ---- */
static void answer_child(struct px_child *c, int status, struct px_span body) {
  struct px_flow *f = c->parent->flow;
  for (struct px_waiter *w = c->waiters, *next; w; w = next) {
    next = w->next;
    f->io->answer(f->ctx, w->rendezvous, status, body);
    free(w);
  }
  c->waiters = NULL;
}

static void answer_all(struct px_parent *p, const struct px_dispatch *only, int status, const char *why) {
  struct px_buf body = {0};
  if (status == 200)
    rd2h_px_puts(&body, "{\"status\":\"ok\"}");
  else
    rd2h_px_error_body(&body, status, px_str(why));
  for (uint32_t i = 0; i < p->n_child; i++)
    if (!only || p->child[i].dispatch == only)
      answer_child(p->child + i, status, px_of(&body));
  rd2h_px_free(&body);
}

/* ---- a dispatch ---- */
static bool params_of_all(struct px_parent *p, struct px_buf *out) {
  struct px_buf batch = {0};
  bool chat = p->ask.api == PX_CHAT;
  for (uint32_t i = 0; i < p->n_child; i++) {
    rd2h_px_puts(&batch, i ? ",\"" : "{\"");
    if (p->ask.n > 1)
      rd2h_px_printf(&batch, "%u_", i % p->ask.n);
    rd2h_px_printf(&batch, chat ? "chatcmpl-%s\":" : "cmpl-%s-%u\":", p->uuid, i / p->ask.n);
    rd2h_px_put(&batch, px_of(&p->child[i].params));
  }
  rd2h_px_puts(&batch, "}");
  const struct px_rule rule = {"batch_kv_transfer_params", PX_SET, px_of(&batch)};
  rd2h_px_json_edit(px_of(&p->child[0].params), &rule, 1, out);
  bool good = !batch.failed && !out->failed;
  rd2h_px_free(&batch);
  return good;
}

static bool make_body(struct px_dispatch *d) {
  struct px_parent *p = d->parent;
  struct px_buf params = {0};
  bool good = true;
  const struct px_scan *scan = px_parent_scan(p);
  if (d->child < 0 && p->n_child > 1) {
    good = params_of_all(p, &params);
    rd2h_px_body_prefill(px_parent_body(p), scan, px_of(&params), -1, &d->leg.body);
  } else {
    struct px_child *c = p->child + (d->child < 0 ? 0 : d->child);
    rd2h_px_body_prefill(px_parent_body(p), scan, px_of(&c->params), d->child < 0 ? -1 : d->child / p->ask.n, &d->leg.body);
  }
  rd2h_px_free(&params);
  return good && !d->leg.body.failed;
}

static void fail(struct px_dispatch *d, const char *why);

static void start(struct px_dispatch *d) {
  struct px_parent *p = d->parent;
  struct px_flow *f = p->flow;
  struct px_engine *e = rd2h_px_pool_pick(f->pool, PX_PREFILL, d->tried);
  if (!e || !make_body(d)) {
    fail(d, e ? "memory ran out" : "no Prefill engine is in service");
    return;
  }
  double cost = rd2h_px_cost(PX_PREFILL, d->leg.body.n);
  d->attempt++;
  d->tried |= px_engine_bit(e);
  d->state = PX_PENDING;
  d->leg.role = PX_PREFILL;
  d->leg.parent = p;
  d->leg.dispatch = d;
  d->leg.path = PATH[p->ask.api];
  d->leg.limit_ms = f->limits.prefill_ms;
  if (d->child < 0)
    snprintf(d->leg.id, sizeof d->leg.id, "%s", p->uuid);
  else
    snprintf(d->leg.id, sizeof d->leg.id, "%s-%lld", p->uuid, (long long)d->child);
  snprintf(p->prefill_name, sizeof p->prefill_name, "%s", e->name);
  if (!p->prefill_began)
    p->prefill_began = f->now;
  if (!rd2h_px_leg_start(&d->leg, e, cost)) {
    fail(d, "a request to Prefill could not be made: memory or descriptors ran out");
    return;
  }
  d->kv_engine = e;
  d->kv = cost;
  rd2h_px_engine_kv(e, cost);
}

static void give_kv(struct px_dispatch *d) {
  struct px_engine *e = d->kv_engine;
  if (!e)
    return;
  d->kv_engine = NULL;
  rd2h_px_engine_kv(e, -d->kv);
  if (e->draining && e->requests == 0)
    rd2h_px_pool_remove(d->parent->flow->pool, e);
}

static void dispatch_free(struct px_dispatch *d) {
  rd2h_px_leg_cancel(&d->leg);
  give_kv(d);
  rd2h_px_leg_free(&d->leg);
  d->parent->flow->dispatches--;
  free(d);
}

/* After the last attempt. A later rendezvous may try again within the grace time; then the client learns of it. */
static void fail(struct px_dispatch *d, const char *why) {
  struct px_parent *p = d->parent;
  struct px_flow *f = p->flow;
  /* That it is full (503) the client is told when no other engine was better. */
  bool refused = (d->leg.status >= 400 && d->leg.status < 500) || d->leg.status == 503;
  give_kv(d);
  d->state = PX_FAILED;
  p->prefill_failed = true;
  snprintf(p->error, sizeof p->error, "Prefill failed%s%s: %.150s", d->leg.engine ? " on " : "", p->prefill_name, why);
  f->io->note(f->ctx, p, p->error);
  if (refused && !p->begun) {
    rd2h_px_parent_fail_with(p, &d->leg);
    return;
  }
  p->grace_at = f->now + f->limits.grace_ms;
  f->io->wake(f->ctx, p->grace_at);
  answer_all(p, d, 502, p->error);
}

static void succeed(struct px_dispatch *d) {
  struct px_parent *p = d->parent;
  d->state = PX_SUCCEEDED;
  rd2h_px_usage_note(p, d);
  p->n_prefilled += d->child < 0 ? p->n_child : 1;
  if (p->n_prefilled >= p->n_child) {
    p->prefilled_at = p->flow->now;
    if (p->phase < PX_WAIT_FIRST)
      p->phase = PX_WAIT_FIRST;
  }
  answer_all(p, d, 200, NULL);
}

void rd2h_px_prefill_done(struct px_dispatch *d, const char *error) {
  struct px_parent *p = d->parent;
  struct px_flow *f = p->flow;
  char why[128];
  rd2h_px_leg_close(&d->leg);
  if (!error && d->leg.status == 200) {
    rd2h_px_scan_end(&d->leg.scan, px_of(&d->leg.answer));
    succeed(d);
    return;
  }
  if (error)
    snprintf(why, sizeof why, "%s", error);
  else
    snprintf(why, sizeof why, "it answered %d", d->leg.status);
  bool refused = d->leg.status >= 400 && d->leg.status < 500;
  if (refused || d->attempt >= f->limits.attempts) {
    fail(d, why);
  } else {
    f->io->note(f->ctx, p, why);
    give_kv(d);
    d->state = PX_BETWEEN_ATTEMPTS;
    d->retry_at = f->now + (f->limits.retry_ms << (d->attempt > 20 ? 20 : d->attempt - 1));
    f->io->wake(f->ctx, d->retry_at);
  }
}

void rd2h_px_prefill_retry(struct px_dispatch *d) {
  start(d);
}

static void dispatch(struct px_parent *p, int64_t child) {
  struct px_dispatch *d = calloc(1, sizeof *d);
  if (!d) {
    rd2h_px_parent_fail(p, 503, "memory ran out");
    return;
  }
  d->parent = p;
  d->child = child;
  d->next = p->dispatches;
  p->dispatches = d;
  p->flow->dispatches++;
  for (uint32_t i = 0; i < p->n_child; i++)
    if (child < 0 || (int64_t)i == child)
      p->child[i].dispatch = d;
  if (p->phase == PX_WAIT_RENDEZVOUS && p->n_posted == p->n_child)
    p->phase = PX_IN_PREFILL;
  start(d);
}

/* A rendezvous came that no dispatch pending or done covers. */
static void again(struct px_dispatch *d) {
  struct px_parent *p = d->parent;
  bool other = false;
  for (struct px_dispatch *o = p->dispatches; o; o = o->next)
    other = other || (o != d && o->state == PX_FAILED);
  if (!other) {
    p->grace_at = 0;
    p->prefill_failed = false;
  }
  d->attempt = 0;
  d->tried = 0;
  start(d);
}

void rd2h_px_prefill_posted(struct px_parent *p, struct px_child *c) {
  if (c->dispatch)
    again(c->dispatch);
  else if (p->n_child > 1 && p->each)
    dispatch(p, c - p->child);
  else if (p->n_posted == p->n_child)
    dispatch(p, -1);
}

void rd2h_px_prefill_drop_all(struct px_parent *p, int status, const char *why) {
  answer_all(p, NULL, status, why);
  for (struct px_dispatch *d = p->dispatches, *next; d; d = next) {
    next = d->next;
    dispatch_free(d);
  }
  p->dispatches = NULL;
  for (uint32_t i = 0; i < p->n_child; i++)
    p->child[i].dispatch = NULL;
}

void rd2h_px_prefill_kv_read(struct px_parent *p) {
  for (struct px_dispatch *d = p->dispatches; d; d = d->next)
    if (d->state == PX_SUCCEEDED)
      give_kv(d);
}
