/* SPDX-License-Identifier: Apache-2.0 */
/* Decode's half: destinations, the rendezvous, and how a request that waits for KV ends. Every request that alloc was asked for
 * stays here until all workers have reported it, for the engine holds its blocks as long. */
#include "base/msgpack.h"
#include "plan/plan.h"
#include "scheduler/blocks.h"
#include "scheduler/ids.h"
#include "scheduler/params.h"
#include "scheduler/queue.h"
#include "scheduler/scheduler.h"
#include <inttypes.h>

#define MAX_REQUESTS (1u << 20)
#define MAX_TOKENS ((uint64_t)INT32_MAX)

struct request {
  char *id;
  uint32_t id_len, ext_len;
  struct rd2h_ids list[RD2H_PARTS]; /* destinations */
  uint64_t cached;                  /* prompt tokens that Decode has already */
  uint32_t floor[RD2H_PARTS], need[RD2H_PARTS];
  uint8_t attempt[RD2H_ATTEMPT_LEN];
  bool owns_ext;  /* the external id leads here: no other request may use it */
  bool posted;    /* its rendezvous is open */
  bool installed; /* workers have its destinations */
  bool ended;     /* workers are or will be told to end it */
  bool finished;  /* the engine is done with it */
  bool received;  /* all workers have reported it: the record only remembers that nothing is to be pulled again */
  int status;     /* of the end */
  char *text;     /* owned; NULL: the status says enough */
};

struct rd2h_decode_half {
  struct rd2h_parts parts;
  struct rd2h_post post;
  char *host, *engine_id;
  uint32_t base_port, tp_size;
  bool loose_ids;
  uint8_t incarnation[RD2H_ATTEMPT_LEN];
  struct rd2h_map *map, *ext; /* internal id -> request; external id -> the request that is loading under it */
  struct rd2h_slab requests;
  struct rd2h_queue install, end, answered;
  uint32_t waiting;
  struct rd2h_arena scratch;
  struct rd2h_buf bytes, body;
};

static struct request *at(const struct rd2h_decode_half *d, uint32_t i) {
  return rd2h_slab_at(&d->requests, i);
}

static struct request *find(const struct rd2h_decode_half *d, const char *id, uint32_t *index) {
  *index = rd2h_map_get(d->map, id, strlen(id));
  return *index == RD2H_INDEX_NONE ? NULL : at(d, *index);
}

static int check_opts(const struct rd2h_decode_scheduler_opts *o, struct rd2h_error *err) {
  if (o->size < sizeof *o)
    return rd2h_fail(err, RD2H_INVALID, "rd2h_decode_scheduler_opts: size is %u, this library needs %zu", o->size, sizeof *o);
  if (!o->host || !*o->host || strlen(o->host) > RD2H_STEP_MAX_HOST)
    return rd2h_fail(err, RD2H_INVALID, "Decode must advertise a host of 1 to %u bytes that Prefill reaches it by",
                     RD2H_STEP_MAX_HOST);
  if (!o->engine_id || strlen(o->engine_id) > RD2H_STEP_MAX_ENGINE / 2)
    return rd2h_fail(err, RD2H_INVALID, "Decode needs an engine id of at most %u bytes", RD2H_STEP_MAX_ENGINE / 2);
  return RD2H_OK;
}

int rd2h_decode_half_create(const struct rd2h_decode_scheduler_opts *o, const struct rd2h_post *post, rd2h_decode_half **out,
                            struct rd2h_error *err) {
  struct rd2h_parts parts;
  uint16_t base_port;
  int rc = check_opts(o, err);
  if (!rc)
    rc = rd2h_parts_init(&parts, o->n_groups, o->block_size, o->main_group, o->indexer_group, err);
  if (!rc)
    rc = rd2h_plan_base_port(o->kv_port, o->dp_rank, o->tp_size, &base_port, err);
  if (rc)
    return rc;
  struct rd2h_decode_half *d = rd2h_zalloc(sizeof *d);
  if (!d)
    return rd2h_nomem(err, "Decode's scheduler half");
  *d = (struct rd2h_decode_half){.parts = parts, .post = *post, .base_port = base_port, .tp_size = o->tp_size,
                                 .loose_ids = o->loose_ids, .host = rd2h_strdup(o->host), .engine_id = rd2h_strdup(o->engine_id),
                                 .map = rd2h_map_create(), .ext = rd2h_map_create()};
  rd2h_slab_init(&d->requests, sizeof(struct request), MAX_REQUESTS);
  if (!d->host || !d->engine_id || !d->map || !d->ext)
    rc = rd2h_nomem(err, "Decode's scheduler half");
  else if (rd2h_random(d->incarnation, sizeof d->incarnation))
    rc = rd2h_fail(err, RD2H_IO, "the system gives no random bytes for Decode's incarnation");
  if (rc)
    rd2h_decode_half_destroy(d);
  else
    *out = d;
  return rc;
}

