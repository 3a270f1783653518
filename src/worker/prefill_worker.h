/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_PREFILL_WORKER_H
#define RD2H_PREFILL_WORKER_H
/* Inside the Prefill worker; shared by its own files only. The caller's thread makes steps and batches and hands them over
 * through a queue; all else is the sender's: the sender thread, or the caller's while it has taken the role (prefill_turn.c). */
#include "device/device.h"
#include "engine/engine.h"
#include "protocol/prefill_machine.h"
#include "scheduler/step.h"
#include "worker/dump.h"
#include "worker/gate.h"
#include "worker/thread.h"
#include "worker/worker.h"

#define PW_TEXT 320
#define PW_KEY_NONE UINT32_MAX /* epoll key of a descriptor that only wakes; an endpoint's are 2 * handle, its monitor's one more */
#define PW_VARIANTS 2u /* of a step's request list: for layers without an indexer, and with one */

/* The requests of one step that go to one endpoint. */
struct pw_group {
  char address[300];
  struct rd2h_str engine_id;
  uint32_t member, ratio;
  uint32_t n, *send;         /* places in the step's list */
  uint32_t count[PW_VARIANTS]; /* requests that publish something for such a layer; not changed after the step was made */
  /* sender thread: */
  uint32_t endpoint, *handle; /* handles of the machine, in the order of send */
  struct {
    uint32_t n, *at;         /* places in send of the requests that go out */
    struct rd2h_buf bytes;   /* their encoded list, equal for every layer */
    bool encoded;
  } list[PW_VARIANTS];
};

/* One engine step: shared by what is queued and unanswered of it. */
struct pw_step {
  struct pw_step *next; /* idle ones */
  uint32_t refs;        /* atomic */
  struct rd2h_buf bytes; /* copy of the scheduler's bytes: the view points into it */
  struct rd2h_arena arena, work;
  struct rd2h_prefill_step_view view;
  uint32_t n_groups, cap_groups;
  struct pw_group *group;
  uint32_t n_dispatched;
  bool *dispatched; /* by layer */
};

/* One layer's message for one endpoint, from its dispatch until its answer. */
struct pw_batch {
  struct pw_batch *next;          /* of the item, or idle */
  struct pw_batch *later, *earlier; /* all that are not settled */
  struct pw_step *step;
  struct pw_group *group;
  uint32_t layer, variant, endpoint, epoch;
  uint32_t *req, cap;
  size_t bytes; /* sent in that epoch and unanswered */
  uint64_t begun; /* ns, only while a trace is taken */
  uint64_t closed; /* ns: when its slots closed */
};

enum pw_item_kind { PW_STEP = 1, PW_LAYER };
struct pw_item {
  struct pw_item *next;
  enum pw_item_kind kind;
  struct pw_step *step;
  uint32_t layer;
  bool last; /* with it all layers of the step have been dispatched */
  struct pw_batch *batch;
  rd2h_dev_event *event; /* until the device has written the layer */
  uint64_t deadline;     /* of the event */
  int status;            /* the device did not write it */
  char *why;             /* a line of text, or NULL */
};

/* A finished request until it is collected. */
struct pw_ended {
  struct pw_ended *next;
  struct rd2h_settled out;
  char id[];
};

enum { PW_SOCKET = 1, PW_MONITOR = 2 };
struct pw_endpoint {
  void *socket, *monitor; /* NULL: no epoch */
  uint32_t epoch, member, ratio;
  uint8_t dirty;          /* what of it is to be looked at in this turn */
  size_t unanswered;      /* bytes */
  uint64_t reader;        /* by this number engines know whom it connects */
};

struct pw_failure {
  int status;
  char text[PW_TEXT];
};

struct rd2h_pw {
  struct rd2h_prefill_opts o;
  char session[300];
  char *curve_secret, *curve_servers; /* copies; NULL: plain */
  uint32_t n_layers;
  void *ctx;
  int epoll, item_fd, ended_fd; /* epoll: of the sockets */
  int sleep; /* epoll of item_fd and epoll: where the sender thread sleeps */
  rd2h_dev *dev;
  rd2h_eng *eng;
  rd2h_pm *pm;
  pthread_t thread;
  bool started;
  pthread_mutex_t role; /* taken before the others; guards what is the sender's, and: */
  uint64_t wakes_at;    /* the sender thread sleeps until then at most */

  struct rd2h_gate gate; /* its mutex guards also: */
  bool wants_role; /* the caller waits, and would rather have the role */
  struct pw_batch *unsettled, *oldest;
  struct pw_failure *failure; /* by layer; RD2H_RAISE only */

  pthread_mutex_t mu; /* guards: */
  struct pw_item *item, *item_tail, *idle_item;
  struct pw_batch *idle_batch;
  struct pw_step *idle_step;
  struct pw_ended *settled, *settled_tail;
  struct rd2h_map *ending; /* id -> index in ending_slot: announced as finished, not settled */
  struct rd2h_slab ending_slot;
  struct rd2h_map *unsent; /* id -> minus the status: requests that could not be sent to a reader, until they end */
  struct rd2h_prefill_stats stats;
  bool stop, item_signalled;
  struct rd2h_dump dump;
  struct rd2h_peers_view peers;

