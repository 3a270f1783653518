/* SPDX-License-Identifier: Apache-2.0 */
/* The request to Decode: it opens the parent's flow, its answer is what the client gets. */
#include "proxy/flow_inner.h"

#include <stdio.h>

static const char *const PATH[] = {[PX_COMPLETIONS] = "/v1/completions", [PX_CHAT] = "/v1/chat/completions"};

static bool decode_body(struct px_parent *p) {
  struct px_flow *f = p->flow;
  struct px_buf url = {0};
  rd2h_px_printf(&url, "%s%s%s", f->metaserver, f->limits.tokens ? "?token=" : "", f->limits.tokens ? p->token : "");
  rd2h_px_body_decode(px_parent_body(p), px_parent_scan(p), px_of(&url), &p->decode.body);
  bool good = !url.failed && !p->decode.body.failed;
  rd2h_px_free(&url);
  return good;
}

static void later(struct px_parent *p) {
  struct px_flow *f = p->flow;
  uint32_t shift = p->attempt > 20 ? 20 : p->attempt - 1;
  rd2h_px_parent_unlist(p);
  rd2h_px_prefill_drop_all(p, 404, "Decode's request has ended");
  p->phase = PX_WAIT_RETRY;
  p->retry_at = f->now + (f->limits.retry_ms << shift);
  f->io->wake(f->ctx, p->retry_at);
}

void rd2h_px_decode_start(struct px_parent *p) {
  struct px_flow *f = p->flow;
  struct px_engine *e = rd2h_px_pool_pick(f->pool, PX_DECODE, p->tried);
  size_t bytes = px_parent_body(p).n;
  if (!e || rd2h_px_pool_count(f->pool, PX_PREFILL, true) == 0) {
    rd2h_px_parent_fail(p, 503, "no %s engine is in service%s%s", e ? "Prefill" : "Decode", p->error[0] ? "; the last one: " : "",
                        p->error[0] ? strdupa(p->error) : "");
    return;
  }
  p->attempt++;
  p->tried |= px_engine_bit(e);
  snprintf(p->decode_name, sizeof p->decode_name, "%s", e->name);
  if (!rd2h_px_parent_renew(p) || !decode_body(p)) {
    rd2h_px_parent_fail(p, 503, "memory ran out");
    return;
  }
  p->phase = PX_WAIT_RENDEZVOUS;
  p->touched = f->now;
  p->decode.role = PX_DECODE;
  p->decode.parent = p;
  p->decode.path = PATH[p->ask.api];
  p->decode.limit_ms = f->limits.total_ms;
  snprintf(p->decode.id, sizeof p->decode.id, "%s", p->uuid);
  if (!rd2h_px_leg_start(&p->decode, e, rd2h_px_cost(PX_DECODE, bytes)))
    rd2h_px_parent_fail(p, 503, "a request to Decode could not be made: memory or descriptors ran out");
}

/* ---- the answer ---- */
static bool is_stream(const struct px_leg *leg) {
  return leg->status == 200 && strncasecmp(leg->type, "text/event-stream", 17) == 0;
}

static void first_byte(struct px_parent *p) {
  if (!p->first_at)
    p->first_at = p->flow->now;
  rd2h_px_prefill_kv_read(p);
}

static void begin(struct px_parent *p) {
  const struct px_reply head = {.status = 200, .type = px_str(p->decode.type)};
  p->phase = PX_STREAMING;
  if (p->begun)
    return;
  p->begun = true;
  p->status = 200;
  p->flow->io->begin(p->flow->ctx, p->client, &head);
}

/* Whole events between two looks go out in one write. */
struct pass {
  struct px_parent *p;
  struct px_span ready;
};

static void flush(struct pass *pass) {
  struct px_parent *p = pass->p;
  if (pass->ready.n == 0)
    return;
  begin(p);
  p->bytes_out += pass->ready.n;
  p->flow->io->data(p->flow->ctx, p->client, pass->ready);
  pass->ready.n = 0;
}

