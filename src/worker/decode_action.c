/* SPDX-License-Identifier: Apache-2.0 */
/* Carrying out what the Decode machine decides. */
#include "worker/decode_worker.h"
#include <stdio.h>

static void send_out(rd2h_dw *w, uint32_t peer) {
  if (w->out.failed)
    rd2h_dm_peer_fail(w->dm, peer, "out of memory for an answer", w->now);
  else
    dw_send(w, peer, w->out.p, w->out.len);
}

/* ---- the handshake ---- */
/* By the best engine that both sides have; a peer that announced none may do without connection data. */
static int connect_peer(rd2h_dw *w, const struct rd2h_da *a, struct dw_peer *p, const char **chosen, struct rd2h_error *err) {
  const struct rd2h_wire_meta *meta = a->meta;
  const struct rd2h_wire_ext *ext = &meta->ext;
  struct rd2h_blob session = {(const uint8_t *)meta->session.p, meta->session.n};
  struct rd2h_eng_offer offer[RD2H_WIRE_MAX_ENGINES];
  const char *name = *chosen = rd2h_eng_name(w->eng);
  uint32_t n = ext->present ? ext->n_engines : 0;
  for (uint32_t i = 0; i < n; i++)
    offer[i] = (struct rd2h_eng_offer){ext->engine[i].name, {ext->engine[i].conn, ext->engine[i].conn_len}};
  int rc = n ? rd2h_eng_choose(w->eng, session, offer, n, a->peer, &p->conn, chosen, err) : RD2H_OK;
  if (rc == RD2H_NOT_FOUND)
    return rd2h_fail(err, RD2H_UNSUPPORTED, "Prefill %.*s offers the engine %.*s%s, Decode has %s: set the same "
                     "transfer_backend on both sides", (int)meta->session.n, meta->session.p, (int)offer[0].name.n,
                     offer[0].name.p, n > 1 ? " and others" : "", name);
  if (n)
    return rc;
  if (w->o.legacy_session || !strcmp(name, "noop") || rd2h_eng_caps(w->eng)->flags & RD2H_ENG_BY_SESSION)
    return rd2h_eng_connect(w->eng, session, (struct rd2h_blob){0}, a->peer, &p->conn, err);
  return rd2h_fail(err, RD2H_UNSUPPORTED, "Prefill %.*s published no connection data, which the engine %s needs: run rd2h on "
                   "the Prefill side too, or use an engine that works by the session alone", (int)meta->session.n,
                   meta->session.p, name);
}

static void do_connect(rd2h_dw *w, const struct rd2h_da *a) {
  struct dw_peer *p = w->peer[a->peer];
  struct rd2h_error err = {0};
  const char *chosen;
  snprintf(p->session, sizeof p->session, "%.*s", (int)a->meta->session.n, a->meta->session.p);
  if (p->conn)
    rd2h_eng_disconnect(w->eng, p->conn);
  p->conn = NULL;
  int rc = connect_peer(w, a, p, &chosen, &err);
  p->engine = chosen;
  if (!rc)
    RD2H_INFO("decode rank %u: Prefill %s is connected, engine %s", w->o.tp_rank, p->session, chosen);
  if (!rc && w->o.digest && !(a->meta->ext.present && a->meta->ext.caps & RD2H_CAP_DIGEST))
    RD2H_WARN("decode rank %u: Prefill %s makes no digests, so what is read from it is not checked: set digest there, too",
              w->o.tp_rank, p->session);
  rd2h_dm_connected(w->dm, a->peer, rc, err.text, w->now);
}

