/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/integration/rig.h"
#include "layout/layout.h"
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static const uint32_t block_bytes[RIG_TENSORS] = {256, 128, 64, 8};

/* ---- memory ---- */
uint32_t rig_block_bytes(uint32_t tensor) {
  return block_bytes[tensor];
}

static uint32_t storage(const struct rig_shape *s, uint32_t layer) {
  return s->slots ? layer % s->slots : layer;
}

static uint64_t slot_bytes(const struct rig_shape *s) {
  uint64_t row = 0;
  for (uint32_t t = 0; t < RIG_TENSORS; t++)
    row += block_bytes[t];
  return row * s->blocks;
}

static bool has(const struct rig_shape *s, uint32_t layer, uint32_t tensor) {
  return tensor < 2 || (s->indexer_mask >> layer & 1);
}

static uint64_t tensor_base(const struct rig_side *s, uint32_t layer, uint32_t tensor) {
  uint64_t at = s->area.base + storage(&s->shape, layer) * slot_bytes(&s->shape);
  for (uint32_t t = 0; t < tensor; t++)
    at += (uint64_t)block_bytes[t] * s->shape.blocks;
  return at;
}

uint8_t *rig_block(const struct rig_side *s, uint32_t layer, uint32_t tensor, uint32_t block) {
  if (!has(&s->shape, layer, tensor))
    return NULL;
  return (uint8_t *)(uintptr_t)(tensor_base(s, layer, tensor) + (uint64_t)block * block_bytes[tensor]);
}

