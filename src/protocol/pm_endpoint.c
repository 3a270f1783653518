/* SPDX-License-Identifier: Apache-2.0 */
/* The prefill machine's endpoints: epochs, the handshake, what the network says. */
#include "protocol/pm_internal.h"
#include <stdio.h>

const char *rd2h_pm_endpoint_address(const rd2h_pm *m, uint32_t ep) { return pm_ep(m, ep)->address; }

static uint32_t new_endpoint(rd2h_pm *m, struct rd2h_str address) {
  uint32_t i = pm_reserve(m) ? rd2h_slab_take(&m->eps) : RD2H_INDEX_NONE;
  if (i == RD2H_INDEX_NONE) return i;
  struct pm_ep *e = pm_ep(m, i);
  e->gen = ++m->gen;
  e->head = e->tail = e->first_unsent = RD2H_INDEX_NONE;
  e->address = rd2h_strndup(address.p, address.n);
  if (e->address && rd2h_map_put(m->by_address, address.p, address.n, i) == RD2H_OK) return i;
  rd2h_free(e->address);
  rd2h_slab_give(&m->eps, i);
  return RD2H_INDEX_NONE;
}

uint32_t rd2h_pm_endpoint(rd2h_pm *m, struct rd2h_str address, struct rd2h_str engine_id, uint64_t now) {
  uint32_t i = rd2h_map_get(m->by_address, address.p, address.n);
  if (i == RD2H_INDEX_NONE) i = new_endpoint(m, address);
  if (i == RD2H_INDEX_NONE) return i;
  struct pm_ep *e = pm_ep(m, i);
  e->used = now;
  pm_arm_idle(m, i, now); /* also when nothing is ever bound to it */
  bool same = e->engine_id && strlen(e->engine_id) == engine_id.n && !memcmp(e->engine_id, engine_id.p, engine_id.n);
  if (same || !engine_id.n) return i;
  if (e->engine_id && e->state != PM_IDLE) pm_epoch_fail(m, i, RD2H_PEER_LOST, "another Decode engine lives at this address now", now);
  char *copy = rd2h_strndup(engine_id.p, engine_id.n);
  if (copy) {
    rd2h_free(e->engine_id);
    e->engine_id = copy;
  }
  return i;
}

/* ---- the end of an epoch: nothing that was not answered will ever be, and the reader drops every request of it ---- */
static void end_links(rd2h_pm *m, uint32_t ep, int status, const char *text, bool tell, uint64_t now) {
  for (uint32_t i = 0; i < m->links.next; i++)
    if (rd2h_slab_live(&m->links, i) && pm_link(m, i)->ep == ep) {
      struct pm_link *l = pm_link(m, i);
      uint32_t req = l->req;
      if (tell && !l->ended && !l->known && pm_req(m, req)->has_attempt) pm_link_owe(m, i);
      pm_link_end(m, i, status, text, false, now);
      pm_req_maybe_settle(m, req);
    }
}

/* A reader that never heard of a request does not notice that its connection is over: the next one begins with that. tell false:
 * it cannot be reached. */
static void tell_untold(rd2h_pm *m, uint32_t ep, bool tell, uint64_t now) {
  for (uint32_t i = 0; i < m->links.next; i++)
    if (rd2h_slab_live(&m->links, i) && pm_link(m, i)->ep == ep && pm_link(m, i)->untold) {
      uint32_t req = pm_link(m, i)->req;
      pm_link(m, i)->untold = false;
      if (tell) pm_link_tell(m, i, now);
      pm_link(m, i)->telling--;
      pm_req_maybe_settle(m, req);
    }
}

static void drop_entry(rd2h_pm *m, uint32_t i, int status, const char *text, uint64_t now) {
  struct pm_entry *x = pm_entry(m, i);
  if (x->zombie) pm_entry_remove(m, i);
  else pm_entry_settle(m, i, status, NULL, text, false, now);
}

