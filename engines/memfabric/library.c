/* SPDX-License-Identifier: Apache-2.0 */
/* Finding, loading and checking the library. Once loaded it stays: unloading it ends in a double free of its own. */
#include "engines/memfabric/memfabric.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#define LIBRARY "libmf_smem.so"
#define PACKAGE "memfabric_hybrid/lib"
#define FOLDER_ENV "MEMFABRIC_HYBRID_EXTEND_LIB_PATH"
#define LEVEL_WARN 2
#define LEVEL_ERROR 3
#define SAID 200u

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct mf_api loaded; /* path "" until one is */
static _Thread_local char said[SAID];
static _Thread_local bool listening;

/* ---- what went wrong ---- */
const char *rd2h_mf_code(int32_t code) {
  static const struct {
    int32_t code;
    const char *name;
  } names[] = {{0, "OK"}, {-1, "ERROR"}, {-2, "NO_OPERATOR"}, {-100, "UNSUPPORTED"}, {-101, "NOT_CONNECTED"},
               {-2000, "INVALID_PARAM"}, {-2001, "MALLOC_FAILED"}, {-2002, "NO_RESOURCES"}, {-2003, "NOT_STARTED"},
               {-2004, "TIMEOUT"}, {-2005, "REPEAT_INVOKE"}, {-2006, "DUPLICATED"}, {-2007, "NOT_EXIST"}, {-2008, "NOT_INIT"},
               {-2009, "RES_IN_USE"}, {-2012, "PARTIAL_FAILED"}, {-2014, "NOT_CONNECTED"}, {-2015, "BUFFER_TOO_SMALL"}};
  static _Thread_local char text[48];
  const char *name = code <= -3 && code >= -11 ? "of the memory layer" : "unknown";
  for (size_t i = 0; i < RD2H_COUNT(names); i++)
    if (names[i].code == code)
      name = names[i].name;
  snprintf(text, sizeof text, "%s (%d)", name, code);
  return text;
}

/* Lines of the library come from its own threads, too. An error is remembered for whoever made the call. */
static void on_line(int level, const char *line) {
  if (!line)
    return;
  if (level == LEVEL_ERROR && listening && !said[0])
    snprintf(said, sizeof said, "%s", line);
  if (level == LEVEL_ERROR)
    RD2H_INFO("memfabric: %.400s", line);
  else
    RD2H_DEBUG("memfabric: %.400s", line);
}

void rd2h_mf_listen(void) {
  listening = true;
  said[0] = 0;
}

const char *rd2h_mf_said(const struct mf_api *api) {
  const char *last = said[0] ? NULL : api->last_err_msg();
  listening = false;
  if (last)
    snprintf(said, sizeof said, "%s", last);
  for (char *c = said; *c; c++)
    if ((unsigned char)*c < ' ')
      *c = ' ';
  return said;
}

/* ---- its ABI ---- */
static const struct mf_abi abis[] = {{"1.3", 1880, true}, {"1.1 or 1.2", 20, false}, {"1.0", 24, false}};

/* What it exports tells the versions apart that cannot say it themselves. */
static int choose_abi(void *so, const char *path, const struct mf_abi **out, struct rd2h_error *err) {
  uint32_t (*version)(void);
  *(void **)&version = dlsym(so, "smem_get_abi_version");
  if (!version) {
    *out = dlsym(so, "smem_trans_batch_read_submit") ? &abis[1] : &abis[2];
    return RD2H_OK;
  }
  uint32_t v = version();
  if (v != 0x00010003)
    return rd2h_fail(err, RD2H_UNSUPPORTED, "engine memfabric: %.300s has ABI %u.%u, this rd2h speaks 1.0 to 1.3: install "
                     "memfabric-hybrid 1.3", path, v >> 16, v & 0xffff);
  *out = &abis[0];
  return RD2H_OK;
}

