/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_CLI_BENCH_H
#define RD2H_CLI_BENCH_H
/* What the benches share: the shape of a cache, block ids, clocks, medians, and a Decode rank that serves requests for ever. */
#include <rd2h/rd2h.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define BENCH_LAYERS 61u
#define BENCH_BLOCKS 300000u   /* of the cache on either side */
#define BENCH_PARTS 4u         /* K, V, indexer, scale */
#define BENCH_RUNS_MAX 1000u
extern const uint64_t bench_part_bytes[BENCH_PARTS]; /* DeepSeek-V3.2, LIC8 */

struct bench_pattern {
  const char *name;
  uint32_t run; /* neighbours that continue on both sides; 0: all of a request */
};
#define BENCH_PATTERNS 3
extern const struct bench_pattern bench_patterns[BENCH_PATTERNS];
/* NULL, with a line on standard error, for a name that is none. */
const struct bench_pattern *bench_pattern(const char *what, const char *name);

uint64_t bench_now(void); /* ns, monotonic */
uint64_t bench_cpu(void); /* ns of CPU of the whole process */
double bench_median(double *v, uint64_t n); /* sorts v */
/* Pins the process (threads to come, too) to the n-th CPU it may use, the last one where there are fewer. Returns its number. */
int bench_pin(uint32_t nth);

/* What a process has cost: CPU of all of it and of its thread of this name (a Decode rank's control thread), the most it had resident. */
#define BENCH_CONTROL_THREAD "rd2h-d0"
struct bench_cost {
  double process_ns, thread_ns, resident_kb;
};
struct bench_cost bench_cost_of(pid_t);
struct bench_cost bench_cost_since(pid_t, struct bench_cost begin, double messages); /* times for each message */
/* A ZeroMQ socket whose queues have no bound. */
void *bench_no_limits(void *ctx, int type);
/* A bare ROUTER in a process on the first CPU answers so many messages of so many bytes, from so many bare DEALERs in this one; they are on
 * their way before it takes the first. False: it failed. */
bool bench_bare_crowd(uint32_t dealers, uint32_t messages, size_t bytes, struct bench_cost *);

/* 61 layers like DeepSeek-V3.2's; no memory stands behind the addresses. */
int bench_layout(uint64_t base, rd2h_layout **, struct rd2h_error *);
/* Distinct ids below `cache`, request after request; lists of different seeds have nothing in common but the pattern. */
bool bench_ids(uint64_t seed, uint32_t cache, uint32_t requests, uint32_t blocks, const struct bench_pattern *, uint32_t *out);

/* A Decode rank with engine noop whose requests "req-0", "req-1", … are installed again whenever they end. */
struct bench_stand {
  rd2h_layout *layout;
  rd2h_decode *rank;
  uint32_t requests, blocks;
  uint32_t *main, *indexer; /* ids, request after request */
  uint64_t installed_again, failed;
};
int bench_stand_open(struct bench_stand *, uint16_t port, uint32_t requests, uint32_t blocks, const struct bench_pattern *,
                     struct rd2h_error *);
void bench_stand_close(struct bench_stand *);
/* To be called when rd2h_decode_fd() is readable. */
int bench_stand_turn(struct bench_stand *, struct rd2h_error *);

/* A Prefill rank with one request at a time, whose prompt is computed in steps of `blocks` blocks: the caller announces layers. */
struct bench_source {
  rd2h_layout *layout; /* this and what follows: the caller's, set before bench_source_open */
  uint32_t *ids;       /* blocks * steps of them */
  uint32_t blocks, steps, groups;
  uint16_t port;       /* of the Decode rank */
  enum rd2h_digest digest;
  rd2h_prefill *rank;
  rd2h_prefill_scheduler *half;
  char id[48];
  struct rd2h_error err;
};
int bench_source_open(struct bench_source *, const char *engine, const struct rd2h_memory *);
void bench_source_close(struct bench_source *);
int bench_source_request(struct bench_source *, uint32_t request); /* "req-N" on the wire */
int bench_source_step(struct bench_source *, uint32_t step);
void bench_source_end(struct bench_source *);
#endif
