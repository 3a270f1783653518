/* SPDX-License-Identifier: Apache-2.0 */
#include "proxy/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static bool grow(struct px_buf *b, size_t more) {
  if (b->failed || more > SIZE_MAX / 4 - b->n) {
    b->failed = true;
    return false;
  }
  if (b->n + more <= b->room)
    return true;
  size_t room = b->room ? b->room * 2 : 256;
  while (room < b->n + more)
    room *= 2;
  char *p = realloc(b->p, room);
  if (!p) {
    b->failed = true;
    return false;
  }
  b->p = p;
  b->room = room;
  return true;
}

void rd2h_px_put(struct px_buf *b, struct px_span s) {
  if (s.n == 0 || !grow(b, s.n))
    return;
  memcpy(b->p + b->n, s.p, s.n);
  b->n += s.n;
}

void rd2h_px_puts(struct px_buf *b, const char *s) {
  rd2h_px_put(b, px_str(s));
}

void rd2h_px_printf(struct px_buf *b, const char *format, ...) {
  va_list args;
  va_start(args, format);
  int n = vsnprintf(NULL, 0, format, args);
  va_end(args);
  if (n < 0 || !grow(b, (size_t)n + 1)) {
    b->failed = true;
    return;
  }
  va_start(args, format);
  vsnprintf(b->p + b->n, (size_t)n + 1, format, args);
  va_end(args);
  b->n += (size_t)n;
}

void rd2h_px_clear(struct px_buf *b) {
  b->n = 0;
  b->failed = false;
}

void rd2h_px_free(struct px_buf *b) {
  free(b->p);
  *b = (struct px_buf){0};
}

void rd2h_px_shift(struct px_buf *b, size_t n) {
  if (n >= b->n) {
    b->n = 0;
    return;
  }
  memmove(b->p, b->p + n, b->n - n);
  b->n -= n;
}

static char lower(char c) {
  return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c;
}

bool rd2h_px_equal_nocase(struct px_span a, struct px_span b) {
  if (a.n != b.n)
    return false;
  for (size_t i = 0; i < a.n; i++)
    if (lower(a.p[i]) != lower(b.p[i]))
      return false;
  return true;
}

bool rd2h_px_uint(struct px_span s, uint64_t max, uint64_t *out) {
  uint64_t v = 0;
  if (s.n == 0 || s.n > 19)
    return false;
  for (size_t i = 0; i < s.n; i++) {
    if (s.p[i] < '0' || s.p[i] > '9')
      return false;
    v = v * 10 + (uint64_t)(s.p[i] - '0');
  }
  if (v > max)
    return false;
  *out = v;
  return true;
}

static bool tail(const char *p, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (((unsigned char)p[i] & 0xC0) != 0x80)
      return false;
  return true;
}

size_t rd2h_px_utf8(const char *p, const char *end) {
  if (p >= end)
    return 0;
  size_t left = (size_t)(end - p);
  unsigned char c = (unsigned char)p[0], d = left > 1 ? (unsigned char)p[1] : 0;
  if (c < 0x80)
    return 1;
  if (c >= 0xC2 && c <= 0xDF)
    return left >= 2 && tail(p + 1, 1) ? 2 : 0;
  /* Neither overlong forms nor surrogates, nothing past U+10FFFF. */
  if (c >= 0xE0 && c <= 0xEF)
    return left >= 3 && tail(p + 1, 2) && !(c == 0xE0 && d < 0xA0) && !(c == 0xED && d > 0x9F) ? 3 : 0;
  if (c >= 0xF0 && c <= 0xF4)
    return left >= 4 && tail(p + 1, 3) && !(c == 0xF0 && d < 0x90) && !(c == 0xF4 && d > 0x8F) ? 4 : 0;
  return 0;
}

static void put_char(struct px_buf *b, unsigned char c) {
  static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
  const char *at = c ? strchr(from, c) : NULL;
  if (at)
    rd2h_px_put(b, (struct px_span){(char[]){'\\', to[at - from]}, 2});
  else
    rd2h_px_printf(b, "\\u%04x", c);
}

void rd2h_px_put_json_inner(struct px_buf *b, struct px_span s) {
  const char *p = s.p, *end = s.p + s.n;
  while (p < end) {
    const char *run = p;
    size_t n = 1;
    while (p < end && (unsigned char)*p >= 0x20 && *p != '"' && *p != '\\' && (n = rd2h_px_utf8(p, end)) > 0)
      p += n;
    rd2h_px_put(b, (struct px_span){run, (size_t)(p - run)});
    if (p == end)
      break;
    if (n == 0)
      rd2h_px_puts(b, "\xEF\xBF\xBD");
    else
      put_char(b, (unsigned char)*p);
    p++;
  }
}

void rd2h_px_put_json(struct px_buf *b, struct px_span s) {
  rd2h_px_puts(b, "\"");
  rd2h_px_put_json_inner(b, s);
  rd2h_px_puts(b, "\"");
}

bool rd2h_px_same_secret(struct px_span a, struct px_span b) {
  unsigned char differ = a.n != b.n;
  for (size_t i = 0; i < a.n; i++)
    differ |= (unsigned char)(a.p[i] ^ (b.n ? b.p[i % b.n] : 1));
  return !differ;
}
