/* SPDX-License-Identifier: Apache-2.0 */
/* Threads for engines whose read() blocks. Each peer has a queue and at most one read running; peers with work stand in a ring
 * and a thread takes one read of the first, so that a busy peer delays the others by one read, not by its queue.
 * The control thread is the caller of all functions; it shares the struct with the pool's threads under `lock`. */
#include "engine/face.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define JOBS 1024u          /* reads taken and not yet polled, all peers */
#define JOBS_PER_PEER 64u   /* where the engine sets no bound */
#define THREADS_DEFAULT 2u
#define THREADS_MAX 64u
#define FENCE_WARN_S 31     /* a fence that waits longer says so, and goes on waiting: it must not return early */

struct pool_peer;
struct job {
  const struct rd2h_batch *batch; /* gone once polled */
  uint64_t id, bytes;
  struct pool_peer *peer;
  struct job *next;
  struct rd2h_error *err;
  int status;
  uint32_t failed_at;
  bool taken, stop; /* stop: read by the engine while it runs, so always by atomic access */
};
struct list {
  struct job *head, *tail;
};
struct pool_peer {
  struct rd2h_eng_peer base;
  struct list queue;
  struct job *running;
  struct pool_peer *next; /* in the ring */
  bool in_ring;
  uint32_t n; /* taken, not yet polled */
};
struct pool {
  struct rd2h_module m;
  pthread_mutex_t lock;
  pthread_cond_t work, ended; /* a peer has work or the pool closes; a read has ended */
  struct pool_peer *ring, *ring_tail;
  struct list done, told; /* told: failures that the latest poll yielded, kept for last_error */
  struct job *free_jobs, *job;
  uint32_t high;          /* jobs that were ever taken: the first so many */
  struct rd2h_error *err; /* one a job */
  int event, epoll;       /* epoll joins event with the engine's own fd, where it has one; else -1 */
  bool signalled, closing;
  uint32_t n_threads;
  struct rd2h_engine_stats stats;
  pthread_t thread[THREADS_MAX];
};

static void push(struct list *l, struct job *j) {
  j->next = NULL;
  if (l->tail)
    l->tail->next = j;
  else
    l->head = j;
  l->tail = j;
}

static struct job *pop(struct list *l) {
  struct job *j = l->head;
  if (j && !(l->head = j->next))
    l->tail = NULL;
  return j;
}

static void ring_put(struct pool *p, struct pool_peer *peer) {
  if (peer->in_ring || peer->running || !peer->queue.head)
    return;
  peer->in_ring = true;
  peer->next = NULL;
  if (p->ring_tail)
    p->ring_tail->next = peer;
  else
    p->ring = peer;
  p->ring_tail = peer;
  pthread_cond_signal(&p->work);
}

static struct pool_peer *ring_take(struct pool *p) {
  struct pool_peer *peer = p->ring;
  if (peer) {
    if (!(p->ring = peer->next))
      p->ring_tail = NULL;
    peer->in_ring = false;
  }
  return peer;
}

static void ring_drop(struct pool *p, const struct pool_peer *gone) {
  struct pool_peer *all = p->ring, *next;
  p->ring = p->ring_tail = NULL;
  for (; all; all = next) {
    next = all->next;
    all->in_ring = false;
    if (all != gone)
      ring_put(p, all);
  }
}

static void give(struct pool *p, struct job *j) {
  j->taken = false;
  j->next = p->free_jobs;
  p->free_jobs = j;
}

/* The eventfd is up exactly while a completion waits. */
static void set_signal(struct pool *p) {
  bool want = p->done.head != NULL;
  uint64_t v = 1;
  if (want == p->signalled)
    return;
  ssize_t n = want ? write(p->event, &v, sizeof v) : read(p->event, &v, sizeof v);
  p->signalled = n == (ssize_t)sizeof v ? want : p->signalled;
}

static void finish(struct pool *p, struct job *j, int status, uint64_t bytes, uint32_t failed_at) {
  j->status = status;
  j->bytes = bytes;
  j->failed_at = failed_at;
  j->batch = NULL;
  push(&p->done, j);
  set_signal(p);
}