void pm_epoch_fail(rd2h_pm *m, uint32_t ep, int status, const char *text, uint64_t now) {
  struct pm_ep *e = pm_ep(m, ep);
  char line[PM_TEXT];
  if (e->state == PM_IDLE) return;
  bool tell = e->state == PM_OPEN && e->ours && (e->caps & RD2H_CAP_CANCEL) && status != RD2H_CANCELED;
  snprintf(line, sizeof line, "%.80s: %s", e->address, text);
  pm_emit(m, RD2H_PA_CLOSE, ep, NULL, NULL, line)->status = status;
  e->state = PM_IDLE;
  e->ours = false;
  e->caps = 0;
  e->silent = false;
  m->st.epochs_lost++;
  m->st.malformed += status == RD2H_MALFORMED;
  end_links(m, ep, status, line, tell, now); /* first: so that settling the entries starts nothing new */
  while (e->head != RD2H_INDEX_NONE) drop_entry(m, e->head, status, line, now);
  tell_untold(m, ep, tell, now);
  pm_arm_idle(m, ep, now);
}

/* ---- events ---- */
static bool current(const rd2h_pm *m, uint32_t ep, uint32_t epoch) {
  return rd2h_slab_live(&m->eps, ep) && pm_ep(m, ep)->epoch == epoch && pm_ep(m, ep)->state != PM_IDLE;
}

void rd2h_pm_connected(rd2h_pm *m, uint32_t ep, uint32_t epoch, uint64_t now) {
  (void)now;
  if (!current(m, ep, epoch) || pm_ep(m, ep)->state != PM_CONNECTING) return;
  pm_ep(m, ep)->state = PM_META;
  pm_emit(m, RD2H_PA_SEND_META, ep, NULL, NULL, NULL);
}

void rd2h_pm_disconnected(rd2h_pm *m, uint32_t ep, uint32_t epoch, const char *why, uint64_t now) {
  if (current(m, ep, epoch)) pm_epoch_fail(m, ep, RD2H_PEER_LOST, why, now);
}

void rd2h_pm_garbage(rd2h_pm *m, uint32_t ep, uint32_t epoch, const char *text, uint64_t now) {
  if (current(m, ep, epoch)) pm_epoch_fail(m, ep, RD2H_MALFORMED, text, now);
}

/* A Decode that refused the metadata can still be told which requests it need not wait for. */
static void tell_refused(rd2h_pm *m, uint32_t ep) {
  for (uint32_t i = 0; i < m->links.next; i++)
    if (rd2h_slab_live(&m->links, i) && pm_link(m, i)->ep == ep && !pm_link(m, i)->ended && pm_req(m, pm_link(m, i)->req)->has_attempt)
      pm_emit_link(m, RD2H_PA_SEND_CANCEL, i, "Decode refused Prefill's layout")->status = RD2H_REFUSED;
}

static void meta_answer(rd2h_pm *m, uint32_t ep, const struct rd2h_wire_reply *r, uint64_t now) {
  struct pm_ep *e = pm_ep(m, ep);
  char text[PM_TEXT];
  if (r->kind == RD2H_MSG_META_NAK) {
    snprintf(text, sizeof text, "Decode refused the metadata: %.*s", (int)(r->text.n > 180 ? 180 : r->text.n), r->text.p);
    tell_refused(m, ep);
    pm_epoch_fail(m, ep, RD2H_REFUSED, text, now);
  } else if (r->kind != RD2H_MSG_ACK && r->kind != RD2H_MSG_META_ACK) {
    pm_epoch_fail(m, ep, RD2H_MALFORMED, "Decode answered the metadata with something else than an acknowledgement", now);
  } else if (r->kind == RD2H_MSG_ACK && m->cfg.pp_size > 1) {
    pm_epoch_fail(m, ep, RD2H_UNSUPPORTED, "Decode speaks protocol version 0, which cannot serve pipeline stages", now);
  } else {
    e->state = PM_OPEN;
    e->ours = r->ext.present;
    e->caps = r->ext.present ? r->ext.caps : 0;
    e->heard = now;
    pm_kick(m, ep, now);
    tell_untold(m, ep, true, now);
  }
}

/* The k-th answer is the k-th batch's, but where both sides number them. An answer without the number then comes from a Decode
 * that has forgotten this connection: counting would be off by what it dropped. */
static uint32_t find_answered(const rd2h_pm *m, const struct pm_ep *e, const struct rd2h_wire_reply *r) {
  uint32_t i = e->head;
  bool numbered = e->ours && (e->caps & RD2H_CAP_SEQ);
  if (numbered && !r->has_seq) return RD2H_INDEX_NONE;
  if (numbered)
    while (i != RD2H_INDEX_NONE && pm_entry(m, i)->sent && pm_entry(m, i)->seq != r->seq) i = pm_entry(m, i)->next;
  return i != RD2H_INDEX_NONE && pm_entry(m, i)->sent ? i : RD2H_INDEX_NONE;
}

