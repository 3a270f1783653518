/* SPDX-License-Identifier: Apache-2.0 */
/* Several engines behind one face: Prefill publishes each, Decode chooses one for every peer, the first of the peer's list that
 * works between the two. Batch ids are the caller's and unique, so whatever goes by id is put to all of them. */
#include "engine/face.h"
#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

#define PARTS 3u

static const struct {
  const char *name;
  const char *options[4]; /* beginnings of those that are this engine's */
  const char *always;     /* one that it is given here in any case */
} part_names[PARTS] = {
  /* Best first. Without RDMA ucx has nothing over the other two. */
  {"local", {"yama="}, NULL},
  {"ucx", {"lib=", "tls=", "devices=", "emulation="}, "require_rdma=1"},
  {"tcp", {"streams=", "bind=", "targets="}, NULL},
};

struct auto_peer {
  uint32_t part;
  rd2h_eng_peer *peer;
};
struct several {
  struct rd2h_eng eng;
  uint32_t n;
  rd2h_eng *part[PARTS];
  int epoll;
};

static void auto_close(rd2h_eng *e) {
  struct several *a = (struct several *)e;
  for (uint32_t i = 0; i < a->n; i++)
    rd2h_eng_close(a->part[i]);
  if (a->epoll >= 0)
    close(a->epoll);
  rd2h_free(a);
}

static rd2h_eng *auto_part(rd2h_eng *e, uint32_t i) {
  struct several *a = (struct several *)e;
  return i < a->n ? a->part[i] : NULL;
}

static int auto_reg(rd2h_eng *e, const struct rd2h_region *r, uint32_t *region, struct rd2h_error *err) {
  struct several *a = (struct several *)e;
  int rc = RD2H_OK;
  for (uint32_t i = 0; i < a->n && !rc; i++)
    rc = rd2h_eng_reg(a->part[i], r, region, err);
  return rc;
}

/* One blob cannot hold the data of several: the parts publish (rd2h_eng_part). */
static int auto_publish(rd2h_eng *e, uint64_t reader, struct rd2h_buf *buf, struct rd2h_error *err) {
  (void)buf, (void)reader;
  return rd2h_fail(err, RD2H_STATE, "engine %s: each engine it stands for publishes its own connection data", e->name);
}

static void auto_revoke(rd2h_eng *e, uint64_t reader) {
  struct several *a = (struct several *)e;
  for (uint32_t i = 0; i < a->n; i++)
    rd2h_eng_revoke(a->part[i], reader);
}

static int connect_part(struct several *a, uint32_t i, struct rd2h_blob session, struct rd2h_blob conn, uint64_t cookie,
                        rd2h_eng_peer **out, struct rd2h_error *err) {
  struct auto_peer *p = rd2h_alloc(sizeof *p);
  if (!p)
    return rd2h_nomem(err, "engine peer");
  int rc = rd2h_eng_connect(a->part[i], session, conn, cookie, &p->peer, err);
  if (rc) {
    rd2h_free(p);
    return rc;
  }
  p->part = i;
  *out = (rd2h_eng_peer *)p;
  return RD2H_OK;
}

/* A peer that offers no choice: the best engine, which may know how to do without connection data. */
static int auto_connect(rd2h_eng *e, struct rd2h_blob session, struct rd2h_blob conn, uint64_t cookie, rd2h_eng_peer **out,
                        struct rd2h_error *err) {
  return connect_part((struct several *)e, 0, session, conn, cookie, out, err);
}

