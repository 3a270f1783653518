/* SPDX-License-Identifier: Apache-2.0 */
#include "proxy/metrics.h"

static const double BOUND[PX_BUCKETS] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 300, 1800};
static const char *const OUTCOME[PX_OUTCOMES] = {
  [PX_OK] = "ok", [PX_CLIENT_ERROR] = "client_error", [PX_UPSTREAM_ERROR] = "upstream_error", [PX_TIMEOUT] = "timeout",
  [PX_OVERLOAD] = "unavailable", [PX_CLIENT_GONE] = "client_gone",
};
static const char *const PHASE[PX_PHASES] = {
  [PX_WAIT_RENDEZVOUS] = "rendezvous", [PX_IN_PREFILL] = "prefill", [PX_WAIT_FIRST] = "first_byte", [PX_STREAMING] = "streaming",
  [PX_WAIT_RETRY] = "retry",
};
static const int REFUSED[7] = {400, 401, 408, 413, 431, 503, 0}; /* 0: others */
static const int RENDEZVOUS[8] = {200, 400, 403, 404, 429, 502, 503, 0};
static const struct {
  const char *name, *help;
} TIME[PX_TIMES] = {
  [PX_TIME_FIRST] = {"time_to_first_token_seconds", "From the request to the first byte of Decode's answer."},
  [PX_TIME_RENDEZVOUS] = {"rendezvous_wait_seconds", "From the request to the last rendezvous of its children."},
  [PX_TIME_PREFILL] = {"prefill_seconds", "From the first request to Prefill to the end of the last one."},
  [PX_TIME_TOTAL] = {"request_seconds", "From the request to the end of its answer."},
};

static void observe(struct px_metrics *m, enum px_time which, int64_t from, int64_t to) {
  struct px_histogram *h = m->time + which;
  double seconds = (double)(to - from) / 1000;
  if (!from || !to || to < from)
    return;
  h->count++;
  h->sum += seconds;
  for (size_t i = 0; i < PX_BUCKETS; i++)
    h->bucket[i] += seconds <= BOUND[i];
}

static enum px_outcome outcome_of(const struct px_parent *p) {
  static const struct {
    int status;
    enum px_outcome outcome;
  } BY[] = {{200, PX_OK}, {499, PX_CLIENT_GONE}, {503, PX_OVERLOAD}, {504, PX_TIMEOUT}};
  for (size_t i = 0; i < sizeof BY / sizeof *BY; i++)
    if (p->status == BY[i].status)
      return BY[i].outcome;
  return p->status >= 400 && p->status < 500 ? PX_CLIENT_ERROR : PX_UPSTREAM_ERROR;
}

void rd2h_px_metrics_parent(struct px_metrics *m, const struct px_parent *p, int64_t now) {
  m->requests[p->ask.api][outcome_of(p)][p->phase]++;
  m->decode_attempts += p->attempt;
  m->continuations += p->continuations;
  m->bytes_in += p->body.n;
  m->bytes_out += p->bytes_out;
  observe(m, PX_TIME_FIRST, p->started, p->first_at);
  observe(m, PX_TIME_RENDEZVOUS, p->started, p->posted_at);
  observe(m, PX_TIME_PREFILL, p->prefill_began, p->prefilled_at);
  observe(m, PX_TIME_TOTAL, p->started, now);
}

static void add(uint64_t *count, const int *status, int which) {
  while (*status && *status != which) {
    status++;
    count++;
  }
  (*count)++;
}

void rd2h_px_metrics_refused(struct px_metrics *m, int status) {
  add(m->refused, REFUSED, status);
}

void rd2h_px_metrics_rendezvous(struct px_metrics *m, int status) {
  add(m->rendezvous, RENDEZVOUS, status);
}

/* ---- text ---- */
static void head(struct px_buf *out, const char *name, const char *type, const char *help) {
  rd2h_px_printf(out, "# HELP rd2h_proxy_%s %s\n# TYPE rd2h_proxy_%s %s\n", name, help, name, type);
}

static void one(struct px_buf *out, const char *name, const char *type, const char *help, uint64_t value) {
  head(out, name, type, help);
  rd2h_px_printf(out, "rd2h_proxy_%s %llu\n", name, (unsigned long long)value);
}

static void by_status(struct px_buf *out, const char *name, const char *help, const uint64_t *count, const int *status) {
  head(out, name, "counter", help);
  for (;; status++, count++) {
    if (*status)
      rd2h_px_printf(out, "rd2h_proxy_%s{status=\"%d\"} %llu\n", name, *status, (unsigned long long)*count);
    else
      rd2h_px_printf(out, "rd2h_proxy_%s{status=\"other\"} %llu\n", name, (unsigned long long)*count);
    if (!*status)
      return;
  }
}

