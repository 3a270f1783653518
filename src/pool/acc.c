/* SPDX-License-Identifier: Apache-2.0 */
/* MemFabric's offload API: loading it, joining the other ranks, taking memory. offload_init returns once all ranks have called it, so
 * it runs in a thread that this one waits for within bounds. What stays inside the library keeps only static memory. */
#include "pool/acc.h"
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#define LIBRARY "libmf_acc_offload.so"
#define PACKAGE "memfabric_hybrid/lib"
#define FOLDER_ENV "MEMFABRIC_HYBRID_EXTEND_LIB_PATH"
#define ABI 0x00010003u
#define SHARED 1
#define LEVEL_WARN 2
#define LEVEL_ERROR 3
#define SAID 200u
#define TRY_MS 100

struct config {
  uint32_t device;
  uint64_t reserve_bytes, alloc_bytes;
  uint32_t world, rank;
  int32_t scene;
  char store[64];
  uint32_t flags, local_world;
};
_Static_assert(offsetof(struct config, store) == 36 && offsetof(struct config, local_world) == 104, "as the library has it");

enum state { IDLE, JOINING, JOINED, USED, OVER, STUCK };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t joined = PTHREAD_COND_INITIALIZER;
static struct {
  enum state state;
  char path[RD2H_LOCATE_MAX], provider[POOL_PROVIDER_MAX];
  uint64_t bytes;
  struct config config;
  int32_t code;
  bool done;
  int32_t (*init)(const struct config *);
  void (*uninit)(uint32_t flags);
  void *(*alloc)(uint64_t, uint32_t flags);
  void (*release)(void *, uint32_t flags);
  const char *(*last_err_msg)(void);
  int32_t (*set_log_level)(int32_t);
  uint32_t (*abi_version)(void);
  int32_t (*set_extern_logger)(void (*)(int, const char *));
  int32_t (*set_conf_store_tls)(bool, const char *, uint32_t);
} lib;

/* ---- what the library says ---- */
static pthread_mutex_t said_lock = PTHREAD_MUTEX_INITIALIZER;
static char said[SAID];

/* The first error since said was emptied: those that follow are its consequences. */
static void on_line(int level, const char *line) {
  if (!line)
    return;
  if (level < LEVEL_ERROR) {
    RD2H_DEBUG("memfabric: %.400s", line);
    return;
  }
  RD2H_INFO("memfabric: %.400s", line);
  pthread_mutex_lock(&said_lock);
  if (!said[0])
    snprintf(said, sizeof said, "%s", line);
  pthread_mutex_unlock(&said_lock);
}

static void forget_said(void) {
  pthread_mutex_lock(&said_lock);
  said[0] = 0;
  pthread_mutex_unlock(&said_lock);
}

static void take_said(char out[SAID]) {
  pthread_mutex_lock(&said_lock);
  const char *last = said[0] ? said : lib.last_err_msg();
  snprintf(out, SAID, "%s", last && *last ? last : "no reason given");
  pthread_mutex_unlock(&said_lock);
  for (char *c = out; *c; c++)
    if ((unsigned char)*c < ' ')
      *c = ' ';
}

/* ---- loading ---- */
static int resolve(void *so, const char *path, struct rd2h_error *err) {
  const struct {
    const char *name;
    void *at;
  } wanted[] = {{"offload_init", &lib.init}, {"offload_uninit", &lib.uninit}, {"offload_malloc", &lib.alloc},
                {"offload_free", &lib.release}, {"smem_get_last_err_msg", &lib.last_err_msg},
                {"smem_set_log_level", &lib.set_log_level}, {"smem_get_abi_version", &lib.abi_version},
                {"smem_set_extern_logger", &lib.set_extern_logger},
                {"smem_set_conf_store_tls", &lib.set_conf_store_tls}};
  for (size_t i = 0; i < RD2H_COUNT(wanted); i++)
    if (!(*(void **)wanted[i].at = dlsym(so, wanted[i].name)))
      return rd2h_fail(err, RD2H_UNSUPPORTED, "pool on memfabric: %.300s does not export %s: install memfabric-hybrid 1.3",
                       path, wanted[i].name);
  uint32_t v = lib.abi_version();
  if (v != ABI) /* the configuration of others is not known to be the same */
    return rd2h_fail(err, RD2H_UNSUPPORTED, "pool on memfabric: %.300s has ABI %u.%u, this rd2h speaks 1.3: install memfabric-hybrid 1.3",
                     path, v >> 16, v & 0xffff);
  return RD2H_OK;
}

