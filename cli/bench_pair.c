/* SPDX-License-Identifier: Apache-2.0 */
/* A layer's round trip, Prefill rank to Decode rank and back, beside two bare sockets that pass messages of the same size. */
#include "bench.h"
#include "cli.h"
#include "table.h"
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>
#include <zmq.h>

#define WAIT_MS 20000
#define ANSWER_BYTES 18 /* a Decode rank's answer behind its empty frame */
#define TRIPS_MAX 100000u

struct options {
  bool json;
  uint64_t blocks, steps, runs;
};
struct peer {
  pid_t pid;
  int say; /* closed: it ends */
  uint16_t port;
};
struct result {
  double ours[BENCH_RUNS_MAX], bare[BENCH_RUNS_MAX], ratio[BENCH_RUNS_MAX]; /* of each run: median round trip, ns */
  double cpu[BENCH_RUNS_MAX];  /* ns of CPU that the Prefill side takes for one round trip */
  double flow[BENCH_RUNS_MAX], flow_cpu[BENCH_RUNS_MAX]; /* ns a message when all layers of a step go out together */
  double message_bytes;
};

/* ---- the far side, one process each ---- */
static int far_ours(const struct options *o, int port_fd, int stop) {
  struct bench_stand s;
  struct rd2h_error err = {0};
  int rc = bench_stand_open(&s, 0, 2 * (uint32_t)o->runs + 1, (uint32_t)(o->blocks * o->steps), &bench_patterns[0], &err);
  uint16_t port = rc ? 0 : rd2h_decode_port(s.rank);
  if (rc)
    fprintf(stderr, "rd2h bench pair: Decode: %s\n", err.text);
  rc = write(port_fd, &port, sizeof port) != sizeof port || rc;
  struct pollfd fd[2] = {{.fd = stop, .events = POLLIN}, {.events = POLLIN}};
  fd[1].fd = rc ? -1 : rd2h_decode_fd(s.rank);
  while (!rc && !fd[0].revents) {
    poll(fd, 2, -1);
    struct rd2h_outcome out[8];
    if (fd[1].revents)
      rd2h_decode_collect(s.rank, out, 8);
  }
  bench_stand_close(&s);
  return rc;
}

static int far_bare(const struct options *o, int port_fd, int stop) {
  char address[64], answer[ANSWER_BYTES] = "";
  size_t n = sizeof address;
  void *ctx = zmq_ctx_new(), *s = zmq_socket(ctx, ZMQ_ROUTER);
  uint16_t port = 0;
  (void)o;
  if (!s || zmq_bind(s, "tcp://127.0.0.1:*") || zmq_getsockopt(s, ZMQ_LAST_ENDPOINT, address, &n) ||
      sscanf(strrchr(address, ':'), ":%hu", &port) != 1 || write(port_fd, &port, sizeof port) != sizeof port)
    return 1;
  zmq_pollitem_t item[2] = {{.fd = stop, .events = ZMQ_POLLIN}, {.socket = s, .events = ZMQ_POLLIN}};
  zmq_msg_t who, what;
  zmq_msg_init(&who);
  zmq_msg_init(&what);
  while (zmq_poll(item, 2, -1) >= 0 && !item[0].revents)
    if (zmq_msg_recv(&who, s, 0) >= 0 && zmq_msg_recv(&what, s, 0) >= 0 && zmq_msg_send(&who, s, ZMQ_SNDMORE) >= 0 &&
        zmq_send(s, "", 0, ZMQ_SNDMORE) >= 0)
      zmq_send(s, answer, sizeof answer, 0);
  return 0;
}

static bool peer_start(struct peer *p, int (*far)(const struct options *, int, int), const struct options *o) {
  int port[2], stop[2];
  if (pipe(port) || pipe(stop))
    return false;
  p->pid = fork();
  if (!p->pid) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(port[0]);
    close(stop[1]);
    bench_pin(0);
    _exit(far(o, port[1], stop[0]));
  }
  close(port[1]);
  close(stop[0]);
  p->say = stop[1];
  bool fine = p->pid > 0 && read(port[0], &p->port, sizeof p->port) == sizeof p->port && p->port;
  close(port[0]);
  return fine;
}

static void peer_stop(struct peer *p) {
  if (p->pid > 0)
    kill(p->pid, SIGKILL); /* nothing of it is needed any more, and Decode would wait for its peer */
  close(p->say);
}

/* ---- the near side ---- */
static int open_ours(struct bench_source *x) {
  uint32_t n = x->blocks * x->steps;
  x->ids = malloc(n * sizeof *x->ids);
  if (!x->ids || !bench_ids(1, BENCH_BLOCKS, 1, n, &bench_patterns[0], x->ids))
    return RD2H_NOMEM;
  int rc = bench_layout(UINT64_C(1) << 45, &x->layout, &x->err);
  return rc ? rc : bench_source_open(x, "noop", NULL);
}

