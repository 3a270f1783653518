/* SPDX-License-Identifier: Apache-2.0 */
/* The decode machine's peers: one a connection; the handshake, liveness, the end. */
#include "protocol/dm_internal.h"
#include <stdio.h>

uint32_t rd2h_dm_peer_open(rd2h_dm *m, uint64_t now) {
  (void)now;
  if (!dm_reserve(m)) return RD2H_INDEX_NONE;
  uint32_t i = rd2h_slab_take(&m->peers);
  if (i == RD2H_INDEX_NONE) return i;
  struct dm_peer *p = dm_peer(m, i);
  p->gen = ++m->gen;
  p->head = p->tail = RD2H_INDEX_NONE;
  p->pp_size = 1;
  return i;
}

/* ---- handshake ---- */
static int check_heads(const struct rd2h_layout *ours, const struct rd2h_wire_meta *w, char text[DM_TEXT]) {
  const uint32_t *d = ours->heads, *p = w->ext.heads;
  bool d_sharded = d[2] && d[1] != d[2];
  if (w->ext.present ? d[0] == p[0] && d[1] == p[1] && d[2] == p[2] : !d_sharded) return RD2H_OK;
  if (!w->ext.present)
    snprintf(text, DM_TEXT, "main KV is sharded by heads here ([%u, %u) of %u) and the peer does not say which heads it holds",
             d[0], d[0] + d[1], d[2]);
  else if (!d_sharded && !(p[2] && p[1] != p[2]))
    return RD2H_OK; /* neither side is sharded, whatever the head counts are called */
  else
    snprintf(text, DM_TEXT, "attention heads differ: Prefill holds [%u, %u) of %u, Decode [%u, %u) of %u; use equal TP sizes", p[0],
             p[0] + p[1], p[2], d[0], d[0] + d[1], d[2]);
  return RD2H_LAYOUT;
}

static int check_meta(const rd2h_dm *m, const struct rd2h_wire_meta *w, char text[DM_TEXT]) {
  const struct rd2h_layout *l = m->cfg.layout;
  if (w->fields != 3 && w->version != 1) {
    snprintf(text, DM_TEXT, "protocol version %u is not known here, versions 0 and 1 are", w->version);
    return RD2H_UNSUPPORTED;
  }
  if (w->pp_size == 0 || w->pp_rank >= w->pp_size || w->pp_size > DM_MAX_SLOTS) {
    snprintf(text, DM_TEXT, "pipeline rank %u of %u is not possible", w->pp_rank, w->pp_size);
    return RD2H_INVALID;
  }
  const struct rd2h_str *fp = &w->ext.fingerprint;
  if (w->ext.present && fp->n && l->fingerprint[0] && (strlen(l->fingerprint) != fp->n || memcmp(l->fingerprint, fp->p, fp->n))) {
    snprintf(text, DM_TEXT, "cache layouts differ: Prefill %.*s, Decode %s", (int)(fp->n > 100 ? 100 : fp->n), fp->p, l->fingerprint);
    return RD2H_LAYOUT;
  }
  return check_heads(l, w, text);
}

static struct rd2h_peer_layer peer_layer(const struct rd2h_wire_meta *w, const struct rd2h_wire_layer *x) {
  return (struct rd2h_peer_layer){
      .name = x->name, .n_addrs = x->n_addrs, .n_lens = x->n_lens, .n_scales = x->n_scales,
      .addr = x->addr, .len = x->len, .scale = x->scale, .main_count = x->main_count, .has_indexer = x->has_indexer,
      .main_blocks = w->ext.blocks[0] ? w->ext.blocks[0] : UINT32_MAX,
      .indexer_blocks = w->ext.blocks[1] ? w->ext.blocks[1] : UINT32_MAX};
}

/* The layer's ordinal by its wire name; a name that is only an indexer's does not count. */
static uint32_t find_layer(const struct rd2h_layout *l, struct rd2h_str name) {
  uint32_t i = rd2h_map_get(l->by_name, name.p, name.n);
  if (i == RD2H_INDEX_NONE || strlen(l->layer[i].name) != name.n || memcmp(l->layer[i].name, name.p, name.n)) return RD2H_INDEX_NONE;
  return i;
}

/* A layer that only the peer has, such as a draft model's: it is not pulled, and does not keep the others from being. */
static int leave_out(struct rd2h_map **extra, struct rd2h_str name, char text[DM_TEXT]) {
  if (!*extra) *extra = rd2h_map_create();
  if (*extra && rd2h_map_size(*extra) >= DM_MAX_EXTRA) {
    snprintf(text, DM_TEXT, "Decode lacks more than %u of the layers that are named, such as %.*s: both sides need the same model",
             DM_MAX_EXTRA, (int)(name.n > 200 ? 200 : name.n), name.p);
    return RD2H_LAYOUT;
  }
  if (*extra && rd2h_map_put(*extra, name.p, name.n, 0) == RD2H_OK) return RD2H_OK;
  snprintf(text, DM_TEXT, "out of memory");
  return RD2H_NOMEM;
}

