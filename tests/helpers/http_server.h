/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_TESTS_HTTP_SERVER_H
#define RD2H_TESTS_HTTP_SERVER_H
/* A small real HTTP server in a thread. The n-th complete request gets the n-th action of the script (the last one for all that
 * follow). Everything is event-driven: tests wait for counters, not for time. */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum action_kind {
  ACT_REPLY, /* send the text, close */
  ACT_KEEP,  /* send the text, keep the connection */
  ACT_DRIP,  /* send the text byte by byte, close */
  ACT_HANG,  /* say nothing until released or closed */
  ACT_CLOSE, /* close without a word */
  ACT_FLOOD  /* send the text, then headers without end, until the peer closes */
};
struct action {
  enum action_kind kind;
  const char *text;
};

#define SRV_MAX_CONN 1024
#define SRV_MAX_REQ 4096
struct server {
  int fd, wake;
  uint16_t port;
  bool listening, stop;
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  const struct action *script;
  uint32_t n_script;
  /* what the tests look at, under the lock */
  uint32_t requests, connections, hung, hung_closed;
  char last[SRV_MAX_REQ];   /* the last request as it came */
  char order[SRV_MAX_CONN]; /* first byte of each request's body */
  const char *release;      /* sent to all that hang, once */
  /* the thread's own */
  struct conn {
    int fd;
    bool hung;
    uint32_t n;
    char buf[SRV_MAX_REQ];
  } *conn;
  uint32_t n_conn;
};

/* Binds an ephemeral port of 127.0.0.1; until server_listen connections are refused. */
void server_start(struct server *, const struct action *script, uint32_t n);
void server_listen(struct server *);
void server_release(struct server *, const char *text);
void server_stop(struct server *);
/* Waits until *counter (one of the server's) is at least n; false after 10 s. */
bool server_wait(struct server *, const uint32_t *counter, uint32_t n);
#endif
