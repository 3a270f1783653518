/* SPDX-License-Identifier: Apache-2.0 */
#include "proxy/options.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "proxy/engines.h"

enum type { TEXT, LIST, NUMBER, SECONDS, BYTES, SWITCH };
enum source { DEFAULT, FILE_LINE, ENVIRONMENT, FLAG };

#define AT(field) offsetof(struct px_options, field)
static const struct option {
  const char *name;
  enum type type;
  size_t at;
  const char *otherwise; /* the default */
  double min, max;
  const char *help;
} OPTION[] = {
  {"host", TEXT, AT(host), "localhost", 0, 0, "address to listen on, which Decode engines must reach; no wildcard"},
  {"port", NUMBER, AT(port), "8000", 0, 65535, "port to listen on; 0: any"},
  {"prefiller-hosts", LIST, AT(prefiller_hosts), "localhost", 0, 0, "hosts of the Prefill engines"},
  {"prefiller-ports", LIST, AT(prefiller_ports), "8001", 0, 0, "their ports, as many"},
  {"decoder-hosts", LIST, AT(decoder_hosts), "localhost", 0, 0, "hosts of the Decode engines"},
  {"decoder-ports", LIST, AT(decoder_ports), "8002", 0, 0, "their ports, as many"},
  {"max-retries", NUMBER, AT(max_retries), "3", -1e6, 1000, "attempts of a request to an engine, before its first byte"},
  {"retry-delay", SECONDS, AT(retry_delay), "0.001", 0, 60, "pause before the second attempt; doubled each time"},
  {"config", TEXT, AT(config), "", 0, 0, "file of lines name = value; # begins a remark"},
  {"advertise", TEXT, AT(advertise), "", 0, 0, "host or host:port of this proxy as Decode engines reach it, if not --host"},
  {"dispatch", TEXT, AT(dispatch), "auto", 0, 0, "prompt lists go to Prefill whole (list), one by one (each), or as engines can (auto)"},
  {"rendezvous-token", SWITCH, AT(rendezvous_token), "true", 0, 0, "put a secret of each request into its rendezvous address"},
  {"api-key", TEXT, AT(api_key), "", 0, 0, "clients must send it as a bearer token (better set in the environment)"},
  {"admin-key", TEXT, AT(admin_key), "", 0, 0, "needed to change instances; empty: only the proxy's own machine may"},
  {"tls-cert", TEXT, AT(tls_cert), "", 0, 0, "certificate chain (PEM): serve https"},
  {"tls-key", TEXT, AT(tls_key), "", 0, 0, "its key (PEM)"},
  {"engine-tls", SWITCH, AT(engine_tls), "false", 0, 0, "engines are reached by https"},
  {"engine-ca", TEXT, AT(engine_ca), "", 0, 0, "certificates (PEM) that engines' certificates are checked against"},
  {"engine-insecure", SWITCH, AT(engine_insecure), "false", 0, 0, "engines' certificates are not checked"},
  {"engine-connections", NUMBER, AT(engine_connections), "0", 0, 1e6, "connections to one engine; 0: no limit"},
  {"engine-keepalive", SECONDS, AT(engine_keepalive), "4", 0, 3600, "age up to which a kept connection to an engine is used again"},
  {"connect-timeout", SECONDS, AT(connect_timeout), "5", 0.01, 3600, "to look an engine up and connect to it, whatever addresses it has"},
  {"rendezvous-timeout", SECONDS, AT(rendezvous_timeout), "120", 0.01, 1e6, "without news while a child has not posted its rendezvous"},
  {"prefill-timeout", SECONDS, AT(prefill_timeout), "600", 0.01, 1e6, "for one request to Prefill"},
  {"prefill-grace", SECONDS, AT(prefill_grace), "0.5", 0, 60, "after a failed Prefill, for a rendezvous that tries again"},
  {"first-byte-timeout", SECONDS, AT(first_byte_timeout), "300", 0.01, 1e6, "from Prefill's end to the first event of a stream"},
  {"idle-timeout", SECONDS, AT(idle_timeout), "300", 0.01, 1e6, "between two events of a stream"},
  {"request-timeout", SECONDS, AT(request_timeout), "3600", 0.01, 1e6, "for a whole request"},
  {"header-timeout", SECONDS, AT(header_timeout), "10", 0.01, 3600, "for a request's headers (408)"},
  {"body-timeout", SECONDS, AT(body_timeout), "30", 0.01, 3600, "between two reads of a body (408)"},
  {"body-total-timeout", SECONDS, AT(body_total_timeout), "600", 0.01, 1e6, "for a whole body (408)"},
  {"keepalive-timeout", SECONDS, AT(keepalive_timeout), "75", 0.01, 1e6, "an idle connection is kept"},
  {"send-timeout", SECONDS, AT(send_timeout), "60", 0.01, 1e6, "a client may take nothing of what waits for it"},
  {"drain-timeout", SECONDS, AT(drain_timeout), "30", 0, 1e6, "after SIGTERM, for requests under way"},
  {"max-connections", NUMBER, AT(max_connections), "16384", 1, 1e6, "open connections (503)"},
  {"max-requests", NUMBER, AT(max_requests), "8192", 1, 1e6, "requests under way (503)"},
  {"max-children", NUMBER, AT(max_children), "4096", 1, 1e6, "prompts of a list, times n (400)"},
  {"max-open-children", NUMBER, AT(max_open_children), "65536", 1, 1e8, "prompts, times n, of all requests under way (503)"},
  {"max-header", BYTES, AT(max_header), "32K", 256, 1 << 24, "a request's head (431)"},
  {"max-body", BYTES, AT(max_body), "64M", 1, 1e12, "a request's body (413)"},
  {"max-answer", BYTES, AT(max_answer), "64M", 1, 1e12, "an engine's answer that is no stream (502)"},
  {"max-buffered", BYTES, AT(max_buffered), "1G", 1, 1e15, "all bodies and unsent answers together (503)"},
  {"max-continuations", NUMBER, AT(max_continuations), "8", 0, 1000, "continuations of a request that Decode gave up; 0: none"},
  {"eject-after", NUMBER, AT(eject_after), "3", 1, 1e6, "failures in a row after which an engine is left out"},
  {"health-interval", SECONDS, AT(health_interval), "5", 0, 3600, "between health probes of an engine; 0: none"},
  {"health-interval-down", SECONDS, AT(health_interval_down), "1", 0.01, 3600, "between probes of one that is left out"},
  {"access-log", TEXT, AT(access_log), "-", 0, 0, "file for a JSON line a request; -: stdout, empty: none"},
  {"log-level", TEXT, AT(log_level), "info", 0, 0, "error, warning, info or debug"},
};
enum { N = sizeof OPTION / sizeof *OPTION };

