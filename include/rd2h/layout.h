/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_LAYOUT_H
#define RD2H_LAYOUT_H
#include <rd2h/status.h>
#include <stdbool.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

/* Tensors of one cache layer, in wire order: 1 or 2 main tensors (K, V, or MLA in one), the indexer, its LIC8 scale. */
#define RD2H_MAX_TENSORS 4
#define RD2H_NONE UINT32_MAX

/* One KV tensor as the engine allocated it. "indexer" in a layer name (any case) makes it the indexer's; tensors whose
 * names hold the same "layers.<n>" form one cache layer. Several tensors of one name are K, V (main) or indexer, scale. */
struct rd2h_kv_tensor {
  const char *layer;  /* engine's layer name, e.g. "model.layers.3.self_attn.attn" */
  uint32_t group;     /* index of the KV cache group that the layer belongs to */
  uint64_t base;      /* address of row 0 */
  uint64_t row_bytes; /* bytes of a row, rows contiguous: `block_len` on the wire */
  uint64_t rows;      /* an exact multiple of num_blocks; rows / num_blocks is `block_size_scale` */
};

/* One storage area to register with the transfer engine. */
struct rd2h_memory {
  uint64_t base, len; /* address, bytes */
};

struct rd2h_layout_opts {
  uint32_t size; /* sizeof(struct rd2h_layout_opts) */
  uint64_t num_blocks;
  uint32_t main_group;    /* KV group of the main tensors */
  uint32_t indexer_group; /* KV group of the indexers; main_group where there are none */
  /* Attention heads that this rank's main tensors hold: [head_first, head_first + head_count) of head_total. head_total 0:
   * not sharded by heads (MLA). */
  uint32_t head_first, head_count, head_total;
  const char *fingerprint; /* what must be equal on both sides and sizes cannot tell (dtype, cache layout); may be NULL */
};

typedef struct rd2h_layout rd2h_layout;

/* Which groups hold main and indexer KV. names: layer names of all groups one after the other; counts[g]: how many of group g.
 * Main: the first group with a name that is no indexer's; indexer: the first with an indexer's, else the main group. */
RD2H_API int rd2h_layout_groups(const char *const *names, const uint32_t *counts, uint32_t n_groups, uint32_t *main_group,
                                uint32_t *indexer_group, struct rd2h_error *err);
/* Sorts tensors into cache layers (ordered by layer number), validates them and infers storage slots.
 * Errors: INVALID (no layer number, no main tensor, wrong tensor count, another KV group than opts name), LAYOUT (rows no multiple
 * of num_blocks), RANGE (past the end of the address space), LIMIT. */
RD2H_API int rd2h_layout_create(const struct rd2h_kv_tensor *t, uint32_t n, const struct rd2h_layout_opts *opts, rd2h_layout **out,
                                struct rd2h_error *err);
RD2H_API void rd2h_layout_destroy(rd2h_layout *);
RD2H_API uint32_t rd2h_layout_layers(const rd2h_layout *);
/* Wire name of a cache layer (that of its main tensors), NULL when out of range. */
RD2H_API const char *rd2h_layout_layer_name(const rd2h_layout *, uint32_t layer);
/* Ordinal of the cache layer that a main or indexer tensor name belongs to, RD2H_NONE when there is none. */
RD2H_API uint32_t rd2h_layout_find(const rd2h_layout *, const char *name);
/* Number of physical storage slots; slots of a layer go to slot[0..1], the return value says how many (1 or 2). */
RD2H_API uint32_t rd2h_layout_slots(const rd2h_layout *);
RD2H_API uint32_t rd2h_layout_layer_slots(const rd2h_layout *, uint32_t layer, uint32_t slot[2]);

/* How one cache layer of a Prefill rank maps to the same layer of a Decode rank: validated once a peer, used for every batch. */
enum rd2h_component { RD2H_MAIN = 0, RD2H_INDEXER = 1 /* the scale, too: it follows the indexer's block range */ };
struct rd2h_link_part {
  uint64_t src_base, dst_base; /* addresses of block 0 */
  uint64_t bytes;              /* bytes of an external block, equal on both sides */
  uint32_t src_blocks;         /* blocks that the source has; UINT32_MAX where the peer has not said */
  uint32_t dst_blocks;
  uint32_t src_region;         /* index into the peer's published regions, RD2H_NONE when unknown */
  uint8_t component;           /* enum rd2h_component */
};
struct rd2h_link {
  uint32_t layer; /* ordinal on Decode */
  uint32_t n_parts;
  struct rd2h_link_part part[RD2H_MAX_TENSORS]; /* K, V, indexer, scale: those that exist, in this order */
};

/* Whether Decode compares what it has read with what Prefill held: a CRC32C of every block, made by Prefill before it announces a layer
 * and sent along. Both sides must want it, and KV must lie in host memory. */
enum rd2h_digest {
  RD2H_DIGEST_OFF = 0,
  RD2H_DIGEST_LOG = 1, /* a difference is counted and logged */
  RD2H_DIGEST_FAIL = 2 /* it ends the request, too (IO), and no other */
};

#ifdef __cplusplus
}
#endif
#endif
