/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_TEST_CASES_H
#define RD2H_TEST_CASES_H
#include "tests/conformance/rig.h"

/* Ends a case, and says so, where the engine under test lacks what it is about. */
#define NEEDS(link, condition, why) \
  do { \
    if (!(condition)) { \
      link_close(link); \
      print_message("# skipped for %s: %s\n", conf->engine, why); \
      skip(); \
    } \
  } while (0)

/* cases_transfer.c: bytes arrive where they should and nowhere else. */
void one_descriptor(void **);
void empty_batch(void **);
void empty_descriptors(void **);
void small_scattered(void **);
void iovec_boundaries(void **);
void one_large_descriptor(void **);
void many_peers(void **);

/* cases_queue.c: submit, poll, fd, order, cancel, fence. */
void exactly_once(void **);
void queue_full(void **);
void order_per_peer(void **);
void fd_is_level_triggered(void **);
void steady_state_allocates_nothing(void **);
void stats_add_up(void **);
void cancel_unknown(void **);
void cancel_queued(void **);
void cancel_running(void **);
void fence_queued_and_running(void **);
void fence_finished(void **);
void close_with_reads_in_flight(void **);

/* cases_peer.c: peers that die, stop, lie. */
void open_and_connect_without_memory(void **);
void prefill_does_not_connect(void **);
void dead_before_the_read(void **);
void dead_during_the_read(void **);
void stopped_peer(void **);
void hole_in_the_source(void **);
void hole_behind_a_mapping(void **);
void truncated_connection_data(void **);
void damaged_connection_data(void **);
void no_connection_data(void **);
#endif
