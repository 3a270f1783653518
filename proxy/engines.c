/* SPDX-License-Identifier: Apache-2.0 */
#include "proxy/engines.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>

const char *const rd2h_px_role_name[PX_ROLES] = {[PX_PREFILL] = "prefill", [PX_DECODE] = "decode"};

/* ---- names ---- */
static bool is_zone(const char *p) {
  size_t n = strspn(p, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");
  return n > 0 && n < 16 && !p[n];
}

static bool is_v6(const char *host) {
  unsigned char a[16];
  char bare[256];
  size_t n = strcspn(host, "%"); /* a zone may follow: the name of an interface, which goes into headers, logs and metrics */
  if (n >= sizeof bare || (host[n] && !is_zone(host + n + 1)))
    return false;
  memcpy(bare, host, n);
  bare[n] = 0;
  return inet_pton(AF_INET6, bare, a) == 1;
}

static bool is_v4(const char *host) {
  unsigned char a[4];
  return inet_pton(AF_INET, host, a) == 1;
}

const char *rd2h_px_check_host(const char *host) {
  bool digits_only = true;
  if (!*host)
    return "it is empty";
  if (is_v4(host) || is_v6(host))
    return NULL;
  if (strlen(host) > 253)
    return "it is longer than a host name can be";
  for (const char *p = host; *p; p++) {
    bool digit = *p >= '0' && *p <= '9', letter = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z');
    if (!digit && !letter && *p != '.' && *p != '-' && *p != '_')
      return "it has characters that no host name has";
    digits_only = digits_only && (digit || *p == '.');
  }
  return digits_only ? "it is no address, and no name is all digits; are two addresses run together?" : NULL;
}

bool rd2h_px_split_name(struct px_span name, char host[256], uint16_t *port) {
  uint64_t v;
  const char *end = name.p + name.n, *colon = name.n ? memrchr(name.p, ':', name.n) : NULL;
  if (!colon || !rd2h_px_uint((struct px_span){colon + 1, (size_t)(end - colon - 1)}, UINT16_MAX, &v) || v == 0)
    return false;
  struct px_span h = {name.p, (size_t)(colon - name.p)};
  if (h.n >= 2 && h.p[0] == '[' && h.p[h.n - 1] == ']')
    h = (struct px_span){h.p + 1, h.n - 2};
  if (h.n == 0 || h.n > 255 || memchr(h.p, 0, h.n))
    return false;
  memcpy(host, h.p, h.n);
  host[h.n] = 0;
  *port = (uint16_t)v;
  return true;
}

/* ---- the pool ---- */
struct px_engine *rd2h_px_pool_find(const struct px_pool *pool, enum px_role role, const char *name) {
  for (struct px_engine *e = pool->first; e; e = e->next)
    if (e->role == role && !e->draining && strcmp(e->name, name) == 0)
      return e;
  return NULL;
}

static void engine_free(struct px_engine *e) {
  if (!e)
    return;
  for (size_t i = 0; i < e->addresses; i++)
    free(e->address[i]);
  free(e->address);
  free(e->name);
  free(e->url);
  free(e);
}

static uint32_t free_slot(const struct px_pool *pool) {
  uint32_t slot = 0;
  for (const struct px_engine *e = pool->first; e; e = e->next)
    slot = e->slot >= slot ? e->slot + 1 : slot;
  return slot;
}

static char *name_of(const char *host, unsigned port) {
  struct px_buf out = {0};
  bool v6 = is_v6(host);
  rd2h_px_printf(&out, "%s%s%s:%u", v6 ? "[" : "", host, v6 ? "]" : "", port);
  if (!out.failed)
    return out.p;
  rd2h_px_free(&out);
  return NULL;
}

/* The zone of a link-local address has its % escaped. */
static char *url_of(const char *scheme, const char *name) {
  struct px_buf out = {0};
  size_t n = strcspn(name, "%");
  rd2h_px_printf(&out, "%s://%.*s%s%s", scheme, (int)n, name, name[n] ? "%25" : "", name[n] ? name + n + 1 : "");
  if (!out.failed)
    return out.p;
  rd2h_px_free(&out);
  return NULL;
}

struct px_engine *rd2h_px_pool_add(struct px_pool *pool, enum px_role role, const char *scheme, const char *host, uint16_t port,
                                   const char **why) {
  if ((*why = rd2h_px_check_host(host)) != NULL)
    return NULL;
  struct px_engine *e = calloc(1, sizeof *e), **last = &pool->first;
  *why = "memory ran out";
  if (!e)
    return NULL;
  e->role = role;
  e->slot = free_slot(pool);
  e->name = name_of(host, port);
  e->url = e->name ? url_of(scheme, e->name) : NULL;
  if (!e->url)
    goto refuse;
  *why = "it is there already";
  if (rd2h_px_pool_find(pool, role, e->name))
    goto refuse;
  *why = "there are too many engines";
  if (rd2h_px_pool_count(pool, PX_PREFILL, false) + rd2h_px_pool_count(pool, PX_DECODE, false) >= PX_MAX_ENGINES)
    goto refuse;
  while (*last)
    last = &(*last)->next;
  *last = e;
  *why = NULL;
  return e;

refuse:
  engine_free(e);
  return NULL;
}

size_t rd2h_px_pool_count(const struct px_pool *pool, enum px_role role, bool usable_only) {
  size_t n = 0;
  for (const struct px_engine *e = pool->first; e; e = e->next)
    n += e->role == role && !e->draining && !(usable_only && e->ejected);
  return n;
}

static void sweep(struct px_pool *pool) {
  for (struct px_engine **at = &pool->first; *at;) {
    struct px_engine *e = *at;
    if (e->draining && e->requests == 0 && !e->probing && e->kv < 1e-9) {
      *at = e->next;
      engine_free(e);
    } else {
      at = &e->next;
    }
  }
}

void rd2h_px_pool_remove(struct px_pool *pool, struct px_engine *e) {
  e->draining = true;
  sweep(pool);
}

void rd2h_px_pool_free(struct px_pool *pool) {
  for (struct px_engine *e = pool->first, *next; e; e = next) {
    next = e->next;
    engine_free(e);
  }
  pool->first = NULL;
}

/* ---- choice ---- */
double rd2h_px_cost(enum px_role role, size_t bytes) {
  return role == PX_DECODE ? (double)bytes : 120.0745 + 0.0345 * (double)bytes / 4;
}

static double load(const struct px_engine *e) {
  return e->active + 0.3 * e->kv;
}

static bool before(const struct px_engine *a, const struct px_engine *b, uint64_t tried) {
  bool at = tried & px_engine_bit(a), bt = tried & px_engine_bit(b);
  if (at != bt)
    return bt;
  double d = load(a) - load(b);
  return d < -1e-6 || (d <= 1e-6 && a->turn < b->turn);
}

struct px_engine *rd2h_px_pool_pick(struct px_pool *pool, enum px_role role, uint64_t tried) {
  struct px_engine *best = NULL;
  for (struct px_engine *e = pool->first; e; e = e->next)
    if (e->role == role && !e->draining && !e->ejected && (!best || before(e, best, tried)))
      best = e;
  if (best)
    best->turn = ++pool->turn;
  return best;
}

void rd2h_px_engine_take(struct px_engine *e, double cost) {
  e->requests++;
  e->active += cost;
}

void rd2h_px_engine_give(struct px_pool *pool, struct px_engine *e, double cost) {
  e->requests--;
  /* Sums of fractions do not come back to 0 by themselves. */
  e->active = e->requests ? e->active - cost : 0;
  if (e->draining)
    sweep(pool);
}

void rd2h_px_engine_kv(struct px_engine *e, double cost) {
  e->kv += cost;
  if (e->kv < 1e-6)
    e->kv = 0;
}

bool rd2h_px_engine_good(struct px_engine *e) {
  bool was = e->ejected;
  e->failures = 0;
  e->ejected = false;
  return was;
}

bool rd2h_px_engine_bad(struct px_pool *pool, struct px_engine *e, int64_t now) {
  e->failures++;
  if (e->ejected || e->failures < pool->eject_after)
    return false;
  e->ejected = true;
  e->probe_at = now + pool->probe_down_ms;
  return true;
}
