/* SPDX-License-Identifier: Apache-2.0 */
/* MF_META of this rank: the same for every epoch but for what engines publish for one reader alone. */
#include "layout/layout.h"
#include "worker/prefill_worker.h"

struct tensors {
  uint64_t addr[RD2H_MAX_TENSORS], len[RD2H_MAX_TENSORS], scale[RD2H_MAX_TENSORS];
  int64_t group[RD2H_MAX_TENSORS];
};

static void describe(const struct rd2h_layer *l, struct tensors *t, struct rd2h_wire_layer *out) {
  for (uint32_t i = 0; i < l->n; i++) {
    t->addr[i] = l->t[i].base;
    t->len[i] = l->t[i].block_len;
    t->scale[i] = l->t[i].scale;
    t->group[i] = l->t[i].group;
  }
  *out = (struct rd2h_wire_layer){.name = {l->name, (uint32_t)strlen(l->name)}, .n_addrs = l->n, .n_lens = l->n, .n_scales = l->n,
                                  .n_groups = l->n, .addr = t->addr, .len = t->len, .scale = t->scale, .group = t->group,
                                  .main_count = l->n_main, .has_indexer = l->has_indexer};
}

/* Connection data of every engine that this rank can be read by, best first. */
static int offer_engines(rd2h_pw *w, uint64_t reader, struct rd2h_wire_ext *x, struct rd2h_buf conn[RD2H_WIRE_MAX_ENGINES],
                         struct rd2h_error *err) {
  rd2h_eng *part;
  for (uint32_t i = 0; i < RD2H_WIRE_MAX_ENGINES && (part = rd2h_eng_part(w->eng, i)); i++) {
    const char *name = rd2h_eng_name(part);
    int rc = rd2h_eng_publish_for(part, reader, &conn[i], err);
    if (rc)
      return rc;
    x->engine[x->n_engines++] = (struct rd2h_wire_engine){{name, (uint32_t)strlen(name)}, conn[i].p, (uint32_t)conn[i].len};
  }
  return RD2H_OK;
}

static int make_ext(rd2h_pw *w, uint64_t reader, struct rd2h_wire_ext *x, struct rd2h_buf *conn, struct rd2h_error *err) {
  const struct rd2h_layout *l = w->o.layout;
  *x = (struct rd2h_wire_ext){.present = true, .revision = RD2H_EXT_REVISION, .caps = RD2H_CAPS_ALL | (w->o.digest ? RD2H_CAP_DIGEST : 0),
                              .n_regions = w->o.n_memory, .region = w->o.memory,
                              .blocks = {(uint32_t)l->num_blocks, (uint32_t)l->num_blocks},
                              .heads = {l->heads[0], l->heads[1], l->heads[2]},
                              .fingerprint = {l->fingerprint, (uint32_t)strlen(l->fingerprint)}};
  memcpy(x->incarnation, w->incarnation, sizeof x->incarnation);
  return offer_engines(w, reader, x, conn, err);
}

int pw_make_meta(rd2h_pw *w, uint64_t reader, struct rd2h_error *err) {
  struct rd2h_buf conn[RD2H_WIRE_MAX_ENGINES] = {0};
  struct rd2h_wire_meta m = {.session = {w->session, (uint32_t)strlen(w->session)}, .fields = 6, .version = 1,
                             .pp_rank = w->o.pp_rank, .pp_size = w->o.pp_size, .n_layers = w->n_layers};
  struct rd2h_wire_layer *layer = rd2h_calloc(w->n_layers, sizeof *layer);
  struct tensors *t = rd2h_calloc(w->n_layers, sizeof *t);
  int rc = layer && t ? make_ext(w, reader, &m.ext, conn, err) : rd2h_nomem(err, "metadata");
  if (!rc) {
    for (uint32_t i = 0; i < w->n_layers; i++)
      describe(&w->o.layout->layer[i], &t[i], &layer[i]);
    m.layer = layer;
    rd2h_buf_reset(&w->meta);
    rd2h_wire_encode_meta(&w->meta, &m);
    rc = w->meta.failed ? rd2h_nomem(err, "metadata") : RD2H_OK;
  }
  for (uint32_t i = 0; i < RD2H_WIRE_MAX_ENGINES; i++)
    rd2h_buf_free(&conn[i]);
  rd2h_free(layer);
  rd2h_free(t);
  return rc;
}