/* An event's data or a whole answer as the client shall see it: of a continuation with the first part's id and the counts of all parts,
 * and with Prefill's counts. */
static void rewrite(const struct px_parent *p, struct px_span json, struct px_buf *out) {
  struct px_buf merged = {0};
  if (p->continuations) {
    rd2h_px_continue_rewrite(p, json, &merged);
    json = px_of(&merged);
  }
  if (rd2h_px_usage_differs(p, json))
    rd2h_px_usage_write(p, json, out);
  else
    rd2h_px_put(out, json);
  out->failed |= merged.failed;
  rd2h_px_free(&merged);
}

static bool rewritten_event(struct pass *pass, struct px_span data) {
  struct px_buf out = {0};
  flush(pass);
  rd2h_px_puts(&out, "data: ");
  rewrite(pass->p, data, &out);
  rd2h_px_puts(&out, "\n\n");
  bool good = !out.failed;
  pass->ready = px_of(&out);
  pass->ready.n = good ? out.n : 0;
  flush(pass);
  rd2h_px_free(&out);
  return good;
}

/* Longer ones hold more than text and are not looked into. */
enum { MAX_EVENT = 64 << 10 };

static bool on_event(void *ctx, struct px_span event) {
  struct pass *pass = ctx;
  struct px_parent *p = pass->p;
  struct px_buf scratch = {0};
  struct px_span data = PX_LIT("");
  bool recomputed = false;
  if (rd2h_px_sse_data(event, &scratch, &data)) {
    if (data.n > MAX_EVENT)
      p->cannot_continue = true;
    else
      rd2h_px_continue_note(p, data, &recomputed);
  }
  bool changes = data.n && data.n <= MAX_EVENT && *data.p == '{' && (p->continuations || rd2h_px_usage_differs(p, data));
  bool good = !changes || recomputed || rewritten_event(pass, data);
  rd2h_px_free(&scratch);
  if (recomputed) {
    p->wants_more = true;
    return false;
  }
  if (changes)
    return good;
  if (pass->ready.n == 0)
    pass->ready.p = event.p;
  pass->ready.n += event.n;
  return true;
}

static void continue_now(struct px_parent *p) {
  const char *why;
  p->wants_more = false;
  rd2h_px_leg_cancel(&p->decode);
  rd2h_px_prefill_drop_all(p, 404, "Decode's request has ended");
  rd2h_px_sse_free(&p->sse);
  rd2h_px_clear(&p->decode.answer);
  if (!rd2h_px_continue_body(p, &why)) {
    rd2h_px_parent_fail(p, 502, "Decode engine %s gave the request up after its beginning, and it cannot be continued: %s",
                        p->decode_name, why);
    return;
  }
  p->continuations++;
  p->attempt = 0;
  p->tried = 0;
  p->flow->io->note(p->flow->ctx, p, "Decode asked for a continuation");
  rd2h_px_decode_start(p);
}

static void stream_data(struct px_parent *p, struct px_span s) {
  struct pass pass = {.p = p};
  bool fed = rd2h_px_sse_feed(&p->sse, s, on_event, &pass);
  flush(&pass);
  if (p->wants_more)
    continue_now(p);
  else if (!fed)
    rd2h_px_parent_fail(p, 502, "Decode engine %s sent an event that is longer than %u bytes, or memory ran out", p->decode_name,
                        PX_SSE_MAX);
}

void rd2h_px_decode_data(struct px_parent *p, struct px_span s) {
  struct px_leg *leg = &p->decode;
  if (leg->status == 200)
    first_byte(p);
  if (is_stream(leg)) {
    stream_data(p, s);
    return;
  }
  if (!rd2h_px_leg_keep(leg, s))
    rd2h_px_parent_fail(p, 502, "Decode engine %s answers with more than %llu bytes (raise max-answer), or memory ran out",
                        leg->engine->name, (unsigned long long)p->flow->limits.max_answer);
}

