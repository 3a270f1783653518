/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_PLAN_H
#define RD2H_PLAN_H
#include <rd2h/layout.h>
#ifdef __cplusplus
extern "C" {
#endif

/* Who reads what: main KV is shared out over the ranks that share one pool, indexer and scale over a rank's contributors. */
struct rd2h_share {
  uint32_t main_rank, main_ranks; /* this Decode rank among those that fill one main pool; 0 of 1: complete main */
  uint32_t member, ratio;         /* the Prefill rank's place in its contributor group; only member 0 serves main */
};

/* One request of one batch. Source ids come from the peer, destination ids are the request's complete allocated lists. */
struct rd2h_plan_request {
  const uint32_t *src_main, *src_indexer;
  uint32_t n_src_main, n_src_indexer;
  uint32_t main_start, indexer_start; /* source id 0 goes to destination list entry `start` */
  const uint32_t *dst_main, *dst_indexer;
  uint32_t n_dst_main, n_dst_indexer;
  uint32_t main_floor, indexer_floor; /* first entry that may be written: blocks before it hold a local prefix hit */
};

/* Descriptors, structure of arrays, as engines take them. The caller owns the arrays of `cap` entries. */
struct rd2h_descs {
  void **local;
  uint64_t *remote;
  uint64_t *len;
  uint32_t *region; /* may be NULL */
  uint32_t n, cap;
  uint64_t bytes; /* sum of len */
};

/* Blocks [*begin, *end) of n that logical rank (rank - start mod ranks) of `ranks` takes, when the run begins at global block
 * `start`: the first n mod ranks logical ranks take one more. O(1). */
RD2H_API void rd2h_plan_range(uint32_t n, uint32_t rank, uint32_t ranks, uint32_t start, uint32_t *begin, uint32_t *end);

/* Contributor arithmetic for any pair of TP sizes: which Decode ranks a Prefill rank serves, [first, first + count), and its
 * place among the contributors of the i-th of them. Errors: INVALID for sizes of 0 or a rank outside. */
RD2H_API int rd2h_plan_targets(uint32_t p_rank, uint32_t p_size, uint32_t d_size, uint32_t *first, uint32_t *count,
                               struct rd2h_error *err);
RD2H_API int rd2h_plan_member(uint32_t p_rank, uint32_t p_size, uint32_t d_rank, uint32_t d_size, uint32_t *member, uint32_t *ratio,
                              struct rd2h_error *err);
/* base_port + d_rank, checked against 1..65535. */
RD2H_API int rd2h_plan_port(uint32_t base_port, uint32_t d_rank, uint32_t d_size, uint16_t *port, struct rd2h_error *err);
/* kv_port + dp_rank * tp_size, checked so that the last rank's port fits too. */
RD2H_API int rd2h_plan_base_port(uint32_t kv_port, uint32_t dp_rank, uint32_t tp_size, uint16_t *port, struct rd2h_error *err);

/* Most descriptors that the request can make over this link: for sizing `descs`. */
RD2H_API uint64_t rd2h_plan_bound(const struct rd2h_link *, const struct rd2h_plan_request *);
/* Appends the request's descriptors: K runs, V runs, indexer runs, scale runs; neighbours that continue on both sides inside one
 * component are merged. Every id and range is checked before a descriptor is appended: on error `descs` is as before.
 * Returns OK (also when nothing is to be read), RANGE (ids, starts or destination range; err names them), LIMIT (descs full, or
 * 2^64 bytes), INVALID (a rank or member outside its group, a link that cannot be). */
RD2H_API int rd2h_plan_build(const struct rd2h_link *, const struct rd2h_share *, const struct rd2h_plan_request *,
                               struct rd2h_descs *, struct rd2h_error *err);

#ifdef __cplusplus
}
#endif
#endif
