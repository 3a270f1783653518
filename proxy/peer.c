/* SPDX-License-Identifier: Apache-2.0 */
/* Engines as addresses: looked up, connected to, and the connections that are kept to them. */
#include "proxy/client_inner.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { RESOLVED_MS = 30000, MAX_PEERS = 2048 };

static void serve_waiting(struct px_peer *p);

/* ---- the table ---- */
static size_t bucket_of(const char *origin) {
  uint32_t h = 2166136261u;
  for (; *origin; origin++)
    h = (h ^ (unsigned char)*origin) * 16777619u;
  return h % PX_PEER_BUCKETS;
}

static void peer_free(struct px_peer *p) {
  if (p->lookup)
    rd2h_px_lookup_cancel(p->lookup);
  free(p->origin);
  free(p->host);
  free(p);
}

/* Engines that were removed long ago. */
static void forget_unused(struct px_client *c) {
  for (size_t i = 0; i < PX_PEER_BUCKETS; i++)
    for (struct px_peer **at = &c->bucket[i]; *at;) {
      struct px_peer *p = *at;
      if (p->wires || p->waiting || p->lookup) {
        at = &p->next;
        continue;
      }
      *at = p->next;
      c->peers--;
      peer_free(p);
    }
}

/* scheme://host:port, made by the pool. */
static bool take_apart(struct px_peer *p) {
  char *at = strstr(p->origin, "://"), *colon = strrchr(p->origin, ':');
  if (!at || colon < at + 4)
    return false;
  p->tls = strncmp(p->origin, "https", 5) == 0;
  p->authority = at + 3;
  p->port = (uint16_t)atoi(colon + 1);
  bool v6 = at[3] == '[';
  p->host = strndup(at + 3 + v6, (size_t)(colon - at - 3) - 2 * v6);
  if (!p->host)
    return false;
  char *zone = strstr(p->host, "%25"); /* as it stands in a URL */
  if (zone)
    memmove(zone + 1, zone + 3, strlen(zone + 3) + 1);
  p->numeric = rd2h_px_resolve_numeric(p->host, p->port, &p->addresses);
  return true;
}

struct px_peer *rd2h_px_peer_get(struct px_client *c, const char *origin) {
  struct px_peer **first = c->bucket + bucket_of(origin);
  for (struct px_peer *p = *first; p; p = p->next)
    if (strcmp(p->origin, origin) == 0)
      return p;
  if (c->peers >= MAX_PEERS)
    forget_unused(c);
  struct px_peer *p = calloc(1, sizeof *p);
  if (!p)
    return NULL;
  p->client = c;
  p->waiting_end = &p->waiting;
  p->origin = strdup(origin);
  if (!p->origin || !take_apart(p)) {
    peer_free(p);
    return NULL;
  }
  p->next = *first;
  *first = p;
  c->peers++;
  return p;
}

void rd2h_px_peers_free(struct px_client *c) {
  for (size_t i = 0; i < PX_PEER_BUCKETS; i++)
    for (struct px_peer *p = c->bucket[i], *next; p; p = next) {
      next = p->next;
      while (p->idle)
        rd2h_px_wire_close(p->idle);
      peer_free(p);
    }
}

/* ---- the queue ---- */
static void enqueue(struct px_call *call) {
  struct px_peer *p = call->peer;
  call->state = PX_CALL_WAITING;
  call->next = NULL;
  *p->waiting_end = call;
  p->waiting_end = &call->next;
}

void rd2h_px_peer_forget(struct px_call *call) {
  struct px_peer *p = call->peer;
  struct px_call **at = &p->waiting;
  while (*at && *at != call)
    at = &(*at)->next;
  if (!*at)
    return;
  *at = call->next;
  if (!*at)
    p->waiting_end = at;
}

static struct px_call *dequeue(struct px_peer *p) {
  struct px_call *call = p->waiting;
  if (call)
    rd2h_px_peer_forget(call);
  return call;
}

/* ---- connections ---- */
static void wire_unlist(struct px_wire *w) {
  if (!w->back)
    return;
  *w->back = w->next;
  if (w->next)
    w->next->back = w->back;
  w->back = NULL;
  w->peer->client->idle--;
}

void rd2h_px_wire_close(struct px_wire *w) {
  struct px_peer *p = w->peer;
  wire_unlist(w);
  rd2h_px_link_free(w->link);
  p->wires--;
  free(w);
  serve_waiting(p);
}

static void on_open(void *user) {
  struct px_wire *w = user;
  if (w->call)
    rd2h_px_call_begin(w->call);
}

static void on_data(void *user, char *p, size_t n) {
  struct px_wire *w = user;
  if (w->call)
    rd2h_px_answer_data(w->call, p, n);
  else
    rd2h_px_wire_close(w); /* nobody has asked for anything */
}

static bool connect_next(struct px_call *call);

static void on_closed(void *user, const char *error) {
  struct px_wire *w = user;
  struct px_call *call = w->call;
  if (!call) {
    rd2h_px_wire_close(w);
    return;
  }
  if (call->state != PX_CALL_CONNECTING) {
    rd2h_px_answer_closed(call, error);
    return;
  }
  call->peer->resolved_at = 0; /* the name may stand for another address by now */
  char text[160];
  snprintf(text, sizeof text, "%s", error ? error : "it closed the connection");
  w->call = NULL;
  call->wire = NULL;
  rd2h_px_wire_close(w);
  call->address++;
  if (!connect_next(call))
    rd2h_px_call_finish(call, text);
}

static const struct px_link_events EVENTS = {on_open, on_data, NULL, on_closed};

