/* SPDX-License-Identifier: Apache-2.0 */
/* Step bytes: a head array (revision, kind, number of records of each sort, number of block ids in all), then the records one
 * after the other. The counts stand in front so that the reader knows, before it reserves anything, that the payload can hold
 * them. */
#include "base/msgpack.h"
#include "scheduler/step.h"

enum { KIND_PREFILL = 1, KIND_DECODE = 2 };
enum { SEND_FIELDS = 13, REF_FIELDS = 2, INSTALL_FIELDS = 9, END_FIELDS = 4 };
#define MAX_SORTS 3u
#define ARENA_SLACK 16u /* most that one arena allocation is padded by */

/* ---- writing ---- */
static void put_head(struct rd2h_buf *b, uint32_t kind, const uint32_t *count, uint32_t sorts, uint64_t ids) {
  rd2h_mp_put_array(b, 3 + sorts);
  rd2h_mp_put_uint(b, RD2H_STEP_REVISION);
  rd2h_mp_put_uint(b, kind);
  for (uint32_t i = 0; i < sorts; i++)
    rd2h_mp_put_uint(b, count[i]);
  rd2h_mp_put_uint(b, ids);
}

static void put_str(struct rd2h_buf *b, struct rd2h_str s) {
  rd2h_mp_put_str(b, s.p, s.n);
}

static void put_send(struct rd2h_buf *b, const struct rd2h_step_send *s) {
  rd2h_mp_put_array(b, SEND_FIELDS);
  put_str(b, s->id);
  put_str(b, s->ext_id);
  put_str(b, s->host);
  rd2h_mp_put_uint(b, s->base_port);
  rd2h_mp_put_uint(b, s->d_tp);
  put_str(b, s->engine_id);
  rd2h_mp_put_bin(b, s->attempt, s->has_attempt ? RD2H_ATTEMPT_LEN : 0);
  rd2h_mp_put_bool(b, s->has_dspark);
  rd2h_mp_put_bool(b, s->last);
  rd2h_mp_put_uint(b, s->main_start);
  rd2h_mp_put_uint(b, s->indexer_start);
  rd2h_mp_put_ids(b, s->main, s->n_main);
  rd2h_mp_put_ids(b, s->indexer, s->n_indexer);
}

static void put_refs(struct rd2h_buf *b, const struct rd2h_step_ref *r, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    rd2h_mp_put_array(b, REF_FIELDS);
    put_str(b, r[i].id);
    rd2h_mp_put_bool(b, r[i].aborted);
  }
}

void rd2h_step_encode_prefill(struct rd2h_buf *b, const struct rd2h_prefill_step_view *v) {
  const uint32_t count[] = {v->n_send, v->n_finished, v->n_preempted};
  uint64_t ids = 0;
  if (!count[0] && !count[1] && !count[2])
    return;
  for (uint32_t i = 0; i < v->n_send; i++)
    ids += (uint64_t)v->send[i].n_main + v->send[i].n_indexer;
  put_head(b, KIND_PREFILL, count, 3, ids);
  for (uint32_t i = 0; i < v->n_send; i++)
    put_send(b, &v->send[i]);
  put_refs(b, v->finished, v->n_finished);
  put_refs(b, v->preempted, v->n_preempted);
}

static void put_install(struct rd2h_buf *b, const struct rd2h_step_install *s) {
  rd2h_mp_put_array(b, INSTALL_FIELDS);
  put_str(b, s->id);
  put_str(b, s->ext_id);
  rd2h_mp_put_bin(b, s->attempt, RD2H_ATTEMPT_LEN);
  rd2h_mp_put_uint(b, s->main_floor);
  rd2h_mp_put_uint(b, s->indexer_floor);
  rd2h_mp_put_uint(b, s->main_need);
  rd2h_mp_put_uint(b, s->indexer_need);
  rd2h_mp_put_ids(b, s->main, s->n_main);
  rd2h_mp_put_ids(b, s->indexer, s->n_indexer);
}

