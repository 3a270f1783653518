/* SPDX-License-Identifier: Apache-2.0 */
/* Ascend NPUs, through CANN's runtime library. */
#include "device/acl.h"
#include "device/backend.h"
#include <stdio.h>

struct ascend {
  struct acl acl;
  uint32_t id;
};

static int read_options(const struct dev_option *option, uint32_t n, uint32_t *id, const char **library, struct rd2h_error *err) {
  *id = 0;
  *library = NULL;
  for (uint32_t i = 0; i < n; i++) {
    int rc = RD2H_OK;
    if (!strcmp(option[i].name, "id"))
      rc = dev_option_number("ascend", &option[i], INT32_MAX, id, err);
    else if (!strcmp(option[i].name, "library"))
      *library = option[i].value;
    else
      rc = rd2h_fail(err, RD2H_INVALID, "device ascend: option %.60s is unknown; known are id and library", option[i].name);
    if (rc)
      return rc;
  }
  return RD2H_OK;
}

static int check_id(const struct ascend *a, struct rd2h_error *err) {
  uint32_t count = 0;
  int code = a->acl.device_count(&count);
  if (code)
    return acl_fail(&a->acl, "aclrtGetDeviceCount", code, err);
  return a->id < count ? RD2H_OK
                       : rd2h_fail(err, RD2H_RANGE, "device ascend: id is %u, this process sees %u devices", a->id, count);
}

static int ascend_open(const struct dev_option *option, uint32_t n, void **self, struct rd2h_error *err) {
  const char *library;
  struct ascend *a = rd2h_zalloc(sizeof *a);
  if (!a)
    return rd2h_nomem(err, "device ascend");
  int rc = read_options(option, n, &a->id, &library, err);
  rc = rc ? rc : acl_load(&a->acl, library, err);
  rc = rc ? rc : check_id(a, err);
  if (rc) {
    rd2h_free(a);
    return rc;
  }
  *self = a;
  return RD2H_OK;
}

static void ascend_close(void *self) {
  rd2h_free(self);
}

static int ascend_bind(void *self, struct rd2h_error *err) {
  struct ascend *a = self;
  int code = a->acl.set_device((int32_t)a->id);
  return code ? acl_fail(&a->acl, "aclrtSetDevice", code, err) : RD2H_OK;
}

static int ascend_probe(void *self, struct rd2h_device_info *info, struct rd2h_error *err) {
  struct ascend *a = self;
  int code = a->acl.device_count(&info->devices);
  const char *soc = a->acl.soc_name ? a->acl.soc_name() : NULL;
  snprintf(info->model, sizeof info->model, "%s", soc ? soc : "");
  return code ? acl_fail(&a->acl, "aclrtGetDeviceCount", code, err) : RD2H_OK;
}

/* ---- events ---- */
static int ascend_event_create(void *self, void **event, struct rd2h_error *err) {
  struct ascend *a = self;
  int code = a->acl.create_event(event);
  return code ? acl_fail(&a->acl, "aclrtCreateEvent", code, err) : RD2H_OK;
}

static void ascend_event_destroy(void *self, void *event) {
  struct ascend *a = self;
  struct rd2h_error err;
  int code = a->acl.destroy_event(event);
  if (code) {
    acl_fail(&a->acl, "aclrtDestroyEvent", code, &err);
    RD2H_WARN("%s", err.text);
  }
}

static int ascend_record(void *self, void *event, void *stream, struct rd2h_error *err) {
  struct ascend *a = self;
  int code = a->acl.record_event(event, stream);
  return code ? acl_fail(&a->acl, "aclrtRecordEvent", code, err) : RD2H_OK;
}

static int ascend_query(void *self, void *event, struct rd2h_error *err) {
  struct ascend *a = self;
  int status = 0, code = a->acl.query_event(event, &status);
  if (code)
    return acl_fail(&a->acl, "aclrtQueryEventStatus", code, err);
  return status == ACL_EVENT_REACHED ? RD2H_OK : RD2H_AGAIN;
}

static int ascend_wait(void *self, void *event, uint32_t ms, struct rd2h_error *err) {
  struct ascend *a = self;
  int code = a->acl.wait_event(event, (int32_t)ms);
  if (code == ACL_EVENT_WAIT_TIMEOUT)
    return RD2H_AGAIN;
  return code ? acl_fail(&a->acl, "aclrtSynchronizeEventWithTimeout", code, err) : RD2H_OK;
}

/* ---- pinned memory ---- */
static int ascend_pin(void *self, void *p, uint64_t len, struct rd2h_error *err) {
  struct ascend *a = self;
  void *device;
  if (!a->acl.register_host || !a->acl.unregister_host)
    return rd2h_fail(err, RD2H_UNSUPPORTED, "device ascend: this CANN has no aclrtHostRegister: host memory cannot be pinned");
  int code = a->acl.register_host(p, len, ACL_PIN_MAPPED, &device);
  return code ? acl_fail(&a->acl, "aclrtHostRegister", code, err) : RD2H_OK;
}

static int ascend_unpin(void *self, void *p, struct rd2h_error *err) {
  struct ascend *a = self;
  int code = a->acl.unregister_host(p);
  return code ? acl_fail(&a->acl, "aclrtHostUnregister", code, err) : RD2H_OK;
}

const struct dev_backend dev_ascend = {
    .name = "ascend", .open = ascend_open, .close = ascend_close, .bind = ascend_bind, .probe = ascend_probe,
    .event_create = ascend_event_create, .event_destroy = ascend_event_destroy, .record = ascend_record, .query = ascend_query,
    .wait = ascend_wait, .pin = ascend_pin, .unpin = ascend_unpin};
