/* SPDX-License-Identifier: Apache-2.0 */
/* Reads in flight: posted as gets within what may be under way, ended once. */
#include "engines/ucx/ucx.h"
#include <stdio.h>

#define SILENCE_NS (2000 * RD2H_MS) /* a peer that has answered nothing for so long holds up no read that is to end */

void rd2h_ucx_signal(rd2h_engine *e) {
  rd2h_ready_set(&e->ready, e->done.head || e->down.head);
}

/* ---- gets ---- */
bool rd2h_ucx_peer_is_gone(ucx_status st) {
  return st == UCX_CANCELED || st == UCX_UNREACHABLE || st == UCX_NOT_CONNECTED || st == UCX_CONNECTION_RESET ||
         (st <= UCX_FIRST_LINK_FAILURE && st >= UCX_LAST_LINK_FAILURE) ||
         (st <= UCX_FIRST_ENDPOINT_FAILURE && st >= UCX_LAST_ENDPOINT_FAILURE);
}

static void get_failed(rd2h_engine *e, struct ucx_slot *s, uint32_t i, ucx_status st) {
  rd2h_peer *p = s->peer;
  if (rd2h_ucx_peer_is_gone(st) && !p->lost)
    p->failure = p->failure ? p->failure : st;
  if (s->status || p->lost || p->failure)
    return; /* has its cause, or gets that of the peer */
  if (rd2h_ucx_peer_died(p)) {
    p->failure = UCX_CONNECTION_RESET;
    return;
  }
  s->failed_at = i;
  s->status = rd2h_fail(s->err, RD2H_IO, "engine ucx: reading %llu bytes at 0x%llx of %s failed, descriptor %u: %s%s",
                        (unsigned long long)s->b->len[i], (unsigned long long)s->b->remote[i], p->name, i,
                        e->ucx->status_text(st),
                        rd2h_ucx_said());
}

static void ended(rd2h_engine *e, struct ucx_get *g, ucx_status st) {
  struct ucx_slot *s = g->slot;
  rd2h_peer *p = s->peer;
  s->open--;
  p->open--;
  p->open_bytes -= g->len;
  if (st == UCX_OK) {
    s->bytes += g->len;
    p->landed_ns = e->now;
  } else {
    get_failed(e, s, g->i, st);
  }
  g->next = e->free_gets;
  e->free_gets = g;
  e->n_free++;
}

static void on_get(void *request, ucx_status st, void *user) {
  struct ucx_get *g = user;
  rd2h_engine *e = g->slot->peer->e;
  ended(e, g, st);
  e->ucx->request_free(request);
}

static bool inside(uint64_t base, uint64_t size, uint64_t at, uint64_t len) {
  return at >= base && len <= size && at - base <= size - len;
}

/* The peer's region that holds the descriptor, or UINT32_MAX. */
static uint32_t remote_region(rd2h_peer *p, const struct rd2h_batch *b, uint32_t i) {
  if (b->remote_region) {
    uint32_t r = b->remote_region[i];
    return r < p->n && inside(p->key[r].base, p->key[r].len, b->remote[i], b->len[i]) ? r : UINT32_MAX;
  }
  for (uint32_t k = 0; k < p->n; k++) {
    uint32_t r = (p->hint + k) % p->n;
    if (inside(p->key[r].base, p->key[r].len, b->remote[i], b->len[i]))
      return p->hint = r;
  }
  return UINT32_MAX;
}

static void *local_memh(rd2h_engine *e, uint64_t at, uint64_t len) {
  for (uint32_t k = 0; k < e->n_regions; k++) {
    uint32_t r = (e->hint + k) % e->n_regions;
    if (inside(e->region[r].base, e->region[r].len, at, len)) {
      e->hint = r;
      return e->region[r].memh;
    }
  }
  return NULL;
}

static bool all_posted(const struct ucx_slot *s) {
  return s->i == s->b->n;
}

static void post_one(rd2h_engine *e, struct ucx_slot *s) {
  rd2h_peer *p = s->peer;
  const struct rd2h_batch *b = s->b;
  uint32_t r = remote_region(p, b, s->i);
  if (r == UINT32_MAX) {
    s->failed_at = s->i;
    s->status = rd2h_fail(s->err, RD2H_RANGE, "engine ucx: descriptor %u, %llu bytes at 0x%llx, lies in no region that %s has "
                          "published",
                          s->i, (unsigned long long)b->len[s->i], (unsigned long long)b->remote[s->i], p->name);
    return;
  }
  uint64_t left = b->len[s->i] - s->off, len = left < UCX_PIECE ? left : UCX_PIECE;
  uint8_t *to = (uint8_t *)b->local[s->i] + s->off;
  struct ucx_get *g = e->free_gets;
  struct ucx_request_param param = {.mask = UCX_OP_CALLBACK | UCX_OP_USER_DATA, .cb = on_get, .user = g,
                                    .memh = local_memh(e, (uintptr_t)to, len)};
  param.mask |= param.memh ? UCX_OP_MEMH : 0;
  e->free_gets = g->next;
  e->n_free--;
  *g = (struct ucx_get){.slot = s, .i = s->i, .len = len};
  p->landed_ns = p->open ? p->landed_ns : e->now;
  s->open++;
  p->open++;
  p->open_bytes += len;
  void *request = e->ucx->get_nbx(p->ep, to, len, b->remote[s->i] + s->off, p->rkey[r], &param);
  if (!request || UCX_FAILED(request))
    ended(e, g, UCX_STATUS(request));
  s->off += len;
  if (s->off == b->len[s->i]) {
    s->i++;
    s->off = 0;
  }
}

