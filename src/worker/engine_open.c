/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/engine_open.h"

#define OPTIONS_MAX 16u

/* Cuts the copy of a spec at its commas. Returns the number of options, or OPTIONS_MAX + 1 when there are too many. */
static uint32_t split(char *spec, const char *option[OPTIONS_MAX + 1]) {
  uint32_t n = 0;
  for (char *comma = strchr(spec, ','); comma && n <= OPTIONS_MAX; comma = strchr(comma + 1, ',')) {
    *comma = 0;
    if (n < OPTIONS_MAX)
      option[n] = comma + 1;
    n++;
  }
  option[n < OPTIONS_MAX ? n : OPTIONS_MAX] = NULL;
  return n;
}

static int open_spec(const char *spec, const struct rd2h_engine_opts *opts, rd2h_eng **out, struct rd2h_error *err) {
  const char *option[OPTIONS_MAX + 1];
  struct rd2h_engine_opts with = *opts;
  char *copy = rd2h_strdup(spec);
  if (!copy)
    return rd2h_nomem(err, "engine options");
  uint32_t n = split(copy, option);
  with.options = n ? option : NULL;
  int rc = n > OPTIONS_MAX ? rd2h_fail(err, RD2H_INVALID, "engine \"%.100s\": more than %u options", spec, OPTIONS_MAX)
                           : rd2h_eng_open(copy, &with, out, err);
  rd2h_free(copy);
  return rc;
}

int rd2h_worker_engine(const char *spec, const struct rd2h_engine_opts *opts, const struct rd2h_memory *memory, uint32_t n_memory,
                       rd2h_eng **out, struct rd2h_error *err) {
  rd2h_eng *eng;
  int rc = open_spec(spec, opts, &eng, err);
  if (rc)
    return rc;
  bool needed = opts->prefill || !(rd2h_eng_caps(eng)->flags & RD2H_ENG_LOCAL_UNREGISTERED);
  for (uint32_t i = 0; i < n_memory && needed && !rc; i++) {
    struct rd2h_region r = {.base = (void *)(uintptr_t)memory[i].base, .len = memory[i].len};
    uint32_t region;
    rc = rd2h_eng_reg(eng, &r, &region, err);
  }
  if (rc)
    rd2h_eng_close(eng);
  else
    *out = eng;
  return rc;
}
