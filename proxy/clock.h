/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_PROXY_CLOCK_H
#define RD2H_PROXY_CLOCK_H
#include <stdint.h>
#include <sys/time.h>
#include <time.h>

/* ms, monotonic, never 0 */
static inline int64_t px_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000 + 1;
}

static inline struct timeval px_timeval(int64_t ms) {
  return (struct timeval){ms / 1000, ms % 1000 * 1000};
}
#endif
