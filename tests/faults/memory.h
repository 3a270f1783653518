/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_TESTS_FAULTS_MEMORY_H
#define RD2H_TESTS_FAULTS_MEMORY_H
#include <stdint.h>

enum { MEMORY_COMPLETE, MEMORY_ENDED, MEMORY_ENOUGH }; /* ENOUGH: the request needs fewer allocations than n */
/* One request whose n-th allocation fails, in a process of its own; what is none of the above is how that ended. */
int memory_short(uint64_t n);
#endif
