/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/codec.h"
#include <assert.h>

static const struct {
  const char *tag, *name;
} kinds[] = {
  [RD2H_MSG_META] = {"mf_meta", "MF_META"},
  [RD2H_MSG_READY] = {"read_ready_batch", "READ_READY_BATCH"},
  [RD2H_MSG_META_ACK] = {"mf_meta_ack", "MF_META_ACK"},
  [RD2H_MSG_META_NAK] = {"mf_meta_nak", "MF_META_NAK"},
  [RD2H_MSG_DONE] = {"read_done", "READ_DONE"},
  [RD2H_MSG_FAILED] = {"read_failed", "READ_FAILED"},
  [RD2H_MSG_CANCEL] = {"rd2h_cancel", "CANCEL"},
  [RD2H_MSG_PING] = {"rd2h_ping", "PING"},
  [RD2H_MSG_PONG] = {"rd2h_pong", "PONG"},
  [RD2H_MSG_DRAFT] = {"dspark_draft_kv", "DRAFT"},
  [RD2H_MSG_DRAFT_ACK] = {"dspark_draft_kv_ack", "DRAFT_ACK"},
};

const char *rd2h_wire_tag(int kind) {
  return kinds[kind].tag;
}

int rd2h_wire_kind(const uint8_t *p, size_t n) {
  struct rd2h_mp r = {p, p + n};
  struct rd2h_str tag;
  uint32_t fields;
  if (n == 3 && !memcmp(p, "ACK", 3))
    return RD2H_MSG_ACK;
  if (!rd2h_mp_array(&r, &fields) || !fields || !rd2h_mp_bin(&r, &tag))
    return 0;
  for (size_t i = 0; i < RD2H_COUNT(kinds); i++)
    if (kinds[i].tag && tag.n == strlen(kinds[i].tag) && !memcmp(tag.p, kinds[i].tag, tag.n))
      return (int)i;
  return 0;
}

int rd2h_wire_open(struct rd2h_wire_in *in, int kind, uint32_t min, uint32_t *fields) {
  in->msg = kinds[kind].name;
  if (rd2h_wire_kind(in->start, (size_t)(in->end - in->start)) != kind)
    return rd2h_fail(in->err, RD2H_MALFORMED, "%s: the payload of %zu bytes is not an array that starts with this tag as bytes",
                     in->msg, (size_t)(in->end - in->start));
  struct rd2h_str tag;
  rd2h_mp_array(&in->r, fields);
  rd2h_mp_bin(&in->r, &tag);
  if (*fields < min)
    return rd2h_fail(in->err, RD2H_MALFORMED, "%s: %u fields, at least %u are needed", in->msg, *fields, min);
  return RD2H_OK;
}

int rd2h_wire_close(struct rd2h_wire_in *in, uint32_t fields) {
  RD2H_TRY(rd2h_wire_skip(in, "further field", fields));
  if (in->r.p != in->r.end)
    return rd2h_fail(in->err, RD2H_MALFORMED, "%s: %zu bytes too many after its end at byte %zu", in->msg,
                     (size_t)(in->r.end - in->r.p), (size_t)(in->r.p - in->start));
  return RD2H_OK;
}

int rd2h_wire_expected(const struct rd2h_wire_in *in, const char *what, const char *want) {
  return rd2h_fail(in->err, RD2H_MALFORMED, "%s: %s should be %s, but at byte %zu of %zu stands %s", in->msg, what, want,
                   (size_t)(in->r.p - in->start), (size_t)(in->end - in->start), rd2h_mp_found(&in->r));
}

int rd2h_wire_over(const struct rd2h_wire_in *in, const char *what, uint64_t got, uint64_t max) {
  return rd2h_fail(in->err, RD2H_LIMIT, "%s: %s is %llu, the limit is %llu", in->msg, what, (unsigned long long)got,
                   (unsigned long long)max);
}

int rd2h_wire_take_u32(struct rd2h_wire_in *in, const char *what, uint32_t max, uint32_t *v) {
  if (rd2h_mp_uint_max(&in->r, max, v))
    return RD2H_OK;
  uint64_t got;
  struct rd2h_mp copy = in->r;
  if (rd2h_mp_uint(&copy, &got))
    return rd2h_fail(in->err, RD2H_MALFORMED, "%s: %s is %llu, the largest that makes sense is %u", in->msg, what,
                     (unsigned long long)got, max);
  return rd2h_wire_expected(in, what, "an integer that is not negative");
}

