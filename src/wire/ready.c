/* SPDX-License-Identifier: Apache-2.0 */
/* READ_READY_BATCH, both directions: the hot path. Nothing is allocated but from the caller's arena. */
#include "wire/codec.h"

enum { BAD_ID = 1, BAD_START = 2, BAD_LENGTH = 3 };
#define ID_END (UINT64_C(1) << 31)

static int take_ids(struct rd2h_wire_in *in, const char *what, uint64_t *left, const uint32_t **out, uint32_t *n_out,
                    uint8_t *bad) {
  uint32_t n, *id = NULL;
  bool in_range = true;
  RD2H_TRY(rd2h_wire_take_array(in, what, UINT32_MAX, 1, &n));
  if (n > *left)
    return rd2h_wire_over(in, "the number of block ids", RD2H_WIRE_MAX_BLOCKS - *left + n, RD2H_WIRE_MAX_BLOCKS);
  *left -= n;
  if (n && !(id = RD2H_ROOM(in, uint32_t, n)))
    return rd2h_wire_full(in);
  if (!rd2h_mp_ids(&in->r, id, n, &in_range))
    return rd2h_wire_expected(in, what, "integers only");
  if (!in_range)
    *bad = BAD_ID;
  *out = id;
  *n_out = n;
  return RD2H_OK;
}

/* Any integer is well-formed; one that is no position makes the request bad. */
static int take_start(struct rd2h_wire_in *in, const char *what, uint32_t *start, uint8_t *bad) {
  int64_t negative;
  uint64_t v;
  if (!rd2h_mp_uint(&in->r, &v)) {
    if (!rd2h_mp_int(&in->r, &negative))
      return rd2h_wire_expected(in, what, "an integer");
    v = UINT64_MAX;
  }
  if (v >= ID_END)
    *bad = BAD_START;
  *start = (uint32_t)v;
  return RD2H_OK;
}

/* A bad request keeps its id only: nothing can be read by it. */
static void make_unusable(struct rd2h_wire_req *q) {
  q->main = q->indexer = NULL;
  q->n_main = q->n_indexer = q->main_start = q->indexer_start = 0;
}

static int take_req(struct rd2h_wire_in *in, uint64_t *left, struct rd2h_wire_req *q) {
  uint32_t fields;
  memset(q, 0, sizeof *q);
  RD2H_TRY(rd2h_wire_take_array(in, "a request", UINT32_MAX, 1, &fields));
  if (fields < 2)
    return rd2h_fail(in->err, RD2H_MALFORMED, "%s: a request has %u fields, at least 2 are needed", in->msg, fields);
  RD2H_TRY(rd2h_wire_take_str(in, "a request id", RD2H_WIRE_MAX_ID, &q->id));
  RD2H_TRY(take_ids(in, "a request's main block ids", left, &q->main, &q->n_main, &q->bad));
  q->indexer = q->main;
  q->n_indexer = q->n_main;
  if (fields > 2)
    RD2H_TRY(take_ids(in, "a request's indexer block ids", left, &q->indexer, &q->n_indexer, &q->bad));
  if (fields > 3)
    RD2H_TRY(take_start(in, "a request's main start", &q->main_start, &q->bad));
  if (fields > 4)
    RD2H_TRY(take_start(in, "a request's indexer start", &q->indexer_start, &q->bad));
  if (fields > 5)
    RD2H_TRY(rd2h_wire_take_attempt(in, &q->has_attempt, q->attempt));
  if (!q->bad && (q->main_start + (uint64_t)q->n_main > ID_END || q->indexer_start + (uint64_t)q->n_indexer > ID_END))
    q->bad = BAD_LENGTH;
  if (q->bad)
    make_unusable(q);
  return fields > 6 ? rd2h_wire_skip(in, "a request's further field", fields - 6) : RD2H_OK;
}

static int take_reqs(struct rd2h_wire_in *in, struct rd2h_wire_ready *m) {
  uint64_t left = RD2H_WIRE_MAX_BLOCKS;
  RD2H_TRY(rd2h_wire_take_array(in, "the list of requests", RD2H_WIRE_MAX_REQS, 3, &m->n_reqs));
  if (m->n_reqs && !(m->req = RD2H_ROOM(in, struct rd2h_wire_req, m->n_reqs)))
    return rd2h_wire_full(in);
  for (uint32_t i = 0; i < m->n_reqs; i++)
    RD2H_TRY(take_req(in, &left, &m->req[i]));
  return RD2H_OK;
}

static int take_done(struct rd2h_wire_in *in, struct rd2h_wire_ready *m) {
  RD2H_TRY(rd2h_wire_take_array(in, "the list of done ids", RD2H_WIRE_MAX_REQS, 1, &m->n_done));
  if (m->n_done && !(m->done = RD2H_ROOM(in, struct rd2h_wire_done, m->n_done)))
    return rd2h_wire_full(in);
  for (uint32_t i = 0; i < m->n_done; i++) {
    memset(&m->done[i], 0, sizeof m->done[i]);
    RD2H_TRY(rd2h_wire_take_str(in, "a done id", RD2H_WIRE_MAX_ID, &m->done[i].id));
  }
  return RD2H_OK;
}

