/* SPDX-License-Identifier: Apache-2.0
 * Done means settled: two batches of one request from a Prefill rank to a Decode rank, then done.
 *
 * Prefill gives up a batch whose answer does not come in its hold; from then on it may overwrite the source, and it never says done
 * for that request there. Decode may read a batch at any time after it came, slowly (in two halves), and may even begin before and
 * end after the give-up. It reports success on done alone.
 *
 * Shown: success means that every half of every batch was read before its source was overwritten (success_intact); done is sent
 * only when every batch was answered (done_settled); Prefill comes to an end whatever Decode does (settles).
 *
 * BROKEN 1: done rides on the last batch. 2: done is sent although a batch was given up. 3: answers before the second half. */
#ifndef BROKEN
#define BROKEN 0
#endif
#define BATCHES 2
#define DONE BATCHES

byte answered, given_up;
bool overwritten, done_sent, settled;
byte torn;       /* halves that were read after their source was overwritten */
byte halves;
bool success;
chan to_d = [3] of { byte, bool };   /* batch or DONE; done rides on it */
chan to_p = [3] of { byte };

active proctype prefill() {
  byte b = 0, got;
  bool zombie[BATCHES];
  do
  :: b < BATCHES -> to_d!b, (BROKEN == 1 && b == BATCHES - 1); b++
  :: else -> break
  od;
  do
  :: answered + given_up < BATCHES ->
    if
    :: to_p?got ->
      if
      :: zombie[got] /* its slot was opened long ago */
      :: else -> answered++; zombie[got] = true
      fi
    :: atomic { given_up++; b = 0;
        do
        :: b < BATCHES && zombie[b] -> b++
        :: else -> break
        od;
        zombie[b] = true; overwritten = true } /* hold is over: the source may go */
    fi
  :: else -> break
  od;
  if
  :: (given_up == 0 || BROKEN == 2) && BROKEN != 1 ->
    assert(BROKEN == 2 || answered == BATCHES); /* done_settled */
    done_sent = true;
    to_d!DONE, true
  :: else
  fi;
  settled = true;
  overwritten = true
}

active proctype decode() {
  byte b;
  bool rides;
end:
  do
  :: to_d?b, rides ->
    if
    :: b == DONE -> success = true
    :: else ->
      if
      :: BROKEN == 3 -> to_p!b
      :: else
      fi;
      atomic { halves++; torn = torn + overwritten };
      atomic { halves++; torn = torn + overwritten };
      if
      :: BROKEN != 3 -> to_p!b
      :: else
      fi;
      success = success || rides
    fi;
    assert(!success || (torn == 0 && halves == 2 * BATCHES)) /* success_intact */
  :: to_d?b, rides; break /* dies */
  od
}

ltl settles { <> settled }
