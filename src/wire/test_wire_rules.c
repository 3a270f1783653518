/* SPDX-License-Identifier: Apache-2.0 */
/* The rules one by one: every cap, what is ignored, what makes one request bad and what the whole message. */
#include "base/msgpack.h"
#include "wire/wire.h"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static struct rd2h_buf buf;
static struct rd2h_arena arena;
static struct rd2h_error err;
static char long_text[RD2H_WIRE_MAX_EXT];
#define STR(s) ((struct rd2h_str){s, sizeof(s) - 1})

static int set_up(void **state) {
  (void)state;
  rd2h_buf_reset(&buf);
  memset(long_text, 'x', sizeof long_text);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  rd2h_buf_free(&buf);
  rd2h_arena_free(&arena);
  return 0;
}

static void put_str(const char *s) {
  rd2h_mp_put_str(&buf, s, (uint32_t)strlen(s));
}

static void put_tag(uint32_t fields, const char *tag) {
  rd2h_buf_reset(&buf);
  rd2h_mp_put_array(&buf, fields);
  rd2h_mp_put_bin(&buf, tag, (uint32_t)strlen(tag));
}

static void reserve(void) {
  rd2h_arena_reset(&arena);
  assert_int_equal(rd2h_arena_reserve(&arena, rd2h_wire_arena_need(buf.len)), RD2H_OK);
}

static int ready(struct rd2h_wire_ready *m) {
  uint32_t layer_idx;
  reserve();
  return rd2h_wire_decode_ready(buf.p, buf.len, &arena, m, &layer_idx, &err);
}

static int meta(struct rd2h_wire_meta *m) {
  reserve();
  return rd2h_wire_decode_meta(buf.p, buf.len, &arena, m, &err);
}

static int reply(struct rd2h_wire_reply *m) {
  reserve();
  return rd2h_wire_decode_reply(buf.p, buf.len, &arena, m, &err);
}

/* Writes READ_READY_BATCH with these fields behind the layer name; each is msgpack already. */
#define READY_OF(fields, ...) do { \
    put_tag(fields, "read_ready_batch"); \
    rd2h_mp_put_uint(&buf, 3); \
    put_str("layer"); \
    rd2h_buf_put(&buf, (const uint8_t[]){__VA_ARGS__}, sizeof((const uint8_t[]){__VA_ARGS__})); \
  } while (0)

static void test_kind(void **state) {
  (void)state;
  static const struct {
    const char *tag;
    int kind;
  } row[] = {{"mf_meta", RD2H_MSG_META},       {"read_ready_batch", RD2H_MSG_READY}, {"mf_meta_ack", RD2H_MSG_META_ACK},
             {"mf_meta_nak", RD2H_MSG_META_NAK}, {"read_done", RD2H_MSG_DONE},       {"read_failed", RD2H_MSG_FAILED},
             {"rd2h_cancel", RD2H_MSG_CANCEL}, {"rd2h_ping", RD2H_MSG_PING},         {"rd2h_pong", RD2H_MSG_PONG},
             {"read_don", 0},                  {"read_donee", 0},                    {"", 0}};
  for (size_t i = 0; i < RD2H_COUNT(row); i++) {
    put_tag(1, row[i].tag);
    assert_int_equal(rd2h_wire_kind(buf.p, buf.len), row[i].kind);
    rd2h_buf_reset(&buf);
    rd2h_mp_put_array(&buf, 1);
    put_str(row[i].tag);
    assert_int_equal(rd2h_wire_kind(buf.p, buf.len), 0); /* a str tag is none */
  }
  assert_int_equal(rd2h_wire_kind((const uint8_t *)"ACK", 3), RD2H_MSG_ACK);
  assert_int_equal(rd2h_wire_kind((const uint8_t *)"ACKx", 4), 0);
  assert_int_equal(rd2h_wire_kind((const uint8_t *)"", 0), 0);
}

