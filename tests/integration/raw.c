/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/integration/raw.h"
#include "layout/layout.h"
#include <zmq.h>

static void open_socket(struct raw *r, int type) {
  int zero = 0;
  *r = (struct raw){.ctx = zmq_ctx_new()};
  RIG_CHECK(r->ctx && (r->socket = zmq_socket(r->ctx, type)));
  zmq_setsockopt(r->socket, ZMQ_LINGER, &zero, sizeof zero);
}

void raw_prefill(struct raw *r, uint16_t port) {
  char address[64];
  snprintf(address, sizeof address, "tcp://127.0.0.1:%u", port);
  open_socket(r, ZMQ_DEALER);
  RIG_CHECK(!zmq_connect(r->socket, address));
}

void raw_decode(struct raw *r, const int (*options)[2]) {
  char address[64];
  size_t n = sizeof address;
  open_socket(r, ZMQ_ROUTER);
  for (; options && (*options)[0]; options++)
    RIG_CHECK(!zmq_setsockopt(r->socket, (*options)[0], &(*options)[1], sizeof(int)));
  RIG_CHECK(!zmq_bind(r->socket, "tcp://127.0.0.1:*"));
  RIG_CHECK(!zmq_getsockopt(r->socket, ZMQ_LAST_ENDPOINT, address, &n));
  r->port = (uint16_t)atoi(strrchr(address, ':') + 1);
}

void raw_close(struct raw *r) {
  zmq_close(r->socket);
  zmq_ctx_term(r->ctx);
  rd2h_buf_free(&r->in);
}

void raw_send(struct raw *r, const void *p, size_t n) {
  if (r->port) {
    RIG_CHECK(zmq_send(r->socket, r->from, r->from_n, ZMQ_SNDMORE) >= 0);
    RIG_CHECK(zmq_send(r->socket, "", 0, ZMQ_SNDMORE) >= 0);
  }
  RIG_CHECK(zmq_send(r->socket, p, n, 0) >= 0);
}

void raw_send_frames(struct raw *r, const char *const *frames, uint32_t n) {
  for (uint32_t i = 0; i < n; i++)
    RIG_CHECK(zmq_send(r->socket, frames[i], strlen(frames[i]), i + 1 < n ? ZMQ_SNDMORE : 0) >= 0);
}

/* Reads one message: identity first where there is one, then the last frame that is not empty. */
static bool receive_one(struct raw *r) {
  zmq_msg_t f;
  bool more = true, first = r->port != 0;
  zmq_msg_init(&f);
  rd2h_buf_reset(&r->in);
  while (more) {
    if (zmq_msg_recv(&f, r->socket, 0) < 0)
      break;
    more = zmq_msg_more(&f);
    if (first) {
      r->from_n = zmq_msg_size(&f);
      memcpy(r->from, zmq_msg_data(&f), r->from_n);
      first = false;
    } else if (zmq_msg_size(&f)) {
      rd2h_buf_reset(&r->in);
      rd2h_buf_put(&r->in, zmq_msg_data(&f), zmq_msg_size(&f));
    }
  }
  zmq_msg_close(&f);
  return r->in.len > 0;
}

bool raw_receive(struct raw *r, int timeout_ms) {
  uint64_t until = rd2h_now_ns() + (uint64_t)timeout_ms * RD2H_MS;
  for (uint64_t now; (now = rd2h_now_ns()) < until;) {
    zmq_pollitem_t it = {.socket = r->socket, .events = ZMQ_POLLIN};
    if (zmq_poll(&it, 1, (long)((until - now) / RD2H_MS + 1)) > 0 && receive_one(r))
      return true;
  }
  return false;
}

int raw_reply_kind(struct raw *r, struct rd2h_wire_reply *reply) {
  static struct rd2h_arena arena;
  rd2h_arena_reset(&arena);
  if (rd2h_arena_reserve(&arena, rd2h_wire_arena_need(r->in.len)) ||
      rd2h_wire_decode_reply(r->in.p, r->in.len, &arena, reply, NULL))
    return 0;
  return (int)reply->kind;
}

void raw_meta(struct rd2h_buf *b, const struct rig_side *s, const char *session, uint32_t fields) {
  struct rd2h_wire_layer layer[32];
  uint64_t addr[32][RIG_TENSORS], len[32][RIG_TENSORS];
  static const uint64_t ones[RIG_TENSORS] = {1, 1, 1, 1};
  static const int64_t groups[RIG_TENSORS];
  struct rd2h_wire_meta m = {.session = {session, (uint32_t)strlen(session)}, .fields = fields, .version = 1, .pp_size = 1,
                             .n_layers = s->layout->n_layers, .layer = layer};
  for (uint32_t l = 0; l < m.n_layers; l++) {
    const struct rd2h_layer *x = &s->layout->layer[l];
    for (uint32_t t = 0; t < x->n; t++) {
      addr[l][t] = x->t[t].base;
      len[l][t] = x->t[t].block_len;
    }
    layer[l] = (struct rd2h_wire_layer){.name = {x->name, (uint32_t)strlen(x->name)}, .n_addrs = x->n, .n_lens = x->n,
                                        .n_scales = x->n, .n_groups = x->n, .addr = addr[l], .len = len[l], .scale = ones,
                                        .group = groups, .main_count = x->n_main, .has_indexer = x->has_indexer};
  }
  rd2h_buf_reset(b);
  rd2h_wire_encode_meta(b, &m);
}

void raw_ready(struct rd2h_buf *b, const struct rig_side *s, uint32_t layer, const struct rig_request *r, uint32_t from,
               uint32_t to, bool done) {
  const char *name = s->layout->layer[layer].name;
  struct rd2h_str ext = {r->ext, (uint32_t)strlen(r->ext)};
  struct rd2h_wire_req q = {.id = ext, .main = r->src + from, .indexer = r->src + from, .n_main = to - from,
                            .n_indexer = to - from, .main_start = from, .indexer_start = from};
  struct rd2h_wire_done d = {.id = ext};
  struct rd2h_wire_ready m = {.layer_idx = layer, .layer = {name, (uint32_t)strlen(name)}, .n_reqs = to > from ? 1 : 0, .req = &q,
                              .n_done = done ? 1 : 0, .done = &d, .ratio = 1};
  rd2h_buf_reset(b);
  rd2h_wire_encode_ready(b, &m);
}

void raw_long_ready(struct rd2h_buf *b, uint32_t layer, uint32_t n) {
  uint32_t *ids = rd2h_calloc(n, sizeof *ids);
  struct rd2h_wire_req q = {.id = {"long", 4}, .main = ids, .indexer = ids, .n_main = n, .n_indexer = n};
  struct rd2h_wire_ready m = {.layer_idx = layer, .layer = {"long", 4}, .n_reqs = 1, .req = &q, .ratio = 1};
  RIG_CHECK(ids);
  rd2h_buf_reset(b);
  rd2h_wire_encode_ready(b, &m);
  rd2h_free(ids);
}
