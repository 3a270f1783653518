/* SPDX-License-Identifier: Apache-2.0 */
/* faults [--loops N] [--json FILE] [NAME...]: real processes, killed, stopped, started again, cut off, with engines that fail or are
 * slow. Every byte that Decode reports complete is compared; how long each fault kept somebody waiting is compared with the time
 * that was configured for it. TAP on standard output, a table behind it, rows as JSON. */
#include "tests/faults/memory.h"
#include "tests/faults/peers.h"
#include "tests/faults/wire.h"
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#define LIVENESS_MS 500u
#define PROGRESS_MS 1500u
#define PROBE_MS 100u
#define READ_MS 1000u
#define SLOW_MS 2000u

/* bound_ms: what was configured for the wait that the fault causes; slack: what the way there and a busy machine may add. */
struct row {
  const char *name, *fault, *outcome, *bound;
  uint32_t bound_ms, slack_ms, rounds, complete, failed, wrong, late, unfit;
  double worst_ms;
  char skipped[160];
};
struct ctx {
  struct row *row;
  uint32_t loops, k;
  uint64_t rng;
};

static const struct peer_opts prefill = {.prefill = true, .engine = "local", .liveness_ms = LIVENESS_MS, .hold_ms = 20000};
static const struct peer_opts decode = {.engine = "fault:local,delay_ms=3", .progress_ms = PROGRESS_MS, .probe_ms = PROBE_MS};

static uint32_t below(struct ctx *c, uint32_t n) {
  c->rng = c->rng * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (uint32_t)((c->rng >> 33) % n);
}

static void pass_ms(uint32_t ms) { /* a fault's moment, not a wait for something */
  poll(NULL, 0, (int)ms);
}

static double between_ms(uint64_t from, uint64_t to) {
  return to > from ? (double)(to - from) / 1e6 : 0;
}

/* Rounds that take seconds: all of them in a long run only. */
static uint32_t slow_rounds(struct ctx *c, uint32_t part) {
  return c->row->rounds = c->loops >= 50 ? c->loops : (c->loops + part - 1) / part;
}

static void note_wait(struct ctx *c, uint64_t from, uint64_t to) {
  double ms = between_ms(from, to);
  if (ms > c->row->worst_ms)
    c->row->worst_ms = ms;
  c->row->late += ms > c->row->bound_ms + c->row->slack_ms;
}

/* `may_fail`: the fault may have met the request. */
static void note_decode(struct ctx *c, const struct peer_told *t, bool may_fail) {
  c->row->wrong += t->wrong;
  *(t->status == RD2H_OK ? &c->row->complete : &c->row->failed) += 1;
  c->row->unfit += t->status != RD2H_OK && !may_fail;
}

static struct peer_told answer(struct peer *p) {
  struct peer_told t;
  RIG_CHECK(peer_answer(p, &t, RIG_WAIT_MS));
  return t;
}

/* A request that nothing happens to must be complete. */
static void serve(struct ctx *c, struct peer *p, struct peer *d) {
  uint32_t k = ++c->k;
  peer_ask(d, k, 0, 0);
  peer_ask(p, k, d->port, 0);
  struct peer_told got = answer(d), settled = answer(p);
  note_decode(c, &got, false);
  c->row->unfit += settled.status != RD2H_OK;
}

static void begin(struct ctx *c, struct peer *p, struct peer *d, uint32_t within_ms) {
  uint32_t k = ++c->k;
  peer_ask(d, k, 0, 0);
  peer_ask(p, k, d->port, 0);
  pass_ms(below(c, within_ms));
}

/* ---- processes ---- */
static void decode_killed(struct ctx *c) {
  struct peer p, d;
  struct peer_opts again = decode;
  peer_start(&p, &prefill);
  peer_start(&d, &again);
  again.port = d.port;
  for (uint32_t i = 0; i < c->loops; i++) {
    begin(c, &p, &d, 40);
    uint64_t when = now_ns();
    peer_end(&d, SIGKILL);
    struct peer_told t = answer(&p);
    note_wait(c, when, t.ended);
    c->row->failed += t.status != RD2H_OK;
    peer_start(&d, &again);
    serve(c, &p, &d);
  }
  peer_end(&p, 0);
  peer_end(&d, 0);
}

static void prefill_killed(struct ctx *c) {
  struct peer p, d;
  peer_start(&d, &decode);
  for (uint32_t i = 0; i < c->loops; i++) {
    peer_start(&p, &prefill);
    begin(c, &p, &d, 40);
    uint64_t when = now_ns();
    peer_end(&p, SIGKILL);
    struct peer_told t = answer(&d);
    if (t.status == RD2H_TIMEOUT) /* killed before its first word: Decode knows of nobody, and queue_ms counts */
      c->row->late += between_ms(when, t.ended) > PROGRESS_MS + c->row->slack_ms;
    else
      note_wait(c, when, t.ended);
    note_decode(c, &t, true);
    peer_start(&p, &prefill);
    serve(c, &p, &d);
    peer_end(&p, 0);
  }
  peer_end(&d, 0);
}

