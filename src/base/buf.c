/* SPDX-License-Identifier: Apache-2.0 */
/* Arena and growable buffer. */
#include "base/base.h"
#include "base/text.h"
#include <stdio.h>

#define ARENA_ALIGN 16u
#define BUF_MIN 256u

int rd2h_arena_reserve(struct rd2h_arena *a, size_t cap) {
  if (a->used)
    return RD2H_STATE;
  if (cap <= a->cap)
    return RD2H_OK;
  uint8_t *p = rd2h_alloc(cap);
  if (!p)
    return RD2H_NOMEM;
  rd2h_free(a->p);
  a->p = p;
  a->cap = cap;
  return RD2H_OK;
}

void *rd2h_arena_alloc(struct rd2h_arena *a, size_t n) {
  size_t at = (a->used + (ARENA_ALIGN - 1)) & ~(size_t)(ARENA_ALIGN - 1);
  if (at > a->cap || n > a->cap - at || !a->p)
    return NULL;
  a->used = at + n;
  return a->p + at;
}

void rd2h_arena_reset(struct rd2h_arena *a) {
  a->used = 0;
}

void rd2h_arena_free(struct rd2h_arena *a) {
  rd2h_free(a->p);
  *a = (struct rd2h_arena){0};
}

bool rd2h_buf_room(struct rd2h_buf *b, size_t n) {
  if (b->failed)
    return false;
  if (n <= b->cap - b->len)
    return true;
  size_t need, cap = b->cap <= SIZE_MAX / 2 ? b->cap * 2 : SIZE_MAX;
  uint8_t *p = NULL;
  if (!__builtin_add_overflow(b->len, n, &need)) {
    cap = cap < need ? need : cap;
    p = rd2h_realloc(b->p, cap < BUF_MIN ? (cap = BUF_MIN) : cap);
  }
  if (!p) {
    b->failed = true;
    return false;
  }
  b->p = p;
  b->cap = cap;
  return true;
}

void rd2h_buf_put(struct rd2h_buf *b, const void *p, size_t n) {
  if (!n || !rd2h_buf_room(b, n))
    return;
  memcpy(b->p + b->len, p, n);
  b->len += n;
}

void rd2h_buf_line(struct rd2h_buf *b, const char *fmt, ...) {
  char line[1001];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(line, sizeof line, fmt, ap);
  va_end(ap);
  rd2h_text_one_line(line);
  rd2h_buf_put(b, line, strlen(line));
  rd2h_buf_put(b, "\n", 1);
}

void rd2h_buf_reset(struct rd2h_buf *b) {
  b->len = 0;
  b->failed = false;
}

void rd2h_buf_free(struct rd2h_buf *b) {
  rd2h_free(b->p);
  *b = (struct rd2h_buf){0};
}
