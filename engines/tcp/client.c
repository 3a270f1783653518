/* SPDX-License-Identifier: Apache-2.0 */
/* Decode's side as its caller sees it: everything here takes the lock, hands over or takes away, and returns. */
#include "engines/tcp/client.h"
#include <errno.h>
#include <signal.h>
#include <sys/epoll.h>
#include <unistd.h>

/* The lock is held. */
static void wake(struct tcp_client *c) {
  rd2h_ready_set(&c->wake, true);
}

static void order(struct tcp_client *c, rd2h_peer *p) {
  if (!p->ordered) {
    p->ordered = true;
    p->next_order = c->orders;
    c->orders = p;
  }
  wake(c);
}

/* ---- peers ---- */
static void close_unwatched(rd2h_peer *p) {
  for (uint32_t i = 0; i < p->n_streams; i++)
    if (p->stream[i].fd >= 0)
      close(p->stream[i].fd);
}

static int begin_streams(const struct tcp_client *c, rd2h_peer *p, struct rd2h_error *err) {
  struct sockaddr_storage a;
  socklen_t len = rd2h_tcp_sockaddr(&p->at, &a);
  for (uint32_t i = 0; i < p->n_streams; i++) {
    struct tcp_stream *s = &p->stream[i];
    s->peer = p;
    s->fd = socket(a.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (s->fd < 0)
      return rd2h_fail(err, errno == EAFNOSUPPORT ? RD2H_UNSUPPORTED : RD2H_LIMIT, "engine tcp: no socket for Prefill at %s: %s; it "
                       "takes %u descriptors a peer (ulimit -n)", p->name, strerror(errno), p->n_streams);
    rd2h_tcp_socket_options(s->fd, c->timeout);
    if (connect(s->fd, (struct sockaddr *)&a, len) && errno != EINPROGRESS)
      return rd2h_fail(err, RD2H_PEER_LOST, "engine tcp: cannot connect to Prefill at %s: %s; its host must be one that this "
                       "process can reach", p->name, strerror(errno));
  }
  return RD2H_OK;
}

int rd2h_tcp_client_connect(struct tcp_client *c, const struct rd2h_tcp_conn *at, uint64_t cookie, rd2h_peer **out,
                            struct rd2h_error *err) {
  rd2h_peer *p = rd2h_alloc(sizeof *p + c->streams * sizeof p->stream[0]);
  if (!p)
    return rd2h_nomem(err, "engine peer");
  memset(p, 0, sizeof *p);
  p->at = *at;
  p->cookie = cookie;
  p->n_streams = c->streams;
  for (uint32_t i = 0; i < p->n_streams; i++) {
    memset(&p->stream[i], 0, offsetof(struct tcp_stream, out));
    p->stream[i].fd = -1;
  }
  rd2h_tcp_address_text(at, p->name);
  int rc = begin_streams(c, p, err);
  if (rc) {
    close_unwatched(p);
    rd2h_free(p);
    return rc;
  }
  pthread_mutex_lock(&c->lock);
  p->open_wanted = true;
  order(c, p);
  pthread_mutex_unlock(&c->lock);
  *out = p;
  return RD2H_OK;
}

/* The lock is held. Completions of the peer that nobody has polled vanish with it. */
static void drop_done(struct tcp_client *c, const rd2h_peer *p) {
  struct tcp_list all = tcp_list_take(&c->done);
  struct tcp_slot *s;
  while ((s = tcp_list_pop(&all))) {
    if (s->peer == p)
      rd2h_tcp_free_slot(c, s);
    else
      tcp_list_push(&c->done, s);
  }
}

void rd2h_tcp_client_disconnect(struct tcp_client *c, rd2h_peer *p) {
  pthread_mutex_lock(&c->lock);
  p->close_wanted = true;
  order(c, p);
  while (!p->closed)
    pthread_cond_wait(&c->obeyed, &c->lock);
  drop_done(c, p);
  if (p->told)
    tcp_downs_remove(&c->down, p);
  rd2h_tcp_signal(c);
  pthread_mutex_unlock(&c->lock);
  rd2h_free(p);
}

/* ---- reads ---- */
static struct tcp_slot *take_slot(struct tcp_client *c) {
  struct tcp_slot *s = c->free_slots;
  if (s)
    c->free_slots = s->next;
  else if (c->high < TCP_SLOTS)
    s = &c->slot[c->high++];
  return s;
}

static int submit(struct tcp_client *c, rd2h_peer *p, const struct rd2h_batch *b) {
  if (p->lost)
    return RD2H_PEER_LOST;
  struct tcp_slot *s = p->taken < TCP_SLOTS_PEER ? take_slot(c) : NULL;
  if (!s)
    return RD2H_AGAIN;
  struct rd2h_error *err = &c->errs[s - c->slot];
  *s = (struct tcp_slot){.b = b, .peer = p, .id = b->id, .submitted = rd2h_now_ns(), .live = true, .failed_at = UINT32_MAX,
                         .err = err};
  p->taken++;
  tcp_list_push(&c->inbox, s);
  wake(c);
  return RD2H_OK;
}

int rd2h_tcp_client_submit(struct tcp_client *c, rd2h_peer *p, const struct rd2h_batch *b) {
  pthread_mutex_lock(&c->lock);
  int rc = submit(c, p, b);
  pthread_mutex_unlock(&c->lock);
  return rc;
}

void rd2h_tcp_client_cancel(struct tcp_client *c, uint64_t id) {
  pthread_mutex_lock(&c->lock);
  for (uint32_t i = 0; i < c->high; i++)
    if (c->slot[i].live && c->slot[i].id == id) {
      c->slot[i].cancel = c->cancels = true;
      wake(c);
    }
  pthread_mutex_unlock(&c->lock);
}

static void forget_told(struct tcp_client *c) {
  struct tcp_slot *s;
  while ((s = tcp_list_pop(&c->told)))
    rd2h_tcp_free_slot(c, s);
}

int rd2h_tcp_client_poll(struct tcp_client *c, struct rd2h_completion *out, int n) {
  struct tcp_slot *s;
  int got = 0;
  pthread_mutex_lock(&c->lock);
  forget_told(c);
  while (got < n && (s = tcp_list_pop(&c->done))) {
    out[got++] = (struct rd2h_completion){s->id, s->status, s->failed_at, s->bytes};
    s->peer->taken--;
    s->peer = NULL;
    if (s->status)
      tcp_list_push(&c->told, s);
    else
      rd2h_tcp_free_slot(c, s);
  }
  rd2h_tcp_signal(c);
  pthread_mutex_unlock(&c->lock);
  return got;
}

const char *rd2h_tcp_client_error(struct tcp_client *c, uint64_t id) {
  for (const struct tcp_slot *s = c->told.head; s; s = s->next) /* written by the caller's own poll alone */
    if (s->id == id)
      return s->err->text;
  return NULL;
}

int rd2h_tcp_client_events(struct tcp_client *c, struct rd2h_peer_event *out, int n) {
  rd2h_peer *p;
  int got = 0;
  pthread_mutex_lock(&c->lock);
  for (; got < n && (p = tcp_downs_pop(&c->down)); got++) {
    out[got] = (struct rd2h_peer_event){.cookie = p->cookie, .status = p->why};
    p->told = false;
  }
  rd2h_tcp_signal(c);
  pthread_mutex_unlock(&c->lock);
  return got;
}

int rd2h_tcp_client_fd(const struct tcp_client *c) {
  return c->ready.fd;
}

void rd2h_tcp_client_stats(struct tcp_client *c, struct rd2h_engine_stats *out) {
  pthread_mutex_lock(&c->lock);
  *out = c->stats;
  pthread_mutex_unlock(&c->lock);
}

/* ---- open and close ---- */
static int open_fds(struct tcp_client *c, struct rd2h_error *err) {
  struct epoll_event ev = {.events = EPOLLIN};
  c->epoll = epoll_create1(EPOLL_CLOEXEC);
  if (c->epoll < 0 || !rd2h_ready_open(&c->wake) || !rd2h_ready_open(&c->ready) || epoll_ctl(c->epoll, EPOLL_CTL_ADD, c->wake.fd, &ev))
    return rd2h_fail(err, RD2H_LIMIT, "engine tcp: cannot open its event descriptors: %s", strerror(errno));
  return RD2H_OK;
}

static int start(struct tcp_client *c, struct rd2h_error *err) {
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old); /* signals are the application's */
  int rc = pthread_create(&c->thread, NULL, rd2h_tcp_client_main, c);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  if (rc)
    return rd2h_fail(err, RD2H_LIMIT, "engine tcp: cannot start its thread: %s", strerror(rc));
  pthread_setname_np(c->thread, "rd2h-tcp-read");
  c->started = true;
  return RD2H_OK;
}

