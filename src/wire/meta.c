/* SPDX-License-Identifier: Apache-2.0 */
/* MF_META, both directions. */
#include "wire/codec.h"

static int take_u64s(struct rd2h_wire_in *in, const char *what, uint32_t *n_out, const uint64_t **out) {
  uint64_t *v = NULL;
  uint32_t n;
  RD2H_TRY(rd2h_wire_take_array(in, what, RD2H_WIRE_MAX_TENSORS, 1, &n));
  if (n && !(v = RD2H_ROOM(in, uint64_t, n)))
    return rd2h_wire_full(in);
  for (uint32_t i = 0; i < n; i++)
    if (!rd2h_mp_uint(&in->r, &v[i]))
      return rd2h_wire_expected(in, what, "integers that are not negative");
  *n_out = n;
  *out = v;
  return RD2H_OK;
}

static int take_addrs(struct rd2h_wire_in *in, struct rd2h_wire_layer *l) {
  return take_u64s(in, "\"base_addrs\"", &l->n_addrs, &l->addr);
}

static int take_lens(struct rd2h_wire_in *in, struct rd2h_wire_layer *l) {
  return take_u64s(in, "\"block_len\"", &l->n_lens, &l->len);
}

static int take_scales(struct rd2h_wire_in *in, struct rd2h_wire_layer *l) {
  return take_u64s(in, "\"block_size_scale\"", &l->n_scales, &l->scale);
}

static int take_groups(struct rd2h_wire_in *in, struct rd2h_wire_layer *l) {
  int64_t *v = NULL;
  uint32_t n;
  RD2H_TRY(rd2h_wire_take_array(in, "\"tensor_group_idx\"", RD2H_WIRE_MAX_TENSORS, 1, &n));
  if (n && !(v = RD2H_ROOM(in, int64_t, n)))
    return rd2h_wire_full(in);
  for (uint32_t i = 0; i < n; i++)
    if (!rd2h_mp_int(&in->r, &v[i]))
      return rd2h_wire_expected(in, "\"tensor_group_idx\"", "integers");
  l->n_groups = n;
  l->group = v;
  return RD2H_OK;
}

static int take_main_count(struct rd2h_wire_in *in, struct rd2h_wire_layer *l) {
  return rd2h_wire_take_u32(in, "\"main_tensor_count\"", RD2H_WIRE_MAX_TENSORS, &l->main_count);
}

static int take_has_indexer(struct rd2h_wire_in *in, struct rd2h_wire_layer *l) {
  return rd2h_mp_bool(&in->r, &l->has_indexer) ? RD2H_OK : rd2h_wire_expected(in, "\"has_indexer\"", "true or false");
}

enum { KEY_SCALES = 2, KEY_MAIN_COUNT = 4, KEY_HAS_INDEXER = 5 };
static const struct {
  const char *key;
  int (*take)(struct rd2h_wire_in *, struct rd2h_wire_layer *);
} keys[] = {
  {"base_addrs", take_addrs},        {"block_len", take_lens},          {"block_size_scale", take_scales},
  {"tensor_group_idx", take_groups}, {"main_tensor_count", take_main_count}, {"has_indexer", take_has_indexer},
};

/* A known key, or -1: the extension (taken when it is the message's first) or one that nobody knows (skipped). */
static int take_key(struct rd2h_wire_in *in, struct rd2h_wire_ext *ext, int *key) {
  struct rd2h_str name = {NULL, 0};
  *key = -1;
  if (!rd2h_mp_str(&in->r, &name))
    RD2H_TRY(rd2h_wire_skip(in, "a layer's key", 1));
  for (size_t i = 0; i < RD2H_COUNT(keys) && name.n; i++)
    if (name.n == strlen(keys[i].key) && !memcmp(name.p, keys[i].key, name.n))
      return *key = (int)i, RD2H_OK;
  if (name.n == 4 && !memcmp(name.p, "rd2h", 4) && !ext->present)
    return rd2h_wire_take_ext(in, ext);
  return rd2h_wire_skip(in, "the value of a layer's unknown key", 1);
}

