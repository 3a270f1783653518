/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/msgpool.h"

#define IDLE_MAX_BYTES ((size_t)64 << 20)
#define STEP_MIN ((size_t)4 << 10)
#define STEP_MAX ((size_t)1 << 20)
#define MIB(n) ((unsigned long)((n) >> 20))

static struct rd2h_msg *slot_new(struct rd2h_msgpool *pool) {
  struct rd2h_msg *m = pool->idle;
  if (m) {
    pool->idle = m->next;
    pool->idle_bytes -= m->arena.cap;
    return m;
  }
  m = rd2h_zalloc(sizeof *m);
  if (m)
    zmq_msg_init(&m->payload);
  return m;
}

static void slot_free(struct rd2h_msg *m) {
  zmq_msg_close(&m->payload);
  rd2h_arena_free(&m->arena);
  rd2h_free(m);
}

static int within(const struct rd2h_msgpool *pool, size_t held, size_t peer_held, struct rd2h_error *err) {
  if (peer_held && held > pool->peer_max - (peer_held < pool->peer_max ? peer_held : pool->peer_max))
    return rd2h_fail(err, RD2H_LIMIT, "Decode holds %lu MiB of unfinished messages of this peer, a message more would pass its "
                     "limit of %lu MiB", MIB(peer_held), MIB(pool->peer_max));
  if (pool->held && held > pool->held_max - (pool->held < pool->held_max ? pool->held : pool->held_max))
    return rd2h_fail(err, RD2H_LIMIT, "Decode holds %lu MiB of unfinished messages of all peers, a message more would pass its "
                     "limit of %lu MiB", MIB(pool->held), MIB(pool->held_max));
  return RD2H_OK;
}

/* In steps, so that messages of about the same size fit a slot that is there. */
static size_t rounded(size_t need) {
  size_t step = STEP_MIN;
  while (step < need && step < STEP_MAX)
    step *= 2;
  return need ? (need + step - 1) / step * step : step;
}

/* ---- pointers into the old places become pointers into the new ones ---- */
struct move {
  const uint8_t *from;
  uint8_t *to;
};

static void *moved(struct move m, const void *p) {
  return p ? m.to + ((const uint8_t *)p - m.from) : NULL;
}

static void move_str(struct move m, struct rd2h_str *s) {
  s->p = moved(m, s->p);
}

static void move_view(struct rd2h_wire_ready *r, struct move arena, struct move payload) {
  move_str(payload, &r->layer);
  move_str(payload, &r->digests);
  r->req = moved(arena, r->req);
  r->done = moved(arena, r->done);
  for (uint32_t i = 0; i < r->n_reqs; i++) {
    struct rd2h_wire_req *q = &r->req[i];
    move_str(payload, &q->id);
    q->main = moved(arena, q->main);
    q->indexer = moved(arena, q->indexer);
  }
  for (uint32_t i = 0; i < r->n_done; i++)
    move_str(payload, &r->done[i].id);
}

static void fill(struct rd2h_msg *m, zmq_msg_t *payload, const struct rd2h_wire_ready *ready, const struct rd2h_arena *scratch) {
  struct move arena = {scratch->p, m->arena.p}, bytes = {zmq_msg_data(payload), NULL};
  memcpy(m->arena.p, scratch->p, scratch->used);
  m->arena.used = scratch->used;
  zmq_msg_move(&m->payload, payload); /* a short message lives inside of zmq_msg_t: then its bytes have another address now */
  bytes.to = zmq_msg_data(&m->payload);
  m->ready = *ready;
  move_view(&m->ready, arena, bytes);
}

static void busy_add(struct rd2h_msgpool *pool, struct rd2h_msg *m) {
  m->prev = NULL;
  m->next = pool->busy;
  if (m->next)
    m->next->prev = m;
  pool->busy = m;
}

struct rd2h_msg *rd2h_msg_take(struct rd2h_msgpool *pool, zmq_msg_t *payload, const struct rd2h_wire_ready *ready,
                               const struct rd2h_arena *scratch, size_t *peer_held, struct rd2h_error *err) {
  size_t need = rounded(scratch->used), held = zmq_msg_size(payload) + need;
  if (within(pool, held, *peer_held, err))
    return NULL;
  struct rd2h_msg *m = slot_new(pool);
  if (!m || rd2h_arena_reserve(&m->arena, need)) {
    if (m)
      slot_free(m);
    rd2h_nomem(err, "a message");
    return NULL;
  }
  fill(m, payload, ready, scratch);
  m->held = held;
  pool->held += held;
  *peer_held += held;
  busy_add(pool, m);
  return m;
}

void rd2h_msg_give(struct rd2h_msgpool *pool, struct rd2h_msg *m, size_t *peer_held) {
  pool->held -= m->held;
  *peer_held -= m->held;
  if (m->next)
    m->next->prev = m->prev;
  if (m->prev)
    m->prev->next = m->next;
  else
    pool->busy = m->next;
  zmq_msg_close(&m->payload);
  zmq_msg_init(&m->payload);
  rd2h_arena_reset(&m->arena);
  if (pool->idle_bytes + m->arena.cap > IDLE_MAX_BYTES) {
    slot_free(m);
    return;
  }
  pool->idle_bytes += m->arena.cap;
  m->next = pool->idle;
  pool->idle = m;
}

static void free_list(struct rd2h_msg *m) {
  while (m) {
    struct rd2h_msg *next = m->next;
    slot_free(m);
    m = next;
  }
}

void rd2h_msgpool_free(struct rd2h_msgpool *pool) {
  free_list(pool->idle);
  free_list(pool->busy);
  pool->idle = pool->busy = NULL;
}
