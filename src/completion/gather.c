/* SPDX-License-Identifier: Apache-2.0 */
/* Live requests in the order of their addition, which is the same on all ranks: a message is one number for each. */
#include "completion/exchange.h"
#include <rd2h/completion.h>

#define DEFAULT_REQUESTS 4096u
#define DEFAULT_EXCHANGE_MS 10000u
#define MAX_RANKS 4096u
#define MAX_REQUESTS (1u << 20)
#define PENDING 1              /* beside statuses, which are 0 or less */
#define EXPIRED 0x40000000     /* added by rank 0 when the request's time is over */
#define LEAST_STATUS (-0xffff)

struct live {
  struct live *next;
  uint64_t until;
  int32_t state;
  struct rd2h_gathered out;
  char id[];
};

struct message { /* n states follow; padded to 8 bytes */
  uint64_t digest; /* of the ids, in order */
  uint32_t n, pad;
  int32_t state[];
};

struct rd2h_gather {
  struct rd2h_gather_opts o;
  struct exchange x;
  struct rd2h_map *by_id; /* -> slot */
  struct rd2h_slab slots; /* struct live * */
  struct live *first, **last, *ended, **ended_last, *collected;
  struct rd2h_buf mine, all;
  uint32_t n;
  bool broken;
};

static uint64_t message_bytes(uint32_t n) {
  return (sizeof(struct message) + n * sizeof(int32_t) + 7) / 8 * 8;
}

static int check_opts(const struct rd2h_gather_opts *o, struct rd2h_error *err) {
  if (!o || o->size < sizeof *o)
    return rd2h_fail(err, RD2H_INVALID, "gather: options of %u bytes, this library expects %zu: set size, or build against its headers",
                     o ? o->size : 0, sizeof *o);
  if (!o->ranks || o->rank >= o->ranks || o->ranks > MAX_RANKS || o->max_requests > MAX_REQUESTS)
    return rd2h_fail(err, RD2H_INVALID, "gather: rank %u of %u (at most %u), %u requests (at most %u) cannot be", o->rank, o->ranks,
                     MAX_RANKS, o->max_requests, MAX_REQUESTS);
  if (!o->all_gather && o->rank && !o->handle)
    return rd2h_fail(err, RD2H_INVALID, "gather: rank %u has neither a collective nor the handle of rank 0", o->rank);
  return RD2H_OK;
}

int rd2h_gather_create(const struct rd2h_gather_opts *o, rd2h_gather **out, struct rd2h_error *err) {
  int rc = check_opts(o, err);
  if (rc)
    return rc;
  rd2h_gather *g = rd2h_zalloc(sizeof *g);
  if (!g || !(g->by_id = rd2h_map_create())) {
    rd2h_free(g);
    return rd2h_nomem(err, "a gather");
  }
  g->o = *o;
  g->o.max_requests = o->max_requests ? o->max_requests : DEFAULT_REQUESTS;
  g->last = &g->first;
  g->ended_last = &g->ended;
  rd2h_slab_init(&g->slots, sizeof(struct live *), g->o.max_requests);
  g->x = (struct exchange){.rank = o->rank, .ranks = o->ranks, .room = message_bytes(g->o.max_requests),
                           .timeout_ms = o->exchange_ms ? o->exchange_ms : DEFAULT_EXCHANGE_MS};
  rc = o->all_gather ? RD2H_OK : exchange_open(&g->x, o->handle, err);
  if (rc) {
    rd2h_gather_destroy(g);
    return rc;
  }
  *out = g;
  return RD2H_OK;
}

static void free_list(struct live *l) {
  while (l) {
    struct live *next = l->next;
    rd2h_free(l);
    l = next;
  }
}

void rd2h_gather_destroy(rd2h_gather *g) {
  if (!g)
    return;
  free_list(g->first);
  free_list(g->ended);
  free_list(g->collected);
  rd2h_slab_free(&g->slots);
  rd2h_map_destroy(g->by_id);
  rd2h_buf_free(&g->mine);
  rd2h_buf_free(&g->all);
  exchange_close(&g->x);
  rd2h_free(g);
}

const char *rd2h_gather_handle(const rd2h_gather *g) {
  return g->x.pool ? rd2h_pool_handle(g->x.pool) : "";
}

/* ---- what is waited for ---- */
static struct live *find(const rd2h_gather *g, const char *id) {
  uint32_t i = rd2h_map_get(g->by_id, id, strlen(id));
  return i == RD2H_INDEX_NONE ? NULL : *(struct live **)rd2h_slab_at(&g->slots, i);
}

int rd2h_gather_add(rd2h_gather *g, const char *id, struct rd2h_error *err) {
  size_t n = strlen(id);
  if (find(g, id))
    return rd2h_fail(err, RD2H_EXISTS, "gather: request %.200s is waited for already", id);
  if (g->n == g->o.max_requests)
    return rd2h_fail(err, RD2H_LIMIT, "gather: %u requests are waited for, no more than max_requests can be", g->n);
  struct live *l = rd2h_alloc(sizeof *l + n + 1);
  uint32_t slot = l ? rd2h_slab_take(&g->slots) : RD2H_INDEX_NONE;
  if (slot == RD2H_INDEX_NONE || rd2h_map_put(g->by_id, id, n, slot)) {
    rd2h_slab_give(&g->slots, slot);
    rd2h_free(l);
    return rd2h_nomem(err, "a request");
  }
  *l = (struct live){.until = g->o.deadline_ms ? rd2h_now_ns() + g->o.deadline_ms * RD2H_MS : RD2H_NEVER, .state = PENDING};
  memcpy(l->id, id, n + 1);
  *(struct live **)rd2h_slab_at(&g->slots, slot) = l;
  *g->last = l;
  g->last = &l->next;
  g->n++;
  return RD2H_OK;
}

