/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_TEST_STANDIN_H
#define RD2H_TEST_STANDIN_H
/* A library in MemFabric's place, for what the real one cannot be made to do. It reads within one process. */
#include <stdint.h>

struct standin {
  int32_t create_code, register_code, read_code; /* what the calls return */
  uint32_t invisible;   /* so many reads find no peer yet */
  uint32_t hang_ms;     /* that a read takes */
  uint32_t destroy_ms;  /* and an object to be taken down */
  int32_t tls_code;     /* of setting no certificate: 0, as the real library does it, or a refusal */
  uint32_t objects, most_objects, reads, descriptors, registrations;
  int32_t role, op;
  uint32_t device, init_timeout_s;
  char nic[64], id[64], url[64];
  void *const *local;   /* the arrays of the latest read, as they were given */
  const uint64_t *len;
  uint64_t registered[64][2];
};
#endif
