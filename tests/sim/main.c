/* SPDX-License-Identifier: Apache-2.0 */
/* sim --seeds N --first K [--verbose]          N worlds; stops at the first that breaks a rule and says how to see it again
 * sim --mutations [--seeds N]                  each mutation of the glue must be caught within N seeds
 * sim --mutate NAME --first K [--seeds N]      worlds with one of them */
#include "sim.h"
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

/* The maps of the library hash under a random key. Here that key is the same in every run. */
int __wrap_rd2h_random(void *p, size_t n);
int __wrap_rd2h_random(void *p, size_t n) {
  memset(p, 0x5a, n);
  return RD2H_OK;
}

static void quiet(void *user, int level, const char *line) {
  (void)user;
  (void)level;
  (void)line;
}

static void add(struct sim_tally *to, const struct sim_tally *t) {
  uint64_t *a = (uint64_t *)to;
  const uint64_t *b = (const uint64_t *)t;
  for (size_t i = 0; i < sizeof *to / sizeof *a; i++)
    a[i] += b[i];
}

static void print_failure(struct world *w, enum sim_mutation mut) {
  char text[320];
  printf("# seed %llu broke %s\n# %s\n# see it again: sim --first %llu --seeds 1 --verbose%s%s\n", (unsigned long long)w->seed,
         w->failure, world_describe(w, text, sizeof text), (unsigned long long)w->seed, mut ? " --mutate " : "",
         mut ? mutation_name(mut) : "");
}

static void print_tally(uint64_t n, uint64_t first, uint64_t events, const struct sim_tally *t) {
#define N(field) (unsigned long long)t->field
  printf("# %llu seeds from %llu, %llu events, %llu requests: %llu complete, %llu ended otherwise; all %llu that nothing "
         "happened to "
         "completed\n",
         (unsigned long long)n, (unsigned long long)first, (unsigned long long)events, N(jobs), N(good), N(bad), N(must));
  printf("# %llu batches (%llu given up), %llu crashes, %llu breaks, %llu refused sends, %llu stops, %llu failed and %llu hung "
         "reads\n",
         N(batches), N(given_up), N(crashes), N(breaks), N(deaf), N(pauses), N(read_failures), N(hangs));
  printf(
      "# %llu aborts, %llu retries, %llu preemptions, %llu skipped, %llu cancels, %llu poisons, %llu worlds with legacy peers\n",
      N(aborts), N(retries), N(preemptions), N(skipped), N(cancels), N(poison), N(legacy));
#undef N
}

/* Ten cases, each a tenth of the seeds. */
static bool run_seeds(struct world *w, uint64_t first, uint64_t n, enum sim_mutation mut, bool verbose) {
  struct sim_tally sum = {0};
  uint64_t events = 0, cases = n < 10 ? n : 10;
  printf("1..%llu\n", (unsigned long long)cases);
  for (uint64_t i = 0, k = 0; i < n; i++) {
    world_run(w, first + i, mut, verbose);
    add(&sum, &w->tally);
    events += w->events;
    bool failed = w->failed;
    if (failed)
      print_failure(w, mut);
    world_free(w);
    if (failed || i + 1 >= n * (k + 1) / cases)
      printf("%s %llu - seeds to %llu\n", failed ? "not ok" : "ok", (unsigned long long)++k, (unsigned long long)(first + i));
    fflush(stdout);
    if (failed)
      return false;
  }
  print_tally(n, first, events, &sum);
  return true;
}

static bool caught(struct world *w, enum sim_mutation mut, uint64_t first, uint64_t n) {
  for (uint64_t i = 0; i < n; i++) {
    world_run(w, first + i, mut, false);
    bool failed = w->failed;
    if (failed)
      printf("ok %d - %s\n# caught by seed %llu: %.160s\n", mut, mutation_text(mut), (unsigned long long)(first + i), w->failure);
    world_free(w);
    if (failed)
      return true;
  }
  printf("not ok %d - %s\n# not caught by %llu seeds\n", mut, mutation_text(mut), (unsigned long long)n);
  return false;
}

static bool run_mutations(struct world *w, uint64_t first, uint64_t n) {
  bool all = true;
  printf("1..%d\n", MUT_COUNT - 1);
  for (int m = MUT_NONE + 1; m < MUT_COUNT; m++) {
    all &= caught(w, (enum sim_mutation)m, first, n);
    fflush(stdout);
  }
  return all;
}

static enum sim_mutation find_mutation(const char *name) {
  for (int m = 0; m < MUT_COUNT; m++)
    if (!strcmp(mutation_name((enum sim_mutation)m), name))
      return (enum sim_mutation)m;
  fprintf(stderr, "sim: no mutation %s; they are:\n", name);
  for (int m = 1; m < MUT_COUNT; m++)
    fprintf(stderr, "  %-18s %s\n", mutation_name((enum sim_mutation)m), mutation_text((enum sim_mutation)m));
  exit(2);
}

int main(int argc, char **argv) {
  static const struct option options[] = {{"seeds", required_argument, NULL, 'n'}, {"first", required_argument, NULL, 'k'},
                                          {"verbose", no_argument, NULL, 'v'},     {"mutate", required_argument, NULL, 'm'},
                                          {"mutations", no_argument, NULL, 'a'},   {NULL, 0, NULL, 0}};
  uint64_t seeds = 2000, first = 1;
  enum sim_mutation mut = MUT_NONE;
  bool verbose = false, mutations = false, ok;
  for (int o; (o = getopt_long(argc, argv, "", options, NULL)) != -1;) {
    if (o == 'n')
      seeds = strtoull(optarg, NULL, 10);
    else if (o == 'k')
      first = strtoull(optarg, NULL, 10);
    else if (o == 'v')
      verbose = true;
    else if (o == 'm')
      mut = find_mutation(optarg);
    else if (o == 'a')
      mutations = true;
    else
      return 2;
  }
  struct world *w = malloc(sizeof *w);
  rd2h_log_set(quiet, NULL, RD2H_LOG_ERROR);
  ok = mutations ? run_mutations(w, first, seeds) : run_seeds(w, first, seeds, mut, verbose);
  free(w);
  return ok ? 0 : 1;
}
