/* SPDX-License-Identifier: Apache-2.0
 * The abort fence of a Decode rank: request X and its successor Y want the same block; X may be aborted at any time.
 *
 * A message for X is admitted when it comes (the id is checked under the lock that abort takes) and counted as in flight until its
 * read has ended; an engine thread reads it later. Aborting X makes later messages "skipped"; X is reported, and its block free for
 * Y, only when nothing of it is in flight. A message that was on its way for X may come when Y is there already, under the same
 * external id: its nonce tells it apart.
 *
 * Shown: no read writes a block that another request owns (owner_only); each request is reported once (once); every request that was
 * aborted is reported (reported).
 *
 * BROKEN 1: reported at the abort. 2: a late message of an ended request is admitted. 3: counted only while the read runs, not while
 * it waits for a thread. 4: nonces are ignored. */
#ifndef BROKEN
#define BROKEN 0
#endif
#define MESSAGES 3
#define NONE 0
#define X 1
#define Y 2

byte owner = X;               /* of the block */
bool ended[3], gone[3];       /* ended: no message is admitted; gone: reported */
byte inflight[3], reports[3];
chan wire = [3] of { byte };  /* nonce: X's or Y's */
chan queue = [3] of { byte };

inline try_report(r) {
  if
  :: ended[r] && !gone[r] && (inflight[r] == 0 || BROKEN == 1) ->
    gone[r] = true;
    reports[r]++;
    assert(reports[r] == 1); /* once */
    if
    :: owner == r -> owner = (r == X -> Y : NONE) /* the block is granted again at once */
    :: else
    fi
  :: else
  fi
}

active proctype prefill() {
  byte n = 0;
end:
  do
  :: n < MESSAGES -> wire!X; n++
  :: owner == Y -> wire!Y; break
  od
}

active proctype control() {
  byte nonce, r;
end:
  do
  :: wire?nonce ->
    atomic {
      r = NONE; /* whom the external id names now */
      if
      :: !gone[X] -> r = X
      :: gone[X] && !gone[Y] && owner == Y -> r = Y
      :: else
      fi;
      if
      :: BROKEN == 2 || (r != NONE && (r == nonce || BROKEN == 4) && !ended[r]) ->
        if
        :: BROKEN == 2 -> r = nonce
        :: else
        fi;
        if
        :: BROKEN != 3 -> inflight[r]++
        :: else
        fi;
        queue!nonce * 4 + r
      :: else /* skipped */
      fi
    }
  od
}

active [2] proctype thread() {
  byte job, r;
end:
  do
  :: queue?job ->
    r = job % 4;
    if
    :: BROKEN == 3 -> inflight[r]++
    :: else
    fi;
    assert(owner == r && job / 4 == r); /* owner_only: first piece */
    assert(owner == r);                 /* last piece */
    atomic { inflight[r]--; try_report(r) }
  od
}

active proctype user() {
  atomic { ended[X] = true; try_report(X) }
  owner == Y;
  atomic { ended[Y] = true; try_report(Y) }
}

ltl reported { [] (ended[X] -> <> gone[X]) }