static void request_free(struct request *r) {
  rd2h_free(r->id);
  rd2h_free(r->text);
  rd2h_blocks_free(r->list);
}

void rd2h_decode_half_destroy(rd2h_decode_half *d) {
  const void *key;
  size_t n;
  uint32_t it = 0, i;
  if (!d)
    return;
  while (d->map && rd2h_map_next(d->map, &it, &key, &n, &i))
    request_free(at(d, i));
  rd2h_map_destroy(d->map);
  rd2h_map_destroy(d->ext);
  rd2h_slab_free(&d->requests);
  rd2h_free(d->install.i);
  rd2h_free(d->end.i);
  rd2h_free(d->answered.i);
  rd2h_free(d->host);
  rd2h_free(d->engine_id);
  rd2h_arena_free(&d->scratch);
  rd2h_buf_free(&d->bytes);
  rd2h_buf_free(&d->body);
  rd2h_free(d);
}

static void close_post(struct rd2h_decode_half *d, struct request *r) {
  if (r->posted)
    d->post.cancel(d->post.ctx, r->id);
  r->posted = false;
}

static void give_ext(struct rd2h_decode_half *d, struct request *r) {
  if (r->owns_ext)
    rd2h_map_del(d->ext, r->id, r->ext_len);
  r->owns_ext = false;
}

static void forget(struct rd2h_decode_half *d, uint32_t index) {
  struct request *r = at(d, index);
  close_post(d, r);
  give_ext(d, r);
  rd2h_queue_remove(&d->install, index);
  rd2h_queue_remove(&d->end, index);
  rd2h_queue_remove(&d->answered, index);
  rd2h_map_del(d->map, r->id, r->id_len);
  request_free(r);
  rd2h_slab_give(&d->requests, index);
}

static int request_new(struct rd2h_decode_half *d, const char *id, uint32_t *index, struct rd2h_error *err) {
  uint32_t live = d->requests.live;
  size_t len = strlen(id);
  if (live >= MAX_REQUESTS)
    return rd2h_fail(err, RD2H_LIMIT, "request %s: %u requests wait for KV already, no more fit", id, MAX_REQUESTS);
  if (rd2h_queue_reserve(&d->install, live + 1) || rd2h_queue_reserve(&d->end, live + 1) ||
      rd2h_queue_reserve(&d->answered, live + 1))
    return rd2h_nomem(err, "a request");
  uint32_t i = rd2h_slab_take(&d->requests);
  if (i == RD2H_INDEX_NONE)
    return rd2h_nomem(err, "a request");
  struct request *r = at(d, i);
  r->id = rd2h_strdup(id);
  if (!r->id || rd2h_map_put(d->map, id, len, i)) {
    rd2h_free(r->id);
    rd2h_slab_give(&d->requests, i);
    return rd2h_nomem(err, "a request");
  }
  r->id_len = (uint32_t)len;
  r->ext_len = (uint32_t)rd2h_external_id_len(id, !d->loose_ids);
  d->waiting++;
  *index = i;
  return RD2H_OK;
}

