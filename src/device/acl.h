/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_DEVICE_ACL_H
#define RD2H_DEVICE_ACL_H
/* What is used of CANN's runtime library libascendcl.so, found when it is loaded: nothing of CANN is needed to build. */
#include "base/base.h"

enum { ACL_OK = 0, ACL_REPEAT_INITIALIZE = 100002, ACL_EVENT_WAIT_TIMEOUT = 507047, ACL_EVENT_REACHED = 1, ACL_PIN_MAPPED = 0 };

/* type, field, function, whether it must be there, parameters */
#define ACL_FUNCTIONS(X) \
  X(int, init, aclInit, false, (const char *config)) \
  X(const char *, last_message, aclGetRecentErrMsg, false, (void)) \
  X(const char *, soc_name, aclrtGetSocName, false, (void)) \
  X(int, device_count, aclrtGetDeviceCount, true, (uint32_t *count)) \
  X(int, set_device, aclrtSetDevice, true, (int32_t device)) \
  X(int, create_event, aclrtCreateEvent, true, (void **event)) \
  X(int, destroy_event, aclrtDestroyEvent, true, (void *event)) \
  X(int, record_event, aclrtRecordEvent, true, (void *event, void *stream)) \
  X(int, query_event, aclrtQueryEventStatus, true, (void *event, int *status)) \
  X(int, wait_event, aclrtSynchronizeEventWithTimeout, true, (void *event, int32_t ms)) \
  X(int, register_host, aclrtHostRegister, false, (void *p, uint64_t len, int type, void **device)) \
  X(int, unregister_host, aclrtHostUnregister, false, (void *p))

struct acl {
  void *library;
#define ACL_FIELD(type, field, function, must, parameters) type(*field) parameters; /* NULL where it need not be there */
  ACL_FUNCTIONS(ACL_FIELD)
#undef ACL_FIELD
};

/* path: NULL: the one that this process has loaded already, else where the system and the toolkit's environment say. The library
 * is never closed again: it has threads of its own. */
int acl_load(struct acl *, const char *path, struct rd2h_error *);
/* Fills err for a call that returned code; returns IO. */
int acl_fail(const struct acl *, const char *function, int code, struct rd2h_error *);
#endif
