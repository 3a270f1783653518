/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_TEST_PM_H
#define RD2H_TEST_PM_H
/* A sender without sockets around the prefill machine: carries actions out and writes what they were into a line that tests
 * compare. Endpoints are named by their handle, batches by their cookie. */
#include "protocol/prefill_machine.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#define MS RD2H_MS
#define SEC (1000 * RD2H_MS)

struct t_pm {
  rd2h_pm *pm;
  uint64_t now, seq; /* seq: of the message sent last */
  uint32_t epoch[8];
  uint32_t req[64][4]; /* lent to the machine, by cookie */
  bool settled[64];
  char log[4096];
};

static const struct rd2h_pm_cfg p_cfg = {
    .pp_size = 1, .last_layer = 1, .handshake_ns = 5 * SEC, .hold_ns = 30 * SEC, .idle_ns = 60 * SEC};

__attribute__((unused)) static struct t_pm p_start(const struct rd2h_pm_cfg *cfg) {
  struct t_pm t = {.now = SEC};
  assert_int_equal(rd2h_pm_create(cfg, &t.pm, NULL), RD2H_OK);
  return t;
}

__attribute__((unused)) static void p_stop(struct t_pm *t) {
  rd2h_pm_destroy(t->pm);
}

static void p_say(struct t_pm *t, const char *fmt, ...) RD2H_PRINTF(2, 3);
static void p_say(struct t_pm *t, const char *fmt, ...) {
  size_t n = strlen(t->log);
  va_list ap;
  va_start(ap, fmt);
  if (n)
    n += (size_t)snprintf(t->log + n, sizeof t->log - n, "; ");
  vsnprintf(t->log + n, sizeof t->log - n, fmt, ap);
  va_end(ap);
}

static void p_batch(struct t_pm *t, const struct rd2h_pa *a) {
  struct rd2h_pa x = *a;
  uint32_t idx[4], n = rd2h_pm_sending(t->pm, x.batch, idx, t->now);
  char which[32] = "";
  for (uint32_t k = 0; k < n; k++)
    snprintf(which + strlen(which), sizeof which - strlen(which), "%s%u", k ? "," : "", idx[k]);
  if (n && x.has_seq)
    p_say(t, "batch %u L%u [%s] #%u to %u", (unsigned)x.cookie, x.layer, which, (unsigned)x.seq, x.endpoint);
  else if (n)
    p_say(t, "batch %u L%u [%s] to %u", (unsigned)x.cookie, x.layer, which, x.endpoint);
}

static void p_carry_out(struct t_pm *t, const struct rd2h_pa *a) {
  t->seq = a->has_seq ? a->seq : t->seq;
  switch (a->kind) {
  case RD2H_PA_CONNECT:
    p_say(t, "connect %u", a->endpoint);
    t->epoch[a->endpoint] = a->epoch;
    break;
  case RD2H_PA_CLOSE:
    p_say(t, "close %u", a->endpoint);
    assert_int_equal(a->epoch, t->epoch[a->endpoint]);
    break;
  case RD2H_PA_SEND_META: p_say(t, "meta %u", a->endpoint); break;
  case RD2H_PA_SEND_BATCH: p_batch(t, a); break;
  case RD2H_PA_SEND_DONE: p_say(t, "done %s L%u to %u", a->ext_id, a->layer, a->endpoint); break;
  case RD2H_PA_SEND_POISON: p_say(t, "poison %s to %u", a->ext_id, a->endpoint); break;
  case RD2H_PA_SEND_CANCEL: p_say(t, "cancel %s %s to %u", a->ext_id, rd2h_status_name(a->status), a->endpoint); break;
  case RD2H_PA_BATCH_SETTLED:
    p_say(t, "settled %u %s", (unsigned)a->cookie, rd2h_status_name(a->status));
    assert_false(t->settled[a->cookie]);
    t->settled[a->cookie] = true;
    memset(t->req[a->cookie], 0x5a, sizeof t->req[a->cookie]); /* the loan is over */
    break;
  case RD2H_PA_REQ_SETTLED: p_say(t, "finished %s %s", a->id, rd2h_status_name(a->status)); break;
  }
}

#define expect(t, line) p_expect(t, line, __FILE__, __LINE__)
__attribute__((unused)) static void p_drain(struct t_pm *t) {
  struct rd2h_pa a;
  while (rd2h_pm_next(t->pm, &a))
    p_carry_out(t, &a);
}

__attribute__((unused)) static void p_expect(struct t_pm *t, const char *line, const char *file, int at) {
  p_drain(t);
  if (strcmp(t->log, line))
    print_error("expected: %s\nhappened: %s\n", line, t->log);
  _assert_string_equal(t->log, line, file, at);
  t->log[0] = 0;
}

