/* SPDX-License-Identifier: Apache-2.0 */
/* Processes of this host: which one published connection data, and whether it is still there. */
#include "engines/ucx/ucx.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <unistd.h>

#define STAT_STARTTIME 22 /* field of /proc/PID/stat, counted from 1 */
#define STAT_NAME 2       /* in parentheses; may hold anything */

static bool slurp(const char *path, char *out, size_t cap) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return false;
  ssize_t n = read(fd, out, cap - 1);
  close(fd);
  out[n < 0 ? 0 : n] = 0;
  return n > 0;
}

/* Clock ticks since boot; 0: unknown. */
static uint64_t start_time(uint32_t pid) {
  char path[32], text[1024];
  snprintf(path, sizeof path, "/proc/%u/stat", pid);
  const char *p = slurp(path, text, sizeof text) ? strrchr(text, ')') : NULL;
  for (int field = STAT_NAME; p && field < STAT_STARTTIME; field++)
    if ((p = strchr(p, ' ')))
      p++;
  return p ? strtoull(p, NULL, 10) : 0;
}

void rd2h_ucx_self(struct ucx_process *p) {
  struct stat ns;
  char text[64] = "";
  uint32_t n = 0;
  *p = (struct ucx_process){.pid = (uint32_t)getpid(), .start = start_time((uint32_t)getpid())};
  p->pid_ns = stat("/proc/self/ns/pid", &ns) ? 0 : ns.st_ino;
  slurp("/proc/sys/kernel/random/boot_id", text, sizeof text);
  for (const char *c = text; *c && n < 32; c++) {
    static const char digits[] = "0123456789abcdef";
    const char *digit = strchr(digits, *c);
    if (digit) {
      p->boot_id[n / 2] = (uint8_t)(p->boot_id[n / 2] << 4 | (digit - digits));
      n++;
    }
  }
}

int rd2h_ucx_watch(const struct ucx_process *self, const struct ucx_process *p, int *pidfd, struct rd2h_error *err) {
  *pidfd = -1;
  if (!p->start || !p->pid_ns || p->pid_ns != self->pid_ns || memcmp(p->boot_id, self->boot_id, sizeof p->boot_id))
    return RD2H_OK; /* of another host, or in another container */
  int fd = pidfd_open((pid_t)p->pid, 0);
  if (fd < 0 && (errno == ESRCH || errno == EINVAL))
    return rd2h_fail(err, RD2H_PEER_LOST, "engine ucx: Prefill's process %u has ended; Prefill must connect again", p->pid);
  if (fd < 0)
    return errno == EMFILE || errno == ENFILE ? rd2h_fail(err, RD2H_LIMIT, "engine ucx: cannot watch process %u: %s; it needs "
                                                          "file descriptors for each peer (ulimit -n)", p->pid, strerror(errno))
                                              : RD2H_OK; /* a kernel without pidfd: UCX alone watches */
  if (start_time(p->pid) != p->start) {
    close(fd);
    return rd2h_fail(err, RD2H_PEER_LOST, "engine ucx: Prefill's process %u has ended and its pid is another's; Prefill must "
                     "connect again", p->pid);
  }
  *pidfd = fd;
  return RD2H_OK;
}
