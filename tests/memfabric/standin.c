/* SPDX-License-Identifier: Apache-2.0 */
/* Built once a version: STANDIN_ABI 13, 12, 10; 20: one that does not exist yet; 0: no MemFabric at all. */
#include "standin.h"
#include <arpa/inet.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
#define INVALID (-2000)

struct config { /* of version 1.3; the others end before */
  int32_t role;
  uint32_t init_timeout_s, device, flags;
  int32_t op;
  char nic[64];
  uint8_t tls[1796];
};
#if STANDIN_ABI == 12
#define CONFIG_BYTES 20u
#elif STANDIN_ABI == 10
#define CONFIG_BYTES 24u
#else
#define CONFIG_BYTES sizeof(struct config)
#endif

static struct standin now;
/* Several sessions read at once, and the test changes things meanwhile. */
#define GET(field) __atomic_load_n(&(field), __ATOMIC_RELAXED)
#define SET(field, value) __atomic_store_n(&(field), value, __ATOMIC_RELAXED)

API struct standin *standin_state(void);
API struct standin *standin_state(void) {
  return &now;
}

#define DECLARED(type, name, ...) \
  API type name(__VA_ARGS__); \
  API type name(__VA_ARGS__)

#if STANDIN_ABI == 13 || STANDIN_ABI == 20
DECLARED(uint32_t, smem_get_abi_version, void) {
  return STANDIN_ABI == 13 ? 0x00010003 : 0x00020000;
}
#endif
#if STANDIN_ABI != 10
DECLARED(int32_t, smem_trans_batch_read_submit, void) {
  return INVALID;
}
#endif

DECLARED(int32_t, smem_init, uint32_t flags) {
  return (int32_t)flags;
}

DECLARED(int32_t, smem_create_config_store, const char *url, uint64_t flags) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  a.sin_port = htons((uint16_t)atoi(strrchr(url, ':') + 1));
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (!bind(fd, (struct sockaddr *)&a, sizeof a) && !listen(fd, 64) && !flags)
    return 0;
  close(fd);
  return -1;
}

DECLARED(int32_t, smem_set_log_level, int level) {
  return level - level;
}

DECLARED(int32_t, smem_set_extern_logger, void (*log)(int, const char *)) {
  return log ? 0 : INVALID;
}

DECLARED(int32_t, smem_set_conf_store_tls, bool on, const char *info, uint32_t len) {
  return on && (!len || !strstr(info, "tlsCert:")) ? now.tls_code : 0;
}

DECLARED(const char *, smem_get_last_err_msg, void) {
  return "said by the library\n";
}

DECLARED(int32_t, smem_trans_config_init, struct config *c) {
  int32_t op = c->op; /* the real one leaves it as it is */
  memset(c, 0, CONFIG_BYTES);
  c->op = op;
  c->device = UINT32_MAX;
  return 0;
}

DECLARED(int32_t, smem_trans_init, const struct config *c) {
  return c->device == UINT32_MAX ? INVALID : 0;
}

DECLARED(void *, smem_trans_create, const char *url, const char *id, const struct config *c) {
  if (now.create_code)
    return NULL;
  now.role = c->role;
  now.op = c->op;
  now.device = c->device;
  now.init_timeout_s = c->init_timeout_s;
  memcpy(now.nic, CONFIG_BYTES > 24 ? c->nic : "", CONFIG_BYTES > 24 ? sizeof now.nic : 1);
  snprintf(now.id, sizeof now.id, "%s", id);
  snprintf(now.url, sizeof now.url, "%s", url);
  now.objects++;
  now.most_objects = now.objects > now.most_objects ? now.objects : now.most_objects;
  return malloc(1);
}

DECLARED(void, smem_trans_destroy, void *object, uint32_t flags) {
  uint32_t ms = GET(now.destroy_ms);
  struct timespec pause = {ms / 1000, (long)(ms % 1000) * 1000000};
  (void)flags;
  nanosleep(&pause, NULL);
  __atomic_sub_fetch(&now.objects, 1, __ATOMIC_RELAXED);
  free(object);
}

DECLARED(int32_t, smem_trans_register_mem, void *object, void *base, size_t len, uint32_t flags) {
  if (!object || flags || now.registrations == 64)
    return INVALID;
  now.registered[now.registrations][0] = (uintptr_t)base;
  now.registered[now.registrations++][1] = len;
  return now.register_code;
}

DECLARED(int32_t, smem_trans_deregister_mem, void *object, void *base) {
  return object && base ? 0 : INVALID;
}

#if STANDIN_ABI
DECLARED(int32_t, smem_trans_batch_read, void *object, void **local, const char *id, const void **remote, size_t *len, uint32_t n,
         uint32_t flags) {
  uint32_t ms = GET(now.hang_ms), unseen = GET(now.invisible);
  struct timespec pause = {ms / 1000, (long)(ms % 1000) * 1000000};
  if (!object || !id || !n || flags)
    return INVALID;
  __atomic_add_fetch(&now.reads, 1, __ATOMIC_RELAXED);
  SET(now.local, local);
  SET(now.len, (const uint64_t *)len);
  nanosleep(&pause, NULL);
  if (unseen) {
    SET(now.invisible, unseen - 1);
    return unseen % 2 ? INVALID : -2;
  }
  int32_t code = GET(now.read_code);
  for (uint32_t i = 0; i < n && !code; i++) {
    if (!len[i])
      return INVALID;
    memcpy(local[i], remote[i], len[i]);
    __atomic_add_fetch(&now.descriptors, 1, __ATOMIC_RELAXED);
  }
  return code;
}
#endif
