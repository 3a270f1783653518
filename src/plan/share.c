/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/plan.h"

void rd2h_plan_range(uint32_t n, uint32_t rank, uint32_t ranks, uint32_t start, uint32_t *begin, uint32_t *end) {
  *begin = 0;
  *end = n;
  if (ranks <= 1)
    return;
  uint32_t shift = start % ranks, own = rank % ranks;
  uint32_t logical = own >= shift ? own - shift : own + (ranks - shift);
  uint32_t each = n / ranks, more = n % ranks;
  *begin = logical * each + (logical < more ? logical : more);
  *end = *begin + each + (logical < more);
}

static int check_ranks(const char *side, uint32_t rank, uint32_t size, struct rd2h_error *err) {
  if (!size)
    return rd2h_fail(err, RD2H_INVALID, "%s tensor-parallel size is 0: it must be 1 or more", side);
  if (rank >= size)
    return rd2h_fail(err, RD2H_INVALID, "%s tensor-parallel rank %u is not below its size %u", side, rank, size);
  return RD2H_OK;
}

/* ceil(rank * of / size): fits, as rank <= size */
static uint32_t ceil_share(uint32_t rank, uint32_t of, uint32_t size) {
  return (uint32_t)(((uint64_t)rank * of + size - 1) / size);
}

/* Ranks of the larger side lie in blocks on those of the smaller: rank i of `big` belongs to floor(i * small / big). The ranks of
 * the block of `rank` are [first, first + count). */
static void block_of(uint32_t rank, uint32_t small, uint32_t big, uint32_t *first, uint32_t *count) {
  *first = ceil_share(rank, big, small);
  *count = ceil_share(rank + 1, big, small) - *first;
}

int rd2h_plan_targets(uint32_t p_rank, uint32_t p_size, uint32_t d_size, uint32_t *first, uint32_t *count,
                      struct rd2h_error *err) {
  int rc = check_ranks("Prefill", p_rank, p_size, err);
  if (rc == RD2H_OK)
    rc = check_ranks("Decode", 0, d_size, err);
  if (rc != RD2H_OK)
    return rc;
  if (p_size < d_size) {
    block_of(p_rank, p_size, d_size, first, count);
  } else {
    *first = (uint32_t)((uint64_t)p_rank * d_size / p_size);
    *count = 1;
  }
  return RD2H_OK;
}

int rd2h_plan_member(uint32_t p_rank, uint32_t p_size, uint32_t d_rank, uint32_t d_size, uint32_t *member, uint32_t *ratio,
                     struct rd2h_error *err) {
  int rc = check_ranks("Prefill", p_rank, p_size, err);
  if (rc == RD2H_OK)
    rc = check_ranks("Decode", d_rank, d_size, err);
  if (rc != RD2H_OK)
    return rc;
  uint32_t first, count = 1;
  if (p_size < d_size)
    first = (uint32_t)((uint64_t)d_rank * p_size / d_size);
  else
    block_of(d_rank, d_size, p_size, &first, &count);
  if (p_rank < first || p_rank - first >= count)
    return rd2h_fail(err, RD2H_INVALID, "Prefill rank %u of %u does not serve Decode rank %u of %u: ranks %u to %u do", p_rank,
                     p_size, d_rank, d_size, first, first + count - 1);
  *member = p_rank - first;
  *ratio = count;
  return RD2H_OK;
}

int rd2h_plan_port(uint32_t base_port, uint32_t d_rank, uint32_t d_size, uint16_t *port, struct rd2h_error *err) {
  int rc = check_ranks("Decode", d_rank, d_size, err);
  if (rc != RD2H_OK)
    return rc;
  uint64_t p = (uint64_t)base_port + d_rank;
  if (!base_port || p > UINT16_MAX)
    return rd2h_fail(err, RD2H_RANGE, "Decode rank %u has no port: base port %u + %u is %llu, outside 1 to 65535", d_rank,
                     base_port, d_rank, (unsigned long long)p);
  *port = (uint16_t)p;
  return RD2H_OK;
}

int rd2h_plan_base_port(uint32_t kv_port, uint32_t dp_rank, uint32_t tp_size, uint16_t *port, struct rd2h_error *err) {
  int rc = check_ranks("Decode", 0, tp_size, err);
  if (rc != RD2H_OK)
    return rc;
  uint64_t base = kv_port + (uint64_t)dp_rank * tp_size;
  if (!kv_port || base > UINT16_MAX || base + tp_size - 1 > UINT16_MAX)
    return rd2h_fail(err, RD2H_RANGE,
                     "kv_port %u leaves no ports for data-parallel rank %u: its %u ranks would use %llu to %llu, outside 1 to 65535",
                     kv_port, dp_rank, tp_size, (unsigned long long)base, (unsigned long long)(base + tp_size - 1));
  *port = (uint16_t)base;
  return RD2H_OK;
}
