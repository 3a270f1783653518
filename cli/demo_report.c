/* SPDX-License-Identifier: Apache-2.0 */
/* What the demonstration says at its end. */
#include "demo.h"
#include "table.h"
#include <stdio.h>

struct figures {
  double seconds, tail_ms, gb_s, share, hidden, compute, gate_ms;
  uint64_t tokens, blocks, cached, hit, bytes, moved[DEMO_PARTS], checked, wrong, disturbed, reads, descriptors, batches;
  uint64_t rss_mb[2], gates, steps; /* rss: largest Decode rank, largest Prefill rank */
};

static void add_prefill(struct figures *f, const struct demo_rank *r, uint64_t *begin, uint64_t *last) {
  *begin = r->begin < *begin ? r->begin : *begin;
  *last = r->last_layer > *last ? r->last_layer : *last;
  f->compute += (double)r->compute / 1e9;
  f->gate_ms += (double)r->gate_ns / 1e6;
  f->gates += r->gates;
  f->steps += r->steps;
}

static void add_decode(struct figures *f, const struct demo_rank *r, uint64_t *complete) {
  *complete = r->complete > *complete ? r->complete : *complete;
  f->bytes += r->stats.bytes;
  f->reads += r->stats.reads;
  f->descriptors += r->stats.descriptors;
  f->batches += r->stats.batches;
  f->checked += r->checked;
  f->wrong += r->wrong;
  f->disturbed += r->disturbed;
  for (uint32_t p = 0; p < DEMO_PARTS; p++)
    f->moved[p] += r->moved[p];
}

static struct figures figures_of(const struct demo *d) {
  struct figures f = {0};
  uint64_t begin = UINT64_MAX, last = 0, complete = 0;
  for (uint32_t i = 0; i < d->n_ranks; i++) {
    const struct demo_rank *r = &d->rank[i];
    uint64_t mb = r->rss_kib * 1024 / 1000000;
    f.rss_mb[r->prefill] = mb > f.rss_mb[r->prefill] ? mb : f.rss_mb[r->prefill];
    if (r->prefill)
      add_prefill(&f, r, &begin, &last);
    else
      add_decode(&f, r, &complete);
  }
  f.seconds = complete > begin ? (double)(complete - begin) / 1e9 : 0;
  f.tail_ms = complete > last ? (double)(complete - last) / 1e6 : 0;
  f.gb_s = f.seconds > 0 ? (double)f.bytes / f.seconds / 1e9 : 0;
  f.share = d->memcpy_bytes_s ? f.gb_s * 1e9 / (double)d->memcpy_bytes_s : 0;
  f.hidden = f.seconds > 0 ? 1 - f.tail_ms / 1e3 / f.seconds : 0;
  for (uint32_t i = 0; i < d->n_requests; i++) {
    f.tokens += d->request[i].tokens;
    f.blocks += d->request[i].blocks;
    f.cached += d->request[i].cached;
    f.hit += d->request[i].hit;
  }
  return f;
}

static void parts_table(const struct demo *d, const struct figures *f) {
  struct table t;
  if (!table_begin(&t, (const char *const[]){"<component", "a block", "blocks", "moved", "has to", "moved / has to", NULL}))
    return;
  for (uint32_t p = 0; p < DEMO_PARTS; p++) {
    if (!d->part_bytes[p])
      continue;
    table_cell(&t, "%s", demo_part_name[p]);
    table_cell(&t, "%.2f KiB", (double)d->part_bytes[p] / 1024);
    table_cell(&t, "%llu", (unsigned long long)(d->oracle[p] / d->part_bytes[p]));
    table_cell(&t, "%.1f MB", (double)f->moved[p] / 1e6);
    table_cell(&t, "%.1f MB", (double)d->oracle[p] / 1e6);
    table_cell(&t, "%.3f", d->oracle[p] ? (double)f->moved[p] / (double)d->oracle[p] : 1.0);
    table_row_end(&t);
  }
  table_end(&t);
}

