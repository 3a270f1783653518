/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void command_list(const struct command *table, int n) {
  int width = 0;
  for (int i = 0; i < n; i++)
    width = (int)strlen(table[i].name) > width ? (int)strlen(table[i].name) : width;
  for (int i = 0; i < n; i++)
    printf("  %-*s  %s\n", width, table[i].name, table[i].summary);
}

int command_dispatch(const char *prefix, const struct command *table, int n, int argc, char **argv, void (*usage)(void)) {
  const char *name = argc > 1 ? argv[1] : "--help";
  if (!strcmp(name, "--help") || !strcmp(name, "-h") || !strcmp(name, "help")) {
    usage();
    return argc > 1 ? EXIT_OK : EXIT_USAGE;
  }
  for (int i = 0; i < n; i++)
    if (!strcmp(name, table[i].name))
      return table[i].run(argc - 1, argv + 1);
  fprintf(stderr, "%s: there is no \"%s\"; %s --help lists what there is\n", prefix, name, prefix);
  return EXIT_USAGE;
}

bool parse_number(const char *option, const char *text, uint64_t min, uint64_t max, uint64_t *out) {
  char *end;
  errno = 0;
  unsigned long long v = strtoull(text, &end, 10);
  if (*text < '0' || *text > '9' || *end || errno || v < min || v > max) {
    fprintf(stderr, "%s \"%s\": a whole number from %llu to %llu is wanted\n", option, text, (unsigned long long)min,
            (unsigned long long)max);
    return false;
  }
  *out = v;
  return true;
}

bool option_refused(const char *command, int c, const char *word) {
  fprintf(stderr, "%s: \"%s\" %s; see %s --help\n", command, word, c == ':' ? "wants a value" : "is no option of it", command);
  return false;
}
