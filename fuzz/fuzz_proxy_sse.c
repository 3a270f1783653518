/* SPDX-License-Identifier: Apache-2.0 */
/* A stream of events gives the same events whole and split in two, and no byte is lost. */
#include <stdlib.h>

#include "proxy/sse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool take(void *ctx, struct px_span event) {
  struct px_buf *out = ctx, scratch = {0};
  struct px_span text;
  rd2h_px_sse_data(event, &scratch, &text);
  rd2h_px_put(out, event);
  rd2h_px_puts(out, "|");
  rd2h_px_free(&scratch);
  return true;
}

static void feed(const uint8_t *data, size_t size, size_t split, struct px_buf *out) {
  struct px_sse s = {0};
  if (!rd2h_px_sse_feed(&s, (struct px_span){(const char *)data, split}, take, out) ||
      !rd2h_px_sse_feed(&s, (struct px_span){(const char *)data + split, size - split}, take, out))
    abort();
  rd2h_px_put(out, px_of(&s.part));
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
