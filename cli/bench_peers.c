/* SPDX-License-Identifier: Apache-2.0 */
/* One Decode rank and very many Prefill ranks: what a message costs it and how much memory it takes, beside as many messages from one
 * rank. A child is Decode. The parent is a Prefill rank with a connection to each of very many loopback addresses, where another child
 * listens, which hands every connection on as that of a rank of its own. */
#include "bench.h"
#include "cli.h"
#include "table.h"
#include <getopt.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#define WAIT_MS 240000
#define RUNS_MAX 64u
#define CHUNKS 17u /* of a prompt; the first one connects and is not counted */
#define CACHE 4000000u /* blocks */
#define BLOCK_TOKENS 128u
#define PEERS_MAX 4096u

struct options {
  bool json;
  uint64_t peers, requests, blocks, runs;
};
struct board {
  uint16_t port, relay;
  uint64_t relayed; /* messages that the relay has handed on to Decode */
};
struct crowd {
  const struct options *o;
  struct board *board;
  uint32_t *ids; /* of all requests, in their order */
  pid_t decode, relay;
  rd2h_layout *layout;
  rd2h_prefill *rank;
  rd2h_prefill_scheduler *half;
  size_t bytes; /* of a message */
  struct rd2h_error err;
};
/* As many messages, of as many requests each, in every mode; always of other requests than the message before. Bare: a ROUTER that only
 * answers as many messages of as many bytes. */
enum { ONE, MANY, BARE_ONE, BARE_MANY, MODES };
static const struct mode {
  const char *name, *words;
  bool many, bare;
  int base; /* the mode that its ratios are of */
} modes[MODES] = {
  [ONE] = {"one", "one rank", false, false, ONE},
  [MANY] = {"many", "all ranks", true, false, ONE},
  [BARE_ONE] = {"bare_one", "bare, one connection", false, true, BARE_ONE},
  [BARE_MANY] = {"bare_many", "bare, all connections", true, true, BARE_ONE},
};
struct result {
  double ns[MODES][RUNS_MAX], ratio[MODES][RUNS_MAX];         /* CPU of Decode's process a message */
  double own_ns[MODES][RUNS_MAX], own_ratio[MODES][RUNS_MAX]; /* of the rank's own thread: without ZeroMQ's for the sockets */
  double kb[MODES];                                           /* resident, the most of all runs */
  double added[RUNS_MAX]; /* what the thread takes beyond a bare one: of all ranks, as a ratio to that of one */
};

static uint32_t blocks_of(const struct options *o) {
  return (uint32_t)(o->blocks * CHUNKS);
}

/* One layer: with more, messages about the same requests would follow one another where there is one rank, and not where there are
 * many. No memory stands behind the addresses. */
static int layout_of(uint64_t base, rd2h_layout **out, struct rd2h_error *err) {
  static const char *const names[] = {"model.layers.0.self_attn", "model.layers.0.self_attn.indexer"};
  struct rd2h_kv_tensor t[BENCH_PARTS];
  struct rd2h_layout_opts o = {.size = sizeof o, .num_blocks = CACHE, .main_group = 0, .indexer_group = 1};
  for (uint32_t p = 0; p < BENCH_PARTS; p++) {
    t[p] = (struct rd2h_kv_tensor){.layer = names[p >= 2], .group = p >= 2, .base = base, .row_bytes = bench_part_bytes[p], .rows = CACHE};
    base += bench_part_bytes[p] * CACHE;
  }
  return rd2h_layout_create(t, BENCH_PARTS, &o, out, err);
}

/* ---- Decode ---- */
static int install_all(rd2h_decode *rank, const struct crowd *c, struct rd2h_error *err) {
  uint32_t n = blocks_of(c->o);
  int rc = RD2H_OK;
  for (uint32_t r = 0; r < c->o->requests && !rc; r++) {
    char id[32];
    const uint32_t *ids = c->ids + (size_t)r * n;
    snprintf(id, sizeof id, "req-%u", r);
    struct rd2h_grant g = {.id = id, .ext_id = id, .main = ids, .n_main = n, .main_need = n, .indexer = ids, .n_indexer = n,
                           .indexer_need = n};
    rc = rd2h_decode_install(rank, &g, err);
  }
  return rc;
}

