/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/conformance/cases.h"
#include "tests/helpers/one_case.h"
#include <stdio.h>
#include <stdlib.h>

static const struct CMUnitTest cases[] = {
  cmocka_unit_test(one_descriptor),
  cmocka_unit_test(empty_batch),
  cmocka_unit_test(empty_descriptors),
  cmocka_unit_test(small_scattered),
  cmocka_unit_test(iovec_boundaries),
  cmocka_unit_test(one_large_descriptor),
  cmocka_unit_test(many_peers),
  cmocka_unit_test(exactly_once),
  cmocka_unit_test(queue_full),
  cmocka_unit_test(order_per_peer),
  cmocka_unit_test(fd_is_level_triggered),
  cmocka_unit_test(steady_state_allocates_nothing),
  cmocka_unit_test(stats_add_up),
  cmocka_unit_test(cancel_unknown),
  cmocka_unit_test(cancel_queued),
  cmocka_unit_test(cancel_running),
  cmocka_unit_test(fence_queued_and_running),
  cmocka_unit_test(fence_finished),
  cmocka_unit_test(close_with_reads_in_flight),
  cmocka_unit_test(open_and_connect_without_memory),
  cmocka_unit_test(prefill_does_not_connect),
  cmocka_unit_test(dead_before_the_read),
  cmocka_unit_test(dead_during_the_read),
  cmocka_unit_test(stopped_peer),
  cmocka_unit_test(hole_in_the_source),
  cmocka_unit_test(hole_behind_a_mapping),
  cmocka_unit_test(truncated_connection_data),
  cmocka_unit_test(damaged_connection_data),
  cmocka_unit_test(no_connection_data),
};

int conformance_main(int argc, char **argv, const struct conformance *c) {
  conf = c;
  if (argc == 5 && !strcmp(argv[1], "--source"))
    return source_main(atoi(argv[2]), strtoull(argv[3], NULL, 10), strtoull(argv[4], NULL, 10));
  if (cases_listed(cases, RD2H_COUNT(cases), argc, argv))
    return 0;
  return cmocka_run_group_tests_name(c->engine, cases, NULL, NULL);
}
