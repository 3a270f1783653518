/* SPDX-License-Identifier: Apache-2.0 */
/* What a process has one of: the library's state, bound to a role, a device and a host; and the config stores. */
#include "engines/memfabric/memfabric.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define STORE_TRIES 8u
#define CREATE_TRIES 8u
#define PORT_MIN 12000u /* below those that the system gives to outgoing connections */
#define PORT_END MF_NIC_PORT_MAX
#define PROBE_MS 2000u

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct mf_binding bound;
static uint32_t users;
static bool begun;
static struct mf_store *stores;

static void name(const struct mf_binding *b, char out[128]) {
  snprintf(out, 128, "%s on device %u at %s", b->prefill ? "Prefill" : "Decode", b->device, b->host);
}

static int refuse(const struct mf_binding *b, struct rd2h_error *err) {
  char is[128], wanted[128];
  name(&bound, is);
  name(b, wanted);
  return rd2h_fail(err, RD2H_STATE, "engine memfabric: this process is %s, it cannot be %s%s: MemFabric has one role, device and host a "
                   "process; start another process", is, wanted, users ? ", too" : "");
}

/* A setter that takes nothing for a certificate does nothing: its store would speak in the clear. */
static int store_tls(const struct mf_api *api, const char *info, struct rd2h_error *err) {
  if (!info) {
    api->set_conf_store_tls(false, "", 0);
    return RD2H_OK;
  }
  if (!api->set_conf_store_tls(true, "", 0))
    return rd2h_fail(err, RD2H_UNSUPPORTED, "engine memfabric: store_tls is asked for, but smem_set_conf_store_tls of %.150s (ABI %s) does "
                     "nothing: the config store would speak in plain text. Leave store_tls out and keep its port inside a trusted "
                     "network", api->path, api->abi->name);
  int32_t code = api->set_conf_store_tls(true, info, (uint32_t)strlen(info));
  if (code)
    return rd2h_fail(err, RD2H_INVALID, "engine memfabric: store_tls \"%.200s\" is refused by the library: %s", info, rd2h_mf_code(code));
  return RD2H_OK;
}

static void configure(const struct mf_api *api, const struct mf_options *o, int32_t role, struct mf_config *c) {
  memset(c, 0, sizeof *c);
  api->config_init(c);
  c->role = role;
  c->init_timeout_s = o->init_s;
  c->device = o->device;
  c->flags = 0;
  c->op = o->protocol->op;
}

static void warn_of_size(const struct mf_options *o) {
  if (o->protocol->nic && !getenv("MF_HCOM_SQ_SIZE"))
    RD2H_WARN("engine memfabric: MF_HCOM_SQ_SIZE and its sisters are not set: with protocol %s every transfer object takes about 8.5 GB "
              "and 10 s or more to make; docs/memfabric.md names values for 0.1 GB", o->protocol->name);
}

static int begin(const struct mf_api *api, const struct mf_binding *b, const struct mf_options *o, struct rd2h_error *err) {
  struct mf_config c;
  int rc = store_tls(api, o->store_tls, err);
  if (rc)
    return rc;
  configure(api, o, b->prefill ? MF_SENDER : MF_RECEIVER, &c);
  rd2h_mf_listen();
  int32_t code = api->init(0);
  if (!code)
    code = api->trans_init(&c);
  const char *said = rd2h_mf_said(api);
  if (code)
    return rd2h_fail(err, RD2H_UNSUPPORTED, "engine memfabric: the library does not begin on device %u with protocol %s: %s%s%.200s; look "
                     "at ASCEND_HOME_PATH, at the driver and at the device's number", o->device, o->protocol->name, rd2h_mf_code(code),
                     *said ? ": " : "", said);
  warn_of_size(o);
  return RD2H_OK;
}

int rd2h_mf_bind(const struct mf_api *api, const struct mf_binding *b, const struct mf_options *o, struct rd2h_error *err) {
  int rc = RD2H_OK;
  pthread_mutex_lock(&lock);
  if ((users && (bound.prefill != b->prefill || strcmp(bound.host, b->host))) || (begun && bound.device != b->device))
    rc = refuse(b, err);
  else if (!begun || o->store_tls)
    rc = begun ? store_tls(api, o->store_tls, err) : begin(api, b, o, err);
  if (!rc) {
    begun = true;
    users++;
    bound = *b;
  }
  pthread_mutex_unlock(&lock);
  return rc;
}

void rd2h_mf_unbind(void) {
  pthread_mutex_lock(&lock);
  users--;
  pthread_mutex_unlock(&lock);
}

/* ---- config stores ---- */
static int start_store(const struct mf_api *api, const char *host, uint16_t port, struct mf_store *s, struct rd2h_error *err) {
  char url[MF_ID_MAX + 8];
  rd2h_mf_id(host, port, s->id);
  snprintf(url, sizeof url, "tcp://%s", s->id);
  rd2h_mf_listen();
  int32_t code = api->create_config_store(url, 0);
  const char *said = rd2h_mf_said(api);
  return code ? rd2h_fail(err, RD2H_IO, "engine memfabric: no config store can be had at %s: %s%s%.200s; the port must be free and the "
                          "address one of this host", s->id, rd2h_mf_code(code), *said ? ": " : "", said) : RD2H_OK;
}

