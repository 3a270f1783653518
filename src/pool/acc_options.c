/* SPDX-License-Identifier: Apache-2.0 */
/* The provider of a pool, as text: "own", or "memfabric,rank=N,world=N,store=tcp://A.B.C.D:P,...". */
#include "pool/acc.h"
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>

#define NAME "memfabric"
#define INIT_S 90u /* the library itself waits 60 s for the store or for other ranks */

bool pool_acc_named(const struct rd2h_pool_opts *o) {
  const char *p = o->size >= sizeof *o ? o->provider : NULL;
  size_t n = strlen(NAME);
  return p && !strncmp(p, NAME, n) && (!p[n] || p[n] == ',');
}

static int set_number(const char *text, const char *v, uint32_t min, uint32_t max, uint32_t *out, struct rd2h_error *err) {
  char *end;
  unsigned long n = strtoul(v, &end, 10);
  if (*v < '0' || *v > '9' || *end || n < min || n > max)
    return rd2h_fail(err, RD2H_INVALID, "pool on memfabric: option \"%.60s\": the value must be a number from %u to %u", text, min, max);
  *out = (uint32_t)n;
  return RD2H_OK;
}

/* The library waits long for a store whose address means nothing. */
static int set_store(const char *v, struct pool_acc_options *o, struct rd2h_error *err) {
  char host[INET_ADDRSTRLEN];
  struct in_addr a;
  uint32_t port = 0;
  const char *colon = strrchr(v, ':'), *begin = v + strlen("tcp://");
  size_t n = !strncmp(v, "tcp://", 6) && colon > begin ? (size_t)(colon - begin) : 0;
  if (n && n < sizeof host) {
    snprintf(host, sizeof host, "%.*s", (int)n, begin);
    if (inet_pton(AF_INET, host, &a) == 1 && !set_number(v, colon + 1, 1, 65535, &port, NULL)) {
      snprintf(o->store, sizeof o->store, "%s", v);
      o->address = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = a};
      return RD2H_OK;
    }
  }
  return rd2h_fail(err, RD2H_INVALID, "pool on memfabric: store \"%.60s\" must be tcp://A.B.C.D:PORT, where rank 0 shall listen", v);
}

static int set(const char *text, struct pool_acc_options *o, struct rd2h_error *err) {
  const struct {
    const char *name;
    uint32_t min, max, *out;
  } numbers[] = {{"device=", 0, 65535, &o->device}, {"world=", 1, POOL_ACC_WORLD_MAX, &o->world}, {"init_s=", 1, 600, &o->init_s},
                 {"rank=", 0, POOL_ACC_WORLD_MAX - 1, &o->rank}};
  for (size_t i = 0; i < RD2H_COUNT(numbers); i++) {
    size_t n = strlen(numbers[i].name);
    if (!strncmp(text, numbers[i].name, n)) {
      o->has_rank |= numbers[i].out == &o->rank;
      return set_number(text, text + n, numbers[i].min, numbers[i].max, numbers[i].out, err);
    }
  }
  if (!strncmp(text, "store=", 6))
    return set_store(text + 6, o, err);
  if (strncmp(text, "lib=", 4) || !text[4])
    return rd2h_fail(err, RD2H_INVALID, "pool on memfabric: unknown option \"%.60s\": it has rank=N, world=N, store=tcp://A.B.C.D:PORT, "
                     "device=N, init_s=N and lib=PATH", text);
  snprintf(o->lib, sizeof o->lib, "%s", text + 4);
  return RD2H_OK;
}

int pool_acc_options(const char *provider, struct pool_acc_options *out, struct rd2h_error *err) {
  struct pool_acc_options o = {.init_s = INIT_S};
  char text[POOL_PROVIDER_MAX], *rest = NULL;
  int rc = RD2H_OK;
  snprintf(text, sizeof text, "%s", provider); /* its length has been looked at */
  strtok_r(text, ",", &rest);
  for (char *t; !rc && (t = strtok_r(NULL, ",", &rest));)
    rc = set(t, &o, err);
  if (!rc && (!o.has_rank || !o.world || !o.store[0]))
    rc = rd2h_fail(err, RD2H_INVALID, "pool on memfabric: \"%.120s\" lacks %s: it needs rank=N, world=N and store=tcp://A.B.C.D:PORT",
                   provider, !o.has_rank ? "rank=" : !o.world ? "world=" : "store=");
  if (!rc && o.rank >= o.world)
    rc = rd2h_fail(err, RD2H_INVALID, "pool on memfabric: rank %u of a world of %u: ranks are 0 to %u", o.rank, o.world, o.world - 1);
  if (!rc)
    *out = o;
  return rc;
}

int pool_provider_check(const struct rd2h_pool_opts *o, struct rd2h_error *err) {
  const char *p = o->size >= sizeof *o ? o->provider : NULL;
  if (!p || !strcmp(p, "own"))
    return RD2H_OK;
  if (!pool_acc_named(o) || strlen(p) >= POOL_PROVIDER_MAX)
    return rd2h_fail(err, RD2H_INVALID, "pool: provider \"%.60s\" is none: own, or memfabric with its options (%u bytes at most)", p,
                     POOL_PROVIDER_MAX - 1);
  const char *refused = o->pages == RD2H_PAGES_HUGE ? "pages=huge" : o->lock == RD2H_LOCK_MUST ? "lock=must"
                        : o->numa_nodes ? "numa_nodes" : o->device ? "device (its memory is the device's already)" : NULL;
  return refused ? rd2h_fail(err, RD2H_UNSUPPORTED, "pool on memfabric: its API has no %s: leave it out, or take provider own", refused)
                 : RD2H_OK;
}
