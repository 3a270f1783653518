/* SPDX-License-Identifier: Apache-2.0 */
/* A step of the Prefill scheduler, grouped by endpoint: made by the caller's thread, bound and encoded by the sender's. */
#include "plan/plan.h"
#include "worker/prefill_worker.h"
#include <stdio.h>

/* ---- making ---- */
static struct pw_step *step_take(rd2h_pw *w) {
  pthread_mutex_lock(&w->mu);
  struct pw_step *s = w->idle_step;
  if (s)
    w->idle_step = s->next;
  pthread_mutex_unlock(&w->mu);
  if (s)
    return s;
  s = rd2h_zalloc(sizeof *s);
  if (s && !(s->dispatched = rd2h_calloc(w->n_layers, sizeof *s->dispatched))) {
    rd2h_free(s);
    return NULL;
  }
  return s;
}

static void step_free(struct pw_step *s) {
  for (uint32_t i = 0; i < s->cap_groups; i++)
    for (uint32_t v = 0; v < PW_VARIANTS; v++)
      rd2h_buf_free(&s->group[i].list[v].bytes);
  rd2h_free(s->group);
  rd2h_free(s->dispatched);
  rd2h_buf_free(&s->bytes);
  rd2h_arena_free(&s->arena);
  rd2h_arena_free(&s->work);
  rd2h_free(s);
}

void pw_step_unref(rd2h_pw *w, struct pw_step *s) {
  if (__atomic_sub_fetch(&s->refs, 1, __ATOMIC_ACQ_REL))
    return;
  pthread_mutex_lock(&w->mu);
  s->next = w->idle_step;
  w->idle_step = s;
  pthread_mutex_unlock(&w->mu);
}

void pw_steps_free(rd2h_pw *w) {
  while (w->idle_step) {
    struct pw_step *s = w->idle_step;
    w->idle_step = s->next;
    step_free(s);
  }
}

static bool same(struct rd2h_str a, struct rd2h_str b) {
  return a.n == b.n && (!a.n || !memcmp(a.p, b.p, a.n));
}

static struct pw_group *group_add(struct pw_step *s, const char *address) {
  if (s->n_groups == s->cap_groups) {
    uint32_t cap = s->cap_groups ? s->cap_groups * 2 : 4;
    struct pw_group *g = rd2h_realloc(s->group, cap * sizeof *g);
    if (!g)
      return NULL;
    memset(g + s->cap_groups, 0, (cap - s->cap_groups) * sizeof *g);
    s->group = g;
    s->cap_groups = cap;
  }
  struct pw_group *g = &s->group[s->n_groups++];
  memcpy(g->address, address, strlen(address) + 1);
  g->n = 0;
  g->endpoint = RD2H_INDEX_NONE;
  memset(g->count, 0, sizeof g->count);
  return g;
}

static struct pw_group *group_of(struct pw_step *s, const char *address, const struct rd2h_step_send *x, uint32_t member,
                                 uint32_t ratio) {
  for (uint32_t i = 0; i < s->n_groups; i++) {
    struct pw_group *g = &s->group[i];
    if (g->member == member && g->ratio == ratio && !strcmp(g->address, address) && same(g->engine_id, x->engine_id))
      return g;
  }
  struct pw_group *g = group_add(s, address);
  if (g) {
    g->engine_id = x->engine_id;
    g->member = member;
    g->ratio = ratio;
  }
  return g;
}

static int address_of(const struct rd2h_step_send *x, uint16_t port, char *out, size_t n, struct rd2h_error *err) {
  bool bare_v6 = memchr(x->host.p, ':', x->host.n) && x->host.p[0] != '[';
  int len = snprintf(out, n, bare_v6 ? "[%.*s]:%u" : "%.*s:%u", (int)x->host.n, x->host.p, port);
  if (!x->host.n || len < 0 || (size_t)len >= n || memchr(x->host.p, ' ', x->host.n))
    return rd2h_fail(err, RD2H_INVALID, "request %.*s: \"%.*s\" is no host of a Decode engine", (int)x->id.n, x->id.p,
                     (int)(x->host.n < 100 ? x->host.n : 100), x->host.p);
  return RD2H_OK;
}

