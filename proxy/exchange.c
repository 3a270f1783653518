/* SPDX-License-Identifier: Apache-2.0 */
/* A client's request between its connection and the flow, and the flow's requests to engines. */
#include "proxy/app.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

enum { HIGH_WATER = 256 << 10, LOW_WATER = 64 << 10, MAX_CLIENT_ID = 128 };

struct exchange {
  struct px_app *app;
  struct px_conn *conn; /* NULL: gone, or answered */
  struct px_parent *parent;
  struct px_leg *paused;
  char client_id[MAX_CLIENT_ID + 1];
  char peer[64];
  const char *path;
  int status; /* of an answer that is no stream */
  size_t bytes_in, held;
  struct px_buf headers; /* those for engines: lines with CR LF */
};

/* ---- headers ---- */
/* What belongs to a connection, and what the proxy sets itself. */
static bool is_ours(const struct px_head *h, struct px_span name) {
  static const char *const OURS[] = {"host", "connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization",
                                     "te", "trailer", "transfer-encoding", "upgrade", "content-length", "content-type", "expect",
                                     "accept-encoding", "content-encoding", "x-request-id", "http2-settings"};
  for (size_t i = 0; i < sizeof OURS / sizeof *OURS; i++)
    if (rd2h_px_equal_nocase(name, px_str(OURS[i])))
      return true;
  for (size_t i = 0; i < h->n; i++)
    if (rd2h_px_equal_nocase(h->header[i].name, PX_LIT("connection")) && rd2h_px_lists(h->header[i].value, name))
      return true;
  return false;
}

static void take_headers(struct exchange *e, const struct px_head *h) {
  for (size_t i = 0; i < h->n; i++) {
    struct px_span name = h->header[i].name, value = h->header[i].value;
    if (is_ours(h, name))
      continue;
    rd2h_px_put(&e->headers, name);
    rd2h_px_puts(&e->headers, ": ");
    rd2h_px_put(&e->headers, value);
    rd2h_px_puts(&e->headers, "\r\n");
  }
  struct px_span id = rd2h_px_head_get(h, "x-request-id");
  snprintf(e->client_id, sizeof e->client_id, "%.*s", (int)(id.n < MAX_CLIENT_ID ? id.n : MAX_CLIENT_ID), id.n ? id.p : "");
}

static void answer_headers(const struct exchange *e, struct px_span retry_after, struct px_buf *out) {
  const char *id = e->client_id[0] ? e->client_id : e->parent ? e->parent->uuid : NULL;
  if (id)
    rd2h_px_printf(out, "X-Request-Id: %s\r\n", id);
  if (retry_after.n)
    rd2h_px_printf(out, "Retry-After: %.*s\r\n", (int)retry_after.n, retry_after.p);
}

/* ---- the flow to the client ---- */
static struct px_span type_or_json(struct px_span type) {
  return type.n ? type : PX_LIT("application/json");
}

static void io_reply(void *io, void *client, const struct px_reply *r) {
  struct exchange *e = client;
  struct px_buf headers = {0};
  struct px_conn *c = e->conn;
  (void)io;
  answer_headers(e, r->retry_after, &headers);
  e->status = r->status;
  e->conn = NULL;
  struct px_span part[3] = {r->body, r->instead, {NULL, 0}};
  if (r->cut_n) {
    part[0].n = r->cut;
    part[2] = (struct px_span){r->body.p + r->cut + r->cut_n, r->body.n - r->cut - r->cut_n};
  }
  rd2h_px_conn_reply_parts(c, r->status, type_or_json(r->type), px_of(&headers), part, 3, r->from);
  rd2h_px_free(&headers);
}

static void io_begin(void *io, void *client, const struct px_reply *head) {
  struct exchange *e = client;
  struct px_buf headers = {0};
  (void)io;
  answer_headers(e, (struct px_span){NULL, 0}, &headers);
  rd2h_px_puts(&headers, "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n");
  rd2h_px_conn_begin(e->conn, head->status, head->type, px_of(&headers));
  rd2h_px_free(&headers);
}

