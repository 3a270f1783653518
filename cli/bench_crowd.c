/* SPDX-License-Identifier: Apache-2.0 */
/* The yardstick of very many connections: a bare ROUTER that answers whatever comes, and bare DEALERs. What of a message's cost grows
 * with connections here is ZeroMQ's and TCP's. */
#include "bench.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#define ANSWER_BYTES 18 /* a Decode rank's, behind an empty frame */
#define WAIT_MS 60000
#define FLUSH_MS 300 /* until ZeroMQ's thread has handed to TCP what fits there */

void *bench_no_limits(void *ctx, int type) {
  void *s = zmq_socket(ctx, type);
  int none = 0;
  zmq_setsockopt(s, ZMQ_SNDHWM, &none, sizeof none);
  zmq_setsockopt(s, ZMQ_RCVHWM, &none, sizeof none);
  zmq_setsockopt(s, ZMQ_LINGER, &none, sizeof none);
  return s;
}

/* ---- the ROUTER ---- */
static int router_main(int port_fd) {
  char address[64], answer[ANSWER_BYTES] = "";
  size_t n = sizeof address;
  void *ctx = zmq_ctx_new(), *s = bench_no_limits(ctx, ZMQ_ROUTER);
  uint16_t port = 0;
  int backlog = 1024;
  zmq_setsockopt(s, ZMQ_BACKLOG, &backlog, sizeof backlog);
  if (!s || zmq_bind(s, "tcp://127.0.0.1:*") || zmq_getsockopt(s, ZMQ_LAST_ENDPOINT, address, &n) ||
      sscanf(strrchr(address, ':'), ":%hu", &port) != 1 || write(port_fd, &port, sizeof port) != sizeof port)
    return 1;
  zmq_msg_t who, what;
  zmq_msg_init(&who);
  zmq_msg_init(&what);
  while (zmq_msg_recv(&who, s, 0) >= 0 && zmq_msg_recv(&what, s, 0) >= 0) /* the parent ends it */
    if (zmq_msg_send(&who, s, ZMQ_SNDMORE) < 0 || zmq_send(s, "", 0, ZMQ_SNDMORE) < 0 || zmq_send(s, answer, sizeof answer, 0) < 0)
      return 1;
  return 1;
}

static pid_t router_start(uint16_t *port) {
  int fd[2];
  if (pipe(fd))
    return -1;
  fflush(stdout);
  pid_t pid = fork();
  if (!pid) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_NAME, BENCH_CONTROL_THREAD);
    bench_pin(0);
    _exit(router_main(fd[1]));
  }
  close(fd[1]);
  if (pid > 0 && read(fd[0], port, sizeof *port) != sizeof *port) {
    kill(pid, SIGKILL);
    pid = -1;
  }
  close(fd[0]);
  return pid;
}

/* ---- the DEALERs ---- */
static bool connect_all(void *ctx, void **dealer, uint32_t n, uint16_t port) {
  char address[64];
  int wait = WAIT_MS;
  snprintf(address, sizeof address, "tcp://127.0.0.1:%u", port);
  for (uint32_t i = 0; i < n; i++)
    if (!(dealer[i] = bench_no_limits(ctx, ZMQ_DEALER)) || zmq_setsockopt(dealer[i], ZMQ_RCVTIMEO, &wait, sizeof wait) ||
        zmq_connect(dealer[i], address))
      return false;
  return true;
}

static bool send_all(void **dealer, uint32_t n, uint32_t each, const void *message, size_t bytes) {
  bool fine = true;
  for (uint32_t k = 0; k < each && fine; k++)
    for (uint32_t i = 0; i < n && fine; i++)
      fine = zmq_send(dealer[i], message, bytes, 0) >= 0;
  return fine;
}

static bool answers(void **dealer, uint32_t n, uint32_t each) {
  char answer[64];
  bool fine = true;
  for (uint32_t i = 0; i < n && fine; i++)
    for (uint32_t k = 0; k < each && fine; k++)
      fine = zmq_recv(dealer[i], answer, sizeof answer, 0) == 0 && zmq_recv(dealer[i], answer, sizeof answer, 0) == ANSWER_BYTES;
  return fine;
}

static bool run(pid_t router, void **dealer, uint32_t n, uint32_t messages, size_t bytes, struct bench_cost *cost) {
  char *message = calloc(1, bytes);
  bool fine = message && send_all(dealer, n, 1, message, bytes) && answers(dealer, n, 1);
  kill(router, SIGSTOP);
  fine = fine && send_all(dealer, n, messages / n, message, bytes);
  nanosleep(&(struct timespec){.tv_nsec = FLUSH_MS * 1000000L}, NULL);
  struct bench_cost begin = bench_cost_of(router);
  kill(router, SIGCONT);
  fine = fine && answers(dealer, n, messages / n);
  *cost = bench_cost_since(router, begin, messages);
  free(message);
  return fine;
}

static bool crowd(uint32_t dealers, uint32_t messages, size_t bytes, struct bench_cost *cost) {
  uint16_t port = 0;
  pid_t router = router_start(&port);
  void *ctx = zmq_ctx_new(), **dealer = calloc(dealers, sizeof *dealer);
  zmq_ctx_set(ctx, ZMQ_MAX_SOCKETS, (int)dealers + 16);
  bool fine = router > 0 && dealer && connect_all(ctx, dealer, dealers, port) && run(router, dealer, dealers, messages, bytes, cost);
  if (router > 0)
    kill(router, SIGKILL);
  for (uint32_t i = 0; dealer && i < dealers; i++)
    if (dealer[i])
      zmq_close(dealer[i]);
  free(dealer);
  zmq_ctx_term(ctx);
  return fine;
}

/* In a process of its own: what so many sockets take would stay with this one, and count as that of the next that is forked. */
bool bench_bare_crowd(uint32_t dealers, uint32_t messages, size_t bytes, struct bench_cost *cost) {
  int fd[2];
  if (pipe(fd))
    return false;
  fflush(stdout);
  pid_t pid = fork();
  if (!pid) {
    struct bench_cost seen;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    _exit(!crowd(dealers, messages, bytes, &seen) || write(fd[1], &seen, sizeof seen) != sizeof seen);
  }
  close(fd[1]);
  bool fine = pid > 0 && read(fd[0], cost, sizeof *cost) == sizeof *cost;
  close(fd[0]);
  if (pid > 0)
    waitpid(pid, NULL, 0);
  return fine;
}