static void put_end(struct rd2h_buf *b, const struct rd2h_step_end *e) {
  rd2h_mp_put_array(b, END_FIELDS);
  put_str(b, e->id);
  rd2h_mp_put_bool(b, e->installed);
  rd2h_mp_put_uint(b, (uint64_t)-(int64_t)e->status); /* statuses are 0 and below */
  put_str(b, e->text);
}

void rd2h_step_encode_decode(struct rd2h_buf *b, const struct rd2h_decode_step_view *v) {
  const uint32_t count[] = {v->n_install, v->n_end, v->n_answered};
  uint64_t ids = 0;
  if (!count[0] && !count[1] && !count[2])
    return;
  for (uint32_t i = 0; i < v->n_install; i++)
    ids += (uint64_t)v->install[i].n_main + v->install[i].n_indexer;
  put_head(b, KIND_DECODE, count, 3, ids);
  for (uint32_t i = 0; i < v->n_install; i++)
    put_install(b, &v->install[i]);
  for (uint32_t i = 0; i < v->n_end; i++)
    put_end(b, &v->end[i]);
  for (uint32_t i = 0; i < v->n_answered; i++)
    put_str(b, v->answered[i]);
}

/* ---- reading ---- */
/* After the first wrong value `bad` stays set and everything reads as zero. */
struct reader {
  struct rd2h_mp mp;
  bool bad;
  uint64_t ids; /* block ids that the head still promises */
  const uint8_t *start;
  struct rd2h_arena *arena;
};

static uint32_t get_uint(struct reader *r, uint32_t max) {
  uint32_t v = 0;
  if (r->bad || !rd2h_mp_uint_max(&r->mp, max, &v))
    r->bad = true;
  return v;
}

static bool get_bool(struct reader *r) {
  bool v = false;
  if (r->bad || !rd2h_mp_bool(&r->mp, &v))
    r->bad = true;
  return v;
}

/* Workers make C strings of these: no NUL inside. */
static struct rd2h_str get_str(struct reader *r, uint32_t min, uint32_t max) {
  struct rd2h_str s = {"", 0};
  if (r->bad || !rd2h_mp_str(&r->mp, &s) || s.n < min || s.n > max || memchr(s.p, 0, s.n)) {
    r->bad = true;
    return (struct rd2h_str){"", 0};
  }
  return s;
}

static const char *const kind_name[] = {[0] = "unknown", [KIND_PREFILL] = "Prefill", [KIND_DECODE] = "Decode"};

static int malformed(const struct reader *r, uint32_t kind, struct rd2h_error *err) {
  return rd2h_fail(err, RD2H_MALFORMED, "%s step: not understood at byte %zu of %zu; hand the scheduler's bytes over unchanged",
                   kind_name[kind], (size_t)(r->mp.p - r->start), (size_t)(r->mp.end - r->start));
}

static uint32_t get_array(struct reader *r) {
  uint32_t n = 0;
  if (r->bad || !rd2h_mp_array(&r->mp, &n))
    r->bad = true;
  return n;
}

static void get_fields(struct reader *r, uint32_t want) {
  if (get_array(r) != want)
    r->bad = true;
}

/* Reads the head and checks that the rest of the payload can hold what it promises. least[i]: fewest bytes of a record. */
static int get_head(struct reader *r, uint32_t kind, uint32_t *count, const uint32_t *least, uint32_t sorts,
                    struct rd2h_error *err) {
  uint32_t fields = get_array(r), revision = get_uint(r, UINT32_MAX);
  if (!r->bad && revision != RD2H_STEP_REVISION)
    return rd2h_fail(err, RD2H_UNSUPPORTED, "%s step: revision %u, this library reads %u; run one version of it in the "
                                            "scheduler and in every worker", kind_name[kind], revision, RD2H_STEP_REVISION);
  uint32_t got = get_uint(r, KIND_DECODE);
  if (!r->bad && got != kind)
    return rd2h_fail(err, RD2H_MALFORMED, "%s step: these are the bytes of a %s step; check which half made them",
                     kind_name[kind], kind_name[got]);
  uint64_t need = 0;
  for (uint32_t i = 0; i < sorts; i++) {
    count[i] = get_uint(r, UINT32_MAX);
    need += (uint64_t)count[i] * least[i];
  }
  r->ids = get_uint(r, UINT32_MAX);
  if (r->bad || fields != 3 + sorts || need + r->ids > (uint64_t)(r->mp.end - r->mp.p))
    return malformed(r, kind, err);
  return RD2H_OK;
}

