/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_LOCAL_H
#define RD2H_LOCAL_H
/* Inside of engine local: reads another process of this host, shared memory of it by copies out of a mapping of the same pages,
 * all else with process_vm_readv. */
#include "base/base.h"
#include <pthread.h>
#include <rd2h/engine.h>
#include <sys/socket.h>
#include <sys/types.h>

#define LOCAL_NONCE 16u
#define LOCAL_HOST_MAX 64u /* bytes of a host name in connection data */
#define LOCAL_CONN_MAX 160u
#define LOCAL_MAPS_MAX 240u /* allocations that one Prefill hands over; the kernel passes at most 253 descriptors a message */
#define LOCAL_HAND_MAGIC 0x48326472u
#define LOCAL_HAND_VERSION 1u

/* What Prefill publishes. The nonce stands in Prefill's memory at nonce_addr for as long as that process image lives: who reads
 * it there after a batch knows that the whole batch came out of this image, not out of a later one under the same pid. */
struct rd2h_local_conn {
  uint32_t pid, uid;
  uint64_t start;  /* process start time, clock ticks since boot: field 22 of /proc/PID/stat */
  uint64_t pid_ns; /* inode of its pid namespace; 0: not known */
  uint8_t boot_id[16];
  uint64_t nonce_addr;
  uint8_t nonce[LOCAL_NONCE];
  uint64_t socket;   /* where its shared memory is handed over; 0: it has none */
  uint32_t host_len; /* printable ASCII; for people */
  char host[LOCAL_HOST_MAX + 1];
};

enum { LOCAL_BY_MAP = 1, LOCAL_BY_CALL = 2 };

/* What Prefill's socket says, with one descriptor a range: native integers, both ends are on one host. */
struct rd2h_local_hand {
  uint32_t magic, version;
  uint8_t nonce[LOCAL_NONCE];
  uint32_t n, zero;
  struct rd2h_local_hand_map {
    uint64_t base, len; /* in Prefill; base is the file's first byte */
  } map[LOCAL_MAPS_MAX]; /* ascending, apart */
};

struct rd2h_local_map {
  uint64_t base, len; /* in the peer */
  const uint8_t *at;  /* here */
};
static inline bool rd2h_local_inside(const struct rd2h_local_map *m, uint64_t at, uint64_t len) {
  return at - m->base < m->len && len <= m->len - (at - m->base);
}

struct rd2h_local_copier {
  const char *name;
  bool (*works)(void); /* on this processor; NULL: on every one */
  void (*copy)(void *to, const void *from, size_t n);
  void (*settle)(void); /* after the last copy, before anybody is told of it */
};
struct rd2h_local_offer;

struct rd2h_peer {
  struct rd2h_local_conn at; /* of a legacy session only pid and uid are set */
  bool has_nonce;
  int pidfd;
  int sock; /* Prefill's memfds are to come from it; -1: not or no more */
  struct rd2h_local_map *map; /* ascending; constant from when it is settled */
  uint32_t n_maps;
  uint8_t used;         /* what the latest batch was read by (LOCAL_BY_...), 0: none yet; atomic */
  bool settled;         /* nothing more is to come; atomic, set under the lock */
  pthread_mutex_t lock; /* of the threads that read: who takes in what comes */
  uint64_t cookie;
};

struct rd2h_engine {
  uint64_t slice;
  bool prefill, legacy_session, opened_yama;
  uint32_t regions;
  int epoll; /* of the peers' pidfds */
  uint8_t *nonce_page; /* Prefill */
  struct rd2h_local_conn self;
  struct rd2h_local_offer *offer; /* Prefill; NULL until shared memory is registered */
  const struct rd2h_local_copier *copier;
};

extern const struct rd2h_engine_ops rd2h_engine_local;

/* conn.c: little-endian, docs at the encoder. decode: MALFORMED, UNSUPPORTED (another schema). */
uint32_t rd2h_local_encode(const struct rd2h_local_conn *, uint8_t out[LOCAL_CONN_MAX]); /* returns its length */
int rd2h_local_decode(struct rd2h_blob, struct rd2h_local_conn *, struct rd2h_error *);
/* The pid of a session string "host:PID". */
int rd2h_local_legacy_pid(struct rd2h_blob session, uint32_t *pid, struct rd2h_error *);

/* proc.c: what /proc says. */
int rd2h_local_self(struct rd2h_local_conn *, struct rd2h_error *); /* all but the nonce */
int rd2h_local_start_time(uint32_t pid, uint64_t *start);           /* 0 or an errno */
uint32_t rd2h_local_uid(uint32_t pid, uint32_t otherwise);
int rd2h_local_yama(void);                                          /* kernel.yama.ptrace_scope, -1 where there is no Yama */
/* Fills err for a read of the process that the kernel refused, given what is known; scope as of rd2h_local_yama. */
int rd2h_local_denied(const struct rd2h_local_conn *, uint32_t my_uid, int scope, struct rd2h_error *);

/* read.c */
bool rd2h_local_alive(const rd2h_peer *);
int rd2h_local_lost(const rd2h_peer *, const char *how, struct rd2h_error *);
/* Reads the nonce alone: does the process image that published it still run, and may it be read? */
int rd2h_local_probe(rd2h_engine *, rd2h_peer *, struct rd2h_error *);
const char *rd2h_local_way(rd2h_engine *, rd2h_peer *); /* what the latest batch was read by, before one what the next will be */
int rd2h_local_read(rd2h_engine *, rd2h_peer *, const struct rd2h_batch *, const volatile bool *stop, uint64_t *done,
                    uint32_t *failed_at, struct rd2h_error *);

/* copy.c: i-th kind, best first, NULL behind the last; the best that works here */
const struct rd2h_local_copier *rd2h_local_copier(uint32_t i);
const struct rd2h_local_copier *rd2h_local_best_copier(void);

/* offer.c: Prefill */
struct sockaddr_un;
void rd2h_local_socket_name(uint64_t id, struct sockaddr_un *, socklen_t *len);
/* Where the region lies in shared memory, offers it; the first time that opens *offer and sets *id. */
int rd2h_local_offer_add(struct rd2h_local_offer **offer, uint64_t *id, const uint8_t nonce[LOCAL_NONCE],
                         const struct rd2h_region *, struct rd2h_error *);
void rd2h_local_offer_close(struct rd2h_local_offer *); /* takes NULL */

/* map.c: Decode */
void rd2h_local_ask(rd2h_peer *);     /* connects, where there is something to ask for */
bool rd2h_local_receive(rd2h_peer *); /* maps what has come, any thread; true: the maps can be used */
void rd2h_local_unmap(rd2h_peer *);
const struct rd2h_local_map *rd2h_local_find(const rd2h_peer *, uint64_t at, uint64_t len); /* NULL: not mapped, not as a whole */
/* NULL, or what is wrong with a message of len bytes that came with so many descriptors. */
const char *rd2h_local_hand_check(const struct rd2h_local_hand *, size_t len, const uint8_t nonce[LOCAL_NONCE], uint32_t n_fds);
#endif