/* Workers that have the destinations stop; those that never got them report the id at once. */
static void end(struct rd2h_decode_half *d, uint32_t index, int status, const char *text) {
  struct request *r = at(d, index);
  if (r->ended || r->received)
    return;
  close_post(d, r);
  r->ended = true;
  r->status = status;
  r->text = text && *text ? rd2h_strndup(text, rd2h_utf8_prefix(text, strnlen(text, RD2H_ERROR_TEXT - 1))) : NULL;
  rd2h_queue_remove(&d->install, index);
  rd2h_queue_remove(&d->answered, index);
  rd2h_queue_push(&d->end, index);
}

int rd2h_decode_half_matched(rd2h_decode_half *d, const char *id, const char *params, uint64_t prompt_tokens, uint64_t computed,
                             uint64_t *tokens, struct rd2h_error *err) {
  struct rd2h_recv_params p;
  uint32_t index;
  *tokens = 0;
  int rc = rd2h_recv_params_read(params, &p, err);
  if (rc)
    return rc;
  bool wanted = p.wanted;
  rd2h_recv_params_free(&p);
  if (!wanted || find(d, id, &index) || prompt_tokens <= computed)
    return RD2H_OK;
  rc = rd2h_id_check(id, err);
  if (rc)
    return rc;
  if (prompt_tokens > MAX_TOKENS)
    return rd2h_fail(err, RD2H_INVALID, "request %s: %" PRIu64 " prompt tokens, must be at most %" PRIu64, id, prompt_tokens,
                     MAX_TOKENS);
  *tokens = prompt_tokens - computed;
  return RD2H_OK;
}

/* Checks the destinations and says which entries the prompt needs and which hold a local prefix hit. */
static int take_blocks(struct rd2h_decode_half *d, struct request *r, uint64_t prompt, uint64_t external,
                       const struct rd2h_block_table *blocks, struct rd2h_error *err) {
  if (external > prompt || prompt > MAX_TOKENS)
    return rd2h_fail(err, RD2H_INVALID, "request %s: %" PRIu64 " tokens to pull of a prompt of %" PRIu64, r->id, external,
                     prompt);
  int rc = rd2h_blocks_put(&d->parts, blocks, true, r->list, r->id, err);
  if (rc)
    return rc;
  r->cached = prompt - external;
  for (uint32_t part = 0; part < RD2H_PARTS; part++) {
    uint32_t size = d->parts.block_size[part];
    r->need[part] = (uint32_t)((prompt + size - 1) / size);
    r->floor[part] = (uint32_t)(r->cached / size);
    if (r->list[part].n < r->need[part])
      return rd2h_fail(err, RD2H_RANGE, "request %s: %" PRIu64 " prompt tokens need %u %s blocks, %u are allocated in group %u",
                       r->id, prompt, r->need[part], rd2h_part_name[part], r->list[part].n, d->parts.group[part]);
  }
  return RD2H_OK;
}

/* One external id, one load: chunks on the wire are named by it. */
static int take_ext(struct rd2h_decode_half *d, struct request *r, uint32_t index, struct rd2h_error *err) {
  uint32_t other = rd2h_map_get(d->ext, r->id, r->ext_len);
  if (other != RD2H_INDEX_NONE)
    return rd2h_fail(err, RD2H_EXISTS, "request %.128s: external id %.*s is in use by request %.128s, which still waits for "
                                       "its KV; request ids must be unique",
                     r->id, (int)(r->ext_len < 128 ? r->ext_len : 128), r->id, at(d, other)->id);
  if (rd2h_map_put(d->ext, r->id, r->ext_len, index))
    return rd2h_nomem(err, "an external id");
  r->owns_ext = true;
  return RD2H_OK;
}

static int rendezvous(struct rd2h_decode_half *d, struct request *r, const struct rd2h_recv_params *p, struct rd2h_error *err) {
  const struct rd2h_rendezvous_body body = {.ext_id = {r->id, r->ext_len}, .engine_id = d->engine_id, .host = d->host,
                                            .base_port = d->base_port, .tp_size = d->tp_size, .cached_tokens = r->cached,
                                            .attempt = r->attempt, .incarnation = d->incarnation};
  if (p->is_virtual)
    return RD2H_OK;
  if (!p->metaserver)
    return rd2h_fail(err, RD2H_INVALID, "request %s: kv_transfer_params: \"metaserver\" is missing; do_remote_prefill needs the "
                                        "proxy's rendezvous address", r->id);
  rd2h_buf_reset(&d->body);
  int rc = rd2h_rendezvous_body_write(&body, &d->body, err);
  if (!rc)
    rc = d->post.post(d->post.ctx, r->id, p->metaserver, (const char *)d->body.p, d->body.len, err);
  r->posted = !rc;
  return rc;
}

