/* SPDX-License-Identifier: Apache-2.0 */
/* What the API's threads ask of the control thread, and what comes back: two lists under one mutex, an eventfd each way. */
#include "scheduler/step.h"
#include "worker/decode_worker.h"
#include <errno.h>
#include <stdio.h>

static void copy_text(char to[DW_TEXT], struct rd2h_str s) {
  uint32_t n = s.n < DW_TEXT - 1 ? s.n : DW_TEXT - 1;
  if (n)
    memcpy(to, s.p, n);
  to[n] = 0;
}

/* With mu held. */
static void push_command(rd2h_dw *w, struct dw_command *c) {
  bool first = !w->command;
  c->next = NULL;
  if (first)
    w->command = c;
  else
    w->command_tail->next = c;
  w->command_tail = c;
  if (first)
    rd2h_eventfd_set(w->command_fd);
}

static struct dw_command *command_new(enum dw_command_kind kind, size_t data) {
  struct dw_command *c = rd2h_alloc(sizeof *c + data);
  if (c)
    memset(c, 0, sizeof *c);
  if (c)
    c->kind = kind;
  return c;
}

static struct rd2h_str put_str(uint8_t **at, struct rd2h_str s) {
  struct rd2h_str copy = {(const char *)*at, s.n};
  memcpy(*at, s.p, s.n);
  *at += s.n;
  return copy;
}

static const uint32_t *put_ids(uint8_t **at, const uint32_t *ids, uint32_t n) {
  const uint32_t *copy = (const uint32_t *)(void *)*at;
  if (n)
    memcpy(*at, ids, n * sizeof *ids);
  *at += n * sizeof *ids;
  return copy;
}

static struct dw_command *install_command(const struct rd2h_dm_grant *g) {
  size_t ids = ((size_t)g->n_main + g->n_indexer) * sizeof(uint32_t);
  struct dw_command *c = command_new(DW_INSTALL, ids + g->id.n + g->ext_id.n);
  if (!c)
    return NULL;
  uint8_t *at = c->data;
  c->grant = *g;
  c->grant.main = put_ids(&at, g->main, g->n_main);
  c->grant.indexer = put_ids(&at, g->indexer, g->n_indexer);
  c->grant.id = put_str(&at, g->id);
  c->grant.ext_id = put_str(&at, g->ext_id);
  return c;
}

static struct dw_request *request_new(struct rd2h_str id) {
  struct dw_request *r = rd2h_alloc(sizeof *r + id.n + 1);
  if (!r)
    return NULL;
  memset(r, 0, sizeof *r);
  memcpy(r->id, id.p, id.n);
  r->id[id.n] = 0;
  r->out.id = r->id;
  r->out.text = r->text;
  return r;
}

/* With mu held: the request is live from here on and its outcome has its memory. */
static int make_live(rd2h_dw *w, struct rd2h_str id, struct dw_request *r, struct rd2h_error *err) {
  if (rd2h_map_get(w->live, id.p, id.n) != RD2H_INDEX_NONE)
    return rd2h_fail(err, RD2H_EXISTS, "request %s is installed already and has not ended", r->id);
  uint32_t slot = rd2h_slab_take(&w->live_slot);
  if (slot == RD2H_INDEX_NONE)
    return rd2h_nomem(err, "a request");
  if (rd2h_map_put(w->live, id.p, id.n, slot)) {
    rd2h_slab_give(&w->live_slot, slot);
    return rd2h_nomem(err, "a request");
  }
  *(struct dw_request **)rd2h_slab_at(&w->live_slot, slot) = r;
  return RD2H_OK;
}

/* With mu held. */
static void append_outcomes(rd2h_dw *w, struct dw_request *first, struct dw_request *last) {
  if (w->outcome)
    w->outcome_tail->next = first;
  else
    w->outcome = first;
  w->outcome_tail = last;
  last->next = NULL;
  rd2h_eventfd_set(w->outcome_fd);
}

/* With mu held. */
static void refuse(rd2h_dw *w, struct dw_request *r) {
  r->out.status = RD2H_REFUSED;
  snprintf(r->text, sizeof r->text, "this Decode rank shuts down");
  append_outcomes(w, r, r);
}

