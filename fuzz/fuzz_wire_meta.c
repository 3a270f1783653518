/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes -> MF_META with or without the extension: refused, or what was read can be written, and that reads the same. */
#include "wire/wire.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int decode(const uint8_t *p, size_t n, struct rd2h_arena *a, struct rd2h_wire_meta *m) {
  if (rd2h_arena_reserve(a, rd2h_wire_arena_need(n)))
    abort();
  int rc = rd2h_wire_decode_meta(p, n, a, m, NULL);
  if (rc == RD2H_NOMEM)
    abort();
  return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct rd2h_arena a = {0}, b = {0};
  struct rd2h_buf one = {0}, two = {0};
  struct rd2h_wire_meta m;
  if (decode(data, size, &a, &m) == RD2H_OK) {
    rd2h_wire_encode_meta(&one, &m);
    if (decode(one.p, one.len, &b, &m))
      abort();
    rd2h_wire_encode_meta(&two, &m);
    if (one.len != two.len || memcmp(one.p, two.p, one.len))
      abort();
  }
  rd2h_buf_free(&one);
  rd2h_buf_free(&two);
  rd2h_arena_free(&a);
  rd2h_arena_free(&b);
  return 0;
}