static void count(struct rd2h_engine_stats *s, const struct job *j, uint32_t n) {
  s->reads++;
  s->descriptors += n;
  s->bytes += j->bytes;
  s->canceled += j->status == RD2H_CANCELED;
  s->failures += j->status < 0 && j->status != RD2H_CANCELED;
}

/* Runs one read of the peer; the lock is held on entry and on return, not in between. */
static void run(struct pool *p, struct pool_peer *peer) {
  struct job *j = pop(&peer->queue);
  uint64_t bytes = 0;
  uint32_t failed_at = UINT32_MAX, n = j->batch->n;
  peer->running = j;
  pthread_mutex_unlock(&p->lock);
  j->err->text[0] = 0;
  int status = p->m.ops->read(p->m.self, peer->base.peer, j->batch, &j->stop, &bytes, &failed_at, j->err);
  pthread_mutex_lock(&p->lock);
  peer->running = NULL;
  finish(p, j, status, bytes, status ? failed_at : UINT32_MAX);
  count(&p->stats, j, n);
  ring_put(p, peer);
  pthread_cond_broadcast(&p->ended);
}

static void *thread_main(void *arg) {
  struct pool *p = arg;
  pthread_mutex_lock(&p->lock);
  while (!p->closing) {
    struct pool_peer *peer = ring_take(p);
    if (peer)
      run(p, peer);
    else
      pthread_cond_wait(&p->work, &p->lock);
  }
  pthread_mutex_unlock(&p->lock);
  return NULL;
}

static int pool_submit(rd2h_eng *e, rd2h_eng_peer *base, const struct rd2h_batch *b) {
  struct pool *p = (struct pool *)e;
  struct pool_peer *peer = (struct pool_peer *)base;
  int rc = RD2H_AGAIN;
  pthread_mutex_lock(&p->lock);
  struct job *j = p->free_jobs;
  if (j && peer->n < e->caps.max_inflight_per_peer) {
    p->free_jobs = j->next;
    *j = (struct job){.batch = b, .id = b->id, .peer = peer, .err = j->err, .taken = true};
    if (p->high <= (uint32_t)(j - p->job))
      p->high = (uint32_t)(j - p->job) + 1;
    peer->n++;
    push(&peer->queue, j);
    ring_put(p, peer);
    rc = RD2H_OK;
  }
  pthread_mutex_unlock(&p->lock);
  return rc;
}

static void unqueue(struct list *l, const struct job *gone) {
  struct job *all = l->head, *next;
  l->head = l->tail = NULL;
  for (; all; all = next) {
    next = all->next;
    if (all != gone)
      push(l, all);
  }
}

static void stop_job(struct pool *p, struct job *j) {
  if (j == j->peer->running) {
    __atomic_store_n(&j->stop, true, __ATOMIC_RELAXED);
  } else if (j->batch) {
    uint32_t n = j->batch->n;
    unqueue(&j->peer->queue, j);
    rd2h_fail(j->err, RD2H_CANCELED, "engine %s: canceled before it was read", p->m.eng.name);
    finish(p, j, RD2H_CANCELED, 0, UINT32_MAX);
    count(&p->stats, j, n);
    if (!j->peer->queue.head && j->peer->in_ring)
      ring_drop(p, j->peer);
  }
}

static void pool_cancel(rd2h_eng *e, uint64_t id) {
  struct pool *p = (struct pool *)e;
  pthread_mutex_lock(&p->lock);
  for (uint32_t i = 0; i < p->high; i++)
    if (p->job[i].taken && p->job[i].id == id && p->job[i].peer) {
      stop_job(p, &p->job[i]);
      break;
    }
  pthread_mutex_unlock(&p->lock);
}

static void forget_told(struct pool *p) {
  struct job *j;
  while ((j = pop(&p->told)))
    give(p, j);
}

