/* SPDX-License-Identifier: Apache-2.0
 * The slot gate of Prefill: one storage slot, written again and again by the forward, read by two Decode ranks.
 *
 * A slot is open exactly while no batch of a living epoch that names it is unanswered. It closes when a layer is dispatched, on the
 * caller's thread; sending comes later. A connection may break at any time: its batches are lost and a new epoch begins, while the
 * reader may go on reading for the old one. A batch may be given up after its hold; its answer may still come.
 *
 * Shown: an answer is accepted only by the batch that it is for, whose bytes are still those that it named (accepted_intact); the forward never
 * waits for ever, whatever the readers do (forward_goes_on).
 *
 * BROKEN 1: closes when the message is sent. 2: a boolean, the first answer opens it. 3: an answer of an old epoch counts. */
#ifndef BROKEN
#define BROKEN 0
#endif
#define READERS 2
#define WRITES 3
#define EPOCHS 2

byte version;                    /* of the bytes in the slot */
byte named[READERS];             /* version that the outstanding batch named; 0: none outstanding */
bool unsent[READERS];            /* dispatched, not yet sent */
byte closed;                     /* batches that hold the gate */
byte epoch[READERS];
bool waiting;
chan ready[READERS] = [2] of { byte, byte };        /* epoch, version */
chan reply[READERS] = [2] of { byte, byte };

inline hold_gate() {
  if
  :: BROKEN == 2 -> closed = 1
  :: else -> closed++
  fi
}

inline open_gate() {
  if
  :: BROKEN == 2 -> closed = 0
  :: else -> closed--
  fi
}

active proctype forward() {
  byte w = 0, r;
  do
  :: w < WRITES ->
    waiting = true;
    closed == 0;
    waiting = false;
    atomic { version++; w++ }
    atomic { /* dispatch: the gate closes before the hook returns */
      r = 0;
      do
      :: r < READERS ->
        if
        :: !unsent[r] && named[r] == 0 ->
          unsent[r] = true;
          named[r] = version;
          if
          :: BROKEN != 1 -> hold_gate()
          :: else
          fi
        :: else /* where the gate is broken, a batch may still be there */
        fi;
        r++
      :: else -> break
      od
    }
  :: else -> break
  od
}

proctype sender(byte r) {
end:
  do
  :: atomic { unsent[r] && nfull(ready[r]) ->
      unsent[r] = false;
      if
      :: BROKEN == 1 -> hold_gate()
      :: else
      fi;
      ready[r]!epoch[r], named[r] }
  od
}

/* Answers, breaks and holds, as the sender thread sees them. */
proctype settle(byte r) {
  byte e, v;
end:
  do
  :: atomic { reply[r]?e, v ->
      if
      :: named[r] && !unsent[r] && (e == epoch[r] || BROKEN == 3) ->
        assert(v == named[r] && version == named[r]); /* accepted_intact */
        named[r] = 0;
        open_gate()
      :: else /* of an old epoch, or given up: nothing */
      fi }
  :: atomic { named[r] && !unsent[r] && epoch[r] < EPOCHS -> /* the connection breaks */
      epoch[r]++;
      named[r] = 0;
      open_gate() }
  :: atomic { named[r] && !unsent[r] -> /* its hold is over: epoch and queue go with it, as no answer can be told from another */
      epoch[r]++;
      named[r] = 0;
      open_gate() }
  od
}

proctype reader(byte r) {
  byte e, v;
end:
  do
  :: ready[r]?e, v ->
    if
    :: reply[r]!e, v      /* read, answered */
    :: skip               /* its process died */
    fi
  od
}

init {
  byte r = 0;
  atomic {
    do
    :: r < READERS -> run sender(r); run settle(r); run reader(r); r++
    :: else -> break
    od
  }
}

ltl forward_goes_on { [] (waiting -> <> !waiting) }
