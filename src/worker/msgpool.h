/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_WORKER_MSGPOOL_H
#define RD2H_WORKER_MSGPOOL_H
/* READY messages that Decode holds while they wait or are read: payload (never copied), arena and decoded view in one slot. A
 * message is decoded with a large scratch arena first, then moves into a slot of the size that it really needs. Slots are
 * reused, so that in steady state a message costs no allocation; what they hold is bounded in total and by peer. */
#include "wire/wire.h"
#include <zmq.h>

struct rd2h_msg {
  struct rd2h_wire_ready ready; /* first: the state machine hands back its address */
  zmq_msg_t payload;
  struct rd2h_arena arena;
  size_t held; /* bytes counted against the limits */
  uint32_t peer;
  struct rd2h_msg *next, *prev; /* in the list of busy or of idle slots */
};
struct rd2h_msgpool {
  struct rd2h_msg *idle, *busy;
  size_t idle_bytes; /* arenas of idle slots */
  size_t held, held_max;
  size_t peer_max;
};
/* Moves a decoded message into a slot: the payload, which is empty afterwards, and what lies in scratch. peer_held: bytes
 * that the peer's messages hold already. NULL with err: LIMIT or NOMEM, and nothing has moved. A message besides which
 * nothing is held is always taken, whatever its size. */
struct rd2h_msg *rd2h_msg_take(struct rd2h_msgpool *, zmq_msg_t *payload, const struct rd2h_wire_ready *,
                               const struct rd2h_arena *scratch, size_t *peer_held, struct rd2h_error *err);
void rd2h_msg_give(struct rd2h_msgpool *, struct rd2h_msg *, size_t *peer_held);
void rd2h_msgpool_free(struct rd2h_msgpool *); /* busy slots, too */
#endif
