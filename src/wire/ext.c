/* SPDX-License-Identifier: Apache-2.0 */
/* The extension value: a map whose known keys each have a taker here. */
#include "wire/codec.h"

static int take_revision(struct rd2h_wire_in *in, struct rd2h_wire_ext *e) {
  RD2H_TRY(rd2h_wire_take_u32(in, "\"v\"", UINT32_MAX, &e->revision));
  if (!e->revision)
    return rd2h_fail(in->err, RD2H_MALFORMED, "%s: \"v\" is 0, revisions start at 1", in->msg);
  return RD2H_OK;
}

static int take_caps(struct rd2h_wire_in *in, struct rd2h_wire_ext *e) {
  return rd2h_wire_take_u32(in, "\"caps\"", UINT32_MAX, &e->caps);
}

static int take_incarnation(struct rd2h_wire_in *in, struct rd2h_wire_ext *e) {
  struct rd2h_mp copy = in->r;
  struct rd2h_str bin;
  if (!rd2h_mp_bin(&copy, &bin) || bin.n != sizeof e->incarnation)
    return rd2h_wire_expected(in, "\"inc\"", "16 bytes");
  memcpy(e->incarnation, bin.p, sizeof e->incarnation);
  in->r = copy;
  return RD2H_OK;
}

static int take_live(struct rd2h_wire_in *in, struct rd2h_wire_ext *e) {
  return rd2h_wire_take_u32(in, "\"live\"", UINT32_MAX, &e->live_ms);
}

/* An array of at least `known` fields; the caller takes those and skips the rest. */
static int take_tuple(struct rd2h_wire_in *in, const char *what, uint32_t known, uint32_t *further) {
  uint32_t n;
  RD2H_TRY(rd2h_wire_take_array(in, what, UINT32_MAX, 1, &n));
  if (n < known)
    return rd2h_fail(in->err, RD2H_MALFORMED, "%s: %s has %u fields, at least %u are needed", in->msg, what, n, known);
  *further = n - known;
  return RD2H_OK;
}

static int take_engines(struct rd2h_wire_in *in, struct rd2h_wire_ext *e) {
  RD2H_TRY(rd2h_wire_take_array(in, "\"eng\"", RD2H_WIRE_MAX_ENGINES, 3, &e->n_engines));
  for (uint32_t i = 0; i < e->n_engines; i++) {
    uint32_t further = 0;
    struct rd2h_str conn;
    RD2H_TRY(take_tuple(in, "an engine in \"eng\"", 2, &further));
    RD2H_TRY(rd2h_wire_take_str(in, "an engine's name", RD2H_WIRE_MAX_NAME, &e->engine[i].name));
    if (!rd2h_mp_bin(&in->r, &conn))
      return rd2h_wire_expected(in, "an engine's connection data", "bytes");
    e->engine[i].conn = (const uint8_t *)conn.p;
    e->engine[i].conn_len = conn.n;
    RD2H_TRY(rd2h_wire_skip(in, "an engine's further field", further));
  }
  return RD2H_OK;
}

static int take_region(struct rd2h_wire_in *in, struct rd2h_memory *m) {
  uint32_t further = 0;
  uint64_t end;
  RD2H_TRY(take_tuple(in, "a region in \"reg\"", 2, &further));
  if (!rd2h_mp_uint(&in->r, &m->base) || !rd2h_mp_uint(&in->r, &m->len))
    return rd2h_wire_expected(in, "a region's base or length", "an integer that is not negative");
  if (__builtin_add_overflow(m->base, m->len, &end))
    return rd2h_fail(in->err, RD2H_MALFORMED, "%s: region 0x%llx + 0x%llx bytes passes the end of the address space", in->msg,
                     (unsigned long long)m->base, (unsigned long long)m->len);
  return rd2h_wire_skip(in, "a region's further field", further);
}

