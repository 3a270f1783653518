/* SPDX-License-Identifier: Apache-2.0 */
#include "bench.h"
#include "cli.h"
#include <getopt.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct options {
  uint64_t port, requests, blocks, cpu;
  const struct bench_pattern *pattern;
};

static void usage(void) {
  puts("usage: rd2h bench decode [OPTION...] PORT REQUESTS BLOCKS scatter|runs8|contig\n"
       "\n"
       "A Decode rank for a driver of your own to measure: engine noop (reads complete at once and move nothing), 61 layers like\n"
       "DeepSeek-V3.2's with LIC8 (K 131072 B, V 16384 B, indexer 16384 B, scale 256 B a block), 300000 blocks, destinations of\n"
       "BLOCKS blocks for each of the requests req-0, req-1, ... A request that is done is installed again with the same blocks,\n"
       "so that the driver may send its layers over and over.\n"
       "\n"
       "It listens at 127.0.0.1:PORT, prints \"ready\", and then answers each line \"stat\" on standard input with\n"
       "\"[engine calls, descriptors, CPU seconds of the process]\"; any other line, or the end of input, ends it. What it costs to\n"
       "serve one message is the difference of two such lines: CPU seconds by engine calls. Requests that came while they were\n"
       "not installed (a driver that is faster than the installation) are named on standard error in the end.\n"
       "\n"
       "  --cpu N    run on the N-th of the CPUs that the process may use, from 0 (0)\n"
       "  --json     accepted for uniformity: answers are JSON in any case\n"
       "\n"
       "One driver each: a driver that leaves in the middle of a request makes that id unusable for four minutes.\n"
       "\n"
       "example: rd2h bench decode 7000 64 256 scatter");
}

static int parse(int argc, char **argv, struct options *o) {
  static const struct option longs[] = {{"cpu", required_argument, NULL, 'c'}, {"json", no_argument, NULL, 'j'},
                                        {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
  *o = (struct options){0};
  bool fine = true;
  opterr = 0;
  for (int c; fine && (c = getopt_long(argc, argv, ":h", longs, NULL)) != -1;) {
    if (c == 'h') {
      usage();
      return -1;
    }
    if (c == 'c')
      fine = parse_number("--cpu", optarg, 0, 1023, &o->cpu);
    else if (c != 'j')
      fine = option_refused("rd2h bench decode", c, argv[optind - 1]);
  }
  char **word = argv + optind;
  if (fine && argc - optind != 4) {
    fprintf(stderr, "rd2h bench decode: PORT REQUESTS BLOCKS PATTERN are wanted, %d words are there; see rd2h bench decode --help\n",
            argc - optind);
    return EXIT_USAGE;
  }
  fine = fine && parse_number("PORT", word[0], 0, 65535, &o->port) && parse_number("REQUESTS", word[1], 1, 65536, &o->requests) &&
         parse_number("BLOCKS", word[2], 1, BENCH_BLOCKS, &o->blocks) && (o->pattern = bench_pattern("PATTERN", word[3]));
  if (fine && o->requests * o->blocks > BENCH_BLOCKS) {
    fprintf(stderr, "rd2h bench decode: REQUESTS %llu x BLOCKS %llu is more than the %u blocks of the cache\n",
            (unsigned long long)o->requests, (unsigned long long)o->blocks, BENCH_BLOCKS);
    fine = false;
  }
  return fine ? EXIT_OK : EXIT_USAGE;
}

static void answer(struct bench_stand *s) {
  struct rd2h_decode_stats st;
  rd2h_decode_stats(s->rank, &st);
  printf("[%llu, %llu, %.6f]\n", (unsigned long long)st.reads, (unsigned long long)st.descriptors, (double)bench_cpu() / 1e9);
  fflush(stdout);
}

/* False: the talk is over. Reads lines, however the driver's writes cut them. */
static bool talk(struct bench_stand *s, char *line, size_t cap, size_t *n) {
  ssize_t got = read(STDIN_FILENO, line + *n, cap - *n);
  if (got <= 0)
    return false;
  *n += (size_t)got;
  for (char *end; (end = memchr(line, '\n', *n));) {
    size_t len = (size_t)(end - line) + 1;
    if (len != 5 || memcmp(line, "stat", 4))
      return false;
    answer(s);
    memmove(line, end + 1, *n -= len);
  }
  return *n < cap;
}

static int serve(struct bench_stand *s, struct rd2h_error *err) {
  char line[64];
  size_t n = 0;
  struct pollfd fd[2] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = rd2h_decode_fd(s->rank), .events = POLLIN}};
  puts("ready");
  fflush(stdout);
  for (;;) {
    if (poll(fd, 2, -1) < 0)
      continue;
    int rc = fd[1].revents ? bench_stand_turn(s, err) : RD2H_OK;
    if (rc)
      return rc;
    if (fd[0].revents && !talk(s, line, sizeof line, &n))
      return RD2H_OK;
  }
}

/* The thread that installs goes before the rank's own on their CPU: then requests are there again before a driver can have seen that
 * they are done. Without the permission for that some messages may find them missing, which the last line tells. */
static void go_first(void) {
  struct sched_param p = {.sched_priority = 1};
  if (pthread_setschedparam(pthread_self(), SCHED_FIFO, &p))
    fprintf(stderr, "rd2h bench decode: no permission for SCHED_FIFO, a fast driver may find requests not installed yet\n");
}

static void tell_skipped(struct bench_stand *s) {
  struct rd2h_decode_stats st;
  rd2h_decode_stats(s->rank, &st);
  if (st.skipped)
    fprintf(stderr, "rd2h bench decode: %llu requests of %llu messages came while they were not installed\n",
            (unsigned long long)st.skipped, (unsigned long long)st.messages);
}

int bench_decode(int argc, char **argv) {
  struct options o;
  struct bench_stand s;
  struct rd2h_error err = {0};
  int rc = parse(argc, argv, &o);
  if (rc != EXIT_OK)
    return rc < 0 ? EXIT_OK : rc;
  setenv("RD2H_LOG", "error", 0); /* an id that a driver leaves behind would fill the terminal */
  if (bench_pin((uint32_t)o.cpu) < 0)
    fprintf(stderr, "rd2h bench decode: not pinned to a CPU, figures will vary more\n");
  rc = bench_stand_open(&s, (uint16_t)o.port, (uint32_t)o.requests, (uint32_t)o.blocks, o.pattern, &err);
  go_first();
  rc = rc ? rc : serve(&s, &err);
  if (rc)
    fprintf(stderr, "rd2h bench decode: %s\n", err.text);
  else
    tell_skipped(&s);
  bench_stand_close(&s);
  return rc ? EXIT_FAILED : EXIT_OK;
}