static int install(rd2h_dw *w, const struct rd2h_dm_grant *g, struct rd2h_error *err) {
  struct dw_command *c = install_command(g);
  struct dw_request *r = request_new(g->id);
  int rc = c && r ? RD2H_OK : rd2h_nomem(err, "a request");
  pthread_mutex_lock(&w->mu);
  bool refused = !rc && w->draining;
  if (refused)
    refuse(w, r);
  else if (!rc)
    rc = make_live(w, g->id, r, err);
  if (!rc && !refused)
    push_command(w, c);
  pthread_mutex_unlock(&w->mu);
  if (rc || refused)
    rd2h_free(c);
  if (rc)
    rd2h_free(r);
  return rc;
}

static struct rd2h_str str_of(const char *s) {
  return (struct rd2h_str){s ? s : "", s ? (uint32_t)strlen(s) : 0};
}

int rd2h_dw_install(rd2h_dw *w, const struct rd2h_grant *g, struct rd2h_error *err) {
  struct rd2h_dm_grant d = {.id = str_of(g->id), .ext_id = str_of(g->ext_id), .main = g->main, .indexer = g->indexer,
                            .n_main = g->n_main, .n_indexer = g->n_indexer, .main_floor = g->main_floor,
                            .indexer_floor = g->indexer_floor, .main_need = g->main_need, .indexer_need = g->indexer_need};
  memcpy(d.attempt, g->attempt, sizeof d.attempt);
  return install(w, &d, err);
}

int rd2h_dw_end(rd2h_dw *w, struct rd2h_str id, int status, struct rd2h_str text) {
  struct dw_command *c = command_new(DW_END, id.n);
  if (!c)
    return RD2H_NOMEM;
  uint8_t *at = c->data;
  c->grant.id = put_str(&at, id);
  c->status = status;
  copy_text(c->text, text);
  pthread_mutex_lock(&w->mu);
  bool live = rd2h_map_get(w->live, id.p, id.n) != RD2H_INDEX_NONE;
  if (live)
    push_command(w, c);
  pthread_mutex_unlock(&w->mu);
  if (!live)
    rd2h_free(c);
  return live ? RD2H_OK : RD2H_NOT_FOUND;
}

/* With mu held: what is live after the time that it was given. */
static void end_live(rd2h_dw *w) {
  const void *id;
  size_t n;
  uint32_t slot, it = 0;
  while (rd2h_map_next(w->live, &it, &id, &n, &slot)) {
    struct dw_command *c = command_new(DW_END, n);
    if (!c)
      return;
    uint8_t *at = c->data;
    c->grant.id = put_str(&at, (struct rd2h_str){id, (uint32_t)n});
    c->status = RD2H_CANCELED;
    snprintf(c->text, sizeof c->text, "this Decode rank shuts down");
    push_command(w, c);
  }
}

int rd2h_dw_drain(rd2h_dw *w, uint32_t timeout_ms) {
  struct timespec until;
  rd2h_monotonic_after(&until, timeout_ms);
  pthread_mutex_lock(&w->mu);
  w->draining = true;
  while (rd2h_map_size(w->live))
    if (pthread_cond_timedwait(&w->none_live, &w->mu, &until) == ETIMEDOUT)
      break;
  bool left = rd2h_map_size(w->live) > 0;
  if (left)
    end_live(w);
  pthread_mutex_unlock(&w->mu);
  return left ? RD2H_TIMEOUT : RD2H_OK;
}

/* A request that never got here is reported all the same, so that every rank reports it. */
static int report_unknown(rd2h_dw *w, const struct rd2h_step_end *e, struct rd2h_error *err) {
  struct dw_request *r = request_new(e->id);
  if (!r)
    return rd2h_nomem(err, "a request");
  r->out.status = e->status;
  copy_text(r->text, e->text);
  pthread_mutex_lock(&w->mu);
  append_outcomes(w, r, r);
  pthread_mutex_unlock(&w->mu);
  return RD2H_OK;
}

