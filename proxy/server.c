/* SPDX-License-Identifier: Apache-2.0 */
/* Listeners, the list of connections, and the books of the memory that requests hold. */
#include "proxy/server_inner.h"

#include <arpa/inet.h>
#include <errno.h>
#include <event2/listener.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>

enum { PAUSE_MS = 100 };

/* ---- books ---- */
void rd2h_px_conn_count(struct px_conn *c) {
  uint64_t scanned = c->scan.members.room + c->scan.elements.room;
  uint64_t now = c->body.room + scanned + c->in.room + (rd2h_px_link_backlog(c->link) ? rd2h_px_link_room(c->link) : 0);
  c->server->buffered += now - c->counted;
  c->counted = now;
}

void rd2h_px_server_account(struct px_server *s, int64_t bytes) {
  s->buffered += (uint64_t)bytes;
}

uint64_t rd2h_px_server_buffered(const struct px_server *s) {
  return s->buffered;
}

/* ---- connections ---- */
void rd2h_px_conn_release(struct px_conn *c) {
  free(c->head_text);
  free(c->head);
  c->head_text = NULL;
  c->head = NULL;
  rd2h_px_free(&c->body);
  rd2h_px_scan_free(&c->scan);
  c->chunks = (struct px_chunks){0};
}

void rd2h_px_conn_free(struct px_conn *c) {
  struct px_server *s = c->server;
  const struct px_watch *watch = c->watch;
  void *user = c->user;
  *c->back = c->next;
  if (c->next)
    c->next->back = c->back;
  rd2h_px_conn_release(c);
  s->buffered -= c->counted;
  s->connections--;
  event_del(&c->timer);
  rd2h_px_link_free(c->link);
  rd2h_px_free(&c->in);
  free(c);
  if (watch)
    watch->gone(user);
}

void rd2h_px_conn_timer(struct px_conn *c, int64_t ms) {
  const struct timeval tv = px_timeval(ms);
  event_add(&c->timer, &tv);
}

void rd2h_px_conn_watch(struct px_conn *c, const struct px_watch *watch, void *user) {
  c->watch = watch;
  c->user = user;
}

const char *rd2h_px_conn_peer(const struct px_conn *c) {
  return c->peer;
}

static void name_peer(const struct sockaddr *a, char *out, size_t n) {
  const void *ip = a->sa_family == AF_INET6 ? (const void *)&((const struct sockaddr_in6 *)a)->sin6_addr
                                            : (const void *)&((const struct sockaddr_in *)a)->sin_addr;
  char text[INET6_ADDRSTRLEN] = "?";
  inet_ntop(a->sa_family, ip, text, sizeof text);
  snprintf(out, n, "%s", strncmp(text, "::ffff:", 7) == 0 ? text + 7 : text);
}

bool rd2h_px_conn_is_local(const struct px_conn *c) {
  struct sockaddr_storage own = {0};
  socklen_t n = sizeof own;
  char text[sizeof c->peer];
  if (strncmp(c->peer, "127.", 4) == 0 || strcmp(c->peer, "::1") == 0)
    return true;
  if (getsockname(rd2h_px_link_fd(c->link), (struct sockaddr *)&own, &n))
    return false;
  name_peer((struct sockaddr *)&own, text, sizeof text);
  return strcmp(text, c->peer) == 0;
}

static void too_many(evutil_socket_t fd) {
  static const char body[] = "{\"error\":{\"message\":\"too many connections (max-connections)\",\"type\":\"server_error\","
                             "\"param\":null,\"code\":503}}";
  char text[512];
  int n = snprintf(text, sizeof text, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
                   "Content-Length: %zu\r\nConnection: close\r\n\r\n%s", sizeof body - 1, body);
  (void)!send(fd, text, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL);
  evutil_closesocket(fd);
}

/* Descriptors ran out: what waits to be accepted would wake the loop again and again. */
static void on_accept_error(struct evconnlistener *l, void *arg) {
  struct px_server *s = arg;
  (void)l;
  for (size_t i = 0; i < s->listeners; i++)
    evconnlistener_disable(s->listener[i]);
  event_add(s->pause, &(struct timeval){0, PAUSE_MS * 1000});
}

