/* SPDX-License-Identifier: Apache-2.0 */
/* Which memory may be served. Addresses and lengths come from outside: no sum of theirs is trusted not to wrap. */
#include "engines/tcp/tcp.h"

static bool holds(const struct rd2h_region *r, const struct tcp_desc *d) {
  uint64_t base = (uintptr_t)r->base;
  return base && d->addr >= base && d->len <= r->len && d->addr - base <= r->len - d->len;
}

int rd2h_tcp_region_check(struct tcp_regions *all, const struct tcp_desc *d) {
  if (d->region != TCP_REGION_SEARCH)
    return d->region < all->n && holds(&all->r[d->region], d) ? RD2H_OK : RD2H_RANGE;
  if (all->hint < all->n && holds(&all->r[all->hint], d)) /* neighbours lie in one region mostly */
    return RD2H_OK;
  for (uint32_t i = 0; i < all->n; i++)
    if (holds(&all->r[i], d)) {
      all->hint = i;
      return RD2H_OK;
    }
  return RD2H_RANGE;
}

int rd2h_tcp_list_check(struct tcp_regions *all, const struct tcp_request *q, const uint8_t *list, uint32_t *at) {
  uint64_t bytes = 0; /* at most TCP_DESC_MAX lengths of 32 bits: no overflow */
  *at = UINT32_MAX;
  for (uint32_t i = 0; i < q->n; i++) {
    struct tcp_desc d = rd2h_tcp_desc_decode(list + (size_t)i * TCP_DESC);
    bytes += d.len;
    if (!d.len)
      return RD2H_MALFORMED;
    if (*at == UINT32_MAX && rd2h_tcp_region_check(all, &d))
      *at = i;
  }
  if (bytes != q->bytes)
    return RD2H_MALFORMED;
  return *at == UINT32_MAX ? RD2H_OK : RD2H_RANGE;
}
