/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_POOL_H
#define RD2H_POOL_H
/* The host memory that all Decode TP ranks of one engine share: main KV lies in it once, each rank pulls a disjoint part.
 *
 * One rank creates, the others attach by a handle, a line of text that may travel any way. The memory is a sealed memfd: it has no
 * name in a file system, and when the last rank ends, however it ends, it is gone. A handle names one creation by a nonce: it is
 * good only while the creator lives and holds that very pool, so that nothing of an earlier life is ever taken for the present one.
 * Ranks run as one user in one PID namespace (the handle is opened through /proc). Memory is zeroed. Calls on one pool may come from
 * any thread, except destroy. */
#include <rd2h/layout.h>
#include <stdbool.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

typedef struct rd2h_pool rd2h_pool;

/* Array a of layer l holds block_bytes[a] * blocks contiguous bytes and begins at a multiple of 4096. */
struct rd2h_pool_shape {
  uint32_t layers;
  uint32_t arrays; /* of a layer: 2 (K, V), or 1 where MLA lies in one tensor */
  uint64_t blocks;
  uint64_t block_bytes[2];
};

enum rd2h_pool_pages {
  RD2H_PAGES_AUTO = 0,  /* huge pages if enough are free, else ordinary ones, transparently huge where the kernel lets them be */
  RD2H_PAGES_SMALL = 1, /* ordinary */
  RD2H_PAGES_HUGE = 2   /* reserved 2 MiB pages (vm.nr_hugepages), or an error */
};
enum rd2h_pool_lock {
  RD2H_LOCK_AUTO = 0, /* locked in memory if this process may */
  RD2H_LOCK_OFF = 1,
  RD2H_LOCK_MUST = 2 /* or an error */
};

struct rd2h_pool_opts {
  uint32_t size;
  struct rd2h_pool_shape shape;
  enum rd2h_pool_pages pages; /* creation only */
  enum rd2h_pool_lock lock;   /* of this process's mapping */
  uint64_t numa_nodes; /* creation only. Bit n: node n; one node: all pages there, several: in turn; 0: where the kernel puts them */
  uint64_t keep_free;  /* creation only: bytes that must stay available beside the pool */
  const char *device;  /* this process's mapping is pinned for it (rd2h/device.h), which becomes the calling thread's; NULL: not */
  /* Whose memory, equal on all ranks but for the rank. NULL or "own": a memfd, as above. "memfabric,rank=N,world=N,
   * store=tcp://A.B.C.D:PORT[,device=N][,init_s=N][,lib=PATH]": of MemFabric's offload API (libmf_acc_offload.so, loaded at run time),
   * at one address in all ranks and for the device. All call rd2h_pool_join first; rank 0 creates, the others attach. UNSUPPORTED with
   * pages huge, lock must, numa_nodes or device, which that API does not have. */
  const char *provider;
};
/* For provider memfabric, by every rank at once: returns when all of the world have called it, within init_s (90). Rank 0 starts the
 * store; shape must be that of the pool. A process joins once. OK at once for provider own. Errors: INVALID, RANGE, LIMIT, NOT_FOUND
 * (no library), UNSUPPORTED (its functions), PEER_LOST (no store), TIMEOUT (ranks are missing), IO (the library's code is in err),
 * STATE. */
RD2H_API int rd2h_pool_join(const struct rd2h_pool_opts *, struct rd2h_error *);
/* Allocates every page before it returns (about 1 s for 4 GB), after looking whether machine and control groups have them. Errors:
 * INVALID, RANGE (the shape), LIMIT (too large: what is there and what is needed), NOMEM, PERMISSION (LOCK_MUST), those of a device
 * (rd2h_device_probe). STATE: memfabric was not joined. */
RD2H_API int rd2h_pool_create(const struct rd2h_pool_opts *, rd2h_pool **, struct rd2h_error *);
/* Errors: INVALID (no handle), NOT_FOUND (stale: its creator has ended, or holds another pool), LAYOUT (another shape), PERMISSION. */
RD2H_API int rd2h_pool_attach(const char *handle, const struct rd2h_pool_opts *, rd2h_pool **, struct rd2h_error *);
/* Unmaps. Ranks that are attached keep the memory, but nobody can attach to it any more once its creator destroyed it. With provider
 * memfabric the creator destroys last: that API does not say what its memory is afterwards. */
RD2H_API void rd2h_pool_destroy(rd2h_pool *);

/* At most RD2H_POOL_HANDLE bytes with the zero at its end; lives as long as the object. */
#define RD2H_POOL_HANDLE 96
RD2H_API const char *rd2h_pool_handle(const rd2h_pool *);
/* First byte of an array; NULL for a layer or array that does not exist. */
RD2H_API void *rd2h_pool_array(const rd2h_pool *, uint32_t layer, uint32_t array);
/* The storage area to register with engines: all arrays, its beginning at a multiple of 2 MiB. */
RD2H_API struct rd2h_memory rd2h_pool_memory(const rd2h_pool *);
/* True when the creator has ended: its memory is whole, but a new engine life will make another. */
RD2H_API bool rd2h_pool_orphaned(const rd2h_pool *);

struct rd2h_pool_info {
  uint64_t bytes;      /* of the mapping: arrays, rounded up to 2 MiB with room for a header */
  uint64_t page_bytes; /* 2097152 for reserved huge pages; 0: not known (memfabric) */
  uint64_t numa_nodes; /* where pages were put; 0: nobody asked, or the kernel refused to be told */
  bool locked, creator, pinned;
  int32_t creator_pid;
};
RD2H_API void rd2h_pool_info(const rd2h_pool *, struct rd2h_pool_info *);

#ifdef __cplusplus
}
#endif
#endif
