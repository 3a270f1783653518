/* SPDX-License-Identifier: Apache-2.0 */
#include "proxy/server.h"

#include "proxy/flow.h"

#include <arpa/inet.h>
#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <event2/listener.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { MAX_LISTENERS = 16, PIPELINE_BYTES = 64 << 10, LINGER_MS = 1000 };

enum conn_state {
  IDLE,     /* between requests */
  HEAD,
  BODY,
  ANSWERING,
  CLOSING,  /* the answer is on its way out, then the connection ends */
};

struct px_server {
  struct event_base *base;
  struct px_server_limits limits;
  struct px_handler handler;
  struct evconnlistener *listener[MAX_LISTENERS];
  void *tls[MAX_LISTENERS];
  size_t listeners, connections;
  uint64_t buffered;
  struct px_conn *first;
  bool draining;
};

struct px_conn {
  struct px_server *server;
  struct px_conn *next, **back;
  struct bufferevent *bev;
  struct event *timer;
  enum conn_state state;
  bool tls, keep, chunked_answer, no_body, http10;
  size_t scanned; /* of the head, without an end */
  char *head_text;
  struct px_head *head;
  struct px_chunks chunks;
  struct px_buf body;
  int64_t body_end;
  uint64_t counted; /* what of server->buffered is ours */
  const struct px_watch *watch;
  void *user;
  char peer[INET6_ADDRSTRLEN + 24];
};

/* ---- words ---- */
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

/* ---- books ---- */
static void count(struct px_conn *c) {
  uint64_t now = c->body.room + evbuffer_get_length(bufferevent_get_output(c->bev));
  c->server->buffered += now - c->counted;
  c->counted = now;
}

static void forget_request(struct px_conn *c) {
  free(c->head_text);
  free(c->head);
  c->head_text = NULL;
  c->head = NULL;
  rd2h_px_free(&c->body);
  c->chunks = (struct px_chunks){0};
  c->scanned = 0;
  c->watch = NULL;
  c->user = NULL;
}

static void conn_free(struct px_conn *c) {
  struct px_server *s = c->server;
  const struct px_watch *watch = c->watch;
  void *user = c->user;
  *c->back = c->next;
  if (c->next)
    c->next->back = c->back;
  forget_request(c);
  s->buffered -= c->counted;
  s->connections--;
  event_free(c->timer);
  bufferevent_free(c->bev);
  free(c);
  if (watch)
    watch->gone(user);
}

static int64_t now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void set_timer(struct px_conn *c, int64_t ms) {
  const struct timeval tv = {ms / 1000, ms % 1000 * 1000};
  evtimer_add(c->timer, &tv);
}

/* ---- answers ---- */
static void put(struct px_conn *c, struct px_span s) {
  if (s.n)
    bufferevent_write(c->bev, s.p, s.n);
}

/* Out at once: waiting for the loop would cost three system calls for each event of a stream. What the socket does not take waits. */
static void flush(struct px_conn *c) {
  struct evbuffer *out = bufferevent_get_output(c->bev);
  if (!c->tls && !(bufferevent_get_enabled(c->bev) & EV_WRITE)) {
    evbuffer_unfreeze(out, 1);
    evbuffer_write(out, bufferevent_getfd(c->bev));
    evbuffer_freeze(out, 1);
  }
  if (evbuffer_get_length(out))
    bufferevent_enable(c->bev, EV_WRITE);
  count(c);
}

static void put_head(struct px_conn *c, int status, struct px_span type, struct px_span headers, int64_t length) {
  struct evbuffer *out = bufferevent_get_output(c->bev);
  evbuffer_add_printf(out, "HTTP/1.1 %d %s\r\n", status, rd2h_px_reason(status));
  if (type.n)
    evbuffer_add_printf(out, "Content-Type: %.*s\r\n", (int)type.n, type.p);
  if (length >= 0)
    evbuffer_add_printf(out, "Content-Length: %lld\r\n", (long long)length);
  else if (c->chunked_answer)
    evbuffer_add_printf(out, "Transfer-Encoding: chunked\r\n");
  evbuffer_add(out, headers.p, headers.n);
  evbuffer_add_printf(out, c->keep ? c->http10 ? "Connection: keep-alive\r\n\r\n" : "\r\n" : "Connection: close\r\n\r\n");
}

