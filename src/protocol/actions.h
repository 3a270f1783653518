/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_ACTIONS_H
#define RD2H_ACTIONS_H
/* What the action queues of both machines share; included by their own files only. */
#include "base/base.h"

/* Keeps a copy of the text until the buffer is reset and returns its offset; SIZE_MAX when memory is short: an action without its
 * text is better than none. */
static inline size_t act_keep_text(struct rd2h_buf *text, const char *p) {
  size_t at = text->len, n = strlen(p);
  if (!rd2h_buf_room(text, n + 1)) {
    text->failed = false;
    return SIZE_MAX;
  }
  rd2h_buf_put(text, p, n);
  rd2h_buf_put(text, "", 1);
  return at;
}

/* Room for `more` items of `size` bytes behind the n of `items`, which may move. NULL: out of memory, nothing has changed. */
static inline void *act_grow(void *items, size_t size, uint32_t n, uint32_t more, uint32_t *cap) {
  uint32_t want = *cap ? *cap : 128;
  while (want - n < more) want *= 2;
  void *grown = rd2h_realloc(items, want * size);
  if (grown) *cap = want;
  return grown;
}
#endif
