/* SPDX-License-Identifier: Apache-2.0 */
/* The prefill machine's frame: creation, the action queue, timers. */
#include "protocol/actions.h"
#include "protocol/pm_internal.h"

static uint32_t or_default(uint32_t v, uint32_t d) { return v ? v : d; }
static uint64_t or_default_ns(uint64_t v, uint64_t ms) { return v ? v : ms * RD2H_MS; }

int rd2h_pm_create(const struct rd2h_pm_cfg *cfg, rd2h_pm **out, struct rd2h_error *err) {
  if (!cfg->pp_size || cfg->pp_rank >= cfg->pp_size)
    return rd2h_fail(err, RD2H_INVALID, "pipeline rank %u of %u is not possible", cfg->pp_rank, cfg->pp_size);
  rd2h_pm *m = rd2h_zalloc(sizeof *m);
  if (!m) return rd2h_nomem(err, "prefill machine");
  m->cfg = *cfg;
  m->cfg.max_endpoints = or_default(cfg->max_endpoints, 4096);
  m->cfg.max_requests = or_default(cfg->max_requests, 65536);
  m->cfg.max_batches = or_default(cfg->max_batches, 262144);
  m->cfg.handshake_ns = or_default_ns(cfg->handshake_ns, 10000);
  m->cfg.hold_ns = or_default_ns(cfg->hold_ns, 240000);
  m->cfg.idle_ns = or_default_ns(cfg->idle_ns, 600000);
  rd2h_slab_init(&m->eps, sizeof(struct pm_ep), m->cfg.max_endpoints);
  rd2h_slab_init(&m->entries, sizeof(struct pm_entry), m->cfg.max_batches);
  rd2h_slab_init(&m->links, sizeof(struct pm_link), 0);
  rd2h_slab_init(&m->reqs, sizeof(struct pm_req), m->cfg.max_requests);
  m->by_address = rd2h_map_create();
  m->by_id = rd2h_map_create();
  m->by_wire = rd2h_map_create();
  if (!m->by_address || !m->by_id || !m->by_wire) {
    rd2h_pm_destroy(m);
    return rd2h_nomem(err, "prefill machine");
  }
  *out = m;
  return RD2H_OK;
}

void rd2h_pm_destroy(rd2h_pm *m) {
  if (!m) return;
  for (uint32_t i = 0; i < m->eps.next; i++)
    if (rd2h_slab_live(&m->eps, i)) {
      rd2h_free(pm_ep(m, i)->address);
      rd2h_free(pm_ep(m, i)->engine_id);
    }
  for (uint32_t i = 0; i < m->reqs.next; i++)
    if (rd2h_slab_live(&m->reqs, i)) {
      rd2h_free(pm_req(m, i)->id);
      rd2h_free(pm_req(m, i)->ext);
    }
  for (uint32_t i = m->act_head; i < m->act_n; i++) {
    rd2h_free(m->act[i].id);
    rd2h_free(m->act[i].ext);
  }
  rd2h_free(m->spent[0]);
  rd2h_free(m->spent[1]);
  rd2h_free(m->act);
  rd2h_map_destroy(m->by_address);
  rd2h_map_destroy(m->by_id);
  rd2h_map_destroy(m->by_wire);
  rd2h_slab_free(&m->eps);
  rd2h_slab_free(&m->entries);
  rd2h_slab_free(&m->links);
  rd2h_slab_free(&m->reqs);
  rd2h_heap_free(&m->timers);
  rd2h_buf_free(&m->text);
  rd2h_free(m);
}

/* ---- actions ---- */
static bool act_room(rd2h_pm *m, uint32_t more) {
  if (m->act_head == m->act_n) m->act_head = m->act_n = 0;
  if (m->act_cap - m->act_n >= more) return true;
  struct pm_act *a = act_grow(m->act, sizeof *a, m->act_n, more, &m->act_cap);
  if (a) m->act = a;
  return a != NULL;
}

/* Room for what one more record can cause, so that a settlement is never lost for want of memory. */
bool pm_reserve(rd2h_pm *m) {
  return act_room(m, 4 * (m->eps.live + m->entries.live + m->links.live + m->reqs.live + 1)) &&
         rd2h_heap_reserve(&m->timers, 3 * m->eps.live + 4) == RD2H_OK;
}

