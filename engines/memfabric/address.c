/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/memfabric/memfabric.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define PORT_MAX 65535u

static socklen_t numeric(const char *host, uint16_t port, struct sockaddr_storage *out) {
  struct sockaddr_in *v4 = (struct sockaddr_in *)out;
  struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;
  memset(out, 0, sizeof *out);
  if (inet_pton(AF_INET, host, &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    return sizeof *v4;
  }
  if (inet_pton(AF_INET6, host, &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    return sizeof *v6;
  }
  return 0;
}

bool rd2h_mf_host_ok(const char *host) {
  struct sockaddr_storage a;
  return strlen(host) < MF_HOST_MAX && numeric(host, 0, &a);
}

/* Cuts "address:port" or "[address]:port". The port must be written as the library writes it: no sign, no leading zero. */
static bool parse(const char *s, size_t n, char host[MF_HOST_MAX], uint16_t *port) {
  size_t at = n, from = n && s[0] == '[';
  uint32_t v = 0;
  while (at && s[at - 1] >= '0' && s[at - 1] <= '9')
    at--;
  if (at == n || n - at > 5 || s[at] == '0' || at < 2 + 2 * from || s[at - 1] != ':')
    return false;
  for (size_t i = at; i < n; i++)
    v = v * 10 + (uint32_t)(s[i] - '0');
  size_t end = at - 1 - from;
  if (v > PORT_MAX || (from && s[end] != ']') || end - from >= MF_HOST_MAX || memchr(s, 0, n))
    return false;
  memcpy(host, s + from, end - from);
  host[end - from] = 0;
  *port = (uint16_t)v;
  return (strchr(host, ':') != NULL) == from;
}

bool rd2h_mf_session_ok(const void *session, size_t n) {
  char host[MF_HOST_MAX];
  uint16_t port;
  return n && n < MF_ID_MAX && parse(session, n, host, &port) && rd2h_mf_host_ok(host);
}

void rd2h_mf_id(const char *host, uint16_t port, char out[MF_ID_MAX]) {
  snprintf(out, MF_ID_MAX, strchr(host, ':') ? "[%s]:%u" : "%s:%u", host, port);
}

int rd2h_mf_hold_port(const char *host, uint16_t *port) {
  struct sockaddr_storage a;
  socklen_t n = numeric(host, 0, &a);
  int fd = n ? socket(a.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0) : -1;
  if (fd < 0)
    return -1;
  if (bind(fd, (struct sockaddr *)&a, n) || getsockname(fd, (struct sockaddr *)&a, &n)) {
    int e = errno;
    close(fd);
    errno = e;
    return -1;
  }
  *port = ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port : ((struct sockaddr_in *)&a)->sin_port);
  return fd;
}

enum mf_probe rd2h_mf_probe(const char *session, uint32_t timeout_ms) {
  char host[MF_HOST_MAX];
  struct sockaddr_storage a;
  uint16_t port;
  int failed = 0;
  socklen_t n = parse(session, strlen(session), host, &port) ? numeric(host, port, &a) : 0, len = sizeof failed;
  int fd = n ? socket(a.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0) : -1;
  if (fd < 0)
    return MF_PROBE_SILENT; /* nothing is known */
  struct pollfd p = {.fd = fd, .events = POLLOUT};
  if (connect(fd, (struct sockaddr *)&a, n))
    failed = errno;
  if (failed == EINPROGRESS) {
    failed = poll(&p, 1, (int)timeout_ms) == 1 ? 0 : ETIMEDOUT;
    if (!failed)
      getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &len);
  }
  close(fd);
  return !failed ? MF_PROBE_ANSWERS : failed == ETIMEDOUT || failed == EAGAIN ? MF_PROBE_SILENT : MF_PROBE_GONE;
}
