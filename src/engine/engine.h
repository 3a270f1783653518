/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_SRC_ENGINE_H
#define RD2H_SRC_ENGINE_H
/* Transfer engines as the worker sees them: whatever the engine's kind, reads are submitted, polled, cancelled and fenced in the
 * same way. One rd2h_eng belongs to one thread; threads for engines whose read blocks live behind this face.
 * The prose of include/rd2h/engine.h holds at each function; what follows is said here only. */
#include "base/base.h"
#include <rd2h/engine.h>

typedef struct rd2h_eng rd2h_eng;
typedef struct rd2h_eng_peer rd2h_eng_peer;

/* name: "auto" (local, ucx over RDMA and tcp at once, see rd2h_eng_choose), "local", "tcp", "ucx", "noop", or "fault:<name>", which
 * takes fail_every=N, hang_every=N, corrupt_every=N (the N-th read, counted over all peers; the last with one bit of its first
 * destination wrong) and delay_ms=N from the options and hands the others on.
 * Errors: NOT_FOUND (no such engine), UNSUPPORTED (its table is of another ABI), INVALID (options), and those of the engine. */
int rd2h_eng_open(const char *name, const struct rd2h_engine_opts *, rd2h_eng **, struct rd2h_error *);
/* The same for a table that is in no registry; it must outlive the engine. */
int rd2h_eng_open_ops(const struct rd2h_engine_ops *, const struct rd2h_engine_opts *, rd2h_eng **, struct rd2h_error *);
/* Ends reads in flight (they are lost to poll), disconnects the peers that are left. Takes NULL. */
void rd2h_eng_close(rd2h_eng *);

/* What peers call it: "local" also for "fault:local". Of "auto" peers know the parts only. */
const char *rd2h_eng_name(const rd2h_eng *);
/* The i-th engine that this one stands for, best first; NULL past the last. Each publishes its own data. An engine that stands for
 * no other is its own only part. */
rd2h_eng *rd2h_eng_part(rd2h_eng *, uint32_t i);
/* With 0 in max_desc or max_inflight_per_peer: no bound of the engine's own. */
const struct rd2h_engine_caps *rd2h_eng_caps(const rd2h_eng *);
int rd2h_eng_reg(rd2h_eng *, const struct rd2h_region *, uint32_t *region, struct rd2h_error *);
int rd2h_eng_publish(rd2h_eng *, struct rd2h_buf *, struct rd2h_error *); /* appends connection data, for every reader */
/* The same for one connection of a reader alone, by a number that is not 0, until it is revoked. Where the engine knows no such
 * difference it is for all. */
int rd2h_eng_publish_for(rd2h_eng *, uint64_t reader, struct rd2h_buf *, struct rd2h_error *);
void rd2h_eng_revoke(rd2h_eng *, uint64_t reader); /* on return that reader gets no byte any more, if the engine can do that */

/* The session string that Prefill must publish for this engine; NULL: any will do. */
const char *rd2h_eng_session(rd2h_eng *);

/* Reads may be submitted as soon as connect has returned. An engine without connections sends no "up" event. STATE on Prefill. */
int rd2h_eng_connect(rd2h_eng *, struct rd2h_blob session, struct rd2h_blob conn, uint64_t cookie, rd2h_eng_peer **,
                     struct rd2h_error *);
/* An engine that a peer can be read by. */
struct rd2h_eng_offer {
  struct rd2h_str name;
  struct rd2h_blob conn;
};
bool rd2h_eng_offers(const struct rd2h_eng_offer *, const char *name);
/* Connects by the first offer, in the peer's order, that works from here; *chosen is its name (static). NOT_FOUND: nothing that is
 * offered is open here; else the error of the last one tried. */
int rd2h_eng_choose(rd2h_eng *, struct rd2h_blob session, const struct rd2h_eng_offer *, uint32_t n, uint64_t cookie,
                    rd2h_eng_peer **, const char **chosen, struct rd2h_error *);
/* The fence. With an engine that blocks it waits for the slice that is running (about 2 ms at 8 MiB). */
void rd2h_eng_disconnect(rd2h_eng *, rd2h_eng_peer *);

/* Batch ids are the caller's, unique among its reads in flight. RANGE: more descriptors than max_desc. */
int rd2h_eng_submit(rd2h_eng *, rd2h_eng_peer *, const struct rd2h_batch *);
void rd2h_eng_cancel(rd2h_eng *, uint64_t id);
int rd2h_eng_poll(rd2h_eng *, struct rd2h_completion *, int n);
int rd2h_eng_events(rd2h_eng *, struct rd2h_peer_event *, int n);
int rd2h_eng_fd(rd2h_eng *);
void rd2h_eng_stats(rd2h_eng *, struct rd2h_engine_stats *);
/* Transports and devices that the peer is read by, for people; "" where the engine has no choice of them. Lives as long as the peer. */
const char *rd2h_eng_way(rd2h_eng *, rd2h_eng_peer *);
/* Why the read failed that the latest poll yielded under this id; lives until the next poll. Never NULL. */
const char *rd2h_eng_last_error(rd2h_eng *, uint64_t id);
#endif