/* What the client still sends is read for a moment: a reset would take the answer away from it. */
static void close_when_sent(struct px_conn *c) {
  if (evbuffer_get_length(bufferevent_get_output(c->bev)) > 0)
    return;
  shutdown(bufferevent_getfd(c->bev), SHUT_WR);
  set_timer(c, LINGER_MS);
}

/* The answer is complete: on to the next request, or out. */
static void answered(struct px_conn *c) {
  bool keep = c->keep && !c->server->draining;
  forget_request(c);
  count(c);
  if (!keep) {
    c->state = CLOSING;
    set_timer(c, c->server->limits.send_ms);
    close_when_sent(c);
    return;
  }
  c->state = IDLE;
  /* A pipelined request is read from the loop, not from inside the answer to the one before. */
  if (evbuffer_get_length(bufferevent_get_input(c->bev)))
    set_timer(c, 0);
  else
    set_timer(c, c->server->limits.idle_ms);
}

void rd2h_px_conn_reply(struct px_conn *c, int status, struct px_span type, struct px_span headers, struct px_span body) {
  put_head(c, status, type, headers, (int64_t)body.n);
  if (!c->no_body)
    put(c, body);
  flush(c);
  answered(c);
}

void rd2h_px_conn_begin(struct px_conn *c, int status, struct px_span type, struct px_span headers) {
  c->chunked_answer = !c->http10;
  c->keep = c->keep && c->chunked_answer;
  put_head(c, status, type, headers, -1);
}

void rd2h_px_conn_data(struct px_conn *c, struct px_span s) {
  char size[24];
  if (s.n == 0 || c->no_body)
    return;
  if (c->chunked_answer)
    bufferevent_write(c->bev, size, (size_t)snprintf(size, sizeof size, "%zx\r\n", s.n));
  put(c, s);
  if (c->chunked_answer)
    bufferevent_write(c->bev, "\r\n", 2);
  flush(c);
}

void rd2h_px_conn_end(struct px_conn *c) {
  if (c->chunked_answer)
    bufferevent_write(c->bev, "0\r\n\r\n", 5);
  c->chunked_answer = false;
  flush(c);
  answered(c);
}

size_t rd2h_px_conn_backlog(const struct px_conn *c) {
  return evbuffer_get_length(bufferevent_get_output(c->bev));
}

void rd2h_px_conn_watch(struct px_conn *c, const struct px_watch *watch, void *user) {
  c->watch = watch;
  c->user = user;
}

const char *rd2h_px_conn_peer(const struct px_conn *c) {
  return c->peer;
}

/* ---- requests ---- */
static void refuse(struct px_conn *c, int status, const char *why) {
  struct px_buf body = {0};
  c->keep = false;
  c->server->handler.refused(c->server->handler.ctx, c, status, why);
  rd2h_px_error_body(&body, status, px_str(why));
  evbuffer_drain(bufferevent_get_input(c->bev), SIZE_MAX);
  rd2h_px_conn_reply(c, status, PX_LIT("application/json"), status == 503 ? PX_LIT("Retry-After: 1\r\n") : PX_LIT(""), px_of(&body));
  rd2h_px_free(&body);
}

static void request_whole(struct px_conn *c) {
  evtimer_del(c->timer);
  c->state = ANSWERING;
  count(c);
  c->server->handler.request(c->server->handler.ctx, c, c->head, &c->body);
}

