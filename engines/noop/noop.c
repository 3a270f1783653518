/* SPDX-License-Identifier: Apache-2.0 */
/* Completes every read at once and moves nothing: for benchmarks and tests of the control path. It serves any peer, also one that
 * published no connection data. Uses the host table only, as an engine that is loaded at run time must. */
#include <errno.h>
#include <rd2h/engine.h>
#include <rd2h/log.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define RING 1024u /* completions not yet polled */
static const uint8_t conn_data[] = {'n', 'o', 'o', 'p', 1};

struct rd2h_peer {
  uint64_t pending; /* completions of it in the ring */
};
struct entry {
  struct rd2h_peer *peer;
  struct rd2h_completion c;
};
struct rd2h_engine {
  const struct rd2h_host *host;
  int event; /* -1 until somebody asks for it */
  uint32_t head, n, regions;
  struct rd2h_engine_stats stats;
  struct entry ring[RING];
};

static int fail(struct rd2h_error *err, int status, const char *text) {
  if (err) {
    err->status = status;
    snprintf(err->text, sizeof err->text, "engine noop: %s", text);
  }
  return status;
}

static int noop_open(const struct rd2h_host *host, const struct rd2h_engine_opts *opts, rd2h_engine **out,
                     struct rd2h_engine_caps *caps, struct rd2h_error *err) {
  if (opts->options && opts->options[0])
    return fail(err, RD2H_INVALID, "it has no options");
  rd2h_engine *e = host->alloc(host->h, sizeof *e);
  if (!e)
    return fail(err, RD2H_NOMEM, "out of memory");
  memset(e, 0, sizeof *e);
  e->host = host;
  e->event = -1;
  *caps = (struct rd2h_engine_caps){.flags = RD2H_ENG_SUBMIT_COMPLETES | RD2H_ENG_LOCAL_UNREGISTERED | RD2H_ENG_IN_ORDER};
  *out = e;
  return RD2H_OK;
}

static void noop_close(rd2h_engine *e) {
  if (e->event >= 0)
    close(e->event);
  e->host->free(e->host->h, e);
}

static int noop_reg(rd2h_engine *e, const struct rd2h_region *r, uint32_t *region, struct rd2h_error *err) {
  (void)r, (void)err;
  *region = e->regions++;
  return RD2H_OK;
}

static int noop_publish(rd2h_engine *e, uint8_t *buf, uint32_t cap, uint32_t *len) {
  (void)e;
  *len = sizeof conn_data;
  if (cap < sizeof conn_data)
    return RD2H_RANGE;
  memcpy(buf, conn_data, sizeof conn_data);
  return RD2H_OK;
}

static int noop_connect(rd2h_engine *e, struct rd2h_blob session, struct rd2h_blob conn, uint64_t cookie, rd2h_peer **out,
                        struct rd2h_error *err) {
  (void)session, (void)cookie; /* nobody ever goes down */
  if (conn.len && (conn.len != sizeof conn_data || memcmp(conn.p, conn_data, sizeof conn_data)))
    return fail(err, RD2H_MALFORMED, "the peer's connection data is not that of a noop engine of this version");
  rd2h_peer *p = e->host->alloc(e->host->h, sizeof *p);
  if (!p)
    return fail(err, RD2H_NOMEM, "out of memory");
  p->pending = 0;
  *out = p;
  return RD2H_OK;
}

/* The eventfd is up exactly while the ring holds something. */
static void set_signal(rd2h_engine *e, uint32_t before) {
  uint64_t v = 1;
  ssize_t n = sizeof v;
  if (e->event < 0)
    return;
  if (!before && e->n)
    n = write(e->event, &v, sizeof v);
  else if (before && !e->n)
    n = read(e->event, &v, sizeof v);
  if (n != (ssize_t)sizeof v)
    e->host->log(e->host->h, RD2H_LOG_ERROR, "engine noop: its event descriptor fails");
}

static void noop_disconnect(rd2h_engine *e, rd2h_peer *p) {
  uint32_t kept = 0, before = e->n;
  for (uint32_t i = 0; p->pending && i < before; i++) {
    struct entry *from = &e->ring[(e->head + i) % RING];
    if (from->peer != p)
      e->ring[(e->head + kept++) % RING] = *from;
  }
  if (p->pending)
    e->n = kept;
  set_signal(e, before);
  e->host->free(e->host->h, p);
}

static int noop_submit(rd2h_engine *e, rd2h_peer *p, const struct rd2h_batch *b) {
  if (e->n == RING)
    return RD2H_AGAIN;
  e->ring[(e->head + e->n++) % RING] = (struct entry){p, {b->id, RD2H_OK, UINT32_MAX, b->bytes}};
  p->pending++;
  e->stats.reads++;
  e->stats.descriptors += b->n;
  e->stats.bytes += b->bytes;
  set_signal(e, e->n - 1);
  return RD2H_OK;
}

/* Whatever was submitted has ended. */
static void noop_cancel(rd2h_engine *e, uint64_t id) {
  (void)e, (void)id;
}

static int noop_poll(rd2h_engine *e, struct rd2h_completion *c, int n) {
  uint32_t before = e->n;
  int got = 0;
  for (; got < n && e->n; e->head = (e->head + 1) % RING, e->n--) {
    e->ring[e->head].peer->pending--;
    c[got++] = e->ring[e->head].c;
  }
  set_signal(e, before);
  return got;
}

static int noop_fd(rd2h_engine *e) {
  if (e->event < 0) {
    e->event = eventfd(e->n > 0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (e->event < 0)
      e->host->log(e->host->h, RD2H_LOG_ERROR, "engine noop: no event descriptor is left; raise the limit of open files (ulimit -n)");
  }
  return e->event;
}

static void noop_stats(rd2h_engine *e, struct rd2h_engine_stats *s) {
  *s = e->stats;
}

extern const struct rd2h_engine_ops rd2h_engine_noop;
const struct rd2h_engine_ops rd2h_engine_noop = {
  .abi = RD2H_ENGINE_ABI, .size = sizeof rd2h_engine_noop, .name = "noop", .open = noop_open, .close = noop_close,
  .reg = noop_reg, .publish = noop_publish, .connect = noop_connect, .disconnect = noop_disconnect, .submit = noop_submit,
  .cancel = noop_cancel, .poll = noop_poll, .fd = noop_fd, .stats = noop_stats,
};
