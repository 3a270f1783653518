/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a running proxy, and what its files ask of one another. */
#ifndef RD2H_PROXY_APP_H
#define RD2H_PROXY_APP_H
#include "proxy/client.h"
#include "proxy/clock.h"
#include "proxy/flow.h"
#include "proxy/log.h"
#include "proxy/metrics.h"
#include "proxy/options.h"
#include "proxy/server.h"

struct px_app {
  struct px_options options;
  struct event_base *base;
  struct px_server *server;
  struct px_client *client;
  struct px_pool pool;
  struct px_flow flow;
  struct px_scan_plan plan; /* of requests' bodies */
  struct px_metrics metrics;
  struct px_log log;
  char *metaserver;
  struct event *tick, *wake, *probe;
  int64_t wake_at;
  bool stopping, late; /* late: drain-timeout has passed, or a second signal has come */
};

/* A whole request on its way through the handlers. */
struct px_ctx {
  struct px_app *app;
  struct px_conn *conn;
  const struct px_head *head;
  struct px_buf *body;
  struct px_scan *scan;
  struct px_span path, query;
};

/* ---- answers of our own ---- */
void rd2h_px_answer(struct px_conn *c, int status, struct px_span json);
void rd2h_px_answer_error(struct px_conn *c, int status, const char *message);

/* ---- handlers, by file ---- */
typedef void px_route_fn(const struct px_ctx *x);
px_route_fn rd2h_px_post_completions, rd2h_px_post_chat, rd2h_px_post_metaserver;                          /* exchange.c, metaserver.c */
px_route_fn rd2h_px_get_models, rd2h_px_post_reset;                                                        /* relay.c */
px_route_fn rd2h_px_get_health, rd2h_px_get_healthcheck, rd2h_px_get_metrics, rd2h_px_get_instances;       /* admin.c */
px_route_fn rd2h_px_post_instances_add, rd2h_px_post_instances_remove;
extern const struct px_handler rd2h_px_routes; /* routes.c */
extern const struct px_io rd2h_px_exchange_io; /* exchange.c */
void rd2h_px_metaserver_answer(void *io, void *rendezvous, int status, struct px_span body);

/* Looks which engines are due for a probe. */
void rd2h_px_probe_all(struct px_app *app);
/* Adds an engine; names are resolved when resolve is set, so that rendezvous from its address are known. */
struct px_engine *rd2h_px_app_add(struct px_app *app, enum px_role role, const char *host, uint16_t port, bool resolve, const char **why);
#endif
