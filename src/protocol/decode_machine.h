/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_DECODE_MACHINE_H
#define RD2H_DECODE_MACHINE_H
/* The Decode side of the protocol as a state machine: fed with messages, completions and the time, it queues actions. It sees no
 * socket, thread, clock or engine, so that worker, simulator, fuzzer and tests run the same code.
 *
 * Use: call one function, then drain rd2h_dm_next() and carry each action out, in order. Carrying one out may call the machine
 * again; what it queues comes after. Strings of an action are valid until the machine is called again. */
#include "base/base.h"
#include "layout/layout.h"
#include "plan/plan.h"
#include "wire/wire.h"

typedef struct rd2h_dm rd2h_dm;

struct rd2h_dm_cfg {
  const struct rd2h_layout *layout; /* destinations, borrowed */
  uint32_t main_rank, main_ranks;   /* share of main KV */
  uint32_t max_peers, max_requests, max_parked;
  uint32_t max_quarantined; /* ended requests whose blocks reads may still write: above that nothing is installed */
  uint32_t tombstones;  /* ended ids remembered */
  uint64_t park_ns;     /* a READY before its destinations */
  uint64_t queue_ns;    /* install to first READY, or to the answer of the rendezvous */
  uint64_t progress_ns; /* between two signs of progress of a request */
  uint64_t probe_ns;    /* pause between two probes of a peer with open requests */
  uint64_t legacy_hold_ns; /* how long an id that a legacy peer left unsettled is refused */
  bool reply_on_read_failure;
  uint8_t incarnation[16];
};

enum rd2h_da_kind {
  RD2H_DA_CONNECT = 1, /* peer: connect the engine with meta (alive now), then rd2h_dm_connected(). Comes again when a peer sends new
                          metadata: then the old engine peer is disconnected first (nothing of it is in flight) */
  RD2H_DA_REPLY,       /* send `reply` to peer: ACK, META_ACK (ext: ours), META_NAK (text), DONE, FAILED (layer_idx, text, seq, msg) */
  RD2H_DA_PLAN,        /* batch, msg: rd2h_dm_plan() into the worker's arrays, then rd2h_dm_planned(); if descriptors came out,
                          submit and later rd2h_dm_read_done() exactly once (also when submit fails). Comes again for the same
                          batch, after its read is done, when requests of it had to wait for their destinations */
  RD2H_DA_CANCEL,      /* batch: ask the engine to cancel it; it still completes */
  RD2H_DA_FREE_MSG,    /* msg is no longer needed */
  RD2H_DA_PROBE,       /* send an empty frame; if the transport says unreachable: rd2h_dm_peer_lost() */
  RD2H_DA_SEND_CANCEL, /* tell the peer (ours) that id (attempt) ended here: status, text */
  RD2H_DA_PONG,        /* answer a ping with value */
  RD2H_DA_REPORT,      /* id ended with status (OK: complete), text: no read can touch its blocks any more */
  RD2H_DA_CLOSE        /* peer handle is gone: disconnect its engine peer, forget its identity */
};
struct rd2h_da {
  enum rd2h_da_kind kind;
  uint32_t peer, batch;
  struct rd2h_wire_ready *msg;
  const struct rd2h_wire_meta *meta;
  enum rd2h_wire_kind reply;
  bool ours;    /* the peer announced itself: append seq and statuses, answer META_ACK with our extension */
  bool has_seq;
  uint64_t seq, value;
  uint32_t layer_idx;
  int status;
  const char *id, *text; /* never NULL */
  uint8_t attempt[RD2H_ATTEMPT];
};

int rd2h_dm_create(const struct rd2h_dm_cfg *, rd2h_dm **, struct rd2h_error *);
void rd2h_dm_destroy(rd2h_dm *); /* messages still borrowed are the caller's to free */
bool rd2h_dm_next(rd2h_dm *, struct rd2h_da *);

/* ---- peers: one handle a connection (ROUTER identity) ---- */
uint32_t rd2h_dm_peer_open(rd2h_dm *, uint64_t now); /* RD2H_INDEX_NONE at the limit or out of memory */
/* The transport says that the connection is over. The handle lives until RD2H_DA_CLOSE. */
void rd2h_dm_peer_lost(rd2h_dm *, uint32_t peer, const char *why, uint64_t now);
/* This side cannot go on with it though its connection lives (its engine is down, no memory): its requests end, everything that it
 * has sent and will send here is answered as failed, one of ours is told to begin anew. */
void rd2h_dm_peer_fail(rd2h_dm *, uint32_t peer, const char *why, uint64_t now);
/* Whether anything is open that needs the peer. */
bool rd2h_dm_peer_busy(const rd2h_dm *, uint32_t peer);
void rd2h_dm_meta(rd2h_dm *, uint32_t peer, const struct rd2h_wire_meta *, uint64_t now); /* borrowed until actions are drained */
void rd2h_dm_connected(rd2h_dm *, uint32_t peer, int status, const char *text, uint64_t now);
/* msg (with what it points to) is borrowed until RD2H_DA_FREE_MSG. */
void rd2h_dm_ready(rd2h_dm *, uint32_t peer, struct rd2h_wire_ready *msg, uint64_t now);
/* A message that could not be decoded: answered in its turn when it had a layer index (not RD2H_INDEX_NONE). seq: its number where
 * one could be read, or NULL. */
