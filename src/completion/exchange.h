/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_SRC_EXCHANGE_H
#define RD2H_SRC_EXCHANGE_H
/* The built-in all-gather: one lane a rank in a shared pool. */
#include "base/base.h"
#include <rd2h/pool.h>

struct exchange {
  rd2h_pool *pool;
  uint32_t rank, ranks, turn, timeout_ms;
  uint64_t room; /* bytes of one message at most */
};
/* handle: NULL on rank 0, which makes it. */
int exchange_open(struct exchange *, const char *handle, struct rd2h_error *);
void exchange_close(struct exchange *);
/* TIMEOUT or PEER_LOST when a rank does not come. */
int exchange_all(struct exchange *, const void *mine, uint64_t len, void *all, struct rd2h_error *);
#endif
