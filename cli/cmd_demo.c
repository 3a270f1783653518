/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"
#include "demo.h"
#include "table.h"
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BAR_WIDTH 40
#define BAR_PAUSE_NS 50000000
#define OPTIONS_LIMIT_S 240 /* of the whole run */

static void usage(void) {
  puts("rd2h demo: a Prefill and a Decode process move a prompt list with the shapes of DeepSeek-V3.2; every byte is checked\n"
       "\n"
       "Prefill \"computes\" (writes) the KV cache chunk by chunk and layer by layer and publishes each layer at once; Decode reads it\n"
       "out of Prefill's memory while the next layer is computed. Block ids are random on both sides, and one prompt in three has a\n"
       "prefix that Decode holds already. At the end Decode compares every byte it received, and every block it must not touch.\n"
       "\n"
       "usage: rd2h demo [OPTION...]\n"
       "\n"
       "  --requests N       prompts in the list (4)\n"
       "  --prompt-tokens N  tokens of a prompt, about; blocks hold 128 (4096)\n"
       "  --chunk N          tokens that one prefill step computes (2048)\n"
       "  --layers N         layers (61)\n"
       "  --compute-us N     least time that a layer's computation takes, microseconds (0: as long as writing it takes)\n"
       "  --bf16-indexer     indexer in bf16, 32 KiB a block, instead of LIC8, 16 KiB and a scale of 256 bytes\n"
       "  --engine NAME      transfer engine: auto, local (auto)\n"
       "  --seed N           lengths, block ids, contents (1)\n"
       "  --json             the figures as JSON, no progress");
}

static const struct option options[] = {
    {"requests", required_argument, NULL, 'r'}, {"prompt-tokens", required_argument, NULL, 't'}, {"chunk", required_argument, NULL, 'c'},
    {"layers", required_argument, NULL, 'l'},   {"compute-us", required_argument, NULL, 'u'},    {"bf16-indexer", no_argument, NULL, 'b'},
    {"engine", required_argument, NULL, 'e'},   {"seed", required_argument, NULL, 's'},          {"json", no_argument, NULL, 'j'},
    {"help", no_argument, NULL, 'h'},           {0}};

static bool number(int c, const char *name, struct demo *d) {
  static const struct {
    char c;
    uint64_t min, max;
  } limit[] = {{'r', 1, DEMO_MAX_REQUESTS}, {'t', 2, 1u << 20}, {'c', DEMO_BLOCK_TOKENS, 1u << 20}, {'l', 1, DEMO_MAX_LAYERS},
               {'u', 0, 1000000}, {'s', 0, UINT64_MAX}};
  uint64_t v = 0;
  for (size_t i = 0; i < sizeof limit / sizeof limit[0]; i++)
    if (limit[i].c == c && !parse_number(name, optarg, limit[i].min, limit[i].max, &v))
      return false;
  switch (c) {
  case 'r': d->n_requests = (uint32_t)v; break;
  case 't': d->prompt_tokens = (uint32_t)v; break;
  case 'c': d->chunk = (uint32_t)v; break;
  case 'l': d->layers = (uint32_t)v; break;
  case 'u': d->compute_us = (uint32_t)v; break;
  default: d->seed = v;
  }
  return true;
}

/* -1: go on; else the exit status. */
static int parse(int argc, char **argv, struct demo *d) {
  int c, at = 0;
  while ((c = getopt_long(argc, argv, "h", options, &at)) != -1) {
    if (c == 'h') {
      usage();
      return EXIT_OK;
    }
    if (c == '?')
      return EXIT_USAGE;
    if (c == 'b')
      d->lic8 = false;
    else if (c == 'j')
      d->json = true;
    else if (c == 'e')
      snprintf(d->engine, sizeof d->engine, "%s", optarg);
    else if (!number(c, options[at].name, d))
      return EXIT_USAGE;
  }
  if (optind == argc)
    return -1;
  fprintf(stderr, "rd2h demo: \"%s\" is not an option; rd2h demo --help lists them\n", argv[optind]);
  return EXIT_USAGE;
}