int rd2h_wire_take_status(struct rd2h_wire_in *in, const char *what, int32_t *v) {
  int64_t got;
  struct rd2h_mp copy = in->r;
  if (!rd2h_mp_int(&copy, &got) || got < INT32_MIN || got > INT32_MAX)
    return rd2h_wire_expected(in, what, "a 32-bit integer");
  in->r = copy;
  *v = (int32_t)got;
  return RD2H_OK;
}

int rd2h_wire_take_str(struct rd2h_wire_in *in, const char *what, uint32_t max, struct rd2h_str *s) {
  struct rd2h_str got;
  if (!rd2h_mp_str(&in->r, &got))
    return rd2h_wire_expected(in, what, "a string of UTF-8");
  if (got.n > max)
    return rd2h_fail(in->err, RD2H_LIMIT, "%s: %s is %u bytes long, the limit is %u", in->msg, what, got.n, max);
  *s = got;
  return RD2H_OK;
}

int rd2h_wire_take_array(struct rd2h_wire_in *in, const char *what, uint32_t max, uint32_t bytes_each, uint32_t *n) {
  struct rd2h_mp copy = in->r;
  uint32_t got;
  if (!rd2h_mp_array(&copy, &got) || (uint64_t)got * bytes_each > (uint64_t)(copy.end - copy.p))
    return rd2h_wire_expected(in, what, "an array");
  if (got > max)
    return rd2h_fail(in->err, RD2H_LIMIT, "%s: %s has %u elements, the limit is %u", in->msg, what, got, max);
  in->r = copy;
  *n = got;
  return RD2H_OK;
}

int rd2h_wire_skip(struct rd2h_wire_in *in, const char *what, uint32_t values) {
  for (; values; values--)
    if (!rd2h_mp_skip(&in->r))
      return rd2h_wire_expected(in, what, "a value");
  return RD2H_OK;
}

int rd2h_wire_take_attempt(struct rd2h_wire_in *in, bool *has, uint8_t attempt[RD2H_ATTEMPT]) {
  struct rd2h_mp copy = in->r;
  struct rd2h_str bin;
  *has = rd2h_mp_bin(&copy, &bin) && bin.n == RD2H_ATTEMPT;
  if (*has)
    memcpy(attempt, bin.p, RD2H_ATTEMPT);
  return rd2h_wire_skip(in, "attempt", 1);
}

int rd2h_wire_take_text(struct rd2h_wire_in *in, struct rd2h_str *s) {
  struct rd2h_mp copy = in->r;
  *s = (struct rd2h_str){"", 0};
  if (rd2h_mp_str(&copy, s) && s->n > RD2H_WIRE_MAX_TEXT)
    s->n = (uint32_t)rd2h_utf8_prefix(s->p, RD2H_WIRE_MAX_TEXT);
  return rd2h_wire_skip(in, "text", 1);
}

void *rd2h_wire_room(struct rd2h_arena *a, size_t n, size_t size, size_t align) {
  size_t at = (a->used + (align - 1)) & ~(align - 1);
  if (!a->p || at > a->cap || n > (a->cap - at) / size)
    return NULL;
  a->used = at + n * size;
  return a->p + at;
}

int rd2h_wire_full(const struct rd2h_wire_in *in) {
  return rd2h_fail(in->err, RD2H_NOMEM, "%s: the arena of %zu bytes is too small for a payload of %zu bytes", in->msg,
                   in->arena->cap, (size_t)(in->end - in->start));
}

static size_t at_most(size_t n, size_t max) {
  return n < max ? n : max;
}

/* Bytes of payload that one element takes at least: a request 3 (head, empty id, empty list), a done id 1, a layer 2 (name, map),
 * an id 1 (and 4 of arena), an address 1 (and 8 of arena, 16 with the scale that is made up for it). */
size_t rd2h_wire_arena_need(size_t n) {
  const size_t req = sizeof(struct rd2h_wire_req), done = sizeof(struct rd2h_wire_done);
  static_assert(sizeof(struct rd2h_wire_req) <= 3 * sizeof(struct rd2h_wire_done), "done ids need most arena for a byte");
  size_t ready = at_most(n * done, RD2H_WIRE_MAX_REQS * (req + done)) + 4 * n;
  size_t meta = at_most(n / 2, RD2H_WIRE_MAX_LAYERS) * sizeof(struct rd2h_wire_layer) + 16 * n;
  return (ready > meta ? ready : meta) + 64; /* alignment of the few arrays */
}
