/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"
#include <rd2h/trace.h>

static rd2h_trace_fn sink;
static void *sink_user;

void rd2h_trace_set(rd2h_trace_fn fn, void *user) {
  sink_user = user;
  sink = fn;
}

uint64_t rd2h_trace_now(void) {
  return sink ? rd2h_now_ns() : 0;
}

void rd2h_trace_emit(struct rd2h_trace *t) {
  if (!sink)
    return;
  t->end_ns = rd2h_now_ns();
  sink(sink_user, t);
}
