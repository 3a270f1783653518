/* SPDX-License-Identifier: Apache-2.0 */
/* The pool's threads, and the watch over them: it knows slow peers, starts threads in place of those that are held, and ends reads
 * that take longer than they may. It sleeps for good while nothing is read. */
#include "engine/pool.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>

#define PIECE_MIN (UINT64_C(1) << 20)
#define PIECE_MAX (UINT64_C(8) << 20)
#define TICK_NS (10 * RD2H_MS)
#define LATE_NS (20 * RD2H_MS)   /* a read is late after so long */
#define LATE_NS_A_BYTE 10u       /* and this for each byte: 100 MB/s */
#define DEAF_NS (10000 * RD2H_MS) /* a read that has been told to stop is reported after this */

struct piece {
  struct pool_peer *peer;
  struct pool_job *job;
  struct rd2h_batch b;
  uint32_t first;
};

/* ---- pieces ---- */
/* How many descriptors of n one thread reads at a time: each thread gets two turns, so that none waits long for the other. */
static uint32_t piece_size(const struct pool *p, const struct rd2h_batch *b) {
  uint64_t bytes = b->bytes / (2 * p->base);
  bytes = bytes < PIECE_MIN ? PIECE_MIN : bytes > PIECE_MAX ? PIECE_MAX : bytes;
  if (!p->parallel || b->bytes < 2 * PIECE_MIN || b->n < 2)
    return b->n;
  uint64_t n = b->n * bytes / b->bytes;
  return n ? (uint32_t)n : 1;
}

static bool has_pieces(const struct pool_peer *peer) {
  return peer->running ? peer->running->at < peer->running->batch->n : peer->queue.head != NULL;
}

void pool_ring_put(struct pool *p, struct pool_peer *peer) {
  int lane = peer->slow ? POOL_SLOW : POOL_QUICK;
  if (peer->in_ring || !has_pieces(peer))
    return;
  peer->in_ring = true;
  pool_ring_push(&p->ring[lane], peer);
  pthread_cond_signal(&p->work);
}

void pool_ring_drop(struct pool *p, struct pool_peer *gone) {
  for (int lane = 0; lane < POOL_RINGS && gone->in_ring; lane++)
    gone->in_ring = !pool_ring_remove(&p->ring[lane], gone);
}

static uint32_t held_threads(const struct pool *p) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < p->n_threads; i++)
    n += p->thread[i].job && p->thread[i].job->peer->slow;
  return n;
}

static struct pool_peer *next_peer(const struct pool *p) {
  if (p->ring[POOL_QUICK].head)
    return p->ring[POOL_QUICK].head;
  struct pool_peer *slow = p->ring[POOL_SLOW].head;
  return slow && p->n_threads - held_threads(p) > p->base ? slow : NULL;
}

/* The peer whose turn it is leaves its ring; one whose read has been stopped since it came there has nothing to give out. */
static struct pool_peer *ring_take(struct pool *p) {
  struct pool_peer *peer;
  while ((peer = next_peer(p))) {
    pool_ring_drop(p, peer);
    if (has_pieces(peer))
      break;
  }
  return peer;
}

static bool take(struct pool *p, struct piece *out) {
  struct pool_peer *peer = ring_take(p);
  if (!peer)
    return false;
  if (!peer->running)
    peer->running = pool_list_pop(&peer->queue);
  struct pool_job *j = peer->running;
  const struct rd2h_batch *b = j->batch;
  uint32_t first = j->at, n = piece_size(p, b);
  n = n < b->n - first ? n : b->n - first;
  *out = (struct piece){peer, j, *b, first};
  out->b.n = n;
  out->b.bytes = n == b->n ? b->bytes : b->bytes / b->n * n; /* about: for words and for the watch */
  out->b.local += first;
  out->b.remote += first;
  out->b.len += first;
  out->b.remote_region += b->remote_region ? first : 0;
  j->at += n ? n : 1; /* an empty batch has one piece, too */
  j->inside++;
  pool_ring_put(p, peer);
  return true;
}

/* The failure that stands first in the batch is told, before one that was only stopped. */
static void add_result(const struct pool *p, const struct piece *x, int status, uint64_t bytes, uint32_t at,
                       const struct rd2h_error *err) {
  struct pool_job *j = x->job;
  j->bytes += bytes;
  j->inside--;
  if (!status)
    return;
  j->at = j->at < j->batch->n ? j->batch->n : j->at; /* no more pieces are given out */
  if (status == RD2H_CANCELED && j->status)
    return;
  if (status == RD2H_CANCELED && j->late) {
    pool_say_stopped(p, j, RD2H_TIMEOUT);
    return;
  }
  at = at == UINT32_MAX ? at : at + x->first;
  if (j->status && j->status != RD2H_CANCELED && j->status != RD2H_TIMEOUT && j->failed_at <= at)
    return;
  j->status = status;
  j->failed_at = at;
  *j->err = *err;
}

