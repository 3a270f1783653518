/* SPDX-License-Identifier: Apache-2.0 */
/* Engine ucx: reads by UCX, over RDMA, shared memory or TCP, whichever it finds best between the two. The table of the engine. */
#include "engines/ucx/ucx.h"
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#define LIST_MAX 256u

struct options {
  const char *lib, *tls, *devices;
  bool require_rdma, emulation;
};

static int parse_option(const char *text, struct options *o, struct rd2h_error *err) {
  const struct {
    const char *name;
    const char **value;
  } known[] = {{"lib=", &o->lib}, {"tls=", &o->tls}, {"devices=", &o->devices}};
  for (size_t i = 0; i < RD2H_COUNT(known); i++) {
    size_t n = strlen(known[i].name);
    if (!strncmp(text, known[i].name, n) && text[n]) {
      *known[i].value = text + n;
      return strlen(text) < LIST_MAX || !i ? RD2H_OK : rd2h_fail(err, RD2H_INVALID, "engine ucx: option \"%.40s...\" is too long",
                                                                 text);
    }
  }
  const struct {
    const char *name;
    bool *value;
  } flags[] = {{"require_rdma=", &o->require_rdma}, {"emulation=", &o->emulation}};
  for (size_t i = 0; i < RD2H_COUNT(flags); i++) {
    size_t n = strlen(flags[i].name);
    if (!strncmp(text, flags[i].name, n) && (text[n] == '0' || text[n] == '1') && !text[n + 1]) {
      *flags[i].value = text[n] == '1';
      return RD2H_OK;
    }
  }
  return rd2h_fail(err, RD2H_INVALID, "engine ucx: unknown option \"%.100s\": it has require_rdma=0 or 1, emulation=0 or 1, "
                   "tls=TRANSPORTS, devices=NAMES and lib=PATH", text);
}

/* Looked for before anything is loaded: most hosts have none. */
static int look_for_rdma(struct rd2h_error *err) {
  DIR *d = opendir("/sys/class/infiniband");
  struct dirent *found = NULL;
  while (d && (found = readdir(d)) && found->d_name[0] == '.')
    ;
  if (d)
    closedir(d);
  return found ? RD2H_OK
               : rd2h_fail(err, RD2H_UNSUPPORTED, "engine ucx: require_rdma is set, and this host has no RDMA device (nothing in "
                           "/sys/class/infiniband): load the device's driver, or choose another transfer engine");
}

/* Commas part the options of an engine's spec, so that '+' may part the names of a list. */
static const char *list(const char *text, char out[LIST_MAX]) {
  snprintf(out, LIST_MAX, "%s", text);
  for (char *p = out; (p = strchr(p, '+'));)
    *p = ',';
  return out;
}

/* RNDV_THRESH: with it finite, UCX keeps cma away from connections that are to notice a peer's death. The two ERROR_HANDLING let such
 * connections use shared memory at all. */
static int configure(const struct ucx_api *u, const struct options *o, void *config, struct rd2h_error *err) {
  char tls[LIST_MAX], devices[LIST_MAX];
  const struct {
    const char *name, *value;
  } set[] = {{"RNDV_THRESH", "inf"}, {"POSIX_ERROR_HANDLING", "y"}, {"SYSV_ERROR_HANDLING", "y"},
             {"PROTO_EMULATION_ENABLE", o->emulation ? NULL : "n"},
             {"TLS", o->tls ? list(o->tls, tls) : o->require_rdma ? "ib" : NULL},
             {"NET_DEVICES", o->devices ? list(o->devices, devices) : NULL}};
  for (size_t i = 0; i < RD2H_COUNT(set); i++) {
    ucx_status st = set[i].value ? u->config_modify(config, set[i].name, set[i].value) : UCX_OK;
    if (st != UCX_OK)
      return rd2h_fail(err, RD2H_INVALID, "engine ucx: UCX %s does not take %s=%.100s: %s%s", rd2h_ucx_version(), set[i].name,
                       set[i].value, u->status_text(st), rd2h_ucx_said());
  }
  return RD2H_OK;
}

