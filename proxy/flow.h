/* SPDX-License-Identifier: Apache-2.0 */
/* The flow of requests without any I/O: parents (clients' requests), children (what Decode posts a rendezvous for), dispatches (requests
 * to Prefill). It is told what happened and says, through px_io, what to do; all calls come from one thread, and none of px_io's
 * functions may call back into the flow. Times are milliseconds of one monotonic clock. */
#ifndef RD2H_PROXY_FLOW_H
#define RD2H_PROXY_FLOW_H
#include "proxy/body.h"
#include "proxy/engines.h"
#include "proxy/sse.h"

struct px_flow;
struct px_parent;
struct px_child;
struct px_dispatch;

/* ---- what the flow asks for ---- */
struct px_leg; /* a request to an engine */

struct px_reply {
  int status;
  struct px_span type;        /* Content-Type; empty: application/json */
  struct px_span retry_after; /* may be empty */
  struct px_span body;
  struct px_buf *from;        /* what the body lies in, may be taken over; or NULL */
  size_t cut, cut_n;          /* so many bytes of it make way for `instead` */
  struct px_span instead;
};

struct px_io {
  /* Starts POST url+path with the body, which stays until the leg ends. Returns false when it could not. */
  bool (*send)(void *io, struct px_leg *leg);
  /* Ends it without a further word about it. */
  void (*cancel)(void *io, struct px_leg *leg);
  void (*answer)(void *io, void *rendezvous, int status, struct px_span body);
  void (*reply)(void *io, void *client, const struct px_reply *r);
  void (*begin)(void *io, void *client, const struct px_reply *head); /* an event stream */
  void (*data)(void *io, void *client, struct px_span s);
  void (*end)(void *io, void *client);
  /* The parent has ended and is forgotten after this call. */
  void (*done)(void *io, void *client, const struct px_parent *p);
  void (*note)(void *io, const struct px_parent *p, const char *text);
  /* Call the tick at that time, besides the regular ones (ten a second). */
  void (*wake)(void *io, int64_t at);
  bool (*random)(void *io, void *out, size_t n);
};

struct px_leg {
  enum px_role role;
  struct px_parent *parent;
  struct px_dispatch *dispatch; /* of Prefill's */
  struct px_engine *engine;
  double cost;
  const char *path;
  char id[64]; /* X-Request-Id */
  struct px_rope body;
  bool open;
  void *wire; /* the other side's own */
  int64_t started, limit_ms;
  /* the engine's answer */
  int status;
  char type[128], retry_after[32];
  struct px_buf answer;
  struct px_scan scan; /* of it, unless it is a stream or an error */
};

/* ---- settings ---- */
enum px_dispatch_mode { PX_DISPATCH_AUTO, PX_DISPATCH_LIST, PX_DISPATCH_EACH };
struct px_limits {
  uint32_t max_children, max_open_children, max_waiters; /* waiters: rendezvous open for one child */
  uint32_t attempts;                  /* at least 1 */
  uint32_t max_continuations;
  uint64_t max_answer; /* bytes of an answer that is no stream */
  int64_t retry_ms, grace_ms, rendezvous_ms, prefill_ms, first_ms, idle_ms, total_ms;
  enum px_dispatch_mode mode;
  bool tokens; /* the metaserver's address carries a secret of the request */
};

/* ---- state, read by tests, the access log and metrics ---- */
struct px_waiter {
  struct px_waiter *next;
  struct px_child *child;
  void *rendezvous;
};

struct px_child {
  struct px_parent *parent;
  struct px_dispatch *dispatch;
  struct px_waiter *waiters;
  struct px_buf params;
  bool posted;
};

enum px_dispatch_state { PX_PENDING, PX_BETWEEN_ATTEMPTS, PX_SUCCEEDED, PX_FAILED };
struct px_dispatch {
  struct px_dispatch *next;
  struct px_parent *parent;
  int64_t child; /* its index, or -1: all of them in one request */
  enum px_dispatch_state state;
  uint32_t attempt;
  uint64_t tried;
  int64_t retry_at;
  struct px_leg leg;
  struct px_engine *kv_engine; /* that holds KV for Decode */
  double kv;
};

enum px_phase { PX_WAIT_RENDEZVOUS, PX_IN_PREFILL, PX_WAIT_FIRST, PX_STREAMING, PX_WAIT_RETRY, PX_PHASES };
extern const char *const rd2h_px_phase_name[PX_PHASES];

struct px_parent {
  struct px_flow *flow;
  struct px_parent *next, **back;        /* all parents */
  struct px_parent *hash_next;
  char uuid[37], token[33];
  void *client;
  struct px_ask ask;
  struct px_buf body;    /* the client's */
  struct px_buf current; /* the body of a continuation, else unused */
  struct px_scan scan, current_scan;
  struct px_child *child;
  uint32_t n_child, n_posted, n_prefilled;
  bool each;
  struct px_dispatch *dispatches;
  struct px_leg decode;
  enum px_phase phase;
  uint32_t attempt, continuations;
  uint64_t tried;
  int64_t retry_at, grace_at, touched;
  bool listed, begun, prefill_failed; /* listed: found by its uuid */
  bool held_back; /* by its client, who does not take what has come: set from outside */
  bool *gone; /* set when the parent ends */
  struct px_sse sse;
  /* for a continuation: what was generated */
  struct px_buf text, first_id;
  uint64_t tokens_before, tokens, prompt_tokens; /* of earlier parts, of this one, of the client's prompt */
  bool cannot_continue, wants_more, cached_known;
  uint64_t cached; /* tokens of the prompt that Prefill found in its prefix cache */
  /* outcome */
  int status;
  char error[256];
  char decode_name[64], prefill_name[64]; /* of the engines last used, for the log; cut when longer */
  int64_t started, posted_at, prefilled_at, first_at, prefill_began;
  uint64_t bytes_out;
};

struct px_flow {
  const struct px_io *io;
  void *ctx;
  struct px_pool *pool;
  struct px_limits limits;
  const char *metaserver;
  struct px_parent *first;
  struct px_parent *table[1024];
  size_t parents, children, dispatches;
  int64_t now;
};

/* ---- what happened ---- */
/* A client's request, whose body moves into the flow with its scan (of the plan of body.h). Answered through io in any case. Returns the
 * parent, or NULL when it has ended already. */
struct px_parent *rd2h_px_flow_request(struct px_flow *f, void *client, enum px_api api, struct px_buf *body, struct px_scan *scan,
                                       int64_t now);
void rd2h_px_flow_client_gone(struct px_flow *f, struct px_parent *p, int64_t now);
/* A rendezvous with a checked JSON object. allowed: its sender is a Decode engine that we know; otherwise the token decides.
 * Returns 0 when the answer comes later (*waiter then stands for it), else the status to answer now, *why in words. */
int rd2h_px_flow_rendezvous(struct px_flow *f, struct px_span body, struct px_span token, bool allowed, void *rendezvous, int64_t now,
                            struct px_waiter **waiter, const char **why);
void rd2h_px_flow_waiter_gone(struct px_waiter *w);
/* An engine's answer. status, type and retry_after of the leg are set by the caller before. */
void rd2h_px_flow_leg_data(struct px_flow *f, struct px_leg *leg, struct px_span s, int64_t now);
/* error: NULL when the answer is whole. The leg must not be touched afterwards. */
void rd2h_px_flow_leg_done(struct px_flow *f, struct px_leg *leg, const char *error, int64_t now);
void rd2h_px_flow_tick(struct px_flow *f, int64_t now);
/* Ends all; clients get 503. */
void rd2h_px_flow_stop(struct px_flow *f, int64_t now);
#endif
