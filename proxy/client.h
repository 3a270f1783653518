/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP requests to engines: libcurl's multi interface on the server's event loop. */
#ifndef RD2H_PROXY_CLIENT_H
#define RD2H_PROXY_CLIENT_H
#include "proxy/text.h"

#include <event2/event.h>

struct px_client;
struct px_call;

struct px_client_limits {
  int64_t connect_ms;
  long max_connections; /* to one engine; 0: no limit */
  uint32_t max_idle;    /* connections kept for later, to all engines */
  const char *ca_file;  /* for https; NULL: the system's */
  bool verify;
};

struct px_call_events {
  /* Status, Content-Type, Retry-After are known from here on. */
  void (*head)(void *user, int status, const char *type, const char *retry_after);
  /* False: no more for now, until rd2h_px_call_resume; the bytes were not taken. */
  bool (*data)(void *user, struct px_span s);
  /* error: NULL when the answer is whole. The call is gone afterwards. */
  void (*done)(void *user, const char *error);
};

struct px_request {
  const char *url;
  bool post;
  struct px_span body;       /* stays until the call ends */
  const char *const *header; /* "Name: value", copied */
  size_t n_header;
  int64_t limit_ms; /* of the whole call; 0: none */
};

struct px_client *rd2h_px_client_new(struct event_base *base, const struct px_client_limits *limits);
void rd2h_px_client_free(struct px_client *c);
struct px_call *rd2h_px_call(struct px_client *c, const struct px_request *r, const struct px_call_events *events, void *user);
/* No event comes any more. Also from inside an event of that call. */
void rd2h_px_call_cancel(struct px_call *call);
void rd2h_px_call_resume(struct px_call *call);
size_t rd2h_px_client_open(const struct px_client *c);
#endif
