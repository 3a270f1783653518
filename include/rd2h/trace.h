/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_TRACE_H
#define RD2H_TRACE_H
/* What happened when, layer by layer: for timelines, and to see which bytes moved. */
#include <rd2h/status.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

enum rd2h_trace_kind {
  RD2H_TRACE_READ = 1,  /* on Decode: from the plan of a message's read to its completion */
  RD2H_TRACE_ANSWER = 2 /* on Prefill: from a layer's dispatch to the answer of one reader, or until it is given up */
};
struct rd2h_trace {
  enum rd2h_trace_kind kind;
  int status;
  const char *layer;          /* its wire name */
  const char *peer;           /* READ: session of the Prefill rank; ANSWER: address of the Decode rank */
  uint64_t begin_ns, end_ns;  /* CLOCK_BOOTTIME */
  uint64_t bytes;             /* READ: that landed */
  uint32_t n;                 /* READ: descriptors */
  void *const *local;         /* READ: where each landed */
  const uint64_t *len;        /* READ: bytes of each */
};

/* Called from the object's own thread, everything it points to lives during the call only; must not call back into the library.
 * Process-wide: set before any object is created. NULL: no trace, which costs nothing. */
typedef void (*rd2h_trace_fn)(void *user, const struct rd2h_trace *);
RD2H_API void rd2h_trace_set(rd2h_trace_fn fn, void *user);

#ifdef __cplusplus
}
#endif
#endif
