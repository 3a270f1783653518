/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_TESTS_THROTTLE_H
#define RD2H_TESTS_THROTTLE_H
/* Makes one Prefill slow to read: a relay before its data connection, or a memory whose pages come one by one. At first nothing is
 * held up; from throttle_pace on, until throttle_release. */
#include "tests/integration/rig.h"

#define THROTTLE_HOST "127.0.0.78" /* the relay: what the rank is reached under */
#define THROTTLE_BIND "127.0.0.77" /* where the rank's engine listens */

struct throttle;
struct throttle *throttle_relay(void);
void throttle_relay_start(struct throttle *); /* the rank has been created */
/* Takes the pages away, and gives each back when it is read. NULL: cannot be had here. */
struct throttle *throttle_pages(void *base, uint64_t len);
/* From now on a message of so many bytes takes so long. */
void throttle_pace(struct throttle *, uint64_t message_ns, uint64_t message_bytes);
void throttle_release(struct throttle *);
void throttle_close(struct throttle *); /* takes NULL */
#endif
