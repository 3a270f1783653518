/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_BASE_READY_H
#define RD2H_BASE_READY_H
/* A descriptor that is readable exactly while something waits, for whoever sleeps in poll. Only a change costs a system call. Its user
 * serialises the calls. */
#include <stdbool.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct rd2h_ready {
  int fd; /* -1: none */
  bool up;
};

/* False: there is no descriptor to be had, errno says why. */
static inline bool rd2h_ready_open(struct rd2h_ready *r) {
  *r = (struct rd2h_ready){.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  return r->fd >= 0;
}

static inline void rd2h_ready_close(struct rd2h_ready *r) {
  if (r->fd >= 0)
    close(r->fd);
  r->fd = -1;
}

/* What could not be written or read is tried again by the next call. */
static inline void rd2h_ready_set(struct rd2h_ready *r, bool up) {
  eventfd_t v;
  if (up != r->up && !(up ? eventfd_write(r->fd, 1) : eventfd_read(r->fd, &v)))
    r->up = up;
}
#endif