/* Once loaded it stays. A libmf_smem.so that the process had before keeps the settings that its user gave it. */
static int load(const char *where, struct rd2h_error *err) {
  char path[RD2H_LOCATE_MAX];
  rd2h_locate(LIBRARY, PACKAGE, FOLDER_ENV, where[0] ? where : NULL, path);
  if (lib.path[0])
    return !where[0] || !strcmp(path, lib.path) ? RD2H_OK
           : rd2h_fail(err, RD2H_STATE, "pool on memfabric: this process has loaded %.150s, it cannot have %.150s, too", lib.path, path);
  bool others = dlopen("libmf_smem.so", RTLD_NOW | RTLD_NOLOAD);
  void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!so)
    return rd2h_fail(err, RD2H_NOT_FOUND, "pool on memfabric: cannot load the library: %.250s; %s", dlerror(), where[0] ?
                     "correct the option lib=" : "pip install memfabric-hybrid, or set lib= or " FOLDER_ENV " to its folder");
  int rc = resolve(so, path, err);
  if (rc) {
    dlclose(so);
    return rc;
  }
  snprintf(lib.path, sizeof lib.path, "%s", path);
  if (!others) {
    lib.set_extern_logger(on_line);
    lib.set_log_level(LEVEL_WARN);
    lib.set_conf_store_tls(false, "", 0);
  }
  return RD2H_OK;
}

/* ---- joining ---- */
/* The library waits a minute for a store that is not there; rank 0 may only be about to start it. */
static int await_store(const struct pool_acc_options *o, uint64_t give_up, struct rd2h_error *err) {
  int error = 0;
  do {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    socklen_t n = sizeof error;
    if (fd < 0)
      return rd2h_fail(err, RD2H_IO, "pool on memfabric: no socket to look for its store: %s", strerror(errno));
    error = connect(fd, (const struct sockaddr *)&o->address, sizeof o->address) ? errno : 0;
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    if (error == EINPROGRESS && poll(&p, 1, TRY_MS) == 1)
      getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &n);
    close(fd);
    if (!error)
      return RD2H_OK;
    poll(NULL, 0, TRY_MS);
  } while (rd2h_now_ns() < give_up);
  return rd2h_fail(err, RD2H_PEER_LOST, "pool on memfabric: rank %u finds no store at %s within init_s=%u: %s; rank 0 starts it when it "
                   "joins", o->rank, o->store, o->init_s, error == EINPROGRESS ? "no answer" : strerror(error));
}

static void *call_init(void *unused) {
  (void)unused;
  int32_t code = lib.init(&lib.config);
  pthread_mutex_lock(&lock);
  lib.code = code;
  lib.done = true;
  pthread_cond_signal(&joined);
  pthread_mutex_unlock(&lock);
  return NULL;
}

/* With the lock held, which waiting lets go. */
static int init_within(const struct pool_acc_options *o, uint64_t give_up, struct rd2h_error *err) {
  struct timespec until = {(time_t)(give_up / 1000000000u), (long)(give_up % 1000000000u)};
  char why[SAID];
  pthread_t thread;
  int error = pthread_create(&thread, NULL, call_init, NULL);
  if (error)
    return rd2h_fail(err, RD2H_NOMEM, "pool on memfabric: no thread to join in: %s", strerror(error));
  pthread_detach(thread);
  while (!lib.done && error != ETIMEDOUT)
    error = pthread_cond_clockwait(&joined, &lock, CLOCK_MONOTONIC, &until);
  if (!lib.done) {
    lib.state = STUCK;
    return rd2h_fail(err, RD2H_TIMEOUT, "pool on memfabric: rank %u of %u at %s: offload_init has not returned within init_s=%u: not all "
                     "ranks joined; start this process anew", o->rank, o->world, o->store, o->init_s);
  }
  take_said(why);
  return lib.code ? rd2h_fail(err, RD2H_IO, "pool on memfabric: offload_init returned %d on device %u, rank %u of %u at %s, %llu MiB: %s",
                              lib.code, o->device, o->rank, o->world, o->store, (unsigned long long)lib.config.reserve_bytes >> 20, why)
                  : RD2H_OK;
}