void rd2h_pm_reply(rd2h_pm *m, uint32_t ep, uint32_t epoch, const struct rd2h_wire_reply *r, uint64_t now) {
  if (!current(m, ep, epoch)) return;
  struct pm_ep *e = pm_ep(m, ep);
  char text[PM_TEXT];
  if (e->state == PM_META) {
    meta_answer(m, ep, r, now);
    return;
  }
  if (r->kind == RD2H_MSG_META_NAK) {
    snprintf(text, sizeof text, "Decode gave the connection up: %.*s", (int)(r->text.n > 180 ? 180 : r->text.n), r->text.p);
    pm_epoch_fail(m, ep, RD2H_PEER_LOST, text, now);
    return;
  }
  if (r->kind != RD2H_MSG_DONE && r->kind != RD2H_MSG_FAILED) {
    pm_epoch_fail(m, ep, RD2H_MALFORMED, "Decode sent an acknowledgement that nothing waits for", now);
    return;
  }
  uint32_t i = find_answered(m, e, r);
  if (i == RD2H_INDEX_NONE || pm_entry(m, i)->layer != r->layer_idx) {
    snprintf(text, sizeof text, "Decode answered layer %u, which is not what waits for an answer", r->layer_idx);
    pm_epoch_fail(m, ep, RD2H_MALFORMED, text, now);
    return;
  }
  e->heard = now;
  e->silent = false;
  snprintf(text, sizeof text, "%.*s", (int)(r->text.n > 240 ? 240 : r->text.n), r->text.p ? r->text.p : "");
  if (pm_entry(m, i)->zombie) {
    pm_entry_remove(m, i);
    pm_arm_idle(m, ep, now);
    return;
  }
  /* One of ours that could not read the message does not know whom it named. */
  bool tell = e->ours && r->kind == RD2H_MSG_FAILED && r->n_status != pm_entry(m, i)->n;
  pm_entry_settle(m, i, r->kind == RD2H_MSG_DONE ? RD2H_OK : RD2H_IO, r, text, tell, now);
}

/* ---- deadlines ---- */
void pm_handshake_due(rd2h_pm *m, uint32_t ep, uint64_t now) {
  char text[PM_TEXT];
  enum pm_state s = pm_ep(m, ep)->state;
  if (s != PM_CONNECTING && s != PM_META) return;
  snprintf(text, sizeof text, "no %s within %llu ms (handshake_ms)", s == PM_CONNECTING ? "connection" : "answer to the metadata",
           (unsigned long long)(m->cfg.handshake_ns / RD2H_MS));
  pm_epoch_fail(m, ep, RD2H_TIMEOUT, text, now);
}

void pm_arm_idle(rd2h_pm *m, uint32_t ep, uint64_t now) {
  struct pm_ep *e = pm_ep(m, ep);
  if (e->idle_armed || e->n || e->n_links) return;
  e->idle_armed = true;
  pm_timer(m, now + m->cfg.idle_ns, PM_TIMER_IDLE, ep, e->gen);
}

static void forget_endpoint(rd2h_pm *m, uint32_t ep) {
  struct pm_ep *e = pm_ep(m, ep);
  if (e->state != PM_IDLE) pm_emit(m, RD2H_PA_CLOSE, ep, NULL, NULL, NULL);
  rd2h_map_del(m->by_address, e->address, strlen(e->address));
  rd2h_free(e->address);
  rd2h_free(e->engine_id);
  rd2h_slab_give(&m->eps, ep);
}

void pm_idle_due(rd2h_pm *m, uint32_t ep, uint64_t now) {
  struct pm_ep *e = pm_ep(m, ep);
  e->idle_armed = false;
  if (e->n || e->n_links) return;
  if (e->used + m->cfg.idle_ns > now) pm_arm_idle(m, ep, now);
  else forget_endpoint(m, ep);
}

void rd2h_pm_close_all(rd2h_pm *m, uint64_t now) {
  for (uint32_t i = 0; i < m->eps.next; i++)
    if (rd2h_slab_live(&m->eps, i)) pm_epoch_fail(m, i, RD2H_CANCELED, "Prefill shuts down", now);
}