static int decode_main(struct crowd *c) {
  struct rd2h_error err = {0};
  rd2h_decode *rank = NULL;
  int rc = layout_of(UINT64_C(1) << 44, &c->layout, &err);
  struct rd2h_decode_opts o = {.size = sizeof o, .layout = c->layout, .bind_host = "0.0.0.0", .tp_size = 1, .main_ranks = 1,
                               .engine = "noop", .max_peers = (uint32_t)c->o->peers + 16, .queue_ms = 3600000,
                               .progress_ms = 3600000};
  rc = rc ? rc : rd2h_decode_create(&o, &rank, &err);
  rc = rc ? rc : install_all(rank, c, &err);
  if (rc)
    fprintf(stderr, "rd2h bench peers: Decode: %s\n", err.text);
  __atomic_store_n(&c->board->port, rc ? UINT16_MAX : rd2h_decode_port(rank), __ATOMIC_RELEASE);
  while (!rc)
    pause(); /* the parent ends it */
  return 1;
}

static bool wait_port(const uint16_t *port) {
  for (int ms = 0; ms < WAIT_MS && !__atomic_load_n(port, __ATOMIC_ACQUIRE); ms++)
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  return *port && *port != UINT16_MAX;
}

static bool decode_start(struct crowd *c) {
  c->board->port = 0;
  malloc_trim(0); /* what is free here must not count as the child's */
  fflush(stdout);
  c->decode = fork();
  if (!c->decode) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    bench_pin(0);
    _exit(decode_main(c));
  }
  return c->decode > 0 && wait_port(&c->board->port);
}

/* ---- the ranks that are not there ---- */
struct relay {
  void *ctx, *router;
  uint32_t n;
  zmq_msg_t who[PEERS_MAX];             /* Prefill's connections, by their identities at the ROUTER */
  zmq_pollitem_t item[PEERS_MAX + 1];   /* the ROUTER, then a DEALER to Decode each */
  uint16_t decode;
};

static uint32_t peer_of(struct relay *r, zmq_msg_t *who) {
  char address[64];
  for (uint32_t i = 0; i < r->n; i++)
    if (zmq_msg_size(&r->who[i]) == zmq_msg_size(who) && !memcmp(zmq_msg_data(&r->who[i]), zmq_msg_data(who), zmq_msg_size(who)))
      return i;
  void *dealer = r->n < PEERS_MAX ? bench_no_limits(r->ctx, ZMQ_DEALER) : NULL;
  snprintf(address, sizeof address, "tcp://127.0.0.1:%u", r->decode);
  if (!dealer || zmq_connect(dealer, address))
    _exit(1);
  zmq_msg_init(&r->who[r->n]);
  zmq_msg_copy(&r->who[r->n], who);
  r->item[++r->n] = (zmq_pollitem_t){.socket = dealer, .events = ZMQ_POLLIN};
  return r->n - 1;
}

/* Metadata name the rank's incarnation: that of every connection becomes another. */
static void disguise(zmq_msg_t *m, uint32_t peer) {
  static const uint8_t key[] = {0xa3, 'i', 'n', 'c', 0xc4, 16};
  uint8_t *at = memmem(zmq_msg_data(m), zmq_msg_size(m), key, sizeof key);
  if (at && at + sizeof key + 16 <= (uint8_t *)zmq_msg_data(m) + zmq_msg_size(m))
    for (uint32_t i = 0; i < 4; i++)
      at[sizeof key + i] ^= (uint8_t)(peer >> 8 * i);
}

static void to_decode(struct relay *r, uint64_t *relayed) {
  zmq_msg_t who, m;
  zmq_msg_init(&who);
  zmq_msg_init(&m);
  while (zmq_msg_recv(&who, r->router, ZMQ_DONTWAIT) >= 0) {
    uint32_t peer = peer_of(r, &who);
    while (zmq_msg_more(&who) && zmq_msg_recv(&m, r->router, 0) >= 0) {
      bool more = zmq_msg_more(&m);
      disguise(&m, peer);
      zmq_msg_send(&m, r->item[peer + 1].socket, more ? ZMQ_SNDMORE : 0);
      if (!more)
        break;
    }
    __atomic_add_fetch(relayed, 1, __ATOMIC_RELAXED);
  }
}

