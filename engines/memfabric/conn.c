/* SPDX-License-Identifier: Apache-2.0 */
/* Connection data. Offsets in bytes, integers little-endian:
 * 0 schema (1) | 1 length of the session s | 2 zero (2) | 4 operation of the library (4) | 8 ranges n (4) | 12 checksum of all but
 * itself (4) | 16 pattern (8), 0: none | 24 its seed (8) | 32 session (s) | 32 + s ranges: base (8), length (8), ascending and apart */
#include "base/le.h"
#include "engines/memfabric/memfabric.h"

#define SCHEMA 2u
#define FIXED 32u
#define RANGE 16u
#define SUM_AT 12u

uint32_t rd2h_mf_conn_bytes(const struct mf_conn *c) {
  return FIXED + (uint32_t)strlen(c->id) + c->n * RANGE;
}

void rd2h_mf_conn_encode(const struct mf_conn *c, uint8_t *out) {
  uint32_t id = (uint32_t)strlen(c->id);
  rd2h_le_put(out, SCHEMA | id << 8, 4);
  rd2h_le_put(out + 4, (uint32_t)c->op, 4);
  rd2h_le_put(out + 8, c->n, 4);
  rd2h_le_put(out + 16, c->pattern, 8);
  rd2h_le_put(out + 24, c->seed, 8);
  memcpy(out + FIXED, c->id, id);
  for (uint32_t i = 0; i < c->n; i++) {
    rd2h_le_put(out + FIXED + id + i * RANGE, c->range[i].base, 8);
    rd2h_le_put(out + FIXED + id + i * RANGE + 8, c->range[i].len, 8);
  }
  rd2h_le_put(out + SUM_AT, rd2h_sum_but(out, rd2h_mf_conn_bytes(c), SUM_AT), 4);
}

static int malformed(struct rd2h_error *err, const char *what, uint64_t value) {
  return rd2h_fail(err, RD2H_MALFORMED, "engine memfabric: the peer's connection data is damaged: %s %llu", what,
                   (unsigned long long)value);
}

static int decode_ranges(const uint8_t *p, struct mf_conn *c, struct rd2h_error *err) {
  uint64_t end = 0;
  for (uint32_t i = 0; i < c->n; i++, p += RANGE) {
    struct mf_range r = {rd2h_le_get(p, 8), rd2h_le_get(p + 8, 8)};
    if (!r.base || !r.len || r.base + r.len < r.base || (i && r.base <= end))
      return malformed(err, "range", i);
    end = r.base + r.len;
    c->range[i] = r;
  }
  return RD2H_OK;
}

int rd2h_mf_conn_decode(struct rd2h_blob b, struct mf_conn *out, struct rd2h_error *err) {
  if (!b.len)
    return malformed(err, "length", b.len);
  if (b.p[0] != SCHEMA)
    return rd2h_fail(err, RD2H_UNSUPPORTED, "engine memfabric: the peer's connection data has schema %u, this version reads %u: run "
                     "the same version of rd2h on both sides", b.p[0], SCHEMA);
  if (b.len < FIXED)
    return malformed(err, "length", b.len);
  uint64_t n = rd2h_le_get(b.p + 8, 4), id = b.p[1];
  if (n > MF_AREAS_MAX || b.len != FIXED + id + n * RANGE)
    return malformed(err, "length", b.len);
  if (rd2h_le_get(b.p + SUM_AT, 4) != rd2h_sum_but(b.p, b.len, SUM_AT) || rd2h_le_get(b.p + 2, 2))
    return malformed(err, "checksum", rd2h_le_get(b.p + SUM_AT, 4));
  if (!rd2h_mf_session_ok(b.p + FIXED, id))
    return malformed(err, "session of length", id);
  struct mf_conn c = {.op = (int32_t)rd2h_le_get(b.p + 4, 4), .n = (uint32_t)n, .pattern = rd2h_le_get(b.p + 16, 8),
                      .seed = rd2h_le_get(b.p + 24, 8)};
  if (c.pattern > UINT64_MAX - RD2H_PATTERN)
    return malformed(err, "pattern", c.pattern);
  memcpy(c.id, b.p + FIXED, id);
  if (!(c.range = rd2h_alloc((n + 1) * sizeof *c.range)))
    return rd2h_nomem(err, "connection data");
  int rc = decode_ranges(b.p + FIXED + id, &c, err);
  if (rc)
    rd2h_free(c.range);
  else
    *out = c;
  return rc;
}
