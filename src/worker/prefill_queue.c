/* SPDX-License-Identifier: Apache-2.0 */
/* Between the caller's thread and the sender's: pooled records, the queue of steps and layers, settlements back. */
#include "layout/layout.h"
#include "worker/prefill_worker.h"
#include <rd2h/trace.h>
#include <stdio.h>

/* ---- pools (any thread) ---- */
struct pw_batch *pw_batch_take(rd2h_pw *w, uint32_t reqs) {
  pthread_mutex_lock(&w->mu);
  struct pw_batch *b = w->idle_batch;
  if (b)
    w->idle_batch = b->next;
  pthread_mutex_unlock(&w->mu);
  if (!b && !(b = rd2h_zalloc(sizeof *b)))
    return NULL;
  if (b->cap < reqs) {
    uint32_t cap = b->cap ? b->cap : 16;
    while (cap < reqs)
      cap *= 2;
    uint32_t *req = rd2h_realloc(b->req, cap * sizeof *req);
    if (!req) {
      pw_batch_give(w, b);
      return NULL;
    }
    b->req = req;
    b->cap = cap;
  }
  b->bytes = 0;
  return b;
}

void pw_batch_give(rd2h_pw *w, struct pw_batch *b) {
  pthread_mutex_lock(&w->mu);
  b->next = w->idle_batch;
  w->idle_batch = b;
  pthread_mutex_unlock(&w->mu);
}

struct pw_item *pw_item_take(rd2h_pw *w) {
  pthread_mutex_lock(&w->mu);
  struct pw_item *it = w->idle_item;
  if (it)
    w->idle_item = it->next;
  pthread_mutex_unlock(&w->mu);
  it = it ? it : rd2h_alloc(sizeof *it);
  if (it)
    *it = (struct pw_item){0};
  return it;
}

/* Flag and descriptor change together: a descriptor that stayed set would keep the sender thread awake. */
void pw_wake(rd2h_pw *w) {
  pthread_mutex_lock(&w->mu);
  if (!w->item_signalled)
    rd2h_eventfd_set(w->item_fd);
  w->item_signalled = true;
  pthread_mutex_unlock(&w->mu);
}

/* The item takes over a reference to its step. Several items queued before the sender looks are one wake-up. */
void pw_push(rd2h_pw *w, struct pw_item *it, bool light) {
  pthread_mutex_lock(&w->mu);
  bool first = !w->item;
  if (first)
    w->item = it;
  else
    w->item_tail->next = it;
  w->item_tail = it;
  pthread_mutex_unlock(&w->mu);
  if (!first || (light && !it->event && pw_send_now(w)))
    return;
  pw_wake(w);
}

/* ---- sender thread ---- */
/* The device has not written the layer: whoever waits for it is told, and the requests end there. */
static void fail_batch(rd2h_pw *w, struct pw_batch *b, int status, const char *why) {
  const struct pw_group *g = b->group;
  for (uint32_t i = 0; i < g->list[b->variant].n; i++) {
    rd2h_pm_fail(w->pm, g->handle[g->list[b->variant].at[i]], g->endpoint, status, why, w->now);
    pw_drain(w);
  }
  pw_settle(w, b, status, why);
}

static void dispatch(rd2h_pw *w, struct pw_batch *b) {
  const struct pw_group *g = b->group;
  uint32_t n = g->list[b->variant].n;
  if (g->endpoint == RD2H_INDEX_NONE || !n) {
    pw_settle(w, b, g->endpoint == RD2H_INDEX_NONE ? RD2H_LIMIT : RD2H_SKIPPED, "not sent");
    return;
  }
  b->endpoint = g->endpoint;
  for (uint32_t i = 0; i < n; i++)
    b->req[i] = g->handle[g->list[b->variant].at[i]];
  rd2h_pm_dispatch(w->pm, g->endpoint, b->layer, b->req, n, (uintptr_t)b, w->now);
  pw_drain(w);
}

/* Every layer of the step has been dispatched: requests whose last chunk it holds are complete once all is answered. */
static void mark_last(rd2h_pw *w, const struct pw_step *s) {
  for (uint32_t i = 0; i < s->n_groups; i++) {
    const struct pw_group *g = &s->group[i];
    for (uint32_t k = 0; k < g->n && g->endpoint != RD2H_INDEX_NONE; k++)
      if (s->view.send[g->send[k]].last && g->handle[k] != RD2H_INDEX_NONE)
        rd2h_pm_last(w->pm, g->handle[k], g->endpoint, w->now);
  }
  pw_drain(w);
}

