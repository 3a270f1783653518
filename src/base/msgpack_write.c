/* SPDX-License-Identifier: Apache-2.0 */
#include "base/msgpack.h"

static uint8_t *store_be(uint8_t *p, uint64_t v, unsigned wide) {
  for (unsigned i = 0; i < wide; i++)
    p[i] = (uint8_t)(v >> (8 * (wide - 1 - i)));
  return p + wide;
}

static void put_wide(struct rd2h_buf *b, uint8_t first, uint64_t v, unsigned wide) {
  uint8_t bytes[9] = {first};
  store_be(bytes + 1, v, wide);
  rd2h_buf_put(b, bytes, 1 + wide);
}

void rd2h_mp_put_nil(struct rd2h_buf *b) {
  put_wide(b, 0xc0, 0, 0);
}

void rd2h_mp_put_bool(struct rd2h_buf *b, bool v) {
  put_wide(b, v ? 0xc3 : 0xc2, 0, 0);
}

void rd2h_mp_put_uint(struct rd2h_buf *b, uint64_t v) {
  if (v < 0x80)
    put_wide(b, (uint8_t)v, 0, 0);
  else if (v <= UINT8_MAX)
    put_wide(b, 0xcc, v, 1);
  else if (v <= UINT16_MAX)
    put_wide(b, 0xcd, v, 2);
  else if (v <= UINT32_MAX)
    put_wide(b, 0xce, v, 4);
  else
    put_wide(b, 0xcf, v, 8);
}

void rd2h_mp_put_int(struct rd2h_buf *b, int64_t v) {
  if (v >= 0)
    rd2h_mp_put_uint(b, (uint64_t)v);
  else if (v >= -32)
    put_wide(b, (uint8_t)v, 0, 0);
  else if (v >= INT8_MIN)
    put_wide(b, 0xd0, (uint64_t)v, 1);
  else if (v >= INT16_MIN)
    put_wide(b, 0xd1, (uint64_t)v, 2);
  else if (v >= INT32_MIN)
    put_wide(b, 0xd2, (uint64_t)v, 4);
  else
    put_wide(b, 0xd3, (uint64_t)v, 8);
}

void rd2h_mp_put_str(struct rd2h_buf *b, const char *s, uint32_t n) {
  if (n < 32)
    put_wide(b, (uint8_t)(0xa0 | n), 0, 0);
  else if (n <= UINT8_MAX)
    put_wide(b, 0xd9, n, 1);
  else if (n <= UINT16_MAX)
    put_wide(b, 0xda, n, 2);
  else
    put_wide(b, 0xdb, n, 4);
  rd2h_buf_put(b, s, n);
}

static void put_bin_head(struct rd2h_buf *b, uint32_t n) {
  if (n <= UINT8_MAX)
    put_wide(b, 0xc4, n, 1);
  else if (n <= UINT16_MAX)
    put_wide(b, 0xc5, n, 2);
  else
    put_wide(b, 0xc6, n, 4);
}

void rd2h_mp_put_bin(struct rd2h_buf *b, const void *p, uint32_t n) {
  put_bin_head(b, n);
  rd2h_buf_put(b, p, n);
}

void rd2h_mp_put_array(struct rd2h_buf *b, uint32_t n) {
  if (n < 16)
    put_wide(b, (uint8_t)(0x90 | n), 0, 0);
  else if (n <= UINT16_MAX)
    put_wide(b, 0xdc, n, 2);
  else
    put_wide(b, 0xdd, n, 4);
}

void rd2h_mp_put_map(struct rd2h_buf *b, uint32_t pairs) {
  if (pairs < 16)
    put_wide(b, (uint8_t)(0x80 | pairs), 0, 0);
  else if (pairs <= UINT16_MAX)
    put_wide(b, 0xde, pairs, 2);
  else
    put_wide(b, 0xdf, pairs, 4);
}

void rd2h_mp_put_ids(struct rd2h_buf *b, const uint32_t *id, uint32_t n) {
  rd2h_mp_put_array(b, n);
  if (!n || !rd2h_buf_room(b, (size_t)n * 5))
    return;
  uint8_t *p = b->p + b->len;
  for (uint32_t i = 0; i < n; i++) {
    uint32_t v = id[i];
    if (v < 0x80) {
      *p++ = (uint8_t)v;
    } else if (v <= UINT8_MAX) {
      *p++ = 0xcc;
      *p++ = (uint8_t)v;
    } else if (v <= UINT16_MAX) {
      *p++ = 0xcd;
      p = store_be(p, v, 2);
    } else {
      *p++ = 0xce;
      p = store_be(p, v, 4);
    }
  }
  b->len = (size_t)(p - b->p);
}

#define BIN_HEAD_MAX 5u

size_t rd2h_mp_bin_begin(struct rd2h_buf *b) {
  size_t at = b->len;
  rd2h_buf_put(b, (const uint8_t[BIN_HEAD_MAX]){0}, BIN_HEAD_MAX);
  return at;
}

void rd2h_mp_bin_end(struct rd2h_buf *b, size_t at) {
  if (b->failed)
    return;
  size_t n = b->len - at - BIN_HEAD_MAX;
  if (n > UINT32_MAX) {
    b->failed = true;
    return;
  }
  b->len = at;
  put_bin_head(b, (uint32_t)n); /* fits where the widest head was kept free */
  memmove(b->p + b->len, b->p + at + BIN_HEAD_MAX, n);
  b->len += n;
}

/* Bytes of the well-formed character at p, 0 when there is none (overlong, surrogate, above U+10FFFF, cut off). */
static size_t utf8_char(const uint8_t *p, size_t left) {
  uint8_t lo = 0x80, hi = 0xbf;
  size_t n = p[0] < 0x80 ? 1 : p[0] < 0xc2 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : p[0] < 0xf5 ? 4 : 0;
  if (!n || n > left)
    return 0;
  if (p[0] == 0xe0)
    lo = 0xa0;
  else if (p[0] == 0xed)
    hi = 0x9f;
  else if (p[0] == 0xf0)
    lo = 0x90;
  else if (p[0] == 0xf4)
    hi = 0x8f;
  for (size_t i = 1; i < n; i++, lo = 0x80, hi = 0xbf)
    if (p[i] < lo || p[i] > hi)
      return 0;
  return n;
}

size_t rd2h_utf8_prefix(const char *s, size_t n) {
  const uint8_t *p = (const uint8_t *)s;
  size_t i = 0, step;
  for (; n - i >= 8; i += 8) {
    uint64_t word;
    memcpy(&word, p + i, 8);
    if (word & UINT64_C(0x8080808080808080))
      break;
  }
  for (; i < n && (step = utf8_char(p + i, n - i)); i += step)
    ;
  return i;
}
