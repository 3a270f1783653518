/* SPDX-License-Identifier: Apache-2.0 */
/* Server-sent events as a byte stream: whole events are handed on, the beginning of one waits for its end. */
#ifndef RD2H_PROXY_SSE_H
#define RD2H_PROXY_SSE_H
#include "proxy/text.h"

#define PX_SSE_MAX (16u << 20) /* bytes of one event */

struct px_sse {
  struct px_buf part; /* from `used` on: of an event that has not ended */
  size_t used;
};
/* event: with the empty line that ends it; stays until the next feeding if that does not fail. False stops the feeding. */
typedef bool px_sse_fn(void *ctx, struct px_span event);
/* False when fn stopped, an event is too long, or memory ran out. */
bool rd2h_px_sse_feed(struct px_sse *s, struct px_span in, px_sse_fn *fn, void *ctx);
/* The beginning of an event that has not ended. */
struct px_span rd2h_px_sse_rest(const struct px_sse *s);
void rd2h_px_sse_free(struct px_sse *s);
/* The text of the event's data lines, joined by LF; false when it has none. *scratch is used when there are several. */
bool rd2h_px_sse_data(struct px_span event, struct px_buf *scratch, struct px_span *data);
#endif
