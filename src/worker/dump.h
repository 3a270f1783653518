/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_WORKER_DUMP_H
#define RD2H_WORKER_DUMP_H
/* A rank's state for people: asked for by any thread, written by the one that owns the state, at the end of its turn. Everything here
 * happens with the worker's mutex held. */
#include "base/base.h"
#include <pthread.h>

struct rd2h_dump {
  pthread_cond_t made_one;
  uint64_t asked, made;
  struct rd2h_buf text;
};
int rd2h_dump_init(struct rd2h_dump *); /* OK or NOMEM */
void rd2h_dump_free(struct rd2h_dump *);
/* Takes and gives the mutex itself; wake is called with it held. Waits for the owner, a second at most; `who` begins what is said when
 * it does not answer. Returns the length of the whole text; out gets what fits into cap bytes with a 0 at its end. */
size_t rd2h_dump_ask(struct rd2h_dump *, pthread_mutex_t *, void (*wake)(void *), void *arg, const char *who, char *out,
                     size_t cap);
/* Owner: when wanted, resets `text`, to be filled; then rd2h_dump_made(). */
bool rd2h_dump_wanted(struct rd2h_dump *);
void rd2h_dump_made(struct rd2h_dump *);
#endif
