/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes -> a life of the prefill machine: endpoints, requests, batches, answers, breaks, time, in any order. Whatever comes,
 * every batch settles once and every finished request once, after its batches; done goes out once and after nothing was given up.
 */
#include "protocol/prefill_machine.h"
#include <stdio.h>
#include <stdlib.h>

#define ENDPOINTS 4u
#define IDS 6u
#define BATCHES 256u
#define CHECK(x) do { if (!(x)) abort(); } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { OPEN = 1, SETTLED };
struct life {
  rd2h_pm *pm;
  const uint8_t *p, *end;
  uint64_t now;
  uint32_t ep[ENDPOINTS], epoch[ENDPOINTS]; /* handle of each address, NONE: not asked for; its connection, 0: none */
  uint32_t req[BATCHES][2], of[BATCHES], n; /* of: bits of the requests that a batch was dispatched with */
  uint8_t batch[BATCHES];
  bool bound[IDS], finished[IDS], done[IDS][ENDPOINTS], bad[IDS][ENDPOINTS];
  uint32_t at[BATCHES]; /* endpoint of a batch */
};

static uint8_t byte(struct life *f) {
  return f->p < f->end ? *f->p++ : 0;
}

static uint32_t place(const struct life *f, uint32_t handle) {
  uint32_t i = 0;
  while (i < ENDPOINTS && f->ep[i] != handle)
    i++;
  CHECK(i < ENDPOINTS);
  return i;
}

static void send_batch(struct life *f, const struct rd2h_pa *a) {
  uint32_t idx[2], cookie = (uint32_t)a->cookie, n = rd2h_pm_sending(f->pm, a->batch, idx, f->now);
  CHECK(cookie < f->n && n <= 2);
  for (uint32_t k = 0; k < n; k++)
    CHECK(idx[k] < 2);
}

static void batch_settled(struct life *f, const struct rd2h_pa *a) {
  uint32_t c = (uint32_t)a->cookie;
  CHECK(c < f->n && f->batch[c] == OPEN);
  f->batch[c] = SETTLED;
  memset(f->req[c], 0x5a, sizeof f->req[c]);
  for (uint32_t i = 0; i < IDS; i++)
    f->bad[i][f->at[c]] |= a->status == RD2H_TIMEOUT && (f->of[c] >> i & 1);
}

static void req_settled(struct life *f, const struct rd2h_pa *a) {
  uint32_t i = (uint32_t)(a->id[0] - 'a');
  CHECK(i < IDS && f->finished[i]);
  f->bound[i] = f->finished[i] = false;
  memset(f->done[i], 0, sizeof f->done[i]);
  memset(f->bad[i], 0, sizeof f->bad[i]);
  for (uint32_t c = 0; c < f->n; c++)
    f->of[c] &= ~(1u << i);
}

static void drain(struct life *f) {
  struct rd2h_pa a;
  while (rd2h_pm_next(f->pm, &a)) {
    if (a.kind == RD2H_PA_CONNECT) {
      uint32_t i = place(f, a.endpoint);
      CHECK(!f->epoch[i]);
      f->epoch[i] = a.epoch;
    } else if (a.kind == RD2H_PA_CLOSE) {
      for (uint32_t i = 0; i < ENDPOINTS; i++)
        if (f->epoch[i] == a.epoch)
          f->epoch[i] = 0;
    } else if (a.kind == RD2H_PA_SEND_BATCH) {
      send_batch(f, &a);
    } else if (a.kind == RD2H_PA_SEND_DONE) {
      uint32_t i = (uint32_t)(a.id[0] - 'a'), e = place(f, a.endpoint);
      CHECK(i < IDS && !f->done[i][e] && !f->bad[i][e]);
      f->done[i][e] = true;
    } else if (a.kind == RD2H_PA_BATCH_SETTLED) {
      batch_settled(f, &a);
    } else if (a.kind == RD2H_PA_REQ_SETTLED) {
      req_settled(f, &a);
    }
  }
}

/* Endpoints that are not needed go away: ask again for the handle each time, as a worker does. */
static uint32_t endpoint(struct life *f, uint32_t e, const char *engine) {
  char address[8];
  snprintf(address, sizeof address, "d:%u", e);
  f->ep[e] = rd2h_pm_endpoint(f->pm, (struct rd2h_str){address, 3}, (struct rd2h_str){engine, 2}, f->now);
  CHECK(f->ep[e] != RD2H_INDEX_NONE);
  for (uint32_t i = 0; i < ENDPOINTS; i++)
    if (i != e && f->ep[i] == f->ep[e])
      f->ep[i] = RD2H_INDEX_NONE;
  return f->ep[e];
}

static uint32_t bind(struct life *f, uint32_t id, uint32_t ep) {
  char name[2] = {(char)('a' + id), 0};
  struct rd2h_pm_request q = {.id = {name, 1},
                              .ext_id = {id & 1 ? "x" : name, 1},
                              .has_attempt = id < 4,
                              .attempt = {(uint8_t)id},
                              .has_dspark = id == 2};
  uint32_t r = f->finished[id] ? RD2H_INDEX_NONE : rd2h_pm_bind(f->pm, &q, ep, f->now);
  if (r != RD2H_INDEX_NONE)
    f->bound[id] = true;
  return r;
}

