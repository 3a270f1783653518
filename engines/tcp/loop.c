/* SPDX-License-Identifier: Apache-2.0 */
/* The thread of Decode's side: orders of callers, streams that are ready, deadlines. */
#include "engines/tcp/client.h"
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#define EVENTS_A_CALL 64

static void watch_peer(struct tcp_client *c, rd2h_peer *p) {
  for (uint32_t i = 0; i < p->n_streams; i++) {
    struct tcp_stream *s = &p->stream[i];
    struct epoll_event ev = {.events = EPOLLIN | EPOLLOUT, .data.ptr = s};
    s->wants_out = true;
    if (epoll_ctl(c->epoll, EPOLL_CTL_ADD, s->fd, &ev)) {
      rd2h_tcp_lose(c, p, RD2H_LIMIT, "cannot watch its streams: the kernel's limit of watched descriptors is reached");
      return;
    }
  }
}

static void drop_peer(struct tcp_client *c, rd2h_peer *p) {
  struct tcp_slot *next;
  for (struct tcp_slot *s = c->oldest; s; s = next) {
    next = s->newer;
    if (s->peer == p)
      rd2h_tcp_forget(c, s);
  }
  rd2h_tcp_close_streams(c, p);
}

/* True when a peer went: what epoll told of its streams means nothing any more. */
static bool obey_peers(struct tcp_client *c, rd2h_peer *orders) {
  bool went = false;
  for (rd2h_peer *p = orders, *next; p; p = next) {
    pthread_mutex_lock(&c->lock);
    next = p->next_order;
    bool opens = p->open_wanted, closes = p->close_wanted;
    p->ordered = p->open_wanted = false;
    pthread_mutex_unlock(&c->lock);
    if (opens && !closes)
      watch_peer(c, p);
    if (!closes)
      continue;
    drop_peer(c, p);
    went = true;
    pthread_mutex_lock(&c->lock);
    p->closed = true; /* its memory is the caller's again */
    pthread_cond_broadcast(&c->obeyed);
    pthread_mutex_unlock(&c->lock);
  }
  return went;
}

static void begin_all(struct tcp_client *c, struct tcp_list *inbox) {
  struct tcp_slot *s;
  while ((s = tcp_list_pop(inbox))) {
    rd2h_peer *p = s->peer;
    bool first = !p->queue.head;
    rd2h_tcp_begin(c, s);
    if (p->lost) {
      rd2h_fail(s->err, RD2H_PEER_LOST, "engine tcp: Prefill at %s is lost", p->name);
      if (p->queue.head)
        rd2h_tcp_end(c, s, RD2H_PEER_LOST);
    } else if (first) {
      rd2h_tcp_deal(c, p);
    }
  }
}

static void cancel_all(struct tcp_client *c) {
  struct tcp_slot *next;
  for (struct tcp_slot *s = c->oldest; s; s = next) {
    next = s->newer;
    pthread_mutex_lock(&c->lock);
    bool cancel = s->cancel;
    pthread_mutex_unlock(&c->lock);
    if (!cancel)
      continue;
    rd2h_peer *p = s->peer;
    rd2h_fail(s->err, RD2H_CANCELED, "engine tcp: canceled after %llu of %llu bytes", (unsigned long long)s->bytes,
              (unsigned long long)s->b->bytes);
    rd2h_tcp_end(c, s, RD2H_CANCELED);
    rd2h_tcp_deal(c, p); /* others may have waited behind it */
    next = c->oldest;    /* dealing can lose a peer, and its reads with it */
  }
}

enum obeyed { OBEYED, PEERS_WENT, STOP };

static enum obeyed obey(struct tcp_client *c) {
  pthread_mutex_lock(&c->lock);
  if (!c->wake.up) {
    pthread_mutex_unlock(&c->lock);
    return OBEYED;
  }
  rd2h_ready_set(&c->wake, false);
  struct tcp_list inbox = tcp_list_take(&c->inbox);
  rd2h_peer *orders = c->orders;
  bool cancels = c->cancels, stop = c->stop;
  c->orders = NULL;
  c->cancels = false;
  pthread_mutex_unlock(&c->lock);
  if (stop)
    return STOP;
  begin_all(c, &inbox);
  if (cancels)
    cancel_all(c);
  return obey_peers(c, orders) ? PEERS_WENT : OBEYED;
}

/* ---- deadlines ---- */
/* A peer that has sent nothing since the read was submitted is lost; one that is only slow loses this read. */
static void expire(struct tcp_client *c, uint64_t now) {
  while (c->oldest && now - c->oldest->submitted >= c->timeout) {
    struct tcp_slot *s = c->oldest;
    rd2h_peer *p = s->peer;
    char text[160];
    bool silent = p->heard <= s->submitted;
    s->status = rd2h_fail(s->err, RD2H_TIMEOUT, "engine tcp: Prefill at %s: a read of %llu bytes has not ended within %llu ms, "
                          "%llu bytes came",
                          p->name, (unsigned long long)s->b->bytes, (unsigned long long)(c->timeout / RD2H_MS),
                          (unsigned long long)s->bytes);
    snprintf(text, sizeof text, "it has been silent for %llu ms; Prefill must connect again",
             (unsigned long long)((now - p->heard) / RD2H_MS));
    if (silent) {
      rd2h_tcp_lose(c, p, RD2H_PEER_LOST, text);
    } else {
      rd2h_tcp_end(c, s, RD2H_TIMEOUT);
      rd2h_tcp_deal(c, p);
    }
  }
}

static int timeout_ms(const struct tcp_client *c) {
  if (!c->oldest)
    return -1;
  uint64_t now = rd2h_now_ns(), at = c->oldest->submitted + c->timeout;
  return at <= now ? 0 : at - now > 60000 * RD2H_MS ? 60000 : (int)((at - now) / RD2H_MS + 1);
}

static enum obeyed turn(struct tcp_client *c, const struct epoll_event *ev, int n) {
  enum obeyed o = obey(c);
  for (int i = 0; i < n && o == OBEYED; i++) {
    struct tcp_stream *s = ev[i].data.ptr;
    if (s && s->fd >= 0) {
      rd2h_tcp_stream_run(c, s, ev[i].events);
      o = obey(c);
    }
  }
  return o;
}

void *rd2h_tcp_client_main(void *client) {
  struct tcp_client *c = client;
  struct epoll_event ev[EVENTS_A_CALL];
  for (;;) {
    int n = epoll_wait(c->epoll, ev, EVENTS_A_CALL, timeout_ms(c));
    if (turn(c, ev, n) == STOP)
      return NULL;
    if (c->oldest)
      expire(c, rd2h_now_ns());
  }
}
