/* SPDX-License-Identifier: Apache-2.0 */
#include "proxy/app.h"

#include <stdio.h>

static const struct route {
  const char *method, *path;
  px_route_fn *handle;
  enum { ALL, CLIENTS, OPERATORS } who; /* clients: with the API key */
} ROUTE[] = {
  {"POST", "/v1/completions", rd2h_px_post_completions, CLIENTS},
  {"POST", "/v1/chat/completions", rd2h_px_post_chat, CLIENTS},
  {"POST", "/v1/metaserver", rd2h_px_post_metaserver, ALL},
  {"GET", "/v1/models", rd2h_px_get_models, CLIENTS},
  {"GET", "/health", rd2h_px_get_health, ALL},
  {"GET", "/healthcheck", rd2h_px_get_healthcheck, ALL},
  {"GET", "/metrics", rd2h_px_get_metrics, ALL},
  {"GET", "/instances", rd2h_px_get_instances, CLIENTS},
  {"POST", "/instances/add", rd2h_px_post_instances_add, OPERATORS},
  {"POST", "/instances/remove", rd2h_px_post_instances_remove, OPERATORS},
  {"POST", "/reset_prefix_cache", rd2h_px_post_reset, CLIENTS},
};

void rd2h_px_answer(struct px_conn *c, int status, struct px_span json) {
  rd2h_px_conn_reply(c, status, PX_LIT("application/json"), status == 503 ? PX_LIT("Retry-After: 1\r\n") : PX_LIT(""), json);
}

void rd2h_px_answer_error(struct px_conn *c, int status, const char *message) {
  struct px_buf body = {0};
  rd2h_px_error_body(&body, status, px_str(message));
  rd2h_px_answer(c, status, px_of(&body));
  rd2h_px_free(&body);
}

static bool has_key(const struct px_head *head, const char *key) {
  struct px_span auth = rd2h_px_head_get(head, "authorization");
  if (auth.n < 7 || !rd2h_px_equal_nocase((struct px_span){auth.p, 7}, PX_LIT("bearer ")))
    return false;
  return rd2h_px_same_secret((struct px_span){auth.p + 7, auth.n - 7}, px_str(key));
}

/* Who may add an engine gets the prompts of all clients: clients may not. */
/* From this machine itself: what another proxy on it hands on comes from anywhere. */
static bool is_near(const struct px_ctx *x) {
  static const char *const handed_on[] = {"x-forwarded-for", "forwarded", "via"};
  for (size_t i = 0; i < sizeof handed_on / sizeof *handed_on; i++)
    if (rd2h_px_head_get(x->head, handed_on[i]).p)
      return false;
  return rd2h_px_conn_is_local(x->conn);
}

static bool may(const struct px_ctx *x, const struct route *r) {
  const struct px_options *o = &x->app->options;
  if (r->who == OPERATORS && *o->admin_key)
    return has_key(x->head, o->admin_key);
  if (r->who == OPERATORS && !is_near(x))
    return false;
  return r->who == ALL || !*o->api_key || has_key(x->head, o->api_key);
}

static void on_refused(void *arg, struct px_conn *c, int status, const char *why) {
  struct px_app *app = arg;
  const struct px_access a = {.id = "", .peer = rd2h_px_conn_peer(c), .status = status, .error = why};
  rd2h_px_metrics_refused(&app->metrics, status);
  rd2h_px_log_access(&app->log, &a);
}

static void no_key(const struct px_ctx *x, const struct route *r) {
  const struct px_options *o = &x->app->options;
  bool far = r->who == OPERATORS && !*o->admin_key && !is_near(x);
  const char *why = far ? "without --admin-key only the proxy's own machine may change its engines"
                        : "a valid API key is needed: Authorization: Bearer KEY";
  struct px_buf body = {0};
  on_refused(x->app, x->conn, far ? 403 : 401, why);
  rd2h_px_error_body(&body, far ? 403 : 401, px_str(why));
  rd2h_px_conn_reply(x->conn, far ? 403 : 401, PX_LIT("application/json"), far ? PX_LIT("") : PX_LIT("WWW-Authenticate: Bearer\r\n"),
                     px_of(&body));
  rd2h_px_free(&body);
}

static const struct route *find(const struct px_ctx *x, const char **other_method) {
  struct px_span method = x->head->method;
  *other_method = NULL;
  if (px_equal(method, PX_LIT("HEAD")))
    method = PX_LIT("GET");
  for (size_t i = 0; i < sizeof ROUTE / sizeof *ROUTE; i++)
    if (px_equal(x->path, px_str(ROUTE[i].path))) {
      if (px_equal(method, px_str(ROUTE[i].method)))
        return ROUTE + i;
      *other_method = ROUTE[i].method;
    }
  return NULL;
}

static void no_route(const struct px_ctx *x, const char *other) {
  struct px_buf body = {0}, allow = {0};
  if (!other) {
    rd2h_px_answer_error(x->conn, 404, "there is no such path");
    return;
  }
  rd2h_px_printf(&allow, "Allow: %s\r\n", other);
  rd2h_px_error_body(&body, 405, PX_LIT("this path takes another method"));
  rd2h_px_conn_reply(x->conn, 405, PX_LIT("application/json"), px_of(&allow), px_of(&body));
  rd2h_px_free(&body);
  rd2h_px_free(&allow);
}

static void on_request(void *arg, struct px_conn *c, const struct px_head *head, struct px_buf *body, struct px_scan *scan) {
  const char *query = memchr(head->target.p, '?', head->target.n), *other;
  size_t n = query ? (size_t)(query - head->target.p) : head->target.n;
  const struct px_ctx x = {.app = arg, .conn = c, .head = head, .body = body, .scan = scan, .path = {head->target.p, n},
                           .query = {query ? query + 1 : "", query ? head->target.n - n - 1 : 0}};
  const struct route *r = find(&x, &other);
  if (!r)
    no_route(&x, other);
  else if (!may(&x, r))
    no_key(&x, r);
  else
    r->handle(&x);
}

const struct px_handler rd2h_px_routes = {.request = on_request, .refused = on_refused};