static int fill_defaults(struct rd2h_wire_in *in, struct rd2h_wire_layer *l, uint32_t seen) {
  if (!(seen & 1u << KEY_SCALES) && l->n_addrs) {
    uint64_t *one = RD2H_ROOM(in, uint64_t, l->n_addrs);
    if (!one)
      return rd2h_wire_full(in);
    for (uint32_t i = 0; i < l->n_addrs; i++)
      one[i] = 1;
    l->n_scales = l->n_addrs;
    l->scale = one;
  }
  if (!(seen & 1u << KEY_MAIN_COUNT))
    l->main_count = 2;
  if (!(seen & 1u << KEY_HAS_INDEXER))
    l->has_indexer = l->n_addrs > l->main_count;
  return RD2H_OK;
}

static int take_layer(struct rd2h_wire_in *in, struct rd2h_wire_layer *l, struct rd2h_wire_ext *ext) {
  uint32_t pairs, seen = 0;
  *l = (struct rd2h_wire_layer){0};
  RD2H_TRY(rd2h_wire_take_str(in, "a layer name", RD2H_WIRE_MAX_NAME, &l->name));
  if (!rd2h_mp_map(&in->r, &pairs))
    return rd2h_wire_expected(in, "a layer", "a map");
  for (; pairs; pairs--) {
    int key;
    RD2H_TRY(take_key(in, ext, &key));
    if (key < 0)
      continue;
    if (seen & 1u << key)
      return rd2h_fail(in->err, RD2H_MALFORMED, "%s: layer %.*s has the key \"%s\" twice", in->msg, (int)l->name.n, l->name.p,
                       keys[key].key);
    seen |= 1u << key;
    RD2H_TRY(keys[key].take(in, l));
  }
  return fill_defaults(in, l, seen);
}

static bool named_before(const struct rd2h_wire_layer *layer, uint32_t i) {
  for (uint32_t k = 0; k < i; k++)
    if (layer[k].name.n == layer[i].name.n && !memcmp(layer[k].name.p, layer[i].name.p, layer[i].name.n))
      return true;
  return false;
}

static int take_layers(struct rd2h_wire_in *in, struct rd2h_wire_meta *m) {
  struct rd2h_wire_layer *layer = NULL;
  uint32_t n;
  if (!rd2h_mp_map(&in->r, &n))
    return rd2h_wire_expected(in, "the layers", "a map");
  if (n > RD2H_WIRE_MAX_LAYERS)
    return rd2h_wire_over(in, "the number of layers", n, RD2H_WIRE_MAX_LAYERS);
  if (n && !(layer = RD2H_ROOM(in, struct rd2h_wire_layer, n)))
    return rd2h_wire_full(in);
  for (uint32_t i = 0; i < n; i++) {
    RD2H_TRY(take_layer(in, &layer[i], &m->ext));
    if (named_before(layer, i))
      return rd2h_fail(in->err, RD2H_MALFORMED, "%s: layer %.*s appears twice", in->msg, (int)layer[i].name.n, layer[i].name.p);
  }
  m->layer = layer;
  m->n_layers = n;
  return rd2h_wire_close(in, 0);
}

static int take_stage(struct rd2h_wire_in *in, struct rd2h_wire_meta *m) {
  RD2H_TRY(rd2h_wire_take_u32(in, "the version", UINT32_MAX, &m->version));
  RD2H_TRY(rd2h_wire_take_u32(in, "pp_rank", UINT32_MAX, &m->pp_rank));
  RD2H_TRY(rd2h_wire_take_u32(in, "pp_size", UINT32_MAX, &m->pp_size));
  if (m->pp_size > RD2H_WIRE_MAX_RATIO)
    return rd2h_wire_over(in, "pp_size", m->pp_size, RD2H_WIRE_MAX_RATIO);
  if (m->pp_rank >= m->pp_size)
    return rd2h_fail(in->err, RD2H_MALFORMED, "%s: pp_rank %u does not lie below pp_size %u", in->msg, m->pp_rank, m->pp_size);
  return RD2H_OK;
}

