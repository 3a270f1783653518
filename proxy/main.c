/* SPDX-License-Identifier: Apache-2.0 */
#include "proxy/app.h"

#include <errno.h>
#include <netdb.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

extern char **environ;

/* ---- timers ---- */
static void on_tick(evutil_socket_t fd, short what, void *arg) {
  struct px_app *app = arg;
  (void)fd, (void)what;
  rd2h_px_flow_tick(&app->flow, px_now());
  if (app->stopping && app->flow.parents == 0 && (app->late || !rd2h_px_server_sends(app->server)))
    event_base_loopexit(app->base, &(struct timeval){0, 100000}); /* the last answers go out */
}

static void on_wake(evutil_socket_t fd, short what, void *arg) {
  struct px_app *app = arg;
  (void)fd, (void)what;
  app->wake_at = 0;
  rd2h_px_flow_tick(&app->flow, px_now());
}

static void on_probe(evutil_socket_t fd, short what, void *arg) {
  (void)fd, (void)what;
  rd2h_px_probe_all(arg);
}

/* ---- signals ---- */
static void on_stop_late(evutil_socket_t fd, short what, void *arg) {
  struct px_app *app = arg;
  (void)fd, (void)what;
  app->late = true;
  rd2h_px_flow_stop(&app->flow, px_now());
}

static void on_stop(evutil_socket_t fd, short what, void *arg) {
  struct px_app *app = arg;
  int64_t ms = app->options.drain_timeout;
  (void)what;
  if (app->stopping) {
    on_stop_late(fd, what, arg);
    return;
  }
  app->stopping = true;
  rd2h_px_server_wind_down(app->server);
  rd2h_px_log(&app->log, PX_INFO, NULL, "signal %d: %zu requests under way may end within %lld ms", (int)fd, app->flow.parents,
              (long long)ms);
  /* Rendezvous of requests under way still come in: the listeners stay until the end, requests are refused. */
  event_base_once(app->base, -1, EV_TIMEOUT, on_stop_late, app, &(struct timeval){ms / 1000, ms % 1000 * 1000});
}

static void on_hangup(evutil_socket_t fd, short what, void *arg) {
  struct px_app *app = arg;
  (void)fd, (void)what;
  rd2h_px_log_reopen(&app->log);
}

/* ---- engines ---- */
static void know_address(struct px_engine *e, const char *host) {
  struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
  if (getaddrinfo(host, NULL, &hints, &list))
    return;
  for (struct addrinfo *a = list; a; a = a->ai_next) {
    char text[NI_MAXHOST];
    char **all = realloc(e->address, (e->addresses + 1) * sizeof *all);
    if (all)
      e->address = all;
    if (!all || getnameinfo(a->ai_addr, a->ai_addrlen, text, sizeof text, NULL, 0, NI_NUMERICHOST))
      continue;
    text[strcspn(text, "%")] = 0;
    if ((all[e->addresses] = strdup(text)) != NULL)
      e->addresses++;
  }
  freeaddrinfo(list);
}

static bool is_address(const char *host) {
  struct addrinfo hints = {.ai_flags = AI_NUMERICHOST}, *list = NULL;
  bool yes = getaddrinfo(host, NULL, &hints, &list) == 0;
  if (yes)
    freeaddrinfo(list);
  return yes;
}

struct px_engine *rd2h_px_app_add(struct px_app *app, enum px_role role, const char *host, uint16_t port, bool resolve,
                                  const char **why) {
  struct px_engine *e = rd2h_px_pool_add(&app->pool, role, app->options.engine_tls ? "https" : "http", host, port, why);
  if (e && role == PX_DECODE && (resolve || is_address(host)))
    know_address(e, host);
  return e;
}

static bool add_engines(struct px_app *app, enum px_role role, const char *flag, const struct px_list *hosts, const struct px_list *ports) {
  for (size_t i = 0; i < hosts->n; i++) {
    const char *why;
    if (!rd2h_px_app_add(app, role, hosts->item[i], (uint16_t)atoi(ports->item[i]), true, &why)) {
      fprintf(stderr, "rd2h-proxy: --%s-hosts[%zu] \"%s\" with port %s: %s\n", flag, i, hosts->item[i], ports->item[i], why);
      return false;
    }
  }
  return true;
}

