/* SPDX-License-Identifier: Apache-2.0 */
/* One batch, in slices and in order: what is mapped is copied, all else goes through process_vm_readv (iovecs, short counts
 * resumed where they stopped); the nonce is always read last, and by that call. */
#include "engines/local/local.h"
#include <errno.h>
#include <poll.h>
#include <sys/uio.h>
#include <unistd.h>

#define IOVECS 1024u /* the kernel's limit a call (UIO_MAXIOV) */

/* Where the copy stands: the nonce counts as one more descriptor after the batch's last. */
struct copy {
  const rd2h_peer *peer;
  const struct rd2h_batch *b;
  const struct rd2h_local_copier *copier;
  const struct rd2h_local_map *map; /* where the last piece was found */
  uint32_t i, end, iovecs;
  bool mapped; /* the peer's maps can be used */
  uint8_t used;
  uint64_t off; /* in descriptor i */
  uint64_t slice, done;
  uint8_t nonce[LOCAL_NONCE];
};
struct piece {
  uint8_t *local;
  uint64_t remote, len;
};

static struct piece piece_at(struct copy *c, uint32_t i) {
  if (i == c->b->n)
    return (struct piece){c->nonce, c->peer->at.nonce_addr, LOCAL_NONCE};
  return (struct piece){c->b->local[i], c->b->remote[i], c->b->len[i]};
}

/* The mapping that holds the piece; empty ones and the nonce are nowhere. */
static const struct rd2h_local_map *map_of(struct copy *c, uint32_t i) {
  if (!c->mapped || !c->peer->n_maps || i == c->b->n || !c->b->len[i])
    return NULL;
  if (c->map && rd2h_local_inside(c->map, c->b->remote[i], c->b->len[i]))
    return c->map;
  const struct rd2h_local_map *m = rd2h_local_find(c->peer, c->b->remote[i], c->b->len[i]);
  if (m)
    c->map = m;
  return m;
}

/* Fills iovecs for the next slice, up to the next piece that is mapped; the one at c->i is not, nor is it empty. Returns how
 * many. */
static uint32_t next_slice(struct copy *c, struct iovec *l, struct iovec *r) {
  struct piece p = piece_at(c, c->i);
  uint64_t len = p.len - c->off, bytes = len < c->slice ? len : c->slice;
  uint32_t n = 1;
  l[0] = (struct iovec){p.local + c->off, bytes};
  r[0] = (struct iovec){(void *)(uintptr_t)(p.remote + c->off), bytes};
  for (uint32_t i = c->i + 1; i < c->end && n < c->iovecs && bytes < c->slice && !map_of(c, i); i++) {
    p = piece_at(c, i);
    len = p.len < c->slice - bytes ? p.len : c->slice - bytes;
    if (!len)
      continue;
    l[n] = (struct iovec){p.local, len};
    r[n++] = (struct iovec){(void *)(uintptr_t)p.remote, len};
    bytes += len;
  }
  return n;
}

static void advance(struct copy *c, uint64_t bytes) {
  while (bytes) {
    uint64_t left = piece_at(c, c->i).len - c->off, step = bytes < left ? bytes : left;
    bytes -= step;
    c->off += step;
    if (c->i < c->b->n)
      c->done += step;
    if (step == left) {
      c->i++;
      c->off = 0;
    }
  }
}

bool rd2h_local_alive(const rd2h_peer *p) {
  struct pollfd fd = {.fd = p->pidfd, .events = POLLIN};
  return poll(&fd, 1, 0) == 0;
}

int rd2h_local_lost(const rd2h_peer *p, const char *how, struct rd2h_error *err) {
  return rd2h_fail(err, RD2H_PEER_LOST, "engine local: process %u %s: Prefill must connect again", p->at.pid, how);
}

/* Why the call at descriptor c->i failed. */
static int explain(struct copy *c, int error, uint32_t *failed_at, struct rd2h_error *err) {
  if (error == EPERM || error == EACCES)
    return rd2h_local_denied(&c->peer->at, getuid(), rd2h_local_yama(), err);
  if (error == ESRCH || !rd2h_local_alive(c->peer))
    return rd2h_local_lost(c->peer, "has ended", err);
  if (c->i == c->b->n)
    return rd2h_local_lost(c->peer, "has closed its engine, or runs another program now", err);
  *failed_at = c->i;
  struct piece p = piece_at(c, c->i);
  return rd2h_fail(err, RD2H_IO, "engine local: descriptor %u of %u: cannot copy byte %llu of %llu, from 0x%llx in process %u to "
                   "0x%llx: %s; one of the two is not mapped memory", c->i, c->b->n, (unsigned long long)c->off,
                   (unsigned long long)p.len, (unsigned long long)(p.remote + c->off), c->peer->at.pid,
                   (unsigned long long)(uintptr_t)(p.local + c->off), strerror(error));
}