/* The head's length with its empty line, 0: not there yet. Dribbled bytes are looked at once. */
static size_t head_length(struct px_conn *c, struct evbuffer *in) {
  struct evbuffer_ptr from, at;
  size_t have = evbuffer_get_length(in);
  evbuffer_ptr_set(in, &from, c->scanned, EVBUFFER_PTR_SET);
  at = evbuffer_search(in, "\n", 1, &from);
  while (at.pos >= 0) {
    char next[2] = {0, 0};
    struct evbuffer_ptr after = at;
    if (evbuffer_ptr_set(in, &after, 1, EVBUFFER_PTR_ADD) < 0)
      break;
    ev_ssize_t n = evbuffer_copyout_from(in, &after, next, 2);
    if (n >= 1 && next[0] == '\n')
      return (size_t)at.pos + 2;
    if (n == 2 && next[0] == '\r' && next[1] == '\n')
      return (size_t)at.pos + 3;
    if (n < 2)
      break;
    at = evbuffer_search(in, "\n", 1, &after);
  }
  c->scanned = at.pos >= 0 ? (size_t)at.pos : have;
  return 0;
}

static bool take_head(struct px_conn *c, struct evbuffer *in, size_t n) {
  const char *why;
  c->head_text = malloc(n);
  c->head = malloc(sizeof *c->head);
  if (!c->head_text || !c->head) {
    refuse(c, 503, "memory ran out");
    return false;
  }
  evbuffer_remove(in, c->head_text, n);
  int status = rd2h_px_head_read((struct px_span){c->head_text, n}, c->head, &why);
  if (status) {
    refuse(c, status, why);
    return false;
  }
  c->http10 = c->head->http10;
  c->keep = c->head->keep_alive;
  c->no_body = px_equal(c->head->method, PX_LIT("HEAD"));
  /* The rest of the memory that headers may take is given back. */
  struct px_head *fit = realloc(c->head, offsetof(struct px_head, header) + c->head->n * sizeof(struct px_header) + 1);
  c->head = fit ? fit : c->head;
  return true;
}

/* In turn: the length that was promised, and what others hold. */
static bool room_for(struct px_conn *c, uint64_t n) {
  const struct px_server_limits *l = &c->server->limits;
  if (n > l->max_body) {
    refuse(c, 413, "the body is larger than max-body");
    return false;
  }
  if (c->server->buffered + n > l->max_buffered) {
    refuse(c, 503, "bodies and answers in memory have reached max-buffered");
    return false;
  }
  return true;
}

static void go_on(struct px_conn *c) {
  bufferevent_write(c->bev, "HTTP/1.1 100 Continue\r\n\r\n", 25);
  flush(c);
}

static bool read_head(struct px_conn *c, struct evbuffer *in) {
  size_t n = head_length(c, in), limit = c->server->limits.max_head;
  if (n > limit || (!n && evbuffer_get_length(in) > limit)) {
    refuse(c, 431, "the head is larger than max-head");
    return false;
  }
  if (!n || !take_head(c, in, n))
    return false;
  if (!room_for(c, c->head->length))
    return false;
  if (c->head->expect && (c->head->chunked || c->head->length))
    go_on(c);
  c->state = BODY;
  c->body_end = now_ms() + c->server->limits.body_total_ms;
  return true;
}

static bool keep_body(struct px_conn *c, struct px_span data) {
  if (c->head->chunked && !room_for(c, c->body.n + data.n))
    return false;
  rd2h_px_put(&c->body, data);
  if (!c->body.failed)
    return true;
  refuse(c, 503, "memory ran out");
  return false;
}

/* Whether the body is whole. */
static bool read_chunks(struct px_conn *c, struct evbuffer *in) {
  for (;;) {
    struct evbuffer_iovec v;
    if (evbuffer_peek(in, -1, NULL, &v, 1) < 1 || v.iov_len == 0)
      return false;
    struct px_span s = {v.iov_base, v.iov_len}, data;
    enum px_chunk_result r = rd2h_px_chunks_read(&c->chunks, &s, &data);
    if (r == PX_CHUNK_DATA && !keep_body(c, data))
      return false;
    if (r == PX_CHUNK_BAD) {
      refuse(c, 400, "the chunks of the body are malformed");
      return false;
    }
    evbuffer_drain(in, v.iov_len - s.n);
    if (r == PX_CHUNK_END)
      return true;
  }
}

