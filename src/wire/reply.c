/* SPDX-License-Identifier: Apache-2.0 */
/* Everything that answers, and the small messages between peers that announced themselves; both directions. */
#include "wire/codec.h"

static int read_meta_ack(struct rd2h_wire_in *in, struct rd2h_wire_reply *m) {
  uint32_t fields, version;
  RD2H_TRY(rd2h_wire_open(in, RD2H_MSG_META_ACK, 2, &fields));
  RD2H_TRY(rd2h_wire_take_u32(in, "the version", UINT32_MAX, &version));
  if (version != 1)
    return rd2h_fail(in->err, RD2H_MALFORMED, "%s: version %u, known is 1", in->msg, version);
  if (fields == 2)
    return rd2h_wire_close(in, 0);
  if (rd2h_mp_peek(&in->r) != RD2H_MP_BIN)
    return rd2h_wire_close(in, fields - 2);
  RD2H_TRY(rd2h_wire_take_ext(in, &m->ext));
  return rd2h_wire_close(in, fields - 3);
}

static int read_meta_nak(struct rd2h_wire_in *in, struct rd2h_wire_reply *m) {
  uint32_t fields;
  RD2H_TRY(rd2h_wire_open(in, RD2H_MSG_META_NAK, 1, &fields));
  if (fields > 1)
    RD2H_TRY(rd2h_wire_take_text(in, &m->text));
  return rd2h_wire_close(in, fields > 2 ? fields - 2 : 0);
}

static int take_statuses(struct rd2h_wire_in *in, struct rd2h_wire_reply *m) {
  int32_t *v = NULL;
  uint32_t n;
  RD2H_TRY(rd2h_wire_take_array(in, "the list of statuses", RD2H_WIRE_MAX_REQS, 1, &n));
  if (n && !(v = RD2H_ROOM(in, int32_t, n)))
    return rd2h_wire_full(in);
  for (uint32_t i = 0; i < n; i++)
    RD2H_TRY(rd2h_wire_take_status(in, "a status", &v[i]));
  m->status = v;
  m->n_status = n;
  return RD2H_OK;
}

/* Sequence number and statuses, where those stand; whatever else follows is none of ours. */
static int take_outcome(struct rd2h_wire_in *in, uint32_t fields, struct rd2h_wire_reply *m) {
  if (fields && rd2h_mp_uint(&in->r, &m->seq)) {
    m->has_seq = true;
    fields--;
    if (fields && rd2h_mp_peek(&in->r) == RD2H_MP_ARRAY) {
      RD2H_TRY(take_statuses(in, m));
      fields--;
    }
  }
  return rd2h_wire_close(in, fields);
}

static int read_done(struct rd2h_wire_in *in, struct rd2h_wire_reply *m) {
  uint32_t fields;
  RD2H_TRY(rd2h_wire_open(in, RD2H_MSG_DONE, 2, &fields));
  RD2H_TRY(rd2h_wire_take_u32(in, "the layer index", INT32_MAX, &m->layer_idx));
  return take_outcome(in, fields - 2, m);
}

static int read_failed(struct rd2h_wire_in *in, struct rd2h_wire_reply *m) {
  uint32_t fields;
  RD2H_TRY(rd2h_wire_open(in, RD2H_MSG_FAILED, 2, &fields));
  RD2H_TRY(rd2h_wire_take_u32(in, "the layer index", INT32_MAX, &m->layer_idx));
  if (fields == 2)
    return rd2h_wire_close(in, 0);
  RD2H_TRY(rd2h_wire_take_text(in, &m->text));
  return take_outcome(in, fields - 3, m);
}

int rd2h_wire_decode_reply(const uint8_t *p, size_t n, struct rd2h_arena *arena, struct rd2h_wire_reply *out,
                           struct rd2h_error *err) {
  static int (*const readers[])(struct rd2h_wire_in *, struct rd2h_wire_reply *) = {
    [RD2H_MSG_META_ACK] = read_meta_ack, [RD2H_MSG_META_NAK] = read_meta_nak, [RD2H_MSG_DONE] = read_done,
    [RD2H_MSG_FAILED] = read_failed};
  int kind = rd2h_wire_kind(p, n);
  struct rd2h_wire_in in = {{p, p + n}, p, p + n, "reply", arena, err};
  struct rd2h_wire_reply m = {.kind = (enum rd2h_wire_kind)kind, .text = {"", 0}};
  if (kind != RD2H_MSG_ACK) {
    if ((size_t)kind >= RD2H_COUNT(readers) || !readers[kind])
      return rd2h_fail(err, RD2H_MALFORMED, "a payload of %zu bytes is no reply that is known", n);
    RD2H_TRY(readers[kind](&in, &m));
  }
  *out = m;
  return RD2H_OK;
}

int rd2h_wire_decode_cancel(const uint8_t *p, size_t n, struct rd2h_wire_cancel *out, struct rd2h_error *err) {
  struct rd2h_wire_in in = {{p, p + n}, p, p + n, NULL, NULL, err};
  struct rd2h_wire_cancel m = {0};
  uint32_t fields;
  RD2H_TRY(rd2h_wire_open(&in, RD2H_MSG_CANCEL, 5, &fields));
  RD2H_TRY(rd2h_wire_take_str(&in, "the request id", RD2H_WIRE_MAX_ID, &m.id));
  RD2H_TRY(rd2h_wire_take_attempt(&in, &m.has_attempt, m.attempt));
  RD2H_TRY(rd2h_wire_take_status(&in, "the status", &m.status));
  RD2H_TRY(rd2h_wire_take_text(&in, &m.text));
  RD2H_TRY(rd2h_wire_close(&in, fields - 5));
  *out = m;
  return RD2H_OK;
}

