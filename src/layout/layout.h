/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_SRC_LAYOUT_H
#define RD2H_SRC_LAYOUT_H
/* KV groups, cache layers, storage slots, and whether two sides' layouts fit. Pure. */
#include "base/base.h"
#include <rd2h/layout.h>

#define RD2H_LAYOUT_MAX_LAYERS 1024u /* cache layers of one rank */
#define RD2H_LAYOUT_MAX_TEXT 512u    /* bytes of a layer name, of the fingerprint */

struct rd2h_tensor {
  uint64_t base;
  uint64_t block_len; /* bytes of a row */
  uint32_t scale;     /* rows a block */
  uint32_t group;
  uint32_t blocks;    /* UINT32_MAX: the peer has not said */
};
struct rd2h_layer {
  char *name;
  uint32_t number; /* the n of "layers.<n>" */
  uint32_t n_main; /* 1 or 2 */
  bool has_indexer, has_scale;
  uint32_t n;      /* tensors: main, then indexer, then scale */
  struct rd2h_tensor t[RD2H_MAX_TENSORS];
  uint32_t n_slots, slot[2];
};
struct rd2h_layout {
  uint32_t n_layers;
  struct rd2h_layer *layer;
  uint32_t n_slots;
  uint64_t num_blocks;
  uint32_t main_group, indexer_group;
  uint32_t heads[3]; /* first, count, total */
  char *fingerprint; /* "" when none */
  struct rd2h_map *by_name; /* every main and indexer tensor name -> ordinal */
};

/* What a peer said of one of its layers, in the shape of the wire. */
struct rd2h_peer_layer {
  struct rd2h_str name;
  uint32_t n_addrs, n_lens, n_scales;
  const uint64_t *addr, *len, *scale;
  uint32_t main_count;
  bool has_indexer;
  uint32_t main_blocks, indexer_blocks; /* UINT32_MAX: not said */
};
/* Validates a source layer of a peer against ours (as destination) and fills the link: main tensor count and lengths, indexer
 * presence and length, scale presence and length, address overflow, regions. Errors: LAYOUT, RANGE; err names layer and both values. */
int rd2h_link_build(const struct rd2h_peer_layer *, const struct rd2h_layout *, uint32_t layer, const struct rd2h_memory *regions,
                    uint32_t n_regions, struct rd2h_link *, struct rd2h_error *);
/* Storage slots: a distinct tuple of main addresses, or of indexer addresses; fills slot of every layer, returns their number. */
uint32_t rd2h_layout_infer_slots(struct rd2h_layer *, uint32_t n);
#endif
