/* SPDX-License-Identifier: Apache-2.0 */
#include "layout/layout.h"
#include "layout/names.h"
#include <stdlib.h>

/* A tensor as it is sorted: by layer, main before indexer, then in the caller's order. */
struct entry {
  const struct rd2h_kv_tensor *t;
  uint32_t number, order;
  bool indexer;
};

static int by_layer(const void *pa, const void *pb) {
  const struct entry *a = pa, *b = pb;
  if (a->number != b->number)
    return a->number < b->number ? -1 : 1;
  if (a->indexer != b->indexer)
    return a->indexer ? 1 : -1;
  return a->order < b->order ? -1 : 1;
}

static int check_opts(const struct rd2h_layout_opts *o, uint32_t n, struct rd2h_error *err) {
  if (o->size < sizeof *o)
    return rd2h_fail(err, RD2H_INVALID, "rd2h_layout_opts.size is %u, this library wants %zu: set it to sizeof", o->size, sizeof *o);
  if (!n)
    return rd2h_fail(err, RD2H_INVALID, "no KV tensor was given");
  if (!o->num_blocks || o->num_blocks > INT32_MAX)
    return rd2h_fail(err, o->num_blocks ? RD2H_LIMIT : RD2H_INVALID, "num_blocks is %llu: it must be 1 to %d",
                     (unsigned long long)o->num_blocks, INT32_MAX);
  if (n > RD2H_LAYOUT_MAX_LAYERS * RD2H_MAX_TENSORS)
    return rd2h_fail(err, RD2H_LIMIT, "%u KV tensors: at most %u are served", n, RD2H_LAYOUT_MAX_LAYERS * RD2H_MAX_TENSORS);
  if (o->head_total && (!o->head_count || (uint64_t)o->head_first + o->head_count > o->head_total))
    return rd2h_fail(err, RD2H_INVALID, "heads [%u, %llu) are not a part of the %u heads in all", o->head_first,
                     (unsigned long long)o->head_first + o->head_count, o->head_total);
  if (o->fingerprint && strlen(o->fingerprint) > RD2H_LAYOUT_MAX_TEXT)
    return rd2h_fail(err, RD2H_LIMIT, "the layout fingerprint has %zu bytes: at most %u are served", strlen(o->fingerprint),
                     RD2H_LAYOUT_MAX_TEXT);
  return RD2H_OK;
}

static int check_shape(const struct rd2h_kv_tensor *t, const struct rd2h_layout_opts *o, struct rd2h_error *err) {
  uint64_t size, end;
  if (!t->base || !t->row_bytes || !t->rows)
    return rd2h_fail(err, RD2H_INVALID, "KV tensor %s: address 0x%llx, %llu rows of %llu bytes; none of them may be 0", t->layer,
                     (unsigned long long)t->base, (unsigned long long)t->rows, (unsigned long long)t->row_bytes);
  if (t->rows % o->num_blocks || t->rows / o->num_blocks > UINT32_MAX)
    return rd2h_fail(err, RD2H_LAYOUT, "KV tensor %s has %llu rows, no multiple of the %llu blocks", t->layer,
                     (unsigned long long)t->rows, (unsigned long long)o->num_blocks);
  if (__builtin_mul_overflow(t->rows, t->row_bytes, &size) || __builtin_add_overflow(t->base, size, &end))
    return rd2h_fail(err, RD2H_RANGE, "KV tensor %s passes the end of the address space: 0x%llx + %llu rows of %llu bytes", t->layer,
                     (unsigned long long)t->base, (unsigned long long)t->rows, (unsigned long long)t->row_bytes);
  return RD2H_OK;
}

static int read_entry(const struct rd2h_kv_tensor *t, uint32_t order, const struct rd2h_layout_opts *o, struct entry *e,
                      struct rd2h_error *err) {
  if (!t->layer || strlen(t->layer) > RD2H_LAYOUT_MAX_TEXT)
    return rd2h_fail(err, t->layer ? RD2H_LIMIT : RD2H_INVALID, "KV tensor %u has %s", order,
                     t->layer ? "a name that is too long" : "no layer name");
  *e = (struct entry){t, rd2h_name_number(t->layer), order, rd2h_name_is_indexer(t->layer)};
  if (e->number == RD2H_NONE)
    return rd2h_fail(err, RD2H_INVALID, "KV layer name \"%s\" holds no layer number: \"layers.<n>\" is looked for", t->layer);
  uint32_t group = e->indexer ? o->indexer_group : o->main_group;
  if (t->group != group)
    return rd2h_fail(err, RD2H_INVALID, "%s is in KV cache group %u, but %s KV is taken from group %u: one group of each is served",
                     t->layer, t->group, e->indexer ? "indexer" : "main", group);
  return check_shape(t, o, err);
}

/* How many of the n entries (of one layer) are of this kind, all with one name; -1 and err when not. */
static int count_kind(const struct entry *e, uint32_t n, bool indexer, struct rd2h_error *err) {
  const char *name = NULL;
  int count = 0;
  for (uint32_t i = 0; i < n; i++) {
    if (e[i].indexer != indexer)
      continue;
    if (name && strcmp(name, e[i].t->layer)) {
      rd2h_fail(err, RD2H_INVALID, "%s and %s are both the %s KV of layer %u: names must tell layers apart", name, e[i].t->layer,
                indexer ? "indexer" : "main", e[i].number);
      return -1;
    }
    name = e[i].t->layer;
    count++;
  }
  if (count > 2) {
    rd2h_fail(err, RD2H_INVALID, "%s has %d tensors: 1 or 2 can be served", name, count);
    return -1;
  }
  return count;
}