static int resolve(void *so, struct mf_api *a, struct rd2h_error *err) {
  const struct {
    const char *name;
    void *at;
  } wanted[] = {{"smem_init", &a->init}, {"smem_create_config_store", &a->create_config_store},
                {"smem_set_log_level", &a->set_log_level}, {"smem_set_extern_logger", &a->set_extern_logger},
                {"smem_set_conf_store_tls", &a->set_conf_store_tls}, {"smem_get_last_err_msg", &a->last_err_msg},
                {"smem_trans_config_init", &a->config_init}, {"smem_trans_init", &a->trans_init}, {"smem_trans_create", &a->create},
                {"smem_trans_destroy", &a->destroy}, {"smem_trans_register_mem", &a->register_mem},
                {"smem_trans_deregister_mem", &a->deregister_mem}, {"smem_trans_batch_read", &a->batch_read}};
  for (size_t i = 0; i < RD2H_COUNT(wanted); i++)
    if (!(*(void **)wanted[i].at = dlsym(so, wanted[i].name)))
      return rd2h_fail(err, RD2H_UNSUPPORTED, "engine memfabric: %.300s does not export %s: it is no MemFabric Hybrid of 1.0 to 1.3",
                       a->path, wanted[i].name);
  return choose_abi(so, a->path, &a->abi, err);
}

/* ---- loading ---- */
/* Its own libraries stand beside it, where the loader does not look. Those that it opens only where it needs them may be absent. */
static void load_neighbours(const char *path) {
  static const char *const names[] = {"libboundscheck.so", "libmf_hybm_core.so", "libhcom.so"};
  const char *slash = strrchr(path, '/');
  for (size_t i = 0; i < RD2H_COUNT(names) && slash; i++) {
    char beside[MF_PATH_MAX + 32];
    snprintf(beside, sizeof beside, "%.*s/%s", (int)(slash - path), path, names[i]);
    /* One that the process has, or that LD_LIBRARY_PATH names, comes first: there must not be two. */
    if (i == 1 || !dlopen(names[i], RTLD_NOW | RTLD_GLOBAL))
      dlopen(beside, RTLD_NOW | RTLD_GLOBAL);
  }
}

static int load(const char *path, struct mf_api *a, struct rd2h_error *err) {
  snprintf(a->path, sizeof a->path, "%s", path);
  load_neighbours(path);
  void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!so)
    return rd2h_fail(err, RD2H_NOT_FOUND, "engine memfabric: cannot load the library: %.300s", dlerror());
  int rc = resolve(so, a, err);
  if (rc)
    dlclose(so);
  else
    dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  return rc;
}

static int missing(const char *where, struct rd2h_error *err) {
  char why[RD2H_ERROR_TEXT];
  snprintf(why, sizeof why, "%s", err->text);
  return rd2h_fail(err, RD2H_NOT_FOUND, "%.290s; %s", why, where ? "correct the option lib=" : "pip install memfabric-hybrid, or set "
                   "the option lib= or " FOLDER_ENV " to the folder of " LIBRARY);
}

int rd2h_mf_library(const char *where, const struct mf_api **out, struct rd2h_error *err) {
  struct rd2h_error local = {0};
  char path[MF_PATH_MAX];
  int rc = RD2H_OK;
  err = err ? err : &local;
  pthread_mutex_lock(&lock);
  rd2h_locate(LIBRARY, PACKAGE, FOLDER_ENV, where, path);
  if (!loaded.path[0]) {
    struct mf_api a = {0};
    rc = load(path, &a, err);
    if (!rc) {
      loaded = a;
      a.set_extern_logger(on_line);
      a.set_log_level(LEVEL_WARN);
      RD2H_INFO("engine memfabric: library %s, ABI %s, configuration of %u bytes", a.path, a.abi->name, a.abi->config_bytes);
    } else if (rc == RD2H_NOT_FOUND) {
      rc = missing(where, err);
    }
  } else if (where && strcmp(path, loaded.path)) {
    rc = rd2h_fail(err, RD2H_STATE, "engine memfabric: this process has loaded %.150s, it cannot have %.150s, too", loaded.path, path);
  }
  pthread_mutex_unlock(&lock);
  *out = &loaded;
  return rc;
}