static int take_member(struct rd2h_wire_in *in, struct rd2h_wire_ready *m) {
  RD2H_TRY(rd2h_wire_take_u32(in, "group_member_idx", UINT32_MAX, &m->member));
  return m->member < RD2H_WIRE_MAX_RATIO ? RD2H_OK : rd2h_wire_over(in, "group_member_idx", m->member, RD2H_WIRE_MAX_RATIO - 1);
}

static int take_ratio(struct rd2h_wire_in *in, struct rd2h_wire_ready *m) {
  uint64_t v;
  int64_t below;
  if (!rd2h_mp_uint(&in->r, &v)) {
    if (!rd2h_mp_int(&in->r, &below))
      return rd2h_wire_expected(in, "tp_ratio", "an integer");
    v = 1;
  }
  if (v > RD2H_WIRE_MAX_RATIO)
    return rd2h_wire_over(in, "tp_ratio", v, RD2H_WIRE_MAX_RATIO);
  m->ratio = v ? (uint32_t)v : 1;
  return RD2H_OK;
}

static int take_done_attempts(struct rd2h_wire_in *in, struct rd2h_wire_ready *m) {
  uint32_t n;
  RD2H_TRY(rd2h_wire_take_array(in, "\"att\"", RD2H_WIRE_MAX_REQS, 1, &n));
  if (n != m->n_done)
    return rd2h_fail(in->err, RD2H_MALFORMED, "%s: \"att\" has %u elements for %u done ids", in->msg, n, m->n_done);
  for (uint32_t i = 0; i < n; i++)
    RD2H_TRY(rd2h_wire_take_attempt(in, &m->done[i].has_attempt, m->done[i].attempt));
  return RD2H_OK;
}

static int take_digests(struct rd2h_wire_in *in, struct rd2h_wire_ready *m) {
  if (!rd2h_mp_bin(&in->r, &m->digests))
    return rd2h_wire_expected(in, "\"dig\"", "bytes");
  if (m->digests.n % 4)
    return rd2h_fail(in->err, RD2H_MALFORMED, "%s: \"dig\" has %u bytes, digests have 4 each", in->msg, m->digests.n);
  return RD2H_OK;
}

/* The 8th field when it is a map; anything else there is none of ours. */
static int take_extra(struct rd2h_wire_in *in, struct rd2h_wire_ready *m) {
  uint32_t pairs;
  if (rd2h_mp_peek(&in->r) != RD2H_MP_MAP)
    return rd2h_wire_skip(in, "further field", 1);
  if (!rd2h_mp_map(&in->r, &pairs))
    return rd2h_wire_expected(in, "the 8th field", "a map");
  for (; pairs; pairs--) {
    struct rd2h_str key = {NULL, 0};
    if (!rd2h_mp_str(&in->r, &key))
      RD2H_TRY(rd2h_wire_skip(in, "a key of the 8th field", 1));
    if (key.n == 3 && !memcmp(key.p, "seq", 3)) {
      if (!rd2h_mp_uint(&in->r, &m->seq))
        return rd2h_wire_expected(in, "\"seq\"", "an integer that is not negative");
      m->has_seq = true;
    } else if (key.n == 3 && !memcmp(key.p, "att", 3)) {
      RD2H_TRY(take_done_attempts(in, m));
    } else if (key.n == 3 && !memcmp(key.p, "dig", 3)) {
      RD2H_TRY(take_digests(in, m));
    } else {
      RD2H_TRY(rd2h_wire_skip(in, "an unknown key's value", 1));
    }
  }
  return RD2H_OK;
}

int rd2h_wire_decode_ready(const uint8_t *p, size_t n, struct rd2h_arena *arena, struct rd2h_wire_ready *out, uint32_t *layer_idx,
                           struct rd2h_error *err) {
  struct rd2h_wire_in in = {{p, p + n}, p, p + n, NULL, arena, err};
  struct rd2h_wire_ready m = {.ratio = 1};
  uint32_t fields;
  *layer_idx = UINT32_MAX;
  RD2H_TRY(rd2h_wire_open(&in, RD2H_MSG_READY, 2, &fields));
  RD2H_TRY(rd2h_wire_take_u32(&in, "the layer index", INT32_MAX, &m.layer_idx));
  *layer_idx = m.layer_idx;
  if (fields < 4)
    return rd2h_fail(err, RD2H_MALFORMED, "%s of layer %u: %u fields, at least 4 are needed", in.msg, m.layer_idx, fields);
  RD2H_TRY(rd2h_wire_take_str(&in, "the layer name", RD2H_WIRE_MAX_NAME, &m.layer));
  RD2H_TRY(take_reqs(&in, &m));
  if (fields > 4)
    RD2H_TRY(take_done(&in, &m));
  if (fields > 5)
    RD2H_TRY(take_member(&in, &m));
  if (fields > 6)
    RD2H_TRY(take_ratio(&in, &m));
  if (fields > 7)
    RD2H_TRY(take_extra(&in, &m));
  RD2H_TRY(rd2h_wire_close(&in, fields > 8 ? fields - 8 : 0));
  *out = m;
  return RD2H_OK;
}