static SSL *new_ssl(const struct px_peer *p) {
  const struct px_client *c = p->client;
  SSL *ssl = SSL_new(c->tls);
  if (!ssl)
    return NULL;
  bool good = p->numeric || SSL_set_tlsext_host_name(ssl, p->host) == 1;
  if (good && c->limits.verify)
    good = p->numeric ? X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), p->host) == 1 : SSL_set1_host(ssl, p->host) == 1;
  if (good)
    return ssl;
  SSL_free(ssl);
  return NULL;
}

static int new_socket(const struct px_addresses *a, size_t which) {
  const struct sockaddr *to = (const struct sockaddr *)&a->of[which].address;
  int fd = socket(to->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0)
    return -1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &(int){1}, sizeof(int));
  if (connect(fd, to, a->of[which].length) == 0 || errno == EINPROGRESS)
    return fd;
  int error = errno;
  close(fd);
  errno = error;
  return -1;
}

/* To the first address from call->address on that can be tried at all. False: none is left, errno. */
static bool connect_next(struct px_call *call) {
  struct px_peer *p = call->peer;
  struct px_wire *w = calloc(1, sizeof *w);
  SSL *ssl = p->tls ? new_ssl(p) : NULL;
  int fd = -1;
  errno = ENOMEM;
  if (!w || (p->tls && !ssl))
    goto fail;
  for (errno = ECONNREFUSED; call->address < p->addresses.n; call->address++)
    if ((fd = new_socket(&p->addresses, call->address)) >= 0)
      break;
  if (fd < 0)
    goto fail;
  w->link = rd2h_px_link_new(p->client->base, fd, ssl, PX_CONNECTING, 0, &EVENTS, w);
  if (!w->link) {
    close(fd);
    errno = ENOMEM;
    goto fail;
  }
  w->peer = p;
  w->call = call;
  call->wire = w;
  p->wires++;
  return true;

fail:
  SSL_free(ssl);
  free(w);
  return false;
}

static void connect_first(struct px_call *call) {
  call->address = 0;
  rd2h_px_call_connecting(call);
  if (!connect_next(call))
    rd2h_px_call_fail_later(call, strerror(errno));
}

/* ---- idle ones ---- */
void rd2h_px_wire_keep(struct px_wire *w) {
  struct px_peer *p = w->peer;
  struct px_client *c = p->client;
  if (c->idle >= c->limits.max_idle) {
    rd2h_px_wire_close(w);
    return;
  }
  rd2h_px_link_read(w->link, true);
  w->idle_since = px_now();
  w->next = p->idle;
  w->back = &p->idle;
  if (p->idle)
    p->idle->back = &w->next;
  p->idle = w;
  c->idle++;
  serve_waiting(p);
}

/* The youngest one. Those behind it are older: once it is too old, all are. */
static struct px_wire *take_idle(struct px_peer *p) {
  if (p->idle && px_now() - p->idle->idle_since <= p->client->limits.idle_ms) {
    struct px_wire *w = p->idle;
    wire_unlist(w);
    return w;
  }
  return NULL;
}

static void drop_old(struct px_peer *p) {
  while (p->idle && px_now() - p->idle->idle_since > p->client->limits.idle_ms)
    rd2h_px_wire_close(p->idle);
}

/* ---- names ---- */
static void on_looked_up(void *user, const struct px_addresses *found, const char *error) {
  struct px_peer *p = user;
  p->lookup = NULL;
  if (!error) {
    p->addresses = *found;
    p->resolved_at = px_now();
    serve_waiting(p);
    return;
  }
  for (struct px_call *call; (call = dequeue(p)) != NULL;) {
    call->state = PX_CALL_CONNECTING;
    rd2h_px_call_fail_later(call, error);
  }
}

/* Whether the peer's address is known; otherwise it is being looked up, or that failed (*why). */
static bool know_address(struct px_peer *p, const char **why) {
  *why = NULL;
  if (p->numeric || (p->resolved_at && px_now() - p->resolved_at < RESOLVED_MS))
    return true;
  if (!p->lookup)
    p->lookup = rd2h_px_lookup_start(p->client->base, p->host, p->port, on_looked_up, p);
  if (!p->lookup)
    *why = "its name could not be looked up: memory or descriptors ran out";
  return false;
}

/* ---- who gets which ---- */
static bool at_limit(const struct px_peer *p) {
  uint32_t most = p->client->limits.max_connections;
  return most && p->wires >= most;
}

void rd2h_px_peer_serve(struct px_call *call) {
  struct px_peer *p = call->peer;
  struct px_wire *w = take_idle(p);
  const char *why = NULL;
  if (w) {
    w->call = call;
    call->wire = w;
    rd2h_px_call_begin(call);
    return;
  }
  enqueue(call); /* before old ones are closed: then it is this one's turn, not the next one's */
  drop_old(p);
  if (call->state != PX_CALL_WAITING || at_limit(p) || know_address(p, &why)) {
    serve_waiting(p);
    return;
  }
  if (why) {
    rd2h_px_peer_forget(call);
    call->state = PX_CALL_CONNECTING;
    rd2h_px_call_fail_later(call, why);
  }
}

static void serve_waiting(struct px_peer *p) {
  const char *why;
  while (p->waiting) {
    struct px_wire *w = take_idle(p);
    if (!w && (at_limit(p) || !know_address(p, &why)))
      return;
    struct px_call *call = dequeue(p);
    if (!w) {
      connect_first(call);
      continue;
    }
    w->call = call;
    call->wire = w;
    rd2h_px_call_begin(call);
  }
}