/* ---- answers ---- */
static void do_reply(rd2h_dw *w, const struct rd2h_da *a) {
  struct rd2h_wire_ext ext = {.present = true, .revision = RD2H_EXT_REVISION, .caps = RD2H_CAPS_ALL | (w->o.digest ? RD2H_CAP_DIGEST : 0)};
  const struct rd2h_wire_req *req = a->ours && a->msg ? a->msg->req : NULL;
  uint32_t n = req ? a->msg->n_reqs : 0;
  const uint64_t *seq = a->ours && a->has_seq ? &a->seq : NULL;
  rd2h_buf_reset(&w->out);
  switch (a->reply) {
  case RD2H_MSG_ACK:
    rd2h_wire_encode_ack(&w->out);
    break;
  case RD2H_MSG_META_ACK:
    memcpy(ext.incarnation, w->incarnation, sizeof ext.incarnation);
    rd2h_wire_encode_meta_ack(&w->out, a->ours ? &ext : NULL);
    break;
  case RD2H_MSG_META_NAK:
    if (a->status != RD2H_PEER_LOST && dw_may_log(w))
      RD2H_WARN("decode rank %u: metadata of Prefill %s is refused: %s", w->o.tp_rank, w->peer[a->peer]->session, a->text);
    rd2h_wire_encode_meta_nak(&w->out, a->text);
    break;
  case RD2H_MSG_FAILED:
    rd2h_wire_encode_failed(&w->out, a->layer_idx, a->text, seq, req, n);
    break;
  default:
    rd2h_wire_encode_done(&w->out, a->layer_idx, seq, req, n);
  }
  if (w->out.failed && a->msg) { /* the statuses do not fit what is there; failed without them, all of the message's requests are */
    rd2h_buf_reset(&w->out);
    rd2h_wire_encode_failed(&w->out, a->layer_idx, "out of memory at Decode for the answer", seq, NULL, 0);
  }
  send_out(w, a->peer);
}

static void do_pong(rd2h_dw *w, const struct rd2h_da *a) {
  rd2h_buf_reset(&w->out);
  rd2h_wire_encode_ping(&w->out, true, a->value);
  send_out(w, a->peer);
}

static void do_send_cancel(rd2h_dw *w, const struct rd2h_da *a) {
  struct rd2h_wire_cancel c = {.id = {a->id, (uint32_t)strlen(a->id)}, .has_attempt = true, .status = a->status,
                               .text = {a->text, (uint32_t)strlen(a->text)}};
  memcpy(c.attempt, a->attempt, sizeof c.attempt);
  rd2h_buf_reset(&w->out);
  rd2h_wire_encode_cancel(&w->out, &c);
  send_out(w, a->peer);
}

static void do_probe(rd2h_dw *w, const struct rd2h_da *a) {
  dw_send(w, a->peer, "", 0);
}

/* ---- the rest ---- */
static void do_plan(rd2h_dw *w, const struct rd2h_da *a) {
  dw_plan(w, a->batch);
}

static void do_cancel(rd2h_dw *w, const struct rd2h_da *a) {
  dw_cancel(w, a->batch);
}

static void do_free_msg(rd2h_dw *w, const struct rd2h_da *a) {
  struct rd2h_msg *m = (struct rd2h_msg *)a->msg;
  rd2h_msg_give(&w->pool, m, &w->peer[m->peer]->held);
}

static void do_report(rd2h_dw *w, const struct rd2h_da *a) {
  dw_report(w, (struct rd2h_str){a->id, (uint32_t)strlen(a->id)}, a->status, a->text);
}

static void do_close(rd2h_dw *w, const struct rd2h_da *a) {
  dw_forget_peer(w, a->peer);
}

static void (*const actions[])(rd2h_dw *, const struct rd2h_da *) = {
    [RD2H_DA_CONNECT] = do_connect,   [RD2H_DA_REPLY] = do_reply, [RD2H_DA_PLAN] = do_plan,
    [RD2H_DA_CANCEL] = do_cancel,     [RD2H_DA_FREE_MSG] = do_free_msg, [RD2H_DA_PROBE] = do_probe,
    [RD2H_DA_SEND_CANCEL] = do_send_cancel, [RD2H_DA_PONG] = do_pong, [RD2H_DA_REPORT] = do_report,
    [RD2H_DA_CLOSE] = do_close};

void dw_drain(rd2h_dw *w) {
  struct rd2h_da a;
  while (rd2h_dm_next(w->dm, &a))
    actions[a.kind](w, &a);
}