struct reader {
  struct px_options *o;
  enum source from[N];
  struct px_buf *why;
};

/* ---- values ---- */
static bool wrong(struct reader *r, const char *where, const struct option *p, const char *value, const char *what) {
  rd2h_px_printf(r->why, "%s%s \"%s\": %s", where, p->name, value, what);
  return false;
}

static void *field(struct reader *r, const struct option *p) {
  return (char *)r->o + p->at;
}

static void list_free(struct px_list *l) {
  for (size_t i = 0; i < l->n; i++)
    free(l->item[i]);
  free(l->item);
  *l = (struct px_list){0};
}

static bool list_add(struct px_list *l, const char *p, size_t n) {
  char **item = realloc(l->item, (l->n + 1) * sizeof *item);
  if (!item)
    return false;
  l->item = item;
  return (l->item[l->n] = strndup(p, n)) != NULL && ++l->n;
}

static bool set_text(struct reader *r, const char *where, const struct option *p, const char *value) {
  char **out = field(r, p), *copy = strdup(value);
  if (!copy)
    return wrong(r, where, p, value, "memory ran out");
  free(*out);
  *out = copy;
  return true;
}

/* Items are separated by blanks or commas; an empty text between two commas is an item, too. */
static bool set_list(struct reader *r, const char *where, const struct option *p, const char *value) {
  struct px_list *l = field(r, p);
  list_free(l);
  bool due = false; /* behind a comma */
  for (const char *s = value;;) {
    s += strspn(s, " \t\n");
    size_t n = strcspn(s, " \t\n,");
    if ((n || *s == ',' || due) && !list_add(l, s, n))
      return wrong(r, where, p, value, "memory ran out");
    s += n;
    s += strspn(s, " \t\n");
    due = *s == ',';
    if (!*s)
      break;
    s += due;
  }
  return l->n > 0 || wrong(r, where, p, value, "at least one is needed");
}

