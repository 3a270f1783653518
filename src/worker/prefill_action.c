/* SPDX-License-Identifier: Apache-2.0 */
/* Carrying out what the Prefill machine decides. */
#include "layout/layout.h"
#include "worker/prefill_worker.h"
#include <stdio.h>
#include <zmq.h>

/* A layer that no Decode has: a batch for it ends the requests that it names there, before anything is read. */
#define POISON_LAYER "rd2h:request-ended"

static struct rd2h_str str_of(const char *s) {
  return (struct rd2h_str){s, (uint32_t)strlen(s)};
}

static void send_out(rd2h_pw *w, const struct rd2h_pa *a) {
  if (w->out.failed)
    rd2h_pm_disconnected(w->pm, a->endpoint, a->epoch, "out of memory for a message", w->now);
  else
    pw_endpoint_send(w, a->endpoint, w->out.p, w->out.len);
}

/* ---- epochs ---- */
static void do_connect(rd2h_pw *w, const struct rd2h_pa *a) {
  struct rd2h_error err = {0};
  if (!pw_endpoint_room(w, a->endpoint)) {
    rd2h_pm_disconnected(w->pm, a->endpoint, a->epoch, "out of memory for a connection", w->now);
    return;
  }
  int rc = pw_endpoint_open(w, a->endpoint, a->epoch, &err);
  if (rc)
    rd2h_pm_disconnected(w->pm, a->endpoint, a->epoch, err.text, w->now);
}

/* What was sent just before still gets out when Decode refused us: it tells which requests it need not wait for. */
#define REFUSED_LINGER_MS 1000

static void do_close(rd2h_pw *w, const struct rd2h_pa *a) {
  if (a->status == RD2H_REFUSED && a->endpoint < w->n_endpoints && w->endpoint[a->endpoint].socket)
    rd2h_zmq_set(w->endpoint[a->endpoint].socket, ZMQ_LINGER, REFUSED_LINGER_MS);
  if (a->status)
    RD2H_INFO("prefill rank %u: connection to Decode at %s", w->o.tp_rank, a->text); /* what it costs, its requests say */
  pw_endpoint_close(w, a->endpoint);
}

static void do_meta(rd2h_pw *w, const struct rd2h_pa *a) {
  struct rd2h_error err = {0};
  if (pw_make_meta(w, w->endpoint[a->endpoint].reader, &err))
    rd2h_pm_disconnected(w->pm, a->endpoint, a->epoch, err.text, w->now);
  else
    pw_endpoint_send(w, a->endpoint, w->meta.p, w->meta.len);
}

/* ---- messages ---- */
static bool idx_room(rd2h_pw *w, uint32_t n) {
  if (n <= w->idx_cap)
    return true;
  uint32_t *p = rd2h_realloc(w->idx, n * sizeof *p);
  if (!p)
    return false;
  w->idx = p;
  w->idx_cap = n;
  return true;
}

static void do_batch(rd2h_pw *w, const struct rd2h_pa *a) {
  struct pw_batch *b = (struct pw_batch *)(uintptr_t)a->cookie;
  struct pw_endpoint *e = &w->endpoint[a->endpoint];
  struct rd2h_pa at = *a; /* the machine is called before it is used for the last time */
  struct pw_group *g = b->group;
  if (!idx_room(w, g->list[b->variant].n)) {
    rd2h_pm_disconnected(w->pm, at.endpoint, at.epoch, "out of memory for a message", w->now);
    return;
  }
  uint32_t n = rd2h_pm_sending(w->pm, at.batch, w->idx, w->now);
  if (!n)
    return;
  rd2h_buf_reset(&w->out);
  rd2h_wire_encode_ready_head(&w->out, at.layer, str_of(w->o.layout->layer[b->layer].name), at.has_seq);
  pw_encode_list(w, b->step, g, b->variant, w->idx, n, &w->out);
  struct rd2h_str digests = at.digests && w->o.digest ? pw_digests(w, b, w->idx, n) : (struct rd2h_str){0};
  rd2h_wire_encode_ready_tail(&w->out, NULL, 0, g->member, g->ratio, at.has_seq, at.seq, digests);
  if (e->unanswered && e->unanswered + w->out.len > (size_t)w->o.max_queue_bytes_mb << 20) {
    rd2h_pm_disconnected(w->pm, at.endpoint, at.epoch, "it leaves more bytes of messages unanswered than max_queue_bytes_mb "
                         "allows", w->now);
    return;
  }
  b->epoch = at.epoch;
  b->bytes = w->out.len;
  e->unanswered += b->bytes;
  send_out(w, &at);
}

