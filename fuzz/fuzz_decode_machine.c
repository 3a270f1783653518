/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes -> a life of the decode machine: peers, metadata, messages, reads, requests, time, in any order. Whatever comes, every
 * request is reported once and not under a read, every message is given back, no handle closes under a read. */
#include "protocol/decode_machine.h"
#include <stdlib.h>

#define PEERS 8u
#define IDS 8u
#define CHECK(x) do { if (!(x)) abort(); } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct message {
  struct rd2h_wire_ready w;
  struct rd2h_wire_req req[2];
  struct rd2h_wire_done done;
};
struct life {
  rd2h_dm *dm;
  const uint8_t *p, *end;
  uint64_t now;
  uint32_t borrowed;
  bool open[PEERS], live[IDS];
  uint32_t read[256], n_read; /* batches being read */
};

static const char names[IDS][2] = {"a", "b", "c", "d", "e", "f", "g", "h"};
static const uint32_t blocks[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 70};

static uint8_t byte(struct life *f) {
  return f->p < f->end ? *f->p++ : 0;
}

static uint32_t reads_of(const struct life *f, uint32_t peer) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < f->n_read; i++)
    n += rd2h_dm_batch_peer(f->dm, f->read[i]) == peer;
  return n;
}

static void plan(struct life *f, uint32_t batch) {
  static void *local[128];
  static uint64_t remote[128], len[128];
  struct rd2h_descs d = {.local = local, .remote = remote, .len = len, .cap = 128};
  uint64_t bound = rd2h_dm_plan_bound(f->dm, batch);
  rd2h_dm_plan(f->dm, batch, &d);
  CHECK(d.n <= bound);
  rd2h_dm_planned(f->dm, batch, d.n, f->now);
  if (d.n) {
    CHECK(f->n_read < 256);
    f->read[f->n_read++] = batch;
  }
}

static void drain(struct life *f) {
  struct rd2h_da a;
  while (rd2h_dm_next(f->dm, &a)) {
    if (a.kind == RD2H_DA_PLAN) {
      plan(f, a.batch);
    } else if (a.kind == RD2H_DA_FREE_MSG) {
      free(a.msg);
      f->borrowed--;
    } else if (a.kind == RD2H_DA_REPORT) {
      uint32_t id = (uint32_t)(a.id[0] - 'a');
      CHECK(id < IDS && f->live[id]);
      f->live[id] = false;
    } else if (a.kind == RD2H_DA_CLOSE) {
      CHECK(f->open[a.peer] && !reads_of(f, a.peer));
      f->open[a.peer] = false;
    } else if (a.kind == RD2H_DA_REPLY && a.msg) {
      for (uint32_t k = 0; k < a.msg->n_reqs; k++)
        CHECK(a.msg->req[k].status <= 0);
    }
  }
}

static struct rd2h_str name_of(struct life *f) {
  return (struct rd2h_str){names[byte(f) % IDS], 1};
}

static void on_open(struct life *f, uint32_t peer) {
  uint32_t p = rd2h_dm_peer_open(f->dm, f->now);
  (void)peer;
  CHECK(p == RD2H_INDEX_NONE || (p < PEERS && !f->open[p]));
  if (p != RD2H_INDEX_NONE)
    f->open[p] = true;
}

static void on_meta(struct life *f, uint32_t peer) {
  static const char *const layer[] = {"layers.0.a", "layers.1.a", "layers.9.a"};
  static const uint64_t addr[] = {4096, 8192}, len[] = {64, 64}, scale[] = {1, 1};
  struct rd2h_wire_layer l[2];
  uint8_t how = byte(f);
  for (int i = 0; i < 2; i++)
    l[i] = (struct rd2h_wire_layer){.name = {layer[i + (how & 1)], 10},
                                    .n_addrs = 1,
                                    .n_lens = 1,
                                    .n_scales = 1,
                                    .addr = addr + i,
                                    .len = len,
                                    .scale = scale,
                                    .main_count = 1};
  struct rd2h_wire_meta m = {.session = {"s", 1}, .fields = how & 2 ? 3 : 6, .version = how & 2 ? 0 : 1, .pp_rank = how >> 6 & 1,
                             .pp_size = how & 32 ? 2 : 1, .n_layers = how & 4 ? 1 : 2, .layer = l,
                             .ext = {.present = how & 8, .revision = 1, .caps = RD2H_CAPS_ALL, .incarnation = {how & 16}}};
  rd2h_dm_meta(f->dm, peer, &m, f->now);
}

static void on_connected(struct life *f, uint32_t peer) {
  rd2h_dm_connected(f->dm, peer, byte(f) % 4 ? RD2H_OK : RD2H_IO, "", f->now);
}

