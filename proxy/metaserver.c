/* SPDX-License-Identifier: Apache-2.0 */
/* POST /v1/metaserver: a rendezvous of Decode, answered when Prefill has finished. */
#include "proxy/app.h"

#include <stdlib.h>

enum { MAX_RENDEZVOUS = 64 << 10 };

struct rendezvous {
  struct px_app *app;
  struct px_conn *conn;
  struct px_waiter *waiter;
};

static void on_gone(void *user) {
  struct rendezvous *r = user;
  rd2h_px_flow_waiter_gone(r->waiter);
  free(r);
}

static const struct px_watch WATCH = {on_gone, NULL};

void rd2h_px_metaserver_answer(void *io, void *rendezvous, int status, struct px_span body) {
  struct px_app *app = io;
  struct rendezvous *r = rendezvous;
  rd2h_px_metrics_rendezvous(&app->metrics, status);
  rd2h_px_answer(r->conn, status, body);
  free(r);
}

static struct px_span token_of(struct px_span query) {
  while (query.n) {
    const char *stop = memchr(query.p, '&', query.n);
    struct px_span one = {query.p, stop ? (size_t)(stop - query.p) : query.n};
    if (one.n > 6 && memcmp(one.p, "token=", 6) == 0)
      return (struct px_span){one.p + 6, one.n - 6};
    query.p += one.n + (stop != NULL);
    query.n -= one.n + (stop != NULL);
  }
  return query;
}

static bool known_sender(const struct px_app *app, const char *peer) {
  for (const struct px_engine *e = app->pool.first; e; e = e->next)
    for (size_t i = 0; i < e->addresses; i++)
      if (strcmp(e->address[i], peer) == 0)
        return true;
  return false;
}

static void refuse(const struct px_ctx *x, int status, const char *why) {
  rd2h_px_metrics_rendezvous(&x->app->metrics, status);
  rd2h_px_log(&x->app->log, status == 404 ? PX_INFO : PX_WARNING, NULL, "rendezvous from %s refused with %d: %s",
              rd2h_px_conn_peer(x->conn), status, why);
  rd2h_px_answer_error(x->conn, status, why);
}

void rd2h_px_post_metaserver(const struct px_ctx *x) {
  struct px_app *app = x->app;
  struct px_span body = px_of(x->body);
  struct px_json_iter it;
  const char *why;
  size_t at;
  if (body.n > MAX_RENDEZVOUS) {
    refuse(x, 413, "a rendezvous has at most 64 KiB");
    return;
  }
  if (!rd2h_px_json_check(body, &at, &why) || !rd2h_px_json_open(body, '{', &it)) {
    refuse(x, 400, "a rendezvous must be a JSON object");
    return;
  }
  struct rendezvous *r = calloc(1, sizeof *r);
  if (!r) {
    refuse(x, 503, "memory ran out");
    return;
  }
  r->app = app;
  r->conn = x->conn;
  rd2h_px_conn_watch(x->conn, &WATCH, r);
  bool known = known_sender(app, rd2h_px_conn_peer(x->conn));
  int status = rd2h_px_flow_rendezvous(&app->flow, body, token_of(x->query), known, r, px_now(), &r->waiter, &why);
  if (status == 0)
    return; /* r waits, or has been answered and is gone */
  rd2h_px_conn_watch(x->conn, NULL, NULL);
  free(r);
  if (status != 200) {
    refuse(x, status, why);
    return;
  }
  rd2h_px_metrics_rendezvous(&app->metrics, 200);
  rd2h_px_answer(x->conn, 200, PX_LIT("{\"status\":\"ok\"}"));
}
