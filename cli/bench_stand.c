/* SPDX-License-Identifier: Apache-2.0 */
#include "bench.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define OUTCOMES 64
#define REFUSED_PAUSE_NS 50000000 /* an id that cannot be installed now is not tried again at once */
#define PROBE_MS 3600000 /* drivers take each frame for an answer, empty probes too */
static const char id_form[] = "bench-%u", wire_form[] = "req-%u";

static int install(struct bench_stand *s, uint32_t request, struct rd2h_error *err) {
  char id[32], ext_id[32];
  size_t at = (size_t)request * s->blocks;
  snprintf(id, sizeof id, id_form, request);
  snprintf(ext_id, sizeof ext_id, wire_form, request);
  struct rd2h_grant g = {.id = id, .ext_id = ext_id, .main = s->main + at, .indexer = s->indexer + at, .n_main = s->blocks,
                         .n_indexer = s->blocks, .main_need = s->blocks, .indexer_need = s->blocks};
  return rd2h_decode_install(s->rank, &g, err);
}

static bool make_ids(struct bench_stand *s, const struct bench_pattern *p) {
  size_t n = (size_t)s->requests * s->blocks;
  s->main = malloc(n * sizeof *s->main);
  s->indexer = malloc(n * sizeof *s->indexer);
  return s->main && s->indexer && bench_ids(2, BENCH_BLOCKS, s->requests, s->blocks, p, s->main) &&
         bench_ids(3, BENCH_BLOCKS, s->requests, s->blocks, p, s->indexer);
}

int bench_stand_open(struct bench_stand *s, uint16_t port, uint32_t requests, uint32_t blocks, const struct bench_pattern *p,
                     struct rd2h_error *err) {
  *s = (struct bench_stand){.requests = requests, .blocks = blocks};
  int rc = make_ids(s, p) ? bench_layout(UINT64_C(1) << 44, &s->layout, err) : RD2H_NOMEM;
  struct rd2h_decode_opts o = {.size = sizeof o, .layout = s->layout, .port = port, .tp_size = 1, .main_ranks = 1, .engine = "noop",
                               .probe_ms = PROBE_MS};
  rc = rc ? rc : rd2h_decode_create(&o, &s->rank, err);
  for (uint32_t i = 0; i < requests && !rc; i++)
    rc = install(s, i, err);
  if (rc && !err->text[0])
    snprintf(err->text, sizeof err->text, "%s", rd2h_status_text(rc));
  return rc;
}

void bench_stand_close(struct bench_stand *s) {
  rd2h_decode_destroy(s->rank);
  rd2h_layout_destroy(s->layout);
  free(s->main);
  free(s->indexer);
}

int bench_stand_turn(struct bench_stand *s, struct rd2h_error *err) {
  struct rd2h_outcome o[OUTCOMES];
  uint32_t ended[OUTCOMES], n = rd2h_decode_collect(s->rank, o, OUTCOMES);
  bool refused = false;
  int rc = RD2H_OK;
  for (uint32_t i = 0; i < n && !rc; i++) {
    s->failed += o[i].status != RD2H_OK;
    refused |= o[i].status == RD2H_REFUSED;
    rc = sscanf(o[i].id, id_form, &ended[i]) == 1 ? RD2H_OK : RD2H_INTERNAL;
  }
  if (refused)
    nanosleep(&(struct timespec){.tv_nsec = REFUSED_PAUSE_NS}, NULL);
  for (uint32_t i = 0; i < n && !rc; i++, s->installed_again++)
    rc = install(s, ended[i], err);
  return rc;
}
