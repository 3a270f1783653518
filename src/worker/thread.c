/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/thread.h"
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#define TIMEOUT_MAX_MS 3600000u
#define SLICE_NS 100000u /* the least that the kernel takes */

int rd2h_thread_start(pthread_t *t, const char *name, void *(*fn)(void *), void *arg, struct rd2h_error *err) {
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  int rc = pthread_create(t, NULL, fn, arg);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  if (rc)
    return rd2h_fail(err, RD2H_NOMEM, "thread %s could not be started: %s", name, strerror(rc));
  pthread_setname_np(*t, name);
  return RD2H_OK;
}

/* As linux/sched/types.h has it; that header and the C library's exclude each other. */
struct attributes {
  uint32_t size, policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t runtime, deadline, period;
};

void rd2h_thread_brief(void) {
  struct attributes a = {.size = sizeof a};
  if (syscall(SYS_sched_getattr, 0, &a, sizeof a, 0) || a.policy != SCHED_OTHER)
    return; /* who has given it another policy knows why */
  a.runtime = SLICE_NS;
  if (syscall(SYS_sched_setattr, 0, &a, 0))
    RD2H_DEBUG("a control thread keeps the usual slice of time: %s", strerror(errno));
}

int rd2h_cond_init(pthread_cond_t *c) {
  pthread_condattr_t attr;
  if (pthread_condattr_init(&attr))
    return RD2H_NOMEM;
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  int rc = pthread_cond_init(c, &attr);
  pthread_condattr_destroy(&attr);
  return rc ? RD2H_NOMEM : RD2H_OK;
}

void rd2h_monotonic_after(struct timespec *ts, uint32_t ms) {
  clock_gettime(CLOCK_MONOTONIC, ts);
  ts->tv_sec += ms / 1000;
  ts->tv_nsec += (long)(ms % 1000) * 1000000;
  if (ts->tv_nsec >= 1000000000) {
    ts->tv_sec++;
    ts->tv_nsec -= 1000000000;
  }
}

int rd2h_eventfd_open(struct rd2h_error *err) {
  int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0)
    rd2h_fail(err, RD2H_LIMIT, "eventfd: %s; raise the limit of open files (ulimit -n)", strerror(errno));
  return fd;
}

void rd2h_eventfd_set(int fd) {
  uint64_t one = 1;
  if (write(fd, &one, sizeof one) < 0)
    return; /* EAGAIN: the counter is full, so it is readable already */
}

void rd2h_eventfd_clear(int fd) {
  uint64_t n;
  if (read(fd, &n, sizeof n) < 0)
    return; /* EAGAIN: it was clear */
}

int rd2h_epoll_add(int epoll, int fd, uint32_t key, struct rd2h_error *err) {
  struct epoll_event ev = {.events = EPOLLIN, .data.u32 = key};
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &ev))
    return rd2h_fail(err, RD2H_INTERNAL, "epoll_ctl(add %d): %s", fd, strerror(errno));
  return RD2H_OK;
}

int rd2h_epoll_timeout(uint64_t deadline, uint64_t now) {
  if (deadline == RD2H_NEVER)
    return -1;
  if (deadline <= now)
    return 0;
  uint64_t ms = (deadline - now - 1) / RD2H_MS + 1;
  return (int)(ms > TIMEOUT_MAX_MS ? TIMEOUT_MAX_MS : ms);
}

void rd2h_nofile_raise(uint32_t want) {
  struct rlimit r;
  if (getrlimit(RLIMIT_NOFILE, &r) || r.rlim_cur >= want)
    return;
  rlim_t had = r.rlim_cur;
  r.rlim_cur = r.rlim_max < want ? r.rlim_max : want;
  if (r.rlim_cur > had && setrlimit(RLIMIT_NOFILE, &r))
    RD2H_WARN("limit of open files stays at %lu, wanted %u: %s", (unsigned long)had, want, strerror(errno));
  else if (r.rlim_cur < want)
    RD2H_INFO("limit of open files is %lu, %u would serve every peer that is allowed: raise the hard limit",
              (unsigned long)r.rlim_cur, want);
}

void *rd2h_zmq_context(uint32_t sockets, struct rd2h_error *err) {
  void *ctx = zmq_ctx_new();
  if (!ctx) {
    rd2h_fail(err, RD2H_NOMEM, "zmq context: %s", zmq_strerror(errno));
    return NULL;
  }
  int most = zmq_ctx_get(ctx, ZMQ_SOCKET_LIMIT);
  zmq_ctx_set(ctx, ZMQ_MAX_SOCKETS, most > 0 && sockets > (uint32_t)most ? most : (int)sockets);
  return ctx;
}

int rd2h_zmq_set(void *socket, int option, int value) {
  return zmq_setsockopt(socket, option, &value, sizeof value);
}

int rd2h_zmq_fd(void *socket) {
  int fd = -1;
  size_t n = sizeof fd;
  return zmq_getsockopt(socket, ZMQ_FD, &fd, &n) ? -1 : fd;
}

bool rd2h_zmq_readable(void *socket) {
  int events = 0;
  size_t n = sizeof events;
  return !zmq_getsockopt(socket, ZMQ_EVENTS, &events, &n) && (events & ZMQ_POLLIN);
}

int rd2h_zmq_send(void *socket, const void *p, size_t n, bool more) {
  int flags = ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0);
  if (zmq_send(socket, p, n, flags) >= 0)
    return 0;
  if (errno != EAGAIN && errno != EHOSTUNREACH)
    return -1;
  rd2h_zmq_readable(socket);
  return zmq_send(socket, p, n, flags) >= 0 ? 0 : -1;
}
