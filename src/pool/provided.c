/* SPDX-License-Identifier: Apache-2.0 */
/* A pool in memory that MemFabric's offload API gives: laid out as our own, with the same header in its last page. The address is the
 * same in all ranks; the handle carries it. */
#include "pool/acc.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HANDLE POOL_NAME "-memfabric:1:%d:%" PRIx64 ":%s"
#define MIB(bytes) ((unsigned long long)((bytes) >> 20))

struct origin {
  int pid;
  uint64_t at;
  char nonce[POOL_NONCE + 1];
};

int pool_provided_join(const struct rd2h_pool_opts *o, struct rd2h_error *err) {
  struct pool_acc_options acc;
  struct rd2h_pool_opts plain = *o;
  rd2h_pool p = {0};
  plain.pages = RD2H_PAGES_SMALL; /* reserved huge pages are not what it takes */
  int rc = pool_acc_options(o->provider, &acc, err);
  uint64_t bytes = pool_measure(&p, &o->shape);
  if (!rc && !acc.rank)
    rc = pool_check_room(&p, (bytes + POOL_ACC_UNIT - 1) / POOL_ACC_UNIT * POOL_ACC_UNIT, &plain, err);
  return rc ? rc : pool_acc_join(&acc, o->provider, bytes, err);
}

static int publish(rd2h_pool *p, struct rd2h_error *err) {
  char nonce[POOL_NONCE + 1];
  int rc = pool_make_nonce(nonce, err);
  if (rc)
    return rc;
  memset(p->m.base, 0, p->m.bytes);
  struct pool_header *h = pool_header_of(&p->m);
  *h = (struct pool_header){.magic = POOL_MAGIC, .shape = p->shape};
  memcpy(h->nonce, nonce, sizeof h->nonce);
  p->pid = getpid();
  snprintf(p->handle, sizeof p->handle, HANDLE, (int)p->pid, (uint64_t)(uintptr_t)p->m.base, nonce);
  return RD2H_OK;
}

int pool_provided_create(const struct rd2h_pool_opts *o, rd2h_pool **out, struct rd2h_error *err) {
  rd2h_pool *p = rd2h_zalloc(sizeof *p);
  if (!p)
    return rd2h_nomem(err, "a pool");
  *p = (rd2h_pool){.provided = true, .pidfd = -1, .m.fd = -1};
  p->m.bytes = pool_measure(p, &o->shape);
  int rc = pool_acc_take(o->provider, p->m.bytes, true, &p->m.base, err);
  if (rc)
    goto free_pool;
  if ((uintptr_t)p->m.base % POOL_HUGE_PAGE)
    rc = rd2h_fail(err, RD2H_UNSUPPORTED, "pool on memfabric: offload_malloc returned %p, not at a multiple of 2 MiB", (void *)p->m.base);
  rc = rc ? rc : publish(p, err);
  if (!rc) {
    RD2H_INFO("pool on memfabric: %llu MiB at %p", MIB(p->m.bytes), (void *)p->m.base);
    *out = p;
    return RD2H_OK;
  }
  pool_acc_give_back(p->m.base);
free_pool:
  rd2h_free(p);
  return rc;
}

/* ---- attachment ---- */
static int parse_handle(const char *handle, struct origin *o, struct rd2h_error *err) {
  char again[RD2H_POOL_HANDLE];
  *o = (struct origin){0};
  if (handle && sscanf(handle, POOL_NAME "-memfabric:1:%9d:%16" SCNx64 ":%32[0-9a-f]", &o->pid, &o->at, o->nonce) == 3 && o->pid > 0) {
    snprintf(again, sizeof again, HANDLE, o->pid, o->at, o->nonce);
    if (strlen(o->nonce) == POOL_NONCE && o->at && o->at % POOL_HUGE_PAGE == 0 && !strcmp(again, handle))
      return RD2H_OK;
  }
  return rd2h_fail(err, RD2H_INVALID, "\"%.90s\" is no handle of a pool on memfabric: use what rd2h_pool_handle gave on rank 0",
                   handle ? handle : "");
}

/* Whether all of it can be read and written here, so that a wrong address is an error and no fault. */
static bool mapped(uint64_t at, uint64_t bytes) {
  char line[4352], mode[5]; /* the path in it may be long */
  uint64_t from, to, next = at;
  FILE *f = fopen("/proc/self/maps", "re");
  if (!f)
    return false;
  while (next - at < bytes && fgets(line, sizeof line, f))
    if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s", &from, &to, mode) == 3 && from <= next && next < to) {
      if (strncmp(mode, "rw", 2))
        break;
      next = to;
    }
  fclose(f);
  return next - at >= bytes;
}

static int check_memory(const rd2h_pool *p, const struct origin *o, const struct rd2h_pool_opts *opts, struct rd2h_error *err) {
  if (!mapped(o->at, p->m.bytes))
    return rd2h_fail(err, RD2H_NOT_FOUND, "stale handle: %llu MiB at 0x%" PRIx64 " are not mapped here: it is of another world, or of an "
                     "earlier life of rank 0", MIB(p->m.bytes), o->at);
  struct pool_header h = *pool_header_of(&p->m);
  if (h.magic != POOL_MAGIC || memcmp(h.nonce, o->nonce, sizeof h.nonce))
    return rd2h_fail(err, RD2H_NOT_FOUND, "stale handle: the memory at 0x%" PRIx64 " is not pool %s of %llu MiB: attach with rank 0's "
                     "present handle and its shape", o->at, o->nonce, MIB(p->m.bytes));
  return pool_check_shape(&opts->shape, &h.shape, err);
}

int pool_provided_attach(const char *handle, const struct rd2h_pool_opts *opts, rd2h_pool **out, struct rd2h_error *err) {
  struct origin o;
  int rc = parse_handle(handle, &o, err);
  if (rc)
    return rc;
  rd2h_pool *p = rd2h_zalloc(sizeof *p);
  if (!p)
    return rd2h_nomem(err, "a pool");
  *p = (rd2h_pool){.provided = true, .pid = o.pid, .m = {.fd = -1, .base = (uint8_t *)(uintptr_t)o.at}};
  p->m.bytes = pool_measure(p, &opts->shape);
  snprintf(p->handle, sizeof p->handle, "%s", handle);
  rc = pool_acc_take(opts->provider, p->m.bytes, false, NULL, err);
  if (rc)
    goto free_pool;
  p->pidfd = (int)syscall(SYS_pidfd_open, o.pid, 0);
  if (p->pidfd < 0)
    rc = rd2h_fail(err, errno == ESRCH ? RD2H_NOT_FOUND : RD2H_UNSUPPORTED, "pool on memfabric: rank 0, process %d, cannot be watched: "
                   "pidfd_open: %s; if it has ended the handle is stale", o.pid, strerror(errno));
  rc = rc ? rc : check_memory(p, &o, opts, err);
  if (!rc) {
    *out = p;
    return RD2H_OK;
  }
  if (p->pidfd >= 0)
    close(p->pidfd);
  pool_acc_give_back(NULL);
free_pool:
  rd2h_free(p);
  return rc;
}

/* Nobody attaches to it any more. */
void pool_provided_close(rd2h_pool *p) {
  bool creator = p->pidfd < 0;
  if (creator)
    pool_header_of(&p->m)->magic = 0;
  pool_acc_leave(creator ? p->m.base : NULL);
}
