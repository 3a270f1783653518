/* SPDX-License-Identifier: Apache-2.0 */
/* A stand-in for Ascend's libraries (CANN) on a machine without an NPU: what MemFabric asks of them to begin, answered for plain
 * memory of this host. names.py adds every other name that MemFabric looks up, as a function that returns 0. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096u
#define HANDLE_MAGIC 0x6e6e6163u

static int allocate(void **p, size_t n) {
  *p = aligned_alloc(PAGE, (n + PAGE - 1) / PAGE * PAGE);
  return *p ? 0 : -1;
}

static int copy(void *to, size_t room, const void *from, size_t n) {
  if (n > room)
    return -1;
  memcpy(to, from, n);
  return 0;
}

int aclrtGetDevice(int32_t *device) { *device = 0; return 0; }
int aclrtCreateStream(void **s) { return allocate(s, 64); }
int aclrtCreateStreamWithConfig(void **s, uint32_t priority, uint32_t flags) {
  (void)priority, (void)flags;
  return allocate(s, 64);
}
int aclrtGetCurrentContext(void **c) { static int one; *c = &one; return 0; }
int aclrtMalloc(void **p, size_t n, uint32_t policy) { (void)policy; return allocate(p, n); }
int aclrtMallocHost(void **p, size_t n) { return allocate(p, n); }
int aclrtFree(void *p) { free(p); return 0; }
int aclrtFreeHost(void *p) { free(p); return 0; }
int aclrtMemcpy(void *to, size_t room, const void *from, size_t n, uint32_t kind) {
  (void)kind;
  return copy(to, room, from, n);
}
int aclrtMemcpyAsync(void *to, size_t room, const void *from, size_t n, uint32_t kind, void *s) {
  (void)s, (void)kind;
  return copy(to, room, from, n);
}
int aclrtMemset(void *p, size_t room, int32_t v, size_t n) {
  (void)room;
  memset(p, v, n);
  return 0;
}
int aclrtGetPhyDevIdByLogicDevId(int32_t logical, int32_t *physical) {
  *physical = logical;
  return 0;
}
const char *aclrtGetSocName(void) { return "Ascend910_9382"; }
int aclrtGetVersion(int32_t *a, int32_t *b, int32_t *c) { *a = 1; *b = 15; *c = 0; return 0; }
int aclsysGetVersionStr(char *package, char *version) {
  (void)package;
  strcpy(version, "8.5.0");
  return 0;
}
int rtDeviceGetBareTgid(uint32_t *pid) { *pid = (uint32_t)getpid(); return 0; }
int rtGetDeviceInfo(uint32_t device, int32_t module, int32_t info, int64_t *v) {
  (void)device, (void)module, (void)info;
  *v = 0;
  return 0;
}
int rtGetLogicDevIdByUserDevId(int32_t user, int32_t *logical) { *logical = user; return 0; }
int drvMemGetAttribute(uint64_t at, void *out) { (void)at, (void)out; return 0; }
int halHostRegister(void *p, uint64_t n, uint32_t flags, uint32_t device, void **out) {
  (void)n, (void)flags, (void)device;
  *out = p;
  return 0;
}

/* "Physical" memory is a memfd; what goes to another process is where to find it in /proc. */
struct physical {
  int fd;
  size_t bytes;
};
struct exported {
  uint32_t magic, pid, fd;
  uint64_t bytes;
};

int halMemGetAllocationGranularity(const void *p, int option, size_t *bytes) {
  (void)p, (void)option;
  *bytes = 2u << 20;
  return 0;
}

int halMemAddressReserve(void **out, size_t n, size_t align, void *at, uint64_t flags) {
  (void)align, (void)flags;
  void *p = mmap(at, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  *out = p;
  return p == MAP_FAILED ? -1 : 0;
}

int halMemCreate(void **out, size_t n, const void *property, uint64_t flags) {
  (void)property, (void)flags;
  struct physical *h = malloc(sizeof *h);
  h->fd = memfd_create("stand-in", 0);
  h->bytes = n;
  *out = h;
  return h->fd < 0 || ftruncate(h->fd, (off_t)n) ? -1 : 0;
}

int halMemMap(void *p, size_t n, size_t offset, void *handle, uint64_t flags) {
  (void)flags;
  return mmap(p, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, ((struct physical *)handle)->fd, (off_t)offset) == p ? 0 : -1;
}

int halMemExportToShareableHandleV2(void *handle, int type, uint64_t flags, void *out) {
  (void)type, (void)flags;
  const struct physical *h = handle;
  struct exported e = {HANDLE_MAGIC, (uint32_t)getpid(), (uint32_t)h->fd, h->bytes};
  memset(out, 0, 128);
  memcpy(out, &e, sizeof e);
  return 0;
}

int halMemImportFromShareableHandleV2(int type, void *in, uint32_t device, void **out) {
  (void)type, (void)device;
  struct physical *h = malloc(sizeof *h);
  struct exported e;
  char path[64];
  memcpy(&e, in, sizeof e);
  snprintf(path, sizeof path, "/proc/%u/fd/%u", e.pid, e.fd);
  *h = (struct physical){e.magic == HANDLE_MAGIC ? open(path, O_RDWR) : -1, e.bytes};
  *out = h;
  return h->fd < 0 ? -1 : 0;
}

int halMemTransShareableHandle(int type, void *in, uint32_t *server, uint64_t *handle) {
  (void)type, (void)in;
  *server = 0;
  *handle = 1;
  return 0;
}