static int new_store(const struct mf_api *api, const char *host, uint32_t port, struct mf_store **out, struct rd2h_error *err) {
  struct mf_store *s = rd2h_zalloc(sizeof *s);
  int rc = RD2H_IO;
  if (!s)
    return rd2h_nomem(err, "config store");
  for (uint32_t i = 0; i < (port ? 1 : STORE_TRIES) && rc; i++) {
    uint16_t any = (uint16_t)port;
    int fd = port ? -1 : rd2h_mf_hold_port(host, &any);
    if (fd >= 0)
      close(fd);
    rc = fd < 0 && !port ? rd2h_fail(err, RD2H_INVALID, "engine memfabric: host %s is no address of this host", host)
                         : start_store(api, host, any, s, err);
  }
  if (rc) {
    rd2h_free(s);
    return rc;
  }
  s->next = stores;
  *out = stores = s;
  return RD2H_OK;
}

static bool at(const struct mf_store *s, const char *host, uint32_t port) {
  char id[MF_ID_MAX];
  rd2h_mf_id(host, (uint16_t)port, id);
  size_t n = (size_t)(strrchr(id, ':') - id) + 1;
  return port ? !strcmp(s->id, id) : !strncmp(s->id, id, n) && !strchr(s->id + n, ':');
}

int rd2h_mf_store_take(const struct mf_api *api, const char *host, uint32_t port, struct mf_store **out, struct rd2h_error *err) {
  int rc = RD2H_OK;
  pthread_mutex_lock(&lock);
  struct mf_store *s = stores;
  while (s && (s->busy || !at(s, host, port)))
    s = s->next;
  if (!s)
    rc = new_store(api, host, port, &s, err);
  if (!rc) {
    s->busy = true;
    *out = s;
  }
  pthread_mutex_unlock(&lock);
  return rc;
}

void rd2h_mf_store_give(struct mf_store *s) {
  pthread_mutex_lock(&lock);
  s->busy = false;
  pthread_mutex_unlock(&lock);
}

/* ---- transfer objects ---- */
/* Where the object listens: its member k of the store, which the library chooses, at this port + 64 k. It must leave room for 32 768
 * ports above it. Whether one is free shows only when the object is made, so the caller tries again. */
static void fill_nic(const struct mf_options *o, struct mf_config *c) {
  char id[MF_ID_MAX];
  uint16_t any = 0, port = (uint16_t)o->nic_port;
  rd2h_random(&any, sizeof any);
  if (!port)
    port = (uint16_t)(PORT_MIN + any % (PORT_END - PORT_MIN));
  rd2h_mf_id(o->nic, port, id);
  snprintf(c->nic, sizeof c->nic, "tcp://%.56s", id);
}

/* The library waits init_s for a store that is not there. */
static int store_there(const struct mf_options *o, const char *session, struct rd2h_error *err) {
  uint32_t ms = o->init_s * 1000 < PROBE_MS ? o->init_s * 1000 : PROBE_MS;
  enum mf_probe p = rd2h_mf_probe(session, ms);
  if (p == MF_PROBE_ANSWERS)
    return RD2H_OK;
  return rd2h_fail(err, RD2H_PEER_LOST, "engine memfabric: nobody is at %s: %s; the Prefill process has ended, or a firewall stands "
                   "between", session, p == MF_PROBE_GONE ? "its config store's port is closed" : "its config store does not answer");
}

int rd2h_mf_create(const struct mf_api *api, const struct mf_options *o, int32_t role, const char *session, const char *id, void **object,
                   struct rd2h_error *err) {
  char url[MF_ID_MAX + 8];
  struct mf_config c;
  void *made = NULL;
  const char *said = "";
  int rc = store_there(o, session, err);
  if (rc)
    return rc;
  snprintf(url, sizeof url, "tcp://%s", session);
  configure(api, o, role, &c);
  uint64_t begin_ns = rd2h_now_ns(), give_up = begin_ns + o->init_s * 1000 * RD2H_MS;
  for (uint32_t i = 0; i < CREATE_TRIES && !made && rd2h_now_ns() < give_up; i++) {
    if (api->abi->nic && o->protocol->nic)
      fill_nic(o, &c);
    rd2h_mf_listen();
    made = api->create(url, id, &c);
    said = rd2h_mf_said(api);
  }
  if (!made) {
    rc = rd2h_mf_probe(session, PROBE_MS) == MF_PROBE_GONE ? RD2H_PEER_LOST : RD2H_IO;
    return rd2h_fail(err, rc, "engine memfabric: no transfer object %s at the store %s with protocol %s after %.1f s%s%.200s", id, session,
                     o->protocol->name, (double)(rd2h_now_ns() - begin_ns) / 1e9, *said ? ": " : "", said);
  }
  *object = made;
  return RD2H_OK;
}
