/* SPDX-License-Identifier: Apache-2.0 */
/* The prefill machine's entries: what an endpoint was or will be sent and has to answer, oldest first. */
#include "protocol/pm_internal.h"
#include <stdio.h>

/* ---- the list ---- */
uint32_t pm_entry_add(rd2h_pm *m, uint32_t ep, enum pm_kind kind, uint64_t now) {
  uint32_t i = pm_reserve(m) ? rd2h_slab_take(&m->entries) : RD2H_INDEX_NONE;
  if (i == RD2H_INDEX_NONE) return i;
  struct pm_ep *e = pm_ep(m, ep);
  struct pm_entry *x = pm_entry(m, i);
  *x = (struct pm_entry){.kind = kind, .ep = ep, .next = RD2H_INDEX_NONE, .prev = e->tail, .layer = m->cfg.last_layer,
                         .link = RD2H_INDEX_NONE, .deadline = now + m->cfg.hold_ns};
  if (e->tail == RD2H_INDEX_NONE) e->head = i;
  else pm_entry(m, e->tail)->next = i;
  e->tail = i;
  if (e->first_unsent == RD2H_INDEX_NONE) e->first_unsent = i;
  e->n++;
  e->used = now;
  m->st.outstanding++;
  if (!e->due_armed) {
    e->due_armed = true;
    pm_timer(m, x->deadline, PM_TIMER_DUE, ep, e->gen);
  }
  return i;
}

void pm_entry_remove(rd2h_pm *m, uint32_t i) {
  struct pm_entry *x = pm_entry(m, i);
  struct pm_ep *e = pm_ep(m, x->ep);
  if (x->prev == RD2H_INDEX_NONE) e->head = x->next;
  else pm_entry(m, x->prev)->next = x->next;
  if (x->next == RD2H_INDEX_NONE) e->tail = x->prev;
  else pm_entry(m, x->next)->prev = x->prev;
  if (e->first_unsent == i) e->first_unsent = x->next;
  e->n--;
  m->st.outstanding--;
  rd2h_slab_give(&m->entries, i);
}

/* ---- dispatch and sending ---- */
static void refuse(rd2h_pm *m, uint32_t l, bool silent, uint64_t now) {
  uint32_t req = pm_link(m, l)->req;
  char text[PM_TEXT];
  snprintf(text, sizeof text, "%.80s has answered nothing for %llu ms (hold_ms): nothing new is sent to it until it does",
           pm_ep(m, pm_link(m, l)->ep)->address, (unsigned long long)(m->cfg.hold_ns / RD2H_MS));
  if (silent) pm_link_end(m, l, RD2H_PEER_LOST, text, true, now);
  else pm_link_end(m, l, RD2H_LIMIT, "too many unanswered batches", true, now);
  pm_req_maybe_settle(m, req);
}

void rd2h_pm_dispatch(rd2h_pm *m, uint32_t ep, uint32_t layer, uint32_t *req, uint32_t n, uint64_t cookie, uint64_t now) {
  bool silent = pm_ep(m, ep)->silent;
  uint32_t wanted = 0, i = silent ? RD2H_INDEX_NONE : pm_entry_add(m, ep, PM_BATCH, now);
  for (uint32_t k = 0; k < n; k++) {
    uint32_t l = req[k] == RD2H_INDEX_NONE ? RD2H_INDEX_NONE : pm_find_link(m, req[k], ep);
    if (l == RD2H_INDEX_NONE || pm_link(m, l)->ended) {
      req[k] = RD2H_INDEX_NONE;
      continue;
    }
    if (i == RD2H_INDEX_NONE) {
      refuse(m, l, silent, now);
      req[k] = RD2H_INDEX_NONE;
      continue;
    }
    pm_link(m, l)->outstanding++;
    pm_req(m, req[k])->outstanding++;
    wanted++;
  }
  m->st.batches++;
  if (wanted) {
    struct pm_entry *x = pm_entry(m, i);
    x->layer = layer;
    x->req = req;
    x->n = n;
    x->cookie = cookie;
    pm_kick(m, ep, now);
    return;
  }
  if (i != RD2H_INDEX_NONE) pm_entry_remove(m, i);
  struct rd2h_pa *a = pm_emit(m, RD2H_PA_BATCH_SETTLED, ep, NULL, NULL, NULL);
  a->cookie = cookie;
  a->layer = layer;
  a->status = silent ? RD2H_PEER_LOST : i == RD2H_INDEX_NONE ? RD2H_LIMIT : RD2H_SKIPPED;
}

