/* SPDX-License-Identifier: Apache-2.0 */
/* Properties over random messages: what is written is read back the same, in every legal form of msgpack; a message that was cut,
 * lengthened or damaged is refused or read, but never crashes and never asks for more arena than was promised. */
#include "base/msgpack.h"
#include "wire/test_gen.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#if defined(__SANITIZE_THREAD__)
#define ROUNDS 40 /* there is one thread here: ThreadSanitizer only makes it slow */
#else
#define ROUNDS 300
#endif
static struct gen g;
static struct rd2h_arena arena;
static size_t arena_have;
static struct rd2h_buf buf, again;

static int set_up(void **state) {
  (void)state;
  rd2h_buf_reset(&buf);
  rd2h_buf_reset(&again);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  gen_free(&g);
  rd2h_arena_free(&arena);
  arena_have = 0;
  rd2h_buf_free(&buf);
  rd2h_buf_free(&again);
  return 0;
}

/* An arena with not a byte more than was promised to be enough. */
static void prepare(size_t n) {
  rd2h_arena_reset(&arena);
  arena.cap = arena_have;
  assert_int_equal(rd2h_arena_reserve(&arena, rd2h_wire_arena_need(n)), RD2H_OK);
  arena_have = arena.cap;
  arena.cap = rd2h_wire_arena_need(n);
}

/* Decodes whatever kind the payload is; drops the result. */
static int decode_any(const uint8_t *p, size_t n, uint32_t *layer_idx) {
  union {
    struct rd2h_wire_meta meta;
    struct rd2h_wire_ready ready;
    struct rd2h_wire_reply reply;
    struct rd2h_wire_cancel cancel;
    uint64_t ping;
  } out;
  struct rd2h_error err;
  prepare(n);
  switch (rd2h_wire_kind(p, n)) {
  case RD2H_MSG_META: return rd2h_wire_decode_meta(p, n, &arena, &out.meta, &err);
  case RD2H_MSG_READY: return rd2h_wire_decode_ready(p, n, &arena, &out.ready, layer_idx, &err);
  case RD2H_MSG_CANCEL: return rd2h_wire_decode_cancel(p, n, &out.cancel, &err);
  case RD2H_MSG_PING: case RD2H_MSG_PONG: return rd2h_wire_decode_ping(p, n, &out.ping, &err);
  default: return rd2h_wire_decode_reply(p, n, &arena, &out.reply, &err);
  }
}

static void same_str(struct rd2h_str a, struct rd2h_str b) {
  assert_int_equal(a.n, b.n);
  assert_memory_equal(a.p, b.p, a.n);
}

#define SAME_ARRAY(a, b, n) do { if (n) assert_memory_equal(a, b, (n) * sizeof *(a)); } while (0)

static void same_ext(const struct rd2h_wire_ext *a, const struct rd2h_wire_ext *b) {
  assert_int_equal(a->present, b->present);
  assert_int_equal(a->revision, b->revision);
  assert_int_equal(a->caps, b->caps);
  assert_memory_equal(a->incarnation, b->incarnation, sizeof a->incarnation);
  assert_int_equal(a->live_ms, b->live_ms);
  assert_int_equal(a->n_engines, b->n_engines);
  for (uint32_t i = 0; i < a->n_engines; i++) {
    same_str(a->engine[i].name, b->engine[i].name);
    assert_int_equal(a->engine[i].conn_len, b->engine[i].conn_len);
    assert_memory_equal(a->engine[i].conn, b->engine[i].conn, a->engine[i].conn_len);
  }
  assert_int_equal(a->n_regions, b->n_regions);
  SAME_ARRAY(a->region, b->region, a->n_regions);
  SAME_ARRAY(a->blocks, b->blocks, 2);
  SAME_ARRAY(a->heads, b->heads, 3);
  same_str(a->fingerprint, b->fingerprint);
}

