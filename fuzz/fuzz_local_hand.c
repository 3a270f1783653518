/* SPDX-License-Identifier: Apache-2.0 */
/* What a Prefill's socket says of its shared memory: what is accepted names ascending ranges of pages, and no byte behind its end
 * is looked at. Input: number of descriptors (1), the message. */
#include "engines/local/local.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const uint8_t nonce[LOCAL_NONCE];
  if (!size)
    return 0;
  struct rd2h_local_hand *h = malloc(size > 1 ? size - 1 : 1); /* exact, so that a read behind its end shows */
  memcpy(h, data + 1, size - 1);
  if (!rd2h_local_hand_check(h, size - 1, nonce, data[0])) {
    if (!h->n || h->n > LOCAL_MAPS_MAX || h->n != data[0] || size - 1 != offsetof(struct rd2h_local_hand, map) + h->n * 16)
      __builtin_trap();
    for (uint32_t i = 0; i < h->n; i++)
      if (h->map[i].base + h->map[i].len <= h->map[i].base || (i && h->map[i - 1].base + h->map[i - 1].len > h->map[i].base))
        __builtin_trap();
  }
  free(h);
  return 0;
}
