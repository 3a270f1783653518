/* SPDX-License-Identifier: Apache-2.0 */
#include "device/acl.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#define NAME "libascendcl.so"
#define MESSAGE_MAX 160 /* bytes of the library's own message in an error */

static const struct {
  const char *name;
  size_t at;
  bool must;
} functions[] = {
#define ACL_ROW(type, field, function, must, parameters) {#function, offsetof(struct acl, field), must},
    ACL_FUNCTIONS(ACL_ROW)
#undef ACL_ROW
};

/* What the codes mean that a deployment meets. */
static const struct {
  int code;
  const char *text;
} codes[] = {
    {100000, "a parameter is wrong"}, {100001, "aclInit was not called"}, {107000, "a parameter is wrong"},
    {107001, "there is no such device"}, {107002, "the thread has no device"}, {107003, "the stream is of another device or gone"},
    {107004, "the event is of another device or gone"}, {207001, "out of device memory"}, {207003, "too many events or streams"},
    {507001, "the device is lost"}, {507014, "a kernel ran too long"}, {507015, "a kernel failed"}, {507018, "a kernel failed"},
    {507033, "the device could not be opened"}, {507899, "the driver failed"},
};

int acl_fail(const struct acl *a, const char *function, int code, struct rd2h_error *err) {
  const char *meaning = "see the library's error codes", *own = a->last_message ? a->last_message() : NULL;
  for (size_t i = 0; i < RD2H_COUNT(codes); i++)
    if (codes[i].code == code)
      meaning = codes[i].text;
  int n = own ? (int)strcspn(own, "\r\n") : 0;
  return rd2h_fail(err, RD2H_IO, "ascend: %s returned %d: %s%s%.*s", function, code, meaning, n ? ": " : "",
                   n < MESSAGE_MAX ? n : MESSAGE_MAX, n ? own : "");
}

static int take_functions(struct acl *a, const char *path, struct rd2h_error *err) {
  for (size_t i = 0; i < RD2H_COUNT(functions); i++) {
    void *f = dlsym(a->library, functions[i].name);
    if (!f && functions[i].must)
      return rd2h_fail(err, RD2H_UNSUPPORTED, "ascend: %s has no function %s: a newer CANN is needed", path, functions[i].name);
    memcpy((char *)a + functions[i].at, &f, sizeof f);
  }
  return RD2H_OK;
}

/* A process that computes on the device has it loaded; then this one, whatever the paths say. */
static void *find(const char *path, char found[256]) {
  static const char *const homes[] = {"ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"};
  void *library = dlopen(path ? path : NAME, RTLD_NOW | RTLD_GLOBAL);
  snprintf(found, 256, "%s", path ? path : NAME);
  for (size_t i = 0; !library && !path && i < RD2H_COUNT(homes); i++) {
    const char *home = getenv(homes[i]);
    if (!home || !*home)
      continue;
    snprintf(found, 256, "%s/lib64/" NAME, home);
    library = dlopen(found, RTLD_NOW | RTLD_GLOBAL);
  }
  return library;
}

int acl_load(struct acl *a, const char *path, struct rd2h_error *err) {
  char found[256];
  *a = (struct acl){.library = find(path, found)};
  if (!a->library) {
    const char *why = dlerror();
    return rd2h_fail(err, RD2H_NOT_FOUND, "ascend: %.200s cannot be loaded: %.120s; install CANN and source its set_env.sh, or "
                     "name the file by library=", found, why ? why : "no reason given");
  }
  int rc = take_functions(a, found, err);
  if (rc) {
    dlclose(a->library);
    return rc;
  }
  int code = a->init ? a->init(NULL) : ACL_OK;
  return code == ACL_OK || code == ACL_REPEAT_INITIALIZE ? RD2H_OK : acl_fail(a, "aclInit", code, err);
}