static int step_install(rd2h_dw *w, const struct rd2h_step_install *s, struct rd2h_error *err) {
  struct rd2h_dm_grant g = {.id = s->id, .ext_id = s->ext_id, .main = s->main, .indexer = s->indexer, .n_main = s->n_main,
                            .n_indexer = s->n_indexer, .main_floor = s->main_floor, .indexer_floor = s->indexer_floor,
                            .main_need = s->main_need, .indexer_need = s->indexer_need};
  memcpy(g.attempt, s->attempt, sizeof g.attempt);
  return install(w, &g, err);
}

static int step_end(rd2h_dw *w, const struct rd2h_step_end *e, struct rd2h_error *err) {
  int rc = rd2h_dw_end(w, e->id, e->status, e->text);
  if (rc == RD2H_NOMEM)
    return rd2h_nomem(err, "a request's end");
  return rc == RD2H_NOT_FOUND && !e->installed ? report_unknown(w, e, err) : RD2H_OK;
}

static int step_answered(rd2h_dw *w, struct rd2h_str id, struct rd2h_error *err) {
  struct dw_command *c = command_new(DW_ANSWERED, id.n);
  if (!c)
    return rd2h_nomem(err, "an answered rendezvous");
  uint8_t *at = c->data;
  c->grant.id = put_str(&at, id);
  pthread_mutex_lock(&w->mu);
  push_command(w, c);
  pthread_mutex_unlock(&w->mu);
  return RD2H_OK;
}

static int step_record(rd2h_dw *w, const struct rd2h_decode_step_view *v, uint32_t i, struct rd2h_error *err) {
  if (i >= v->n_install + v->n_end)
    return step_answered(w, v->answered[i - v->n_install - v->n_end], err);
  if (i >= v->n_install)
    return step_end(w, &v->end[i - v->n_install], err);
  int rc = step_install(w, &v->install[i], err);
  if (rc)
    RD2H_ERR("decode rank %u: request %.*s could not be installed: %s", w->o.tp_rank, (int)v->install[i].id.n, v->install[i].id.p,
             rd2h_status_text(rc));
  return rc;
}

/* After NOMEM the same bytes come again: they are gone on with behind what was taken of them. */
int rd2h_dw_step(rd2h_dw *w, const void *meta, size_t len, struct rd2h_error *err) {
  struct rd2h_decode_step_view v;
  rd2h_arena_reset(&w->step_arena);
  int rc = rd2h_step_decode_decode(meta, len, &w->step_arena, &v, err);
  if (rc)
    return rc;
  uint32_t sum = rd2h_crc32c(meta, len), n = v.n_install + v.n_end + v.n_answered;
  uint32_t i = len == w->step_len && sum == w->step_sum ? w->step_taken : 0;
  w->step_taken = 0;
  for (; i < n; i++) {
    int one = step_record(w, &v, i, err);
    rc = rc ? rc : one;
    if (one != RD2H_NOMEM)
      continue;
    w->step_len = len;
    w->step_sum = sum;
    w->step_taken = i;
    return one;
  }
  return rc;
}

/* ---- control thread ---- */
static void run_install(rd2h_dw *w, const struct dw_command *c) {
  struct rd2h_error err = {0};
  int rc = rd2h_dm_install(w->dm, &c->grant, w->now, &err);
  dw_drain(w);
  if (rc) /* the machine knows nothing of it: nobody else would report it */
    dw_report(w, c->grant.id, rc, err.text);
}

static void run_end(rd2h_dw *w, const struct dw_command *c) {
  rd2h_dm_end(w->dm, c->grant.id, c->status, c->text, w->now); /* NOT_FOUND: it ended meanwhile and is reported */
  dw_drain(w);
}

bool dw_run_commands(rd2h_dw *w) {
  pthread_mutex_lock(&w->mu);
  struct dw_command *c = w->command;
  bool stop = w->stop;
  w->command = NULL;
  if (c || stop)
    rd2h_eventfd_clear(w->command_fd);
  pthread_mutex_unlock(&w->mu);
  while (c) {
    struct dw_command *next = c->next;
    if (c->kind == DW_INSTALL)
      run_install(w, c);
    else if (c->kind == DW_END)
      run_end(w, c);
    else
      rd2h_dm_answered(w->dm, c->grant.id, w->now);
    rd2h_free(c);
    c = next;
  }
  return !stop;
}

