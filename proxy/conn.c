/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of a connection: from bytes to whole heads and bodies, one after another. */
#include "proxy/server_inner.h"

#include <stdlib.h>

enum { PIPELINE_BYTES = 64 << 10 };

static void request_whole(struct px_conn *c) {
  event_del(&c->timer);
  c->state = PX_ANSWERING;
  rd2h_px_conn_count(c);
  c->server->handler.request(c->server->handler.ctx, c, c->head, &c->body, &c->scan);
  if (c->state != PX_ANSWERING)
    return;
  /* It may stay for long; what is needed of it has been taken. */
  rd2h_px_conn_release(c);
  rd2h_px_conn_count(c);
}

/* ---- the head ---- */
static bool take_head(struct px_conn *c, struct px_span text) {
  struct px_head head;
  const char *why;
  c->head_text = malloc(text.n);
  if (!c->head_text) {
    rd2h_px_conn_refuse(c, 503, "memory ran out");
    return false;
  }
  memcpy(c->head_text, text.p, text.n);
  int status = rd2h_px_head_read((struct px_span){c->head_text, text.n}, &head, &why);
  size_t size = offsetof(struct px_head, header) + head.n * sizeof(struct px_header);
  c->head = status ? NULL : malloc(size > sizeof head ? sizeof head : size);
  if (!c->head) {
    rd2h_px_conn_refuse(c, status ? status : 503, status ? why : "memory ran out");
    return false;
  }
  memcpy(c->head, &head, size);
  c->http10 = head.http10;
  c->keep = head.keep_alive;
  c->no_body = px_equal(head.method, PX_LIT("HEAD"));
  return true;
}

/* In turn: the length that was promised, and what others hold. */
static bool room_for(struct px_conn *c, uint64_t n) {
  const struct px_server_limits *l = &c->server->limits;
  if (n > l->max_body) {
    rd2h_px_conn_refuse(c, 413, "the body is larger than max-body");
    return false;
  }
  if (c->server->buffered - c->counted + n > l->max_buffered) {
    rd2h_px_conn_refuse(c, 503, "bodies and answers in memory have reached max-buffered");
    return false;
  }
  return true;
}

static void begin(struct px_conn *c) {
  c->state = PX_HEAD;
  c->scanned = 0;
  c->keep = true;
  c->http10 = c->no_body = c->chunked_answer = false;
  rd2h_px_conn_timer(c, c->server->limits.head_ms);
}

/* Whether the body comes next; s then begins with it. */
static bool read_head(struct px_conn *c, struct px_span *s) {
  size_t n = rd2h_px_head_length(*s, &c->scanned), limit = c->server->limits.max_head;
  if (n > limit || (!n && s->n > limit)) {
    rd2h_px_conn_refuse(c, 431, "the head is larger than max-head");
    return false;
  }
  if (!n || !take_head(c, (struct px_span){s->p, n}) || !room_for(c, c->head->length))
    return false;
  s->p += n;
  s->n -= n;
  if (c->head->expect && (c->head->chunked || c->head->length))
    rd2h_px_link_send(c->link, &PX_LIT("HTTP/1.1 100 Continue\r\n\r\n"), 1);
  c->state = PX_BODY;
  c->body_end = 0;
  rd2h_px_scan_begin(&c->scan, c->server->handler.plan);
  return true;
}

/* ---- the body ---- */
static bool keep_body(struct px_conn *c, struct px_span data) {
  if (!room_for(c, c->body.n + data.n)) /* also of a length that there was room for: others may have taken it since */
    return false;
  rd2h_px_put(&c->body, data);
  if (!c->body.failed) {
    rd2h_px_scan_more(&c->scan, px_of(&c->body));
    return true;
  }
  rd2h_px_conn_refuse(c, 503, "memory ran out");
  return false;
}

/* Both: whether the body is whole. */
static bool read_chunks(struct px_conn *c, struct px_span *s) {
  struct px_span data;
  enum px_chunk_result r;
  while ((r = rd2h_px_chunks_read(&c->chunks, s, &data)) == PX_CHUNK_DATA)
    if (!keep_body(c, data))
      return false;
  if (r == PX_CHUNK_BAD)
    rd2h_px_conn_refuse(c, 400, "the chunks of the body are malformed");
  return r == PX_CHUNK_END;
}

