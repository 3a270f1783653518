/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_WIRE_H
#define RD2H_WIRE_H
/* Control messages: bytes <-> structs. Pure: no socket, no clock. Every length is capped before it is used. The protocol is
 * docs/protocol.md. Decoded views point into the payload (strings) and the arena (arrays); both must outlive them. */
#include "base/base.h"
#include <rd2h/layout.h>

#define RD2H_WIRE_MAX_LAYERS 1024u
#define RD2H_WIRE_MAX_TENSORS 64u   /* elements of one array of a layer's description */
#define RD2H_WIRE_MAX_NAME 512u     /* layer names, session */
#define RD2H_WIRE_MAX_ID 1024u      /* request ids */
#define RD2H_WIRE_MAX_TEXT 1024u    /* error texts; longer ones are cut when encoded */
#define RD2H_WIRE_MAX_REQS 65536u
#define RD2H_WIRE_MAX_BLOCKS (1u << 24) /* ids of one message */
#define RD2H_WIRE_MAX_RATIO 4096u
#define RD2H_WIRE_MAX_EXT (1u << 20) /* bytes of the extension value */
#define RD2H_WIRE_MAX_ENGINES 8u
#define RD2H_WIRE_MAX_REGIONS 4096u
#define RD2H_ATTEMPT 16u

enum rd2h_wire_kind {
  RD2H_MSG_META = 1,  /* P -> D */
  RD2H_MSG_READY,     /* P -> D */
  RD2H_MSG_ACK,       /* D -> P: the raw bytes ACK */
  RD2H_MSG_META_ACK,  /* D -> P: (mf_meta_ack, 1[, map]) */
  RD2H_MSG_META_NAK,  /* D -> P: (mf_meta_nak, str) */
  RD2H_MSG_DONE,      /* D -> P */
  RD2H_MSG_FAILED,    /* D -> P */
  RD2H_MSG_CANCEL,    /* both ways, only between peers that announced themselves */
  RD2H_MSG_PING, RD2H_MSG_PONG,
  RD2H_MSG_DRAFT,     /* P -> D: (dspark_draft_kv, str id, str generation, …): KV of a draft model, which is not served */
  RD2H_MSG_DRAFT_ACK  /* D -> P: (dspark_draft_kv_ack, str id, str generation, bin status) */
};

/* ---- the extension, revision 1 (frozen): value of the key "rd2h" in one layer map of MF_META, and the third field of the
 * acknowledgement; one msgpack bin that holds a msgpack map with short string keys; unknown keys are ignored ---- */
#define RD2H_EXT_REVISION 1u
enum {
  RD2H_CAP_SEQ = 1 << 0,     /* sequence numbers in READY and replies */
  RD2H_CAP_STATUS = 1 << 1,  /* per-request status in replies */
  RD2H_CAP_ATTEMPT = 1 << 2, /* attempt nonces */
  RD2H_CAP_CANCEL = 1 << 3,
  RD2H_CAP_PING = 1 << 4,
  RD2H_CAP_DIGEST = 1 << 5   /* of P: makes digests where they are wanted; of D: wants them. Only with the option `digest` */
};
#define RD2H_CAPS_ALL (RD2H_CAP_SEQ | RD2H_CAP_STATUS | RD2H_CAP_ATTEMPT | RD2H_CAP_CANCEL | RD2H_CAP_PING)
struct rd2h_wire_engine {
  struct rd2h_str name;
  const uint8_t *conn; /* engine's connection data */
  uint32_t conn_len;
};
struct rd2h_wire_ext {
  bool present;
  uint32_t revision;          /* "v" */
  uint32_t caps;              /* "caps" */
  uint8_t incarnation[16];    /* "inc": bin 16, new at every process start */
  uint32_t live_ms;           /* "live": pings come at least this often; 0: none */
  uint32_t n_engines;         /* "eng": [[name, bin], …] in order of preference */
  struct rd2h_wire_engine engine[RD2H_WIRE_MAX_ENGINES];
  uint32_t n_regions;         /* "reg": [[base, len], …] */
  const struct rd2h_memory *region;
  uint32_t blocks[2];         /* "nblk": [main, indexer] block counts; 0: not said */
  uint32_t heads[3];          /* "heads": [first, count, total]; total 0: not sharded */
  struct rd2h_str fingerprint; /* "fp" */
};

struct rd2h_wire_layer {
  struct rd2h_str name;
  uint32_t n_addrs, n_lens, n_scales, n_groups;
  const uint64_t *addr, *len, *scale; /* scale: 1s where the peer left it out */
  const int64_t *group;
  uint32_t main_count;
  bool has_indexer;
};
struct rd2h_wire_meta {
  struct rd2h_str session;
  uint32_t fields; /* 3 (v0) or 6 (v1) as sent */
  uint32_t version, pp_rank, pp_size; /* 0, 0, 1 in v0 */
  uint32_t n_layers;
  const struct rd2h_wire_layer *layer;
  struct rd2h_wire_ext ext;
};

