/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_UCX_H
#define RD2H_UCX_H
/* Inside of engine ucx. One thread an engine makes every call into UCX (reads, connections, registrations come to it as orders), and
 * sleeps on UCX's own event descriptor: on Prefill it only answers what a transport cannot do without its owner. */
#include "base/base.h"
#include "base/fifo.h"
#include "base/pattern.h"
#include "base/ready.h"
#include "engines/ucx/api.h"
#include <pthread.h>
#include <rd2h/engine.h>
#include <stdatomic.h>

#define UCX_SLOTS 1024u       /* reads taken and not yet polled, all peers */
#define UCX_SLOTS_PEER 64u
#define UCX_GETS 16384u       /* gets under way, all peers; none takes more than it leaves */
#define UCX_GETS_PEER 1024u
#define UCX_BYTES_PEER (16u << 20) /* bytes under way of one peer: what a cancel may have to wait for */
#define UCX_PIECE (4u << 20)  /* bytes of one get */
#define UCX_REGIONS_MAX 4096u
#define UCX_ADDRESS_MAX 65536u
#define UCX_KEY_MAX 4096u
#define UCX_CONN_MAX (1u << 20)
#define UCX_TIMEOUT_NS (31000 * RD2H_MS) /* where the options name none */
#define UCX_DEAF_NS (10000 * RD2H_MS) /* gets that UCX does not end are told of after this */

/* ---- load.c: the library, once a process ---- */
/* path NULL: RD2H_UCX_LIBRARY, then libucp.so.0 of the loader. UNSUPPORTED: not there, too old, or not what is needed. */
int rd2h_ucx_load(const char *path, const struct ucx_api **, struct rd2h_error *);
const char *rd2h_ucx_version(void); /* "1.22.0 of /path", once loaded */
/* The last error that UCX said on this thread, as " (text)", or "". Cleared by the call. */
const char *rd2h_ucx_said(void);

/* ---- conn.c: connection data ---- */
struct ucx_process {
  uint32_t pid;
  uint64_t start, pid_ns;
  uint8_t boot_id[16];
};
struct ucx_key {
  uint64_t base, len;
  const uint8_t *key; /* packed remote key, in the blob */
  uint32_t key_len;
};
struct ucx_conn {
  struct ucx_process process;
  const uint8_t *address; /* of the UCX worker, in the blob */
  uint32_t address_len, n;
  struct ucx_key *key;    /* n of them, by region index; len 0: taken back */
  struct ucx_key pattern; /* RD2H_PATTERN bytes that follow from the seed */
  bool guarded;           /* reads that UCX emulates are not answered */
  uint64_t seed;
};
uint32_t rd2h_ucx_conn_size(const struct ucx_conn *);
void rd2h_ucx_conn_encode(const struct ucx_conn *, uint8_t *out);
void rd2h_ucx_conn_seal(uint8_t *p, uint32_t n); /* writes the checksum */
/* Pointers of *out lead into the blob, but for key, which is allocated. */
int rd2h_ucx_conn_decode(struct rd2h_blob, struct ucx_conn *out, struct rd2h_error *);

/* ---- proc.c ---- */
void rd2h_ucx_self(struct ucx_process *); /* zeros where /proc says nothing */
/* A pidfd of the process when it is of this host and still the same one; -1: not to be seen from here. PEER_LOST: it has ended. */
int rd2h_ucx_watch(const struct ucx_process *self, const struct ucx_process *, int *pidfd, struct rd2h_error *);

/* ---- reads ---- */
struct ucx_slot {
  struct ucx_slot *next; /* of a list: submitted, a peer's queue, done, reported, free */
  const struct rd2h_batch *b;
  rd2h_peer *peer;
  uint64_t id, submitted, bytes; /* bytes: landed */
  uint32_t i;            /* next descriptor to ask for */
  uint64_t off;          /* and where in it */
  uint32_t open;         /* gets under way */
  atomic_bool cancel;
  bool live;             /* submitted and not completed; guarded by the lock */
  int status;
  uint32_t failed_at;
  struct rd2h_error *err;
};
RD2H_FIFO(ucx_list, struct ucx_slot, next);
struct ucx_get {
  struct ucx_get *next;
  struct ucx_slot *slot;
  uint32_t i;
  uint64_t len;
};
struct ucx_region {
  uint64_t base, len; /* len 0: taken back */
  void *memh, *packed;
  size_t packed_len;
};

/* The first read of a connection. */
struct ucx_trial {
  bool on, landed;
  ucx_status status; /* once landed */
  uint64_t begin, seed;
  void *rkey;
  uint8_t got[RD2H_PATTERN];
};