static bool to_end(const struct ucx_slot *s) {
  return s->status || s->peer->lost || s->peer->failure || atomic_load_explicit(&s->cancel, memory_order_relaxed);
}

static void post(rd2h_engine *e, rd2h_peer *p) {
  for (struct ucx_slot *s = p->trial.on ? NULL : p->queue.head; s; s = s->next)
    while (!all_posted(s) && !to_end(s)) {
      if (!s->b->len[s->i]) {
        s->i++;
        continue;
      }
      if (!e->free_gets || p->open > e->n_free || p->open >= UCX_GETS_PEER || (p->open && p->open_bytes >= UCX_BYTES_PEER))
        return;
      post_one(e, s);
    }
}

/* ---- the life of a read ---- */
void rd2h_ucx_busy(rd2h_engine *e, rd2h_peer *p) {
  if (p->busy)
    return;
  p->busy = true;
  p->next_busy = e->busy;
  e->busy = p;
}

void rd2h_ucx_begin(rd2h_engine *e, struct ucx_slot *s) {
  ucx_list_push(&s->peer->queue, s);
  rd2h_ucx_busy(e, s->peer);
}

static void complete(rd2h_engine *e, struct ucx_slot *s) {
  pthread_mutex_lock(&e->lock);
  s->live = false;
  e->stats.reads++;
  e->stats.bytes += s->bytes;
  e->stats.descriptors += s->b->n;
  e->stats.canceled += s->status == RD2H_CANCELED;
  e->stats.failures += s->status && s->status != RD2H_CANCELED;
  ucx_list_push(&e->done, s);
  rd2h_ucx_signal(e);
  pthread_mutex_unlock(&e->lock);
}

static bool ready(const struct ucx_slot *s) {
  return !s->open && (all_posted(s) || to_end(s));
}

/* Why it ends, once nothing of it is under way. */
static void conclude(struct ucx_slot *s) {
  const rd2h_peer *p = s->peer;
  bool whole = all_posted(s) && s->bytes == s->b->bytes;
  if (s->status)
    return;
  if (!whole && atomic_load(&s->cancel))
    s->status = rd2h_fail(s->err, RD2H_CANCELED, "engine ucx: the read of %s was canceled after %llu of %llu bytes", p->name,
                          (unsigned long long)s->bytes, (unsigned long long)s->b->bytes);
  else if (p->lost) /* before it was submitted */
    s->status = rd2h_fail(s->err, RD2H_PEER_LOST, "engine ucx: the connection to %s is lost; Prefill must connect again",
                          p->name);
}

static void check_time(rd2h_engine *e, struct ucx_slot *s) {
  rd2h_peer *p = s->peer;
  const uint64_t now = e->now;
  if (!s->status && now > s->submitted && now - s->submitted > e->timeout)
    s->status = rd2h_fail(s->err, RD2H_TIMEOUT, "engine ucx: the read of %s did not end within %llu ms; %llu of %llu bytes came",
                          p->name, (unsigned long long)(e->timeout / RD2H_MS), (unsigned long long)s->bytes,
                          (unsigned long long)s->b->bytes);
  if (to_end(s) && s->open && !p->lost && now > p->landed_ns && now - p->landed_ns > SILENCE_NS)
    rd2h_ucx_peer_lose(e, p, "it has not answered for two seconds, while a read was to be ended");
}

/* Whatever landed came from the process that published it, if that is still there now. */
static void check(rd2h_engine *e, rd2h_peer *p) {
  bool some = false;
  for (struct ucx_slot *s = p->queue.head; s; s = s->next) {
    some |= ready(s) && !s->status;
    check_time(e, s);
  }
  if (some && !p->lost && rd2h_ucx_peer_died(p))
    rd2h_ucx_peer_lose(e, p, "its process has ended");
}

static void sweep(rd2h_engine *e, rd2h_peer *p) {
  struct ucx_list all = ucx_list_take(&p->queue);
  for (struct ucx_slot *s; (s = ucx_list_pop(&all));) {
    if (!ready(s)) {
      ucx_list_push(&p->queue, s);
      continue;
    }
    conclude(s);
    complete(e, s);
  }
}

bool rd2h_ucx_advance(rd2h_engine *e, rd2h_peer *p) {
  if (p->leaving)
    return rd2h_ucx_peer_ending(e, p);
  rd2h_ucx_trial_check(e, p);
  post(e, p);
  if (p->failure && !p->lost)
    rd2h_ucx_peer_lose(e, p, e->ucx->status_text((ucx_status)p->failure));
  check(e, p);
  sweep(e, p);
  return rd2h_ucx_peer_ending(e, p) || p->queue.head || (p->trial.on && !p->lost);
}