static int pool_poll(rd2h_eng *e, struct rd2h_completion *c, int n) {
  struct pool *p = (struct pool *)e;
  struct job *j;
  int got = 0;
  pthread_mutex_lock(&p->lock);
  forget_told(p);
  while (got < n && (j = pop(&p->done))) {
    c[got++] = (struct rd2h_completion){j->id, j->status, j->failed_at, j->bytes};
    j->peer->n--;
    j->peer = NULL;
    if (j->status < 0)
      push(&p->told, j);
    else
      give(p, j);
  }
  set_signal(p);
  pthread_mutex_unlock(&p->lock);
  return got;
}

static const char *pool_last_error(rd2h_eng *e, uint64_t id) {
  struct pool *p = (struct pool *)e;
  for (const struct job *j = p->told.head; j; j = j->next)
    if (j->id == id && j->err->text[0])
      return j->err->text;
  return NULL;
}

static int pool_fd(rd2h_eng *e) {
  struct pool *p = (struct pool *)e;
  return p->epoll >= 0 ? p->epoll : p->event;
}

static void pool_stats(rd2h_eng *e, struct rd2h_engine_stats *s) {
  struct pool *p = (struct pool *)e;
  pthread_mutex_lock(&p->lock);
  *s = p->stats;
  pthread_mutex_unlock(&p->lock);
}

static int pool_connect(rd2h_eng *e, struct rd2h_blob session, struct rd2h_blob conn, uint64_t cookie, rd2h_eng_peer **out,
                        struct rd2h_error *err) {
  struct pool_peer *peer = rd2h_zalloc(sizeof *peer);
  if (!peer)
    return rd2h_nomem(err, "engine peer");
  int rc = rd2h_module_connect((struct rd2h_module *)e, session, conn, cookie, &peer->base, err);
  if (rc) {
    rd2h_free(peer);
    return rc;
  }
  *out = &peer->base;
  return RD2H_OK;
}

/* The lock is held. */
static void wait_ended(struct pool *p, const struct pool_peer *peer) {
  while (peer->running) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += FENCE_WARN_S;
    if (pthread_cond_timedwait(&p->ended, &p->lock, &until) == ETIMEDOUT)
      RD2H_ERR("engine %s: a read has not looked at its stop flag for %d s; still waiting, its destinations cannot be given back",
               p->m.eng.name, FENCE_WARN_S);
  }
}

static void drop_jobs(struct pool *p, struct list *l, const struct pool_peer *peer) {
  struct job *all = l->head, *next;
  l->head = l->tail = NULL;
  for (; all; all = next) {
    next = all->next;
    if (all->peer == peer)
      give(p, all);
    else
      push(l, all);
  }
}

static void pool_disconnect(rd2h_eng *e, rd2h_eng_peer *base) {
  struct pool *p = (struct pool *)e;
  struct pool_peer *peer = (struct pool_peer *)base;
  pthread_mutex_lock(&p->lock);
  drop_jobs(p, &peer->queue, peer);
  ring_drop(p, peer);
  if (peer->running) {
    stop_job(p, peer->running);
    wait_ended(p, peer);
  }
  drop_jobs(p, &p->done, peer);
  set_signal(p);
  pthread_mutex_unlock(&p->lock);
  rd2h_module_disconnect(&p->m, base);
  rd2h_free(peer);
}

static void join_threads(struct pool *p) {
  pthread_mutex_lock(&p->lock);
  p->closing = true;
  pthread_cond_broadcast(&p->work);
  pthread_mutex_unlock(&p->lock);
  for (uint32_t i = 0; i < p->n_threads; i++)
    pthread_join(p->thread[i], NULL);
}

static void free_pool(struct pool *p) {
  if (p->epoll >= 0)
    close(p->epoll);
  if (p->event >= 0)
    close(p->event);
  pthread_cond_destroy(&p->ended);
  pthread_cond_destroy(&p->work);
  pthread_mutex_destroy(&p->lock);
  rd2h_free(p->err);
  rd2h_free(p->job);
  rd2h_free(p);
}

static void pool_close(rd2h_eng *e) {
  struct pool *p = (struct pool *)e;
  while (p->m.peers)
    pool_disconnect(e, p->m.peers);
  join_threads(p);
  p->m.ops->close(p->m.self);
  free_pool(p);
}

