/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_TESTS_RIG_H
#define RD2H_TESTS_RIG_H
/* A Prefill and a Decode rank with real sockets and real bytes, for tests of the whole path. Nothing sleeps: every wait is for a
 * descriptor and bounded. A failed expectation ends the program with its line. */
#include "base/base.h"
#include "scheduler/step.h"
#include <rd2h/rd2h.h>
#include <stdio.h>
#include <stdlib.h>

#define RIG_CHECK(x) \
  do { \
    if (!(x)) { \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x); \
      abort(); \
    } \
  } while (0)
#define RIG_OK(call, err) \
  do { \
    int rig_rc = (call); \
    if (rig_rc) { \
      fprintf(stderr, "%s:%d: %s: %s: %s\n", __FILE__, __LINE__, #call, rd2h_status_name(rig_rc), (err)->text); \
      abort(); \
    } \
  } while (0)

#define RIG_WAIT_MS 10000
#define RIG_CANARY 0xEE
#define RIG_MAX_BLOCKS 64u
#define RIG_TENSORS 4u /* K, V, indexer, scale */

struct rig_shape {
  uint32_t layers, blocks;
  uint32_t first;        /* number of the first layer: a later pipeline stage's is not 0 */
  uint32_t slots;        /* storage shared by layers i, i + slots, …; 0: own storage each */
  uint32_t indexer_mask; /* bit l: layer l has an indexer with a scale */
};
struct rig_side {
  struct rig_shape shape;
  struct rd2h_memory area;
  rd2h_layout *layout;
};
void rig_side_open(struct rig_side *, const struct rig_shape *);
void rig_side_close(struct rig_side *);
uint32_t rig_block_bytes(uint32_t tensor);
/* The bytes of a block; NULL when the layer lacks the tensor. */
uint8_t *rig_block(const struct rig_side *, uint32_t layer, uint32_t tensor, uint32_t block);
/* Every block of the layer gets bytes that tell layer, tensor, block and write apart. */
void rig_write(const struct rig_side *, uint32_t layer, uint32_t write);
void rig_write_all(const struct rig_side *, uint32_t write);
bool rig_holds(const struct rig_side *, uint32_t layer, uint32_t dst_block, uint32_t src_layer, uint32_t src_block,
               uint32_t write);
bool rig_untouched(const struct rig_side *, uint32_t layer, uint32_t block);

rd2h_prefill *rig_prefill(const struct rig_side *, const struct rd2h_prefill_opts *tweak_or_null);
rd2h_decode *rig_decode(const struct rig_side *, const struct rd2h_decode_opts *tweak_or_null);

/* One request as both sides see it. src: blocks on Prefill; dst: blocks on Decode; equal for main and indexer. */
struct rig_request {
  const char *id, *ext;
  uint32_t n, src[RIG_MAX_BLOCKS], dst[RIG_MAX_BLOCKS];
};
void rig_request(struct rig_request *, const char *id, uint32_t n, uint32_t first_src, uint32_t first_dst);
void rig_install(rd2h_decode *, const struct rig_request *);
/* Blocks [from, to) of the request go out in this step. */
void rig_send(struct rd2h_step_send *, const struct rig_request *, uint16_t port, uint32_t from, uint32_t to, bool last);
void rig_step(rd2h_prefill *, struct rd2h_step_send *, uint32_t n, const char *finished_or_null);
void rig_layers(rd2h_prefill *, uint32_t layers);
/* Each layer is written, and goes out, as soon as its storage may be overwritten. */
void rig_produce(rd2h_prefill *, const struct rig_side *src, uint32_t write);
/* d Decode ranks at neighbouring ports, the first of which is returned. share: each pulls its part of main KV, else all of it. */
uint16_t rig_decode_ranks(rd2h_decode **, const struct rig_side *, uint32_t d, bool share);

/* A rank of each; Decode keeps every layer, even where Prefill's share storage. */
struct rig_pair {
  struct rig_side src, dst;
  rd2h_prefill *p;
  rd2h_decode *d;
};
void rig_pair_open(struct rig_pair *, const struct rig_shape *, const struct rd2h_prefill_opts *tweak_or_null,
                   const struct rd2h_decode_opts *decode_tweak_or_null);
void rig_pair_close(struct rig_pair *);
/* One step: every block and layer of n requests. */
void rig_pair_send(struct rig_pair *, const struct rig_request *, uint32_t n);

/* The status that the id ends with; its text goes to `text` (RD2H_ERROR_TEXT bytes) unless NULL. */
int rig_outcome(rd2h_decode *, const char *id, char *text);
int rig_settled(rd2h_prefill *, const char *id);
/* Counters that hold all that was answered before: they become visible at the end of a turn, after its answers. */
void rig_decode_stats(rd2h_decode *, struct rd2h_decode_stats *);
/* Expects every block of the request on Decode to hold what Prefill wrote. */
void rig_expect(const struct rig_side *dst, const struct rig_request *, uint32_t write);

/* Another process of the test, at the ends of two pipes. Forked before this one has threads. */
struct rig_child {
  pid_t pid;
  int to, from;
};
struct rig_child rig_fork(void (*fn)(int in, int out));
/* Signals it, unless 0, and waits for its end; its status as waitpid() has it. */
int rig_reap(struct rig_child *, int signal);
void rig_put(int fd, uint32_t v);
uint32_t rig_get(int fd);
#endif
