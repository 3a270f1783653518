/* SPDX-License-Identifier: Apache-2.0 */
/* Whose turn it is. Everything that is the sender's – sockets, machine, timers – belongs to the thread that holds the role. The sender
 * thread holds it whenever it is awake; while it sleeps, the caller's thread may take it: to send a small layer on the spot, and to
 * take answers in for as long as it has to wait for them. So a layer in lockstep costs no hand-over between threads. */
#include "worker/prefill_worker.h"
#include <errno.h>
#include <sched.h>
#include <sys/epoll.h>
#include <unistd.h>

#define TURN_EVENTS 64
enum { KEY_ITEMS, KEY_SOCKETS };

static void take_engine(rd2h_pw *w) {
  struct rd2h_completion c[8];
  struct rd2h_peer_event ev[8];
  while (rd2h_eng_poll(w->eng, c, 8) > 0 || rd2h_eng_events(w->eng, ev, 8) > 0)
    ; /* Prefill reads nothing: this only drives engines whose target side needs it */
}

void pw_turn(rd2h_pw *w) {
  w->now = rd2h_now_ns();
  pw_endpoints_look(w);
  if (rd2h_eng_caps(w->eng)->flags & RD2H_ENG_TARGET_PROGRESS)
    take_engine(w);
  if (rd2h_pm_next_deadline(w->pm) <= w->now)
    rd2h_pm_tick(w->pm, w->now);
  pw_drain(w);
  pw_endpoints_look(w); /* what was sent may have let answers in */
}

/* Marks the endpoints that have something, waiting for it until then. */
static void wait_sockets(rd2h_pw *w, uint64_t until, uint64_t now) {
  struct epoll_event ev[TURN_EVENTS];
  int n = epoll_wait(w->epoll, ev, TURN_EVENTS, rd2h_epoll_timeout(until, now));
  for (int i = 0; i < n; i++)
    if (ev[i].data.u32 != PW_KEY_NONE)
      pw_endpoint_mark(w, ev[i].data.u32 >> 1, ev[i].data.u32 & 1 ? PW_MONITOR : PW_SOCKET);
}

/* ---- the sender thread ---- */
static void tell_waiter(rd2h_pw *w) {
  pthread_mutex_lock(&w->gate.mu);
  if (w->wants_role)
    pthread_cond_broadcast(&w->gate.changed);
  pthread_mutex_unlock(&w->gate.mu);
}

void pw_sleep(rd2h_pw *w, uint64_t until) {
  struct epoll_event ev[2];
  uint64_t now = rd2h_now_ns(), next = rd2h_pm_next_deadline(w->pm);
  next = next < until ? next : until;
  /* An earlier time that was set before stays: whoever takes the role meanwhile need not wake this thread to bring it forward. */
  if (w->wakes_at <= now || next < w->wakes_at)
    w->wakes_at = next;
  int timeout = w->n_dirty ? 0 : rd2h_epoll_timeout(w->wakes_at, now);
  pthread_mutex_unlock(&w->role);
  tell_waiter(w);
  int n = epoll_wait(w->sleep, ev, RD2H_COUNT(ev), timeout);
  pthread_mutex_lock(&w->role);
  for (int i = 0; i < n; i++)
    if (ev[i].data.u32 == KEY_SOCKETS)
      wait_sockets(w, 0, 0);
}

/* ---- the caller's thread ---- */
/* The sender thread must not sleep past a deadline that has come up, nor over what is left to be looked at. */
static void give_back(rd2h_pw *w) {
  bool wake = w->n_dirty || rd2h_pm_next_deadline(w->pm) < w->wakes_at;
  pthread_mutex_unlock(&w->role);
  if (wake)
    pw_wake(w);
}

static void watch_sockets(rd2h_pw *w, bool on) {
  struct epoll_event ev = {.events = on ? EPOLLIN : 0, .data.u32 = KEY_SOCKETS};
  epoll_ctl(w->sleep, EPOLL_CTL_MOD, w->epoll, &ev);
}

