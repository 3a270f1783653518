/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_PREFILL_MACHINE_H
#define RD2H_PREFILL_MACHINE_H
/* The Prefill side of the protocol as a state machine; see decode_machine.h for how it is driven.
 *
 * An endpoint is one Decode rank's control address; an epoch is one connection to it. Done means settled: done goes out for a
 * request at an endpoint only after every batch of it there was answered, as a batch without requests on the stage's last layer;
 * after a batch of it was given up there, never. */
#include "base/base.h"
#include "wire/wire.h"

typedef struct rd2h_pm rd2h_pm;

struct rd2h_pm_cfg {
  uint32_t pp_rank, pp_size;
  uint32_t last_layer; /* ordinal of the stage's last cache-bearing layer */
  uint32_t max_endpoints, max_requests, max_batches;
  uint64_t handshake_ns; /* connect until metadata is acknowledged */
  uint64_t hold_ns;      /* dispatch until the answer: then the reader is given up */
  uint64_t idle_ns;      /* an endpoint without work is closed after this */
};

enum rd2h_pa_kind {
  RD2H_PA_CONNECT = 1, /* endpoint: open a connection; later rd2h_pm_connected() or rd2h_pm_disconnected(), with this epoch */
  RD2H_PA_CLOSE,       /* endpoint, epoch: close the connection; events of the epoch are ignored from now on. Status REFUSED: CANCELs
                          were sent just before, which must still get out (bounded); else what was not sent is not to go out */
  RD2H_PA_SEND_META,   /* endpoint: send MF_META */
  RD2H_PA_SEND_BATCH,  /* endpoint, batch (cookie): rd2h_pm_sending(), then send READY with the requests it names and seq */
  RD2H_PA_SEND_DONE,   /* endpoint: READY without requests, layer, done id (id, attempt), seq */
  RD2H_PA_SEND_POISON, /* endpoint (legacy): READY for an unknown layer that names id; is answered READ_FAILED */
  RD2H_PA_SEND_CANCEL, /* endpoint: CANCEL(ext_id, attempt, status, text); to peers of ours only, whatever `ours` says: a refused
                          epoch is not acknowledged, but the attempt proves that Decode knows it */
  RD2H_PA_BATCH_SETTLED, /* cookie, status: no reader will touch this batch's source: open its slots, free it */
  RD2H_PA_REQ_SETTLED    /* id, status: finished here and at every endpoint: may be reported */
};
struct rd2h_pa {
  enum rd2h_pa_kind kind;
  uint32_t endpoint, epoch, batch;
  uint64_t cookie; /* the worker's own name for endpoint (CONNECT … SEND) or batch (BATCH_SETTLED, SEND_BATCH) */
  uint32_t layer;
  bool ours;       /* peer acknowledged with its extension */
  bool digests;    /* peer wants them (SEND_BATCH) */
  bool has_seq;
  uint64_t seq;
  int status;
  const char *id, *ext_id, *text; /* never NULL; valid until the machine is called again */
  bool has_attempt;
  uint8_t attempt[RD2H_ATTEMPT];
};

int rd2h_pm_create(const struct rd2h_pm_cfg *, rd2h_pm **, struct rd2h_error *);
void rd2h_pm_destroy(rd2h_pm *);
bool rd2h_pm_next(rd2h_pm *, struct rd2h_pa *);

/* ---- what the engine wants ---- */
/* Finds or makes the endpoint "host:port". engine_id: the Decode engine's; a changed one, or a changed incarnation of the
 * rendezvous, ends the epoch: another process lives there now. NONE at the limit. */
uint32_t rd2h_pm_endpoint(rd2h_pm *, struct rd2h_str address, struct rd2h_str engine_id, uint64_t now);
struct rd2h_pm_request {
  struct rd2h_str id, ext_id;
  bool has_attempt, has_dspark;
  uint8_t attempt[RD2H_ATTEMPT];
};
/* Finds or makes the request's record and binds it to the endpoint. NONE at the limit, out of memory, or when another live request
 * has the same external id at that endpoint without attempts to tell them apart. */
