/* SPDX-License-Identifier: Apache-2.0 */
/* Which blocks a read has brought, each with the digest that its message carries for it. */
#include "protocol/dm_internal.h"

struct visit {
  rd2h_dm *m;
  struct dm_batch *b;
  const struct rd2h_link *link;
  uint32_t n_main; /* main parts that this contributor is read for */
  uint32_t first;  /* part */
  void (*see)(void *, const struct rd2h_dm_block *);
  void *arg;
};

static struct visit visit_of(rd2h_dm *m, uint32_t batch) {
  struct visit v = {.m = m, .b = dm_batch(m, batch)};
  v.link = &dm_peer(m, v.b->peer)->link[v.b->layer];
  while (v.n_main < v.link->n_parts && v.link->part[v.n_main].component == RD2H_MAIN) v.n_main++;
  v.first = v.b->msg->member ? v.n_main : 0;
  return v;
}

static uint32_t blocks_of(const struct visit *v, uint32_t part, const struct rd2h_wire_req *w) {
  return v->link->part[part].component == RD2H_MAIN ? w->n_main : w->n_indexer;
}

static uint64_t digests_of(const struct visit *v, const struct rd2h_wire_req *w) {
  uint64_t n = 0;
  for (uint32_t p = v->first; p < v->link->n_parts; p++) n += blocks_of(v, p, w);
  return n;
}

static uint32_t digest_at(const struct rd2h_wire_ready *msg, uint64_t i) {
  uint32_t be;
  memcpy(&be, msg->digests.p + 4 * i, sizeof be);
  return __builtin_bswap32(be);
}

static bool wanted(const struct visit *v, const struct rd2h_wire_req *w) {
  return w->status == DM_READING && !dm_req(v->m, w->handle)->ended;
}

/* This rank's share of the part's blocks; `at`: the first digest of the part. What is shown may end the request. */
static void show_part(const struct visit *v, uint32_t part, uint32_t k, uint64_t at) {
  const struct rd2h_wire_ready *msg = v->b->msg;
  const struct rd2h_wire_req *w = &msg->req[k];
  const struct rd2h_link_part *x = &v->link->part[part];
  bool main = x->component == RD2H_MAIN;
  const uint32_t *src = main ? w->main : w->indexer;
  uint32_t start = main ? w->main_start : w->indexer_start, begin, end;
  if (main) rd2h_plan_range(w->n_main, v->m->cfg.main_rank, v->m->cfg.main_ranks, start, &begin, &end);
  else rd2h_plan_range(w->n_indexer, msg->member, msg->ratio, start, &begin, &end);
  for (uint32_t i = begin; i < end && wanted(v, w); i++) {
    const struct dm_req *r = dm_req(v->m, w->handle);
    uint32_t dst = (main ? r->main : r->indexer)[start + i];
    v->see(v->arg, &(struct rd2h_dm_block){.p = (const void *)(uintptr_t)(x->dst_base + dst * x->bytes), .len = x->bytes,
                                           .digest = digest_at(msg, at + i), .req = k, .id = w->id, .part = part, .block = src[i]});
  }
}

bool rd2h_dm_digests(rd2h_dm *m, uint32_t batch, void (*see)(void *, const struct rd2h_dm_block *), void *arg) {
  if (dm_peer(m, dm_batch(m, batch)->peer)->state != DM_PEER_READY) return true; /* nothing of it will count */
  struct visit v = visit_of(m, batch);
  const struct rd2h_wire_ready *msg = v.b->msg;
  uint64_t n = 0, at = 0;
  for (uint32_t k = 0; k < msg->n_reqs; k++) n += digests_of(&v, &msg->req[k]);
  if (msg->digests.n != 4 * n) return false;
  v.see = see;
  v.arg = arg;
  for (uint32_t k = 0; k < msg->n_reqs; k++)
    for (uint32_t p = v.first; p < v.link->n_parts; p++) {
      if (wanted(&v, &msg->req[k])) show_part(&v, p, k, at);
      at += blocks_of(&v, p, &msg->req[k]);
    }
  return true;
}

void rd2h_dm_wrong_digest(rd2h_dm *m, uint32_t batch, const struct rd2h_dm_block *x, const char *text, uint64_t now) {
  struct dm_batch *b = dm_batch(m, batch);
  m->now = now;
  dm_read_over(m, b, &b->msg->req[x->req], RD2H_IO, text, now);
}
