/* SPDX-License-Identifier: Apache-2.0 */
/* What a scan takes, in one piece or in two, can be edited, and what an edit writes is taken again; the two ways to edit agree. */
#include <stdlib.h>

#include "proxy/body.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must_be_good(struct px_rope *r, struct px_buf *b) {
  size_t at;
  const char *why;
  rd2h_px_clear(b);
  rd2h_px_rope_put(r, b);
  if (b->failed || b->n != r->n || !rd2h_px_json_check(px_of(b), &at, &why))
    abort();
}

static void edit_both_ways(struct px_span body, const struct px_scan *scan, struct px_rope *rope, struct px_buf *b) {
  static const struct px_rule rule[] = {{"n", PX_DROP, {NULL, 0}}, {"prompt", PX_SET_IF_THERE, {"[]", 2}}, {"stream", PX_SET, {"0", 1}}};
  struct px_buf other = {0};
  rd2h_px_scan_edit(scan, body, rule, 3, rope);
  must_be_good(rope, b);
  rd2h_px_json_edit(body, rule, 3, &other);
  if (!px_equal(px_of(&other), px_of(b)))
    abort();
  rd2h_px_free(&other);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct px_span body = {(const char *)data, size};
  struct px_scan_plan plan = rd2h_px_body_plan;
  struct px_scan scan = {0}, pieces = {0};
  struct px_buf out = {0}, why = {0};
  struct px_rope rope = {0};
  struct px_ask ask;
  plan.max_elements = 64;
  rd2h_px_scan_begin(&scan, &plan);
  rd2h_px_scan_begin(&pieces, &plan);
  rd2h_px_scan_more(&pieces, (struct px_span){body.p, size ? data[size - 1] % size : 0});
  int status = rd2h_px_ask_read(body, &scan, size & 1 ? PX_CHAT : PX_COMPLETIONS, 64, &ask, &why);
  if (rd2h_px_scan_end(&pieces, body) != !scan.why || !px_equal(px_of(&pieces.members), px_of(&scan.members)))
    abort();
  if (status == 0) {
    rd2h_px_body_decode(body, &scan, PX_LIT("http://[::1]:1/v1/metaserver?token=\"\\"), &rope);
    must_be_good(&rope, &out);
    edit_both_ways(body, &scan, &rope, &out);
    for (int64_t i = -1; i < (int64_t)ask.prompts; i++) {
      rd2h_px_body_prefill(body, &scan, PX_LIT("{\"a\":[]}"), i, &rope);
      must_be_good(&rope, &out);
    }
  }
  rd2h_px_rope_free(&rope);
  rd2h_px_scan_free(&scan);
  rd2h_px_scan_free(&pieces);
  rd2h_px_free(&out);
  rd2h_px_free(&why);
  return 0;
}