static void same_meta(const struct rd2h_wire_meta *a, const struct rd2h_wire_meta *b) {
  same_str(a->session, b->session);
  assert_int_equal(a->fields, b->fields);
  assert_int_equal(a->version, b->version);
  assert_int_equal(a->pp_rank, b->pp_rank);
  assert_int_equal(a->pp_size, b->pp_size);
  assert_int_equal(a->n_layers, b->n_layers);
  for (uint32_t i = 0; i < a->n_layers; i++) {
    const struct rd2h_wire_layer *x = &a->layer[i], *y = &b->layer[i];
    same_str(x->name, y->name);
    assert_int_equal(x->n_addrs, y->n_addrs);
    assert_int_equal(x->n_lens, y->n_lens);
    assert_int_equal(x->n_scales, y->n_scales);
    assert_int_equal(x->n_groups, y->n_groups);
    SAME_ARRAY(x->addr, y->addr, x->n_addrs);
    SAME_ARRAY(x->len, y->len, x->n_lens);
    SAME_ARRAY(x->scale, y->scale, x->n_scales);
    SAME_ARRAY(x->group, y->group, x->n_groups);
    assert_int_equal(x->main_count, y->main_count);
    assert_int_equal(x->has_indexer, y->has_indexer);
  }
  same_ext(&a->ext, &b->ext);
}

static void same_ready(const struct rd2h_wire_ready *a, const struct rd2h_wire_ready *b) {
  assert_int_equal(a->layer_idx, b->layer_idx);
  same_str(a->layer, b->layer);
  assert_int_equal(a->n_reqs, b->n_reqs);
  for (uint32_t i = 0; i < a->n_reqs; i++) {
    const struct rd2h_wire_req *x = &a->req[i], *y = &b->req[i];
    same_str(x->id, y->id);
    assert_int_equal(x->n_main, y->n_main);
    assert_int_equal(x->n_indexer, y->n_indexer);
    SAME_ARRAY(x->main, y->main, x->n_main);
    SAME_ARRAY(x->indexer, y->indexer, x->n_indexer);
    assert_int_equal(x->main_start, y->main_start);
    assert_int_equal(x->indexer_start, y->indexer_start);
    assert_int_equal(x->bad, y->bad);
    assert_int_equal(x->has_attempt, y->has_attempt);
    assert_memory_equal(x->attempt, y->attempt, RD2H_ATTEMPT);
  }
  assert_int_equal(a->n_done, b->n_done);
  for (uint32_t i = 0; i < a->n_done; i++) {
    same_str(a->done[i].id, b->done[i].id);
    assert_int_equal(a->done[i].has_attempt, b->done[i].has_attempt);
    assert_memory_equal(a->done[i].attempt, b->done[i].attempt, RD2H_ATTEMPT);
  }
  assert_int_equal(a->member, b->member);
  assert_int_equal(a->ratio, b->ratio);
  assert_int_equal(a->has_seq, b->has_seq);
  assert_int_equal(a->seq, b->seq);
  same_str(a->digests, b->digests);
}

/* ---- every legal form: copies a value with its lengths and numbers in a width drawn at random ---- */
static void put_width(struct rd2h_buf *b, const uint8_t *first, uint64_t v, unsigned min, unsigned max) {
  unsigned i = min + gen_below(&g, max - min + 1);
  uint8_t head[9] = {first[i]};
  for (unsigned k = 0, wide = 1u << i; k < wide; k++)
    head[1 + k] = (uint8_t)(v >> (8 * (wide - 1 - k)));
  rd2h_buf_put(b, head, 1 + (1u << i));
}

static unsigned width_for(uint64_t v) {
  return v <= UINT8_MAX ? 0 : v <= UINT16_MAX ? 1 : v <= UINT32_MAX ? 2 : 3;
}

static void loosen_int(struct rd2h_buf *b, struct rd2h_mp *r) {
  int64_t s;
  uint64_t u;
  if (rd2h_mp_uint(r, &u)) {
    if (u <= INT64_MAX && gen_below(&g, 2)) /* a signed form, of a width that leaves room for the sign */
      put_width(b, (const uint8_t[]){0xd0, 0xd1, 0xd2, 0xd3}, u, width_for(2 * u), 3);
    else
      put_width(b, (const uint8_t[]){0xcc, 0xcd, 0xce, 0xcf}, u, width_for(u), 3);
    return;
  }
  assert_true(rd2h_mp_int(r, &s));
  put_width(b, (const uint8_t[]){0xd0, 0xd1, 0xd2, 0xd3}, (uint64_t)s,
            s >= INT8_MIN ? 0 : s >= INT16_MIN ? 1 : s >= INT32_MIN ? 2 : 3, 3);
}

