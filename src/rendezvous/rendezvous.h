/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_RENDEZVOUS_H
#define RD2H_RENDEZVOUS_H
/* Posts rendezvous to the metaserver: libcurl multi on one thread of its own, no thread a request. Connect and send errors are
 * retried, bounded and backed off, and so is the answer 503 (not taken, later), by its Retry-After and within answer_timeout_ms of the
 * first attempt; any other answer is final. Calls from one other thread. */
#include "base/base.h"

typedef struct rd2h_rendezvous rd2h_rendezvous;
struct rd2h_rendezvous_opts {
  uint32_t connect_timeout_ms, max_attempts, answer_timeout_ms, max_inflight, max_queued; /* 0: default, see scheduler.h */
  uint32_t backoff_ms; /* first pause, doubled each time, at most 5 s; 0: 100 */
  bool legacy_metaserver;
  const char *ca; /* PEM file of the only authorities that https trusts; NULL: the machine's own store */
};
struct rd2h_rendezvous_result {
  char *id;    /* owned by the receiver: rd2h_free */
  int status;  /* OK: delivered; REFUSED: the metaserver's answer; IO: not reachable; TIMEOUT; CANCELED never comes */
  long http;   /* 0: no answer */
  char *text;  /* one line, owned by the receiver; NULL when OK */
};
/* INVALID: what `ca` names cannot be read, or holds no certificate. */
int rd2h_rendezvous_create(const struct rd2h_rendezvous_opts *, rd2h_rendezvous **, struct rd2h_error *);
/* Cancels what is open, joins the thread; bounded. */
void rd2h_rendezvous_destroy(rd2h_rendezvous *);
/* Queues a POST of the JSON body. INVALID (url no http/https, malformed), LIMIT (queue full), EXISTS (id is open). */
int rd2h_rendezvous_post(rd2h_rendezvous *, const char *id, const char *url, const char *body, size_t len, struct rd2h_error *);
/* After it returns no result for the id comes any more. */
void rd2h_rendezvous_cancel(rd2h_rendezvous *, const char *id);
uint32_t rd2h_rendezvous_poll(rd2h_rendezvous *, struct rd2h_rendezvous_result *, uint32_t cap);
int rd2h_rendezvous_fd(const rd2h_rendezvous *); /* readable when poll would return something */
uint32_t rd2h_rendezvous_open(const rd2h_rendezvous *);
#endif
