/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_COMPLETION_H
#define RD2H_COMPLETION_H
/* When every TP rank of a Decode engine has ended a request: for engines that do not gather that themselves (vLLM does).
 *
 * All ranks call add, remove and step in the same order, as the engine's step metadata says; `end` comes when it comes, on each rank.
 * Whether and how much a step exchanges depends on add and remove alone, never on what has ended here: no rank waits for a message
 * that another has no reason to send. An object belongs to one thread. */
#include <rd2h/status.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

typedef struct rd2h_gather rd2h_gather;

struct rd2h_gather_opts {
  uint32_t size;
  uint32_t rank, ranks;
  uint32_t max_requests; /* live at once; 0: 4096. Equal on all ranks */
  uint32_t exchange_ms;  /* longest that a step waits for the other ranks (built-in exchange); 0: 10000 */
  uint64_t deadline_ms;  /* from add until a request fails with TIMEOUT on all ranks, by rank 0's clock; 0: never */
  /* The engine's own collective: gathers `len` bytes of every rank into all[ranks * len], in the order of ranks. Returns 0 or a
   * status. NULL: the built-in exchange over shared memory; rank 0 makes it, the others need its handle. */
  int (*all_gather)(void *user, const void *mine, uint64_t len, void *all);
  void *user;
  const char *handle; /* built-in exchange, on all ranks but 0: what rd2h_gather_handle gives there */
};
RD2H_API int rd2h_gather_create(const struct rd2h_gather_opts *, rd2h_gather **, struct rd2h_error *);
RD2H_API void rd2h_gather_destroy(rd2h_gather *);
RD2H_API const char *rd2h_gather_handle(const rd2h_gather *); /* "" where the engine has a collective of its own */

/* Waits for this request from now on. EXISTS: live already; LIMIT. */
RD2H_API int rd2h_gather_add(rd2h_gather *, const char *id, struct rd2h_error *);
/* Forgets it; it is not reported. NOT_FOUND. */
RD2H_API int rd2h_gather_remove(rd2h_gather *, const char *id);
/* How it ended on this rank (an outcome's status). The first one counts: EXISTS for another, NOT_FOUND for an id that is not live,
 * which it may have ceased to be by deadline; INVALID for a status above 0. */
RD2H_API int rd2h_gather_end(rd2h_gather *, const char *id, int status);
/* Once an engine step on every rank: tells the others and hears them. Nothing is exchanged while nothing is live. Errors: TIMEOUT,
 * PEER_LOST (built-in: a rank has not come, rank 0 has ended), STATE (ranks do not wait for the same requests); what the collective
 * returned. After an error the object only takes destroy: ranks may have seen different things. */
RD2H_API int rd2h_gather_step(rd2h_gather *, struct rd2h_error *);

/* Requests that have ended on all ranks, each once, in the same step and order everywhere. */
struct rd2h_gathered {
  const char *id; /* lives until the next collect */
  int status;     /* OK on all ranks, or how it ended on the first rank where it did not go well */
  uint32_t rank;  /* that rank; 0 when OK */
};
RD2H_API uint32_t rd2h_gather_collect(rd2h_gather *, struct rd2h_gathered *out, uint32_t cap);

#ifdef __cplusplus
}
#endif
#endif