static void loosen(struct rd2h_buf *b, struct rd2h_mp *r) {
  static const uint8_t str[] = {0xd9, 0xda, 0xdb}, bin[] = {0xc4, 0xc5, 0xc6}, array[] = {0, 0xdc, 0xdd}, map[] = {0, 0xde, 0xdf};
  struct rd2h_str s;
  uint32_t n;
  if (rd2h_mp_peek(r) == RD2H_MP_INT) {
    loosen_int(b, r);
  } else if (rd2h_mp_str(r, &s)) {
    put_width(b, str, s.n, width_for(s.n), 2);
    rd2h_buf_put(b, s.p, s.n);
  } else if (rd2h_mp_bin(r, &s)) {
    put_width(b, bin, s.n, width_for(s.n), 2);
    rd2h_buf_put(b, s.p, s.n);
  } else if (rd2h_mp_array(r, &n)) {
    for (put_width(b, array, n, 1 + (width_for(n) == 2), 2); n; n--)
      loosen(b, r);
  } else if (rd2h_mp_map(r, &n)) {
    for (put_width(b, map, n, 1 + (width_for(n) == 2), 2); n; n--) {
      loosen(b, r);
      loosen(b, r);
    }
  } else { /* nil and bool have one form */
    assert_true(rd2h_mp_peek(r) == RD2H_MP_NIL || rd2h_mp_peek(r) == RD2H_MP_BOOL);
    rd2h_buf_put(b, r->p++, 1);
  }
}

static void loosen_all(struct rd2h_buf *out, const struct rd2h_buf *in) {
  struct rd2h_mp r = {in->p, in->p + in->len};
  rd2h_buf_reset(out);
  loosen(out, &r);
  assert_ptr_equal(r.p, r.end);
}

/* MF_META with the map inside its bin loosened, too. */
static void loosen_meta(struct rd2h_buf *out, const struct rd2h_buf *in) {
  struct rd2h_buf map = {0};
  struct rd2h_mp r = {in->p, in->p + in->len};
  struct rd2h_str tag, session, layers;
  uint32_t fields;
  assert_true(rd2h_mp_array(&r, &fields) && rd2h_mp_bin(&r, &tag) && rd2h_mp_str(&r, &session) && rd2h_mp_bin(&r, &layers));
  struct rd2h_mp inner = {(const uint8_t *)layers.p, (const uint8_t *)layers.p + layers.n};
  loosen(&map, &inner);
  rd2h_buf_reset(out);
  rd2h_mp_put_array(out, fields);
  rd2h_mp_put_bin(out, tag.p, tag.n);
  rd2h_mp_put_str(out, session.p, session.n);
  rd2h_mp_put_bin(out, map.p, (uint32_t)map.len);
  while (r.p < r.end)
    loosen(out, &r);
  rd2h_buf_free(&map);
}

static void test_ready_round_trip(void **state) {
  (void)state;
  struct rd2h_wire_ready m, got;
  uint32_t layer_idx;
  for (uint64_t seed = 0; seed < ROUNDS; seed++) {
    gen_start(&g, seed);
    gen_ready(&g, &m);
    rd2h_buf_reset(&buf);
    rd2h_wire_encode_ready(&buf, &m);
    prepare(buf.len);
    assert_int_equal(rd2h_wire_kind(buf.p, buf.len), RD2H_MSG_READY);
    assert_int_equal(rd2h_wire_decode_ready(buf.p, buf.len, &arena, &got, &layer_idx, NULL), RD2H_OK);
    assert_int_equal(layer_idx, m.layer_idx);
    same_ready(&m, &got);
    loosen_all(&again, &buf);
    prepare(again.len);
    assert_int_equal(rd2h_wire_decode_ready(again.p, again.len, &arena, &got, &layer_idx, NULL), RD2H_OK);
    same_ready(&m, &got);
  }
}

static void test_ready_in_parts(void **state) {
  (void)state;
  struct rd2h_wire_ready m;
  for (uint64_t seed = 0; seed < ROUNDS; seed++) {
    gen_start(&g, seed);
    gen_ready(&g, &m);
    for (uint32_t i = 0; i < m.n_done && !m.has_seq; i++)
      m.done[i].has_attempt = false; /* the parts send attempts of done ids only along with a sequence number */
    if (!m.has_seq)
      m.digests.n = 0; /* digests, too */
    rd2h_buf_reset(&buf);
    rd2h_buf_reset(&again);
    rd2h_wire_encode_ready(&buf, &m);
    rd2h_wire_encode_ready_head(&again, m.layer_idx, m.layer, m.has_seq);
    rd2h_wire_encode_reqs(&again, m.req, m.n_reqs);
    rd2h_wire_encode_ready_tail(&again, m.done, m.n_done, m.member, m.ratio, m.has_seq, m.seq, m.digests);
    assert_int_equal(buf.len, again.len);
    assert_memory_equal(buf.p, again.p, buf.len);
  }
}

