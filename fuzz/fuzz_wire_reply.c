/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes -> a reply as Prefill reads it: refused, or within its bounds. */
#include "wire/wire.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
static volatile uint64_t sink; /* keeps touch() from being optimised away */

/* Touches every byte that the reply points at, so that a sanitizer sees a view outside the payload or the arena. */
static uint64_t touch(const struct rd2h_wire_reply *m) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < m->text.n; i++)
    sum += (uint8_t)m->text.p[i];
  for (uint32_t i = 0; i < m->n_status; i++)
    sum += (uint64_t)m->status[i];
  for (uint32_t i = 0; i < m->ext.n_regions; i++)
    sum += m->ext.region[i].base;
  for (uint32_t i = 0; i < m->ext.n_engines; i++)
    for (uint32_t k = 0; k < m->ext.engine[i].conn_len; k++)
      sum += m->ext.engine[i].conn[k];
  return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct rd2h_arena a = {0};
  struct rd2h_wire_reply m;
  if (rd2h_arena_reserve(&a, rd2h_wire_arena_need(size)))
    abort();
  int rc = rd2h_wire_decode_reply(data, size, &a, &m, NULL);
  if (rc == RD2H_NOMEM || (!rc && m.text.n > RD2H_WIRE_MAX_TEXT))
    abort();
  if (!rc)
    sink = touch(&m);
  rd2h_arena_free(&a);
  return 0;
}
