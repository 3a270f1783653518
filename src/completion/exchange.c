/* SPDX-License-Identifier: Apache-2.0 */
/* A lane holds two messages: of this turn and of the one before. A rank writes turn n + 2 only after every rank has come to n + 1,
 * and so has read n: two are enough. */
#include "completion/exchange.h"
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <time.h>

#define LANE_HEAD 64u
#define LOOK_MS 200 /* between two looks whether rank 0 is still there */

static uint32_t *lane(const struct exchange *x, uint32_t rank) {
  return rd2h_pool_array(x->pool, rank, 0);
}

static uint8_t *slot(const struct exchange *x, uint32_t rank, uint32_t turn) {
  return (uint8_t *)lane(x, rank) + LANE_HEAD + (turn & 1) * x->room;
}

int exchange_open(struct exchange *x, const char *handle, struct rd2h_error *err) {
  struct rd2h_pool_opts o = {.size = sizeof o, .shape = {x->ranks, 1, 1, {LANE_HEAD + 2 * x->room, 0}}, .pages = RD2H_PAGES_SMALL,
                             .lock = RD2H_LOCK_OFF};
  return x->rank ? rd2h_pool_attach(handle, &o, &x->pool, err) : rd2h_pool_create(&o, &x->pool, err);
}

void exchange_close(struct exchange *x) {
  rd2h_pool_destroy(x->pool);
}

static int wait_for(const struct exchange *x, uint32_t rank, uint64_t until, struct rd2h_error *err) {
  const uint32_t *at = lane(x, rank);
  for (uint32_t have; (int32_t)((have = __atomic_load_n(at, __ATOMIC_ACQUIRE)) - x->turn) < 0;) {
    uint64_t now = rd2h_now_ns(), left = until > now ? until - now : 0;
    if (rd2h_pool_orphaned(x->pool) && __atomic_load_n(at, __ATOMIC_ACQUIRE) == have)
      return rd2h_fail(err, RD2H_PEER_LOST, "rank 0, which made the exchange, has ended: restart the engine");
    if (!left)
      return rd2h_fail(err, RD2H_TIMEOUT, "rank %u of %u has not come to step %u within %u ms", rank, x->ranks, x->turn, x->timeout_ms);
    left = left < LOOK_MS * RD2H_MS ? left : LOOK_MS * RD2H_MS;
    struct timespec t = {.tv_sec = (time_t)(left / 1000000000u), .tv_nsec = (long)(left % 1000000000u)};
    syscall(SYS_futex, at, FUTEX_WAIT, have, &t, NULL, 0);
  }
  return RD2H_OK;
}

int exchange_all(struct exchange *x, const void *mine, uint64_t len, void *all, struct rd2h_error *err) {
  uint64_t until = rd2h_now_ns() + x->timeout_ms * RD2H_MS;
  x->turn++;
  memcpy(slot(x, x->rank, x->turn), mine, len);
  __atomic_store_n(lane(x, x->rank), x->turn, __ATOMIC_RELEASE);
  syscall(SYS_futex, lane(x, x->rank), FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
  for (uint32_t r = 0; r < x->ranks; r++) {
    int rc = wait_for(x, r, until, err);
    if (rc)
      return rc;
    memcpy((uint8_t *)all + r * len, slot(x, r, x->turn), len);
  }
  return RD2H_OK;
}
