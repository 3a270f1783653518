/* SPDX-License-Identifier: Apache-2.0 */
/* The prefill machine's requests: bound to the endpoints that read them, settled when every reader has answered or is given up. */
#include "protocol/pm_internal.h"
#include <stdio.h>

#define WIRE_KEY_MAX (sizeof(uint32_t) + RD2H_ATTEMPT + RD2H_WIRE_MAX_ID)

/* What a reader at an endpoint can tell apart: attempt (zeros: none) and external id. */
static size_t wire_key(uint8_t key[WIRE_KEY_MAX], uint32_t ep, const uint8_t *attempt, struct rd2h_str ext) {
  uint32_t n = ext.n > RD2H_WIRE_MAX_ID ? RD2H_WIRE_MAX_ID : ext.n;
  memcpy(key, &ep, sizeof ep);
  if (attempt) memcpy(key + sizeof ep, attempt, RD2H_ATTEMPT);
  else memset(key + sizeof ep, 0, RD2H_ATTEMPT);
  memcpy(key + sizeof ep + RD2H_ATTEMPT, ext.p, n);
  return sizeof ep + RD2H_ATTEMPT + n;
}

static size_t link_key(const rd2h_pm *m, uint8_t key[WIRE_KEY_MAX], const struct pm_link *l) {
  const struct pm_req *r = pm_req(m, l->req);
  return wire_key(key, l->ep, r->has_attempt ? r->attempt : NULL, (struct rd2h_str){r->ext, r->ext_n});
}

uint32_t pm_find_link(const rd2h_pm *m, uint32_t req, uint32_t ep) {
  uint32_t l = pm_req(m, req)->links;
  while (l != RD2H_INDEX_NONE && pm_link(m, l)->ep != ep) l = pm_link(m, l)->next;
  return l;
}

/* ---- binding ---- */
static uint32_t new_request(rd2h_pm *m, const struct rd2h_pm_request *q) {
  uint32_t i = rd2h_slab_take(&m->reqs);
  if (i == RD2H_INDEX_NONE) return i;
  struct pm_req *r = pm_req(m, i);
  r->gen = ++m->gen;
  r->links = RD2H_INDEX_NONE;
  r->id = rd2h_strndup(q->id.p, q->id.n);
  r->ext = rd2h_strndup(q->ext_id.p, q->ext_id.n);
  r->id_n = q->id.n;
  r->ext_n = q->ext_id.n;
  r->has_attempt = q->has_attempt;
  r->has_dspark = q->has_dspark;
  memcpy(r->attempt, q->attempt, RD2H_ATTEMPT);
  if (r->id && r->ext && rd2h_map_put(m->by_id, q->id.p, q->id.n, i) == RD2H_OK) return i;
  rd2h_free(r->id);
  rd2h_free(r->ext);
  rd2h_slab_give(&m->reqs, i);
  return RD2H_INDEX_NONE;
}

static void free_request(rd2h_pm *m, uint32_t i) {
  struct pm_req *r = pm_req(m, i);
  rd2h_map_del(m->by_id, r->id, r->id_n);
  rd2h_free(r->id);
  rd2h_free(r->ext);
  rd2h_slab_give(&m->reqs, i);
}

static uint32_t new_link(rd2h_pm *m, uint32_t req, uint32_t ep) {
  uint8_t key[WIRE_KEY_MAX];
  uint32_t l = rd2h_slab_take(&m->links);
  if (l == RD2H_INDEX_NONE) return l;
  *pm_link(m, l) = (struct pm_link){.req = req, .ep = ep, .next = pm_req(m, req)->links};
  size_t n = link_key(m, key, pm_link(m, l));
  if (rd2h_map_get(m->by_wire, key, n) == RD2H_INDEX_NONE && rd2h_map_put(m->by_wire, key, n, l) == RD2H_OK) {
    pm_req(m, req)->links = l;
    pm_ep(m, ep)->n_links++;
    return l;
  }
  rd2h_slab_give(&m->links, l);
  return RD2H_INDEX_NONE;
}

uint32_t rd2h_pm_bind(rd2h_pm *m, const struct rd2h_pm_request *q, uint32_t ep, uint64_t now) {
  uint32_t i = rd2h_map_get(m->by_id, q->id.p, q->id.n);
  if (!q->id.n || !q->ext_id.n || q->ext_id.n > RD2H_WIRE_MAX_ID || !pm_reserve(m)) return RD2H_INDEX_NONE;
  bool fresh = i == RD2H_INDEX_NONE;
  if (fresh) i = new_request(m, q);
  if (i == RD2H_INDEX_NONE) return i;
  pm_ep(m, ep)->used = now;
  if (pm_find_link(m, i, ep) != RD2H_INDEX_NONE || new_link(m, i, ep) != RD2H_INDEX_NONE) return i;
  if (fresh) free_request(m, i);
  return RD2H_INDEX_NONE;
}

