/* SPDX-License-Identifier: Apache-2.0 */
/* A batch, in calls of at most a slice: the library looks at no stop flag, and one call says only whether all of it landed. The
 * batch's own arrays are handed over, none is copied. */
#include "engines/memfabric/memfabric.h"
#include <time.h>

#define CALL_DESCRIPTORS 4096u     /* about 40 us each over TCP: a call stays well below a second */
#define VISIBLE_NS (5000 * RD2H_MS) /* links and registrations come up within this once an object is made */
#define PAUSE_NS (2 * RD2H_MS)

static int32_t call(struct mf_read *r, void **local, const void **remote, size_t *len, uint32_t n) {
  uint64_t begin = rd2h_now_ns();
  __atomic_store_n(r->call_since, begin, __ATOMIC_RELAXED);
  rd2h_mf_listen();
  int32_t code = r->api->batch_read(r->object, local, r->id, remote, len, n, 0);
  __atomic_store_n(r->call_since, 0, __ATOMIC_RELAXED);
  uint64_t took = rd2h_now_ns() - begin;
  r->longest_ns = took > r->longest_ns ? took : r->longest_ns;
  return code;
}

static bool stopped(const struct mf_read *r) {
  return __atomic_load_n(r->stop, __ATOMIC_RELAXED);
}

/* A new object's first reads may come before its link or the peer's registrations are there: the library then does not know the peer,
 * or its address. */
static bool unseen(int32_t code) {
  return code == MF_INVALID || code == MF_NO_OPERATOR;
}

static int32_t call_until_visible(struct mf_read *r, void **local, const void **remote, size_t *len, uint32_t n) {
  uint64_t until = rd2h_now_ns() + VISIBLE_NS;
  int32_t code;
  while (unseen(code = call(r, local, remote, len, n)) && r->fresh && !stopped(r) && rd2h_now_ns() < until)
    nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
  return code;
}

static int one_call(struct mf_read *r, uint32_t first, void **local, const void **remote, size_t *len, uint32_t n, uint64_t bytes,
                    struct rd2h_error *err) {
  if (stopped(r))
    return rd2h_fail(err, RD2H_CANCELED, "engine memfabric: canceled after %llu of %llu bytes", (unsigned long long)r->done,
                     (unsigned long long)r->batch->bytes);
  r->code = call_until_visible(r, local, remote, len, n);
  if (!r->code) {
    r->fresh = false;
    r->done += bytes;
    return RD2H_OK;
  }
  const char *said = rd2h_mf_said(r->api);
  return rd2h_fail(err, RD2H_IO, "engine memfabric: read of descriptors %u to %u, %llu bytes, from %s: %s%s%.180s", first, first + n - 1,
                   (unsigned long long)bytes, r->id, rd2h_mf_code(r->code), *said ? ": " : "", said);
}

static int large(struct mf_read *r, uint32_t i, struct rd2h_error *err) {
  const struct rd2h_batch *b = r->batch;
  int rc = RD2H_OK;
  for (uint64_t at = 0; at < b->len[i] && !rc; at += r->slice) {
    uint64_t left = b->len[i] - at;
    size_t len = left < r->slice ? left : r->slice;
    void *local = (uint8_t *)b->local[i] + at;
    const void *remote = (const void *)(uintptr_t)(b->remote[i] + at);
    rc = one_call(r, i, &local, &remote, &len, 1, len, err);
  }
  return rc;
}

_Static_assert(sizeof(void *) == sizeof(uint64_t) && sizeof(size_t) == sizeof(uint64_t), "the library takes the batch's arrays");

int rd2h_mf_read(struct mf_read *r, struct rd2h_error *err) {
  const struct rd2h_batch *b = r->batch;
  int rc = RD2H_OK;
  for (uint32_t i = 0, end; i < b->n && !rc; i = end) {
    uint64_t bytes = 0;
    for (end = i; end < b->n && end - i < CALL_DESCRIPTORS && b->len[end] && b->len[end] <= r->slice - bytes; end++)
      bytes += b->len[end];
    if (end > i)
      rc = one_call(r, i, (void **)&b->local[i], (const void **)(void *)&b->remote[i], (size_t *)&b->len[i], end - i, bytes, err);
    else if (b->len[end++])
      rc = large(r, i, err);
  }
  return rc;
}
