/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_LOCAL_H
#define RD2H_LOCAL_H
/* Inside of engine local: reads another process of this host with process_vm_readv. */
#include "base/base.h"
#include <rd2h/engine.h>
#include <sys/types.h>

#define LOCAL_NONCE 16u
#define LOCAL_HOST_MAX 64u /* bytes of a host name in connection data */
#define LOCAL_CONN_MAX 160u

/* What Prefill publishes. The nonce stands in Prefill's memory at nonce_addr for as long as that process image lives: who reads
 * it there after a batch knows that the whole batch came out of this image, not out of a later one under the same pid. */
struct rd2h_local_conn {
  uint32_t pid, uid;
  uint64_t start;  /* process start time, clock ticks since boot: field 22 of /proc/PID/stat */
  uint64_t pid_ns; /* inode of its pid namespace; 0: not known */
  uint8_t boot_id[16];
  uint64_t nonce_addr;
  uint8_t nonce[LOCAL_NONCE];
  uint32_t host_len; /* printable ASCII; for people */
  char host[LOCAL_HOST_MAX + 1];
};

struct rd2h_peer {
  struct rd2h_local_conn at; /* of a legacy session only pid and uid are set */
  bool has_nonce;
  int pidfd;
  uint64_t cookie;
};

struct rd2h_engine {
  uint64_t slice;
  bool prefill, legacy_session, opened_yama;
  uint32_t regions;
  int epoll; /* of the peers' pidfds */
  uint8_t *nonce_page; /* Prefill */
  struct rd2h_local_conn self;
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
int rd2h_local_read(rd2h_engine *, rd2h_peer *, const struct rd2h_batch *, const volatile bool *stop, uint64_t *done,
                    uint32_t *failed_at, struct rd2h_error *);
#endif
