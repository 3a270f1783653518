/* SPDX-License-Identifier: Apache-2.0 */
/* Lines for people on stderr, one JSON line a request in the access log. */
#ifndef RD2H_PROXY_LOG_H
#define RD2H_PROXY_LOG_H
#include "proxy/flow.h"

enum px_level { PX_ERROR, PX_WARNING, PX_INFO, PX_DEBUG };

struct px_log {
  enum px_level level;
  const char *path; /* of the access log; "-": stdout, "": none */
  int fd;
};

struct px_access {
  const char *id, *client_id, *peer, *path;
  int status;
  size_t bytes_in;
  const struct px_parent *parent; /* may be NULL: it never got that far */
  const char *error;
  int64_t now;
};

bool rd2h_px_log_open(struct px_log *l, const char *level, const char *path);
/* After a rotation. */
void rd2h_px_log_reopen(struct px_log *l);
void rd2h_px_log_close(struct px_log *l);
/* id: of the request, or NULL. */
void rd2h_px_log(const struct px_log *l, enum px_level level, const char *id, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void rd2h_px_log_access(const struct px_log *l, const struct px_access *a);
#endif
