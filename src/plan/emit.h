/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_SRC_PLAN_EMIT_H
#define RD2H_SRC_PLAN_EMIT_H
/* The inner loops of planning. They check nothing that is not in their name and allocate nothing. */
#include <rd2h/plan.h>
#include <stdbool.h>
#include <stdint.h>

/* Blocks that one rank takes of one list of one request: src[i] goes to dst[i]. */
struct rd2h_blocks {
  const uint32_t *src, *dst;
  uint32_t n;
  uint32_t runs; /* stretches in which both ids go up by 1: the descriptors of each part */
};

/* Counts the runs. False when a source id is src_limit or more, or a destination id dst_limit or more. */
bool rd2h_blocks_scan(struct rd2h_blocks *, uint32_t src_limit, uint32_t dst_limit);
/* Appends `runs` descriptors for each of the parts, part after part; there must be room, and n must not be 0. */
void rd2h_blocks_emit(const struct rd2h_blocks *, const struct rd2h_link_part *part, uint32_t n_parts, struct rd2h_descs *);
#endif
