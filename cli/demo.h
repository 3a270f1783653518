/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_CLI_DEMO_H
#define RD2H_CLI_DEMO_H
/* The demonstration: Prefill and Decode engines of any size, every rank a process, move a prompt list with the shapes of a model;
 * every byte is checked. Parent and children share one struct demo, laid out before they are started. */
#include <rd2h/rd2h.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DEMO_PARTS 4u /* K, V, indexer, scale */
#define DEMO_MAIN_PARTS 2u
#define DEMO_GROUPS 2u /* KV groups: main, indexer */
#define DEMO_MAX_REQUESTS 64u
#define DEMO_NOBODY DEMO_MAX_REQUESTS /* owner of a block that nobody has written */
#define DEMO_MAX_LAYERS 256u
#define DEMO_MAX_TP 16u
#define DEMO_MAX_PP 16u
#define DEMO_MAX_ENGINES 8u
#define DEMO_MAX_RANKS 128u
#define DEMO_MAX_REUSE 16u
#define DEMO_MAX_EVENTS (1u << 20)
#define DEMO_GUARD 4096u   /* bytes before and after a rank's indexer memory that must stay as they are */
#define DEMO_WAIT_MS 60000 /* longest wait for another process */
#define DEMO_LAST_MS 3000  /* longest wait for what is under way when a signal ends it */

extern const char *const demo_part_name[DEMO_PARTS];

struct demo_model {
  const char *name, *title, *assumed;
  uint32_t layers, indexer_every; /* one layer in so many has an indexer */
};
extern const struct demo_model demo_models[];

struct demo_request {
  char id[40], ext_id[40];
  uint32_t tokens, blocks;
  uint32_t cached; /* blocks of a prefix that Decode has already: they must stay as they are */
  uint32_t hit;    /* blocks of a prefix that Prefill has already: its first step begins behind them */
  uint32_t from, to; /* engines: Prefill, Decode */
  uint32_t *source[DEMO_GROUPS], *target[DEMO_GROUPS]; /* block ids by place in the prompt */
  uint8_t attempt[RD2H_ATTEMPT_BYTES];
};

struct demo_result {
  bool failed;
  char text[RD2H_ERROR_TEXT]; /* why */
};

/* One process. */
struct demo_rank {
  bool prefill;
  uint32_t engine, pp, tp; /* pp 0 on Decode */
  char name[64];
  struct demo_result result;
  uint64_t rss_kib;
  /* Prefill: nanoseconds of one clock */
  uint64_t begin, last_layer, compute, gate_ns;
  uint32_t steps, gates;
  /* Decode */
  uint64_t complete, bytes; /* bytes: so far, for the progress bar */
  uint64_t moved[DEMO_PARTS];
  struct rd2h_decode_stats stats;
  uint64_t checked, wrong, disturbed; /* bytes compared, of them wrong; blocks changed that nobody may write */
};

enum demo_event_kind { DEMO_COMPUTE, DEMO_GATE, DEMO_DISPATCH, DEMO_READ, DEMO_ANSWER, DEMO_KINDS };
struct demo_event {
  uint64_t begin, end, bytes;
  uint16_t rank, layer;
  uint8_t kind;
};

enum demo_mismatch { DEMO_MATCH, DEMO_OTHER_INDEXER, DEMO_OTHER_LAYERS, DEMO_OTHER_HEADS };
enum demo_phase { DEMO_PREPARE, DEMO_TRANSFER, DEMO_VERIFY };

struct demo {
  /* options */
  const struct demo_model *model;
  uint32_t p_engines, p_tp, p_pp, d_engines, d_tp;
  uint32_t layers, n_requests, prompt_tokens, chunk, block_tokens, compute_us;
  uint32_t reuse, independent; /* storage slots that layers share; layers before that with storage of their own */
  enum demo_mismatch mismatch;
  uint64_t seed;
  char engine[32], trace[256];
  bool json, lic8;
  /* workload, the same for all processes */
  uint64_t part_bytes[DEMO_PARTS]; /* of a block; 0: no such part */
  uint32_t p_blocks, d_blocks;     /* of every engine of that side */
  uint32_t indexer_layers;
  struct demo_request request[DEMO_MAX_REQUESTS];
  uint64_t oracle[DEMO_PARTS];     /* bytes that have to move */
  uint16_t port[DEMO_MAX_ENGINES]; /* of the first rank of a Decode engine */
  uint32_t n_ranks;
  struct demo_rank rank[DEMO_MAX_RANKS];
  /* what happens; counters are waited for (demo_await) */
  char pool[DEMO_MAX_ENGINES][RD2H_POOL_HANDLE];
  uint32_t pool_there[DEMO_MAX_ENGINES], installed, settled, pulled[DEMO_MAX_ENGINES];
  uint32_t phase; /* atomic: enum demo_phase */
  uint32_t stopped; /* atomic: the signal that ends it, 0: none */
  uint64_t memcpy_bytes_s; /* of this machine, same blocks */
  uint32_t n_events, events_lost; /* atomic */
  struct demo_event *event; /* NULL: no trace is taken */
};