static int auto_choose(rd2h_eng *e, struct rd2h_blob session, const struct rd2h_eng_offer *offer, uint32_t n, uint64_t cookie,
                       rd2h_eng_peer **out, const char **chosen, struct rd2h_error *err) {
  struct several *a = (struct several *)e;
  struct rd2h_error why = {.status = RD2H_NOT_FOUND};
  for (uint32_t k = 0; k < n; k++)
    for (uint32_t i = 0; i < a->n; i++) {
      if (!rd2h_eng_offers(&offer[k], rd2h_eng_name(a->part[i])))
        continue;
      int rc = connect_part(a, i, session, offer[k].conn, cookie, out, &why);
      if (!rc)
        *chosen = rd2h_eng_name(a->part[i]);
      if (!rc || rc == RD2H_NOMEM)
        return rc ? rd2h_fail(err, rc, "%s", why.text) : rc;
      RD2H_INFO("engine auto: not %s for this peer: %s", rd2h_eng_name(a->part[i]), why.text);
    }
  return rd2h_fail(err, why.status, "%s", why.text[0] ? why.text : "engine auto: no engine that the peer offers is here");
}

static void auto_disconnect(rd2h_eng *e, rd2h_eng_peer *base) {
  struct several *a = (struct several *)e;
  struct auto_peer *p = (struct auto_peer *)base;
  rd2h_eng_disconnect(a->part[p->part], p->peer);
  rd2h_free(p);
}

static int auto_submit(rd2h_eng *e, rd2h_eng_peer *base, const struct rd2h_batch *b) {
  struct several *a = (struct several *)e;
  struct auto_peer *p = (struct auto_peer *)base;
  return rd2h_eng_submit(a->part[p->part], p->peer, b);
}

static void auto_cancel(rd2h_eng *e, uint64_t id) {
  struct several *a = (struct several *)e;
  for (uint32_t i = 0; i < a->n; i++)
    rd2h_eng_cancel(a->part[i], id);
}

static int auto_poll(rd2h_eng *e, struct rd2h_completion *c, int n) {
  struct several *a = (struct several *)e;
  int got = 0;
  for (uint32_t i = 0; i < a->n; i++) /* also with no room left: a poll ends the texts of the one before */
    got += rd2h_eng_poll(a->part[i], c + got, n - got);
  return got;
}

static int auto_events(rd2h_eng *e, struct rd2h_peer_event *ev, int n) {
  struct several *a = (struct several *)e;
  int got = 0;
  for (uint32_t i = 0; i < a->n && got < n; i++)
    got += rd2h_eng_events(a->part[i], ev + got, n - got);
  return got;
}

static int auto_fd(rd2h_eng *e) {
  return ((struct several *)e)->epoll;
}

static void auto_stats(rd2h_eng *e, struct rd2h_engine_stats *s) {
  struct several *a = (struct several *)e;
  *s = (struct rd2h_engine_stats){0};
  for (uint32_t i = 0; i < a->n; i++) {
    struct rd2h_engine_stats one;
    rd2h_eng_stats(a->part[i], &one);
    s->reads += one.reads;
    s->descriptors += one.descriptors;
    s->bytes += one.bytes;
    s->failures += one.failures;
    s->canceled += one.canceled;
  }
}

static const char *auto_last_error(rd2h_eng *e, uint64_t id) {
  struct several *a = (struct several *)e;
  const char *text = NULL;
  for (uint32_t i = 0; i < a->n && !text; i++)
    text = a->part[i]->face->last_error(a->part[i], id);
  return text;
}

static const char *auto_way(rd2h_eng *e, rd2h_eng_peer *base) {
  struct auto_peer *p = (struct auto_peer *)base;
  return rd2h_eng_way(((struct several *)e)->part[p->part], p->peer);
}

static const struct rd2h_eng_face auto_face = {
  .close = auto_close, .reg = auto_reg, .publish = auto_publish, .revoke = auto_revoke, .part = auto_part, .connect = auto_connect,
  .choose = auto_choose, .disconnect = auto_disconnect, .submit = auto_submit, .cancel = auto_cancel, .poll = auto_poll,
  .events = auto_events, .fd = auto_fd, .stats = auto_stats, .last_error = auto_last_error,
  .way = auto_way,
};

/* ---- open ---- */
static bool owns(uint32_t part, const char *option) {
  for (uint32_t i = 0; i < RD2H_COUNT(part_names[part].options) && part_names[part].options[i]; i++)
    if (!strncmp(option, part_names[part].options[i], strlen(part_names[part].options[i])))
      return true;
  return false;
}

