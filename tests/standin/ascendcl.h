/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_TESTS_STANDIN_ASCENDCL_H
#define RD2H_TESTS_STANDIN_ASCENDCL_H
/* A libascendcl.so without a device, for tests: streams that stand still until told, calls that are counted and can be made to fail.
 * As in the real one, an event function called by a thread without a device returns 107002. */
#include <stdbool.h>
#include <stdint.h>

enum standin_call {
  STANDIN_INIT, STANDIN_DEVICE_COUNT, STANDIN_SET_DEVICE, STANDIN_CREATE_EVENT, STANDIN_DESTROY_EVENT, STANDIN_RECORD_EVENT,
  STANDIN_QUERY_EVENT, STANDIN_WAIT_EVENT, STANDIN_REGISTER_HOST, STANDIN_UNREGISTER_HOST, STANDIN_CALLS
};
#define STANDIN_DEVICES 8

/* A stream is a struct of the test's, zeroed; the library is given its address. */
struct standin_stream {
  uint64_t given, reached; /* events recorded; of those, how many were got to */
  bool held;               /* stands still: events recorded from now on are not got to before standin_run */
};

void standin_reset(void); /* counts and failures; events that live stay */
void standin_fail(enum standin_call, int code); /* this call returns code from now on; 0: it works again */
uint32_t standin_count(enum standin_call);
bool standin_await(enum standin_call, uint32_t count, uint32_t ms); /* until it was called so often; false: not within ms */
void standin_run(struct standin_stream *, uint64_t events); /* gets to the next so many */
uint32_t standin_events(void);  /* that live */
uint32_t standin_pinned(void);  /* areas registered now */
/* Until so many threads have set this device since the reset; false: not within ms. */
bool standin_await_threads(int32_t device, uint32_t threads, uint32_t ms);
#endif
