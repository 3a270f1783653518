/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_WORKER_MSGPOOL_H
#define RD2H_WORKER_MSGPOOL_H
/* READY messages that Decode holds while they wait or are read: payload (never copied), arena and decoded view in one slot. Slots
 * are reused, so that in steady state a message costs no allocation; what they hold is bounded in total and by peer. */
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
/* A slot for a payload of n bytes of a peer that holds *peer_held bytes already. NULL with err: LIMIT or NOMEM. A payload for which
 * nothing else is held is always taken, whatever its size. */
struct rd2h_msg *rd2h_msg_take(struct rd2h_msgpool *, size_t n, size_t *peer_held, struct rd2h_error *err);
void rd2h_msg_give(struct rd2h_msgpool *, struct rd2h_msg *, size_t *peer_held);
void rd2h_msgpool_free(struct rd2h_msgpool *); /* busy slots, too */
#endif
