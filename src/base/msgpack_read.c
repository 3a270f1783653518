/* SPDX-License-Identifier: Apache-2.0 */
#include "base/msgpack.h"

/* How a value with this first byte is laid out: `wide` bytes of big-endian payload follow it: the value of a number or the length
 * of the rest. `head`: bytes after that which belong to the value whatever its length (the type byte of an ext). */
struct form {
  uint8_t type, wide, head;
  bool sign;
};
static const struct form forms[32] = { /* 0xc0 … 0xdf */
  [0x00] = {RD2H_MP_NIL, 0, 0, false},  [0x02] = {RD2H_MP_BOOL, 0, 0, false}, [0x03] = {RD2H_MP_BOOL, 0, 0, false},
  [0x04] = {RD2H_MP_BIN, 1, 0, false},  [0x05] = {RD2H_MP_BIN, 2, 0, false},  [0x06] = {RD2H_MP_BIN, 4, 0, false},
  [0x07] = {RD2H_MP_EXT, 1, 1, false},  [0x08] = {RD2H_MP_EXT, 2, 1, false},  [0x09] = {RD2H_MP_EXT, 4, 1, false},
  [0x0a] = {RD2H_MP_FLOAT, 4, 0, false}, [0x0b] = {RD2H_MP_FLOAT, 8, 0, false},
  [0x0c] = {RD2H_MP_INT, 1, 0, false},  [0x0d] = {RD2H_MP_INT, 2, 0, false},  [0x0e] = {RD2H_MP_INT, 4, 0, false},
  [0x0f] = {RD2H_MP_INT, 8, 0, false},  [0x10] = {RD2H_MP_INT, 1, 0, true},   [0x11] = {RD2H_MP_INT, 2, 0, true},
  [0x12] = {RD2H_MP_INT, 4, 0, true},   [0x13] = {RD2H_MP_INT, 8, 0, true},
  [0x14] = {RD2H_MP_EXT, 0, 2, false},  [0x15] = {RD2H_MP_EXT, 0, 3, false},  [0x16] = {RD2H_MP_EXT, 0, 5, false},
  [0x17] = {RD2H_MP_EXT, 0, 9, false},  [0x18] = {RD2H_MP_EXT, 0, 17, false},
  [0x19] = {RD2H_MP_STR, 1, 0, false},  [0x1a] = {RD2H_MP_STR, 2, 0, false},  [0x1b] = {RD2H_MP_STR, 4, 0, false},
  [0x1c] = {RD2H_MP_ARRAY, 2, 0, false}, [0x1d] = {RD2H_MP_ARRAY, 4, 0, false},
  [0x1e] = {RD2H_MP_MAP, 2, 0, false},  [0x1f] = {RD2H_MP_MAP, 4, 0, false},
};

/* One value's head, decoded. */
struct head {
  enum rd2h_mp_type type;
  bool negative;
  uint64_t v;      /* number (two's complement when negative), or length, or count */
  const uint8_t *p; /* behind the head */
};

static uint64_t load_be(const uint8_t *p, unsigned wide) {
  uint64_t v = 0;
  for (unsigned i = 0; i < wide; i++)
    v = v << 8 | p[i];
  return v;
}

static struct head fix_head(uint8_t b, const uint8_t *p) {
  if (b < 0x80)
    return (struct head){RD2H_MP_INT, false, b, p};
  if (b < 0x90)
    return (struct head){RD2H_MP_MAP, false, b & 0x0f, p};
  if (b < 0xa0)
    return (struct head){RD2H_MP_ARRAY, false, b & 0x0f, p};
  if (b < 0xc0)
    return (struct head){RD2H_MP_STR, false, b & 0x1f, p};
  return (struct head){RD2H_MP_INT, true, (uint64_t)(int64_t)(int8_t)b, p};
}

/* type NONE: nothing there, cut off, or no msgpack. */
static struct head take_head(const struct rd2h_mp *r) {
  const struct head none = {RD2H_MP_NONE, false, 0, r->p};
  if (r->p >= r->end)
    return none;
  uint8_t b = *r->p;
  if (b < 0xc0 || b >= 0xe0)
    return fix_head(b, r->p + 1);
  const struct form *f = &forms[b - 0xc0];
  if ((size_t)(r->end - r->p - 1) < f->wide)
    return none;
  struct head h = {f->type, false, load_be(r->p + 1, f->wide), r->p + 1 + f->wide};
  if (f->sign && f->wide < 8)
    h.v = (uint64_t)((int64_t)(h.v << (64 - 8 * f->wide)) >> (64 - 8 * f->wide));
  h.negative = f->sign && (int64_t)h.v < 0;
  if (f->type == RD2H_MP_EXT)
    h.v += f->head;
  else if (f->type == RD2H_MP_BOOL)
    h.v = b == 0xc3;
  return h;
}

