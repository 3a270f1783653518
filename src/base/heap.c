/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"

int rd2h_heap_reserve(struct rd2h_heap *h, uint32_t more) {
  if (h->cap - h->n >= more)
    return RD2H_OK;
  uint64_t cap = h->cap ? h->cap : 64;
  while (cap - h->n < more)
    cap *= 2;
  if (cap > UINT32_MAX)
    return RD2H_NOMEM;
  struct rd2h_heap_item *item = rd2h_realloc(h->item, cap * sizeof *item);
  if (!item)
    return RD2H_NOMEM;
  h->item = item;
  h->cap = (uint32_t)cap;
  return RD2H_OK;
}

int rd2h_heap_push(struct rd2h_heap *h, uint64_t at, uint64_t key) {
  if (rd2h_heap_reserve(h, 1))
    return RD2H_NOMEM;
  uint32_t i = h->n++;
  for (; i && h->item[(i - 1) / 2].at > at; i = (i - 1) / 2)
    h->item[i] = h->item[(i - 1) / 2];
  h->item[i] = (struct rd2h_heap_item){at, key};
  return RD2H_OK;
}

/* Puts `last` where the root was and lets it sink. */
static void sink_from_root(struct rd2h_heap *h, struct rd2h_heap_item last) {
  uint32_t i = 0;
  for (uint32_t child; (child = 2 * i + 1) < h->n; i = child) {
    if (child + 1 < h->n && h->item[child + 1].at < h->item[child].at)
      child++;
    if (h->item[child].at >= last.at)
      break;
    h->item[i] = h->item[child];
  }
  h->item[i] = last;
}

bool rd2h_heap_pop(struct rd2h_heap *h, uint64_t now, uint64_t *key) {
  if (!h->n || h->item[0].at > now)
    return false;
  *key = h->item[0].key;
  h->n--;
  if (h->n)
    sink_from_root(h, h->item[h->n]);
  return true;
}

uint64_t rd2h_heap_next(const struct rd2h_heap *h) {
  return h->n ? h->item[0].at : RD2H_NEVER;
}

void rd2h_heap_free(struct rd2h_heap *h) {
  rd2h_free(h->item);
  *h = (struct rd2h_heap){0};
}
