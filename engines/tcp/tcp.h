/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_TCP_H
#define RD2H_TCP_H
/* Inside of engine tcp: Decode sends lists of descriptors over several streams, Prefill's own thread sends the bytes back. */
#include "base/base.h"
#include <pthread.h>
#include <rd2h/engine.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define TCP_TOKEN 16u
#define TCP_CONN 40u              /* bytes of connection data */
#define TCP_HELLO 32u             /* Decode to Prefill, first on every stream */
#define TCP_HEAD 24u              /* of a request; its descriptors follow */
#define TCP_DESC 16u
#define TCP_REPLY 64u             /* of a head, a tail, a refusal: wire.c says why so many */
#define TCP_DESC_MAX 1000u        /* descriptors of a request; with head and tail below the kernel's limit of iovecs a call */
#define TCP_PIECE_MAX (1u << 20)  /* bytes that one request asks for */
#define TCP_WINDOW (1u << 20)     /* bytes of one system call: between two looks at what others want */
#define TCP_IOVECS (TCP_DESC_MAX + 4u)
#define TCP_STREAMS_MAX 16u
#define TCP_REGIONS_MAX 4096u
#define TCP_TARGETS_MAX 16u
#define TCP_REGION_SEARCH UINT32_MAX
#define TCP_TIMEOUT_NS (31000 * RD2H_MS) /* where the options name none */

/* What Prefill publishes. The token lives as long as the engine: who shows it may read the registered regions. */
struct rd2h_tcp_conn {
  bool v6;
  uint16_t port;
  uint8_t addr[16]; /* network order; IPv4 in the first four */
  uint8_t token[TCP_TOKEN];
};

struct tcp_request {
  uint32_t seq, n;
  uint64_t bytes;
};
struct tcp_desc {
  uint64_t addr;
  uint32_t len, region;
};
enum tcp_reply_kind { TCP_REPLY_HEAD = 0x44484452, TCP_REPLY_TAIL = 0x4c544452, TCP_REPLY_REFUSED = 0x46524452 };
struct tcp_reply {
  enum tcp_reply_kind kind;
  uint32_t seq;
  int status;  /* of a head: 0 and the bytes and a tail follow, or nothing follows; of a tail: whether the bytes are good */
  uint32_t at; /* descriptor of the request that is to blame, UINT32_MAX: none */
};

/* ---- wire.c: little-endian; decoders take exactly the bytes named above and check each ---- */
void rd2h_tcp_conn_encode(const struct rd2h_tcp_conn *, uint8_t out[TCP_CONN]);
int rd2h_tcp_conn_decode(struct rd2h_blob, struct rd2h_tcp_conn *, struct rd2h_error *);
void rd2h_tcp_hello_encode(const uint8_t token[TCP_TOKEN], uint8_t out[TCP_HELLO]);
int rd2h_tcp_hello_check(const uint8_t in[TCP_HELLO], const uint8_t token[TCP_TOKEN]); /* UNSUPPORTED, PERMISSION, MALFORMED */
void rd2h_tcp_request_encode(const struct tcp_request *, uint8_t out[TCP_HEAD]);
int rd2h_tcp_request_decode(const uint8_t in[TCP_HEAD], struct tcp_request *); /* MALFORMED */
void rd2h_tcp_desc_encode(const struct tcp_desc *, uint8_t out[TCP_DESC]);
struct tcp_desc rd2h_tcp_desc_decode(const uint8_t in[TCP_DESC]);
void rd2h_tcp_reply_encode(const struct tcp_reply *, uint8_t out[TCP_REPLY]);
int rd2h_tcp_reply_decode(const uint8_t in[TCP_REPLY], struct tcp_reply *); /* MALFORMED */

/* ---- address.c ---- */
socklen_t rd2h_tcp_sockaddr(const struct rd2h_tcp_conn *, struct sockaddr_storage *);
void rd2h_tcp_address_text(const struct rd2h_tcp_conn *, char out[64]); /* "addr:port", for people */
/* The numeric address of a host; its port stays 0. May block. */
int rd2h_tcp_resolve(const char *host, struct rd2h_tcp_conn *, struct rd2h_error *);
/* No delay, and the kernel notices within about `timeout` that the other host is gone, idle or not. */
void rd2h_tcp_socket_options(int fd, uint64_t timeout_ns);

