/* SPDX-License-Identifier: Apache-2.0 */
/* Which engines there are, how a name becomes one, and the dispatch to its kind. */
#include "engine/face.h"
#include <stdlib.h>

#define FAULT_PREFIX "fault:"

/* The built-in engines (engines/<name>/). */
extern const struct rd2h_engine_ops rd2h_engine_local, rd2h_engine_tcp, rd2h_engine_ucx, rd2h_engine_memfabric, rd2h_engine_noop;
static const struct rd2h_engine_ops *const builtin[] = {&rd2h_engine_local, &rd2h_engine_tcp, &rd2h_engine_ucx, &rd2h_engine_memfabric,
                                                       &rd2h_engine_noop};

static const struct rd2h_engine_ops *find(const char *name) {
  for (size_t i = 0; i < RD2H_COUNT(builtin); i++)
    if (!strcmp(name, builtin[i]->name))
      return builtin[i];
  return NULL;
}

static int check_opts(const struct rd2h_engine_opts *opts, struct rd2h_error *err) {
  if (opts->size < sizeof *opts)
    return rd2h_fail(err, RD2H_INVALID, "engine options have %u bytes, this library needs %zu", opts->size, sizeof *opts);
  return RD2H_OK;
}

int rd2h_eng_open_ops(const struct rd2h_engine_ops *ops, const struct rd2h_engine_opts *opts, rd2h_eng **out,
                      struct rd2h_error *err) {
  struct rd2h_module m;
  int rc = check_opts(opts, err);
  if (!rc)
    rc = rd2h_module_open(&m, ops, opts, err);
  if (rc)
    return rc;
  rc = m.eng.caps.flags & RD2H_ENG_BLOCKS ? rd2h_pool_open(&m, opts, out, err) : rd2h_plain_open(&m, out, err);
  if (rc)
    ops->close(m.self);
  return rc;
}

/* 1: the option is the wrapper's, *f has it; 0: it is the engine's. */
static int fault_option(const char *option, struct rd2h_fault_opts *f, struct rd2h_error *err) {
  const struct {
    const char *name;
    uint64_t *value;
  } known[] = {{"fail_every=", &f->fail_every}, {"hang_every=", &f->hang_every}, {"delay_ms=", &f->delay_ms},
               {"corrupt_every=", &f->corrupt_every}};
  for (size_t i = 0; i < RD2H_COUNT(known); i++) {
    size_t n = strlen(known[i].name);
    if (strncmp(option, known[i].name, n))
      continue;
    char *end;
    unsigned long v = strtoul(option + n, &end, 10);
    if (end == option + n || *end || v > UINT32_MAX || option[n] == '-')
      return rd2h_fail(err, RD2H_INVALID, "engine option \"%s\": the value must be a number from 0 to %u", option, UINT32_MAX);
    *known[i].value = v;
    return 1;
  }
  return 0;
}

static int open_fault(const char *inner_name, const struct rd2h_engine_opts *opts, rd2h_eng **out, struct rd2h_error *err) {
  struct rd2h_fault_opts f = {0};
  struct rd2h_engine_opts rest = *opts;
  rd2h_eng *inner;
  size_t n = 0, kept = 0;
  while (opts->options && opts->options[n])
    n++;
  const char **left = rd2h_calloc(n + 1, sizeof *left);
  if (!left)
    return rd2h_nomem(err, "engine options");
  int rc = RD2H_OK;
  for (size_t i = 0; i < n && rc >= 0; i++) {
    rc = fault_option(opts->options[i], &f, err);
    if (!rc)
      left[kept++] = opts->options[i];
  }
  rest.options = left;
  if (rc >= 0)
    rc = rd2h_eng_open(inner_name, &rest, &inner, err);
  rd2h_free(left);
  if (rc < 0)
    return rc;
  rc = rd2h_fault_open(inner, &f, out, err);
  if (rc)
    rd2h_eng_close(inner);
  return rc;
}

int rd2h_eng_open(const char *name, const struct rd2h_engine_opts *opts, rd2h_eng **out, struct rd2h_error *err) {
  int rc = check_opts(opts, err);
  if (rc)
    return rc;
  if (!strncmp(name, FAULT_PREFIX, sizeof FAULT_PREFIX - 1))
    return open_fault(name + sizeof FAULT_PREFIX - 1, opts, out, err);
  if (!strcmp(name, "auto"))
    return rd2h_auto_open(opts, out, err);
  const struct rd2h_engine_ops *ops = find(name);
  if (!ops)
    return rd2h_fail(err, RD2H_NOT_FOUND, "there is no transfer engine \"%s\": choose auto, local, tcp, ucx, memfabric or noop",
                     name);
  return rd2h_eng_open_ops(ops, opts, out, err);
}

