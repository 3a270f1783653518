/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_TESTS_FAULTS_PEERS_H
#define RD2H_TESTS_FAULTS_PEERS_H
/* Prefill and Decode ranks as processes that a test may kill, stop and start again. Each is told what to do through a pipe and says
 * what came of it through another; a Decode rank compares every byte that it got. */
#include "tests/integration/rig.h"
#include <sys/types.h>

#define PEER_BLOCKS 6u /* of one request */
#define PEER_CHUNKS 3u

enum peer_op { PEER_RUN = 1, PEER_QUIT };
struct peer_ask {
  enum peer_op op;
  uint32_t k;        /* number of the request: its id, and what its bytes are made from */
  uint16_t port;     /* Prefill: of Decode */
  uint32_t abort_ms; /* Decode: abort it so long after its installation; 0: never */
};
struct peer_told {
  int status;
  uint16_t port;    /* Decode, at its start */
  uint32_t wrong;   /* Decode: blocks that are not what Prefill wrote, or that nobody may touch and somebody did */
  uint64_t began, ended, aborted; /* CLOCK_MONOTONIC, ns; ended: reported or settled */
  uint64_t gate_ns;               /* Prefill: the longest wait at its gate */
};
struct peer_opts {
  bool prefill;
  const char *engine, *host, *bind; /* host: of Decode, as Prefill reaches it; bind: this side's own address */
  uint16_t port;                    /* Decode: its own; 0: any */
  uint32_t liveness_ms, handshake_ms, hold_ms, progress_ms, probe_ms, read_ms; /* 0: as the library */
  uint32_t blocks;                  /* of the cache; 0: 64 */
  bool flat;                        /* Prefill: no shared storage */
  uint32_t chunks;                  /* Prefill: steps of a request; 0: PEER_CHUNKS */
  int (*enter)(void *arg);          /* called first, in the new process: its network */
  void *arg;
};
struct peer {
  pid_t pid;
  int to, from;
  uint16_t port; /* Decode: where it listens */
};

void peer_start(struct peer *, const struct peer_opts *);
void peer_end(struct peer *, int signal); /* 0: asked to leave; else killed by it */
void peer_ask(struct peer *, uint32_t k, uint16_t port, uint32_t abort_ms);
bool peer_answer(struct peer *, struct peer_told *, uint32_t timeout_ms); /* false: it said nothing */
uint64_t now_ns(void);
#endif