/* ---- READ_READY_BATCH ---- */
static void test_bad_request_spares_the_others(void **state) {
  (void)state;
  static const struct {
    uint8_t main[10], n_main, start[10], n_start, bad;
  } row[] = {
    {{0x91, 5}, 2, {0}, 1, 0}, {{0x91, 0xff}, 2, {0}, 1, 1}, {{0x91, 0xce, 0x80, 0, 0, 0}, 6, {0}, 1, 1},
    {{0x91, 0xce, 0x7f, 0xff, 0xff, 0xff}, 6, {0}, 1, 0}, {{0x91, 5}, 2, {0xe0}, 1, 2},
    {{0x91, 5}, 2, {0xce, 0x80, 0, 0, 0}, 5, 2}, {{0x91, 5}, 2, {0xcf, 0, 0, 0, 1, 0, 0, 0, 0}, 9, 2},
    {{0x91, 5}, 2, {0xce, 0x7f, 0xff, 0xff, 0xff}, 5, 0}, {{0x92, 5, 6}, 3, {0xce, 0x7f, 0xff, 0xff, 0xff}, 5, 3},
  };
  for (size_t i = 0; i < RD2H_COUNT(row); i++)
    for (int part = 0; part < 2; part++) { /* the same of the main and of the indexer part */
      struct rd2h_wire_ready m;
      READY_OF(4, 0x92, 0x95, 0xa1, 'a');
      const uint8_t good[] = {0x91, 7};
      for (int k = 0; k < 2; k++)
        k == part ? rd2h_buf_put(&buf, row[i].main, row[i].n_main) : rd2h_buf_put(&buf, good, sizeof good);
      for (int k = 0; k < 2; k++)
        k == part ? rd2h_buf_put(&buf, row[i].start, row[i].n_start) : rd2h_buf_put(&buf, "", 1);
      rd2h_buf_put(&buf, (const uint8_t[]){0x92, 0xa1, 'b', 0x91, 9}, 5);
      assert_int_equal(ready(&m), RD2H_OK);
      assert_int_equal(m.n_reqs, 2);
      assert_int_equal(m.req[0].bad, row[i].bad);
      assert_int_equal(m.req[0].n_main + m.req[0].n_indexer == 0, row[i].bad != 0);
      assert_int_equal(m.req[1].bad, 0);
      assert_int_equal(m.req[1].main[0], 9);
      assert_ptr_equal(m.req[1].main, m.req[1].indexer);
    }
}

static void test_ready_ignores(void **state) {
  (void)state;
  struct rd2h_wire_ready m;
  READY_OF(10, 0x90, 0x90, 0, 1, 0x81, 0xa1, 'x', 7, 0xc0, 0xc0); /* unknown key, further fields */
  assert_int_equal(ready(&m), RD2H_OK);
  assert_false(m.has_seq);
  READY_OF(8, 0x90, 0x91, 0xa1, 'd', 0, 1, 0x83, 5, 5, 0xa3, 'a', 't', 't', 0x91, 0xc4, 2, 1, 2, 0xa3, 's', 'e', 'q', 9);
  assert_int_equal(ready(&m), RD2H_OK); /* a key that is no string, an attempt of another length */
  assert_true(m.has_seq && m.seq == 9);
  assert_false(m.done[0].has_attempt);
  READY_OF(4, 0x91, 0x98, 0xa1, 'a', 0x90, 0x90, 0, 0, 0xc0, 1, 2); /* no attempt, further fields of a request */
  assert_int_equal(ready(&m), RD2H_OK);
  assert_false(m.req[0].has_attempt);
  READY_OF(4, 0x91, 0x96, 0xa1, 'a', 0x90, 0x90, 0, 0, 0xa1, 'x'); /* a sixth field of somebody else */
  assert_int_equal(ready(&m), RD2H_OK);
  assert_false(m.req[0].has_attempt);
  READY_OF(7, 0x90, 0x90, 0, 0xe0); /* ratio below 1 */
  assert_int_equal(ready(&m), RD2H_OK);
  assert_int_equal(m.ratio, 1);
}

