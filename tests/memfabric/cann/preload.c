/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded: MemFabric reads the version of Ascend's driver from a file that only root could put there; it gets $STANDIN_DRIVER. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

char *realpath(const char *path, char *out) {
  static char *(*real)(const char *, char *);
  const char *instead = getenv("STANDIN_DRIVER");
  if (!real)
    *(void **)&real = dlvsym(RTLD_NEXT, "realpath", "GLIBC_2.3");
  return real(instead && !strcmp(path, "/usr/local/Ascend/driver/version.info") ? instead : path, out);
}

char *__realpath_chk(const char *path, char *out, size_t n) {
  (void)n;
  return realpath(path, out);
}