static void do_done(rd2h_pw *w, const struct rd2h_pa *a) {
  const struct pw_endpoint *e = &w->endpoint[a->endpoint];
  struct rd2h_wire_done d = {.id = str_of(a->ext_id), .has_attempt = a->has_attempt};
  memcpy(d.attempt, a->attempt, sizeof d.attempt);
  rd2h_buf_reset(&w->out);
  rd2h_wire_encode_ready_head(&w->out, a->layer, str_of(w->o.layout->layer[a->layer].name), a->has_seq);
  rd2h_wire_encode_reqs(&w->out, NULL, 0);
  rd2h_wire_encode_ready_tail(&w->out, &d, 1, e->member, e->ratio, a->has_seq, a->seq, (struct rd2h_str){0});
  send_out(w, a);
}

static void do_poison(rd2h_pw *w, const struct rd2h_pa *a) {
  const struct pw_endpoint *e = &w->endpoint[a->endpoint];
  struct rd2h_wire_req r = {.id = str_of(a->ext_id)};
  rd2h_buf_reset(&w->out);
  rd2h_wire_encode_ready_head(&w->out, a->layer, str_of(POISON_LAYER), false);
  rd2h_wire_encode_reqs(&w->out, &r, 1);
  rd2h_wire_encode_ready_tail(&w->out, NULL, 0, e->member, e->ratio, false, 0, (struct rd2h_str){0});
  send_out(w, a);
}

static void do_cancel(rd2h_pw *w, const struct rd2h_pa *a) {
  struct rd2h_wire_cancel c = {.id = str_of(a->ext_id), .has_attempt = a->has_attempt, .status = a->status,
                               .text = str_of(a->text)};
  memcpy(c.attempt, a->attempt, sizeof c.attempt);
  rd2h_buf_reset(&w->out);
  rd2h_wire_encode_cancel(&w->out, &c);
  send_out(w, a);
}

/* ---- settlements ---- */
static void do_batch_settled(rd2h_pw *w, const struct rd2h_pa *a) {
  if (a->status && a->status != RD2H_SKIPPED) /* one line a layer: its requests tell it once, louder */
    RD2H_DEBUG("prefill rank %u: layer %s for %s was not read: %s", w->o.tp_rank, rd2h_layout_layer_name(w->o.layout, a->layer),
              ((struct pw_batch *)(uintptr_t)a->cookie)->group->address, a->text[0] ? a->text : rd2h_status_text(a->status));
  pw_settle(w, (struct pw_batch *)(uintptr_t)a->cookie, a->status, a->text);
}

static void do_req_settled(rd2h_pw *w, const struct rd2h_pa *a) {
  if (a->status && rd2h_status_cause(a->status) != RD2H_CAUSE_ABORTED)
    RD2H_WARN("prefill rank %u: request %s was not taken completely: %s", w->o.tp_rank, a->id,
              a->text[0] ? a->text : rd2h_status_text(a->status));
  pw_settled(w, a->id, a->status);
}

static void (*const actions[])(rd2h_pw *, const struct rd2h_pa *) = {
    [RD2H_PA_CONNECT] = do_connect,       [RD2H_PA_CLOSE] = do_close,
    [RD2H_PA_SEND_META] = do_meta,        [RD2H_PA_SEND_BATCH] = do_batch,
    [RD2H_PA_SEND_DONE] = do_done,        [RD2H_PA_SEND_POISON] = do_poison,
    [RD2H_PA_SEND_CANCEL] = do_cancel,    [RD2H_PA_BATCH_SETTLED] = do_batch_settled,
    [RD2H_PA_REQ_SETTLED] = do_req_settled};

void pw_drain(rd2h_pw *w) {
  struct rd2h_pa a;
  while (rd2h_pm_next(w->pm, &a))
    actions[a.kind](w, &a);
}