static void finish_one(rd2h_pw *w, const struct rd2h_step_ref *r) {
  char id[RD2H_STEP_MAX_ID + 1];
  int rc = rd2h_pm_finish(w->pm, r->id, r->aborted, w->now);
  pw_drain(w);
  if (!rc)
    return;
  snprintf(id, sizeof id, "%.*s", (int)r->id.n, r->id.p);
  pw_settled(w, id, r->aborted ? RD2H_ABORTED : RD2H_OK);
}

static void finish(rd2h_pw *w, const struct pw_step *s) {
  for (uint32_t i = 0; i < s->view.n_finished; i++)
    finish_one(w, &s->view.finished[i]);
}

static void run_item(rd2h_pw *w, struct pw_item *it) {
  const char *why = it->why ? it->why : rd2h_status_text(it->status);
  if (it->kind == PW_STEP) {
    pw_prepare(w, it->step);
    finish(w, it->step);
  }
  if (it->status)
    RD2H_ERR("prefill rank %u: layer %s is not sent: %s", w->o.tp_rank, rd2h_layout_layer_name(w->o.layout, it->layer), why);
  while (it->batch) {
    struct pw_batch *b = it->batch;
    it->batch = b->next;
    if (it->status)
      fail_batch(w, b, it->status, why);
    else
      dispatch(w, b);
  }
  if (it->last)
    mark_last(w, it->step);
  rd2h_free(it->why);
  it->why = NULL;
  pw_step_unref(w, it->step);
}

/* Whether the item can be carried out: the device has written its layer, or never will. */
static bool written(rd2h_pw *w, struct pw_item *it) {
  struct rd2h_error err = {0};
  if (!it->event)
    return true;
  int rc = rd2h_dev_reached(w->dev, it->event, it->deadline, &err);
  if (rc == RD2H_AGAIN)
    return false;
  rd2h_dev_release(w->dev, it->event);
  it->event = NULL;
  it->status = rc;
  it->why = rc ? rd2h_strdup(err.text) : NULL;
  return true;
}

/* What the caller has queued goes behind what waits already. Returns false when the worker is to stop. */
static bool take_items(rd2h_pw *w) {
  pthread_mutex_lock(&w->mu);
  if (w->item && w->todo)
    w->todo_tail->next = w->item;
  else if (w->item)
    w->todo = w->item;
  if (w->item)
    w->todo_tail = w->item_tail;
  bool stop = w->stop;
  w->item = NULL;
  if (w->item_signalled)
    rd2h_eventfd_clear(w->item_fd);
  w->item_signalled = false;
  pthread_mutex_unlock(&w->mu);
  return !stop;
}

bool pw_run_items(rd2h_pw *w) {
  bool go_on = take_items(w);
  struct pw_item *done = w->todo, *tail = NULL;
  for (; w->todo && written(w, w->todo); w->todo = w->todo->next) {
    run_item(w, w->todo);
    tail = w->todo;
  }
  if (tail) {
    pthread_mutex_lock(&w->mu);
    tail->next = w->idle_item;
    w->idle_item = done;
    pthread_mutex_unlock(&w->mu);
  }
  return go_on;
}

void pw_drop_items(rd2h_pw *w) {
  for (struct pw_item *it = w->todo; it; it = it->next) {
    if (!it->event)
      continue;
    rd2h_dev_release(w->dev, it->event);
    it->event = NULL;
    it->status = RD2H_CANCELED;
    it->why = rd2h_strdup("Prefill ended before its device had written the layer");
  }
  pw_run_items(w);
}

static void trace(const rd2h_pw *w, const struct pw_batch *b, int status) {
  if (!b->begun)
    return;
  struct rd2h_trace t = {.kind = RD2H_TRACE_ANSWER, .status = status, .peer = b->group->address, .begin_ns = b->begun,
                         .layer = w->o.layout->layer[b->layer].name};
  rd2h_trace_emit(&t);
}

void pw_settle(rd2h_pw *w, struct pw_batch *b, int status, const char *text) {
  const struct rd2h_layer *l = &w->o.layout->layer[b->layer];
  trace(w, b, status);
  pthread_mutex_lock(&w->gate.mu);
  if (b->earlier)
    b->earlier->later = b->later;
  else
    w->unsettled = b->later;
  if (b->later)
    b->later->earlier = b->earlier;
  if (w->oldest == b)
    w->oldest = b->earlier;
  if (w->failure && status && status != RD2H_SKIPPED && !w->failure[b->layer].status) {
    w->failure[b->layer].status = status;
    snprintf(w->failure[b->layer].text, PW_TEXT, "%s", text);
  }
  rd2h_gate_open(&w->gate, l->slot, l->n_slots);
  pthread_mutex_unlock(&w->gate.mu);
  if (b->bytes && b->epoch == w->endpoint[b->endpoint].epoch)
    w->endpoint[b->endpoint].unanswered -= b->bytes;
  struct pw_step *s = b->step;
  pw_batch_give(w, b);
  pw_step_unref(w, s);
}

