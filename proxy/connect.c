/* SPDX-License-Identifier: Apache-2.0 */
/* A call gets a new connection: the peer's addresses are tried one after another, each a moment after the one before or at once when that
 * has failed, and none is given up for the next one. The first that opens, TLS included, is the call's. */
#include "proxy/client_inner.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { NEXT_MS = 250 };

static SSL *new_ssl(const struct px_peer *p) {
  const struct px_client *c = p->client;
  SSL *ssl = SSL_new(c->tls);
  if (!ssl)
    return NULL;
  bool good = p->numeric || SSL_set_tlsext_host_name(ssl, p->host) == 1;
  if (good && c->limits.verify)
    good = p->numeric ? X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), p->host) == 1 : SSL_set1_host(ssl, p->host) == 1;
  if (good)
    return ssl;
  SSL_free(ssl);
  return NULL;
}

static int new_socket(const struct px_addresses *a, size_t which) {
  const struct sockaddr *to = (const struct sockaddr *)&a->of[which].address;
  int fd = socket(to->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0)
    return -1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &(int){1}, sizeof(int)); /* an engine whose machine is gone is noticed within a minute */
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &(int){30}, sizeof(int));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &(int){10}, sizeof(int));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &(int){3}, sizeof(int));
  if (connect(fd, to, a->of[which].length) == 0 || errno == EINPROGRESS)
    return fd;
  int error = errno;
  close(fd);
  errno = error;
  return -1;
}

/* ---- tries ---- */
static void list(struct px_call *call, struct px_wire *w) {
  w->call = call;
  w->next = call->tries;
  w->back = &call->tries;
  if (w->next)
    w->next->back = &w->next;
  call->tries = w;
}

static void unlist(struct px_wire *w) {
  *w->back = w->next;
  if (w->next)
    w->next->back = w->back;
  w->back = NULL;
}

static void close_try(struct px_wire *w) {
  unlist(w);
  rd2h_px_link_free(w->link);
  free(w);
}

static void close_tries(struct px_call *call) {
  while (call->tries)
    close_try(call->tries);
  event_del(&call->next_try);
}

/* False: errno. */
static bool try_address(struct px_call *call, size_t which) {
  struct px_peer *p = call->peer;
  struct px_wire *w = calloc(1, sizeof *w);
  SSL *ssl = p->tls ? new_ssl(p) : NULL;
  int fd = -1, error = ENOMEM;
  if (!w || (p->tls && !ssl))
    goto fail;
  fd = new_socket(&p->addresses, which);
  error = errno;
  if (fd < 0)
    goto fail;
  w->peer = p;
  w->address = which;
  w->link = rd2h_px_link_new(p->client->base, fd, ssl, PX_CONNECTING, 0, &rd2h_px_wire_events, w);
  error = ENOMEM;
  if (!w->link)
    goto fail;
  list(call, w);
  return true;

fail:
  if (fd >= 0)
    close(fd);
  SSL_free(ssl);
  free(w);
  errno = error;
  return false;
}

/* Starts a try of the next address that can be tried at all. False: none is left, errno of the last. */
static bool try_next(struct px_call *call) {
  const struct px_addresses *a = &call->peer->addresses;
  int64_t ms = call->client->limits.connect_ms / (int64_t)(a->n + 1); /* short limits are divided evenly */
  bool started = false;
  while (!started && call->tried < a->n)
    started = try_address(call, (call->first + call->tried++) % a->n);
  if (started && call->tried < a->n)
    event_add(&call->next_try, (const struct timeval[]){px_timeval(ms < NEXT_MS ? ms : NEXT_MS)});
  return started;
}

void rd2h_px_connect_on_delay(evutil_socket_t fd, short what, void *arg) {
  (void)fd, (void)what;
  try_next(arg); /* without one more, those before it go on */
}

/* ---- beginning and end ---- */
void rd2h_px_connect(struct px_call *call) {
  struct px_peer *p = call->peer;
  call->state = PX_CALL_CONNECTING;
  call->first = p->preferred;
  call->tried = 0;
  call->counted = true;
  p->wires++;
  rd2h_px_call_hurry(call);
  errno = EADDRNOTAVAIL;
  if (!try_next(call))
    rd2h_px_call_fail_later(call, strerror(errno));
}

void rd2h_px_connect_stop(struct px_call *call) {
  close_tries(call);
  if (!call->counted)
    return;
  call->counted = false;
  rd2h_px_peer_freed(call->peer);
}

void rd2h_px_connect_gave_up(struct px_call *call, const char *error) {
  call->peer->resolved_at = 0; /* the name may stand for other addresses by now */
  rd2h_px_call_finish(call, error);
}

void rd2h_px_connect_won(struct px_wire *w) {
  struct px_call *call = w->call;
  unlist(w);
  close_tries(call);
  call->counted = false; /* the wire counts from now on */
  call->wire = w;
  w->peer->preferred = w->address;
  rd2h_px_call_begin(call);
}

void rd2h_px_connect_lost(struct px_wire *w, const char *error) {
  struct px_call *call = w->call;
  char text[160];
  snprintf(text, sizeof text, "%s", error ? error : "it closed the connection");
  close_try(w);
  if (!try_next(call) && !call->tries)
    rd2h_px_connect_gave_up(call, text);
}