/* Reads one piece; the lock is held on entry and on return, not in between. */
static void run(struct pool *p, struct pool_thread *me, const struct piece *x) {
  struct pool_job *j = x->job;
  struct rd2h_error err = {0};
  uint64_t bytes = 0, begun = rd2h_now_ns();
  uint32_t failed_at = UINT32_MAX, n = j->batch->n;
  me->job = j;
  me->begun = begun;
  me->bytes = x->b.bytes;
  me->told = false;
  pthread_mutex_unlock(&p->lock);
  int status = p->m.ops->read(p->m.self, x->peer->base.peer, &x->b, &j->stop, &bytes, &failed_at, &err);
  uint64_t took = rd2h_now_ns() - begun;
  pthread_mutex_lock(&p->lock);
  me->job = NULL;
  x->peer->slow = x->peer->slow && took > LATE_NS + x->b.bytes * LATE_NS_A_BYTE;
  add_result(p, x, status, bytes, failed_at, &err);
  if (!j->inside && j->at >= n) {
    x->peer->running = NULL;
    pool_finish(p, j, j->status);
  }
  pool_ring_put(p, x->peer);
  pthread_cond_broadcast(&p->ended);
}

static void *thread_main(void *arg) {
  struct pool_thread *me = arg;
  struct pool *p = me->pool;
  struct piece x;
  if (p->bind)
    p->bind(p->bind_arg);
  pthread_mutex_lock(&p->lock);
  while (!p->closing) {
    if (take(p, &x))
      run(p, me, &x);
    else
      pthread_cond_wait(&p->work, &p->lock);
  }
  pthread_mutex_unlock(&p->lock);
  return NULL;
}

/* ---- threads ---- */
/* Signals are the application's: none is delivered to the pool's threads. */
static int start_quiet(pthread_t *t, void *(*fn)(void *), void *arg, const char *name) {
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  int rc = pthread_create(t, NULL, fn, arg);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  if (!rc)
    pthread_setname_np(*t, name);
  return rc;
}

static int add_thread(struct pool *p) {
  char name[16];
  struct pool_thread *t = &p->thread[p->n_threads];
  snprintf(name, sizeof name, "rd2h-%.6s-%u", p->m.eng.name, p->n_threads % 100);
  *t = (struct pool_thread){.pool = p};
  int rc = start_quiet(&t->thread, thread_main, t, name);
  p->n_threads += !rc;
  return rc;
}

/* ---- the watch ---- */
static void look_at_thread(struct pool *p, struct pool_thread *t, uint64_t now) {
  struct pool_job *j = t->job;
  if (!j || now < t->begun + LATE_NS + t->bytes * LATE_NS_A_BYTE)
    return;
  if (!j->peer->slow) {
    bool was = j->peer->in_ring;
    pool_ring_drop(p, j->peer);
    j->peer->slow = true;
    if (was)
      pool_ring_put(p, j->peer);
  }
  if (j->late && !t->told && now > j->deadline + DEAF_NS) {
    t->told = true;
    RD2H_ERR("engine %s: a read should have ended %llu s ago and does not look at its stop flag: its request ends when it "
             "returns, its destinations cannot be given back before", p->m.eng.name,
             (unsigned long long)((now - j->deadline) / (1000 * RD2H_MS)));
  }
}

static bool look_at_jobs(struct pool *p, uint64_t now) {
  bool any = false;
  for (uint32_t i = 0; i < p->high; i++) {
    struct pool_job *j = &p->job[i];
    if (!j->taken || !j->batch)
      continue;
    any = true;
    if (!p->timeout || j->late || now < j->deadline)
      continue;
    j->late = true;
    pool_stop(p, j, RD2H_TIMEOUT);
  }
  return any;
}

/* Quick peers have their threads, and one more is there for slow ones that wait. */
static void replace_held(struct pool *p) {
  uint32_t want = held_threads(p) + p->base + (p->ring[POOL_SLOW].head != NULL);
  while (p->n_threads < want && p->n_threads < POOL_THREADS_MAX && !add_thread(p))
    ;
}

static void wait_tick(struct pool *p) {
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_nsec += TICK_NS;
  until.tv_sec += until.tv_nsec / 1000000000;
  until.tv_nsec %= 1000000000;
  pthread_cond_timedwait(&p->watch, &p->lock, &until);
}

static void *watch_main(void *arg) {
  struct pool *p = arg;
  pthread_mutex_lock(&p->lock);
  while (!p->closing) {
    uint64_t now = rd2h_now_ns();
    for (uint32_t i = 0; i < p->n_threads; i++)
      look_at_thread(p, &p->thread[i], now);
    p->watched = look_at_jobs(p, now) || p->touched;
    p->touched = false;
    replace_held(p);
    if (p->watched)
      wait_tick(p);
    else
      pthread_cond_wait(&p->watch, &p->lock);
  }
  pthread_mutex_unlock(&p->lock);
  return NULL;
}

int pool_threads_open(struct pool *p, struct rd2h_error *err) {
  int rc = 0;
  pthread_mutex_lock(&p->lock);
  while (p->n_threads < p->base && !(rc = add_thread(p)))
    ;
  if (!rc)
    rc = start_quiet(&p->watcher, watch_main, p, "rd2h-watch");
  p->watcher_runs = !rc;
  pthread_mutex_unlock(&p->lock);
  if (rc)
    return rd2h_fail(err, RD2H_LIMIT, "engine %s: cannot start thread %u of %u: %s", p->m.eng.name, p->n_threads + 1, p->base + 1,
                     strerror(rc));
  return RD2H_OK;
}

void pool_threads_join(struct pool *p) {
  pthread_mutex_lock(&p->lock);
  p->closing = true;
  pthread_cond_broadcast(&p->work);
  pthread_cond_broadcast(&p->watch);
  pthread_mutex_unlock(&p->lock);
  if (p->watcher_runs)
    pthread_join(p->watcher, NULL);
  for (uint32_t i = 0; i < p->n_threads; i++)
    pthread_join(p->thread[i].thread, NULL);
}
