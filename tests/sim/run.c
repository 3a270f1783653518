/* SPDX-License-Identifier: Apache-2.0 */
/* Many seeds on all cores. A worker is a process: it takes a few seeds at a time and adds to tables that all share. */
#include "sim.h"
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TAKE 20u
#define MAX_WORKERS 256u
#define CASES 10u

struct shared {
  uint64_t next, end, bad; /* bad: the first seed that failed, NEVER: none */
  uint64_t done[CASES], events, at[MAX_WORKERS]; /* at: the seed that each worker is in */
  bool crashed;
  struct sim_tally sum;
};

static void add(struct sim_tally *to, const struct sim_tally *t) {
  uint64_t *a = (uint64_t *)to;
  const uint64_t *b = (const uint64_t *)t;
  for (size_t i = 0; i < sizeof *to / sizeof *a; i++)
    __atomic_fetch_add(&a[i], b[i], __ATOMIC_RELAXED);
}

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void note_bad(struct shared *s, uint64_t seed) {
  uint64_t bad = __atomic_load_n(&s->bad, __ATOMIC_RELAXED);
  while (seed < bad && !__atomic_compare_exchange_n(&s->bad, &bad, seed, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
    ;
}

/* Seeds behind one that failed are not run any more; those before it are, so that the first is always the same. */
static void work(struct shared *s, uint32_t worker, uint64_t first, uint64_t n, enum sim_mutation mut) {
  static const struct sim_cut nothing;
  struct world *w = malloc(sizeof *w);
  for (uint64_t from; (from = __atomic_fetch_add(&s->next, TAKE, __ATOMIC_RELAXED)) < s->end;)
    for (uint64_t i = from; i < from + TAKE && i < s->end && first + i < __atomic_load_n(&s->bad, __ATOMIC_RELAXED); i++) {
      s->at[worker] = first + i;
      world_run(w, first + i, mut, &nothing, SILENT);
      if (w->failed)
        note_bad(s, first + i);
      add(&s->sum, &w->tally);
      __atomic_fetch_add(&s->events, w->events, __ATOMIC_RELAXED);
      __atomic_fetch_add(&s->done[i * CASES / n], 1, __ATOMIC_RELAXED);
      world_free(w);
    }
  free(w);
}

/* ---- what a person reads ---- */
static void progress(const struct shared *s, uint64_t n, double since) {
  uint64_t done = 0;
  for (uint32_t i = 0; i < CASES; i++)
    done += __atomic_load_n(&s->done[i], __ATOMIC_RELAXED);
  fprintf(stderr, "\r\033[K  %llu of %llu seeds, %.0f s", (unsigned long long)done, (unsigned long long)n, seconds() - since);
}

static void print_tally(uint64_t n, uint64_t first, uint64_t events, double took, const struct sim_tally *t) {
#define N(field) (unsigned long long)t->field
  printf("# seeds      %llu to %llu in %.1f s, %.1f million events\n", (unsigned long long)first, (unsigned long long)(first + n - 1),
         took, (double)events / 1e6);
  printf("# worlds     %llu; with faults %llu, with legacy peers %llu (of both kinds on one side %llu), engine that blocks %llu\n",
         N(worlds), N(faulty), N(legacy), N(mixed), N(blocking));
  printf("# requests   %llu: %llu complete, %llu ended otherwise; all %llu that nothing happened to completed\n", N(jobs), N(good),
         N(bad), N(must));
  printf("# users      %llu aborts, %llu retries, %llu preemptions, %llu rendezvous late, lost or refused\n", N(aborts), N(retries),
         N(preemptions), N(rendezvous));
  printf("# processes  %llu crashes and restarts, %llu stops\n", N(crashes), N(pauses));
  printf("# network    %llu breaks, %llu partitions, %llu refused sends, %llu duplicates\n", N(breaks), N(partitions), N(deaf),
         N(echoes));
  printf("# engine     %llu failed and %llu hung reads, %llu suspect sessions, %llu peers lost while their connection lives\n",
         N(read_failures), N(hangs), N(suspect), N(engine_lost));
  printf("# messages   %llu batches (%llu given up), %llu requests skipped, %llu cancels, %llu poisons\n", N(batches), N(given_up),
         N(skipped), N(cancels), N(poison));
#undef N
}

void print_again(const struct world *w, enum sim_mutation mut) {
  const struct sim_cut *c = &w->cut;
  printf("# see it again: sim --first %llu --seeds 1 --verbose", (unsigned long long)w->seed);
  if (c->users || c->faults || c->off || c->noise)
    printf(" --cut %x:%x:%x:%x", c->users, c->faults, c->off, c->noise);
  printf("%s%s\n", mut ? " --mutate " : "", mut ? mutation_name(mut) : "");
}

static void print_failure(uint64_t seed, enum sim_mutation mut, bool crashed) {
  static const struct sim_cut nothing;
  struct world *w = malloc(sizeof *w);
  char text[400];
  if (crashed) {
    printf("# the simulator itself crashed at seed %llu or one after it\n# see it again: sim --first %llu --seeds 1 --verbose\n",
           (unsigned long long)seed, (unsigned long long)seed);
    free(w);
    return;
  }
  world_run(w, seed, mut, &nothing, SILENT);
  printf("# seed %llu broke %s\n# %s\n", (unsigned long long)seed, w->failure, world_describe(w, text, sizeof text));
  print_again(w, mut);
  world_free(w);
  minimise(w, seed, mut, &nothing);
  free(w);
}

/* ---- runs ---- */
static struct shared *run(uint64_t first, uint64_t n, uint32_t jobs, enum sim_mutation mut, bool show) {
  struct shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  double since = seconds();
  *s = (struct shared){.end = n, .bad = RD2H_NEVER};
  fflush(stdout);
  pid_t pid[MAX_WORKERS];
  for (uint32_t i = 0; i < jobs; i++) {
    pid[i] = fork();
    if (pid[i])
      continue;
    work(s, i, first, n, mut);
    _exit(0);
  }
  for (uint32_t i = 0; i < jobs; i++) {
    int status;
    while (!waitpid(pid[i], &status, show ? WNOHANG : 0)) {
      progress(s, n, since);
      usleep(200000);
    }
    if (!status)
      continue;
    s->crashed = true;
    note_bad(s, s->at[i]);
  }
  if (show)
    fputs("\r\033[K", stderr);
  return s;
}

/* Ten cases, each a tenth of the seeds. */
bool run_seeds(uint64_t first, uint64_t n, uint32_t jobs, enum sim_mutation mut) {
  double since = seconds();
  struct shared *s = run(first, n, jobs, mut, isatty(2));
  uint64_t cases = n < CASES ? n : CASES;
  bool ok = s->bad == RD2H_NEVER;
  printf("1..%llu\n", (unsigned long long)cases);
  for (uint64_t k = 1; k <= cases; k++) {
    uint64_t last = first + n * k / cases - 1;
    bool good = last < s->bad;
    printf("%s %llu - seeds to %llu\n", good ? "ok" : "not ok", (unsigned long long)k, (unsigned long long)last);
    if (!good)
      break;
  }
  if (ok)
    print_tally(n, first, s->events, seconds() - since, &s->sum);
  else
    print_failure(s->bad, mut, s->crashed);
  munmap(s, sizeof *s);
  return ok;
}

bool run_mutations(uint64_t first, uint64_t n, uint32_t jobs) {
  static const struct sim_cut nothing;
  struct world *w = malloc(sizeof *w);
  bool all = true;
  printf("1..%d\n", MUT_COUNT - 1);
  for (int m = MUT_NONE + 1; m < MUT_COUNT; m++) {
    struct shared *s = run(first, n, jobs, (enum sim_mutation)m, false);
    bool ok = s->bad != RD2H_NEVER;
    printf("%s %d - %s\n", ok ? "ok" : "not ok", m, mutation_text((enum sim_mutation)m));
    if (ok) {
      world_run(w, s->bad, (enum sim_mutation)m, &nothing, SILENT);
      printf("# caught by seed %llu: %.160s\n", (unsigned long long)s->bad, w->failure);
      world_free(w);
    } else {
      printf("# not caught by %llu seeds\n", (unsigned long long)n);
    }
    munmap(s, sizeof *s);
    all &= ok;
  }
  free(w);
  return all;
}