/* Both ends of a restart loop without a fault in between: ports, shared memory and connections are there again at once. */
static void restarted(struct ctx *c) {
  struct peer p, d;
  struct peer_opts again = decode;
  peer_start(&p, &prefill);
  peer_start(&d, &again);
  again.port = d.port;
  c->row->rounds = 2 * c->loops;
  for (uint32_t i = 0; i < 2 * c->loops; i++) {
    uint64_t when = now_ns();
    if (i % 2) {
      peer_end(&d, 0);
      peer_start(&d, &again);
    } else {
      peer_end(&p, 0);
      peer_start(&p, &prefill);
    }
    serve(c, &p, &d);
    note_wait(c, when, now_ns());
  }
  peer_end(&p, 0);
  peer_end(&d, 0);
}

static void decode_stopped(struct ctx *c) {
  uint32_t rounds = slow_rounds(c, 4u);
  struct peer p, d;
  struct peer_opts o = prefill;
  o.handshake_ms = LIVENESS_MS; /* it may be stopped before it has answered the first word */
  peer_start(&p, &o);
  peer_start(&d, &decode);
  for (uint32_t i = 0; i < rounds; i++) {
    begin(c, &p, &d, 25);
    uint64_t when = now_ns();
    kill(d.pid, SIGSTOP);
    struct peer_told t = answer(&p);
    note_wait(c, when, t.ended);
    kill(d.pid, SIGCONT);
    struct peer_told got = answer(&d);
    note_decode(c, &got, true);
    c->row->unfit += got.status == RD2H_OK && t.status != RD2H_OK && got.ended < when; /* complete here, and not there */
    serve(c, &p, &d);
  }
  peer_end(&p, 0);
  peer_end(&d, 0);
}

static void prefill_stopped(struct ctx *c) {
  uint32_t rounds = slow_rounds(c, 4u);
  struct peer p, d;
  peer_start(&p, &prefill);
  peer_start(&d, &decode);
  for (uint32_t i = 0; i < rounds; i++) {
    begin(c, &p, &d, 25);
    uint64_t when = now_ns();
    kill(p.pid, SIGSTOP);
    struct peer_told got = answer(&d);
    note_wait(c, when, got.ended);
    note_decode(c, &got, true);
    kill(p.pid, SIGCONT);
    answer(&p);
    serve(c, &p, &d);
  }
  peer_end(&p, 0);
  peer_end(&d, 0);
}

/* ---- engines ---- */
static void every_16th_fails(struct ctx *c) {
  struct peer p, d;
  struct peer_opts o = decode, one = prefill;
  o.engine = "fault:local,fail_every=16";
  one.chunks = 1; /* six reads a request */
  peer_start(&p, &one);
  peer_start(&d, &o);
  c->row->rounds = 4 * c->loops;
  for (uint32_t i = 0; i < 4 * c->loops; i++) {
    uint32_t k = ++c->k;
    peer_ask(&d, k, 0, 0);
    peer_ask(&p, k, d.port, 0);
    struct peer_told got = answer(&d), settled = answer(&p);
    note_decode(c, &got, true);
    note_wait(c, got.began, settled.ended);
    c->row->unfit += (got.status == RD2H_OK) != (settled.status == RD2H_OK);
  }
  c->row->unfit += !c->row->failed; /* nothing failed: nothing was shown */
  peer_end(&p, 0);
  peer_end(&d, 0);
}

/* Reads take 2 s, the pool is so small that an aborted request's blocks are the next one's. */
static void slow_and_small(struct ctx *c) {
  uint32_t rounds = slow_rounds(c, 8u);
  struct peer p, d;
  struct peer_opts o = decode, flat = prefill;
  o.engine = "fault:local,delay_ms=2000";
  o.progress_ms = 20000;
  o.blocks = 24;
  flat.flat = true;
  peer_start(&p, &flat);
  peer_start(&d, &o);
  for (uint32_t i = 0; i < rounds; i++) {
    uint32_t k = ++c->k;
    peer_ask(&d, k, 0, 100 + below(c, 200));
    peer_ask(&p, k, d.port, 0);
    struct peer_told got = answer(&d);
    note_wait(c, got.aborted, got.ended);
    note_decode(c, &got, true);
    answer(&p);
    serve(c, &p, &d);
  }
  peer_end(&p, 0);
  peer_end(&d, 0);
}

