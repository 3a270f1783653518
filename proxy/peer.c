/* SPDX-License-Identifier: Apache-2.0 */
/* Engines as addresses: looked up, connected to, and the connections that are kept to them. */
#include "proxy/client_inner.h"

#include <stdlib.h>

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
  free(w);
  rd2h_px_peer_freed(p);
}

void rd2h_px_peer_freed(struct px_peer *p) {
  p->wires--;
  serve_waiting(p);
}

static void on_data(void *user, char *p, size_t n) {
  struct px_wire *w = user;
  if (w->call)
    rd2h_px_answer_data(w->call, p, n);
  else
    rd2h_px_wire_close(w); /* nobody has asked for anything */
}

static void on_open(void *user) {
  rd2h_px_connect_won(user);
}

static void on_closed(void *user, const char *error) {
  struct px_wire *w = user;
  if (w->call && w->call->state == PX_CALL_CONNECTING)
    rd2h_px_connect_lost(w, error);
  else if (w->call)
    rd2h_px_answer_closed(w->call, error);
  else
    rd2h_px_wire_close(w);
}

const struct px_link_events rd2h_px_wire_events = {on_open, on_data, NULL, on_closed};

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
static void fail_waiting(struct px_peer *p, const char *why) {
  for (struct px_call *call; (call = dequeue(p)) != NULL;) {
    call->state = PX_CALL_CONNECTING;
    rd2h_px_call_fail_later(call, why);
  }
}

static bool same_addresses(const struct px_addresses *a, const struct px_addresses *b) {
  bool same = a->n == b->n;
  for (size_t i = 0; same && i < a->n; i++)
    same = a->of[i].length == b->of[i].length && memcmp(&a->of[i].address, &b->of[i].address, a->of[i].length) == 0;
  return same;
}

static void on_looked_up(void *user, const struct px_addresses *found, const char *error) {
  struct px_peer *p = user;
  p->lookup = NULL;
  if (error && !p->addresses.n) {
    fail_waiting(p, error);
    return;
  }
  p->resolved_at = px_now(); /* when the name server fails, what it said before holds */
  if (error)
    found = &p->addresses;
  if (!same_addresses(&p->addresses, found))
    p->preferred = 0;
  p->addresses = *found;
  serve_waiting(p);
}

static bool address_known(const struct px_peer *p) {
  return p->numeric || (p->resolved_at && px_now() - p->resolved_at < RESOLVED_MS);
}

/* For those that wait. When it cannot even begin, nothing would ever wake them. */
static void look_up(struct px_peer *p) {
  if (p->lookup)
    return;
  p->lookup = rd2h_px_lookup_start(p->client->base, p->host, p->port, on_looked_up, p);
  if (!p->lookup)
    fail_waiting(p, "its name could not be looked up: memory or descriptors ran out");
  for (struct px_call *call = p->waiting; call; call = call->next)
    rd2h_px_call_hurry(call);
}

/* ---- who gets which ---- */
static bool at_limit(const struct px_peer *p) {
  uint32_t most = p->client->limits.max_connections;
  return most && p->wires >= most;
}

static void use(struct px_call *call, struct px_wire *w) {
  w->call = call;
  call->wire = w;
  rd2h_px_call_begin(call);
}

static void serve_waiting(struct px_peer *p) {
  while (p->waiting) {
    struct px_wire *w = take_idle(p);
    if (!w && at_limit(p))
      return;
    if (!w && !address_known(p)) {
      look_up(p);
      return;
    }
    if (w)
      use(dequeue(p), w);
    else
      rd2h_px_connect(dequeue(p));
  }
}

void rd2h_px_peer_serve(struct px_call *call) {
  struct px_peer *p = call->peer;
  struct px_wire *w = take_idle(p);
  if (w) {
    use(call, w);
    return;
  }
  enqueue(call); /* before old ones are closed: then it is this one's turn, not the next one's */
  drop_old(p);
  serve_waiting(p);
  if (call->state == PX_CALL_WAITING && p->lookup)
    rd2h_px_call_hurry(call);
}
