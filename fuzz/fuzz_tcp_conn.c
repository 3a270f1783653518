/* SPDX-License-Identifier: Apache-2.0 */
/* Connection data: what decodes must encode to the same bytes; also with the checksum made good, so that the rest is reached. */
#include "engines/tcp/tcp.h"

static void try(const uint8_t *p, uint32_t n) {
  struct rd2h_tcp_conn c;
  struct rd2h_error err;
  uint8_t again[TCP_CONN];
  if (rd2h_tcp_conn_decode((struct rd2h_blob){p, n}, &c, &err))
    return;
  rd2h_tcp_conn_encode(&c, again);
  if (n != TCP_CONN || memcmp(again, p, n))
    __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct rd2h_tcp_conn c = {.v6 = size % 2};
  uint8_t good[TCP_CONN];
  try(data, (uint32_t)size);
  if (size < sizeof c.addr + sizeof c.token + 2)
    return 0;
  memcpy(c.addr, data, c.v6 ? 16 : 4);
  memcpy(c.token, data + sizeof c.addr, sizeof c.token);
  memcpy(&c.port, data + sizeof c.addr + sizeof c.token, sizeof c.port);
  rd2h_tcp_conn_encode(&c, good);
  struct rd2h_tcp_conn back;
  if (!rd2h_tcp_conn_decode((struct rd2h_blob){good, sizeof good}, &back, NULL) && (!c.port || memcmp(&back, &c, sizeof c)))
    __builtin_trap();
  return 0;
}
