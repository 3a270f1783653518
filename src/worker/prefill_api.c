/* SPDX-License-Identifier: Apache-2.0 */
/* What the engine's forward thread calls: nothing here waits but the two waits, and those are bounded. */
#include "layout/layout.h"
#include "worker/prefill_worker.h"

/* ---- steps ---- */
/* The outcome's memory is there before it is needed. made: what this step has announced so far. */
static int announce_end(rd2h_pw *w, const struct rd2h_step_ref *r, struct pw_ended **made, struct rd2h_error *err) {
  struct pw_ended *e = rd2h_alloc(sizeof *e + r->id.n + 1);
  if (!e)
    return rd2h_nomem(err, "a request's end");
  *e = (struct pw_ended){.out.id = e->id};
  memcpy(e->id, r->id.p, r->id.n);
  e->id[r->id.n] = 0;
  pthread_mutex_lock(&w->mu);
  bool fresh = rd2h_map_get(w->ending, r->id.p, r->id.n) == RD2H_INDEX_NONE;
  uint32_t slot = fresh ? rd2h_slab_take(&w->ending_slot) : RD2H_INDEX_NONE;
  bool put = slot != RD2H_INDEX_NONE && !rd2h_map_put(w->ending, r->id.p, r->id.n, slot);
  if (put)
    *(struct pw_ended **)rd2h_slab_at(&w->ending_slot, slot) = e;
  else
    rd2h_slab_give(&w->ending_slot, slot);
  pthread_mutex_unlock(&w->mu);
  if (put) {
    e->next = *made;
    *made = e;
  } else {
    rd2h_free(e);
  }
  return put || !fresh ? RD2H_OK : rd2h_nomem(err, "a request's end");
}

static void take_back(rd2h_pw *w, struct pw_ended *made) {
  pthread_mutex_lock(&w->mu);
  while (made) {
    struct pw_ended *e = made;
    made = e->next;
    rd2h_slab_give(&w->ending_slot, rd2h_map_del(w->ending, e->id, strlen(e->id)));
    rd2h_free(e);
  }
  pthread_mutex_unlock(&w->mu);
}

/* All of them or none: who repeats the step after NOMEM gets no end twice. */
static int announce_ends(rd2h_pw *w, const struct pw_step *s, struct rd2h_error *err) {
  struct pw_ended *made = NULL;
  int rc = RD2H_OK;
  for (uint32_t i = 0; i < s->view.n_finished && !rc; i++)
    rc = announce_end(w, &s->view.finished[i], &made, err);
  if (rc)
    take_back(w, made);
  for (struct pw_ended *after; !rc && made; made = after) {
    after = made->next;
    made->next = NULL;
  }
  return rc;
}

static void leave_step(rd2h_pw *w) {
  struct pw_step *s = w->step;
  w->step = NULL;
  if (!s)
    return;
  if (s->view.n_send && s->n_dispatched < w->n_layers)
    RD2H_WARN("prefill rank %u: a step ends after %u of %u layers: its %u requests are not complete by it", w->o.tp_rank,
              s->n_dispatched, w->n_layers, s->view.n_send);
  pw_step_unref(w, s);
}

static void step_ref(struct pw_step *s) {
  __atomic_add_fetch(&s->refs, 1, __ATOMIC_RELAXED);
}

static void drop_item(rd2h_pw *w, struct pw_item *it) {
  while (it->batch) {
    struct pw_batch *b = it->batch;
    it->batch = b->next;
    pw_batch_give(w, b);
  }
  pthread_mutex_lock(&w->mu);
  it->next = w->idle_item;
  w->idle_item = it;
  pthread_mutex_unlock(&w->mu);
}

int rd2h_pw_step(rd2h_pw *w, const void *meta, size_t len, struct rd2h_error *err) {
  leave_step(w);
  struct pw_step *s = pw_step_make(w, meta, len, err);
  if (!s)
    return err->status;
  bool tells = s->view.n_send || s->view.n_finished;
  struct pw_item *it = tells ? pw_item_take(w) : NULL;
  int rc = tells && !it ? rd2h_nomem(err, "a step") : announce_ends(w, s, err);
  if (rc) {
    if (it)
      drop_item(w, it);
    pw_step_unref(w, s);
    return rc;
  }
  w->step = s;
  if (!it)
    return RD2H_OK;
  it->kind = PW_STEP;
  it->step = s;
  step_ref(s);
  pw_push(w, it, false);
  return RD2H_OK;
}

/* ---- layers ---- */
/* A message that costs the caller little more than to wake the sender thread would: few readers, few blocks. */
#define LIGHT_READERS 2u
#define LIGHT_STEP_BYTES 16384u /* of the step, which names its blocks */

