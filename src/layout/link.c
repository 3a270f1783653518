/* SPDX-License-Identifier: Apache-2.0 */
#include "layout/layout.h"

#define ULL(x) ((unsigned long long)(x))
#define ADVICE "both sides need the same model, dtype and cache options"
#define BLOCKS_MAX (UINT64_C(1) << 31) /* block ids of the protocol lie below */

/* What the checks of one layer look at, and the names of its parts in the order of the link. */
struct pair {
  const struct rd2h_peer_layer *src;
  const struct rd2h_layer *dst;
  const struct rd2h_memory *region;
  uint32_t n_regions;
};

static const char *part_name(const struct rd2h_layer *l, uint32_t i) {
  if (i >= l->n_main)
    return i == l->n_main ? "indexer" : "indexer scale";
  if (l->n_main == 1)
    return "main KV";
  return i ? "V" : "K";
}

static bool src_has_scale(const struct rd2h_peer_layer *s) {
  return s->has_indexer && s->n_addrs > s->main_count + 1;
}

/* Tensor counts and presence. Tensors past those that main count and indexer account for are ignored. */
static int check_counts(const struct pair *p, struct rd2h_error *err) {
  const struct rd2h_peer_layer *s = p->src;
  const struct rd2h_layer *d = p->dst;
  if (s->n_addrs != s->n_lens || s->n_addrs != s->n_scales)
    return rd2h_fail(err, RD2H_LAYOUT, "layer %s: Prefill lists %u addresses, %u lengths and %u scales, which should be as many",
                     d->name, s->n_addrs, s->n_lens, s->n_scales);
  if (s->main_count != d->n_main)
    return rd2h_fail(err, RD2H_LAYOUT, "layer %s: main KV is %u tensors on Prefill, %u on Decode: " ADVICE, d->name, s->main_count,
                     d->n_main);
  if (s->has_indexer != d->has_indexer)
    return rd2h_fail(err, RD2H_LAYOUT, "layer %s: indexer is %s on Prefill, %s on Decode: " ADVICE, d->name,
                     s->has_indexer ? "present" : "absent", d->has_indexer ? "present" : "absent");
  if (s->n_addrs < s->main_count + s->has_indexer)
    return rd2h_fail(err, RD2H_LAYOUT, "layer %s: Prefill lists %u tensors where main KV and indexer are %u", d->name, s->n_addrs,
                     s->main_count + s->has_indexer);
  if (src_has_scale(s) != d->has_scale)
    return rd2h_fail(err, RD2H_LAYOUT, "layer %s: indexer scale is %s on Prefill, %s on Decode: " ADVICE, d->name,
                     src_has_scale(s) ? "present" : "absent", d->has_scale ? "present" : "absent");
  return RD2H_OK;
}

/* Bytes of an external block, equal on both sides. */
static int check_bytes(const struct pair *p, uint32_t i, uint64_t *bytes, struct rd2h_error *err) {
  const struct rd2h_tensor *t = &p->dst->t[i];
  uint64_t own = t->block_len * t->scale, len = p->src->len[i], scale = p->src->scale[i], peer = 0;
  if (__builtin_mul_overflow(len, scale, &peer) || peer != own)
    return rd2h_fail(err, RD2H_LAYOUT, "layer %s: a block of %s has %llu x %llu bytes on Prefill, %llu x %u on Decode: " ADVICE,
                     p->dst->name, part_name(p->dst, i), ULL(len), ULL(scale), ULL(t->block_len), t->scale);
  *bytes = own;
  return RD2H_OK;
}

/* Bytes from base to the end of the first region that holds [base, base + size); 0 when none does. */
static uint64_t room_in_regions(const struct pair *p, uint64_t base, uint64_t size, uint32_t *region) {
  for (uint32_t i = 0; i < p->n_regions; i++) {
    uint64_t before = base - p->region[i].base;
    if (base < p->region[i].base || before >= p->region[i].len || p->region[i].len - before < size)
      continue;
    *region = i;
    return p->region[i].len - before;
  }
  return 0;
}

/* How many blocks can be read: as many as the peer said, which must all fit; else as many as fit. */
static int check_room(const struct pair *p, uint32_t i, struct rd2h_link_part *part, struct rd2h_error *err) {
  uint32_t said = i < p->dst->n_main ? p->src->main_blocks : p->src->indexer_blocks;
  uint64_t base = part->src_base, want = said == UINT32_MAX ? 1 : said, size, end;
  if (__builtin_mul_overflow(want, part->bytes, &size) || __builtin_add_overflow(base, size, &end))
    return rd2h_fail(err, RD2H_RANGE, "layer %s: %s at 0x%llx on Prefill passes the end of the address space: %llu blocks of %llu bytes",
                     p->dst->name, part_name(p->dst, i), ULL(base), ULL(want), ULL(part->bytes));
  uint64_t room = UINT64_MAX - base;
  part->src_region = RD2H_NONE;
  if (p->n_regions && !(room = room_in_regions(p, base, size, &part->src_region)))
    return rd2h_fail(err, RD2H_RANGE, "layer %s: %s on Prefill, [0x%llx, 0x%llx), lies in none of the %u memory regions it published",
                     p->dst->name, part_name(p->dst, i), ULL(base), ULL(end), p->n_regions);
  uint64_t fit = room / part->bytes;
  if (said == UINT32_MAX && fit < BLOCKS_MAX)
    said = (uint32_t)fit;
  part->src_blocks = said;
  return RD2H_OK;
}

static int fill_part(const struct pair *p, uint32_t i, struct rd2h_link_part *part, struct rd2h_error *err) {
  const struct rd2h_tensor *t = &p->dst->t[i];
  *part = (struct rd2h_link_part){.src_base = p->src->addr[i], .dst_base = t->base, .dst_blocks = t->blocks,
                                  .component = i < p->dst->n_main ? RD2H_MAIN : RD2H_INDEXER};
  int rc = check_bytes(p, i, &part->bytes, err);
  return rc == RD2H_OK ? check_room(p, i, part, err) : rc;
}

int rd2h_link_build(const struct rd2h_peer_layer *peer, const struct rd2h_layout *layout, uint32_t layer,
                    const struct rd2h_memory *regions, uint32_t n_regions, struct rd2h_link *out, struct rd2h_error *err) {
  if (layer >= layout->n_layers)
    return rd2h_fail(err, RD2H_RANGE, "layer ordinal %u: this rank has %u layers", layer, layout->n_layers);
  struct pair p = {peer, &layout->layer[layer], regions, n_regions};
  struct rd2h_link link = {.layer = layer, .n_parts = p.dst->n};
  int rc = check_counts(&p, err);
  for (uint32_t i = 0; i < link.n_parts && rc == RD2H_OK; i++)
    rc = fill_part(&p, i, &link.part[i], err);
  if (rc == RD2H_OK)
    *out = link;
  return rc;
}