static bool read_length(struct px_conn *c, struct evbuffer *in) {
  while (c->body.n < c->head->length) {
    struct evbuffer_iovec v;
    if (evbuffer_peek(in, -1, NULL, &v, 1) < 1 || v.iov_len == 0)
      return false;
    size_t left = (size_t)c->head->length - c->body.n, n = v.iov_len < left ? v.iov_len : left;
    if (!keep_body(c, (struct px_span){v.iov_base, n}))
      return false;
    evbuffer_drain(in, n);
  }
  return true;
}

static bool read_body(struct px_conn *c, struct evbuffer *in) {
  bool whole = c->head->chunked ? read_chunks(c, in) : read_length(c, in);
  if (!whole && c->state == BODY) {
    const struct px_server_limits *l = &c->server->limits;
    int64_t left = c->body_end - now_ms();
    count(c);
    set_timer(c, left < 0 ? 0 : left < l->body_ms ? left : l->body_ms);
  }
  return whole;
}

static void read_more(struct px_conn *c) {
  struct evbuffer *in = bufferevent_get_input(c->bev);
  if (c->state == IDLE && evbuffer_get_length(in)) {
    c->state = HEAD;
    c->keep = true;
    c->http10 = c->no_body = c->chunked_answer = false;
    set_timer(c, c->server->limits.head_ms);
  }
  if (c->state == HEAD && !read_head(c, in))
    return;
  if (c->state == BODY && read_body(c, in))
    request_whole(c);
}

/* ---- events ---- */
static void on_read(struct bufferevent *bev, void *arg) {
  struct px_conn *c = arg;
  if (c->state == CLOSING)
    evbuffer_drain(bufferevent_get_input(bev), SIZE_MAX);
  else if (c->state != ANSWERING)
    read_more(c);
}

static void on_write(struct bufferevent *bev, void *arg) {
  struct px_conn *c = arg;
  if (!c->tls && evbuffer_get_length(bufferevent_get_output(bev)) == 0)
    bufferevent_disable(bev, EV_WRITE);
  count(c);
  if (c->state == CLOSING)
    close_when_sent(c);
  else if (c->watch && c->watch->drained)
    c->watch->drained(c->user);
}

static void on_event(struct bufferevent *bev, short what, void *arg) {
  (void)bev;
  if (what & (BEV_EVENT_EOF | BEV_EVENT_ERROR | BEV_EVENT_TIMEOUT))
    conn_free(arg);
}

static void on_timer(evutil_socket_t fd, short what, void *arg) {
  struct px_conn *c = arg;
  (void)fd, (void)what;
  if (c->state == IDLE && evbuffer_get_length(bufferevent_get_input(c->bev)))
    read_more(c);
  else if (c->state == HEAD)
    refuse(c, 408, "the head did not come in time");
  else if (c->state == BODY)
    refuse(c, 408, "the body did not come in time");
  else
    conn_free(c);
}

/* ---- connections ---- */
static void name_peer(const struct sockaddr *a, char *out, size_t n) {
  const void *ip = a->sa_family == AF_INET6 ? (const void *)&((const struct sockaddr_in6 *)a)->sin6_addr
                                            : (const void *)&((const struct sockaddr_in *)a)->sin_addr;
  char text[INET6_ADDRSTRLEN] = "?";
  inet_ntop(a->sa_family, ip, text, sizeof text);
  snprintf(out, n, "%s", strncmp(text, "::ffff:", 7) == 0 ? text + 7 : text);
}

