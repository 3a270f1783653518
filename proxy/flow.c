/* SPDX-License-Identifier: Apache-2.0 */
#include "proxy/flow_inner.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

const char *const rd2h_px_phase_name[PX_PHASES] = {
  [PX_WAIT_RENDEZVOUS] = "waiting for rendezvous", [PX_IN_PREFILL] = "in Prefill", [PX_WAIT_FIRST] = "waiting for Decode",
  [PX_STREAMING] = "streaming", [PX_WAIT_RETRY] = "between attempts",
};

/* ---- ids ---- */
static size_t bucket(struct px_span uuid) {
  uint32_t h = 2166136261u;
  for (size_t i = 0; i < uuid.n; i++)
    h = (h ^ (unsigned char)uuid.p[i]) * 16777619u;
  return h & 1023;
}

struct px_parent *rd2h_px_parent_find(struct px_flow *f, struct px_span uuid) {
  for (struct px_parent *p = f->table[bucket(uuid)]; p; p = p->hash_next)
    if (px_equal(px_str(p->uuid), uuid))
      return p;
  return NULL;
}

void rd2h_px_parent_unlist(struct px_parent *p) {
  if (!p->listed)
    return;
  p->listed = false;
  struct px_parent **at = &p->flow->table[bucket(px_str(p->uuid))];
  while (*at != p)
    at = &(*at)->hash_next;
  *at = p->hash_next;
}

static void hex(const uint8_t *in, size_t n, char *out) {
  for (size_t i = 0; i < n; i++)
    snprintf(out + 2 * i, 3, "%02x", in[i]);
}

static void write_uuid(uint8_t b[16], char out[37]) {
  char h[33];
  b[6] = (b[6] & 0x0F) | 0x40;
  b[8] = (b[8] & 0x3F) | 0x80;
  hex(b, 16, h);
  snprintf(out, 37, "%.8s-%.4s-%.4s-%.4s-%.12s", h, h + 8, h + 12, h + 16, h + 20);
}

bool rd2h_px_parent_renew(struct px_parent *p) {
  struct px_flow *f = p->flow;
  uint8_t r[32];
  rd2h_px_parent_unlist(p);
  if (!f->io->random(f->ctx, r, sizeof r))
    return false;
  write_uuid(r, p->uuid);
  hex(r + 16, 16, p->token);
  size_t b = bucket(px_str(p->uuid));
  p->hash_next = f->table[b];
  f->table[b] = p;
  p->listed = true;
  for (uint32_t i = 0; i < p->n_child; i++) {
    p->child[i].posted = false;
    rd2h_px_clear(&p->child[i].params);
  }
  p->n_posted = p->n_prefilled = 0;
  if (!p->continuations) {
    p->cached_known = false;
    p->cached = 0;
  }
  p->each = f->limits.mode == PX_DISPATCH_EACH;
  p->prefill_failed = false;
  p->grace_at = 0;
  return true;
}

/* ---- errors ---- */
static void send_error(struct px_parent *p, int status, struct px_span message) {
  struct px_flow *f = p->flow;
  struct px_buf body = {0};
  if (p->begun)
    rd2h_px_puts(&body, "data: ");
  rd2h_px_error_body(&body, status, message);
  if (p->begun) {
    rd2h_px_puts(&body, "\n\n");
    f->io->data(f->ctx, p->client, px_of(&body));
    f->io->end(f->ctx, p->client);
  } else {
    struct px_reply r = {.status = status, .body = px_of(&body)};
    if (status == 503)
      r.retry_after = PX_LIT("1");
    f->io->reply(f->ctx, p->client, &r);
  }
  rd2h_px_free(&body);
}

void rd2h_px_parent_fail(struct px_parent *p, int status, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(p->error, sizeof p->error, format, args);
  va_end(args);
  p->status = status;
  send_error(p, status, px_str(p->error));
  rd2h_px_parent_end(p);
}

