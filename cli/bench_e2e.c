/* SPDX-License-Identifier: Apache-2.0 */
/* A whole prompt, Prefill's first layer to Decode's outcome: how much of its transfer is hidden behind the computation. The parent is
 * Prefill, a child is Decode. */
#include "bench.h"
#include "cli.h"
#include "table.h"
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <rd2h/memory.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define WAIT_MS 30000
#define LAYERS_MAX 128u
#define RUNS_MAX 64u
#define BYTES_MAX (UINT64_C(4) << 30)

struct options {
  bool json;
  const char *engine;
  uint64_t layers, blocks, block, compute, runs;
};
/* Written by Decode, read by Prefill. */
struct board {
  uint16_t port;
  uint64_t done[2 * RUNS_MAX]; /* when the request's outcome was there, ns */
};
struct chain {
  const struct options *o;
  uint8_t *source, *target;
  uint32_t *from, *to;
  struct board *board;
};
/* ns of each run; ratios are of one run, too. */
struct result {
  double layer[RUNS_MAX], read[RUNS_MAX], done[RUNS_MAX], ratio[RUNS_MAX], beyond[RUNS_MAX];
};

static int layout_of(const struct options *o, uint8_t *pool, rd2h_layout **out, struct rd2h_error *err) {
  char name[LAYERS_MAX][32];
  struct rd2h_kv_tensor t[LAYERS_MAX];
  struct rd2h_layout_opts lo = {.size = sizeof lo, .num_blocks = (uint32_t)o->blocks};
  for (uint32_t l = 0; l < o->layers; l++) {
    snprintf(name[l], sizeof name[l], "model.layers.%u.attn", l);
    t[l] = (struct rd2h_kv_tensor){.layer = name[l], .base = (uintptr_t)pool + l * o->blocks * o->block, .row_bytes = o->block,
                                   .rows = o->blocks};
  }
  return rd2h_layout_create(t, (uint32_t)o->layers, &lo, out, err);
}

/* ---- Decode ---- */
static int install_all(rd2h_decode *rank, const struct chain *c, struct rd2h_error *err) {
  int rc = RD2H_OK;
  for (uint32_t r = 0; r < 2 * c->o->runs && !rc; r++) {
    char id[32];
    snprintf(id, sizeof id, "req-%u", r);
    struct rd2h_grant g = {.id = id, .ext_id = id, .main = c->to, .n_main = (uint32_t)c->o->blocks,
                           .main_need = (uint32_t)c->o->blocks};
    rc = rd2h_decode_install(rank, &g, err);
  }
  return rc;
}

static void collect(rd2h_decode *rank, struct board *b) {
  struct rd2h_outcome out[8];
  uint32_t n, at;
  while ((n = rd2h_decode_collect(rank, out, 8)))
    for (uint32_t i = 0; i < n; i++)
      if (!out[i].status && sscanf(out[i].id, "req-%u", &at) == 1 && at < 2 * RUNS_MAX)
        __atomic_store_n(&b->done[at], bench_now(), __ATOMIC_RELEASE);
}

static int decode_main(const struct chain *c) {
  rd2h_layout *layout = NULL;
  rd2h_decode *rank = NULL;
  struct rd2h_error err = {0};
  struct rd2h_memory area = {(uintptr_t)c->target, c->o->layers * c->o->blocks * c->o->block};
  int rc = layout_of(c->o, c->target, &layout, &err);
  struct rd2h_decode_opts o = {.size = sizeof o, .layout = layout, .memory = &area, .n_memory = 1, .tp_size = 1, .main_ranks = 1,
                               .engine = c->o->engine};
  rc = rc ? rc : rd2h_decode_create(&o, &rank, &err);
  rc = rc ? rc : install_all(rank, c, &err);
  if (rc)
    fprintf(stderr, "rd2h bench e2e: Decode: %s\n", err.text);
  __atomic_store_n(&c->board->port, rc ? UINT16_MAX : rd2h_decode_port(rank), __ATOMIC_RELEASE);
  struct pollfd fd = {.fd = rc ? -1 : rd2h_decode_fd(rank), .events = POLLIN};
  while (!rc && poll(&fd, 1, -1) >= 0)
    collect(rank, c->board); /* the parent ends it */
  return 1;
}

