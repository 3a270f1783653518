/* SPDX-License-Identifier: Apache-2.0 */
/* Prefill's half: which blocks of which request become readable in a step. What a step publishes counts only once its bytes are
 * made: a step that is dropped or fails leaves the requests as they were. */
#include "plan/plan.h"
#include "scheduler/blocks.h"
#include "scheduler/ids.h"
#include "scheduler/params.h"
#include "scheduler/queue.h"
#include "scheduler/scheduler.h"
#include <inttypes.h>

#define MAX_REQUESTS 65536u
#define MAX_TOKENS ((uint64_t)INT32_MAX)

/* What the open step publishes of one request. */
struct chunk {
  bool pending, last;
  uint64_t published;
  uint32_t start[RD2H_PARTS], count[RD2H_PARTS]; /* blocks */
};

struct request {
  char *id;
  uint32_t id_len, ext_len;
  struct rd2h_send_params to;
  struct rd2h_ids list[RD2H_PARTS]; /* the block table */
  uint64_t num_tokens;
  uint64_t published; /* tokens: stays when a preempted request starts over, Decode has those blocks */
  bool known;         /* workers have been told of it: they hold its blocks until they report it */
  bool complete;      /* its last chunk is out */
  bool broken;        /* a step could not be computed: nothing is published until a whole new table comes */
  bool finished, preempted;
  struct chunk chunk;
};

struct rd2h_prefill_scheduler {
  struct rd2h_parts parts;
  bool loose_ids;
  struct rd2h_map *map; /* internal id -> request */
  struct rd2h_slab requests;
  struct rd2h_queue send, finished, preempted;
  uint32_t held;
  struct rd2h_arena scratch;
  struct rd2h_buf bytes;
};

static struct request *at(const struct rd2h_prefill_scheduler *s, uint32_t i) {
  return rd2h_slab_at(&s->requests, i);
}

static struct request *find(const struct rd2h_prefill_scheduler *s, const char *id, uint32_t *index) {
  uint32_t i = rd2h_map_get(s->map, id, strlen(id));
  if (index)
    *index = i;
  return i == RD2H_INDEX_NONE ? NULL : at(s, i);
}

bool rd2h_prefill_scheduler_tracks(const rd2h_prefill_scheduler *s, const char *id) {
  const struct request *r = find(s, id, NULL);
  return r && !r->complete && !r->finished && !r->broken;
}

int rd2h_prefill_scheduler_create(const struct rd2h_prefill_scheduler_opts *opts, rd2h_prefill_scheduler **out,
                                  struct rd2h_error *err) {
  struct rd2h_parts parts;
  if (opts->size < sizeof *opts)
    return rd2h_fail(err, RD2H_INVALID, "rd2h_prefill_scheduler_opts: size is %u, this library needs %zu", opts->size,
                     sizeof *opts);
  int rc = rd2h_parts_init(&parts, opts->n_groups, opts->block_size, opts->main_group, opts->indexer_group, err);
  if (rc)
    return rc;
  struct rd2h_prefill_scheduler *s = rd2h_zalloc(sizeof *s);
  if (!s || !(s->map = rd2h_map_create())) {
    rd2h_free(s);
    return rd2h_nomem(err, "Prefill's scheduler half");
  }
  s->parts = parts;
  s->loose_ids = opts->loose_ids;
  rd2h_slab_init(&s->requests, sizeof(struct request), MAX_REQUESTS);
  *out = s;
  return RD2H_OK;
}

static void request_free(struct request *r) {
  rd2h_free(r->id);
  rd2h_send_params_free(&r->to);
  rd2h_blocks_free(r->list);
}

void rd2h_prefill_scheduler_destroy(rd2h_prefill_scheduler *s) {
  const void *key;
  size_t n;
  uint32_t it = 0, i;
  if (!s)
    return;
  while (rd2h_map_next(s->map, &it, &key, &n, &i))
    request_free(at(s, i));
  rd2h_map_destroy(s->map);
  rd2h_slab_free(&s->requests);
  rd2h_free(s->send.i);
  rd2h_free(s->finished.i);
  rd2h_free(s->preempted.i);
  rd2h_arena_free(&s->scratch);
  rd2h_buf_free(&s->bytes);
  rd2h_free(s);
}