static int reserve(struct reader *r, size_t bytes, size_t allocs, struct rd2h_error *err) {
  rd2h_arena_reset(r->arena);
  int rc = rd2h_arena_reserve(r->arena, bytes + (size_t)r->ids * sizeof(uint32_t) + allocs * ARENA_SLACK);
  return rc ? rd2h_nomem(err, "the step's tables") : RD2H_OK;
}

static const uint32_t *get_ids(struct reader *r, uint32_t *n) {
  uint32_t count = get_array(r);
  bool in_range = true;
  *n = 0;
  if (r->bad || count > r->ids) {
    r->bad = true;
    return NULL;
  }
  uint32_t *ids = count ? rd2h_arena_alloc(r->arena, count * sizeof *ids) : NULL;
  if (count && (!ids || !rd2h_mp_ids(&r->mp, ids, count, &in_range) || !in_range)) {
    r->bad = true;
    return NULL;
  }
  r->ids -= count;
  *n = count;
  return ids;
}

/* A nonce of 16 bytes, or none where `optional`. Returns whether there is one. */
static bool get_attempt(struct reader *r, uint8_t attempt[RD2H_ATTEMPT_LEN], bool optional) {
  struct rd2h_str v = {0};
  if (r->bad || !rd2h_mp_bin(&r->mp, &v) || (v.n != RD2H_ATTEMPT_LEN && (v.n || !optional))) {
    r->bad = true;
    return false;
  }
  if (v.n)
    memcpy(attempt, v.p, v.n);
  return v.n;
}

static void get_send(struct reader *r, struct rd2h_step_send *s) {
  *s = (struct rd2h_step_send){0};
  get_fields(r, SEND_FIELDS);
  s->id = get_str(r, 1, RD2H_STEP_MAX_ID);
  s->ext_id = get_str(r, 1, RD2H_STEP_MAX_ID);
  s->host = get_str(r, 1, RD2H_STEP_MAX_HOST);
  s->base_port = get_uint(r, UINT16_MAX);
  s->d_tp = get_uint(r, UINT16_MAX);
  s->engine_id = get_str(r, 0, RD2H_STEP_MAX_ENGINE);
  s->has_attempt = get_attempt(r, s->attempt, true);
  s->has_dspark = get_bool(r);
  s->last = get_bool(r);
  s->main_start = get_uint(r, INT32_MAX);
  s->indexer_start = get_uint(r, INT32_MAX);
  s->main = get_ids(r, &s->n_main);
  s->indexer = get_ids(r, &s->n_indexer);
}

static void get_refs(struct reader *r, struct rd2h_step_ref *ref, uint32_t n) {
  for (uint32_t i = 0; i < n && !r->bad; i++) {
    get_fields(r, REF_FIELDS);
    ref[i].id = get_str(r, 1, RD2H_STEP_MAX_ID);
    ref[i].aborted = get_bool(r);
  }
}

static bool complete(const struct reader *r) {
  return !r->bad && r->mp.p == r->mp.end && !r->ids;
}

