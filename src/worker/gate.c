/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/gate.h"
#include "worker/thread.h"
#include <errno.h>

int rd2h_gate_init(struct rd2h_gate *g, uint32_t slots) {
  *g = (struct rd2h_gate){.n = slots, .count = rd2h_calloc(slots, sizeof *g->count)};
  if (!g->count)
    return RD2H_NOMEM;
  if (pthread_mutex_init(&g->mu, NULL))
    goto free_count;
  if (rd2h_cond_init(&g->changed))
    goto destroy_mutex;
  return RD2H_OK;
destroy_mutex:
  pthread_mutex_destroy(&g->mu);
free_count:
  rd2h_free(g->count);
  g->count = NULL;
  return RD2H_NOMEM;
}

void rd2h_gate_free(struct rd2h_gate *g) {
  if (!g->count)
    return;
  pthread_cond_destroy(&g->changed);
  pthread_mutex_destroy(&g->mu);
  rd2h_free(g->count);
  *g = (struct rd2h_gate){0};
}

void rd2h_gate_close(struct rd2h_gate *g, const uint32_t *slot, uint32_t n, uint32_t batches) {
  for (uint32_t i = 0; i < n && batches; i++) {
    g->closed += !g->count[slot[i]];
    g->count[slot[i]] += batches;
  }
}

void rd2h_gate_open(struct rd2h_gate *g, const uint32_t *slot, uint32_t n) {
  for (uint32_t i = 0; i < n; i++)
    if (!--g->count[slot[i]])
      g->closed--;
  pthread_cond_broadcast(&g->changed);
}

bool rd2h_gate_is_open(const struct rd2h_gate *g, const uint32_t *slot, uint32_t n) {
  for (uint32_t i = 0; i < n; i++)
    if (g->count[slot[i]])
      return false;
  return true;
}

int rd2h_gate_wait(struct rd2h_gate *g, uint32_t timeout_ms, bool (*ready)(void *), void *arg) {
  struct timespec until;
  rd2h_monotonic_after(&until, timeout_ms);
  pthread_mutex_lock(&g->mu);
  while (!ready(arg))
    if (pthread_cond_timedwait(&g->changed, &g->mu, &until) == ETIMEDOUT)
      return ready(arg) ? RD2H_OK : RD2H_TIMEOUT;
  return RD2H_OK;
}
