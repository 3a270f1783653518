/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_CLI_H
#define RD2H_CLI_H
/* The command line program. Uses the public API alone. A command gets its own name as argv[0] and returns the exit status. */
#include <stdbool.h>
#include <stdint.h>

enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

struct command {
  const char *name;
  int (*run)(int argc, char **argv);
  const char *summary;
};

/* Runs the command that argv[1] names; `usage` is printed for --help (and with EXIT_USAGE for a name that is unknown). */
int command_dispatch(const char *prefix, const struct command *table, int n, int argc, char **argv, void (*usage)(void));
/* One line a command, names aligned. */
void command_list(const struct command *table, int n);
/* A whole number in [min, max]; says on standard error what is wrong with it. */
bool parse_number(const char *option, const char *text, uint64_t min, uint64_t max, uint64_t *out);
/* Says that a word of the command line cannot be used; c: what getopt_long returned (with ':' first in its short options). False. */
bool option_refused(const char *command, int c, const char *word);

int cmd_bench(int argc, char **argv);
int cmd_demo(int argc, char **argv);
int cmd_keys(int argc, char **argv);
int cmd_doctor(int argc, char **argv);
int cmd_pd_read(int argc, char **argv);
int bench_plan(int argc, char **argv);
int bench_decode(int argc, char **argv);
int bench_pair(int argc, char **argv);
int bench_read(int argc, char **argv);
int bench_e2e(int argc, char **argv);
int bench_peers(int argc, char **argv);
#endif
