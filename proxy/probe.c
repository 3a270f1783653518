/* SPDX-License-Identifier: Apache-2.0 */
/* GET /health of every engine, once in a while: one that fails is left out, one that answers again comes back. */
#include "proxy/app.h"

#include <stdlib.h>

enum { PROBE_MS = 5000 };

struct probe {
  struct px_app *app;
  struct px_engine *engine;
  int status;
  int64_t begun;
};

static void on_head(void *user, int status, const char *type, const char *retry_after) {
  struct probe *p = user;
  (void)type, (void)retry_after;
  p->status = status;
}

static bool on_data(void *user, struct px_span s) {
  (void)user, (void)s;
  return true;
}

static void on_done(void *user, const char *error) {
  struct probe *p = user;
  struct px_app *app = p->app;
  struct px_engine *e = p->engine;
  int64_t now = px_now();
  /* An engine without /health is one that answers. */
  bool good = !error && (p->status < 500 || p->status == 501);
  /* One that is too busy for a probe but answers requests is not left out. */
  bool busy = error && e->heard_at > p->begun;
  bool changed = busy ? false : good ? rd2h_px_engine_good(e) : rd2h_px_engine_bad(&app->pool, e, now);
  if (changed)
    rd2h_px_log(&app->log, good ? PX_INFO : PX_WARNING, NULL, "%s engine %s %s%s%s", rd2h_px_role_name[e->role], e->name,
                good ? "is back" : "is left out: its health probe fails", error ? ": " : "", error ? error : "");
  e->probing = false;
  e->probe_at = now + (e->ejected ? app->pool.probe_down_ms : app->pool.probe_ms);
  if (e->draining)
    rd2h_px_pool_remove(&app->pool, e);
  free(p);
}

static const struct px_call_events EVENTS = {on_head, on_data, on_done};

static void start(struct px_app *app, struct px_engine *e) {
  struct probe *p = calloc(1, sizeof *p);
  if (!p)
    return;
  *p = (struct probe){.app = app, .engine = e, .begun = px_now()};
  const struct px_request q = {.origin = e->url, .path = PX_LIT("/health"), .limit_ms = PROBE_MS};
  if (rd2h_px_call(app->client, &q, &EVENTS, p))
    e->probing = true;
  else
    free(p);
}

void rd2h_px_probe_all(struct px_app *app) {
  int64_t now = px_now();
  for (struct px_engine *e = app->pool.first; e; e = e->next)
    if (!e->probing && !e->draining && now >= e->probe_at && (app->pool.probe_ms || e->ejected))
      start(app, e);
}