static int check_options(const struct rd2h_engine_opts *o, struct rd2h_error *err) {
  for (const char *const *p = o->options; p && *p; p++) {
    uint32_t i = 0;
    while (i < PARTS && !owns(i, *p))
      i++;
    if (i == PARTS)
      return rd2h_fail(err, RD2H_INVALID, "engine auto: unknown option \"%.100s\": it takes those of the engines local, ucx (but "
                       "require_rdma, which it sets) and tcp", *p);
  }
  return RD2H_OK;
}

static int open_part(struct several *a, uint32_t part, const struct rd2h_engine_opts *o, const char **room,
                     struct rd2h_error *err) {
  struct rd2h_engine_opts with = *o;
  uint32_t n = 0;
  for (const char *const *p = o->options; p && *p; p++)
    if (owns(part, *p))
      room[n++] = *p;
  if (part_names[part].always)
    room[n++] = part_names[part].always;
  room[n] = NULL;
  with.options = n ? room : NULL;
  int rc = rd2h_eng_open(part_names[part].name, &with, &a->part[a->n], err);
  a->n += !rc;
  return rc;
}

/* What does not work on this host is left out; a mistake of the caller's, or no memory, is an error all the same. */
static int open_parts(struct several *a, const struct rd2h_engine_opts *o, struct rd2h_error *err) {
  struct rd2h_error why = {0};
  uint32_t n = 0;
  while (o->options && o->options[n])
    n++;
  const char **room = rd2h_calloc(n + 2, sizeof *room);
  int rc = room ? check_options(o, &why) : rd2h_nomem(&why, "engine options");
  for (uint32_t i = 0; i < PARTS && (!rc || rc == RD2H_UNSUPPORTED); i++) {
    rc = open_part(a, i, o, room, &why);
    if (rc == RD2H_UNSUPPORTED)
      RD2H_INFO("engine auto: without %s: %s", part_names[i].name, why.text);
  }
  rd2h_free(room);
  if (rc == RD2H_UNSUPPORTED && a->n)
    rc = RD2H_OK;
  return rc ? rd2h_fail(err, rc, "%s", why.text) : RD2H_OK;
}

static uint32_t tighter(uint32_t a, uint32_t b) {
  return !a || (b && b < a) ? b : a;
}

static int join(struct several *a, struct rd2h_error *err) {
  struct rd2h_engine_caps caps = *rd2h_eng_caps(a->part[0]);
  struct epoll_event ev = {.events = EPOLLIN};
  a->epoll = epoll_create1(EPOLL_CLOEXEC);
  bool joined = a->epoll >= 0;
  for (uint32_t i = 0; i < a->n && joined; i++) {
    const struct rd2h_engine_caps *one = rd2h_eng_caps(a->part[i]);
    joined = !epoll_ctl(a->epoll, EPOLL_CTL_ADD, rd2h_eng_fd(a->part[i]), &ev);
    caps.flags &= one->flags;
    caps.max_desc = tighter(caps.max_desc, one->max_desc);
    caps.max_inflight_per_peer = tighter(caps.max_inflight_per_peer, one->max_inflight_per_peer);
  }
  if (!joined)
    return rd2h_fail(err, RD2H_LIMIT, "engine auto: cannot open its event descriptor: %s", strerror(errno));
  a->eng.caps = caps;
  return RD2H_OK;
}

int rd2h_auto_open(const struct rd2h_engine_opts *o, rd2h_eng **out, struct rd2h_error *err) {
  struct several *a = rd2h_zalloc(sizeof *a);
  if (!a)
    return rd2h_nomem(err, "engine");
  a->eng = (struct rd2h_eng){.face = &auto_face, .name = "auto", .prefill = o->prefill};
  a->epoll = -1;
  int rc = open_parts(a, o, err);
  rc = rc ? rc : join(a, err);
  if (rc) {
    auto_close(&a->eng);
    return rc;
  }
  *out = &a->eng;
  return RD2H_OK;
}
