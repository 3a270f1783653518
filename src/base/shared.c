/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that other processes can map: sealed memfds, each whole in one mapping, and which of them holds an address. */
#include "base/base.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21u << 26)
#endif
#define ALLOC_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct rd2h_shared *first; /* allocated and not freed */

void *rd2h_map_aligned(uint64_t len, int prot, int fd) {
  uint64_t room;
  if (!len || __builtin_add_overflow(len, RD2H_SHARED_ALIGN, &room) || room > SIZE_MAX)
    return NULL;
  uint8_t *all = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (all == MAP_FAILED)
    return NULL;
  uint64_t before = -(uintptr_t)all & (RD2H_SHARED_ALIGN - 1);
  void *p = mmap(all + before, len, prot, MAP_SHARED | MAP_FIXED, fd, 0);
  int error = errno;
  if (p == MAP_FAILED) {
    munmap(all, room);
    errno = error;
    return NULL;
  }
  if (before)
    munmap(all, before);
  munmap(all + before + len, room - before - len);
  return p;
}

/* Every page now, while a lack of memory is still an error and not a signal. */
static int populate(uint8_t *p, uint64_t len, int fd) {
  if (!madvise(p, len, MADV_POPULATE_WRITE))
    return 0;
  return errno == EINVAL ? posix_fallocate(fd, 0, (off_t)len) : errno; /* kernels before 5.14 */
}

/* Returns 0 or an errno; on success s has base and fd. */
static int map_new(struct rd2h_shared *s, bool huge, bool pool) {
  int error = 0, fd = memfd_create("rd2h", MFD_CLOEXEC | MFD_ALLOW_SEALING | (pool ? MFD_HUGETLB | MFD_HUGE_2MB : 0u));
  if (fd < 0)
    return errno;
  uint8_t *p = ftruncate(fd, (off_t)s->len) ? NULL : rd2h_map_aligned(s->len, PROT_READ | PROT_WRITE, fd);
  if (!p) {
    error = errno;
    close(fd);
    return error;
  }
  if (huge && !pool)
    madvise(p, s->len, MADV_HUGEPAGE);
  error = populate(p, s->len, fd);
  if (!error && fcntl(fd, F_ADD_SEALS, ALLOC_SEALS))
    error = errno;
  if (error) {
    munmap(p, s->len);
    close(fd);
    return error;
  }
  s->base = p;
  s->fd = fd;
  return 0;
}

static void release(struct rd2h_shared *s) {
  close(s->fd);
  rd2h_free(s);
}

void *rd2h_shared_alloc(uint64_t size, uint32_t flags, struct rd2h_error *err) {
  if (!size || size > INT64_MAX - RD2H_SHARED_ALIGN || flags & ~(uint32_t)RD2H_SHARED_HUGE) {
    rd2h_fail(err, RD2H_INVALID, "shared memory: size %llu, flags 0x%x: the size is from 1 to 2^63 bytes, the flags are of "
              "rd2h/memory.h", (unsigned long long)size, flags);
    return NULL;
  }
  struct rd2h_shared *s = rd2h_zalloc(sizeof *s);
  if (!s) {
    rd2h_nomem(err, "shared memory");
    return NULL;
  }
  bool huge = flags & RD2H_SHARED_HUGE;
  s->len = (size + RD2H_SHARED_ALIGN - 1) & ~(uint64_t)(RD2H_SHARED_ALIGN - 1);
  s->refs = 1;
  int error = huge ? map_new(s, true, true) : ENOMEM;
  if (error)
    error = map_new(s, huge, false);
  if (error) {
    rd2h_fail(err, error == EMFILE || error == ENFILE ? RD2H_LIMIT : RD2H_NOMEM, "shared memory: %llu MiB: %s; ask for less, "
              "raise the memory limit of this process or container, or keep the cache in memory of another kind",
              (unsigned long long)s->len >> 20, strerror(error));
    rd2h_free(s);
    return NULL;
  }
  pthread_mutex_lock(&lock);
  s->next = first;
  first = s;
  pthread_mutex_unlock(&lock);
  return s->base;
}

void rd2h_shared_free(void *p) {
  struct rd2h_shared **at, *s = NULL;
  pthread_mutex_lock(&lock);
  for (at = &first; *at && (*at)->base != p; at = &(*at)->next)
    ;
  if (p && (s = *at))
    *at = s->next;
  bool last = s && !--s->refs;
  if (s)
    munmap(s->base, s->len);
  pthread_mutex_unlock(&lock);
  if (last)
    release(s);
}

struct rd2h_shared *rd2h_shared_hold(const void *p, uint64_t len) {
  struct rd2h_shared *s;
  pthread_mutex_lock(&lock);
  for (s = first; s; s = s->next) {
    uint64_t at = (uintptr_t)p - (uintptr_t)s->base; /* huge when p lies before */
    if (at < s->len && len <= s->len - at)
      break;
  }
  if (s)
    s->refs++;
  pthread_mutex_unlock(&lock);
  return s;
}

void rd2h_shared_drop(struct rd2h_shared *s) {
  pthread_mutex_lock(&lock);
  bool last = s && !--s->refs;
  pthread_mutex_unlock(&lock);
  if (last)
    release(s);
}