enum rd2h_mp_type rd2h_mp_peek(const struct rd2h_mp *r) {
  if (r->p >= r->end)
    return RD2H_MP_NONE;
  uint8_t b = *r->p;
  return b < 0xc0 || b >= 0xe0 ? fix_head(b, r->p).type : (enum rd2h_mp_type)forms[b - 0xc0].type;
}

const char *rd2h_mp_found(const struct rd2h_mp *r) {
  static const char *const words[] = {"", "nil", "a bool", "an integer", "a float", "a string", "bytes", "an array", "a map",
                                      "an extension value"};
  struct rd2h_mp copy = *r;
  if (r->p >= r->end)
    return "the end of the data";
  return rd2h_mp_skip(&copy) ? words[rd2h_mp_peek(r)] : "data that is broken or cut off";
}

bool rd2h_mp_uint(struct rd2h_mp *r, uint64_t *v) {
  struct head h = take_head(r);
  if (h.type != RD2H_MP_INT || h.negative)
    return false;
  r->p = h.p;
  *v = h.v;
  return true;
}

bool rd2h_mp_uint_max(struct rd2h_mp *r, uint64_t max, uint32_t *v) {
  struct head h = take_head(r);
  if (h.type != RD2H_MP_INT || h.negative || h.v > max)
    return false;
  r->p = h.p;
  *v = (uint32_t)h.v;
  return true;
}

bool rd2h_mp_int(struct rd2h_mp *r, int64_t *v) {
  struct head h = take_head(r);
  if (h.type != RD2H_MP_INT || (!h.negative && h.v > INT64_MAX))
    return false;
  r->p = h.p;
  *v = (int64_t)h.v;
  return true;
}

bool rd2h_mp_bool(struct rd2h_mp *r, bool *v) {
  struct head h = take_head(r);
  if (h.type != RD2H_MP_BOOL)
    return false;
  r->p = h.p;
  *v = h.v;
  return true;
}

bool rd2h_mp_nil(struct rd2h_mp *r) {
  if (rd2h_mp_peek(r) != RD2H_MP_NIL)
    return false;
  r->p++;
  return true;
}

static bool take_bytes(struct rd2h_mp *r, enum rd2h_mp_type type, struct rd2h_str *s) {
  struct head h = take_head(r);
  if (h.type != type || h.v > (uint64_t)(r->end - h.p))
    return false;
  *s = (struct rd2h_str){(const char *)h.p, (uint32_t)h.v};
  r->p = h.p + h.v;
  return true;
}

bool rd2h_mp_str(struct rd2h_mp *r, struct rd2h_str *s) {
  struct rd2h_mp at = *r;
  struct rd2h_str got;
  if (!take_bytes(&at, RD2H_MP_STR, &got) || rd2h_utf8_prefix(got.p, got.n) != got.n)
    return false;
  *r = at;
  *s = got;
  return true;
}

bool rd2h_mp_bin(struct rd2h_mp *r, struct rd2h_str *s) {
  return take_bytes(r, RD2H_MP_BIN, s);
}

static bool take_count(struct rd2h_mp *r, enum rd2h_mp_type type, unsigned bytes_each, uint32_t *n) {
  struct head h = take_head(r);
  if (h.type != type || h.v * bytes_each > (uint64_t)(r->end - h.p))
    return false;
  r->p = h.p;
  *n = (uint32_t)h.v;
  return true;
}

bool rd2h_mp_array(struct rd2h_mp *r, uint32_t *n) {
  return take_count(r, RD2H_MP_ARRAY, 1, n);
}

bool rd2h_mp_map(struct rd2h_mp *r, uint32_t *pairs) {
  return take_count(r, RD2H_MP_MAP, 2, pairs);
}