bool pw_unsent(rd2h_pw *w, struct rd2h_str id, int status) {
  pthread_mutex_lock(&w->mu);
  bool fresh = rd2h_map_get(w->unsent, id.p, id.n) == RD2H_INDEX_NONE;
  if (fresh)
    rd2h_map_put(w->unsent, id.p, id.n, (uint32_t)-status);
  pthread_mutex_unlock(&w->mu);
  return fresh;
}

void pw_settled(rd2h_pw *w, const char *id, int status) {
  size_t n = strlen(id);
  pthread_mutex_lock(&w->mu);
  uint32_t slot = rd2h_map_del(w->ending, id, n), unsent = rd2h_map_del(w->unsent, id, n);
  struct pw_ended *e = slot == RD2H_INDEX_NONE ? NULL : *(struct pw_ended **)rd2h_slab_at(&w->ending_slot, slot);
  rd2h_slab_give(&w->ending_slot, slot);
  pthread_mutex_unlock(&w->mu);
  if (!e)
    return;
  e->out.status = status || unsent == RD2H_INDEX_NONE ? status : -(int)unsent;
  if (w->fresh)
    w->fresh_tail->next = e;
  else
    w->fresh = e;
  w->fresh_tail = e;
}

void pw_take_stats(rd2h_pw *w, struct rd2h_prefill_stats *s) {
  struct rd2h_pm_stats m;
  rd2h_pm_stats(w->pm, &m);
  *s = (struct rd2h_prefill_stats){
      .batches = m.batches, .batches_failed = m.batches_failed, .bytes_sent = w->bytes_sent, .digests = w->n_digests, .epochs = m.epochs,
      .epochs_lost = m.epochs_lost, .requests_settled = m.requests_settled, .requests_failed = m.requests_failed,
      .given_up = m.given_up, .cancels = m.cancels, .skipped = m.skipped, .malformed = m.malformed,
      .failed_transport = m.failed_transport, .failed_peer_lost = m.failed_peer_lost, .failed_layout = m.failed_layout,
      .failed_expired = m.failed_expired, .failed_other = m.failed_other, .aborted = m.aborted, .completed = m.completed,
      .endpoints = m.endpoints, .outstanding = m.outstanding,
      .held = rd2h_map_size(w->ending)};
}

static void hand_over_settled(rd2h_pw *w) {
  if (w->settled)
    w->settled_tail->next = w->fresh;
  else
    w->settled = w->fresh;
  w->settled_tail = w->fresh_tail;
  w->fresh = w->fresh_tail = NULL;
  rd2h_eventfd_set(w->ended_fd);
}

void pw_publish(rd2h_pw *w, bool counters) {
  pthread_mutex_lock(&w->mu);
  if (counters || rd2h_ask_wanted(&w->dump.ask) || rd2h_ask_wanted(&w->peers.ask))
    pw_take_stats(w, &w->stats);
  pw_tell(w);
  if (w->fresh)
    hand_over_settled(w);
  pthread_mutex_unlock(&w->mu);
}

/* ---- the end: no other thread is left ---- */
static void free_ended(struct pw_ended *e) {
  while (e) {
    struct pw_ended *next = e->next;
    rd2h_free(e);
    e = next;
  }
}

static void free_batches(struct pw_batch *b, bool by_later) {
  while (b) {
    struct pw_batch *next = by_later ? b->later : b->next;
    rd2h_free(b->req);
    rd2h_free(b);
    b = next;
  }
}

void pw_queue_free(rd2h_pw *w) {
  for (struct pw_item *it = w->idle_item, *next; it; it = next) {
    next = it->next;
    rd2h_free(it);
  }
  free_batches(w->idle_batch, false);
  free_ended(w->settled);
  free_ended(w->fresh);
  free_ended(w->collected);
  for (uint32_t i = 0; i < w->ending_slot.next; i++)
    if (rd2h_slab_live(&w->ending_slot, i))
      rd2h_free(*(struct pw_ended **)rd2h_slab_at(&w->ending_slot, i));
  rd2h_slab_free(&w->ending_slot);
  rd2h_map_destroy(w->ending);
  rd2h_map_destroy(w->unsent);
}
