/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_MEMFABRIC_H
#define RD2H_MEMFABRIC_H
/* Inside of engine memfabric: the C library of MemFabric Hybrid, loaded at run time. Its transfer objects live and die slowly (0.1
 * to 2 s, 13 s when the peer is gone) and its reads block up to 30 s, so each session has a thread of its own. */
#include "base/base.h"
#include "base/pattern.h"
#include <rd2h/engine.h>

#define MF_ID_MAX 64u         /* "address:port" with its end; what the library takes */
#define MF_HOST_MAX 56u       /* a numeric address with its end */
#define MF_NIC_MAX 64u
#define MF_PATH_MAX RD2H_LOCATE_MAX
#define MF_NIC_PORT_MAX 32767u
#define MF_PAGE (2u << 20)    /* the library rounds registrations out to these */
#define MF_MERGE_GAP 4096u    /* registrations closer than this become one, as the reference connector does it */
#define MF_REGISTRATIONS_MAX 256u /* of one process: the device driver's limit */
#define MF_AREAS_MAX 4096u

/* ---- library.c: the library, one a process ---- */
/* The library's newest configuration; older ones are beginnings of it, but for 1.0, whose byte after op is a flag left at 0. */
struct mf_config {
  int32_t role; /* MF_SENDER, MF_RECEIVER */
  uint32_t init_timeout_s, device, flags;
  int32_t op;
  char nic[MF_NIC_MAX];
  uint8_t tls[1796]; /* zero: off */
};
enum { MF_SENDER = 1, MF_RECEIVER = 2 };
enum { MF_OK = 0, MF_ERROR = -1, MF_NO_OPERATOR = -2, MF_INVALID = -2000 };

struct mf_abi {
  const char *name;
  uint32_t config_bytes;
  bool nic;
};
struct mf_api {
  const struct mf_abi *abi;
  char path[MF_PATH_MAX];
  int32_t (*init)(uint32_t flags);
  int32_t (*create_config_store)(const char *url, uint64_t flags);
  int32_t (*set_log_level)(int level);
  int32_t (*set_extern_logger)(void (*)(int level, const char *line));
  int32_t (*set_conf_store_tls)(bool on, const char *info, uint32_t len);
  const char *(*last_err_msg)(void);
  int32_t (*config_init)(struct mf_config *);
  int32_t (*trans_init)(const struct mf_config *);
  void *(*create)(const char *url, const char *id, const struct mf_config *);
  void (*destroy)(void *object, uint32_t flags);
  int32_t (*register_mem)(void *object, void *base, size_t len, uint32_t flags);
  int32_t (*deregister_mem)(void *object, void *base);
  int32_t (*batch_read)(void *object, void **local, const char *id, const void **remote, size_t *len, uint32_t n, uint32_t flags);
};
/* Found at `where` (a file or a folder; NULL: the usual places), loaded once and never unloaded. NOT_FOUND; UNSUPPORTED: another
 * ABI; STATE: another one is loaded. */
int rd2h_mf_library(const char *where, const struct mf_api **, struct rd2h_error *);
/* "INVALID_PARAM (-2000)" and so on, in a buffer of the caller's thread. */
const char *rd2h_mf_code(int32_t code);
/* What the library said about a call of this thread that failed: begin before, ask after. "" when it said nothing. */
void rd2h_mf_listen(void);
const char *rd2h_mf_said(const struct mf_api *);

/* ---- options.c ---- */
struct mf_protocol {
  const char *name;
  int32_t op;
  bool device; /* runs on the NPU: its number must be known */
  bool nic;    /* runs on the host: takes an address to listen at */
};
struct mf_options {
  const struct mf_protocol *protocol;
  const char *lib, *store_tls;
  char nic[MF_HOST_MAX]; /* address that transfers listen at */
  uint32_t device, port, nic_port, init_s, objects;
  bool has_device;
};
int rd2h_mf_options(const char *const *options, const char *host, struct mf_options *, struct rd2h_error *);
const struct mf_protocol *rd2h_mf_protocol(int32_t op); /* NULL: none */

/* ---- address.c ---- */
bool rd2h_mf_host_ok(const char *host);                  /* a numeric address */
bool rd2h_mf_session_ok(const void *session, size_t n);  /* "address:port", or "[address]:port" */
void rd2h_mf_id(const char *host, uint16_t port, char out[MF_ID_MAX]);
/* A TCP socket bound to a free port of the host, which is thereby nobody else's. -1: errno says why. */
int rd2h_mf_hold_port(const char *host, uint16_t *port);
enum mf_probe { MF_PROBE_ANSWERS, MF_PROBE_GONE, MF_PROBE_SILENT };
/* Does anybody listen where the session's config store is? Waits at most timeout_ms. */
enum mf_probe rd2h_mf_probe(const char *session, uint32_t timeout_ms);

