/* SPDX-License-Identifier: Apache-2.0 */
/* Between the files of the flow only. */
#ifndef RD2H_PROXY_FLOW_INNER_H
#define RD2H_PROXY_FLOW_INNER_H
#include "proxy/flow.h"

static inline struct px_span px_parent_body(const struct px_parent *p) {
  return p->current.n ? px_of(&p->current) : px_of(&p->body);
}

static inline const struct px_scan *px_parent_scan(const struct px_parent *p) {
  return p->current.n ? &p->current_scan : &p->scan;
}

/* ---- flow.c ---- */
struct px_parent *rd2h_px_parent_find(struct px_flow *f, struct px_span uuid);
/* Its ids are known no more: who posts one is told so. */
void rd2h_px_parent_unlist(struct px_parent *p);
/* New ids and children without a rendezvous: before every request to Decode. False: no random bytes. */
bool rd2h_px_parent_renew(struct px_parent *p);
/* The client gets the error (or the event, once its stream has begun), both sides are cancelled, the parent is gone. */
void rd2h_px_parent_fail(struct px_parent *p, int status, const char *format, ...) __attribute__((format(printf, 3, 4), nonnull(3)));
/* The client has all it will get. */
void rd2h_px_parent_end(struct px_parent *p);
/* Prefill refused the request: the client gets its status and body. Only before a byte has gone to the client. */
void rd2h_px_parent_fail_with(struct px_parent *p, const struct px_leg *leg);

/* ---- leg.c ---- */
bool rd2h_px_leg_start(struct px_leg *leg, struct px_engine *e, double cost);
/* Adds to its answer; false: that becomes longer than max_answer, or memory ran out. */
bool rd2h_px_leg_keep(struct px_leg *leg, struct px_span s);
/* Closes it in the books; the wire must be told before when it still runs. */
void rd2h_px_leg_close(struct px_leg *leg);
void rd2h_px_leg_cancel(struct px_leg *leg);
void rd2h_px_leg_free(struct px_leg *leg);
/* Answers that another engine may better: none at all (status 0), 502, 503, 504. */
bool rd2h_px_leg_worth_a_retry(const struct px_leg *leg);

/* ---- flow_decode.c ---- */
void rd2h_px_decode_start(struct px_parent *p);
void rd2h_px_decode_data(struct px_parent *p, struct px_span s);
void rd2h_px_decode_done(struct px_parent *p, const char *error);

/* ---- flow_prefill.c ---- */
void rd2h_px_prefill_posted(struct px_parent *p, struct px_child *c);
void rd2h_px_prefill_done(struct px_dispatch *d, const char *error);
void rd2h_px_prefill_retry(struct px_dispatch *d);
/* Ends all of the parent's requests to Prefill; who waits for one gets this answer. */
void rd2h_px_prefill_drop_all(struct px_parent *p, int status, const char *why);
void rd2h_px_prefill_kv_read(struct px_parent *p);

/* ---- usage.c ---- */
void rd2h_px_usage_note(struct px_parent *p, const struct px_dispatch *d);
/* Whether an event's data or a whole answer has counts that are Prefill's to give; then it is written with these. */
bool rd2h_px_usage_differs(const struct px_parent *p, struct px_span json);
void rd2h_px_usage_write(const struct px_parent *p, struct px_span json, struct px_buf *out);
/* The same for the usage itself. False: it has no such counts. */
bool rd2h_px_usage_edit(const struct px_parent *p, struct px_span usage, struct px_buf *out);

/* ---- continue.c ---- */
/* Looks at an event's data or a whole answer. *recomputed: the engine gave the request up and asks for a continuation. */
void rd2h_px_continue_note(struct px_parent *p, struct px_span json, bool *recomputed);
/* Whether `current` now holds a body that continues; otherwise *why. */
bool rd2h_px_continue_body(struct px_parent *p, const char **why);
/* An event's data or a whole answer of a continuation as the client shall see it: first id, counts (and text) of all parts. */
void rd2h_px_continue_rewrite(const struct px_parent *p, struct px_span json, struct px_buf *out);
#endif