static void io_data(void *io, void *client, struct px_span s) {
  struct exchange *e = client;
  (void)io;
  rd2h_px_conn_data(e->conn, s);
}

static void io_end(void *io, void *client) {
  struct exchange *e = client;
  struct px_conn *c = e->conn;
  (void)io;
  e->conn = NULL;
  rd2h_px_conn_end(c);
}

static void io_done(void *io, void *client, const struct px_parent *p) {
  struct px_app *app = io;
  struct exchange *e = client;
  const struct px_access a = {.id = p ? p->uuid : "", .client_id = e->client_id, .peer = e->peer, .path = e->path,
                              .status = p ? p->status : e->status, .bytes_in = e->bytes_in, .parent = p,
                              .error = p && p->status != 200 ? p->error : NULL, .now = app->flow.now};
  rd2h_px_log_access(&app->log, &a);
  if (p)
    rd2h_px_metrics_parent(&app->metrics, p, app->flow.now);
  else
    rd2h_px_metrics_refused(&app->metrics, e->status);
  rd2h_px_server_account(app->server, -(int64_t)e->held);
  rd2h_px_free(&e->headers);
  free(e);
}

static void io_note(void *io, const struct px_parent *p, const char *text) {
  struct px_app *app = io;
  rd2h_px_log(&app->log, PX_WARNING, p->uuid, "%s (Decode %s, Prefill %s, attempt %u)", text, p->decode_name,
              p->prefill_name[0] ? p->prefill_name : "-", p->attempt);
}

static void io_wake(void *io, int64_t at) {
  struct px_app *app = io;
  int64_t ms = at - px_now();
  if (app->wake_at && app->wake_at <= at)
    return;
  app->wake_at = at;
  ms = ms < 0 ? 0 : ms;
  const struct timeval tv = {ms / 1000, ms % 1000 * 1000};
  evtimer_add(app->wake, &tv);
}

static bool io_random(void *io, void *out, size_t n) {
  (void)io;
  return getrandom(out, n, 0) == (ssize_t)n;
}

/* ---- the flow to engines ---- */
static void leg_head(void *user, int status, const char *type, const char *retry_after) {
  struct px_leg *leg = user;
  leg->status = status;
  snprintf(leg->type, sizeof leg->type, "%s", type);
  snprintf(leg->retry_after, sizeof leg->retry_after, "%s", retry_after);
}

static void leg_done(void *user, const char *error);

/* leg: NULL when none is any more. While one is, it is the client that is slow: send-timeout counts, not the engine's idle-timeout. */
static void pause_leg(struct exchange *e, struct px_leg *leg) {
  struct px_parent *p = leg ? leg->parent : e->paused->parent;
  p->held_back = leg != NULL;
  e->paused = leg;
}

static bool leg_data(void *user, struct px_span s) {
  struct px_leg *leg = user;
  struct exchange *e = leg->parent->client;
  if (leg->role == PX_DECODE && e && e->conn && leg->parent->begun && rd2h_px_conn_backlog(e->conn) > HIGH_WATER) {
    pause_leg(e, leg);
    return false;
  }
  if (e && !leg->parent->begun && strncasecmp(leg->type, "text/event-stream", 17) != 0) { /* it is kept until it is whole */
    e->held += s.n;
    rd2h_px_server_account(e->app->server, (int64_t)s.n);
    if (rd2h_px_server_buffered(e->app->server) > (uint64_t)e->app->options.max_buffered) {
      rd2h_px_call_cancel(leg->wire);
      leg_done(leg, "its answer was given up: bodies and answers in memory have reached max-buffered");
      return true;
    }
  }
  rd2h_px_flow_leg_data(leg->parent->flow, leg, s, px_now());
  return true;
}

static void leg_done(void *user, const char *error) {
  struct px_leg *leg = user;
  struct exchange *e = leg->parent->client;
  leg->wire = NULL;
  if (e && e->paused == leg)
    pause_leg(e, NULL);
  rd2h_px_flow_leg_done(leg->parent->flow, leg, error, px_now());
}