/* Takes *at out of the list. */
static struct live *take(rd2h_gather *g, struct live **at) {
  struct live *l = *at;
  rd2h_slab_give(&g->slots, rd2h_map_del(g->by_id, l->id, strlen(l->id)));
  *at = l->next;
  if (!*at)
    g->last = at;
  g->n--;
  return l;
}

int rd2h_gather_remove(rd2h_gather *g, const char *id) {
  struct live *l = find(g, id), **at = &g->first;
  if (!l)
    return RD2H_NOT_FOUND;
  while (*at != l)
    at = &(*at)->next;
  rd2h_free(take(g, at));
  return RD2H_OK;
}

int rd2h_gather_end(rd2h_gather *g, const char *id, int status) {
  struct live *l = find(g, id);
  if (status > 0 || status < LEAST_STATUS)
    return RD2H_INVALID;
  if (!l)
    return RD2H_NOT_FOUND;
  if (l->state != PENDING)
    return RD2H_EXISTS;
  l->state = status;
  return RD2H_OK;
}

/* ---- a step ---- */
static uint64_t hash(uint64_t h, const char *s) {
  do
    h = (h ^ (uint8_t)*s) * 0x100000001b3u;
  while (*s++);
  return h;
}

static void compose(rd2h_gather *g, struct message *m) {
  uint64_t now = g->o.rank || !g->o.deadline_ms ? 0 : rd2h_now_ns();
  *m = (struct message){.digest = 0xcbf29ce484222325u, .n = g->n};
  uint32_t i = 0;
  for (const struct live *l = g->first; l; l = l->next) {
    m->digest = hash(m->digest, l->id);
    m->state[i++] = l->state + (now >= l->until ? EXPIRED : 0);
  }
}

static const struct message *of_rank(const rd2h_gather *g, uint32_t rank, uint64_t len) {
  return (const struct message *)(const void *)(g->all.p + rank * len);
}

static int compare(const rd2h_gather *g, uint64_t len, struct rd2h_error *err) {
  const struct message *m = of_rank(g, g->o.rank, len);
  for (uint32_t r = 0; r < g->o.ranks; r++) {
    const struct message *q = of_rank(g, r, len);
    if (q->n != m->n || q->digest != m->digest)
      return rd2h_fail(err, RD2H_STATE, "gather: rank %u waits for %u requests, rank %u for %u%s: add and remove must be the same on all "
                       "ranks", g->o.rank, m->n, r, q->n, q->n == m->n ? " others" : "");
  }
  return RD2H_OK;
}

/* PENDING, or how it ended for all. *rank: the first one that has not ended it (TIMEOUT), or not well. */
static int verdict(const rd2h_gather *g, uint32_t i, uint64_t len, uint32_t *rank) {
  bool expired = of_rank(g, 0, len)->state[i] > PENDING;
  int status = RD2H_OK;
  *rank = 0;
  for (uint32_t r = 0; r < g->o.ranks; r++) {
    int s = of_rank(g, r, len)->state[i] - (expired && !r ? EXPIRED : 0);
    if (s == PENDING) {
      *rank = r;
      return expired ? RD2H_TIMEOUT : PENDING;
    }
    if (!status && s) {
      status = s;
      *rank = r;
    }
  }
  return status;
}

static void settle(rd2h_gather *g, uint64_t len) {
  struct live **at = &g->first;
  for (uint32_t i = 0; *at; i++) {
    uint32_t rank;
    int status = verdict(g, i, len, &rank);
    if (status == PENDING) {
      at = &(*at)->next;
      continue;
    }
    struct live *l = take(g, at);
    l->out = (struct rd2h_gathered){l->id, status, rank};
    l->next = NULL;
    *g->ended_last = l;
    g->ended_last = &l->next;
  }
}

int rd2h_gather_step(rd2h_gather *g, struct rd2h_error *err) {
  uint64_t len = message_bytes(g->n);
  if (g->broken)
    return rd2h_fail(err, RD2H_STATE, "gather: an earlier step failed, ranks may have seen different things: make a new one");
  if (!g->n)
    return RD2H_OK;
  rd2h_buf_reset(&g->mine);
  rd2h_buf_reset(&g->all);
  if (!rd2h_buf_room(&g->mine, len) || !rd2h_buf_room(&g->all, len * g->o.ranks)) {
    g->broken = true; /* the others wait for this step */
    return rd2h_nomem(err, "a step's exchange");
  }
  memset(g->mine.p, 0, len);
  compose(g, (struct message *)(void *)g->mine.p);
  int rc;
  if (!g->o.all_gather)
    rc = exchange_all(&g->x, g->mine.p, len, g->all.p, err);
  else if ((rc = g->o.all_gather(g->o.user, g->mine.p, len, g->all.p)))
    rd2h_fail(err, rc, "gather: the engine's collective failed: %s", rd2h_status_text(rc));
  rc = rc ? rc : compare(g, len, err);
  g->broken = rc != RD2H_OK;
  if (!rc)
    settle(g, len);
  return rc;
}

uint32_t rd2h_gather_collect(rd2h_gather *g, struct rd2h_gathered *out, uint32_t cap) {
  uint32_t n = 0;
  free_list(g->collected);
  g->collected = NULL;
  while (n < cap && g->ended) {
    struct live *l = g->ended;
    g->ended = l->next;
    out[n++] = l->out;
    l->next = g->collected;
    g->collected = l;
  }
  if (!g->ended)
    g->ended_last = &g->ended;
  return n;
}
