/* SPDX-License-Identifier: Apache-2.0 */
/* One stream on Prefill's side: hello, then request and reply by turns. */
#include "engines/tcp/server.h"
#include <errno.h>
#include <unistd.h>

#define REFUSED_NS (2000 * RD2H_MS) /* how long a refused reader may take to read why */
#define TURN_REQUESTS 16            /* of one link before others get their turn */
#define ZEROS 65536u
#define PAGE 4096u                  /* the smallest there is */

enum step { GO_ON, WAIT, CLOSE };

static uint8_t zeros[ZEROS]; /* never written */

/* Receives into p until `want` bytes are there. */
static enum step receive(struct tcp_link *l, uint8_t *p, uint32_t want) {
  while (l->got < want) {
    ssize_t n = recv(l->fd, p + l->got, want - l->got, 0);
    if (n > 0)
      l->got += (uint32_t)n;
    else if (n < 0 && errno == EINTR)
      continue;
    else
      return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? WAIT : CLOSE;
  }
  l->got = 0;
  return GO_ON;
}

void rd2h_tcp_link_refuse(struct tcp_server *s, struct tcp_link *l, int status) {
  uint8_t out[TCP_REPLY];
  (void)s;
  rd2h_tcp_reply_encode(&(struct tcp_reply){TCP_REPLY_REFUSED, 0, status, UINT32_MAX}, out);
  if (send(l->fd, out, sizeof out, MSG_NOSIGNAL) == (ssize_t)sizeof out)
    shutdown(l->fd, SHUT_WR);
  l->state = LINK_REFUSED;
  l->deadline = rd2h_now_ns() + REFUSED_NS;
}

static enum step say_hello(struct tcp_server *s, struct tcp_link *l) {
  enum step step = receive(l, l->in, TCP_HELLO);
  if (step != GO_ON)
    return step;
  int rc = rd2h_tcp_server_greet(s, l->in, &l->reader);
  if (rc) {
    rd2h_tcp_link_refuse(s, l, rc);
    return GO_ON;
  }
  l->state = LINK_REQUEST;
  l->deadline = RD2H_NEVER;
  return GO_ON;
}

static enum step take_request(struct tcp_server *s, struct tcp_link *l) {
  enum step step = receive(l, l->in, TCP_HEAD);
  if (step != GO_ON)
    return step;
  if (rd2h_tcp_request_decode(l->in, &l->q))
    rd2h_tcp_link_refuse(s, l, RD2H_MALFORMED);
  else
    l->state = LINK_LIST;
  return GO_ON;
}

static enum step take_list(struct tcp_server *s, struct tcp_link *l) {
  enum step step = receive(l, l->list, l->q.n * TCP_DESC);
  if (step != GO_ON)
    return step;
  pthread_mutex_lock(&s->lock);
  int rc = rd2h_tcp_server_knows(s, l->reader) ? rd2h_tcp_list_check(&s->regions, &l->q, l->list, &l->at) : RD2H_PERMISSION;
  l->epoch = s->epoch;
  pthread_mutex_unlock(&s->lock);
  if (rc == RD2H_MALFORMED || rc == RD2H_PERMISSION) {
    rd2h_tcp_link_refuse(s, l, rc);
    return GO_ON;
  }
  l->status = rc;
  l->bare = rc != RD2H_OK;
  l->left = rc ? 0 : l->q.bytes;
  l->i = l->off = l->framed = 0;
  l->careful = false;
  l->state = LINK_REPLY;
  return GO_ON;
}

/* What is left of the promised bytes becomes zeros: no memory is read for it any more. */
static void spoil(struct tcp_link *l, int status, uint32_t at) {
  l->status = status;
  l->at = at;
  l->off = 0;
}

/* The lock is held. What was registered when the list came may have gone since. */
static void look_again(struct tcp_server *s, struct tcp_link *l) {
  if (l->epoch == s->epoch || l->status)
    return;
  uint32_t at;
  l->epoch = s->epoch;
  if (!rd2h_tcp_server_knows(s, l->reader))
    spoil(l, RD2H_STATE, UINT32_MAX);
  else if (rd2h_tcp_list_check(&s->regions, &l->q, l->list, &at))
    spoil(l, RD2H_STATE, at);
}

