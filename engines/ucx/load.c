/* SPDX-License-Identifier: Apache-2.0 */
/* The library UCX: found, checked, loaded once a process and never unloaded (it hooks memory functions and runs a thread). */
#include "engines/ucx/ucx.h"
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#define LIBRARY_ENV "RD2H_UCX_LIBRARY"
#define LIBRARY_DEFAULT "libucp.so.0"
#define SAID_MAX 200u

static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;
static bool loaded;
static struct ucx_api api;
static char version_text[400], loaded_path[300];
static _Thread_local char said[SAID_MAX + 8];

/* Errors are kept for the one who reports the failure; all lines are for those who look closer. */
static int on_log(const char *file, unsigned line, const char *function, int level, const void *component, const char *format,
                  va_list args) {
  char text[SAID_MAX];
  (void)file, (void)line, (void)function, (void)component;
  vsnprintf(text, sizeof text, format, args);
  if (level <= 1)
    snprintf(said, sizeof said, " (%s)", text);
  RD2H_DEBUG("engine ucx: UCX says: %s", text);
  return UCX_LOG_STOP;
}

const char *rd2h_ucx_said(void) {
  static _Thread_local char text[sizeof said];
  memcpy(text, said, sizeof said);
  said[0] = 0;
  return text;
}

const char *rd2h_ucx_version(void) {
  return version_text;
}

static const char *path_of(void *symbol, const char *otherwise) {
  Dl_info info;
  return dladdr(symbol, &info) && info.dli_fname ? info.dli_fname : otherwise;
}

static int check_version(void *lib, const char *path, struct rd2h_error *err) {
  void (*get_version)(unsigned *, unsigned *, unsigned *) = NULL;
  unsigned major = 0, minor = 0, release = 0;
  *(void **)&get_version = dlsym(lib, "ucp_get_version");
  if (!get_version)
    return rd2h_fail(err, RD2H_UNSUPPORTED, "engine ucx: %.200s is no UCX: it has no ucp_get_version", path);
  get_version(&major, &minor, &release);
  path = path_of(*(void **)&get_version, path);
  if (major != UCX_MAJOR || minor < UCX_MINOR)
    return rd2h_fail(err, RD2H_UNSUPPORTED, "engine ucx: UCX %u.%u.%u of %.150s cannot be used, %u.%u or a later %u.x is needed: "
                     "older ones do not notice on shared memory that a peer has died. The Python package libucx-cu12 has one: "
                     "name its libucp.so.0 in " LIBRARY_ENV " or in the engine option lib=", major, minor, release, path,
                     UCX_MAJOR, UCX_MINOR, UCX_MAJOR);
  snprintf(version_text, sizeof version_text, "%u.%u.%u of %s", major, minor, release, path);
  snprintf(loaded_path, sizeof loaded_path, "%s", path);
  return RD2H_OK;
}

static int resolve(void *lib, struct rd2h_error *err) {
  const struct {
    const char *name;
    void **to;
  } want[] = {
#define UCX_WANT(result, name, args) {"ucp_" #name, (void **)&api.name},
    UCX_FUNCTIONS(UCX_WANT)
#undef UCX_WANT
    {"ucs_status_string", (void **)&api.status_text},
  };
  for (size_t i = 0; i < RD2H_COUNT(want); i++)
    if (!(*want[i].to = dlsym(lib, want[i].name)))
      return rd2h_fail(err, RD2H_UNSUPPORTED, "engine ucx: UCX %s lacks the function %s: it was built without it, or is damaged",
                       version_text, want[i].name);
  void (*push_handler)(ucx_log_fn) = NULL;
  *(void **)&push_handler = dlsym(lib, "ucs_log_push_handler");
  if (push_handler) /* else it writes to standard output */
    push_handler(on_log);
  return RD2H_OK;
}

/* UCX may take over signals when it is loaded; they are the process's. */
static void *open_library(const char *path) {
  static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTERM, SIGINT, SIGUSR1, SIGUSR2};
  struct sigaction was[RD2H_COUNT(signals)];
  for (size_t i = 0; i < RD2H_COUNT(signals); i++)
    sigaction(signals[i], NULL, &was[i]);
  void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  for (size_t i = 0; i < RD2H_COUNT(signals); i++)
    sigaction(signals[i], &was[i], NULL);
  return lib;
}

static int load(const char *path, struct rd2h_error *err) {
  void *lib = open_library(path);
  if (!lib)
    return rd2h_fail(err, RD2H_UNSUPPORTED, "engine ucx: cannot load UCX: %.180s. Install UCX %u.%u or later (the Python package "
                     "libucx-cu12 has one) and name its libucp.so.0 in " LIBRARY_ENV " or in the engine option lib=", dlerror(),
                     UCX_MAJOR, UCX_MINOR);
  int rc = check_version(lib, path, err);
  if (!rc)
    rc = resolve(lib, err);
  if (rc)
    dlclose(lib);
  return rc;
}

int rd2h_ucx_load(const char *path, const struct ucx_api **out, struct rd2h_error *err) {
  const char *env = getenv(LIBRARY_ENV);
  const char *want = path ? path : env && *env ? env : LIBRARY_DEFAULT;
  int rc = RD2H_OK;
  pthread_mutex_lock(&load_lock);
  if (!loaded)
    rc = load(want, err);
  else if (path && strcmp(path, loaded_path))
    rc = rd2h_fail(err, RD2H_STATE, "engine ucx: this process has loaded UCX %.200s and cannot load %.150s as well", version_text,
                   path);
  loaded |= !rc;
  pthread_mutex_unlock(&load_lock);
  if (!rc)
    *out = &api;
  return rc;
}
