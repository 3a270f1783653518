/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_CLI_DEMO_H
#define RD2H_CLI_DEMO_H
/* The demonstration: a Prefill and a Decode process with the shapes of DeepSeek-V3.2 move a prompt list, every byte is checked.
 * Parent and children share one struct demo, laid out before they are started. */
#include <rd2h/rd2h.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DEMO_BLOCK_TOKENS 128u
#define DEMO_PARTS 4u /* K, V, indexer, scale */
#define DEMO_MAX_REQUESTS 64u
#define DEMO_MAX_LAYERS 256u
#define DEMO_WAIT_MS 60000 /* longest wait for the other process */

extern const char *const demo_part_name[DEMO_PARTS];

struct demo_request {
  char id[40], ext_id[40];
  uint32_t tokens, blocks;
  uint32_t cached;            /* blocks of a prefix that Decode has already: they must stay as they are */
  uint32_t *source, *target;  /* block ids on Prefill and on Decode, by place in the prompt */
  uint8_t attempt[RD2H_ATTEMPT_BYTES];
};

struct demo_times { /* nanoseconds of one clock */
  uint64_t begin, last_layer, complete, compute;
};

struct demo_result {
  bool failed;
  char text[RD2H_ERROR_TEXT]; /* why */
};

struct demo {
  /* options */
  uint32_t layers, n_requests, prompt_tokens, chunk, compute_us;
  uint64_t seed;
  char engine[32];
  bool json, lic8, quiet;
  /* workload, the same for both processes */
  uint64_t part_bytes[DEMO_PARTS]; /* of a block; 0: no such part */
  uint32_t num_blocks;             /* on either side */
  struct demo_request request[DEMO_MAX_REQUESTS];
  uint64_t oracle[DEMO_PARTS];     /* bytes that have to move */
  /* what happens */
  sem_t installed, settled;
  uint16_t port;
  uint64_t moved;                  /* atomic: bytes so far, for the progress bar */
  uint32_t phase;                  /* atomic: enum demo_phase */
  struct demo_times time;
  struct demo_result prefill, decode;
  struct rd2h_decode_stats stats;
  uint64_t checked, wrong, disturbed; /* bytes compared, of them wrong; blocks changed that nobody may write */
  uint64_t memcpy_bytes_s;         /* of this machine, same blocks */
  uint64_t rss_kib[2];             /* resident at most: Prefill, Decode */
};
enum demo_phase { DEMO_PREPARE, DEMO_TRANSFER, DEMO_VERIFY, DEMO_OVER };

uint64_t demo_now(void);
/* Fills workload and oracle from options and seed. False: out of memory. */
bool demo_workload(struct demo *);
void demo_workload_free(struct demo *);
uint64_t demo_total(const uint64_t part[DEMO_PARTS]);

/* One side's memory: one mapping, tensors by layer and part. */
struct demo_memory {
  uint8_t *base;
  size_t bytes;
  rd2h_layout *layout;
};
bool demo_memory_open(const struct demo *, struct demo_memory *, struct rd2h_error *);
void demo_memory_close(struct demo_memory *);
uint8_t *demo_block(const struct demo *, const struct demo_memory *, uint32_t layer, uint32_t part, uint32_t block);
/* The content of a block names request, layer, part and place; request DEMO_MAX_REQUESTS: what nobody has written. */
void demo_fill(const struct demo *, uint8_t *block, uint32_t request, uint32_t layer, uint32_t part, uint32_t place);
uint64_t demo_differ(const struct demo *, const uint8_t *block, uint32_t request, uint32_t layer, uint32_t part, uint32_t place);

/* The two processes: return what the process exits with. */
int demo_prefill(struct demo *);
int demo_decode(struct demo *);
int demo_fail(struct demo_result *, const char *what, const char *why);
bool demo_wait(sem_t *);
/* The summary. */
void demo_report(const struct demo *);
void demo_report_json(const struct demo *);
#endif
