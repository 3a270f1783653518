/* SPDX-License-Identifier: Apache-2.0 */
/* One stream on Decode's side: lists go out, replies come in, and payload goes from the socket to where it belongs. */
#include "engines/tcp/client.h"
#include <errno.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <unistd.h>

#define PAGE 4096u   /* the smallest there is */

static bool lose(struct tcp_client *c, struct tcp_stream *s, int status, const char *why) {
  rd2h_tcp_lose(c, s->peer, status, why);
  return false;
}

static bool lose_errno(struct tcp_client *c, struct tcp_stream *s, const char *what, int error) {
  char text[160];
  snprintf(text, sizeof text, "%s: %s; Prefill must connect again", what, strerror(error));
  return lose(c, s, RD2H_PEER_LOST, text);
}

bool rd2h_tcp_stream_watch(struct tcp_client *c, struct tcp_stream *s, bool out) {
  struct epoll_event ev = {.events = EPOLLIN | (out ? EPOLLOUT : 0), .data.ptr = s};
  if (out == s->wants_out)
    return true;
  if (epoll_ctl(c->epoll, EPOLL_CTL_MOD, s->fd, &ev))
    return lose_errno(c, s, "cannot watch the stream", errno);
  s->wants_out = out;
  return true;
}

bool rd2h_tcp_stream_flush(struct tcp_client *c, struct tcp_stream *s) {
  while (s->out_at < s->out_n) {
    ssize_t n = send(s->fd, s->out + s->out_at, s->out_n - s->out_at, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0)
      s->out_at += (uint32_t)n;
    else if (errno == EAGAIN || errno == EWOULDBLOCK)
      return rd2h_tcp_stream_watch(c, s, true);
    else if (errno != EINTR)
      return lose_errno(c, s, "the connection broke", errno);
  }
  s->out_n = s->out_at = 0;
  return rd2h_tcp_stream_watch(c, s, false);
}

/* ---- what comes ---- */
static struct tcp_asked *current(struct tcp_stream *s) {
  return s->n ? &s->asked[s->first] : NULL;
}

static uint32_t sink(struct tcp_client *c, uint64_t want, uint64_t *bytes) {
  uint32_t n = 0;
  for (*bytes = 0; *bytes < want; n++) {
    uint64_t len = want - *bytes < TCP_SCRATCH ? want - *bytes : TCP_SCRATCH;
    c->iov[n] = (struct iovec){c->scratch, len};
    *bytes += len;
  }
  return n;
}

/* Destinations of the next bytes of payload. */
static uint32_t targets(struct tcp_client *c, const struct tcp_asked *a, bool careful, uint64_t *bytes) {
  uint64_t want = a->left < TCP_WINDOW ? a->left : TCP_WINDOW, off = a->at.off;
  uint32_t n = 0;
  if (!a->slot)
    return sink(c, want, bytes);
  const struct rd2h_batch *b = a->slot->b;
  *bytes = 0;
  for (uint32_t i = a->at.i; *bytes < want && !(careful && n); i++, off = 0) {
    uint64_t len = b->len[i] - off < want - *bytes ? b->len[i] - off : want - *bytes;
    uint64_t page = PAGE - ((uintptr_t)b->local[i] + off) % PAGE;
    if (!len)
      continue;
    len = careful && page < len ? page : len;
    c->iov[n++] = (struct iovec){(uint8_t *)b->local[i] + off, len};
    *bytes += len;
  }
  return n;
}

static void landed(struct tcp_stream *s, struct tcp_asked *a, uint64_t n) {
  a->left -= n;
  s->under_way -= n;
  if (!a->slot)
    return;
  const struct rd2h_batch *b = a->slot->b;
  a->slot->bytes += n;
  for (n += a->at.off; a->at.i < b->n && n >= b->len[a->at.i]; a->at.i++)
    n -= b->len[a->at.i];
  a->at.off = n;
}

static bool may_say(int status) {
  return status == RD2H_RANGE || status == RD2H_IO || status == RD2H_STATE;
}

static void fail_slot(struct tcp_client *c, struct tcp_asked *a, const struct tcp_reply *r) {
  struct tcp_slot *slot = a->slot;
  const struct rd2h_batch *b = slot->b;
  uint32_t at = r->at < TCP_DESC_MAX ? rd2h_tcp_blame(a, r->at) : UINT32_MAX;
  const char *why = r->status == RD2H_RANGE ? "Prefill has registered no memory there"
                    : r->status == RD2H_IO  ? "that memory of Prefill is not mapped"
                                            : "Prefill has taken that memory back while it was read";
  if (at < b->n) {
    slot->failed_at = at;
    rd2h_fail(slot->err, r->status, "engine tcp: Prefill at %s: descriptor %u of %u, %llu bytes at 0x%llx: %s", slot->peer->name,
              at, b->n, (unsigned long long)b->len[at], (unsigned long long)b->remote[at], why);
  } else {
    rd2h_fail(slot->err, r->status, "engine tcp: Prefill at %s: a read of %u descriptors: %s", slot->peer->name, b->n, why);
  }
  rd2h_tcp_end(c, slot, r->status);
}

/* The first request is answered. */
static void finish(struct tcp_client *c, struct tcp_stream *s, const struct tcp_reply *r) {
  struct tcp_asked *a = current(s);
  struct tcp_slot *slot = a->slot;
  s->under_way -= a->left;
  s->paying = s->careful = false;
  if (slot && r->status)
    fail_slot(c, a, r);
  else if (slot && !--slot->under_way && slot->at.i == slot->b->n)
    rd2h_tcp_end(c, slot, RD2H_OK);
  a->slot = NULL;
  s->first = (s->first + 1) % TCP_DEPTH;
  s->n--;
}

