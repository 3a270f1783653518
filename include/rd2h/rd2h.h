/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_H
#define RD2H_H
/* The public C API of rd2h: one header a subject, this one for all of them. */
#include <rd2h/completion.h>
#include <rd2h/decode.h>
#include <rd2h/device.h>
#include <rd2h/engine.h>
#include <rd2h/layout.h>
#include <rd2h/log.h>
#include <rd2h/memory.h>
#include <rd2h/peers.h>
#include <rd2h/plan.h>
#include <rd2h/pool.h>
#include <rd2h/prefill.h>
#include <rd2h/scheduler.h>
#include <rd2h/security.h>
#include <rd2h/status.h>
#include <rd2h/trace.h>
#include <rd2h/version.h>
#endif
