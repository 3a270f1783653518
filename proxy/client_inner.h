/* SPDX-License-Identifier: Apache-2.0 */
/* Between the files of the client: peers (engines as addresses), wires (connections to them), calls (requests). */
#ifndef RD2H_PROXY_CLIENT_INNER_H
#define RD2H_PROXY_CLIENT_INNER_H
#include "proxy/client.h"
#include "proxy/clock.h"
#include "proxy/head.h"
#include "proxy/link.h"
#include "proxy/resolve.h"

#include <event2/event_struct.h>

enum { PX_PEER_BUCKETS = 256 };

struct px_peer {
  struct px_client *client;
  struct px_peer *next;
  char *origin, *host; /* host: without brackets */
  const char *authority; /* host:port, inside origin */
  uint16_t port;
  bool tls, numeric;
  struct px_addresses addresses;
  size_t preferred;    /* of them: the one that answered last */
  int64_t resolved_at; /* 0: not known */
  struct px_lookup *lookup;
  struct px_wire *idle;                   /* the last used first */
  struct px_call *waiting, **waiting_end; /* for an address or for a free connection */
  size_t wires; /* connections, and calls that are being connected */
};

struct px_wire {
  struct px_peer *peer;
  struct px_link *link;
  struct px_call *call;          /* NULL: idle */
  struct px_wire *next, **back;  /* idle ones, or those that are tried for a call */
  size_t address;
  int64_t idle_since;
};

enum px_call_state { PX_CALL_WAITING, PX_CALL_CONNECTING, PX_CALL_ACTIVE };

struct px_call {
  struct px_client *client;
  struct px_peer *peer;
  struct px_wire *wire;
  struct px_call *next; /* of those waiting */
  struct px_call *after, **back; /* of all */
  const struct px_call_events *events;
  void *user;
  enum px_call_state state;
  struct px_buf request; /* the head */
  const struct px_span *body; /* parts */
  size_t parts;
  struct px_wire *tries; /* while it is being connected: the first that opens becomes its wire */
  size_t first, tried;   /* addresses: where it began, how many have been tried */
  bool counted;          /* among the peer's wires, without one yet */
  int64_t end, connect_end; /* ms; 0: none. connect_end: of looking up and connecting together */
  struct event timer, next_try;
  struct event kick; /* events that must not come from inside a call of the sender's */
  const char *failure;      /* told at the next kick */
  bool *gone;
  /* the answer */
  struct px_buf text; /* of a head that came in parts */
  size_t scanned;
  struct px_chunks chunks;
  uint64_t left;
  bool head_told, chunked, until_close, keep, paused, whole, any;
  struct px_buf held; /* not taken yet */
};

struct px_client {
  struct event_base *base;
  struct px_client_limits limits;
  void *tls; /* SSL_CTX */
  struct px_peer *bucket[PX_PEER_BUCKETS];
  struct px_call *first;
  size_t peers, idle, open;
};

/* ---- client.c ---- */
/* Gives the connection back or closes it, then tells the sender. */
void rd2h_px_call_finish(struct px_call *call, const char *error);
/* The same, from the loop. */
void rd2h_px_call_fail_later(struct px_call *call, const char *error);
/* From now on, if it has not begun yet, it has connect_ms to get a connection. */
void rd2h_px_call_hurry(struct px_call *call);
/* Its connection stands: the request goes out. */
void rd2h_px_call_begin(struct px_call *call);

/* ---- peer.c ---- */
struct px_peer *rd2h_px_peer_get(struct px_client *c, const char *origin);
void rd2h_px_peers_free(struct px_client *c);
/* Gets the call a connection: a kept one, a new one, or a place in the queue. */
void rd2h_px_peer_serve(struct px_call *call);
void rd2h_px_peer_forget(struct px_call *call); /* one that waits */
void rd2h_px_wire_close(struct px_wire *w);
/* One of the connections to this peer is no more: others that wait may have their turn. */
void rd2h_px_peer_freed(struct px_peer *p);
extern const struct px_link_events rd2h_px_wire_events;
/* The call has ended in order, and its connection may serve another. */
void rd2h_px_wire_keep(struct px_wire *w);

/* ---- connect.c ---- */
/* Takes one of the peer's connections, whose addresses are known. */
void rd2h_px_connect(struct px_call *call);
void rd2h_px_connect_stop(struct px_call *call);
void rd2h_px_connect_gave_up(struct px_call *call, const char *error);
/* Of a wire that is tried. */
void rd2h_px_connect_won(struct px_wire *w);
void rd2h_px_connect_lost(struct px_wire *w, const char *error);
void rd2h_px_connect_on_delay(evutil_socket_t fd, short what, void *call);

/* ---- answer.c ---- */
void rd2h_px_answer_data(struct px_call *call, char *p, size_t n);
void rd2h_px_answer_closed(struct px_call *call, const char *error);
/* What was not taken is offered again. */
void rd2h_px_answer_go_on(struct px_call *call);
#endif