/* A Prefill without emulation does not ask for RMA: that is what a process needs to read, or to answer reads that UCX emulates, whose
 * ranges nobody checks. What a device or the kernel reads needs none of it. AM: an endpoint must be good for something. */
static uint64_t features(const rd2h_engine *e) {
  return (uint64_t)(e->prefill && !e->emulation ? UCX_FEATURE_AM : UCX_FEATURE_RMA) | UCX_FEATURE_WAKEUP;
}

static int open_context(rd2h_engine *e, const struct options *o, struct rd2h_error *err) {
  const struct ucx_params params = {.mask = UCX_PARAM_FEATURES, .features = features(e)};
  void *config;
  rd2h_ucx_said();
  ucx_status st = e->ucx->config_read(NULL, NULL, &config);
  if (st != UCX_OK)
    return rd2h_fail(err, RD2H_INVALID, "engine ucx: UCX cannot read its configuration: %s%s; look at the UCX_ variables of the "
                     "environment", e->ucx->status_text(st), rd2h_ucx_said());
  int rc = configure(e->ucx, o, config, err);
  if (!rc) {
    st = e->ucx->init_version(UCX_MAJOR, UCX_MINOR, &params, config, &e->context);
    e->context = st == UCX_OK ? e->context : NULL;
  }
  e->ucx->config_release(config);
  if (rc || st == UCX_OK)
    return rc;
  return rd2h_fail(err, st == UCX_NO_MEMORY ? RD2H_NOMEM : RD2H_UNSUPPORTED, "engine ucx: UCX %s finds nothing to transfer "
                   "by%s%s%s: %s%s; rd2h doctor and ucx_info -d show what it has", rd2h_ucx_version(), o->tls ? " with tls=" : "",
                   o->tls ? o->tls : "", o->require_rdma ? " with require_rdma" : "", e->ucx->status_text(st), rd2h_ucx_said());
}

static int open_worker(rd2h_engine *e, struct rd2h_error *err) {
  const struct ucx_worker_params params = {.mask = UCX_WORKER_PARAM_THREAD_MODE, .thread_mode = UCX_THREAD_SERIALIZED};
  ucx_status st = e->ucx->worker_create(e->context, &params, &e->worker);
  e->worker = st == UCX_OK ? e->worker : NULL;
  if (st == UCX_OK)
    st = e->ucx->worker_get_efd(e->worker, &e->worker_fd);
  return st == UCX_OK ? RD2H_OK
                      : rd2h_fail(err, RD2H_UNSUPPORTED, "engine ucx: UCX %s cannot start: %s%s", rd2h_ucx_version(),
                                  e->ucx->status_text(st), rd2h_ucx_said());
}

static int open_descriptors(rd2h_engine *e, struct rd2h_error *err) {
  struct epoll_event ev = {.events = EPOLLIN};
  e->epoll = epoll_create1(EPOLL_CLOEXEC);
  e->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (e->epoll < 0 || e->wake < 0 || !rd2h_ready_open(&e->ready) || epoll_ctl(e->epoll, EPOLL_CTL_ADD, e->wake, &ev) ||
      epoll_ctl(e->epoll, EPOLL_CTL_ADD, e->worker_fd, &ev))
    return rd2h_fail(err, RD2H_LIMIT, "engine ucx: cannot open its event descriptors (ulimit -n)");
  return RD2H_OK;
}

