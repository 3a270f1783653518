/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"
#include "base/text.h"
#include <stdio.h>

struct status_row {
  int number;
  const char *name, *text;
};
static const struct status_row status_rows[] = {
#define STATUS_ROW(name, number, text) {number, #name, text},
  RD2H_STATUS_MAP(STATUS_ROW)
#undef STATUS_ROW
};

static const struct status_row *status_find(int status) {
  for (size_t i = 0; i < RD2H_COUNT(status_rows); i++)
    if (status_rows[i].number == status)
      return &status_rows[i];
  return NULL;
}

const char *rd2h_status_text(int status) {
  const struct status_row *row = status_find(status);
  return row ? row->text : "unknown status";
}

const char *rd2h_status_name(int status) {
  const struct status_row *row = status_find(status);
  return row ? row->name : "UNKNOWN";
}

const char *rd2h_version(void) {
  return RD2H_VERSION_STRING;
}

enum rd2h_cause rd2h_status_cause(int status) {
  static const uint8_t causes[] = {
      [-RD2H_ABORTED] = RD2H_CAUSE_ABORTED, [-RD2H_SKIPPED] = RD2H_CAUSE_ABORTED, [-RD2H_IO] = RD2H_CAUSE_TRANSPORT,
      [-RD2H_CANCELED] = RD2H_CAUSE_TRANSPORT, [-RD2H_PEER_LOST] = RD2H_CAUSE_PEER, [-RD2H_LAYOUT] = RD2H_CAUSE_LAYOUT,
      [-RD2H_RANGE] = RD2H_CAUSE_LAYOUT, [-RD2H_INVALID] = RD2H_CAUSE_LAYOUT, [-RD2H_TIMEOUT] = RD2H_CAUSE_EXPIRED};
  uint32_t i = (uint32_t)-(int64_t)status;
  if (!status)
    return RD2H_CAUSE_NONE;
  return i < RD2H_COUNT(causes) && causes[i] ? (enum rd2h_cause)causes[i] : RD2H_CAUSE_OTHER;
}

void rd2h_text_one_line(char *s) {
  for (; *s; s++)
    if ((unsigned char)*s < 0x20 || *s == 0x7f)
      *s = ' ';
}

int rd2h_fail(struct rd2h_error *err, int status, const char *fmt, ...) {
  if (!err)
    return status;
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(err->text, sizeof err->text, fmt, ap);
  va_end(ap);
  rd2h_text_one_line(err->text);
  err->status = status;
  return status;
}

int rd2h_nomem(struct rd2h_error *err, const char *what) {
  return rd2h_fail(err, RD2H_NOMEM, "out of memory for %s", what);
}
