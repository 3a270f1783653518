/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_SRC_POOL_ACC_H
#define RD2H_SRC_POOL_ACC_H
/* Pools in memory of MemFabric's offload API (libmf_acc_offload.so). */
#include "pool/pool.h"
#include <netinet/in.h>

#define POOL_PROVIDER_MAX 1280u
#define POOL_ACC_WORLD_MAX 1024u
#define POOL_ACC_UNIT (UINT64_C(1) << 30) /* the library rounds up to it */

/* ---- acc_options.c ---- */
struct pool_acc_options {
  uint32_t device, rank, world, init_s;
  bool has_rank;
  char store[64], lib[RD2H_LOCATE_MAX];
  struct sockaddr_in address; /* of the store */
};
int pool_acc_options(const char *provider, struct pool_acc_options *, struct rd2h_error *);

/* ---- acc.c: the library, of which a process has one, and once ---- */
/* Waits for all ranks. bytes: of the pool, equal on all. */
int pool_acc_join(const struct pool_acc_options *, const char *provider, uint64_t bytes, struct rd2h_error *);
/* Marks the memory as in use; refuses who has not joined with this very provider and size, or is of the other kind of rank. On rank 0
 * *base is its memory. */
int pool_acc_take(const char *provider, uint64_t bytes, bool creator, uint8_t **base, struct rd2h_error *);
void pool_acc_give_back(uint8_t *base); /* after a take whose pool did not come about; NULL: not rank 0 */
void pool_acc_leave(uint8_t *base);     /* ends it for this process; NULL: not rank 0 */
#endif
