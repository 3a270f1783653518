/* SPDX-License-Identifier: Apache-2.0 */
/* A stream of events gives the same events whole and split in two, and no byte is lost. */
#include <stdlib.h>

#include "proxy/sse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Events of one feeding lie one behind the other and stay until the next. */
struct got {
  struct px_span events;
  struct px_buf lengths;
};

static bool take(void *ctx, struct px_span event) {
  struct got *got = ctx;
  struct px_buf scratch = {0};
  struct px_span text;
  rd2h_px_sse_data(event, &scratch, &text);
  rd2h_px_free(&scratch);
  if (got->events.n && got->events.p + got->events.n != event.p)
    abort();
  got->events.p = got->events.n ? got->events.p : event.p;
  got->events.n += event.n;
  rd2h_px_printf(&got->lengths, "%zu|", event.n);
  return true;
}

static void feed_part(struct px_sse *s, struct px_span part, struct got *got, struct px_buf *out) {
  got->events.n = 0;
  if (!rd2h_px_sse_feed(s, part, take, got))
    abort();
  rd2h_px_put(out, got->events);
}

static void feed(const uint8_t *data, size_t size, size_t split, struct px_buf *out) {
  struct px_sse s = {0};
  struct got got = {.events = {NULL, 0}};
  feed_part(&s, (struct px_span){(const char *)data, split}, &got, out);
  feed_part(&s, (struct px_span){(const char *)data + split, size - split}, &got, out);
  rd2h_px_put(out, rd2h_px_sse_rest(&s));
  rd2h_px_put(out, px_of(&got.lengths));
  rd2h_px_free(&got.lengths);
  rd2h_px_sse_free(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct px_buf whole = {0}, split = {0};
  if (size < 2)
    return 0;
  feed(data + 1, size - 1, size - 1, &whole);
  feed(data + 1, size - 1, data[0] % size, &split);
  if (!px_equal(px_of(&whole), px_of(&split)))
    abort();
  rd2h_px_free(&whole);
  rd2h_px_free(&split);
  return 0;
}
