/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/dump.h"
#include "worker/thread.h"
#include <errno.h>
#include <stdio.h>

#define WAIT_MS 1000u

int rd2h_dump_init(struct rd2h_dump *d) {
  *d = (struct rd2h_dump){0};
  return rd2h_cond_init(&d->made_one);
}

void rd2h_dump_free(struct rd2h_dump *d) {
  pthread_cond_destroy(&d->made_one);
  rd2h_buf_free(&d->text);
}

static size_t hand_over(const void *text, size_t n, char *out, size_t cap) {
  size_t fits = !cap ? 0 : n < cap ? n : cap - 1;
  if (fits)
    memcpy(out, text, fits);
  if (cap)
    out[fits] = 0;
  return n;
}

size_t rd2h_dump_ask(struct rd2h_dump *d, pthread_mutex_t *mu, void (*wake)(void *), void *arg, const char *who, char *out,
                     size_t cap) {
  char line[200];
  struct timespec until;
  rd2h_monotonic_after(&until, WAIT_MS);
  pthread_mutex_lock(mu);
  uint64_t mine = ++d->asked;
  wake(arg);
  while (d->made < mine)
    if (pthread_cond_timedwait(&d->made_one, mu, &until) == ETIMEDOUT)
      break;
  size_t n;
  if (d->made >= mine) {
    n = hand_over(d->text.p, d->text.len, out, cap);
  } else {
    int len = snprintf(line, sizeof line, "%s: its thread has not answered for %u ms\n", who, WAIT_MS);
    n = hand_over(line, (size_t)len, out, cap);
  }
  pthread_mutex_unlock(mu);
  return n;
}

bool rd2h_dump_wanted(struct rd2h_dump *d) {
  if (d->made == d->asked)
    return false;
  rd2h_buf_reset(&d->text);
  return true;
}

void rd2h_dump_made(struct rd2h_dump *d) {
  d->made = d->asked;
  pthread_cond_broadcast(&d->made_one);
}
