/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_DEVICE_BACKEND_H
#define RD2H_DEVICE_BACKEND_H
/* Inside of the room: what a backend is. A new one (cuda) is a table like these and a line in device.c. */
#include "device/device.h"

#define DEV_OPTIONS 4u

/* One "name=value" of a spec; both in the spec's copy. */
struct dev_option {
  const char *name, *value;
};

/* Functions that may be NULL are said so. Handles are the backend's own. Statuses as in device.h; err says which call of the
 * library returned which code. */
struct dev_backend {
  const char *name;
  int (*open)(const struct dev_option *, uint32_t n, void **self, struct rd2h_error *);
  void (*close)(void *self);
  int (*bind)(void *self, struct rd2h_error *);
  int (*probe)(void *self, struct rd2h_device_info *, struct rd2h_error *);
  /* NULL, all five: a device without streams. */
  int (*event_create)(void *self, void **event, struct rd2h_error *);
  void (*event_destroy)(void *self, void *event);
  int (*record)(void *self, void *event, void *stream, struct rd2h_error *);
  int (*query)(void *self, void *event, struct rd2h_error *);                 /* OK, AGAIN, or an error; never blocks */
  int (*wait)(void *self, void *event, uint32_t ms, struct rd2h_error *);      /* OK, AGAIN after ms, or an error */
  int (*pin)(void *self, void *p, uint64_t len, struct rd2h_error *);
  int (*unpin)(void *self, void *p, struct rd2h_error *);
};
extern const struct dev_backend dev_host, dev_ascend;

/* The value of an option as a whole number up to `most`. */
int dev_option_number(const char *backend, const struct dev_option *, uint32_t most, uint32_t *out, struct rd2h_error *);
#endif