void rd2h_px_parent_fail_with(struct px_parent *p, const struct px_leg *leg) {
  const struct px_reply r = {.status = leg->status, .type = px_str(leg->type), .retry_after = px_str(leg->retry_after),
                             .body = px_of(&leg->answer)};
  p->status = leg->status;
  p->flow->io->reply(p->flow->ctx, p->client, &r);
  rd2h_px_parent_end(p);
}

/* ---- life of a parent ---- */
static void parent_free(struct px_parent *p) {
  for (uint32_t i = 0; i < p->n_child; i++)
    rd2h_px_free(&p->child[i].params);
  free(p->child);
  rd2h_px_leg_free(&p->decode);
  rd2h_px_free(&p->body);
  rd2h_px_free(&p->current);
  rd2h_px_scan_free(&p->scan);
  rd2h_px_scan_free(&p->current_scan);
  rd2h_px_free(&p->text);
  rd2h_px_free(&p->first_id);
  rd2h_px_sse_free(&p->sse);
  free(p);
}

void rd2h_px_parent_end(struct px_parent *p) {
  struct px_flow *f = p->flow;
  if (p->gone)
    *p->gone = true;
  rd2h_px_leg_cancel(&p->decode);
  rd2h_px_prefill_drop_all(p, p->prefill_failed ? 502 : 404, p->prefill_failed ? "Prefill failed" : "the request has ended");
  rd2h_px_parent_unlist(p);
  *p->back = p->next;
  if (p->next)
    p->next->back = p->back;
  f->parents--;
  f->children -= p->n_child;
  f->io->done(f->ctx, p->client, p);
  parent_free(p);
}

static struct px_parent *parent_new(struct px_flow *f, void *client, const struct px_ask *ask, struct px_buf *body, struct px_scan *scan) {
  struct px_parent *p = calloc(1, sizeof *p);
  if (!p)
    return NULL;
  p->n_child = ask->prompts * ask->n;
  p->child = calloc(p->n_child, sizeof *p->child);
  if (!p->child) {
    free(p);
    return NULL;
  }
  p->flow = f;
  p->client = client;
  p->ask = *ask;
  p->body = *body;
  p->scan = *scan;
  *body = (struct px_buf){0};
  *scan = (struct px_scan){0};
  for (uint32_t i = 0; i < p->n_child; i++)
    p->child[i].parent = p;
  p->next = f->first;
  p->back = &f->first;
  if (f->first)
    f->first->back = &p->next;
  f->first = p;
  f->parents++;
  f->children += p->n_child;
  return p;
}

static void refuse(struct px_flow *f, void *client, int status, struct px_span why) {
  struct px_buf body = {0};
  rd2h_px_error_body(&body, status, why);
  f->io->reply(f->ctx, client, &(struct px_reply){.status = status, .body = px_of(&body),
                                                  .retry_after = status == 503 ? PX_LIT("1") : PX_LIT("")});
  rd2h_px_free(&body);
  f->io->done(f->ctx, client, NULL);
}

struct px_parent *rd2h_px_flow_request(struct px_flow *f, void *client, enum px_api api, struct px_buf *body, struct px_scan *scan,
                                       int64_t now) {
  struct px_buf why = {0};
  struct px_ask ask;
  f->now = now;
  int status = rd2h_px_ask_read(px_of(body), scan, api, f->limits.max_children, &ask, &why);
  if (!status && f->children + (size_t)ask.prompts * ask.n > f->limits.max_open_children) {
    rd2h_px_puts(&why, "too many prompts, times n, under way (max-open-children)");
    status = 503;
  }
  struct px_parent *p = status ? NULL : parent_new(f, client, &ask, body, scan);
  if (!p) {
    refuse(f, client, status ? status : 503, status ? px_of(&why) : PX_LIT("memory ran out"));
    rd2h_px_free(&why);
    return NULL;
  }
  p->started = p->touched = now;
  bool gone = false;
  p->gone = &gone;
  rd2h_px_decode_start(p);
  if (gone)
    return NULL;
  p->gone = NULL;
  return p;
}