static void forget(struct rd2h_prefill_scheduler *s, uint32_t index) {
  struct request *r = at(s, index);
  rd2h_queue_remove(&s->send, index);
  rd2h_queue_remove(&s->finished, index);
  rd2h_queue_remove(&s->preempted, index);
  rd2h_map_del(s->map, r->id, r->id_len);
  request_free(r);
  rd2h_slab_give(&s->requests, index);
}

static int queues_room(struct rd2h_prefill_scheduler *s) {
  uint32_t n = s->requests.live + 1;
  return rd2h_queue_reserve(&s->send, n) || rd2h_queue_reserve(&s->finished, n) || rd2h_queue_reserve(&s->preempted, n);
}

/* Takes over `to` on success. */
static int request_new(struct rd2h_prefill_scheduler *s, const char *id, size_t ext_len, struct rd2h_send_params *to,
                       struct request **out, struct rd2h_error *err) {
  size_t len = strlen(id);
  if (s->requests.live >= MAX_REQUESTS)
    return rd2h_fail(err, RD2H_LIMIT, "request %s: %u requests are tracked already, no more fit", id, MAX_REQUESTS);
  uint32_t i = queues_room(s) ? RD2H_INDEX_NONE : rd2h_slab_take(&s->requests);
  if (i == RD2H_INDEX_NONE)
    goto nomem;
  struct request *r = at(s, i);
  r->id = rd2h_strdup(id);
  if (!r->id || rd2h_map_put(s->map, id, len, i))
    goto give;
  r->id_len = (uint32_t)len;
  r->ext_len = (uint32_t)ext_len;
  r->to = *to;
  *out = r;
  return RD2H_OK;
give:
  rd2h_free(r->id);
  rd2h_slab_give(&s->requests, i);
nomem:
  return rd2h_nomem(err, "a request");
}

/* A chunk of the open step that is not to be published after all. */
static void drop_chunk(struct rd2h_prefill_scheduler *s, struct request *r, uint32_t index) {
  if (r->chunk.pending)
    rd2h_queue_remove(&s->send, index);
  r->chunk.pending = false;
}

static int realloc_blocks(struct rd2h_prefill_scheduler *s, struct request *r, uint32_t index, uint64_t num_tokens,
                          const struct rd2h_block_table *blocks, struct rd2h_error *err) {
  if (r->finished)
    return rd2h_fail(err, RD2H_EXISTS, "request %s has ended and its blocks are still held: its id cannot be used again yet",
                     r->id);
  int rc = rd2h_blocks_put(&s->parts, blocks, true, r->list, r->id, err);
  if (rc)
    return rc;
  drop_chunk(s, r, index);
  r->num_tokens = num_tokens;
  r->broken = false;
  return 1;
}

int rd2h_prefill_scheduler_alloc(rd2h_prefill_scheduler *s, const char *id, const char *params, uint64_t num_tokens,
                                 const struct rd2h_block_table *blocks, struct rd2h_error *err) {
  struct rd2h_send_params to;
  uint32_t index;
  size_t ext_len = rd2h_external_id_len(id, !s->loose_ids);
  if (rd2h_blocks_none(blocks))
    return 0;
  int rc = rd2h_id_check(id, err);
  if (rc)
    return rc;
  if (!num_tokens || num_tokens > MAX_TOKENS)
    return rd2h_fail(err, RD2H_INVALID, "request %s: %" PRIu64 " tokens, must be 1 to %" PRIu64, id, num_tokens, MAX_TOKENS);
  struct request *r = find(s, id, &index);
  if (r)
    return realloc_blocks(s, r, index, num_tokens, blocks, err);
  rc = rd2h_send_params_read(params, (struct rd2h_str){id, (uint32_t)ext_len}, &to, err);
  if (rc || !to.wanted)
    return rc;
  rc = request_new(s, id, ext_len, &to, &r, err);
  if (rc) {
    rd2h_send_params_free(&to);
    return rc;
  }
  r->num_tokens = num_tokens;
  rc = rd2h_blocks_put(&s->parts, blocks, true, r->list, id, err);
  if (!rc)
    return 1;
  find(s, id, &index);
  forget(s, index);
  return rc;
}

void rd2h_prefill_scheduler_step_begin(rd2h_prefill_scheduler *s) {
  for (uint32_t k = 0; k < s->send.n; k++)
    at(s, s->send.i[k])->chunk.pending = false;
  s->send.n = 0;
}

