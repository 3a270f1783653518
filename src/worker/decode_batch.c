/* SPDX-License-Identifier: Apache-2.0 */
/* Reads: descriptor arrays from a pool, submission with back-pressure, completions. */
#include "worker/decode_worker.h"
#include <rd2h/trace.h>
#include <stdio.h>

#define DESCS_MAX (1u << 24)        /* of one read */
#define DESCS_HELD_MAX (1u << 26)   /* of all reads at once: 1.8 GiB */
#define IDLE_DESCS_MAX (1u << 21)
#define DESC_BYTES (sizeof(void *) + 2 * sizeof(uint64_t) + sizeof(uint32_t))
#define POLL_MAX 64
#define TURN_MAX 1024u /* completions of one turn */

static bool reserve(struct dw_batch *b, uint32_t cap) {
  if (b->d.cap >= cap)
    return true;
  uint32_t room = 64;
  while (room < cap)
    room *= 2;
  uint8_t *p = rd2h_alloc(room * DESC_BYTES);
  if (!p)
    return false;
  rd2h_free(b->d.local);
  b->d = (struct rd2h_descs){.local = (void **)p, .remote = (uint64_t *)(p + room * sizeof(void *)), .cap = room};
  b->d.len = b->d.remote + room;
  b->d.region = (uint32_t *)(b->d.len + room);
  return true;
}

static void batch_free(struct dw_batch *b) {
  rd2h_free(b->d.local);
  rd2h_free(b);
}

static void give(rd2h_dw *w, struct dw_batch *b) {
  w->descs_held -= b->d.cap;
  if (w->idle_descs + b->d.cap > IDLE_DESCS_MAX) {
    batch_free(b);
    return;
  }
  w->idle_descs += b->d.cap;
  b->next = w->idle_batch;
  w->idle_batch = b;
}

/* A batch with room for `bound` descriptors; with less where memory or a limit ends: requests that then do not fit fail alone. */
static struct dw_batch *take(rd2h_dw *w, uint64_t bound) {
  struct dw_batch *b = w->idle_batch;
  uint64_t left = w->descs_held < DESCS_HELD_MAX ? DESCS_HELD_MAX - w->descs_held : 0;
  uint32_t cap = (uint32_t)(bound < DESCS_MAX ? bound : DESCS_MAX);
  if (b) {
    w->idle_batch = b->next;
    w->idle_descs -= b->d.cap;
  } else if (!(b = rd2h_zalloc(sizeof *b))) {
    return NULL;
  }
  if (cap > left || bound > DESCS_MAX)
    RD2H_WARN("decode rank %u: a message needs up to %llu descriptors, %llu can be had: what does not fit fails", w->o.tp_rank,
              (unsigned long long)bound, (unsigned long long)(cap < left ? cap : left));
  if (!reserve(b, cap < left ? cap : (uint32_t)left))
    RD2H_ERR("decode rank %u: out of memory for %u descriptors", w->o.tp_rank, cap);
  b->d.n = 0;
  b->d.bytes = 0;
  w->descs_held += b->d.cap;
  return b;
}

static bool table_room(rd2h_dw *w, uint32_t handle) {
  if (handle < w->batch_cap)
    return true;
  uint32_t cap = w->batch_cap ? w->batch_cap : 64;
  while (cap <= handle)
    cap *= 2;
  struct dw_batch **t = rd2h_realloc(w->batch, cap * sizeof *t);
  if (!t)
    return false;
  memset(t + w->batch_cap, 0, (cap - w->batch_cap) * sizeof *t);
  w->batch = t;
  w->batch_cap = cap;
  return true;
}

static void finish(rd2h_dw *w, struct dw_batch *b, int status, const char *why) {
  const struct dw_peer *p = w->peer[b->peer];
  char text[DW_TEXT];
  if (status && status != RD2H_CANCELED) /* its requests say the same, one line each */
    RD2H_DEBUG("decode rank %u: read of %u descriptors from %s failed: %s", w->o.tp_rank, b->d.n, p->session, why);
  text[0] = 0;
  if (status)
    snprintf(text, sizeof text, "%s", why);
  uint32_t handle = b->handle;
  w->batch[handle] = NULL;
  give(w, b);
  rd2h_dm_read_done(w->dm, handle, status, text, w->now);
}

static void enqueue(rd2h_dw *w, struct dw_peer *p, struct dw_batch *b) {
  b->queued = true;
  b->next = NULL;
  if (p->tail)
    p->tail->next = b;
  else
    p->head = b;
  p->tail = b;
  w->n_queued++;
}

static void dequeue(rd2h_dw *w, struct dw_peer *p, struct dw_batch *b) {
  struct dw_batch **at = &p->head, *before = NULL;
  while (*at != b) {
    before = *at;
    at = &before->next;
  }
  *at = b->next;
  if (p->tail == b)
    p->tail = before;
  b->queued = false;
  w->n_queued--;
}

/* OK: the engine has it; AGAIN: it has no room; else the read is over. */
static int submit(rd2h_dw *w, struct dw_peer *p, struct dw_batch *b) {
  char text[DW_TEXT];
  int rc = p->conn ? rd2h_eng_submit(w->eng, p->conn, &b->b) : RD2H_PEER_LOST;
  w->unpolled |= !rc;
  if (rc && rc != RD2H_AGAIN) {
    snprintf(text, sizeof text, "engine %s does not take a read of %u descriptors: %s", rd2h_eng_name(w->eng), b->d.n,
             rd2h_status_text(rc));
    finish(w, b, rc, text);
  }
  return rc;
}

