/* SPDX-License-Identifier: Apache-2.0 */
/* Whatever passes the check can be walked, edited and decoded without leaving it, and what an edit writes passes the check again. */
#include <stdlib.h>

#include "proxy/body.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must_be_good(struct px_buf *b) {
  size_t at;
  const char *why;
  if (b->failed || !rd2h_px_json_check(px_of(b), &at, &why))
    abort();
  rd2h_px_clear(b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct px_span body = {(const char *)data, size};
  struct px_buf out = {0}, why = {0};
  struct px_ask ask;
  if (rd2h_px_ask_read(body, size & 1 ? PX_CHAT : PX_COMPLETIONS, 64, &ask, &why) == 0) {
    rd2h_px_body_decode(body, PX_LIT("http://[::1]:1/v1/metaserver?token=\"\\"), &out);
    must_be_good(&out);
    for (int64_t i = -1; i < (int64_t)ask.prompts; i++) {
      rd2h_px_body_prefill(body, PX_LIT("{\"a\":[]}"), i, &out);
      must_be_good(&out);
    }
  }
  rd2h_px_free(&out);
  rd2h_px_free(&why);
  return 0;
}
