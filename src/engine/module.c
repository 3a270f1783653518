/* SPDX-License-Identifier: Apache-2.0 */
/* An engine's table: checked, opened, its peers kept; and the plain kind, whose slots are the engine's own. */
#include "engine/face.h"

#define PUBLISH_MAX (1u << 20) /* bytes of connection data that one engine may publish */

static void *host_alloc(void *h, size_t n) {
  (void)h;
  return rd2h_alloc(n);
}

static void host_free(void *h, void *p) {
  (void)h;
  rd2h_free(p);
}

static void host_log(void *h, int level, const char *line) {
  (void)h;
  rd2h_logf(level, "%s", line);
}

static uint64_t host_now(void *h) {
  (void)h;
  return rd2h_now_ns();
}

static const struct rd2h_host host = {RD2H_ENGINE_ABI, sizeof host, host_alloc, host_free, host_log, host_now, NULL};

static int check_table(const struct rd2h_engine_ops *o, struct rd2h_error *err) {
  if (o->abi != RD2H_ENGINE_ABI)
    return rd2h_fail(err, RD2H_UNSUPPORTED, "engine table is of ABI %u, this library needs %u: rebuild the engine against its "
                     "headers", o->abi, RD2H_ENGINE_ABI);
  if (o->size < sizeof *o)
    return rd2h_fail(err, RD2H_UNSUPPORTED, "engine table has %u bytes, this library needs %zu: rebuild the engine against its "
                     "headers", o->size, sizeof *o);
  if (!o->name || !*o->name || !o->open || !o->close || !o->connect || !o->disconnect)
    return rd2h_fail(err, RD2H_INVALID, "engine %s: its table lacks a name, open, close, connect or disconnect",
                     o->name && *o->name ? o->name : "without a name");
  return RD2H_OK;
}

/* What the flags promise must be there; known only once the engine is open. */
static int check_slots(const struct rd2h_engine_ops *o, const struct rd2h_engine_caps *caps, struct rd2h_error *err) {
  bool blocks = caps->flags & RD2H_ENG_BLOCKS;
  if (blocks ? !o->read : !o->submit || !o->poll || !o->fd || !o->cancel)
    return rd2h_fail(err, RD2H_INVALID, "engine %s: its table lacks %s", o->name, blocks ? "read" : "submit, poll, fd or cancel");
  return RD2H_OK;
}

int rd2h_module_open(struct rd2h_module *m, const struct rd2h_engine_ops *ops, const struct rd2h_engine_opts *opts,
                     struct rd2h_error *err) {
  struct rd2h_engine_caps caps = {0};
  rd2h_engine *self;
  int rc = check_table(ops, err);
  if (!rc)
    rc = ops->open(&host, opts, &self, &caps, err);
  if (rc)
    return rc;
  rc = check_slots(ops, &caps, err);
  if (rc) {
    ops->close(self);
    return rc;
  }
  *m = (struct rd2h_module){.eng = {.name = ops->name, .caps = caps, .prefill = opts->prefill}, .ops = ops, .self = self};
  return RD2H_OK;
}

int rd2h_module_reg(rd2h_eng *e, const struct rd2h_region *r, uint32_t *region, struct rd2h_error *err) {
  struct rd2h_module *m = (struct rd2h_module *)e;
  if (m->ops->reg)
    return m->ops->reg(m->self, r, region, err);
  *region = 0;
  return RD2H_OK;
}

static int publish_one(struct rd2h_module *m, uint64_t reader, uint8_t *p, uint32_t cap, uint32_t *len) {
  return reader && m->ops->publish_for ? m->ops->publish_for(m->self, reader, p, cap, len) : m->ops->publish(m->self, p, cap, len);
}

int rd2h_module_publish(rd2h_eng *e, uint64_t reader, struct rd2h_buf *buf, struct rd2h_error *err) {
  struct rd2h_module *m = (struct rd2h_module *)e;
  uint32_t need = 0, len = 0;
  if (!m->ops->publish)
    return RD2H_OK;
  int rc = publish_one(m, reader, NULL, 0, &need);
  if (rc == RD2H_RANGE && need <= PUBLISH_MAX) {
    if (!rd2h_buf_room(buf, need))
      return rd2h_nomem(err, "connection data");
    rc = publish_one(m, reader, buf->p + buf->len, need, &len);
  }
  if (rc || len > need)
    return rd2h_fail(err, rc && rc != RD2H_RANGE ? rc : RD2H_INTERNAL, "engine %s: could not publish its connection data (%u "
                     "bytes, %s)", e->name, need, rd2h_status_text(rc));
  buf->len += len;
  return RD2H_OK;
}

void rd2h_module_revoke(rd2h_eng *e, uint64_t reader) {
  struct rd2h_module *m = (struct rd2h_module *)e;
  if (m->ops->revoke)
    m->ops->revoke(m->self, reader);
}