void rd2h_eng_close(rd2h_eng *e) {
  if (e)
    e->face->close(e);
}

const char *rd2h_eng_name(const rd2h_eng *e) {
  return e->name;
}

const struct rd2h_engine_caps *rd2h_eng_caps(const rd2h_eng *e) {
  return &e->caps;
}

int rd2h_eng_reg(rd2h_eng *e, const struct rd2h_region *r, uint32_t *region, struct rd2h_error *err) {
  uintptr_t end;
  if (!r->base || !r->len || __builtin_add_overflow((uintptr_t)r->base, r->len, &end))
    return rd2h_fail(err, RD2H_INVALID, "engine %s: cannot register %llu bytes at %p: the region is empty or passes the end of "
                     "memory", e->name, (unsigned long long)r->len, r->base);
  return e->face->reg(e, r, region, err);
}

int rd2h_eng_publish(rd2h_eng *e, struct rd2h_buf *buf, struct rd2h_error *err) {
  return e->face->publish(e, 0, buf, err);
}

int rd2h_eng_publish_for(rd2h_eng *e, uint64_t reader, struct rd2h_buf *buf, struct rd2h_error *err) {
  return e->face->publish(e, reader, buf, err);
}

void rd2h_eng_revoke(rd2h_eng *e, uint64_t reader) {
  e->face->revoke(e, reader);
}

rd2h_eng *rd2h_eng_part(rd2h_eng *e, uint32_t i) {
  return e->face->part ? e->face->part(e, i) : i ? NULL : e;
}

const char *rd2h_eng_session(rd2h_eng *e) {
  return e->face->session ? e->face->session(e) : NULL;
}

static int check_role(const rd2h_eng *e, struct rd2h_error *err) {
  if (e->prefill)
    return rd2h_fail(err, RD2H_STATE, "engine %s was opened on the Prefill side, which is read from: it cannot connect", e->name);
  return RD2H_OK;
}

int rd2h_eng_connect(rd2h_eng *e, struct rd2h_blob session, struct rd2h_blob conn, uint64_t cookie, rd2h_eng_peer **out,
                     struct rd2h_error *err) {
  int rc = check_role(e, err);
  return rc ? rc : e->face->connect(e, session, conn, cookie, out, err);
}

bool rd2h_eng_offers(const struct rd2h_eng_offer *o, const char *name) {
  return o->name.n == strlen(name) && !memcmp(o->name.p, name, o->name.n);
}

int rd2h_eng_choose(rd2h_eng *e, struct rd2h_blob session, const struct rd2h_eng_offer *offer, uint32_t n, uint64_t cookie,
                    rd2h_eng_peer **out, const char **chosen, struct rd2h_error *err) {
  int rc = check_role(e, err);
  if (rc || e->face->choose)
    return rc ? rc : e->face->choose(e, session, offer, n, cookie, out, chosen, err);
  for (uint32_t i = 0; i < n; i++)
    if (rd2h_eng_offers(&offer[i], e->name)) {
      rc = e->face->connect(e, session, offer[i].conn, cookie, out, err);
      *chosen = e->name;
      return rc;
    }
  return rd2h_fail(err, RD2H_NOT_FOUND, "the peer does not offer the engine %s", e->name);
}

void rd2h_eng_disconnect(rd2h_eng *e, rd2h_eng_peer *p) {
  if (p)
    e->face->disconnect(e, p);
}

int rd2h_eng_submit(rd2h_eng *e, rd2h_eng_peer *p, const struct rd2h_batch *b) {
  if (b->n && (!b->local || !b->remote || !b->len))
    return RD2H_INVALID;
  if (e->caps.max_desc && b->n > e->caps.max_desc)
    return RD2H_RANGE;
  return e->face->submit(e, p, b);
}

void rd2h_eng_cancel(rd2h_eng *e, uint64_t id) {
  e->face->cancel(e, id);
}

int rd2h_eng_poll(rd2h_eng *e, struct rd2h_completion *c, int n) {
  return e->face->poll(e, c, n);
}

int rd2h_eng_events(rd2h_eng *e, struct rd2h_peer_event *ev, int n) {
  return e->face->events(e, ev, n);
}

int rd2h_eng_fd(rd2h_eng *e) {
  return e->face->fd(e);
}

void rd2h_eng_stats(rd2h_eng *e, struct rd2h_engine_stats *s) {
  e->face->stats(e, s);
}

const char *rd2h_eng_way(rd2h_eng *e, rd2h_eng_peer *p) {
  return e->face->way(e, p);
}

const char *rd2h_eng_last_error(rd2h_eng *e, uint64_t id) {
  const char *text = e->face->last_error(e, id);
  return text ? text : "the engine gave no reason";
}
