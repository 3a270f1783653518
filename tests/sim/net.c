/* SPDX-License-Identifier: Apache-2.0 */
/* Connections: messages in order within one, any order between them; breaks lose what is on its way. Prefill's transport tells of
 * a break, Decode's only when something is sent. */
#include "sim.h"

static uint64_t delay(struct world *w) {
  return rng_chance(&w->rng, 30) ? rng_between(&w->rng, 5 * RD2H_MS, 80 * RD2H_MS)
                                 : rng_between(&w->rng, RD2H_MS / 20, 2 * RD2H_MS);
}

static void connect_result(struct world *w, void *obj, uint64_t c) {
  struct conn *x = &w->conn[c];
  (void)obj;
  if (x->state != CONN_CONNECTING)
    return;
  if (w->now < w->away_until[x->p][x->d]) { /* tries on */
    at(w, w->away_until[x->p][x->d] + delay(w), proc_of_conn_p(w, (uint32_t)c), connect_result, NULL, c);
    return;
  }
  struct proc *d = proc_of_conn_d(w, (uint32_t)c);
  if (!d->alive) {
    x->state = CONN_DEAD;
    prefill_disconnected(w, (uint32_t)c);
    return;
  }
  x->state = CONN_UP;
  x->d_inc = w->d[x->d].inc;
  prefill_connected(w, (uint32_t)c);
}

uint32_t net_connect(struct world *w, struct prank *pr, uint32_t d, uint32_t drank, uint32_t endpoint, uint32_t epoch) {
  if (w->n_conn == MAX_CONNS) {
    broken(w, "SIM", "Prefill %u.%u opens connections without end", pr->p, pr->rank);
    return 0;
  }
  uint32_t c = w->n_conn++;
  w->conn[c] = (struct conn){.p = pr->p, .rank = pr->rank, .p_inc = w->p[pr->p].inc, .d = d, .drank = drank, .endpoint = endpoint,
                             .epoch = epoch, .d_knows = RD2H_NEVER, .peer = RD2H_INDEX_NONE};
  in(w, delay(w), &pr->proc, connect_result, NULL, c);
  return c;
}

/* What is sent into a partition arrives after it, if the connection still lives. */
static uint64_t arrival(struct world *w, const struct conn *x) {
  uint64_t from = w->away_until[x->p][x->d] > w->now ? w->away_until[x->p][x->d] : w->now;
  return from + delay(w);
}

static void arrive_at_decode(struct world *w, void *obj, uint64_t c) {
  struct conn *x = &w->conn[c];
  if (x->state == CONN_UP || (x->p_closed && x->drains))
    decode_message(w, (uint32_t)c, obj);
}

static void arrive_at_prefill(struct world *w, void *obj, uint64_t c) {
  if (w->conn[c].state == CONN_UP)
    prefill_message(w, (uint32_t)c, obj);
}

void net_to_decode(struct world *w, uint32_t c, struct msg *m) {
  struct conn *x = &w->conn[c];
  m->conn = c;
  if (x->state != CONN_UP)
    return;
  uint64_t when = arrival(w, x);
  x->last_to_d = when > x->last_to_d ? when : x->last_to_d + 1;
  at(w, x->last_to_d, proc_of_conn_d(w, c), arrive_at_decode, m, c);
}

bool net_to_prefill(struct world *w, uint32_t c, struct msg *m) {
  struct conn *x = &w->conn[c];
  if (w->now >= x->d_knows || x->deaf) {
    if (x->deaf && x->state == CONN_UP) /* Prefill hears nothing of it: what it waits for it gives up */
      fault_all(w, "Decode gave up a living connection", 60 * SEC);
    x->deaf = false;
    return false;
  }
  if (x->state != CONN_UP || !m)
    return true;
  m->conn = c;
  uint64_t when = arrival(w, x);
  x->last_to_p = when > x->last_to_p ? when : x->last_to_p + 1;
  at(w, x->last_to_p, proc_of_conn_p(w, c), arrive_at_prefill, m, c);
  return true;
}

static void tell_prefill(struct world *w, void *obj, uint64_t c) {
  (void)obj;
  if (!w->conn[c].p_closed)
    prefill_disconnected(w, (uint32_t)c);
}

static uint64_t notice(struct world *w, bool slow) {
  return slow ? rng_between(&w->rng, SEC, 5 * SEC) : rng_between(&w->rng, 0, 50 * RD2H_MS);
}

/* From now on Decode can find out. */
static void tell_decode(struct world *w, uint32_t c, uint64_t when) {
  struct conn *x = &w->conn[c];
  struct drank *dr = &w->d[x->d].rank[x->drank];
  x->d_knows = when;
  x->d_since = dr->proc.paused && dr->proc.resume_at > when ? dr->proc.resume_at : when;
  x->d_paused = dr->proc.paused_ns;
  if (dr->dm)
    at(w, x->d_since + PROBE_NS + ENGINE_NS + SLACK_NS, &dr->proc, check_lost, dr, c);
}

void net_break(struct world *w, uint32_t c, bool slow) {
  struct conn *x = &w->conn[c];
  if (x->state == CONN_DEAD)
    return;
  tell(w, "connection %u (P%u.%u -> D%u.%u) breaks%s", c, x->p, x->rank, x->d, x->drank, slow ? ", slowly noticed" : "");
  x->state = CONN_DEAD;
  tell_decode(w, c, w->now + notice(w, slow));
  in(w, notice(w, slow), proc_of_conn_p(w, c), tell_prefill, NULL, c);
}

void net_close(struct world *w, uint32_t c) {
  struct conn *x = &w->conn[c];
  x->p_closed = true;
  if (x->state == CONN_UP) {
    x->drains = rng_chance(&w->rng, 500);
    tell_decode(w, c, (x->drains && x->last_to_d > w->now ? x->last_to_d : w->now) + notice(w, false));
  }
  x->state = CONN_DEAD;
}

void net_crash(struct world *w, struct proc *p, bool slow) {
  for (uint32_t c = 0; c < w->n_conn; c++)
    if (w->conn[c].state != CONN_DEAD &&
        (proc_of_conn_p(w, c) == p || (proc_of_conn_d(w, c) == p && w->conn[c].state == CONN_UP)))
      net_break(w, c, slow);
}

static void silence(struct world *w, void *obj, uint64_t c) {
  (void)obj;
  net_break(w, (uint32_t)c, false);
}

void net_partition(struct world *w, uint32_t p, uint32_t d, uint64_t ns) {
  tell(w, "Prefill %u and Decode %u do not reach each other for %.3f s", p, d, (double)ns / 1e9);
  if (w->away_until[p][d] < w->now + ns)
    w->away_until[p][d] = w->now + ns;
  for (uint32_t c = 0; ns > DEAD_NS && c < w->n_conn; c++)
    if (w->conn[c].p == p && w->conn[c].d == d && w->conn[c].state == CONN_UP)
      in(w, DEAD_NS, NULL, silence, NULL, c);
}