static bool read_length(struct px_conn *c, struct px_span *s) {
  size_t left = (size_t)c->head->length - c->body.n, n = s->n < left ? s->n : left;
  if (n && !keep_body(c, (struct px_span){s->p, n}))
    return false;
  s->p += n;
  s->n -= n;
  return n == left;
}

static bool read_body(struct px_conn *c, struct px_span *s) {
  const struct px_server_limits *l = &c->server->limits;
  if (c->head->chunked ? read_chunks(c, s) : read_length(c, s))
    return true;
  if (c->state != PX_BODY)
    return false; /* refused */
  int64_t now = px_now();
  c->body_end = c->body_end ? c->body_end : now + l->body_total_ms;
  int64_t left = c->body_end - now;
  rd2h_px_conn_count(c);
  rd2h_px_conn_timer(c, left < 0 ? 0 : left < l->body_ms ? left : l->body_ms);
  return false;
}

/* ---- bytes ---- */
/* Requests one after another, until one is being answered or is not whole. s: what is left. */
static void read_requests(struct px_conn *c, struct px_span *s) {
  while (s->n && c->state < PX_ANSWERING) {
    if (c->state == PX_IDLE)
      begin(c);
    if (c->state == PX_HEAD && !read_head(c, s))
      break;
    if (c->state == PX_BODY && !read_body(c, s))
      break;
    if (c->state == PX_BODY)
      request_whole(c);
  }
  if (c->state == PX_CLOSING)
    s->n = 0;
}

/* Whether what is kept is enough for now. A head that is not whole is not kept waiting: its own limit holds. */
static bool kept_enough(const struct px_conn *c) {
  return c->in.n >= PIPELINE_BYTES && c->state >= PX_ANSWERING;
}

/* How long a connection may stand between two requests; an answer that still goes out to a slow client has its own time. */
int64_t rd2h_px_conn_idle_ms(const struct px_conn *c) {
  int64_t idle = c->server->limits.idle_ms, send = c->server->limits.send_ms;
  return send > idle && rd2h_px_link_backlog(c->link) ? send : idle;
}

static void read_kept(struct px_conn *c) {
  struct px_span s = px_of(&c->in);
  read_requests(c, &s);
  rd2h_px_shift(&c->in, c->in.n - s.n);
  if (c->in.n == 0)
    rd2h_px_free(&c->in);
  if (c->in.n == 0 && c->state == PX_IDLE)
    rd2h_px_conn_timer(c, rd2h_px_conn_idle_ms(c));
  rd2h_px_conn_count(c);
  rd2h_px_link_read(c->link, !kept_enough(c));
}

static void on_data(void *user, char *p, size_t n) {
  struct px_conn *c = user;
  struct px_span s = {p, n};
  if (c->state == PX_CLOSING)
    return;
  if (c->in.n) {
    rd2h_px_put(&c->in, s);
    read_kept(c);
  } else {
    read_requests(c, &s);
    rd2h_px_put(&c->in, s);
    if (kept_enough(c))
      rd2h_px_link_read(c->link, false);
  }
  if (c->in.failed)
    rd2h_px_conn_free(c);
  else if (c->in.n)
    rd2h_px_conn_count(c);
}

static void on_sent(void *user) {
  struct px_conn *c = user;
  rd2h_px_conn_count(c);
  if (c->state == PX_CLOSING) {
    rd2h_px_conn_timer(c, c->server->limits.send_ms); /* an answer that goes out, however slowly, is not cut off */
    rd2h_px_conn_close_when_sent(c);
  } else if (c->state == PX_IDLE && c->in.n == 0) {
    rd2h_px_conn_timer(c, rd2h_px_conn_idle_ms(c));
  } else if (c->watch && c->watch->drained)
    c->watch->drained(c->user);
}

static void on_closed(void *user, const char *error) {
  (void)error;
  rd2h_px_conn_free(user);
}

const struct px_link_events rd2h_px_conn_events = {NULL, on_data, on_sent, on_closed};

void rd2h_px_conn_on_timer(evutil_socket_t fd, short what, void *conn) {
  struct px_conn *c = conn;
  (void)fd, (void)what;
  if (c->state == PX_IDLE && c->in.n)
    read_kept(c);
  else if (c->state == PX_HEAD)
    rd2h_px_conn_refuse(c, 408, "the head did not come in time");
  else if (c->state == PX_BODY)
    rd2h_px_conn_refuse(c, 408, "the body did not come in time");
  else
    rd2h_px_conn_free(c);
}
