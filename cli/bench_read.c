/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes from a Prefill rank's memory into a Decode rank's, by block size and engine, beside the bare ways of the machine. The parent
 * is Prefill and owns the source; a child for each way is Decode, or the bare reader: it inherits addresses and block ids. */
#include "bench.h"
#include "cli.h"
#include "table.h"
#include <errno.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <rd2h/memory.h>
#include <rd2h/trace.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define POOL (UINT64_C(256) << 20)
#define SAMPLE_BYTES (UINT64_C(8) << 20)
#define SAMPLE_BLOCKS 4096u
#define STEPS_MAX 8u
#define IOVECS 1024u
#define STREAMS_MAX 2u /* as many as engine tcp has by itself */
#define WAIT_MS 30000
#define ROWS_MAX 128

struct read_case;
struct way {
  const char *name, *engine; /* engine NULL: bare */
  bool shared;               /* source memory of rd2h_shared_alloc */
  uint32_t threads;          /* of the engine; 0: as many as it takes by itself */
  bool (*bare)(const struct read_case *, uint32_t step);
  enum rd2h_digest digest; /* of both ranks */
  uint32_t streams;        /* of bare TCP */
};
struct read_case {
  uint64_t block;
  uint32_t blocks, steps; /* blocks of one sample; samples of a run */
  const struct bench_pattern *pattern;
  uint8_t *source, *target;
  uint32_t *from, *to;    /* ids of all samples */
  pid_t owner;
  uint32_t streams;
  int tcp[STREAMS_MAX];   /* reader's ends of the bare streams */
};
struct options {
  bool json, digests;
  uint64_t runs, block;
  const struct bench_pattern *pattern;
  const char *engine;
};
struct row {
  const char *way, *pattern;
  uint64_t block;
  uint32_t blocks;
  double gb_s, best_gb_s, trip_gb_s; /* of the read alone: median, best; with announcement and answer */
};
/* What one way took, over all rounds. */
struct samples {
  uint32_t n, n_trip;
  double read_ns[STEPS_MAX * BENCH_RUNS_MAX], trip_ns[STEPS_MAX * BENCH_RUNS_MAX];
};
/* Written by the reader, read by the parent. */
struct board {
  uint16_t port;
  uint32_t n;
  double read_ns[2 * STEPS_MAX];
};
static struct board *board;

/* ---- bare ways ---- */
static uint8_t *at(uint8_t *pool, const struct read_case *c, uint32_t id) {
  return pool + (uint64_t)id * c->block;
}

static bool by_memcpy(const struct read_case *c, uint32_t step) {
  for (uint32_t i = step * c->blocks, end = i + c->blocks; i < end; i++)
    memcpy(at(c->target, c, c->to[i]), at(c->source, c, c->from[i]), c->block);
  return true;
}

static uint32_t iovecs(const struct read_case *c, uint8_t *pool, const uint32_t *ids, uint32_t from, uint32_t end, struct iovec *v) {
  uint32_t n = 0;
  for (; n < IOVECS && from + n < end; n++)
    v[n] = (struct iovec){at(pool, c, ids[from + n]), c->block};
  return n;
}

static bool by_process_vm(const struct read_case *c, uint32_t step) {
  struct iovec here[IOVECS], there[IOVECS];
  uint32_t end = (step + 1) * c->blocks;
  for (uint32_t i = step * c->blocks, n; i < end; i += n) {
    n = iovecs(c, c->target, c->to, i, end, here);
    iovecs(c, c->source, c->from, i, end, there);
    if (process_vm_readv(c->owner, here, n, there, n, 0) != (ssize_t)(n * c->block))
      return false;
  }
  return true;
}

/* One stream of a bare read: its share of a sample's blocks. */
struct flow {
  int fd;
  uint32_t at, end;
  uint64_t off;
};

