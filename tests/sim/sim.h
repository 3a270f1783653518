/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_SIM_H
#define RD2H_SIM_H
/* A deterministic simulation of whole Prefill and Decode engines around the real protocol machines: virtual time, a seeded
 * generator, a network that delays and breaks, an engine that is slow, fails or hangs, users who abort and retry, processes that
 * crash, restart or are stopped, and small models of legacy peers. Every source cell bears a stamp that says which write made it;
 * reads copy stamps, and the rules (I1 … I13 of the failure rules) are checked as things happen.
 *
 * Same seed, same build: same run, event by event. Nothing here sees a clock, a thread or the process's randomness. */
#include "protocol/decode_machine.h"
#include "protocol/prefill_machine.h"

enum {
  MAX_TP = 4,
  MAX_PP = 2,
  MAX_RANKS = MAX_TP * MAX_PP,
  MAX_ENGINES = 2,
  MAX_LAYERS = 6,
  N_BLOCKS = 64,
  MAX_LIST = 20,
  MAX_JOBS = 24,
  MAX_CONNS = 1024,
  MAX_BATCHES = 16384,
  BATCH_REQS = 4,
  CACHED_BLOCKS = 3,
  MAX_CELLS = BATCH_REQS * MAX_LIST * RD2H_MAX_TENSORS
};
enum { MAIN, INDEXER, N_COMP };
#define BLOCK_BYTES 64u
#define SEC (1000 * RD2H_MS)
/* The times a deployment would set, in the order that the rules ask for: engine call + park < progress < hold. */
#define ENGINE_NS (3 * SEC)
#define PARK_NS (2 * SEC)
#define PROGRESS_NS (10 * SEC)
#define HOLD_NS (20 * SEC)
#define QUEUE_NS (40 * SEC)
#define HANDSHAKE_NS (5 * SEC)
#define IDLE_NS (8 * SEC)
#define PROBE_NS (1 * SEC)
#define SLACK_NS (SEC / 2)
#define SUSPECT_NS (1 * SEC) /* a call of a blocking engine that lasts longer makes its session suspect */
#define DEAD_NS (5 * SEC)    /* of silence: then a transport takes the other side for dead */
#define JOB_CACHE 0xfffeu /* stamps and owners of blocks that a prefix cache holds */

/* What is broken on purpose, in the simulation's own glue, to see that the rules notice. */
#define SIM_MUTATIONS(X) \
  X(NONE, "none") \
  X(DONE_RIDES, "done rides on the last layer's message, which can be given up") \
  X(DONE_AFTER_GIVING_UP, "done is sent although a batch was given up") \
  X(GATE_AT_SEND, "the gate closes when the message is sent, not when it is dispatched") \
  X(GATE_BOOLEAN, "the gate is a boolean, the first answer opens it") \
  X(POP_ANY, "an answer settles the oldest batch, whatever it names") \
  X(QUEUE_SURVIVES, "the queue survives a reconnection") \
  X(NO_META_AGAIN, "no metadata after a reconnection") \
  X(ONE_RATIO, "one ratio for all endpoints") \
  X(MODULO, "ranks are matched by modulo instead of floor") \
  X(REPLY_EARLY, "Decode answers before its read is over") \
  X(FREE_EARLY, "blocks of an aborted request are freed under a read") \
  X(REPORT_TWICE, "a request is reported twice") \
  X(FAIL_AFTER_DONE, "a failure is reported after success") \
  X(DONE_CLEARS_FAILED, "done makes a failed request good again") \
  X(COVERAGE_DROPPED, "success does not ask for coverage") \
  X(NONCE_IGNORED, "attempt nonces are ignored") \
  X(PARK_FOREVER, "a message without destinations is parked for ever") \
  X(TOMBSTONES_OFF, "ended ids are forgotten at once") \
  X(SUSPECT_ENTERED, "threads of a blocking engine enter a suspect session")
enum sim_mutation {
#define SIM_MUT_ENUM(name, text) MUT_##name,
  SIM_MUTATIONS(SIM_MUT_ENUM)
#undef SIM_MUT_ENUM
  MUT_COUNT
};

struct rng {
  uint64_t s[4];
};
void rng_seed(struct rng *, uint64_t seed);
uint64_t rng_next(struct rng *);
uint32_t rng_below(struct rng *, uint32_t n);             /* 0 … n - 1 */
uint64_t rng_between(struct rng *, uint64_t a, uint64_t b); /* a … b */
bool rng_chance(struct rng *, uint32_t permille);

