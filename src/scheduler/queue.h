/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_QUEUE_H
#define RD2H_QUEUE_H
/* Record indices that wait for the end of the step. Room is made when a record is, so that pushing cannot fail: the owner
 * pushes a record at most once. */
#include "base/base.h"

struct rd2h_queue {
  uint32_t *i, n, cap;
};

static inline int rd2h_queue_reserve(struct rd2h_queue *q, uint32_t records) {
  if (records <= q->cap)
    return RD2H_OK;
  uint32_t cap = q->cap < 32 ? 64 : q->cap * 2;
  cap = cap < records ? records : cap;
  uint32_t *i = rd2h_realloc(q->i, cap * sizeof *i);
  if (!i)
    return RD2H_NOMEM;
  q->i = i;
  q->cap = cap;
  return RD2H_OK;
}

static inline void rd2h_queue_push(struct rd2h_queue *q, uint32_t index) {
  q->i[q->n++] = index;
}

static inline void rd2h_queue_remove(struct rd2h_queue *q, uint32_t index) {
  uint32_t n = 0;
  for (uint32_t k = 0; k < q->n; k++)
    if (q->i[k] != index)
      q->i[n++] = q->i[k];
  q->n = n;
}
#endif
