/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_CONNECTOR_OPTIONS_H
#define RD2H_CONNECTOR_OPTIONS_H
/* Options of the public objects: checked, and completed with the defaults that stand for 0. */
#include "base/base.h"
#include <rd2h/decode.h>
#include <rd2h/prefill.h>

int rd2h_decode_options(const struct rd2h_decode_opts *, struct rd2h_decode_opts *full, struct rd2h_error *);
int rd2h_prefill_options(const struct rd2h_prefill_opts *, struct rd2h_prefill_opts *full, struct rd2h_error *);
#endif