/* One request of a READY. `bad` is set instead of failing the message when only this request cannot be used. */
struct rd2h_wire_req {
  struct rd2h_str id;
  const uint32_t *main, *indexer; /* indexer == main in the 2-field form */
  uint32_t n_main, n_indexer;
  uint32_t main_start, indexer_start;
  bool has_attempt;
  /* 0, or 1: a block id outside 0 … 2^31-1; 2: a start outside; 3: start + length above 2^31. Then both lists are empty. */
  uint8_t bad;
  uint8_t attempt[RD2H_ATTEMPT];
  /* scratch of the receiving state machine and its worker */
  uint32_t handle;  /* request record */
  int status;       /* outcome of this request, enum rd2h_status */
};
struct rd2h_wire_done {
  struct rd2h_str id;
  bool has_attempt;
  uint8_t attempt[RD2H_ATTEMPT];
};
struct rd2h_wire_ready {
  uint32_t layer_idx;
  struct rd2h_str layer;
  uint32_t n_reqs, n_done;
  struct rd2h_wire_req *req;
  struct rd2h_wire_done *done;
  uint32_t member, ratio;
  bool has_seq;
  uint64_t seq;
  /* CRC32C of every block at its source, 4 bytes each, most significant first; request after request, in it tensor after tensor: the
   * main ones (of member 0 only) each over the main list, then indexer and scale over the indexer list. Empty: none were made. */
  struct rd2h_str digests;
};

/* A reply (ACK, META_ACK, META_NAK, DONE, FAILED) as Prefill reads it. */
struct rd2h_wire_reply {
  enum rd2h_wire_kind kind;
  uint32_t layer_idx;
  struct rd2h_str text;
  bool has_seq;
  uint64_t seq;
  uint32_t n_status;      /* per-request statuses, in the order of the batch */
  const int32_t *status;
  struct rd2h_wire_ext ext; /* META_ACK's third field */
};
struct rd2h_wire_cancel {
  struct rd2h_str id;
  bool has_attempt;
  uint8_t attempt[RD2H_ATTEMPT];
  int status;
  struct rd2h_str text;
};

/* Which message the payload is (0: unknown or malformed); looks at the tag only. */
int rd2h_wire_kind(const uint8_t *p, size_t n);
/* Bytes of arena that decoding any payload of n bytes can need. */
size_t rd2h_wire_arena_need(size_t n);
/* All decoders: OK, MALFORMED (err says what), LIMIT (a cap was passed), NOMEM (arena too small). */
int rd2h_wire_decode_meta(const uint8_t *p, size_t n, struct rd2h_arena *, struct rd2h_wire_meta *, struct rd2h_error *);
/* On MALFORMED, *layer_idx is the layer index where one could be read, else UINT32_MAX: who can be answered is. */
int rd2h_wire_decode_ready(const uint8_t *p, size_t n, struct rd2h_arena *, struct rd2h_wire_ready *, uint32_t *layer_idx,
                           struct rd2h_error *);
/* The number of a READY that could not be decoded (or held), where its frame can be read that far. */
bool rd2h_wire_ready_seq(const uint8_t *p, size_t n, uint64_t *seq);
int rd2h_wire_decode_reply(const uint8_t *p, size_t n, struct rd2h_arena *, struct rd2h_wire_reply *, struct rd2h_error *);
int rd2h_wire_decode_cancel(const uint8_t *p, size_t n, struct rd2h_wire_cancel *, struct rd2h_error *);
int rd2h_wire_decode_ping(const uint8_t *p, size_t n, uint64_t *value, struct rd2h_error *);
int rd2h_wire_decode_ext(const uint8_t *p, size_t n, struct rd2h_arena *, struct rd2h_wire_ext *, struct rd2h_error *);

/* Encoders append one payload to buf (buf->failed when out of memory). */
void rd2h_wire_encode_meta(struct rd2h_buf *, const struct rd2h_wire_meta *); /* fields 3 or 6; ext when present, in the first layer */
void rd2h_wire_encode_ready(struct rd2h_buf *, const struct rd2h_wire_ready *);
/* The same in two parts, so that the request list (equal for many layers) is encoded once: head, reqs, tail. Without has_seq no
 * 8th field is written: then the attempts of done ids and digests are not sent. */
void rd2h_wire_encode_ready_head(struct rd2h_buf *, uint32_t layer_idx, struct rd2h_str layer, bool has_seq);
void rd2h_wire_encode_reqs(struct rd2h_buf *, const struct rd2h_wire_req *, uint32_t n);
void rd2h_wire_encode_ready_tail(struct rd2h_buf *, const struct rd2h_wire_done *, uint32_t n_done, uint32_t member, uint32_t ratio,
                                 bool has_seq, uint64_t seq, struct rd2h_str digests);
void rd2h_wire_encode_ack(struct rd2h_buf *);
void rd2h_wire_encode_meta_ack(struct rd2h_buf *, const struct rd2h_wire_ext *or_null);
void rd2h_wire_encode_meta_nak(struct rd2h_buf *, const char *text);
/* statuses may be NULL (legacy peers: then neither seq nor statuses are appended). */
void rd2h_wire_encode_done(struct rd2h_buf *, uint32_t layer_idx, const uint64_t *seq, const struct rd2h_wire_req *reqs, uint32_t n);
void rd2h_wire_encode_failed(struct rd2h_buf *, uint32_t layer_idx, const char *text, const uint64_t *seq,
                             const struct rd2h_wire_req *reqs, uint32_t n);
void rd2h_wire_encode_cancel(struct rd2h_buf *, const struct rd2h_wire_cancel *);
/* The refusal of a DRAFT payload, whatever it holds: an id or generation that cannot be read is answered as "". */
void rd2h_wire_encode_draft_failed(struct rd2h_buf *, const uint8_t *p, size_t n);
void rd2h_wire_encode_ping(struct rd2h_buf *, bool pong, uint64_t value);
#endif
