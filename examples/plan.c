/* SPDX-License-Identifier: Apache-2.0 */
/* Plans one batch and prints its descriptors: which bytes a Decode rank would read from a Prefill rank for one layer.
 *
 *   cc plan.c $(pkg-config --cflags --libs rd2h) -o plan && ./plan
 *
 * A layer of DeepSeek-V3.2 as vLLM-Ascend keeps it: K and V in two tensors, and the keys of the indexer in a third. Two Decode
 * ranks share one main pool, so rank 0 reads half of the main blocks; of the indexer every rank keeps a complete copy. */
#include <inttypes.h>
#include <rd2h/rd2h.h>
#include <stdio.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define K_BYTES UINT64_C(131072) /* of one block of 128 tokens */
#define V_BYTES UINT64_C(16384)
#define INDEXER_BYTES UINT64_C(32768)

static const struct rd2h_link layer = {
  .layer = 0,
  .n_parts = 3,
  .part = {
    {.src_base = 0x100000000, .dst_base = 0x900000000, .bytes = K_BYTES, .src_blocks = 512, .dst_blocks = 1024,
     .src_region = RD2H_NONE, .component = RD2H_MAIN},
    {.src_base = 0x200000000, .dst_base = 0xa00000000, .bytes = V_BYTES, .src_blocks = 512, .dst_blocks = 1024,
     .src_region = RD2H_NONE, .component = RD2H_MAIN},
    {.src_base = 0x300000000, .dst_base = 0xb00000000, .bytes = INDEXER_BYTES, .src_blocks = 512, .dst_blocks = 1024,
     .src_region = RD2H_NONE, .component = RD2H_INDEXER},
  },
};

/* Prefill holds the prompt in 6 blocks; Decode already had the first 2 of its 8 (a prefix hit) and gives the rest. */
static const uint32_t source[] = {40, 41, 42, 43, 77, 78};
static const uint32_t destination[] = {3, 4, 200, 201, 202, 203, 204, 9};

static void print_descriptors(const struct rd2h_descs *d) {
  printf("%-4s %-14s %-14s %10s\n", "", "from (remote)", "to (local)", "bytes");
  for (uint32_t i = 0; i < d->n; i++)
    printf("%-4" PRIu32 " 0x%-12" PRIx64 " 0x%-12" PRIxPTR " %10" PRIu64 "\n", i, d->remote[i], (uintptr_t)d->local[i], d->len[i]);
  printf("%" PRIu32 " descriptors, %" PRIu64 " bytes\n", d->n, d->bytes);
}

int main(void) {
  const struct rd2h_share share = {.main_rank = 0, .main_ranks = 2, .member = 0, .ratio = 1};
  const struct rd2h_plan_request request = {
    .src_main = source, .n_src_main = COUNT(source), .main_start = 2, .main_floor = 2,
    .dst_main = destination, .n_dst_main = COUNT(destination),
    .src_indexer = source, .n_src_indexer = COUNT(source), .indexer_start = 2, .indexer_floor = 2,
    .dst_indexer = destination, .n_dst_indexer = COUNT(destination),
  };
  void *local[32];
  uint64_t remote[32], len[32];
  struct rd2h_descs descs = {.local = local, .remote = remote, .len = len, .cap = COUNT(len)};
  struct rd2h_error err;

  if (strcmp(rd2h_version(), RD2H_VERSION_STRING)) {
    fprintf(stderr, "plan: built with rd2h %s, running with %s: build it again\n", RD2H_VERSION_STRING, rd2h_version());
    return 1;
  }
  if (rd2h_plan_bound(&layer, &request) > descs.cap) {
    fprintf(stderr, "plan: %" PRIu64 " descriptors at most, room for %" PRIu32 "\n", rd2h_plan_bound(&layer, &request), descs.cap);
    return 1;
  }
  if (rd2h_plan_build(&layer, &share, &request, &descs, &err) != RD2H_OK) {
    fprintf(stderr, "plan: %s\n", err.text);
    return 1;
  }
  print_descriptors(&descs);
  return 0;
}
