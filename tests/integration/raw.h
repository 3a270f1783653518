/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_TESTS_RAW_H
#define RD2H_TESTS_RAW_H
/* Bare ZMQ peers: a Prefill that sends whatever bytes a test wants, and a Decode that answers whatever it wants. */
#include "tests/integration/rig.h"
#include "wire/wire.h"

struct raw {
  void *ctx, *socket;
  uint16_t port;      /* of a bare Decode */
  uint8_t from[255];  /* identity of the last message's sender */
  size_t from_n;
  struct rd2h_buf in; /* last payload */
};
void raw_prefill(struct raw *, uint16_t port); /* DEALER connected to a Decode rank */
void raw_decode(struct raw *, const int (*options)[2]); /* ROUTER at a port of its own; options: NULL, or pairs that 0 ends */
void raw_close(struct raw *);
void raw_send(struct raw *, const void *p, size_t n); /* to the last sender, where there are several */
void raw_send_frames(struct raw *, const char *const *frames, uint32_t n);
bool raw_receive(struct raw *, int timeout_ms); /* skips empty frames; false: nothing came */
int raw_reply_kind(struct raw *, struct rd2h_wire_reply *); /* kind of the last payload as a reply, 0: none; views into arena */

/* MF_META of a side, as a legacy peer of version 0 (3 fields) or 1 (6 fields) would send it. */
void raw_meta(struct rd2h_buf *, const struct rig_side *, const char *session, uint32_t fields);
/* READY for a layer with a request nobody knows, of n blocks. */
void raw_long_ready(struct rd2h_buf *, uint32_t layer, uint32_t n);
/* READY of the request's blocks [from, to) for a layer; with `done`, its id is named as done. */
void raw_ready(struct rd2h_buf *, const struct rig_side *, uint32_t layer, const struct rig_request *, uint32_t from, uint32_t to,
               bool done);
#endif
