/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/emit.h"
#include "plan/plan.h"

#define ID_LIMIT (UINT32_C(1) << 31) /* block ids of the protocol lie below */

/* What one request moves of one component: its list, checked and cut to this rank's share, and the parts it is read for. */
struct section {
  const char *what;
  const struct rd2h_link_part *part;
  uint32_t n_parts;
  struct rd2h_blocks blocks;
};

/* One component's lists as they come in. */
struct lists {
  const uint32_t *src, *dst;
  uint32_t n_src, n_dst, start, floor;
};

static uint32_t main_parts(const struct rd2h_link *link) {
  uint32_t n = 0;
  while (n < link->n_parts && link->part[n].component == RD2H_MAIN)
    n++;
  return n;
}

uint64_t rd2h_plan_bound(const struct rd2h_link *link, const struct rd2h_plan_request *req) {
  uint32_t n_main = main_parts(link);
  return (uint64_t)n_main * req->n_src_main + (uint64_t)(link->n_parts - n_main) * req->n_src_indexer;
}

/* Ids below the result are blocks that exist on the side and whose addresses do not pass 2^64. */
static uint32_t id_limit(uint64_t base, uint64_t bytes, uint32_t blocks) {
  uint32_t limit = blocks < ID_LIMIT ? blocks : ID_LIMIT;
  uint64_t size, end;
  if (__builtin_mul_overflow(bytes, (uint64_t)limit, &size) || __builtin_add_overflow(base, size, &end))
    limit = (uint32_t)((UINT64_MAX - base) / bytes);
  return limit;
}

static int bad_id(const struct section *s, uint32_t src_limit, uint32_t dst_limit, uint32_t entry, struct rd2h_error *err) {
  const struct rd2h_blocks *b = &s->blocks;
  uint32_t i = 0;
  while (b->src[i] < src_limit && b->dst[i] < dst_limit)
    i++;
  bool of_src = b->src[i] >= src_limit;
  return rd2h_fail(err, RD2H_RANGE, "%s %s block id %u (entry %u of the list) is outside the %u blocks that can be addressed",
                   s->what, of_src ? "source" : "destination", of_src ? b->src[i] : b->dst[i], entry + i,
                   of_src ? src_limit : dst_limit);
}

/* Every id against the blocks that exist for each part. `entry`: where the section begins in its source list. */
static int check_ids(struct section *s, uint32_t entry, struct rd2h_error *err) {
  uint32_t src_limit = ID_LIMIT, dst_limit = ID_LIMIT;
  for (uint32_t p = 0; p < s->n_parts; p++) {
    const struct rd2h_link_part *part = &s->part[p];
    if (!part->bytes)
      return rd2h_fail(err, RD2H_INVALID, "%s part %u of the link has blocks of 0 bytes", s->what, p);
    uint32_t src = id_limit(part->src_base, part->bytes, part->src_blocks);
    uint32_t dst = id_limit(part->dst_base, part->bytes, part->dst_blocks);
    src_limit = src < src_limit ? src : src_limit;
    dst_limit = dst < dst_limit ? dst : dst_limit;
  }
  if (!rd2h_blocks_scan(&s->blocks, src_limit, dst_limit))
    return bad_id(s, src_limit, dst_limit, entry, err);
  return RD2H_OK;
}

/* Checks that the whole list has destinations, then cuts it to [begin, end) of this rank. */
static int cut(struct section *s, const struct lists *l, uint32_t rank, uint32_t ranks, struct rd2h_error *err) {
  s->blocks = (struct rd2h_blocks){NULL, NULL, 0, 0};
  if (!l->n_src || !s->n_parts)
    return RD2H_OK;
  uint64_t last = (uint64_t)l->start + l->n_src;
  if (last > l->n_dst)
    return rd2h_fail(err, RD2H_RANGE, "%s destination entries %u to %llu pass the end of the %u blocks allocated", s->what,
                     l->start, (unsigned long long)last, l->n_dst);
  if (l->start < l->floor)
    return rd2h_fail(err, RD2H_RANGE, "%s destination entries begin at %u, but those below %u are not to be written", s->what,
                     l->start, l->floor);
  uint32_t begin, end;
  rd2h_plan_range(l->n_src, rank, ranks, l->start, &begin, &end);
  s->blocks = (struct rd2h_blocks){l->src + begin, l->dst + l->start + begin, end - begin, 0};
  return check_ids(s, begin, err);
}

static int check_share(const struct rd2h_link *link, const struct rd2h_share *share, struct rd2h_error *err) {
  if (share->main_rank >= share->main_ranks)
    return rd2h_fail(err, RD2H_INVALID, "rank %u is not below the %u ranks that share main KV", share->main_rank,
                     share->main_ranks);
  if (share->member >= share->ratio)
    return rd2h_fail(err, RD2H_INVALID, "contributor %u is not below its group's size %u", share->member, share->ratio);
  if (link->n_parts > RD2H_MAX_TENSORS)
    return rd2h_fail(err, RD2H_INVALID, "the link has %u parts, at most %u are possible", link->n_parts, RD2H_MAX_TENSORS);
  return RD2H_OK;
}

/* Room for the descriptors, and a byte count that fits. */
static int check_room(const struct section *s, const struct rd2h_descs *d, struct rd2h_error *err) {
  uint64_t need = d->n, bytes = d->bytes, part_bytes;
  for (int c = 0; c < 2; c++) {
    need += (uint64_t)s[c].blocks.runs * s[c].n_parts;
    for (uint32_t p = 0; p < s[c].n_parts; p++)
      if (__builtin_mul_overflow(s[c].part[p].bytes, (uint64_t)s[c].blocks.n, &part_bytes) ||
          __builtin_add_overflow(bytes, part_bytes, &bytes))
        return rd2h_fail(err, RD2H_LIMIT, "the batch would move more than 2^64 bytes");
  }
  if (need > d->cap)
    return rd2h_fail(err, RD2H_LIMIT, "%llu descriptors are needed, there is room for %u", (unsigned long long)need, d->cap);
  return RD2H_OK;
}

int rd2h_plan_build(const struct rd2h_link *link, const struct rd2h_share *share, const struct rd2h_plan_request *req,
                    struct rd2h_descs *descs, struct rd2h_error *err) {
  int rc = check_share(link, share, err);
  if (rc != RD2H_OK)
    return rc;
  uint32_t n_main = main_parts(link);
  struct section s[2] = {
    {.what = "main", .part = link->part, .n_parts = share->member == 0 ? n_main : 0},
    {.what = "indexer", .part = link->part + n_main, .n_parts = link->n_parts - n_main},
  };
  rc = cut(&s[0], &(struct lists){req->src_main, req->dst_main, req->n_src_main, req->n_dst_main, req->main_start,
                                  req->main_floor}, share->main_rank, share->main_ranks, err);
  if (rc == RD2H_OK)
    rc = cut(&s[1], &(struct lists){req->src_indexer, req->dst_indexer, req->n_src_indexer, req->n_dst_indexer,
                                    req->indexer_start, req->indexer_floor}, share->member, share->ratio, err);
  if (rc == RD2H_OK)
    rc = check_room(s, descs, err);
  if (rc != RD2H_OK)
    return rc;
  for (int c = 0; c < 2; c++)
    if (s[c].blocks.n)
      rd2h_blocks_emit(&s[c].blocks, s[c].part, s[c].n_parts, descs);
  return RD2H_OK;
}
