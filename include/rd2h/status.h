/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_STATUS_H
#define RD2H_STATUS_H
#include <rd2h/version.h>

/* Every status of the library: name, number, text. Numbers are frozen: they travel on the wire (per-request outcomes). */
#define RD2H_STATUS_MAP(X) \
  X(OK, 0, "success") \
  X(AGAIN, -1, "queue full, try again later") \
  X(INVALID, -2, "invalid argument") \
  X(RANGE, -3, "out of range") \
  X(NOMEM, -4, "out of memory") \
  X(TIMEOUT, -5, "deadline passed") \
  X(CANCELED, -6, "canceled") \
  X(PEER_LOST, -7, "peer lost") \
  X(LAYOUT, -8, "layouts differ") \
  X(MALFORMED, -9, "malformed message") \
  X(PERMISSION, -10, "not permitted") \
  X(UNSUPPORTED, -11, "not supported") \
  X(NOT_FOUND, -12, "not found") \
  X(EXISTS, -13, "already exists") \
  X(STATE, -14, "wrong state for this call") \
  X(LIMIT, -15, "a configured limit was reached") \
  X(IO, -16, "transfer failed") \
  X(SKIPPED, -17, "skipped: the request had already ended") \
  X(ABORTED, -18, "request aborted") \
  X(REFUSED, -19, "refused by the peer") \
  X(INTERNAL, -20, "internal error")

enum rd2h_status {
#define RD2H_STATUS_ENUM(name, number, text) RD2H_##name = number,
  RD2H_STATUS_MAP(RD2H_STATUS_ENUM)
#undef RD2H_STATUS_ENUM
};

/* One line a person can act on: what, where, both values, what to do. Filled only when a call fails. */
#define RD2H_ERROR_TEXT 480
struct rd2h_error {
  int status; /* enum rd2h_status */
  char text[RD2H_ERROR_TEXT];
};

#ifdef __cplusplus
extern "C" {
#endif
/* Text of a status ("peer lost"); never NULL, also for a number that is no status. */
RD2H_API const char *rd2h_status_text(int status);
/* Name of a status ("PEER_LOST"); "UNKNOWN" for a number that is no status. */
RD2H_API const char *rd2h_status_name(int status);
#ifdef __cplusplus
}
#endif
#endif