static bool read_number(const char *value, double *out, const char **rest) {
  char *end;
  errno = 0;
  *out = strtod(value, &end);
  *rest = end;
  return end != value && !errno && isfinite(*out) && value[0] != ' ';
}

static bool in_range(struct reader *r, const char *where, const struct option *p, const char *value, double v) {
  char what[96];
  snprintf(what, sizeof what, "must be from %g to %g", p->min, p->max);
  return (v >= p->min && v <= p->max) || wrong(r, where, p, value, what);
}

static bool set_number(struct reader *r, const char *where, const struct option *p, const char *value) {
  double v;
  const char *rest;
  if (!read_number(value, &v, &rest) || *rest || v != floor(v))
    return wrong(r, where, p, value, "must be a whole number");
  if (!in_range(r, where, p, value, v))
    return false;
  *(int64_t *)field(r, p) = (int64_t)v;
  return true;
}

static bool set_seconds(struct reader *r, const char *where, const struct option *p, const char *value) {
  double v;
  const char *rest;
  if (!read_number(value, &v, &rest) || *rest)
    return wrong(r, where, p, value, "must be a number of seconds");
  if (!in_range(r, where, p, value, v))
    return false;
  *(int64_t *)field(r, p) = (int64_t)ceil(v * 1000);
  return true;
}

static bool set_bytes(struct reader *r, const char *where, const struct option *p, const char *value) {
  static const char unit[] = "KMGT";
  double v;
  const char *rest, *u;
  if (!read_number(value, &v, &rest) || (*rest && (!(u = strchr(unit, *rest)) || rest[1])))
    return wrong(r, where, p, value, "must be a number of bytes, with K, M, G or T behind it if you like");
  if (*rest)
    v *= pow(1024, (double)(strchr(unit, *rest) - unit + 1));
  if (!in_range(r, where, p, value, v))
    return false;
  *(int64_t *)field(r, p) = (int64_t)v;
  return true;
}

static bool set_switch(struct reader *r, const char *where, const struct option *p, const char *value) {
  static const char *const WORD[] = {"false", "true", "0", "1", "no", "yes", "off", "on"};
  for (size_t i = 0; i < sizeof WORD / sizeof *WORD; i++)
    if (strcmp(value, WORD[i]) == 0) {
      *(bool *)field(r, p) = i & 1;
      return true;
    }
  return wrong(r, where, p, value, "must be true or false");
}

static bool (*const SET[])(struct reader *, const char *, const struct option *, const char *) = {
  [TEXT] = set_text, [LIST] = set_list, [NUMBER] = set_number, [SECONDS] = set_seconds, [BYTES] = set_bytes, [SWITCH] = set_switch,
};

static bool set(struct reader *r, size_t i, enum source from, const char *where, const char *value) {
  if (from < r->from[i])
    return true;
  r->from[i] = from;
  return SET[OPTION[i].type](r, where, OPTION + i, value);
}

static size_t find(struct px_span name) {
  size_t i = 0;
  while (i < N && !px_equal(px_str(OPTION[i].name), name))
    i++;
  return i;
}

/* ---- sources ---- */
/* A list takes all arguments up to the next flag. */
static bool read_list_flag(struct reader *r, size_t i, int argc, char **argv, int *at, const char *first) {
  struct px_buf all = {0};
  bool more = first != NULL;
  if (first)
    rd2h_px_puts(&all, first);
  for (; *at < argc && strncmp(argv[*at], "--", 2) != 0; (*at)++, more = true)
    rd2h_px_printf(&all, "%s%s", more ? "," : "", argv[*at]);
  rd2h_px_put(&all, (struct px_span){"", 1});
  bool good = !all.failed && set(r, i, FLAG, "--", all.p);
  rd2h_px_free(&all);
  return good;
}