  /* the caller's thread */
  struct pw_step *step;
  struct pw_ended *collected;
  struct rd2h_arena ask; /* of wait_preempted */

  /* the sender */
  struct pw_item *todo, *todo_tail; /* taken from the queue; the first waits for the device */
  uint64_t now;
  struct rd2h_buf meta, out, digest;
  struct pw_endpoint *endpoint; /* by handle of the machine */
  uint32_t n_endpoints, *dirty, n_dirty;
  uint32_t *idx, idx_cap; /* scratch of SEND_BATCH */
  struct rd2h_wire_req *wire;
  uint32_t wire_cap;
  struct rd2h_arena reply_arena;
  uint64_t bytes_sent, last_reader, n_digests;
  uint8_t incarnation[16];
  uint32_t next_monitor;
  struct pw_ended *fresh, *fresh_tail; /* settled in this turn */
};

/* prefill_step.c */
struct pw_step *pw_step_make(rd2h_pw *, const void *meta, size_t len, struct rd2h_error *); /* with one reference */
void pw_step_unref(rd2h_pw *, struct pw_step *);
void pw_steps_free(rd2h_pw *);
void pw_prepare(rd2h_pw *, struct pw_step *); /* sender: endpoints and requests become the machine's */
/* Appends the encoded request list of a group: the n requests that idx names by their place in the group's list. */
bool pw_encode_list(rd2h_pw *, const struct pw_step *, struct pw_group *, uint32_t variant, const uint32_t *idx, uint32_t n,
                    struct rd2h_buf *to);
/* prefill_digest.c: of the requests of the batch that idx names by their place in the group's list, in the order of the wire; empty
 * where they cannot be made. Valid until the next call. */
struct rd2h_str pw_digests(rd2h_pw *, const struct pw_batch *, const uint32_t *idx, uint32_t n);
/* prefill_queue.c */
struct pw_batch *pw_batch_take(rd2h_pw *, uint32_t reqs);
void pw_batch_give(rd2h_pw *, struct pw_batch *);
struct pw_item *pw_item_take(rd2h_pw *);
/* light: may be carried out on the caller's thread. */
void pw_push(rd2h_pw *, struct pw_item *, bool light);
void pw_wake(rd2h_pw *); /* any thread: the sender thread is to look */
bool pw_run_items(rd2h_pw *); /* sender: all up to a layer that the device is still writing; false: stop */
void pw_drop_items(rd2h_pw *); /* sender, at the end: what still waits for the device ends */
void pw_settle(rd2h_pw *, struct pw_batch *, int status, const char *text);
void pw_settled(rd2h_pw *, const char *id, int status);
/* Any thread: a reader of the request will never get it. False: that was known. */
bool pw_unsent(rd2h_pw *, struct rd2h_str id, int status);
/* What has settled becomes visible, a dump is made if one is wanted; counters as of now are stored for who cannot have the role. */
void pw_publish(rd2h_pw *, bool counters);
void pw_take_stats(rd2h_pw *, struct rd2h_prefill_stats *); /* with the role and mu */
void pw_queue_free(rd2h_pw *);
/* prefill_endpoint.c */
bool pw_endpoint_room(rd2h_pw *, uint32_t endpoint);
int pw_endpoint_open(rd2h_pw *, uint32_t endpoint, uint32_t epoch, struct rd2h_error *);
void pw_endpoint_close(rd2h_pw *, uint32_t endpoint);
void pw_endpoint_send(rd2h_pw *, uint32_t endpoint, const void *p, size_t n);
void pw_endpoint_mark(rd2h_pw *, uint32_t endpoint, uint8_t what);
void pw_endpoints_look(rd2h_pw *); /* takes in what marked endpoints have, within bounds: more than that stays marked */
/* prefill_action.c */
void pw_drain(rd2h_pw *);
/* prefill_turn.c */
int pw_turn_open(rd2h_pw *, struct rd2h_error *);
void pw_turn(rd2h_pw *);                  /* with the role: everything that is due but the queue */
void pw_sleep(rd2h_pw *, uint64_t until); /* sender thread: gives the role away until something is due */
/* The caller's thread: carries out what is queued, if the role can be had. */
bool pw_send_now(rd2h_pw *);
/* The caller's thread waits until ready(arg) (called with the gate's mutex held); returns with it held: OK or TIMEOUT. */
int pw_wait(rd2h_pw *, uint32_t timeout_ms, bool (*ready)(void *), void *arg);
/* prefill_dump.c */
void pw_tell(rd2h_pw *); /* what was asked for; with the role and mu */
/* prefill_meta.c */
int pw_make_meta(rd2h_pw *, uint64_t reader, struct rd2h_error *); /* into w->meta; reader 0: none in particular */
#endif
