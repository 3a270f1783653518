/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_WIRE_CODEC_H
#define RD2H_WIRE_CODEC_H
/* Shared by the codec's own files: a reader that names what it wanted where, when it does not find it. */
#include "base/msgpack.h"
#include "wire/wire.h"

struct rd2h_wire_in {
  struct rd2h_mp r;
  const uint8_t *start; /* of the payload, for byte numbers in errors */
  const uint8_t *end;
  const char *msg;      /* the message's name, or the part of it that is being read */
  struct rd2h_arena *arena;
  struct rd2h_error *err;
};

#define RD2H_TRY(call) do { int try_rc = (call); if (try_rc) return try_rc; } while (0)

/* Tag of a kind and the name people know it by, NULL for kinds without a tag. */
const char *rd2h_wire_tag(int kind);

/* Array head and tag of a message that must be of this kind; *fields counts the tag. MALFORMED below `min` fields. */
int rd2h_wire_open(struct rd2h_wire_in *, int kind, uint32_t min, uint32_t *fields);
/* Skips `fields` values that this version does not know, then nothing may follow. */
int rd2h_wire_close(struct rd2h_wire_in *, uint32_t fields);

/* MALFORMED: `want` was expected as `what`, and something else stands there. */
int rd2h_wire_expected(const struct rd2h_wire_in *, const char *what, const char *want);
int rd2h_wire_over(const struct rd2h_wire_in *, const char *what, uint64_t got, uint64_t max); /* LIMIT */
int rd2h_wire_take_u32(struct rd2h_wire_in *, const char *what, uint32_t max, uint32_t *v);
int rd2h_wire_take_status(struct rd2h_wire_in *, const char *what, int32_t *v);
int rd2h_wire_take_str(struct rd2h_wire_in *, const char *what, uint32_t max, struct rd2h_str *s);
/* An array of at most `max` elements, each of at least `bytes_each` bytes (so a count that passes may size an allocation). */
int rd2h_wire_take_array(struct rd2h_wire_in *, const char *what, uint32_t max, uint32_t bytes_each, uint32_t *n);
int rd2h_wire_skip(struct rd2h_wire_in *, const char *what, uint32_t values);
/* A bin of 16 bytes when one stands here; any other value is skipped and *has is false. */
int rd2h_wire_take_attempt(struct rd2h_wire_in *, bool *has, uint8_t attempt[RD2H_ATTEMPT]);
/* A text cut to RD2H_WIRE_MAX_TEXT; any other value is skipped and reads as "". */
int rd2h_wire_take_text(struct rd2h_wire_in *, struct rd2h_str *s);
/* n objects from the arena, aligned for T and not zeroed; NULL and NOMEM when it is full. n > 0. */
void *rd2h_wire_room(struct rd2h_arena *, size_t n, size_t size, size_t align);
#define RD2H_ROOM(in, T, n) ((T *)rd2h_wire_room((in)->arena, (n), sizeof(T), _Alignof(T)))
int rd2h_wire_full(const struct rd2h_wire_in *); /* NOMEM: the arena was reserved too small */

/* The extension value: a bin that holds a map. */
int rd2h_wire_take_ext(struct rd2h_wire_in *, struct rd2h_wire_ext *);
void rd2h_wire_put_ext(struct rd2h_buf *, const struct rd2h_wire_ext *);
#endif