static void warn_localhost(const struct px_app *app) {
  const struct px_options *o = &app->options;
  bool local = strcmp(o->host, "localhost") == 0 || strncmp(o->host, "127.", 4) == 0 || strcmp(o->host, "::1") == 0;
  for (size_t i = 0; local && !*o->advertise && i < o->decoder_hosts.n; i++) {
    const char *h = o->decoder_hosts.item[i];
    if (strcmp(h, "localhost") != 0 && strncmp(h, "127.", 4) != 0 && strcmp(h, "::1") != 0)
      rd2h_px_log(&app->log, PX_WARNING, NULL, "--decoder-hosts[%zu] %s is told to post its rendezvous to %s, which is itself there; "
                  "set --host or --advertise to an address that it can reach", i, h, o->host);
  }
}

/* ---- listening ---- */
static SSL_CTX *load_tls(const struct px_options *o) {
  SSL_CTX *tls = SSL_CTX_new(TLS_server_method());
  if (tls && SSL_CTX_set_min_proto_version(tls, TLS1_2_VERSION) && SSL_CTX_use_certificate_chain_file(tls, o->tls_cert) == 1 &&
      SSL_CTX_use_PrivateKey_file(tls, o->tls_key, SSL_FILETYPE_PEM) == 1 && SSL_CTX_check_private_key(tls) == 1)
    return tls;
  const char *why = ERR_reason_error_string(ERR_get_error());
  fprintf(stderr, "rd2h-proxy: --tls-cert \"%s\" with --tls-key \"%s\": %s\n", o->tls_cert, o->tls_key, why ? why : "they cannot be read");
  SSL_CTX_free(tls);
  return NULL;
}

static void set_port(struct sockaddr *a, uint16_t port) {
  if (a->sa_family == AF_INET6)
    ((struct sockaddr_in6 *)a)->sin6_port = htons(port);
  else
    ((struct sockaddr_in *)a)->sin_port = htons(port);
}

/* On every address of the host, all with one port. Returns it, 0 when none could be had. */
static uint16_t listen_all(struct px_app *app, SSL_CTX *tls) {
  struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
  const struct px_options *o = &app->options;
  uint16_t port = (uint16_t)o->port, got = 0;
  int rc = getaddrinfo(o->host, NULL, &hints, &list);
  if (rc)
    fprintf(stderr, "rd2h-proxy: --host \"%s\": %s\n", o->host, gai_strerror(rc));
  for (int family = 0; family < 2 && !rc; family++)
    for (struct addrinfo *a = list; a; a = a->ai_next) {
      if (a->ai_family != (family ? AF_INET6 : AF_INET))
        continue;
      set_port(a->ai_addr, port);
      uint16_t p = rd2h_px_server_listen(app->server, a->ai_addr, a->ai_addrlen, tls);
      if (!p && errno != EADDRNOTAVAIL && errno != EAFNOSUPPORT) {
        fprintf(stderr, "rd2h-proxy: --host \"%s\" --port %u: %s\n", o->host, port, strerror(errno));
        got = 0;
        goto out;
      }
      port = got = p ? p : got;
      port = port ? port : (uint16_t)o->port;
    }
  if (!rc && !got)
    fprintf(stderr, "rd2h-proxy: --host \"%s\": this machine has no such address\n", o->host);

out:
  if (list)
    freeaddrinfo(list);
  return got;
}

static bool set_metaserver(struct px_app *app, uint16_t port) {
  const struct px_options *o = &app->options;
  const char *host = *o->advertise ? o->advertise : o->host;
  const char *scheme = *o->tls_cert ? "https" : "http";
  bool v6 = host[0] != '[' && strchr(host, ':') && strchr(strchr(host, ':') + 1, ':');
  bool whole = *o->advertise && !v6 && (host[0] == '[' ? strstr(host, "]:") != NULL : strchr(host, ':') != NULL);
  struct px_buf b = {0};
  if (whole)
    rd2h_px_printf(&b, "%s://%s/v1/metaserver", scheme, host);
  else
    rd2h_px_printf(&b, "%s://%s%s%s:%u/v1/metaserver", scheme, v6 ? "[" : "", host, v6 ? "]" : "", port);
  app->metaserver = b.p;
  app->flow.metaserver = b.p;
  return !b.failed;
}