static bool lied(struct tcp_client *c, struct tcp_stream *s, const char *what) {
  return lose(c, s, RD2H_MALFORMED, what);
}

static bool refused(struct tcp_client *c, struct tcp_stream *s, int status) {
  static const struct {
    int status;
    const char *why;
  } known[] = {
    {RD2H_PERMISSION, "it does not know the token that was published: it has ended, and another listens at its address; Prefill "
                      "must connect again"},
    {RD2H_UNSUPPORTED, "it speaks another version: run the same version of rd2h on both sides"},
    {RD2H_MALFORMED, "it says that it was sent a damaged request"},
  };
  for (size_t i = 0; i < RD2H_COUNT(known); i++)
    if (known[i].status == status)
      return lose(c, s, status == RD2H_PERMISSION ? RD2H_PEER_LOST : status, known[i].why);
  return lied(c, s, "it refused the stream without a reason that there is");
}

/* One head or tail. */
static bool take_reply(struct tcp_client *c, struct tcp_stream *s) {
  struct tcp_reply r;
  const struct tcp_asked *a = current(s);
  if (rd2h_tcp_reply_decode(s->ctl, &r))
    return lied(c, s, "it sent bytes that are no reply");
  s->ctl_n -= TCP_REPLY;
  memmove(s->ctl, s->ctl + TCP_REPLY, s->ctl_n);
  if (r.kind == TCP_REPLY_REFUSED)
    return refused(c, s, r.status);
  if (!a || r.seq != a->seq || r.kind != (s->paying ? TCP_REPLY_TAIL : TCP_REPLY_HEAD))
    return lied(c, s, "it answered what was not asked");
  if (r.status && !may_say(r.status))
    return lied(c, s, "it answered with a status that a read cannot have");
  if (r.kind == TCP_REPLY_HEAD && !r.status)
    s->paying = true;
  else
    finish(c, s, &r);
  return true;
}

static bool take_replies(struct tcp_client *c, struct tcp_stream *s) {
  while (s->ctl_n >= TCP_REPLY && !(s->paying && current(s)->left))
    if (!take_reply(c, s))
      return false;
  return true;
}

/* How much of heads and tails may come with this call: never a byte of the next payload. */
static uint32_t ctl_room(struct tcp_stream *s, uint64_t body) {
  const struct tcp_asked *a = current(s);
  if (!s->paying)
    return TCP_REPLY;
  if (a->left != body)
    return 0;
  return s->n > 1 ? 2 * TCP_REPLY : TCP_REPLY;
}

/* The fault is ours: the peer and its other reads go on. */
static void bad_target(struct tcp_client *c, const struct tcp_asked *a) {
  struct tcp_slot *slot = a->slot;
  uint32_t i = a->at.i;
  slot->failed_at = i;
  rd2h_fail(slot->err, RD2H_IO, "engine tcp: descriptor %u of %u: cannot write byte %llu of %llu to 0x%llx: it is not mapped, "
            "writable memory", i, slot->b->n, (unsigned long long)a->at.off, (unsigned long long)slot->b->len[i],
            (unsigned long long)((uintptr_t)slot->b->local[i] + a->at.off));
  rd2h_tcp_end(c, slot, RD2H_IO);
}

/* One call: then other streams get their turn. False: lost. */
static bool receive(struct tcp_client *c, struct tcp_stream *s) {
  struct tcp_asked *a = current(s);
  uint64_t body = 0;
  uint32_t n = s->paying && a->left ? targets(c, a, s->careful, &body) : 0, room = ctl_room(s, body);
  if (room)
    c->iov[n++] = (struct iovec){s->ctl + s->ctl_n, room - s->ctl_n};
  ssize_t got = readv(s->fd, c->iov, (int)n);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
    return true;
  if (got < 0 && errno == EFAULT && a && a->slot) {
    if (s->careful)
      bad_target(c, a);
    s->careful = true;
    return true;
  }
  if (got <= 0)
    return lose_errno(c, s, "the connection broke", got ? errno : ECONNRESET);
  s->peer->heard = rd2h_now_ns();
  uint64_t came = (uint64_t)got, payload = came < body ? came : body;
  if (payload)
    landed(s, a, payload);
  s->ctl_n += (uint32_t)(came - payload);
  return take_replies(c, s);
}

/* The handshake of TCP has ended, one way or the other. */
static bool connected(struct tcp_client *c, struct tcp_stream *s) {
  int error = 0;
  socklen_t len = sizeof error;
  if (getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &error, &len) || error)
    return lose_errno(c, s, "cannot connect", error ? error : errno);
  s->up = true;
  s->out_n = TCP_HELLO;
  rd2h_tcp_hello_encode(s->peer->at.token, s->out);
  return rd2h_tcp_stream_flush(c, s);
}

bool rd2h_tcp_stream_run(struct tcp_client *c, struct tcp_stream *s, uint32_t events) {
  if (!s->up && !connected(c, s))
    return false;
  if (events & EPOLLOUT && !rd2h_tcp_stream_flush(c, s))
    return false;
  if (events & (EPOLLIN | EPOLLHUP | EPOLLERR) && !receive(c, s))
    return false;
  rd2h_tcp_deal(c, s->peer);
  return !s->peer->lost;
}
