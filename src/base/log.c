/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"
#include "base/text.h"
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define LINE_MAX_BYTES 1024

static const char *const level_names[] = {"", "error", "warn", "info", "debug"};
static rd2h_log_fn sink; /* NULL: standard error */
static void *sink_user;
static atomic_int max_level; /* 0: not chosen yet */

static int level_of_env(void) {
  const char *name = getenv("RD2H_LOG");
  for (int i = RD2H_LOG_ERROR; name && i <= RD2H_LOG_DEBUG; i++)
    if (!strcmp(name, level_names[i]))
      return i;
  return RD2H_LOG_WARN;
}

void rd2h_log_set(rd2h_log_fn fn, void *user, int level) {
  sink = fn;
  sink_user = user;
  atomic_store_explicit(&max_level, fn ? level : level_of_env(), memory_order_release);
}

bool rd2h_log_on(int level) {
  int max = atomic_load_explicit(&max_level, memory_order_acquire);
  if (!max) {
    max = level_of_env();
    atomic_store_explicit(&max_level, max, memory_order_release);
  }
  return level <= max;
}

/* One write a line: lines of several threads do not mix. */
static void to_stderr(int level, const char *line) {
  struct timespec ts;
  struct tm tm;
  char out[LINE_MAX_BYTES + 64], when[32];
  clock_gettime(CLOCK_REALTIME, &ts);
  gmtime_r(&ts.tv_sec, &tm);
  strftime(when, sizeof when, "%FT%T", &tm);
  int n = snprintf(out, sizeof out, "%s.%03ldZ rd2h[%ld] %s: %s\n", when, ts.tv_nsec / 1000000, (long)getpid(),
                   level_names[level], line);
  if (write(STDERR_FILENO, out, (size_t)n) < 0)
    return; /* nowhere left to say it */
}

void rd2h_logf(int level, const char *fmt, ...) {
  if (level < RD2H_LOG_ERROR || level > RD2H_LOG_DEBUG || !rd2h_log_on(level))
    return;
  char line[LINE_MAX_BYTES];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(line, sizeof line, fmt, ap);
  va_end(ap);
  rd2h_text_one_line(line);
  if (sink)
    sink(sink_user, level, line);
  else
    to_stderr(level, line);
}