static void test_ready_refuses(void **state) {
  (void)state;
  struct rd2h_wire_ready m;
  READY_OF(8, 0x90, 0x90, 0, 1, 0x81, 0xa3, 's', 'e', 'q', 0xff);
  assert_int_equal(ready(&m), RD2H_MALFORMED);
  READY_OF(8, 0x90, 0x90, 0, 1, 0x81, 0xa3, 'a', 't', 't', 0x91, 0xc0); /* one attempt for no done id */
  assert_int_equal(ready(&m), RD2H_MALFORMED);
  assert_non_null(strstr(err.text, "\"att\" has 1 elements for 0 done ids"));
  READY_OF(4, 0x91, 0x92, 0xa2, 0xc3, 0x28, 0x90); /* an id that is no UTF-8 */
  assert_int_equal(ready(&m), RD2H_MALFORMED);
  READY_OF(4, 0xdd, 0, 1, 0, 0); /* 65 536 requests in no bytes */
  assert_int_equal(ready(&m), RD2H_MALFORMED);
  READY_OF(6, 0x90, 0x90, 0xff); /* member -1 */
  assert_int_equal(ready(&m), RD2H_MALFORMED);
}

static void test_error_says_where(void **state) {
  (void)state;
  struct rd2h_wire_ready m;
  READY_OF(4, 0x91, 0x92, 0xa1, 'a', 0x91, 0xa1, 'z');
  assert_int_equal(ready(&m), RD2H_MALFORMED);
  assert_non_null(strstr(err.text, "READ_READY_BATCH"));
  assert_non_null(strstr(err.text, "main block ids"));
  assert_non_null(strstr(err.text, "a string"));
  READY_OF(4, 0xc0);
  assert_int_equal(ready(&m), RD2H_MALFORMED);
  assert_non_null(strstr(err.text, "at byte 26 of 27 stands nil"));
}

/* ---- caps: at the limit it passes, one more is LIMIT ---- */
static void capped(int rc, bool over) {
  assert_int_equal(rc, over ? RD2H_LIMIT : RD2H_OK);
}

static void test_cap_names_and_ids(void **state) {
  (void)state;
  struct rd2h_wire_req q = {0};
  struct rd2h_wire_done d = {0};
  struct rd2h_wire_ready m = {.layer = STR("l"), .req = &q, .done = &d, .n_reqs = 1, .n_done = 1, .ratio = 1}, got;
  struct rd2h_wire_cancel c = {.text = STR("")}, cancel;
  for (uint32_t over = 0; over < 2; over++) {
    m.layer = (struct rd2h_str){long_text, RD2H_WIRE_MAX_NAME + over};
    q.id = d.id = STR("id");
    rd2h_buf_reset(&buf);
    rd2h_wire_encode_ready(&buf, &m);
    capped(ready(&got), over);
    m.layer = STR("l");
    q.id = (struct rd2h_str){long_text, RD2H_WIRE_MAX_ID + over};
    rd2h_buf_reset(&buf);
    rd2h_wire_encode_ready(&buf, &m);
    capped(ready(&got), over);
    d.id = q.id;
    q.id = STR("id");
    rd2h_buf_reset(&buf);
    rd2h_wire_encode_ready(&buf, &m);
    capped(ready(&got), over);
    c.id = d.id;
    rd2h_buf_reset(&buf);
    rd2h_wire_encode_cancel(&buf, &c);
    capped(rd2h_wire_decode_cancel(buf.p, buf.len, &cancel, &err), over);
  }
}

static void test_cap_member_and_ratio(void **state) {
  (void)state;
  struct rd2h_wire_ready m = {.layer = STR("l"), .ratio = 1}, got;
  for (uint32_t over = 0; over < 2; over++) {
    m.member = RD2H_WIRE_MAX_RATIO - 1 + over;
    m.ratio = RD2H_WIRE_MAX_RATIO;
    rd2h_buf_reset(&buf);
    rd2h_wire_encode_ready(&buf, &m);
    capped(ready(&got), over);
    m.member = 0;
    m.ratio = RD2H_WIRE_MAX_RATIO + over;
    rd2h_buf_reset(&buf);
    rd2h_wire_encode_ready(&buf, &m);
    capped(ready(&got), over);
  }
}