void rd2h_dm_malformed(rd2h_dm *, uint32_t peer, uint32_t layer_idx, const uint64_t *seq, const char *text, uint64_t now);
/* A message that could be decoded, but not kept (no memory, a limit): requests that it names end, it is answered in its turn. msg is not
 * borrowed. */
void rd2h_dm_not_held(rd2h_dm *, uint32_t peer, const struct rd2h_wire_ready *msg, int status, const char *text, uint64_t now);
void rd2h_dm_cancel(rd2h_dm *, uint32_t peer, const struct rd2h_wire_cancel *, uint64_t now);
void rd2h_dm_ping(rd2h_dm *, uint32_t peer, uint64_t value, uint64_t now);

/* ---- batches ---- */
uint64_t rd2h_dm_plan_bound(rd2h_dm *, uint32_t batch); /* descriptors that planning it can make at most */
/* Checks every id once more and appends descriptors; sets status of every request of the message. */
void rd2h_dm_plan(rd2h_dm *, uint32_t batch, struct rd2h_descs *);
/* n: descriptors to be read; 0: nothing to read, the batch is complete. */
void rd2h_dm_planned(rd2h_dm *, uint32_t batch, uint32_t n, uint64_t now);
void rd2h_dm_read_done(rd2h_dm *, uint32_t batch, int status, const char *text, uint64_t now);
/* One block that a read has brought, and its digest at the source. */
struct rd2h_dm_block {
  const void *p;
  uint64_t len;
  uint32_t digest;
  uint32_t req;         /* place in the message */
  struct rd2h_str id;   /* of that request, on the wire */
  uint32_t part, block; /* of the link; id at the source */
};
/* Between the end of a read that went well and rd2h_dm_read_done: shows every block that it brought for requests still wanted. False:
 * the message has no digests, or not one for each block. */
bool rd2h_dm_digests(rd2h_dm *, uint32_t batch, void (*see)(void *, const struct rd2h_dm_block *), void *);
/* While being shown a block: its bytes are not the source's. Its request ends (its further blocks are not shown), no other does. */
void rd2h_dm_wrong_digest(rd2h_dm *, uint32_t batch, const struct rd2h_dm_block *, const char *text, uint64_t now);
/* Whether its read, which is running, is still of use: its peer holds the source, and a request of it has not ended. */
bool rd2h_dm_batch_wanted(const rd2h_dm *, uint32_t batch);
uint32_t rd2h_dm_batch_peer(const rd2h_dm *, uint32_t batch);
uint32_t rd2h_dm_batch_layer(const rd2h_dm *, uint32_t batch); /* ordinal on Decode; RD2H_INDEX_NONE: one that it lacks */

/* ---- requests ---- */
struct rd2h_dm_grant { /* copied; see struct rd2h_grant */
  struct rd2h_str id, ext_id;
  uint8_t attempt[RD2H_ATTEMPT];
  const uint32_t *main, *indexer;
  uint32_t n_main, n_indexer, main_floor, indexer_floor, main_need, indexer_need;
};
/* A grant that cannot be served (id already live, external id in use, limits, block ids out of range) is reported failed by
 * RD2H_DA_REPORT, like any other end; only out-of-memory and an internal id already live return an error without a report. */
int rd2h_dm_install(rd2h_dm *, const struct rd2h_dm_grant *, uint64_t now, struct rd2h_error *);
/* The rendezvous says that Prefill has finished: of a request of which nothing came, the first must come within progress_ns now. */
void rd2h_dm_answered(rd2h_dm *, struct rd2h_str id, uint64_t now);
/* Ends a live request with status (ABORTED, or why it cannot come); NOT_FOUND when it is not live. Reported once reads are over. */
int rd2h_dm_end(rd2h_dm *, struct rd2h_str id, int status, const char *text, uint64_t now);

/* ---- time ---- */
uint64_t rd2h_dm_next_deadline(const rd2h_dm *); /* RD2H_NEVER: none */
void rd2h_dm_tick(rd2h_dm *, uint64_t now);

struct rd2h_dm_stats {
  uint64_t messages, batches, malformed, parked, skipped, refused_meta, replies;
  uint64_t failed_transport, failed_peer_lost, failed_layout, failed_expired, failed_other, aborted, completed;
  uint32_t peers, requests, reads, parked_now, quarantined; /* quarantined: ended requests that reads still hold */
  uint64_t quarantined_blocks;
  uint64_t oldest; /* when the request that waits longest was installed; 0: none waits */
};
void rd2h_dm_stats(const rd2h_dm *, struct rd2h_dm_stats *);
/* Every peer that a request waits for, with how many do and since when the oldest has; peer RD2H_INDEX_NONE: requests of which no peer is
 * known that is still to send. Requests at several peers count at each. */
void rd2h_dm_waits(rd2h_dm *, void (*see)(void *, uint32_t peer, uint32_t waiting, uint64_t since), void *);
/* Peers, requests and batches, one line each. */
void rd2h_dm_dump(const rd2h_dm *, const char *(*peer_name)(void *, uint32_t peer), void *, uint64_t now, struct rd2h_buf *);
#endif
