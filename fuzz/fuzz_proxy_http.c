/* SPDX-License-Identifier: Apache-2.0 */
/* Heads and answers are read or refused; chunked bodies give the same bytes whole and byte by byte. */
#include <stdlib.h>

#include "proxy/head.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static enum px_chunk_result dechunk(const uint8_t *data, size_t size, size_t step, bool trailers, struct px_buf *out) {
  struct px_chunks c = {.trailers = trailers};
  enum px_chunk_result r = PX_CHUNK_MORE;
  for (size_t at = 0; at < size && r == PX_CHUNK_MORE; at += step) {
    struct px_span in = {(const char *)data + at, size - at < step ? size - at : step}, part;
    while ((r = rd2h_px_chunks_read(&c, &in, &part)) == PX_CHUNK_DATA)
      rd2h_px_put(out, part);
  }
  return r;
}

static void check_chunks(const uint8_t *data, size_t size, bool trailers) {
  struct px_buf whole = {0}, bytes = {0};
  if (dechunk(data, size, size, trailers, &whole) != dechunk(data, size, 1, trailers, &bytes) || !px_equal(px_of(&whole), px_of(&bytes)))
    abort();
  rd2h_px_free(&whole);
  rd2h_px_free(&bytes);
}

static void check_answer(struct px_span text) {
  struct px_answer a;
  size_t scanned = 0, bytes = 0, n = rd2h_px_head_length(text, &scanned), step = 0;
  const char *why;
  for (size_t i = 1; i <= text.n && !step; i++)
    step = rd2h_px_head_length((struct px_span){text.p, i}, &bytes);
  if (n != step)
    abort();
  if (rd2h_px_answer_read(text, &a, &why) && (a.chunked + a.until_close > 1 || (a.until_close && a.keep_alive) || a.status < 100))
    abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static struct px_head head;
  const char *why;
  if (rd2h_px_head_read((struct px_span){(const char *)data, size}, &head, &why) == 0) {
    if (head.target.p[0] != '/' || (head.chunked && head.length) || head.n > PX_MAX_HEADERS)
      abort();
    rd2h_px_lists(rd2h_px_head_get(&head, "connection"), PX_LIT("close"));
  }
  if (size == 0)
    return 0;
  check_chunks(data, size, false);
  check_chunks(data, size, true);
  check_answer((struct px_span){(const char *)data, size});
  return 0;
}