/* ---- Prefill ---- */
static void sleep_until(uint64_t at) {
  struct timespec t = {.tv_sec = (time_t)(at / 1000000000u), .tv_nsec = (long)(at % 1000000000u)};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
    ;
}

/* What one layer takes by itself: from its announcement until it is known to have been read, one after the other. */
static int run_apart(const struct chain *c, struct bench_source *x, uint32_t request, double *layer) {
  double took[LAYERS_MAX];
  int rc = bench_source_request(x, request);
  rc = rc ? rc : bench_source_step(x, 0);
  for (uint32_t l = 0; l < c->o->layers && !rc; l++) {
    uint64_t begin = bench_now();
    rc = rd2h_prefill_layer(x->rank, l, &x->err);
    rc = rc ? rc : rd2h_prefill_wait_layer(x->rank, l, WAIT_MS, &x->err);
    took[l] = (double)(bench_now() - begin);
  }
  bench_source_end(x);
  *layer = bench_median(took, c->o->layers);
  return rc;
}

static int wait_done(const struct chain *c, uint32_t request, uint64_t *at, struct rd2h_error *err) {
  uint64_t until = bench_now() + WAIT_MS * UINT64_C(1000000);
  while (!(*at = __atomic_load_n(&c->board->done[request], __ATOMIC_ACQUIRE)))
    if (bench_now() > until) {
      snprintf(err->text, sizeof err->text, "Decode had no outcome within %d ms", WAIT_MS);
      return RD2H_TIMEOUT;
    } else {
      sleep_until(bench_now() + 50000);
    }
  return RD2H_OK;
}

/* A layer is computed, announced, and the next one is computed at once; computing takes no CPU, as on an accelerator. */
static int run_overlapped(const struct chain *c, struct bench_source *x, uint32_t request, double compute, double *read, double *done) {
  uint64_t at = 0, last = 0, end;
  int rc = bench_source_request(x, request);
  rc = rc ? rc : bench_source_step(x, 0);
  for (uint32_t l = 0; l < c->o->layers && !rc; l++) {
    sleep_until(bench_now() + (uint64_t)compute);
    last = bench_now();
    rc = rd2h_prefill_layer(x->rank, l, &x->err);
  }
  for (uint32_t l = 0; l < c->o->layers && !rc; l++)
    rc = rd2h_prefill_wait_layer(x->rank, l, WAIT_MS, &x->err);
  end = bench_now();
  bench_source_end(x);
  rc = rc ? rc : wait_done(c, request, &at, &x->err);
  *read = (double)(end - last);
  *done = (double)(at - last);
  return rc;
}

static int measure(const struct chain *c, struct bench_source *x, struct result *r) {
  int rc = RD2H_OK;
  double first;
  for (uint32_t i = 0; i < c->o->runs && !rc; i++) {
    rc = run_apart(c, x, 2 * i, &r->layer[i]);
    first = r->layer[i] * (double)c->o->compute / 100;
    rc = rc ? rc : run_overlapped(c, x, 2 * i + 1, first, &r->read[i], &r->done[i]);
    r->ratio[i] = r->done[i] / r->layer[i];
    r->beyond[i] = 100 * (r->done[i] - r->layer[i]) / (r->layer[i] * (double)c->o->layers);
  }
  return rc;
}

static bool wait_port(const struct board *b) {
  for (int ms = 0; ms < WAIT_MS && !__atomic_load_n(&b->port, __ATOMIC_ACQUIRE); ms++)
    sleep_until(bench_now() + 1000000);
  return b->port && b->port != UINT16_MAX;
}

static int prefill_main(const struct chain *c, struct result *r, struct rd2h_error *err) {
  struct bench_source x = {.ids = c->from, .blocks = (uint32_t)c->o->blocks, .steps = 1, .groups = 1, .port = c->board->port};
  struct rd2h_memory area = {(uintptr_t)c->source, c->o->layers * c->o->blocks * c->o->block};
  int rc = layout_of(c->o, c->source, &x.layout, &x.err);
  rc = rc ? rc : bench_source_open(&x, c->o->engine, &area);
  rc = rc ? rc : measure(c, &x, r);
  bench_source_close(&x);
  rd2h_layout_destroy(x.layout);
  *err = x.err;
  return rc;
}