int rd2h_pm_unbound(const rd2h_pm *m, const struct rd2h_pm_request *q, uint32_t ep) {
  uint8_t key[WIRE_KEY_MAX];
  if (!q->id.n || !q->ext_id.n || q->ext_id.n > RD2H_WIRE_MAX_ID) return RD2H_INVALID;
  size_t n = wire_key(key, ep, q->has_attempt ? q->attempt : NULL, q->ext_id);
  if (rd2h_map_get(m->by_wire, key, n) != RD2H_INDEX_NONE) return RD2H_EXISTS;
  bool fresh = rd2h_map_get(m->by_id, q->id.p, q->id.n) == RD2H_INDEX_NONE;
  return fresh && m->reqs.live >= m->cfg.max_requests ? RD2H_LIMIT : RD2H_NOMEM;
}

/* ---- the end of a link ---- */
void pm_link_owe(rd2h_pm *m, uint32_t l) {
  if (pm_link(m, l)->untold) return;
  pm_link(m, l)->untold = true;
  pm_link(m, l)->telling++;
}

/* Without an epoch a reader that draws attempts is told in a new one; another has dropped the request, or never heard of it. */
void pm_link_tell(rd2h_pm *m, uint32_t l, uint64_t now) {
  uint32_t ep = pm_link(m, l)->ep;
  const struct pm_ep *e = pm_ep(m, ep);
  const struct pm_req *r = pm_req(m, pm_link(m, l)->req);
  if (e->state == PM_OPEN && e->ours) { /* all that was queued has been sent */
    if (e->caps & RD2H_CAP_CANCEL) pm_emit_link(m, RD2H_PA_SEND_CANCEL, l, r->text);
    m->st.cancels++;
    return;
  }
  if (e->state == PM_IDLE && !r->has_attempt) return;
  uint32_t i = pm_entry_add(m, ep, PM_BYE, now);
  if (i == RD2H_INDEX_NONE) {
    if (e->state == PM_CONNECTING || e->state == PM_META) pm_link_owe(m, l);
    return;
  }
  pm_entry(m, i)->link = l;
  pm_link(m, l)->telling++;
  pm_kick(m, ep, now);
}

void pm_link_end(rd2h_pm *m, uint32_t l, int status, const char *text, bool tell, uint64_t now) {
  struct pm_link *k = pm_link(m, l);
  struct pm_req *r = pm_req(m, k->req);
  if (k->ended) return;
  k->ended = true;
  k->status = status;
  if (status != RD2H_OK && !r->text[0]) snprintf(r->text, sizeof r->text, "%s", text);
  if (tell) pm_link_tell(m, l, now);
}

void pm_link_maybe_done(rd2h_pm *m, uint32_t l, uint64_t now) {
  struct pm_link *k = pm_link(m, l);
  if (!k->last || k->ended || k->outstanding || k->done_queued) return;
  uint32_t i = pm_entry_add(m, k->ep, PM_DONE, now);
  if (i == RD2H_INDEX_NONE) {
    pm_link_end(m, l, RD2H_LIMIT, "too many unanswered batches", false, now);
    return;
  }
  k->done_queued = true;
  k->outstanding++;
  pm_entry(m, i)->link = l;
  pm_kick(m, k->ep, now);
}

void rd2h_pm_last(rd2h_pm *m, uint32_t req, uint32_t ep, uint64_t now) {
  if (!rd2h_slab_live(&m->reqs, req)) return;
  uint32_t l = pm_find_link(m, req, ep);
  if (l == RD2H_INDEX_NONE) return;
  pm_link(m, l)->last = true;
  pm_link_maybe_done(m, l, now);
  pm_req_maybe_settle(m, req);
}

void rd2h_pm_fail(rd2h_pm *m, uint32_t req, uint32_t ep, int status, const char *text, uint64_t now) {
  if (req == RD2H_INDEX_NONE || !rd2h_slab_live(&m->reqs, req)) return;
  uint32_t l = pm_find_link(m, req, ep);
  if (l == RD2H_INDEX_NONE) return;
  pm_link_end(m, l, status, text, true, now);
  pm_req_maybe_settle(m, req);
}

/* ---- settlement ---- */
static void free_links(rd2h_pm *m, uint32_t req) {
  uint8_t key[WIRE_KEY_MAX];
  for (uint32_t l = pm_req(m, req)->links, next; l != RD2H_INDEX_NONE; l = next) {
    next = pm_link(m, l)->next;
    rd2h_map_del(m->by_wire, key, link_key(m, key, pm_link(m, l)));
    uint32_t ep = pm_link(m, l)->ep;
    pm_ep(m, ep)->n_links--;
    rd2h_slab_give(&m->links, l);
    pm_arm_idle(m, ep, pm_ep(m, ep)->used);
  }
}

