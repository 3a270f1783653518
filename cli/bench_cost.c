/* SPDX-License-Identifier: Apache-2.0 */
/* What another process has cost so far. */
#include "bench.h"
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static double resident_kb(pid_t pid) {
  char path[64], line[128];
  double kb = 0;
  snprintf(path, sizeof path, "/proc/%d/status", pid);
  FILE *f = fopen(path, "re");
  while (f && fgets(line, sizeof line, f))
    if (sscanf(line, "VmHWM: %lf", &kb) == 1)
      break;
  if (f)
    fclose(f);
  return kb;
}

static double process_ns(pid_t pid) {
  clockid_t id;
  struct timespec t = {0};
  if (!clock_getcpuclockid(pid, &id))
    clock_gettime(id, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* As the kernel's scheduler counts it. */
static double thread_ns(pid_t pid) {
  char path[64], name[64];
  double ns = 0, one;
  snprintf(path, sizeof path, "/proc/%d/task", pid);
  DIR *d = opendir(path);
  for (struct dirent *e; d && (e = readdir(d));) {
    snprintf(path, sizeof path, "/proc/%d/task/%.16s/comm", pid, e->d_name);
    FILE *f = fopen(path, "re");
    bool ours = f && fgets(name, sizeof name, f) && !strcmp(name, BENCH_CONTROL_THREAD "\n");
    if (f)
      fclose(f);
    snprintf(path, sizeof path, "/proc/%d/task/%.16s/schedstat", pid, e->d_name);
    f = ours ? fopen(path, "re") : NULL;
    if (f && fscanf(f, "%lf", &one) == 1)
      ns += one;
    if (f)
      fclose(f);
  }
  if (d)
    closedir(d);
  return ns;
}

struct bench_cost bench_cost_of(pid_t pid) {
  return (struct bench_cost){process_ns(pid), thread_ns(pid), resident_kb(pid)};
}

struct bench_cost bench_cost_since(pid_t pid, struct bench_cost begin, double messages) {
  struct bench_cost now = bench_cost_of(pid);
  return (struct bench_cost){(now.process_ns - begin.process_ns) / messages, (now.thread_ns - begin.thread_ns) / messages, now.resident_kb};
}
