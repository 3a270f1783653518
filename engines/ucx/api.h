/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_UCX_API_H
#define RD2H_UCX_API_H
/* What this engine uses of UCX's binary interface (libucp.so.0, from 1.22), declared here so that nothing of UCX is needed to build.
 * test_abi.c holds every size, offset and number against UCX's own headers where they are at hand. Structs begin with a mask of the
 * fields that are filled; the library looks at no other, so that what follows them is left out. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#define UCX_MAJOR 1u
#define UCX_MINOR 22u /* oldest that is taken */

typedef int8_t ucx_status; /* an enum packed into a byte */
enum {
  UCX_OK = 0, UCX_INPROGRESS = 1, UCX_NO_MEMORY = -4, UCX_UNREACHABLE = -6, UCX_NO_DEVICE = -14, UCX_BUSY = -15, UCX_CANCELED = -16,
  UCX_NOT_CONNECTED = -24, UCX_CONNECTION_RESET = -25, UCX_FIRST_LINK_FAILURE = -40, UCX_LAST_LINK_FAILURE = -59,
  UCX_FIRST_ENDPOINT_FAILURE = -60, UCX_LAST_ENDPOINT_FAILURE = -89, UCX_LAST_STATUS = -100
};
/* Calls that start something return a request, NULL (done at once) or a status as a pointer. */
#define UCX_FAILED(p) ((uintptr_t)(p) >= (uintptr_t)(intptr_t)UCX_LAST_STATUS)
#define UCX_STATUS(p) ((ucx_status)(intptr_t)(p))

enum { UCX_FEATURE_RMA = 1 << 1, UCX_FEATURE_WAKEUP = 1 << 4, UCX_FEATURE_AM = 1 << 6 };
enum { UCX_PARAM_FEATURES = 1 << 0 };
struct ucx_params {
  uint64_t mask, features;
};
enum { UCX_WORKER_PARAM_THREAD_MODE = 1 << 0, UCX_THREAD_SERIALIZED = 1 };
struct ucx_worker_params {
  uint64_t mask;
  int thread_mode;
};
enum { UCX_MEM_MAP_ADDRESS = 1 << 0, UCX_MEM_MAP_LENGTH = 1 << 1 };
struct ucx_mem_map_params {
  uint64_t mask;
  void *address;
  size_t length;
};
enum { UCX_EP_REMOTE_ADDRESS = 1 << 0, UCX_EP_ERR_MODE = 1 << 1, UCX_EP_ERR_HANDLER = 1 << 2, UCX_ERR_MODE_PEER = 1 };
struct ucx_ep_params {
  uint64_t mask;
  const void *address;
  int err_mode;
  struct {
    void (*cb)(void *arg, void *ep, ucx_status);
    void *arg;
  } err_handler;
};
enum { UCX_EP_ATTR_TRANSPORTS = 1 << 3, UCX_NAME_MAX = 32 };
struct ucx_transport {
  const char *name, *device;
};
struct ucx_ep_attr {
  uint64_t mask;
  char name[UCX_NAME_MAX];
  struct sockaddr_storage local, remote;
  struct {
    struct ucx_transport *entries;
    unsigned n;
    size_t entry_size;
  } transports;
};
enum {
  UCX_OP_CALLBACK = 1 << 1, UCX_OP_USER_DATA = 1 << 2, UCX_OP_FLAGS = 1 << 4, UCX_OP_MEMH = 1 << 8,
  UCX_CLOSE_FORCE = 1 << 0
};
struct ucx_request_param {
  uint32_t mask, flags;
  void *request;
  void (*cb)(void *request, ucx_status, void *user);
  uint64_t datatype;
  void *user, *reply_buffer;
  int memory_type;
  void *recv_info, *memh;
};
enum { UCX_LOG_STOP = 0 };
typedef int (*ucx_log_fn)(const char *file, unsigned line, const char *function, int level, const void *component, const char *format,
                          va_list);

/* Result, name, arguments of each function of libucp. */
#define UCX_FUNCTIONS(X) \
  X(ucx_status, init_version, (unsigned major, unsigned minor, const struct ucx_params *, const void *config, void **context)) \
  X(void, cleanup, (void *context)) \
  X(ucx_status, config_read, (const char *prefix, const char *file, void **config)) \
  X(ucx_status, config_modify, (void *config, const char *name, const char *value)) \
  X(void, config_release, (void *config)) \
  X(ucx_status, worker_create, (void *context, const struct ucx_worker_params *, void **worker)) \
  X(void, worker_destroy, (void *worker)) \
  X(ucx_status, worker_get_address, (void *worker, void **address, size_t *len)) \
  X(void, worker_release_address, (void *worker, void *address)) \
  X(ucx_status, worker_get_efd, (void *worker, int *fd)) \
  X(ucx_status, worker_arm, (void *worker)) \
  X(unsigned, worker_progress, (void *worker)) \
  X(ucx_status, ep_create, (void *worker, const struct ucx_ep_params *, void **ep)) \
  X(void *, ep_close_nbx, (void *ep, const struct ucx_request_param *)) \
  X(ucx_status, ep_query, (void *ep, struct ucx_ep_attr *)) \
  X(ucx_status, mem_map, (void *context, const struct ucx_mem_map_params *, void **memh)) \
  X(ucx_status, mem_unmap, (void *context, void *memh)) \
  X(ucx_status, rkey_pack, (void *context, void *memh, void **buffer, size_t *len)) \
  X(void, rkey_buffer_release, (void *buffer)) \
  X(ucx_status, ep_rkey_unpack, (void *ep, const void *buffer, void **rkey)) \
  X(void, rkey_destroy, (void *rkey)) \
  X(void *, get_nbx, (void *ep, void *buffer, size_t n, uint64_t remote, void *rkey, const struct ucx_request_param *)) \
  X(ucx_status, request_check_status, (void *request)) \
  X(void, request_free, (void *request))

struct ucx_api {
#define UCX_MEMBER(result, name, args) result(*name) args;
  UCX_FUNCTIONS(UCX_MEMBER)
#undef UCX_MEMBER
  const char *(*status_text)(ucx_status);
};
#endif
