/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_DECODE_WORKER_H
#define RD2H_DECODE_WORKER_H
/* Inside the Decode worker; shared by its own files only. What is not marked otherwise belongs to the control thread. */
#include "device/device.h"
#include "engine/engine.h"
#include "protocol/decode_machine.h"
#include "worker/curve.h"
#include "worker/dump.h"
#include "worker/msgpool.h"
#include "worker/thread.h"
#include "worker/worker.h"

#define DW_TEXT 320
#define DW_IDENTITY_MAX 255u

/* One read from plan to completion: descriptor arrays that outlive it in a pool. */
struct dw_batch {
  struct rd2h_descs d;
  struct rd2h_batch b;
  uint32_t handle, peer;
  uint64_t begun; /* ns, only while a trace is taken */
  bool queued; /* the engine had no room: waits in its peer's list */
  uint32_t retries;
  bool reread; /* its bytes were wrong: this is the second read of them */
  uint64_t due; /* rests until then before it is tried again; 0: does not */
  struct dw_batch *next;
};

struct dw_peer {
  bool open;
  uint8_t identity_n;
  uint8_t identity[DW_IDENTITY_MAX];
  char session[64]; /* for log lines */
  char way[288];    /* session, engine, transports and devices: for the dump, which writes it */
  const char *engine; /* that it is read by, while there is conn */
  rd2h_eng_peer *conn;
  size_t held; /* bytes of messages that it makes us hold */
  struct dw_batch *head, *tail; /* reads that the engine has not taken yet */
};

/* A request from its installation to its collection: the outcome needs no memory any more when it comes. */
struct dw_request {
  struct dw_request *next;
  struct rd2h_outcome out;
  char text[DW_TEXT];
  char id[];
};

enum dw_command_kind { DW_INSTALL = 1, DW_END, DW_ANSWERED };
struct dw_command {
  struct dw_command *next;
  enum dw_command_kind kind;
  struct rd2h_dm_grant grant;
  int status;
  char text[DW_TEXT];
  uint8_t data[]; /* ids and block lists */
};

struct rd2h_dw {
  struct rd2h_decode_opts o;
  uint16_t port;
  void *ctx, *router;
  struct rd2h_doorman doorman;
  uint64_t refused_keys;
  int epoll, command_fd;
  rd2h_dev *dev;
  rd2h_eng *eng;
  rd2h_dm *dm;
  pthread_t thread;
  bool started;
  bool burst; /* there was a message more when the last turn ended */
  bool sent;     /* something in this turn */
  bool unpolled; /* the engine took a read since it was asked for completions */
  uint8_t incarnation[16]; /* new at every start */
  uint64_t now;

  struct rd2h_map *by_identity;
  struct dw_peer **peer; /* by handle of the machine */
  uint32_t n_peers, log_lines;
  uint64_t next_sweep, log_second;
  struct rd2h_msgpool pool;
  struct rd2h_arena scratch; /* of the message that is being decoded */
  zmq_msg_t identity, frame, payload;
  struct rd2h_buf out;

  struct dw_batch **batch; /* by handle of the machine: planned and not completed */
  uint32_t batch_cap, n_queued;
  uint64_t retry_at; /* when the first that rests is to be tried again */
  struct dw_batch *idle_batch, *resting;
  uint64_t descs_held, idle_descs; /* room for descriptors: of batches, of idle ones */
  struct rd2h_decode_stats count; /* what the worker counts itself */
  struct dw_request *ended, *ended_tail; /* of this turn, not yet handed over */

  pthread_mutex_t mu; /* guards what follows; the API's threads use only this and the arena below */
  struct dw_command *command, *command_tail;
  struct rd2h_map *live; /* id -> index in live_slot */
  struct rd2h_slab live_slot;
  struct dw_request *outcome, *outcome_tail, *collected;
  struct rd2h_decode_stats stats;
  uint64_t oldest; /* see rd2h_dm_stats */
  struct rd2h_dump dump;
  struct rd2h_peers_view peers;
  bool stop, draining;
  pthread_cond_t none_live; /* the last live request has ended */
  int outcome_fd;
  struct rd2h_arena step_arena; /* of rd2h_dw_step's callers, one at a time; so is what follows: */
  size_t step_len;              /* the step that memory did not suffice for, and how many of its records were taken */
  uint32_t step_sum, step_taken;
};

/* decode_command.c */
bool dw_run_commands(rd2h_dw *);              /* false: stop */
void dw_report(rd2h_dw *, struct rd2h_str id, int status, const char *text);
void dw_publish(rd2h_dw *);                   /* end of a turn: outcomes and counters become visible */
void dw_commands_free(rd2h_dw *);
/* decode_io.c */
uint32_t dw_receive(rd2h_dw *);               /* messages taken; bounded, so that other work gets its turn */
int dw_send(rd2h_dw *, uint32_t peer, const void *p, size_t n); /* 0, or -1: the peer is lost (the machine knows) */
void dw_forget_peer(rd2h_dw *, uint32_t peer);
bool dw_may_log(rd2h_dw *);
/* decode_action.c */
void dw_drain(rd2h_dw *);
/* decode_batch.c */
void dw_plan(rd2h_dw *, uint32_t batch);
void dw_cancel(rd2h_dw *, uint32_t batch);
void dw_submit(rd2h_dw *, struct dw_batch *);   /* after those of its peer that wait */
uint32_t dw_complete(rd2h_dw *);              /* takes completions and events of the engine; how many */
void dw_batches_free(rd2h_dw *);
/* decode_digest.c */
bool dw_check_digests(rd2h_dw *, struct dw_batch *); /* before a read that went well is over; false: it is not, it is read once more */
/* decode_retry.c */
void dw_retry_rest(rd2h_dw *, struct dw_batch *);              /* it is tried again after a rest */
bool dw_retry_later(rd2h_dw *, struct dw_batch *, int status); /* false: it is not to be tried again */
bool dw_retry_cancel(rd2h_dw *, struct dw_batch *);            /* false: it does not rest */
uint64_t dw_retry_run(rd2h_dw *);                              /* tries what has rested; when to come again */
#endif
