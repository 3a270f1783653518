/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers, the event queue, processes, messages, the record of the first broken rule. */
#include "sim.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- random numbers: xoshiro256**, seeded by splitmix64 ---- */
void rng_seed(struct rng *r, uint64_t seed) {
  for (int i = 0; i < 4; i++) {
    uint64_t z = seed += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    r->s[i] = z ^ (z >> 31);
  }
}

static uint64_t rotl(uint64_t x, int k) {
  return x << k | x >> (64 - k);
}

uint64_t rng_next(struct rng *r) {
  uint64_t *s = r->s, result = rotl(s[1] * 5, 7) * 9, t = s[1] << 17;
  s[2] ^= s[0];
  s[3] ^= s[1];
  s[1] ^= s[2];
  s[0] ^= s[3];
  s[2] ^= t;
  s[3] = rotl(s[3], 45);
  return result;
}

uint32_t rng_below(struct rng *r, uint32_t n) {
  return (uint32_t)((rng_next(r) >> 32) * n >> 32);
}

uint64_t rng_between(struct rng *r, uint64_t a, uint64_t b) {
  return a + rng_next(r) % (b - a + 1);
}

bool rng_chance(struct rng *r, uint32_t permille) {
  return rng_below(r, 1000) < permille;
}

/* Every planned thing draws from a stream of its own: leaving one out does not change another. */
void rng_stream(struct world *w, struct rng *r, uint32_t stream, uint32_t index) {
  rng_seed(r, w->seed * UINT64_C(0x9e3779b97f4a7c15) ^ (uint64_t)stream << 32 ^ index);
}

/* ---- events: a heap ordered by time, then by the order of their making ---- */
static bool before(const struct event *a, const struct event *b) {
  return a->at < b->at || (a->at == b->at && a->order < b->order);
}

static void heap_push(struct world *w, struct event *e) {
  if (w->n_heap == w->cap_heap) {
    w->cap_heap = w->cap_heap ? 2 * w->cap_heap : 1024;
    w->heap = realloc(w->heap, w->cap_heap * sizeof *w->heap);
  }
  uint32_t i = w->n_heap++;
  for (; i && before(e, w->heap[(i - 1) / 2]); i = (i - 1) / 2)
    w->heap[i] = w->heap[(i - 1) / 2];
  w->heap[i] = e;
}

static struct event *heap_pop(struct world *w) {
  struct event *top = w->heap[0], *last = w->heap[--w->n_heap];
  uint32_t i = 0;
  for (uint32_t child; (child = 2 * i + 1) < w->n_heap; i = child) {
    if (child + 1 < w->n_heap && before(w->heap[child + 1], w->heap[child]))
      child++;
    if (!before(w->heap[child], last))
      break;
    w->heap[i] = w->heap[child];
  }
  w->heap[i] = last;
  return top;
}

void at(struct world *w, uint64_t when, struct proc *p, event_fn *fn, void *obj, uint64_t a) {
  struct event *e = malloc(sizeof *e);
  *e = (struct event){.at = when < w->now ? w->now : when, .order = w->order++, .fn = fn, .obj = obj, .a = a, .proc = p,
                      .inc = p ? p->inc : 0};
  heap_push(w, e);
}

bool world_step(struct world *w) {
  if (!w->n_heap)
    return false;
  struct event *e = heap_pop(w);
  w->now = e->at;
  struct proc *p = e->proc;
  if (p && p->inc == e->inc && p->alive && p->paused) {
    e->next = NULL;
    *p->deferred_tail = e;
    p->deferred_tail = &e->next;
    return true;
  }
  w->events++;
  if (!p || (p->inc == e->inc && p->alive))
    e->fn(w, e->obj, e->a);
  free(e);
  return true;
}

/* ---- processes ---- */
static void let_go(struct world *w, struct proc *p, bool run) {
  struct event *e = p->deferred, *next;
  p->paused = false;
  p->deferred = NULL;
  p->deferred_tail = &p->deferred;
  for (; e; e = next) {
    next = e->next;
    if (!run) {
      free(e);
      continue;
    }
    e->at = w->now;
    e->order = w->order++;
    heap_push(w, e);
  }
}

static void resume(struct world *w, void *obj, uint64_t inc) {
  struct proc *p = obj;
  if (p->inc == inc && p->alive && p->paused)
    let_go(w, p, true);
}

void proc_pause(struct world *w, struct proc *p, uint64_t ns) {
  if (!p->alive || p->paused)
    return;
  p->paused = true;
  p->paused_ns += ns;
  p->resume_at = w->now + ns;
  p->deferred = NULL;
  p->deferred_tail = &p->deferred;
  in(w, ns, NULL, resume, p, p->inc);
}

void proc_kill(struct world *w, struct proc *p) {
  if (p->paused)
    let_go(w, p, false);
  p->alive = false;
  p->inc++;
}

static void drop_deferred(struct world *w, struct proc *p) {
  if (p->paused)
    let_go(w, p, false);
}

void core_free(struct world *w) {
  for (uint32_t e = 0; e < MAX_ENGINES; e++) {
    for (uint32_t i = 0; i < MAX_RANKS; i++)
      drop_deferred(w, &w->p[e].rank[i].proc);
    for (uint32_t i = 0; i < MAX_TP; i++)
      drop_deferred(w, &w->d[e].rank[i].proc);
  }
  for (uint32_t i = 0; i < w->n_heap; i++)
    free(w->heap[i]);
  free(w->heap);
  while (w->msgs)
    msg_free(w->msgs);
}

/* ---- messages ---- */
struct msg *msg_new(struct world *w, enum rd2h_wire_kind kind) {
  struct msg *m = calloc(1, sizeof *m);
  m->kind = kind;
  m->brec = m->conn = RD2H_INDEX_NONE;
  m->next = w->msgs;
  m->prev = &w->msgs;
  if (m->next)
    m->next->prev = &m->next;
  w->msgs = m;
  return m;
}

void msg_free(struct msg *m) {
  *m->prev = m->next;
  if (m->next)
    m->next->prev = m->prev;
  free(m);
}

/* ---- what a person reads ---- */
void trace(struct world *w, const char *fmt, ...) {
  if (!w->c.verbose)
    return;
  va_list ap;
  va_start(ap, fmt);
  printf("%10.6f  ", (double)w->now / 1e9);
  vprintf(fmt, ap);
  putchar('\n');
  va_end(ap);
}

void tell(struct world *w, const char *fmt, ...) {
  if (!w->c.verbose && !w->c.story)
    return;
  va_list ap;
  va_start(ap, fmt);
  printf(w->c.story ? "#   %9.3f s  " : "%10.6f  ", (double)w->now / 1e9);
  vprintf(fmt, ap);
  putchar('\n');
  va_end(ap);
}

void broken(struct world *w, const char *rule, const char *fmt, ...) {
  if (w->failed)
    return;
  char text[320];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  w->failed = true;
  snprintf(w->failure, sizeof w->failure, "%s at %.6f s: %s", rule, (double)w->now / 1e9, text);
  trace(w, "BROKEN %s", w->failure);
}
