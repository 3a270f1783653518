/* SPDX-License-Identifier: Apache-2.0 */
/* A sealed memfd and its mapping: pages in place, where they were asked for, locked if that is allowed. */
#include "pool/pool.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MIB(bytes) ((unsigned long long)((bytes) >> 20))
#define FILL_STEP (UINT64_C(256) << 20) /* a signal undoes at most so much of the allocation */
#define MFD_2MIB (21u << 26) /* MFD_HUGE_2MB, which older headers lack */
#define MAX_NODE 65u /* the kernel wants one more than there are bits */

static int make_fd(const char *name, uint64_t bytes, bool huge) {
  int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | (huge ? MFD_HUGETLB | MFD_2MIB : 0));
  if (fd >= 0 && ftruncate(fd, (off_t)bytes)) {
    close(fd);
    fd = -1;
  }
  return fd;
}

/* The policy belongs to the memfd, so it also holds for pages that other ranks touch first. */
static int place(struct pool_mapping *m, uint64_t nodes, struct rd2h_error *err) {
  if (!nodes)
    return RD2H_OK;
  int mode = nodes & (nodes - 1) ? MPOL_INTERLEAVE : MPOL_BIND;
  unsigned long mask = nodes;
  if (!syscall(SYS_mbind, m->base, m->bytes, mode, &mask, MAX_NODE, 0)) {
    m->numa_nodes = nodes;
    return RD2H_OK;
  }
  if (errno == EINVAL)
    return rd2h_fail(err, RD2H_INVALID, "pool: NUMA node mask 0x%llx names a node that this machine lacks: look at "
                     "/sys/devices/system/node", (unsigned long long)nodes);
  RD2H_WARN("pool: pages lie where the kernel puts them, not on nodes 0x%llx: mbind: %s", (unsigned long long)nodes, strerror(errno));
  return RD2H_OK;
}

static int fill(const struct pool_mapping *m) {
  for (uint64_t at = 0; at < m->bytes;) {
    uint64_t n = m->bytes - at < FILL_STEP ? m->bytes - at : FILL_STEP;
    if (!fallocate(m->fd, 0, (off_t)at, (off_t)n))
      at += n;
    else if (errno != EINTR)
      return -1;
  }
  return 0;
}

static int lock(struct pool_mapping *m, enum rd2h_pool_lock how, struct rd2h_error *err) {
  struct rlimit limit = {0};
  if (how == RD2H_LOCK_OFF)
    return RD2H_OK;
  m->locked = !mlock(m->base, m->bytes);
  if (m->locked)
    return RD2H_OK;
  int error = errno;
  getrlimit(RLIMIT_MEMLOCK, &limit);
  if (how == RD2H_LOCK_MUST)
    return rd2h_fail(err, RD2H_PERMISSION, "pool: %llu MiB cannot be locked, the limit is %llu MiB (%s): raise it (ulimit -l)",
                     MIB(m->bytes), MIB(limit.rlim_cur), strerror(error));
  RD2H_INFO("pool: %llu MiB are not locked, the limit is %llu MiB: %s", MIB(m->bytes), MIB(limit.rlim_cur), strerror(error));
  return RD2H_OK;
}

/* OK, or AGAIN when there are no such pages. */
static int allocate(const struct rd2h_pool_opts *o, const char *name, bool huge, struct pool_mapping *m, struct rd2h_error *err) {
  int rc = RD2H_AGAIN;
  m->page_bytes = huge ? POOL_HUGE_PAGE : (uint64_t)sysconf(_SC_PAGESIZE);
  m->fd = make_fd(name, m->bytes, huge);
  if (m->fd < 0)
    return rc;
  m->base = rd2h_map_aligned(m->bytes, PROT_READ | PROT_WRITE, m->fd);
  if (!m->base)
    goto close_fd;
  if (!huge && o->pages == RD2H_PAGES_AUTO)
    madvise(m->base, m->bytes, MADV_HUGEPAGE); /* a wish */
  rc = place(m, o->numa_nodes, err);
  if (!rc)
    rc = fill(m) ? RD2H_AGAIN : RD2H_OK;
  if (!rc)
    return RD2H_OK;
  int error = errno;
  munmap(m->base, m->bytes);
  errno = error;
close_fd:
  error = errno;
  close(m->fd);
  errno = error;
  *m = (struct pool_mapping){.fd = -1, .bytes = m->bytes};
  return rc;
}

static int allocate_best(const struct rd2h_pool_opts *o, const char *name, struct pool_mapping *m, struct rd2h_error *err) {
  uint64_t free_pages, pages, need = m->bytes / POOL_HUGE_PAGE;
  pool_huge_pages("", &free_pages, &pages);
  int rc = RD2H_AGAIN;
  if (o->pages != RD2H_PAGES_SMALL && free_pages >= need)
    rc = allocate(o, name, true, m, err);
  if (rc != RD2H_AGAIN)
    return rc;
  if (o->pages == RD2H_PAGES_HUGE)
    return rd2h_fail(err, RD2H_LIMIT, "pool: %llu huge pages of 2 MiB are needed, %llu of %llu are free: raise vm.nr_hugepages",
                     (unsigned long long)need, (unsigned long long)free_pages, (unsigned long long)pages);
  if (o->pages == RD2H_PAGES_AUTO)
    RD2H_INFO("pool: ordinary pages, since %llu huge ones of 2 MiB are needed and %llu of %llu are free",
              (unsigned long long)need, (unsigned long long)free_pages, (unsigned long long)pages);
  rc = allocate(o, name, false, m, err);
  if (rc == RD2H_AGAIN)
    return rd2h_fail(err, RD2H_NOMEM, "pool: %llu MiB of shared memory cannot be had: %s", MIB(m->bytes), strerror(errno));
  return rc;
}

int pool_mapping_make(const struct rd2h_pool_opts *o, const char *name, uint64_t bytes, struct pool_mapping *out,
                      struct rd2h_error *err) {
  struct pool_mapping m = {.fd = -1, .bytes = bytes};
  int rc = allocate_best(o, name, &m, err);
  if (rc)
    return rc;
  /* Nobody can make it smaller under a rank that is writing to it. */
  if (fcntl(m.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
    rc = rd2h_fail(err, RD2H_UNSUPPORTED, "pool: this kernel does not seal a memfd: %s", strerror(errno));
  rc = rc ? rc : lock(&m, o->lock, err);
  if (rc)
    pool_mapping_close(&m);
  else
    *out = m;
  return rc;
}

int pool_mapping_open(int fd, uint64_t bytes, enum rd2h_pool_lock how, struct pool_mapping *out, struct rd2h_error *err) {
  struct pool_mapping m = {.fd = fd, .bytes = bytes, .base = rd2h_map_aligned(bytes, PROT_READ | PROT_WRITE, fd)};
  if (!m.base)
    return rd2h_fail(err, RD2H_NOMEM, "pool: %llu MiB cannot be mapped: %s", MIB(bytes), strerror(errno));
  int rc = lock(&m, how, err);
  if (rc)
    munmap(m.base, m.bytes);
  else
    *out = m;
  return rc;
}

void pool_mapping_close(struct pool_mapping *m) {
  munmap(m->base, m->bytes);
  close(m->fd);
}
