/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes -> link, share, request: what is planned lies inside both sides, what is refused leaves the arrays alone. */
#include <rd2h/plan.h>
#include <stdlib.h>
#include <string.h>

#define CAP 96
struct input {
  const uint8_t *p, *end;
};

/* A byte is a small number; from 250 on, the eight bytes after it are a large one. */
static uint64_t take(struct input *in) {
  uint64_t v = 0;
  if (in->p < in->end && *in->p < 250)
    return *in->p++;
  if (in->end - in->p < 9)
    return 0;
  memcpy(&v, in->p + 1, 8);
  in->p += 9;
  return v;
}

static uint32_t take_ids(struct input *in, uint32_t ids[32]) {
  uint32_t n = (uint32_t)(take(in) % 33), id = 0;
  for (uint32_t i = 0; i < n; i++)
    ids[i] = id += (uint32_t)take(in);
  return n;
}

static bool inside(const struct rd2h_link_part *p, uint64_t local, uint64_t remote, uint64_t len) {
  if (!p->bytes || !len || len % p->bytes || remote < p->src_base || local < p->dst_base)
    return false;
  uint64_t src = (remote - p->src_base) / p->bytes, dst = (local - p->dst_base) / p->bytes, n = len / p->bytes;
  return src + n <= p->src_blocks && dst + n <= p->dst_blocks && remote + len > remote && local + len > local;
}

static void check(const struct rd2h_link *link, const struct rd2h_descs *d) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < d->n; bytes += d->len[i++]) {
    uint32_t p = 0;
    while (p < link->n_parts && !inside(&link->part[p], (uint64_t)(uintptr_t)d->local[i], d->remote[i], d->len[i]))
      p++;
    if (p == link->n_parts)
      abort();
  }
  if (bytes != d->bytes)
    abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct input in = {data, data + size};
  struct rd2h_link link = {.n_parts = (uint32_t)(take(&in) % 6)};
  for (uint32_t i = 0; i < link.n_parts && i < RD2H_MAX_TENSORS; i++)
    link.part[i] = (struct rd2h_link_part){take(&in), take(&in), take(&in), (uint32_t)take(&in), (uint32_t)take(&in), i,
                                           (uint8_t)take(&in)};
  struct rd2h_share share = {(uint32_t)take(&in), (uint32_t)take(&in), (uint32_t)take(&in), (uint32_t)take(&in)};
  uint32_t ids[4][32] = {{0}}, cap = (uint32_t)(take(&in) % (CAP + 1));
  struct rd2h_plan_request r = {ids[0], ids[1], take_ids(&in, ids[0]), take_ids(&in, ids[1]), (uint32_t)take(&in),
                                (uint32_t)take(&in), ids[2], ids[3], take_ids(&in, ids[2]), take_ids(&in, ids[3]),
                                (uint32_t)take(&in), (uint32_t)take(&in)};
  void *local[CAP];
  uint64_t remote[CAP], len[CAP];
  uint32_t region[CAP];
  struct rd2h_descs d = {.local = local, .remote = remote, .len = len, .region = size % 2 ? region : NULL, .cap = cap};
  if (rd2h_plan_build(&link, &share, &r, &d, NULL) != RD2H_OK && (d.n || d.bytes))
    abort();
  if (d.n > cap)
    abort();
  check(&link, &d);
  return 0;
}
