/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes that belong to somebody else (span), bytes of our own that grow (buf). */
#ifndef RD2H_PROXY_TEXT_H
#define RD2H_PROXY_TEXT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct px_span {
  const char *p;
  size_t n;
};

/* failed: memory ran out or the limit was passed; all later additions are ignored, so one look at the end suffices. */
struct px_buf {
  char *p;
  size_t n, room;
  bool failed;
};

#define PX_LIT(s) ((struct px_span){s, sizeof(s) - 1})

static inline struct px_span px_str(const char *s) {
  return (struct px_span){s, s ? strlen(s) : 0};
}

static inline struct px_span px_of(const struct px_buf *b) {
  return (struct px_span){b->p, b->n};
}

static inline bool px_equal(struct px_span a, struct px_span b) {
  return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0);
}

void rd2h_px_put(struct px_buf *b, struct px_span s);
void rd2h_px_puts(struct px_buf *b, const char *s);
void rd2h_px_printf(struct px_buf *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The text as a JSON string with its quotes; bytes that are no UTF-8 become U+FFFD. */
void rd2h_px_put_json(struct px_buf *b, struct px_span s);
/* The same for a place inside quotes that are there already. */
void rd2h_px_put_json_inner(struct px_buf *b, struct px_span s);
/* Keeps the memory. */
void rd2h_px_clear(struct px_buf *b);
void rd2h_px_free(struct px_buf *b);
/* Takes the first n bytes away. */
void rd2h_px_shift(struct px_buf *b, size_t n);
bool rd2h_px_equal_nocase(struct px_span a, struct px_span b);
/* Digits only, no sign, at most max; false otherwise. */
bool rd2h_px_uint(struct px_span s, uint64_t max, uint64_t *out);
/* Length of the UTF-8 character at p (1 to 4), 0 when it is none or is cut off. */
size_t rd2h_px_utf8(const char *p, const char *end);
/* Comparison whose time does not tell where the texts differ. */
bool rd2h_px_same_secret(struct px_span a, struct px_span b);
#endif