static int build_links(const rd2h_dm *m, const struct rd2h_wire_meta *w, struct rd2h_link *link, struct rd2h_map **extra,
                       char text[DM_TEXT]) {
  const struct rd2h_layout *l = m->cfg.layout;
  struct rd2h_error err;
  uint32_t named = 0;
  for (uint32_t i = 0; i < w->n_layers; i++) {
    struct rd2h_peer_layer pl = peer_layer(w, &w->layer[i]);
    uint32_t at = find_layer(l, pl.name);
    if (at == RD2H_INDEX_NONE) {
      int left = leave_out(extra, pl.name, text);
      if (left != RD2H_OK) return left;
      continue;
    }
    if (link[at].n_parts) {
      snprintf(text, DM_TEXT, "layer %s is named twice", l->layer[at].name);
      return RD2H_INVALID;
    }
    int rc = rd2h_link_build(&pl, l, at, w->ext.region, w->ext.n_regions, &link[at], &err);
    if (rc != RD2H_OK) {
      snprintf(text, DM_TEXT, "%.300s", err.text);
      return rc;
    }
    named++;
  }
  if (!named && *extra) {
    struct rd2h_str first = w->layer[0].name;
    snprintf(text, DM_TEXT, "Decode has none of the %u layers that Prefill names: the first of them is %.*s, Decode's is %.100s",
             w->n_layers, (int)(first.n > 100 ? 100 : first.n), first.p, l->layer[0].name);
    return RD2H_LAYOUT;
  }
  if (named < l->n_layers && (w->fields == 3 || w->pp_size == 1)) {
    snprintf(text, DM_TEXT, "metadata of a single pipeline stage must name all %u layers of Decode, it names %u", l->n_layers, named);
    return RD2H_LAYOUT;
  }
  return named ? RD2H_OK : RD2H_INVALID;
}

static void send_nak(rd2h_dm *m, uint32_t peer) {
  const struct dm_peer *p = dm_peer(m, peer);
  struct rd2h_da *a = dm_emit(m, RD2H_DA_REPLY, peer, NULL, p->why);
  a->reply = RD2H_MSG_META_NAK;
  a->status = p->refusal;
}

static void refuse(rd2h_dm *m, uint32_t peer, const char *text, uint64_t now) {
  struct dm_peer *p = dm_peer(m, peer);
  p->state = DM_PEER_REFUSED;
  p->refusal = RD2H_LAYOUT;
  if (text != p->why) snprintf(p->why, sizeof p->why, "%s", text);
  m->st.refused_meta++;
  send_nak(m, peer);
  dm_peer_arm_probe(m, peer, now); /* it may go without a word */
}

/* A process has one connection a rank: a new one of the same incarnation means that the old is over. */
static void retire_twin(rd2h_dm *m, uint32_t peer, const uint8_t inc[16], uint64_t now) {
  for (uint32_t i = 0; i < m->peers.next; i++) {
    if (i == peer || !rd2h_slab_live(&m->peers, i)) continue;
    const struct dm_peer *q = dm_peer(m, i);
    if (q->ours && q->state != DM_PEER_LOST && !memcmp(q->incarnation, inc, 16))
      rd2h_dm_peer_lost(m, i, "the same Prefill rank opened a new connection", now);
  }
}

void rd2h_dm_meta(rd2h_dm *m, uint32_t peer, const struct rd2h_wire_meta *w, uint64_t now) {
  struct dm_peer *p = dm_peer(m, peer);
  char text[DM_TEXT] = "metadata names no layer";
  if (p->state == DM_PEER_LOST) return;
  m->st.messages++;
  if (p->n_batches) {
    refuse(m, peer, "metadata came again while batches of this connection are open", now);
    return;
  }
  struct rd2h_link *link = rd2h_calloc(m->cfg.layout->n_layers, sizeof *link);
  if (!link) {
    refuse(m, peer, "out of memory", now);
    return;
  }
  struct rd2h_map *extra = NULL;
  int rc = check_meta(m, w, text);
  if (rc == RD2H_OK) rc = build_links(m, w, link, &extra, text);
  if (rc != RD2H_OK) {
    rd2h_map_destroy(extra);
    rd2h_free(link);
    refuse(m, peer, text, now);
    return;
  }
  rd2h_free(p->link);
  p->link = link;
  rd2h_map_destroy(p->extra);
  p->extra = extra;
  p->state = DM_PEER_CONNECTING;
  p->ours = w->ext.present && w->ext.revision >= 1;
  p->caps = p->ours ? w->ext.caps : 0;
  p->three_fields = w->fields == 3;
  p->pp_rank = w->pp_rank;
  p->pp_size = w->pp_size;
  memcpy(p->incarnation, w->ext.incarnation, 16);
  if (p->ours) retire_twin(m, peer, w->ext.incarnation, now);
  dm_emit(m, RD2H_DA_CONNECT, peer, NULL, NULL)->meta = w;
}

