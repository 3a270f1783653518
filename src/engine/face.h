/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_ENGINE_FACE_H
#define RD2H_ENGINE_FACE_H
/* Inside of the room: every kind of rd2h_eng (plain, pool, fault) begins with struct rd2h_eng and fills one table. */
#include "engine/engine.h"

struct rd2h_eng_face {
  void (*close)(rd2h_eng *);
  int (*reg)(rd2h_eng *, const struct rd2h_region *, uint32_t *, struct rd2h_error *);
  int (*publish)(rd2h_eng *, uint64_t reader, struct rd2h_buf *, struct rd2h_error *);
  void (*revoke)(rd2h_eng *, uint64_t reader);
  int (*connect)(rd2h_eng *, struct rd2h_blob session, struct rd2h_blob conn, uint64_t cookie, rd2h_eng_peer **,
                 struct rd2h_error *);
  rd2h_eng *(*part)(rd2h_eng *, uint32_t i); /* NULL: it stands for itself alone */
  /* NULL: the offer of its own name, if there is one */
  int (*choose)(rd2h_eng *, struct rd2h_blob session, const struct rd2h_eng_offer *, uint32_t n, uint64_t cookie, rd2h_eng_peer **,
                const char **chosen, struct rd2h_error *);
  void (*disconnect)(rd2h_eng *, rd2h_eng_peer *);
  int (*submit)(rd2h_eng *, rd2h_eng_peer *, const struct rd2h_batch *);
  void (*cancel)(rd2h_eng *, uint64_t id);
  int (*poll)(rd2h_eng *, struct rd2h_completion *, int n);
  int (*events)(rd2h_eng *, struct rd2h_peer_event *, int n);
  int (*fd)(rd2h_eng *);
  void (*stats)(rd2h_eng *, struct rd2h_engine_stats *);
  const char *(*last_error)(rd2h_eng *, uint64_t id); /* NULL: nothing known */
  const char *(*session)(rd2h_eng *); /* NULL: it has none of its own */
  const char *(*way)(rd2h_eng *, rd2h_eng_peer *);
};

struct rd2h_eng {
  const struct rd2h_eng_face *face;
  const char *name;
  struct rd2h_engine_caps caps;
  bool prefill;
};

/* ---- an engine's table and instance, and the peers connected through it: what plain and pool share ---- */
struct rd2h_eng_peer {
  rd2h_peer *peer; /* the engine's */
  rd2h_eng_peer *prev, *next;
};
struct rd2h_module {
  struct rd2h_eng eng;
  const struct rd2h_engine_ops *ops;
  rd2h_engine *self;
  rd2h_eng_peer *peers;
};
/* Checks the table, opens the engine and fills *m but for its face. */
int rd2h_module_open(struct rd2h_module *m, const struct rd2h_engine_ops *, const struct rd2h_engine_opts *, struct rd2h_error *);
int rd2h_module_reg(rd2h_eng *, const struct rd2h_region *, uint32_t *, struct rd2h_error *);
int rd2h_module_publish(rd2h_eng *, uint64_t reader, struct rd2h_buf *, struct rd2h_error *);
void rd2h_module_revoke(rd2h_eng *, uint64_t reader);
/* Fills and links the record p, which stays the caller's. */
int rd2h_module_connect(struct rd2h_module *m, struct rd2h_blob session, struct rd2h_blob conn, uint64_t cookie, rd2h_eng_peer *p,
                        struct rd2h_error *);
void rd2h_module_disconnect(struct rd2h_module *m, rd2h_eng_peer *p); /* unlinks, fences */
const char *rd2h_module_session(rd2h_eng *);
const char *rd2h_module_way(rd2h_eng *, rd2h_eng_peer *);
int rd2h_module_events(rd2h_eng *, struct rd2h_peer_event *, int n);

struct rd2h_fault_opts {
  uint64_t fail_every, hang_every, delay_ms, corrupt_every; /* 0: never */
};
/* Both take over what `opened` holds; on error it stays the caller's. */
int rd2h_plain_open(const struct rd2h_module *opened, rd2h_eng **, struct rd2h_error *);
int rd2h_pool_open(const struct rd2h_module *opened, const struct rd2h_engine_opts *, rd2h_eng **, struct rd2h_error *);
int rd2h_auto_open(const struct rd2h_engine_opts *, rd2h_eng **, struct rd2h_error *);
/* Takes `inner` over; on error it stays the caller's. */
int rd2h_fault_open(rd2h_eng *inner, const struct rd2h_fault_opts *, rd2h_eng **, struct rd2h_error *);
#endif
