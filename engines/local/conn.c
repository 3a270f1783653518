/* SPDX-License-Identifier: Apache-2.0 */
/* Connection data of engine local. Offsets in bytes, integers little-endian:
 * 0 schema (1) | 1 host name length h | 2 zero (2) | 4 pid (4) | 8 user id (4) | 12 zero (4) | 16 start time (8) |
 * 24 pid namespace (8) | 32 boot id (16) | 48 nonce address (8) | 56 nonce (16) | schema 1: 72 host name (h)
 * schema 2, where there is shared memory to hand over: 72 socket id (8), not zero | 80 host name (h)
 * The socket is the abstract one of rd2h_local_socket_name. */
#include "base/le.h"
#include "engines/local/local.h"

#define SCHEMA_PLAIN 1u
#define SCHEMA_SHARED 2u
#define FIXED 72u
#define PID_LIMIT (1u << 22) /* the kernel's own upper bound of pids */

uint32_t rd2h_local_encode(const struct rd2h_local_conn *c, uint8_t out[LOCAL_CONN_MAX]) {
  uint32_t host = FIXED;
  memset(out, 0, FIXED);
  out[0] = c->socket ? SCHEMA_SHARED : SCHEMA_PLAIN;
  out[1] = (uint8_t)c->host_len;
  rd2h_le_put(out + 4, c->pid, 4);
  rd2h_le_put(out + 8, c->uid, 4);
  rd2h_le_put(out + 16, c->start, 8);
  rd2h_le_put(out + 24, c->pid_ns, 8);
  memcpy(out + 32, c->boot_id, sizeof c->boot_id);
  rd2h_le_put(out + 48, c->nonce_addr, 8);
  memcpy(out + 56, c->nonce, LOCAL_NONCE);
  if (c->socket) {
    rd2h_le_put(out + FIXED, c->socket, 8);
    host += 8;
  }
  memcpy(out + host, c->host, c->host_len);
  return host + c->host_len;
}

static bool host_ok(const uint8_t *p, uint32_t n) {
  for (uint32_t i = 0; i < n; i++)
    if (p[i] <= ' ' || p[i] > '~')
      return false;
  return n <= LOCAL_HOST_MAX;
}

static int malformed(struct rd2h_error *err, const char *what, uint64_t value) {
  return rd2h_fail(err, RD2H_MALFORMED, "engine local: the peer's connection data is damaged: %s %llu", what,
                   (unsigned long long)value);
}

int rd2h_local_decode(struct rd2h_blob b, struct rd2h_local_conn *out, struct rd2h_error *err) {
  if (!b.len)
    return malformed(err, "length", 0);
  if (b.p[0] != SCHEMA_PLAIN && b.p[0] != SCHEMA_SHARED)
    return rd2h_fail(err, RD2H_UNSUPPORTED, "engine local: the peer's connection data has schema %u, this version reads %u and "
                     "%u: run the same version of rd2h on both sides", b.p[0], SCHEMA_PLAIN, SCHEMA_SHARED);
  const uint32_t host = b.p[0] == SCHEMA_SHARED ? FIXED + 8 : FIXED;
  if (b.len < host || b.len != host + b.p[1])
    return malformed(err, "length", b.len);
  if (rd2h_le_get(b.p + 2, 2) || rd2h_le_get(b.p + 12, 4))
    return malformed(err, "reserved bytes", rd2h_le_get(b.p + 2, 2) | rd2h_le_get(b.p + 12, 4));
  struct rd2h_local_conn c = {.pid = (uint32_t)rd2h_le_get(b.p + 4, 4), .uid = (uint32_t)rd2h_le_get(b.p + 8, 4),
                              .start = rd2h_le_get(b.p + 16, 8),
                              .pid_ns = rd2h_le_get(b.p + 24, 8), .nonce_addr = rd2h_le_get(b.p + 48, 8), .host_len = b.p[1],
                              .socket = host > FIXED ? rd2h_le_get(b.p + FIXED, 8) : 0};
  if (!c.pid || c.pid > PID_LIMIT)
    return malformed(err, "pid", c.pid);
  if (!c.nonce_addr || c.nonce_addr % LOCAL_NONCE)
    return malformed(err, "nonce address", c.nonce_addr);
  if (host > FIXED && !c.socket)
    return malformed(err, "socket id", c.socket);
  if (!host_ok(b.p + host, c.host_len))
    return malformed(err, "host name of length", c.host_len);
  memcpy(c.boot_id, b.p + 32, sizeof c.boot_id);
  memcpy(c.nonce, b.p + 56, LOCAL_NONCE);
  memcpy(c.host, b.p + host, c.host_len);
  *out = c;
  return RD2H_OK;
}

int rd2h_local_legacy_pid(struct rd2h_blob s, uint32_t *pid, struct rd2h_error *err) {
  uint32_t at = s.len, v = 0;
  while (at && s.p[at - 1] >= '0' && s.p[at - 1] <= '9')
    at--;
  for (uint32_t i = at; i < s.len && v <= PID_LIMIT; i++)
    v = v * 10 + (s.p[i] - '0');
  if (!at || at == s.len || s.p[at - 1] != ':' || !v || v > PID_LIMIT)
    return rd2h_fail(err, RD2H_MALFORMED, "engine local: the peer published no connection data, and its session \"%.*s\" does "
                     "not end in \":PID\"", s.len < 128 ? (int)s.len : 128, (const char *)s.p);
  *pid = v;
  return RD2H_OK;
}