static void to_prefill(struct relay *r, uint32_t peer) {
  zmq_msg_t who, m;
  zmq_msg_init(&m);
  while (zmq_msg_recv(&m, r->item[peer + 1].socket, ZMQ_DONTWAIT) >= 0) {
    zmq_msg_init(&who);
    zmq_msg_copy(&who, &r->who[peer]);
    zmq_msg_send(&who, r->router, ZMQ_SNDMORE);
    for (bool more = zmq_msg_more(&m);; more = zmq_msg_more(&m)) {
      zmq_msg_send(&m, r->router, more ? ZMQ_SNDMORE : 0);
      if (!more || zmq_msg_recv(&m, r->item[peer + 1].socket, 0) < 0)
        break;
    }
  }
}

static int relay_main(const struct crowd *c) {
  static struct relay r;
  char address[64];
  size_t n = sizeof address;
  r.ctx = zmq_ctx_new();
  zmq_ctx_set(r.ctx, ZMQ_MAX_SOCKETS, PEERS_MAX + 16);
  r.router = bench_no_limits(r.ctx, ZMQ_ROUTER);
  r.decode = c->board->port;
  r.item[0] = (zmq_pollitem_t){.socket = r.router, .events = ZMQ_POLLIN};
  if (zmq_bind(r.router, "tcp://0.0.0.0:*") || zmq_getsockopt(r.router, ZMQ_LAST_ENDPOINT, address, &n))
    return 1;
  __atomic_store_n(&c->board->relay, (uint16_t)strtoul(strrchr(address, ':') + 1, NULL, 10), __ATOMIC_RELEASE);
  while (zmq_poll(r.item, (int)r.n + 1, -1) >= 0) { /* the parent ends it */
    uint32_t peers = r.n;
    for (uint32_t i = 0; i < peers; i++)
      if (r.item[i + 1].revents)
        to_prefill(&r, i);
    if (r.item[0].revents)
      to_decode(&r, &c->board->relayed);
  }
  return 1;
}

static bool relay_start(struct crowd *c) {
  c->board->relay = 0;
  c->board->relayed = 0;
  c->relay = fork();
  if (!c->relay) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    _exit(relay_main(c));
  }
  return c->relay > 0 && wait_port(&c->board->relay);
}

/* ---- Prefill ---- */
static int open_rank(struct crowd *c) {
  struct rd2h_prefill_opts o = {.size = sizeof o, .layout = c->layout, .tp_size = 1, .pp_size = 1, .engine = "noop",
                                .handshake_ms = WAIT_MS, .liveness_ms = WAIT_MS};
  struct rd2h_prefill_scheduler_opts so = {.size = sizeof so, .n_groups = 2, .block_size = {BLOCK_TOKENS, BLOCK_TOKENS},
                                           .indexer_group = 1};
  int rc = rd2h_prefill_create(&o, &c->rank, &c->err);
  return rc ? rc : rd2h_prefill_scheduler_create(&so, &c->half, &c->err);
}

static int track(struct crowd *c, uint32_t request, uint32_t peer) {
  char params[512], id[32];
  uint32_t n = blocks_of(c->o), *ids = c->ids + (size_t)request * n;
  struct rd2h_block_table t = {.n_groups = 2, .ids = {ids, ids}, .count = {n, n}};
  snprintf(id, sizeof id, "req-%u-%08x", request, request);
  snprintf(params, sizeof params,
           "{\"do_remote_decode\":true,\"do_remote_prefill\":false,\"remote_engine_id\":\"bench\",\"remote_host\":\"127.1.%u.%u\","
           "\"remote_port\":%u,\"remote_tp_size\":1,\"remote_cached_tokens\":0,\"request_id\":\"req-%u\","
           "\"rd2h\":{\"v\":1,\"attempt\":\"%032d\",\"inc\":\"%032d\"}}", peer / 250, peer % 250 + 1, c->board->relay, request, 0, 1);
  int rc = rd2h_prefill_scheduler_alloc(c->half, id, params, (uint64_t)n * BLOCK_TOKENS + 1, &t, &c->err); /* never its last chunk */
  return rc == 1 ? RD2H_OK : rc < 0 ? rc : RD2H_INTERNAL;
}

