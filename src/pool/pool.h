/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_SRC_POOL_H
#define RD2H_SRC_POOL_H
/* Inside the pool's room. */
#include "base/base.h"
#include <rd2h/pool.h>

#define POOL_HUGE_PAGE (UINT64_C(2) << 20)
#define POOL_ALIGN UINT64_C(4096) /* of an array, and room for the header */
#define POOL_NAME "rd2h-pool"

/* ---- room.c: what machine and control groups have left ---- */
struct pool_room {
  uint64_t available, total; /* bytes; total: of the machine, or the limit of the group */
  char where[200];           /* who sets the limit: "this machine" or the group's folder */
};
/* The tightest limit. root: "" or, for tests, a folder that holds proc and sys. False: nothing could be read. */
bool pool_room(const char *root, struct pool_room *);
/* Reserved huge pages of 2 MiB: free ones, and how many there are. */
void pool_huge_pages(const char *root, uint64_t *n_free, uint64_t *total);

/* ---- mapping.c: the memory itself ---- */
struct pool_mapping {
  int fd;
  uint8_t *base;
  uint64_t bytes, page_bytes, numa_nodes;
  bool locked;
};
/* A new memfd with every page in place, and sealed against resizing. */
int pool_mapping_make(const struct rd2h_pool_opts *, const char *name, uint64_t bytes, struct pool_mapping *, struct rd2h_error *);
/* Maps what fd holds; takes fd over when it succeeds. */
int pool_mapping_open(int fd, uint64_t bytes, enum rd2h_pool_lock, struct pool_mapping *, struct rd2h_error *);
void pool_mapping_close(struct pool_mapping *);
#endif