/* ---- what the engine does ---- */
#define STR(s) ((struct rd2h_str){s, (uint32_t)strlen(s)})

__attribute__((unused)) static uint32_t endpoint(struct t_pm *t, const char *address) {
  uint32_t e = rd2h_pm_endpoint(t->pm, STR(address), STR("engine-1"), t->now);
  p_drain(t);
  return e;
}

__attribute__((unused)) static uint32_t p_bind(struct t_pm *t, const char *id, const char *ext, char attempt, bool dspark,
                                               uint32_t ep) {
  struct rd2h_pm_request q = {.id = STR(id), .ext_id = STR(ext), .has_attempt = attempt != 0, .has_dspark = dspark};
  memset(q.attempt, attempt, RD2H_ATTEMPT);
  return rd2h_pm_bind(t->pm, &q, ep, t->now);
}

/* Requests whose id is their external id with a dash. */
__attribute__((unused)) static uint32_t bind(struct t_pm *t, const char *ext, uint32_t ep) {
  char id[32];
  snprintf(id, sizeof id, "%s-", ext);
  uint32_t r = p_bind(t, id, ext, 'a', false, ep);
  assert_int_not_equal(r, RD2H_INDEX_NONE);
  return r;
}

__attribute__((unused)) static void p_dispatch(struct t_pm *t, uint32_t ep, uint32_t layer, uint32_t cookie, const uint32_t *req,
                                               uint32_t n) {
  memcpy(t->req[cookie], req, n * sizeof *req);
  rd2h_pm_dispatch(t->pm, ep, layer, t->req[cookie], n, cookie, t->now);
  p_drain(t);
}
#define dispatch(t, ep, layer, cookie, ...) \
  p_dispatch(t, ep, layer, cookie, (const uint32_t[]){__VA_ARGS__}, sizeof(uint32_t[]){__VA_ARGS__} / sizeof(uint32_t))

__attribute__((unused)) static void last(struct t_pm *t, uint32_t req, uint32_t ep) {
  rd2h_pm_last(t->pm, req, ep, t->now);
  p_drain(t);
}

__attribute__((unused)) static void finish(struct t_pm *t, const char *id, bool aborted) {
  rd2h_pm_finish(t->pm, STR(id), aborted, t->now);
  p_drain(t);
}

/* ---- what the network does ---- */
__attribute__((unused)) static void p_reply(struct t_pm *t, uint32_t ep, const struct rd2h_wire_reply *r) {
  rd2h_pm_reply(t->pm, ep, t->epoch[ep], r, t->now);
  p_drain(t);
}

__attribute__((unused)) static void connected(struct t_pm *t, uint32_t ep) {
  rd2h_pm_connected(t->pm, ep, t->epoch[ep], t->now);
  p_drain(t);
}

/* Connection and acknowledgement in one. */
__attribute__((unused)) static void open_epoch(struct t_pm *t, uint32_t ep, bool ours) {
  connected(t, ep);
  p_reply(t, ep,
          &(struct rd2h_wire_reply){.kind = RD2H_MSG_META_ACK, .ext = {.present = ours, .revision = 1, .caps = RD2H_CAPS_ALL}});
}

/* seq 0: a legacy answer. statuses: up to four, ended by 1. */
__attribute__((unused)) static void answer(struct t_pm *t, uint32_t ep, enum rd2h_wire_kind kind, uint32_t layer, uint64_t seq,
                                           const int32_t *status) {
  uint32_t n = 0;
  while (status && n < 4 && status[n] <= 0)
    n++;
  p_reply(t, ep,
          &(struct rd2h_wire_reply){
              .kind = kind, .layer_idx = layer, .has_seq = seq != 0, .seq = seq, .n_status = n, .status = status});
}
#define all_good(t, ep, layer, seq) answer(t, ep, RD2H_MSG_DONE, layer, seq, (const int32_t[]){0, 1})

__attribute__((unused)) static void lost(struct t_pm *t, uint32_t ep) {
  rd2h_pm_disconnected(t->pm, ep, t->epoch[ep], "the other side is gone", t->now);
  p_drain(t);
}

__attribute__((unused)) static void pass(struct t_pm *t, uint64_t ns) {
  t->now += ns;
  rd2h_pm_tick(t->pm, t->now);
  p_drain(t);
}

__attribute__((unused)) static struct rd2h_pm_stats p_stats(const struct t_pm *t) {
  struct rd2h_pm_stats st;
  rd2h_pm_stats(t->pm, &st);
  return st;
}
#endif