/* Announces a chunk of the requests [from, end). */
static int announce(struct crowd *c, uint32_t from, uint32_t end, uint32_t chunk) {
  struct rd2h_bytes b;
  uint64_t tokens = c->o->blocks * BLOCK_TOKENS;
  int rc = RD2H_OK;
  rd2h_prefill_scheduler_step_begin(c->half);
  for (uint32_t r = from; r < end && !rc; r++) {
    char id[32];
    snprintf(id, sizeof id, "req-%u-%08x", r, r);
    rc = rd2h_prefill_scheduler_step_add(c->half, id, chunk * tokens, tokens, 0, NULL, false, &c->err);
  }
  rc = rc ? rc : rd2h_prefill_scheduler_step_end(c->half, &b, &c->err);
  rc = rc ? rc : rd2h_prefill_step(c->rank, b.p, b.len, &c->err);
  return rc ? rc : rd2h_prefill_layer(c->rank, 0, &c->err);
}

static int announce_all(struct crowd *c, const struct mode *m, uint32_t chunk) {
  uint32_t each = (uint32_t)(c->o->requests / c->o->peers), steps = m->many ? 1 : (uint32_t)c->o->peers;
  uint32_t n = (uint32_t)c->o->peers * each / steps;
  int rc = RD2H_OK;
  for (uint32_t s = 0; s < steps && !rc; s++)
    rc = announce(c, s * n, (s + 1) * n, chunk);
  return rc;
}

static int wait_answers(struct crowd *c) {
  return rd2h_prefill_wait_layer(c->rank, 0, WAIT_MS, &c->err);
}

/* Everything is on its way before Decode takes the first of it: it is never idle, as it would be if the sender were the slower one. */
static int run_loaded(struct crowd *c, const struct mode *m, struct bench_cost *cost) {
  uint64_t before = __atomic_load_n(&c->board->relayed, __ATOMIC_RELAXED), n = c->o->peers * (CHUNKS - 1);
  int rc = RD2H_OK;
  kill(c->decode, SIGSTOP);
  for (uint32_t chunk = 1; chunk < CHUNKS && !rc; chunk++)
    rc = announce_all(c, m, chunk);
  for (int ms = 0; ms < WAIT_MS && !rc && __atomic_load_n(&c->board->relayed, __ATOMIC_RELAXED) - before < n; ms++)
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  struct bench_cost begin = bench_cost_of(c->decode);
  kill(c->decode, SIGCONT);
  rc = rc ? rc : wait_answers(c);
  *cost = bench_cost_since(c->decode, begin, (double)n);
  return rc;
}

static int check_messages(struct crowd *c) {
  struct rd2h_prefill_stats st;
  rd2h_prefill_stats(c->rank, &st);
  c->bytes = st.batches ? st.bytes_sent / st.batches : 1;
  if (!st.batches_failed && !st.skipped)
    return RD2H_OK;
  snprintf(c->err.text, sizeof c->err.text, "%llu of %llu messages failed, %llu requests were not known to Decode",
           (unsigned long long)st.batches_failed, (unsigned long long)st.batches, (unsigned long long)st.skipped);
  return RD2H_INTERNAL;
}

static int measure_ours(struct crowd *c, const struct mode *m, struct bench_cost *cost) {
  uint32_t each = (uint32_t)(c->o->requests / c->o->peers);
  int rc = decode_start(c) && relay_start(c) ? layout_of(UINT64_C(1) << 45, &c->layout, &c->err) : RD2H_STATE;
  rc = rc ? rc : open_rank(c);
  for (uint32_t r = 0; r < c->o->peers * each && !rc; r++)
    rc = track(c, r, m->many ? r / each : 0);
  rc = rc ? rc : announce_all(c, m, 0);
  rc = rc ? rc : wait_answers(c);
  rc = rc ? rc : run_loaded(c, m, cost);
  rc = rc ? rc : check_messages(c);
  if (c->decode > 0)
    kill(c->decode, SIGKILL);
  if (c->relay > 0)
    kill(c->relay, SIGKILL);
  c->decode = c->relay = -1;
  rd2h_prefill_destroy(c->rank);
  rd2h_prefill_scheduler_destroy(c->half);
  rd2h_layout_destroy(c->layout);
  c->rank = NULL;
  c->half = NULL;
  c->layout = NULL;
  return rc;
}