/* Finds the groups of request i of the step: with `fill` it is written down there, else only counted. */
static int place(const rd2h_pw *w, struct pw_step *s, uint32_t i, bool fill, struct rd2h_error *err) {
  const struct rd2h_step_send *x = &s->view.send[i];
  char address[sizeof ((struct pw_group *)0)->address];
  uint32_t first, count, member, ratio, d_tp = x->d_tp ? x->d_tp : w->o.tp_size;
  uint16_t port;
  int rc = rd2h_plan_targets(w->o.tp_rank, w->o.tp_size, d_tp, &first, &count, err);
  /* Either all ranks have a port, or none of them is sent to. */
  rc = rc ? rc : rd2h_plan_port(x->base_port, d_tp - 1, d_tp, &port, err);
  for (uint32_t r = first; !rc && r < first + count; r++) {
    rc = rd2h_plan_member(w->o.tp_rank, w->o.tp_size, r, d_tp, &member, &ratio, err);
    rc = rc ? rc : rd2h_plan_port(x->base_port, r, d_tp, &port, err);
    rc = rc ? rc : address_of(x, port, address, sizeof address, err);
    struct pw_group *g = rc ? NULL : group_of(s, address, x, member, ratio);
    if (!rc && !g)
      rc = rd2h_nomem(err, "a step");
    if (rc)
      return rc;
    if (fill)
      g->send[g->n] = i;
    g->n++;
    g->count[0] += fill && x->n_main;
    g->count[1] += fill && (x->n_main || x->n_indexer);
  }
  return rc;
}

static uint32_t *ints(struct pw_step *s, uint32_t n) {
  return rd2h_arena_alloc(&s->work, n * sizeof(uint32_t));
}

/* Room for what the groups were counted to hold. */
static bool carve(struct pw_step *s) {
  size_t need = 0;
  for (uint32_t i = 0; i < s->n_groups; i++)
    need += (2 + PW_VARIANTS) * ((size_t)s->group[i].n * sizeof(uint32_t) + 16);
  rd2h_arena_reset(&s->work);
  if (rd2h_arena_reserve(&s->work, need))
    return false;
  for (uint32_t i = 0; i < s->n_groups; i++) {
    struct pw_group *g = &s->group[i];
    g->send = ints(s, g->n);
    g->handle = ints(s, g->n);
    for (uint32_t v = 0; v < PW_VARIANTS; v++) {
      g->list[v].at = ints(s, g->n);
      g->list[v].n = 0;
      g->list[v].encoded = false;
    }
    g->n = 0;
  }
  return true;
}

/* A request that cannot be sent anywhere is left out: it ends when the engine ends it. */
static int group_step(rd2h_pw *w, struct pw_step *s, struct rd2h_error *err) {
  s->n_groups = 0;
  for (int fill = 0; fill < 2; fill++) {
    if (fill && !carve(s))
      return rd2h_nomem(err, "a step");
    for (uint32_t i = 0; i < s->view.n_send; i++) {
      int rc = place(w, s, i, fill, err);
      if (rc == RD2H_NOMEM)
        return rc;
      if (rc && !fill && pw_unsent(w, s->view.send[i].id, rc))
        RD2H_ERR("prefill rank %u: request %.*s is not sent: %s", w->o.tp_rank, (int)s->view.send[i].id.n, s->view.send[i].id.p,
                 err->text);
    }
  }
  return RD2H_OK;
}

struct pw_step *pw_step_make(rd2h_pw *w, const void *meta, size_t len, struct rd2h_error *err) {
  struct pw_step *s = step_take(w);
  if (!s) {
    rd2h_nomem(err, "a step");
    return NULL;
  }
  s->refs = 1;
  s->n_dispatched = 0;
  memset(s->dispatched, 0, w->n_layers * sizeof *s->dispatched);
  rd2h_buf_reset(&s->bytes);
  rd2h_buf_put(&s->bytes, meta, len);
  rd2h_arena_reset(&s->arena);
  int rc = s->bytes.failed ? rd2h_nomem(err, "a step")
                           : rd2h_step_decode_prefill(s->bytes.p, s->bytes.len, &s->arena, &s->view, err);
  rc = rc ? rc : group_step(w, s, err);
  if (rc) {
    pw_step_unref(w, s);
    return NULL;
  }
  return s;
}

/* ---- sender thread ---- */
static const char *unbound_text(int why) {
  switch (why) {
  case RD2H_INVALID: return "its external id is empty or too long";
  case RD2H_EXISTS: return "another request with its external id is open there";
  case RD2H_LIMIT: return "the limit of requests is reached";
  default: return "memory ran out";
  }
}