/* ---- process.c: what a process has one of ---- */
struct mf_binding {
  bool prefill;
  uint32_t device;
  char host[MF_HOST_MAX];
};
/* STATE while engines of another role, device or host are open, or when the library was begun on another device. */
int rd2h_mf_bind(const struct mf_api *, const struct mf_binding *, const struct mf_options *, struct rd2h_error *);
void rd2h_mf_unbind(void);
/* A config store at host:port that no engine of this process uses; stays until the process ends. */
struct mf_store {
  char id[MF_ID_MAX];
  bool busy;
  struct mf_store *next;
};
int rd2h_mf_store_take(const struct mf_api *, const char *host, uint32_t port, struct mf_store **, struct rd2h_error *);
void rd2h_mf_store_give(struct mf_store *);
/* A transfer object joined to the store of `session` under the name `id`. PEER_LOST: nobody is there; IO. */
int rd2h_mf_create(const struct mf_api *, const struct mf_options *, int32_t role, const char *session, const char *id, void **object,
                   struct rd2h_error *);

/* ---- regions.c ---- */
struct mf_range {
  uint64_t base, len;
};
/* Adds to ranges that are ascending and apart: what overlaps or touches becomes one. They have room for n + 1. Returns the new n. */
uint32_t rd2h_mf_add(struct mf_range *, uint32_t n, struct mf_range);
/* What to register for these ranges: closer ones, and those that the library's rounding would make overlap, become one. Returns how
 * many; out has room for n. */
uint32_t rd2h_mf_merge(const struct mf_range *, uint32_t n, struct mf_range *out);
/* Index of the first descriptor that lies in no range; UINT32_MAX: all do. */
uint32_t rd2h_mf_outside(const struct mf_range *, uint32_t n, const struct rd2h_batch *);

/* ---- conn.c: connection data ---- */
struct mf_conn {
  char id[MF_ID_MAX];
  int32_t op;
  uint32_t n;
  struct mf_range *range; /* rd2h_free */
  uint64_t pattern, seed; /* RD2H_PATTERN bytes that follow from the seed; 0: there are none */
};
uint32_t rd2h_mf_conn_bytes(const struct mf_conn *);
void rd2h_mf_conn_encode(const struct mf_conn *, uint8_t *out);
int rd2h_mf_conn_decode(struct rd2h_blob, struct mf_conn *, struct rd2h_error *); /* MALFORMED, UNSUPPORTED, NOMEM */

/* ---- serve.c: Prefill ---- */
struct mf_serve;
int rd2h_mf_serve_open(const struct mf_api *, const struct mf_options *, const char *host, struct mf_serve **, struct rd2h_error *);
void rd2h_mf_serve_close(struct mf_serve *); /* on return nothing is read any more */
int rd2h_mf_serve_reg(struct mf_serve *, const struct rd2h_region *, uint32_t *region, struct rd2h_error *);
int rd2h_mf_serve_publish(struct mf_serve *, uint8_t *buf, uint32_t cap, uint32_t *len);
const char *rd2h_mf_serve_session(const struct mf_serve *);

/* ---- read.c: one batch through one object, in slices ---- */
struct mf_read {
  const struct mf_api *api;
  void *object;
  const char *id;
  const struct rd2h_batch *batch;
  uint64_t slice;
  const bool *stop;
  uint64_t *call_since; /* set while the library is in a call: CLOCK_BOOTTIME, 0: it is not */
  bool fresh;           /* nothing was read through the object yet: links may still come up */
  uint64_t done;        /* bytes that landed */
  int32_t code;         /* of the call that failed */
  uint64_t longest_ns;  /* that a call took */
};
int rd2h_mf_read(struct mf_read *, struct rd2h_error *); /* OK, CANCELED, IO */

/* ---- client.c, session.c: Decode ---- */
/* How long a peer may be silent after a read of it has failed, and the pause between two questions after that. Tests shorten it. */
extern struct mf_patience {
  uint64_t silent_ns, again_ns;
} rd2h_mf_patience;
struct mf_client;
int rd2h_mf_client_open(const struct mf_api *, const struct mf_options *, const char *host, const struct rd2h_engine_opts *,
                        struct mf_client **, struct rd2h_error *);
void rd2h_mf_client_close(struct mf_client *);
int rd2h_mf_client_connect(struct mf_client *, struct rd2h_blob session, struct rd2h_blob conn, uint64_t cookie, rd2h_peer **,
                           struct rd2h_error *);
void rd2h_mf_client_disconnect(struct mf_client *, rd2h_peer *);
int rd2h_mf_client_submit(struct mf_client *, rd2h_peer *, const struct rd2h_batch *);
void rd2h_mf_client_cancel(struct mf_client *, uint64_t id);
int rd2h_mf_client_poll(struct mf_client *, struct rd2h_completion *, int n);
int rd2h_mf_client_events(struct mf_client *, struct rd2h_peer_event *, int n);
int rd2h_mf_client_fd(const struct mf_client *);
void rd2h_mf_client_stats(struct mf_client *, struct rd2h_engine_stats *);
const char *rd2h_mf_client_error(struct mf_client *, uint64_t id);

extern const struct rd2h_engine_ops rd2h_engine_memfabric;
#endif
