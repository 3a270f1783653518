/* SPDX-License-Identifier: Apache-2.0 */
/* Creation, handle, attachment. The header lies in the last page of the memory, so that the arrays begin at 2 MiB. */
#include "pool/pool.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_LAYERS 65536u
#define MAX_BYTES (UINT64_C(1) << 46)
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define MIB(bytes) ((unsigned long long)((bytes) >> 20))

/* ---- shape ---- */
static uint64_t round_up(uint64_t n, uint64_t to) {
  return (n + to - 1) / to * to;
}

static int check_opts(const struct rd2h_pool_opts *o, struct rd2h_error *err) {
  if (!o || o->size < offsetof(struct rd2h_pool_opts, device))
    return rd2h_fail(err, RD2H_INVALID, "pool: options of %u bytes, this library expects %zu: set size, or build against its headers",
                     o ? o->size : 0, sizeof *o);
  const struct rd2h_pool_shape *s = &o->shape;
  if (s->layers == 0 || s->layers > MAX_LAYERS || s->arrays == 0 || s->arrays > 2 || !s->blocks)
    return rd2h_fail(err, RD2H_INVALID, "pool: %u layers (1 to %u) of %u arrays (1 or 2) with %llu blocks (1 at least) cannot be",
                     s->layers, MAX_LAYERS, s->arrays, (unsigned long long)s->blocks);
  for (uint32_t a = 0; a < s->arrays; a++)
    if (!s->block_bytes[a] || s->block_bytes[a] > MAX_BYTES / s->blocks / s->layers)
      return rd2h_fail(err, RD2H_RANGE, "pool: array %u, %u layers of %llu blocks of %llu bytes: 1 byte to %llu MiB are possible", a,
                       s->layers, (unsigned long long)s->blocks, (unsigned long long)s->block_bytes[a], MIB(MAX_BYTES));
  if ((unsigned)o->pages > RD2H_PAGES_HUGE || (unsigned)o->lock > RD2H_LOCK_MUST)
    return rd2h_fail(err, RD2H_INVALID, "pool: pages %d or lock %d is no such choice", (int)o->pages, (int)o->lock);
  return pool_provider_check(o, err);
}

/* For the device of the options; who was built with older headers names none. */
static int pin(rd2h_pool *p, const struct rd2h_pool_opts *o, struct rd2h_error *err) {
  if (o->size < offsetof(struct rd2h_pool_opts, provider) || !o->device)
    return RD2H_OK;
  int rc = rd2h_dev_open(o->device, &p->dev, err);
  if (rc)
    return rc;
  rc = rd2h_dev_bind(p->dev, err);
  rc = rc ? rc : rd2h_dev_pin(p->dev, p->m.base, p->m.bytes, err);
  if (rc) {
    rd2h_dev_close(p->dev);
    p->dev = NULL;
  }
  return rc;
}

uint64_t pool_measure(rd2h_pool *p, const struct rd2h_pool_shape *s) {
  p->shape = *s;
  p->layer_bytes = 0;
  for (uint32_t a = 0; a < s->arrays; a++) {
    p->offset[a] = p->layer_bytes;
    p->layer_bytes += round_up(s->block_bytes[a] * s->blocks, POOL_ALIGN);
  }
  p->data_bytes = p->layer_bytes * s->layers;
  return round_up(p->data_bytes + POOL_ALIGN, POOL_HUGE_PAGE);
}

struct pool_header *pool_header_of(const struct pool_mapping *m) {
  return (struct pool_header *)(void *)(m->base + m->bytes - POOL_ALIGN);
}

