/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_TEST_CONFORMANCE_H
#define RD2H_TEST_CONFORMANCE_H
/* One suite for every transfer engine: what include/rd2h/engine.h promises, tried from outside with real processes to read from.
 * An engine's test file is a main() that calls conformance_main(). */
#include <stdbool.h>

struct rd2h_eng_peer;

struct conformance {
  const char *engine;         /* as rd2h_eng_open takes it */
  const char *const *options; /* the engine's own, for both sides; may be NULL */
  bool moves_data;            /* false: checks that need bytes to arrive are skipped by name */
  bool needs_conn;            /* a peer without connection data is refused */
  bool shared;                /* the memory that is read comes from rd2h_shared_alloc: it stays when its owner unmaps it */
  void (*connected)(struct rd2h_eng_peer *); /* may wait until a connection is what the suite is to be run on; may be NULL */
  bool holes_kill;            /* registered memory must stay mapped: a hole in it ends its owner's process */
  bool late_death;            /* a peer's death shows when it is read, not before */
  bool served;                /* the peer's own threads answer reads: one that is stopped cannot be read */
};
int conformance_main(int argc, char **argv, const struct conformance *);
#endif