bool pw_send_now(rd2h_pw *w) {
  if (pthread_mutex_trylock(&w->role))
    return false;
  w->now = rd2h_now_ns();
  pw_run_items(w);
  pw_endpoints_look(w);
  pw_publish(w, false);
  give_back(w);
  return true;
}

/* Takes answers in until ready(arg) or the time is over; the sender thread is let sleep. */
static int pump(rd2h_pw *w, uint64_t until, bool (*ready)(void *), void *arg) {
  for (;;) {
    w->now = rd2h_now_ns();
    pw_run_items(w);
    pw_turn(w);
    pw_publish(w, false);
    pthread_mutex_lock(&w->gate.mu);
    bool done = ready(arg);
    if (done || w->now >= until)
      return done ? RD2H_OK : RD2H_TIMEOUT;
    pthread_mutex_unlock(&w->gate.mu);
    pw_publish(w, true);
    uint64_t next = rd2h_pm_next_deadline(w->pm);
    wait_sockets(w, w->n_dirty ? 0 : next < until ? next : until, w->now);
  }
}

struct wait {
  rd2h_pw *w;
  bool (*ready)(void *), have_role;
  void *arg;
};

/* With the gate's mutex held; the role is not waited for there, so the order of the two does not matter. */
static bool ready_or_role(void *arg) {
  struct wait *x = arg;
  bool ready = x->ready(x->arg);
  x->have_role = !ready && !pthread_mutex_trylock(&x->w->role);
  x->w->wants_role = !ready && !x->have_role;
  return !x->w->wants_role;
}

int pw_wait(rd2h_pw *w, uint32_t timeout_ms, bool (*ready)(void *), void *arg) {
  struct wait x = {.w = w, .ready = ready, .arg = arg};
  uint64_t until = rd2h_now_ns() + timeout_ms * RD2H_MS;
  int rc = rd2h_gate_wait(&w->gate, timeout_ms, ready_or_role, &x);
  w->wants_role = false;
  if (!x.have_role)
    return rc;
  pthread_mutex_unlock(&w->gate.mu);
  sched_yield(); /* this thread is to sleep anyway: where ZeroMQ's shares its CPU, what was sent goes first */
  watch_sockets(w, false);
  rc = pump(w, until, ready, arg);
  pthread_mutex_unlock(&w->gate.mu);
  watch_sockets(w, true);
  give_back(w);
  pthread_mutex_lock(&w->gate.mu);
  return rc;
}

/* ---- what all of this stands on ---- */
static int open_descriptors(rd2h_pw *w, struct rd2h_error *err) {
  w->epoll = epoll_create1(EPOLL_CLOEXEC);
  w->sleep = epoll_create1(EPOLL_CLOEXEC);
  w->item_fd = rd2h_eventfd_open(err);
  w->ended_fd = rd2h_eventfd_open(err);
  if (w->epoll < 0 || w->sleep < 0 || w->item_fd < 0 || w->ended_fd < 0)
    return rd2h_fail(err, RD2H_LIMIT, "event descriptors: %s; raise the limit of open files (ulimit -n)", strerror(errno));
  return RD2H_OK;
}

int pw_turn_open(rd2h_pw *w, struct rd2h_error *err) {
  int engine_fd = rd2h_eng_caps(w->eng)->flags & RD2H_ENG_TARGET_PROGRESS ? rd2h_eng_fd(w->eng) : -1;
  int rc = open_descriptors(w, err);
  rc = rc ? rc : rd2h_epoll_add(w->sleep, w->item_fd, KEY_ITEMS, err);
  rc = rc ? rc : rd2h_epoll_add(w->sleep, w->epoll, KEY_SOCKETS, err);
  rc = rc ? rc : rd2h_epoll_add(w->epoll, w->item_fd, PW_KEY_NONE, err); /* also for a caller that waits with the role */
  rc = rc || rd2h_dev_fd(w->dev) < 0 ? rc : rd2h_epoll_add(w->epoll, rd2h_dev_fd(w->dev), PW_KEY_NONE, err);
  return rc || engine_fd < 0 ? rc : rd2h_epoll_add(w->epoll, engine_fd, PW_KEY_NONE, err);
}