/* One call, however much of it the kernel takes. */
static bool flow_move(const struct read_case *c, struct flow *f, bool out) {
  struct iovec v[IOVECS];
  v[0] = (struct iovec){0};
  uint32_t n = out ? iovecs(c, c->source, c->from, f->at, f->end, v) : iovecs(c, c->target, c->to, f->at, f->end, v);
  struct msghdr m = {.msg_iov = v, .msg_iovlen = n};
  v[0].iov_base = (uint8_t *)v[0].iov_base + f->off;
  v[0].iov_len -= f->off;
  ssize_t got = out ? sendmsg(f->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL) : recvmsg(f->fd, &m, MSG_DONTWAIT);
  if (got <= 0)
    return got < 0 && (errno == EAGAIN || errno == EINTR);
  f->off += (uint64_t)got;
  f->at += (uint32_t)(f->off / c->block);
  f->off %= c->block;
  return true;
}

/* A sample by all streams, which one thread serves, as it is in the engine. */
static bool flows_move(const struct read_case *c, const int *fd, uint32_t step, bool out) {
  struct flow f[STREAMS_MAX];
  struct pollfd p[STREAMS_MAX];
  for (uint32_t i = 0; i < c->streams; i++)
    f[i] = (struct flow){fd[i], step * c->blocks + c->blocks * i / c->streams, step * c->blocks + c->blocks * (i + 1) / c->streams, 0};
  for (;;) {
    uint32_t busy = 0;
    for (uint32_t i = 0; i < c->streams; i++) {
      p[i] = (struct pollfd){.fd = f[i].at < f[i].end ? f[i].fd : -1, .events = out ? POLLOUT : POLLIN};
      busy += f[i].at < f[i].end;
    }
    if (!busy)
      return true;
    if (poll(p, c->streams, WAIT_MS) <= 0)
      return false;
    for (uint32_t i = 0; i < c->streams; i++)
      if (p[i].revents && !flow_move(c, &f[i], out))
        return false;
  }
}

static bool by_streams(const struct read_case *c, uint32_t step) {
  for (uint32_t i = 0; i < c->streams; i++)
    if (write(c->tcp[i], &step, sizeof step) != sizeof step)
      return false;
  return flows_move(c, c->tcp, step, false);
}

struct server {
  const struct read_case *c;
  int fd[STREAMS_MAX];
};

static void *serve_streams(void *arg) {
  const struct server *s = arg;
  for (uint32_t step = 0;;) {
    for (uint32_t i = 0; i < s->c->streams; i++)
      if (read(s->fd[i], &step, sizeof step) != sizeof step)
        return NULL;
    if (!flows_move(s->c, s->fd, step, true))
      return NULL;
  }
}