/* In order per peer: nothing overtakes what waits. */
static void retry(rd2h_dw *w, struct dw_peer *p) {
  while (p->head) {
    struct dw_batch *b = p->head;
    dequeue(w, p, b);
    if (submit(w, p, b) != RD2H_AGAIN)
      continue;
    b->queued = true;
    b->next = p->head;
    p->head = b;
    p->tail = p->tail ? p->tail : b;
    w->n_queued++;
    return;
  }
}

static void retry_all(rd2h_dw *w) {
  for (uint32_t i = 0; i < w->n_peers && w->n_queued; i++)
    if (w->peer[i] && w->peer[i]->head)
      retry(w, w->peer[i]);
}

void dw_submit(rd2h_dw *w, struct dw_batch *b) {
  struct dw_peer *p = w->peer[b->peer];
  if (p->head || submit(w, p, b) == RD2H_AGAIN)
    enqueue(w, p, b);
}

void dw_plan(rd2h_dw *w, uint32_t handle) {
  struct rd2h_descs none = {0};
  uint32_t peer = rd2h_dm_batch_peer(w->dm, handle);
  struct dw_batch *b = table_room(w, handle) ? take(w, rd2h_dm_plan_bound(w->dm, handle)) : NULL;
  rd2h_dm_plan(w->dm, handle, b ? &b->d : &none);
  uint32_t n = b ? b->d.n : 0;
  if (!n) {
    if (b)
      give(w, b);
    rd2h_dm_planned(w->dm, handle, 0, w->now);
    return;
  }
  b->handle = handle;
  b->peer = peer;
  b->begun = rd2h_trace_now();
  b->queued = false;
  b->retries = 0;
  b->reread = false;
  b->due = 0;
  b->b = (struct rd2h_batch){.id = handle, .n = n, .bytes = b->d.bytes, .local = b->d.local, .remote = b->d.remote,
                             .len = b->d.len, .remote_region = b->d.region};
  w->batch[handle] = b;
  rd2h_dm_planned(w->dm, handle, n, w->now);
  dw_submit(w, b);
}

void dw_cancel(rd2h_dw *w, uint32_t handle) {
  struct dw_batch *b = handle < w->batch_cap ? w->batch[handle] : NULL;
  if (!b)
    return;
  if (b->queued) {
    dequeue(w, w->peer[b->peer], b);
  } else if (!dw_retry_cancel(w, b)) {
    rd2h_eng_cancel(w->eng, handle);
    return;
  }
  finish(w, b, RD2H_CANCELED, "canceled before it was read");
}

static void trace(rd2h_dw *w, const struct dw_batch *b, const struct rd2h_completion *c) {
  if (!b->begun)
    return;
  struct rd2h_trace t = {.kind = RD2H_TRACE_READ, .status = c->status, .peer = w->peer[b->peer]->session, .begin_ns = b->begun,
                         .layer = rd2h_layout_layer_name(w->o.layout, rd2h_dm_batch_layer(w->dm, b->handle)), .bytes = c->bytes,
                         .n = b->d.n, .local = b->d.local, .len = b->d.len};
  rd2h_trace_emit(&t);
}

static void completed(rd2h_dw *w, const struct rd2h_completion *c) {
  struct dw_batch *b = c->id < w->batch_cap ? w->batch[c->id] : NULL;
  if (!b)
    return;
  w->count.reads++;
  w->count.bytes += c->bytes;
  w->count.descriptors += b->d.n;
  trace(w, b, c);
  if (dw_retry_later(w, b, c->status))
    return;
  if (!c->status && w->o.digest && !dw_check_digests(w, b))
    return;
  finish(w, b, c->status, c->status ? rd2h_eng_last_error(w->eng, c->id) : "");
}

/* The connection may well live: then Prefill hears of it at once instead of waiting for answers. */
static void lost(rd2h_dw *w, uint32_t peer, int status) {
  const char *engine = rd2h_eng_name(w->eng), *session = w->peer[peer]->session, *why = rd2h_status_text(status);
  if (rd2h_dm_peer_busy(w->dm, peer))
    RD2H_INFO("decode rank %u: engine %s lost Prefill %s: %s", w->o.tp_rank, engine, session, why);
  else
    RD2H_DEBUG("decode rank %u: engine %s: Prefill %s is gone: %s", w->o.tp_rank, engine, session, why);
  rd2h_dm_peer_fail(w->dm, peer, "the transfer engine lost its process", w->now);
}

static uint32_t peer_events(rd2h_dw *w) {
  struct rd2h_peer_event ev[POLL_MAX];
  int n = rd2h_eng_events(w->eng, ev, POLL_MAX);
  for (int i = 0; i < n; i++) {
    uint32_t peer = (uint32_t)ev[i].cookie;
    if (!ev[i].up && peer < w->n_peers && w->peer[peer]) {
      lost(w, peer, ev[i].status);
      dw_drain(w);
    }
  }
  return n > 0 ? (uint32_t)n : 0;
}

uint32_t dw_complete(rd2h_dw *w) {
  struct rd2h_completion c[POLL_MAX];
  uint32_t total = 0;
  int n;
  w->unpolled = false;
  do {
    n = rd2h_eng_poll(w->eng, c, POLL_MAX);
    for (int i = 0; i < n; i++)
      completed(w, &c[i]);
    total += n > 0 ? (uint32_t)n : 0;
    dw_drain(w);
  } while (n == POLL_MAX && total < TURN_MAX);
  uint32_t events = peer_events(w);
  if (w->n_queued && (total || events)) {
    retry_all(w);
    dw_drain(w);
  }
  return total + events;
}

void dw_batches_free(rd2h_dw *w) {
  for (uint32_t i = 0; i < w->batch_cap; i++)
    if (w->batch[i])
      batch_free(w->batch[i]);
  while (w->idle_batch) {
    struct dw_batch *b = w->idle_batch;
    w->idle_batch = b->next;
    batch_free(b);
  }
  rd2h_free(w->batch);
}