static const struct rd2h_eng_face pool_face = {
  .close = pool_close, .reg = rd2h_module_reg, .publish = rd2h_module_publish, .connect = pool_connect,
  .disconnect = pool_disconnect, .submit = pool_submit, .cancel = pool_cancel, .poll = pool_poll,
  .events = rd2h_module_events, .fd = pool_fd, .stats = pool_stats, .last_error = pool_last_error,
};

static void init_sync(struct pool *p) {
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_mutex_init(&p->lock, NULL);
  pthread_cond_init(&p->work, NULL);
  pthread_cond_init(&p->ended, &monotonic);
  pthread_condattr_destroy(&monotonic);
}

static int add_fd(int epoll, int fd) {
  struct epoll_event ev = {.events = EPOLLIN};
  return fd < 0 ? 0 : epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &ev);
}

static int open_fds(struct pool *p, struct rd2h_error *err) {
  p->epoll = -1;
  p->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  bool joined = p->event >= 0;
  if (joined && p->m.ops->fd) {
    p->epoll = epoll_create1(EPOLL_CLOEXEC);
    joined = p->epoll >= 0 && !add_fd(p->epoll, p->event) && !add_fd(p->epoll, p->m.ops->fd(p->m.self));
  }
  if (!joined)
    return rd2h_fail(err, RD2H_LIMIT, "engine %s: cannot open its event descriptor: %s", p->m.eng.name, strerror(errno));
  return RD2H_OK;
}

static int alloc_jobs(struct pool *p, struct rd2h_error *err) {
  p->job = rd2h_calloc(JOBS, sizeof *p->job);
  p->err = rd2h_alloc(JOBS * sizeof *p->err);
  if (!p->job || !p->err)
    return rd2h_nomem(err, "the engine's queue");
  for (uint32_t i = JOBS; i--;) {
    p->job[i].err = &p->err[i];
    give(p, &p->job[i]);
  }
  return RD2H_OK;
}

/* Signals are the application's: none is delivered to the pool's threads. */
static int start_threads(struct pool *p, uint32_t n, struct rd2h_error *err) {
  sigset_t all, old;
  int rc = 0;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  for (; p->n_threads < n && !rc; p->n_threads += !rc)
    rc = pthread_create(&p->thread[p->n_threads], NULL, thread_main, p);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  for (uint32_t i = 0; i < p->n_threads; i++) {
    char name[16];
    snprintf(name, sizeof name, "rd2h-%.6s-%u", p->m.eng.name, i % 100);
    pthread_setname_np(p->thread[i], name);
  }
  if (rc)
    return rd2h_fail(err, RD2H_LIMIT, "engine %s: cannot start thread %u of %u: %s", p->m.eng.name, p->n_threads + 1, n,
                     strerror(rc));
  return RD2H_OK;
}

int rd2h_pool_open(const struct rd2h_module *opened, const struct rd2h_engine_opts *opts, rd2h_eng **out,
                   struct rd2h_error *err) {
  uint32_t n = opts->threads ? opts->threads : THREADS_DEFAULT;
  if (n > THREADS_MAX)
    return rd2h_fail(err, RD2H_RANGE, "engine %s: %u threads asked for, at most %u", opened->eng.name, n, THREADS_MAX);
  struct pool *p = rd2h_zalloc(sizeof *p);
  if (!p)
    return rd2h_nomem(err, "engine");
  p->m = *opened;
  p->m.eng.face = &pool_face;
  uint32_t *bound = &p->m.eng.caps.max_inflight_per_peer;
  *bound = !*bound ? JOBS_PER_PEER : *bound < JOBS ? *bound : JOBS;
  init_sync(p);
  int rc = open_fds(p, err);
  if (!rc)
    rc = alloc_jobs(p, err);
  if (!rc && !opts->prefill) /* nothing is read on Prefill */
    rc = start_threads(p, n, err);
  if (rc) {
    join_threads(p);
    free_pool(p);
    return rc;
  }
  *out = &p->m.eng;
  return RD2H_OK;
}
