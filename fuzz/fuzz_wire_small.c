/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes -> CANCEL, PING, PONG: refused, or what was read can be written, and that reads the same. */
#include "wire/wire.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void encode_cancel(const uint8_t *p, size_t n, struct rd2h_buf *b) {
  struct rd2h_wire_cancel m;
  if (rd2h_wire_decode_cancel(p, n, &m, NULL) == RD2H_OK)
    rd2h_wire_encode_cancel(b, &m);
}

static void encode_ping(const uint8_t *p, size_t n, struct rd2h_buf *b) {
  uint64_t value;
  if (rd2h_wire_decode_ping(p, n, &value, NULL) == RD2H_OK)
    rd2h_wire_encode_ping(b, rd2h_wire_kind(p, n) == RD2H_MSG_PONG, value);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  void (*encode)(const uint8_t *, size_t, struct rd2h_buf *) =
    rd2h_wire_kind(data, size) == RD2H_MSG_CANCEL ? encode_cancel : encode_ping;
  struct rd2h_buf one = {0}, two = {0};
  encode(data, size, &one);
  if (one.len) {
    encode(one.p, one.len, &two);
    if (one.len != two.len || memcmp(one.p, two.p, one.len))
      abort();
  }
  rd2h_buf_free(&one);
  rd2h_buf_free(&two);
  return 0;
}
