/* SPDX-License-Identifier: Apache-2.0 */
/* Answers on a connection, and its end. */
#include "proxy/json.h"
#include "proxy/server_inner.h"

#include <stdio.h>

enum { LINGER_MS = 1000 };

const char *rd2h_px_reason(int status) {
  static const struct {
    int status;
    const char *reason;
  } REASON[] = {
    {100, "Continue"}, {200, "OK"}, {400, "Bad Request"}, {401, "Unauthorized"}, {403, "Forbidden"}, {404, "Not Found"},
    {405, "Method Not Allowed"}, {408, "Request Timeout"}, {409, "Conflict"}, {413, "Content Too Large"}, {417, "Expectation Failed"},
    {422, "Unprocessable Content"}, {429, "Too Many Requests"}, {431, "Request Header Fields Too Large"},
    {500, "Internal Server Error"}, {501, "Not Implemented"}, {502, "Bad Gateway"}, {503, "Service Unavailable"},
    {504, "Gateway Timeout"}, {505, "HTTP Version Not Supported"},
  };
  for (size_t i = 0; i < sizeof REASON / sizeof *REASON; i++)
    if (REASON[i].status == status)
      return REASON[i].reason;
  return "Status";
}

static void write_head(const struct px_conn *c, struct px_buf *out, int status, struct px_span type, struct px_span headers,
                       int64_t length) {
  rd2h_px_printf(out, "HTTP/1.1 %d %s\r\n", status, rd2h_px_reason(status));
  if (type.n) {
    rd2h_px_puts(out, "Content-Type: ");
    rd2h_px_put(out, type);
    rd2h_px_puts(out, "\r\n");
  }
  if (length >= 0)
    rd2h_px_printf(out, "Content-Length: %lld\r\n", (long long)length);
  else if (c->chunked_answer)
    rd2h_px_puts(out, "Transfer-Encoding: chunked\r\n");
  rd2h_px_put(out, headers);
  rd2h_px_puts(out, c->keep ? c->http10 ? "Connection: keep-alive\r\n\r\n" : "\r\n" : "Connection: close\r\n\r\n");
}

/* What the client still sends is read for a moment: a reset would take the answer away from it. */
void rd2h_px_conn_close_when_sent(struct px_conn *c) {
  if (rd2h_px_link_backlog(c->link) > 0)
    return;
  rd2h_px_link_shut(c->link);
  rd2h_px_conn_timer(c, LINGER_MS);
}

/* The answer is complete: on to the next request, or out. */
static void answered(struct px_conn *c) {
  bool keep = c->keep && !c->server->draining;
  rd2h_px_conn_release(c);
  rd2h_px_conn_watch(c, NULL, NULL);
  rd2h_px_conn_count(c);
  if (!keep) {
    c->state = PX_CLOSING;
    rd2h_px_link_read(c->link, true);
    rd2h_px_conn_timer(c, c->server->limits.send_ms);
    rd2h_px_conn_close_when_sent(c);
    return;
  }
  c->state = PX_IDLE;
  /* A pipelined request is read from the loop, not from inside the answer to the one before. */
  rd2h_px_conn_timer(c, c->in.n ? 0 : rd2h_px_conn_idle_ms(c));
}

void rd2h_px_conn_reply_parts(struct px_conn *c, int status, struct px_span type, struct px_span headers, const struct px_span *part,
                              size_t parts, struct px_buf *from) {
  struct px_buf head = {0};
  size_t n = 0;
  for (size_t i = 0; i < parts; i++)
    n += part[i].n;
  c->keep = c->keep && !c->server->winding_down;
  write_head(c, &head, status, type, headers, (int64_t)n);
  if (head.failed)
    c->keep = false; /* the connection ends without an answer */
  else
    rd2h_px_link_give(c->link, px_of(&head), part, c->no_body ? 0 : parts, from);
  rd2h_px_free(&head);
  answered(c);
}

void rd2h_px_conn_reply(struct px_conn *c, int status, struct px_span type, struct px_span headers, struct px_span body) {
  rd2h_px_conn_reply_parts(c, status, type, headers, &body, 1, NULL);
}

void rd2h_px_conn_begin(struct px_conn *c, int status, struct px_span type, struct px_span headers) {
  struct px_buf head = {0};
  c->chunked_answer = !c->http10;
  c->keep = c->keep && c->chunked_answer && !c->server->winding_down;
  write_head(c, &head, status, type, headers, -1);
  if (head.failed)
    c->keep = c->chunked_answer = false, c->no_body = true; /* the connection ends without an answer */
  else
    rd2h_px_link_add(c->link, px_of(&head));
  rd2h_px_free(&head);
}

void rd2h_px_conn_data(struct px_conn *c, struct px_span s) {
  char size[24];
  if (s.n == 0 || c->no_body)
    return;
  const struct px_span part[] = {{size, (size_t)snprintf(size, sizeof size, "%zx\r\n", s.n)}, s, PX_LIT("\r\n")};
  rd2h_px_link_send(c->link, c->chunked_answer ? part : part + 1, c->chunked_answer ? 3 : 1);
  rd2h_px_conn_count(c);
}

void rd2h_px_conn_end(struct px_conn *c) {
  rd2h_px_link_send(c->link, &PX_LIT("0\r\n\r\n"), c->chunked_answer);
  c->chunked_answer = false;
  answered(c);
}

size_t rd2h_px_conn_backlog(const struct px_conn *c) {
  return rd2h_px_link_backlog(c->link);
}

void rd2h_px_conn_refuse(struct px_conn *c, int status, const char *why) {
  struct px_buf body = {0};
  c->keep = false;
  c->server->handler.refused(c->server->handler.ctx, c, status, why);
  rd2h_px_error_body(&body, status, px_str(why));
  rd2h_px_conn_reply(c, status, PX_LIT("application/json"), status == 503 ? PX_LIT("Retry-After: 1\r\n") : PX_LIT(""), px_of(&body));
  rd2h_px_free(&body);
}