int rd2h_step_decode_prefill(const uint8_t *p, size_t n, struct rd2h_arena *arena, struct rd2h_prefill_step_view *out,
                             struct rd2h_error *err) {
  static const uint32_t least[MAX_SORTS] = {SEND_FIELDS + 1, 4, 4};
  struct reader r = {.mp = {p, p + n}, .start = p, .arena = arena};
  struct rd2h_prefill_step_view v = {0};
  uint32_t count[MAX_SORTS];
  if (!n) {
    *out = v;
    return RD2H_OK;
  }
  int rc = get_head(&r, KIND_PREFILL, count, least, 3, err);
  if (rc)
    return rc;
  size_t refs = (size_t)count[1] + count[2];
  rc = reserve(&r, count[0] * sizeof *v.send + refs * sizeof *v.finished, 3 + 2 * (size_t)count[0], err);
  if (rc)
    return rc;
  v.n_send = count[0], v.n_finished = count[1], v.n_preempted = count[2];
  v.send = rd2h_arena_alloc(arena, v.n_send * sizeof *v.send);
  v.finished = rd2h_arena_alloc(arena, v.n_finished * sizeof *v.finished);
  v.preempted = rd2h_arena_alloc(arena, v.n_preempted * sizeof *v.preempted);
  for (uint32_t i = 0; i < v.n_send && !r.bad; i++)
    get_send(&r, &v.send[i]);
  get_refs(&r, v.finished, v.n_finished);
  get_refs(&r, v.preempted, v.n_preempted);
  if (!complete(&r))
    return malformed(&r, KIND_PREFILL, err);
  *out = v;
  return RD2H_OK;
}

static void get_install(struct reader *r, struct rd2h_step_install *s) {
  *s = (struct rd2h_step_install){0};
  get_fields(r, INSTALL_FIELDS);
  s->id = get_str(r, 1, RD2H_STEP_MAX_ID);
  s->ext_id = get_str(r, 1, RD2H_STEP_MAX_ID);
  get_attempt(r, s->attempt, false);
  s->main_floor = get_uint(r, INT32_MAX);
  s->indexer_floor = get_uint(r, INT32_MAX);
  s->main_need = get_uint(r, INT32_MAX);
  s->indexer_need = get_uint(r, INT32_MAX);
  s->main = get_ids(r, &s->n_main);
  s->indexer = get_ids(r, &s->n_indexer);
}

static void get_end(struct reader *r, struct rd2h_step_end *e) {
  get_fields(r, END_FIELDS);
  e->id = get_str(r, 1, RD2H_STEP_MAX_ID);
  e->installed = get_bool(r);
  e->status = -(int)get_uint(r, INT16_MAX);
  e->text = get_str(r, 0, RD2H_ERROR_TEXT);
}

int rd2h_step_decode_decode(const uint8_t *p, size_t n, struct rd2h_arena *arena, struct rd2h_decode_step_view *out,
                            struct rd2h_error *err) {
  static const uint32_t least[MAX_SORTS] = {INSTALL_FIELDS + 1 + RD2H_ATTEMPT_LEN, END_FIELDS + 2, 2};
  struct reader r = {.mp = {p, p + n}, .start = p, .arena = arena};
  struct rd2h_decode_step_view v = {0};
  uint32_t count[MAX_SORTS];
  if (!n) {
    *out = v;
    return RD2H_OK;
  }
  int rc = get_head(&r, KIND_DECODE, count, least, 3, err);
  if (rc)
    return rc;
  size_t bytes = count[0] * sizeof *v.install + count[1] * sizeof *v.end + count[2] * sizeof *v.answered;
  rc = reserve(&r, bytes, 3 + 2 * (size_t)count[0], err);
  if (rc)
    return rc;
  v.n_install = count[0], v.n_end = count[1], v.n_answered = count[2];
  v.install = rd2h_arena_alloc(arena, v.n_install * sizeof *v.install);
  v.end = rd2h_arena_alloc(arena, v.n_end * sizeof *v.end);
  v.answered = rd2h_arena_alloc(arena, v.n_answered * sizeof *v.answered);
  for (uint32_t i = 0; i < v.n_install && !r.bad; i++)
    get_install(&r, &v.install[i]);
  for (uint32_t i = 0; i < v.n_end && !r.bad; i++)
    get_end(&r, &v.end[i]);
  for (uint32_t i = 0; i < v.n_answered && !r.bad; i++)
    v.answered[i] = get_str(&r, 1, RD2H_STEP_MAX_ID);
  if (!complete(&r))
    return malformed(&r, KIND_DECODE, err);
  *out = v;
  return RD2H_OK;
}
