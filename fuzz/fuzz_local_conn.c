/* SPDX-License-Identifier: Apache-2.0 */
/* Connection data of engine local: what decodes must encode to the same bytes. */
#include "engines/local/local.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct rd2h_local_conn c;
  struct rd2h_error err;
  uint8_t again[LOCAL_CONN_MAX];
  uint32_t pid;
  struct rd2h_blob in = {data, (uint32_t)size};
  if (!rd2h_local_decode(in, &c, &err) && (rd2h_local_encode(&c, again) != size || memcmp(again, data, size)))
    __builtin_trap();
  if (!rd2h_local_legacy_pid(in, &pid, &err) && !pid)
    __builtin_trap();
  return 0;
}
