/* SPDX-License-Identifier: Apache-2.0 */
/* What operators ask: health, metrics, the engines and changes to them. */
#include "proxy/app.h"

#include <stdio.h>

void rd2h_px_get_health(const struct px_ctx *x) {
  const struct px_pool *pool = &x->app->pool;
  bool good = !x->app->stopping && rd2h_px_pool_count(pool, PX_PREFILL, true) && rd2h_px_pool_count(pool, PX_DECODE, true);
  rd2h_px_answer(x->conn, good ? 200 : 503, good ? PX_LIT("{\"status\":\"ok\"}") : PX_LIT("{\"status\":\"unavailable\"}"));
}

void rd2h_px_get_healthcheck(const struct px_ctx *x) {
  struct px_buf b = {0};
  rd2h_px_printf(&b, "{\"status\":\"ok\",\"prefill_instances\":%zu,\"decode_instances\":%zu}",
                 rd2h_px_pool_count(&x->app->pool, PX_PREFILL, false), rd2h_px_pool_count(&x->app->pool, PX_DECODE, false));
  rd2h_px_answer(x->conn, 200, px_of(&b));
  rd2h_px_free(&b);
}

void rd2h_px_get_metrics(const struct px_ctx *x) {
  struct px_app *app = x->app;
  struct px_buf b = {0};
  const struct px_gauges g = {rd2h_px_server_connections(app->server), rd2h_px_client_open(app->client),
                              rd2h_px_server_buffered(app->server), rd2h_px_server_turned_away(app->server)};
  rd2h_px_metrics_write(&app->metrics, &app->flow, &g, &b);
  rd2h_px_conn_reply(x->conn, 200, PX_LIT("text/plain; version=0.0.4; charset=utf-8"), PX_LIT(""), px_of(&b));
  rd2h_px_free(&b);
}

static void list_role(const struct px_pool *pool, enum px_role role, struct px_buf *b) {
  bool first = true;
  rd2h_px_printf(b, "\"%s\":[", rd2h_px_role_name[role]);
  for (const struct px_engine *e = pool->first; e; e = e->next) {
    if (e->role != role)
      continue;
    rd2h_px_printf(b, "%s{\"instance\":", first ? "" : ",");
    rd2h_px_put_json(b, px_str(e->name));
    rd2h_px_printf(b, ",\"state\":\"%s\",\"requests\":%u,\"load\":%.4f,\"kv\":%.4f,\"served\":%llu,\"failed\":%llu}",
                   e->draining ? "draining" : e->ejected ? "down" : "up", e->requests, e->active, e->kv, (unsigned long long)e->served,
                   (unsigned long long)e->failed);
    first = false;
  }
  rd2h_px_puts(b, "]");
}

static void answer_instances(const struct px_ctx *x) {
  struct px_buf b = {0};
  rd2h_px_puts(&b, "{");
  list_role(&x->app->pool, PX_PREFILL, &b);
  rd2h_px_puts(&b, ",");
  list_role(&x->app->pool, PX_DECODE, &b);
  rd2h_px_puts(&b, "}");
  rd2h_px_answer(x->conn, 200, px_of(&b));
  rd2h_px_free(&b);
}

void rd2h_px_get_instances(const struct px_ctx *x) {
  answer_instances(x);
}

/* ---- changes ---- */
/* Returns why not, NULL when done. */
typedef const char *change_fn(struct px_app *app, enum px_role role, const char *host, uint16_t port);

static const char *add(struct px_app *app, enum px_role role, const char *host, uint16_t port) {
  const char *why;
  struct px_engine *e = rd2h_px_app_add(app, role, host, port, false, &why);
  if (!e)
    return why;
  rd2h_px_log(&app->log, PX_INFO, NULL, "%s engine %s added", rd2h_px_role_name[role], e->name);
  return NULL;
}

static const char *drop(struct px_app *app, enum px_role role, const char *host, uint16_t port) {
  char name[300];
  snprintf(name, sizeof name, strchr(host, ':') ? "[%s]:%u" : "%s:%u", host, port);
  struct px_engine *e = rd2h_px_pool_find(&app->pool, role, name);
  if (!e)
    return "there is no such engine";
  rd2h_px_log(&app->log, PX_INFO, NULL, "%s engine %s removed, with %u requests under way", rd2h_px_role_name[role], e->name, e->requests);
  rd2h_px_pool_remove(&app->pool, e);
  return NULL;
}

static bool change_one(struct px_app *app, enum px_role role, struct px_span value, change_fn *change, struct px_buf *why) {
  struct px_buf name = {0};
  char host[256];
  uint16_t port;
  const char *text = "must be a text host:port";
  if (rd2h_px_json_decode(value, &name) && !name.failed && rd2h_px_split_name(px_of(&name), host, &port))
    text = change(app, role, host, port);
  rd2h_px_free(&name);
  if (text)
    rd2h_px_printf(why, "instance %.*s: %s", (int)(value.n < 200 ? value.n : 200), value.p, text);
  return !text;
}

static bool read_role(struct px_span body, enum px_role *role) {
  struct px_span v;
  if (!rd2h_px_json_get(body, "type", &v))
    return false;
  for (enum px_role r = 0; r < PX_ROLES; r++)
    if (rd2h_px_json_is(v, px_str(rd2h_px_role_name[r]))) {
      *role = r;
      return true;
    }
  return false;
}

static void change_all(const struct px_ctx *x, change_fn *change) {
  struct px_span body = px_of(x->body), v, k, list;
  struct px_json_iter it;
  struct px_buf why = {0};
  enum px_role role;
  const char *text;
  size_t at;
  if (!rd2h_px_json_check(body, &at, &text) || !read_role(body, &role) || !rd2h_px_json_get(body, "instances", &list)) {
    rd2h_px_answer_error(x->conn, 400, "needed: {\"type\": \"prefill\" or \"decode\", \"instances\": \"host:port\" or a list of them}");
    return;
  }
  if (*list.p != '[')
    change_one(x->app, role, list, change, &why);
  else if (rd2h_px_json_open(list, '[', &it))
    while (why.n == 0 && rd2h_px_json_next(&it, &k, &v))
      change_one(x->app, role, v, change, &why);
  if (why.n) {
    rd2h_px_put(&why, (struct px_span){"", 1});
    rd2h_px_answer_error(x->conn, 400, why.failed ? "memory ran out" : why.p);
  } else {
    answer_instances(x);
  }
  rd2h_px_free(&why);
}

void rd2h_px_post_instances_add(const struct px_ctx *x) {
  change_all(x, add);
}

void rd2h_px_post_instances_remove(const struct px_ctx *x) {
  change_all(x, drop);
}