static void on_dispatch(struct life *f, uint32_t e) {
  uint8_t how = byte(f);
  uint32_t ep = endpoint(f, e, "e1"), n = 0, c = f->n, layer = how & 1;
  if (c == BATCHES)
    return;
  for (uint32_t k = 0; k < 2; k++) {
    uint32_t id = byte(f) % IDS, r = bind(f, id, ep);
    if (r == RD2H_INDEX_NONE || (f->of[c] >> id & 1))
      continue;
    f->req[c][n++] = r;
    f->of[c] |= 1u << id;
    if (how & 2)
      rd2h_pm_last(f->pm, r, ep, f->now);
  }
  f->n++;
  f->at[c] = e;
  f->batch[c] = OPEN;
  rd2h_pm_dispatch(f->pm, ep, layer, f->req[c], n, c, f->now);
}

static void on_last(struct life *f, uint32_t e) {
  uint32_t ep = endpoint(f, e, "e1"), r = bind(f, byte(f) % IDS, ep);
  if (r != RD2H_INDEX_NONE)
    rd2h_pm_last(f->pm, r, ep, f->now);
}

static void on_finish(struct life *f, uint32_t e) {
  uint32_t id = byte(f) % IDS;
  char name[2] = {(char)('a' + id), 0};
  (void)e;
  f->finished[id] = true;
  rd2h_pm_finish(f->pm, (struct rd2h_str){name, 1}, byte(f) & 1, f->now);
}

static void on_connected(struct life *f, uint32_t e) {
  if (f->epoch[e])
    rd2h_pm_connected(f->pm, f->ep[e], f->epoch[e], f->now);
}

static void on_reply(struct life *f, uint32_t e) {
  static const enum rd2h_wire_kind kind[] = {RD2H_MSG_ACK, RD2H_MSG_META_ACK, RD2H_MSG_META_ACK, RD2H_MSG_META_NAK, RD2H_MSG_DONE,
                                             RD2H_MSG_DONE, RD2H_MSG_DONE, RD2H_MSG_FAILED};
  uint8_t how = byte(f), seq = byte(f);
  int32_t status[2] = {how & 32 ? RD2H_OK : RD2H_IO, how & 64 ? RD2H_SKIPPED : RD2H_OK};
  struct rd2h_wire_reply r = {.kind = kind[how & 7],
                              .layer_idx = how >> 3 & 1,
                              .has_seq = how & 16,
                              .seq = seq,
                              .n_status = how >> 6,
                              .status = status,
                              .ext = {.present = how & 128, .caps = RD2H_CAPS_ALL}};
  r.n_status = r.n_status > 2 ? 2 : r.n_status;
  if (f->epoch[e])
    rd2h_pm_reply(f->pm, f->ep[e], f->epoch[e], &r, f->now);
}

static void on_lost(struct life *f, uint32_t e) {
  if (f->epoch[e])
    rd2h_pm_disconnected(f->pm, f->ep[e], f->epoch[e], "lost", f->now);
}

static void on_cancel(struct life *f, uint32_t e) {
  uint32_t id = byte(f) % IDS;
  char name[2] = {(char)('a' + id), 0};
  struct rd2h_wire_cancel c = {
      .id = {id & 1 ? "x" : name, 1}, .has_attempt = true, .attempt = {(uint8_t)id}, .status = RD2H_ABORTED};
  if (f->epoch[e])
    rd2h_pm_peer_cancel(f->pm, f->ep[e], f->epoch[e], &c, f->now);
}

static void on_time(struct life *f, uint32_t e) {
  (void)e;
  f->now += (uint64_t)byte(f) * 200 * RD2H_MS;
  rd2h_pm_tick(f->pm, f->now);
}

static void on_engine(struct life *f, uint32_t e) {
  endpoint(f, e, byte(f) & 1 ? "e1" : "e2");
}

static void finish(struct life *f) {
  struct rd2h_pm_stats st;
  rd2h_pm_close_all(f->pm, f->now);
  drain(f);
  for (uint32_t id = 0; id < IDS; id++) {
    char name[2] = {(char)('a' + id), 0};
    f->finished[id] = true;
    rd2h_pm_finish(f->pm, (struct rd2h_str){name, 1}, true, f->now);
    drain(f);
    CHECK(!f->bound[id]);
  }
  for (uint32_t c = 0; c < f->n; c++)
    CHECK(f->batch[c] == SETTLED);
  for (int i = 0; i < 3; i++) {
    rd2h_pm_tick(f->pm, f->now += 3600000 * RD2H_MS);
    drain(f);
  }
  rd2h_pm_stats(f->pm, &st);
  CHECK(!st.requests && !st.outstanding && !st.endpoints);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static void (*const event[])(struct life *, uint32_t) = {on_dispatch,  on_dispatch, on_dispatch, on_last,  on_finish,
                                                           on_connected, on_reply,    on_reply,    on_reply, on_lost,
                                                           on_cancel,    on_time,     on_engine};
  struct life f = {
      .p = data, .end = data + size, .now = RD2H_MS, .ep = {RD2H_INDEX_NONE, RD2H_INDEX_NONE, RD2H_INDEX_NONE, RD2H_INDEX_NONE}};
  struct rd2h_pm_cfg cfg = {.pp_size = 1, .last_layer = 1, .max_batches = 16, .max_requests = IDS, .handshake_ns = 5000 * RD2H_MS,
                            .hold_ns = 20000 * RD2H_MS, .idle_ns = 30000 * RD2H_MS};
  if (size > 600)
    return 0;
  CHECK(rd2h_pm_create(&cfg, &f.pm, NULL) == RD2H_OK);
  while (f.p < f.end) {
    uint8_t what = byte(&f) % RD2H_COUNT(event);
    event[what](&f, byte(&f) % ENDPOINTS);
    drain(&f);
  }
  finish(&f);
  rd2h_pm_destroy(f.pm);
  return 0;
}