static void test_cap_requests(void **state) {
  (void)state;
  struct rd2h_wire_ready got;
  struct rd2h_wire_reply answer;
  for (uint32_t over = 0; over < 2; over++) {
    put_tag(4, "read_ready_batch");
    rd2h_mp_put_uint(&buf, 3);
    put_str("layer");
    rd2h_mp_put_array(&buf, RD2H_WIRE_MAX_REQS + over);
    for (uint32_t i = 0; i < RD2H_WIRE_MAX_REQS + over; i++)
      rd2h_buf_put(&buf, (const uint8_t[]){0x92, 0xa0, 0x90}, 3);
    capped(ready(&got), over);
    READY_OF(5, 0x90);
    rd2h_mp_put_array(&buf, RD2H_WIRE_MAX_REQS + over);
    for (uint32_t i = 0; i < RD2H_WIRE_MAX_REQS + over; i++)
      rd2h_mp_put_str(&buf, "", 0);
    capped(ready(&got), over);
    put_tag(4, "read_done");
    rd2h_mp_put_uint(&buf, 3);
    rd2h_mp_put_uint(&buf, 1);
    rd2h_mp_put_array(&buf, RD2H_WIRE_MAX_REQS + over);
    for (uint32_t i = 0; i < RD2H_WIRE_MAX_REQS + over; i++)
      rd2h_mp_put_int(&buf, 0);
    capped(reply(&answer), over);
  }
}

static void test_cap_blocks(void **state) {
  (void)state;
  struct rd2h_wire_ready got;
  static const uint8_t zeros[4096];
  for (uint32_t over = 0; over < 2; over++) {
    READY_OF(4, 0x91, 0x93, 0xa1, 'a');
    for (int part = 0; part < 2; part++) { /* it is the sum that counts */
      uint32_t n = RD2H_WIRE_MAX_BLOCKS / 2;
      rd2h_mp_put_array(&buf, n + (part ? over : 0));
      for (uint32_t i = 0; i < n; i += sizeof zeros)
        rd2h_buf_put(&buf, zeros, sizeof zeros);
      rd2h_buf_put(&buf, zeros, part ? over : 0);
    }
    capped(ready(&got), over);
  }
}

/* MF_META of n layers "<i>" with an empty map each; the bin of the layers stays open. */
static size_t open_meta(uint32_t session_len, uint32_t n) {
  put_tag(3, "mf_meta");
  rd2h_mp_put_str(&buf, long_text, session_len);
  size_t at = rd2h_mp_bin_begin(&buf);
  rd2h_mp_put_map(&buf, n);
  return at;
}

static void test_cap_meta(void **state) {
  (void)state;
  struct rd2h_wire_meta m;
  static const char *const arrays[] = {"base_addrs", "block_len", "block_size_scale", "tensor_group_idx"};
  for (uint32_t over = 0; over < 2; over++) {
    rd2h_mp_bin_end(&buf, open_meta(RD2H_WIRE_MAX_NAME + over, 0));
    capped(meta(&m), over);
    size_t at = open_meta(5, RD2H_WIRE_MAX_LAYERS + over);
    for (uint32_t i = 0; i < RD2H_WIRE_MAX_LAYERS + over; i++) {
      rd2h_mp_put_str(&buf, (const char[]){(char)('a' + i / 676 % 26), (char)('a' + i / 26 % 26), (char)('a' + i % 26)}, 3);
      rd2h_mp_put_map(&buf, 0);
    }
    rd2h_mp_bin_end(&buf, at);
    capped(meta(&m), over);
    at = open_meta(5, 1);
    rd2h_mp_put_str(&buf, long_text, RD2H_WIRE_MAX_NAME + over);
    rd2h_mp_put_map(&buf, 0);
    rd2h_mp_bin_end(&buf, at);
    capped(meta(&m), over);
    for (size_t k = 0; k < RD2H_COUNT(arrays); k++) {
      at = open_meta(5, 1);
      put_str("l");
      rd2h_mp_put_map(&buf, 1);
      put_str(arrays[k]);
      rd2h_mp_put_array(&buf, RD2H_WIRE_MAX_TENSORS + over);
      for (uint32_t i = 0; i < RD2H_WIRE_MAX_TENSORS + over; i++)
        rd2h_mp_put_uint(&buf, UINT32_MAX);
      rd2h_mp_bin_end(&buf, at);
      capped(meta(&m), over);
    }
  }
}

