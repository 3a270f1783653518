/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP side of clients and of Decode engines: connections, whole requests, answers. One event loop, one thread. */
#ifndef RD2H_PROXY_SERVER_H
#define RD2H_PROXY_SERVER_H
#include "proxy/head.h"
#include "proxy/scan.h"

#include <event2/event.h>
#include <sys/socket.h>

struct px_server;
struct px_conn;

struct px_server_limits {
  uint32_t max_connections;
  size_t max_head, max_body;
  uint64_t max_buffered;               /* of all bodies and unsent answers together */
  /* head: from its first byte; body: between two reads; send: without progress */
  int64_t head_ms, body_ms, body_total_ms, idle_ms, send_ms;
};

/* What the other side of a request wants to hear; set with rd2h_px_conn_watch. */
struct px_watch {
  void (*gone)(void *user);    /* the client hung up: no call for this connection after it */
  void (*drained)(void *user); /* the backlog has gone down */
};

struct px_handler {
  /* A whole request. Head, body and its scan are gone after the call; body and scan may be taken. */
  void (*request)(void *ctx, struct px_conn *c, const struct px_head *head, struct px_buf *body, struct px_scan *scan);
  /* A request that never became whole, or no HTTP: already answered with that status. */
  void (*refused)(void *ctx, struct px_conn *c, int status, const char *why);
  void *ctx;
  const struct px_scan_plan *plan; /* of bodies */
};

struct px_server *rd2h_px_server_new(struct event_base *base, const struct px_server_limits *limits, const struct px_handler *handler);
/* tls: an SSL_CTX, or NULL. Returns the port, 0 when it could not (errno). */
uint16_t rd2h_px_server_listen(struct px_server *s, const struct sockaddr *address, socklen_t length, void *tls);
/* Connections end with the answer that they get next. */
void rd2h_px_server_wind_down(struct px_server *s);
/* No further connections; those that wait for a request are closed. */
void rd2h_px_server_drain(struct px_server *s);
void rd2h_px_server_free(struct px_server *s);
size_t rd2h_px_server_connections(const struct px_server *s);
/* Connections refused since the start, for max_connections. */
uint64_t rd2h_px_server_turned_away(const struct px_server *s);
/* Whether an answer, or a part of one, has not gone out. */
bool rd2h_px_server_sends(const struct px_server *s);
/* Memory of requests that is held elsewhere counts, too. */
void rd2h_px_server_account(struct px_server *s, int64_t bytes);
uint64_t rd2h_px_server_buffered(const struct px_server *s);

/* ---- of a connection ---- */
void rd2h_px_conn_watch(struct px_conn *c, const struct px_watch *watch, void *user);
const char *rd2h_px_conn_peer(const struct px_conn *c); /* its address without a port */
bool rd2h_px_conn_is_local(const struct px_conn *c);    /* it comes from this machine */
/* headers: lines with CRLF, may be empty. */
void rd2h_px_conn_reply(struct px_conn *c, int status, struct px_span type, struct px_span headers, struct px_span body);
/* The body as parts that lie in *from or elsewhere; what waits in *from is taken over with it. */
void rd2h_px_conn_reply_parts(struct px_conn *c, int status, struct px_span type, struct px_span headers, const struct px_span *part,
                              size_t parts, struct px_buf *from);
void rd2h_px_conn_begin(struct px_conn *c, int status, struct px_span type, struct px_span headers);
void rd2h_px_conn_data(struct px_conn *c, struct px_span s);
void rd2h_px_conn_end(struct px_conn *c);
size_t rd2h_px_conn_backlog(const struct px_conn *c);
const char *rd2h_px_reason(int status);
#endif
