/* SPDX-License-Identifier: Apache-2.0 */
/* Engine memfabric: reads by the library MemFabric Hybrid, out of NPU or host memory. The table of the engine. */
#include "engines/memfabric/memfabric.h"
#include <stdio.h>

struct rd2h_engine {
  struct mf_options o;
  struct mf_serve *serve;   /* on Prefill */
  struct mf_client *client; /* on Decode */
};

static int open_side(rd2h_engine *e, const struct mf_api *api, const struct rd2h_engine_opts *opts, const char *host,
                     struct rd2h_error *err) {
  struct mf_binding b = {.prefill = opts->prefill, .device = e->o.device};
  snprintf(b.host, sizeof b.host, "%s", host);
  int rc = rd2h_mf_bind(api, &b, &e->o, err);
  if (rc)
    return rc;
  rc = opts->prefill ? rd2h_mf_serve_open(api, &e->o, host, &e->serve, err)
                     : rd2h_mf_client_open(api, &e->o, host, opts, &e->client, err);
  if (rc)
    rd2h_mf_unbind();
  return rc;
}

static int mf_open(const struct rd2h_host *services, const struct rd2h_engine_opts *opts, rd2h_engine **out,
                   struct rd2h_engine_caps *caps, struct rd2h_error *err) {
  const char *host = opts->host ? opts->host : "127.0.0.1";
  const struct mf_api *api;
  (void)services;
  rd2h_engine *e = rd2h_zalloc(sizeof *e);
  if (!e)
    return rd2h_nomem(err, "engine memfabric");
  int rc = rd2h_mf_options(opts->options, host, &e->o, err);
  rc = rc ? rc : rd2h_mf_library(e->o.lib, &api, err);
  rc = rc ? rc : open_side(e, api, opts, host, err);
  if (rc) {
    rd2h_free(e);
    return rc;
  }
  *caps = (struct rd2h_engine_caps){.flags = RD2H_ENG_CANCEL | RD2H_ENG_PEER_DOWN | RD2H_ENG_LOCAL_UNREGISTERED | RD2H_ENG_BY_SESSION,
                                    .max_inflight_per_peer = 64};
  *out = e;
  return RD2H_OK;
}

static void mf_close(rd2h_engine *e) {
  if (e->serve)
    rd2h_mf_serve_close(e->serve);
  if (e->client)
    rd2h_mf_client_close(e->client);
  rd2h_mf_unbind();
  rd2h_free(e);
}

/* Decode's destinations need no registration. */
static int mf_reg(rd2h_engine *e, const struct rd2h_region *r, uint32_t *region, struct rd2h_error *err) {
  *region = 0;
  return e->serve ? rd2h_mf_serve_reg(e->serve, r, region, err) : RD2H_OK;
}

static int mf_publish(rd2h_engine *e, uint8_t *buf, uint32_t cap, uint32_t *len) {
  *len = 0; /* nobody reads from Decode */
  return e->serve ? rd2h_mf_serve_publish(e->serve, buf, cap, len) : RD2H_OK;
}

static const char *mf_session(rd2h_engine *e) {
  return e->serve ? rd2h_mf_serve_session(e->serve) : NULL;
}

static int mf_connect(rd2h_engine *e, struct rd2h_blob session, struct rd2h_blob conn, uint64_t cookie, rd2h_peer **out,
                      struct rd2h_error *err) {
  return rd2h_mf_client_connect(e->client, session, conn, cookie, out, err);
}

static void mf_disconnect(rd2h_engine *e, rd2h_peer *p) {
  rd2h_mf_client_disconnect(e->client, p);
}

static int mf_submit(rd2h_engine *e, rd2h_peer *p, const struct rd2h_batch *b) {
  return rd2h_mf_client_submit(e->client, p, b);
}

/* On Prefill nothing is read: there is nothing to cancel, poll or tell. */
static void mf_cancel(rd2h_engine *e, uint64_t id) {
  if (e->client)
    rd2h_mf_client_cancel(e->client, id);
}

static int mf_poll(rd2h_engine *e, struct rd2h_completion *c, int n) {
  return e->client ? rd2h_mf_client_poll(e->client, c, n) : 0;
}

static int mf_events(rd2h_engine *e, struct rd2h_peer_event *ev, int n) {
  return e->client ? rd2h_mf_client_events(e->client, ev, n) : 0;
}

static int mf_fd(rd2h_engine *e) {
  return e->client ? rd2h_mf_client_fd(e->client) : -1;
}

static void mf_stats(rd2h_engine *e, struct rd2h_engine_stats *s) {
  if (e->client)
    rd2h_mf_client_stats(e->client, s);
}

static const char *mf_last_error(rd2h_engine *e, uint64_t id) {
  return e->client ? rd2h_mf_client_error(e->client, id) : NULL;
}

const struct rd2h_engine_ops rd2h_engine_memfabric = {
  .abi = RD2H_ENGINE_ABI, .size = sizeof rd2h_engine_memfabric, .name = "memfabric", .open = mf_open, .close = mf_close,
  .reg = mf_reg, .publish = mf_publish, .session = mf_session, .connect = mf_connect, .disconnect = mf_disconnect,
  .submit = mf_submit, .cancel = mf_cancel, .poll = mf_poll, .events = mf_events, .fd = mf_fd, .stats = mf_stats,
  .last_error = mf_last_error,
};
