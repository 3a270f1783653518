/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"
#include <errno.h>
#include <sys/random.h>
#include <time.h>

uint64_t rd2h_now_ns(void) {
  struct timespec ts;
  clock_gettime(CLOCK_BOOTTIME, &ts);
  return (uint64_t)ts.tv_sec * UINT64_C(1000000000) + (uint64_t)ts.tv_nsec;
}

int rd2h_random(void *p, size_t n) {
  for (uint8_t *at = p; n;) {
    ssize_t got = getrandom(at, n, 0);
    if (got < 0 && errno == EINTR)
      continue;
    if (got <= 0)
      return RD2H_IO;
    at += got;
    n -= (size_t)got;
  }
  return RD2H_OK;
}
