/* SPDX-License-Identifier: Apache-2.0 */
#include "proxy/link.h"

#include <errno.h>
#include <event2/event_struct.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/uio.h>

enum { READ_BYTES = 64 << 10, ROUNDS = 4, KEPT_ROOM = 4 << 10, MAX_PARTS = 8, GIVEN_PARTS = 6, GIVEN_LEAST = 64 << 10 };

enum state { CONNECTING, SHAKING, OPEN };

/* What was given: memory of the link's, and the parts that lie in it. */
struct given {
  struct px_buf from, copies;
  struct px_span part[GIVEN_PARTS];
};

struct px_link {
  const struct px_link_events *events;
  void *user;
  SSL *ssl;
  struct event reads, writes;
  struct timeval send_limit;
  struct px_buf out; /* from out_at on it waits */
  size_t out_at;
  const struct px_span *lent; /* behind out; another's memory, or that of given */
  size_t lent_parts, lent_at, lent_n; /* lent_at: in the first, lent_n: bytes left */
  struct given *given;
  enum state state;
  int failed; /* errno of a write; told when the next read finds nothing */
  bool reading, writing, shut;
  bool freed; /* with events still running, that free the memory */
  unsigned running;
};

/* One loop, one thread: a buffer for each link would cost more than all else that a stream needs. */
static char buffer[READ_BYTES];

static void on_events(evutil_socket_t fd, short what, void *arg);

/* ---- what is waited for ---- */
static bool has_limit(const struct px_link *l) {
  return l->send_limit.tv_sec || l->send_limit.tv_usec;
}

static void want_write(struct px_link *l, bool on) {
  if (on)
    event_add(&l->writes, l->state == OPEN && has_limit(l) ? &l->send_limit : NULL);
  else if (l->writing)
    event_del(&l->writes);
  l->writing = on;
}

void rd2h_px_link_read(struct px_link *l, bool on) {
  if (l->reading == on)
    return;
  l->reading = on;
  if (!on) {
    event_del(&l->reads);
    if (l->failed) /* that it has is told by the event that this has just taken back */
      event_active(&l->reads, EV_READ, 1);
    return;
  }
  event_add(&l->reads, NULL);
  if (l->ssl && SSL_pending(l->ssl))
    event_active(&l->reads, EV_READ, 1);
}

