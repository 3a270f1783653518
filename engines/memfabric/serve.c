/* SPDX-License-Identifier: Apache-2.0 */
/* Prefill: a config store, a transfer object named as the store's address, and the memory registered with it. That name is the
 * session, as the library's own Python engine has it, so that both kinds of peers find each other. */
#include "engines/memfabric/memfabric.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct mf_serve {
  const struct mf_api *api;
  const struct mf_options *o;
  struct mf_store *store;
  void *object;
  uint32_t n, n_registered; /* areas; registrations made of them */
  struct mf_range *area, *merged; /* MF_AREAS_MAX + 1 each */
  bool published;
  uint8_t *pattern; /* in a page of its own, which is all that is shown with it; NULL: none */
  uint64_t seed;
  struct mf_serve *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct mf_serve *serving;

/* As on Decode: the library's own clean-up is no safe place (docs/decisions/0022-memfabric-exit.md). */
static void at_exit(int status, void *unused) {
  (void)unused;
  for (struct mf_serve *s = serving; s; s = s->next)
    s->api->destroy(s->object, 0);
  fflush(NULL);
  _exit(status);
}

static void note(struct mf_serve *s, bool on) {
  static bool hooked;
  pthread_mutex_lock(&lock);
  struct mf_serve **p = &serving;
  while (*p && *p != s)
    p = &(*p)->next;
  if (on) {
    s->next = serving;
    serving = s;
  } else if (*p) {
    *p = s->next;
  }
  if (on && !hooked)
    hooked = !on_exit(at_exit, NULL);
  pthread_mutex_unlock(&lock);
}

/* What Decode tries its way here with. Host memory: only the protocols that run on the host serve it. */
static void open_pattern(struct mf_serve *s) {
  struct rd2h_error err = {0};
  if (!s->o->protocol->nic || rd2h_random(&s->seed, sizeof s->seed))
    return;
  s->pattern = rd2h_shared_alloc(MF_PAGE, 0, &err);
  if (s->pattern)
    rd2h_pattern_fill(s->pattern, s->seed);
  else
    RD2H_WARN("engine memfabric: no pattern for Decode to try its way with: %s", err.text);
}

int rd2h_mf_serve_open(const struct mf_api *api, const struct mf_options *o, const char *host, struct mf_serve **out,
                       struct rd2h_error *err) {
  struct mf_serve *s = rd2h_zalloc(sizeof *s);
  if (!s)
    return rd2h_nomem(err, "engine memfabric");
  *s = (struct mf_serve){.api = api, .o = o, .area = rd2h_calloc(2 * (MF_AREAS_MAX + 1), sizeof *s->area)};
  int rc = s->area ? rd2h_mf_store_take(api, host, o->port, &s->store, err) : rd2h_nomem(err, "engine memfabric");
  if (rc)
    goto no_store;
  s->merged = s->area + MF_AREAS_MAX + 1;
  rc = rd2h_mf_create(api, o, MF_SENDER, s->store->id, s->store->id, &s->object, err);
  if (rc)
    goto no_object;
  open_pattern(s);
  note(s, true);
  *out = s;
  return RD2H_OK;
no_object:
  rd2h_mf_store_give(s->store);
no_store:
  rd2h_free(s->area);
  rd2h_free(s);
  return rc;
}

/* Deregistering does nothing in the library: only with the object does the memory cease to be readable. */
void rd2h_mf_serve_close(struct mf_serve *s) {
  note(s, false);
  s->api->destroy(s->object, 0);
  rd2h_mf_store_give(s->store);
  rd2h_shared_free(s->pattern);
  rd2h_free(s->area);
  rd2h_free(s);
}

static bool covered(const struct mf_serve *s, const struct rd2h_region *r) {
  struct rd2h_batch b = {.n = 1, .remote = &(uint64_t){(uintptr_t)r->base}, .len = &r->len};
  return rd2h_mf_outside(s->area, s->n, &b) == UINT32_MAX;
}

/* Only collects: what shares a page of the library must be registered at once, so it waits for publish. */
int rd2h_mf_serve_reg(struct mf_serve *s, const struct rd2h_region *r, uint32_t *region, struct rd2h_error *err) {
  if (s->published && !covered(s, r))
    return rd2h_fail(err, RD2H_STATE, "engine memfabric: %llu bytes at %p come after the regions were published: register all before",
                     (unsigned long long)r->len, r->base);
  if (s->n == MF_AREAS_MAX)
    return rd2h_fail(err, RD2H_LIMIT, "engine memfabric: more than %u separate areas: allocate KV in fewer pieces", MF_AREAS_MAX);
  if (!s->published)
    s->n = rd2h_mf_add(s->area, s->n, (struct mf_range){(uintptr_t)r->base, r->len});
  uint32_t m = rd2h_mf_merge(s->area, s->n, s->merged);
  if (m > MF_REGISTRATIONS_MAX)
    return rd2h_fail(err, RD2H_LIMIT, "engine memfabric: %u separate areas after merging, a device takes %u: allocate KV in fewer pieces",
                     m, MF_REGISTRATIONS_MAX);
  *region = 0;
  return RD2H_OK;
}

/* The pattern comes last: who can read it can read all. */
static int register_all(struct mf_serve *s) {
  uint32_t m = rd2h_mf_merge(s->area, s->n, s->merged);
  if (s->pattern)
    s->merged[m++] = (struct mf_range){(uintptr_t)s->pattern, MF_PAGE};
  for (; s->n_registered < m; s->n_registered++) {
    const struct mf_range *r = &s->merged[s->n_registered];
    rd2h_mf_listen();
    int32_t code = s->api->register_mem(s->object, (void *)(uintptr_t)r->base, r->len, 0);
    const char *said = rd2h_mf_said(s->api);
    if (code) {
      RD2H_ERR("engine memfabric: registration %u of %u, %llu bytes at 0x%llx, fails: %s%s%s; protocol %s may not serve this kind of "
               "memory", s->n_registered + 1, m, (unsigned long long)r->len, (unsigned long long)r->base, rd2h_mf_code(code),
               *said ? ": " : "", said, s->o->protocol->name);
      return RD2H_IO;
    }
  }
  RD2H_INFO("engine memfabric: session %s serves %u areas by %u registrations", s->store->id, s->n, m);
  s->published = true;
  return RD2H_OK;
}

int rd2h_mf_serve_publish(struct mf_serve *s, uint8_t *buf, uint32_t cap, uint32_t *len) {
  struct mf_conn c = {.op = s->o->protocol->op, .n = s->n, .range = s->area, .pattern = (uintptr_t)s->pattern, .seed = s->seed};
  int rc = s->published ? RD2H_OK : register_all(s);
  if (rc)
    return rc;
  memcpy(c.id, s->store->id, sizeof c.id);
  *len = rd2h_mf_conn_bytes(&c);
  if (cap < *len)
    return RD2H_RANGE;
  rd2h_mf_conn_encode(&c, buf);
  return RD2H_OK;
}

const char *rd2h_mf_serve_session(const struct mf_serve *s) {
  return s->store->id;
}