int rd2h_wire_decode_ping(const uint8_t *p, size_t n, uint64_t *value, struct rd2h_error *err) {
  struct rd2h_wire_in in = {{p, p + n}, p, p + n, NULL, NULL, err};
  uint32_t fields;
  uint64_t v;
  RD2H_TRY(rd2h_wire_open(&in, rd2h_wire_kind(p, n) == RD2H_MSG_PONG ? RD2H_MSG_PONG : RD2H_MSG_PING, 2, &fields));
  if (!rd2h_mp_uint(&in.r, &v))
    return rd2h_wire_expected(&in, "the value", "an integer that is not negative");
  RD2H_TRY(rd2h_wire_close(&in, fields - 2));
  *value = v;
  return RD2H_OK;
}

static void put_head(struct rd2h_buf *b, uint32_t fields, enum rd2h_wire_kind kind) {
  const char *tag = rd2h_wire_tag(kind);
  rd2h_mp_put_array(b, fields);
  rd2h_mp_put_bin(b, tag, (uint32_t)strlen(tag));
}

/* Always valid UTF-8, whatever the text quotes: a peer that cannot decode a reply would wait for it. */
static void put_text(struct rd2h_buf *b, const char *s, size_t n) {
  char out[RD2H_WIRE_MAX_TEXT];
  if (n > sizeof out) {
    n = sizeof out;
    while (n && ((uint8_t)s[n] & 0xc0) == 0x80)
      n--;
  }
  for (size_t i = 0; i < n;) {
    size_t good = rd2h_utf8_prefix(s + i, n - i);
    memcpy(out + i, s + i, good);
    i += good;
    if (i < n)
      out[i++] = '?';
  }
  rd2h_mp_put_str(b, out, (uint32_t)n);
}

static void put_statuses(struct rd2h_buf *b, const uint64_t *seq, const struct rd2h_wire_req *reqs, uint32_t n) {
  if (!seq)
    return;
  rd2h_mp_put_uint(b, *seq);
  rd2h_mp_put_array(b, n);
  for (uint32_t i = 0; i < n; i++)
    rd2h_mp_put_int(b, reqs[i].status);
}

void rd2h_wire_encode_ack(struct rd2h_buf *b) {
  rd2h_buf_put(b, "ACK", 3);
}

void rd2h_wire_encode_meta_ack(struct rd2h_buf *b, const struct rd2h_wire_ext *ext) {
  put_head(b, ext ? 3 : 2, RD2H_MSG_META_ACK);
  rd2h_mp_put_uint(b, 1);
  if (ext)
    rd2h_wire_put_ext(b, ext);
}

void rd2h_wire_encode_meta_nak(struct rd2h_buf *b, const char *text) {
  put_head(b, 2, RD2H_MSG_META_NAK);
  put_text(b, text, strlen(text));
}

void rd2h_wire_encode_done(struct rd2h_buf *b, uint32_t layer_idx, const uint64_t *seq, const struct rd2h_wire_req *reqs,
                           uint32_t n) {
  put_head(b, seq ? 4 : 2, RD2H_MSG_DONE);
  rd2h_mp_put_uint(b, layer_idx);
  put_statuses(b, seq, reqs, n);
}

void rd2h_wire_encode_failed(struct rd2h_buf *b, uint32_t layer_idx, const char *text, const uint64_t *seq,
                             const struct rd2h_wire_req *reqs, uint32_t n) {
  put_head(b, seq ? 5 : 3, RD2H_MSG_FAILED);
  rd2h_mp_put_uint(b, layer_idx);
  put_text(b, text, strlen(text));
  put_statuses(b, seq, reqs, n);
}

void rd2h_wire_encode_cancel(struct rd2h_buf *b, const struct rd2h_wire_cancel *m) {
  put_head(b, 5, RD2H_MSG_CANCEL);
  rd2h_mp_put_str(b, m->id.p, m->id.n);
  if (m->has_attempt)
    rd2h_mp_put_bin(b, m->attempt, RD2H_ATTEMPT);
  else
    rd2h_mp_put_nil(b);
  rd2h_mp_put_int(b, m->status);
  put_text(b, m->text.p, m->text.n);
}

void rd2h_wire_encode_ping(struct rd2h_buf *b, bool pong, uint64_t value) {
  put_head(b, 2, pong ? RD2H_MSG_PONG : RD2H_MSG_PING);
  rd2h_mp_put_uint(b, value);
}

void rd2h_wire_encode_draft_failed(struct rd2h_buf *b, const uint8_t *p, size_t n) {
  static const char status[] = "failed";
  struct rd2h_mp r = {p, p + n};
  struct rd2h_str tag, id = {"", 0}, generation = {"", 0};
  uint32_t fields;
  if (rd2h_mp_array(&r, &fields) && rd2h_mp_bin(&r, &tag) && rd2h_mp_str(&r, &id))
    rd2h_mp_str(&r, &generation);
  put_head(b, 4, RD2H_MSG_DRAFT_ACK);
  rd2h_mp_put_str(b, id.p, id.n);
  rd2h_mp_put_str(b, generation.p, generation.n);
  rd2h_mp_put_bin(b, status, sizeof status - 1);
}
