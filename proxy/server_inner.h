/* SPDX-License-Identifier: Apache-2.0 */
/* Between the files of the server: listeners and books (server.c), requests (conn.c), answers (respond.c). */
#ifndef RD2H_PROXY_SERVER_INNER_H
#define RD2H_PROXY_SERVER_INNER_H
#include "proxy/clock.h"
#include "proxy/link.h"
#include "proxy/server.h"

#include <event2/event_struct.h>
#include <netinet/in.h>

enum { PX_MAX_LISTENERS = 16 };

enum px_conn_state {
  PX_IDLE, /* between requests */
  PX_HEAD,
  PX_BODY,
  PX_ANSWERING,
  PX_CLOSING, /* the answer is on its way out, then the connection ends */
};

struct px_server {
  struct event_base *base;
  struct px_server_limits limits;
  struct px_handler handler;
  struct evconnlistener *listener[PX_MAX_LISTENERS];
  void *tls[PX_MAX_LISTENERS];
  size_t listeners, connections;
  uint64_t buffered;
  struct px_conn *first;
  bool draining, winding_down;
  uint64_t turned_away;
  struct event *pause; /* of listening */
};

struct px_conn {
  struct px_server *server;
  struct px_conn *next, **back;
  struct px_link *link;
  struct event timer;
  enum px_conn_state state;
  bool keep, chunked_answer, no_body, http10;
  struct px_buf in; /* of a head that has not ended, or of the next request */
  size_t scanned;   /* of it, without finding the head's end */
  char *head_text;
  struct px_head *head;
  struct px_chunks chunks;
  struct px_buf body;
  struct px_scan scan;
  int64_t body_end;
  uint64_t counted; /* what of server->buffered is ours */
  const struct px_watch *watch;
  void *user;
  char peer[INET6_ADDRSTRLEN + 24];
};

/* ---- server.c ---- */
void rd2h_px_conn_free(struct px_conn *c);
void rd2h_px_conn_count(struct px_conn *c);
void rd2h_px_conn_timer(struct px_conn *c, int64_t ms);
int64_t rd2h_px_conn_idle_ms(const struct px_conn *);
/* Frees the request's head and body; what its handler has taken is the handler's. */
void rd2h_px_conn_release(struct px_conn *c);

/* ---- conn.c ---- */
extern const struct px_link_events rd2h_px_conn_events;
void rd2h_px_conn_on_timer(evutil_socket_t fd, short what, void *conn);

/* ---- respond.c ---- */
/* An error of the request's form: answered, and the connection ends. */
void rd2h_px_conn_refuse(struct px_conn *c, int status, const char *why);
void rd2h_px_conn_close_when_sent(struct px_conn *c);
#endif