void demo_report(const struct demo *d) {
  struct figures f = figures_of(d);
  printf("\n");
  parts_table(d, &f);
  printf("\n"
         "  moved      %.1f MB for %llu tokens in %llu blocks; of prefixes, %llu blocks were on Decode already, %llu on Prefill\n"
         "  exactly    %.3f times what had to move: main KV once a Decode engine, indexers once a Decode rank\n"
         "  compared   %.1f MB: %llu bytes wrong, %llu foreign blocks disturbed\n",
         (double)f.bytes / 1e6, (unsigned long long)f.tokens, (unsigned long long)f.blocks, (unsigned long long)f.cached,
         (unsigned long long)f.hit, (double)f.bytes / (double)(demo_total(d->oracle) ? demo_total(d->oracle) : 1), (double)f.checked / 1e6,
         (unsigned long long)f.wrong, (unsigned long long)f.disturbed);
  printf("  speed      %.2f GB/s from the first chunk to the last byte, computation included; memcpy of one thread does %.2f (%.0f %%)\n"
         "  hidden     %.1f %% of %.0f ms: after the last layer was published %.1f ms were left to wait\n"
         "  messages   %llu layers announced, %llu reads of %llu descriptors\n"
         "  memory     Prefill %llu MB, Decode %llu MB resident in the largest rank, KV cache included\n",
         f.gb_s, (double)d->memcpy_bytes_s / 1e9, 100 * f.share, 100 * f.hidden, 1e3 * f.seconds, f.tail_ms,
         (unsigned long long)f.batches, (unsigned long long)f.reads, (unsigned long long)f.descriptors,
         (unsigned long long)f.rss_mb[1], (unsigned long long)f.rss_mb[0]);
  if (d->reuse)
    printf("  gates      %llu waits for a storage slot, %.1f ms in all; each slot was overwritten the instant it was free\n",
           (unsigned long long)f.gates, f.gate_ms);
  if (d->event)
    printf("  timeline   %s: %u events%s\n", d->trace, d->n_events, d->events_lost ? ", and more that did not fit" : "");
}

static void components_json(const struct demo *d, const struct figures *f) {
  const char *comma = "";
  printf("\"components\": {");
  for (uint32_t p = 0; p < DEMO_PARTS; p++) {
    if (!d->part_bytes[p])
      continue;
    printf("%s\"%s\": {\"moved_bytes\": %llu, \"oracle_bytes\": %llu}", comma, demo_part_name[p], (unsigned long long)f->moved[p],
           (unsigned long long)d->oracle[p]);
    comma = ", ";
  }
  printf("}, ");
}

void demo_report_json(const struct demo *d, bool good) {
  struct figures f = figures_of(d);
  bool exact = f.bytes == demo_total(d->oracle);
  for (uint32_t p = 0; p < DEMO_PARTS; p++)
    exact &= f.moved[p] == d->oracle[p];
  printf("{\"model\": \"%s\", \"prefills\": %u, \"prefill_tp\": %u, \"prefill_pp\": %u, \"decodes\": %u, \"decode_tp\": %u, "
         "\"reuse_buffers\": %u, \"seed\": %llu, \"layers\": %u, \"requests\": %u, \"tokens\": %llu, ",
         d->model->name, d->p_engines, d->p_tp, d->p_pp, d->d_engines, d->d_tp, d->reuse, (unsigned long long)d->seed, d->layers,
         d->n_requests, (unsigned long long)f.tokens);
  components_json(d, &f);
  printf("\"moved_bytes\": %llu, \"oracle_bytes\": %llu, \"checked_bytes\": %llu, \"wrong_bytes\": %llu, \"disturbed_blocks\": %llu, "
         "\"steps\": %llu, \"gates\": %llu, \"gate_ms\": %.3f, ",
         (unsigned long long)f.bytes, (unsigned long long)demo_total(d->oracle), (unsigned long long)f.checked,
         (unsigned long long)f.wrong, (unsigned long long)f.disturbed, (unsigned long long)f.steps, (unsigned long long)f.gates, f.gate_ms);
  printf("\"seconds\": %.6f, \"gb_per_s\": %.3f, \"memcpy_gb_per_s\": %.3f, \"visible_ms\": %.3f, \"compute_seconds\": %.6f, "
         "\"reads\": %llu, \"descriptors\": %llu, \"ok\": %s}\n",
         f.seconds, f.gb_s, (double)d->memcpy_bytes_s / 1e9, f.tail_ms, f.compute, (unsigned long long)f.reads,
         (unsigned long long)f.descriptors, good && exact ? "true" : "false");
}
