/* SPDX-License-Identifier: Apache-2.0 */
/* Connection data and session of engine memfabric: what decodes must encode to the same bytes. */
#include "engines/memfabric/memfabric.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct mf_conn c;
  struct rd2h_error err;
  uint8_t *copy = malloc(size ? size : 1); /* exact, so that a read behind its end shows */
  if (!copy)
    return 0;
  memcpy(copy, data, size);
  rd2h_mf_session_ok(copy, size);
  if (!rd2h_mf_conn_decode((struct rd2h_blob){copy, (uint32_t)size}, &c, &err)) {
    uint8_t *again = calloc(1, rd2h_mf_conn_bytes(&c));
    if (!again || rd2h_mf_conn_bytes(&c) != size)
      abort();
    rd2h_mf_conn_encode(&c, again);
    if (memcmp(again, data, size))
      abort();
    free(again);
    rd2h_free(c.range);
  }
  free(copy);
  return 0;
}
