/* SPDX-License-Identifier: Apache-2.0 */
/* Connection data: what decodes must encode to the same bytes; also with the checksum made good, so that the rest is reached. */
#include "engines/memfabric/memfabric.h"

#define SUM_AT 12u

static void try(const uint8_t *p, uint32_t n) {
  struct mf_conn c;
  if (rd2h_mf_conn_decode((struct rd2h_blob){p, n}, &c, NULL))
    return;
  uint8_t *again = rd2h_alloc(rd2h_mf_conn_bytes(&c));
  rd2h_mf_conn_encode(&c, again);
  if (rd2h_mf_conn_bytes(&c) != n || memcmp(again, p, n) || !rd2h_mf_session_ok(c.id, strlen(c.id)))
    __builtin_trap();
  rd2h_free(again);
  rd2h_free(c.range);
}

/* The sum of the encoding, FNV-1a, as conn.c describes it. */
static void mend(uint8_t *p, uint32_t n) {
  uint32_t h = 2166136261u;
  for (uint32_t i = 0; i < n; i++)
    if (i - SUM_AT >= 4)
      h = (h ^ p[i]) * 16777619u;
  for (uint32_t i = 0; i < 4; i++)
    p[SUM_AT + i] = (uint8_t)(h >> 8 * i);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  uint8_t *copy = rd2h_alloc(size ? size : 1); /* exact, so that a read behind its end shows */
  if (!copy)
    return 0;
  memcpy(copy, data, size);
  rd2h_mf_session_ok(copy, size);
  try(copy, (uint32_t)size);
  if (size >= SUM_AT + 4) {
    mend(copy, (uint32_t)size);
    try(copy, (uint32_t)size);
  }
  rd2h_free(copy);
  return 0;
}