static int open_tables(rd2h_engine *e, struct rd2h_error *err) {
  e->region = rd2h_calloc(UCX_REGIONS_MAX, sizeof *e->region);
  if (!e->prefill) {
    e->slot = rd2h_calloc(UCX_SLOTS, sizeof *e->slot);
    e->errors = rd2h_calloc(UCX_SLOTS, sizeof *e->errors);
    e->get = rd2h_calloc(UCX_GETS, sizeof *e->get);
  }
  if (!e->region || (!e->prefill && (!e->slot || !e->errors || !e->get)))
    return rd2h_nomem(err, "engine ucx");
  for (uint32_t i = UCX_SLOTS; !e->prefill && i--;) {
    e->slot[i].err = &e->errors[i];
    e->slot[i].next = e->free_slots;
    e->free_slots = &e->slot[i];
  }
  for (uint32_t i = UCX_GETS; !e->prefill && i--;) {
    e->get[i].next = e->free_gets;
    e->free_gets = &e->get[i];
    e->n_free++;
  }
  return RD2H_OK;
}

static int take_back(rd2h_engine *e, void *region, struct rd2h_error *err) {
  struct ucx_region *r = region;
  (void)err;
  if (r->packed)
    e->ucx->rkey_buffer_release(r->packed);
  if (r->memh)
    e->ucx->mem_unmap(e->context, r->memh);
  *r = (struct ucx_region){0};
  return RD2H_OK;
}

/* A hole in what is registered would end Prefill's process once it is read. With MS_ASYNC msync does nothing but look. */
static bool has_hole(const struct rd2h_region *what) {
  const uintptr_t base = (uintptr_t)what->base, into = base % (uintptr_t)sysconf(_SC_PAGESIZE);
  return msync((uint8_t *)what->base - into, what->len + into, MS_ASYNC) && errno == ENOMEM;
}

static int map(rd2h_engine *e, const struct rd2h_region *what, struct ucx_region *r, struct rd2h_error *err) {
  const struct ucx_mem_map_params params = {.mask = UCX_MEM_MAP_ADDRESS | UCX_MEM_MAP_LENGTH, .address = what->base,
                                            .length = what->len};
  if (has_hole(what))
    return rd2h_fail(err, RD2H_INVALID, "engine ucx: of the %llu bytes at %p not all are mapped: what is registered must be, and must "
                     "stay so", (unsigned long long)what->len, what->base);
  rd2h_ucx_said();
  ucx_status st = e->ucx->mem_map(e->context, &params, &r->memh);
  if (st != UCX_OK)
    r->memh = NULL;
  else if (e->prefill)
    st = e->ucx->rkey_pack(e->context, r->memh, &r->packed, &r->packed_len);
  if (st == UCX_OK && r->packed_len > UCX_KEY_MAX)
    st = UCX_NO_MEMORY;
  if (st != UCX_OK) {
    take_back(e, r, NULL);
    return rd2h_fail(err, st == UCX_NO_MEMORY ? RD2H_NOMEM : RD2H_IO, "engine ucx: cannot register %llu bytes at %p: %s%s; look "
                     "at the limit of locked memory (ulimit -l)", (unsigned long long)what->len, what->base,
                     e->ucx->status_text(st), rd2h_ucx_said());
  }
  r->base = (uintptr_t)what->base;
  r->len = what->len;
  return RD2H_OK;
}

static int open_pattern(rd2h_engine *e, struct rd2h_error *err) {
  if (!e->prefill)
    return RD2H_OK;
  uint8_t *p;
  int rc = rd2h_ucx_pattern_new(e, &p, err);
  if (rc)
    return rc;
  rc = map(e, &(struct rd2h_region){.base = p, .len = RD2H_PATTERN}, &e->pattern, err);
  if (rc)
    rd2h_free(p);
  return rc;
}

static void close_pattern(rd2h_engine *e) {
  void *p = (void *)(uintptr_t)e->pattern.base;
  take_back(e, &e->pattern, NULL);
  rd2h_free(p);
}

