/* SPDX-License-Identifier: Apache-2.0 */
/* The connection beside the transfer: "RDPD", length (4, little-endian), so many bytes of JSON. Every wait has a deadline. */
#include "pd_read.h"
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MARK "RDPD"
#define HEAD 8u
#define BODY_MAX (4u << 20)
#define SLICE_MS 50     /* between two looks at the engine */
#define RETRY_MS 100

bool pd_address(const char *text, uint16_t port, struct sockaddr_storage *out, socklen_t *len) {
  struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST}, *found;
  if (getaddrinfo(text, NULL, &hints, &found))
    return false;
  memcpy(out, found->ai_addr, found->ai_addrlen);
  *len = found->ai_addrlen;
  freeaddrinfo(found);
  if (out->ss_family == AF_INET6)
    ((struct sockaddr_in6 *)out)->sin6_port = htons(port);
  else
    ((struct sockaddr_in *)out)->sin_port = htons(port);
  return true;
}

static void name_of(const struct sockaddr_storage *a, socklen_t len, char out[PD_PEER_NAME]) {
  char host[INET6_ADDRSTRLEN + 16] = "?", port[8] = "?";
  getnameinfo((const struct sockaddr *)a, len, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
  snprintf(out, PD_PEER_NAME, strchr(host, ':') ? "[%.50s]:%s" : "%.52s:%s", host, port);
}


/* Waits for the descriptor at most until the deadline, keeping an engine going that needs it. */
static bool wait_for(struct pd_read *r, int fd, short events, uint64_t deadline) {
  struct pollfd p = {.fd = fd, .events = events};
  struct rd2h_completion c;
  for (;;) {
    int n = poll(&p, 1, SLICE_MS);
    if (n > 0)
      return true;
    if (r->eng && r->prefill)
      rd2h_eng_poll(r->eng, &c, 1);
    if (rd2h_now_ns() > deadline)
      return false;
  }
}

/* ---- coming together ---- */
/* A host that vanishes without a word is noticed after half a minute, also where a step has no deadline. */
static void set_up(int s) {
  setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
  setsockopt(s, SOL_SOCKET, SO_KEEPALIVE, &(int){1}, sizeof(int));
  setsockopt(s, IPPROTO_TCP, TCP_KEEPIDLE, &(int){10}, sizeof(int));
  setsockopt(s, IPPROTO_TCP, TCP_KEEPINTVL, &(int){5}, sizeof(int));
  setsockopt(s, IPPROTO_TCP, TCP_KEEPCNT, &(int){4}, sizeof(int));
}

int pd_listen(const struct pd_read *r, int *fd, uint16_t *port, struct rd2h_error *err) {
  struct sockaddr_storage a;
  socklen_t len = 0; /* set with the address; gcc does not see it at -O3 */
  int one = 1;
  char name[PD_PEER_NAME];
  pd_address(r->local_ip, (uint16_t)r->port, &a, &len);
  name_of(&a, len, name);
  int s = socket(a.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (s >= 0)
    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (s < 0 || bind(s, (struct sockaddr *)&a, len) || listen(s, 8) || getsockname(s, (struct sockaddr *)&a, &len)) {
    int why = errno;
    if (s >= 0)
      close(s);
    if (why == EADDRINUSE)
      return rd2h_fail(err, RD2H_EXISTS, "port %llu of %s is taken by another process: end it, or choose another with "
                       "--control-port (on both sides)", (unsigned long long)r->port, r->local_ip);
    if (why == EADDRNOTAVAIL)
      return rd2h_fail(err, RD2H_INVALID, "--local-ip %s is no address of this host: \"ip address\" lists those it has",
                       r->local_ip);
    return rd2h_fail(err, RD2H_IO, "cannot listen at %s: %s", name, strerror(why));
  }
  *port = ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port : ((struct sockaddr_in *)&a)->sin_port);
  *fd = s;
  return RD2H_OK;
}

int pd_accept(struct pd_read *r, int listener, struct rd2h_error *err) {
  struct sockaddr_storage a;
  socklen_t len = sizeof a;
  while ((r->control = accept4(listener, (struct sockaddr *)&a, &len, SOCK_CLOEXEC | SOCK_NONBLOCK)) < 0) {
    pd_progress(r, "waiting for Decode, %llu s left",
                (unsigned long long)(r->deadline > rd2h_now_ns() ? (r->deadline - rd2h_now_ns()) / 1000 / RD2H_MS : 0));
    wait_for(r, listener, POLLIN, rd2h_now_ns());
    if (rd2h_now_ns() > r->deadline)
      return rd2h_fail(err, RD2H_TIMEOUT, "no Decode came within %llu s (--timeout): start \"rd2h pd-read --role decode "
                       "--prefill-ip %s\" on the other host; if it says that nothing answers, a firewall stands between the two",
                       (unsigned long long)r->timeout_s, r->local_ip);
  }
  set_up(r->control);
  name_of(&a, len, r->peer);
  pd_progress_end(r);
  return RD2H_OK;
}

/* 0, or the errno of one try. */
static int dial_once(struct pd_read *r, const struct sockaddr_storage *a, socklen_t len) {
  struct sockaddr_storage from;
  socklen_t n, from_len;
  int why = 0, s = socket(a->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (s < 0)
    return errno;
  n = sizeof why;
  if (r->local_ip && pd_address(r->local_ip, 0, &from, &from_len) && bind(s, (struct sockaddr *)&from, from_len))
    why = errno;
  else if (connect(s, (const struct sockaddr *)a, len) && errno != EINPROGRESS)
    why = errno;
  else if (!wait_for(r, s, POLLOUT, r->deadline))
    why = ETIMEDOUT;
  else
    getsockopt(s, SOL_SOCKET, SO_ERROR, &why, &n);
  if (why) {
    close(s);
    return why;
  }
  set_up(s);
  r->control = s;
  return 0;
}

static int dial_failed(const struct pd_read *r, int why, struct rd2h_error *err) {
  unsigned long long port = r->port, s = r->timeout_s;
  switch (why) {
  case ECONNREFUSED:
    return rd2h_fail(err, RD2H_NOT_FOUND, "nothing listens at %s within %llu s: start \"rd2h pd-read --role prefill --local-ip "
                     "%s\" there first, or look whether both sides have the same --control-port", r->peer, s, r->prefill_ip);
  case ETIMEDOUT:
    return rd2h_fail(err, RD2H_TIMEOUT, "no answer from %s within %llu s: a firewall drops what is sent to port %llu, or the "
                     "host is down",
                     r->peer, s, port);
  case ENETUNREACH: case EHOSTUNREACH:
    return rd2h_fail(err, RD2H_NOT_FOUND, "there is no way to %s (%s): look at the address and at this host's routes", r->peer,
                     strerror(why));
  case EADDRNOTAVAIL:
    return rd2h_fail(err, RD2H_INVALID, "--local-ip %s is no address of this host: \"ip address\" lists those it has",
                     r->local_ip);
  default:
    return rd2h_fail(err, RD2H_IO, "cannot connect to %s: %s", r->peer, strerror(why));
  }
}

int pd_dial(struct pd_read *r, struct rd2h_error *err) {
  struct sockaddr_storage a;
  socklen_t len = 0; /* set with the address; gcc does not see it at -O3 */
  int why;
  pd_address(r->prefill_ip, (uint16_t)r->port, &a, &len);
  name_of(&a, len, r->peer);
  while ((why = dial_once(r, &a, len)) == ECONNREFUSED && rd2h_now_ns() < r->deadline) {
    pd_progress(r, "nothing listens at %s yet, trying again", r->peer);
    nanosleep(&(struct timespec){.tv_nsec = RETRY_MS * RD2H_MS}, NULL);
  }
  pd_progress_end(r);
  return why ? dial_failed(r, why, err) : RD2H_OK;
}

/* ---- messages ---- */
static int lost(const struct pd_read *r, const char *during, struct rd2h_error *err) {
  return rd2h_fail(err, RD2H_PEER_LOST, "%s at %s closed the connection %s: it has ended; what it printed says why",
                   r->prefill ? "Decode" : "Prefill", r->peer, during);
}

static int move(struct pd_read *r, uint8_t *p, size_t n, bool out, uint64_t deadline, const char *during,
                struct rd2h_error *err) {
  for (size_t at = 0; at < n;) {
    ssize_t k = out ? send(r->control, p + at, n - at, MSG_NOSIGNAL) : recv(r->control, p + at, n - at, 0);
    if (k > 0) {
      at += (size_t)k;
      continue;
    }
    if (k == 0 || (errno != EAGAIN && errno != EINTR))
      return lost(r, during, err);
    wait_for(r, r->control, out ? POLLOUT : POLLIN, rd2h_now_ns());
    if (rd2h_now_ns() > deadline) /* also of one that sends a byte now and then */
      return rd2h_fail(err, RD2H_TIMEOUT, "%s at %s said nothing for %llu s %s: it hangs, or a firewall cuts the connection",
                       r->prefill ? "Decode" : "Prefill", r->peer, (unsigned long long)r->timeout_s, during);
    if (!out)
      pd_progress(r, "waiting for %s", r->peer);
  }
  return RD2H_OK;
}

int pd_send(struct pd_read *r, json_t *message, struct rd2h_error *err) {
  char *text = message ? json_dumps(message, JSON_COMPACT) : NULL;
  size_t n = text ? strlen(text) : 0;
  uint8_t head[HEAD] = MARK;
  json_decref(message);
  if (!text)
    return rd2h_nomem(err, "a message");
  for (int i = 0; i < 4; i++)
    head[4 + i] = (uint8_t)(n >> 8 * i);
  int rc = move(r, head, HEAD, true, r->deadline, "before all was said", err);
  if (!rc)
    rc = move(r, (uint8_t *)text, n, true, r->deadline, "before all was said", err);
  free(text);
  return rc;
}

int pd_receive(struct pd_read *r, const char *during, uint64_t deadline, json_t **message, struct rd2h_error *err) {
  uint8_t head[HEAD];
  int rc = move(r, head, HEAD, false, deadline, during, err);
  if (rc)
    return rc;
  uint32_t n = head[4] | (uint32_t)head[5] << 8 | (uint32_t)head[6] << 16 | (uint32_t)head[7] << 24;
  if (memcmp(head, MARK, 4) || n > BODY_MAX)
    return rd2h_fail(err, RD2H_MALFORMED, "what answers at %s is no rd2h pd-read: is another program at this port?", r->peer);
  uint8_t *body = rd2h_alloc((size_t)n + 1);
  if (!body)
    return rd2h_nomem(err, "a message");
  rc = move(r, body, n, false, deadline, during, err);
  json_t *got = rc ? NULL : json_loadb((const char *)body, n, JSON_REJECT_DUPLICATES, NULL);
  rd2h_free(body);
  pd_progress_end(r);
  if (!rc && !json_is_object(got))
    rc = rd2h_fail(err, RD2H_MALFORMED, "what answers at %s is no rd2h pd-read: its message is damaged", r->peer);
  if (rc) {
    json_decref(got);
    return rc;
  }
  *message = got;
  return RD2H_OK;
}

bool pd_hung_up(const struct pd_read *r) {
  struct pollfd p = {.fd = r->control, .events = POLLIN | POLLRDHUP};
  return poll(&p, 1, 0) == 1 && p.revents & (POLLRDHUP | POLLHUP | POLLERR);
}

const char *pd_text(const json_t *message, const char *key) {
  const char *text = json_string_value(json_object_get(message, key));
  return text ? text : "";
}
