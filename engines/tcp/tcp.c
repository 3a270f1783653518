/* SPDX-License-Identifier: Apache-2.0 */
/* Engine tcp: reads between any two hosts. The table of the engine, and its options. */
#include "engines/tcp/tcp.h"
#include <stdlib.h>

#define STREAMS_DEFAULT 2u

struct rd2h_engine {
  struct tcp_server *server; /* on Prefill */
  struct tcp_client *client; /* on Decode */
  struct tcp_targets targets;
};
struct options {
  uint32_t streams;
  const char *bind_host;
  struct tcp_targets targets;
};

static int parse_option(const char *text, struct options *o, struct rd2h_error *err) {
  if (!strncmp(text, "bind=", 5) && text[5]) {
    o->bind_host = text + 5;
    return RD2H_OK;
  }
  if (!strncmp(text, "targets=", 8))
    return rd2h_tcp_targets_parse(text + 8, &o->targets, err);
  if (strncmp(text, "streams=", 8))
    return rd2h_fail(err, RD2H_INVALID, "engine tcp: unknown option \"%.100s\": it has streams=N, bind=ADDRESS and targets=LIST",
                     text);
  char *end;
  unsigned long n = strtoul(text + 8, &end, 10);
  if (end == text + 8 || *end || !n || n > TCP_STREAMS_MAX || text[8] == '-')
    return rd2h_fail(err, RD2H_INVALID, "engine tcp: option \"%.100s\": streams must be from 1 to %u", text, TCP_STREAMS_MAX);
  o->streams = (uint32_t)n;
  return RD2H_OK;
}

static int tcp_open(const struct rd2h_host *host, const struct rd2h_engine_opts *o, rd2h_engine **out,
                    struct rd2h_engine_caps *caps, struct rd2h_error *err) {
  struct options own = {.streams = STREAMS_DEFAULT};
  uint64_t timeout = o->read_timeout_ns ? o->read_timeout_ns : TCP_TIMEOUT_NS;
  int rc = RD2H_OK;
  (void)host;
  for (const char *const *p = o->options; p && *p && !rc; p++)
    rc = parse_option(*p, &own, err);
  if (rc)
    return rc;
  rd2h_engine *e = rd2h_zalloc(sizeof *e);
  if (!e)
    return rd2h_nomem(err, "engine tcp");
  e->targets = own.targets;
  rc = o->prefill ? rd2h_tcp_server_open(o->host ? o->host : "127.0.0.1", own.bind_host, timeout, &e->server, err)
                  : rd2h_tcp_client_open(own.streams, timeout, &e->client, err);
  if (rc) {
    rd2h_free(e);
    return rc;
  }
  *caps = (struct rd2h_engine_caps){.flags = RD2H_ENG_CANCEL | RD2H_ENG_PEER_DOWN | RD2H_ENG_LOCAL_UNREGISTERED};
  *out = e;
  return RD2H_OK;
}

static void tcp_close(rd2h_engine *e) {
  if (e->server)
    rd2h_tcp_server_close(e->server);
  if (e->client)
    rd2h_tcp_client_close(e->client);
  rd2h_free(e);
}

/* Decode's destinations need no registration: they only get their numbers. */
static int tcp_reg(rd2h_engine *e, const struct rd2h_region *r, uint32_t *region, struct rd2h_error *err) {
  if (e->server)
    return rd2h_tcp_server_reg(e->server, r, region, err);
  *region = 0;
  return RD2H_OK;
}

static void tcp_dereg(rd2h_engine *e, uint32_t region) {
  if (e->server)
    rd2h_tcp_server_dereg(e->server, region);
}

static int tcp_publish(rd2h_engine *e, uint8_t *buf, uint32_t cap, uint32_t *len) {
  *len = e->server ? TCP_CONN : 0; /* nobody reads from Decode */
  if (cap < *len)
    return RD2H_RANGE;
  if (e->server)
    rd2h_tcp_conn_encode(rd2h_tcp_server_conn(e->server), buf);
  return RD2H_OK;
}

static int tcp_publish_for(rd2h_engine *e, uint64_t reader, uint8_t *buf, uint32_t cap, uint32_t *len) {
  if (!e->server || cap < TCP_CONN)
    return tcp_publish(e, buf, cap, len);
  struct rd2h_tcp_conn own = *rd2h_tcp_server_conn(e->server);
  int rc = rd2h_tcp_server_admit(e->server, reader, own.token);
  *len = TCP_CONN;
  if (!rc)
    rd2h_tcp_conn_encode(&own, buf);
  return rc;
}

static void tcp_revoke(rd2h_engine *e, uint64_t reader) {
  if (e->server)
    rd2h_tcp_server_revoke(e->server, reader);
}

static int tcp_connect(rd2h_engine *e, struct rd2h_blob session, struct rd2h_blob conn, uint64_t cookie, rd2h_peer **out,
                       struct rd2h_error *err) {
  struct rd2h_tcp_conn at;
  if (!conn.len)
    return rd2h_fail(err, RD2H_UNSUPPORTED, "engine tcp: the peer \"%.*s\" published no connection data for this engine: it is no "
                     "rd2h, or was started with another transfer engine", session.len < 128 ? (int)session.len : 128,
                     (const char *)session.p);
  int rc = rd2h_tcp_conn_decode(conn, &at, err);
  rc = rc ? rc : rd2h_tcp_targets_check(&e->targets, &at, session, err);
  return rc ? rc : rd2h_tcp_client_connect(e->client, &at, cookie, out, err);
}

static void tcp_disconnect(rd2h_engine *e, rd2h_peer *p) {
  rd2h_tcp_client_disconnect(e->client, p);
}

static int tcp_submit(rd2h_engine *e, rd2h_peer *p, const struct rd2h_batch *b) {
  return rd2h_tcp_client_submit(e->client, p, b);
}

/* On Prefill nothing is read: there is nothing to cancel, poll or tell. */
static void tcp_cancel(rd2h_engine *e, uint64_t id) {
  if (e->client)
    rd2h_tcp_client_cancel(e->client, id);
}

static int tcp_poll(rd2h_engine *e, struct rd2h_completion *c, int n) {
  return e->client ? rd2h_tcp_client_poll(e->client, c, n) : 0;
}

static int tcp_events(rd2h_engine *e, struct rd2h_peer_event *ev, int n) {
  return e->client ? rd2h_tcp_client_events(e->client, ev, n) : 0;
}

static int tcp_fd(rd2h_engine *e) {
  return e->client ? rd2h_tcp_client_fd(e->client) : rd2h_tcp_server_fd(e->server);
}

static void tcp_stats(rd2h_engine *e, struct rd2h_engine_stats *s) {
  if (e->client)
    rd2h_tcp_client_stats(e->client, s);
}

static const char *tcp_last_error(rd2h_engine *e, uint64_t id) {
  return e->client ? rd2h_tcp_client_error(e->client, id) : NULL;
}

const struct rd2h_engine_ops rd2h_engine_tcp = {
  .abi = RD2H_ENGINE_ABI, .size = sizeof rd2h_engine_tcp, .name = "tcp", .open = tcp_open, .close = tcp_close, .reg = tcp_reg,
  .dereg = tcp_dereg, .publish = tcp_publish, .connect = tcp_connect, .disconnect = tcp_disconnect, .submit = tcp_submit,
  .cancel = tcp_cancel, .poll = tcp_poll, .events = tcp_events, .fd = tcp_fd, .stats = tcp_stats,
  .last_error = tcp_last_error, .publish_for = tcp_publish_for, .revoke = tcp_revoke,
};