/* ---- targets.c: addresses that Decode may be told to connect to ---- */
struct tcp_net {
  bool v6;
  uint8_t addr[16];
  uint32_t bits;
};
struct tcp_targets {
  bool any;
  uint32_t n; /* 0: the host that the peer's session names */
  struct tcp_net net[TCP_TARGETS_MAX];
};
int rd2h_tcp_targets_parse(const char *list, struct tcp_targets *, struct rd2h_error *);
/* PERMISSION for an address that is not among them. A session that names its host by a name cannot be compared: any address will do. */
int rd2h_tcp_targets_check(const struct tcp_targets *, const struct rd2h_tcp_conn *, struct rd2h_blob session, struct rd2h_error *);

/* ---- regions.c: what may be served ---- */
struct tcp_regions {
  uint32_t n, hint;
  struct rd2h_region *r; /* TCP_REGIONS_MAX; base NULL: deregistered */
};
/* OK, or RANGE: no registered region holds the descriptor. */
int rd2h_tcp_region_check(struct tcp_regions *, const struct tcp_desc *);
/* Checks a whole list against the regions and its head. OK; RANGE with *at; MALFORMED: lengths do not add up. */
int rd2h_tcp_list_check(struct tcp_regions *, const struct tcp_request *, const uint8_t *list, uint32_t *at);

/* ---- server.c: Prefill's side; its own thread ---- */
struct tcp_server;
int rd2h_tcp_server_open(const char *host, const char *bind_host, uint64_t timeout_ns, struct tcp_server **, struct rd2h_error *);
void rd2h_tcp_server_close(struct tcp_server *); /* on return nothing is served any more */
int rd2h_tcp_server_reg(struct tcp_server *, const struct rd2h_region *, uint32_t *region, struct rd2h_error *);
void rd2h_tcp_server_dereg(struct tcp_server *, uint32_t region); /* on return no byte of it is read any more */
/* A token for one reader (not 0), until it is revoked: on return of that no byte is read for it any more. Errors: IO, LIMIT. */
int rd2h_tcp_server_admit(struct tcp_server *, uint64_t reader, uint8_t token[TCP_TOKEN]);
void rd2h_tcp_server_revoke(struct tcp_server *, uint64_t reader);
const struct rd2h_tcp_conn *rd2h_tcp_server_conn(const struct tcp_server *);
int rd2h_tcp_server_fd(const struct tcp_server *); /* a descriptor that is never readable */

/* ---- client.c: Decode's side; its own thread ---- */
struct tcp_client;
int rd2h_tcp_client_open(uint32_t streams, uint64_t timeout_ns, struct tcp_client **, struct rd2h_error *);
void rd2h_tcp_client_close(struct tcp_client *);
int rd2h_tcp_client_connect(struct tcp_client *, const struct rd2h_tcp_conn *, uint64_t cookie, rd2h_peer **, struct rd2h_error *);
void rd2h_tcp_client_disconnect(struct tcp_client *, rd2h_peer *);
int rd2h_tcp_client_submit(struct tcp_client *, rd2h_peer *, const struct rd2h_batch *);
void rd2h_tcp_client_cancel(struct tcp_client *, uint64_t id);
int rd2h_tcp_client_poll(struct tcp_client *, struct rd2h_completion *, int n);
int rd2h_tcp_client_events(struct tcp_client *, struct rd2h_peer_event *, int n);
int rd2h_tcp_client_fd(const struct tcp_client *);
void rd2h_tcp_client_stats(struct tcp_client *, struct rd2h_engine_stats *);
const char *rd2h_tcp_client_error(struct tcp_client *, uint64_t id);

extern const struct rd2h_engine_ops rd2h_engine_tcp;
#endif