static void memory_runs_out(struct ctx *c) {
  uint32_t stride = c->loops >= 50 ? 1 : 7;
  int how = MEMORY_COMPLETE;
  c->row->rounds = 0;
  for (uint64_t n = 1; how != MEMORY_ENOUGH; n += stride) {
    uint64_t when = now_ns();
    how = memory_short(n);
    c->row->rounds += how != MEMORY_ENOUGH;
    c->row->complete += how == MEMORY_COMPLETE;
    c->row->failed += how == MEMORY_ENDED;
    note_wait(c, when, now_ns());
    if (how <= MEMORY_ENOUGH)
      continue;
    c->row->unfit++;
    printf("# allocation %llu fails: its process ended with %d\n", (unsigned long long)n, how);
  }
}

/* ---- the network ---- */
static bool open_wire(struct ctx *c, struct wire *w, struct peer *p, struct peer *d) {
  if (!wire_open(w, 1)) {
    snprintf(c->row->skipped, sizeof c->row->skipped, "%s", w->why);
    return false;
  }
  struct peer_opts po = prefill, dout = decode;
  po.engine = dout.engine = "tcp";
  po.bind = wire_address(0);
  po.host = dout.bind = wire_address(1);
  po.enter = dout.enter = wire_enter;
  po.arg = &w->end[0];
  dout.arg = &w->end[1];
  po.hold_ms = 20000;
  po.liveness_ms = 1000;
  dout.read_ms = READ_MS;
  peer_start(p, &po);
  peer_start(d, &dout);
  return true;
}

static void lossy(struct ctx *c) {
  struct wire w;
  struct peer p, d;
  if (!open_wire(c, &w, &p, &d))
    return;
  serve(c, &p, &d);
  w.state->loss_permille = 20;
  for (uint32_t i = 0; i < c->loops; i++) { /* a retransmission that is lost again lasts as long as a fault */
    uint32_t k = ++c->k;
    peer_ask(&d, k, 0, 0);
    peer_ask(&p, k, d.port, 0);
    struct peer_told got = answer(&d), settled = answer(&p);
    note_decode(c, &got, true);
    note_wait(c, got.began, got.ended > settled.ended ? got.ended : settled.ended);
  }
  w.state->loss_permille = 0;
  serve(c, &p, &d);
  c->row->unfit += !w.state->lost;
  peer_end(&p, 0);
  peer_end(&d, 0);
  wire_close(&w);
}

static void parted(struct ctx *c) {
  struct wire w;
  uint32_t rounds = slow_rounds(c, 8u);
  struct peer p, d;
  if (!open_wire(c, &w, &p, &d))
    return;
  for (uint32_t i = 0; i < rounds; i++) {
    serve(c, &p, &d);
    w.state->loss_permille = 100; /* so slow that the cut comes in the middle */
    begin(c, &p, &d, 30);
    uint64_t when = now_ns();
    w.state->cut = true;
    struct peer_told settled = answer(&p), got = answer(&d);
    note_wait(c, when, settled.ended > got.ended ? settled.ended : got.ended);
    note_decode(c, &got, true);
    w.state->cut = false;
    w.state->loss_permille = 0;
  }
  serve(c, &p, &d);
  peer_end(&p, 0);
  peer_end(&d, 0);
  wire_close(&w);
}

/* ---- the table ---- */
static const struct fault {
  struct row row;
  void (*run)(struct ctx *);
} faults[] = {
  {{"decode-killed", "SIGKILL of Decode in a request", "its request ends on Prefill; its successor at the port is served",
    "liveness_ms", LIVENESS_MS, 1000, 0, 0, 0, 0, 0, 0, 0, ""}, decode_killed},
  {{"prefill-killed", "SIGKILL of Prefill in a request", "its request ends on Decode; its successor is served", "probe_ms", PROBE_MS,
    1500, 0, 0, 0, 0, 0, 0, 0, ""}, prefill_killed},
  {{"restarted", "restarts in turns, nothing in between", "the next request is served", "handshake_ms", 10000, 0, 0, 0, 0, 0, 0, 0, 0,
    ""}, restarted},
  {{"decode-stopped", "SIGSTOP of Decode in a request", "its request ends on Prefill; served again after SIGCONT",
    "liveness_ms, handshake_ms", LIVENESS_MS, 1000, 0, 0, 0, 0, 0, 0, 0, ""}, decode_stopped},
  {{"prefill-stopped", "SIGSTOP of Prefill in a request", "its request ends on Decode; served again after SIGCONT", "progress_ms",
    PROGRESS_MS, 1000, 0, 0, 0, 0, 0, 0, 0, ""}, prefill_stopped},
  {{"reads-fail", "every 16th read fails", "those requests end, on both sides; the others are complete", "progress_ms", PROGRESS_MS,
    0, 0, 0, 0, 0, 0, 0, 0, ""}, every_16th_fails},
  {{"reads-slow", "reads of 2 s, 24 blocks, aborts under them", "blocks are free after the read, whole for the next request",
    "the read", SLOW_MS, 400, 0, 0, 0, 0, 0, 0, 0, ""}, slow_and_small},
  {{"memory", "one allocation fails, each in turn", "the request is complete or ends; the next one is complete", "hold_ms and deadlines",
    3000, 2000, 0, 0, 0, 0, 0, 0, 0, ""}, memory_runs_out},
  {{"loss", "2 % of packets lost in both ways", "complete or ended in time", "progress_ms + read_timeout_ms + liveness_ms",
    PROGRESS_MS + READ_MS + 1000, 500, 0, 0, 0, 0, 0, 0, 0, ""},
   lossy},
  {{"partition", "network cut in a request", "ends on both sides; served again after it", "progress_ms", PROGRESS_MS, 1000, 0, 0, 0, 0,
    0, 0, 0, ""}, parted},
};

