/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_SRC_POOL_H
#define RD2H_SRC_POOL_H
/* Inside the pool's room. */
#include "base/base.h"
#include "device/device.h"
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

/* ---- pool.c ---- */
#define POOL_MAGIC UINT64_C(0x314c4f4f50483244) /* "D2HPOOL1" */
#define POOL_NONCE 32u                          /* hexadecimal digits */
struct pool_header {
  uint64_t magic;
  char nonce[POOL_NONCE + 1];
  uint8_t pad[7];
  uint64_t page_bytes, numa_nodes;
  struct rd2h_pool_shape shape;
};
struct rd2h_pool {
  struct pool_mapping m;
  struct rd2h_pool_shape shape;
  uint64_t offset[2], layer_bytes, data_bytes;
  char handle[RD2H_POOL_HANDLE];
  rd2h_dev *dev; /* for which the mapping is pinned, or NULL */
  int32_t pid;   /* of the creator */
  int pidfd;     /* -1 in the creator */
  bool provided; /* by MemFabric: m.fd is -1 */
};
uint64_t pool_measure(struct rd2h_pool *, const struct rd2h_pool_shape *); /* bytes of the mapping */
struct pool_header *pool_header_of(const struct pool_mapping *);
int pool_check_room(const struct rd2h_pool *, uint64_t bytes, const struct rd2h_pool_opts *, struct rd2h_error *);
int pool_make_nonce(char hex[POOL_NONCE + 1], struct rd2h_error *);
int pool_check_shape(const struct rd2h_pool_shape *here, const struct rd2h_pool_shape *there, struct rd2h_error *);

/* ---- acc_options.c, provided.c: memory of MemFabric's offload API; acc.h ---- */
int pool_provider_check(const struct rd2h_pool_opts *, struct rd2h_error *);
bool pool_acc_named(const struct rd2h_pool_opts *);
/* Options and shape have been checked. */
int pool_provided_join(const struct rd2h_pool_opts *, struct rd2h_error *);
int pool_provided_create(const struct rd2h_pool_opts *, struct rd2h_pool **, struct rd2h_error *);
int pool_provided_attach(const char *handle, const struct rd2h_pool_opts *, struct rd2h_pool **, struct rd2h_error *);
void pool_provided_close(struct rd2h_pool *);
#endif