/* Copies mapped pieces, from c->i on, until one is not or the slice is full. */
static int copy_mapped(struct copy *c, struct rd2h_error *err) {
  uint64_t bytes = 0;
  const struct rd2h_local_map *m;
  while (bytes < c->slice && c->i < c->b->n && (m = map_of(c, c->i))) {
    uint64_t left = c->b->len[c->i] - c->off, room = c->slice - bytes, len = left < room ? left : room;
    c->copier->copy((uint8_t *)c->b->local[c->i] + c->off, m->at + (c->b->remote[c->i] - m->base) + c->off, len);
    bytes += len;
    c->off = len == left ? 0 : c->off + len;
    c->i += len == left;
  }
  c->copier->settle();
  c->used |= LOCAL_BY_MAP;
  c->done += bytes;
  return rd2h_local_alive(c->peer) ? RD2H_OK : rd2h_local_lost(c->peer, "ended while it was read", err);
}

static int copy_foreign(struct copy *c, uint32_t *failed_at, struct rd2h_error *err) {
  struct iovec l[IOVECS], r[IOVECS];
  uint32_t n = next_slice(c, l, r);
  ssize_t got = process_vm_readv((pid_t)c->peer->at.pid, l, n, r, n, 0);
  if (got > 0) {
    c->used |= c->i < c->b->n ? LOCAL_BY_CALL : 0; /* the nonce comes that way in any case */
    advance(c, (uint64_t)got);
  }
  else if (got < 0 && n > 1 && (errno == EFAULT || errno == EINVAL))
    c->iovecs = 1; /* a bad address anywhere in the slice can fail the whole call: go one by one to find it */
  else if (got == 0 || errno != EINTR)
    return explain(c, got < 0 ? errno : EFAULT, failed_at, err);
  return RD2H_OK;
}

static int copy_all(struct copy *c, const volatile bool *stop, uint32_t *failed_at, struct rd2h_error *err) {
  int rc = RD2H_OK;
  while (!rc) {
    for (; c->i < c->end && piece_at(c, c->i).len == c->off; c->i++)
      c->off = 0;
    if (c->i == c->end)
      break;
    if (__atomic_load_n(stop, __ATOMIC_RELAXED))
      return rd2h_fail(err, RD2H_CANCELED, "engine local: canceled after %llu of %llu bytes", (unsigned long long)c->done,
                       (unsigned long long)c->b->bytes);
    rc = map_of(c, c->i) ? copy_mapped(c, err) : copy_foreign(c, failed_at, err);
  }
  return rc;
}

int rd2h_local_read(rd2h_engine *e, rd2h_peer *p, const struct rd2h_batch *b, const volatile bool *stop, uint64_t *done,
                    uint32_t *failed_at, struct rd2h_error *err) {
  struct copy c = {.peer = p, .b = b, .end = b->n + p->has_nonce, .iovecs = IOVECS, .slice = e->slice,
                   .copier = e->copier};
  *done = 0;
  *failed_at = UINT32_MAX;
  if (!rd2h_local_alive(p))
    return rd2h_local_lost(p, "has ended", err);
  c.mapped = rd2h_local_receive(p);
  int rc = copy_all(&c, stop, failed_at, err);
  *done = c.done;
  if (rc)
    return rc;
  if (!rd2h_local_alive(p))
    return rd2h_local_lost(p, "ended while it was read", err);
  if (p->has_nonce && memcmp(c.nonce, p->at.nonce, LOCAL_NONCE))
    return rd2h_local_lost(p, "is not the one that published its memory", err);
  if (c.used)
    __atomic_store_n(&p->used, c.used, __ATOMIC_RELAXED);
  return RD2H_OK;
}

const char *rd2h_local_way(rd2h_engine *e, rd2h_peer *p) {
  static const char *const names[] = {[LOCAL_BY_MAP] = "shared mapping", [LOCAL_BY_CALL] = "process_vm_readv",
                                      [LOCAL_BY_MAP | LOCAL_BY_CALL] = "shared mapping and process_vm_readv"};
  (void)e;
  uint8_t used = __atomic_load_n(&p->used, __ATOMIC_RELAXED);
  if (!used)
    used = __atomic_load_n(&p->settled, __ATOMIC_ACQUIRE) && p->n_maps ? LOCAL_BY_MAP : LOCAL_BY_CALL;
  return names[used];
}

int rd2h_local_probe(rd2h_engine *e, rd2h_peer *p, struct rd2h_error *err) {
  const struct rd2h_batch none = {0};
  const bool stop = false;
  uint64_t done;
  uint32_t failed_at;
  return rd2h_local_read(e, p, &none, &stop, &done, &failed_at, err);
}