static int take_regions(struct rd2h_wire_in *in, struct rd2h_wire_ext *e) {
  struct rd2h_memory *region = NULL;
  uint32_t n;
  RD2H_TRY(rd2h_wire_take_array(in, "\"reg\"", RD2H_WIRE_MAX_REGIONS, 3, &n));
  if (n && !(region = RD2H_ROOM(in, struct rd2h_memory, n)))
    return rd2h_wire_full(in);
  for (uint32_t i = 0; i < n; i++)
    RD2H_TRY(take_region(in, &region[i]));
  e->region = region;
  e->n_regions = n;
  return RD2H_OK;
}

static int take_blocks(struct rd2h_wire_in *in, struct rd2h_wire_ext *e) {
  uint32_t further = 0;
  RD2H_TRY(take_tuple(in, "\"nblk\"", 2, &further));
  for (int i = 0; i < 2; i++)
    RD2H_TRY(rd2h_wire_take_u32(in, "a block count in \"nblk\"", INT32_MAX, &e->blocks[i]));
  return rd2h_wire_skip(in, "a further field of \"nblk\"", further);
}

static int take_heads(struct rd2h_wire_in *in, struct rd2h_wire_ext *e) {
  uint32_t further = 0;
  RD2H_TRY(take_tuple(in, "\"heads\"", 3, &further));
  for (int i = 0; i < 3; i++)
    RD2H_TRY(rd2h_wire_take_u32(in, "a number in \"heads\"", INT32_MAX, &e->heads[i]));
  if (e->heads[2] && e->heads[0] + e->heads[1] > e->heads[2])
    return rd2h_fail(in->err, RD2H_MALFORMED, "%s: \"heads\" says %u heads from %u on of only %u", in->msg, e->heads[1],
                     e->heads[0], e->heads[2]);
  return rd2h_wire_skip(in, "a further field of \"heads\"", further);
}

static int take_fingerprint(struct rd2h_wire_in *in, struct rd2h_wire_ext *e) {
  return rd2h_wire_take_str(in, "\"fp\"", RD2H_WIRE_MAX_NAME, &e->fingerprint);
}

static const struct {
  const char *key;
  int (*take)(struct rd2h_wire_in *, struct rd2h_wire_ext *);
  bool required;
} keys[] = {
  {"v", take_revision, true},     {"caps", take_caps, false},   {"inc", take_incarnation, true}, {"live", take_live, false},
  {"eng", take_engines, false},   {"reg", take_regions, false}, {"nblk", take_blocks, false},    {"heads", take_heads, false},
  {"fp", take_fingerprint, false},
};

static int find_key(const struct rd2h_str *k) {
  for (size_t i = 0; i < RD2H_COUNT(keys); i++)
    if (k->n == strlen(keys[i].key) && !memcmp(k->p, keys[i].key, k->n))
      return (int)i;
  return -1;
}

static int take_map(struct rd2h_wire_in *in, struct rd2h_wire_ext *e) {
  uint32_t pairs, seen = 0;
  if (!rd2h_mp_map(&in->r, &pairs))
    return rd2h_wire_expected(in, "the value", "a map");
  for (; pairs; pairs--) {
    struct rd2h_str name;
    int i = -1;
    if (rd2h_mp_str(&in->r, &name))
      i = find_key(&name);
    else
      RD2H_TRY(rd2h_wire_skip(in, "a key", 1));
    if (i < 0) {
      RD2H_TRY(rd2h_wire_skip(in, "an unknown key's value", 1));
      continue;
    }
    if (seen & 1u << i)
      return rd2h_fail(in->err, RD2H_MALFORMED, "%s: key \"%s\" appears twice", in->msg, keys[i].key);
    seen |= 1u << i;
    RD2H_TRY(keys[i].take(in, e));
  }
  for (size_t i = 0; i < RD2H_COUNT(keys); i++)
    if (keys[i].required && !(seen & 1u << i))
      return rd2h_fail(in->err, RD2H_MALFORMED, "%s: key \"%s\" is missing", in->msg, keys[i].key);
  return rd2h_wire_close(in, 0);
}

