/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/blocks.h"

#define MAX_BLOCK_SIZE (1u << 20) /* tokens */
#define MAX_IDS (1u << 24)        /* of one request and group, as on the wire */

int rd2h_parts_init(struct rd2h_parts *p, uint32_t n_groups, const uint32_t *block_size, uint32_t main_group,
                    uint32_t indexer_group, struct rd2h_error *err) {
  if (!n_groups || n_groups > RD2H_MAX_GROUPS)
    return rd2h_fail(err, RD2H_INVALID, "%u KV cache groups, must be 1 to %u", n_groups, RD2H_MAX_GROUPS);
  if (main_group >= n_groups || indexer_group >= n_groups)
    return rd2h_fail(err, RD2H_INVALID, "main group %u and indexer group %u must be among the engine's %u KV cache groups",
                     main_group, indexer_group, n_groups);
  uint32_t min = UINT32_MAX;
  for (uint32_t g = 0; g < n_groups; g++) {
    if (!block_size[g] || block_size[g] > MAX_BLOCK_SIZE)
      return rd2h_fail(err, RD2H_INVALID, "KV cache group %u: block size is %u tokens, must be 1 to %u", g, block_size[g],
                       MAX_BLOCK_SIZE);
    min = block_size[g] < min ? block_size[g] : min;
  }
  *p = (struct rd2h_parts){n_groups, {main_group, indexer_group}, {block_size[main_group], block_size[indexer_group]}, min};
  return RD2H_OK;
}

bool rd2h_blocks_none(const struct rd2h_block_table *t) {
  for (uint32_t g = 0; t && g < t->n_groups && g < RD2H_MAX_GROUPS; g++)
    if (t->count[g])
      return false;
  return true;
}

static int check(const struct rd2h_parts *p, const struct rd2h_block_table *t, const char *request, struct rd2h_error *err) {
  if (t->n_groups != p->n_groups)
    return rd2h_fail(err, RD2H_RANGE, "request %s: block table has %u KV cache groups, the engine has %u", request, t->n_groups,
                     p->n_groups);
  for (uint32_t part = 0; part < RD2H_PARTS; part++) {
    uint32_t g = p->group[part];
    if (t->count[g] > MAX_IDS)
      return rd2h_fail(err, RD2H_LIMIT, "request %s: %u blocks in group %u, at most %u can be transferred", request,
                       t->count[g], g, MAX_IDS);
    for (uint32_t i = 0; i < t->count[g]; i++)
      if (t->ids[g][i] > INT32_MAX)
        return rd2h_fail(err, RD2H_RANGE, "request %s: entry %u of group %u is block %u, ids end at %d", request, i, g,
                         t->ids[g][i], INT32_MAX);
  }
  return RD2H_OK;
}

static int room(struct rd2h_ids *l, uint32_t n) {
  if (n <= l->cap)
    return RD2H_OK;
  uint32_t cap = l->cap + l->cap / 2 < n ? n : l->cap + l->cap / 2;
  uint32_t *id = rd2h_realloc(l->id, cap * sizeof *id);
  if (!id)
    return RD2H_NOMEM;
  l->id = id;
  l->cap = cap;
  return RD2H_OK;
}

int rd2h_blocks_put(const struct rd2h_parts *p, const struct rd2h_block_table *t, bool replace, struct rd2h_ids list[RD2H_PARTS],
                    const char *request, struct rd2h_error *err) {
  int rc = check(p, t, request, err);
  if (rc)
    return rc;
  for (uint32_t part = 0; part < RD2H_PARTS; part++) {
    uint32_t n = (replace ? 0 : list[part].n) + t->count[p->group[part]];
    if (n > MAX_IDS)
      return rd2h_fail(err, RD2H_LIMIT, "request %s: %u %s blocks, at most %u can be transferred", request, n,
                       rd2h_part_name[part], MAX_IDS);
    if (room(&list[part], n))
      return rd2h_nomem(err, "a request's block table");
  }
  for (uint32_t part = 0; part < RD2H_PARTS; part++) {
    uint32_t g = p->group[part], at = replace ? 0 : list[part].n;
    if (t->count[g])
      memcpy(list[part].id + at, t->ids[g], t->count[g] * sizeof *list[part].id);
    list[part].n = at + t->count[g];
  }
  return RD2H_OK;
}

bool rd2h_blocks_equal(const struct rd2h_parts *p, const struct rd2h_block_table *t, const struct rd2h_ids list[RD2H_PARTS]) {
  if (t->n_groups != p->n_groups)
    return false;
  for (uint32_t part = 0; part < RD2H_PARTS; part++) {
    uint32_t g = p->group[part], n = list[part].n;
    if (t->count[g] != n || (n && memcmp(t->ids[g], list[part].id, n * sizeof *list[part].id)))
      return false;
  }
  return true;
}

void rd2h_blocks_free(struct rd2h_ids list[RD2H_PARTS]) {
  for (uint32_t part = 0; part < RD2H_PARTS; part++) {
    rd2h_free(list[part].id);
    list[part] = (struct rd2h_ids){0};
  }
}
