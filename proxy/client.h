/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP requests to engines, over connections that are kept and used again. A request goes out once: whether it is repeated is for its
 * sender to decide. */
#ifndef RD2H_PROXY_CLIENT_H
#define RD2H_PROXY_CLIENT_H
#include "proxy/text.h"

#include <event2/event.h>

struct px_client;
struct px_call;

struct px_client_limits {
  int64_t connect_ms;       /* TLS included */
  uint32_t max_connections; /* to one engine; 0: no limit */
  uint32_t max_idle;        /* connections kept for later, to all engines */
  int64_t idle_ms;          /* so old a kept connection is not used any more: engines close theirs, too */
  const char *ca_file;      /* for https; NULL: the system's */
  bool verify;
};

struct px_call_events {
  /* The status line and headers are known. */
  void (*head)(void *user, int status, const char *type, const char *retry_after);
  /* False: no more for now, until rd2h_px_call_resume; the bytes were not taken. */
  bool (*data)(void *user, struct px_span s);
  /* error: NULL when the answer is whole. The call is gone afterwards. */
  void (*done)(void *user, const char *error);
};

struct px_request {
  const char *origin; /* scheme://host:port, an IPv6 host in brackets */
  struct px_span path; /* with its query */
  bool post;
  struct px_span headers; /* whole lines with CR LF, copied */
  const struct px_span *body; /* parts; they and what they point to stay until the call ends */
  size_t parts;
  int64_t limit_ms;       /* of the whole call; 0: none */
};

/* NULL: memory ran out, or *why (then it is set) of the CA file. */
struct px_client *rd2h_px_client_new(struct event_base *base, const struct px_client_limits *limits, const char **why);
void rd2h_px_client_free(struct px_client *c);
/* No event comes before this has returned. */
struct px_call *rd2h_px_call(struct px_client *c, const struct px_request *r, const struct px_call_events *events, void *user);
/* No event comes any more. Also from inside an event of that call, but for done. */
void rd2h_px_call_cancel(struct px_call *call);
void rd2h_px_call_resume(struct px_call *call);
size_t rd2h_px_client_open(const struct px_client *c);
#endif