static int begin(struct rd2h_decode_half *d, uint32_t index, const struct rd2h_recv_params *p, uint64_t prompt, uint64_t external,
                 const struct rd2h_block_table *blocks, struct rd2h_error *err) {
  struct request *r = at(d, index);
  int rc = take_blocks(d, r, prompt, external, blocks, err);
  if (!rc)
    rc = take_ext(d, r, index, err);
  if (!rc && rd2h_random(r->attempt, sizeof r->attempt))
    rc = rd2h_fail(err, RD2H_IO, "request %s: the system gives no random bytes for its attempt", r->id);
  if (!rc)
    rc = rendezvous(d, r, p, err);
  if (!rc)
    rd2h_queue_push(&d->install, index);
  return rc ? rc : 1;
}

/* *index is left alone when there is no record that could carry an error to the workers. */
static int first(struct rd2h_decode_half *d, const char *id, const char *params, uint64_t prompt, uint64_t external,
                 const struct rd2h_block_table *blocks, uint32_t *index, struct rd2h_error *err) {
  struct rd2h_recv_params p = {0};
  int bad = rd2h_recv_params_read(params, &p, err);
  if (!bad && !p.wanted)
    return 0;
  int rc = request_new(d, id, index, bad ? NULL : err);
  if (!rc)
    rc = bad ? bad : begin(d, *index, &p, prompt, external, blocks, err);
  rd2h_recv_params_free(&p);
  return rc;
}

/* A request that waits already gets blocks again. Workers cannot be given other ones while reads may run, nor can the
 * rendezvous be told of another number of cached tokens. */
static int again(struct rd2h_decode_half *d, uint32_t index, uint64_t prompt, uint64_t external,
                 const struct rd2h_block_table *blocks, struct rd2h_error *err) {
  struct request *r = at(d, index);
  if (r->received || r->finished)
    return 0;
  if (r->ended || rd2h_blocks_equal(&d->parts, blocks, r->list))
    return 1;
  if (r->installed || r->cached != prompt - external)
    return rd2h_fail(err, RD2H_STATE, "request %s: other blocks were allocated while its KV is being pulled into the first ones",
                     r->id);
  int rc = take_blocks(d, r, prompt, external, blocks, err);
  return rc ? rc : 1;
}

int rd2h_decode_half_alloc(rd2h_decode_half *d, const char *id, const char *params, uint64_t prompt_tokens, uint64_t external,
                           const struct rd2h_block_table *blocks, struct rd2h_error *err) {
  struct rd2h_error own;
  uint32_t index;
  int rc;
  err = err ? err : &own;
  if (!external || rd2h_blocks_none(blocks))
    return 0;
  rc = rd2h_id_check(id, err);
  if (rc)
    return rc;
  if (find(d, id, &index))
    rc = again(d, index, prompt_tokens, external, blocks, err);
  else
    rc = first(d, id, params, prompt_tokens, external, blocks, &index, err);
  if (rc < 0 && index != RD2H_INDEX_NONE)
    end(d, index, rc, err->text);
  return rc;
}

void rd2h_decode_half_answer(rd2h_decode_half *d, const char *id, int status, const char *text, bool finished) {
  uint32_t index;
  struct request *r = find(d, id, &index);
  if (!r || !r->posted)
    return;
  r->posted = false;
  if (status != RD2H_OK)
    end(d, index, status, text);
  else if (finished && !r->ended && !r->received)
    rd2h_queue_push(&d->answered, index);
}

static struct rd2h_str str_of(const char *s) {
  return (struct rd2h_str){s, (uint32_t)strlen(s)};
}

