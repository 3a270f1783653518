/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_DEVICE_H
#define RD2H_DEVICE_H
/* The device whose memory holds KV, named by a spec:
 *
 *   "host"                                     memory of the host, or memory whose writes are there when the call that made them
 *                                              returns; the default
 *   "ascend"  options id=N, library=PATH       an Ascend NPU: its streams write KV. CANN's libascendcl.so is loaded at run time: the
 *                                              one that the process has already, else where the system, ASCEND_HOME_PATH or
 *                                              ASCEND_TOOLKIT_HOME say
 *
 * e.g. "ascend,id=3". A thread that works for an object is given the object's device; the caller's thread must have it already. */
#include <rd2h/status.h>
#include <stdbool.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

struct rd2h_device_info {
  uint32_t size;
  uint32_t devices; /* that this process sees */
  bool streams;     /* KV may still be on its way: rd2h_prefill_layer_on waits for it */
  char model[64];   /* as the device's library names it, "" when it does not */
};
/* Whether a device can be used here. Errors: NOT_FOUND (no such device, or its library is not here), INVALID (options), RANGE (no
 * device of that number), UNSUPPORTED (the library lacks a function), IO (a call of it failed; its name and code are in err). */
RD2H_API int rd2h_device_probe(const char *device, struct rd2h_device_info *, struct rd2h_error *);

#ifdef __cplusplus
}
#endif
#endif
