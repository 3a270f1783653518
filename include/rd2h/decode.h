/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_DECODE_H
#define RD2H_DECODE_H
/* The Decode rank: owns the destinations, reads from Prefill ranks, says when a request's KV is complete or will never be.
 * Calls may come from any one thread at a time; a control thread of the object's own does all input and output. */
#include <rd2h/layout.h>
#include <rd2h/log.h>
#include <stddef.h>
#ifdef __cplusplus
extern "C" {
#endif

typedef struct rd2h_decode rd2h_decode;

struct rd2h_decode_opts {
  uint32_t size;
  const rd2h_layout *layout; /* destinations; borrowed, lives longer than the object */
  const struct rd2h_memory *memory; /* storage areas to register with engines that need it */
  uint32_t n_memory;
  const char *bind_host; /* address that the control socket binds; NULL: 127.0.0.1 */
  uint16_t port;         /* this rank's own; 0: any, see rd2h_decode_port */
  uint32_t tp_rank, tp_size;
  uint32_t main_rank, main_ranks; /* share of main KV; 0 of 1 when this rank pulls it whole */
  const char *engine;    /* "auto", "local", "noop" */
  uint32_t engine_threads; /* 0: 2 */
  uint32_t park_ms;      /* a READY before its destinations; 0: 2000 */
  uint32_t queue_ms;     /* from install to the first READY, or to the answer of the rendezvous; 0: 600000 */
  uint32_t progress_ms;  /* between two READYs or answers of a request, or from the rendezvous's answer to the first READY; 0: 120000 */
  uint32_t probe_ms;     /* how often peers with open requests are probed; 0: 1000 */
  bool reply_on_read_failure; /* a legacy peer gets READ_FAILED when any read of the batch failed */
  bool legacy_session;   /* test option: see rd2h_engine_opts */
  uint32_t max_peers;    /* 0: 4096 */
  uint32_t max_requests; /* 0: 65536 */
  uint32_t max_message_mb; /* 0: 64 */
  uint64_t read_timeout_ms; /* longest engine call; 0: 31000 */
  const char *device;    /* where destinations lie, a spec of rd2h/device.h; NULL: host */
  /* Security of the control channel (rd2h/security.h). curve_secret NULL: plain, anybody may connect. Else only who has a key of
   * curve_allow: public keys of Prefill ranks, parted by blanks or commas; "*": any key. */
  const char *curve_secret, *curve_allow;
  uint32_t read_retries; /* a read that failed in transfer is tried so often again, after 10, 20, 40 ... ms; 0: never */
  enum rd2h_digest digest; /* what is read is compared with Prefill's digests of it */
};
RD2H_API int rd2h_decode_create(const struct rd2h_decode_opts *, rd2h_decode **, struct rd2h_error *);
RD2H_API void rd2h_decode_destroy(rd2h_decode *);
RD2H_API uint16_t rd2h_decode_port(const rd2h_decode *);

/* What the scheduler half decided: installs, aborts, failures (bytes of rd2h_decode_scheduler_step_end). After NOMEM repeat the call with
 * the same bytes, before any other step, until it is taken: it goes on where it stopped. What it does not get to is never reported. */
RD2H_API int rd2h_decode_step(rd2h_decode *, const void *meta, size_t len, struct rd2h_error *);

#define RD2H_ATTEMPT_BYTES 16
/* One request's destinations, for callers without the scheduler half. Copied. */
struct rd2h_grant {
  const char *id, *ext_id; /* internal id, and the one on the wire */
  uint8_t attempt[RD2H_ATTEMPT_BYTES]; /* nonce of the rendezvous */
  const uint32_t *main, *indexer; /* allocated blocks, complete */
  uint32_t n_main, n_indexer;
  uint32_t main_floor, indexer_floor; /* first entry that may be written: before it lies a local prefix hit */
  uint32_t main_need, indexer_need;   /* entries that must be covered for success (blocks of the prompt) */
};
RD2H_API int rd2h_decode_install(rd2h_decode *, const struct rd2h_grant *, struct rd2h_error *);
RD2H_API int rd2h_decode_abort(rd2h_decode *, const char *id);
/* Ends a request that will get no KV (its rendezvous failed): it is reported like any other. */
RD2H_API int rd2h_decode_fail(rd2h_decode *, const char *id, int status, const char *why);

/* Requests that ended on this rank, each exactly once, and only when no read can touch their blocks any more. */
struct rd2h_outcome {
  const char *id;   /* lives until the next collect */
  int status;       /* OK: complete; ABORTED; else the cause */
  const char *text; /* one line, "" when OK */
};
RD2H_API uint32_t rd2h_decode_collect(rd2h_decode *, struct rd2h_outcome *out, uint32_t cap);
RD2H_API int rd2h_decode_fd(const rd2h_decode *);

/* Before the end: takes no new destinations (they are reported REFUSED) and waits until every request has ended, at most timeout_ms; then
 * ends the rest (CANCELED, reported when no read can touch their blocks) and returns TIMEOUT. Outcomes can still be collected. */
RD2H_API int rd2h_decode_drain(rd2h_decode *, uint32_t timeout_ms);

struct rd2h_decode_stats {
  uint64_t messages, batches, reads, descriptors, bytes, malformed, parked, skipped, refused_meta, replies;
  uint64_t refused_keys; /* connections that curve_allow does not list */
  uint64_t retried;      /* reads tried again */
  uint64_t digests_checked, digests_wrong; /* blocks of one tensor each, each time they were read; wrong ones are among the checked */
  uint64_t digests_missing; /* reads that could not be checked: Prefill sent no digests, or not one for each block */
  uint64_t failed_transport, failed_peer_lost, failed_layout, failed_expired, failed_other, aborted, completed;
  uint32_t peers, requests, reads_in_flight, parked_now;
  uint32_t quarantined, quarantined_blocks; /* ended requests whose blocks reads may still write, and those blocks */
  uint32_t oldest_wait_ms;                  /* of the requests that wait for KV */
};
RD2H_API void rd2h_decode_stats(rd2h_decode *, struct rd2h_decode_stats *);
/* The rank's state for people: peers, requests and batches, a line each. Any thread may ask; waits a second at most for the rank's own,
 * and says so when that does not answer. Returns the length of the text, of which `out` gets what fits (cap bytes, with a final 0). */
RD2H_API size_t rd2h_decode_dump(rd2h_decode *, char *out, size_t cap);

#ifdef __cplusplus
}
#endif
#endif
