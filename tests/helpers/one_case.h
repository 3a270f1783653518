/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_TESTS_ONE_CASE_H
#define RD2H_TESTS_ONE_CASE_H
/* For programs of which a case may run alone. Include after cmocka.h. */
#include <stdio.h>
#include <string.h>

/* --list names the cases: true, and that is all; another argument that stands alone chooses the cases of its pattern. */
static inline bool cases_listed(const struct CMUnitTest *cases, size_t n, int argc, char **argv) {
  bool list = argc == 2 && !strcmp(argv[1], "--list");
  for (size_t i = 0; i < n && list; i++)
    puts(cases[i].name);
  if (argc == 2 && !list)
    cmocka_set_test_filter(argv[1]);
  return list;
}
#endif
