/* SPDX-License-Identifier: Apache-2.0 */
/* What may be read, and what is registered for it: the library rounds every registration out to pages of 2 MiB, refuses two that
 * share a page, and fails a read that crosses from one into another. */
#include "engines/memfabric/memfabric.h"

uint32_t rd2h_mf_add(struct mf_range *r, uint32_t n, struct mf_range add) {
  uint32_t first = 0, end;
  uint64_t top = add.base + add.len;
  while (first < n && r[first].base + r[first].len < add.base)
    first++;
  for (end = first; end < n && r[end].base <= top; end++) {
    uint64_t other = r[end].base + r[end].len;
    add.base = r[end].base < add.base ? r[end].base : add.base;
    top = other > top ? other : top;
  }
  memmove(r + first + 1, r + end, (n - end) * sizeof *r);
  r[first] = (struct mf_range){add.base, top - add.base};
  return n + 1 - (end - first);
}

/* The page in which the range begins is at most the page in which the one before it ends. */
static bool same_page(uint64_t before_end, uint64_t base) {
  return base / MF_PAGE <= (before_end - 1) / MF_PAGE;
}

uint32_t rd2h_mf_merge(const struct mf_range *r, uint32_t n, struct mf_range *out) {
  uint32_t m = 0;
  for (uint32_t i = 0; i < n; i++) {
    uint64_t end = m ? out[m - 1].base + out[m - 1].len : 0;
    if (m && (r[i].base - end <= MF_MERGE_GAP || same_page(end, r[i].base)))
      out[m - 1].len = r[i].base + r[i].len - out[m - 1].base;
    else
      out[m++] = r[i];
  }
  return m;
}

static bool inside(const struct mf_range *r, uint64_t at, uint64_t len) {
  return at - r->base < r->len && len <= r->len - (at - r->base);
}

/* The last range that begins at or before the address; 0 when none does. */
static uint32_t find(const struct mf_range *r, uint32_t n, uint64_t at) {
  uint32_t low = 0;
  while (n > 1) {
    uint32_t half = n / 2;
    if (r[low + half].base <= at)
      low += half;
    n -= half;
  }
  return low;
}

uint32_t rd2h_mf_outside(const struct mf_range *r, uint32_t n, const struct rd2h_batch *b) {
  uint32_t hint = 0;
  for (uint32_t i = 0; i < b->n; i++) {
    if (!b->len[i] || (n && inside(&r[hint], b->remote[i], b->len[i])))
      continue;
    hint = n ? find(r, n, b->remote[i]) : 0;
    if (!n || !inside(&r[hint], b->remote[i], b->len[i]))
      return i;
  }
  return UINT32_MAX;
}