static bool read_flags(struct reader *r, int argc, char **argv) {
  for (int at = 1; at < argc;) {
    const char *flag = argv[at++], *equals = strchr(flag, '=');
    struct px_span name = {flag + 2, equals ? (size_t)(equals - flag - 2) : strlen(flag) - 2};
    size_t i = strncmp(flag, "--", 2) == 0 ? find(name) : N;
    if (i == N) {
      rd2h_px_printf(r->why, "unknown argument \"%s\"; --help lists all", flag);
      return false;
    }
    const char *value = equals ? equals + 1 : NULL;
    if (OPTION[i].type == LIST) {
      if (!read_list_flag(r, i, argc, argv, &at, value))
        return false;
      continue;
    }
    if (!value && OPTION[i].type == SWITCH && (at == argc || strncmp(argv[at], "--", 2) == 0))
      value = "true";
    if (!value && at == argc)
      return wrong(r, "--", OPTION + i, "", "a value must follow");
    if (!set(r, i, FLAG, "--", value ? value : argv[at++]))
      return false;
  }
  return true;
}

static void env_name(const char *name, char out[64]) {
  size_t n = (size_t)snprintf(out, 64, "RD2H_PROXY_%s", name);
  for (size_t i = 0; i < n; i++)
    out[i] = out[i] == '-' ? '_' : out[i] >= 'a' && out[i] <= 'z' ? (char)(out[i] - 32) : out[i];
}

static bool read_env(struct reader *r, char **env) {
  for (size_t i = 0; i < N; i++) {
    char name[64];
    env_name(OPTION[i].name, name);
    size_t n = strlen(name);
    for (char **e = env; e && *e; e++)
      if (strncmp(*e, name, n) == 0 && (*e)[n] == '=' && !set(r, i, ENVIRONMENT, "environment, ", *e + n + 1))
        return false;
  }
  return true;
}

static struct px_span trim(struct px_span s) {
  for (; s.n && strchr(" \t\r\n", *s.p); s.n--)
    s.p++;
  while (s.n && strchr(" \t\r\n", s.p[s.n - 1]))
    s.n--;
  return s;
}

static bool read_line(struct reader *r, const char *file, unsigned number, char *line) {
  char where[320];
  struct px_span s = trim(px_str(line));
  char *equals = strchr(line, '=');
  if (s.n == 0 || *s.p == '#')
    return true;
  snprintf(where, sizeof where, "%.255s:%u: ", file, number);
  size_t i = equals ? find(trim((struct px_span){line, (size_t)(equals - line)})) : N;
  if (i == N || strcmp(OPTION[i].name, "config") == 0) {
    rd2h_px_printf(r->why, "%sno line of the form name = value with an option's name: %.*s", where, (int)(s.n < 80 ? s.n : 80), s.p);
    return false;
  }
  struct px_span value = trim(px_str(equals + 1));
  equals[1 + (value.p - (equals + 1)) + value.n] = 0;
  return set(r, i, FILE_LINE, where, value.p);
}

static bool read_file(struct reader *r) {
  const char *file = r->o->config;
  char *line = NULL;
  size_t room = 0;
  bool good = true;
  if (!*file)
    return true;
  FILE *in = fopen(file, "r");
  if (!in) {
    rd2h_px_printf(r->why, "--config \"%s\": %s", file, strerror(errno));
    return false;
  }
  for (unsigned number = 1; good && getline(&line, &room, in) >= 0; number++)
    good = read_line(r, file, number, line);
  free(line);
  fclose(in);
  return good;
}

/* ---- what must fit together ---- */
static bool check_hosts(struct reader *r, const char *role, const struct px_list *hosts, const struct px_list *ports) {
  if (hosts->n != ports->n) {
    rd2h_px_printf(r->why, "--%s-hosts has %zu entries, --%s-ports %zu: each host needs its port", role, hosts->n, role, ports->n);
    return false;
  }
  for (size_t i = 0; i < hosts->n; i++) {
    const char *why = rd2h_px_check_host(hosts->item[i]);
    uint64_t port;
    if (why) {
      rd2h_px_printf(r->why, "--%s-hosts[%zu] \"%s\": %s", role, i, hosts->item[i], why);
      return false;
    }
    if (!rd2h_px_uint(px_str(ports->item[i]), 65535, &port) || port == 0) {
      rd2h_px_printf(r->why, "--%s-ports[%zu] \"%s\": must be from 1 to 65535", role, i, ports->item[i]);
      return false;
    }
  }
  return true;
}