/* One written value of one block of one tensor of one layer. */
struct stamp {
  uint16_t job; /* index + 1; 0: nothing was ever written */
  uint8_t prank, layer, tensor, head;
  uint16_t block; /* index in the request */
  uint32_t write;
};

struct proc { /* one operating system process */
  uint32_t inc;
  bool alive, paused;
  uint64_t resume_at;
  uint64_t paused_ns; /* in total: bounds on what it does are extended by that */
  struct event *deferred, **deferred_tail;
};

struct world;
typedef void event_fn(struct world *, void *obj, uint64_t a);
struct event {
  uint64_t at, order;
  event_fn *fn;
  void *obj;
  uint64_t a;
  struct proc *proc; /* NULL: nobody's */
  uint32_t inc;
  struct event *next;
};

/* A message on its way, or borrowed by a Decode machine. */
struct msg {
  struct msg *next, **prev;
  enum rd2h_wire_kind kind;
  uint32_t conn, brec, order; /* brec: NONE for done and poison; order: place among the READYs of the connection */
  bool at_decode, answered, freed, echo; /* echo: delivered a second time by a legacy sender; its answer is swallowed */
  uint64_t arrived, paused; /* paused: of Decode's process at arrival */
  bool all_ended;           /* every request that it names had ended here when it arrived */
  struct rd2h_wire_ready w;
  struct rd2h_wire_req req[BATCH_REQS];
  struct rd2h_wire_done done[BATCH_REQS];
  uint32_t job[BATCH_REQS];
  uint32_t block[BATCH_REQS][N_COMP][MAX_LIST];
  char ext[BATCH_REQS][24], done_ext[BATCH_REQS][24], layer[64];
  struct rd2h_wire_reply reply;
  int32_t status[BATCH_REQS];
  struct rd2h_wire_cancel cancel;
  char text[96];
};

enum conn_state { CONN_CONNECTING, CONN_UP, CONN_DEAD };
struct conn {
  uint32_t p, rank, p_inc, d, drank, d_inc;
  uint32_t endpoint, epoch;
  enum conn_state state;
  bool p_closed, acked, ours, refused; /* acked, ours, refused: as the answer to the metadata says */
  uint64_t d_since, d_paused; /* when Decode's process, running, can first know; of its time in stops until then */
  uint64_t d_knows; /* from then on Decode's transport refuses to send */
  uint64_t last_to_d, last_to_p;
  bool deaf;     /* Decode's next send is refused once, though the connection lives */
  bool drains;   /* what was on its way when Prefill closed still arrives */
  uint32_t reading; /* calls of a blocking engine that are in this session */
  bool suspect;     /* one of them lasts too long */
  uint64_t stuck_until, held_at; /* none of them returns before; when one was last seen not to */
  uint32_t peer, peer_gen; /* Decode machine's handle or NONE */
  uint32_t ready_in, ready_out; /* READYs that reached Decode, answers that left it */
  struct rd2h_link *link; /* of a legacy Decode */
};

/* One layer's message for one endpoint, followed from dispatch to the end. */
struct brec {
  uint32_t p, rank, p_inc, d, drank, layer, n, conn;
  uint32_t job[BATCH_REQS], handle[BATCH_REQS];
  uint32_t start[BATCH_REQS][N_COMP], count[BATCH_REQS][N_COMP];
  bool carried[BATCH_REQS], last[BATCH_REQS];
  int status[BATCH_REQS]; /* as Decode answered it */
  bool sent, answered, delivered, settled, given_up, gate_held;
  uint32_t member, ratio, machine_batch;
  uint64_t seq;
  bool has_seq;
  uint64_t dispatched;
};