struct rd2h_peer {
  rd2h_peer *next, *next_busy, *next_down;
  rd2h_engine *e;
  uint64_t cookie;
  void *ep;
  struct ucx_key *key; /* n of them; their key pointers are not valid */
  void **rkey;
  uint32_t n, hint;
  int pidfd;
  char name[64];       /* the session, for people */
  char way[192];       /* transports and devices, as UCX names them */
  struct ucx_trial trial; /* nothing else is read while it is on */
  struct ucx_list queue; /* reads of it that have not ended, in order */
  uint32_t open;       /* gets under way */
  uint64_t open_bytes, landed_ns;
  bool busy;           /* on the list of those that the thread looks after */
  bool lost;
  bool leaving;        /* disconnected: freed once nothing of it is under way */
  bool deaf;           /* has been told of */
  void *closing;       /* UCX's request while the endpoint ends */
  uint64_t left_ns, closed_ns; /* since when it leaves; since when the endpoint ends */
  bool *fenced;        /* of the caller that waits until no read can land any more; set under the lock */
  int failure;         /* what UCX's error handler was given */
  uint32_t taken;      /* slots; guarded by the lock */
  bool told;           /* down, to be told or told; guarded by the lock */
};
RD2H_FIFO(ucx_downs, rd2h_peer, next_down);

/* Done by the engine's thread for a caller that waits. */
struct ucx_order {
  int (*run)(rd2h_engine *, void *arg, struct rd2h_error *);
  void *arg;
  struct rd2h_error *err;
  int rc;
  bool done;
};

struct rd2h_engine {
  const struct ucx_api *ucx;
  void *context, *worker;
  int worker_fd, epoll, wake;
  bool prefill, require_rdma, emulation; /* emulation: of reads, by the process that is read from */
  uint64_t timeout, deaf_ns;
  struct ucx_process self;
  pthread_t thread;
  bool started;
  atomic_bool attention; /* the thread has something to look at under the lock */
  /* the thread's own */
  rd2h_peer *peers, *busy;
  struct ucx_get *free_gets;
  uint32_t n_free;
  uint64_t now;              /* of the turn under way */
  bool stopping;
  struct ucx_region *region; /* UCX_REGIONS_MAX */
  uint32_t n_regions, hint;
  bool warned;               /* that there is no RDMA */
  struct ucx_region pattern; /* on Prefill */
  uint64_t seed;
  /* guarded by the lock */
  pthread_mutex_t lock;
  pthread_cond_t ordered;
  bool stop, sleeping;
  struct ucx_order *order;
  struct ucx_list submitted, done, reported;
  struct ucx_slot *free_slots;
  struct ucx_downs down;
  struct rd2h_ready ready; /* while a completion or an event waits */
  struct rd2h_engine_stats stats;
  struct ucx_slot *slot; /* UCX_SLOTS */
  struct rd2h_error *errors;
  struct ucx_get *get;   /* UCX_GETS */
};

/* ---- loop.c ---- */
int rd2h_ucx_loop_start(rd2h_engine *, struct rd2h_error *);
/* Waits for peers that leave, but not for ever: those that are left in the list UCX did not let go. */
void rd2h_ucx_loop_stop(rd2h_engine *);
int rd2h_ucx_order(rd2h_engine *, int (*run)(rd2h_engine *, void *, struct rd2h_error *), void *arg, struct rd2h_error *);
void rd2h_ucx_wake(rd2h_engine *); /* with the lock held */

/* ---- peer.c: on the thread ---- */
struct ucx_connect {
  struct ucx_conn at;
  struct rd2h_blob session;
  uint64_t cookie;
  rd2h_peer *peer; /* result */
};
int rd2h_ucx_peer_connect(rd2h_engine *, void *connect, struct rd2h_error *);
struct ucx_leave {
  rd2h_peer *peer;
  bool fenced; /* result: set later, when none of its reads can land any more; ordered tells */
};
int rd2h_ucx_peer_leave(rd2h_engine *, void *leave, struct rd2h_error *);
/* Looks after one whose endpoint ends, or that leaves; false: nothing of it is under way any more. */
bool rd2h_ucx_peer_ending(rd2h_engine *, rd2h_peer *);
void rd2h_ucx_peer_free(rd2h_engine *, rd2h_peer *); /* one that has left, or was never connected */
/* The connection ends: what is queued fails with the status, and a peer event says so. */
void rd2h_ucx_peer_lose(rd2h_engine *, rd2h_peer *, const char *why);
bool rd2h_ucx_peer_died(const rd2h_peer *); /* its process, seen from this host, has ended */

/* ---- pattern.c: on the thread, but for open and close ---- */
/* Prefill's: RD2H_PATTERN bytes of a random seed, to be mapped by the caller. */
int rd2h_ucx_pattern_new(rd2h_engine *, uint8_t **out, struct rd2h_error *);
int rd2h_ucx_trial_begin(rd2h_engine *, rd2h_peer *, const struct ucx_conn *, struct rd2h_error *);
/* Ends the trial, or the peer, once the pattern is here or does not come. */
void rd2h_ucx_trial_check(rd2h_engine *, rd2h_peer *);

/* ---- read.c: on the thread ---- */
bool rd2h_ucx_peer_is_gone(ucx_status); /* what a get says when its peer is lost */
void rd2h_ucx_begin(rd2h_engine *, struct ucx_slot *);
void rd2h_ucx_busy(rd2h_engine *, rd2h_peer *); /* it is advanced until there is nothing left to do */
/* Posts what may be under way, ends what has ended; false: nothing is left to do for this peer. */
bool rd2h_ucx_advance(rd2h_engine *, rd2h_peer *);
void rd2h_ucx_signal(rd2h_engine *); /* with the lock held */

extern const struct rd2h_engine_ops rd2h_engine_ucx;
#endif