static uint32_t bind_one(rd2h_pw *w, const struct rd2h_step_send *x, uint32_t endpoint) {
  struct rd2h_pm_request r = {.id = x->id, .ext_id = x->ext_id, .has_attempt = x->has_attempt, .has_dspark = x->has_dspark};
  memcpy(r.attempt, x->attempt, sizeof r.attempt);
  uint32_t handle = rd2h_pm_bind(w->pm, &r, endpoint, w->now);
  if (handle != RD2H_INDEX_NONE)
    return handle;
  int why = rd2h_pm_unbound(w->pm, &r, endpoint);
  if (pw_unsent(w, x->id, why))
    RD2H_ERR("prefill rank %u: request %.*s is not sent to %s: %s", w->o.tp_rank, (int)x->id.n, x->id.p,
             rd2h_pm_endpoint_address(w->pm, endpoint), unbound_text(why));
  return RD2H_INDEX_NONE;
}

static void prepare_group(rd2h_pw *w, struct pw_step *s, struct pw_group *g) {
  struct rd2h_str address = {g->address, (uint32_t)strlen(g->address)};
  g->endpoint = rd2h_pm_endpoint(w->pm, address, g->engine_id, w->now);
  pw_drain(w);
  if (g->endpoint != RD2H_INDEX_NONE && !pw_endpoint_room(w, g->endpoint))
    g->endpoint = RD2H_INDEX_NONE;
  if (g->endpoint == RD2H_INDEX_NONE) {
    RD2H_ERR("prefill rank %u: no room for the Decode rank at %s, its requests are not sent", w->o.tp_rank, g->address);
    for (uint32_t i = 0; i < g->n; i++)
      pw_unsent(w, s->view.send[g->send[i]].id, RD2H_LIMIT);
    return;
  }
  w->endpoint[g->endpoint].member = g->member;
  w->endpoint[g->endpoint].ratio = g->ratio;
  for (uint32_t i = 0; i < g->n; i++) {
    const struct rd2h_step_send *x = &s->view.send[g->send[i]];
    g->handle[i] = bind_one(w, x, g->endpoint);
    if (g->handle[i] == RD2H_INDEX_NONE)
      continue;
    if (x->n_main)
      g->list[0].at[g->list[0].n++] = i;
    if (x->n_main || x->n_indexer)
      g->list[1].at[g->list[1].n++] = i;
  }
  pw_drain(w);
}

void pw_prepare(rd2h_pw *w, struct pw_step *s) {
  for (uint32_t i = 0; i < s->n_groups; i++)
    prepare_group(w, s, &s->group[i]);
}

static struct rd2h_wire_req wire_req(const struct rd2h_step_send *x, uint32_t variant) {
  struct rd2h_wire_req r = {.id = x->ext_id, .main = x->main, .n_main = x->n_main, .main_start = x->main_start,
                            .indexer = x->indexer, .n_indexer = variant ? x->n_indexer : 0, .indexer_start = x->indexer_start,
                            .has_attempt = x->has_attempt};
  memcpy(r.attempt, x->attempt, sizeof r.attempt);
  return r;
}

static bool encode(rd2h_pw *w, const struct pw_step *s, const struct pw_group *g, uint32_t variant, const uint32_t *idx,
                   uint32_t n, struct rd2h_buf *to) {
  if (n > w->wire_cap) {
    struct rd2h_wire_req *p = rd2h_realloc(w->wire, n * sizeof *p);
    if (!p)
      return false;
    w->wire = p;
    w->wire_cap = n;
  }
  for (uint32_t i = 0; i < n; i++)
    w->wire[i] = wire_req(&s->view.send[g->send[g->list[variant].at[idx ? idx[i] : i]]], variant);
  rd2h_wire_encode_reqs(to, w->wire, n);
  return !to->failed;
}

bool pw_encode_list(rd2h_pw *w, const struct pw_step *s, struct pw_group *g, uint32_t variant, const uint32_t *idx, uint32_t n,
                    struct rd2h_buf *to) {
  struct rd2h_buf *cache = &g->list[variant].bytes;
  if (n != g->list[variant].n)
    return encode(w, s, g, variant, idx, n, to);
  if (!g->list[variant].encoded) {
    rd2h_buf_reset(cache);
    if (!encode(w, s, g, variant, NULL, n, cache))
      return false;
    g->list[variant].encoded = true;
  }
  rd2h_buf_put(to, cache->p, cache->len);
  return !to->failed;
}
