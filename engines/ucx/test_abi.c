/* SPDX-License-Identifier: Apache-2.0 */
/* Our declarations of UCX's binary interface against its own headers: wrong ones do not compile. Built where the headers are. */
#include "engines/ucx/api.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <ucp/api/ucp.h>
#include <ucs/debug/log_def.h>

#define NUMBER(ours, theirs) _Static_assert((long long)(ours) == (long long)(theirs), #ours " differs from " #theirs)
#define FIELD(ours, field, theirs, name) \
  _Static_assert(offsetof(struct ours, field) == offsetof(theirs, name), #ours "." #field " stands elsewhere"); \
  _Static_assert(sizeof(((struct ours *)0)->field) == sizeof(((theirs *)0)->name), #ours "." #field " has another size")
#define SAME_SIZE(ours, theirs) _Static_assert(sizeof(ours) == sizeof(theirs), #ours " has another size")

SAME_SIZE(ucx_status, ucs_status_t);
NUMBER(UCX_OK, UCS_OK);
NUMBER(UCX_INPROGRESS, UCS_INPROGRESS);
NUMBER(UCX_NO_MEMORY, UCS_ERR_NO_MEMORY);
NUMBER(UCX_UNREACHABLE, UCS_ERR_UNREACHABLE);
NUMBER(UCX_NO_DEVICE, UCS_ERR_NO_DEVICE);
NUMBER(UCX_BUSY, UCS_ERR_BUSY);
NUMBER(UCX_CANCELED, UCS_ERR_CANCELED);
NUMBER(UCX_NOT_CONNECTED, UCS_ERR_NOT_CONNECTED);
NUMBER(UCX_CONNECTION_RESET, UCS_ERR_CONNECTION_RESET);
NUMBER(UCX_FIRST_LINK_FAILURE, UCS_ERR_FIRST_LINK_FAILURE);
NUMBER(UCX_LAST_LINK_FAILURE, UCS_ERR_LAST_LINK_FAILURE);
NUMBER(UCX_FIRST_ENDPOINT_FAILURE, UCS_ERR_FIRST_ENDPOINT_FAILURE);
NUMBER(UCX_LAST_ENDPOINT_FAILURE, UCS_ERR_LAST_ENDPOINT_FAILURE);
NUMBER(UCX_LAST_STATUS, UCS_ERR_LAST);
NUMBER(UCX_FEATURE_RMA, UCP_FEATURE_RMA);
NUMBER(UCX_FEATURE_WAKEUP, UCP_FEATURE_WAKEUP);
NUMBER(UCX_FEATURE_AM, UCP_FEATURE_AM);
NUMBER(UCX_PARAM_FEATURES, UCP_PARAM_FIELD_FEATURES);
FIELD(ucx_params, mask, ucp_params_t, field_mask);
FIELD(ucx_params, features, ucp_params_t, features);
NUMBER(UCX_WORKER_PARAM_THREAD_MODE, UCP_WORKER_PARAM_FIELD_THREAD_MODE);
NUMBER(UCX_THREAD_SERIALIZED, UCS_THREAD_MODE_SERIALIZED);
FIELD(ucx_worker_params, mask, ucp_worker_params_t, field_mask);
FIELD(ucx_worker_params, thread_mode, ucp_worker_params_t, thread_mode);
NUMBER(UCX_MEM_MAP_ADDRESS, UCP_MEM_MAP_PARAM_FIELD_ADDRESS);
NUMBER(UCX_MEM_MAP_LENGTH, UCP_MEM_MAP_PARAM_FIELD_LENGTH);
FIELD(ucx_mem_map_params, mask, ucp_mem_map_params_t, field_mask);
FIELD(ucx_mem_map_params, address, ucp_mem_map_params_t, address);
FIELD(ucx_mem_map_params, length, ucp_mem_map_params_t, length);
NUMBER(UCX_EP_REMOTE_ADDRESS, UCP_EP_PARAM_FIELD_REMOTE_ADDRESS);
NUMBER(UCX_EP_ERR_MODE, UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE);
NUMBER(UCX_EP_ERR_HANDLER, UCP_EP_PARAM_FIELD_ERR_HANDLER);
NUMBER(UCX_ERR_MODE_PEER, UCP_ERR_HANDLING_MODE_PEER);
FIELD(ucx_ep_params, mask, ucp_ep_params_t, field_mask);
FIELD(ucx_ep_params, address, ucp_ep_params_t, address);
FIELD(ucx_ep_params, err_mode, ucp_ep_params_t, err_mode);
FIELD(ucx_ep_params, err_handler, ucp_ep_params_t, err_handler);
FIELD(ucx_ep_params, err_handler.cb, ucp_ep_params_t, err_handler.cb);
FIELD(ucx_ep_params, err_handler.arg, ucp_ep_params_t, err_handler.arg);
NUMBER(UCX_EP_ATTR_TRANSPORTS, UCP_EP_ATTR_FIELD_TRANSPORTS);
FIELD(ucx_ep_attr, mask, ucp_ep_attr_t, field_mask);
FIELD(ucx_ep_attr, transports, ucp_ep_attr_t, transports);
FIELD(ucx_ep_attr, transports.entries, ucp_ep_attr_t, transports.entries);
FIELD(ucx_ep_attr, transports.n, ucp_ep_attr_t, transports.num_entries);
FIELD(ucx_ep_attr, transports.entry_size, ucp_ep_attr_t, transports.entry_size);
FIELD(ucx_transport, name, ucp_transport_entry_t, transport_name);
FIELD(ucx_transport, device, ucp_transport_entry_t, device_name);
NUMBER(UCX_OP_CALLBACK, UCP_OP_ATTR_FIELD_CALLBACK);
NUMBER(UCX_OP_USER_DATA, UCP_OP_ATTR_FIELD_USER_DATA);
NUMBER(UCX_OP_FLAGS, UCP_OP_ATTR_FIELD_FLAGS);
NUMBER(UCX_OP_MEMH, UCP_OP_ATTR_FIELD_MEMH);
NUMBER(UCX_CLOSE_FORCE, UCP_EP_CLOSE_FLAG_FORCE);
FIELD(ucx_request_param, mask, ucp_request_param_t, op_attr_mask);
FIELD(ucx_request_param, flags, ucp_request_param_t, flags);
FIELD(ucx_request_param, cb, ucp_request_param_t, cb);
FIELD(ucx_request_param, user, ucp_request_param_t, user_data);
FIELD(ucx_request_param, memh, ucp_request_param_t, memh);
NUMBER(UCX_LOG_STOP, UCS_LOG_FUNC_RC_STOP);

/* The macros that read a pointer as a status agree with those of UCX. */
static void declarations_agree(void **state) {
  (void)state;
  assert_true(UCP_API_MAJOR == UCX_MAJOR && UCP_API_MINOR >= UCX_MINOR);
  assert_true(UCX_FAILED(UCS_STATUS_PTR(UCS_ERR_IO_ERROR)) && UCX_STATUS(UCS_STATUS_PTR(UCS_ERR_IO_ERROR)) == UCS_ERR_IO_ERROR);
  assert_false(UCX_FAILED(NULL) || UCX_FAILED((void *)state));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(declarations_agree)};
  return cmocka_run_group_tests_name("ucx_abi", tests, NULL, NULL);
}