struct px_link *rd2h_px_link_new(struct event_base *base, evutil_socket_t fd, void *ssl, enum px_link_side side, int64_t send_ms,
                                 const struct px_link_events *events, void *user) {
  struct px_link *l = calloc(1, sizeof *l);
  if (!l)
    return NULL;
  l->events = events;
  l->user = user;
  l->state = side == PX_CONNECTING ? CONNECTING : ssl ? SHAKING : OPEN;
  l->send_limit = (struct timeval){send_ms / 1000, send_ms % 1000 * 1000};
  event_assign(&l->reads, base, fd, EV_READ | EV_PERSIST, on_events, l);
  event_assign(&l->writes, base, fd, EV_WRITE | EV_PERSIST, on_events, l);
  if (ssl && SSL_set_fd(ssl, fd) != 1) {
    free(l);
    return NULL;
  }
  l->ssl = ssl;
  if (ssl)
    SSL_set_mode(ssl, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
  if (side == PX_CONNECTING) {
    if (ssl)
      SSL_set_connect_state(ssl);
    want_write(l, true);
  } else {
    if (ssl)
      SSL_set_accept_state(ssl);
    rd2h_px_link_read(l, true);
  }
  return l;
}

static void drop_given(struct px_link *l) {
  if (!l->given)
    return;
  rd2h_px_free(&l->given->from);
  rd2h_px_free(&l->given->copies);
  free(l->given);
  l->given = NULL;
}

void rd2h_px_link_free(struct px_link *l) {
  evutil_socket_t fd = event_get_fd(&l->reads);
  event_del(&l->reads);
  event_del(&l->writes);
  if (l->ssl) {
    if (l->state == OPEN && !l->failed)
      SSL_shutdown(l->ssl); /* the other side shall know that nothing was cut off */
    SSL_free(l->ssl);
    ERR_clear_error();
  }
  evutil_closesocket(fd);
  rd2h_px_free(&l->out);
  drop_given(l);
  l->freed = true;
  if (!l->running)
    free(l);
}

/* Behind an event: whether the link is still there. */
static bool is_there(struct px_link *l) {
  bool there = !l->freed;
  if (--l->running == 0 && !there)
    free(l);
  return there;
}

/* ---- out ---- */
size_t rd2h_px_link_backlog(const struct px_link *l) {
  return l->out.n - l->out_at + l->lent_n;
}

bool rd2h_px_link_failed(const struct px_link *l) {
  return l->failed;
}

size_t rd2h_px_link_room(const struct px_link *l) {
  return l->out.room + (l->given ? l->given->from.room + l->given->copies.room : 0);
}

evutil_socket_t rd2h_px_link_fd(const struct px_link *l) {
  return event_get_fd(&l->reads);
}

static void failed(struct px_link *l, int error) {
  l->failed = error;
  l->out.n = l->out_at = l->lent_n = l->lent_parts = 0;
  want_write(l, false);
  event_active(&l->reads, EV_READ, 1);
}

/* Both: bytes that went out; 0: none for now, or the link has failed. */
static size_t write_tls(struct px_link *l, const struct iovec *v) {
  ERR_clear_error();
  int done = SSL_write(l->ssl, v->iov_base, v->iov_len < INT32_MAX ? (int)v->iov_len : INT32_MAX);
  if (done > 0)
    return (size_t)done;
  int why = SSL_get_error(l->ssl, done);
  if (why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE)
    failed(l, why == SSL_ERROR_SYSCALL && errno ? errno : EPIPE);
  return 0;
}

static size_t write_plain(struct px_link *l, const struct iovec *v, size_t n) {
  const struct msghdr m = {.msg_iov = (struct iovec *)v, .msg_iovlen = n};
  ssize_t done = sendmsg(event_get_fd(&l->reads), &m, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (done >= 0)
    return (size_t)done;
  if (errno != EAGAIN && errno != EINTR)
    failed(l, errno);
  return 0;
}

static void lent_went(struct px_link *l, size_t n) {
  l->lent_n -= n;
  for (size_t left; n > 0; n -= left) {
    left = l->lent->n - l->lent_at;
    if (n < left) {
      l->lent_at += n;
      return;
    }
    l->lent++;
    l->lent_parts--;
    l->lent_at = 0;
  }
}

/* What waits, in one go where that is possible. Returns what went out. */
static size_t write_waiting(struct px_link *l) {
  struct iovec v[MAX_PARTS];
  size_t n = 0, own = l->out.n - l->out_at;
  if (own)
    v[n++] = (struct iovec){l->out.p + l->out_at, own};
  for (size_t i = 0; l->lent_n && i < l->lent_parts && n < MAX_PARTS; i++) {
    size_t skip = i ? 0 : l->lent_at;
    if (l->lent[i].n > skip)
      v[n++] = (struct iovec){(void *)(l->lent[i].p + skip), l->lent[i].n - skip};
  }
  size_t done = l->ssl ? write_tls(l, v) : write_plain(l, v, n), part = done < own ? done : own;
  if (l->failed)
    return 0;
  l->out_at += part;
  lent_went(l, done - part);
  return done;
}

static void all_sent(struct px_link *l) {
  l->out_at = 0;
  rd2h_px_clear(&l->out);
  drop_given(l);
  if (l->out.room > KEPT_ROOM)
    rd2h_px_free(&l->out);
  if (l->shut && l->ssl)
    SSL_shutdown(l->ssl);
  if (l->shut)
    shutdown(event_get_fd(&l->reads), SHUT_WR);
  l->shut = false;
}

static void flush(struct px_link *l) {
  while (l->state == OPEN && rd2h_px_link_backlog(l) && write_waiting(l))
    if (!l->ssl) /* TLS writes a record at a time */
      break;
  bool waits = rd2h_px_link_backlog(l) > 0;
  if (!waits)
    all_sent(l);
  if (l->state == OPEN && waits != l->writing && !l->failed)
    want_write(l, waits);
}

/* What has gone out is dropped when it is more than what waits: each byte is moved a bounded number of times. */
static void keep(struct px_link *l, struct px_span s) {
  if (l->out_at > l->out.n / 2) {
    rd2h_px_shift(&l->out, l->out_at);
    l->out_at = 0;
  }
  rd2h_px_put(&l->out, s);
  if (l->out.failed)
    failed(l, ENOMEM);
}

static void keep_lent(struct px_link *l) {
  for (size_t i = 0; l->lent_n && !l->failed; i++) {
    size_t skip = i ? 0 : l->lent_at, n = l->lent[i].n - skip;
    l->lent_n -= n;
    keep(l, (struct px_span){l->lent[i].p + skip, n});
  }
  drop_given(l);
}

void rd2h_px_link_add(struct px_link *l, struct px_span s) {
  keep_lent(l);
  if (!l->failed)
    keep(l, s);
}

void rd2h_px_link_send(struct px_link *l, const struct px_span *part, size_t n) {
  struct iovec v[MAX_PARTS];
  size_t done = 0;
  bool direct = !l->failed && l->state == OPEN && !l->ssl && rd2h_px_link_backlog(l) == 0;
  keep_lent(l);
  if (direct && n) {
    for (size_t i = 0; i < n; i++)
      v[i] = (struct iovec){(void *)part[i].p, part[i].n};
    done = write_plain(l, v, n);
  }
  for (size_t i = 0; i < n && !l->failed; i++) {
    size_t skip = done < part[i].n ? done : part[i].n;
    done -= skip;
    if (part[i].n > skip)
      keep(l, (struct px_span){part[i].p + skip, part[i].n - skip});
  }
  if (l->failed)
    return;
  if (!direct)
    flush(l);
  else if (rd2h_px_link_backlog(l))
    want_write(l, true);
}

static void lend(struct px_link *l, const struct px_span *part, size_t parts) {
  l->lent = part;
  l->lent_parts = parts;
  l->lent_at = l->lent_n = 0;
  for (size_t i = 0; i < parts; i++)
    l->lent_n += part[i].n;
  flush(l);
}

void rd2h_px_link_lend(struct px_link *l, struct px_span own, const struct px_span *part, size_t parts) {
  rd2h_px_link_add(l, own);
  if (!l->failed)
    lend(l, part, parts);
}

static bool lies_in(struct px_span s, const struct px_buf *b) {
  return b && s.n && s.p >= b->p && s.p + s.n <= b->p + b->n;
}

/* The parts, with copies of those that do not lie in *from. NULL: memory ran out. */
static struct given *take_over(const struct px_span *part, size_t parts, const struct px_buf *from) {
  struct given *g = calloc(1, sizeof *g);
  size_t copied = 1;
  for (size_t i = 0; i < parts; i++)
    copied += lies_in(part[i], from) ? 0 : part[i].n;
  if (!g || !(g->copies.p = malloc(copied))) {
    free(g);
    return NULL;
  }
  g->copies.room = copied; /* it does not grow: parts point into it */
  for (size_t i = 0; i < parts; i++) {
    size_t at = g->copies.n;
    g->part[i] = part[i];
    if (lies_in(part[i], from))
      continue;
    rd2h_px_put(&g->copies, part[i]);
    g->part[i].p = g->copies.p + at;
  }
  return g;
}

void rd2h_px_link_give(struct px_link *l, struct px_span own, const struct px_span *part, size_t parts, struct px_buf *from) {
  struct px_span all[MAX_PARTS] = {own};
  size_t n = own.n;
  for (size_t i = 0; i < parts; i++) {
    all[i + 1] = part[i];
    n += part[i].n;
  }
  if (!from || n < GIVEN_LEAST) {
    rd2h_px_link_send(l, all, parts + 1);
    return;
  }
  rd2h_px_link_add(l, own);
  struct given *g = l->failed ? NULL : take_over(part, parts, from);
  if (!g) {
    if (!l->failed)
      failed(l, ENOMEM);
    return;
  }
  g->from = *from;
  *from = (struct px_buf){0};
  l->given = g;
  lend(l, g->part, parts);
}

void rd2h_px_link_shut(struct px_link *l) {
  l->shut = true;
  if (!l->failed)
    flush(l);
}

/* ---- in ---- */
static const char *tls_error(struct px_link *l) {
  long verdict = SSL_get_verify_result(l->ssl);
  const char *why = ERR_reason_error_string(ERR_peek_error());
  if (verdict != X509_V_OK)
    return X509_verify_cert_error_string(verdict);
  return why ? why : errno ? strerror(errno) : "the connection was cut off";
}

enum got { SOME, NONE, END, BROKEN };

static enum got read_tls(struct px_link *l, size_t *n) {
  ERR_clear_error();
  errno = 0;
  int done = SSL_read(l->ssl, buffer, sizeof buffer);
  *n = done > 0 ? (size_t)done : 0;
  if (done > 0)
    return SOME;
  switch (SSL_get_error(l->ssl, done)) {
  case SSL_ERROR_WANT_READ:
    return NONE;
  case SSL_ERROR_WANT_WRITE:
    want_write(l, true);
    return NONE;
  case SSL_ERROR_ZERO_RETURN:
    return END;
  default:
    l->failed = l->failed ? l->failed : EPROTO;
    return BROKEN;
  }
}

static enum got read_plain(struct px_link *l, size_t *n) {
  ssize_t done = recv(event_get_fd(&l->reads), buffer, sizeof buffer, MSG_DONTWAIT);
  *n = done > 0 ? (size_t)done : 0;
  if (done > 0)
    return SOME;
  if (done == 0)
    return END;
  if (errno == EAGAIN || errno == EINTR)
    return NONE;
  l->failed = errno;
  return BROKEN;
}

/* Takes turns with other links after some rounds. */
static void read_some(struct px_link *l) {
  if (l->failed && !l->reading) {
    l->events->closed(l->user, strerror(l->failed));
    return;
  }
  for (int round = 0; round < ROUNDS && l->reading; round++) {
    size_t n;
    enum got got = l->ssl ? read_tls(l, &n) : read_plain(l, &n);
    if (got == NONE && !l->failed)
      return;
    if (got != SOME) {
      const char *why = got == END ? NULL : got == BROKEN && l->ssl ? tls_error(l) : strerror(l->failed);
      rd2h_px_link_read(l, false);
      l->events->closed(l->user, why);
      return;
    }
    l->running++;
    l->events->data(l->user, buffer, n);
    if (!is_there(l))
      return;
    if (!l->ssl && n < sizeof buffer && !l->failed)
      return;
  }
  if (l->reading && l->ssl && SSL_pending(l->ssl))
    event_active(&l->reads, EV_READ, 1);
}

/* ---- beginnings ---- */
/* Whether the link is open now. */
static bool shake(struct px_link *l) {
  ERR_clear_error();
  errno = 0;
  int rc = SSL_do_handshake(l->ssl);
  if (rc == 1) {
    want_write(l, false);
    l->state = OPEN;
    return true;
  }
  int why = SSL_get_error(l->ssl, rc);
  want_write(l, why == SSL_ERROR_WANT_WRITE);
  if (why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE) {
    l->failed = EPROTO;
    rd2h_px_link_read(l, false);
    l->events->closed(l->user, tls_error(l));
  }
  return false;
}

static bool connected(struct px_link *l) {
  int error = 0;
  socklen_t n = sizeof error;
  getsockopt(event_get_fd(&l->reads), SOL_SOCKET, SO_ERROR, &error, &n);
  want_write(l, false);
  if (error) {
    l->failed = error;
    l->events->closed(l->user, strerror(error));
    return false;
  }
  l->state = l->ssl ? SHAKING : OPEN;
  rd2h_px_link_read(l, true);
  return !l->ssl || shake(l);
}

static bool begin(struct px_link *l) {
  if (!(l->state == CONNECTING ? connected(l) : shake(l)))
    return false;
  l->running++;
  if (l->events->open)
    l->events->open(l->user);
  return is_there(l);
}

static void on_events(evutil_socket_t fd, short what, void *arg) {
  struct px_link *l = arg;
  size_t before = rd2h_px_link_backlog(l);
  (void)fd;
  if (l->state != OPEN && !l->failed && !begin(l))
    return;
  if (what & EV_TIMEOUT && !(what & EV_WRITE)) { /* both: it was this process that stood still */
    l->failed = ETIMEDOUT;
    rd2h_px_link_read(l, false);
    l->events->closed(l->user, "it takes nothing of what is sent to it");
    return;
  }
  if (!l->failed && (before || l->writing)) /* what TLS wanted to write for a read is written by that read */
    flush(l);
  if (rd2h_px_link_backlog(l) < before && l->events->sent) {
    l->running++;
    l->events->sent(l->user);
    if (!is_there(l))
      return;
  }
  if (what & EV_READ || l->ssl)
    read_some(l);
}
