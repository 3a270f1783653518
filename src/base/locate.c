/* SPDX-License-Identifier: Apache-2.0 */
/* Finding a library that a Python package brings. */
#include "base/base.h"
#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define PACKAGES "lib/python3*/site-packages"
#define PATTERN_MAX (2 * RD2H_LOCATE_MAX)

struct wanted {
  const char *file, *package;
};

static bool file_in(const struct wanted *w, const char *folder, char out[RD2H_LOCATE_MAX]) {
  int n = snprintf(out, RD2H_LOCATE_MAX, "%s/%s", folder, w->file);
  return n > 0 && n < (int)RD2H_LOCATE_MAX && !access(out, R_OK);
}

static bool in_prefix(const struct wanted *w, const char *prefix, char out[RD2H_LOCATE_MAX]) {
  char pattern[PATTERN_MAX];
  glob_t found;
  bool there = false;
  snprintf(pattern, sizeof pattern, "%s/" PACKAGES "/%s", prefix, w->package);
  if (glob(pattern, 0, NULL, &found))
    return false;
  for (size_t i = 0; i < found.gl_pathc && !there; i++)
    there = file_in(w, found.gl_pathv[i], out);
  globfree(&found);
  return there;
}

/* PREFIX of a program PREFIX/bin/NAME: a Python's packages lie below it. As it was called, since in a virtual environment the file
 * is a link; and as it is. */
static bool beside_program(const struct wanted *w, const char *program, char out[RD2H_LOCATE_MAX]) {
  char prefix[RD2H_LOCATE_MAX + 4];
  const char *slash = strrchr(program, '/');
  if (!slash || slash - program >= (long)RD2H_LOCATE_MAX)
    return false;
  snprintf(prefix, sizeof prefix, "%.*s/..", (int)(slash - program), program);
  return in_prefix(w, prefix, out);
}

void rd2h_locate(const char *file, const char *package, const char *env, const char *where, char out[RD2H_LOCATE_MAX]) {
  const struct wanted w = {file, package};
  const char *folder = getenv(env), *venv = getenv("VIRTUAL_ENV");
  char self[RD2H_LOCATE_MAX];
  if (where) {
    if (!file_in(&w, where, out))
      snprintf(out, RD2H_LOCATE_MAX, "%s", where);
    return;
  }
  ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  self[n > 0 ? n : 0] = 0;
  if ((folder && file_in(&w, folder, out)) || (venv && in_prefix(&w, venv, out)) ||
      beside_program(&w, program_invocation_name, out) || beside_program(&w, self, out) || in_prefix(&w, "/usr/local", out) ||
      in_prefix(&w, "/usr", out))
    return;
  snprintf(out, RD2H_LOCATE_MAX, "%s", file);
}