/* Fills a layer from its n sorted entries. */
static int fill_layer(struct rd2h_layer *l, const struct entry *e, uint32_t n, const struct rd2h_layout_opts *o,
                      struct rd2h_error *err) {
  int n_main = count_kind(e, n, false, err), n_indexer = n_main < 0 ? -1 : count_kind(e, n, true, err);
  if (n_indexer < 0)
    return RD2H_INVALID;
  if (!n_main)
    return rd2h_fail(err, RD2H_INVALID, "layer %u has an indexer (%s) but no main KV tensor", e->number, e->t->layer);
  *l = (struct rd2h_layer){.number = e->number, .n_main = (uint32_t)n_main, .has_indexer = n_indexer > 0,
                           .has_scale = n_indexer > 1, .n = n};
  for (uint32_t i = 0; i < n; i++) {
    const struct rd2h_kv_tensor *t = e[i].t;
    l->t[i] = (struct rd2h_tensor){t->base, t->row_bytes, (uint32_t)(t->rows / o->num_blocks), t->group, (uint32_t)o->num_blocks};
  }
  l->name = rd2h_strdup(e->t->layer);
  return l->name ? RD2H_OK : rd2h_nomem(err, "a layer name");
}

/* Cuts the sorted entries into layers. */
static int fill_layers(struct rd2h_layout *l, const struct entry *e, uint32_t n, const struct rd2h_layout_opts *o,
                       struct rd2h_error *err) {
  for (uint32_t i = 0, end; i < n; i = end) {
    for (end = i + 1; end < n && e[end].number == e[i].number;)
      end++;
    if (l->n_layers == RD2H_LAYOUT_MAX_LAYERS)
      return rd2h_fail(err, RD2H_LIMIT, "more than %u cache layers", RD2H_LAYOUT_MAX_LAYERS);
    int rc = fill_layer(&l->layer[l->n_layers], e + i, end - i, o, err);
    if (rc != RD2H_OK)
      return rc;
    l->n_layers++;
    for (uint32_t k = i; k < end; k++)
      if (rd2h_map_put(l->by_name, e[k].t->layer, strlen(e[k].t->layer), l->n_layers - 1) != RD2H_OK)
        return rd2h_nomem(err, "the table of layer names");
  }
  return RD2H_OK;
}

int rd2h_layout_create(const struct rd2h_kv_tensor *t, uint32_t n, const struct rd2h_layout_opts *opts, rd2h_layout **out,
                       struct rd2h_error *err) {
  int rc = check_opts(opts, n, err);
  if (rc != RD2H_OK)
    return rc;
  struct rd2h_layout *l = rd2h_zalloc(sizeof *l);
  struct entry *e = rd2h_calloc(n, sizeof *e);
  if (l) {
    l->layer = rd2h_calloc(n, sizeof *l->layer);
    l->by_name = rd2h_map_create();
    l->fingerprint = rd2h_strdup(opts->fingerprint ? opts->fingerprint : "");
  }
  if (!l || !e || !l->layer || !l->by_name || !l->fingerprint) {
    rc = rd2h_nomem(err, "a KV layout");
    goto undo;
  }
  for (uint32_t i = 0; i < n && rc == RD2H_OK; i++)
    rc = read_entry(&t[i], i, opts, &e[i], err);
  if (rc != RD2H_OK)
    goto undo;
  qsort(e, n, sizeof *e, by_layer);
  rc = fill_layers(l, e, n, opts, err);
  if (rc != RD2H_OK)
    goto undo;
  l->num_blocks = opts->num_blocks;
  l->main_group = opts->main_group;
  l->indexer_group = opts->indexer_group;
  memcpy(l->heads, (uint32_t[3]){opts->head_first, opts->head_count, opts->head_total}, sizeof l->heads);
  l->n_slots = rd2h_layout_infer_slots(l->layer, l->n_layers);
  rd2h_free(e);
  *out = l;
  return RD2H_OK;
undo:
  rd2h_free(e);
  rd2h_layout_destroy(l);
  return rc;
}

void rd2h_layout_destroy(rd2h_layout *l) {
  if (!l)
    return;
  for (uint32_t i = 0; i < l->n_layers; i++)
    rd2h_free(l->layer[i].name);
  rd2h_free(l->layer);
  rd2h_map_destroy(l->by_name);
  rd2h_free(l->fingerprint);
  rd2h_free(l);
}

uint32_t rd2h_layout_layers(const rd2h_layout *l) {
  return l->n_layers;
}

const char *rd2h_layout_layer_name(const rd2h_layout *l, uint32_t layer) {
  return layer < l->n_layers ? l->layer[layer].name : NULL;
}

uint32_t rd2h_layout_find(const rd2h_layout *l, const char *name) {
  return rd2h_map_get(l->by_name, name, strlen(name));
}

uint32_t rd2h_layout_slots(const rd2h_layout *l) {
  return l->n_slots;
}

uint32_t rd2h_layout_layer_slots(const rd2h_layout *l, uint32_t layer, uint32_t slot[2]) {
  if (layer >= l->n_layers)
    return 0;
  memcpy(slot, l->layer[layer].slot, sizeof l->layer[layer].slot);
  return l->layer[layer].n_slots;
}