static const struct px_call_events LEG_EVENTS = {leg_head, leg_data, leg_done};

static bool io_send(void *io, struct px_leg *leg) {
  struct px_app *app = io;
  struct exchange *e = leg->parent->client;
  size_t n = e->headers.n; /* what is added here is another for each leg */
  rd2h_px_puts(&e->headers, "Content-Type: application/json\r\nX-Request-Id: ");
  rd2h_px_puts(&e->headers, leg->id);
  rd2h_px_puts(&e->headers, "\r\n");
  const struct px_request r = {.origin = leg->engine->url, .path = px_str(leg->path), .post = true, .headers = px_of(&e->headers),
                               .body = leg->body.part, .parts = leg->body.parts, .limit_ms = leg->limit_ms};
  leg->wire = e->headers.failed ? NULL : rd2h_px_call(app->client, &r, &LEG_EVENTS, leg);
  rd2h_px_clear(&e->headers);
  e->headers.n = n;
  return leg->wire != NULL;
}

static void io_cancel(void *io, struct px_leg *leg) {
  struct exchange *e = leg->parent->client;
  (void)io;
  if (e && e->paused == leg)
    pause_leg(e, NULL);
  if (leg->wire)
    rd2h_px_call_cancel(leg->wire);
}

const struct px_io rd2h_px_exchange_io = {
  .send = io_send, .cancel = io_cancel, .answer = rd2h_px_metaserver_answer, .reply = io_reply, .begin = io_begin, .data = io_data,
  .end = io_end, .done = io_done, .note = io_note, .wake = io_wake, .random = io_random,
};

/* ---- the connection ---- */
static void on_gone(void *user) {
  struct exchange *e = user;
  struct px_app *app = e->app;
  e->conn = NULL;
  rd2h_px_flow_client_gone(&app->flow, e->parent, px_now());
}

static void on_drained(void *user) {
  struct exchange *e = user;
  if (!e->paused || rd2h_px_conn_backlog(e->conn) > LOW_WATER)
    return;
  struct px_leg *leg = e->paused;
  pause_leg(e, NULL);
  e->parent->touched = px_now();
  rd2h_px_call_resume(leg->wire);
}

static const struct px_watch WATCH = {on_gone, on_drained};

static void post(const struct px_ctx *x, enum px_api api, const char *path) {
  struct px_app *app = x->app;
  if (app->flow.parents >= (size_t)app->options.max_requests || app->stopping) {
    if (!app->stopping) /* a restart is no limit that was met */
      rd2h_px_metrics_refused(&app->metrics, 503);
    rd2h_px_answer_error(x->conn, 503, app->stopping ? "the proxy is shutting down" : "too many requests under way (max-requests)");
    return;
  }
  struct exchange *e = calloc(1, sizeof *e);
  if (e)
    take_headers(e, x->head);
  if (!e || e->headers.failed) {
    if (e)
      rd2h_px_free(&e->headers);
    free(e);
    rd2h_px_answer_error(x->conn, 503, "memory ran out");
    return;
  }
  e->app = app;
  e->conn = x->conn;
  e->path = path;
  e->bytes_in = x->body->n;
  e->held = x->body->room + x->scan->members.room + x->scan->elements.room + e->headers.room;
  rd2h_px_server_account(app->server, (int64_t)e->held);
  snprintf(e->peer, sizeof e->peer, "%s", rd2h_px_conn_peer(x->conn));
  rd2h_px_conn_watch(x->conn, &WATCH, e);
  struct px_parent *p = rd2h_px_flow_request(&app->flow, e, api, x->body, x->scan, px_now());
  if (p)
    e->parent = p; /* otherwise it has been answered, and e is gone */
}

void rd2h_px_post_completions(const struct px_ctx *x) {
  post(x, PX_COMPLETIONS, "/v1/completions");
}

void rd2h_px_post_chat(const struct px_ctx *x) {
  post(x, PX_CHAT, "/v1/chat/completions");
}