/* ---- the words around it ---- */
static void print_result(const struct options *o, struct result *r) {
  double layer = bench_median(r->layer, o->runs) / 1e3, read = bench_median(r->read, o->runs) / 1e3;
  double done = bench_median(r->done, o->runs) / 1e3, ratio = bench_median(r->ratio, o->runs);
  double beyond = bench_median(r->beyond, o->runs);
  unsigned long long layers = o->layers, blocks = o->blocks, block = o->block, compute = o->compute, runs = o->runs;
  if (o->json) {
    printf("{\"bench\":\"e2e\",\"version\":\"%s\",\"engine\":\"%s\",\"layers\":%llu,\"blocks\":%llu,\"block\":%llu,\"compute\":%llu,"
           "\"runs\":%llu,\"layer_us\":%.2f,\"visible_read_us\":%.2f,\"visible_us\":%.2f,\"visible_layers\":%.4f,"
           "\"beyond_percent\":%.4f}\n", rd2h_version(), o->engine, layers, blocks, block, compute, runs, layer, read, done, ratio,
           beyond);
    return;
  }
  static const char *const headers[] = {"<what", "us", "layers", NULL};
  struct table t;
  if (!table_begin(&t, headers))
    return;
  printf("%llu layers of %llu blocks of %llu bytes by engine %s; a layer is computed in %llu %% of its transfer. Medians of %llu runs.\n\n",
         layers, blocks, block, o->engine, compute, runs);
  table_cell(&t, "a layer's transfer, by itself");
  table_cell(&t, "%.0f", layer);
  table_cell(&t, "1.00");
  table_row_end(&t);
  table_cell(&t, "visible after the last layer: read");
  table_cell(&t, "%.0f", read);
  table_cell(&t, "%.2f", read / layer);
  table_row_end(&t);
  table_cell(&t, "visible after the last layer: Decode done");
  table_cell(&t, "%.0f", done);
  table_cell(&t, "%.2f", ratio);
  table_row_end(&t);
  table_end(&t);
  printf("\n%sBeyond that one layer, %.2f %% of the prompt's whole transfer is visible.%s\n", color_dim(), beyond, color_off());
}

static void usage(void) {
  puts("usage: rd2h bench e2e [OPTION...]\n"
       "\n"
       "How much of a prompt's transfer is hidden behind its computation. Prefill computes a layer (sleeps: an accelerator would\n"
       "compute), announces it, and goes on; Decode reads it meanwhile. What is left to wait for after the last layer is the last\n"
       "layer's own transfer, and what is printed beside it. Every run first moves the layers one by one, to know what one takes.\n"
       "\n"
       "  --engine E    local or tcp (local)\n"
       "  --shared      Prefill's memory is of rd2h_shared_alloc\n"
       "  --layers N    (61)\n"
       "  --blocks N    blocks of a layer (64)\n"
       "  --block N     bytes of a block (131072)\n"
       "  --compute N   a layer's computation, in percent of its transfer (110)\n"
       "  --runs N      runs; medians are shown (9)\n"
       "  --json        one JSON object\n"
       "\n"
       "example: rd2h bench e2e --engine tcp --layers 24 --blocks 16");
}

static bool engine_fits(const char *name) {
  if (!strcmp(name, "local") || !strcmp(name, "tcp"))
    return true;
  fprintf(stderr, "--engine \"%s\": local or tcp is wanted\n", name);
  return false;
}

