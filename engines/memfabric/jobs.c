/* SPDX-License-Identifier: Apache-2.0 */
/* Reads on their way from submit to poll. The lock is held throughout. */
#include "engines/memfabric/client.h"
#include <stdio.h>
#include <sys/timerfd.h>
#include <unistd.h>

void rd2h_mf_give(struct mf_client *c, struct mf_job *j) {
  j->taken = false;
  j->peer = NULL;
  j->next = c->free_jobs;
  c->free_jobs = j;
}

void rd2h_mf_set_signal(struct mf_client *c) {
  rd2h_ready_set(&c->ready, c->done.head || c->downs);
}

void rd2h_mf_finish(struct mf_client *c, struct mf_job *j, int status, uint64_t bytes) {
  c->stats.reads++;
  c->stats.descriptors += j->batch->n;
  c->stats.bytes += bytes;
  c->stats.canceled += status == RD2H_CANCELED;
  c->stats.failures += status && status != RD2H_CANCELED;
  j->status = status;
  j->bytes = bytes;
  j->batch = NULL;
  mf_list_push(&c->done, j);
  rd2h_mf_set_signal(c);
}

void rd2h_mf_fail_queued(struct mf_session *s, int status, const char *why) {
  struct mf_job *j;
  while ((j = mf_list_pop(&s->queue))) {
    rd2h_fail(j->err, status, "%s", why);
    rd2h_mf_finish(s->client, j, status, 0);
  }
}

static void set_timer(struct mf_client *c, uint64_t ns) {
  struct itimerspec t = {.it_value = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)}};
  if (!timerfd_settime(c->timer, 0, &t, NULL))
    c->armed = ns > 0;
}

void rd2h_mf_reading(struct mf_session *s, bool on) {
  struct mf_client *c = s->client;
  s->reading = on;
  if (!c)
    return;
  c->running += on ? 1u : -1u;
  if (on && !c->armed)
    set_timer(c, MF_SUSPECT_NS);
  else if (!c->running && c->armed && !s->queue.head) /* between two reads it stays as it is */
    set_timer(c, 0);
}
