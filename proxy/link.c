/* SPDX-License-Identifier: Apache-2.0 */
#include "proxy/link.h"

#include <errno.h>
#include <event2/event_struct.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/uio.h>

enum { READ_BYTES = 64 << 10, ROUNDS = 4, KEPT_ROOM = 4 << 10, MAX_PARTS = 8 };

enum state { CONNECTING, SHAKING, OPEN };

struct px_link {
  const struct px_link_events *events;
  void *user;
  SSL *ssl;
  struct event reads, writes;
  struct timeval send_limit;
  struct px_buf out; /* from out_at on it waits */
  size_t out_at;
  struct px_span lent; /* behind out; another's memory */
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
  return l->out.n - l->out_at + l->lent.n;
}

bool rd2h_px_link_failed(const struct px_link *l) {
  return l->failed;
}

size_t rd2h_px_link_room(const struct px_link *l) {
  return l->out.room;
}

static void failed(struct px_link *l, int error) {
  l->failed = error;
  l->out.n = l->out_at = l->lent.n = 0;
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

/* What waits, in one go where that is possible. Returns what went out. */
static size_t write_waiting(struct px_link *l) {
  struct iovec v[2];
  size_t n = 0, own = l->out.n - l->out_at;
  if (own)
    v[n++] = (struct iovec){l->out.p + l->out_at, own};
  if (l->lent.n)
    v[n++] = (struct iovec){(void *)l->lent.p, l->lent.n};
  size_t done = l->ssl ? write_tls(l, v) : write_plain(l, v, n), part = done < own ? done : own;
  l->out_at += part;
  l->lent.p += done - part;
  l->lent.n -= done - part;
  return done;
}

static void all_sent(struct px_link *l) {
  l->out_at = 0;
  rd2h_px_clear(&l->out);
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
  struct px_span lent = l->lent;
  l->lent.n = 0;
  if (lent.n)
    keep(l, lent);
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

void rd2h_px_link_lend(struct px_link *l, struct px_span own, struct px_span lent) {
  rd2h_px_link_add(l, own);
  if (l->failed)
    return;
  l->lent = lent;
  flush(l);
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