/* Blocks of one part that become readable when `computed` tokens are there. */
static int chunk_part(const struct rd2h_prefill_scheduler *s, const struct request *r, uint32_t part, uint64_t computed,
                      struct chunk *c, struct rd2h_error *err) {
  uint32_t size = s->parts.block_size[part];
  uint64_t known = r->published - r->published % s->parts.min_block_size;
  uint64_t start = (known > r->to.cached_tokens ? known : r->to.cached_tokens) / size;
  uint64_t end = (computed + (c->last ? size - 1 : 0)) / size;
  if (end > start && end > r->list[part].n)
    return rd2h_fail(err, RD2H_RANGE,
                     "request %s: %" PRIu64 " computed tokens need %s blocks up to %" PRIu64 ", its table has %u in group %u",
                     r->id, computed, rd2h_part_name[part], end, r->list[part].n, s->parts.group[part]);
  c->start[part] = (uint32_t)start;
  c->count[part] = end > start ? (uint32_t)(end - start) : 0;
  return RD2H_OK;
}

/* A complete prefill publishes the blocks of its own tokens, not of tokens speculated beyond them. */
static int chunk_make(const struct rd2h_prefill_scheduler *s, const struct request *r, uint64_t computed, struct chunk *c,
                      struct rd2h_error *err) {
  *c = (struct chunk){.last = computed >= r->num_tokens};
  if (c->last)
    computed = r->num_tokens;
  c->published = computed > r->published ? computed : r->published;
  for (uint32_t part = 0; part < RD2H_PARTS; part++) {
    int rc = chunk_part(s, r, part, computed, c, err);
    if (rc)
      return rc;
  }
  c->pending = c->last || c->count[RD2H_PART_MAIN] || c->count[RD2H_PART_INDEXER];
  return RD2H_OK;
}

int rd2h_prefill_scheduler_step_add(rd2h_prefill_scheduler *s, const char *id, uint64_t computed, uint64_t scheduled,
                                    uint64_t spec, const struct rd2h_block_table *more, bool resumed, struct rd2h_error *err) {
  uint32_t index;
  struct request *r = find(s, id, &index);
  struct chunk c;
  if (!r || r->finished || r->complete || r->chunk.pending)
    return RD2H_OK;
  if (r->broken && !(more && resumed))
    return RD2H_OK;
  int rc = more ? rd2h_blocks_put(&s->parts, more, resumed, r->list, id, err) : RD2H_OK;
  if (rc)
    goto broken;
  if (computed > MAX_TOKENS || scheduled > MAX_TOKENS || spec > scheduled) {
    rc = rd2h_fail(err, RD2H_INVALID,
                   "request %s: %" PRIu64 " computed, %" PRIu64 " scheduled, %" PRIu64 " speculative tokens do not go together",
                   id, computed, scheduled, spec);
    goto broken;
  }
  rc = chunk_make(s, r, computed + scheduled - spec, &c, err);
  if (rc)
    goto broken;
  r->broken = false;
  r->chunk = c;
  if (c.pending)
    rd2h_queue_push(&s->send, index);
  return RD2H_OK;
broken:
  r->broken = true;
  return rc;
}

void rd2h_prefill_scheduler_step_preempted(rd2h_prefill_scheduler *s, const char *id) {
  uint32_t index;
  struct request *r = find(s, id, &index);
  if (!r || r->finished)
    return;
  drop_chunk(s, r, index);
  for (uint32_t part = 0; part < RD2H_PARTS; part++)
    r->list[part].n = 0; /* until the new table comes */
  if (r->known && !r->preempted) {
    r->preempted = true;
    rd2h_queue_push(&s->preempted, index);
  }
}

static struct rd2h_str id_of(const struct request *r) {
  return (struct rd2h_str){r->id, r->id_len};
}

static struct rd2h_str str_of(const char *s) {
  return (struct rd2h_str){s, (uint32_t)strlen(s)};
}

/* The id that Decode knows. */
static struct rd2h_str ext_of(const struct request *r) {
  return r->to.ext_id ? str_of(r->to.ext_id) : (struct rd2h_str){r->id, r->ext_len};
}