/* All peers are disconnected: no read can land any more. */
static void ucx_close(rd2h_engine *e) {
  rd2h_ucx_loop_stop(e);
  bool stuck = e->peers; /* endpoints that UCX did not end may still write to the peer's own memory: all of it is left standing */
  for (uint32_t i = 0; e->region && i < e->n_regions && !stuck; i++)
    take_back(e, &e->region[i], NULL);
  if (e->pattern.len)
    close_pattern(e);
  if (e->worker && !stuck)
    e->ucx->worker_destroy(e->worker);
  if (e->context && !stuck)
    e->ucx->cleanup(e->context);
  const int fds[] = {e->epoll, e->wake};
  for (size_t i = 0; i < RD2H_COUNT(fds); i++)
    if (fds[i] >= 0)
      close(fds[i]);
  rd2h_ready_close(&e->ready);
  pthread_cond_destroy(&e->ordered);
  pthread_mutex_destroy(&e->lock);
  rd2h_free(e->region);
  if (stuck) {
    RD2H_WARN("engine ucx: UCX %s did not end the connection to %s: its memory is left as it is", rd2h_ucx_version(), e->peers->name);
    return;
  }
  rd2h_free(e->get);
  rd2h_free(e->errors);
  rd2h_free(e->slot);
  rd2h_free(e);
}

static int ucx_open(const struct rd2h_host *host, const struct rd2h_engine_opts *o, rd2h_engine **out,
                    struct rd2h_engine_caps *caps,
                    struct rd2h_error *err) {
  struct options own = {.emulation = true};
  int rc = RD2H_OK;
  sigset_t all, old;
  (void)host;
  for (const char *const *p = o->options; p && *p && !rc; p++)
    rc = parse_option(*p, &own, err);
  if (!rc && own.require_rdma)
    rc = look_for_rdma(err);
  if (rc)
    return rc;
  rd2h_engine *e = rd2h_zalloc(sizeof *e);
  if (!e)
    return rd2h_nomem(err, "engine ucx");
  *e = (rd2h_engine){.prefill = o->prefill, .require_rdma = own.require_rdma, .emulation = own.emulation, .epoll = -1,
                     .wake = -1, .ready = {.fd = -1}, .worker_fd = -1,
                     .timeout = o->read_timeout_ns ? o->read_timeout_ns : UCX_TIMEOUT_NS, .deaf_ns = UCX_DEAF_NS};
  pthread_mutex_init(&e->lock, NULL);
  pthread_cond_init(&e->ordered, NULL);
  rd2h_ucx_self(&e->self);
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old); /* of our thread and UCX's: signals are the application's */
  rc = rd2h_ucx_load(own.lib, &e->ucx, err);
  rc = rc ? rc : open_tables(e, err);
  rc = rc ? rc : open_context(e, &own, err);
  rc = rc ? rc : open_worker(e, err);
  rc = rc ? rc : open_pattern(e, err);
  rc = rc ? rc : open_descriptors(e, err);
  rc = rc ? rc : rd2h_ucx_loop_start(e, err);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  if (rc) {
    ucx_close(e);
    return rc;
  }
  RD2H_INFO("engine ucx: UCX %s", rd2h_ucx_version());
  *caps = (struct rd2h_engine_caps){.flags = RD2H_ENG_CANCEL | RD2H_ENG_PEER_DOWN | RD2H_ENG_LOCAL_UNREGISTERED};
  *out = e;
  return RD2H_OK;
}

/* ---- memory ---- */
struct registration {
  const struct rd2h_region *what;
  uint32_t *region;
};

static int register_region(rd2h_engine *e, void *arg, struct rd2h_error *err) {
  const struct registration *g = arg;
  if (e->n_regions == UCX_REGIONS_MAX)
    return rd2h_fail(err, RD2H_LIMIT, "engine ucx: more than %u regions cannot be registered: register larger ones",
                     UCX_REGIONS_MAX);
  int rc = map(e, g->what, &e->region[e->n_regions], err);
  if (rc)
    return rc;
  *g->region = e->n_regions++;
  return RD2H_OK;
}

static int ucx_reg(rd2h_engine *e, const struct rd2h_region *what, uint32_t *region, struct rd2h_error *err) {
  if (what->device)
    return rd2h_fail(err, RD2H_UNSUPPORTED, "engine ucx: it registers host memory only, not that of device %u", what->device);
  return rd2h_ucx_order(e, register_region, &(struct registration){what, region}, err);
}