bool rd2h_wire_ready_seq(const uint8_t *p, size_t n, uint64_t *seq) {
  struct rd2h_error ignored;
  struct rd2h_wire_in in = {{p, p + n}, p, p + n, NULL, NULL, &ignored};
  uint32_t fields, pairs;
  struct rd2h_str key;
  if (rd2h_wire_open(&in, RD2H_MSG_READY, 8, &fields) || rd2h_wire_skip(&in, "a field", 6) || !rd2h_mp_map(&in.r, &pairs))
    return false;
  for (; pairs && rd2h_mp_str(&in.r, &key); pairs--) {
    if (key.n == 3 && !memcmp(key.p, "seq", 3))
      return rd2h_mp_uint(&in.r, seq);
    if (!rd2h_mp_skip(&in.r))
      return false;
  }
  return false;
}

static void put_attempt(struct rd2h_buf *b, bool has, const uint8_t attempt[RD2H_ATTEMPT]) {
  if (has)
    rd2h_mp_put_bin(b, attempt, RD2H_ATTEMPT);
  else
    rd2h_mp_put_nil(b);
}

static bool any_attempt(const struct rd2h_wire_done *done, uint32_t n) {
  for (uint32_t i = 0; i < n; i++)
    if (done[i].has_attempt)
      return true;
  return false;
}

void rd2h_wire_encode_ready_head(struct rd2h_buf *b, uint32_t layer_idx, struct rd2h_str layer, bool extra) {
  const char *tag = rd2h_wire_tag(RD2H_MSG_READY);
  rd2h_mp_put_array(b, extra ? 8 : 7);
  rd2h_mp_put_bin(b, tag, (uint32_t)strlen(tag));
  rd2h_mp_put_uint(b, layer_idx);
  rd2h_mp_put_str(b, layer.p, layer.n);
}

void rd2h_wire_encode_reqs(struct rd2h_buf *b, const struct rd2h_wire_req *req, uint32_t n) {
  rd2h_mp_put_array(b, n);
  for (uint32_t i = 0; i < n; i++) {
    const struct rd2h_wire_req *q = &req[i];
    rd2h_mp_put_array(b, q->has_attempt ? 6 : 5);
    rd2h_mp_put_str(b, q->id.p, q->id.n);
    rd2h_mp_put_ids(b, q->main, q->n_main);
    rd2h_mp_put_ids(b, q->indexer, q->n_indexer);
    rd2h_mp_put_uint(b, q->main_start);
    rd2h_mp_put_uint(b, q->indexer_start);
    if (q->has_attempt)
      rd2h_mp_put_bin(b, q->attempt, RD2H_ATTEMPT);
  }
}

static void put_extra(struct rd2h_buf *b, const struct rd2h_wire_done *done, uint32_t n_done, const uint64_t *seq,
                      struct rd2h_str digests) {
  bool attempts = any_attempt(done, n_done);
  rd2h_mp_put_map(b, (uint32_t)!!seq + attempts + !!digests.n);
  if (seq) {
    rd2h_mp_put_str(b, "seq", 3);
    rd2h_mp_put_uint(b, *seq);
  }
  if (attempts) {
    rd2h_mp_put_str(b, "att", 3);
    rd2h_mp_put_array(b, n_done);
    for (uint32_t i = 0; i < n_done; i++)
      put_attempt(b, done[i].has_attempt, done[i].attempt);
  }
  if (digests.n) {
    rd2h_mp_put_str(b, "dig", 3);
    rd2h_mp_put_bin(b, digests.p, digests.n);
  }
}

static void put_tail(struct rd2h_buf *b, const struct rd2h_wire_done *done, uint32_t n_done, uint32_t member, uint32_t ratio) {
  rd2h_mp_put_array(b, n_done);
  for (uint32_t i = 0; i < n_done; i++)
    rd2h_mp_put_str(b, done[i].id.p, done[i].id.n);
  rd2h_mp_put_uint(b, member);
  rd2h_mp_put_uint(b, ratio);
}

void rd2h_wire_encode_ready_tail(struct rd2h_buf *b, const struct rd2h_wire_done *done, uint32_t n_done, uint32_t member,
                                 uint32_t ratio, bool has_seq, uint64_t seq, struct rd2h_str digests) {
  put_tail(b, done, n_done, member, ratio);
  if (has_seq)
    put_extra(b, done, n_done, &seq, digests);
}

void rd2h_wire_encode_ready(struct rd2h_buf *b, const struct rd2h_wire_ready *m) {
  bool extra = m->has_seq || m->digests.n || any_attempt(m->done, m->n_done);
  rd2h_wire_encode_ready_head(b, m->layer_idx, m->layer, extra);
  rd2h_wire_encode_reqs(b, m->req, m->n_reqs);
  put_tail(b, m->done, m->n_done, m->member, m->ratio);
  if (extra)
    put_extra(b, m->done, m->n_done, m->has_seq ? &m->seq : NULL, m->digests);
}
