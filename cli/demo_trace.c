/* SPDX-License-Identifier: Apache-2.0 */
/* The timeline: events of all processes in shared memory, written as Chrome trace JSON (opens in Perfetto). */
#include "demo.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

static const struct {
  const char *name;
  bool overlaps; /* with others of its kind on one rank: an asynchronous event */
} kinds[DEMO_KINDS] = {{"compute", false}, {"gate", false}, {"dispatch", false}, {"read", true}, {"answer", true}};

bool demo_trace_open(struct demo *d) {
  if (!d->trace[0])
    return true;
  void *p = mmap(NULL, DEMO_MAX_EVENTS * sizeof *d->event, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p != MAP_FAILED)
    d->event = p;
  return p != MAP_FAILED;
}

void demo_trace_event(struct demo *d, const struct demo_rank *r, enum demo_event_kind kind, uint32_t layer, uint64_t begin,
                      uint64_t end, uint64_t bytes) {
  if (!d->event)
    return;
  uint32_t i = __atomic_fetch_add(&d->n_events, 1, __ATOMIC_RELAXED);
  if (i >= DEMO_MAX_EVENTS) {
    __atomic_fetch_add(&d->events_lost, 1, __ATOMIC_RELAXED);
    return;
  }
  d->event[i] = (struct demo_event){.begin = begin, .end = end, .bytes = bytes, .rank = (uint16_t)(r - d->rank),
                                    .layer = (uint16_t)layer, .kind = (uint8_t)kind};
}

/* ---- what the library reports ---- */
static struct {
  struct demo *d;
  struct demo_rank *r;
  const struct demo_memory *m; /* Decode's */
} at;

static void hear(void *user, const struct rd2h_trace *t) {
  uint32_t layer = 0;
  (void)user;
  sscanf(t->layer, "model.layers.%" SCNu32, &layer);
  demo_trace_event(at.d, at.r, t->kind == RD2H_TRACE_READ ? DEMO_READ : DEMO_ANSWER, layer, t->begin_ns, t->end_ns, t->bytes);
  for (uint32_t i = 0; at.m && t->kind == RD2H_TRACE_READ && !t->status && i < t->n; i++)
    at.r->moved[demo_part_of(at.m, t->local[i])] += t->len[i];
}

void demo_trace_listen(struct demo *d, struct demo_rank *r, const struct demo_memory *m) {
  at.d = d;
  at.r = r;
  at.m = m;
  if (m || d->event)
    rd2h_trace_set(hear, NULL);
}

/* ---- the file ---- */
static void write_names(const struct demo *d, FILE *f) {
  for (uint32_t i = 0; i < d->n_ranks; i++) {
    fprintf(f, "%s{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%u,\"args\":{\"name\":\"%s\"}}", i ? ",\n" : "", i, d->rank[i].name);
    for (uint32_t k = 0; k < DEMO_KINDS; k++)
      if (!kinds[k].overlaps && d->rank[i].prefill)
        fprintf(f, ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%u,\"tid\":%u,\"args\":{\"name\":\"%s\"}}", i, k, kinds[k].name);
  }
}

static void write_event(const struct demo_event *e, uint32_t id, uint64_t zero, FILE *f) {
  double ts = (double)(int64_t)(e->begin - zero) / 1e3, end = (double)(int64_t)(e->end - zero) / 1e3;
  const char *name = kinds[e->kind].name;
  char args[64] = "";
  if (e->bytes)
    snprintf(args, sizeof args, ",\"bytes\":%llu", (unsigned long long)e->bytes);
  if (!kinds[e->kind].overlaps) {
    fprintf(f, "{\"ph\":\"X\",\"name\":\"%s %u\",\"cat\":\"%s\",\"pid\":%u,\"tid\":%u,\"ts\":%.3f,\"dur\":%.3f,\"args\":{\"layer\":%u%s}}",
            name, e->layer, name, e->rank, e->kind, ts, end - ts, e->layer, args);
    return;
  }
  fprintf(f, "{\"ph\":\"b\",\"name\":\"%s\",\"cat\":\"%s\",\"id\":%u,\"pid\":%u,\"tid\":%u,\"ts\":%.3f,\"args\":{\"layer\":%u%s}},\n"
          "{\"ph\":\"e\",\"name\":\"%s\",\"cat\":\"%s\",\"id\":%u,\"pid\":%u,\"tid\":%u,\"ts\":%.3f}",
          name, name, id, e->rank, e->kind, ts, e->layer, args, name, name, id, e->rank, e->kind, end);
}

bool demo_trace_write(const struct demo *d) {
  uint32_t n = d->n_events < DEMO_MAX_EVENTS ? d->n_events : DEMO_MAX_EVENTS;
  uint64_t zero = UINT64_MAX;
  if (!d->event)
    return true;
  FILE *f = fopen(d->trace, "we");
  if (!f)
    goto fail;
  for (uint32_t i = 0; i < n; i++)
    zero = d->event[i].begin < zero ? d->event[i].begin : zero;
  fprintf(f, "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"events_lost\":%u},\"traceEvents\":[\n", d->events_lost);
  write_names(d, f);
  for (uint32_t i = 0; i < n; i++) {
    fputs(",\n", f);
    write_event(&d->event[i], i, zero, f);
  }
  fputs("\n]}\n", f);
  if (!fclose(f))
    return true;
fail:
  fprintf(stderr, "rd2h demo: --trace %s: %s\n", d->trace, strerror(errno));
  return false;
}
