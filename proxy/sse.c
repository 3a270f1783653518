/* SPDX-License-Identifier: Apache-2.0 */
#include "proxy/sse.h"

/* Length of the line end at p (LF, CR, CR LF), 0 when there is none. A CR at the very end may be half of one: it counts as none. */
static size_t line_end(const char *p, const char *end) {
  if (p == end)
    return 0;
  if (*p == '\n')
    return 1;
  if (*p != '\r' || p + 1 == end)
    return 0;
  return p[1] == '\n' ? 2 : 1;
}

/* Length of the first event in s with its empty line, looking for that from `from` on; 0: it has not ended. */
static size_t event_length(struct px_span s, size_t from) {
  const char *end = s.p + s.n;
  for (const char *p = s.p + from; p < end; p++) {
    if (*p != '\n' && *p != '\r') {
      const char *lf = memchr(p, '\n', (size_t)(end - p)), *cr = lf ? memchr(p, '\r', (size_t)(lf - p))
                                                                    : memchr(p, '\r', (size_t)(end - p));
      p = cr ? cr : lf;
      if (!p)
        return 0;
    }
    size_t a = line_end(p, end), b = a ? line_end(p + a, end) : 0;
    if (b)
      return (size_t)(p + a + b - s.p);
    if (a == 2)
      p++;
  }
  return 0;
}

/* Hands whole events on; *rest: what follows them. */
static bool drain(struct px_span in, size_t from, px_sse_fn *fn, void *ctx, struct px_span *rest) {
  for (size_t n; in.n && (n = event_length(in, from)) > 0; from = 0) {
    struct px_span event = {in.p, n};
    in.p += n;
    in.n -= n;
    if (!fn(ctx, event))
      return false;
  }
  *rest = in;
  return true;
}

/* Events that were handed on are dropped only now: who took them may have kept them until here. */
static void drop_used(struct px_sse *s) {
  rd2h_px_shift(&s->part, s->used);
  s->used = 0;
  if (s->part.n == 0 && s->part.room > 8192)
    rd2h_px_free(&s->part);
}

bool rd2h_px_sse_feed(struct px_sse *s, struct px_span in, px_sse_fn *fn, void *ctx) {
  struct px_span rest = {NULL, 0};
  drop_used(s);
  if (s->part.n == 0) {
    if (!drain(in, 0, fn, ctx, &rest) || rest.n > PX_SSE_MAX)
      return false;
    rd2h_px_put(&s->part, rest);
    return !s->part.failed;
  }
  size_t seen = s->part.n > 4 ? s->part.n - 4 : 0; /* an empty line may be split */
  if (s->part.n + in.n > PX_SSE_MAX + (1u << 20))
    return false;
  rd2h_px_put(&s->part, in);
  if (s->part.failed || !drain(px_of(&s->part), seen, fn, ctx, &rest) || rest.n > PX_SSE_MAX)
    return false;
  s->used = s->part.n - rest.n;
  return true;
}

struct px_span rd2h_px_sse_rest(const struct px_sse *s) {
  return s->part.n ? (struct px_span){s->part.p + s->used, s->part.n - s->used} : (struct px_span){NULL, 0};
}

void rd2h_px_sse_free(struct px_sse *s) {
  rd2h_px_free(&s->part);
  s->used = 0;
}

bool rd2h_px_sse_data(struct px_span event, struct px_buf *scratch, struct px_span *data) {
  const char *p = event.p, *end = event.p + event.n;
  unsigned lines = 0;
  rd2h_px_clear(scratch);
  while (p < end) {
    const char *stop = p;
    while (stop < end && *stop != '\n' && *stop != '\r')
      stop++;
    if (stop - p >= 5 && memcmp(p, "data:", 5) == 0) {
      p += 5 + (stop - p > 5 && p[5] == ' ');
      struct px_span line = {p, (size_t)(stop - p)};
      if (lines == 1)
        rd2h_px_put(scratch, *data);
      if (lines > 0) {
        rd2h_px_puts(scratch, "\n");
        rd2h_px_put(scratch, line);
      }
      *data = lines++ ? px_of(scratch) : line;
    }
    p = stop + (stop < end);
  }
  return lines > 0 && !scratch->failed;
}
