/* SPDX-License-Identifier: Apache-2.0 */
/* Heads are read or refused; chunked bodies give the same bytes whole and byte by byte. */
#include <stdlib.h>

#include "proxy/head.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static enum px_chunk_result dechunk(const uint8_t *data, size_t size, size_t step, struct px_buf *out) {
  struct px_chunks c = {0};
  enum px_chunk_result r = PX_CHUNK_MORE;
  for (size_t at = 0; at < size && r == PX_CHUNK_MORE; at += step) {
    struct px_span in = {(const char *)data + at, size - at < step ? size - at : step}, part;
    while ((r = rd2h_px_chunks_read(&c, &in, &part)) == PX_CHUNK_DATA)
      rd2h_px_put(out, part);
  }
  return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct px_buf whole = {0}, bytes = {0};
  static struct px_head head;
  const char *why;
  if (rd2h_px_head_read((struct px_span){(const char *)data, size}, &head, &why) == 0) {
    if (head.target.p[0] != '/' || (head.chunked && head.length) || head.n > PX_MAX_HEADERS)
      abort();
    rd2h_px_lists(rd2h_px_head_get(&head, "connection"), PX_LIT("close"));
  }
  if (size > 0 && (dechunk(data, size, size, &whole) != dechunk(data, size, 1, &bytes) || !px_equal(px_of(&whole), px_of(&bytes))))
    abort();
  rd2h_px_free(&whole);
  rd2h_px_free(&bytes);
  return 0;
}