static void ucx_dereg(rd2h_engine *e, uint32_t region) {
  if (region < e->n_regions && e->region[region].len)
    rd2h_ucx_order(e, take_back, &e->region[region], NULL);
}

struct publication {
  uint8_t *buf;
  uint32_t cap, *len;
};

static struct ucx_key key_of(const struct ucx_region *r) {
  return (struct ucx_key){.base = r->base, .len = r->len, .key = r->packed, .key_len = (uint32_t)r->packed_len};
}

static int publish_all(rd2h_engine *e, void *arg, struct rd2h_error *err) {
  const struct publication *out = arg;
  size_t address_len;
  void *address;
  int rc = RD2H_OK;
  (void)err;
  struct ucx_conn c = {.process = e->self, .n = e->n_regions, .seed = e->seed, .pattern = key_of(&e->pattern), .guarded = !e->emulation,
                       .key = rd2h_calloc(e->n_regions + 1, sizeof *c.key)};
  if (!c.key)
    return RD2H_NOMEM;
  if (e->ucx->worker_get_address(e->worker, &address, &address_len) != UCX_OK) {
    rd2h_free(c.key);
    return RD2H_IO;
  }
  for (uint32_t i = 0; i < c.n; i++)
    c.key[i] = key_of(&e->region[i]);
  c.address = address;
  c.address_len = (uint32_t)address_len;
  *out->len = rd2h_ucx_conn_size(&c);
  if (address_len > UCX_ADDRESS_MAX || *out->len > UCX_CONN_MAX)
    rc = RD2H_LIMIT;
  else if (out->cap < *out->len)
    rc = RD2H_RANGE;
  else
    rd2h_ucx_conn_encode(&c, out->buf);
  e->ucx->worker_release_address(e->worker, address);
  rd2h_free(c.key);
  return rc;
}

static int ucx_publish(rd2h_engine *e, uint8_t *buf, uint32_t cap, uint32_t *len) {
  *len = 0; /* nobody reads from Decode */
  return e->prefill ? rd2h_ucx_order(e, publish_all, &(struct publication){buf, cap, len}, NULL) : RD2H_OK;
}

/* ---- Decode ---- */
static int ucx_connect(rd2h_engine *e, struct rd2h_blob session, struct rd2h_blob conn, uint64_t cookie, rd2h_peer **out,
                       struct rd2h_error *err) {
  struct ucx_connect c = {.session = session, .cookie = cookie};
  if (!conn.len)
    return rd2h_fail(err, RD2H_UNSUPPORTED, "engine ucx: the peer \"%.*s\" published no connection data for this engine: it is "
                     "no rd2h, or was started with another transfer engine", session.len < 128 ? (int)session.len : 128,
                     (const char *)session.p);
  int rc = rd2h_ucx_conn_decode(conn, &c.at, err);
  if (rc)
    return rc;
  if (c.at.guarded && e->emulation) /* UCX would choose it for small reads, and they would never end */
    rc = rd2h_fail(err, RD2H_UNSUPPORTED, "engine ucx: Prefill %.*s answers no emulated reads: set emulation=0 here, too",
                   session.len < 128 ? (int)session.len : 128, (const char *)session.p);
  else
    rc = rd2h_ucx_order(e, rd2h_ucx_peer_connect, &c, err);
  rd2h_free(c.at.key);
  if (!rc)
    *out = c.peer;
  return rc;
}

/* Other peers are served while it waits; how long UCX takes to end what is under way is UCX's affair. */
static void ucx_disconnect(rd2h_engine *e, rd2h_peer *p) {
  struct ucx_leave l = {.peer = p};
  rd2h_ucx_order(e, rd2h_ucx_peer_leave, &l, NULL);
  pthread_mutex_lock(&e->lock);
  while (!l.fenced)
    pthread_cond_wait(&e->ordered, &e->lock);
  pthread_mutex_unlock(&e->lock);
}

