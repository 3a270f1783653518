/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/ids.h"
#include "base/msgpack.h"
#include "scheduler/step.h"
#include <rd2h/scheduler.h>

#define SUFFIX 9u /* "-" and 8 hex digits: what the engine appends to make an id unique */

static bool is_suffix(const char *s) {
  return s[0] == '-' && strspn(s + 1, "0123456789abcdef") == SUFFIX - 1;
}

size_t rd2h_external_id_len(const char *id, bool strict) {
  size_t n = strlen(id);
  if (n <= SUFFIX || (strict && !is_suffix(id + n - SUFFIX)))
    return n;
  return n - SUFFIX;
}

int rd2h_id_check(const char *id, struct rd2h_error *err) {
  size_t n = strlen(id);
  if (!n || n > RD2H_STEP_MAX_ID)
    return rd2h_fail(err, RD2H_INVALID, "request id %.64s%s has %zu bytes, must have 1 to %u", id, n > 64 ? "…" : "", n,
                     RD2H_STEP_MAX_ID);
  size_t valid = rd2h_utf8_prefix(id, n);
  if (valid != n)
    return rd2h_fail(err, RD2H_INVALID, "request id is not UTF-8 from byte %zu on, after \"%.*s\"", valid,
                     (int)(valid < 64 ? valid : 64), id);
  return RD2H_OK;
}
