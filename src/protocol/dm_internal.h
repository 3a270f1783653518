/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_DM_INTERNAL_H
#define RD2H_DM_INTERNAL_H
/* Records of the decode machine, shared by its own files only. */
#include "protocol/decode_machine.h"

#define DM_TEXT 320
#define DM_MAX_SLOTS 4096u /* contributors of one request: pp_size * ratio */
#define DM_MAX_EXTRA 16u   /* layers that only the peer has: a draft model has few, another model has more */
#define DM_SPARE 256u      /* batches that memory is set aside for, so that what comes when there is no more is answered */
#define DM_TOMB_ATTEMPTS 4u /* ended attempts remembered of one external id */

/* While a request of a message is not decided, its `status` (final ones are <= 0) says how far it is. */
enum { DM_PENDING = 1, DM_READING = 2, DM_WAITING = 3 };

enum dm_peer_state { DM_PEER_NEW, DM_PEER_CONNECTING, DM_PEER_READY, DM_PEER_REFUSED, DM_PEER_LOST };
struct dm_peer {
  uint32_t gen;
  enum dm_peer_state state;
  bool ours, probe_armed, three_fields;
  uint32_t caps, pp_rank, pp_size;
  struct rd2h_link *link; /* by layer ordinal on Decode; n_parts 0: the peer does not have it */
  struct rd2h_map *extra; /* names of the peer's layers that Decode does not have (a draft model's): left out; NULL: none */
  uint32_t head, tail, n_batches; /* unanswered batches, oldest first */
  uint32_t n_bound;               /* contributor slots of live requests that it serves and has not finished */
  uint8_t incarnation[16];
  uint32_t waiting;       /* while rd2h_dm_waits() is at work */
  uint64_t waiting_since;
  int refusal;       /* what requests end with that a REFUSED peer names */
  char why[DM_TEXT]; /* of REFUSED and LOST */
};

/* One READY from its arrival to its answer. */
struct dm_batch {
  uint32_t peer, next, prev;
  uint32_t wait_next, wait_prev; /* in the machine's list of batches with waiting requests */
  struct rd2h_wire_ready *msg;   /* NULL: could not be decoded */
  uint32_t layer_idx, layer;     /* as sent; ordinal of ours or NONE */
  bool has_seq, plan_queued, reading, complete, in_wait, read_failed, layer_failed;
  uint32_t n_pending, n_waiting;
  uint64_t seq, wait_until;
  char text[DM_TEXT]; /* first failure, for READ_FAILED */
};

struct dm_slot {
  uint32_t peer, peer_gen;
  bool bound, done;
};
struct dm_req {
  uint32_t gen, older, newer; /* of those that live, in the order of installation */
  char *id, *ext;
  uint32_t id_n, ext_n;
  uint8_t attempt[RD2H_ATTEMPT];
  uint32_t *main, *indexer; /* one allocation, owned by main */
  uint32_t n_main, n_indexer, main_floor, indexer_floor, main_need, indexer_need;
  uint32_t inflight; /* requests of batches admitted and not yet settled: reads may touch the blocks */
  uint32_t ratio, pp_size, n_slots, slots_done;
  struct dm_slot *slot;
  uint32_t *high; /* [slot][layer][2]: entries covered so far without a gap, main and indexer */
  bool ended, started, answered, legacy;
  int status;
  uint64_t installed, progress;
  char text[DM_TEXT];
};

struct dm_tomb {
  char *ext;
  uint32_t ext_n;
  uint8_t attempt[DM_TOMB_ATTEMPTS][RD2H_ATTEMPT];
  uint32_t n_attempts, next_attempt; /* 0: an id nobody ever installed and nobody gave an attempt */
  uint64_t refused_until; /* a legacy peer left it unsettled */
};

struct dm_act {
  struct rd2h_da a;
  char *id;      /* owned by the action, freed after it was carried out; NULL: none */
  size_t text;   /* offset in `text`, SIZE_MAX: none */
};