static void write_requests(const struct px_metrics *m, struct px_buf *out) {
  head(out, "requests_total", "counter", "Requests that have ended, by how and in which phase.");
  for (size_t a = 0; a < 2; a++)
    for (size_t o = 0; o < PX_OUTCOMES; o++)
      for (size_t p = 0; p < PX_PHASES; p++)
        rd2h_px_printf(out, "rd2h_proxy_requests_total{api=\"%s\",outcome=\"%s\",phase=\"%s\"} %llu\n", a ? "chat" : "completions",
                       OUTCOME[o], PHASE[p], (unsigned long long)m->requests[a][o][p]);
}

static void write_time(const struct px_histogram *h, enum px_time t, struct px_buf *out) {
  head(out, TIME[t].name, "histogram", TIME[t].help);
  for (size_t i = 0; i < PX_BUCKETS; i++)
    rd2h_px_printf(out, "rd2h_proxy_%s_bucket{le=\"%g\"} %llu\n", TIME[t].name, BOUND[i], (unsigned long long)h->bucket[i]);
  rd2h_px_printf(out, "rd2h_proxy_%s_bucket{le=\"+Inf\"} %llu\nrd2h_proxy_%s_sum %.3f\nrd2h_proxy_%s_count %llu\n", TIME[t].name,
                 (unsigned long long)h->count, TIME[t].name, h->sum, TIME[t].name, (unsigned long long)h->count);
}

/* Sorted by family, as the format asks. */
static void write_engines(const struct px_pool *pool, struct px_buf *out) {
  static const struct {
    const char *name, *type, *help;
  } FAMILY[] = {
    {"engine_up", "gauge", "1 while the engine gets requests."},
    {"engine_open_requests", "gauge", "Requests under way at the engine."},
    {"engine_load", "gauge", "What the balance goes by."},
    {"engine_requests_total", "counter", "Requests that the engine answered."},
    {"engine_failures_total", "counter", "Requests to the engine that got no whole answer."},
  };
  for (size_t i = 0; i < sizeof FAMILY / sizeof *FAMILY; i++) {
    head(out, FAMILY[i].name, FAMILY[i].type, FAMILY[i].help);
    for (const struct px_engine *e = pool->first; e; e = e->next) {
      const double value[] = {!e->ejected && !e->draining, e->requests, e->active + 0.3 * e->kv, (double)e->served, (double)e->failed};
      rd2h_px_printf(out, "rd2h_proxy_%s{role=\"%s\",engine=\"%s\"} %.15g\n", FAMILY[i].name, rd2h_px_role_name[e->role], e->name,
                     value[i]);
    }
  }
}

void rd2h_px_metrics_write(const struct px_metrics *m, const struct px_flow *f, const struct px_gauges *g, struct px_buf *out) {
  write_requests(m, out);
  by_status(out, "refused_total", "Requests refused before they were read whole.", m->refused, REFUSED);
  one(out, "connections_refused_total", "counter", "Connections refused for max-connections.", g->turned_away);
  by_status(out, "rendezvous_total", "Rendezvous by answer.", m->rendezvous, RENDEZVOUS);
  one(out, "decode_attempts_total", "counter", "Requests made to Decode.", m->decode_attempts);
  one(out, "continuations_total", "counter", "Requests that Decode gave up and that were continued.", m->continuations);
  one(out, "request_bytes_total", "counter", "Bytes of requests' bodies.", m->bytes_in);
  one(out, "response_bytes_total", "counter", "Bytes of answers passed on.", m->bytes_out);
  one(out, "open_requests", "gauge", "Requests under way.", f->parents);
  one(out, "open_children", "gauge", "Prompts, times n, of the requests under way.", f->children);
  one(out, "open_dispatches", "gauge", "Requests to Prefill that are kept in mind.", f->dispatches);
  one(out, "open_engine_requests", "gauge", "Requests under way to engines.", g->engine_requests);
  one(out, "connections", "gauge", "Open connections of clients and engines to this proxy.", g->connections);
  one(out, "buffered_bytes", "gauge", "Bodies and unsent answers in memory.", g->buffered);
  for (enum px_time t = 0; t < PX_TIMES; t++)
    write_time(m->time + t, t, out);
  write_engines(f->pool, out);
}
