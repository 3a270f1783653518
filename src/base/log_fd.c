/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#define LINE_BYTES 1200 /* above the longest log line, below PIPE_BUF: a write to a pipe is whole or does not happen */

static atomic_int target = -1;
static atomic_uint_fast64_t dropped;

static bool put(int fd, int level, const char *line) {
  char out[LINE_BYTES];
  int n = snprintf(out, sizeof out, "%d %s\n", level, line);
  if ((size_t)n >= sizeof out) {
    n = sizeof out - 1;
    out[n - 1] = '\n';
  }
  return write(fd, out, (size_t)n) == n;
}

static void to_fd(void *user, int level, const char *line) {
  (void)user;
  int fd = atomic_load(&target);
  uint64_t lost = atomic_exchange(&dropped, 0);
  if (lost) {
    char text[96];
    snprintf(text, sizeof text, "%llu log lines were dropped: their reader is too slow", (unsigned long long)lost);
    if (!put(fd, RD2H_LOG_WARN, text)) {
      atomic_fetch_add(&dropped, lost + 1);
      return;
    }
  }
  if (!put(fd, level, line))
    atomic_fetch_add(&dropped, 1);
}

void rd2h_log_fd_set(int fd, int max_level) {
  atomic_store(&target, fd);
  rd2h_log_set(fd < 0 ? NULL : to_fd, NULL, max_level);
}