static void test_cap_stage(void **state) {
  (void)state;
  struct rd2h_wire_meta m, sent = {.session = STR("s"), .fields = 6, .version = 1, .pp_size = RD2H_WIRE_MAX_RATIO};
  for (uint32_t over = 0; over < 2; over++, sent.pp_size++) {
    rd2h_buf_reset(&buf);
    rd2h_wire_encode_meta(&buf, &sent);
    capped(meta(&m), over);
  }
  sent.pp_size = sent.pp_rank = 2;
  rd2h_buf_reset(&buf);
  rd2h_wire_encode_meta(&buf, &sent);
  assert_int_equal(meta(&m), RD2H_MALFORMED);
  assert_non_null(strstr(err.text, "pp_rank 2 does not lie below pp_size 2"));
}

static void test_cap_text(void **state) {
  (void)state;
  struct rd2h_wire_reply m;
  put_tag(3, "read_failed"); /* a text of somebody else may be longer: it still says that the read failed */
  rd2h_mp_put_uint(&buf, 3);
  rd2h_mp_put_str(&buf, long_text, 5000);
  assert_int_equal(reply(&m), RD2H_OK);
  assert_int_equal(m.text.n, RD2H_WIRE_MAX_TEXT);
  char text[2 * RD2H_WIRE_MAX_TEXT + 1] = {0};
  for (size_t i = 0; i + 3 < sizeof text; i += 3)
    memcpy(text + i, "\xe2\x82\xac", 3);
  rd2h_buf_reset(&buf);
  rd2h_wire_encode_failed(&buf, 3, text, NULL, NULL, 0);
  assert_int_equal(reply(&m), RD2H_OK);
  assert_int_equal(m.text.n, RD2H_WIRE_MAX_TEXT / 3 * 3); /* cut between characters */
  rd2h_buf_reset(&buf);
  rd2h_wire_encode_meta_nak(&buf, "bad \xff\xc3( end\xe2\x82");
  assert_int_equal(reply(&m), RD2H_OK);
  assert_int_equal(m.kind, RD2H_MSG_META_NAK);
  assert_int_equal(m.text.n, 13);
  assert_memory_equal(m.text.p, "bad ?\?( end?\?", 13);
}

/* ---- the extension ---- */
static struct rd2h_wire_ext whole_ext(void) {
  return (struct rd2h_wire_ext){.present = true, .revision = RD2H_EXT_REVISION, .caps = RD2H_CAPS_ALL, .incarnation = {1, 2, 3}};
}

static int ext_in_ack(const struct rd2h_wire_ext *e, struct rd2h_wire_ext *got) {
  struct rd2h_wire_reply m = {0};
  rd2h_buf_reset(&buf);
  rd2h_wire_encode_meta_ack(&buf, e);
  int rc = reply(&m);
  *got = m.ext;
  return rc;
}

static void test_cap_ext(void **state) {
  (void)state;
  static struct rd2h_memory region[RD2H_WIRE_MAX_REGIONS + 1];
  struct rd2h_wire_ext e, got;
  for (uint32_t over = 0; over < 2; over++) {
    e = whole_ext();
    e.n_regions = RD2H_WIRE_MAX_REGIONS + over;
    e.region = region;
    capped(ext_in_ack(&e, &got), over);
    e = whole_ext();
    e.fingerprint = (struct rd2h_str){long_text, RD2H_WIRE_MAX_NAME + over};
    capped(ext_in_ack(&e, &got), over);
    e = whole_ext();
    e.n_engines = 1;
    e.engine[0].name = (struct rd2h_str){long_text, RD2H_WIRE_MAX_NAME + over};
    capped(ext_in_ack(&e, &got), over);
    e = whole_ext();
    ext_in_ack(&e, &got);
    uint32_t bare = (uint32_t)buf.len - 17; /* around it: array head 1, tag 2 + 11, version 1, bin head 2 */
    e.n_engines = 1;
    e.engine[0].conn = (const uint8_t *)long_text;
    e.engine[0].conn_len = RD2H_WIRE_MAX_EXT - bare - 12 + over; /* key 4, two heads, name 1, bin head 5 */
    capped(ext_in_ack(&e, &got), over);
  }
  rd2h_buf_reset(&buf);
  rd2h_mp_put_map(&buf, 1);
  put_str("eng");
  rd2h_mp_put_array(&buf, RD2H_WIRE_MAX_ENGINES + 1);
  for (uint32_t i = 0; i <= RD2H_WIRE_MAX_ENGINES; i++)
    rd2h_buf_put(&buf, (const uint8_t[]){0x92, 0xa0, 0xc4, 0}, 4);
  reserve();
  assert_int_equal(rd2h_wire_decode_ext(buf.p, buf.len, &arena, &got, &err), RD2H_LIMIT);
}