uint32_t rd2h_pm_sending(rd2h_pm *m, uint32_t batch, uint32_t *idx, uint64_t now) {
  if (!rd2h_slab_live(&m->entries, batch)) return 0;
  struct pm_entry *x = pm_entry(m, batch);
  uint32_t n = 0;
  for (uint32_t k = 0; k < x->n; k++) {
    if (x->req[k] == RD2H_INDEX_NONE) continue;
    uint32_t r = x->req[k], l = pm_find_link(m, r, x->ep);
    if (pm_link(m, l)->ended) {
      pm_link(m, l)->outstanding--;
      pm_req(m, r)->outstanding--;
      m->st.skipped++;
      pm_req_maybe_settle(m, r);
      continue;
    }
    idx[n] = k;
    x->req[n++] = r;
  }
  x->n = n;
  if (!n) pm_entry_settle(m, batch, RD2H_SKIPPED, NULL, "", false, now);
  return n;
}

static void send_bye(rd2h_pm *m, uint32_t i) {
  struct pm_entry *x = pm_entry(m, i);
  struct pm_ep *e = pm_ep(m, x->ep);
  struct pm_link *l = pm_link(m, x->link);
  const struct pm_req *r = pm_req(m, l->req);
  uint32_t req = l->req;
  if (!e->ours && !r->has_dspark) {
    struct rd2h_pa *a = pm_emit_link(m, RD2H_PA_SEND_POISON, x->link, NULL);
    a->layer = x->layer;
    x->sent = true;
    return;
  }
  if (e->ours && (e->caps & RD2H_CAP_CANCEL)) pm_emit_link(m, RD2H_PA_SEND_CANCEL, x->link, r->text);
  m->st.cancels += e->ours;
  l->telling--;
  pm_entry_remove(m, i);
  pm_req_maybe_settle(m, req);
}

static void send_entry(rd2h_pm *m, uint32_t i) {
  struct pm_entry *x = pm_entry(m, i);
  struct pm_ep *e = pm_ep(m, x->ep);
  e->first_unsent = x->next;
  if (x->kind == PM_BYE) {
    send_bye(m, i);
    return;
  }
  x->sent = true;
  x->seq = ++e->seq;
  struct rd2h_pa *a = x->kind == PM_DONE ? pm_emit_link(m, RD2H_PA_SEND_DONE, x->link, NULL)
                                         : pm_emit(m, RD2H_PA_SEND_BATCH, x->ep, NULL, NULL, NULL);
  a->batch = i;
  a->cookie = x->cookie;
  a->layer = x->layer;
  a->seq = x->seq;
  a->has_seq = e->ours && (e->caps & RD2H_CAP_SEQ);
  a->digests = a->has_seq && (e->caps & RD2H_CAP_DIGEST);
}

/* Starts an epoch when something waits for one; sends what waits when it is open. */
void pm_kick(rd2h_pm *m, uint32_t ep, uint64_t now) {
  struct pm_ep *e = pm_ep(m, ep);
  if (e->first_unsent == RD2H_INDEX_NONE) return;
  if (e->state == PM_IDLE) {
    e->epoch = ++m->epochs;
    e->state = PM_CONNECTING;
    e->seq = 0;
    m->st.epochs++;
    pm_emit(m, RD2H_PA_CONNECT, ep, NULL, NULL, NULL);
    pm_timer(m, now + m->cfg.handshake_ns, PM_TIMER_HANDSHAKE, ep, e->epoch);
  }
  while (e->state == PM_OPEN && e->first_unsent != RD2H_INDEX_NONE) send_entry(m, e->first_unsent);
}

/* ---- answers and what takes their place ---- */
static int status_of(const struct rd2h_wire_reply *r, uint32_t k, uint32_t n, int overall) {
  if (!r || r->n_status != n) return overall;
  return r->status[k] > 0 ? RD2H_OK : r->status[k];
}