static bool check_word(struct reader *r, const char *name, const char *value, const char *words) {
  size_t n = strlen(value);
  for (const char *p = words; n && (p = strstr(p, value)) != NULL; p += n)
    if ((p == words || p[-1] == ' ') && (p[n] == ' ' || !p[n]))
      return true;
  rd2h_px_printf(r->why, "--%s \"%s\": must be one of: %s", name, value, words);
  return false;
}

static bool check_all(struct reader *r) {
  static const char *const WILDCARD[] = {"0.0.0.0", "::", "0:0:0:0:0:0:0:0", "[::]", "*", "0"};
  struct px_options *o = r->o;
  for (size_t i = 0; i < sizeof WILDCARD / sizeof *WILDCARD; i++)
    if (strcmp(o->host, WILDCARD[i]) == 0) {
      rd2h_px_printf(r->why, "--host \"%s\": no wildcard, since Decode engines are told this address; give one that they can reach",
                     o->host);
      return false;
    }
  const char *why = rd2h_px_check_host(o->host);
  if (why) {
    rd2h_px_printf(r->why, "--host \"%s\": %s", o->host, why);
    return false;
  }
  if (!*o->tls_cert != !*o->tls_key) {
    rd2h_px_puts(r->why, "--tls-cert and --tls-key belong together");
    return false;
  }
  return check_hosts(r, "prefiller", &o->prefiller_hosts, &o->prefiller_ports) &&
         check_hosts(r, "decoder", &o->decoder_hosts, &o->decoder_ports) &&
         check_word(r, "dispatch", o->dispatch, "auto list each") && check_word(r, "log-level", o->log_level, "error warning info debug");
}

static void show_help(void) {
  static const char *const UNIT[] = {[TEXT] = "TEXT", [LIST] = "A [B...]", [NUMBER] = "N", [SECONDS] = "SECONDS", [BYTES] = "BYTES",
                                     [SWITCH] = "[true|false]"};
  printf("rd2h-proxy: rendezvous and OpenAI front for Prefill and Decode engines\n\n"
         "Every option may stand on the command line, in the environment (--max-body: RD2H_PROXY_MAX_BODY) or in the\n"
         "file of --config (max-body = 64M); the first of these counts.\n\n");
  for (size_t i = 0; i < N; i++) {
    char flag[64];
    snprintf(flag, sizeof flag, "--%s %s", OPTION[i].name, UNIT[OPTION[i].type]);
    printf("  %-34s %s%s%s%s\n", flag, OPTION[i].help, *OPTION[i].otherwise ? " [" : "", OPTION[i].otherwise,
           *OPTION[i].otherwise ? "]" : "");
  }
}

enum px_options_result rd2h_px_options_read(struct px_options *o, int argc, char **argv, char **env, struct px_buf *why) {
  struct reader r = {.o = o, .why = why};
  *o = (struct px_options){0};
  for (int i = 1; i < argc; i++)
    if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
      show_help();
      return PX_OPTIONS_SHOWN;
    }
  for (size_t i = 0; i < N; i++)
    if (!set(&r, i, DEFAULT, "default, ", OPTION[i].otherwise))
      return PX_OPTIONS_WRONG;
  return read_flags(&r, argc, argv) && read_env(&r, env) && read_file(&r) && check_all(&r) ? PX_OPTIONS_RUN : PX_OPTIONS_WRONG;
}

void rd2h_px_options_free(struct px_options *o) {
  struct reader r = {.o = o};
  for (size_t i = 0; i < N; i++) {
    if (OPTION[i].type == TEXT)
      free(*(char **)field(&r, OPTION + i));
    else if (OPTION[i].type == LIST)
      list_free(field(&r, OPTION + i));
  }
}