uint32_t rd2h_pm_bind(rd2h_pm *, const struct rd2h_pm_request *, uint32_t endpoint, uint64_t now);
/* Why bind has just said NONE: INVALID (no id, or too long a one), EXISTS, LIMIT or NOMEM. */
int rd2h_pm_unbound(const rd2h_pm *, const struct rd2h_pm_request *, uint32_t endpoint);
/* One layer's message for one endpoint. req: n handles of bind, borrowed and compacted in place until BATCH_SETTLED, which always
 * comes (at once when nobody wants it). */
void rd2h_pm_dispatch(rd2h_pm *, uint32_t endpoint, uint32_t layer, uint32_t *req, uint32_t n, uint64_t cookie, uint64_t now);
/* To be called while carrying out SEND_BATCH: writes to idx the places (in the dispatched order) of the requests still wanted and
 * returns how many; 0: do not send, the batch settles. */
uint32_t rd2h_pm_sending(rd2h_pm *, uint32_t batch, uint32_t *idx, uint64_t now);
/* Every layer of the request's finishing chunk has been dispatched to this endpoint. */
void rd2h_pm_last(rd2h_pm *, uint32_t req, uint32_t endpoint, uint64_t now);
/* The request will never be complete at this endpoint, before or after a dispatch: its reader is told. */
void rd2h_pm_fail(rd2h_pm *, uint32_t req, uint32_t endpoint, int status, const char *text, uint64_t now);
/* The engine is done with the request: REQ_SETTLED follows when all is settled (at once for an unknown id). aborted: tell readers.
 * NOMEM: the id is unknown, so that nothing has to settle, and there is no memory to say so. */
int rd2h_pm_finish(rd2h_pm *, struct rd2h_str id, bool aborted, uint64_t now);
/* Batches of the request that are not settled: what a preemption waits for. */
uint32_t rd2h_pm_outstanding(const rd2h_pm *, struct rd2h_str id);

/* ---- what the network says; epoch: events of an older one are ignored ---- */
void rd2h_pm_connected(rd2h_pm *, uint32_t endpoint, uint32_t epoch, uint64_t now);
void rd2h_pm_disconnected(rd2h_pm *, uint32_t endpoint, uint32_t epoch, const char *why, uint64_t now);
void rd2h_pm_reply(rd2h_pm *, uint32_t endpoint, uint32_t epoch, const struct rd2h_wire_reply *, uint64_t now);
/* A reply that could not be decoded, or an unexpected one: ends the epoch. */
void rd2h_pm_garbage(rd2h_pm *, uint32_t endpoint, uint32_t epoch, const char *text, uint64_t now);
void rd2h_pm_peer_cancel(rd2h_pm *, uint32_t endpoint, uint32_t epoch, const struct rd2h_wire_cancel *, uint64_t now);

uint64_t rd2h_pm_next_deadline(const rd2h_pm *);
void rd2h_pm_tick(rd2h_pm *, uint64_t now);
/* Gives up everything and closes every epoch (shutdown): batches and finished requests settle. */
void rd2h_pm_close_all(rd2h_pm *, uint64_t now);
const char *rd2h_pm_endpoint_address(const rd2h_pm *, uint32_t endpoint);

struct rd2h_pm_stats {
  uint64_t batches, batches_failed, epochs, epochs_lost, requests_settled, requests_failed, given_up, cancels, skipped;
  uint64_t completed, aborted, failed_transport, failed_peer_lost, failed_layout, failed_expired, failed_other; /* requests settled */
  uint64_t malformed; /* answers that ended an epoch */
  uint32_t endpoints, outstanding, requests;
};
void rd2h_pm_stats(const rd2h_pm *, struct rd2h_pm_stats *);
/* Every endpoint with layer messages that wait for an answer, how many, and since when the oldest has been to be sent. */
void rd2h_pm_waits(const rd2h_pm *, void (*see)(void *, uint32_t endpoint, uint32_t waiting, uint64_t since), void *);
/* Endpoints and the requests at each, one line each. */
void rd2h_pm_dump(const rd2h_pm *, uint64_t now, struct rd2h_buf *);
#endif