enum job_d { D_WAITING, D_GOOD, D_BAD, D_GONE };
enum job_p { P_NONE, P_WAITING, P_RUNNING, P_COMPUTED, P_ENDED, P_GONE };
struct job {
  uint32_t no, d, p, d_inc, p_inc;
  char id[24], ext[24], pid[24];
  uint8_t attempt[RD2H_ATTEMPT];
  bool has_attempt;
  uint32_t tokens, floor_tokens, p_tokens, p_floor; /* p_*: what Prefill believes */
  bool faulted;        /* may fail; else it must succeed */
  const char *why;
  uint64_t born;
  bool skips_a_chunk, chunk_skipped; /* Prefill forgets to publish one */
  /* Decode */
  enum job_d d_state;
  bool aborted, early_freed;
  uint32_t need[N_COMP], floor[N_COMP], n_dst[N_COMP], dst[N_COMP][MAX_LIST];
  struct {
    bool installed, end_asked, reported;
    int status;
    uint64_t sign, paused, dones; /* dones: a bit for each contributor whose done arrived */
    uint32_t done_on[MAX_RANKS];  /* by Prefill rank: the connection on which it came, + 1 */
  } on[MAX_TP];
  uint8_t written[MAX_TP][MAX_LAYERS][RD2H_MAX_TENSORS][MAX_LIST];
  /* Prefill */
  enum job_p p_state;
  bool p_abort, preempt;
  uint32_t computed, published, prefix, n_src[N_COMP], src[N_COMP][MAX_LIST], writes, p_settled;
  struct stamp named[MAX_RANKS][MAX_LAYERS][RD2H_MAX_TENSORS][MAX_LIST]; /* content when READY named it */
  struct {
    bool finished, settled, given_up[MAX_TP], done_sent[MAX_TP];
    int status;
    uint32_t handle[MAX_TP];
  } at[MAX_RANKS];
};

struct lp_endpoint; /* legacy Prefill's connection, legacy.c */
struct prank {
  struct world *w;
  uint32_t p, rank;
  struct proc proc;
  rd2h_pm *pm;
  struct lp_endpoint *lp; /* [MAX_ENGINES][MAX_TP] when legacy */
  struct {
    uint32_t d, drank, conn;
  } ep[64]; /* by the machine's endpoint handle */
  uint32_t epochs[MAX_ENGINES][MAX_TP];
  struct stamp cell[MAX_LAYERS][RD2H_MAX_TENSORS][N_BLOCKS]; /* [slot][tensor][block] */
  uint32_t busy[N_COMP][MAX_LAYERS]; /* unanswered batches of a slot */
  uint32_t at_layer;
  bool waiting;
  uint64_t wait_from, wait_paused, timer_at;
};
struct pengine {
  struct world *w;
  uint32_t no, tp, pp, version;
  bool legacy, stepping, watchdog;
  uint32_t inc, n_slots[N_COMP];
  struct prank rank[MAX_RANKS];
  bool used[N_COMP][N_BLOCKS];
  /* the current step */
  uint32_t n_step, step_job[BATCH_REQS], step_from[BATCH_REQS], step_to[BATCH_REQS], ranks_left;
  bool step_last[BATCH_REQS];
};

struct ld_state; /* legacy Decode's thread */
struct drank {
  struct world *w;
  uint32_t d, rank;
  struct proc proc;
  rd2h_dm *dm;
  struct ld_state *ld;
  uint64_t timer_at, step_at; /* step_at: when the last step of its scheduler reaches it */
  uint32_t peer_conn[64]; /* by the machine's peer handle */
  uint32_t reading;       /* threads of a blocking engine that are in a call */
};
struct dengine {
  struct world *w;
  uint32_t no, tp, inc, version;
  bool legacy;
  struct drank rank[MAX_TP];
  rd2h_layout *layout[MAX_TP];
  struct stamp cell[MAX_TP][MAX_LAYERS][RD2H_MAX_TENSORS][N_BLOCKS]; /* main of all ranks in [0] when pooled */
  uint32_t owner[N_COMP][N_BLOCKS]; /* job index + 1, JOB_CACHE, 0 */
};

struct cell_ref {
  uint8_t slot, layer, tensor, src, dst;
  uint32_t job, entry;
};
struct read {
  uint32_t d, drank, d_inc, conn, batch, p, prank, p_inc, n, copied, piece, gen;
  uint64_t started, born, paused;
  bool used, cancel, cancelable, hangs, fails, fenced_off, queued; /* queued: for a thread */
  struct msg *msg; /* of a legacy Decode */
  struct cell_ref cell[MAX_CELLS];
};

struct sim_cfg {
  bool indexer, scale, heads, pooled, two_main, faults, verbose, story;
  uint32_t row_scale;
  uint32_t layers, stage_layers, bs[N_COMP];
  bool two_groups;
  uint32_t n_p, n_d;
  uint32_t fail_permille, hang_permille, slow_permille;
  uint32_t threads; /* of an engine whose reads block; 0: one that does not */
};

/* What the minimiser leaves out of a world, one bit a user and a fault; the rest of the seed's choices stays as it is. */
enum { OFF_READ_FAULTS = 1, OFF_ABORTS = 2, OFF_RETRIES = 4, OFF_PREEMPTION = 8, OFF_SECOND_P = 16, OFF_SECOND_D = 32,
       OFF_RANKS = 64, OFF_RENDEZVOUS = 128, OFF_END = 256 };