void rd2h_dm_connected(rd2h_dm *m, uint32_t peer, int status, const char *text, uint64_t now) {
  struct dm_peer *p = dm_peer(m, peer);
  if (p->state != DM_PEER_CONNECTING) return;
  if (status != RD2H_OK) {
    refuse(m, peer, text && text[0] ? text : rd2h_status_text(status), now);
    return;
  }
  p->state = DM_PEER_READY;
  struct rd2h_da *a = dm_emit(m, RD2H_DA_REPLY, peer, NULL, NULL);
  a->reply = p->three_fields ? RD2H_MSG_ACK : RD2H_MSG_META_ACK;
  a->ours = p->ours;
}

void rd2h_dm_ping(rd2h_dm *m, uint32_t peer, uint64_t value, uint64_t now) {
  (void)now;
  if (dm_peer(m, peer)->state == DM_PEER_READY) dm_emit(m, RD2H_DA_PONG, peer, NULL, NULL)->value = value;
}

/* ---- liveness: the transport tells of a vanished peer only when something is sent to it ---- */
void dm_peer_arm_probe(rd2h_dm *m, uint32_t peer, uint64_t now) {
  struct dm_peer *p = dm_peer(m, peer);
  if (p->probe_armed || (p->state != DM_PEER_READY && p->state != DM_PEER_REFUSED)) return;
  p->probe_armed = true;
  dm_timer(m, now + m->cfg.probe_ns, DM_TIMER_PROBE, peer, p->gen);
}

void dm_peer_probe_due(rd2h_dm *m, uint32_t peer, uint64_t now) {
  struct dm_peer *p = dm_peer(m, peer);
  p->probe_armed = false;
  if (p->state != DM_PEER_REFUSED && (p->state != DM_PEER_READY || !rd2h_dm_peer_busy(m, peer))) return;
  dm_emit(m, RD2H_DA_PROBE, peer, NULL, NULL);
  dm_peer_arm_probe(m, peer, now);
}

/* ---- the end ---- */
void dm_peer_maybe_close(rd2h_dm *m, uint32_t peer) {
  struct dm_peer *p = dm_peer(m, peer);
  if (p->state != DM_PEER_LOST || p->n_batches) return;
  rd2h_free(p->link);
  rd2h_map_destroy(p->extra);
  rd2h_slab_give(&m->peers, peer);
  dm_emit(m, RD2H_DA_CLOSE, peer, NULL, NULL);
}

static void end_requests_of(rd2h_dm *m, uint32_t peer) {
  const struct dm_peer *p = dm_peer(m, peer);
  char text[DM_TEXT];
  snprintf(text, sizeof text, "Prefill was lost before its KV was complete: %.200s", p->why);
  for (uint32_t i = 0; i < m->reqs.next; i++) {
    if (!rd2h_slab_live(&m->reqs, i)) continue;
    const struct dm_req *r = dm_req(m, i);
    for (uint32_t k = 0; k < r->n_slots; k++)
      if (r->slot[k].bound && !r->slot[k].done && r->slot[k].peer == peer && r->slot[k].peer_gen == p->gen) {
        dm_req_end(m, i, RD2H_PEER_LOST, text, peer);
        break;
      }
  }
}

void rd2h_dm_peer_fail(rd2h_dm *m, uint32_t peer, const char *why, uint64_t now) {
  struct dm_peer *p = dm_peer(m, peer);
  m->now = now;
  if (p->state == DM_PEER_LOST || p->state == DM_PEER_REFUSED) return;
  p->state = DM_PEER_REFUSED;
  p->refusal = RD2H_PEER_LOST;
  snprintf(p->why, sizeof p->why, "%s", why);
  for (uint32_t b = p->head, next; b != RD2H_INDEX_NONE; b = next) {
    const struct dm_batch *x = dm_batch(m, b);
    bool first = b == p->head;
    next = x->next;
    if (x->reading) dm_emit(m, RD2H_DA_CANCEL, peer, NULL, NULL)->batch = b;
    if (x->reading || x->complete || x->plan_queued) continue;
    dm_batch_fail(m, b, p->why, now);
    if (first) next = p->head; /* with it may have gone those that waited behind it */
  }
  end_requests_of(m, peer);
  if (p->ours) send_nak(m, peer);
  dm_peer_arm_probe(m, peer, now);
}

bool rd2h_dm_peer_busy(const rd2h_dm *m, uint32_t peer) { return dm_peer(m, peer)->n_batches || dm_peer(m, peer)->n_bound; }

void rd2h_dm_peer_lost(rd2h_dm *m, uint32_t peer, const char *why, uint64_t now) {
  struct dm_peer *p = dm_peer(m, peer);
  m->now = now;
  if (p->state == DM_PEER_LOST) return;
  p->state = DM_PEER_LOST;
  snprintf(p->why, sizeof p->why, "%s", why);
  for (uint32_t b = p->head, next; b != RD2H_INDEX_NONE; b = next) {
    struct dm_batch *x = dm_batch(m, b);
    next = x->next;
    if (x->reading) dm_emit(m, RD2H_DA_CANCEL, peer, NULL, NULL)->batch = b;
    else if (!x->plan_queued) dm_batch_drop(m, b);
  }
  end_requests_of(m, peer);
  dm_peer_maybe_close(m, peer);
}
