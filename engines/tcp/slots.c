/* SPDX-License-Identifier: Apache-2.0 */
/* Reads in flight: cut into requests, dealt to streams, ended once. */
#include "engines/tcp/client.h"
#include <stdio.h>
#include <sys/epoll.h>
#include <unistd.h>

#define PIECE_MIN 65536u
#define PAGE 4096u /* pieces begin where copies are fast */

void rd2h_tcp_signal(struct tcp_client *c) {
  rd2h_ready_set(&c->ready, c->done.head || c->down.head);
}

void rd2h_tcp_free_slot(struct tcp_client *c, struct tcp_slot *s) {
  s->live = false;
  s->next = c->free_slots;
  c->free_slots = s;
}

static uint64_t piece_of(const struct rd2h_batch *b, uint32_t streams) {
  uint64_t share = (b->bytes / streams + PAGE) / PAGE * PAGE;
  return share < PIECE_MIN ? PIECE_MIN : share > TCP_PIECE_MAX ? TCP_PIECE_MAX : share;
}

static bool all_asked(const struct tcp_slot *s) {
  return s->at.i == s->b->n;
}

/* Moves on by len bytes, and over empty descriptors. */
static void step(const struct rd2h_batch *b, struct tcp_cursor *at, uint32_t len) {
  at->off += len;
  for (; at->i < b->n && at->off == b->len[at->i]; at->i++)
    at->off = 0;
}

void rd2h_tcp_begin(struct tcp_client *c, struct tcp_slot *s) {
  s->piece = piece_of(s->b, s->peer->n_streams);
  s->older = c->newest;
  s->newer = NULL;
  if (c->newest)
    c->newest->newer = s;
  else
    c->oldest = s;
  c->newest = s;
  step(s->b, &s->at, 0);
  if (all_asked(s)) /* nothing to read */
    rd2h_tcp_end(c, s, RD2H_OK);
  else
    tcp_list_push(&s->peer->queue, s);
}

/* Nothing of it is queued or under way any more, or what is will be thrown away. */
static void take_out(struct tcp_client *c, struct tcp_slot *s) {
  rd2h_peer *p = s->peer;
  if (!all_asked(s))
    tcp_list_remove(&p->queue, s);
  for (uint32_t i = 0; s->under_way && i < p->n_streams; i++)
    for (uint32_t k = 0; k < TCP_DEPTH; k++)
      if (p->stream[i].asked[k].slot == s)
        p->stream[i].asked[k].slot = NULL;
  *(s->older ? &s->older->newer : &c->oldest) = s->newer;
  *(s->newer ? &s->newer->older : &c->newest) = s->older;
}

void rd2h_tcp_end(struct tcp_client *c, struct tcp_slot *s, int status) {
  take_out(c, s);
  s->status = status;
  pthread_mutex_lock(&c->lock);
  s->live = false;
  c->stats.reads++;
  c->stats.bytes += s->bytes;
  c->stats.descriptors += s->b->n;
  c->stats.canceled += status == RD2H_CANCELED;
  c->stats.failures += status && status != RD2H_CANCELED;
  tcp_list_push(&c->done, s);
  rd2h_tcp_signal(c);
  pthread_mutex_unlock(&c->lock);
}

void rd2h_tcp_forget(struct tcp_client *c, struct tcp_slot *s) {
  take_out(c, s);
  pthread_mutex_lock(&c->lock);
  s->peer->taken--;
  rd2h_tcp_free_slot(c, s);
  pthread_mutex_unlock(&c->lock);
}

/* ---- requests ---- */
/* The descriptor at the cursor, of at most `room` bytes; false: the batch is at its end. */
static bool next_desc(const struct rd2h_batch *b, const struct tcp_cursor *at, uint64_t room, struct tcp_desc *d) {
  if (at->i == b->n)
    return false;
  uint64_t left = b->len[at->i] - at->off;
  d->len = (uint32_t)(left < room ? left : room);
  d->addr = b->remote[at->i] + at->off;
  d->region = b->remote_region ? b->remote_region[at->i] : TCP_REGION_SEARCH;
  return true;
}

uint32_t rd2h_tcp_blame(const struct tcp_asked *a, uint32_t k) {
  struct tcp_cursor at = a->from;
  struct tcp_desc d;
  const struct rd2h_batch *b = a->slot->b;
  for (; k && next_desc(b, &at, TCP_PIECE_MAX, &d); k--)
    step(b, &at, d.len);
  return at.i;
}

/* The stream with room that has the least to bring. */
static struct tcp_stream *pick(rd2h_peer *p) {
  struct tcp_stream *best = NULL;
  for (uint32_t i = 0; i < p->n_streams; i++) {
    struct tcp_stream *s = &p->stream[i];
    if (s->up && !s->out_n && s->n < TCP_DEPTH && (!best || s->under_way < best->under_way))
      best = s;
  }
  return best;
}

static void ask(struct tcp_stream *s, struct tcp_slot *slot) {
  struct tcp_asked *a = &s->asked[(s->first + s->n++) % TCP_DEPTH];
  struct tcp_request q = {.seq = s->seq++};
  struct tcp_desc d;
  *a = (struct tcp_asked){.slot = slot, .from = slot->at, .at = slot->at, .seq = q.seq};
  while (q.n < TCP_DESC_MAX && q.bytes < slot->piece && next_desc(slot->b, &slot->at, slot->piece - q.bytes, &d)) {
    rd2h_tcp_desc_encode(&d, s->out + TCP_HEAD + (size_t)q.n++ * TCP_DESC);
    q.bytes += d.len;
    step(slot->b, &slot->at, d.len);
  }
  rd2h_tcp_request_encode(&q, s->out);
  s->out_n = TCP_HEAD + q.n * TCP_DESC;
  s->out_at = 0;
  a->left = q.bytes;
  s->under_way += q.bytes;
  slot->under_way++;
}

void rd2h_tcp_deal(struct tcp_client *c, rd2h_peer *p) {
  struct tcp_stream *s;
  while (p->queue.head && (s = pick(p))) {
    struct tcp_slot *slot = p->queue.head;
    ask(s, slot);
    if (all_asked(slot))
      tcp_list_pop(&p->queue);
    if (!rd2h_tcp_stream_flush(c, s))
      return;
  }
}

/* ---- the end of a peer ---- */
void rd2h_tcp_close_streams(struct tcp_client *c, rd2h_peer *p) {
  for (uint32_t i = 0; i < p->n_streams; i++) {
    struct tcp_stream *s = &p->stream[i];
    if (s->fd >= 0) {
      epoll_ctl(c->epoll, EPOLL_CTL_DEL, s->fd, NULL); /* a child process may hold the descriptor a little longer */
      close(s->fd);
    }
    s->fd = -1;
    s->up = false;
  }
}

void rd2h_tcp_lose(struct tcp_client *c, rd2h_peer *p, int status, const char *why) {
  struct tcp_slot *next;
  if (p->lost)
    return;
  pthread_mutex_lock(&c->lock);
  p->lost = p->told = true;
  p->why = status;
  tcp_downs_push(&c->down, p);
  rd2h_tcp_signal(c);
  pthread_mutex_unlock(&c->lock);
  rd2h_tcp_close_streams(c, p);
  for (struct tcp_slot *s = c->oldest; s; s = next) {
    next = s->newer;
    if (s->peer != p)
      continue;
    if (!s->status) /* else it has a cause of its own */
      s->status = rd2h_fail(s->err, status, "engine tcp: Prefill at %s: %s", p->name, why);
    rd2h_tcp_end(c, s, s->status);
  }
}