int rd2h_wire_decode_meta(const uint8_t *p, size_t n, struct rd2h_arena *arena, struct rd2h_wire_meta *out,
                          struct rd2h_error *err) {
  struct rd2h_wire_in in = {{p, p + n}, p, p + n, NULL, arena, err};
  struct rd2h_wire_meta m = {.pp_size = 1};
  struct rd2h_str layers;
  RD2H_TRY(rd2h_wire_open(&in, RD2H_MSG_META, 3, &m.fields));
  if (m.fields != 3 && m.fields != 6)
    return rd2h_fail(err, RD2H_MALFORMED, "%s: %u fields, known are 3 and 6", in.msg, m.fields);
  RD2H_TRY(rd2h_wire_take_str(&in, "the session", RD2H_WIRE_MAX_NAME, &m.session));
  if (!rd2h_mp_bin(&in.r, &layers))
    return rd2h_wire_expected(&in, "the layers", "bytes");
  struct rd2h_wire_in inner = in;
  inner.r = (struct rd2h_mp){(const uint8_t *)layers.p, (const uint8_t *)layers.p + layers.n};
  RD2H_TRY(take_layers(&inner, &m));
  if (m.fields == 6)
    RD2H_TRY(take_stage(&in, &m));
  RD2H_TRY(rd2h_wire_close(&in, 0));
  *out = m;
  return RD2H_OK;
}

static void put_str(struct rd2h_buf *b, const char *s) {
  rd2h_mp_put_str(b, s, (uint32_t)strlen(s));
}

static void put_u64s(struct rd2h_buf *b, int key, const uint64_t *v, uint32_t n) {
  put_str(b, keys[key].key);
  rd2h_mp_put_array(b, n);
  for (uint32_t i = 0; i < n; i++)
    rd2h_mp_put_uint(b, v[i]);
}

static void put_layer(struct rd2h_buf *b, const struct rd2h_wire_layer *l, const struct rd2h_wire_ext *ext) {
  rd2h_mp_put_str(b, l->name.p, l->name.n);
  rd2h_mp_put_map(b, ext ? 7 : 6);
  put_u64s(b, 0, l->addr, l->n_addrs);
  put_u64s(b, 1, l->len, l->n_lens);
  put_u64s(b, KEY_SCALES, l->scale, l->n_scales);
  put_str(b, keys[3].key);
  rd2h_mp_put_array(b, l->n_groups);
  for (uint32_t i = 0; i < l->n_groups; i++)
    rd2h_mp_put_int(b, l->group[i]);
  put_str(b, keys[KEY_MAIN_COUNT].key);
  rd2h_mp_put_uint(b, l->main_count);
  put_str(b, keys[KEY_HAS_INDEXER].key);
  rd2h_mp_put_bool(b, l->has_indexer);
  if (!ext)
    return;
  put_str(b, "rd2h");
  rd2h_wire_put_ext(b, ext);
}

void rd2h_wire_encode_meta(struct rd2h_buf *b, const struct rd2h_wire_meta *m) {
  const char *tag = rd2h_wire_tag(RD2H_MSG_META);
  rd2h_mp_put_array(b, m->fields == 6 ? 6 : 3);
  rd2h_mp_put_bin(b, tag, (uint32_t)strlen(tag));
  rd2h_mp_put_str(b, m->session.p, m->session.n);
  size_t at = rd2h_mp_bin_begin(b);
  rd2h_mp_put_map(b, m->n_layers);
  for (uint32_t i = 0; i < m->n_layers; i++)
    put_layer(b, &m->layer[i], !i && m->ext.present ? &m->ext : NULL);
  rd2h_mp_bin_end(b, at);
  if (m->fields != 6)
    return;
  rd2h_mp_put_uint(b, m->version);
  rd2h_mp_put_uint(b, m->pp_rank);
  rd2h_mp_put_uint(b, m->pp_size);
}