/* One request, its prompt in steps of `blocks` blocks: a message a layer and step, each sent when the last one was answered. */
static int run_ours(struct bench_source *x, uint32_t request, double *trip) {
  uint32_t n = 0;
  int rc = bench_source_request(x, request);
  for (uint32_t s = 0; s < x->steps && !rc; s++) {
    rc = bench_source_step(x, s);
    for (uint32_t l = 0; l < BENCH_LAYERS && !rc; l++) {
      uint64_t begin = bench_now();
      rc = rd2h_prefill_layer(x->rank, l, &x->err);
      rc = rc ? rc : rd2h_prefill_wait_layer(x->rank, l, WAIT_MS, &x->err);
      trip[n++] = (double)(bench_now() - begin);
    }
  }
  bench_source_end(x);
  return rc;
}

/* The same with all layers of a step on their way at once. */
static int run_flow(struct bench_source *x, uint32_t request) {
  int rc = bench_source_request(x, request);
  for (uint32_t s = 0; s < x->steps && !rc; s++) {
    rc = bench_source_step(x, s);
    for (uint32_t l = 0; l < BENCH_LAYERS && !rc; l++)
      rc = rd2h_prefill_layer(x->rank, l, &x->err);
    for (uint32_t l = 0; l < BENCH_LAYERS && !rc; l++)
      rc = rd2h_prefill_wait_layer(x->rank, l, WAIT_MS, &x->err);
  }
  bench_source_end(x);
  return rc;
}

/* ---- the bare pair ---- */
static bool run_bare(void *dealer, size_t size, uint32_t n, double *trip) {
  char *message = calloc(1, size), answer[64];
  bool fine = message != NULL;
  for (uint32_t i = 0; i < n && fine; i++) {
    uint64_t begin = bench_now();
    fine = zmq_send(dealer, message, size, 0) >= 0 && zmq_recv(dealer, answer, sizeof answer, 0) == 0 &&
           zmq_recv(dealer, answer, sizeof answer, 0) == ANSWER_BYTES;
    trip[i] = (double)(bench_now() - begin);
  }
  free(message);
  return fine;
}

static int measure(struct bench_source *x, void *dealer, const struct options *o, struct result *r) {
  static double trip[TRIPS_MAX];
  struct rd2h_prefill_stats st;
  uint32_t n = BENCH_LAYERS * x->steps;
  int rc = run_ours(x, (uint32_t)o->runs, trip); /* opens the connection */
  rd2h_prefill_stats(x->rank, &st);
  r->message_bytes = st.batches ? (double)st.bytes_sent / (double)st.batches : 0;
  for (uint64_t i = 0; i < o->runs && !rc; i++) {
    uint64_t cpu = bench_cpu();
    rc = run_ours(x, (uint32_t)i, trip);
    r->cpu[i] = (double)(bench_cpu() - cpu) / n;
    cpu = bench_cpu();
    uint64_t begin = bench_now();
    rc = rc ? rc : run_flow(x, (uint32_t)(o->runs + 1 + i));
    r->flow[i] = (double)(bench_now() - begin) / n;
    r->flow_cpu[i] = (double)(bench_cpu() - cpu) / n;
    r->ours[i] = bench_median(trip, n);
    if (!rc && !run_bare(dealer, (size_t)r->message_bytes, n, trip)) {
      snprintf(x->err.text, sizeof x->err.text, "the bare pair fails: %s", zmq_strerror(zmq_errno()));
      rc = RD2H_IO;
    }
    r->bare[i] = bench_median(trip, n);
    r->ratio[i] = r->ours[i] / r->bare[i];
  }
  return rc;
}

/* ---- the words around it ---- */
static void print_result(const struct options *o, struct result *r) {
  double ours = bench_median(r->ours, o->runs) / 1e3, bare = bench_median(r->bare, o->runs) / 1e3;
  double ratio = bench_median(r->ratio, o->runs), cpu = bench_median(r->cpu, o->runs) / 1e3;
  double flow = bench_median(r->flow, o->runs) / 1e3, flow_cpu = bench_median(r->flow_cpu, o->runs) / 1e3;
  unsigned long long blocks = o->blocks, trips = o->steps * BENCH_LAYERS, runs = o->runs;
  if (o->json) {
    printf("{\"bench\":\"pair\",\"version\":\"%s\",\"blocks\":%llu,\"trips\":%llu,\"runs\":%llu,\"message_bytes\":%.0f,"
           "\"pair_us\":%.2f,\"bare_us\":%.2f,\"times_bare\":%.4f,\"prefill_cpu_us\":%.2f,\"flow_us\":%.2f,"
           "\"flow_prefill_cpu_us\":%.2f}\n", rd2h_version(), blocks, trips, runs,
           r->message_bytes, ours, bare, ratio, cpu, flow, flow_cpu);
    return;
  }
  static const char *const headers[] = {"<pair", "bytes", "us/round trip", "times bare", NULL};
  struct table t;
  if (!table_begin(&t, headers))
    return;
  printf("A layer of %llu blocks announced, read by engine noop, answered. Medians of %llu runs of %llu round trips.\n\n", blocks, runs,
         trips);
  table_cell(&t, "rd2h Prefill, rd2h Decode");
  table_cell(&t, "%.0f", r->message_bytes);
  table_cell(&t, "%.1f", ours);
  table_cell(&t, "%.2f", ratio);
  table_row_end(&t);
  table_cell(&t, "bare DEALER, bare ROUTER");
  table_cell(&t, "%.0f", r->message_bytes);
  table_cell(&t, "%.1f", bare);
  table_cell(&t, "%.2f", 1.0);
  table_row_end(&t);
  table_end(&t);
  printf("\n%sPrefill's process takes %.1f us of CPU for a round trip. With all %u layers of a step on their way at once a message\n"
         "takes %.1f us from end to end, %.1f us of CPU on Prefill.%s\n", color_dim(), cpu, BENCH_LAYERS, flow, flow_cpu, color_off());
}