void rd2h_px_flow_client_gone(struct px_flow *f, struct px_parent *p, int64_t now) {
  f->now = now;
  p->status = 499;
  snprintf(p->error, sizeof p->error, "the client hung up while %s", rd2h_px_phase_name[p->phase]);
  rd2h_px_parent_end(p);
}

void rd2h_px_flow_stop(struct px_flow *f, int64_t now) {
  f->now = now;
  while (f->first)
    rd2h_px_parent_fail(f->first, 503, "the proxy is shutting down");
}

/* ---- what engines say ---- */
void rd2h_px_flow_leg_data(struct px_flow *f, struct px_leg *leg, struct px_span s, int64_t now) {
  f->now = now;
  leg->parent->touched = leg->engine->heard_at = now;
  if (leg->role == PX_DECODE)
    rd2h_px_decode_data(leg->parent, s);
  else
    rd2h_px_leg_keep(leg, s); /* what is longer than max_answer is cut off: nothing of it is needed but counts and errors */
}

void rd2h_px_flow_leg_done(struct px_flow *f, struct px_leg *leg, const char *error, int64_t now) {
  f->now = now;
  leg->parent->touched = now;
  bool changed = error && !leg->status ? rd2h_px_engine_bad(f->pool, leg->engine, now) : !error && rd2h_px_engine_good(leg->engine);
  if (changed)
    f->io->note(f->ctx, leg->parent, error ? "engine is left out: requests to it fail" : "engine is back");
  leg->engine->served += !error;
  leg->engine->heard_at = error ? leg->engine->heard_at : now;
  leg->engine->failed += error != NULL;
  if (leg->role == PX_DECODE)
    rd2h_px_decode_done(leg->parent, error);
  else
    rd2h_px_prefill_done(leg->dispatch, error);
}

/* ---- time ---- */
static int64_t phase_limit(const struct px_parent *p) {
  const struct px_limits *l = &p->flow->limits;
  const int64_t limit[PX_PHASES] = {
    [PX_WAIT_RENDEZVOUS] = l->rendezvous_ms, [PX_IN_PREFILL] = l->prefill_ms,
    [PX_WAIT_FIRST] = p->ask.stream ? l->first_ms : l->total_ms, [PX_STREAMING] = l->idle_ms, [PX_WAIT_RETRY] = l->total_ms,
  };
  return limit[p->phase];
}

/* Whether the parent is still there. */
static bool tick_parent(struct px_parent *p) {
  struct px_flow *f = p->flow;
  bool total = f->now >= p->started + f->limits.total_ms;
  if (total || (!p->held_back && f->now >= p->touched + phase_limit(p))) {
    rd2h_px_parent_fail(p, 504, "%s for %lld ms: given up", rd2h_px_phase_name[p->phase],
                        (long long)(f->now - (total ? p->started : p->touched)));
    return false;
  }
  if (p->grace_at && f->now >= p->grace_at) {
    rd2h_px_parent_fail(p, 502, "%s", strdupa(p->error));
    return false;
  }
  return true;
}

static void tick_retries(struct px_parent *p) {
  struct px_flow *f = p->flow;
  for (struct px_dispatch *d = p->dispatches; d; d = d->next)
    if (d->state == PX_BETWEEN_ATTEMPTS && f->now >= d->retry_at) {
      f->io->wake(f->ctx, f->now + 1); /* for others of this parent, which may be gone after the next line */
      rd2h_px_prefill_retry(d);
      return;
    }
  if (p->phase == PX_WAIT_RETRY && f->now >= p->retry_at)
    rd2h_px_decode_start(p);
}

void rd2h_px_flow_tick(struct px_flow *f, int64_t now) {
  f->now = now;
  for (struct px_parent *p = f->first, *after; p; p = after) {
    after = p->next;
    if (tick_parent(p))
      tick_retries(p);
  }
}