static int parse(int argc, char **argv, struct options *o, bool *shared) {
  static const struct option longs[] = {{"engine", required_argument, NULL, 'e'}, {"layers", required_argument, NULL, 'l'},
                                        {"blocks", required_argument, NULL, 'b'}, {"block", required_argument, NULL, 'B'},
                                        {"compute", required_argument, NULL, 'c'}, {"runs", required_argument, NULL, 'n'},
                                        {"shared", no_argument, NULL, 's'},       {"json", no_argument, NULL, 'j'},
                                        {"help", no_argument, NULL, 'h'},         {NULL, 0, NULL, 0}};
  *o = (struct options){.engine = "local", .layers = 61, .blocks = 64, .block = 131072, .compute = 110, .runs = 9};
  bool fine = true;
  opterr = 0;
  for (int c; fine && (c = getopt_long(argc, argv, ":h", longs, NULL)) != -1;) {
    switch (c) {
    case 'e': fine = engine_fits(o->engine = optarg); break;
    case 'l': fine = parse_number("--layers", optarg, 1, LAYERS_MAX, &o->layers); break;
    case 'b': fine = parse_number("--blocks", optarg, 1, 65536, &o->blocks); break;
    case 'B': fine = parse_number("--block", optarg, 256, 16777216, &o->block); break;
    case 'c': fine = parse_number("--compute", optarg, 1, 10000, &o->compute); break;
    case 'n': fine = parse_number("--runs", optarg, 1, RUNS_MAX, &o->runs); break;
    case 's': *shared = true; break;
    case 'j': o->json = true; break;
    case 'h': usage(); return -1;
    default: fine = option_refused("rd2h bench e2e", c, argv[optind - 1]);
    }
  }
  if (fine && optind < argc)
    fine = option_refused("rd2h bench e2e", '?', argv[optind]);
  if (fine && o->layers * o->blocks * o->block > BYTES_MAX) {
    fprintf(stderr, "rd2h bench e2e: --layers %llu x --blocks %llu x --block %llu is more than %llu GiB\n", (unsigned long long)o->layers,
            (unsigned long long)o->blocks, (unsigned long long)o->block, (unsigned long long)(BYTES_MAX >> 30));
    fine = false;
  }
  return fine ? EXIT_OK : EXIT_USAGE;
}

static bool make(struct chain *c, bool shared, struct rd2h_error *err) {
  uint64_t bytes = c->o->layers * c->o->blocks * c->o->block;
  uint32_t n = (uint32_t)c->o->blocks;
  int both = PROT_READ | PROT_WRITE;
  c->source = shared ? rd2h_shared_alloc(bytes, 0, err) : mmap(NULL, bytes, both, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  c->target = mmap(NULL, bytes, both, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  c->board = mmap(NULL, sizeof *c->board, both, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  c->from = malloc(n * sizeof *c->from);
  c->to = malloc(n * sizeof *c->to);
  if (!c->source || c->source == MAP_FAILED || c->target == MAP_FAILED || c->board == MAP_FAILED || !c->from || !c->to ||
      !bench_ids(5, n, 1, n, &bench_patterns[0], c->from) || !bench_ids(6, n, 1, n, &bench_patterns[0], c->to)) {
    snprintf(err->text, sizeof err->text, "%llu MiB of memory are needed", (unsigned long long)(2 * bytes >> 20));
    return false;
  }
  memset(c->source, 1, bytes);
  memset(c->target, 2, bytes);
  return true;
}

int bench_e2e(int argc, char **argv) {
  static struct result r;
  struct options o;
  struct chain c = {.o = &o};
  struct rd2h_error err = {0};
  bool shared = false;
  int rc = parse(argc, argv, &o, &shared);
  if (rc != EXIT_OK)
    return rc < 0 ? EXIT_OK : rc;
  fflush(stdout);
  pid_t pid = -1;
  rc = make(&c, shared, &err) ? RD2H_OK : RD2H_NOMEM;
  if (!rc && !(pid = fork())) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    _exit(decode_main(&c));
  }
  if (!rc)
    rc = pid > 0 && wait_port(c.board) ? prefill_main(&c, &r, &err) : RD2H_STATE;
  if (pid > 0)
    kill(pid, SIGKILL);
  if (!rc)
    print_result(&o, &r);
  else
    fprintf(stderr, "rd2h bench e2e: %s\n", err.text[0] ? err.text : rd2h_status_text(rc));
  free(c.from);
  free(c.to);
  return rc ? EXIT_FAILED : EXIT_OK;
}