static int decode_ext_of(const uint8_t *pairs, size_t n, uint32_t count, struct rd2h_wire_ext *got) {
  static const uint8_t required[] = {0xa1, 'v', 1, 0xa3, 'i', 'n', 'c', 0xc4, 16, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  rd2h_buf_reset(&buf);
  rd2h_mp_put_map(&buf, count + 2);
  rd2h_buf_put(&buf, required, sizeof required);
  rd2h_buf_put(&buf, pairs, n);
  reserve();
  return rd2h_wire_decode_ext(buf.p, buf.len, &arena, got, &err);
}
#define EXT_OF(got, count, ...) decode_ext_of((const uint8_t[]){__VA_ARGS__}, sizeof((const uint8_t[]){__VA_ARGS__}), count, got)

static void test_ext_takes(void **state) {
  (void)state;
  struct rd2h_wire_ext e;
  assert_int_equal(EXT_OF(&e, 2, 0xa1, 'z', 0x91, 0xc0, 7, 0xa0), RD2H_OK); /* unknown keys, also one that is no string */
  assert_int_equal(e.revision, 1);
  assert_int_equal(e.heads[2], 0);
  assert_int_equal(EXT_OF(&e, 1, 0xa5, 'h', 'e', 'a', 'd', 's', 0x94, 2, 2, 4, 0xc0), RD2H_OK); /* a further field */
  assert_int_equal(e.heads[2], 4);
  assert_int_equal(EXT_OF(&e, 1, 0xa4, 'n', 'b', 'l', 'k', 0x92, 9, 0xcd, 1, 0), RD2H_OK);
  assert_int_equal(e.blocks[0], 9);
  assert_int_equal(e.blocks[1], 256);
}

static void test_ext_refuses(void **state) {
  (void)state;
  struct rd2h_wire_ext e = {0};
  assert_int_equal(EXT_OF(&e, 1, 0xa1, 'v', 1), RD2H_MALFORMED); /* twice */
  assert_int_equal(EXT_OF(&e, 1, 0xa5, 'h', 'e', 'a', 'd', 's', 0x93, 2, 3, 4), RD2H_MALFORMED);
  assert_int_equal(EXT_OF(&e, 1, 0xa5, 'h', 'e', 'a', 'd', 's', 0x92, 2, 3), RD2H_MALFORMED);
  assert_int_equal(EXT_OF(&e, 1, 0xa3, 'r', 'e', 'g', 0x91, 0x92, 0xcf, 255, 255, 255, 255, 255, 255, 255, 255, 1),
                   RD2H_MALFORMED); /* past the end of the address space */
  assert_int_equal(EXT_OF(&e, 1, 0xa3, 'r', 'e', 'g', 0x91, 5), RD2H_MALFORMED);
  assert_int_equal(EXT_OF(&e, 1, 0xa4, 'l', 'i', 'v', 'e', 0xa0), RD2H_MALFORMED);
  assert_int_equal(EXT_OF(&e, 0, 0xc0), RD2H_MALFORMED); /* something behind the map */
  const uint8_t no_v[] = {0x80}, zero_v[] = {0x81, 0xa1, 'v', 0}, short_inc[] = {0x81, 0xa3, 'i', 'n', 'c', 0xc4, 1, 1};
  reserve();
  assert_int_equal(rd2h_wire_decode_ext(no_v, sizeof no_v, &arena, &e, &err), RD2H_MALFORMED);
  assert_non_null(strstr(err.text, "key \"v\" is missing"));
  assert_int_equal(rd2h_wire_decode_ext(zero_v, sizeof zero_v, &arena, &e, &err), RD2H_MALFORMED);
  assert_int_equal(rd2h_wire_decode_ext(short_inc, sizeof short_inc, &arena, &e, &err), RD2H_MALFORMED);
  assert_false(e.present); /* outputs are set only on success */
}

/* One layer map with the extension in the second of two layers, and once more in both: the first one counts. */
static void test_ext_in_any_layer(void **state) {
  (void)state;
  struct rd2h_wire_ext first = whole_ext(), second = whole_ext();
  struct rd2h_wire_meta m;
  second.live_ms = 77;
  for (int both = 0; both < 2; both++) {
    struct rd2h_wire_reply ack;
    size_t at = open_meta(5, 2);
    for (int i = 0; i < 2; i++) {
      put_str(i ? "layer.1" : "layer.0");
      rd2h_mp_put_map(&buf, i || both);
      if (!i && !both)
        continue;
      struct rd2h_buf other = {0};
      put_str("rd2h");
      rd2h_wire_encode_meta_ack(&other, i ? &second : &first); /* its third field is the same bin */
      rd2h_buf_put(&buf, other.p + 15, other.len - 15);
      assert_int_equal(rd2h_wire_decode_reply(other.p, other.len, &arena, &ack, &err), RD2H_OK);
      rd2h_buf_free(&other);
    }
    rd2h_mp_bin_end(&buf, at);
    assert_int_equal(meta(&m), RD2H_OK);
    assert_true(m.ext.present);
    assert_int_equal(m.ext.live_ms, both ? 0 : 77);
  }
}

/* ---- MF_META and replies ---- */
static void test_meta_refuses(void **state) {
  (void)state;
  struct rd2h_wire_meta m;
  for (uint32_t fields = 4; fields <= 7; fields++) {
    put_tag(fields, "mf_meta");
    put_str("s");
    rd2h_mp_put_bin(&buf, "\x80", 1);
    for (uint32_t i = 3; i < fields; i++)
      rd2h_mp_put_uint(&buf, 1 + (i == 5) - (i == 4));
    assert_int_equal(meta(&m), fields == 6 ? RD2H_OK : RD2H_MALFORMED);
  }
  size_t at = open_meta(5, 2);
  for (int i = 0; i < 2; i++) {
    put_str("same");
    rd2h_mp_put_map(&buf, 0);
  }
  rd2h_mp_bin_end(&buf, at);
  assert_int_equal(meta(&m), RD2H_MALFORMED);
  assert_non_null(strstr(err.text, "layer same appears twice"));
  at = open_meta(5, 1);
  put_str("l");
  rd2h_mp_put_map(&buf, 1);
  put_str("has_indexer");
  rd2h_mp_put_uint(&buf, 1);
  rd2h_mp_bin_end(&buf, at);
  assert_int_equal(meta(&m), RD2H_MALFORMED);
  at = open_meta(5, 0);
  rd2h_mp_put_nil(&buf); /* inside the bin, behind the map */
  rd2h_mp_bin_end(&buf, at);
  assert_int_equal(meta(&m), RD2H_MALFORMED);
}

static void test_reply_ignores(void **state) {
  (void)state;
  struct rd2h_wire_reply m;
  put_tag(6, "read_done");
  rd2h_buf_put(&buf, (const uint8_t[]){3, 8, 0x92, 0, 0xef, 0xc0, 0xc0}, 7);
  assert_int_equal(reply(&m), RD2H_OK);
  assert_true(m.has_seq && m.seq == 8 && m.n_status == 2 && m.status[1] == RD2H_SKIPPED);
  put_tag(5, "read_failed");
  rd2h_buf_put(&buf, (const uint8_t[]){3, 0xa1, 't', 0xc0, 0x91, 0xc0}, 6); /* no sequence number: not our fields */
  assert_int_equal(reply(&m), RD2H_OK);
  assert_true(!m.has_seq && !m.n_status && m.text.n == 1);
  put_tag(3, "mf_meta_ack");
  rd2h_buf_put(&buf, (const uint8_t[]){1, 0x80}, 2); /* a map of somebody else */
  assert_int_equal(reply(&m), RD2H_OK);
  assert_false(m.ext.present);
  put_tag(2, "mf_meta_ack");
  rd2h_mp_put_uint(&buf, 2);
  assert_int_equal(reply(&m), RD2H_MALFORMED);
  assert_non_null(strstr(err.text, "version 2, known is 1"));
  put_tag(4, "read_done");
  rd2h_buf_put(&buf, (const uint8_t[]){3, 8, 0x91, 0xa0}, 4);
  assert_int_equal(reply(&m), RD2H_MALFORMED);
  put_tag(2, "read_ready_batch");
  rd2h_mp_put_uint(&buf, 3);
  assert_int_equal(reply(&m), RD2H_MALFORMED); /* not a reply */
}

/* Whatever is wrong with what it carries, the number can be read as long as the frame holds together. */
static void test_number_of_an_unreadable_ready(void **state) {
  (void)state;
  uint64_t seq = 0;
  rd2h_buf_reset(&buf);
  rd2h_wire_encode_ready_head(&buf, 3, STR("layer"), true);
  rd2h_mp_put_nil(&buf); /* where the requests should be */
  rd2h_wire_encode_ready_tail(&buf, NULL, 0, 0, 1, true, 41, (struct rd2h_str){0});
  struct rd2h_wire_ready m;
  assert_int_equal(ready(&m), RD2H_MALFORMED);
  assert_true(rd2h_wire_ready_seq(buf.p, buf.len, &seq));
  assert_int_equal(seq, 41);
  for (size_t n = 0; n < buf.len; n++)
    assert_false(rd2h_wire_ready_seq(buf.p, n, &seq));
  rd2h_buf_reset(&buf);
  rd2h_wire_encode_ready_head(&buf, 3, STR("layer"), false);
  rd2h_wire_encode_reqs(&buf, NULL, 0);
  rd2h_wire_encode_ready_tail(&buf, NULL, 0, 0, 1, false, 0, (struct rd2h_str){0});
  assert_false(rd2h_wire_ready_seq(buf.p, buf.len, &seq)); /* it has none */
}

/* Without digests not a byte is spent on them; with them, the key and 4 bytes each. A part of one is malformed. */
static void test_digests_cost_what_they_are(void **state) {
  (void)state;
  struct rd2h_wire_ready m = {.layer_idx = 3, .layer = STR("layer"), .ratio = 1, .has_seq = true, .seq = 5}, got;
  static const uint8_t without[] = {0x81, 0xa3, 's', 'e', 'q', 5}, with[] = {0xa3, 'd', 'i', 'g', 0xc4, 8};
  rd2h_buf_reset(&buf);
  rd2h_wire_encode_ready(&buf, &m);
  assert_memory_equal(buf.p + buf.len - sizeof without, without, sizeof without);
  size_t bare = buf.len;
  for (uint32_t n = 6; n <= 8; n += 2) {
    m.digests = (struct rd2h_str){"abcdefgh", n};
    rd2h_buf_reset(&buf);
    rd2h_wire_encode_ready(&buf, &m);
    assert_int_equal(ready(&got), n % 4 ? RD2H_MALFORMED : RD2H_OK);
  }
  assert_int_equal(buf.len, bare + sizeof with + 8);
  assert_memory_equal(buf.p + bare, with, sizeof with);
  assert_int_equal(got.digests.n, 8);
  assert_memory_equal(got.digests.p, "abcdefgh", 8);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_kind), cmocka_unit_test(test_bad_request_spares_the_others), cmocka_unit_test(test_ready_ignores),
    cmocka_unit_test(test_ready_refuses), cmocka_unit_test(test_error_says_where), cmocka_unit_test(test_cap_names_and_ids),
    cmocka_unit_test(test_cap_member_and_ratio), cmocka_unit_test(test_cap_requests), cmocka_unit_test(test_cap_blocks),
    cmocka_unit_test(test_cap_meta), cmocka_unit_test(test_cap_stage), cmocka_unit_test(test_cap_text),
    cmocka_unit_test(test_cap_ext), cmocka_unit_test(test_ext_takes), cmocka_unit_test(test_ext_refuses),
    cmocka_unit_test(test_ext_in_any_layer), cmocka_unit_test(test_meta_refuses), cmocka_unit_test(test_reply_ignores),
    cmocka_unit_test(test_number_of_an_unreadable_ready), cmocka_unit_test(test_digests_cost_what_they_are),
  };
  return cmocka_run_group_tests_name("wire_rules", tests, set_up, tear_down);
}