static int ucx_submit(rd2h_engine *e, rd2h_peer *p, const struct rd2h_batch *b) {
  int rc = RD2H_AGAIN;
  pthread_mutex_lock(&e->lock);
  struct ucx_slot *s = p->taken < UCX_SLOTS_PEER ? e->free_slots : NULL;
  if (p->told) {
    rc = RD2H_PEER_LOST;
  } else if (s) {
    e->free_slots = s->next;
    *s = (struct ucx_slot){.b = b, .peer = p, .id = b->id, .live = true, .failed_at = UINT32_MAX, .err = s->err,
                           .submitted = rd2h_now_ns()};
    s->err->text[0] = 0;
    p->taken++;
    ucx_list_push(&e->submitted, s);
    rd2h_ucx_wake(e);
    rc = RD2H_OK;
  }
  pthread_mutex_unlock(&e->lock);
  return rc;
}

static void ucx_cancel(rd2h_engine *e, uint64_t id) {
  pthread_mutex_lock(&e->lock);
  for (uint32_t i = 0; !e->prefill && i < UCX_SLOTS; i++)
    if (e->slot[i].live && e->slot[i].id == id) {
      atomic_store(&e->slot[i].cancel, true);
      rd2h_ucx_wake(e);
    }
  pthread_mutex_unlock(&e->lock);
}

static int ucx_poll(rd2h_engine *e, struct rd2h_completion *out, int n) {
  struct ucx_slot *s;
  int got = 0;
  pthread_mutex_lock(&e->lock);
  while ((s = ucx_list_pop(&e->reported))) { /* their texts have had their time */
    s->next = e->free_slots;
    e->free_slots = s;
  }
  for (; got < n && (s = ucx_list_pop(&e->done)); got++) {
    out[got] = (struct rd2h_completion){.id = s->id, .status = s->status, .failed_at = s->failed_at, .bytes = s->bytes};
    s->peer->taken--;
    ucx_list_push(&e->reported, s);
  }
  rd2h_ucx_signal(e);
  pthread_mutex_unlock(&e->lock);
  return got;
}

static int ucx_events(rd2h_engine *e, struct rd2h_peer_event *out, int n) {
  int got = 0;
  pthread_mutex_lock(&e->lock);
  for (rd2h_peer *p; got < n && (p = ucx_downs_pop(&e->down)); got++)
    out[got] = (struct rd2h_peer_event){.cookie = p->cookie, .up = false, .status = RD2H_PEER_LOST};
  rd2h_ucx_signal(e);
  pthread_mutex_unlock(&e->lock);
  return got;
}

static int ucx_fd(rd2h_engine *e) {
  return e->ready.fd;
}

static void ucx_stats(rd2h_engine *e, struct rd2h_engine_stats *s) {
  pthread_mutex_lock(&e->lock);
  *s = e->stats;
  pthread_mutex_unlock(&e->lock);
}

static const char *ucx_last_error(rd2h_engine *e, uint64_t id) {
  const char *text = NULL;
  pthread_mutex_lock(&e->lock);
  for (const struct ucx_slot *s = e->reported.head; s && !text; s = s->next)
    if (s->id == id && s->err->text[0])
      text = s->err->text;
  pthread_mutex_unlock(&e->lock);
  return text;
}

static const char *ucx_way(rd2h_engine *e, rd2h_peer *p) {
  (void)e;
  return p->way;
}

const struct rd2h_engine_ops rd2h_engine_ucx = {
  .abi = RD2H_ENGINE_ABI, .size = sizeof rd2h_engine_ucx, .name = "ucx", .open = ucx_open, .close = ucx_close, .reg = ucx_reg,
  .dereg = ucx_dereg, .publish = ucx_publish, .connect = ucx_connect, .disconnect = ucx_disconnect, .submit = ucx_submit,
  .cancel = ucx_cancel, .poll = ucx_poll, .events = ucx_events, .fd = ucx_fd, .stats = ucx_stats, .last_error = ucx_last_error,
  .way = ucx_way,
};