static void test_meta_round_trip(void **state) {
  (void)state;
  struct rd2h_wire_meta m, got;
  for (uint64_t seed = 0; seed < ROUNDS; seed++) {
    gen_start(&g, seed);
    gen_meta(&g, &m);
    rd2h_buf_reset(&buf);
    rd2h_wire_encode_meta(&buf, &m);
    prepare(buf.len);
    assert_int_equal(rd2h_wire_decode_meta(buf.p, buf.len, &arena, &got, NULL), RD2H_OK);
    same_meta(&m, &got);
    loosen_meta(&again, &buf);
    prepare(again.len);
    assert_int_equal(rd2h_wire_decode_meta(again.p, again.len, &arena, &got, NULL), RD2H_OK);
    same_meta(&m, &got);
  }
}

static void check_reply(const struct rd2h_buf *b, enum rd2h_wire_kind kind, uint32_t layer, struct rd2h_str text,
                        const uint64_t *seq, const struct rd2h_wire_req *q, uint32_t n) {
  struct rd2h_wire_reply got;
  prepare(b->len);
  assert_int_equal(rd2h_wire_decode_reply(b->p, b->len, &arena, &got, NULL), RD2H_OK);
  assert_int_equal(got.kind, kind);
  assert_int_equal(got.layer_idx, layer);
  same_str(got.text, text);
  assert_int_equal(got.has_seq, seq != NULL);
  assert_int_equal(got.seq, seq ? *seq : 0);
  assert_int_equal(got.n_status, seq ? n : 0);
  for (uint32_t i = 0; i < got.n_status; i++)
    assert_int_equal(got.status[i], q[i].status);
}

static void test_reply_round_trip(void **state) {
  (void)state;
  const struct rd2h_str none = {"", 0};
  for (uint64_t seed = 0; seed < ROUNDS; seed++) {
    gen_start(&g, seed);
    uint32_t layer = (uint32_t)gen_number(&g, INT32_MAX), n = (uint32_t)gen_number(&g, 100);
    struct rd2h_wire_req *q = gen_outcomes(&g, n);
    struct rd2h_str text = gen_str(&g, RD2H_WIRE_MAX_TEXT);
    uint64_t number = gen_number(&g, UINT64_MAX), *seq = gen_below(&g, 2) ? &number : NULL;
    rd2h_buf_reset(&buf);
    rd2h_wire_encode_done(&buf, layer, seq, q, n);
    check_reply(&buf, RD2H_MSG_DONE, layer, none, seq, q, n);
    loosen_all(&again, &buf);
    check_reply(&again, RD2H_MSG_DONE, layer, none, seq, q, n);
    rd2h_buf_reset(&buf);
    rd2h_wire_encode_failed(&buf, layer, text.p, seq, q, n);
    check_reply(&buf, RD2H_MSG_FAILED, layer, text, seq, q, n);
    loosen_all(&again, &buf);
    check_reply(&again, RD2H_MSG_FAILED, layer, text, seq, q, n);
    rd2h_buf_reset(&buf);
    rd2h_wire_encode_meta_nak(&buf, text.p);
    check_reply(&buf, RD2H_MSG_META_NAK, 0, text, NULL, NULL, 0);
  }
}

static void test_ack_round_trip(void **state) {
  (void)state;
  struct rd2h_wire_reply got;
  struct rd2h_wire_ext ext;
  rd2h_wire_encode_ack(&buf);
  check_reply(&buf, RD2H_MSG_ACK, 0, (struct rd2h_str){"", 0}, NULL, NULL, 0);
  for (uint64_t seed = 0; seed < ROUNDS; seed++) {
    gen_start(&g, seed);
    gen_ext(&g, &ext);
    rd2h_buf_reset(&buf);
    rd2h_wire_encode_meta_ack(&buf, seed ? &ext : NULL);
    prepare(buf.len);
    assert_int_equal(rd2h_wire_decode_reply(buf.p, buf.len, &arena, &got, NULL), RD2H_OK);
    assert_int_equal(got.kind, RD2H_MSG_META_ACK);
    if (seed)
      same_ext(&ext, &got.ext);
    else
      assert_false(got.ext.present);
  }
}

