/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory can still be had: of the machine, and of the control groups (v1 or v2) that this process is in. */
#include "pool/pool.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define FILE_BYTES 16384
#define PATH_BYTES 4096

/* A small text file; false when it cannot be read. */
static bool slurp(const char *root, const char *path, char text[FILE_BYTES]) {
  char name[PATH_BYTES + 256];
  snprintf(name, sizeof name, "%s%s", root, path);
  FILE *f = fopen(name, "re");
  if (!f)
    return false;
  size_t n = fread(text, 1, FILE_BYTES - 1, f);
  text[n] = 0;
  fclose(f);
  return n > 0;
}

/* The number after `key` at the beginning of a line. */
static bool field(const char *text, const char *key, uint64_t *out) {
  size_t n = strlen(key);
  for (const char *p = text; p; p = strchr(p, '\n') ? strchr(p, '\n') + 1 : NULL)
    if (!strncmp(p, key, n) && (p[n] == ' ' || p[n] == ':'))
      return sscanf(p + n + 1, "%" SCNu64, out) == 1;
  return false;
}

static bool machine(const char *root, struct pool_room *r) {
  char text[FILE_BYTES];
  uint64_t available, total;
  if (!slurp(root, "/proc/meminfo", text) || !field(text, "MemAvailable", &available) || !field(text, "MemTotal", &total))
    return false;
  *r = (struct pool_room){.available = available << 10, .total = total << 10, .where = "this machine"};
  return true;
}

struct group_files {
  const char *prefix, *mount, *limit, *usage, *cache; /* cache: of memory.stat, what the kernel gives back under pressure */
};
static const struct group_files versions[] = {
    {"0::", "/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"},
    {":memory:", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"}};

static bool group_number(const char *root, const char *folder, const char *file, char text[FILE_BYTES], uint64_t *out) {
  char path[PATH_BYTES + 64];
  snprintf(path, sizeof path, "%s/%s", folder, file);
  return slurp(root, path, text) && sscanf(text, "%" SCNu64, out) == 1; /* "max" is no number: no limit */
}

static void tighten(const char *root, const struct group_files *g, const char *folder, struct pool_room *r) {
  char text[FILE_BYTES], path[PATH_BYTES + 64];
  uint64_t limit, used, cache = 0;
  if (!group_number(root, folder, g->limit, text, &limit) || !group_number(root, folder, g->usage, text, &used))
    return;
  snprintf(path, sizeof path, "%s/memory.stat", folder);
  if (slurp(root, path, text))
    field(text, g->cache, &cache);
  used -= cache < used ? cache : used;
  uint64_t left = used < limit ? limit - used : 0;
  if (left >= r->available)
    return;
  *r = (struct pool_room){.available = left, .total = limit};
  snprintf(r->where, sizeof r->where, "control group %.180s", folder);
}

/* From the process's own group up to the root of the mount: each may have a limit. A container may see its own path nowhere below
 * the mount; then only the upper folders exist. */
static void walk(const char *root, const struct group_files *g, const char *path, size_t n, struct pool_room *r) {
  char folder[PATH_BYTES];
  size_t mount = strlen(g->mount);
  if (mount + n >= sizeof folder)
    return;
  memcpy(folder, g->mount, mount);
  memcpy(folder + mount, path, n);
  for (size_t end = mount + n;;) {
    folder[end] = 0;
    tighten(root, g, folder, r);
    if (end <= mount)
      return;
    while (end > mount && folder[--end] != '/')
      ;
  }
}

bool pool_room(const char *root, struct pool_room *r) {
  char text[FILE_BYTES];
  if (!machine(root, r))
    return false;
  if (!slurp(root, "/proc/self/cgroup", text))
    return true;
  for (char *line = text; line && *line;) {
    char *end = strchr(line, '\n');
    if (end)
      *end = 0;
    for (size_t v = 0; v < RD2H_COUNT(versions); v++) {
      const char *at = v ? strstr(line, versions[v].prefix) : line;
      size_t n = strlen(versions[v].prefix);
      if (at && !strncmp(at, versions[v].prefix, n))
        walk(root, &versions[v], at + n, strlen(at + n), r);
    }
    line = end ? end + 1 : NULL;
  }
  return true;
}

void pool_huge_pages(const char *root, uint64_t *n_free, uint64_t *total) {
  char text[FILE_BYTES];
  *n_free = *total = 0;
  if (slurp(root, "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", text))
    *n_free = strtoull(text, NULL, 10);
  if (slurp(root, "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", text))
    *total = strtoull(text, NULL, 10);
}
