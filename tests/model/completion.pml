/* SPDX-License-Identifier: Apache-2.0
 * Completion of a request at Decode: two Decode ranks, on each two contributors (say, members or stages of Prefill), each of which
 * serves a layer of its own and then says done, some of them twice. A contributor may skip its layer by mistake, may die, and the
 * request may fail on a rank for another reason. The engine finishes the request when all ranks have reported.
 *
 * Shown: success on a rank means done from every contributor and coverage of every layer (success_complete); one report a rank
 * (once); a failed request stays failed (sticky); the engine's outcome is good exactly when all ranks were good (engine);
 * every rank reports (ends).
 *
 * BROKEN 1: dones are counted, not contributors. 2: done makes a failed request good. 3: coverage is not asked for. 4: a report a
 * done. 5: no deadline for a contributor that died. */
#ifndef BROKEN
#define BROKEN 0
#endif
#ifdef LIVENESS /* one rank is enough for what each does alone */
#define RANKS 1
#else
#define RANKS 2
#endif
#define PARTS 2
#define LAYER 1
#define DONE 2
#define DEAD 3

mtype = { open, good, bad };
mtype state[RANKS] = open;
byte reports[RANKS], dones[RANKS];
bool part_done[4], covered[4], failed[RANKS]; /* [rank * PARTS + part] */
byte finished;
chan wire[RANKS] = [1] of { byte, byte };      /* what, part */

proctype contributor(byte rank; byte part) {
  if
  :: wire[rank]!LAYER, part
  :: part == 0 -> skip /* forgets to publish it */
  fi;
  if
  :: wire[rank]!DONE, part;
    if
    :: part == 0 -> wire[rank]!DONE, part /* says it twice */
    :: skip
    fi
  :: wire[rank]!DEAD, part   /* seen by a probe */
  :: skip                    /* silent for ever */
  fi
}

inline report(rank, what) {
  if
  :: state[rank] == open || BROKEN == 4 ->
    reports[rank]++;
    assert(reports[rank] == 1); /* once */
    state[rank] = what;
    assert(what != good || !failed[rank]); /* sticky */
    assert(what != good || (part_done[rank * PARTS] && part_done[rank * PARTS + 1] && covered[rank * PARTS] && covered[rank * PARTS + 1]));
                                /* success_complete */
    finished++;
    if
    :: finished == RANKS -> assert(state[0] != open && state[RANKS - 1] != open) /* engine */
    :: else
    fi
  :: else
  fi
}

proctype decode(byte rank) {
  byte what, part;
  bool whole;
end:
  do
  :: atomic { wire[rank]?what, part ->
      if
      :: what == LAYER -> covered[rank * PARTS + part] = true
      :: what == DEAD ->
        if
        :: state[rank] == open && !part_done[rank * PARTS + part] -> failed[rank] = true
        :: else
        fi
      :: what == DONE && (BROKEN == 1 || BROKEN == 4 || !part_done[rank * PARTS + part]) ->
        part_done[rank * PARTS + part] = true;
        dones[rank]++;
        whole = BROKEN == 3 || (covered[rank * PARTS] && covered[rank * PARTS + 1]);
        if
        :: dones[rank] >= PARTS && (!failed[rank] || BROKEN == 2) && whole -> report(rank, good)
        :: dones[rank] >= PARTS && !whole -> failed[rank] = true
        :: else
        fi
      :: else /* a repeat */
      fi
    }
  :: atomic { BROKEN != 5 && state[rank] == open && !failed[rank] -> failed[rank] = true } /* no progress; or its user ends it */
  :: atomic { failed[rank] && state[rank] == open -> report(rank, bad) }   /* its last read has ended */
  od
}

init {
  byte r = 0;
  atomic {
    do
    :: r < RANKS -> run contributor(r, 0); run contributor(r, 1); run decode(r); r++
    :: else -> break
    od
  }
}

ltl ends { <> (finished == RANKS) }
