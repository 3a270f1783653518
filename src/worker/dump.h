/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_WORKER_DUMP_H
#define RD2H_WORKER_DUMP_H
/* What any thread may ask a rank's own thread for, which says it at the end of its turn: the state for people, and the rows of
 * rd2h/peers.h. Everything here happens with the worker's mutex held, but for the two that take it. */
#include "base/base.h"
#include <pthread.h>
#include <rd2h/peers.h>

struct rd2h_ask {
  pthread_cond_t made_one;
  uint64_t asked, made;
};
int rd2h_ask_init(struct rd2h_ask *); /* OK or NOMEM */
void rd2h_ask_free(struct rd2h_ask *);
bool rd2h_ask_wanted(const struct rd2h_ask *);
void rd2h_ask_made(struct rd2h_ask *);

struct rd2h_dump {
  struct rd2h_ask ask;
  struct rd2h_buf text;
};
int rd2h_dump_init(struct rd2h_dump *);
void rd2h_dump_free(struct rd2h_dump *);
/* Takes and gives the mutex itself; wake is called with it held. Waits for the owner, a second at most; `who` begins what is said when
 * it does not answer. Returns the length of the whole text; out gets what fits into cap bytes with a 0 at its end. */
size_t rd2h_dump_ask(struct rd2h_dump *, pthread_mutex_t *, void (*wake)(void *), void *arg, const char *who, char *out,
                     size_t cap);
/* Owner: when wanted, resets `text`, to be filled; then rd2h_ask_made(). */
bool rd2h_dump_wanted(struct rd2h_dump *);

struct rd2h_peers_view {
  struct rd2h_ask ask;
  struct rd2h_peers rows;
  uint64_t since[RD2H_PEERS_ROWS]; /* of rows.wait */
};
/* As rd2h_decode_peers; takes and gives the mutex itself, wake is called with it held. */
int rd2h_peers_ask(struct rd2h_peers_view *, pthread_mutex_t *, void (*wake)(void *), void *arg, uint32_t timeout_ms,
                   struct rd2h_peers *out);
/* Owner: when wanted, empties the rows, to be filled; then rd2h_ask_made(). */
bool rd2h_peers_wanted(struct rd2h_peers_view *);
void rd2h_peers_connected(struct rd2h_peers_view *, const char *engine, const char *way);
void rd2h_peers_awaited(struct rd2h_peers_view *, const char *peer, uint32_t waiting, uint64_t since);
#endif
