/* SPDX-License-Identifier: Apache-2.0 */
/* An independent decoder, msgpack-c, reads what we write: the values are those of the struct, and packing them again gives the
 * same bytes, so every value is in its shortest form. */
#include "wire/test_gen.h"
#include <msgpack.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#if defined(__SANITIZE_THREAD__)
#define ROUNDS 40 /* there is one thread here: ThreadSanitizer only makes it slow */
#else
#define ROUNDS 200
#endif
typedef msgpack_object object;
static struct gen g;
static struct rd2h_buf buf;
static msgpack_unpacked unpacked;

static const object *unpack(msgpack_unpacked *u, const char *p, size_t n) {
  size_t off = 0;
  msgpack_unpacked_init(u);
  assert_int_equal(msgpack_unpack_next(u, p, n, &off), MSGPACK_UNPACK_SUCCESS);
  assert_int_equal(off, n);
  msgpack_sbuffer packed;
  msgpack_packer packer;
  msgpack_sbuffer_init(&packed);
  msgpack_packer_init(&packer, &packed, msgpack_sbuffer_write);
  msgpack_pack_object(&packer, u->data);
  assert_int_equal(packed.size, n);
  assert_memory_equal(packed.data, p, n);
  msgpack_sbuffer_destroy(&packed);
  return &u->data;
}

/* The payload in buf: an array of n fields with this tag. */
static const object *fields_of(uint32_t n, const char *tag) {
  const object *o = unpack(&unpacked, (const char *)buf.p, buf.len);
  assert_int_equal(o->type, MSGPACK_OBJECT_ARRAY);
  assert_int_equal(o->via.array.size, n);
  const object *f = o->via.array.ptr;
  assert_int_equal(f[0].type, MSGPACK_OBJECT_BIN);
  assert_int_equal(f[0].via.bin.size, strlen(tag));
  assert_memory_equal(f[0].via.bin.ptr, tag, strlen(tag));
  return f;
}

static void done_with_it(void) {
  msgpack_unpacked_destroy(&unpacked);
  rd2h_buf_reset(&buf);
}

static void is_uint(const object *o, uint64_t v) {
  assert_int_equal(o->type, MSGPACK_OBJECT_POSITIVE_INTEGER);
  assert_int_equal(o->via.u64, v);
}

static void is_int(const object *o, int64_t v) {
  assert_int_equal(o->type, v < 0 ? MSGPACK_OBJECT_NEGATIVE_INTEGER : MSGPACK_OBJECT_POSITIVE_INTEGER);
  assert_int_equal(o->via.i64, v);
}

static void is_str(const object *o, struct rd2h_str s) {
  assert_int_equal(o->type, MSGPACK_OBJECT_STR);
  assert_int_equal(o->via.str.size, s.n);
  assert_memory_equal(o->via.str.ptr, s.p, s.n);
}

static void is_bin(const object *o, const void *p, uint32_t n) {
  assert_int_equal(o->type, MSGPACK_OBJECT_BIN);
  assert_int_equal(o->via.bin.size, n);
  assert_memory_equal(o->via.bin.ptr, p, n);
}

static const object *is_array(const object *o, uint32_t n) {
  assert_int_equal(o->type, MSGPACK_OBJECT_ARRAY);
  assert_int_equal(o->via.array.size, n);
  return o->via.array.ptr;
}

static void is_u32s(const object *o, const uint32_t *v, uint32_t n) {
  const object *e = is_array(o, n);
  for (uint32_t i = 0; i < n; i++)
    is_uint(&e[i], v[i]);
}

static void is_u64s(const object *o, const uint64_t *v, uint32_t n) {
  const object *e = is_array(o, n);
  for (uint32_t i = 0; i < n; i++)
    is_uint(&e[i], v[i]);
}

/* Value of the i-th key, which must be this one. */
static const object *at_key(const object *map, uint32_t i, const char *key) {
  assert_int_equal(map->type, MSGPACK_OBJECT_MAP);
  assert_true(i < map->via.map.size);
  is_str(&map->via.map.ptr[i].key, (struct rd2h_str){key, (uint32_t)strlen(key)});
  return &map->via.map.ptr[i].val;
}

static void is_attempt(const object *o, bool has, const uint8_t attempt[RD2H_ATTEMPT]) {
  if (has)
    is_bin(o, attempt, RD2H_ATTEMPT);
  else
    assert_int_equal(o->type, MSGPACK_OBJECT_NIL);
}