static void on_pause_end(evutil_socket_t fd, short what, void *arg) {
  struct px_server *s = arg;
  (void)fd, (void)what;
  for (size_t i = 0; i < s->listeners; i++)
    evconnlistener_enable(s->listener[i]);
}

static void on_accept(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *a, int length, void *arg) {
  struct px_server *s = arg;
  void *tls = NULL;
  (void)length;
  for (size_t i = 0; i < s->listeners; i++)
    if (s->listener[i] == l)
      tls = s->tls[i];
  if (s->connections >= s->limits.max_connections) {
    s->turned_away++;
    too_many(fd);
    return;
  }
  struct px_conn *c = calloc(1, sizeof *c);
  SSL *ssl = c && tls ? SSL_new(tls) : NULL;
  if (c && (ssl || !tls))
    c->link = rd2h_px_link_new(s->base, fd, ssl, PX_ACCEPTED, s->limits.send_ms, &rd2h_px_conn_events, c);
  if (!c || !c->link) {
    SSL_free(ssl);
    free(c);
    evutil_closesocket(fd);
    return;
  }
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
  c->server = s;
  evtimer_assign(&c->timer, s->base, rd2h_px_conn_on_timer, c);
  name_peer(a, c->peer, sizeof c->peer);
  c->next = s->first;
  c->back = &s->first;
  if (s->first)
    s->first->back = &c->next;
  s->first = c;
  s->connections++;
  rd2h_px_conn_timer(c, s->limits.head_ms);
}

/* ---- the server ---- */
struct px_server *rd2h_px_server_new(struct event_base *base, const struct px_server_limits *limits, const struct px_handler *handler) {
  struct px_server *s = calloc(1, sizeof *s);
  if (!s)
    return NULL;
  s->base = base;
  s->limits = *limits;
  s->handler = *handler;
  s->pause = evtimer_new(base, on_pause_end, s);
  if (s->pause)
    return s;
  free(s);
  return NULL;
}

/* A client whose machine is gone without a word is noticed within a minute, not after two hours. */
static void stay_in_touch(evutil_socket_t fd) {
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &(int){1}, sizeof(int));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &(int){30}, sizeof(int));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &(int){10}, sizeof(int));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &(int){3}, sizeof(int));
}

uint16_t rd2h_px_server_listen(struct px_server *s, const struct sockaddr *address, socklen_t length, void *tls) {
  struct sockaddr_storage bound = {0};
  socklen_t n = sizeof bound;
  if (s->listeners == PX_MAX_LISTENERS) {
    errno = ENOSPC;
    return 0;
  }
  struct evconnlistener *l = evconnlistener_new_bind(s->base, on_accept, s, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC |
                                                     LEV_OPT_REUSEABLE | (address->sa_family == AF_INET6 ? LEV_OPT_BIND_IPV6ONLY : 0),
                                                     4096, address, (int)length);
  if (!l)
    return 0;
  evconnlistener_set_error_cb(l, on_accept_error);
  stay_in_touch(evconnlistener_get_fd(l)); /* accepted ones inherit it */
  s->tls[s->listeners] = tls;
  s->listener[s->listeners++] = l;
  getsockname(evconnlistener_get_fd(l), (struct sockaddr *)&bound, &n);
  return ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port : ((struct sockaddr_in *)&bound)->sin_port);
}

void rd2h_px_server_wind_down(struct px_server *s) {
  s->winding_down = true;
}

void rd2h_px_server_drain(struct px_server *s) {
  s->draining = true;
  while (s->listeners)
    evconnlistener_free(s->listener[--s->listeners]);
  for (struct px_conn *c = s->first, *next; c; c = next) {
    next = c->next;
    if (c->state == PX_IDLE)
      rd2h_px_conn_free(c);
  }
}

bool rd2h_px_server_sends(const struct px_server *s) {
  const struct px_conn *c = s->first;
  while (c && rd2h_px_link_backlog(c->link) == 0)
    c = c->next;
  return c != NULL;
}

void rd2h_px_server_free(struct px_server *s) {
  if (!s)
    return;
  rd2h_px_server_drain(s);
  while (s->first)
    rd2h_px_conn_free(s->first);
  event_free(s->pause);
  free(s);
}

uint64_t rd2h_px_server_turned_away(const struct px_server *s) {
  return s->turned_away;
}

size_t rd2h_px_server_connections(const struct px_server *s) {
  return s->connections;
}
