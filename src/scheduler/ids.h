/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_IDS_H
#define RD2H_IDS_H
#include "base/base.h"
/* INVALID unless the id can travel in a step: 1 to RD2H_STEP_MAX_ID bytes of UTF-8. */
int rd2h_id_check(const char *id, struct rd2h_error *);
#endif