static void usage(void) {
  puts("usage: rd2h bench pair [OPTION...]\n"
       "\n"
       "How long a layer takes from Prefill's call that it is ready until Prefill knows that its blocks were read: the message out,\n"
       "its block ids decoded and planned, engine noop, the answer back, the caller awake. One layer at a time, two processes.\n"
       "Beside it a bare ZeroMQ pair (DEALER, ROUTER) that passes as many frames and bytes over the same loopback, in turns:\n"
       "what no control path over such sockets can be below. The Decode side runs on the first CPU, the Prefill side on the second.\n"
       "\n"
       "  --blocks N   blocks of a layer's message (32)\n"
       "  --steps N    engine steps of a run: 61 round trips each (10)\n"
       "  --runs N     runs; medians are shown (7)\n"
       "  --json       one JSON object\n"
       "\n"
       "example: rd2h bench pair --blocks 256");
}

static int parse(int argc, char **argv, struct options *o) {
  static const struct option longs[] = {{"blocks", required_argument, NULL, 'b'}, {"steps", required_argument, NULL, 's'},
                                        {"runs", required_argument, NULL, 'n'},   {"json", no_argument, NULL, 'j'},
                                        {"help", no_argument, NULL, 'h'},         {NULL, 0, NULL, 0}};
  *o = (struct options){.blocks = 32, .steps = 10, .runs = 7};
  bool fine = true;
  opterr = 0;
  for (int c; fine && (c = getopt_long(argc, argv, ":h", longs, NULL)) != -1;) {
    switch (c) {
    case 'b': fine = parse_number("--blocks", optarg, 1, 4096, &o->blocks); break;
    case 's': fine = parse_number("--steps", optarg, 1, TRIPS_MAX / BENCH_LAYERS, &o->steps); break;
    case 'n': fine = parse_number("--runs", optarg, 1, 200, &o->runs); break;
    case 'j': o->json = true; break;
    case 'h': usage(); return -1;
    default: fine = option_refused("rd2h bench pair", c, argv[optind - 1]);
    }
  }
  if (fine && optind < argc)
    fine = option_refused("rd2h bench pair", '?', argv[optind]);
  if (fine && o->blocks * o->steps * (2 * o->runs + 1) > BENCH_BLOCKS) {
    fprintf(stderr, "rd2h bench pair: --blocks %llu x --steps %llu x (2 x --runs %llu + 1) is more than the %u blocks of the cache\n",
            (unsigned long long)o->blocks, (unsigned long long)o->steps, (unsigned long long)o->runs, BENCH_BLOCKS);
    fine = false;
  }
  return fine ? EXIT_OK : EXIT_USAGE;
}

static int connect_and_measure(const struct options *o, const struct peer *ours, const struct peer *bare, struct result *r,
                               struct rd2h_error *err) {
  struct bench_source x = {.blocks = (uint32_t)o->blocks, .steps = (uint32_t)o->steps, .groups = 2, .port = ours->port};
  char address[64];
  void *ctx = zmq_ctx_new(), *dealer = zmq_socket(ctx, ZMQ_DEALER);
  snprintf(address, sizeof address, "tcp://127.0.0.1:%u", bare->port);
  int rc = dealer && !zmq_connect(dealer, address) ? open_ours(&x) : RD2H_IO;
  rc = rc ? rc : measure(&x, dealer, o, r);
  *err = x.err;
  bench_source_close(&x);
  rd2h_layout_destroy(x.layout);
  free(x.ids);
  zmq_close(dealer);
  zmq_ctx_term(ctx);
  return rc;
}

int bench_pair(int argc, char **argv) {
  static struct result r;
  struct options o;
  struct peer ours = {.say = -1}, bare = {.say = -1};
  struct rd2h_error err = {0};
  int rc = parse(argc, argv, &o);
  if (rc != EXIT_OK)
    return rc < 0 ? EXIT_OK : rc;
  fflush(stdout);
  if (!peer_start(&ours, far_ours, &o) || !peer_start(&bare, far_bare, &o)) {
    snprintf(err.text, sizeof err.text, "the other process did not start");
    rc = EXIT_FAILED;
  } else {
    bench_pin(1);
    rc = connect_and_measure(&o, &ours, &bare, &r, &err);
  }
  peer_stop(&ours);
  peer_stop(&bare);
  if (!rc)
    print_result(&o, &r);
  else
    fprintf(stderr, "rd2h bench pair: %s\n", err.text[0] ? err.text : rd2h_status_text(rc));
  return rc ? EXIT_FAILED : EXIT_OK;
}
