/* SPDX-License-Identifier: Apache-2.0 */
#include "doctor.h"
#include "table.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>
#include <zmq.h>

#define CAP_PTRACE 19
#define FILES_WANTED 4096u
#define SHM_WANTED (UINT64_C(1) << 30)

bool doctor_read(const char *path, char *out, size_t cap) {
  FILE *f = fopen(path, "re");
  bool good = f && fgets(out, (int)cap, f);
  if (f)
    fclose(f);
  if (good)
    out[strcspn(out, "\n")] = 0;
  return good;
}

/* A number of /proc/meminfo or /proc/self/status, in its own unit. */
static bool field(const char *path, const char *name, int base, uint64_t *out) {
  char line[256];
  size_t n = strlen(name);
  FILE *f = fopen(path, "re");
  bool found = false;
  while (f && !found && fgets(line, sizeof line, f)) {
    found = !strncmp(line, name, n) && line[n] == ':';
    if (found)
      *out = strtoull(line + n + 1, NULL, base);
  }
  if (f)
    fclose(f);
  return found;
}

static bool may_trace(void) {
  uint64_t caps = 0;
  return field("/proc/self/status", "CapEff", 16, &caps) && caps >> CAP_PTRACE & 1;
}

static void check_ptrace(struct doctor *d) {
  char text[32] = "0", from = 1, to = 0;
  struct iovec l = {&to, 1}, r = {&from, 1};
  int scope = doctor_read("/proc/sys/kernel/yama/ptrace_scope", text, sizeof text) ? atoi(text) : 0;
  if (process_vm_readv(getpid(), &l, 1, &r, 1, 0) != 1)
    doctor_advise(doctor_add(d, "permissions", "ptrace", DOCTOR_MISSING, "process_vm_readv does not work here: %s",
                             strerror(errno)),
                  "allow it in the container's seccomp profile; engine local and UCX's cma need it");
  else if (scope >= 2 && !may_trace())
    doctor_advise(doctor_add(d, "permissions", "ptrace", DOCTOR_MISSING, "kernel.yama.ptrace_scope is %d: no process may read "
                             "another",
                             scope), "%s", scope == 2 ? "give Decode CAP_SYS_PTRACE, or set kernel.yama.ptrace_scope=0"
                                                      : "it can only be lowered by booting again: use engine tcp");
  else if (scope == 1 && !may_trace())
    doctor_add(d, "permissions", "ptrace", DOCTOR_OK, "kernel.yama.ptrace_scope is 1: Prefill itself lets processes of its user "
               "read it");
  else
    doctor_add(d, "permissions", "ptrace", DOCTOR_OK, "processes of one user may read each other%s (kernel.yama.ptrace_scope %d)",
               may_trace() ? ", this one any" : "", scope);
}

static void check_limit(struct doctor *d, int which, const char *name, uint64_t wanted, const char *unit, const char *advice) {
  struct rlimit l;
  char have[32];
  getrlimit(which, &l);
  if (l.rlim_cur == RLIM_INFINITY)
    snprintf(have, sizeof have, "unlimited");
  else if (*unit)
    snprintf(have, sizeof have, "%" PRIu64 "%s", (uint64_t)l.rlim_cur, unit);
  else
    size_text(l.rlim_cur, have);
  bool enough = l.rlim_cur == RLIM_INFINITY || l.rlim_cur >= wanted;
  struct doctor_finding *f = doctor_add(d, "permissions", name, enough ? DOCTOR_OK : DOCTOR_WARN, "%s", have);
  if (!enough)
    doctor_advise(f, "%s", advice);
}

/* ---- memory ---- */
static void check_memory(struct doctor *d) {
  uint64_t available = 0, total = 0;
  char a[32], b[32], c[32], limit[64] = "";
  field("/proc/meminfo", "MemAvailable", 10, &available);
  field("/proc/meminfo", "MemTotal", 10, &total);
  size_text(available << 10, a);
  size_text(total << 10, b);
  if (doctor_read("/sys/fs/cgroup/memory.max", limit, sizeof limit) && *limit != 'm')
    doctor_add(d, "memory", "available", DOCTOR_OK, "%s of %s; the control group allows %s", a, b, size_text(strtoull(limit,
                                                                                                                        NULL, 10), c));
  else
    doctor_add(d, "memory", "available", DOCTOR_OK, "%s of %s", a, b);
}

