/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_BLOCKS_H
#define RD2H_BLOCKS_H
/* Block ids of a request in the two groups that are transferred. */
#include "base/base.h"
#include <rd2h/scheduler.h>

enum { RD2H_PART_MAIN, RD2H_PART_INDEXER, RD2H_PARTS };
static const char *const rd2h_part_name[RD2H_PARTS] = {"main", "indexer"};

/* Where the parts stand in an engine's KV groups. */
struct rd2h_parts {
  uint32_t n_groups, group[RD2H_PARTS], block_size[RD2H_PARTS], min_block_size; /* the smallest of all groups */
};
int rd2h_parts_init(struct rd2h_parts *, uint32_t n_groups, const uint32_t *block_size, uint32_t main_group,
                    uint32_t indexer_group, struct rd2h_error *);

struct rd2h_ids {
  uint32_t *id;
  uint32_t n, cap;
};
/* Replaces or extends the lists by the groups of the table; all or none of them. The indexer's list is a copy of main's where
 * both parts are one group. RANGE: a group is missing or an id is no block id. */
int rd2h_blocks_put(const struct rd2h_parts *, const struct rd2h_block_table *, bool replace, struct rd2h_ids list[RD2H_PARTS],
                    const char *request, struct rd2h_error *);
bool rd2h_blocks_equal(const struct rd2h_parts *, const struct rd2h_block_table *, const struct rd2h_ids list[RD2H_PARTS]);
void rd2h_blocks_free(struct rd2h_ids list[RD2H_PARTS]);
/* A table without a single block: the request was never given any. */
bool rd2h_blocks_none(const struct rd2h_block_table *);
#endif
