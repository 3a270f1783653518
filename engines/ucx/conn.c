/* SPDX-License-Identifier: Apache-2.0 */
/* Connection data of engine ucx. Offsets in bytes, integers little-endian:
 * 0 schema (1) | 1 guarded: 0 or 1 (1) | 2 zero (2) | 4 pid (4) | 8 start time (8) | 16 boot id (16) | 32 pid namespace (8) |
 * 40 regions n (4) | 44 address length a (4) | 48 checksum (8) | 56 seed of the pattern (8) | 64 address (a) |
 * n + 1 times, the last of them the pattern: base (8), length (8), key length k (4), key (k)
 * Address and keys are UCX's own packings, whose readers in UCX trust their lengths: so the checksum (FNV-1a, of all bytes with the
 * checksum as zeros) is compared before UCX sees any of it. It finds damage; it proves no sender. */
#include "base/le.h"
#include "engines/ucx/ucx.h"

#define SCHEMA 2u
#define HEAD 64u
#define CHECKSUM_AT 48u
#define REGION_HEAD 20u
#define PID_LIMIT (1u << 22) /* the kernel's own upper bound of pids */

static uint64_t checksum(const uint8_t *p, uint32_t n) {
  uint64_t h = 0xcbf29ce484222325u;
  for (uint32_t i = 0; i < n; i++)
    h = (h ^ (i - CHECKSUM_AT < 8 ? 0 : p[i])) * 0x100000001b3u;
  return h;
}

void rd2h_ucx_conn_seal(uint8_t *p, uint32_t n) {
  if (n >= HEAD)
    rd2h_le_put(p + CHECKSUM_AT, checksum(p, n), 8);
}

uint32_t rd2h_ucx_conn_size(const struct ucx_conn *c) {
  uint64_t n = HEAD + (uint64_t)c->address_len + REGION_HEAD + c->pattern.key_len;
  for (uint32_t i = 0; i < c->n && n <= UCX_CONN_MAX; i++)
    n += REGION_HEAD + c->key[i].key_len;
  return n > UCX_CONN_MAX ? UCX_CONN_MAX + 1 : (uint32_t)n;
}

void rd2h_ucx_conn_encode(const struct ucx_conn *c, uint8_t *out) {
  uint8_t *p = out + HEAD + c->address_len;
  memset(out, 0, HEAD);
  out[0] = SCHEMA;
  out[1] = c->guarded;
  rd2h_le_put(out + 4, c->process.pid, 4);
  rd2h_le_put(out + 8, c->process.start, 8);
  memcpy(out + 16, c->process.boot_id, sizeof c->process.boot_id);
  rd2h_le_put(out + 32, c->process.pid_ns, 8);
  rd2h_le_put(out + 40, c->n, 4);
  rd2h_le_put(out + 44, c->address_len, 4);
  rd2h_le_put(out + 56, c->seed, 8);
  memcpy(out + HEAD, c->address, c->address_len);
  for (uint32_t i = 0; i <= c->n; i++) {
    const struct ucx_key *k = i < c->n ? &c->key[i] : &c->pattern;
    rd2h_le_put(p, k->base, 8);
    rd2h_le_put(p + 8, k->len, 8);
    rd2h_le_put(p + 16, k->key_len, 4);
    if (k->key_len)
      memcpy(p + REGION_HEAD, k->key, k->key_len);
    p += REGION_HEAD + k->key_len;
  }
  rd2h_ucx_conn_seal(out, (uint32_t)(p - out));
}

static int malformed(struct rd2h_error *err, const char *what, uint64_t value) {
  return rd2h_fail(err, RD2H_MALFORMED, "engine ucx: the peer's connection data is damaged: %s %llu", what,
                   (unsigned long long)value);
}

static int decode_head(struct rd2h_blob b, struct ucx_conn *c, struct rd2h_error *err) {
  if (!b.len || b.len > UCX_CONN_MAX)
    return malformed(err, "length", b.len);
  if (b.p[0] != SCHEMA)
    return rd2h_fail(err, RD2H_UNSUPPORTED, "engine ucx: the peer's connection data has schema %u, this version reads %u: run "
                     "the same version of rd2h on both sides", b.p[0], SCHEMA);
  if (b.len < HEAD)
    return malformed(err, "length", b.len);
  if (rd2h_le_get(b.p + CHECKSUM_AT, 8) != checksum(b.p, b.len))
    return malformed(err, "its checksum is not", rd2h_le_get(b.p + CHECKSUM_AT, 8));
  *c = (struct ucx_conn){.process = {.pid = (uint32_t)rd2h_le_get(b.p + 4, 4), .start = rd2h_le_get(b.p + 8, 8),
                                      .pid_ns = rd2h_le_get(b.p + 32, 8)},
                         .address = b.p + HEAD, .n = (uint32_t)rd2h_le_get(b.p + 40, 4),
                         .address_len = (uint32_t)rd2h_le_get(b.p + 44, 4),
                         .seed = rd2h_le_get(b.p + 56, 8)};
  memcpy(c->process.boot_id, b.p + 16, sizeof c->process.boot_id);
  if (rd2h_le_get(b.p + 1, 3) > 1)
    return malformed(err, "reserved bytes", rd2h_le_get(b.p + 1, 3));
  c->guarded = b.p[1];
  if (!c->process.pid || c->process.pid > PID_LIMIT)
    return malformed(err, "pid", c->process.pid);
  if (c->n > UCX_REGIONS_MAX)
    return malformed(err, "number of regions", c->n);
  if (!c->address_len || c->address_len > UCX_ADDRESS_MAX || c->address_len > b.len - HEAD)
    return malformed(err, "length of the address", c->address_len);
  return RD2H_OK;
}

static int decode_keys(struct rd2h_blob b, struct ucx_conn *c, struct rd2h_error *err) {
  const uint8_t *p = c->address + c->address_len, *end = b.p + b.len;
  for (uint32_t i = 0; i <= c->n; i++) {
    struct ucx_key *k = i < c->n ? &c->key[i] : &c->pattern;
    uint64_t past;
    if (end - p < (ptrdiff_t)REGION_HEAD)
      return malformed(err, "bytes of region", i);
    *k = (struct ucx_key){.base = rd2h_le_get(p, 8), .len = rd2h_le_get(p + 8, 8), .key_len = (uint32_t)rd2h_le_get(p + 16, 4),
                          .key = p + REGION_HEAD};
    p += REGION_HEAD;
    if (__builtin_add_overflow(k->base, k->len, &past) || !k->len != !k->key_len)
      return malformed(err, "bounds of region", i);
    if (k->key_len > UCX_KEY_MAX || k->key_len > (uint64_t)(end - p))
      return malformed(err, "length of a key", k->key_len);
    p += k->key_len;
  }
  if (c->pattern.len != RD2H_PATTERN)
    return malformed(err, "length of the pattern", c->pattern.len);
  return p == end ? RD2H_OK : malformed(err, "bytes behind its end:", (uint64_t)(end - p));
}

int rd2h_ucx_conn_decode(struct rd2h_blob b, struct ucx_conn *out, struct rd2h_error *err) {
  struct ucx_conn c;
  int rc = decode_head(b, &c, err);
  if (rc)
    return rc;
  c.key = rd2h_calloc(c.n + 1, sizeof *c.key);
  if (!c.key)
    return rd2h_nomem(err, "connection data");
  rc = decode_keys(b, &c, err);
  if (rc) {
    rd2h_free(c.key);
    return rc;
  }
  *out = c;
  return RD2H_OK;
}