static bool stream_pair(int fd[2]) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t n = sizeof a;
  int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  fd[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  fd[1] = -1;
  if (!bind(listener, (struct sockaddr *)&a, n) && !listen(listener, 1) && !getsockname(listener, (struct sockaddr *)&a, &n) &&
      !connect(fd[0], (struct sockaddr *)&a, n))
    fd[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
  close(listener);
  setsockopt(fd[0], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return fd[1] >= 0 && !setsockopt(fd[1], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static const struct way ways[] = {
  {"memcpy in one process", NULL, false, 0, by_memcpy, RD2H_DIGEST_OFF, 0},
  {"rd2h local, shared mapping", "local", true, 0, NULL, RD2H_DIGEST_OFF, 0},
  {"rd2h local, shared, one thread", "local", true, 1, NULL, RD2H_DIGEST_OFF, 0},
  {"bare process_vm_readv", NULL, false, 0, by_process_vm, RD2H_DIGEST_OFF, 0},
  {"rd2h local, foreign memory", "local", false, 0, NULL, RD2H_DIGEST_OFF, 0},
  {"rd2h local, foreign, one thread", "local", false, 1, NULL, RD2H_DIGEST_OFF, 0},
  {"bare TCP, one stream", NULL, false, 0, by_streams, RD2H_DIGEST_OFF, 1},
  {"bare TCP, two streams", NULL, false, 0, by_streams, RD2H_DIGEST_OFF, 2},
  {"rd2h tcp", "tcp", false, 0, NULL, RD2H_DIGEST_OFF, 0},
  {"rd2h local, shared, digests", "local", true, 0, NULL, RD2H_DIGEST_FAIL, 0},
  {"rd2h tcp, digests", "tcp", false, 0, NULL, RD2H_DIGEST_FAIL, 0},
};
enum { N_WAYS = sizeof ways / sizeof ways[0] };

/* ---- the reader's process ---- */
static int reader_bare(const struct read_case *c, const struct way *w) {
  bool fine = true;
  for (uint32_t i = 0; i < 2 * c->steps && fine; i++) {
    uint64_t begin = bench_now();
    fine = w->bare(c, i % c->steps);
    board->read_ns[board->n++] = (double)(bench_now() - begin);
  }
  return fine ? 0 : 1;
}

static void on_trace(void *user, const struct rd2h_trace *t) {
  const struct read_case *c = user;
  uint32_t n = __atomic_load_n(&board->n, __ATOMIC_RELAXED);
  if (t->kind == RD2H_TRACE_READ && !t->status && t->bytes == c->blocks * c->block && n < 2 * STEPS_MAX) {
    board->read_ns[n] = (double)(t->end_ns - t->begin_ns);
    __atomic_store_n(&board->n, n + 1, __ATOMIC_RELEASE);
  }
}

static int layout_of(const struct read_case *c, uint8_t *pool, rd2h_layout **out, struct rd2h_error *err) {
  struct rd2h_kv_tensor t = {.layer = "model.layers.0.attn", .base = (uintptr_t)pool, .row_bytes = c->block, .rows = POOL / c->block};
  struct rd2h_layout_opts o = {.size = sizeof o, .num_blocks = POOL / c->block};
  return rd2h_layout_create(&t, 1, &o, out, err);
}

static int reader_rank(const struct read_case *c, const struct way *w) {
  rd2h_layout *layout = NULL;
  rd2h_decode *rank = NULL;
  struct rd2h_error err = {0};
  struct rd2h_memory area = {(uintptr_t)c->target, POOL};
  uint32_t n = c->blocks * c->steps;
  rd2h_trace_set(on_trace, (void *)c);
  int rc = layout_of(c, c->target, &layout, &err);
  struct rd2h_decode_opts o = {.size = sizeof o, .layout = layout, .memory = &area, .n_memory = 1, .tp_size = 1, .main_ranks = 1,
                               .engine = w->engine, .engine_threads = w->threads, .digest = w->digest};
  rc = rc ? rc : rd2h_decode_create(&o, &rank, &err);
  for (uint32_t r = 0; r < 2 && !rc; r++) {
    char id[32];
    snprintf(id, sizeof id, "req-%u", r);
    struct rd2h_grant g = {.id = id, .ext_id = id, .main = c->to, .n_main = n, .main_need = n};
    rc = rd2h_decode_install(rank, &g, &err);
  }
  if (rc)
    fprintf(stderr, "rd2h bench read: engine %s is left out: %s\n", w->engine, err.text);
  __atomic_store_n(&board->port, rc ? UINT16_MAX : rd2h_decode_port(rank), __ATOMIC_RELEASE);
  while (!rc)
    pause(); /* the parent ends it */
  return 1;
}

static pid_t reader_start(const struct read_case *c, const struct way *w) {
  memset(board, 0, sizeof *board);
  fflush(stdout);
  pid_t pid = fork();
  if (pid)
    return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  _exit(w->engine ? reader_rank(c, w) : reader_bare(c, w));
}

/* ---- the parent ---- */
static bool wait_port(void) {
  for (int ms = 0; ms < WAIT_MS && !__atomic_load_n(&board->port, __ATOMIC_ACQUIRE); ms++)
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  return board->port && board->port != UINT16_MAX;
}

/* Each step twice: the first time round touches pages and opens connections, and is not counted. */
static int drive(const struct read_case *c, const struct way *w, struct samples *out, struct rd2h_error *err) {
  struct bench_source x = {.ids = c->from, .blocks = c->blocks, .steps = c->steps, .groups = 1, .port = board->port,
                           .digest = w->digest};
  struct rd2h_memory area = {(uintptr_t)c->source, POOL};
  int rc = layout_of(c, c->source, &x.layout, &x.err);
  rc = rc ? rc : bench_source_open(&x, w->engine, &area);
  for (uint32_t r = 0; r < 2 && !rc; r++) {
    rc = bench_source_request(&x, r);
    for (uint32_t s = 0; s < c->steps && !rc; s++) {
      rc = bench_source_step(&x, s);
      uint64_t begin = bench_now();
      rc = rc ? rc : rd2h_prefill_layer(x.rank, 0, &x.err);
      rc = rc ? rc : rd2h_prefill_wait_layer(x.rank, 0, WAIT_MS, &x.err);
      if (r)
        out->trip_ns[out->n_trip++] = (double)(bench_now() - begin);
    }
    bench_source_end(&x);
  }
  bench_source_close(&x);
  rd2h_layout_destroy(x.layout);
  *err = x.err;
  return rc;
}

static void finish_row(const struct read_case *c, const struct way *w, struct samples *v, struct row *out) {
  double bytes = (double)c->blocks * (double)c->block;
  *out = (struct row){.way = w->name, .pattern = c->pattern->name, .block = c->block, .blocks = c->blocks,
                      .gb_s = bytes / bench_median(v->read_ns, v->n), .best_gb_s = bytes / v->read_ns[0]};
  out->trip_gb_s = v->n_trip ? bytes / bench_median(v->trip_ns, v->n_trip) : 0;
}

/* One round of one way. 1: measured, 0: left out, -1: failed. */
static int measure(struct read_case *c, const struct way *w, struct samples *out) {
  struct server s = {.c = c};
  struct rd2h_error err = {0};
  pthread_t thread;
  int status = 0, rc = RD2H_OK;
  bool serves = w->streams != 0;
  c->streams = w->streams;
  for (uint32_t i = 0; i < w->streams; i++) {
    int fd[2];
    if (!stream_pair(fd))
      return -1;
    c->tcp[i] = fd[0];
    s.fd[i] = fd[1];
  }
  pid_t pid = reader_start(c, w);
  if (serves && pthread_create(&thread, NULL, serve_streams, &s))
    return -1;
  bool there = !w->engine || wait_port();
  if (w->engine && there)
    rc = drive(c, w, out, &err);
  if (w->engine)
    kill(pid, SIGKILL);
  waitpid(pid, &status, 0);
  for (uint32_t i = 0; i < w->streams; i++)
    shutdown(c->tcp[i], SHUT_RDWR);
  if (serves)
    pthread_join(thread, NULL);
  for (uint32_t i = 0; i < w->streams; i++) {
    close(c->tcp[i]);
    close(s.fd[i]);
  }
  if (!there)
    return 0;
  if (rc || board->n <= c->steps || (!w->engine && status)) {
    fprintf(stderr, "rd2h bench read: %s, blocks of %llu bytes: %s\n", w->name, (unsigned long long)c->block,
            err.text[0] ? err.text : "it failed");
    return -1;
  }
  for (uint32_t i = c->steps; i < board->n; i++)
    out->read_ns[out->n++] = board->read_ns[i];
  return 1;
}

static bool case_make(struct read_case *c, uint64_t block, const struct bench_pattern *p) {
  uint64_t cache = POOL / block, blocks = SAMPLE_BYTES / block;
  c->block = block;
  c->pattern = p;
  c->blocks = blocks > SAMPLE_BLOCKS ? SAMPLE_BLOCKS : blocks ? (uint32_t)blocks : 1;
  c->steps = cache / c->blocks < STEPS_MAX ? (uint32_t)(cache / c->blocks) : STEPS_MAX;
  uint32_t n = c->blocks * c->steps;
  c->from = malloc(n * sizeof *c->from);
  c->to = malloc(n * sizeof *c->to);
  return c->from && c->to && bench_ids(5, (uint32_t)cache, 1, n, p, c->from) && bench_ids(6, (uint32_t)cache, 1, n, p, c->to);
}

static void case_free(struct read_case *c) {
  free(c->from);
  free(c->to);
}

struct pools {
  uint8_t *plain, *shared, *target;
};

static bool pools_open(struct pools *p) {
  struct rd2h_error err = {0};
  p->plain = mmap(NULL, POOL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  p->target = mmap(NULL, POOL, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  p->shared = rd2h_shared_alloc(POOL, 0, &err);
  board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (p->plain == MAP_FAILED || p->target == MAP_FAILED || board == MAP_FAILED || !p->shared) {
    fprintf(stderr, "rd2h bench read: %llu MiB of memory are needed: %s\n", (unsigned long long)(3 * POOL >> 20),
            p->shared ? strerror(errno) : err.text);
    return false;
  }
  memset(p->plain, 1, POOL);
  memset(p->shared, 2, POOL);
  memset(p->target, 3, POOL);
  return true;
}

/* The ways take turns, so that all see the same moments of the machine. */
static bool measure_size(const struct options *o, const struct pools *p, uint64_t block, const struct bench_pattern *pattern,
                         struct row *rows, int *n) {
  static struct samples v[N_WAYS];
  bool out[N_WAYS] = {false};
  struct read_case c = {.target = p->target, .owner = getpid()};
  bool fine = case_make(&c, block, pattern);
  memset(v, 0, sizeof v);
  for (int i = 0; i < N_WAYS; i++)
    out[i] = (o->engine && ways[i].engine && strcmp(o->engine, ways[i].engine)) || (ways[i].digest && !o->digests);
  for (uint64_t r = 0; r < o->runs && fine; r++)
    for (int w = 0; w < N_WAYS && fine; w++) {
      c.source = ways[w].shared ? p->shared : p->plain;
      int got = out[w] ? 0 : measure(&c, &ways[w], &v[w]);
      out[w] = !got;
      fine = got >= 0;
    }
  for (int w = 0; w < N_WAYS && fine; w++)
    if (!out[w] && *n < ROWS_MAX)
      finish_row(&c, &ways[w], &v[w], &rows[(*n)++]);
  case_free(&c);
  return fine;
}

/* ---- the words around it ---- */
static void print_table(const struct row *r, int n) {
  static const char *const headers[] = {"<way", "<ids", "block bytes", "blocks", "GB/s", "best", "announced to answered", NULL};
  struct table t;
  if (!table_begin(&t, headers))
    return;
  for (int i = 0; i < n; i++) {
    table_cell(&t, "%s", r[i].way);
    table_cell(&t, "%s", r[i].pattern);
    table_cell(&t, "%llu", (unsigned long long)r[i].block);
    table_cell(&t, "%u", r[i].blocks);
    table_cell(&t, "%.2f", r[i].gb_s);
    table_cell(&t, "%.2f", r[i].best_gb_s);
    table_cell(&t, r[i].trip_gb_s > 0 ? "%.2f" : "", r[i].trip_gb_s);
    table_row_end(&t);
  }
  table_end(&t);
}

static void print_json(const struct row *r, int n, uint64_t runs) {
  const char *comma = "";
  printf("{\"bench\":\"read\",\"version\":\"%s\",\"runs\":%llu,\"rows\":[", rd2h_version(), (unsigned long long)runs);
  for (int i = 0; i < n; i++, comma = ",")
    printf("%s\n{\"way\":\"%s\",\"pattern\":\"%s\",\"block\":%llu,\"blocks\":%u,\"gb_s\":%.4f,\"best_gb_s\":%.4f,"
           "\"trip_gb_s\":%.4f}", comma, r[i].way, r[i].pattern, (unsigned long long)r[i].block, r[i].blocks, r[i].gb_s,
           r[i].best_gb_s, r[i].trip_gb_s);
  printf("]}\n");
}

static void usage(void) {
  puts("usage: rd2h bench read [OPTION...]\n"
       "\n"
       "Bytes a second out of a Prefill rank's memory into a Decode rank's, by engine and block size, scattered and contiguous;\n"
       "beside each engine the bare way that it is built on: memcpy, process_vm_readv with 1024 pieces a call, TCP streams; the bare\n"
       "ways have one thread, engine local has two and once more one.\n"
       "GB/s counts from the moment a message's blocks are planned until they have landed, median and best; the last column is what\n"
       "Prefill sees, from its call that the layer is ready until it knows that it was read. The ways take turns.\n"
       "\n"
       "  --engine E    only this engine: local or tcp (bare ways are always measured)\n"
       "  --block N     bytes of a block, 256 to 16777216 (default: seven sizes)\n"
       "  --pattern P   scatter, runs8 or contig (default: scatter and contig)\n"
       "  --digests     also with a digest of every block, made by Prefill and compared by Decode\n"
       "  --runs N      rounds of up to eight messages of 8 MiB, or of 4096 blocks, each (5)\n"
       "  --json        one JSON object\n"
       "\n"
       "example: rd2h bench read --engine local --block 131072 --pattern scatter");
}

static bool check_engine(const char *name) {
  if (!strcmp(name, "local") || !strcmp(name, "tcp"))
    return true;
  fprintf(stderr, "--engine \"%s\": local or tcp is wanted\n", name);
  return false;
}

static int parse(int argc, char **argv, struct options *o) {
  static const struct option longs[] = {{"engine", required_argument, NULL, 'e'},  {"block", required_argument, NULL, 'b'},
                                        {"pattern", required_argument, NULL, 'p'}, {"runs", required_argument, NULL, 'n'},
                                        {"json", no_argument, NULL, 'j'},          {"help", no_argument, NULL, 'h'},
                                        {"digests", no_argument, NULL, 'd'},
                                        {NULL, 0, NULL, 0}};
  *o = (struct options){.runs = 5};
  bool fine = true;
  opterr = 0;
  for (int c; fine && (c = getopt_long(argc, argv, ":h", longs, NULL)) != -1;) {
    switch (c) {
    case 'e': fine = check_engine(o->engine = optarg); break;
    case 'b': fine = parse_number("--block", optarg, 256, 16777216, &o->block); break;
    case 'p': fine = (o->pattern = bench_pattern("--pattern", optarg)) != NULL; break;
    case 'n': fine = parse_number("--runs", optarg, 1, BENCH_RUNS_MAX - 1, &o->runs); break;
    case 'j': o->json = true; break;
    case 'd': o->digests = true; break;
    case 'h': usage(); return -1;
    default: fine = option_refused("rd2h bench read", c, argv[optind - 1]);
    }
  }
  if (fine && optind < argc)
    fine = option_refused("rd2h bench read", '?', argv[optind]);
  return fine ? EXIT_OK : EXIT_USAGE;
}

int bench_read(int argc, char **argv) {
  static const uint64_t sizes[] = {256, 4096, 16384, 65536, 131072, 1048576, 16777216};
  static struct row rows[ROWS_MAX];
  struct options o;
  struct pools p;
  int n = 0, rc = parse(argc, argv, &o);
  if (rc != EXIT_OK)
    return rc < 0 ? EXIT_OK : rc;
  bool fine = pools_open(&p);
  for (int k = 0; k < BENCH_PATTERNS && fine; k++) {
    if (o.pattern ? o.pattern != &bench_patterns[k] : bench_patterns[k].run > 1)
      continue;
    for (size_t s = 0; s < (o.block ? 1 : sizeof sizes / sizeof sizes[0]) && fine; s++)
      fine = measure_size(&o, &p, o.block ? o.block : sizes[s], &bench_patterns[k], rows, &n);
  }
  if (fine && o.json)
    print_json(rows, n, o.runs);
  else if (fine)
    print_table(rows, n);
  return fine ? EXIT_OK : EXIT_FAILED;
}