void dw_report(rd2h_dw *w, struct rd2h_str id, int status, const char *text) {
  pthread_mutex_lock(&w->mu);
  uint32_t slot = rd2h_map_del(w->live, id.p, id.n);
  struct dw_request *r = slot == RD2H_INDEX_NONE ? NULL : *(struct dw_request **)rd2h_slab_at(&w->live_slot, slot);
  rd2h_slab_give(&w->live_slot, slot);
  if (w->draining && !rd2h_map_size(w->live))
    pthread_cond_broadcast(&w->none_live);
  pthread_mutex_unlock(&w->mu);
  if (!r)
    return;
  r->out.status = status;
  copy_text(r->text, str_of(text));
  if (status && status != RD2H_ABORTED)
    RD2H_WARN("decode rank %u: request %s failed: %s", w->o.tp_rank, r->id, text);
  else
    RD2H_DEBUG("decode rank %u: request %s %s", w->o.tp_rank, r->id, status ? "aborted" : "complete");
  if (w->ended)
    w->ended_tail->next = r;
  else
    w->ended = r;
  w->ended_tail = r;
}

static void take_stats(rd2h_dw *w, struct rd2h_decode_stats *s) {
  struct rd2h_dm_stats m;
  rd2h_dm_stats(w->dm, &m);
  w->oldest = m.oldest;
  *s = (struct rd2h_decode_stats){
      .messages = m.messages, .batches = m.batches, .reads = w->count.reads, .descriptors = w->count.descriptors,
      .bytes = w->count.bytes, .malformed = m.malformed + w->count.malformed, .parked = m.parked, .skipped = m.skipped,
      .refused_meta = m.refused_meta + w->count.refused_meta, .replies = m.replies,
      .refused_keys = w->refused_keys, .retried = w->count.retried,
      .digests_checked = w->count.digests_checked, .digests_wrong = w->count.digests_wrong,
      .digests_missing = w->count.digests_missing, .failed_transport = m.failed_transport,
      .failed_peer_lost = m.failed_peer_lost, .failed_layout = m.failed_layout, .failed_expired = m.failed_expired,
      .failed_other = m.failed_other, .aborted = m.aborted, .completed = m.completed, .peers = m.peers, .requests = m.requests,
      .reads_in_flight = m.reads, .parked_now = m.parked_now, .quarantined = m.quarantined,
      .quarantined_blocks = (uint32_t)m.quarantined_blocks};
}

static const char *peer_name(void *arg, uint32_t peer) {
  rd2h_dw *w = arg;
  struct dw_peer *p = peer < w->n_peers ? w->peer[peer] : NULL;
  if (!p || !p->conn)
    return p ? p->session : "-";
  const char *way = rd2h_eng_way(w->eng, p->conn);
  snprintf(p->way, sizeof p->way, "%s by %s%s%s", p->session, p->engine, *way ? ", " : "", way);
  return p->way;
}

/* With mu held. */
static void dump(rd2h_dw *w) {
  const struct rd2h_decode_stats *s = &w->stats;
  struct rd2h_buf *b = &w->dump.text;
  rd2h_buf_line(b, "decode rank %u of %u at %s:%u, engine %s: %u requests, the oldest waits %llu ms; %u peers, %u reads (%u wait for "
                "the engine), %u messages parked, %u requests with %u blocks quarantined", w->o.tp_rank, w->o.tp_size, w->o.bind_host,
                w->port, rd2h_eng_name(w->eng), s->requests,
                (unsigned long long)(w->oldest && w->now > w->oldest ? (w->now - w->oldest) / RD2H_MS : 0), s->peers,
                s->reads_in_flight, w->n_queued, s->parked_now, s->quarantined, s->quarantined_blocks);
  rd2h_dm_dump(w->dm, peer_name, w, w->now, b);
  rd2h_ask_made(&w->dump.ask);
}