struct rd2h_dm {
  struct rd2h_dm_cfg cfg;
  struct rd2h_slab peers, batches, reqs;
  struct rd2h_map *by_id, *by_ext, *tomb_map; /* by_ext: those that have not ended */
  uint32_t oldest, newest;                    /* requests that have not ended */
  struct dm_tomb *tomb;
  uint32_t tomb_next;
  struct rd2h_heap timers;
  uint32_t wait_head, wait_tail, n_wait;
  uint32_t gen;
  uint64_t now; /* the latest time heard of */
  struct dm_act *act;
  struct rd2h_da lost; /* written to in place of an action that there was no memory for */
  uint32_t act_n, act_head, act_cap;
  struct rd2h_buf text;
  char *spent; /* id of the action handed out last */
  struct rd2h_dm_stats st;
};

enum dm_timer { DM_TIMER_REQ = 1, DM_TIMER_WAIT, DM_TIMER_PROBE };

static inline struct dm_peer *dm_peer(const rd2h_dm *m, uint32_t i) { return rd2h_slab_at(&m->peers, i); }
static inline struct dm_batch *dm_batch(const rd2h_dm *m, uint32_t i) { return rd2h_slab_at(&m->batches, i); }
static inline struct dm_req *dm_req(const rd2h_dm *m, uint32_t i) { return rd2h_slab_at(&m->reqs, i); }

/* actions (dm_core.c): id is taken over */
struct rd2h_da *dm_emit(rd2h_dm *, enum rd2h_da_kind, uint32_t peer, char *id, const char *text);
/* Makes room for the actions that one more record can cause, so that an end is never lost for want of memory. */
bool dm_reserve(rd2h_dm *);
void dm_timer(rd2h_dm *, uint64_t at, enum dm_timer, uint32_t index, uint32_t gen);

/* peers (dm_peer.c) */
void dm_peer_maybe_close(rd2h_dm *, uint32_t peer);
void dm_peer_arm_probe(rd2h_dm *, uint32_t peer, uint64_t now);
void dm_peer_probe_due(rd2h_dm *, uint32_t peer, uint64_t now);

/* batches (dm_batch.c) */
void dm_batch_step(rd2h_dm *, uint32_t batch, uint64_t now);
void dm_batch_drop(rd2h_dm *, uint32_t batch);
/* One request's part of a read is over. */
void dm_read_over(rd2h_dm *, struct dm_batch *, struct rd2h_wire_req *, int status, const char *text, uint64_t now);
/* Nothing that waits in it will be read: it is answered failed when a read of it, if any, is over. */
void dm_batch_fail(rd2h_dm *, uint32_t batch, const char *text, uint64_t now);
void dm_wait_recheck(rd2h_dm *, uint64_t now);
void dm_wait_due(rd2h_dm *, uint32_t batch, uint64_t now);

/* dm_warm.c: has what the message's requests need fetched from memory; changes nothing */
void dm_warm(const rd2h_dm *, const struct rd2h_wire_ready *);

/* requests (dm_request.c) */
uint32_t dm_req_by_ext(const rd2h_dm *, struct rd2h_str ext);
/* Ends it (first cause wins) and reports it when nothing touches its blocks. */
void dm_req_end(rd2h_dm *, uint32_t req, int status, const char *text, uint32_t cause_peer);
void dm_req_settle(rd2h_dm *, uint32_t req); /* after inflight fell or a slot got done */
void dm_req_due(rd2h_dm *, uint32_t req, uint64_t now);
void dm_req_done(rd2h_dm *, uint32_t peer, const struct rd2h_wire_ready *, const struct rd2h_wire_done *, uint64_t now);
/* Admission of one request of a READY: OK (inflight counted), or why not; SKIPPED leaves the request as it is. */
int dm_req_admit(rd2h_dm *, uint32_t req, uint32_t peer, const struct dm_batch *, const struct rd2h_wire_req *, uint64_t now,
                 char text[DM_TEXT]);
bool dm_tomb_match(const rd2h_dm *, const struct rd2h_wire_req *);
void dm_tomb_put(rd2h_dm *, struct rd2h_str ext, const uint8_t *attempt, uint64_t refused_until);
bool dm_tomb_refused(const rd2h_dm *, struct rd2h_str ext, uint64_t now);
/* A peer's message may end the request: it serves it, or nobody does yet. */
bool dm_req_may_fail(const rd2h_dm *, uint32_t req, uint32_t peer);
void dm_req_free(struct dm_req *);
#endif
