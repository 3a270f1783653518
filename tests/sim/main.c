/* SPDX-License-Identifier: Apache-2.0 */
/* sim --seeds N --first K [--jobs J]           N worlds; the first that breaks a rule is made small and shown
 * sim --mutations [--seeds N]                  each mutation of the glue must be caught within N seeds
 * sim --mutate NAME --first K [--seeds N]      worlds with one of them
 * sim --first K --verbose [--cut U:F:O:N]      one world, event by event; --cut as the minimiser printed it */
#include "sim.h"
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

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

static enum sim_mutation find_mutation(const char *name) {
  for (int m = 0; m < MUT_COUNT; m++)
    if (!strcmp(mutation_name((enum sim_mutation)m), name))
      return (enum sim_mutation)m;
  fprintf(stderr, "sim: no mutation %s; they are:\n", name);
  for (int m = 1; m < MUT_COUNT; m++)
    fprintf(stderr, "  %-18s %s\n", mutation_name((enum sim_mutation)m), mutation_text((enum sim_mutation)m));
  exit(2);
}

struct asked {
  uint64_t seeds, first;
  uint32_t jobs;
  enum sim_mutation mut;
  struct sim_cut cut;
  bool verbose, mutations;
};

static bool read_options(int argc, char **argv, struct asked *a) {
  static const struct option options[] = {{"seeds", required_argument, NULL, 'n'}, {"first", required_argument, NULL, 'k'},
                                          {"jobs", required_argument, NULL, 'j'},  {"verbose", no_argument, NULL, 'v'},
                                          {"cut", required_argument, NULL, 'c'},   {"mutate", required_argument, NULL, 'm'},
                                          {"mutations", no_argument, NULL, 'a'},   {NULL, 0, NULL, 0}};
  for (int o; (o = getopt_long(argc, argv, "", options, NULL)) != -1;) {
    if (o == 'n')
      a->seeds = strtoull(optarg, NULL, 10);
    else if (o == 'k')
      a->first = strtoull(optarg, NULL, 10);
    else if (o == 'j')
      a->jobs = (uint32_t)strtoul(optarg, NULL, 10);
    else if (o == 'v')
      a->verbose = true;
    else if (o == 'm')
      a->mut = find_mutation(optarg);
    else if (o == 'a')
      a->mutations = true;
    else if (o != 'c' || sscanf(optarg, "%x:%x:%x:%x", &a->cut.users, &a->cut.faults, &a->cut.off, &a->cut.noise) != 4)
      return false;
  }
  return a->seeds && a->jobs && a->jobs <= 256;
}

static bool show(const struct asked *a) {
  struct world *w = malloc(sizeof *w);
  char text[400];
  world_run(w, a->first, a->mut, &a->cut, VERBOSE);
  bool ok = !w->failed;
  printf("%s: %s\n", world_describe(w, text, sizeof text), ok ? "every rule was kept" : w->failure);
  world_free(w);
  free(w);
  return ok;
}

int main(int argc, char **argv) {
  struct asked a = {.seeds = 2000, .first = 1, .jobs = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN)};
  if (!read_options(argc, argv, &a)) {
    fprintf(stderr, "usage: sim [--seeds N] [--first K] [--jobs J] [--mutate NAME | --mutations] [--verbose [--cut U:F:O:N]]\n");
    return 2;
  }
  rd2h_log_set(quiet, NULL, RD2H_LOG_ERROR);
  bool ok = a.verbose ? show(&a) : a.mutations ? run_mutations(a.first, a.seeds, a.jobs) : run_seeds(a.first, a.seeds, a.jobs, a.mut);
  return ok ? 0 : 1;
}
