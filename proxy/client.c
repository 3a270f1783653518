/* SPDX-License-Identifier: Apache-2.0 */
#include "proxy/client_inner.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- ends ---- */
static void call_free(struct px_call *call) {
  if (call->gone)
    *call->gone = true;
  event_del(&call->timer);
  event_del(&call->next_try);
  event_del(&call->kick);
  rd2h_px_free(&call->request);
  rd2h_px_free(&call->text);
  rd2h_px_free(&call->held);
  *call->back = call->after;
  if (call->after)
    call->after->back = call->back;
  call->client->open--;
  free(call);
}

static void detach(struct px_call *call, bool keep) {
  struct px_wire *w = call->wire;
  if (call->state == PX_CALL_WAITING)
    rd2h_px_peer_forget(call);
  rd2h_px_connect_stop(call);
  if (!w)
    return;
  call->wire = NULL;
  w->call = NULL;
  /* An answer that came before the request was out leaves the rest of that on the connection, or nothing more could be sent on it. */
  if (keep && rd2h_px_link_backlog(w->link) == 0 && !rd2h_px_link_failed(w->link))
    rd2h_px_wire_keep(w);
  else
    rd2h_px_wire_close(w);
}

void rd2h_px_call_finish(struct px_call *call, const char *error) {
  const struct px_call_events *events = call->events;
  void *user = call->user;
  char text[256];
  if (error)
    snprintf(text, sizeof text, "%s", error); /* it may lie in what is freed now */
  detach(call, !error && call->keep);
  call_free(call);
  events->done(user, error ? text : NULL);
}

void rd2h_px_call_fail_later(struct px_call *call, const char *error) {
  call->failure = error;
  event_active(&call->kick, EV_TIMEOUT, 1);
}

void rd2h_px_call_cancel(struct px_call *call) {
  detach(call, false);
  call_free(call);
}

/* ---- time ---- */
static void on_kick(evutil_socket_t fd, short what, void *arg) {
  struct px_call *call = arg;
  (void)fd, (void)what;
  if (call->failure)
    rd2h_px_call_finish(call, call->failure);
  else
    rd2h_px_answer_go_on(call);
}

static void set_timer(struct px_call *call) {
  int64_t at = call->connect_end && (!call->end || call->connect_end < call->end) ? call->connect_end : call->end;
  int64_t left = at - px_now();
  const struct timeval tv = px_timeval(left > 0 ? left : 0);
  if (at)
    event_add(&call->timer, &tv);
  else
    event_del(&call->timer);
}

static void on_timer(evutil_socket_t fd, short what, void *arg) {
  struct px_call *call = arg;
  int64_t now = px_now();
  (void)fd, (void)what;
  if (call->end && now >= call->end) {
    rd2h_px_call_finish(call, call->any ? "its answer took longer than the time limit" : "it did not answer within the time limit");
    return;
  }
  if (call->connect_end && now >= call->connect_end) {
    call->connect_end = 0;
    if (call->state == PX_CALL_CONNECTING) {
      rd2h_px_connect_gave_up(call, "it could not be connected to within connect-timeout");
      return;
    }
    if (call->state == PX_CALL_WAITING && call->peer->lookup) {
      rd2h_px_call_finish(call, "its name was not found within connect-timeout");
      return;
    }
  }
  set_timer(call);
}

void rd2h_px_call_hurry(struct px_call *call) {
  if (call->connect_end)
    return;
  call->connect_end = px_now() + call->client->limits.connect_ms;
  set_timer(call);
}

/* ---- calls ---- */
void rd2h_px_call_begin(struct px_call *call) {
  call->state = PX_CALL_ACTIVE;
  call->connect_end = 0;
  set_timer(call);
  rd2h_px_link_lend(call->wire->link, px_of(&call->request), call->body, call->parts);
  rd2h_px_free(&call->request);
}

static void write_head(struct px_call *call, const struct px_request *r) {
  struct px_buf *b = &call->request;
  rd2h_px_puts(b, r->post ? "POST " : "GET ");
  rd2h_px_put(b, r->path);
  rd2h_px_puts(b, " HTTP/1.1\r\nHost: ");
  rd2h_px_puts(b, call->peer->authority);
  rd2h_px_puts(b, "\r\nAccept-Encoding: identity\r\n");
  rd2h_px_put(b, r->headers);
  size_t n = 0;
  for (size_t i = 0; i < r->parts; i++)
    n += r->body[i].n;
  if (r->post)
    rd2h_px_printf(b, "Content-Length: %zu\r\n", n);
  rd2h_px_puts(b, "\r\n");
}

struct px_call *rd2h_px_call(struct px_client *c, const struct px_request *r, const struct px_call_events *events, void *user) {
  struct px_peer *peer = rd2h_px_peer_get(c, r->origin);
  struct px_call *call = peer ? calloc(1, sizeof *call) : NULL;
  if (!call)
    return NULL;
  call->client = c;
  call->peer = peer;
  call->events = events;
  call->user = user;
  call->body = r->body;
  call->parts = r->parts;
  call->chunks.trailers = true;
  evtimer_assign(&call->timer, c->base, on_timer, call);
  evtimer_assign(&call->next_try, c->base, rd2h_px_connect_on_delay, call);
  evtimer_assign(&call->kick, c->base, on_kick, call);
  write_head(call, r);
  if (call->request.failed) {
    rd2h_px_free(&call->request);
    free(call);
    return NULL;
  }
  call->end = r->limit_ms ? px_now() + r->limit_ms : 0;
  call->after = c->first;
  call->back = &c->first;
  if (c->first)
    c->first->back = &call->after;
  c->first = call;
  c->open++;
  rd2h_px_peer_serve(call);
  if (call->state == PX_CALL_WAITING)
    set_timer(call);
  return call;
}

void rd2h_px_call_resume(struct px_call *call) {
  if (!call->paused)
    return;
  call->paused = false;
  event_active(&call->kick, EV_TIMEOUT, 1);
}

size_t rd2h_px_client_open(const struct px_client *c) {
  return c->open;
}

/* ---- the client ---- */
static SSL_CTX *new_tls(const struct px_client_limits *l, const char **why) {
  SSL_CTX *tls = SSL_CTX_new(TLS_client_method());
  if (!tls)
    return NULL;
  SSL_CTX_set_min_proto_version(tls, TLS1_2_VERSION);
  SSL_CTX_set_verify(tls, l->verify ? SSL_VERIFY_PEER : SSL_VERIFY_NONE, NULL);
  if ((l->ca_file ? SSL_CTX_load_verify_locations(tls, l->ca_file, NULL) : SSL_CTX_set_default_verify_paths(tls)) == 1)
    return tls;
  *why = ERR_reason_error_string(ERR_get_error());
  *why = *why ? *why : "it cannot be read";
  SSL_CTX_free(tls);
  return NULL;
}

struct px_client *rd2h_px_client_new(struct event_base *base, const struct px_client_limits *limits, const char **why) {
  struct px_client *c = calloc(1, sizeof *c);
  *why = NULL;
  if (!c)
    return NULL;
  c->base = base;
  c->limits = *limits;
  c->tls = new_tls(limits, why);
  if (!c->tls) {
    free(c);
    return NULL;
  }
  return c;
}

void rd2h_px_client_free(struct px_client *c) {
  if (!c)
    return;
  while (c->first)
    rd2h_px_call_finish(c->first, "the proxy ends");
  rd2h_px_peers_free(c);
  SSL_CTX_free(c->tls);
  free(c);
}
