/* SPDX-License-Identifier: Apache-2.0 */
/* What engine tcp writes and reads, version 2. Offsets in bytes, integers little-endian:
 * connection data: 0 version (1) | 1 family, 4 or 6 | 2 port (2) | 4 checksum of the rest (4) | 8 address (16) | 24 token (16)
 * hello:           0 "rd2h-tcp" | 8 version (4) | 12 zero (4) | 16 token (16)
 * request:         0 mark (4) | 4 number (4) | 8 descriptors (4) | 12 zero (4) | 16 bytes (8), then the descriptors:
 *                  0 address (8) | 8 length (4) | 12 region (4)
 * reply:           0 kind (4) | 4 number of its request (4) | 8 minus the status (4) | 12 descriptor to blame (4) | 16 zero (48)
 * A head is a cache line long because payload follows it into the kernel's pages: a copy to a place that lies 1 to 31 bytes further
 * in its page than its source does in its own takes up to eight times as long (the processor takes each load for one of the stores
 * just before it), and sources mostly begin where pages do. */
#include "base/le.h"
#include "engines/tcp/tcp.h"

#define VERSION 2u
#define REPLY_USED 16u
#define REQUEST_MARK 0x51524452u
static const uint8_t hello_mark[8] = {'r', 'd', '2', 'h', '-', 't', 'c', 'p'};

/* Damage shows when connecting and not as a refused token. */
static uint32_t checksum(const uint8_t p[TCP_CONN]) {
  return rd2h_sum_but(p, TCP_CONN, 4);
}

void rd2h_tcp_conn_encode(const struct rd2h_tcp_conn *c, uint8_t out[TCP_CONN]) {
  memset(out, 0, TCP_CONN);
  out[0] = VERSION;
  out[1] = c->v6 ? 6 : 4;
  rd2h_le_put(out + 2, c->port, 2);
  memcpy(out + 8, c->addr, c->v6 ? 16 : 4);
  memcpy(out + 24, c->token, TCP_TOKEN);
  rd2h_le_put(out + 4, checksum(out), 4);
}

static int malformed(struct rd2h_error *err, const char *what, uint64_t value) {
  return rd2h_fail(err, RD2H_MALFORMED, "engine tcp: the peer's connection data is damaged: %s %llu", what,
                   (unsigned long long)value);
}

/* No host can be reached under it: "any address" would be this one, link-local addresses mean something else here, groups take no
 * streams. */
static bool nobodys(const struct rd2h_tcp_conn *c) {
  static const uint8_t prefix[12] = {[10] = 0xff, [11] = 0xff}, zero[16];
  bool inside = c->v6 && !memcmp(c->addr, prefix, sizeof prefix); /* IPv4 inside of IPv6 */
  const uint8_t *a = c->addr + (inside ? 12 : 0);
  if (!c->v6 || inside)
    return a[0] == 0 || a[0] >= 224 || (a[0] == 169 && a[1] == 254);
  return !memcmp(a, zero, sizeof zero) || a[0] == 0xff || (a[0] == 0xfe && (a[1] & 0xc0) == 0x80);
}

int rd2h_tcp_conn_decode(struct rd2h_blob b, struct rd2h_tcp_conn *out, struct rd2h_error *err) {
  static const uint8_t zero[12];
  if (!b.len)
    return malformed(err, "length", 0);
  if (b.p[0] != VERSION)
    return rd2h_fail(err, RD2H_UNSUPPORTED, "engine tcp: the peer's connection data has version %u, this library reads %u: run "
                     "the same version of rd2h on both sides", b.p[0], VERSION);
  if (b.len != TCP_CONN)
    return malformed(err, "length", b.len);
  if (rd2h_le_get(b.p + 4, 4) != checksum(b.p))
    return malformed(err, "checksum", rd2h_le_get(b.p + 4, 4));
  if (b.p[1] != 4 && b.p[1] != 6)
    return malformed(err, "address family", b.p[1]);
  struct rd2h_tcp_conn c = {.v6 = b.p[1] == 6, .port = (uint16_t)rd2h_le_get(b.p + 2, 2)};
  if (!c.port)
    return malformed(err, "port", 0);
  if (!c.v6 && memcmp(b.p + 12, zero, sizeof zero))
    return malformed(err, "address of family", 4);
  memcpy(c.addr, b.p + 8, sizeof c.addr);
  memcpy(c.token, b.p + 24, TCP_TOKEN);
  if (nobodys(&c))
    return malformed(err, "an address that no host has, of family", b.p[1]);
  *out = c;
  return RD2H_OK;
}

