/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_PM_INTERNAL_H
#define RD2H_PM_INTERNAL_H
/* Records of the prefill machine, shared by its own files only. */
#include "protocol/prefill_machine.h"

#define PM_TEXT 256

enum pm_state { PM_IDLE, PM_CONNECTING, PM_META, PM_OPEN };
struct pm_ep {
  uint32_t gen, epoch;
  enum pm_state state;
  char *address, *engine_id;
  bool ours, due_armed, idle_armed;
  bool silent;             /* has answered nothing for hold_ms: what is new is not sent to it until it does */
  uint32_t caps;
  uint32_t head, tail, n;  /* entries without an answer, oldest first; sent ones precede unsent ones */
  uint32_t first_unsent;
  uint32_t n_links;        /* requests bound here and not settled */
  uint64_t seq, used;      /* used: last time anything was wanted of it */
  uint64_t heard;          /* last sign of progress: the acknowledgement or an answer */
};

enum pm_kind { PM_BATCH, PM_DONE, PM_BYE };
struct pm_entry {
  enum pm_kind kind;
  uint32_t ep, next, prev;
  uint32_t layer, link;    /* link: of DONE and BYE */
  uint32_t *req, n;        /* of BATCH: request handles, NONE where no longer wanted; compacted when sent */
  uint64_t cookie, seq, deadline;
  bool sent, zombie;       /* zombie: given up, kept because its answer may still come */
};

/* One request at one endpoint. */
struct pm_link {
  uint32_t req, ep, next;  /* next: of the request's list */
  uint32_t outstanding;    /* batches and done that name it and are not settled */
  uint32_t telling;        /* its reader is still to be told: keeps the record, holds up nothing */
  bool last, done_queued;
  bool known;              /* a batch of it was answered: the reader knows who serves it and notices when the connection ends */
  bool untold;             /* its reader is to hear of its end as soon as there is a way; counts in telling until then */
  bool ended;              /* nothing more is published here: settled, failed or given up */
  int status;
};

struct pm_req {
  uint32_t gen;
  char *id, *ext;
  uint32_t id_n, ext_n;
  bool has_attempt, has_dspark, finished;
  bool settled;            /* reported; id is gone */
  uint8_t attempt[RD2H_ATTEMPT];
  uint32_t links, outstanding;
  char text[PM_TEXT]; /* first failure */
};

struct pm_act {
  struct rd2h_pa a;
  char *id, *ext; /* owned, freed after the action was carried out */
  size_t text;
};

struct rd2h_pm {
  struct rd2h_pm_cfg cfg;
  struct rd2h_slab eps, entries, links, reqs;
  struct rd2h_map *by_address, *by_id, *by_wire; /* by_wire: endpoint, attempt or zeros, external id -> link */
  struct rd2h_heap timers;
  uint32_t gen, epochs;
  struct pm_act *act;
  struct rd2h_pa lost; /* written to in place of an action that there was no memory for */
  uint32_t act_n, act_head, act_cap;
  struct rd2h_buf text;
  char *spent[2];
  struct rd2h_pm_stats st;
};

enum pm_timer { PM_TIMER_HANDSHAKE = 1, PM_TIMER_DUE, PM_TIMER_IDLE };

static inline struct pm_ep *pm_ep(const rd2h_pm *m, uint32_t i) { return rd2h_slab_at(&m->eps, i); }
static inline struct pm_entry *pm_entry(const rd2h_pm *m, uint32_t i) { return rd2h_slab_at(&m->entries, i); }
static inline struct pm_link *pm_link(const rd2h_pm *m, uint32_t i) { return rd2h_slab_at(&m->links, i); }
static inline struct pm_req *pm_req(const rd2h_pm *m, uint32_t i) { return rd2h_slab_at(&m->reqs, i); }

/* pm_core.c; id and ext are taken over */
struct rd2h_pa *pm_emit(rd2h_pm *, enum rd2h_pa_kind, uint32_t ep, char *id, char *ext, const char *text);
struct rd2h_pa *pm_emit_link(rd2h_pm *, enum rd2h_pa_kind, uint32_t link, const char *text);
bool pm_reserve(rd2h_pm *);
void pm_timer(rd2h_pm *, uint64_t at, enum pm_timer, uint32_t index, uint32_t gen);

/* pm_entry.c */
uint32_t pm_entry_add(rd2h_pm *, uint32_t ep, enum pm_kind, uint64_t now);
void pm_kick(rd2h_pm *, uint32_t ep, uint64_t now);
/* tell: readers of what ends by it hear of it in their turn. */
void pm_entry_settle(rd2h_pm *, uint32_t entry, int status, const struct rd2h_wire_reply *or_null, const char *text, bool tell,
                     uint64_t now);
void pm_entry_remove(rd2h_pm *, uint32_t entry);
void pm_due(rd2h_pm *, uint32_t ep, uint64_t now);

/* pm_endpoint.c */
void pm_epoch_fail(rd2h_pm *, uint32_t ep, int status, const char *text, uint64_t now);
void pm_handshake_due(rd2h_pm *, uint32_t ep, uint64_t now);
void pm_idle_due(rd2h_pm *, uint32_t ep, uint64_t now);
void pm_arm_idle(rd2h_pm *, uint32_t ep, uint64_t now);

/* pm_request.c */
uint32_t pm_find_link(const rd2h_pm *, uint32_t req, uint32_t ep);
/* Nothing more is published over the link; first status wins. tell: the reader is told (CANCEL or poison) in its turn. */
void pm_link_end(rd2h_pm *, uint32_t link, int status, const char *text, bool tell, uint64_t now);
/* The reader is told that nothing more comes over the link, after what is queued for it. */
void pm_link_tell(rd2h_pm *, uint32_t link, uint64_t now);
void pm_link_owe(rd2h_pm *, uint32_t link);
void pm_link_maybe_done(rd2h_pm *, uint32_t link, uint64_t now);
void pm_req_maybe_settle(rd2h_pm *, uint32_t req);
#endif
