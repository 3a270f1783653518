/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_SRC_PLAN_H
#define RD2H_SRC_PLAN_H
/* Block ranges, TP and contributor shares, descriptors: the hot path. The whole face is public. */
#include "base/base.h"
#include "layout/layout.h"
#include <rd2h/plan.h>
#endif