int rd2h_module_connect(struct rd2h_module *m, struct rd2h_blob session, struct rd2h_blob conn, uint64_t cookie, rd2h_eng_peer *p,
                        struct rd2h_error *err) {
  int rc = m->ops->connect(m->self, session, conn, cookie, &p->peer, err);
  if (rc)
    return rc;
  p->prev = NULL;
  p->next = m->peers;
  if (m->peers)
    m->peers->prev = p;
  m->peers = p;
  return RD2H_OK;
}

void rd2h_module_disconnect(struct rd2h_module *m, rd2h_eng_peer *p) {
  if (p->prev)
    p->prev->next = p->next;
  else
    m->peers = p->next;
  if (p->next)
    p->next->prev = p->prev;
  m->ops->disconnect(m->self, p->peer);
}

int rd2h_module_events(rd2h_eng *e, struct rd2h_peer_event *ev, int n) {
  struct rd2h_module *m = (struct rd2h_module *)e;
  return m->ops->events ? m->ops->events(m->self, ev, n) : 0;
}

const char *rd2h_module_session(rd2h_eng *e) {
  struct rd2h_module *m = (struct rd2h_module *)e;
  return m->ops->session ? m->ops->session(m->self) : NULL;
}

const char *rd2h_module_way(rd2h_eng *e, rd2h_eng_peer *p) {
  struct rd2h_module *m = (struct rd2h_module *)e;
  return m->ops->way ? m->ops->way(m->self, p->peer) : "";
}

/* ---- plain ---- */

static int plain_connect(rd2h_eng *e, struct rd2h_blob session, struct rd2h_blob conn, uint64_t cookie, rd2h_eng_peer **out,
                         struct rd2h_error *err) {
  rd2h_eng_peer *p = rd2h_zalloc(sizeof *p);
  if (!p)
    return rd2h_nomem(err, "engine peer");
  int rc = rd2h_module_connect((struct rd2h_module *)e, session, conn, cookie, p, err);
  if (rc) {
    rd2h_free(p);
    return rc;
  }
  *out = p;
  return RD2H_OK;
}

static void plain_disconnect(rd2h_eng *e, rd2h_eng_peer *p) {
  rd2h_module_disconnect((struct rd2h_module *)e, p);
  rd2h_free(p);
}

static void plain_close(rd2h_eng *e) {
  struct rd2h_module *m = (struct rd2h_module *)e;
  while (m->peers)
    plain_disconnect(e, m->peers);
  m->ops->close(m->self);
  rd2h_free(m);
}

static int plain_submit(rd2h_eng *e, rd2h_eng_peer *p, const struct rd2h_batch *b) {
  struct rd2h_module *m = (struct rd2h_module *)e;
  return m->ops->submit(m->self, p->peer, b);
}

static void plain_cancel(rd2h_eng *e, uint64_t id) {
  struct rd2h_module *m = (struct rd2h_module *)e;
  m->ops->cancel(m->self, id);
}

static int plain_poll(rd2h_eng *e, struct rd2h_completion *c, int n) {
  struct rd2h_module *m = (struct rd2h_module *)e;
  return m->ops->poll(m->self, c, n);
}

static int plain_fd(rd2h_eng *e) {
  struct rd2h_module *m = (struct rd2h_module *)e;
  return m->ops->fd(m->self);
}

static void plain_stats(rd2h_eng *e, struct rd2h_engine_stats *s) {
  struct rd2h_module *m = (struct rd2h_module *)e;
  *s = (struct rd2h_engine_stats){0};
  if (m->ops->stats)
    m->ops->stats(m->self, s);
}

static const char *plain_last_error(rd2h_eng *e, uint64_t id) {
  struct rd2h_module *m = (struct rd2h_module *)e;
  return m->ops->last_error ? m->ops->last_error(m->self, id) : NULL;
}

static const struct rd2h_eng_face plain_face = {
  .close = plain_close, .reg = rd2h_module_reg, .publish = rd2h_module_publish, .revoke = rd2h_module_revoke, .connect = plain_connect,
  .disconnect = plain_disconnect, .submit = plain_submit, .cancel = plain_cancel, .poll = plain_poll,
  .events = rd2h_module_events, .fd = plain_fd, .stats = plain_stats, .last_error = plain_last_error,
  .session = rd2h_module_session, .way = rd2h_module_way,
};

int rd2h_plain_open(const struct rd2h_module *opened, rd2h_eng **out, struct rd2h_error *err) {
  struct rd2h_module *m = rd2h_alloc(sizeof *m);
  if (!m)
    return rd2h_nomem(err, "engine");
  *m = *opened;
  m->eng.face = &plain_face;
  *out = &m->eng;
  return RD2H_OK;
}
