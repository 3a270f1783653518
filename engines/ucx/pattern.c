/* SPDX-License-Identifier: Apache-2.0 */
/* The trial of a connection: before anything else is read of a Prefill, 4 KiB are whose content its connection data foretells. A wrong
 * device, or a transport that moves other bytes than were asked for, is found here instead of in the answers of a model. */
#include "engines/ucx/ucx.h"
#include <stdio.h>

int rd2h_ucx_pattern_new(rd2h_engine *e, uint8_t **out, struct rd2h_error *err) {
  if (rd2h_random(&e->seed, sizeof e->seed))
    return rd2h_fail(err, RD2H_IO, "engine ucx: the system gives no random numbers");
  uint8_t *p = rd2h_alloc(RD2H_PATTERN);
  if (!p)
    return rd2h_nomem(err, "engine ucx");
  rd2h_pattern_fill(p, e->seed);
  *out = p;
  return RD2H_OK;
}

static void landed(rd2h_peer *p, ucx_status st) {
  p->trial.landed = true;
  p->trial.status = st;
  p->open--;
  p->landed_ns = st == UCX_OK ? p->e->now : p->landed_ns;
}

static void on_pattern(void *request, ucx_status st, void *user) {
  rd2h_peer *p = user;
  landed(p, st);
  p->e->ucx->request_free(request);
}

int rd2h_ucx_trial_begin(rd2h_engine *e, rd2h_peer *p, const struct ucx_conn *at, struct rd2h_error *err) {
  struct ucx_trial *t = &p->trial;
  const struct ucx_request_param param = {.mask = UCX_OP_CALLBACK | UCX_OP_USER_DATA, .cb = on_pattern, .user = p};
  ucx_status st = e->ucx->ep_rkey_unpack(p->ep, at->pattern.key, &t->rkey);
  if (st != UCX_OK) {
    t->rkey = NULL;
    return rd2h_fail(err, RD2H_UNSUPPORTED, "engine ucx: the key of the pattern of %s cannot be used here: %s%s", p->name,
                     e->ucx->status_text(st), rd2h_ucx_said());
  }
  t->on = true;
  t->seed = at->seed;
  t->begin = rd2h_now_ns();
  p->open++;
  void *request = e->ucx->get_nbx(p->ep, t->got, RD2H_PATTERN, at->pattern.base, t->rkey, &param);
  if (!request || UCX_FAILED(request))
    landed(p, UCX_STATUS(request));
  if (UCX_FAILED(request) && !rd2h_ucx_peer_died(p)) /* not even begun: no way of these can read */
    return rd2h_fail(err, RD2H_UNSUPPORTED, "engine ucx: nothing can be read of %s by %s: %s%s%s", p->name, p->way,
                     e->ucx->status_text(UCX_STATUS(request)), rd2h_ucx_said(),
                     e->emulation ? "" : "; with emulation=0 only RDMA and cma can");
  return RD2H_OK;
}

static void fail(rd2h_engine *e, rd2h_peer *p, const char *why) {
  RD2H_ERR("engine ucx: nothing is read of %s: %s", p->name, why);
  rd2h_ucx_peer_lose(e, p, why);
}

static void compare(rd2h_engine *e, rd2h_peer *p) {
  struct ucx_trial *t = &p->trial;
  char why[384];
  const uint32_t i = rd2h_pattern_wrong(t->got, t->seed);
  t->on = i < RD2H_PATTERN;
  if (!t->on)
    return;
  snprintf(why, sizeof why, "what came by %s is not Prefill's pattern of %u bytes: byte %u is 0x%02x, it should be 0x%02x; choose "
           "other devices or transports on both sides (engine options devices=, tls=)", p->way, RD2H_PATTERN, i, t->got[i],
           rd2h_pattern_byte(t->seed, i));
  fail(e, p, why);
}

void rd2h_ucx_trial_check(rd2h_engine *e, rd2h_peer *p) {
  struct ucx_trial *t = &p->trial;
  char why[384];
  if (!t->on || p->lost || p->failure)
    return;
  if (t->landed && t->status == UCX_OK) {
    compare(e, p);
  } else if (t->landed && (rd2h_ucx_peer_is_gone(t->status) || rd2h_ucx_peer_died(p))) {
    p->failure = rd2h_ucx_peer_is_gone(t->status) ? t->status : UCX_CONNECTION_RESET;
  } else if (t->landed) {
    snprintf(why, sizeof why, "its pattern cannot be read by %s: %s", p->way, e->ucx->status_text(t->status));
    fail(e, p, why);
  } else if (e->now > t->begin && e->now - t->begin > e->timeout) {
    snprintf(why, sizeof why, "its pattern did not come by %s within %llu ms", p->way, (unsigned long long)(e->timeout / RD2H_MS));
    fail(e, p, why);
  }
}
