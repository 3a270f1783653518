/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_ENGINE_H
#define RD2H_ENGINE_H
/* The contract between rd2h and a transfer engine. A status below 0 is an error of status.h.
 * One engine instance belongs to one thread (the worker's), but for read(), which pool threads call. */
#include <rd2h/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

#define RD2H_ENGINE_ABI 1u
enum {
  RD2H_ENG_SUBMIT_COMPLETES = 1 << 0, /* reads have ended when submit returns: who polls behind it need not watch fd */
  RD2H_ENG_BLOCKS = 1 << 1,           /* read() blocks: the core gives it threads and fills submit, poll, fd and cancel itself */
  RD2H_ENG_CANCEL = 1 << 2,           /* cancel acts before the read has ended */
  RD2H_ENG_PEER_DOWN = 1 << 3,        /* a peer's death becomes a peer event or a failed read */
  RD2H_ENG_TARGET_PROGRESS = 1 << 4,  /* Prefill must keep calling poll() */
  RD2H_ENG_LOCAL_UNREGISTERED = 1 << 5, /* destinations need no registration */
  RD2H_ENG_IN_ORDER = 1 << 6,           /* descriptors before failed_at have landed */
  RD2H_ENG_PARALLEL = 1 << 7,           /* with BLOCKS: read() may be called for one peer by several threads at once */
  RD2H_ENG_BY_SESSION = 1 << 8          /* a peer without connection data is reached by its session string alone */
};

/* Services for a module; it calls nothing else of rd2h (it may sit in a wheel where librd2h is static). */
struct rd2h_host {
  uint32_t abi, size;
  void *(*alloc)(void *h, size_t n);
  void (*free)(void *h, void *p);
  void (*log)(void *h, int level, const char *line);
  uint64_t (*now_ns)(void *h); /* CLOCK_BOOTTIME */
  void *h;
};

struct rd2h_engine_opts {
  uint32_t size;
  bool prefill;         /* role: true on the side that is read from */
  const char *host;     /* address that this process is reached under */
  uint64_t read_timeout_ns; /* longest that one read may take */
  uint32_t threads;     /* pool threads for engines that block; 0: the core chooses */
  uint64_t slice_bytes; /* a blocking read returns to look for cancel after at most so many bytes; 0: 8 MiB */
  const char *const *options; /* engine's own: "name=value", NULL-terminated; may be NULL */
  bool legacy_session;  /* test option: serve peers that published no connection data, by their session string alone */
  /* Every thread that works for the engine calls it first, if it is there: it selects the device whose memory is moved. */
  int (*bind_thread)(void *bind_arg);
  void *bind_arg;
};

struct rd2h_region {
  void *base;
  uint64_t len;
  uint32_t device, flags;
};

/* Bytes from or for a peer: opaque to all but the same engine. */
struct rd2h_blob {
  const uint8_t *p;
  uint32_t len;
};

/* One batch = one message. Owned by the caller, constant and alive until its completion. */
struct rd2h_batch {
  uint64_t id;
  uint32_t n;
  uint64_t bytes;
  void *const *local;
  const uint64_t *remote;
  const uint64_t *len;
  const uint32_t *remote_region; /* index into the peer's published regions; NULL: search */
};

struct rd2h_completion {
  uint64_t id;
  int status;
  uint32_t failed_at; /* first bad descriptor, UINT32_MAX when unknown or none */
  uint64_t bytes;     /* bytes that landed */
};

struct rd2h_peer_event {
  uint64_t cookie;
  bool up;
  int status; /* why it is down */
};

struct rd2h_engine_caps {
  uint32_t flags, max_desc, max_inflight_per_peer;
};

struct rd2h_engine_stats {
  uint64_t reads, descriptors, bytes, failures, canceled;
};

typedef struct rd2h_engine rd2h_engine;
typedef struct rd2h_peer rd2h_peer;

struct rd2h_engine_ops {
  uint32_t abi, size;
  const char *name;
  /* May block (process start). *caps is final here, not at compile time. */
  int (*open)(const struct rd2h_host *, const struct rd2h_engine_opts *, rd2h_engine **, struct rd2h_engine_caps *,
              struct rd2h_error *);
  /* No slot call after close returns; in-flight batches are lost to poll: cancel and drain first. */
  void (*close)(rd2h_engine *);
  int (*reg)(rd2h_engine *, const struct rd2h_region *, uint32_t *region, struct rd2h_error *); /* may block */
  void (*dereg)(rd2h_engine *, uint32_t region);
  /* What goes in MF_META's "rd2h" key. RANGE and *len = need when cap is small. */
  int (*publish)(rd2h_engine *, uint8_t *buf, uint32_t cap, uint32_t *len);
  /* Never blocks; the data comes from outside: every byte is validated. session: the peer's session string ("host:port").
   * The peer may still be connecting afterwards: an event says up or down; an engine without connections is up at once. */
  int (*connect)(rd2h_engine *, struct rd2h_blob session, struct rd2h_blob conn, uint64_t cookie, rd2h_peer **,
                 struct rd2h_error *);
  /* A fence: on return no byte of this peer's batches can land any more, and none of them completes. The peer is gone. */
  void (*disconnect)(rd2h_engine *, rd2h_peer *);
  /* Never blocks. OK: completes exactly once. AGAIN: queue full, nothing taken. Else: nothing taken, never completes. */
  int (*submit)(rd2h_engine *, rd2h_peer *, const struct rd2h_batch *);
  /* A request, not a fence: the batch still completes, with CANCELED or its true status; after that no byte lands. */
  void (*cancel)(rd2h_engine *, uint64_t id);
  /* Never blocks; drains at most n, returns how many. */
  int (*poll)(rd2h_engine *, struct rd2h_completion *, int n);
  int (*events)(rd2h_engine *, struct rd2h_peer_event *, int n); /* peer up or down, by cookie */
  int (*fd)(rd2h_engine *); /* readable whenever poll or events would return more than 0; level-triggered */
  /* Only with BLOCKS: called by a pool thread; calls for one peer never overlap, but with PARALLEL: then a large batch comes in
   * several pieces, each a batch of its own under the same id. Looks at *stop between slices (another thread
   * sets it: atomic load) and then returns CANCELED. *done counts bytes that landed; *failed_at as in rd2h_completion. err is
   * filled on failure. */
  int (*read)(rd2h_engine *, rd2h_peer *, const struct rd2h_batch *, const volatile bool *stop, uint64_t *done,
              uint32_t *failed_at, struct rd2h_error *err);
  void (*stats)(rd2h_engine *, struct rd2h_engine_stats *);
  /* Why the read failed that the latest poll yielded under this id, for engines without read(); lives until the next poll. NULL:
   * nothing known. The slot may be NULL. */
  const char *(*last_error)(rd2h_engine *, uint64_t id);
  /* The session string that peers reach a Prefill by; it lives as long as the engine. NULL, or the slot is NULL: any will do. */
  const char *(*session)(rd2h_engine *);
  /* On Prefill, both or neither: publish's data for one connection of a reader alone, by a number that is not 0, and the end of it: on
   * return of revoke nothing is read any more by who shows that data. Without them publish's data serves every reader. */
  int (*publish_for)(rd2h_engine *, uint64_t reader, uint8_t *buf, uint32_t cap, uint32_t *len);
  void (*revoke)(rd2h_engine *, uint64_t reader);
  /* What the peer is read by, for people: transports and devices. It lives as long as the peer. The slot may be NULL. */
  const char *(*way)(rd2h_engine *, rd2h_peer *);
};

#ifdef __cplusplus
}
#endif
#endif