static void test_ready(void **state) {
  (void)state;
  struct rd2h_wire_ready m;
  for (uint64_t seed = 0; seed < ROUNDS; seed++) {
    gen_start(&g, seed);
    gen_ready(&g, &m);
    uint32_t attempts = 0;
    for (uint32_t i = 0; i < m.n_done; i++)
      attempts |= m.done[i].has_attempt;
    rd2h_wire_encode_ready(&buf, &m);
    const object *f = fields_of(7 + (m.has_seq || attempts || m.digests.n), "read_ready_batch");
    is_uint(&f[1], m.layer_idx);
    is_str(&f[2], m.layer);
    const object *req = is_array(&f[3], m.n_reqs), *done = is_array(&f[4], m.n_done);
    for (uint32_t i = 0; i < m.n_reqs; i++) {
      const struct rd2h_wire_req *q = &m.req[i];
      const object *r = is_array(&req[i], q->has_attempt ? 6 : 5);
      is_str(&r[0], q->id);
      is_u32s(&r[1], q->main, q->n_main);
      is_u32s(&r[2], q->indexer, q->n_indexer);
      is_uint(&r[3], q->main_start);
      is_uint(&r[4], q->indexer_start);
      if (q->has_attempt)
        is_attempt(&r[5], true, q->attempt);
    }
    for (uint32_t i = 0; i < m.n_done; i++)
      is_str(&done[i], m.done[i].id);
    is_uint(&f[5], m.member);
    is_uint(&f[6], m.ratio);
    if (m.has_seq)
      is_uint(at_key(&f[7], 0, "seq"), m.seq);
    if (attempts) {
      const object *att = is_array(at_key(&f[7], m.has_seq, "att"), m.n_done);
      for (uint32_t i = 0; i < m.n_done; i++)
        is_attempt(&att[i], m.done[i].has_attempt, m.done[i].attempt);
    }
    if (m.digests.n) {
      const object *dig = at_key(&f[7], m.has_seq + attempts, "dig");
      assert_int_equal(dig->type, MSGPACK_OBJECT_BIN);
      assert_int_equal(dig->via.bin.size, m.digests.n);
      assert_memory_equal(dig->via.bin.ptr, m.digests.p, m.digests.n);
    }
    done_with_it();
  }
}

/* The keys in their order, those that say nothing left out. */
static void is_ext(const object *o, const struct rd2h_wire_ext *e) {
  msgpack_unpacked inner;
  uint32_t k = 0;
  assert_int_equal(o->type, MSGPACK_OBJECT_BIN);
  const object *map = unpack(&inner, o->via.bin.ptr, o->via.bin.size);
  is_uint(at_key(map, k++, "v"), e->revision);
  is_uint(at_key(map, k++, "caps"), e->caps);
  is_bin(at_key(map, k++, "inc"), e->incarnation, 16);
  if (e->live_ms)
    is_uint(at_key(map, k++, "live"), e->live_ms);
  if (e->n_engines) {
    const object *eng = is_array(at_key(map, k++, "eng"), e->n_engines);
    for (uint32_t i = 0; i < e->n_engines; i++) {
      const object *pair = is_array(&eng[i], 2);
      is_str(&pair[0], e->engine[i].name);
      is_bin(&pair[1], e->engine[i].conn, e->engine[i].conn_len);
    }
  }
  if (e->n_regions) {
    const object *reg = is_array(at_key(map, k++, "reg"), e->n_regions);
    for (uint32_t i = 0; i < e->n_regions; i++)
      is_u64s(&reg[i], (const uint64_t[]){e->region[i].base, e->region[i].len}, 2);
  }
  if (e->blocks[0] || e->blocks[1])
    is_u32s(at_key(map, k++, "nblk"), e->blocks, 2);
  if (e->heads[2])
    is_u32s(at_key(map, k++, "heads"), e->heads, 3);
  if (e->fingerprint.n)
    is_str(at_key(map, k++, "fp"), e->fingerprint);
  assert_int_equal(map->via.map.size, k);
  msgpack_unpacked_destroy(&inner);
}

static void is_layer(const object *map, const struct rd2h_wire_layer *l, const struct rd2h_wire_ext *ext) {
  assert_int_equal(map->via.map.size, ext ? 7 : 6);
  is_u64s(at_key(map, 0, "base_addrs"), l->addr, l->n_addrs);
  is_u64s(at_key(map, 1, "block_len"), l->len, l->n_lens);
  is_u64s(at_key(map, 2, "block_size_scale"), l->scale, l->n_scales);
  const object *group = is_array(at_key(map, 3, "tensor_group_idx"), l->n_groups);
  for (uint32_t i = 0; i < l->n_groups; i++)
    is_int(&group[i], l->group[i]);
  is_uint(at_key(map, 4, "main_tensor_count"), l->main_count);
  const object *flag = at_key(map, 5, "has_indexer");
  assert_int_equal(flag->type, MSGPACK_OBJECT_BOOLEAN);
  assert_int_equal(flag->via.boolean, l->has_indexer);
  if (ext)
    is_ext(at_key(map, 6, "rd2h"), ext);
}

