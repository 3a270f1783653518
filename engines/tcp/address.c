/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/tcp/tcp.h"
#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>

#define KEEPALIVE_PROBES 3

socklen_t rd2h_tcp_sockaddr(const struct rd2h_tcp_conn *c, struct sockaddr_storage *out) {
  memset(out, 0, sizeof *out);
  if (c->v6) {
    struct sockaddr_in6 *a = (struct sockaddr_in6 *)out;
    a->sin6_family = AF_INET6;
    a->sin6_port = htons(c->port);
    memcpy(&a->sin6_addr, c->addr, 16);
    return sizeof *a;
  }
  struct sockaddr_in *a = (struct sockaddr_in *)out;
  a->sin_family = AF_INET;
  a->sin_port = htons(c->port);
  memcpy(&a->sin_addr, c->addr, 4);
  return sizeof *a;
}

void rd2h_tcp_address_text(const struct rd2h_tcp_conn *c, char out[64]) {
  char host[INET6_ADDRSTRLEN] = "?";
  inet_ntop(c->v6 ? AF_INET6 : AF_INET, c->addr, host, sizeof host);
  snprintf(out, 64, c->v6 ? "[%s]:%u" : "%s:%u", host, c->port);
}

int rd2h_tcp_resolve(const char *host, struct rd2h_tcp_conn *out, struct rd2h_error *err) {
  struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *found;
  int rc = getaddrinfo(host, NULL, &hints, &found);
  if (rc)
    return rd2h_fail(err, RD2H_INVALID, "engine tcp: \"%.200s\" is no address of this host: %s", host, gai_strerror(rc));
  *out = (struct rd2h_tcp_conn){.v6 = found->ai_family == AF_INET6};
  if (out->v6)
    memcpy(out->addr, &((const struct sockaddr_in6 *)found->ai_addr)->sin6_addr, 16);
  else
    memcpy(out->addr, &((const struct sockaddr_in *)found->ai_addr)->sin_addr, 4);
  bool scoped = out->v6 && IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)found->ai_addr)->sin6_addr);
  freeaddrinfo(found);
  if (scoped)
    return rd2h_fail(err, RD2H_INVALID, "engine tcp: \"%.200s\" is a link-local address, which means nothing on another host: give "
                     "a global or unique local one", host);
  return RD2H_OK;
}

void rd2h_tcp_socket_options(int fd, uint64_t timeout_ns) {
  uint64_t ms = timeout_ns / RD2H_MS;
  int user = (int)(ms < 1000 ? 1000 : ms > 3600000 ? 3600000 : ms), one = 1, probes = KEEPALIVE_PROBES;
  int pause = user / 1000 / (KEEPALIVE_PROBES + 1);
  pause = pause ? pause : 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &pause, sizeof pause);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &pause, sizeof pause);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user, sizeof user);
}
