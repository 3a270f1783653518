/* SPDX-License-Identifier: Apache-2.0 */
/* The face of the pool: what the control thread calls. */
#include "engine/pool.h"
#include <errno.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#define JOBS_PER_PEER 64u   /* where the engine sets no bound */
#define THREADS_DEFAULT 2u
#define FENCE_WARN_S 31     /* a fence that waits longer says so, and goes on waiting: it must not return early */

static void give(struct pool *p, struct pool_job *j) {
  j->taken = false;
  j->next = p->free_jobs;
  p->free_jobs = j;
}

static void set_signal(struct pool *p) {
  rd2h_ready_set(&p->ready, p->done.head != NULL);
}

static void count(struct rd2h_engine_stats *s, const struct pool_job *j) {
  s->reads++;
  s->descriptors += j->batch->n;
  s->bytes += j->bytes;
  s->canceled += j->status == RD2H_CANCELED;
  s->failures += j->status < 0 && j->status != RD2H_CANCELED;
}

void pool_finish(struct pool *p, struct pool_job *j, int status) {
  j->status = status;
  count(&p->stats, j);
  j->batch = NULL;
  pool_list_push(&p->done, j);
  set_signal(p);
}

static int pool_submit(rd2h_eng *e, rd2h_eng_peer *base, const struct rd2h_batch *b) {
  struct pool *p = (struct pool *)e;
  struct pool_peer *peer = (struct pool_peer *)base;
  int rc = RD2H_AGAIN;
  pthread_mutex_lock(&p->lock);
  struct pool_job *j = p->free_jobs;
  if (j && peer->n < e->caps.max_inflight_per_peer) {
    p->free_jobs = j->next;
    *j = (struct pool_job){.batch = b, .id = b->id, .peer = peer, .err = j->err, .failed_at = UINT32_MAX, .taken = true,
                           .deadline = rd2h_now_ns() + p->timeout};
    if (p->high <= (uint32_t)(j - p->job))
      p->high = (uint32_t)(j - p->job) + 1;
    peer->n++;
    pool_list_push(&peer->queue, j);
    pool_ring_put(p, peer);
    p->touched = true;
    if (!p->watched)
      pthread_cond_signal(&p->watch);
    p->watched = true;
    rc = RD2H_OK;
  }
  pthread_mutex_unlock(&p->lock);
  return rc;
}

void pool_say_stopped(const struct pool *p, struct pool_job *j, int status) {
  j->status = status;
  if (status == RD2H_TIMEOUT)
    rd2h_fail(j->err, status, "engine %s: the read did not end within %llu ms (read_timeout_ms)", p->m.eng.name,
              (unsigned long long)(p->timeout / RD2H_MS));
  else
    rd2h_fail(j->err, status, "engine %s: canceled before all of it was read", p->m.eng.name);
}

/* A read that nobody is inside of, begun or not, ends here; else no more of it is given out, and those inside are told to come out. */
void pool_stop(struct pool *p, struct pool_job *j, int status) {
  if (!j->batch)
    return;
  bool begun = j == j->peer->running;
  if (!j->status && (!begun || j->at < j->batch->n)) /* all of it may still come out well when all of it is inside */
    pool_say_stopped(p, j, status);
  j->at = j->at < j->batch->n ? j->batch->n : j->at;
  __atomic_store_n(&j->stop, true, __ATOMIC_RELAXED);
  if (begun && j->inside)
    return;
  if (begun) /* its thread has gone to another peer's piece */
    j->peer->running = NULL;
  else
    pool_list_remove(&j->peer->queue, j);
  if (!j->peer->queue.head && !j->peer->running)
    pool_ring_drop(p, j->peer);
  pool_finish(p, j, j->status);
}

static void pool_cancel(rd2h_eng *e, uint64_t id) {
  struct pool *p = (struct pool *)e;
  pthread_mutex_lock(&p->lock);
  for (uint32_t i = 0; i < p->high; i++)
    if (p->job[i].taken && p->job[i].id == id && p->job[i].peer) {
      pool_stop(p, &p->job[i], RD2H_CANCELED);
      break;
    }
  pthread_mutex_unlock(&p->lock);
}

static void forget_told(struct pool *p) {
  struct pool_job *j;
  while ((j = pool_list_pop(&p->told)))
    give(p, j);
}

static int pool_poll(rd2h_eng *e, struct rd2h_completion *c, int n) {
  struct pool *p = (struct pool *)e;
  struct pool_job *j;
  int got = 0;
  pthread_mutex_lock(&p->lock);
  forget_told(p);
  while (got < n && (j = pool_list_pop(&p->done))) {
    c[got++] = (struct rd2h_completion){j->id, j->status, j->failed_at, j->bytes};
    j->peer->n--;
    j->peer = NULL;
    if (j->status < 0)
      pool_list_push(&p->told, j);
    else
      give(p, j);
  }
  set_signal(p);
  pthread_mutex_unlock(&p->lock);
  return got;
}

static const char *pool_last_error(rd2h_eng *e, uint64_t id) {
  struct pool *p = (struct pool *)e;
  for (const struct pool_job *j = p->told.head; j; j = j->next)
    if (j->id == id && j->err->text[0])
      return j->err->text;
  return NULL;
}