/* ---- creation ---- */
int pool_check_room(const rd2h_pool *p, uint64_t bytes, const struct rd2h_pool_opts *o, struct rd2h_error *err) {
  struct pool_room room;
  uint64_t free_pages, pages, a_block = p->data_bytes / p->shape.blocks + 1;
  pool_huge_pages("", &free_pages, &pages);
  if (o->pages == RD2H_PAGES_HUGE || (o->pages == RD2H_PAGES_AUTO && free_pages >= bytes / POOL_HUGE_PAGE))
    return RD2H_OK; /* they are set aside already; the mapping says if there are too few */
  if (!pool_room("", &room)) {
    RD2H_WARN("pool: /proc/meminfo cannot be read, whether %llu MiB fit is not known", MIB(bytes));
    return RD2H_OK;
  }
  if (bytes <= room.available && o->keep_free <= room.available - bytes)
    return RD2H_OK;
  uint64_t most = room.available > o->keep_free ? room.available - o->keep_free : 0;
  return rd2h_fail(err, RD2H_LIMIT, "pool: %llu MiB for %llu blocks in %u layers, and %llu MiB to keep free, do not fit: %s has %llu of "
                   "%llu MiB available; at most %llu blocks do", MIB(bytes), (unsigned long long)p->shape.blocks, p->shape.layers,
                   MIB(o->keep_free), room.where, MIB(room.available), MIB(room.total), (unsigned long long)(most / a_block));
}

int pool_make_nonce(char hex[POOL_NONCE + 1], struct rd2h_error *err) {
  uint8_t raw[POOL_NONCE / 2];
  if (rd2h_random(raw, sizeof raw))
    return rd2h_fail(err, RD2H_IO, "pool: no random bytes for its nonce: %s", strerror(errno));
  for (size_t i = 0; i < sizeof raw; i++)
    snprintf(hex + 2 * i, 3, "%02x", raw[i]);
  return RD2H_OK;
}

static void publish(rd2h_pool *p, const char *nonce) {
  struct pool_header *h = pool_header_of(&p->m);
  *h = (struct pool_header){.magic = POOL_MAGIC, .page_bytes = p->m.page_bytes, .numa_nodes = p->m.numa_nodes, .shape = p->shape};
  memcpy(h->nonce, nonce, sizeof h->nonce);
  p->pid = getpid();
  p->pidfd = -1;
  snprintf(p->handle, sizeof p->handle, POOL_NAME ":1:%d:%d:%s", (int)p->pid, p->m.fd, nonce);
}

int rd2h_pool_create(const struct rd2h_pool_opts *o, rd2h_pool **out, struct rd2h_error *err) {
  char nonce[POOL_NONCE + 1], name[64];
  int rc = check_opts(o, err);
  if (!rc && pool_acc_named(o))
    return pool_provided_create(o, out, err);
  rc = rc ? rc : pool_make_nonce(nonce, err);
  if (rc)
    return rc;
  rd2h_pool *p = rd2h_zalloc(sizeof *p);
  if (!p)
    return rd2h_nomem(err, "a pool");
  uint64_t bytes = pool_measure(p, &o->shape);
  snprintf(name, sizeof name, POOL_NAME "-%s", nonce);
  rc = pool_check_room(p, bytes, o, err);
  rc = rc ? rc : pool_mapping_make(o, name, bytes, &p->m, err);
  if (rc) {
    rd2h_free(p);
    return rc;
  }
  rc = pin(p, o, err);
  if (rc) {
    pool_mapping_close(&p->m);
    rd2h_free(p);
    return rc;
  }
  publish(p, nonce);
  RD2H_INFO("pool: %llu MiB in pages of %llu KiB, %s, NUMA nodes 0x%llx", MIB(bytes), (unsigned long long)(p->m.page_bytes >> 10),
            p->m.locked ? "locked" : "not locked", (unsigned long long)p->m.numa_nodes);
  *out = p;
  return RD2H_OK;
}

int rd2h_pool_join(const struct rd2h_pool_opts *o, struct rd2h_error *err) {
  int rc = check_opts(o, err);
  return rc || !pool_acc_named(o) ? rc : pool_provided_join(o, err);
}

/* ---- attachment ---- */
struct origin {
  int pid, fd;
  char nonce[POOL_NONCE + 1];
};

