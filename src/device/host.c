/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the host: no streams, nothing to select, nothing to pin. */
#include "device/backend.h"

static int host_open(const struct dev_option *option, uint32_t n, void **self, struct rd2h_error *err) {
  if (n)
    return rd2h_fail(err, RD2H_INVALID, "device host: option %.60s is unknown, it takes none", option->name);
  *self = NULL;
  return RD2H_OK;
}

static void host_close(void *self) {
  (void)self;
}

static int host_bind(void *self, struct rd2h_error *err) {
  (void)self;
  (void)err;
  return RD2H_OK;
}

static int host_probe(void *self, struct rd2h_device_info *info, struct rd2h_error *err) {
  (void)self;
  (void)err;
  info->devices = 1;
  return RD2H_OK;
}

static int host_pin(void *self, void *p, uint64_t len, struct rd2h_error *err) {
  (void)self;
  (void)p;
  (void)len;
  (void)err;
  return RD2H_OK;
}

static int host_unpin(void *self, void *p, struct rd2h_error *err) {
  (void)self;
  (void)p;
  (void)err;
  return RD2H_OK;
}

const struct dev_backend dev_host = {.name = "host", .open = host_open, .close = host_close, .bind = host_bind,
                                     .probe = host_probe, .pin = host_pin, .unpin = host_unpin};