struct sim_cut {
  uint32_t users, faults, off, noise; /* noise: another order of what is not scheduled: delays, lengths of reads */
};
enum { STREAM_SHAPE, STREAM_PLAN, STREAM_USER, STREAM_FAULT, STREAM_NOISE };

struct world {
  uint64_t seed, now, order, events;
  struct rng rng;
  enum sim_mutation mut;
  struct sim_cfg c;
  struct sim_cut cut;
  uint64_t away_until[MAX_ENGINES][MAX_ENGINES]; /* a partition between Prefill and Decode */
  struct event **heap;
  uint32_t n_heap, cap_heap;
  struct pengine p[MAX_ENGINES];
  struct dengine d[MAX_ENGINES];
  struct job job[MAX_JOBS];
  uint32_t n_jobs, uncounted; /* users who came unplanned */
  struct conn conn[MAX_CONNS];
  uint32_t n_conn;
  struct brec *brec;
  uint32_t n_brec;
  struct read *read;
  uint32_t n_read, cap_read;
  struct msg *msgs;
  uint64_t unclean_all, unclean_p[MAX_ENGINES], unclean_d[MAX_ENGINES];
  bool failed;
  char failure[400];
  /* what happened, for the summary: a simulation in which nothing happens proves nothing */
  struct sim_tally {
    uint64_t worlds, faulty, legacy, mixed, blocking;
    uint64_t jobs, good, bad, must, aborts, retries, preemptions, rendezvous;
    uint64_t crashes, breaks, partitions, pauses, deaf, echoes, hangs, read_failures, suspect, engine_lost;
    uint64_t batches, given_up, skipped, cancels, poison;
  } tally;
};

/* core.c: events, time, failure */
void at(struct world *, uint64_t when, struct proc *, event_fn *, void *obj, uint64_t a);
static inline void in(struct world *w, uint64_t delay, struct proc *p, event_fn *fn, void *obj, uint64_t a) {
  at(w, w->now + delay, p, fn, obj, a);
}
bool world_step(struct world *); /* runs one event; false: none left */
void proc_pause(struct world *, struct proc *, uint64_t ns);
void proc_kill(struct world *, struct proc *);
void core_free(struct world *);
void trace(struct world *, const char *fmt, ...) RD2H_PRINTF(2, 3);
void tell(struct world *, const char *fmt, ...) RD2H_PRINTF(2, 3); /* what was scheduled: the story of a world */
void rng_stream(struct world *, struct rng *, uint32_t stream, uint32_t index);
void broken(struct world *, const char *rule, const char *fmt, ...) RD2H_PRINTF(3, 4); /* the first one counts */
struct msg *msg_new(struct world *, enum rd2h_wire_kind);
void msg_free(struct msg *);

/* net.c */
uint32_t net_connect(struct world *, struct prank *, uint32_t d, uint32_t drank, uint32_t endpoint, uint32_t epoch);
void net_to_decode(struct world *, uint32_t conn, struct msg *);
bool net_to_prefill(struct world *, uint32_t conn, struct msg *or_null); /* false: unreachable; NULL: a probe */
void net_close(struct world *, uint32_t conn); /* by Prefill */
void net_break(struct world *, uint32_t conn, bool slow);
void net_crash(struct world *, struct proc *, bool slow); /* breaks what the process was part of */
void net_partition(struct world *, uint32_t p, uint32_t d, uint64_t ns);

/* prefill.c: the engine and the worker around the machine; what the network tells it */
void pengine_start(struct world *, uint32_t p);
void pengine_crash(struct world *, uint32_t p, bool slow);
void prefill_rendezvous(struct world *, struct job *);
void prefill_abort(struct world *, struct job *);
void prefill_preempt(struct world *, struct job *);
void prefill_connected(struct world *, uint32_t conn);
void prefill_disconnected(struct world *, uint32_t conn);
void prefill_message(struct world *, uint32_t conn, struct msg *);
/* pglue.c: one rank's worker */
bool slot_of(const struct pengine *, uint32_t layer, uint32_t comp, uint32_t *slot);
void rank_start(struct world *, struct prank *);
void rank_stop(struct world *, struct prank *);
void rank_dispatch(struct world *, struct prank *, uint32_t layer);
void rank_finish(struct world *, struct prank *, struct job *, bool aborted);
uint32_t rank_outstanding(struct world *, struct prank *, struct job *);
void batch_settled(struct world *, uint32_t brec, int status);
void job_settled(struct world *, struct prank *, struct job *, int status);
void gate_opened(struct world *, struct prank *);
struct msg *ready_message(struct world *, struct brec *, const uint32_t *idx, uint32_t n);
struct rd2h_wire_meta *meta_of(struct world *, struct prank *, struct rd2h_arena *);