/* ---- demo_options.c ---- -1: go on; else the exit status. */
int demo_parse(int argc, char **argv, struct demo *);

/* ---- demo_sync.c ---- */
uint64_t demo_now(void); /* CLOCK_BOOTTIME, ns */
int demo_fail(struct demo_rank *, const char *why);
void demo_post(uint32_t *counter);
/* Waits until the counter is at least `want`; false, and why, after DEMO_WAIT_MS or when a signal ends it. */
bool demo_await(const struct demo *, const uint32_t *counter, uint32_t want, const char *what, struct rd2h_error *);
bool demo_find_ports(struct demo *); /* neighbouring ports for each Decode engine */

/* ---- demo_signal.c ---- SIGTERM and SIGINT, sent to any process of it, end the demonstration; SIGUSR1 to the parent has every rank dump
 * its state. Before the ranks are started: they inherit it. */
void demo_signals(struct demo *);
void demo_signals_end(void);
uint32_t demo_stopped(const struct demo *); /* the signal, or 0 */
bool demo_dump_asked(void);                 /* since the last call */
void demo_dump_block(bool block);           /* in ranks, whose speaker waits for the signal */
/* A rank's thread that writes dump(object) to standard error at SIGUSR1. Ends before the object does. */
void demo_speaker(const struct demo_rank *, size_t (*dump)(void *object, char *out, size_t cap), void *object);
void demo_speaker_end(void);

/* ---- demo_workload.c ---- Fills workload and oracle from options and seed. False: out of memory. */
bool demo_workload(struct demo *);
void demo_workload_free(struct demo *);
uint64_t demo_total(const uint64_t part[DEMO_PARTS]);
uint64_t demo_random(uint64_t *state);
bool demo_has_indexer(const struct demo *, uint32_t layer);
void demo_stage(const struct demo *, uint32_t pp, uint32_t *first, uint32_t *end); /* layers of a pipeline stage */
/* The content of a block names request, layer, part and place. */
void demo_fill(const struct demo *, uint8_t *block, uint32_t request, uint32_t layer, uint32_t part, uint32_t place);
uint64_t demo_differ(const struct demo *, const uint8_t *block, uint32_t request, uint32_t layer, uint32_t part, uint32_t place);

/* ---- demo_memory.c ---- One rank's KV: layer numbers are the model's. */
struct demo_memory {
  const struct demo *d;
  bool prefill;
  uint32_t first, end;       /* layers */
  rd2h_pool *pool;           /* Decode: main KV */
  uint8_t *map;              /* Prefill: everything; Decode: indexers */
  size_t bytes;
  rd2h_layout *layout;
  struct rd2h_memory area[2];
  uint32_t n_areas;
};
int demo_memory_open(struct demo *, const struct demo_rank *, struct demo_memory *, struct rd2h_error *);
void demo_memory_close(struct demo_memory *);
/* NULL when the layer lacks the part. */
uint8_t *demo_block(const struct demo_memory *, uint32_t layer, uint32_t part, uint32_t block);
/* Which part an address of a Decode rank's memory belongs to. */
uint32_t demo_part_of(const struct demo_memory *, const void *);
/* Prefill: number of the storage slot of a layer's main part or indexer; slots of one side. */
uint32_t demo_slot(const struct demo_memory *, uint32_t layer, uint32_t part);

/* ---- the processes ---- return what they exit with */
int demo_prefill(struct demo *, struct demo_rank *);
int demo_decode(struct demo *, struct demo_rank *);
/* demo_verify.c: compares what this rank is responsible for. */
void demo_paint(const struct demo_memory *, const struct demo_rank *); /* or a part of it, when a signal ends it */
int demo_verify(const struct demo_memory *, struct demo_rank *, struct rd2h_error *);

/* ---- demo_trace.c ---- */
bool demo_trace_open(struct demo *);
void demo_trace_event(struct demo *, const struct demo_rank *, enum demo_event_kind, uint32_t layer, uint64_t begin, uint64_t end,
                      uint64_t bytes);
/* What the library reports in this process goes to the trace; on Decode bytes are counted by component, too. */
void demo_trace_listen(struct demo *, struct demo_rank *, const struct demo_memory *);
bool demo_trace_write(const struct demo *);

/* ---- demo_report.c ---- */
void demo_report(const struct demo *);
void demo_report_json(const struct demo *, bool good);
#endif