static void count_end(rd2h_pm *m, int status) {
  uint64_t *const by_cause[] = {
      [RD2H_CAUSE_NONE] = &m->st.completed, [RD2H_CAUSE_ABORTED] = &m->st.aborted,
      [RD2H_CAUSE_TRANSPORT] = &m->st.failed_transport, [RD2H_CAUSE_PEER] = &m->st.failed_peer_lost,
      [RD2H_CAUSE_LAYOUT] = &m->st.failed_layout, [RD2H_CAUSE_EXPIRED] = &m->st.failed_expired,
      [RD2H_CAUSE_OTHER] = &m->st.failed_other};
  ++*by_cause[rd2h_status_cause(status)];
}

static void settle(rd2h_pm *m, struct pm_req *r, int status) {
  r->settled = true;
  m->st.requests_settled++;
  m->st.requests_failed += status != RD2H_OK;
  count_end(m, status);
  rd2h_map_del(m->by_id, r->id, r->id_n);
  pm_emit(m, RD2H_PA_REQ_SETTLED, RD2H_INDEX_NONE, r->id, NULL, r->text)->status = status;
  r->id = NULL;
}

void pm_req_maybe_settle(rd2h_pm *m, uint32_t req) {
  struct pm_req *r = pm_req(m, req);
  int status = RD2H_OK;
  uint32_t telling = 0;
  if (!r->finished) return;
  for (uint32_t l = r->links; l != RD2H_INDEX_NONE; l = pm_link(m, l)->next) {
    const struct pm_link *k = pm_link(m, l);
    if (!k->ended || k->outstanding) return;
    if (status == RD2H_OK) status = k->status;
    telling += k->telling;
  }
  if (!r->settled) settle(m, r, status);
  if (telling) return;
  free_links(m, req);
  rd2h_free(r->ext);
  rd2h_slab_give(&m->reqs, req);
}

static int settle_unknown(rd2h_pm *m, struct rd2h_str id, bool aborted) {
  char *copy = pm_reserve(m) ? rd2h_strndup(id.p, id.n) : NULL;
  if (!copy) return RD2H_NOMEM;
  pm_emit(m, RD2H_PA_REQ_SETTLED, RD2H_INDEX_NONE, copy, NULL, NULL)->status = aborted ? RD2H_ABORTED : RD2H_OK;
  return RD2H_OK;
}

int rd2h_pm_finish(rd2h_pm *m, struct rd2h_str id, bool aborted, uint64_t now) {
  uint32_t i = rd2h_map_get(m->by_id, id.p, id.n);
  if (i == RD2H_INDEX_NONE) return settle_unknown(m, id, aborted);
  struct pm_req *r = pm_req(m, i);
  for (uint32_t l = r->links, next; l != RD2H_INDEX_NONE; l = next) {
    next = pm_link(m, l)->next;
    if (!pm_link(m, l)->last)
      pm_link_end(m, l, RD2H_ABORTED, aborted ? "aborted at Prefill" : "ended at Prefill before its prompt was complete", true, now);
  }
  r->finished = true; /* last: ending a link must not settle it in the middle of the loop */
  pm_req_maybe_settle(m, i);
  return RD2H_OK;
}

uint32_t rd2h_pm_outstanding(const rd2h_pm *m, struct rd2h_str id) {
  uint32_t i = rd2h_map_get(m->by_id, id.p, id.n);
  return i == RD2H_INDEX_NONE ? 0 : pm_req(m, i)->outstanding;
}

/* Decode says that the request ended there. */
void rd2h_pm_peer_cancel(rd2h_pm *m, uint32_t ep, uint32_t epoch, const struct rd2h_wire_cancel *c, uint64_t now) {
  uint8_t key[WIRE_KEY_MAX];
  char text[PM_TEXT];
  if (!rd2h_slab_live(&m->eps, ep) || pm_ep(m, ep)->epoch != epoch || !c->has_attempt || c->id.n > RD2H_WIRE_MAX_ID) return;
  uint32_t l = rd2h_map_get(m->by_wire, key, wire_key(key, ep, c->attempt, c->id));
  if (l == RD2H_INDEX_NONE) return;
  uint32_t req = pm_link(m, l)->req;
  snprintf(text, sizeof text, "Decode ended the request: %.*s", (int)(c->text.n > 200 ? 200 : c->text.n), c->text.p ? c->text.p : "");
  pm_link_end(m, l, c->status < 0 ? c->status : RD2H_CANCELED, text, false, now);
  pm_req_maybe_settle(m, req);
}