static int measure_bare(struct crowd *c, const struct mode *m, struct bench_cost *cost) {
  uint32_t peers = (uint32_t)c->o->peers;
  if (bench_bare_crowd(m->many ? peers : 1, peers * (CHUNKS - 1), c->bytes, cost))
    return RD2H_OK;
  snprintf(c->err.text, sizeof c->err.text, "the bare sockets fail: %s", zmq_strerror(zmq_errno()));
  return RD2H_IO;
}

static int measure(struct crowd *c, uint64_t run, struct result *r) {
  int rc = RD2H_OK;
  for (int m = 0; m < MODES && !rc; m++) {
    const struct mode *mode = &modes[m];
    struct bench_cost cost = {0};
    rc = mode->bare ? measure_bare(c, mode, &cost) : measure_ours(c, mode, &cost);
    r->ns[m][run] = cost.process_ns;
    r->own_ns[m][run] = cost.thread_ns;
    r->ratio[m][run] = cost.process_ns / r->ns[mode->base][run];
    r->own_ratio[m][run] = cost.thread_ns / r->own_ns[mode->base][run];
    r->kb[m] = cost.resident_kb > r->kb[m] ? cost.resident_kb : r->kb[m];
  }
  r->added[run] = (r->own_ns[MANY][run] - r->own_ns[BARE_MANY][run]) / (r->own_ns[ONE][run] - r->own_ns[BARE_ONE][run]);
  return rc;
}

/* ---- the words around it ---- */
struct line {
  double us, times, own_us, own_times, mib;
};

static void print_json(const struct options *o, const struct line *l, double added) {
  printf("{\"bench\":\"peers\",\"version\":\"%s\",\"peers\":%llu,\"requests\":%llu,\"blocks\":%llu,\"runs\":%llu", rd2h_version(),
         (unsigned long long)o->peers, (unsigned long long)o->requests, (unsigned long long)o->blocks, (unsigned long long)o->runs);
  for (int m = 0; m < MODES; m++)
    printf(",\"%s\":{\"us\":%.3f,\"times_one\":%.4f,\"thread_us\":%.3f,\"thread_times_one\":%.4f,\"mib\":%.1f}", modes[m].name,
           l[m].us, l[m].times, l[m].own_us, l[m].own_times, l[m].mib);
  printf(",\"thread_times_one_beyond_bare\":%.4f}\n", added);
}

static void print_table(const struct options *o, const struct line *l, double added) {
  static const char *const headers[] = {"<messages of", "us CPU/message", "times one", "rank's thread", "times one", "MiB resident", NULL};
  struct table t;
  if (!table_begin(&t, headers))
    return;
  printf("A Decode rank, %llu live requests, %llu Prefill ranks; messages of %llu requests of %llu blocks. Medians of %llu runs.\n\n",
         (unsigned long long)o->requests, (unsigned long long)o->peers, (unsigned long long)(o->requests / o->peers),
         (unsigned long long)o->blocks, (unsigned long long)o->runs);
  for (int m = 0; m < MODES; m++) {
    table_cell(&t, "%s", modes[m].words);
    table_cell(&t, "%.1f", l[m].us);
    table_cell(&t, "%.2f", l[m].times);
    table_cell(&t, "%.1f", l[m].own_us);
    table_cell(&t, "%.2f", l[m].own_times);
    table_cell(&t, "%.1f", l[m].mib);
    table_row_end(&t);
  }
  table_end(&t);
  printf("\n%sBeyond what the bare ROUTER's thread takes, the rank's own takes %.2f times as much for a message of one of all ranks as\n"
         "for one of a single rank.%s\n", color_dim(), added, color_off());
}

static void print_result(const struct options *o, struct result *r) {
  struct line l[MODES];
  for (int m = 0; m < MODES; m++)
    l[m] = (struct line){bench_median(r->ns[m], o->runs) / 1e3, bench_median(r->ratio[m], o->runs),
                         bench_median(r->own_ns[m], o->runs) / 1e3, bench_median(r->own_ratio[m], o->runs), r->kb[m] / 1024};
  double added = bench_median(r->added, o->runs);
  if (o->json)
    print_json(o, l, added);
  else
    print_table(o, l, added);
}

