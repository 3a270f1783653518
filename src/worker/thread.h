/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_WORKER_THREAD_H
#define RD2H_WORKER_THREAD_H
/* Threads, event descriptors and ZMQ sockets as both workers use them. */
#include "base/base.h"
#include <pthread.h>

/* Starts a thread named `name` (at most 15 characters) that takes no signals: those belong to the engine's own threads. */
int rd2h_thread_start(pthread_t *, const char *name, void *(*fn)(void *), void *arg, struct rd2h_error *);
/* The calling thread asks for short slices of time: it runs briefly and often, and so is let run as soon as it is woken. Its share of the
 * CPU stays the same. Kernels before 6.12 take no notice. */
void rd2h_thread_brief(void);
int rd2h_cond_init(pthread_cond_t *); /* waits by CLOCK_MONOTONIC */
void rd2h_monotonic_after(struct timespec *, uint32_t ms);

int rd2h_eventfd_open(struct rd2h_error *); /* -1 on failure */
void rd2h_eventfd_set(int fd);
void rd2h_eventfd_clear(int fd);
int rd2h_epoll_add(int epoll, int fd, uint32_t key, struct rd2h_error *);
/* Milliseconds until deadline for epoll_wait, rounded up so that it never spins; -1: none. */
int rd2h_epoll_timeout(uint64_t deadline, uint64_t now);

/* Raises the soft limit of open descriptors as far as the hard one allows. */
void rd2h_nofile_raise(uint32_t want);

void *rd2h_zmq_context(uint32_t sockets, struct rd2h_error *);
int rd2h_zmq_set(void *socket, int option, int value); /* 0, or -1 with errno */
int rd2h_zmq_fd(void *socket);
bool rd2h_zmq_readable(void *socket); /* also takes in what the socket's thread has been sent */
/* Sends without waiting: 0, or -1 with errno. Tries twice, since libzmq looks at its mailbox only now and then. */
int rd2h_zmq_send(void *socket, const void *p, size_t n, bool more);
#endif
