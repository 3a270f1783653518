/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/helpers/http_server.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static void must(bool ok, const char *what) {
  if (ok)
    return;
  perror(what);
  exit(2);
}

static bool send_all(int fd, const char *p, size_t n) {
  while (n) {
    ssize_t did = send(fd, p, n, MSG_NOSIGNAL);
    if (did <= 0)
      return false;
    p += did;
    n -= (size_t)did;
  }
  return true;
}

static void drip(int fd, const char *p) {
  int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  for (; *p && send_all(fd, p, 1); p++)
    ;
}

static void flood(int fd, const char *start) {
  bool open = send_all(fd, start, strlen(start));
  while (open)
    open = send_all(fd, "X-More: of the same\r\n", 21);
}

static void drop_conn(struct server *s, uint32_t i) {
  struct conn *c = &s->conn[i];
  close(c->fd);
  pthread_mutex_lock(&s->lock);
  s->hung_closed += c->hung;
  pthread_cond_broadcast(&s->changed);
  pthread_mutex_unlock(&s->lock);
  *c = s->conn[--s->n_conn];
}

/* Length of the first request in the buffer, 0 while it is not complete. */
static uint32_t complete(struct conn *c) {
  c->buf[c->n] = 0;
  char *body = strstr(c->buf, "\r\n\r\n"), *len = strcasestr(c->buf, "content-length:");
  if (!body || !len)
    return 0;
  uint32_t total = (uint32_t)(body + 4 - c->buf) + (uint32_t)atoi(len + 15);
  return total <= c->n ? total : 0;
}

static struct action note_request(struct server *s, struct conn *c, uint32_t len) {
  pthread_mutex_lock(&s->lock);
  struct action a = s->script[s->requests < s->n_script ? s->requests : s->n_script - 1];
  memcpy(s->last, c->buf, len);
  s->last[len] = 0;
  s->order[s->requests % SRV_MAX_CONN] = strstr(s->last, "\r\n\r\n")[4];
  s->requests++;
  c->hung = a.kind == ACT_HANG;
  s->hung += c->hung;
  pthread_cond_broadcast(&s->changed);
  pthread_mutex_unlock(&s->lock);
  return a;
}

/* False: the connection is over. */
static bool answer(struct server *s, struct conn *c, uint32_t len) {
  struct action a = note_request(s, c, len);
  memmove(c->buf, c->buf + len, c->n - len);
  c->n -= len;
  if (a.kind == ACT_REPLY || a.kind == ACT_KEEP)
    send_all(c->fd, a.text, strlen(a.text));
  else if (a.kind == ACT_DRIP)
    drip(c->fd, a.text);
  else if (a.kind == ACT_FLOOD)
    flood(c->fd, a.text);
  return a.kind == ACT_KEEP || a.kind == ACT_HANG;
}

static bool serve(struct server *s, struct conn *c) {
  ssize_t n = recv(c->fd, c->buf + c->n, sizeof c->buf - 1 - c->n, 0);
  if (n <= 0)
    return false;
  c->n += (uint32_t)n;
  uint32_t len = complete(c);
  return !len || answer(s, c, len);
}

static void accept_one(struct server *s) {
  int fd = accept(s->fd, NULL, NULL);
  must(fd >= 0 && s->n_conn < SRV_MAX_CONN, "accept");
  s->conn[s->n_conn++] = (struct conn){.fd = fd};
  pthread_mutex_lock(&s->lock);
  s->connections++;
  pthread_cond_broadcast(&s->changed);
  pthread_mutex_unlock(&s->lock);
}

/* False: stop. */
static bool take_orders(struct server *s) {
  uint64_t count;
  if (read(s->wake, &count, sizeof count) < 0)
    return true;
  pthread_mutex_lock(&s->lock);
  const char *text = s->release;
  bool stop = s->stop;
  s->release = NULL;
  pthread_mutex_unlock(&s->lock);
  for (uint32_t i = s->n_conn; text && i-- > 0;)
    if (s->conn[i].hung) {
      s->conn[i].hung = false;
      send_all(s->conn[i].fd, text, strlen(text));
      drop_conn(s, i);
    }
  return !stop;
}

static void *run(void *arg) {
  struct server *s = arg;
  static _Thread_local struct pollfd p[SRV_MAX_CONN + 2];
  for (;;) {
    uint32_t n = s->n_conn;
    pthread_mutex_lock(&s->lock);
    p[0] = (struct pollfd){.fd = s->wake, .events = POLLIN};
    p[1] = (struct pollfd){.fd = s->listening ? s->fd : -1, .events = POLLIN};
    pthread_mutex_unlock(&s->lock);
    for (uint32_t i = 0; i < n; i++)
      p[2 + i] = (struct pollfd){.fd = s->conn[i].fd, .events = POLLIN};
    poll(p, n + 2, -1);
    for (uint32_t i = n; i-- > 0;)
      if (p[2 + i].revents && !serve(s, &s->conn[i]))
        drop_conn(s, i);
    if (p[1].revents)
      accept_one(s);
    if (p[0].revents && !take_orders(s))
      return NULL;
  }
}

static void poke(struct server *s) {
  uint64_t one = 1;
  must(write(s->wake, &one, sizeof one) == sizeof one, "eventfd");
}

void server_start(struct server *s, const struct action *script, uint32_t n) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof a;
  memset(s, 0, sizeof *s);
  s->script = script;
  s->n_script = n;
  pthread_mutex_init(&s->lock, NULL);
  pthread_cond_init(&s->changed, NULL);
  s->conn = calloc(SRV_MAX_CONN, sizeof *s->conn);
  s->fd = socket(AF_INET, SOCK_STREAM, 0);
  s->wake = eventfd(0, EFD_NONBLOCK);
  must(!bind(s->fd, (struct sockaddr *)&a, sizeof a) && !getsockname(s->fd, (struct sockaddr *)&a, &len), "bind");
  s->port = ntohs(a.sin_port);
  must(!pthread_create(&s->thread, NULL, run, s), "thread");
}

void server_listen(struct server *s) {
  must(!listen(s->fd, SRV_MAX_CONN), "listen");
  pthread_mutex_lock(&s->lock);
  s->listening = true;
  pthread_mutex_unlock(&s->lock);
  poke(s);
}

void server_release(struct server *s, const char *text) {
  pthread_mutex_lock(&s->lock);
  s->release = text;
  pthread_mutex_unlock(&s->lock);
  poke(s);
}

void server_stop(struct server *s) {
  pthread_mutex_lock(&s->lock);
  s->stop = true;
  pthread_mutex_unlock(&s->lock);
  poke(s);
  pthread_join(s->thread, NULL);
  for (uint32_t i = 0; i < s->n_conn; i++)
    close(s->conn[i].fd);
  free(s->conn);
  close(s->fd);
  close(s->wake);
  pthread_cond_destroy(&s->changed);
  pthread_mutex_destroy(&s->lock);
}

bool server_wait(struct server *s, const uint32_t *counter, uint32_t n) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += 10;
  pthread_mutex_lock(&s->lock);
  int rc = 0;
  while (*counter < n && !rc)
    rc = pthread_cond_timedwait(&s->changed, &s->lock, &until);
  bool ok = *counter >= n;
  pthread_mutex_unlock(&s->lock);
  return ok;
}