struct rd2h_pa *pm_emit(rd2h_pm *m, enum rd2h_pa_kind kind, uint32_t ep, char *id, char *ext, const char *text) {
  if (!act_room(m, 1)) {
    RD2H_ERR("rd2h prefill: out of memory, an action of kind %d is lost", (int)kind);
    rd2h_free(id);
    rd2h_free(ext);
    return &m->lost;
  }
  struct pm_act *x = &m->act[m->act_n++];
  memset(x, 0, sizeof *x);
  x->a.kind = kind;
  x->a.endpoint = ep;
  x->a.batch = RD2H_INDEX_NONE;
  if (ep != RD2H_INDEX_NONE) {
    x->a.epoch = pm_ep(m, ep)->epoch;
    x->a.ours = pm_ep(m, ep)->ours;
  }
  x->id = id;
  x->ext = ext;
  x->text = text ? act_keep_text(&m->text, text) : SIZE_MAX;
  return &x->a;
}

/* An action that names a request to its reader. */
struct rd2h_pa *pm_emit_link(rd2h_pm *m, enum rd2h_pa_kind kind, uint32_t link, const char *text) {
  const struct pm_link *l = pm_link(m, link);
  const struct pm_req *r = pm_req(m, l->req);
  struct rd2h_pa *a = pm_emit(m, kind, l->ep, r->id ? rd2h_strndup(r->id, r->id_n) : NULL,
                              rd2h_strndup(r->ext, r->ext_n), text);
  a->has_attempt = r->has_attempt;
  memcpy(a->attempt, r->attempt, RD2H_ATTEMPT);
  a->status = l->status;
  return a;
}

bool rd2h_pm_next(rd2h_pm *m, struct rd2h_pa *out) {
  for (int i = 0; i < 2; i++) {
    rd2h_free(m->spent[i]);
    m->spent[i] = NULL;
  }
  if (m->act_head == m->act_n) {
    m->act_head = m->act_n = 0;
    rd2h_buf_reset(&m->text);
    return false;
  }
  const struct pm_act *x = &m->act[m->act_head++];
  *out = x->a;
  m->spent[0] = x->id;
  m->spent[1] = x->ext;
  out->id = x->id ? x->id : "";
  out->ext_id = x->ext ? x->ext : "";
  out->text = x->text == SIZE_MAX ? "" : (const char *)m->text.p + x->text;
  return true;
}

/* ---- timers: at most a few an endpoint; a key whose generation is stale means nothing ---- */
void pm_timer(rd2h_pm *m, uint64_t at, enum pm_timer kind, uint32_t index, uint32_t gen) {
  uint64_t key = (uint64_t)kind << 56 | (uint64_t)(gen & 0xffffff) << 32 | index;
  if (rd2h_heap_push(&m->timers, at, key) != RD2H_OK) RD2H_ERR("rd2h prefill: out of memory, a deadline is lost");
}

void rd2h_pm_tick(rd2h_pm *m, uint64_t now) {
  uint64_t key;
  while (rd2h_heap_pop(&m->timers, now, &key)) {
    uint32_t i = (uint32_t)key, gen = (uint32_t)(key >> 32) & 0xffffff;
    enum pm_timer kind = (enum pm_timer)(key >> 56);
    if (!rd2h_slab_live(&m->eps, i)) continue;
    if (kind == PM_TIMER_HANDSHAKE) {
      if ((pm_ep(m, i)->epoch & 0xffffff) == gen) pm_handshake_due(m, i, now);
    } else if ((pm_ep(m, i)->gen & 0xffffff) == gen) {
      if (kind == PM_TIMER_DUE) pm_due(m, i, now);
      else pm_idle_due(m, i, now);
    }
  }
}

uint64_t rd2h_pm_next_deadline(const rd2h_pm *m) { return rd2h_heap_next(&m->timers); }

void rd2h_pm_stats(const rd2h_pm *m, struct rd2h_pm_stats *st) {
  *st = m->st;
  st->endpoints = m->eps.live;
  st->requests = m->reqs.live;
}
