/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_WORKER_GATE_H
#define RD2H_WORKER_GATE_H
/* The gate of Prefill's storage slots: a slot is open exactly while no batch of it is outstanding. */
#include "base/base.h"
#include <pthread.h>

struct rd2h_gate {
  pthread_mutex_t mu; /* also guards what the owner waits for with rd2h_gate_wait */
  pthread_cond_t changed;
  uint32_t n, closed; /* slots; how many of them are closed */
  uint32_t *count;    /* outstanding batches by slot */
};
int rd2h_gate_init(struct rd2h_gate *, uint32_t slots);
void rd2h_gate_free(struct rd2h_gate *);
/* With mu held. */
void rd2h_gate_close(struct rd2h_gate *, const uint32_t *slot, uint32_t n, uint32_t batches);
void rd2h_gate_open(struct rd2h_gate *, const uint32_t *slot, uint32_t n); /* one batch is over; wakes waiters */
bool rd2h_gate_is_open(const struct rd2h_gate *, const uint32_t *slot, uint32_t n);
/* Waits until ready(arg) (called with mu held), at most timeout_ms; returns with mu held: OK or TIMEOUT. */
int rd2h_gate_wait(struct rd2h_gate *, uint32_t timeout_ms, bool (*ready)(void *), void *arg);
#endif