static void on_ready(struct life *f, uint32_t peer) {
  struct message *m = calloc(1, sizeof *m);
  uint8_t how = byte(f);
  m->w = (struct rd2h_wire_ready){.layer_idx = how & 1,
                                  .layer = {how & 1   ? "layers.1.a"
                                            : how & 2 ? "layers.5.a"
                                                      : "layers.0.a",
                                            10},
                                  .req = m->req,
                                  .done = &m->done,
                                  .n_reqs = how >> 2 & 3,
                                  .n_done = how >> 4 & 1,
                                  .member = how >> 5 & 1,
                                  .ratio = how & 64 ? 2 : 1,
                                  .has_seq = how & 128,
                                  .seq = byte(f)};
  m->w.n_reqs = m->w.n_reqs > 2 ? 2 : m->w.n_reqs;
  for (uint32_t k = 0; k < m->w.n_reqs; k++) {
    uint8_t shape = byte(f);
    m->req[k] = (struct rd2h_wire_req){.id = name_of(f),
                                       .main = blocks,
                                       .indexer = blocks,
                                       .n_main = shape & 7,
                                       .main_start = shape >> 3 & 7,
                                       .has_attempt = shape & 64,
                                       .attempt = {shape >> 7},
                                       .bad = shape == 255};
  }
  m->done.id = name_of(f);
  f->borrowed++;
  rd2h_dm_ready(f->dm, peer, &m->w, f->now);
}

static void on_read(struct life *f, uint32_t peer) {
  (void)peer;
  if (!f->n_read)
    return;
  uint32_t i = byte(f) % f->n_read, batch = f->read[i];
  f->read[i] = f->read[--f->n_read];
  rd2h_dm_read_done(f->dm, batch, byte(f) % 4 ? RD2H_OK : RD2H_IO, "", f->now);
}

static void on_install(struct life *f, uint32_t peer) {
  uint8_t shape = byte(f), id = byte(f) % IDS;
  struct rd2h_dm_grant g = {.id = {names[id], 1},
                            .ext_id = name_of(f),
                            .attempt = {shape >> 7},
                            .main = blocks,
                            .n_main = shape % 17,
                            .main_floor = shape >> 5 & 1,
                            .main_need = shape & 3};
  bool was = f->live[id];
  (void)peer;
  f->live[id] = true;
  if (rd2h_dm_install(f->dm, &g, f->now, NULL) != RD2H_OK)
    f->live[id] = was;
}

static void on_end(struct life *f, uint32_t peer) {
  (void)peer;
  rd2h_dm_end(f->dm, name_of(f), RD2H_ABORTED, "", f->now);
}

static void on_lost(struct life *f, uint32_t peer) {
  rd2h_dm_peer_lost(f->dm, peer, "lost", f->now);
}

static void on_failed(struct life *f, uint32_t peer) {
  rd2h_dm_peer_fail(f->dm, peer, "failed", f->now);
}

static void on_time(struct life *f, uint32_t peer) {
  (void)peer;
  f->now += (uint64_t)byte(f) * 100 * RD2H_MS;
  rd2h_dm_tick(f->dm, f->now);
}

static void on_cancel(struct life *f, uint32_t peer) {
  struct rd2h_wire_cancel c = {.id = name_of(f), .has_attempt = byte(f) & 1, .attempt = {byte(f) & 1}, .status = -5};
  rd2h_dm_cancel(f->dm, peer, &c, f->now);
}

static void on_malformed(struct life *f, uint32_t peer) {
  uint64_t seq = byte(f);
  rd2h_dm_malformed(f->dm, peer, byte(f) & 1 ? 1 : RD2H_INDEX_NONE, seq & 1 ? &seq : NULL, "nonsense", f->now);
}

static void finish(struct life *f) {
  for (uint32_t i = 0; i < IDS; i++) {
    rd2h_dm_end(f->dm, (struct rd2h_str){names[i], 1}, RD2H_ABORTED, "", f->now);
    drain(f);
  }
  for (uint32_t i = 0; i < PEERS; i++)
    if (f->open[i]) {
      rd2h_dm_peer_lost(f->dm, i, "over", f->now);
      drain(f);
    }
  while (f->n_read) {
    uint32_t batch = f->read[--f->n_read];
    rd2h_dm_read_done(f->dm, batch, RD2H_CANCELED, "", f->now);
    drain(f);
  }
  struct rd2h_dm_stats st;
  rd2h_dm_stats(f->dm, &st);
  CHECK(!f->borrowed && !st.requests && !st.reads && !st.peers && !st.parked_now && !st.quarantined);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static void (*const event[])(struct life *, uint32_t) = {on_open, on_meta, on_connected, on_ready, on_ready, on_ready, on_read,
                                                           on_install, on_end, on_lost, on_time, on_cancel, on_malformed,
                                                           on_failed};
  static const struct rd2h_kv_tensor tensor[] = {{"layers.0.a", 0, 1 << 20, 64, 64}, {"layers.1.a", 0, 2 << 20, 64, 64}};
  struct rd2h_layout_opts o = {.size = sizeof o, .num_blocks = 64};
  rd2h_layout *layout;
  struct life f = {.p = data, .end = data + size, .now = RD2H_MS};
  if (size > 600 || rd2h_layout_create(tensor, 2, &o, &layout, NULL) != RD2H_OK)
    return 0;
  struct rd2h_dm_cfg cfg = {.layout = layout, .max_peers = PEERS, .max_requests = IDS - 1, .max_parked = 4, .tombstones = 4};
  CHECK(rd2h_dm_create(&cfg, &f.dm, NULL) == RD2H_OK);
  while (f.p < f.end) {
    uint8_t what = byte(&f) % RD2H_COUNT(event);
    uint32_t peer = byte(&f) % PEERS;
    if (event[what] == on_open || event[what] == on_install || event[what] == on_time || f.open[peer])
      event[what](&f, peer);
    drain(&f);
  }
  finish(&f);
  rd2h_dm_destroy(f.dm);
  rd2h_layout_destroy(layout);
  return 0;
}
