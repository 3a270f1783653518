/* SPDX-License-Identifier: Apache-2.0 */
/* Counters and histograms, written in Prometheus' text form. */
#ifndef RD2H_PROXY_METRICS_H
#define RD2H_PROXY_METRICS_H
#include "proxy/flow.h"

enum px_outcome { PX_OK, PX_CLIENT_ERROR, PX_UPSTREAM_ERROR, PX_TIMEOUT, PX_OVERLOAD, PX_CLIENT_GONE, PX_OUTCOMES };
enum px_time { PX_TIME_FIRST, PX_TIME_RENDEZVOUS, PX_TIME_PREFILL, PX_TIME_TOTAL, PX_TIMES };
enum { PX_BUCKETS = 17 };

struct px_histogram {
  uint64_t bucket[PX_BUCKETS], count;
  double sum; /* seconds */
};

struct px_metrics {
  uint64_t requests[2][PX_OUTCOMES][PX_PHASES];
  uint64_t refused[7];     /* by px_refused_status */
  uint64_t rendezvous[8];  /* by px_rendezvous_status */
  uint64_t decode_attempts, continuations, bytes_in, bytes_out;
  struct px_histogram time[PX_TIMES];
};

void rd2h_px_metrics_parent(struct px_metrics *m, const struct px_parent *p, int64_t now);
/* A request that never reached the flow: bad framing, limits. */
void rd2h_px_metrics_refused(struct px_metrics *m, int status);
void rd2h_px_metrics_rendezvous(struct px_metrics *m, int status);
struct px_gauges {
  size_t connections, engine_requests;
  uint64_t buffered, turned_away;
};
void rd2h_px_metrics_write(const struct px_metrics *m, const struct px_flow *f, const struct px_gauges *g, struct px_buf *out);
#endif