static void fill_send(const struct request *r, struct rd2h_step_send *o) {
  const struct chunk *c = &r->chunk;
  *o = (struct rd2h_step_send){.id = id_of(r), .ext_id = ext_of(r), .host = str_of(r->to.host),
                               .base_port = r->to.base_port, .d_tp = r->to.d_tp, .engine_id = str_of(r->to.engine_id),
                               .has_attempt = r->to.has_attempt, .has_dspark = r->to.has_dspark, .last = c->last,
                               .n_main = c->count[RD2H_PART_MAIN], .n_indexer = c->count[RD2H_PART_INDEXER],
                               .main_start = c->start[RD2H_PART_MAIN], .indexer_start = c->start[RD2H_PART_INDEXER]};
  o->main = o->n_main ? r->list[RD2H_PART_MAIN].id + o->main_start : NULL;
  o->indexer = o->n_indexer ? r->list[RD2H_PART_INDEXER].id + o->indexer_start : NULL;
  memcpy(o->attempt, r->to.attempt, sizeof o->attempt);
}

static void fill_refs(const struct rd2h_prefill_scheduler *s, const struct rd2h_queue *q, struct rd2h_step_ref *o) {
  for (uint32_t k = 0; k < q->n; k++) {
    const struct request *r = at(s, q->i[k]);
    o[k] = (struct rd2h_step_ref){id_of(r), !r->complete && !(r->chunk.pending && r->chunk.last)};
  }
}

static int make_view(struct rd2h_prefill_scheduler *s, struct rd2h_prefill_step_view *v) {
  size_t refs = (size_t)s->finished.n + s->preempted.n;
  *v = (struct rd2h_prefill_step_view){.n_send = s->send.n, .n_finished = s->finished.n, .n_preempted = s->preempted.n};
  rd2h_arena_reset(&s->scratch);
  if (rd2h_arena_reserve(&s->scratch, s->send.n * sizeof *v->send + refs * sizeof *v->finished + 64))
    return RD2H_NOMEM;
  v->send = rd2h_arena_alloc(&s->scratch, s->send.n * sizeof *v->send);
  v->finished = rd2h_arena_alloc(&s->scratch, s->finished.n * sizeof *v->finished);
  v->preempted = rd2h_arena_alloc(&s->scratch, s->preempted.n * sizeof *v->preempted);
  for (uint32_t k = 0; k < s->send.n; k++)
    fill_send(at(s, s->send.i[k]), &v->send[k]);
  fill_refs(s, &s->finished, v->finished);
  fill_refs(s, &s->preempted, v->preempted);
  return RD2H_OK;
}

static void commit(struct rd2h_prefill_scheduler *s) {
  for (uint32_t k = 0; k < s->send.n; k++) {
    struct request *r = at(s, s->send.i[k]);
    r->known = true;
    r->published = r->chunk.published;
    r->complete = r->chunk.last;
    r->chunk.pending = false;
  }
  for (uint32_t k = 0; k < s->preempted.n; k++)
    at(s, s->preempted.i[k])->preempted = false;
  s->send.n = s->finished.n = s->preempted.n = 0;
}

int rd2h_prefill_scheduler_step_end(rd2h_prefill_scheduler *s, struct rd2h_bytes *out, struct rd2h_error *err) {
  struct rd2h_prefill_step_view v;
  rd2h_buf_reset(&s->bytes);
  if (make_view(s, &v))
    return rd2h_nomem(err, "a step");
  rd2h_step_encode_prefill(&s->bytes, &v);
  if (s->bytes.failed)
    return rd2h_nomem(err, "a step's bytes");
  commit(s);
  *out = (struct rd2h_bytes){s->bytes.p, s->bytes.len};
  return RD2H_OK;
}

int rd2h_prefill_scheduler_finish(rd2h_prefill_scheduler *s, const char *id, bool aborted) {
  uint32_t index;
  struct request *r = find(s, id, &index);
  (void)aborted; /* what counts for readers is whether the last chunk is out, however the request ended */
  if (!r)
    return 0;
  if (r->finished)
    return 1;
  if (!r->known && !r->chunk.pending) {
    forget(s, index);
    return 0;
  }
  r->finished = true;
  s->held++;
  rd2h_queue_push(&s->finished, index);
  return 1;
}

void rd2h_prefill_scheduler_released(rd2h_prefill_scheduler *s, const char *id) {
  uint32_t index;
  struct request *r = find(s, id, &index);
  if (!r || !r->finished)
    return;
  s->held--;
  forget(s, index);
}

uint32_t rd2h_prefill_scheduler_held(const rd2h_prefill_scheduler *s) {
  return s->held;
}