/* ---- start ---- */
static void raise_descriptors(const struct px_app *app) {
  struct rlimit r;
  rlim_t want = (rlim_t)app->options.max_connections * 3 + 256;
  if (getrlimit(RLIMIT_NOFILE, &r))
    return;
  if (r.rlim_cur < want) {
    r.rlim_cur = r.rlim_max < want ? r.rlim_max : want;
    setrlimit(RLIMIT_NOFILE, &r);
  }
  if (r.rlim_cur < want)
    rd2h_px_log(&app->log, PX_WARNING, NULL, "%llu descriptors are allowed, --max-connections %lld may need %llu; raise the limit "
                "(ulimit -n)", (unsigned long long)r.rlim_cur, (long long)app->options.max_connections, (unsigned long long)want);
}

static void set_limits(struct px_app *app) {
  const struct px_options *o = &app->options;
  static const char *const MODE[] = {[PX_DISPATCH_AUTO] = "auto", [PX_DISPATCH_LIST] = "list", [PX_DISPATCH_EACH] = "each"};
  app->pool.eject_after = (uint32_t)o->eject_after;
  app->pool.probe_ms = o->health_interval;
  app->pool.probe_down_ms = o->health_interval_down;
  app->flow.io = &rd2h_px_exchange_io;
  app->flow.ctx = app;
  app->flow.pool = &app->pool;
  app->flow.limits = (struct px_limits){
    .max_children = (uint32_t)o->max_children, .max_waiters = 4,
    .max_open_children = (uint32_t)(o->max_open_children > o->max_children ? o->max_open_children : o->max_children),
    .attempts = o->max_retries < 1 ? 1 : (uint32_t)o->max_retries,
    .max_continuations = (uint32_t)o->max_continuations, .max_answer = (uint64_t)o->max_answer, .retry_ms = o->retry_delay,
    .grace_ms = o->prefill_grace, .rendezvous_ms = o->rendezvous_timeout, .prefill_ms = o->prefill_timeout,
    .first_ms = o->first_byte_timeout, .idle_ms = o->idle_timeout, .total_ms = o->request_timeout, .tokens = o->rendezvous_token};
  for (int i = PX_DISPATCH_AUTO; i <= PX_DISPATCH_EACH; i++)
    if (strcmp(o->dispatch, MODE[i]) == 0)
      app->flow.limits.mode = (enum px_dispatch_mode)i;
}

/* Changes of what is waited for are told to the kernel once a turn: sockets change their mind often within one. */
static struct event_base *new_base(void) {
  struct event_config *config = event_config_new();
  if (!config)
    return NULL;
  event_config_set_flag(config, EVENT_BASE_FLAG_EPOLL_USE_CHANGELIST);
  struct event_base *base = event_base_new_with_config(config);
  event_config_free(config);
  return base;
}