static void fill_install(const struct request *r, struct rd2h_step_install *o) {
  const struct rd2h_ids *main = &r->list[RD2H_PART_MAIN], *indexer = &r->list[RD2H_PART_INDEXER];
  *o = (struct rd2h_step_install){.id = {r->id, r->id_len}, .ext_id = {r->id, r->ext_len}, .main = main->id, .n_main = main->n,
                                  .indexer = indexer->id, .n_indexer = indexer->n, .main_floor = r->floor[RD2H_PART_MAIN],
                                  .indexer_floor = r->floor[RD2H_PART_INDEXER], .main_need = r->need[RD2H_PART_MAIN],
                                  .indexer_need = r->need[RD2H_PART_INDEXER]};
  memcpy(o->attempt, r->attempt, sizeof o->attempt);
}

static int make_view(struct rd2h_decode_half *d, struct rd2h_decode_step_view *v) {
  *v = (struct rd2h_decode_step_view){.n_install = d->install.n, .n_end = d->end.n, .n_answered = d->answered.n};
  size_t bytes = v->n_install * sizeof *v->install + v->n_end * sizeof *v->end + v->n_answered * sizeof *v->answered;
  rd2h_arena_reset(&d->scratch);
  if (rd2h_arena_reserve(&d->scratch, bytes + 48))
    return RD2H_NOMEM;
  v->install = rd2h_arena_alloc(&d->scratch, v->n_install * sizeof *v->install);
  v->end = rd2h_arena_alloc(&d->scratch, v->n_end * sizeof *v->end);
  v->answered = rd2h_arena_alloc(&d->scratch, v->n_answered * sizeof *v->answered);
  for (uint32_t k = 0; k < v->n_answered; k++)
    v->answered[k] = (struct rd2h_str){at(d, d->answered.i[k])->id, at(d, d->answered.i[k])->id_len};
  for (uint32_t k = 0; k < v->n_install; k++)
    fill_install(at(d, d->install.i[k]), &v->install[k]);
  for (uint32_t k = 0; k < v->n_end; k++) {
    const struct request *r = at(d, d->end.i[k]);
    v->end[k] = (struct rd2h_step_end){.id = {r->id, r->id_len}, .installed = r->installed, .status = r->status,
                                       .text = str_of(r->text ? r->text : rd2h_status_text(r->status))};
  }
  return RD2H_OK;
}

int rd2h_decode_half_step_end(rd2h_decode_half *d, struct rd2h_bytes *out, struct rd2h_error *err) {
  struct rd2h_decode_step_view v;
  rd2h_buf_reset(&d->bytes);
  if (make_view(d, &v))
    return rd2h_nomem(err, "a step");
  rd2h_step_encode_decode(&d->bytes, &v);
  if (d->bytes.failed)
    return rd2h_nomem(err, "a step's bytes");
  for (uint32_t k = 0; k < d->install.n; k++)
    at(d, d->install.i[k])->installed = true;
  d->install.n = d->end.n = d->answered.n = 0;
  *out = (struct rd2h_bytes){d->bytes.p, d->bytes.len};
  return RD2H_OK;
}

void rd2h_decode_half_finish(rd2h_decode_half *d, const char *id) {
  uint32_t index;
  struct request *r = find(d, id, &index);
  if (!r)
    return;
  if (r->received) {
    forget(d, index);
    return;
  }
  r->finished = true;
  end(d, index, RD2H_ABORTED, "the request ended on Decode while its KV was being pulled");
}

void rd2h_decode_half_received(rd2h_decode_half *d, const char *id, bool failed) {
  uint32_t index;
  struct request *r = find(d, id, &index);
  if (!r || r->received)
    return;
  d->waiting--;
  if (failed || r->finished)
    close_post(d, r); /* after a success the answer may still come: to hang up now would look like an abort */
  if (r->finished) {
    forget(d, index);
    return;
  }
  r->received = true;
  give_ext(d, r);
  rd2h_blocks_free(r->list);
  rd2h_queue_remove(&d->install, index);
  rd2h_queue_remove(&d->end, index);
  rd2h_queue_remove(&d->answered, index);
}

uint32_t rd2h_decode_half_waiting(const rd2h_decode_half *d) {
  return d->waiting;
}