static void check_huge(struct doctor *d) {
  uint64_t total = 0, free_pages = 0, size = 0;
  char thp[128] = "not built in", a[32];
  field("/proc/meminfo", "HugePages_Total", 10, &total);
  field("/proc/meminfo", "HugePages_Free", 10, &free_pages);
  field("/proc/meminfo", "Hugepagesize", 10, &size);
  doctor_read("/sys/kernel/mm/transparent_hugepage/shmem_enabled", thp, sizeof thp);
  const char *on = strchr(thp, '[');
  bool shmem = on && strncmp(on, "[never]", 7) && strncmp(on, "[deny]", 6);
  if (total)
    doctor_add(d, "memory", "huge pages", DOCTOR_OK, "%" PRIu64 " of %" PRIu64 " free, %s each", free_pages, total,
               size_text(size << 10, a));
  else if (shmem)
    doctor_add(d, "memory", "huge pages", DOCTOR_OK, "none reserved; shared memory gets transparent ones (%s)", thp);
  else
    doctor_advise(doctor_add(d, "memory", "huge pages", DOCTOR_WARN, "none reserved, none for shared memory (shmem_enabled: %s)",
                             thp),
                  "everything works with 4 KiB pages, reads of foreign memory at 60 %% of the speed: reserve some with "
                  "sysctl vm.nr_hugepages=N, or write advise to /sys/kernel/mm/transparent_hugepage/shmem_enabled");
}

static void check_numa(struct doctor *d) {
  char nodes[64] = "";
  if (!doctor_read("/sys/devices/system/node/online", nodes, sizeof nodes))
    doctor_add(d, "memory", "NUMA", DOCTOR_OK, "the kernel knows of no nodes");
  else if (!strchr(nodes, '-') && !strchr(nodes, ','))
    doctor_add(d, "memory", "NUMA", DOCTOR_OK, "one node");
  else
    doctor_advise(doctor_add(d, "memory", "NUMA", DOCTOR_OK, "nodes %s", nodes),
                  "keep a rank's pool on the node of its device (numa_nodes of the pool)");
}

static void check_shm(struct doctor *d) {
  struct statvfs s;
  char a[32], b[32];
  if (statvfs("/dev/shm", &s)) {
    doctor_advise(doctor_add(d, "memory", "/dev/shm", DOCTOR_WARN, "not there: %s", strerror(errno)),
                  "mount a tmpfs: UCX's posix transport and vLLM want it; rd2h's own pools do not");
    return;
  }
  uint64_t size = (uint64_t)s.f_blocks * s.f_frsize, left = (uint64_t)s.f_bavail * s.f_frsize;
  struct doctor_finding *f = doctor_add(d, "memory", "/dev/shm", size < SHM_WANTED ? DOCTOR_WARN : DOCTOR_OK, "%s free of %s",
                                        size_text(left, a), size_text(size, b));
  if (size < SHM_WANTED)
    doctor_advise(f, "start the container with a larger one (--shm-size=8g): vLLM and UCX use it; rd2h's own pools do not");
}

static void check_zmq(struct doctor *d) {
  int major, minor, patch;
  zmq_version(&major, &minor, &patch);
  struct doctor_finding *f = doctor_add(d, "libraries", "libzmq", zmq_has("curve") ? DOCTOR_OK : DOCTOR_WARN, "%d.%d.%d, %s "
                                        "CURVE", major,
                                        minor, patch, zmq_has("curve") ? "with" : "without");
  if (!zmq_has("curve"))
    doctor_advise(f, "the control path cannot be encrypted: install a libzmq that was built with libsodium");
}

void doctor_system(struct doctor *d) {
  check_zmq(d);
  check_ptrace(d);
  check_limit(d, RLIMIT_MEMLOCK, "locked memory", UINT64_C(1) << 40, "",
              "ulimit -l unlimited (container: --ulimit memlock=-1): pools cannot be locked beyond it, and RDMA cannot register "
              "more");
  check_limit(d, RLIMIT_NOFILE, "open files", FILES_WANTED, " ", "ulimit -n 65536: each pair of ranks takes up to eight");
  check_memory(d);
  check_shm(d);
  check_huge(d);
  check_numa(d);
}
