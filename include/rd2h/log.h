/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_LOG_H
#define RD2H_LOG_H
#include <rd2h/status.h>
#include <stddef.h>
#ifdef __cplusplus
extern "C" {
#endif

enum rd2h_log_level { RD2H_LOG_ERROR = 1, RD2H_LOG_WARN = 2, RD2H_LOG_INFO = 3, RD2H_LOG_DEBUG = 4 };

/* Receives each log line (no newline at its end). Called from any thread of the library; must not call back into it. */
typedef void (*rd2h_log_fn)(void *user, int level, const char *line);
/* Set before any object is created. NULL restores the default: standard error, level WARN or what RD2H_LOG names
 * (error, warn, info, debug). */
RD2H_API void rd2h_log_set(rd2h_log_fn fn, void *user, int max_level);
/* Sends the lines to a descriptor instead, "<level> <line>\n", one write each: for languages whose callbacks must not come from
 * foreign threads. Non-blocking descriptors drop a line that does not fit; the next one that does says how many. fd < 0 restores
 * the default. The descriptor stays the caller's and open until another rd2h_log_*_set. */
RD2H_API void rd2h_log_fd_set(int fd, int max_level);

/* Memory hooks, process-wide; set before the first other call of the library. All three or none. */
struct rd2h_allocator {
  void *(*alloc)(void *user, size_t n);
  void *(*realloc)(void *user, void *p, size_t n);
  void (*free)(void *user, void *p);
  void *user;
};
RD2H_API int rd2h_allocator_set(const struct rd2h_allocator *hooks);

#ifdef __cplusplus
}
#endif
#endif