static void test_meta(void **state) {
  (void)state;
  struct rd2h_wire_meta m;
  for (uint64_t seed = 0; seed < ROUNDS; seed++) {
    gen_start(&g, seed);
    gen_meta(&g, &m);
    rd2h_wire_encode_meta(&buf, &m);
    const object *f = fields_of(m.fields, "mf_meta");
    is_str(&f[1], m.session);
    assert_int_equal(f[2].type, MSGPACK_OBJECT_BIN);
    msgpack_unpacked inner;
    const object *layers = unpack(&inner, f[2].via.bin.ptr, f[2].via.bin.size);
    assert_int_equal(layers->type, MSGPACK_OBJECT_MAP);
    assert_int_equal(layers->via.map.size, m.n_layers);
    for (uint32_t i = 0; i < m.n_layers; i++) {
      is_str(&layers->via.map.ptr[i].key, m.layer[i].name);
      is_layer(&layers->via.map.ptr[i].val, &m.layer[i], !i && m.ext.present ? &m.ext : NULL);
    }
    if (m.fields == 6) {
      is_uint(&f[3], m.version);
      is_uint(&f[4], m.pp_rank);
      is_uint(&f[5], m.pp_size);
    }
    msgpack_unpacked_destroy(&inner);
    done_with_it();
  }
}

static void is_outcome(const object *f, uint64_t seq, const struct rd2h_wire_req *q, uint32_t n) {
  is_uint(&f[0], seq);
  const object *status = is_array(&f[1], n);
  for (uint32_t i = 0; i < n; i++)
    is_int(&status[i], q[i].status);
}

static void test_replies(void **state) {
  (void)state;
  struct rd2h_wire_ext ext;
  struct rd2h_wire_cancel cancel;
  for (uint64_t seed = 0; seed < ROUNDS; seed++) {
    gen_start(&g, seed);
    uint32_t layer = (uint32_t)gen_number(&g, INT32_MAX), n = (uint32_t)gen_number(&g, 100);
    uint64_t seq = gen_number(&g, UINT64_MAX);
    struct rd2h_wire_req *q = gen_outcomes(&g, n);
    struct rd2h_str text = gen_str(&g, RD2H_WIRE_MAX_TEXT);
    rd2h_wire_encode_done(&buf, layer, &seq, q, n);
    const object *f = fields_of(4, "read_done");
    is_uint(&f[1], layer);
    is_outcome(&f[2], seq, q, n);
    done_with_it();
    rd2h_wire_encode_failed(&buf, layer, text.p, &seq, q, n);
    f = fields_of(5, "read_failed");
    is_uint(&f[1], layer);
    is_str(&f[2], text);
    is_outcome(&f[3], seq, q, n);
    done_with_it();
    gen_ext(&g, &ext);
    rd2h_wire_encode_meta_ack(&buf, &ext);
    f = fields_of(3, "mf_meta_ack");
    is_uint(&f[1], 1);
    is_ext(&f[2], &ext);
    done_with_it();
    rd2h_wire_encode_meta_nak(&buf, text.p);
    is_str(&fields_of(2, "mf_meta_nak")[1], text);
    done_with_it();
    gen_cancel(&g, &cancel);
    rd2h_wire_encode_cancel(&buf, &cancel);
    f = fields_of(5, "rd2h_cancel");
    is_str(&f[1], cancel.id);
    is_attempt(&f[2], cancel.has_attempt, cancel.attempt);
    is_int(&f[3], cancel.status);
    is_str(&f[4], cancel.text);
    done_with_it();
    rd2h_wire_encode_ping(&buf, seed % 2, seq);
    is_uint(&fields_of(2, seed % 2 ? "rd2h_pong" : "rd2h_ping")[1], seq);
    done_with_it();
  }
}

static int tear_down(void **state) {
  (void)state;
  gen_free(&g);
  rd2h_buf_free(&buf);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_ready), cmocka_unit_test(test_meta), cmocka_unit_test(test_replies)};
  return cmocka_run_group_tests_name("wire_oracle", tests, NULL, tear_down);
}