static void see_wait(void *arg, uint32_t peer, uint32_t waiting, uint64_t since) {
  rd2h_dw *w = arg;
  const struct dw_peer *p = peer < w->n_peers ? w->peer[peer] : NULL;
  rd2h_peers_awaited(&w->peers, p ? p->session : "", waiting, since);
}

static void tell_peers(rd2h_dw *w) {
  for (uint32_t i = 0; i < w->n_peers; i++)
    if (w->peer[i] && w->peer[i]->conn)
      rd2h_peers_connected(&w->peers, w->peer[i]->engine, rd2h_eng_way(w->eng, w->peer[i]->conn));
  rd2h_dm_waits(w->dm, see_wait, w);
  rd2h_ask_made(&w->peers.ask);
}

/* With mu held: what was asked for. */
static void tell(rd2h_dw *w) {
  bool wants_dump = rd2h_dump_wanted(&w->dump), wants_peers = rd2h_peers_wanted(&w->peers);
  if (wants_dump)
    dump(w);
  if (wants_peers)
    tell_peers(w);
  /* Also asked for in this turn: if it stayed set, this thread would not sleep. */
  if ((wants_dump || wants_peers) && !w->command && !w->stop)
    rd2h_eventfd_clear(w->command_fd);
}

void dw_publish(rd2h_dw *w) {
  pthread_mutex_lock(&w->mu);
  take_stats(w, &w->stats);
  tell(w);
  if (w->ended)
    append_outcomes(w, w->ended, w->ended_tail);
  w->ended = w->ended_tail = NULL;
  pthread_mutex_unlock(&w->mu);
}

/* ---- API's threads ---- */
static void free_requests(struct dw_request *r) {
  while (r) {
    struct dw_request *next = r->next;
    rd2h_free(r);
    r = next;
  }
}

uint32_t rd2h_dw_collect(rd2h_dw *w, struct rd2h_outcome *out, uint32_t cap) {
  uint32_t n = 0;
  free_requests(w->collected);
  w->collected = NULL;
  pthread_mutex_lock(&w->mu);
  while (n < cap && w->outcome) {
    struct dw_request *r = w->outcome;
    w->outcome = r->next;
    out[n++] = r->out;
    r->next = w->collected;
    w->collected = r;
  }
  if (!w->outcome)
    rd2h_eventfd_clear(w->outcome_fd);
  pthread_mutex_unlock(&w->mu);
  return n;
}

int rd2h_dw_fd(const rd2h_dw *w) {
  return w->outcome_fd;
}

void rd2h_dw_stats(rd2h_dw *w, struct rd2h_decode_stats *s) {
  pthread_mutex_lock(&w->mu);
  *s = w->stats;
  uint64_t now = rd2h_now_ns();
  s->oldest_wait_ms = w->oldest && now > w->oldest ? (uint32_t)((now - w->oldest) / RD2H_MS) : 0;
  pthread_mutex_unlock(&w->mu);
}

static void wake(void *arg) {
  rd2h_eventfd_set(((rd2h_dw *)arg)->command_fd);
}

size_t rd2h_dw_dump(rd2h_dw *w, char *out, size_t cap) {
  char who[64];
  snprintf(who, sizeof who, "decode rank %u of %u", w->o.tp_rank, w->o.tp_size);
  return rd2h_dump_ask(&w->dump, &w->mu, wake, w, who, out, cap);
}

int rd2h_dw_peers(rd2h_dw *w, uint32_t timeout_ms, struct rd2h_peers *out) {
  return rd2h_peers_ask(&w->peers, &w->mu, wake, w, timeout_ms, out);
}

void dw_commands_free(rd2h_dw *w) {
  while (w->command) {
    struct dw_command *next = w->command->next;
    rd2h_free(w->command);
    w->command = next;
  }
  free_requests(w->ended);
  free_requests(w->outcome);
  free_requests(w->collected);
  for (uint32_t i = 0; i < w->live_slot.next; i++)
    if (rd2h_slab_live(&w->live_slot, i))
      rd2h_free(*(struct dw_request **)rd2h_slab_at(&w->live_slot, i));
  rd2h_slab_free(&w->live_slot);
  rd2h_map_destroy(w->live);
  rd2h_arena_free(&w->step_arena);
}
