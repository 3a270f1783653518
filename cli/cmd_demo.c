/* SPDX-License-Identifier: Apache-2.0 */
/* The demonstration's parent: lays everything out, starts the ranks, watches them, sums up. */
#include "cli.h"
#include "demo.h"
#include "table.h"
#include <errno.h>
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
#define LOOK_PAUSE_NS 5000000
#define RUN_LIMIT_S 240
#define STOP_LIMIT_S 10
#define NS_PER_S UINT64_C(1000000000)

static void name_ranks(struct demo *d) {
  for (uint32_t e = 0; e < d->d_engines; e++)
    for (uint32_t t = 0; t < d->d_tp; t++) {
      struct demo_rank *r = &d->rank[d->n_ranks++];
      *r = (struct demo_rank){.engine = e, .tp = t};
      snprintf(r->name, sizeof r->name, "Decode %u rank %u", e, t);
    }
  for (uint32_t e = 0; e < d->p_engines; e++)
    for (uint32_t s = 0; s < d->p_pp; s++)
      for (uint32_t t = 0; t < d->p_tp; t++) {
        struct demo_rank *r = &d->rank[d->n_ranks++];
        *r = (struct demo_rank){.prefill = true, .engine = e, .pp = s, .tp = t};
        snprintf(r->name, sizeof r->name, "Prefill %u stage %u rank %u", e, s, t);
      }
}

static pid_t start(struct demo *d, struct demo_rank *r) {
  fflush(NULL);
  demo_dump_block(true);
  pid_t parent = getpid(), pid = fork();
  if (pid) {
    demo_dump_block(false);
    return pid;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL); /* nothing is left behind when the demonstration is interrupted */
  if (getppid() != parent)
    _exit(1);
  _exit(r->prefill ? demo_prefill(d, r) : demo_decode(d, r));
}

static void draw(const struct demo *d, uint64_t total) {
  static const char *const phase[] = {"preparing", "pulling", "comparing"};
  uint64_t moved = 0;
  for (uint32_t i = 0; i < d->n_ranks; i++)
    moved += __atomic_load_n(&d->rank[i].bytes, __ATOMIC_RELAXED);
  int filled = total ? (int)(moved * BAR_WIDTH / total) : 0;
  char bar[BAR_WIDTH + 1];
  for (int i = 0; i < BAR_WIDTH; i++)
    bar[i] = i < filled ? '#' : '.';
  bar[BAR_WIDTH] = 0;
  printf("\r  [%s] %7.2f of %.2f GB  %-10s", bar, (double)moved / 1e9, (double)total / 1e9,
         phase[__atomic_load_n(&d->phase, __ATOMIC_RELAXED)]);
  fflush(stdout);
}

static void tell_all(const pid_t *pid, uint32_t n, int sig) {
  for (uint32_t i = 0; i < n; i++)
    if (pid[i] > 0)
      kill(pid[i], sig);
}