int rd2h_tcp_client_open(uint32_t streams, uint64_t timeout_ns, struct tcp_client **out, struct rd2h_error *err) {
  struct tcp_client *c = rd2h_zalloc(sizeof *c);
  if (!c)
    return rd2h_nomem(err, "engine tcp");
  c->streams = streams;
  c->timeout = timeout_ns;
  c->epoll = c->wake.fd = c->ready.fd = -1;
  pthread_mutex_init(&c->lock, NULL);
  pthread_cond_init(&c->obeyed, NULL);
  c->slot = rd2h_alloc(TCP_SLOTS * sizeof *c->slot);
  c->errs = rd2h_alloc(TCP_SLOTS * sizeof *c->errs);
  int rc = c->slot && c->errs ? open_fds(c, err) : rd2h_nomem(err, "the queue of engine tcp");
  rc = rc ? rc : start(c, err);
  if (rc) {
    rd2h_tcp_client_close(c);
    return rc;
  }
  *out = c;
  return RD2H_OK;
}

/* All peers are disconnected. */
void rd2h_tcp_client_close(struct tcp_client *c) {
  if (c->started) {
    pthread_mutex_lock(&c->lock);
    c->stop = true;
    wake(c);
    pthread_mutex_unlock(&c->lock);
    pthread_join(c->thread, NULL);
  }
  rd2h_ready_close(&c->ready);
  rd2h_ready_close(&c->wake);
  if (c->epoll >= 0)
    close(c->epoll);
  pthread_cond_destroy(&c->obeyed);
  pthread_mutex_destroy(&c->lock);
  rd2h_free(c->errs);
  rd2h_free(c->slot);
  rd2h_free(c);
}