void rd2h_tcp_hello_encode(const uint8_t token[TCP_TOKEN], uint8_t out[TCP_HELLO]) {
  memcpy(out, hello_mark, sizeof hello_mark);
  rd2h_le_put(out + 8, VERSION, 4);
  rd2h_le_put(out + 12, 0, 4);
  memcpy(out + 16, token, TCP_TOKEN);
}

/* The token is compared in constant time: how long it takes tells nothing about it. */
int rd2h_tcp_hello_check(const uint8_t in[TCP_HELLO], const uint8_t token[TCP_TOKEN]) {
  uint8_t differs = 0;
  for (uint32_t i = 0; i < TCP_TOKEN; i++)
    differs |= in[16 + i] ^ token[i];
  if (memcmp(in, hello_mark, sizeof hello_mark) || rd2h_le_get(in + 12, 4))
    return RD2H_MALFORMED;
  if (rd2h_le_get(in + 8, 4) != VERSION)
    return RD2H_UNSUPPORTED;
  return differs ? RD2H_PERMISSION : RD2H_OK;
}

void rd2h_tcp_request_encode(const struct tcp_request *r, uint8_t out[TCP_HEAD]) {
  rd2h_le_put(out, REQUEST_MARK, 4);
  rd2h_le_put(out + 4, r->seq, 4);
  rd2h_le_put(out + 8, r->n, 4);
  rd2h_le_put(out + 12, 0, 4);
  rd2h_le_put(out + 16, r->bytes, 8);
}

int rd2h_tcp_request_decode(const uint8_t in[TCP_HEAD], struct tcp_request *out) {
  struct tcp_request r = {(uint32_t)rd2h_le_get(in + 4, 4), (uint32_t)rd2h_le_get(in + 8, 4), rd2h_le_get(in + 16, 8)};
  if (rd2h_le_get(in, 4) != REQUEST_MARK || rd2h_le_get(in + 12, 4) || !r.n || r.n > TCP_DESC_MAX ||
      r.bytes < r.n || r.bytes > TCP_PIECE_MAX)
    return RD2H_MALFORMED;
  *out = r;
  return RD2H_OK;
}

void rd2h_tcp_desc_encode(const struct tcp_desc *d, uint8_t out[TCP_DESC]) {
  rd2h_le_put(out, d->addr, 8);
  rd2h_le_put(out + 8, d->len, 4);
  rd2h_le_put(out + 12, d->region, 4);
}

struct tcp_desc rd2h_tcp_desc_decode(const uint8_t in[TCP_DESC]) {
  return (struct tcp_desc){rd2h_le_get(in, 8), (uint32_t)rd2h_le_get(in + 8, 4), (uint32_t)rd2h_le_get(in + 12, 4)};
}

void rd2h_tcp_reply_encode(const struct tcp_reply *r, uint8_t out[TCP_REPLY]) {
  memset(out, 0, TCP_REPLY);
  rd2h_le_put(out, r->kind, 4);
  rd2h_le_put(out + 4, r->seq, 4);
  rd2h_le_put(out + 8, (uint32_t)-r->status, 4);
  rd2h_le_put(out + 12, r->at, 4);
}

int rd2h_tcp_reply_decode(const uint8_t in[TCP_REPLY], struct tcp_reply *out) {
  static const uint8_t zero[TCP_REPLY - REPLY_USED];
  uint32_t kind = (uint32_t)rd2h_le_get(in, 4), minus = (uint32_t)rd2h_le_get(in + 8, 4);
  if ((kind != TCP_REPLY_HEAD && kind != TCP_REPLY_TAIL && kind != TCP_REPLY_REFUSED) || minus > (uint32_t)-RD2H_INTERNAL ||
      memcmp(in + REPLY_USED, zero, sizeof zero))
    return RD2H_MALFORMED;
  *out = (struct tcp_reply){kind, (uint32_t)rd2h_le_get(in + 4, 4), -(int)minus, (uint32_t)rd2h_le_get(in + 12, 4)};
  return RD2H_OK;
}