void rig_side_open(struct rig_side *s, const struct rig_shape *shape) {
  struct rd2h_error err = {0};
  struct rd2h_kv_tensor t[RIG_TENSORS * 32];
  char name[2 * 32][64];
  uint32_t n = 0;
  struct rd2h_layout_opts o = {.size = sizeof o, .num_blocks = shape->blocks, .fingerprint = "rig"};
  *s = (struct rig_side){.shape = *shape};
  s->area.len = (shape->slots ? shape->slots : shape->layers) * slot_bytes(shape);
  void *p = mmap(NULL, s->area.len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  RIG_CHECK(p != MAP_FAILED && shape->layers <= 32);
  memset(p, RIG_CANARY, s->area.len);
  s->area.base = (uintptr_t)p;
  for (uint32_t l = 0; l < shape->layers; l++) {
    snprintf(name[2 * l], sizeof name[0], "model.layers.%u.self_attn.attn", shape->first + l);
    snprintf(name[2 * l + 1], sizeof name[0], "model.layers.%u.self_attn.indexer.k_cache",
             shape->first + l);
    for (uint32_t k = 0; k < RIG_TENSORS; k++)
      if (has(shape, l, k))
        t[n++] = (struct rd2h_kv_tensor){.layer = name[2 * l + (k > 1)], .base = tensor_base(s, l, k),
                                         .row_bytes = block_bytes[k], .rows = shape->blocks};
  }
  RIG_OK(rd2h_layout_create(t, n, &o, &s->layout, &err), &err);
}

void rig_side_close(struct rig_side *s) {
  rd2h_layout_destroy(s->layout);
  munmap((void *)(uintptr_t)s->area.base, s->area.len);
}

static uint8_t stamp(uint32_t layer, uint32_t tensor, uint32_t block, uint32_t write, uint32_t i) {
  uint32_t x = (layer * 31 + tensor) * 1009 + block * 17 + write * 131071 + i * 7;
  return (uint8_t)(x ^ x >> 8 ^ x >> 16);
}

void rig_write(const struct rig_side *s, uint32_t layer, uint32_t write) {
  for (uint32_t t = 0; t < RIG_TENSORS; t++)
    for (uint32_t b = 0; b < s->shape.blocks && has(&s->shape, layer, t); b++)
      for (uint32_t i = 0; i < block_bytes[t]; i++)
        rig_block(s, layer, t, b)[i] = stamp(s->shape.first + layer, t, b, write, i);
}

void rig_write_all(const struct rig_side *s, uint32_t write) {
  for (uint32_t l = 0; l < s->shape.layers; l++)
    rig_write(s, l, write);
}

bool rig_holds(const struct rig_side *s, uint32_t layer, uint32_t dst_block, uint32_t src_layer, uint32_t src_block,
               uint32_t write) {
  for (uint32_t t = 0; t < RIG_TENSORS; t++)
    for (uint32_t i = 0; i < block_bytes[t] && has(&s->shape, layer, t); i++)
      if (rig_block(s, layer, t, dst_block)[i] != stamp(src_layer, t, src_block, write, i))
        return false;
  return true;
}

bool rig_untouched(const struct rig_side *s, uint32_t layer, uint32_t block) {
  for (uint32_t t = 0; t < RIG_TENSORS; t++)
    for (uint32_t i = 0; i < block_bytes[t] && has(&s->shape, layer, t); i++)
      if (rig_block(s, layer, t, block)[i] != RIG_CANARY)
        return false;
  return true;
}

/* ---- objects ---- */
rd2h_prefill *rig_prefill(const struct rig_side *s, const struct rd2h_prefill_opts *tweak) {
  struct rd2h_prefill_opts o = tweak ? *tweak : (struct rd2h_prefill_opts){0};
  struct rd2h_error err = {0};
  rd2h_prefill *p;
  o.size = sizeof o;
  o.layout = s->layout;
  o.memory = &s->area;
  o.n_memory = 1;
  o.tp_size = o.tp_size ? o.tp_size : 1;
  o.pp_size = o.pp_size ? o.pp_size : 1;
  o.engine = o.engine ? o.engine : "local";
  RIG_OK(rd2h_prefill_create(&o, &p, &err), &err);
  return p;
}

rd2h_decode *rig_decode(const struct rig_side *s, const struct rd2h_decode_opts *tweak) {
  struct rd2h_decode_opts o = tweak ? *tweak : (struct rd2h_decode_opts){0};
  struct rd2h_error err = {0};
  rd2h_decode *d;
  o.size = sizeof o;
  o.layout = s->layout;
  o.memory = &s->area;
  o.n_memory = 1;
  o.tp_size = o.tp_size ? o.tp_size : 1;
  o.engine = o.engine ? o.engine : "local";
  RIG_OK(rd2h_decode_create(&o, &d, &err), &err);
  return d;
}

static uint16_t try_ranks(rd2h_decode **d, const struct rig_side *side, uint32_t n, bool share) {
  uint32_t made = 0;
  uint16_t base = 0;
  for (; made < n; made++) {
    struct rd2h_error err = {0};
    struct rd2h_decode_opts o = {.size = sizeof o, .layout = side[made].layout, .memory = &side[made].area, .n_memory = 1,
                                 .tp_rank = made, .tp_size = n, .main_rank = share ? made : 0, .main_ranks = share ? n : 1,
                                 .engine = "local", .port = (uint16_t)(made ? base + made : 0)};
    if (rd2h_decode_create(&o, &d[made], &err))
      break;
    base = made ? base : rd2h_decode_port(d[0]);
  }
  for (uint32_t i = 0; i < made && made < n; i++)
    rd2h_decode_destroy(d[i]);
  return made == n ? base : 0;
}

uint16_t rig_decode_ranks(rd2h_decode **d, const struct rig_side *side, uint32_t n, bool share) {
  uint16_t base = 0;
  for (int tries = 0; tries < 50 && !base; tries++) /* a neighbour's port may be in use */
    base = try_ranks(d, side, n, share);
  RIG_CHECK(base);
  return base;
}

/* ---- requests ---- */
void rig_request(struct rig_request *r, const char *id, uint32_t n, uint32_t first_src, uint32_t first_dst) {
  *r = (struct rig_request){.id = id, .ext = id, .n = n};
  for (uint32_t i = 0; i < n; i++) { /* every other block: nothing to merge */
    r->src[i] = first_src + 2 * i;
    r->dst[i] = first_dst + 2 * i;
  }
}

static void attempt_of(const struct rig_request *r, uint8_t attempt[RD2H_ATTEMPT_BYTES]) {
  memset(attempt, 0, RD2H_ATTEMPT_BYTES);
  strncpy((char *)attempt, r->id, RD2H_ATTEMPT_BYTES - 1);
}

void rig_install(rd2h_decode *d, const struct rig_request *r) {
  struct rd2h_error err = {0};
  struct rd2h_grant g = {.id = r->id, .ext_id = r->ext, .main = r->dst, .indexer = r->dst, .n_main = r->n, .n_indexer = r->n,
                         .main_need = r->n, .indexer_need = r->n};
  attempt_of(r, g.attempt);
  RIG_OK(rd2h_decode_install(d, &g, &err), &err);
}

static struct rd2h_str str_of(const char *s) {
  return (struct rd2h_str){s, (uint32_t)strlen(s)};
}

void rig_send(struct rd2h_step_send *x, const struct rig_request *r, uint16_t port, uint32_t from, uint32_t to, bool last) {
  *x = (struct rd2h_step_send){.id = str_of(r->id), .ext_id = str_of(r->ext), .host = str_of("127.0.0.1"), .base_port = port,
                               .d_tp = 1, .engine_id = str_of("decode-1"), .has_attempt = true, .main = r->src + from,
                               .indexer = r->src + from, .n_main = to - from, .n_indexer = to - from, .main_start = from,
                               .indexer_start = from, .last = last};
  attempt_of(r, x->attempt);
}

void rig_step(rd2h_prefill *p, struct rd2h_step_send *send, uint32_t n, const char *finished) {
  struct rd2h_error err = {0};
  struct rd2h_buf b = {0};
  struct rd2h_step_ref ref = {.id = str_of(finished ? finished : "")};
  struct rd2h_prefill_step_view v = {.n_send = n, .send = send, .n_finished = finished ? 1 : 0, .finished = &ref};
  rd2h_step_encode_prefill(&b, &v);
  RIG_OK(rd2h_prefill_step(p, b.p, b.len, &err), &err);
  rd2h_buf_free(&b);
}

void rig_layers(rd2h_prefill *p, uint32_t layers) {
  struct rd2h_error err = {0};
  for (uint32_t l = 0; l < layers; l++)
    RIG_OK(rd2h_prefill_layer(p, l, &err), &err);
}

void rig_produce(rd2h_prefill *p, const struct rig_side *src, uint32_t write) {
  struct rd2h_error err = {0};
  for (uint32_t l = 0; l < src->shape.layers; l++) {
    RIG_OK(rd2h_prefill_wait_layer(p, l, RIG_WAIT_MS, &err), &err);
    rig_write(src, l, write);
    RIG_OK(rd2h_prefill_layer(p, l, &err), &err);
  }
}

/* ---- a pair ---- */
void rig_pair_open(struct rig_pair *x, const struct rig_shape *shape, const struct rd2h_prefill_opts *po,
                   const struct rd2h_decode_opts *o) {
  struct rig_shape own = *shape;
  own.slots = 0;
  rig_side_open(&x->src, shape);
  rig_side_open(&x->dst, &own);
  x->d = rig_decode(&x->dst, o);
  x->p = rig_prefill(&x->src, po);
}

void rig_pair_close(struct rig_pair *x) {
  rd2h_prefill_destroy(x->p);
  rd2h_decode_destroy(x->d);
  rig_side_close(&x->src);
  rig_side_close(&x->dst);
}

void rig_pair_send(struct rig_pair *x, const struct rig_request *r, uint32_t n) {
  struct rd2h_step_send send[16];
  RIG_CHECK(n <= RD2H_COUNT(send));
  for (uint32_t i = 0; i < n; i++)
    rig_send(&send[i], &r[i], rd2h_decode_port(x->d), 0, r[i].n, true);
  rig_step(x->p, send, n, NULL);
  rig_layers(x->p, x->src.shape.layers);
}

/* ---- waiting ---- */
static bool wait_fd(int fd) {
  struct pollfd pfd = {.fd = fd, .events = POLLIN};
  return poll(&pfd, 1, RIG_WAIT_MS) > 0;
}

/* What came for other ids than the one waited for. */
static struct seen {
  const void *from;
  char id[64], text[RD2H_ERROR_TEXT];
  int status;
} seen[1024];
static uint32_t n_seen;

static void keep(const void *from, const char *id, int status, const char *text) {
  struct seen *x = &seen[n_seen++ % RD2H_COUNT(seen)];
  *x = (struct seen){.from = from, .status = status};
  snprintf(x->id, sizeof x->id, "%s", id);
  snprintf(x->text, sizeof x->text, "%s", text);
}

static struct seen *find(const void *from, const char *id) {
  for (uint32_t i = 0; i < RD2H_COUNT(seen); i++)
    if (seen[i].from == from && !strcmp(seen[i].id, id))
      return &seen[i];
  return NULL;
}

static int take(struct seen *x, char *text) {
  if (text)
    snprintf(text, RD2H_ERROR_TEXT, "%s", x->text);
  x->from = NULL;
  return x->status;
}

int rig_outcome(rd2h_decode *d, const char *id, char *text) {
  struct rd2h_outcome o[16];
  struct seen *x;
  while (!(x = find(d, id))) {
    uint32_t n = rd2h_decode_collect(d, o, RD2H_COUNT(o));
    for (uint32_t i = 0; i < n; i++)
      keep(d, o[i].id, o[i].status, o[i].text);
    RIG_CHECK(n || wait_fd(rd2h_decode_fd(d)));
  }
  return take(x, text);
}

int rig_settled(rd2h_prefill *p, const char *id) {
  struct rd2h_settled s[16];
  struct seen *x;
  while (!(x = find(p, id))) {
    uint32_t n = rd2h_prefill_collect(p, s, RD2H_COUNT(s));
    for (uint32_t i = 0; i < n; i++)
      keep(p, s[i].id, s[i].status, "");
    RIG_CHECK(n || wait_fd(rd2h_prefill_fd(p)));
  }
  return take(x, NULL);
}

void rig_decode_stats(rd2h_decode *d, struct rd2h_decode_stats *st) {
  struct rig_request r;
  rig_request(&r, "rig-turn", 1, 0, 0);
  rig_install(d, &r);
  RIG_CHECK(rd2h_decode_abort(d, r.id) == RD2H_OK);
  RIG_CHECK(rig_outcome(d, r.id, NULL) == RD2H_ABORTED);
  rd2h_decode_stats(d, st);
}

void rig_expect(const struct rig_side *dst, const struct rig_request *r, uint32_t write) {
  for (uint32_t l = 0; l < dst->shape.layers; l++)
    for (uint32_t i = 0; i < r->n; i++) {
      RIG_CHECK(rig_holds(dst, l, r->dst[i], l, r->src[i], write));
      RIG_CHECK(rig_untouched(dst, l, r->dst[i] + 1));
    }
}

/* ---- processes ---- */
struct rig_child rig_fork(void (*fn)(int in, int out)) {
  int to[2], from[2];
  RIG_CHECK(!pipe(to) && !pipe(from));
  pid_t pid = fork();
  RIG_CHECK(pid >= 0);
  if (!pid) {
    close(to[1]);
    close(from[0]);
    fn(to[0], from[1]);
    _exit(0);
  }
  close(to[0]);
  close(from[1]);
  return (struct rig_child){pid, to[1], from[0]};
}

int rig_reap(struct rig_child *c, int signal) {
  int status = 0;
  if (signal)
    kill(c->pid, signal);
  close(c->to);
  close(c->from);
  RIG_CHECK(waitpid(c->pid, &status, 0) == c->pid);
  return status;
}

void rig_put(int fd, uint32_t v) {
  RIG_CHECK(write(fd, &v, sizeof v) == sizeof v);
}

uint32_t rig_get(int fd) {
  uint32_t v;
  RIG_CHECK(read(fd, &v, sizeof v) == sizeof v);
  return v;
}