static void test_small_round_trip(void **state) {
  (void)state;
  struct rd2h_wire_cancel m, got;
  for (uint64_t seed = 0; seed < ROUNDS; seed++) {
    gen_start(&g, seed);
    gen_cancel(&g, &m);
    rd2h_buf_reset(&buf);
    rd2h_wire_encode_cancel(&buf, &m);
    loosen_all(&again, &buf);
    for (int i = 0; i < 2; i++) {
      assert_int_equal(rd2h_wire_decode_cancel(i ? again.p : buf.p, i ? again.len : buf.len, &got, NULL), RD2H_OK);
      same_str(got.id, m.id);
      same_str(got.text, m.text);
      assert_int_equal(got.status, m.status);
      assert_int_equal(got.has_attempt, m.has_attempt);
      assert_memory_equal(got.attempt, m.attempt, RD2H_ATTEMPT);
    }
    uint64_t value = gen_number(&g, UINT64_MAX), back = ~value;
    rd2h_buf_reset(&buf);
    rd2h_wire_encode_ping(&buf, seed % 2, value);
    assert_int_equal(rd2h_wire_kind(buf.p, buf.len), seed % 2 ? RD2H_MSG_PONG : RD2H_MSG_PING);
    assert_int_equal(rd2h_wire_decode_ping(buf.p, buf.len, &back, NULL), RD2H_OK);
    assert_int_equal(back, value);
  }
}

/* One random message of any kind. */
static void gen_any(uint64_t seed, struct rd2h_buf *b) {
  union {
    struct rd2h_wire_meta meta;
    struct rd2h_wire_ready ready;
    struct rd2h_wire_cancel cancel;
    struct rd2h_wire_ext ext;
  } m;
  gen_start(&g, seed);
  rd2h_buf_reset(b);
  uint64_t seq = gen_number(&g, UINT64_MAX);
  switch (seed % 7) {
  case 0: gen_meta(&g, &m.meta); rd2h_wire_encode_meta(b, &m.meta); break;
  case 1: gen_ready(&g, &m.ready); rd2h_wire_encode_ready(b, &m.ready); break;
  case 2: gen_cancel(&g, &m.cancel); rd2h_wire_encode_cancel(b, &m.cancel); break;
  case 3: gen_ext(&g, &m.ext); rd2h_wire_encode_meta_ack(b, &m.ext); break;
  case 4: rd2h_wire_encode_done(b, 3, &seq, gen_outcomes(&g, 9), 9); break;
  case 5: rd2h_wire_encode_failed(b, 3, gen_str(&g, 99).p, &seq, gen_outcomes(&g, 9), 9); break;
  default: rd2h_wire_encode_ping(b, seed % 2, seq); break;
  }
}

static void test_cut_at_every_byte(void **state) {
  (void)state;
  uint32_t layer_idx;
  for (uint64_t seed = 0; seed < ROUNDS / 4; seed++) {
    gen_any(seed, &buf);
    uint8_t *copy = malloc(buf.len); /* each cut ends where this does, so that a sanitizer sees a read past it */
    for (size_t cut = 0; cut < buf.len; cut += 1 + buf.len / 3000) {
      uint8_t *p = copy + buf.len - cut;
      memcpy(p, buf.p, cut);
      int rc = decode_any(p, cut, &layer_idx);
      assert_true(rc == RD2H_MALFORMED || rc == RD2H_LIMIT);
    }
    free(copy);
    assert_int_equal(decode_any(buf.p, buf.len, &layer_idx), RD2H_OK);
    rd2h_mp_put_nil(&buf);
    assert_int_equal(decode_any(buf.p, buf.len, &layer_idx), RD2H_MALFORMED);
  }
}

static void test_damaged(void **state) {
  (void)state;
  uint32_t layer_idx, refused = 0;
  for (uint64_t seed = 0; seed < 20 * ROUNDS; seed++) {
    gen_any(seed % ROUNDS, &buf);
    g.state = seed;
    uint8_t *copy = malloc(buf.len);
    memcpy(copy, buf.p, buf.len);
    for (uint32_t hits = 1 + gen_below(&g, 3); hits; hits--)
      copy[gen_below(&g, (uint32_t)buf.len)] = (uint8_t)gen_u64(&g);
    int rc = decode_any(copy, buf.len, &layer_idx);
    assert_true(rc == RD2H_OK || rc == RD2H_MALFORMED || rc == RD2H_LIMIT);
    refused += rc != RD2H_OK;
    free(copy);
  }
  assert_true(refused > ROUNDS);
}