static int take_content(struct rd2h_wire_in *in, struct rd2h_wire_ext *out) {
  struct rd2h_wire_ext e = {.present = true};
  in->msg = "rd2h extension";
  RD2H_TRY(take_map(in, &e));
  *out = e;
  return RD2H_OK;
}

int rd2h_wire_take_ext(struct rd2h_wire_in *in, struct rd2h_wire_ext *out) {
  struct rd2h_str bin;
  if (!rd2h_mp_bin(&in->r, &bin))
    return rd2h_wire_expected(in, "the rd2h extension", "bytes");
  if (bin.n > RD2H_WIRE_MAX_EXT)
    return rd2h_wire_over(in, "the length of the rd2h extension", bin.n, RD2H_WIRE_MAX_EXT);
  struct rd2h_wire_in inner = *in;
  inner.r = (struct rd2h_mp){(const uint8_t *)bin.p, (const uint8_t *)bin.p + bin.n};
  return take_content(&inner, out);
}

int rd2h_wire_decode_ext(const uint8_t *p, size_t n, struct rd2h_arena *arena, struct rd2h_wire_ext *out,
                         struct rd2h_error *err) {
  struct rd2h_wire_in in = {{p, p + n}, p, p + n, "rd2h extension", arena, err};
  if (n > RD2H_WIRE_MAX_EXT)
    return rd2h_wire_over(&in, "its length", n, RD2H_WIRE_MAX_EXT);
  return take_content(&in, out);
}

static void put_key(struct rd2h_buf *b, const char *key) {
  rd2h_mp_put_str(b, key, (uint32_t)strlen(key));
}

static void put_engines(struct rd2h_buf *b, const struct rd2h_wire_ext *e) {
  put_key(b, "eng");
  rd2h_mp_put_array(b, e->n_engines);
  for (uint32_t i = 0; i < e->n_engines; i++) {
    rd2h_mp_put_array(b, 2);
    rd2h_mp_put_str(b, e->engine[i].name.p, e->engine[i].name.n);
    rd2h_mp_put_bin(b, e->engine[i].conn, e->engine[i].conn_len);
  }
}

static void put_regions(struct rd2h_buf *b, const struct rd2h_wire_ext *e) {
  put_key(b, "reg");
  rd2h_mp_put_array(b, e->n_regions);
  for (uint32_t i = 0; i < e->n_regions; i++) {
    rd2h_mp_put_array(b, 2);
    rd2h_mp_put_uint(b, e->region[i].base);
    rd2h_mp_put_uint(b, e->region[i].len);
  }
}

static void put_numbers(struct rd2h_buf *b, const char *key, const uint32_t *v, uint32_t n) {
  put_key(b, key);
  rd2h_mp_put_ids(b, v, n);
}

void rd2h_wire_put_ext(struct rd2h_buf *b, const struct rd2h_wire_ext *e) {
  bool blocks = e->blocks[0] || e->blocks[1];
  size_t at = rd2h_mp_bin_begin(b);
  rd2h_mp_put_map(b, 3u + !!e->live_ms + !!e->n_engines + !!e->n_regions + blocks + !!e->heads[2] + !!e->fingerprint.n);
  put_key(b, "v");
  rd2h_mp_put_uint(b, e->revision);
  put_key(b, "caps");
  rd2h_mp_put_uint(b, e->caps);
  put_key(b, "inc");
  rd2h_mp_put_bin(b, e->incarnation, sizeof e->incarnation);
  if (e->live_ms) {
    put_key(b, "live");
    rd2h_mp_put_uint(b, e->live_ms);
  }
  if (e->n_engines)
    put_engines(b, e);
  if (e->n_regions)
    put_regions(b, e);
  if (blocks)
    put_numbers(b, "nblk", e->blocks, 2);
  if (e->heads[2])
    put_numbers(b, "heads", e->heads, 3);
  if (e->fingerprint.n) {
    put_key(b, "fp");
    rd2h_mp_put_str(b, e->fingerprint.p, e->fingerprint.n);
  }
  rd2h_mp_bin_end(b, at);
}