/* decode.c */
void dengine_start(struct world *, uint32_t d);
void dengine_crash(struct world *, uint32_t d, bool slow);
void dengine_layouts(struct world *, uint32_t d);
bool decode_submit(struct world *, struct job *); /* false: no blocks */
void decode_abort(struct world *, struct job *, int status, const char *why);
void decode_reported(struct world *, struct drank *, struct job *, int status, const char *text);
/* dglue.c: one rank's worker */
void drank_start(struct world *, struct drank *);
void decode_message(struct world *, uint32_t conn, struct msg *);
void decode_pump(struct world *, struct drank *);

/* engine.c: reads */
struct read *read_start(struct world *, struct drank *, uint32_t conn, uint32_t batch, struct msg *, const struct rd2h_descs *);
void read_cancel(struct world *, struct drank *, uint32_t batch);
void reads_of_stopped(struct world *, uint32_t d);
uint32_t reads_of_job(struct world *, uint32_t drank, const struct job *);
uint32_t reads_of_conn(struct world *, uint32_t conn);

/* legacy.c */
void lp_start(struct world *, struct prank *);
void lp_stop(struct prank *);
void lp_dispatch(struct world *, struct prank *, uint32_t brec);
void lp_finish(struct world *, struct prank *, struct job *);
void lp_connected(struct world *, uint32_t conn);
void lp_disconnected(struct world *, uint32_t conn);
void lp_message(struct world *, uint32_t conn, struct msg *);
void ld_start(struct world *, struct drank *);
void ld_stop(struct drank *);
void ld_install(struct world *, struct drank *, struct job *);
void ld_end(struct world *, struct drank *, struct job *, int status);
void ld_message(struct world *, uint32_t conn, struct msg *);
void ld_read_over(struct world *, struct read *, int status);

/* check.c: the rules */
void check_copy(struct world *, struct read *, const struct cell_ref *);
void check_batch_settled(struct world *, struct brec *, int status);
void check_done(struct world *, struct prank *, struct job *, uint32_t d, uint32_t drank);
void check_lost(struct world *, void *, uint64_t conn); /* an event: what a lost peer served must have ended by now */
void check_rank_good(struct world *, struct drank *, struct job *);
void check_engine_good(struct world *, struct job *);
void check_end(struct world *);
void job_fault(struct world *, struct job *, const char *why);
void fault_pair(struct world *, uint32_t p, uint32_t d, const char *why, uint64_t window); /* NONE: any */
void fault_all(struct world *, const char *why, uint64_t window);
bool job_born_clean(struct world *, const struct job *);
uint32_t stage_of(const struct world *, uint32_t layer);
struct job *job_by_id(struct world *, const char *id);
struct job *job_by_pid(struct world *, const char *id);
struct job *job_by_attempt(struct world *, const char *ext, const uint8_t *attempt); /* NULL attempt: the latest */

/* world.c */
void user_sees_failure(struct world *, struct job *); /* who may try again at once */
enum sim_voice { SILENT, STORY, VERBOSE };
void world_run(struct world *, uint64_t seed, enum sim_mutation, const struct sim_cut *, enum sim_voice);
void world_free(struct world *);
/* shape.c */
void world_build(struct world *);
bool any_legacy_prefill(const struct world *);
const char *world_describe(struct world *, char *buf, size_t n);
/* minimise.c: leaves out what the failure does not need; prints what is left */
void minimise(struct world *, uint64_t seed, enum sim_mutation, const struct sim_cut *start);
/* run.c */
bool run_seeds(uint64_t first, uint64_t n, uint32_t jobs, enum sim_mutation);
bool run_mutations(uint64_t first, uint64_t n, uint32_t jobs);
void print_again(const struct world *, enum sim_mutation);
const char *mutation_name(enum sim_mutation);
const char *mutation_text(enum sim_mutation);

static inline struct proc *proc_of_conn_p(struct world *w, uint32_t c) { return &w->p[w->conn[c].p].rank[w->conn[c].rank].proc; }
static inline struct proc *proc_of_conn_d(struct world *w, uint32_t c) { return &w->d[w->conn[c].d].rank[w->conn[c].drank].proc; }
#endif