/* ---- its end ---- */
/* The answer as it is, but for the counts that are Prefill's to give. */
static void with_counts(const struct px_parent *p, struct px_reply *r, struct px_buf *usage) {
  struct px_span v;
  if (!p->cached_known || !rd2h_px_scan_get(&p->decode.scan, r->body, "usage", &v) || !rd2h_px_usage_edit(p, v, usage))
    return;
  r->cut = (size_t)(v.p - r->body.p);
  r->cut_n = v.n;
  r->instead = px_of(usage);
}

static void reply_whole(struct px_parent *p, bool json) {
  struct px_leg *leg = &p->decode;
  struct px_buf own = {0};
  struct px_reply r = {.status = leg->status, .type = px_str(leg->type), .retry_after = px_str(leg->retry_after),
                       .body = px_of(&leg->answer), .from = &leg->answer};
  if (json && p->continuations) {
    rewrite(p, r.body, &own);
    r.body = px_of(&own);
    r.from = &own;
  } else if (json) {
    with_counts(p, &r, &own);
  }
  if (own.failed) {
    rd2h_px_free(&own);
    rd2h_px_parent_fail(p, 503, "memory ran out");
    return;
  }
  p->status = leg->status;
  p->bytes_out += r.body.n - r.cut_n + r.instead.n;
  p->flow->io->reply(p->flow->ctx, p->client, &r);
  rd2h_px_free(&own);
  rd2h_px_parent_end(p);
}

static void whole_answer(struct px_parent *p) {
  struct px_leg *leg = &p->decode;
  bool json = leg->status == 200 && rd2h_px_scan_end(&leg->scan, px_of(&leg->answer)), seen;
  bool recomputed = json && leg->scan.found && p->flow->limits.max_continuations;
  if (json && (recomputed || p->continuations))
    rd2h_px_continue_note(p, px_of(&leg->answer), &seen);
  if (recomputed) {
    continue_now(p);
    return;
  }
  if (p->begun) /* of a continuation that came to nothing */
    rd2h_px_parent_fail(p, 502, "Decode engine %s refused the continuation with %d", p->decode_name, leg->status);
  else if (leg->status != 200 && p->prefill_failed)
    rd2h_px_parent_fail(p, 502, "%s", strdupa(p->error));
  else
    reply_whole(p, json);
}

static void stream_end(struct px_parent *p) {
  struct px_flow *f = p->flow;
  begin(p);
  struct px_span rest = rd2h_px_sse_rest(&p->sse);
  if (rest.n && (rest.n < 12 || memcmp(rest.p, "data: [DONE]", 12) != 0)) {
    rd2h_px_parent_fail(p, 502, "Decode engine %s ended its answer in the middle of an event", p->decode_name);
    return;
  }
  if (rest.n) {
    p->bytes_out += rest.n;
    f->io->data(f->ctx, p->client, rest);
  }
  f->io->end(f->ctx, p->client);
  rd2h_px_parent_end(p);
}

void rd2h_px_decode_done(struct px_parent *p, const char *error) {
  struct px_leg *leg = &p->decode;
  /* Once a byte of an answer has come, the engine has done its work: it is not asked again. */
  bool again = !p->first_at && p->attempt < p->flow->limits.attempts && (error ? leg->answer.n == 0 : rd2h_px_leg_worth_a_retry(leg));
  rd2h_px_leg_close(leg);
  if (error)
    snprintf(p->error, sizeof p->error, "Decode engine %s: %.160s", p->decode_name, error);
  if (again) {
    p->flow->io->note(p->flow->ctx, p, error ? p->error : "Decode answers that it cannot serve now");
    later(p);
  } else if (error) {
    rd2h_px_parent_fail(p, 502, "%s", strdupa(p->error));
  } else if (is_stream(leg)) {
    stream_end(p);
  } else {
    whole_answer(p);
  }
}