/* ---- the two processes ---- */
static pid_t start(struct demo *d, int (*run)(struct demo *)) {
  fflush(NULL);
  pid_t pid = fork();
  if (pid)
    return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL); /* nothing is left behind when the demonstration is interrupted */
  _exit(run(d));
}

static void draw(const struct demo *d, uint64_t total) {
  static const char *const phase[] = {"preparing", "pulling", "comparing", "done"};
  uint64_t moved = __atomic_load_n(&d->moved, __ATOMIC_RELAXED);
  uint32_t at = __atomic_load_n(&d->phase, __ATOMIC_RELAXED);
  int filled = total ? (int)(moved * BAR_WIDTH / total) : 0;
  char bar[BAR_WIDTH + 1];
  for (int i = 0; i < BAR_WIDTH; i++)
    bar[i] = i < filled ? '#' : '.';
  bar[BAR_WIDTH] = 0;
  printf("\r  [%s] %7.2f of %.2f GB  %-10s", bar, (double)moved / 1e9, (double)total / 1e9, phase[at]);
  fflush(stdout);
}

/* Waits for both; when one fails, or time is over, the other is ended. */
static bool watch(struct demo *d, pid_t pid[2]) {
  uint64_t total = demo_total(d->oracle), until = demo_now() + OPTIONS_LIMIT_S * UINT64_C(1000000000);
  bool show = !d->json && isatty(STDOUT_FILENO), good = true;
  for (int left = 2; left;) {
    int status = 0;
    for (int i = 0; i < 2; i++) {
      if (pid[i] <= 0 || waitpid(pid[i], &status, WNOHANG) != pid[i])
        continue;
      pid[i] = 0;
      left--;
      good &= WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    if (show)
      draw(d, total);
    for (int i = 0; i < 2 && (!good || demo_now() > until); i++)
      if (pid[i] > 0)
        kill(pid[i], SIGKILL);
    nanosleep(&(struct timespec){.tv_nsec = BAR_PAUSE_NS}, NULL);
  }
  if (show)
    printf("\r%*s\r", BAR_WIDTH + 50, "");
  return good;
}

static int run(struct demo *d) {
  if (!d->json)
    printf("%srd2h demo%s  DeepSeek-V3.2 shapes: %u layers, %u prompts of about %u tokens, chunks of %u\n", color_bold(), color_off(),
           d->layers, d->n_requests, d->prompt_tokens, d->chunk);
  pid_t pid[2] = {start(d, demo_decode), start(d, demo_prefill)};
  if (pid[0] < 0 || pid[1] < 0) {
    fprintf(stderr, "rd2h demo: fork: %s\n", strerror(errno));
    for (int i = 0; i < 2; i++)
      if (pid[i] > 0)
        kill(pid[i], SIGKILL);
    return EXIT_FAILED;
  }
  bool good = watch(d, pid);
  if (d->json)
    demo_report_json(d);
  else if (good)
    demo_report(d);
  const struct demo_result *bad = d->decode.failed ? &d->decode : &d->prefill;
  if (!good)
    fprintf(stderr, "rd2h demo: %s\n", bad->failed ? bad->text : "a process ended too early or took too long");
  return good ? EXIT_OK : EXIT_FAILED;
}

int cmd_demo(int argc, char **argv) {
  struct demo *d = mmap(NULL, sizeof *d, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (d == MAP_FAILED) {
    fprintf(stderr, "rd2h demo: shared memory: %s\n", strerror(errno));
    return EXIT_FAILED;
  }
  d->layers = 61;
  d->n_requests = 4;
  d->prompt_tokens = 4096;
  d->chunk = 2048;
  d->seed = 1;
  d->lic8 = true;
  snprintf(d->engine, sizeof d->engine, "auto");
  int rc = parse(argc, argv, d);
  if (rc < 0) {
    sem_init(&d->installed, 1, 0);
    sem_init(&d->settled, 1, 0);
    rc = EXIT_FAILED;
    if (demo_workload(d))
      rc = run(d);
    else
      fprintf(stderr, "rd2h demo: out of memory\n");
    demo_workload_free(d);
  }
  munmap(d, sizeof *d);
  return rc;
}