static bool good(const struct row *r) {
  return !r->wrong && !r->late && !r->unfit && r->complete;
}

static void print_table(const struct row *r, size_t n) {
  printf("#\n# %-16s %8s %9s %7s %6s %10s %10s %6s\n", "fault", "rounds", "complete", "ended", "wrong", "bound", "worst", "ratio");
  for (; n--; r++)
    if (!r->skipped[0])
      printf("# %-16s %8u %9u %7u %6u %7u ms %7.0f ms %6.2f\n", r->name, r->rounds, r->complete, r->failed, r->wrong, r->bound_ms,
             r->worst_ms, r->worst_ms / r->bound_ms);
}

static void print_json(const char *path, const struct row *r, size_t n) {
  FILE *f = fopen(path, "w");
  RIG_CHECK(f);
  fputs("[\n", f);
  for (size_t i = 0; i < n; i++, r++)
    fprintf(f,
            " {\"name\": \"%s\", \"fault\": \"%s\", \"outcome\": \"%s\", \"bound\": \"%s\", \"bound_ms\": %u, \"worst_ms\": %.1f, "
            "\"rounds\": %u, \"complete\": %u, \"ended\": %u, \"wrong_blocks\": %u, \"late\": %u, \"skipped\": \"%s\"}%s\n",
            r->name, r->fault, r->outcome, r->bound, r->bound_ms, r->worst_ms, r->rounds, r->complete, r->failed, r->wrong, r->late,
            r->skipped, i + 1 < n ? "," : "");
  fputs("]\n", f);
  fclose(f);
}

static bool wanted(const char *name, char **names) {
  bool any = !*names;
  for (; *names; names++)
    any |= !strcmp(name, *names);
  return any;
}

int main(int argc, char **argv) {
  static const struct option options[] = {
    {"loops", required_argument, NULL, 'l'}, {"json", required_argument, NULL, 'j'}, {NULL, 0, NULL, 0}};
  struct row rows[RD2H_COUNT(faults)];
  const char *json = NULL;
  uint32_t loops = 8, n = 0, bad = 0, no = 0;
  for (int o; (o = getopt_long(argc, argv, "", options, NULL)) != -1;)
    if (o == 'l')
      loops = (uint32_t)atoi(optarg);
    else if (o == 'j')
      json = optarg;
    else
      return 2;
  for (size_t i = 0; i < RD2H_COUNT(faults); i++)
    n += wanted(faults[i].row.name, argv + optind);
  printf("1..%u\n", n);
  n = 0;
  for (size_t i = 0; i < RD2H_COUNT(faults); i++) {
    if (!wanted(faults[i].row.name, argv + optind))
      continue;
    struct row *r = &rows[n++];
    *r = faults[i].row;
    r->rounds = loops;
    faults[i].run(&(struct ctx){.row = r, .loops = loops, .rng = 7});
    if (r->skipped[0]) {
      printf("ok %u - %s # SKIP %s\n", ++no, r->name, r->skipped);
      continue;
    }
    bad += !good(r);
    printf("%s %u - %s: %s\n# %s\n", good(r) ? "ok" : "not ok", ++no, r->name, r->fault, r->outcome);
    if (!good(r))
      printf("# %u blocks wrong, %u waits too long (worst %.0f ms of %u + %u), %u outcomes that do not fit\n", r->wrong, r->late,
             r->worst_ms, r->bound_ms, r->slack_ms, r->unfit);
    fflush(stdout);
  }
  print_table(rows, n);
  if (json)
    print_json(json, rows, n);
  return bad > 0;
}