/* The next bytes of payload as iovecs. */
static uint32_t payload(struct tcp_link *l, struct iovec *v, uint64_t *bytes) {
  uint32_t n = 0, i = l->i, off = l->off;
  uint64_t left = l->left < TCP_WINDOW ? l->left : TCP_WINDOW;
  for (*bytes = 0; left && !(l->careful && n); n++) {
    struct tcp_desc d = {.addr = (uintptr_t)zeros, .len = ZEROS};
    if (!l->status)
      d = rd2h_tcp_desc_decode(l->list + (size_t)i++ * TCP_DESC);
    uint64_t len = d.len - off < left ? d.len - off : left, page = PAGE - (d.addr + off) % PAGE;
    len = l->careful && !l->status && page < len ? page : len;
    v[n] = (struct iovec){(void *)(uintptr_t)(d.addr + off), len};
    left -= len;
    *bytes += len;
    off = 0;
  }
  return n;
}

static void advance(struct tcp_link *l, uint64_t n) {
  l->left -= n;
  for (n += l->off; !l->status && l->i < l->q.n; l->i++) {
    uint32_t len = rd2h_tcp_desc_decode(l->list + (size_t)l->i * TCP_DESC).len;
    if (n < len)
      break;
    n -= len;
  }
  l->off = l->status ? 0 : (uint32_t)n;
}

/* Head, payload and tail go out in one call where they fit: the tail is true, for a region that goes waits for the end of the
 * call. Returns what sendmsg does. */
static ssize_t send_some(struct tcp_server *s, struct tcp_link *l, uint64_t *head, uint64_t *body) {
  uint8_t frame[2 * TCP_REPLY];
  struct msghdr m = {.msg_iov = s->iov};
  uint32_t n = 0;
  pthread_mutex_lock(&s->lock);
  look_again(s, l);
  s->copying = true;
  pthread_mutex_unlock(&s->lock);
  rd2h_tcp_reply_encode(&(struct tcp_reply){TCP_REPLY_HEAD, l->q.seq, l->bare ? l->status : RD2H_OK, l->at}, frame);
  rd2h_tcp_reply_encode(&(struct tcp_reply){TCP_REPLY_TAIL, l->q.seq, l->status, l->at}, frame + TCP_REPLY);
  *head = l->framed < TCP_REPLY ? TCP_REPLY - l->framed : 0;
  if (*head)
    s->iov[n++] = (struct iovec){frame + l->framed, *head};
  n += payload(l, s->iov + n, body);
  if (*body == l->left && !l->bare) {
    uint32_t from = l->framed > TCP_REPLY ? l->framed : TCP_REPLY;
    s->iov[n++] = (struct iovec){frame + from, 2 * TCP_REPLY - from};
  }
  m.msg_iovlen = n;
  ssize_t sent = sendmsg(l->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
  int error = errno;
  pthread_mutex_lock(&s->lock);
  s->copying = false;
  s->copies++;
  pthread_cond_broadcast(&s->idle);
  pthread_mutex_unlock(&s->lock);
  errno = error;
  return sent;
}

static bool reply_done(const struct tcp_link *l) {
  return !l->left && l->framed == (l->bare ? TCP_REPLY : 2 * TCP_REPLY);
}

static enum step reply(struct tcp_server *s, struct tcp_link *l) {
  uint64_t head, body;
  ssize_t n = send_some(s, l, &head, &body);
  if (n < 0 && errno == EFAULT && !l->careful) {
    l->careful = true;
    return GO_ON;
  }
  if (n < 0 && errno == EFAULT && !l->status) { /* a hole in a registered region */
    spoil(l, RD2H_IO, l->i);
    return GO_ON;
  }
  if (n < 0)
    return errno == EINTR ? GO_ON : errno == EAGAIN || errno == EWOULDBLOCK ? WAIT : CLOSE;
  uint64_t sent = (uint64_t)n, step = sent < head ? sent : head;
  l->framed += (uint32_t)step;
  sent -= step;
  step = sent < body ? sent : body;
  advance(l, step);
  l->framed += (uint32_t)(sent - step);
  if (reply_done(l))
    l->state = LINK_REQUEST;
  return GO_ON;
}

/* Nobody listens any more: what comes is thrown away. */
static enum step drain(struct tcp_server *s, struct tcp_link *l) {
  uint8_t sink[4096];
  (void)s;
  ssize_t n = recv(l->fd, sink, sizeof sink, 0);
  return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR)) ? WAIT : CLOSE;
}

bool rd2h_tcp_link_run(struct tcp_server *s, struct tcp_link *l) {
  static enum step (*const act[])(struct tcp_server *, struct tcp_link *) = {
    [LINK_HELLO] = say_hello, [LINK_REQUEST] = take_request, [LINK_LIST] = take_list, [LINK_REPLY] = reply,
    [LINK_REFUSED] = drain,
  };
  enum step step = GO_ON;
  for (int requests = 0; step == GO_ON && requests < TURN_REQUESTS;) {
    bool replied = l->state == LINK_REPLY;
    step = act[l->state](s, l);
    requests += replied;
  }
  return step != CLOSE;
}
