/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_PREFILL_H
#define RD2H_PREFILL_H
/* The Prefill rank: publishes layers as they are computed, holds sources until every reader has answered.
 * Calls come from one thread (the engine's forward); a sender thread of the object's own does all input and output. */
#include <rd2h/layout.h>
#include <rd2h/log.h>
#include <stddef.h>
#ifdef __cplusplus
extern "C" {
#endif

typedef struct rd2h_prefill rd2h_prefill;

/* What happens in the engine's hooks when a reader failed or was lost. */
enum rd2h_on_read_failure {
  RD2H_ISOLATE = 0, /* only the requests concerned end; hooks go on */
  RD2H_RAISE = 1    /* the next hook of the layer returns the error (ends a vLLM server) */
};

struct rd2h_prefill_opts {
  uint32_t size;
  const rd2h_layout *layout;       /* borrowed, lives longer than the object */
  const struct rd2h_memory *memory; /* storage areas to register: each holds whole tensors */
  uint32_t n_memory;
  uint32_t tp_rank, tp_size, pp_rank, pp_size;
  const char *host;   /* this process's address, for the session string; NULL: 127.0.0.1 */
  const char *engine; /* "auto", "local", "noop" */
  enum rd2h_on_read_failure on_read_failure;
  uint32_t handshake_ms; /* connect and metadata acknowledged; 0: 10000 */
  uint32_t hold_ms;      /* longest wait for a reader's answer before it is given up; 0: 240000 */
  uint32_t liveness_ms;  /* a silent process is dead after this; 0: 5000 */
  uint32_t max_queue_bytes_mb; /* cap of what is queued for one endpoint; 0: 256 */
  uint32_t settle_ms;    /* longest that rd2h_prefill_destroy waits for readers; 0: 2000 */
  const char *device;    /* where the KV lies, a spec of rd2h/device.h; NULL: host */
  uint32_t event_ms;     /* longest wait for the device to have written a layer; 0: 60000 */
  uint32_t idle_ms;      /* a connection without work is closed after this; 0: 600000 */
  /* Security of the control channel (rd2h/security.h). curve_secret NULL: plain. Else connections are made only to Decode ranks whose
   * public key is in curve_servers: KEY for all, HOST=KEY or HOST:PORT=KEY for some, parted by blanks or commas. */
  const char *curve_secret, *curve_servers;
  enum rd2h_digest digest; /* any but OFF: Decode ranks that ask for digests get them (what to do with them they know) */
};
RD2H_API int rd2h_prefill_create(const struct rd2h_prefill_opts *, rd2h_prefill **, struct rd2h_error *);
/* Closes every epoch first, then unregisters; bounded by settle_ms. */
RD2H_API void rd2h_prefill_destroy(rd2h_prefill *);

/* Begins an engine step with the bytes of rd2h_prefill_scheduler_step_end. Never blocks. After NOMEM nothing of the
 * step has been taken, and requests that it ends would never be reported: repeat the call with the same bytes, before any layer and any
 * other step, until it is taken. */
RD2H_API int rd2h_prefill_step(rd2h_prefill *, const void *meta, size_t len, struct rd2h_error *);
/* The KV of this layer is complete for the step: closes its slots and hands the message over. Once a layer and step; a repeat does
 * nothing. Never blocks. With RD2H_RAISE returns an earlier failure of the layer's readers. */
RD2H_API int rd2h_prefill_layer(rd2h_prefill *, uint32_t layer, struct rd2h_error *);
/* The same while the device is still writing: the layer is complete once the stream has done all that it was given so far. Records an
 * event on the stream, which the calling thread's device must own; nothing is sent, and no reader touches the layer, before it is
 * reached. Layers go out in the order of the calls. Not reached within event_ms, or failed: the step's requests end with that error,
 * others go on. An error of recording is returned, too. Streams of "host" have nothing to wait for. */
RD2H_API int rd2h_prefill_layer_on(rd2h_prefill *, uint32_t layer, void *stream, struct rd2h_error *);
/* The gate: waits until no reader has an unanswered batch for the layer's storage slots, at most timeout_ms (TIMEOUT). */
RD2H_API int rd2h_prefill_wait_layer(rd2h_prefill *, uint32_t layer, uint32_t timeout_ms, struct rd2h_error *);
/* Waits until nothing of the requests that the step's bytes named as preempted is being read, at most timeout_ms. */
RD2H_API int rd2h_prefill_wait_preempted(rd2h_prefill *, const void *meta, size_t len, uint32_t timeout_ms, struct rd2h_error *);

/* Ended requests whose readers have all answered or are given up: sources may be freed. Each id once. `ids` receives pointers that
 * live until the next call. Returns how many (at most cap). */
struct rd2h_settled {
  const char *id;
  int status; /* OK: every reader took everything; else why not */
};
RD2H_API uint32_t rd2h_prefill_collect(rd2h_prefill *, struct rd2h_settled *out, uint32_t cap);
/* Readable when collect would return something. */
RD2H_API int rd2h_prefill_fd(const rd2h_prefill *);

/* Before the end: waits until no reader has an unanswered message, at most timeout_ms (TIMEOUT). What is dispatched meanwhile counts. */
RD2H_API int rd2h_prefill_drain(rd2h_prefill *, uint32_t timeout_ms);

struct rd2h_prefill_stats {
  uint64_t batches, batches_failed, bytes_sent, epochs, epochs_lost, requests_settled, requests_failed, given_up, cancels;
  uint64_t digests; /* made and sent, one a block and tensor */
  uint64_t skipped, malformed; /* malformed: answers that ended a connection */
  uint64_t failed_transport, failed_peer_lost, failed_layout, failed_expired, failed_other, aborted, completed; /* requests settled */
  uint32_t endpoints, outstanding, slots_closed, held;
  uint32_t oldest_wait_ms; /* of the messages that wait for an answer */
};
RD2H_API void rd2h_prefill_stats(rd2h_prefill *, struct rd2h_prefill_stats *);
/* The rank's state for people: endpoints, requests and closed slots, a line each. As rd2h_decode_dump. */
RD2H_API size_t rd2h_prefill_dump(rd2h_prefill *, char *out, size_t cap);

#ifdef __cplusplus
}
#endif
#endif