static struct bufferevent *new_bev(struct px_server *s, evutil_socket_t fd, SSL_CTX *tls) {
  if (!tls)
    return bufferevent_socket_new(s->base, fd, BEV_OPT_CLOSE_ON_FREE);
  SSL *ssl = SSL_new(tls);
  if (!ssl)
    return NULL;
  struct bufferevent *bev = bufferevent_openssl_socket_new(s->base, fd, ssl, BUFFEREVENT_SSL_ACCEPTING, BEV_OPT_CLOSE_ON_FREE);
  if (bev)
    bufferevent_openssl_set_allow_dirty_shutdown(bev, 1);
  else
    SSL_free(ssl);
  return bev;
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

static void on_accept(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *a, int length, void *arg) {
  struct px_server *s = arg;
  void *tls = NULL;
  (void)length;
  for (size_t i = 0; i < s->listeners; i++)
    if (s->listener[i] == l)
      tls = s->tls[i];
  if (s->connections >= s->limits.max_connections) {
    too_many(fd);
    return;
  }
  struct px_conn *c = calloc(1, sizeof *c);
  struct bufferevent *bev = c ? new_bev(s, fd, tls) : NULL;
  struct event *timer = bev ? evtimer_new(s->base, on_timer, c) : NULL;
  if (!timer) {
    if (bev)
      bufferevent_free(bev);
    else
      evutil_closesocket(fd);
    free(c);
    return;
  }
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
  c->server = s;
  c->bev = bev;
  c->timer = timer;
  name_peer(a, c->peer, sizeof c->peer);
  c->next = s->first;
  c->back = &s->first;
  if (s->first)
    s->first->back = &c->next;
  s->first = c;
  s->connections++;
  const struct timeval send_limit = {s->limits.send_ms / 1000, s->limits.send_ms % 1000 * 1000};
  bufferevent_setcb(bev, on_read, on_write, on_event, c);
  bufferevent_set_timeouts(bev, NULL, &send_limit);
  bufferevent_setwatermark(bev, EV_READ, 0, PIPELINE_BYTES);
  bufferevent_setwatermark(bev, EV_WRITE, 16 << 10, 0);
  c->tls = tls != NULL;
  if (c->tls)
    bufferevent_enable(bev, EV_WRITE);
  else
    bufferevent_disable(bev, EV_WRITE);
  bufferevent_enable(bev, EV_READ);
  set_timer(c, s->limits.head_ms);
}

struct px_server *rd2h_px_server_new(struct event_base *base, const struct px_server_limits *limits, const struct px_handler *handler) {
  struct px_server *s = calloc(1, sizeof *s);
  if (!s)
    return NULL;
  s->base = base;
  s->limits = *limits;
  s->handler = *handler;
  return s;
}

uint16_t rd2h_px_server_listen(struct px_server *s, const struct sockaddr *address, socklen_t length, void *tls) {
  struct sockaddr_storage bound = {0};
  socklen_t n = sizeof bound;
  if (s->listeners == MAX_LISTENERS) {
    errno = ENOSPC;
    return 0;
  }
  struct evconnlistener *l = evconnlistener_new_bind(s->base, on_accept, s, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC |
                                                     LEV_OPT_REUSEABLE | (address->sa_family == AF_INET6 ? LEV_OPT_BIND_IPV6ONLY : 0),
                                                     4096, address, (int)length);
  if (!l)
    return 0;
  s->tls[s->listeners] = tls;
  s->listener[s->listeners++] = l;
  getsockname(evconnlistener_get_fd(l), (struct sockaddr *)&bound, &n);
  return ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port : ((struct sockaddr_in *)&bound)->sin_port);
}

void rd2h_px_server_drain(struct px_server *s) {
  s->draining = true;
  while (s->listeners)
    evconnlistener_free(s->listener[--s->listeners]);
  for (struct px_conn *c = s->first, *next; c; c = next) {
    next = c->next;
    if (c->state == IDLE)
      conn_free(c);
  }
}

void rd2h_px_server_free(struct px_server *s) {
  if (!s)
    return;
  rd2h_px_server_drain(s);
  while (s->first)
    conn_free(s->first);
  free(s);
}

size_t rd2h_px_server_connections(const struct px_server *s) {
  return s->connections;
}

void rd2h_px_server_account(struct px_server *s, int64_t bytes) {
  s->buffered += (uint64_t)bytes;
}

uint64_t rd2h_px_server_buffered(const struct px_server *s) {
  return s->buffered;
}