static int layer_range(const rd2h_pw *w, uint32_t layer, struct rd2h_error *err) {
  if (layer < w->n_layers)
    return RD2H_OK;
  return rd2h_fail(err, RD2H_RANGE, "layer %u does not exist, this rank has %u cache layers", layer, w->n_layers);
}

/* With the gate's mutex held. */
static int raise_failure(rd2h_pw *w, uint32_t layer, struct rd2h_error *err) {
  struct pw_failure *f = w->failure ? &w->failure[layer] : NULL;
  if (!f || !f->status)
    return RD2H_OK;
  int status = f->status;
  f->status = 0;
  return rd2h_fail(err, status, "layer %s was not read: %s", rd2h_layout_layer_name(w->o.layout, layer),
                   f->text[0] ? f->text : rd2h_status_text(status));
}

static int make_batches(rd2h_pw *w, struct pw_step *s, uint32_t layer, struct pw_item *it, uint32_t *n, struct rd2h_error *err) {
  uint32_t variant = w->o.layout->layer[layer].has_indexer;
  for (uint32_t i = 0; i < s->n_groups; i++) {
    struct pw_group *g = &s->group[i];
    if (!g->count[variant])
      continue;
    struct pw_batch *b = pw_batch_take(w, g->count[variant]);
    if (!b)
      return rd2h_nomem(err, "a layer's message");
    b->step = s;
    b->group = g;
    b->layer = layer;
    b->variant = variant;
    b->begun = rd2h_trace_now();
    b->next = it->batch;
    it->batch = b;
    ++*n;
  }
  return RD2H_OK;
}

/* The gate closes here, on the caller's thread: before it returns, a later write to the slots has to wait. */
static int close_gate(rd2h_pw *w, const struct pw_item *it, uint32_t batches, struct rd2h_error *err) {
  const struct rd2h_layer *l = &w->o.layout->layer[it->layer];
  uint64_t now = rd2h_now_ns();
  pthread_mutex_lock(&w->gate.mu);
  for (struct pw_batch *b = it->batch; b; b = b->next) {
    b->closed = now;
    step_ref(b->step);
    b->earlier = NULL;
    b->later = w->unsettled;
    if (b->later)
      b->later->earlier = b;
    w->unsettled = b;
    w->oldest = w->oldest ? w->oldest : b;
  }
  rd2h_gate_close(&w->gate, l->slot, l->n_slots, batches);
  int rc = raise_failure(w, it->layer, err);
  pthread_mutex_unlock(&w->gate.mu);
  return rc;
}

/* An event behind what the stream was given so far. The layer is queued also when it cannot be had: its requests then end there. */
static int record(rd2h_pw *w, struct pw_item *it, void *stream, struct rd2h_error *err) {
  struct rd2h_error local = {0};
  it->status = rd2h_dev_record(w->dev, stream, &it->event, &local);
  it->deadline = rd2h_now_ns() + w->o.event_ms * RD2H_MS;
  if (!it->status)
    return RD2H_OK;
  it->why = rd2h_strdup(local.text);
  return rd2h_fail(err, it->status, "layer %s: %s", rd2h_layout_layer_name(w->o.layout, it->layer), local.text);
}

static int raise_only(rd2h_pw *w, uint32_t layer, struct rd2h_error *err) {
  pthread_mutex_lock(&w->gate.mu);
  int rc = raise_failure(w, layer, err);
  pthread_mutex_unlock(&w->gate.mu);
  return rc;
}

int rd2h_pw_layer(rd2h_pw *w, uint32_t layer, void *stream, bool on_stream, struct rd2h_error *err) {
  struct pw_step *s = w->step;
  uint32_t batches = 0;
  int rc = layer_range(w, layer, err);
  if (rc)
    return rc;
  if (!s || !s->view.n_send || s->dispatched[layer])
    return raise_only(w, layer, err);
  struct pw_item *it = pw_item_take(w);
  if (!it)
    return rd2h_nomem(err, "a layer's message");
  it->kind = PW_LAYER;
  it->step = s;
  it->layer = layer;
  rc = make_batches(w, s, layer, it, &batches, err);
  if (rc) {
    drop_item(w, it);
    return rc;
  }
  s->dispatched[layer] = true;
  it->last = ++s->n_dispatched == w->n_layers;
  if (!batches && !it->last) { /* nothing of this layer goes out, say of an indexer's blocks only */
    drop_item(w, it);
    return raise_only(w, layer, err);
  }
  rc = close_gate(w, it, batches, err);
  if (on_stream && batches) {
    int recorded = record(w, it, stream, err);
    rc = recorded ? recorded : rc;
  }
  step_ref(s);
  pw_push(w, it, batches <= LIGHT_READERS && s->bytes.len <= LIGHT_STEP_BYTES && !w->o.digest);
  return rc;
}