static int parse_handle(const char *handle, struct origin *o, struct rd2h_error *err) {
  char again[RD2H_POOL_HANDLE];
  *o = (struct origin){0};
  if (handle && sscanf(handle, POOL_NAME ":1:%9d:%9d:%32[0-9a-f]", &o->pid, &o->fd, o->nonce) == 3 && o->pid > 0 && o->fd >= 0) {
    snprintf(again, sizeof again, POOL_NAME ":1:%d:%d:%s", o->pid, o->fd, o->nonce);
    if (strlen(o->nonce) == POOL_NONCE && !strcmp(again, handle))
      return RD2H_OK;
  }
  return rd2h_fail(err, RD2H_INVALID, "\"%.80s\" is no handle of a pool: use what rd2h_pool_handle gave on the creating rank",
                   handle ? handle : "");
}

static int stale(const struct origin *o, const char *found, struct rd2h_error *err) {
  return rd2h_fail(err, RD2H_NOT_FOUND, "stale handle: it names pool %s of process %d, %.150s: attach with the handle of the present "
                   "engine", o->nonce, o->pid, found);
}

/* Looks before it opens: what stands at that number now might be anything. Returns an fd or an error. */
static int open_origin(const struct origin *o, struct rd2h_error *err) {
  char path[64], found[160] = "", text[220], want[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", o->pid, o->fd);
  snprintf(want, sizeof want, "/memfd:" POOL_NAME "-%s", o->nonce);
  int look = open(path, O_PATH | O_CLOEXEC), fd = -1;
  if (look < 0)
    goto fail;
  snprintf(path, sizeof path, "/proc/self/fd/%d", look);
  ssize_t n = readlink(path, found, sizeof found - 1);
  found[n > 0 ? n : 0] = 0;
  if (strncmp(found, want, strlen(want))) {
    close(look);
    snprintf(text, sizeof text, "which has %s there now", found);
    return stale(o, text, err);
  }
  fd = open(path, O_RDWR | O_CLOEXEC);
  close(look);
  if (fd >= 0)
    return fd;
fail:
  if (errno == EACCES || errno == EPERM)
    return rd2h_fail(err, RD2H_PERMISSION, "pool of process %d cannot be opened by process %d: %s: run all ranks of an engine as one user",
                     o->pid, (int)getpid(), strerror(errno));
  return stale(o, errno == ENOENT ? "which has ended or closed it" : strerror(errno), err);
}

/* With one array the second length means nothing: it does not make two shapes differ. */
static struct rd2h_pool_shape plain(const struct rd2h_pool_shape *s) {
  struct rd2h_pool_shape t;
  memset(&t, 0, sizeof t);
  t.layers = s->layers;
  t.arrays = s->arrays;
  t.blocks = s->blocks;
  t.block_bytes[0] = s->block_bytes[0];
  t.block_bytes[1] = s->arrays > 1 ? s->block_bytes[1] : 0;
  return t;
}

int pool_check_shape(const struct rd2h_pool_shape *h, const struct rd2h_pool_shape *t, struct rd2h_error *err) {
  struct rd2h_pool_shape here = plain(h), there = plain(t);
  if (!memcmp(&here, &there, sizeof here))
    return RD2H_OK;
  return rd2h_fail(err, RD2H_LAYOUT, "pool of another shape: it has %u layers of %llu blocks of %llu + %llu bytes, this rank wants "
                   "%u layers of %llu blocks of %llu + %llu bytes", there.layers, (unsigned long long)there.blocks,
                   (unsigned long long)there.block_bytes[0], (unsigned long long)there.block_bytes[1], here.layers,
                   (unsigned long long)here.blocks, (unsigned long long)here.block_bytes[0], (unsigned long long)here.block_bytes[1]);
}

/* The header is read, not mapped, before anything is trusted. */
static int check_origin(int fd, const struct origin *o, const struct rd2h_pool_opts *opts, struct pool_header *h, struct rd2h_error *err) {
  struct stat st;
  int seals = fcntl(fd, F_GET_SEALS);
  if (fstat(fd, &st) || (seals & SEALS) != SEALS || (uint64_t)st.st_size < POOL_ALIGN)
    return rd2h_fail(err, RD2H_REFUSED, "pool of process %d is not sealed or has no header (%lld bytes): it is still being made, or "
                     "by something else", o->pid, (long long)st.st_size);
  if (pread(fd, h, sizeof *h, st.st_size - (off_t)POOL_ALIGN) != (ssize_t)sizeof *h || h->magic != POOL_MAGIC ||
      memcmp(h->nonce, o->nonce, sizeof h->nonce))
    return stale(o, "whose memory does not say so", err);
  return pool_check_shape(&opts->shape, &h->shape, err);
}

static int attach_to(rd2h_pool *p, int fd, const struct origin *o, const struct rd2h_pool_opts *opts, struct rd2h_error *err) {
  struct pool_header h;
  int rc = check_origin(fd, o, opts, &h, err);
  if (rc)
    return rc;
  rc = pool_mapping_open(fd, pool_measure(p, &opts->shape), opts->lock, &p->m, err);
  if (rc)
    return rc;
  p->m.page_bytes = h.page_bytes;
  p->m.numa_nodes = h.numa_nodes;
  p->pid = o->pid;
  return RD2H_OK;
}

int rd2h_pool_attach(const char *handle, const struct rd2h_pool_opts *opts, rd2h_pool **out, struct rd2h_error *err) {
  struct origin o;
  int rc = check_opts(opts, err);
  if (!rc && pool_acc_named(opts))
    return pool_provided_attach(handle, opts, out, err);
  rc = rc ? rc : parse_handle(handle, &o, err);
  if (rc)
    return rc;
  rd2h_pool *p = rd2h_zalloc(sizeof *p);
  if (!p)
    return rd2h_nomem(err, "a pool");
  snprintf(p->handle, sizeof p->handle, "%s", handle);
  /* Held before the memory is looked at: whatever the nonce proves then holds for this very process. */
  p->pidfd = (int)syscall(SYS_pidfd_open, o.pid, 0);
  if (p->pidfd < 0) {
    rc = errno == ESRCH ? stale(&o, "which has ended", err)
                        : rd2h_fail(err, RD2H_UNSUPPORTED, "pool: process %d cannot be watched: pidfd_open: %s", o.pid, strerror(errno));
    goto free_pool;
  }
  int fd = open_origin(&o, err);
  rc = fd < 0 ? fd : attach_to(p, fd, &o, opts, err);
  if (!rc && (rc = pin(p, opts, err))) {
    pool_mapping_close(&p->m); /* and the fd with it */
    fd = -1;
  }
  if (!rc) {
    *out = p;
    return RD2H_OK;
  }
  if (fd >= 0)
    close(fd);
  close(p->pidfd);
free_pool:
  rd2h_free(p);
  return rc;
}

void rd2h_pool_destroy(rd2h_pool *p) {
  if (!p)
    return;
  if (p->dev)
    rd2h_dev_unpin(p->dev, p->m.base);
  rd2h_dev_close(p->dev);
  if (p->provided)
    pool_provided_close(p);
  else
    pool_mapping_close(&p->m);
  if (p->pidfd >= 0)
    close(p->pidfd);
  rd2h_free(p);
}

/* ---- use ---- */
const char *rd2h_pool_handle(const rd2h_pool *p) {
  return p->handle;
}

void *rd2h_pool_array(const rd2h_pool *p, uint32_t layer, uint32_t array) {
  if (layer >= p->shape.layers || array >= p->shape.arrays)
    return NULL;
  return p->m.base + layer * p->layer_bytes + p->offset[array];
}

struct rd2h_memory rd2h_pool_memory(const rd2h_pool *p) {
  return (struct rd2h_memory){(uintptr_t)p->m.base, p->data_bytes};
}

bool rd2h_pool_orphaned(const rd2h_pool *p) {
  struct pollfd f = {.fd = p->pidfd, .events = POLLIN};
  return p->pidfd >= 0 && poll(&f, 1, 0) == 1;
}

void rd2h_pool_info(const rd2h_pool *p, struct rd2h_pool_info *i) {
  *i = (struct rd2h_pool_info){.bytes = p->m.bytes, .page_bytes = p->m.page_bytes, .numa_nodes = p->m.numa_nodes,
                               .locked = p->m.locked, .creator = p->pidfd < 0, .creator_pid = p->pid,
                               .pinned = p->dev && strcmp(rd2h_dev_name(p->dev), "host")};
}