/* Messages that need most arena for their length: of the shortest requests and of the shortest done ids. */
static void test_densest(void **state) {
  (void)state;
  uint32_t layer_idx;
  for (uint32_t n = 0; n <= 5000; n += 1000)
    for (uint32_t reqs = 0; reqs <= n; reqs += n / 2 + 1) {
      rd2h_buf_reset(&buf);
      rd2h_wire_encode_ready_head(&buf, 0, (struct rd2h_str){"", 0}, false);
      rd2h_mp_put_array(&buf, reqs);
      for (uint32_t i = 0; i < reqs; i++)
        rd2h_buf_put(&buf, "\x92\xa0\x90", 3);
      rd2h_mp_put_array(&buf, n - reqs);
      for (uint32_t i = reqs; i < n; i++)
        rd2h_mp_put_str(&buf, "", 0);
      rd2h_buf_put(&buf, "\x00\x01", 2);
      assert_int_equal(decode_any(buf.p, buf.len, &layer_idx), RD2H_OK);
    }
}

/* Decoding allocates nothing, and an arena of any smaller size is refused as such. */
static void test_arena_only(void **state) {
  (void)state;
  uint32_t layer_idx;
  for (uint64_t seed = 0; seed < 4 * 7; seed++) {
    gen_any(seed, &buf);
    prepare(buf.len);
    uint64_t before = rd2h_alloc_count();
    assert_int_equal(decode_any(buf.p, buf.len, &layer_idx), RD2H_OK);
    assert_int_equal(rd2h_alloc_count(), before);
    size_t used = arena.used, whole = arena.cap;
    struct rd2h_wire_meta meta;
    struct rd2h_wire_ready ready;
    struct rd2h_wire_reply reply;
    for (arena.cap = 0; arena.cap < used; arena.cap += 1 + used / 300) {
      rd2h_arena_reset(&arena);
      int kind = rd2h_wire_kind(buf.p, buf.len);
      int rc = kind == RD2H_MSG_META ? rd2h_wire_decode_meta(buf.p, buf.len, &arena, &meta, NULL)
               : kind == RD2H_MSG_READY ? rd2h_wire_decode_ready(buf.p, buf.len, &arena, &ready, &layer_idx, NULL)
                                        : rd2h_wire_decode_reply(buf.p, buf.len, &arena, &reply, NULL);
      assert_int_equal(rc, RD2H_NOMEM);
    }
    arena.cap = whole;
  }
}

/* The n-th allocation of an encoder fails: the buffer says so, whichever it is. */
static void test_encode_out_of_memory(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 7; seed++) {
    struct rd2h_buf b = {0};
    uint64_t n = 0;
    bool failed;
    do {
      rd2h_buf_free(&b);
      gen_start(&g, seed); /* so that the generator's own memory is there before */
      rd2h_alloc_fail_at(++n);
      gen_any(seed, &b);
      rd2h_alloc_fail_at(0);
      failed = b.failed;
    } while (failed);
    assert_true(n > 1);
    gen_any(seed, &buf);
    assert_int_equal(b.len, buf.len);
    assert_memory_equal(b.p, buf.p, b.len);
    rd2h_buf_free(&b);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(test_ready_round_trip, set_up, tear_down),
    cmocka_unit_test_setup_teardown(test_ready_in_parts, set_up, tear_down),
    cmocka_unit_test_setup_teardown(test_meta_round_trip, set_up, tear_down),
    cmocka_unit_test_setup_teardown(test_reply_round_trip, set_up, tear_down),
    cmocka_unit_test_setup_teardown(test_ack_round_trip, set_up, tear_down),
    cmocka_unit_test_setup_teardown(test_small_round_trip, set_up, tear_down),
    cmocka_unit_test_setup_teardown(test_cut_at_every_byte, set_up, tear_down),
    cmocka_unit_test_setup_teardown(test_damaged, set_up, tear_down),
    cmocka_unit_test_setup_teardown(test_densest, set_up, tear_down),
    cmocka_unit_test_setup_teardown(test_arena_only, set_up, tear_down),
    cmocka_unit_test_setup_teardown(test_encode_out_of_memory, set_up, tear_down),
  };
  return cmocka_run_group_tests_name("wire", tests, NULL, NULL);
}
