/* SPDX-License-Identifier: Apache-2.0 */
/* What the demonstration says at its end. */
#include "demo.h"
#include "table.h"
#include <stdio.h>

struct figures {
  double seconds, tail_ms, gb_s, share, hidden;
  uint64_t tokens, blocks, cached;
};

static struct figures figures_of(const struct demo *d) {
  struct figures f = {.seconds = (double)(d->time.complete - d->time.begin) / 1e9,
                      .tail_ms = d->time.complete > d->time.last_layer ? (double)(d->time.complete - d->time.last_layer) / 1e6 : 0};
  f.gb_s = f.seconds > 0 ? (double)d->stats.bytes / f.seconds / 1e9 : 0;
  f.share = d->memcpy_bytes_s ? f.gb_s * 1e9 / (double)d->memcpy_bytes_s : 0;
  f.hidden = f.seconds > 0 ? 1 - f.tail_ms / 1e3 / f.seconds : 0;
  for (uint32_t i = 0; i < d->n_requests; i++) {
    f.tokens += d->request[i].tokens;
    f.blocks += d->request[i].blocks;
    f.cached += d->request[i].cached;
  }
  return f;
}

static void parts_table(const struct demo *d) {
  struct table t;
  if (!table_begin(&t, (const char *const[]){"<component", "a block", "blocks", "bytes", "share", NULL}))
    return;
  for (uint32_t p = 0; p < DEMO_PARTS; p++) {
    if (!d->part_bytes[p])
      continue;
    table_cell(&t, "%s", demo_part_name[p]);
    table_cell(&t, "%.2f KiB", (double)d->part_bytes[p] / 1024);
    table_cell(&t, "%llu", (unsigned long long)(d->oracle[p] / d->part_bytes[p]));
    table_cell(&t, "%.1f MB", (double)d->oracle[p] / 1e6);
    table_cell(&t, "%.1f %%", 100.0 * (double)d->oracle[p] / (double)demo_total(d->oracle));
    table_row_end(&t);
  }
  table_end(&t);
}

void demo_report(const struct demo *d) {
  struct figures f = figures_of(d);
  printf("\n");
  parts_table(d);
  printf("\n"
         "  moved      %.1f MB for %llu tokens in %llu blocks; %llu blocks of prefixes were there already\n"
         "  exactly    %.3f times what had to move\n"
         "  compared   %.1f MB: %llu bytes wrong, %llu foreign blocks disturbed\n",
         (double)d->stats.bytes / 1e6, (unsigned long long)f.tokens, (unsigned long long)f.blocks, (unsigned long long)f.cached,
         (double)d->stats.bytes / (double)demo_total(d->oracle), (double)d->checked / 1e6, (unsigned long long)d->wrong,
         (unsigned long long)d->disturbed);
  printf("  speed      %.2f GB/s from the first chunk to the last byte, computation included; memcpy of one thread does %.2f (%.0f %%)\n"
         "  hidden     %.1f %% of %.0f ms: after the last layer was published %.1f ms were left to wait\n"
         "  messages   %llu layers announced, %llu reads of %llu descriptors\n"
         "  memory     Prefill %llu MB, Decode %llu MB resident, KV cache included\n",
         f.gb_s, (double)d->memcpy_bytes_s / 1e9, 100 * f.share, 100 * f.hidden, 1e3 * f.seconds, f.tail_ms,
         (unsigned long long)d->stats.batches, (unsigned long long)d->stats.reads, (unsigned long long)d->stats.descriptors,
         (unsigned long long)(d->rss_kib[0] / 1000), (unsigned long long)(d->rss_kib[1] / 1000));
}

void demo_report_json(const struct demo *d) {
  struct figures f = figures_of(d);
  const struct demo_result *bad = d->decode.failed ? &d->decode : &d->prefill;
  printf("{\"layers\": %u, \"requests\": %u, \"tokens\": %llu, \"moved_bytes\": %llu, \"oracle_bytes\": %llu, \"checked_bytes\": %llu, "
         "\"wrong_bytes\": %llu, \"disturbed_blocks\": %llu, \"seconds\": %.6f, \"gb_per_s\": %.3f, \"memcpy_gb_per_s\": %.3f, "
         "\"visible_ms\": %.3f, \"compute_seconds\": %.6f, \"reads\": %llu, \"descriptors\": %llu, \"ok\": %s}\n",
         d->layers, d->n_requests, (unsigned long long)f.tokens, (unsigned long long)d->stats.bytes,
         (unsigned long long)demo_total(d->oracle), (unsigned long long)d->checked, (unsigned long long)d->wrong,
         (unsigned long long)d->disturbed, f.seconds, f.gb_s, (double)d->memcpy_bytes_s / 1e9, f.tail_ms, (double)d->time.compute / 1e9,
         (unsigned long long)d->stats.reads, (unsigned long long)d->stats.descriptors, bad->failed ? "false" : "true");
}