static int pool_fd(rd2h_eng *e) {
  struct pool *p = (struct pool *)e;
  return p->epoll >= 0 ? p->epoll : p->ready.fd;
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

static void drop_jobs(struct pool *p, struct pool_list *l, const struct pool_peer *peer) {
  struct pool_list all = pool_list_take(l);
  for (struct pool_job *j; (j = pool_list_pop(&all));)
    if (j->peer == peer)
      give(p, j);
    else
      pool_list_push(l, j);
}

static void pool_disconnect(rd2h_eng *e, rd2h_eng_peer *base) {
  struct pool *p = (struct pool *)e;
  struct pool_peer *peer = (struct pool_peer *)base;
  pthread_mutex_lock(&p->lock);
  drop_jobs(p, &peer->queue, peer);
  pool_ring_drop(p, peer);
  if (peer->running) {
    pool_stop(p, peer->running, RD2H_CANCELED);
    wait_ended(p, peer);
  }
  drop_jobs(p, &p->done, peer);
  set_signal(p);
  pthread_mutex_unlock(&p->lock);
  rd2h_module_disconnect(&p->m, base);
  rd2h_free(peer);
}

static void free_pool(struct pool *p) {
  if (p->epoll >= 0)
    close(p->epoll);
  rd2h_ready_close(&p->ready);
  pthread_cond_destroy(&p->watch);
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
  pool_threads_join(p);
  p->m.ops->close(p->m.self);
  free_pool(p);
}

static const struct rd2h_eng_face pool_face = {
  .close = pool_close, .reg = rd2h_module_reg, .publish = rd2h_module_publish, .revoke = rd2h_module_revoke, .connect = pool_connect,
  .disconnect = pool_disconnect, .submit = pool_submit, .cancel = pool_cancel, .poll = pool_poll,
  .events = rd2h_module_events, .fd = pool_fd, .stats = pool_stats, .last_error = pool_last_error,
  .session = rd2h_module_session, .way = rd2h_module_way,
};

static void init_sync(struct pool *p) {
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_mutex_init(&p->lock, NULL);
  pthread_cond_init(&p->work, NULL);
  pthread_cond_init(&p->ended, &monotonic);
  pthread_cond_init(&p->watch, &monotonic);
  pthread_condattr_destroy(&monotonic);
}

static int add_fd(int epoll, int fd) {
  struct epoll_event ev = {.events = EPOLLIN};
  return fd < 0 ? 0 : epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &ev);
}

static int open_fds(struct pool *p, struct rd2h_error *err) {
  p->epoll = -1;
  bool joined = rd2h_ready_open(&p->ready);
  if (joined && p->m.ops->fd) {
    p->epoll = epoll_create1(EPOLL_CLOEXEC);
    joined = p->epoll >= 0 && !add_fd(p->epoll, p->ready.fd) && !add_fd(p->epoll, p->m.ops->fd(p->m.self));
  }
  if (!joined)
    return rd2h_fail(err, RD2H_LIMIT, "engine %s: cannot open its event descriptor: %s", p->m.eng.name, strerror(errno));
  return RD2H_OK;
}

static int alloc_jobs(struct pool *p, struct rd2h_error *err) {
  p->job = rd2h_calloc(POOL_JOBS, sizeof *p->job);
  p->err = rd2h_alloc(POOL_JOBS * sizeof *p->err);
  if (!p->job || !p->err)
    return rd2h_nomem(err, "the engine's queue");
  for (uint32_t i = POOL_JOBS; i--;) {
    p->job[i].err = &p->err[i];
    give(p, &p->job[i]);
  }
  return RD2H_OK;
}

int rd2h_pool_open(const struct rd2h_module *opened, const struct rd2h_engine_opts *opts, rd2h_eng **out,
                   struct rd2h_error *err) {
  uint32_t n = opts->threads ? opts->threads : THREADS_DEFAULT;
  if (n > POOL_THREADS_MAX)
    return rd2h_fail(err, RD2H_RANGE, "engine %s: %u threads asked for, at most %u", opened->eng.name, n, POOL_THREADS_MAX);
  struct pool *p = rd2h_zalloc(sizeof *p);
  if (!p)
    return rd2h_nomem(err, "engine");
  p->m = *opened;
  p->m.eng.face = &pool_face;
  p->bind = opts->bind_thread;
  p->bind_arg = opts->bind_arg;
  p->base = n;
  p->timeout = opts->read_timeout_ns;
  p->parallel = p->m.eng.caps.flags & RD2H_ENG_PARALLEL;
  uint32_t *bound = &p->m.eng.caps.max_inflight_per_peer;
  *bound = !*bound ? JOBS_PER_PEER : *bound < POOL_JOBS ? *bound : POOL_JOBS;
  init_sync(p);
  int rc = open_fds(p, err);
  if (!rc)
    rc = alloc_jobs(p, err);
  if (!rc && !opts->prefill) /* nothing is read on Prefill */
    rc = pool_threads_open(p, err);
  if (rc) {
    pool_threads_join(p);
    free_pool(p);
    return rc;
  }
  *out = &p->m.eng;
  return RD2H_OK;
}
