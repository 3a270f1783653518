/* SPDX-License-Identifier: Apache-2.0 */
/* Where Decode lets itself be sent: connection data comes from whoever reached the control port. */
#include "engines/tcp/tcp.h"
#include <arpa/inet.h>
#include <stdlib.h>

static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff}; /* IPv4 inside of IPv6 */

static struct tcp_net plain(bool v6, const uint8_t addr[16]) {
  struct tcp_net n = {.v6 = v6, .bits = v6 ? 128 : 32};
  memcpy(n.addr, addr, v6 ? 16 : 4);
  if (v6 && !memcmp(addr, mapped, sizeof mapped)) {
    n = (struct tcp_net){.bits = 32};
    memcpy(n.addr, addr + 12, 4);
  }
  return n;
}

static bool numeric(const char *text, struct tcp_net *out) {
  uint8_t addr[16] = {0};
  bool v6 = strchr(text, ':') != NULL;
  if (inet_pton(v6 ? AF_INET6 : AF_INET, text, addr) != 1)
    return false;
  *out = plain(v6, addr);
  return true;
}

static bool inside(const struct tcp_net *net, const struct tcp_net *x) {
  uint32_t whole = net->bits / 8, rest = net->bits % 8;
  uint8_t mask = (uint8_t)(0xff00 >> rest);
  return net->v6 == x->v6 && !memcmp(net->addr, x->addr, whole) && (!rest || !((net->addr[whole] ^ x->addr[whole]) & mask));
}

static bool parse_net(char *text, struct tcp_net *out) {
  char *slash = strchr(text, '/'), *end = NULL;
  if (slash)
    *slash = 0;
  if (!numeric(text, out))
    return false;
  unsigned long bits = slash ? strtoul(slash + 1, &end, 10) : out->bits;
  if (slash && (slash[1] < '0' || slash[1] > '9' || *end || bits > out->bits))
    return false;
  out->bits = (uint32_t)bits;
  return true;
}

int rd2h_tcp_targets_parse(const char *list, struct tcp_targets *out, struct rd2h_error *err) {
  char one[64];
  *out = (struct tcp_targets){0};
  if (!strcmp(list, "any")) {
    out->any = true;
    return RD2H_OK;
  }
  for (const char *p = list, *next; p; p = next) {
    size_t n = strcspn(p, "+");
    next = p[n] ? p + n + 1 : NULL;
    if (!n || n >= sizeof one || out->n == TCP_TARGETS_MAX)
      return rd2h_fail(err, RD2H_INVALID, "engine tcp: option \"targets=%.100s\": at most %u addresses are wanted, joined by +, each "
                       "like 10.0.0.7, 10.0.0.0/8 or fd00::/8; or the word any", list, TCP_TARGETS_MAX);
    memcpy(one, p, n);
    one[n] = 0;
    if (!parse_net(one, &out->net[out->n++]))
      return rd2h_fail(err, RD2H_INVALID, "engine tcp: option targets: \"%.*s\" is no address or network like 10.0.0.7, 10.0.0.0/8 "
                       "or fd00::/8", (int)n, p);
  }
  return RD2H_OK;
}

/* The host of "host:number" or "[host]:number"; false: it is a name, or nothing. */
static bool session_host(struct rd2h_blob s, struct tcp_net *out) {
  char text[64];
  const uint8_t *end = s.p;
  for (uint32_t i = 0; i < s.len; i++)
    if (s.p[i] == ':')
      end = s.p + i;
  size_t n = (size_t)(end - s.p);
  bool bracket = n > 1 && s.p[0] == '[' && s.p[n - 1] == ']';
  n -= bracket ? 2 : 0;
  if (!n || n >= sizeof text)
    return false;
  memcpy(text, s.p + bracket, n);
  text[n] = 0;
  return numeric(text, out);
}

int rd2h_tcp_targets_check(const struct tcp_targets *t, const struct rd2h_tcp_conn *at, struct rd2h_blob session,
                           struct rd2h_error *err) {
  struct tcp_net x = plain(at->v6, at->addr), host;
  char name[64];
  if (t->any)
    return RD2H_OK;
  for (uint32_t i = 0; i < t->n; i++)
    if (inside(&t->net[i], &x))
      return RD2H_OK;
  rd2h_tcp_address_text(at, name);
  if (t->n)
    return rd2h_fail(err, RD2H_PERMISSION, "engine tcp: a peer offers its memory at %s, which the engine option targets does not "
                     "allow", name);
  if (!session_host(session, &host) || inside(&host, &x))
    return RD2H_OK;
  return rd2h_fail(err, RD2H_PERMISSION, "engine tcp: the peer \"%.*s\" offers its memory at %s, another host than its own; if that is "
                   "meant, name it on Decode: engine option targets=ADDRESS", session.len < 100 ? (int)session.len : 100,
                   (const char *)session.p, name);
}
