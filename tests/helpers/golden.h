/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_TESTS_GOLDEN_H
#define RD2H_TESTS_GOLDEN_H
/* Fixtures of tests/golden, found through RD2H_FIXTURES. A missing one ends the program. */
#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static inline FILE *golden_open(const char *name) {
  const char *dir = getenv("RD2H_FIXTURES");
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", dir ? dir : "tests/golden", name);
  FILE *f = fopen(path, "r");
  if (!f) {
    fprintf(stderr, "no fixture %s: set RD2H_FIXTURES to the folder tests/golden\n", path);
    exit(2);
  }
  return f;
}

static inline json_t *golden_json(const char *name) {
  json_error_t why;
  FILE *f = golden_open(name);
  json_t *j = json_loadf(f, 0, &why);
  fclose(f);
  if (!j) {
    fprintf(stderr, "%s:%d: %s\n", name, why.line, why.text);
    exit(2);
  }
  return j;
}

static inline uint64_t golden_u64(const json_t *array, size_t i) {
  return (uint64_t)json_integer_value(json_array_get(array, i));
}
#endif
