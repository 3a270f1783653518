/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_CLI_PD_READ_H
#define RD2H_CLI_PD_READ_H
/* rd2h pd-read: one Prefill, one Decode, an engine between them and nothing else; a TCP connection beside it carries what each must
 * know of the other. Functions that can fail leave one line for people in err. */
#include "base/base.h"
#include "cli.h"
#include "engine/engine.h"
#include <jansson.h>
#include <netinet/in.h>

#define PD_ENGINE_OPTIONS 16u
#define PD_SHA_HEX 65u        /* with the zero at its end */
#define PD_PEER_NAME 64u
#define PD_NONE UINT64_MAX
#define PD_ROWS 16u

enum pd_memory { PD_OFFLOAD, PD_DEVICE };

struct pd_read {
  bool prefill, json, sweep;
  const char *local_ip, *prefill_ip, *engine, *plot;
  uint64_t device, port, bytes, pool_gb, timeout_s;
  enum pd_memory memory;
  const char *option[PD_ENGINE_OPTIONS + 2]; /* NULL-terminated */
  char device_option[32];
  /* of the run */
  uint64_t deadline;     /* of the step under way */
  uint64_t progress_ns;  /* when a line of progress is due next */
  bool progress_shown;
  rd2h_eng *eng;
  int control;
  char peer[PD_PEER_NAME]; /* the other side, for people */
  uint64_t seed;
  uint8_t *memory_base;
  struct rd2h_pool *pool;
  char chosen[32];       /* engine that was used */
};

/* ---- cmd_pd_read.c ---- */
/* A line for people; not with --json. */
void pd_note(const struct pd_read *, const char *label, const char *fmt, ...) RD2H_PRINTF(3, 4);
/* A line on standard error that is rewritten; only once the step has taken two seconds. */
void pd_progress(struct pd_read *, const char *fmt, ...) RD2H_PRINTF(2, 3);
void pd_progress_end(struct pd_read *);
void pd_step(struct pd_read *); /* a new step begins: its deadline, its progress */

/* ---- pd_memory.c ---- */
int pd_memory_open(struct pd_read *, struct rd2h_error *); /* memory_base, of `bytes` */
void pd_memory_close(struct pd_read *);
void pd_pattern(void *p, uint64_t seed, uint64_t offset, uint64_t n); /* offset and n: multiples of 8, but for the end */
/* First byte of p that is not the pattern's; n: none. */
uint64_t pd_pattern_differs(const uint8_t *p, uint64_t seed, uint64_t offset, uint64_t n);
int pd_sha256(struct pd_read *, char hex[PD_SHA_HEX], struct rd2h_error *);

/* ---- pd_talk.c ---- */
bool pd_address(const char *text, uint16_t port, struct sockaddr_storage *, socklen_t *);
int pd_listen(const struct pd_read *, int *fd, uint16_t *port, struct rd2h_error *);
int pd_accept(struct pd_read *, int listener, struct rd2h_error *); /* control, peer */
int pd_dial(struct pd_read *, struct rd2h_error *);                 /* control, peer */
int pd_send(struct pd_read *, json_t *message, struct rd2h_error *); /* takes the message */
/* The next message of the other side; `during`: what it is doing meanwhile, for people. MALFORMED: it is no pd-read. PEER_LOST. */
int pd_receive(struct pd_read *, const char *during, uint64_t deadline, json_t **message, struct rd2h_error *);
bool pd_hung_up(const struct pd_read *); /* the other side has closed the connection */
const char *pd_text(const json_t *message, const char *key); /* "" where there is none */

/* ---- the two roles: 0 when all bytes were right ---- */
int pd_prefill(struct pd_read *, struct rd2h_error *);
int pd_decode(struct pd_read *, struct rd2h_error *);

/* ---- pd_sweep.c, pd_plot.c ---- */
struct pd_row {
  uint64_t block;
  uint32_t blocks;
  double contiguous, scattered; /* GB/s */
};
struct pd_remote {
  rd2h_eng_peer *peer;
  uint64_t base;
};
/* Reads one batch to its end. */
int pd_read_batch(struct pd_read *, struct pd_remote *, const struct rd2h_batch *, struct rd2h_error *);
int pd_sweep(struct pd_read *, struct pd_remote *, struct pd_row rows[PD_ROWS], uint32_t *n, struct rd2h_error *);
void pd_sweep_table(const struct pd_row *, uint32_t n);
int pd_plot(const char *path, const char *title, const struct pd_row *, uint32_t n, struct rd2h_error *);
#endif
