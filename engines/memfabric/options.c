/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/memfabric/memfabric.h"
#include <stdio.h>
#include <stdlib.h>

#define INIT_S 30u
#define OBJECTS 32u

/* host_tcp asks for RDMA or TCP: with TCP alone the library listens at a fixed port of 127.0.0.1, whatever address it is given. */
static const struct mf_protocol protocols[] = {
  {"sdma", 1, true, false},        {"device_rdma", 8, true, false}, {"device_urma", 64, true, false}, {"device_uboe", 128, true, false},
  {"host_rdma", 2, false, true},   {"host_tcp", 6, false, true},    {"host_urma", 16, false, true},
};

const struct mf_protocol *rd2h_mf_protocol(int32_t op) {
  for (size_t i = 0; i < RD2H_COUNT(protocols); i++)
    if (protocols[i].op == op)
      return &protocols[i];
  return NULL;
}

static int set_protocol(const char *v, struct mf_options *o, struct rd2h_error *err) {
  for (size_t i = 0; i < RD2H_COUNT(protocols); i++)
    if (!strcmp(protocols[i].name, v)) {
      o->protocol = &protocols[i];
      return RD2H_OK;
    }
  return rd2h_fail(err, RD2H_INVALID, "engine memfabric: protocol \"%.40s\" is none of sdma, device_rdma, device_urma, device_uboe, "
                   "host_rdma, host_tcp, host_urma", v);
}

static int set_nic(const char *v, struct mf_options *o, struct rd2h_error *err) {
  if (!rd2h_mf_host_ok(v))
    return rd2h_fail(err, RD2H_INVALID, "engine memfabric: nic \"%.60s\" must be a numeric address of this host", v);
  snprintf(o->nic, sizeof o->nic, "%s", v);
  return RD2H_OK;
}

static int set_number(const char *name, const char *v, uint32_t min, uint32_t max, uint32_t *out, struct rd2h_error *err) {
  char *end;
  unsigned long n = strtoul(v, &end, 10);
  if (end == v || *end || v[0] == '-' || n < min || n > max)
    return rd2h_fail(err, RD2H_INVALID, "engine memfabric: option \"%s%.40s\": the value must be a number from %u to %u", name, v, min,
                     max);
  *out = (uint32_t)n;
  return RD2H_OK;
}

static int set(const char *text, struct mf_options *o, struct rd2h_error *err) {
  const struct {
    const char *name;
    uint32_t min, max, *out;
  } numbers[] = {{"device=", 0, 65535, &o->device}, {"port=", 1, 65535, &o->port}, {"init_s=", 1, 600, &o->init_s},
                 {"nic_port=", 1024, MF_NIC_PORT_MAX, &o->nic_port},
                 {"objects=", 1, 512, &o->objects}};
  for (size_t i = 0; i < RD2H_COUNT(numbers); i++) {
    size_t n = strlen(numbers[i].name);
    if (strncmp(text, numbers[i].name, n))
      continue;
    o->has_device |= !i;
    return set_number(numbers[i].name, text + n, numbers[i].min, numbers[i].max, numbers[i].out, err);
  }
  if (!strncmp(text, "protocol=", 9))
    return set_protocol(text + 9, o, err);
  if (!strncmp(text, "nic=", 4))
    return set_nic(text + 4, o, err);
  const char **place = !strncmp(text, "lib=", 4) ? &o->lib : !strncmp(text, "store_tls=", 10) ? &o->store_tls : NULL;
  const char *value = place ? strchr(text, '=') + 1 : "";
  if (!*value)
    return rd2h_fail(err, RD2H_INVALID, "engine memfabric: unknown option \"%.100s\": it has lib=PATH, protocol=NAME, device=N, "
                     "port=N, nic=ADDRESS, nic_port=N, init_s=N, objects=N and store_tls=TEXT", text);
  *place = value;
  return RD2H_OK;
}

int rd2h_mf_options(const char *const *options, const char *host, struct mf_options *out, struct rd2h_error *err) {
  struct mf_options o = {.protocol = &protocols[0], .init_s = INIT_S, .objects = OBJECTS};
  int rc = RD2H_OK;
  if (!rd2h_mf_host_ok(host))
    return rd2h_fail(err, RD2H_INVALID, "engine memfabric: host \"%.60s\" must be a numeric address, which the peer can reach: "
                     "MemFabric takes no names", host);
  snprintf(o.nic, sizeof o.nic, "%s", host);
  for (const char *const *p = options; p && *p && !rc; p++)
    rc = set(*p, &o, err);
  if (!rc && o.protocol->device && !o.has_device)
    rc = rd2h_fail(err, RD2H_INVALID, "engine memfabric: protocol %s runs on the NPU: name it with the option device=N (or choose "
                   "protocol=host_rdma or host_tcp)", o.protocol->name);
  if (!rc)
    *out = o;
  return rc;
}
