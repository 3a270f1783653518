/* SPDX-License-Identifier: Apache-2.0 */
/* Connection data of engine ucx: as it comes, and again with a checksum that fits, so that what is behind it is reached. What is taken
 * must come out the same when it is written again. */
#include "engines/ucx/ucx.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try(const uint8_t *data, uint32_t size) {
  struct ucx_conn c;
  struct rd2h_error err;
  if (rd2h_ucx_conn_decode((struct rd2h_blob){data, size}, &c, &err))
    return;
  uint8_t *again = malloc(size);
  if (!again || rd2h_ucx_conn_size(&c) != size)
    abort();
  rd2h_ucx_conn_encode(&c, again);
  if (memcmp(again, data, size))
    abort();
  free(again);
  rd2h_free(c.key);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size > 1u << 16)
    return 0;
  uint8_t *copy = malloc(size + 1); /* exact, so that a read behind its end shows */
  if (!copy)
    return 0;
  memcpy(copy, data, size);
  try(copy, (uint32_t)size);
  rd2h_ucx_conn_seal(copy, (uint32_t)size);
  copy = realloc(copy, size ? size : 1);
  try(copy, (uint32_t)size);
  free(copy);
  return 0;
}