/* How many of them have ended since the last look; *good becomes false when one went wrong. */
static uint32_t look(pid_t *pid, uint32_t n, bool *good) {
  uint32_t ended = 0;
  for (uint32_t i = 0; i < n; i++) {
    int status = 0;
    if (pid[i] <= 0 || waitpid(pid[i], &status, WNOHANG) != pid[i])
      continue;
    pid[i] = 0;
    ended++;
    *good &= WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  return ended;
}

/* Waits for all; when one fails, or time is over, the others are ended. A signal leaves them little time. */
static bool watch(struct demo *d, pid_t *pid) {
  uint64_t total = demo_total(d->oracle), until = demo_now() + RUN_LIMIT_S * NS_PER_S, last = 0;
  bool show = !d->json && isatty(STDOUT_FILENO), good = true;
  for (uint32_t left = d->n_ranks; left;) {
    left -= look(pid, d->n_ranks, &good);
    last = demo_stopped(d) && !last ? demo_now() + STOP_LIMIT_S * NS_PER_S : last;
    good &= demo_now() < (last ? last : until);
    if (demo_dump_asked())
      tell_all(pid, d->n_ranks, SIGUSR1);
    if (show)
      draw(d, total);
    if (!good)
      tell_all(pid, d->n_ranks, SIGKILL);
    if (left)
      nanosleep(&(struct timespec){.tv_nsec = show ? BAR_PAUSE_NS : LOOK_PAUSE_NS}, NULL);
  }
  if (show)
    printf("\r%*s\r", BAR_WIDTH + 50, "");
  return good;
}

static void title(const struct demo *d) {
  printf("%srd2h demo%s  %s shapes: %u layers, %u prompts of about %u tokens, chunks of at most %u\n", color_bold(), color_off(),
         d->model->title, d->layers, d->n_requests, d->prompt_tokens, d->chunk);
  if (d->model->assumed)
    printf("  assumed    %s\n", d->model->assumed);
  printf("  engines    Prefill %u (stages %u, TP %u), Decode %u (TP %u)\n", d->p_engines, d->p_pp, d->p_tp, d->d_engines, d->d_tp);
}

static const char *reason(const struct demo *d) {
  for (uint32_t i = 0; i < d->n_ranks; i++)
    if (d->rank[i].result.failed)
      return d->rank[i].result.text;
  return "a process ended too early or took too long";
}

static int run(struct demo *d) {
  pid_t pid[DEMO_MAX_RANKS] = {0};
  if (!d->json)
    title(d);
  for (uint32_t i = 0; i < d->n_ranks; i++) {
    pid[i] = start(d, &d->rank[i]);
    if (pid[i] < 0) {
      fprintf(stderr, "rd2h demo: process %u of %u: fork: %s\n", i + 1, d->n_ranks, strerror(errno));
      tell_all(pid, i, SIGKILL);
      return EXIT_FAILED;
    }
  }
  bool good = watch(d, pid);
  uint32_t sig = demo_stopped(d);
  if (sig) {
    fprintf(stderr, "rd2h demo: stopped by %s: %s\n", sig == SIGTERM ? "SIGTERM" : "SIGINT",
            good ? "every rank has ended in order" : "ranks that did not end in order were killed");
    return demo_trace_write(d) ? 128 + (int)sig : EXIT_FAILED;
  }
  if (d->json)
    demo_report_json(d, good);
  else if (good)
    demo_report(d);
  if (!good)
    fprintf(stderr, "rd2h demo: %s\n", reason(d));
  return demo_trace_write(d) && good ? EXIT_OK : EXIT_FAILED;
}

static void defaults(struct demo *d) {
  d->model = demo_models;
  d->p_engines = d->p_pp = d->p_tp = d->d_engines = d->d_tp = 1;
  d->n_requests = 4;
  d->prompt_tokens = 4096;
  d->chunk = 2048;
  d->block_tokens = 128;
  d->seed = 1;
  d->lic8 = true;
  snprintf(d->engine, sizeof d->engine, "auto");
}

int cmd_demo(int argc, char **argv) {
  struct demo *d = mmap(NULL, sizeof *d, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (d == MAP_FAILED) {
    fprintf(stderr, "rd2h demo: shared memory: %s\n", strerror(errno));
    return EXIT_FAILED;
  }
  defaults(d);
  demo_signals(d);
  int rc = demo_parse(argc, argv, d);
  if (rc < 0) {
    rc = EXIT_FAILED;
    name_ranks(d);
    if (!demo_find_ports(d))
      fprintf(stderr, "rd2h demo: no %u neighbouring ports are free on 127.0.0.1\n", d->d_tp);
    else if (!demo_workload(d) || !demo_trace_open(d))
      fprintf(stderr, "rd2h demo: out of memory\n");
    else
      rc = run(d);
    demo_workload_free(d);
  }
  demo_signals_end();
  munmap(d, sizeof *d);
  return rc;
}
