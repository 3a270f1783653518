/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that go to engines as they are: the list of models, resetting prefix caches. */
#include "proxy/app.h"

#include <stdio.h>
#include <stdlib.h>

enum { RELAY_MS = 10000, MAX_ANSWER = 4 << 20 };

struct relay;
struct relay_call {
  struct relay *relay;
  struct px_call *call;
  char origin[300]; /* of the engine, which may be removed meanwhile */
  int status;
};

struct relay {
  struct px_app *app;
  struct px_conn *conn;
  char *auth_line; /* with CR LF, or NULL */
  uint64_t tried; /* of the models' engines */
  struct px_buf answer, failed;
  size_t n, open;
  struct relay_call one[];
};

static void relay_free(struct relay *r) {
  for (size_t i = 0; i < r->n; i++)
    if (r->one[i].call)
      rd2h_px_call_cancel(r->one[i].call);
  rd2h_px_free(&r->answer);
  rd2h_px_free(&r->failed);
  free(r->auth_line);
  free(r);
}

static void on_gone(void *user) {
  relay_free(user);
}

static const struct px_watch WATCH = {on_gone, NULL};

static struct relay *relay_new(const struct px_ctx *x, size_t room) {
  struct relay *r = calloc(1, sizeof *r + room * sizeof *r->one);
  struct px_span auth = rd2h_px_head_get(x->head, "authorization");
  if (!r || (auth.n && asprintf(&r->auth_line, "Authorization: %.*s\r\n", (int)auth.n, auth.p) < 0)) {
    free(r);
    rd2h_px_answer_error(x->conn, 503, "memory ran out");
    return NULL;
  }
  r->app = x->app;
  r->conn = x->conn;
  rd2h_px_conn_watch(x->conn, &WATCH, r);
  return r;
}

static bool start(struct relay *r, struct relay_call *one, const struct px_engine *e, bool post, struct px_span path,
                  const struct px_call_events *events) {
  snprintf(one->origin, sizeof one->origin, "%s", e->url);
  const struct px_request q = {.origin = one->origin, .path = path, .post = post, .headers = px_str(r->auth_line), .limit_ms = RELAY_MS};
  one->relay = r;
  one->status = 0;
  one->call = rd2h_px_call(r->app->client, &q, events, one);
  return one->call != NULL;
}

static void on_head(void *user, int status, const char *type, const char *retry_after) {
  struct relay_call *one = user;
  (void)type, (void)retry_after;
  one->status = status;
}

static bool on_data(void *user, struct px_span s) {
  struct relay_call *one = user;
  if (one->relay->answer.n + s.n <= MAX_ANSWER)
    rd2h_px_put(&one->relay->answer, s);
  return true;
}

static bool ignore_data(void *user, struct px_span s) {
  (void)user, (void)s;
  return true;
}

static void finish(struct relay *r, int status, struct px_span json) {
  struct px_conn *c = r->conn;
  rd2h_px_conn_watch(c, NULL, NULL);
  rd2h_px_answer(c, status, json);
  relay_free(r);
}

/* ---- GET /v1/models: of the first engine that answers, Decode's before Prefill's ---- */
static void next_models(struct relay *r);

static void models_done(void *user, const char *error) {
  struct relay_call *one = user;
  struct relay *r = one->relay;
  one->call = NULL;
  if (!error && one->status > 0 && one->status < 500)
    finish(r, one->status, px_of(&r->answer));
  else
    next_models(r);
}

static const struct px_call_events MODELS = {on_head, on_data, models_done};

static struct px_engine *untried(struct relay *r) {
  struct px_engine *e = NULL;
  for (int role = PX_ROLES; role-- > 0 && !e;) {
    e = rd2h_px_pool_pick(&r->app->pool, (enum px_role)role, r->tried);
    if (e && (r->tried & px_engine_bit(e)))
      e = NULL;
  }
  return e;
}

static void next_models(struct relay *r) {
  struct px_engine *e = untried(r);
  struct px_buf body = {0};
  rd2h_px_clear(&r->answer);
  if (e) {
    r->tried |= px_engine_bit(e);
    if (start(r, r->one, e, false, PX_LIT("/v1/models"), &MODELS))
      return;
  }
  rd2h_px_error_body(&body, 503, PX_LIT("no engine answers"));
  finish(r, 503, px_of(&body));
  rd2h_px_free(&body);
}

void rd2h_px_get_models(const struct px_ctx *x) {
  struct relay *r = relay_new(x, 1);
  if (!r)
    return;
  r->n = 1;
  next_models(r);
}

/* ---- POST /reset_prefix_cache: every engine ---- */
static void reset_end(struct relay *r) {
  struct px_buf body = {0};
  if (r->failed.n == 0) {
    finish(r, 200, (struct px_span){NULL, 0});
    return;
  }
  rd2h_px_puts(&body, "{\"failed\":[");
  rd2h_px_put(&body, px_of(&r->failed));
  rd2h_px_puts(&body, "]}");
  finish(r, 500, px_of(&body));
  rd2h_px_free(&body);
}

static void reset_failed(struct relay *r, const char *origin) {
  if (r->failed.n)
    rd2h_px_puts(&r->failed, ",");
  rd2h_px_put_json(&r->failed, px_str(origin));
}

static void reset_done(void *user, const char *error) {
  struct relay_call *one = user;
  struct relay *r = one->relay;
  one->call = NULL;
  if (error || one->status < 200 || one->status > 299)
    reset_failed(r, one->origin);
  if (--r->open == 0)
    reset_end(r);
}

static const struct px_call_events RESET = {on_head, ignore_data, reset_done};

void rd2h_px_post_reset(const struct px_ctx *x) {
  const struct px_pool *pool = &x->app->pool;
  struct relay *r = relay_new(x, rd2h_px_pool_count(pool, PX_PREFILL, false) + rd2h_px_pool_count(pool, PX_DECODE, false));
  if (!r)
    return;
  struct px_buf path = {0};
  rd2h_px_puts(&path, x->query.n ? "/reset_prefix_cache?" : "/reset_prefix_cache");
  rd2h_px_put(&path, x->query);
  r->open = 1; /* until all are started */
  for (const struct px_engine *e = pool->first; e; e = e->next) {
    if (e->draining)
      continue;
    struct relay_call *one = r->one + r->n++;
    if (!path.failed && start(r, one, e, true, px_of(&path), &RESET))
      r->open++;
    else
      reset_failed(r, e->url);
  }
  rd2h_px_free(&path);
  if (--r->open == 0)
    reset_end(r);
}
