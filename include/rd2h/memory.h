/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_MEMORY_H
#define RD2H_MEMORY_H
/* Memory that another process of the host can map: a Prefill that keeps its KV cache in it is read by plain copies instead of a
 * system call that copies (engine local). It is ordinary memory in every other respect. */
#include <rd2h/status.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

enum {
  /* Huge pages: of the reserved pool (vm.nr_hugepages) when it has room for all of it, else transparent ones where the kernel
   * gives them to shared memory (/sys/kernel/mm/transparent_hugepage/shmem_enabled), else none. */
  RD2H_SHARED_HUGE = 1 << 0
};

/* A mapping of its own that begins at a multiple of 2 MiB, zeroed; every page is there on return, so that no later access fails
 * for want of memory. Its size is rounded up to a multiple of 2 MiB. Takes a file descriptor. NULL: err says why.
 * From any thread. */
RD2H_API void *rd2h_shared_alloc(uint64_t size, uint32_t flags, struct rd2h_error *err);
/* Takes what rd2h_shared_alloc returned, or NULL. Not before the objects that the memory was given to are gone: what another
 * process has mapped stays readable there, with the last contents. */
RD2H_API void rd2h_shared_free(void *p);

#ifdef __cplusplus
}
#endif
#endif