bool rd2h_mp_skip(struct rd2h_mp *r) {
  struct rd2h_mp at = *r;
  for (uint64_t todo = 1; todo; todo--) {
    struct head h = take_head(&at);
    uint64_t left = (uint64_t)(at.end - h.p);
    at.p = h.p;
    switch (h.type) {
    case RD2H_MP_NONE:
      return false;
    case RD2H_MP_STR: case RD2H_MP_BIN: case RD2H_MP_EXT:
      if (h.v > left)
        return false;
      at.p += h.v;
      break;
    case RD2H_MP_ARRAY: case RD2H_MP_MAP:
      todo += h.type == RD2H_MP_MAP ? 2 * h.v : h.v;
      if (todo - 1 > left) /* each takes a byte at least */
        return false;
      break;
    default: /* numbers, bool and nil are their head */
      break;
    }
  }
  *r = at;
  return true;
}

static inline uint32_t load16(const uint8_t *p) {
  uint16_t v;
  memcpy(&v, p, 2);
  return __builtin_bswap16(v);
}

static inline uint32_t load32(const uint8_t *p) {
  uint32_t v;
  memcpy(&v, p, 4);
  return __builtin_bswap32(v);
}

/* At most n integers of the four usual forms; stops at another form. The caller has checked that 5 bytes each are there. Returns
 * how many; *bits collects all bits seen. Fast where most are of one form: every branch is foreseen then. */
static uint32_t ids_even(const uint8_t **at, uint32_t *out, uint32_t n, uint32_t *bits) {
  const uint8_t *p = *at;
  uint32_t i = 0, seen = 0;
  for (; i < n; i++) {
    uint32_t b = *p, v;
    if (b == 0xcd) {
      v = load16(p + 1);
      p += 3;
    } else if (b < 0x80) {
      v = b;
      p += 1;
    } else if (b == 0xcc) {
      v = p[1];
      p += 2;
    } else if (b == 0xce) {
      v = load32(p + 1);
      p += 5;
    } else {
      break;
    }
    seen |= v;
    out[i] = v;
  }
  *at = p;
  *bits |= seen;
  return i;
}

/* The same without a branch on the width, for lists whose widths are mixed: slower than branches that are foreseen, faster than
 * those that are not. */
static uint32_t ids_mixed(const uint8_t **at, uint32_t *out, uint32_t n, uint32_t *bits) {
  const uint8_t *p = *at;
  uint32_t i = 0, seen = 0;
  for (; i < n; i++) {
    uint32_t b = *p, v = b, wide = 1u << (b & 3); /* 0xcc … 0xce: 1, 2, 4 bytes follow */
    if (b < 0x80) {
      p += 1;
    } else if (b - 0xcc <= 2) {
      v = load32(p + 1) >> (32 - 8 * wide);
      p += 1 + wide;
    } else {
      break;
    }
    seen |= v;
    out[i] = v;
  }
  *at = p;
  *bits |= seen;
  return i;
}

#define IDS_STEP 64u /* so many ids are read in one way, then their length tells which way suits the next */

/* Whether fewer than about four of five are of one form. */
static bool look_mixed(size_t bytes) {
  static const uint8_t form_bytes[] = {1, 2, 3, 5};
  for (size_t i = 0; i < RD2H_COUNT(form_bytes); i++)
    if (bytes + IDS_STEP / 4 - form_bytes[i] * IDS_STEP <= IDS_STEP / 2)
      return false;
  return true;
}

bool rd2h_mp_ids(struct rd2h_mp *r, uint32_t *out, uint32_t n, bool *in_range) {
  uint32_t bits = 0, i = 0;
  bool mixed = false;
  while (i < n) {
    const uint8_t *before = r->p;
    size_t safe = (size_t)(r->end - before) / 5;
    uint32_t want = n - i < IDS_STEP ? n - i : IDS_STEP;
    want = safe < want ? (uint32_t)safe : want;
    uint32_t got = (mixed ? ids_mixed : ids_even)(&r->p, out + i, want, &bits);
    i += got;
    if (got == IDS_STEP)
      mixed = look_mixed((size_t)(r->p - before));
    if (i == n || (got == want && want))
      continue;
    struct head h = take_head(r); /* the last few bytes, or an unusual form */
    if (h.type != RD2H_MP_INT)
      return false;
    bits |= h.v > INT32_MAX ? UINT32_MAX : (uint32_t)h.v;
    out[i++] = (uint32_t)h.v;
    r->p = h.p;
  }
  *in_range = bits <= INT32_MAX;
  return true;
}