/* ---- waits ---- */
struct layer_wait {
  const rd2h_pw *w;
  const struct rd2h_layer *layer;
};

static bool layer_open(void *arg) {
  const struct layer_wait *x = arg;
  return rd2h_gate_is_open(&x->w->gate, x->layer->slot, x->layer->n_slots);
}

int rd2h_pw_wait_layer(rd2h_pw *w, uint32_t layer, uint32_t timeout_ms, struct rd2h_error *err) {
  int rc = layer_range(w, layer, err);
  if (rc)
    return rc;
  struct layer_wait x = {w, &w->o.layout->layer[layer]};
  rc = pw_wait(w, timeout_ms, layer_open, &x);
  if (rc)
    rd2h_fail(err, rc, "layer %s: a reader has not answered within %u ms, its storage cannot be written to yet", x.layer->name,
              timeout_ms);
  else
    rc = raise_failure(w, layer, err);
  pthread_mutex_unlock(&w->gate.mu);
  return rc;
}

struct preempt_wait {
  const rd2h_pw *w;
  const struct rd2h_prefill_step_view *view;
  const struct rd2h_step_send *busy; /* one that is still read */
};

static bool names(const struct rd2h_prefill_step_view *v, struct rd2h_str id) {
  for (uint32_t i = 0; i < v->n_preempted; i++)
    if (v->preempted[i].id.n == id.n && !memcmp(v->preempted[i].id.p, id.p, id.n))
      return true;
  return false;
}

static bool preempted_idle(void *arg) {
  struct preempt_wait *x = arg;
  for (const struct pw_batch *b = x->w->unsettled; b; b = b->later)
    for (uint32_t i = 0; i < b->group->n; i++)
      if (names(x->view, b->step->view.send[b->group->send[i]].id)) {
        x->busy = &b->step->view.send[b->group->send[i]];
        return false;
      }
  return true;
}

int rd2h_pw_wait_preempted(rd2h_pw *w, const void *meta, size_t len, uint32_t timeout_ms, struct rd2h_error *err) {
  struct rd2h_prefill_step_view v;
  rd2h_arena_reset(&w->ask);
  int rc = rd2h_step_decode_prefill(meta, len, &w->ask, &v, err);
  if (rc || !v.n_preempted)
    return rc;
  struct preempt_wait x = {w, &v, NULL};
  rc = pw_wait(w, timeout_ms, preempted_idle, &x);
  if (rc)
    rd2h_fail(err, rc, "request %.*s is to be preempted, but a reader has not answered within %u ms", (int)x.busy->id.n,
              x.busy->id.p, timeout_ms);
  pthread_mutex_unlock(&w->gate.mu);
  return rc;
}

static bool all_settled(void *arg) {
  return !((const rd2h_pw *)arg)->unsettled;
}

int rd2h_pw_drain(rd2h_pw *w, uint32_t timeout_ms) {
  int rc = pw_wait(w, timeout_ms, all_settled, w);
  pthread_mutex_unlock(&w->gate.mu);
  return rc;
}

/* ---- what has settled ---- */
uint32_t rd2h_pw_collect(rd2h_pw *w, struct rd2h_settled *out, uint32_t cap) {
  uint32_t n = 0;
  while (w->collected) {
    struct pw_ended *next = w->collected->next;
    rd2h_free(w->collected);
    w->collected = next;
  }
  pthread_mutex_lock(&w->mu);
  while (n < cap && w->settled) {
    struct pw_ended *e = w->settled;
    w->settled = e->next;
    out[n++] = e->out;
    e->next = w->collected;
    w->collected = e;
  }
  if (!w->settled)
    rd2h_eventfd_clear(w->ended_fd);
  pthread_mutex_unlock(&w->mu);
  return n;
}

int rd2h_pw_fd(const rd2h_pw *w) {
  return w->ended_fd;
}

void rd2h_pw_stats(rd2h_pw *w, struct rd2h_prefill_stats *s) {
  bool role = !pthread_mutex_trylock(&w->role);
  pthread_mutex_lock(&w->mu);
  if (role)
    pw_take_stats(w, &w->stats);
  *s = w->stats;
  pthread_mutex_unlock(&w->mu);
  if (role)
    pthread_mutex_unlock(&w->role);
  pthread_mutex_lock(&w->gate.mu);
  s->slots_closed = w->gate.closed;
  uint64_t now = rd2h_now_ns();
  s->oldest_wait_ms = w->oldest && now > w->oldest->closed ? (uint32_t)((now - w->oldest->closed) / RD2H_MS) : 0;
  pthread_mutex_unlock(&w->gate.mu);
}
