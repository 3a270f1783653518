/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's thread: orders, reads, progress; asleep in epoll when UCX has nothing to do. */
#include "engines/ucx/ucx.h"
#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#define PROGRESS_BURST 32 /* calls between two looks at what has ended */
#define IDLE_SPINS 64      /* empty calls before it sleeps while gets are under way */
#define LOOK_MS 50         /* how late a time-out may be seen */
#define EVENTS_A_CALL 16
#define STOP_NS (5000 * RD2H_MS) /* an engine that closes waits so long for endpoints of peers that have left */

void rd2h_ucx_wake(rd2h_engine *e) {
  atomic_store(&e->attention, true);
  if (e->sleeping)
    eventfd_write(e->wake, 1);
}

int rd2h_ucx_order(rd2h_engine *e, int (*run)(rd2h_engine *, void *, struct rd2h_error *), void *arg, struct rd2h_error *err) {
  struct ucx_order o = {.run = run, .arg = arg, .err = err};
  pthread_mutex_lock(&e->lock);
  while (e->order)
    pthread_cond_wait(&e->ordered, &e->lock);
  e->order = &o;
  rd2h_ucx_wake(e);
  while (!o.done)
    pthread_cond_wait(&e->ordered, &e->lock);
  pthread_mutex_unlock(&e->lock);
  return o.rc;
}

static void take_work(rd2h_engine *e) {
  struct ucx_list got;
  if (!atomic_load(&e->attention))
    return;
  pthread_mutex_lock(&e->lock);
  atomic_store(&e->attention, false);
  struct ucx_order *o = e->order;
  if (o) {
    pthread_mutex_unlock(&e->lock);
    o->rc = o->run(e, o->arg, o->err);
    pthread_mutex_lock(&e->lock);
    o->done = true;
    e->order = NULL;
    pthread_cond_broadcast(&e->ordered);
  }
  got = ucx_list_take(&e->submitted);
  e->stopping = e->stop;
  pthread_mutex_unlock(&e->lock);
  for (struct ucx_slot *s; (s = ucx_list_pop(&got));)
    rd2h_ucx_begin(e, s);
}

static void look_for_failures(rd2h_engine *e) {
  for (rd2h_peer *p = e->peers; p; p = p->next)
    if (p->failure && !p->lost && !p->leaving)
      rd2h_ucx_peer_lose(e, p, e->ucx->status_text((ucx_status)p->failure));
}

static bool advance(rd2h_engine *e) {
  e->now = rd2h_now_ns();
  for (rd2h_peer **at = &e->busy; *at;) {
    rd2h_peer *p = *at;
    p->busy = rd2h_ucx_advance(e, p);
    if (p->busy) {
      at = &p->next_busy;
      continue;
    }
    *at = p->next_busy;
    if (p->leaving)
      rd2h_ucx_peer_free(e, p);
  }
  return e->busy;
}

static unsigned progress(rd2h_engine *e) {
  unsigned total = 0, n;
  for (int k = 0; k < PROGRESS_BURST && (n = e->ucx->worker_progress(e->worker)) && !atomic_load(&e->attention); k++)
    total += n;
  return total + (n > 0);
}

static bool fall_asleep(rd2h_engine *e) {
  pthread_mutex_lock(&e->lock);
  e->sleeping = !atomic_load(&e->attention);
  pthread_mutex_unlock(&e->lock);
  return e->sleeping;
}

static void wake_up(rd2h_engine *e) {
  eventfd_t v;
  pthread_mutex_lock(&e->lock);
  e->sleeping = false;
  pthread_mutex_unlock(&e->lock);
  eventfd_read(e->wake, &v);
}

static void nap(rd2h_engine *e, bool busy) {
  struct epoll_event ev[EVENTS_A_CALL];
  if (!fall_asleep(e))
    return;
  /* BUSY: something happened since the last progress. */
  int n = e->ucx->worker_arm(e->worker) == UCX_OK ? epoll_wait(e->epoll, ev, EVENTS_A_CALL, busy ? LOOK_MS : -1) : 0;
  wake_up(e);
  for (int i = 0; i < n; i++) {
    rd2h_peer *p = ev[i].data.ptr;
    if (!p)
      continue;
    epoll_ctl(e->epoll, EPOLL_CTL_DEL, p->pidfd, NULL); /* it stays readable */
    p->failure = p->failure ? p->failure : UCX_CONNECTION_RESET;
    atomic_store(&e->attention, true);
  }
}

static void *loop(void *arg) {
  rd2h_engine *e = arg;
  uint64_t stop_by = 0;
  int idle = 0;
  for (;;) {
    take_work(e);
    stop_by = stop_by || !e->stopping ? stop_by : rd2h_now_ns() + STOP_NS;
    if (stop_by && (!e->peers || rd2h_now_ns() > stop_by))
      return NULL;
    look_for_failures(e);
    bool busy = advance(e);
    idle = progress(e) ? 0 : idle + 1;
    if (idle > (busy ? IDLE_SPINS : 0))
      nap(e, busy);
  }
}

int rd2h_ucx_loop_start(rd2h_engine *e, struct rd2h_error *err) {
  int rc = pthread_create(&e->thread, NULL, loop, e);
  if (rc)
    return rd2h_fail(err, RD2H_LIMIT, "engine ucx: cannot start its thread: %s", strerror(rc));
  pthread_setname_np(e->thread, e->prefill ? "rd2h-ucx-serve" : "rd2h-ucx-read");
  e->started = true;
  return RD2H_OK;
}

void rd2h_ucx_loop_stop(rd2h_engine *e) {
  if (!e->started)
    return;
  pthread_mutex_lock(&e->lock);
  e->stop = true;
  rd2h_ucx_wake(e);
  pthread_mutex_unlock(&e->lock);
  pthread_join(e->thread, NULL);
  e->started = false;
}
