/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/local/local.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define STAT_STARTTIME 22 /* field of /proc/PID/stat, counted from 1 */
#define STAT_AFTER_NAME 3 /* the field that follows the name in parentheses, which may hold anything */

/* Reads a small file of /proc as text. Returns 0 or an errno. */
static int slurp(const char *path, char *out, size_t cap) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return errno;
  ssize_t n = read(fd, out, cap - 1);
  int rc = n < 0 ? errno : 0;
  close(fd);
  out[n < 0 ? 0 : n] = 0;
  return rc;
}

int rd2h_local_start_time(uint32_t pid, uint64_t *start) {
  char path[32], text[1024];
  snprintf(path, sizeof path, "/proc/%u/stat", pid);
  int rc = slurp(path, text, sizeof text);
  if (rc)
    return rc;
  char *p = strrchr(text, ')');
  for (int field = STAT_AFTER_NAME - 1; p && field < STAT_STARTTIME; field++)
    if ((p = strchr(p, ' ')))
      p++;
  if (!p)
    return EPROTO;
  *start = strtoull(p, NULL, 10);
  return 0;
}

static int boot_id(uint8_t out[16]) {
  char text[64];
  int rc = slurp("/proc/sys/kernel/random/boot_id", text, sizeof text), n = 0;
  for (const char *p = text; !rc && *p && n < 32; p++) {
    const char *digit = strchr("0123456789abcdef", *p);
    if (!digit)
      continue;
    int v = (int)(digit - "0123456789abcdef");
    out[n / 2] = (uint8_t)(n % 2 ? out[n / 2] | v : v << 4);
    n++;
  }
  return rc || n == 32 ? rc : EPROTO;
}

int rd2h_local_self(struct rd2h_local_conn *c, struct rd2h_error *err) {
  struct stat ns;
  c->pid = (uint32_t)getpid();
  c->uid = getuid();
  c->pid_ns = stat("/proc/self/ns/pid", &ns) ? 0 : ns.st_ino;
  int rc = rd2h_local_start_time(c->pid, &c->start);
  if (!rc)
    rc = boot_id(c->boot_id);
  if (rc)
    return rd2h_fail(err, RD2H_UNSUPPORTED, "engine local: cannot read /proc/self/stat or the boot id: %s; mount /proc, or "
                     "choose another transfer engine", strerror(rc));
  if (gethostname(c->host, sizeof c->host))
    c->host[0] = 0;
  c->host[LOCAL_HOST_MAX] = 0;
  c->host_len = (uint32_t)strlen(c->host);
  return RD2H_OK;
}

uint32_t rd2h_local_uid(uint32_t pid, uint32_t otherwise) {
  struct stat st;
  char path[32];
  snprintf(path, sizeof path, "/proc/%u", pid);
  return stat(path, &st) ? otherwise : st.st_uid;
}

int rd2h_local_yama(void) {
  char text[16];
  return slurp("/proc/sys/kernel/yama/ptrace_scope", text, sizeof text) ? -1 : atoi(text);
}

int rd2h_local_denied(const struct rd2h_local_conn *c, uint32_t my_uid, int scope, struct rd2h_error *err) {
  static const char *const yama[] = {
    [1] = "start Prefill with the engine option yama=any (it calls PR_SET_PTRACER), set kernel.yama.ptrace_scope=0, or give this "
          "process CAP_SYS_PTRACE",
    [2] = "give this process CAP_SYS_PTRACE, or set kernel.yama.ptrace_scope=0",
    [3] = "no process may read another until the host boots with a lower one: choose another transfer engine",
  };
  if (c->uid != my_uid)
    return rd2h_fail(err, RD2H_PERMISSION, "engine local: process %u may not be read: it runs as user id %u, this one as %u; run "
                     "both as one user, or give this process CAP_SYS_PTRACE", c->pid, c->uid, my_uid);
  if (scope >= 1 && scope < (int)RD2H_COUNT(yama))
    return rd2h_fail(err, RD2H_PERMISSION, "engine local: process %u may not be read: kernel.yama.ptrace_scope is %d; %s", c->pid,
                     scope, yama[scope]);
  return rd2h_fail(err, RD2H_PERMISSION, "engine local: process %u may not be read, though both run as user id %u and Yama does "
                   "not forbid it: it is not dumpable, it has groups or capabilities that this process lacks, or a container's "
                   "seccomp profile forbids process_vm_readv; give this process CAP_SYS_PTRACE", c->pid, my_uid);
}