static void settle_batch(rd2h_pm *m, const struct pm_entry *x, int status, const struct rd2h_wire_reply *r, const char *text,
                         bool tell, uint64_t now) {
  for (uint32_t k = 0; k < x->n; k++) {
    uint32_t q = x->req[k];
    if (q == RD2H_INDEX_NONE) continue;
    uint32_t l = pm_find_link(m, q, x->ep);
    int st = status_of(r, k, x->n, status);
    /* Ended while the batch still counts: telling the reader must not settle and free the request under our feet. */
    if (st != RD2H_OK) pm_link_end(m, l, st, text[0] ? text : rd2h_status_text(st), tell, now);
    pm_link(m, l)->known |= r != NULL;
    pm_link(m, l)->outstanding--;
    pm_req(m, q)->outstanding--;
    pm_link_maybe_done(m, l, now);
    pm_req_maybe_settle(m, q);
  }
  m->st.batches_failed += status != RD2H_OK && status != RD2H_SKIPPED;
  struct rd2h_pa *a = pm_emit(m, RD2H_PA_BATCH_SETTLED, x->ep, NULL, NULL, text);
  a->cookie = x->cookie;
  a->layer = x->layer;
  a->status = status;
}

static void settle_link(rd2h_pm *m, const struct pm_entry *x, int status, const char *text, uint64_t now) {
  uint32_t req = pm_link(m, x->link)->req;
  if (x->kind == PM_BYE) {
    pm_link(m, x->link)->telling--;
  } else {
    pm_link(m, x->link)->outstanding--;
    pm_link_end(m, x->link, status, text[0] ? text : rd2h_status_text(status), false, now);
  }
  pm_req_maybe_settle(m, req);
}

void pm_entry_settle(rd2h_pm *m, uint32_t i, int status, const struct rd2h_wire_reply *r, const char *text, bool tell,
                     uint64_t now) {
  struct pm_entry x = *pm_entry(m, i);
  pm_entry_remove(m, i);
  if (x.kind == PM_BATCH) settle_batch(m, &x, status, r, text, tell, now);
  else settle_link(m, &x, status, text, now);
  pm_arm_idle(m, x.ep, now);
}

/* The reader has had its time: its slots open, its requests end there. The entry stays as a zombie, since the next answer is its. */
static void give_up(rd2h_pm *m, uint32_t i, uint64_t now) {
  struct pm_entry *x = pm_entry(m, i);
  char text[PM_TEXT];
  snprintf(text, sizeof text, "%.80s did not answer layer %u within %llu ms (hold_ms)", pm_ep(m, x->ep)->address, x->layer,
           (unsigned long long)(m->cfg.hold_ns / RD2H_MS));
  m->st.given_up++;
  if (!x->sent) { /* never sent: no answer can come */
    pm_entry_settle(m, i, RD2H_TIMEOUT, NULL, text, true, now);
    return;
  }
  x->zombie = true;
  pm_ep(m, x->ep)->silent |= pm_ep(m, x->ep)->heard + m->cfg.hold_ns <= now;
  if (x->kind == PM_BATCH) settle_batch(m, x, RD2H_TIMEOUT, NULL, text, true, now);
  else settle_link(m, x, RD2H_TIMEOUT, text, now);
}

/* When the endpoint has to be looked at again: the oldest that still counts, or a reader that has been silent for twice its time. */
static uint64_t next_due(const rd2h_pm *m, const struct pm_ep *e) {
  uint32_t i = e->head;
  uint64_t next = RD2H_NEVER;
  if (i != RD2H_INDEX_NONE && pm_entry(m, i)->zombie) next = pm_entry(m, i)->deadline + m->cfg.hold_ns;
  while (i != RD2H_INDEX_NONE && pm_entry(m, i)->zombie) i = pm_entry(m, i)->next;
  return i != RD2H_INDEX_NONE && pm_entry(m, i)->deadline < next ? pm_entry(m, i)->deadline : next;
}

void pm_due(rd2h_pm *m, uint32_t ep, uint64_t now) {
  struct pm_ep *e = pm_ep(m, ep);
  if (e->head != RD2H_INDEX_NONE && pm_entry(m, e->head)->zombie && pm_entry(m, e->head)->deadline + m->cfg.hold_ns <= now) {
    e->due_armed = false;
    pm_epoch_fail(m, ep, RD2H_PEER_LOST, "Decode answers nothing any more", now);
    return;
  }
  for (uint32_t i = e->head, after; i != RD2H_INDEX_NONE; i = after) { /* due_armed stays: what is added meanwhile arms nothing */
    struct pm_entry *x = pm_entry(m, i);
    after = x->next;
    if (!x->zombie && x->deadline > now) break;
    if (!x->zombie) give_up(m, i, now);
  }
  uint64_t next = next_due(m, e);
  e->due_armed = next != RD2H_NEVER;
  if (e->due_armed) pm_timer(m, next, PM_TIMER_DUE, ep, e->gen);
}
