/* SPDX-License-Identifier: Apache-2.0 */
/* The engines behind the proxy: which of them takes the next request, which are left out. Pure: time comes from the caller. */
#ifndef RD2H_PROXY_ENGINES_H
#define RD2H_PROXY_ENGINES_H
#include "proxy/text.h"

enum px_role { PX_PREFILL, PX_DECODE, PX_ROLES };
extern const char *const rd2h_px_role_name[PX_ROLES];

struct px_engine {
  struct px_engine *next;
  enum px_role role;
  char *name; /* host:port, an IPv6 host in brackets */
  char *url;  /* scheme://name */
  char **address; /* as texts, of Decode's: rendezvous may come from there */
  size_t addresses;
  uint32_t slot; /* small number, for sets of engines already tried */
  uint32_t requests; /* open ones */
  double active, kv;
  uint64_t turn;     /* when it was picked last */
  uint32_t failures; /* in a row */
  bool ejected, draining, probing;
  int64_t probe_at; /* ms */
  int64_t heard_at; /* when it last answered something */
  uint64_t served, failed;
};

struct px_pool {
  struct px_engine *first;
  uint64_t turn;
  uint32_t eject_after;  /* failures in a row */
  int64_t probe_ms;      /* between probes of a healthy engine; 0: none */
  int64_t probe_down_ms; /* of an ejected one */
};

#define PX_MAX_ENGINES 1024

/* Host and port as they stand in an option or request; *why in words when refused. scheme: http or https. */
struct px_engine *rd2h_px_pool_add(struct px_pool *pool, enum px_role role, const char *scheme, const char *host, uint16_t port,
                                   const char **why);
struct px_engine *rd2h_px_pool_find(const struct px_pool *pool, enum px_role role, const char *name);
size_t rd2h_px_pool_count(const struct px_pool *pool, enum px_role role, bool usable_only);
/* No new requests for it; it is freed when its last one has ended. */
void rd2h_px_pool_remove(struct px_pool *pool, struct px_engine *e);
void rd2h_px_pool_free(struct px_pool *pool);

/* The least loaded engine; equals take turns. Those of `tried` (bits of slots) come only when no other is left. NULL: none usable. */
struct px_engine *rd2h_px_pool_pick(struct px_pool *pool, enum px_role role, uint64_t tried);
static inline uint64_t px_engine_bit(const struct px_engine *e) {
  return 1ull << (e->slot & 63);
}
/* Decode: bytes of the body. Prefill: the reference's cost of a prompt of so many bytes. */
double rd2h_px_cost(enum px_role role, size_t bytes);
void rd2h_px_engine_take(struct px_engine *e, double cost);
void rd2h_px_engine_give(struct px_pool *pool, struct px_engine *e, double cost);
/* KV that Prefill holds until Decode has read it. */
void rd2h_px_engine_kv(struct px_engine *e, double cost);
/* Outcome of a request or probe; both return whether the engine's standing changed. */
bool rd2h_px_engine_good(struct px_engine *e);
bool rd2h_px_engine_bad(struct px_pool *pool, struct px_engine *e, int64_t now);

/* host:port or [v6]:port taken apart; host has room for 256 bytes. */
bool rd2h_px_split_name(struct px_span name, char host[256], uint16_t *port);
/* NULL, or why the host cannot be one. */
const char *rd2h_px_check_host(const char *host);
#endif