static int refuse(struct rd2h_error *err) {
  static const char *const why[] = {[JOINING] = "is joining now", [JOINED] = "has joined already", [USED] = "has its pool",
                                    [OVER] = "had its pool; MemFabric gives one a process life",
                                    [STUCK] = "is still inside an offload_init that timed out; start it anew"};
  return rd2h_fail(err, RD2H_STATE, "pool on memfabric: this process %s", why[lib.state]);
}

int pool_acc_join(const struct pool_acc_options *o, const char *provider, uint64_t bytes, struct rd2h_error *err) {
  uint64_t give_up = rd2h_now_ns() + o->init_s * 1000 * RD2H_MS;
  pthread_mutex_lock(&lock);
  int rc = lib.state == IDLE ? load(o->lib, err) : refuse(err);
  if (rc) {
    pthread_mutex_unlock(&lock);
    return rc;
  }
  lib.state = JOINING;
  pthread_mutex_unlock(&lock);
  rc = o->rank ? await_store(o, give_up, err) : RD2H_OK;
  pthread_mutex_lock(&lock);
  if (!rc) {
    lib.config = (struct config){.device = o->device, .reserve_bytes = bytes, .alloc_bytes = o->rank ? 0 : bytes, .world = o->world,
                                 .rank = o->rank, .scene = SHARED};
    memcpy(lib.config.store, o->store, sizeof lib.config.store);
    lib.done = false;
    forget_said();
    rc = init_within(o, give_up, err);
  }
  if (!rc) {
    snprintf(lib.provider, sizeof lib.provider, "%s", provider);
    lib.bytes = bytes;
  }
  if (lib.state == JOINING)
    lib.state = rc ? IDLE : JOINED;
  pthread_mutex_unlock(&lock);
  return rc;
}

/* ---- memory ---- */
static int may_take(const char *provider, uint64_t bytes, bool creator, struct rd2h_error *err) {
  if (lib.state == IDLE || lib.state == JOINING)
    return rd2h_fail(err, RD2H_STATE, "pool on memfabric: rd2h_pool_join comes first, on every rank");
  if (lib.state != JOINED)
    return refuse(err);
  if (strcmp(provider, lib.provider) || bytes != lib.bytes)
    return rd2h_fail(err, RD2H_STATE, "pool on memfabric: joined with %llu MiB as \"%.100s\", this is %llu MiB as \"%.100s\"",
                     (unsigned long long)lib.bytes >> 20, lib.provider, (unsigned long long)bytes >> 20, provider);
  if (creator != !lib.config.rank)
    return rd2h_fail(err, RD2H_STATE, "pool on memfabric: rank 0 creates and the others attach, this is rank %u", lib.config.rank);
  return RD2H_OK;
}

int pool_acc_take(const char *provider, uint64_t bytes, bool creator, uint8_t **base, struct rd2h_error *err) {
  char why[SAID];
  pthread_mutex_lock(&lock);
  int rc = may_take(provider, bytes, creator, err);
  if (!rc && creator) {
    forget_said();
    void *p = lib.alloc(bytes, 0);
    if (!p) {
      take_said(why);
      rc = rd2h_fail(err, RD2H_NOMEM, "pool on memfabric: offload_malloc of %llu MiB returned NULL: %s", (unsigned long long)bytes >> 20,
                     why);
    } else {
      *base = p;
    }
  }
  if (!rc)
    lib.state = USED;
  pthread_mutex_unlock(&lock);
  return rc;
}

void pool_acc_give_back(uint8_t *base) {
  pthread_mutex_lock(&lock);
  if (base)
    lib.release(base, 0);
  lib.state = JOINED;
  pthread_mutex_unlock(&lock);
}

/* Not joined again: the address range of an earlier life is not always free. */
void pool_acc_leave(uint8_t *base) {
  pthread_mutex_lock(&lock);
  if (base)
    lib.release(base, 0);
  lib.uninit(0);
  lib.state = OVER;
  pthread_mutex_unlock(&lock);
}