static bool make_parts(struct px_app *app) {
  const struct px_options *o = &app->options;
  const struct px_server_limits sl = {
    .max_connections = (uint32_t)o->max_connections, .max_head = (size_t)o->max_header, .max_body = (size_t)o->max_body,
    .max_buffered = (uint64_t)o->max_buffered, .head_ms = o->header_timeout, .body_ms = o->body_timeout,
    .body_total_ms = o->body_total_timeout, .idle_ms = o->keepalive_timeout, .send_ms = o->send_timeout};
  const struct px_client_limits cl = {.connect_ms = o->connect_timeout, .max_connections = (uint32_t)o->engine_connections,
                                      .max_idle = 1024, .idle_ms = o->engine_keepalive,
                                      .ca_file = *o->engine_ca ? o->engine_ca : NULL, .verify = !o->engine_insecure};
  const char *why = NULL;
  struct px_handler handler = rd2h_px_routes;
  handler.ctx = app;
  app->plan = rd2h_px_body_plan;
  app->plan.max_elements = (size_t)o->max_children;
  handler.plan = &app->plan;
  set_limits(app);
  app->base = new_base();
  app->server = app->base ? rd2h_px_server_new(app->base, &sl, &handler) : NULL;
  app->client = app->server ? rd2h_px_client_new(app->base, &cl, &why) : NULL;
  if (why) {
    fprintf(stderr, "rd2h-proxy: --engine-ca \"%s\": %s\n", o->engine_ca, why);
    return false;
  }
  if (!app->client)
    goto fail;
  app->tick = event_new(app->base, -1, EV_PERSIST, on_tick, app);
  app->wake = evtimer_new(app->base, on_wake, app);
  app->probe = event_new(app->base, -1, EV_PERSIST, on_probe, app);
  if (app->tick && app->wake && app->probe && !event_add(app->tick, &(struct timeval){0, 100000}) &&
      !event_add(app->probe, &(struct timeval){0, 250000}))
    return true;

fail:
  fprintf(stderr, "rd2h-proxy: memory or descriptors ran out at the start\n");
  return false;
}

static void run(struct px_app *app) {
  static const struct {
    int number;
    event_callback_fn call;
  } SIGNAL[] = {{SIGTERM, on_stop}, {SIGINT, on_stop}, {SIGHUP, on_hangup}};
  struct event *e[3] = {0};
  signal(SIGPIPE, SIG_IGN);
  for (size_t i = 0; i < 3; i++)
    if ((e[i] = evsignal_new(app->base, SIGNAL[i].number, SIGNAL[i].call, app)) != NULL)
      event_add(e[i], NULL);
  event_base_dispatch(app->base);
  for (size_t i = 0; i < 3; i++)
    if (e[i])
      event_free(e[i]);
}

static void app_free(struct px_app *app) {
  rd2h_px_server_free(app->server);
  rd2h_px_client_free(app->client);
  rd2h_px_pool_free(&app->pool);
  struct event *const timer[] = {app->tick, app->wake, app->probe};
  for (size_t i = 0; i < 3; i++)
    if (timer[i])
      event_free(timer[i]);
  if (app->base)
    event_base_free(app->base);
  free(app->metaserver);
  rd2h_px_log_close(&app->log);
  rd2h_px_options_free(&app->options);
}

static int serve(struct px_app *app) {
  const struct px_options *o = &app->options;
  SSL_CTX *tls = *o->tls_cert ? load_tls(o) : NULL;
  uint16_t port = 0;
  if (*o->tls_cert && !tls)
    return 1;
  if (make_parts(app) && add_engines(app, PX_PREFILL, "prefiller", &o->prefiller_hosts, &o->prefiller_ports) &&
      add_engines(app, PX_DECODE, "decoder", &o->decoder_hosts, &o->decoder_ports))
    port = listen_all(app, tls);
  if (port && set_metaserver(app, port)) {
    raise_descriptors(app);
    warn_localhost(app);
    rd2h_px_log(&app->log, PX_INFO, NULL, "listening on %s port %u; Decode engines post to %s", o->host, port, app->metaserver);
    run(app);
  }
  SSL_CTX_free(tls);
  return port ? 0 : 1;
}

int main(int argc, char **argv) {
  struct px_app app = {.log.fd = -1};
  struct px_buf why = {0};
  enum px_options_result r = rd2h_px_options_read(&app.options, argc, argv, environ, &why);
  int rc = r == PX_OPTIONS_SHOWN ? 0 : 2;
  if (r == PX_OPTIONS_WRONG)
    fprintf(stderr, "rd2h-proxy: %.*s\n", (int)why.n, why.p);
  rd2h_px_free(&why);
  if (r == PX_OPTIONS_RUN) {
    if (!rd2h_px_log_open(&app.log, app.options.log_level, app.options.access_log))
      fprintf(stderr, "rd2h-proxy: --access-log \"%s\": %s\n", app.options.access_log, strerror(errno));
    else
      rc = serve(&app);
    app_free(&app);
    return rc;
  }
  rd2h_px_options_free(&app.options);
  return rc;
}
