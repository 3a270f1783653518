/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_BASE_MSGPACK_H
#define RD2H_BASE_MSGPACK_H
/* A bounded msgpack reader over memory, and writers that append to a buffer. The reader never allocates, never recurses, and
 * takes every legal form of a value; the writers choose the shortest. */
#include "base/base.h"

struct rd2h_mp {
  const uint8_t *p, *end;
};
enum rd2h_mp_type {
  RD2H_MP_NONE, /* end of the data, or the byte that msgpack never uses */
  RD2H_MP_NIL, RD2H_MP_BOOL, RD2H_MP_INT, RD2H_MP_FLOAT, RD2H_MP_STR, RD2H_MP_BIN, RD2H_MP_ARRAY, RD2H_MP_MAP, RD2H_MP_EXT
};
enum rd2h_mp_type rd2h_mp_peek(const struct rd2h_mp *);
/* What stands next, in words, for errors: "a string", "data that is broken or cut off". */
const char *rd2h_mp_found(const struct rd2h_mp *);

/* Each takes one value and returns true, or returns false and takes nothing: wrong type, out of range, cut off. */
bool rd2h_mp_uint(struct rd2h_mp *, uint64_t *v); /* any integer form of a value >= 0 */
bool rd2h_mp_uint_max(struct rd2h_mp *, uint64_t max, uint32_t *v); /* 0 … max, max < 2^32 */
bool rd2h_mp_int(struct rd2h_mp *, int64_t *v);
bool rd2h_mp_bool(struct rd2h_mp *, bool *v);
bool rd2h_mp_nil(struct rd2h_mp *);
bool rd2h_mp_str(struct rd2h_mp *, struct rd2h_str *); /* valid UTF-8 only */
bool rd2h_mp_bin(struct rd2h_mp *, struct rd2h_str *);
/* The head only. A count that the remaining bytes cannot hold is refused, so it may size an allocation. */
bool rd2h_mp_array(struct rd2h_mp *, uint32_t *n);
bool rd2h_mp_map(struct rd2h_mp *, uint32_t *pairs);
bool rd2h_mp_skip(struct rd2h_mp *); /* one value of any type and depth */
/* n integers in a row, the hot path. *in_range: all lie in 0 … 2^31-1; where one does not, out[] of it is unspecified.
 * False when one of them is no integer or is cut off (then the position is unspecified). */
bool rd2h_mp_ids(struct rd2h_mp *, uint32_t *out, uint32_t n, bool *in_range);

void rd2h_mp_put_nil(struct rd2h_buf *);
void rd2h_mp_put_bool(struct rd2h_buf *, bool);
void rd2h_mp_put_uint(struct rd2h_buf *, uint64_t);
void rd2h_mp_put_int(struct rd2h_buf *, int64_t);
void rd2h_mp_put_str(struct rd2h_buf *, const char *, uint32_t n);
void rd2h_mp_put_bin(struct rd2h_buf *, const void *, uint32_t n);
void rd2h_mp_put_array(struct rd2h_buf *, uint32_t n);
void rd2h_mp_put_map(struct rd2h_buf *, uint32_t pairs);
void rd2h_mp_put_ids(struct rd2h_buf *, const uint32_t *, uint32_t n); /* array head and elements */
/* A bin whose content is written between the two calls; `at` is what begin returned. */
size_t rd2h_mp_bin_begin(struct rd2h_buf *);
void rd2h_mp_bin_end(struct rd2h_buf *, size_t at);

/* Bytes of the longest prefix that is valid UTF-8. */
size_t rd2h_utf8_prefix(const char *, size_t n);
#endif