static void usage(void) {
  puts("usage: rd2h bench peers [OPTION...]\n"
       "\n"
       "A Decode rank that very many Prefill ranks send to, with very many live requests: what a message costs it in CPU time of its\n"
       "whole process, and how much memory that process takes, beside as many equal messages from a single rank. Everything is on its\n"
       "way before Decode takes the first, so that it is never idle. Engine noop. Decode runs on the first CPU, all else on the second.\n"
       "Beside both a bare ZeroMQ ROUTER that only answers, one connection and as many: how much of the growth is ZeroMQ's and TCP's.\n"
       "Every connection takes about five descriptors: see ulimit -n.\n"
       "\n"
       "  --peers N      Prefill ranks (1000)\n"
       "  --requests N   live requests, spread over them (10000)\n"
       "  --blocks N     blocks of a request in a message (4)\n"
       "  --runs N       runs of both, in turns (3)\n"
       "  --json         one JSON object\n"
       "\n"
       "example: rd2h bench peers --peers 128 --requests 1024");
}

static int parse(int argc, char **argv, struct options *o) {
  static const struct option longs[] = {{"peers", required_argument, NULL, 'p'},  {"requests", required_argument, NULL, 'r'},
                                        {"blocks", required_argument, NULL, 'b'}, {"runs", required_argument, NULL, 'n'},
                                        {"json", no_argument, NULL, 'j'},         {"help", no_argument, NULL, 'h'},
                                        {NULL, 0, NULL, 0}};
  *o = (struct options){.peers = 1000, .requests = 10000, .blocks = 4, .runs = 3};
  bool fine = true;
  opterr = 0;
  for (int c; fine && (c = getopt_long(argc, argv, ":h", longs, NULL)) != -1;) {
    switch (c) {
    case 'p': fine = parse_number("--peers", optarg, 1, PEERS_MAX, &o->peers); break;
    case 'r': fine = parse_number("--requests", optarg, 1, 60000, &o->requests); break;
    case 'b': fine = parse_number("--blocks", optarg, 1, 4096, &o->blocks); break;
    case 'n': fine = parse_number("--runs", optarg, 1, RUNS_MAX, &o->runs); break;
    case 'j': o->json = true; break;
    case 'h': usage(); return -1;
    default: fine = option_refused("rd2h bench peers", c, argv[optind - 1]);
    }
  }
  if (fine && optind < argc)
    fine = option_refused("rd2h bench peers", '?', argv[optind]);
  if (fine && (o->requests < o->peers || o->requests * blocks_of(o) > CACHE)) {
    fprintf(stderr, "rd2h bench peers: --requests %llu must be at least --peers %llu, and with --blocks %llu x %u of each at most the %u "
            "blocks of the cache\n", (unsigned long long)o->requests, (unsigned long long)o->peers, (unsigned long long)o->blocks, CHUNKS,
            CACHE);
    fine = false;
  }
  return fine ? EXIT_OK : EXIT_USAGE;
}

int bench_peers(int argc, char **argv) {
  static struct result r;
  struct options o;
  struct crowd c = {.o = &o, .decode = -1, .relay = -1};
  int rc = parse(argc, argv, &o);
  if (rc != EXIT_OK)
    return rc < 0 ? EXIT_OK : rc;
  setenv("RD2H_LOG", "error", 0);
  size_t n = o.requests * blocks_of(&o);
  c.board = mmap(NULL, sizeof *c.board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  c.ids = malloc(n * sizeof *c.ids);
  rc = c.board != MAP_FAILED && c.ids && bench_ids(7, CACHE, (uint32_t)o.requests, blocks_of(&o), &bench_patterns[0], c.ids)
         ? RD2H_OK
         : RD2H_NOMEM;
  bench_pin(1);
  for (uint64_t i = 0; i < o.runs && !rc; i++)
    rc = measure(&c, i, &r);
  free(c.ids);
  if (!rc)
    print_result(&o, &r);
  else
    fprintf(stderr, "rd2h bench peers: %s\n", c.err.text[0] ? c.err.text : rd2h_status_text(rc));
  return rc ? EXIT_FAILED : EXIT_OK;
}
