/* SPDX-License-Identifier: Apache-2.0 */
#include "bench.h"
#include "cli.h"
#include "table.h"
#include <rd2h/rd2h.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BLOCKS_MAX (1u << 22) /* requests x blocks: 470 MB of descriptors */
#define BUDGET_NS 3e6         /* what one run may take, about */

struct bench {
  bool json;
  uint64_t requests, blocks, runs; /* 0: the default sizes */
  const struct bench_pattern *pattern; /* NULL: scattered and contiguous */
};

/* One message: ids of all requests, room for its descriptors. */
struct message {
  uint32_t requests, blocks, runs; /* runs: of one request, of each part */
  uint32_t *src, *dst;
  struct rd2h_link link;
  struct rd2h_descs descs;
};

struct result {
  uint32_t requests, blocks;
  const char *pattern;
  uint64_t descriptors;
  double ns, bare_ns, ratio; /* of the whole message; ratio: median of the runs' own */
};

/* CPU time of this thread: what else runs on the machine is not counted. */
static uint64_t cpu_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void message_free(struct message *m) {
  free(m->src);
  free(m->dst);
  free(m->descs.local);
  free(m->descs.remote);
  free(m->descs.len);
  free(m->descs.region);
}

/* Runs are laid out by two odd multipliers modulo a power of two: every block once, and no two runs continue each other. */
static void message_ids(struct message *m, uint32_t run, uint32_t places) {
  for (uint32_t r = 0; r < m->requests; r++)
    for (uint32_t i = 0; i < m->blocks; i++) {
      uint32_t nth = r * m->runs + i / run, at = r * m->blocks + i;
      m->src[at] = (nth * 0x9e3779b1u & (places - 1)) * run + i % run;
      m->dst[at] = (nth * 0x85ebca6bu & (places - 1)) * run + i % run;
    }
}

static bool message_make(struct message *m, uint32_t requests, uint32_t blocks, const struct bench_pattern *p) {
  uint32_t run = p->run && p->run < blocks ? p->run : blocks, places = 64;
  *m = (struct message){.requests = requests, .blocks = blocks, .runs = (blocks + run - 1) / run};
  while (places < requests * m->runs)
    places *= 2;
  size_t ids = (size_t)requests * blocks, n = (size_t)requests * m->runs * BENCH_PARTS;
  m->src = malloc(ids * sizeof *m->src);
  m->dst = malloc(ids * sizeof *m->dst);
  m->descs = (struct rd2h_descs){.local = malloc(n * sizeof(void *)), .remote = malloc(n * sizeof(uint64_t)),
                                 .len = malloc(n * sizeof(uint64_t)), .region = malloc(n * sizeof(uint32_t)), .cap = (uint32_t)n};
  if (!m->src || !m->dst || !m->descs.local || !m->descs.remote || !m->descs.len || !m->descs.region)
    return false;
  message_ids(m, run, places);
  m->link.n_parts = BENCH_PARTS;
  for (uint32_t i = 0; i < BENCH_PARTS; i++)
    m->link.part[i] = (struct rd2h_link_part){(uint64_t)(i + 1) << 40, (uint64_t)(i + 9) << 40, bench_part_bytes[i], places * run,
                                              places * run, i, i < 2 ? RD2H_MAIN : RD2H_INDEXER};
  return true;
}

static __attribute__((noinline)) int plan_message(struct message *m) {
  static const struct rd2h_share whole = {0, 1, 0, 1};
  m->descs.n = 0;
  m->descs.bytes = 0;
  for (uint32_t r = 0; r < m->requests; r++) {
    const uint32_t *src = m->src + (size_t)r * m->blocks, *dst = m->dst + (size_t)r * m->blocks;
    struct rd2h_plan_request req = {.src_main = src, .src_indexer = src, .n_src_main = m->blocks, .n_src_indexer = m->blocks,
                                    .dst_main = dst, .dst_indexer = dst, .n_dst_main = m->blocks, .n_dst_indexer = m->blocks};
    int rc = rd2h_plan_build(&m->link, &whole, &req, &m->descs, NULL);
    if (rc != RD2H_OK)
      return rc;
  }
  return RD2H_OK;
}

/* As fast as ids can be read. Returns what it read, so that it has to read. */
static uint64_t bare_read(const uint32_t *id, size_t n) {
  typedef uint64_t words __attribute__((vector_size(16)));
  words even = {0}, odd = {0}, a, b;
  for (; n >= 8; n -= 8, id += 8) {
    memcpy(&a, id, sizeof a);
    memcpy(&b, id + 4, sizeof b);
    even ^= a;
    odd ^= b;
  }
  even ^= odd;
  for (; n; n--)
    even[0] ^= *id++;
  return even[0] ^ even[1];
}

static void bare_part(const uint32_t *restrict src, const uint32_t *restrict dst, size_t n, const struct rd2h_link_part *part,
                      const struct rd2h_descs *d, size_t at) {
  void **restrict local = d->local + at;
  uint64_t *restrict remote = d->remote + at, *restrict len = d->len + at;
  uint32_t *restrict region = d->region + at;
  uint64_t src_base = part->src_base, dst_base = part->dst_base, bytes = part->bytes;
  uint32_t src_region = part->src_region;
  for (size_t i = 0; i < n; i++) {
    local[i] = (void *)(uintptr_t)(dst_base + dst[i] * bytes);
    remote[i] = src_base + src[i] * bytes;
    len[i] = bytes;
    region[i] = src_region;
  }
}

/* The same number of descriptors with no checks and no look at neighbours; where there are fewer than blocks, ids are read once a
 * list all the same, since no planner could leave that out. */
static __attribute__((noinline)) uint64_t bare_message(const struct message *m) {
  uint64_t sum = 0;
  size_t at = 0;
  for (uint32_t r = 0; r < m->requests; r++) {
    const uint32_t *src = m->src + (size_t)r * m->blocks, *dst = m->dst + (size_t)r * m->blocks;
    for (int list = 0; list < 2 && m->runs < m->blocks; list++)
      sum += bare_read(src, m->blocks) + bare_read(dst, m->blocks);
    for (uint32_t p = 0; p < BENCH_PARTS; p++, at += m->runs)
      bare_part(src, dst, m->runs, &m->link.part[p], &m->descs, at);
  }
  return sum;
}

/* Plan and bare loop in turn, so that both see the same moments of the machine. */
static void measure(struct message *m, uint64_t runs, struct result *out) {
  static double plan[BENCH_RUNS_MAX], bare[BENCH_RUNS_MAX], ratio[BENCH_RUNS_MAX];
  static volatile uint64_t sink;
  uint64_t from = cpu_ns();
  plan_message(m); /* also touches every page */
  uint64_t repeat = (uint64_t)(BUDGET_NS / (double)(cpu_ns() - from + 1)) + 1;
  for (uint64_t i = 0; i < runs; i++) {
    from = cpu_ns();
    for (uint64_t k = 0; k < repeat; k++)
      plan_message(m);
    uint64_t middle = cpu_ns();
    for (uint64_t k = 0; k < repeat; k++)
      sink += bare_message(m);
    uint64_t end = cpu_ns();
    plan[i] = (double)(middle - from) / (double)repeat;
    bare[i] = (double)(end - middle) / (double)repeat;
    ratio[i] = plan[i] / bare[i];
  }
  out->ns = bench_median(plan, runs);
  out->bare_ns = bench_median(bare, runs);
  out->ratio = bench_median(ratio, runs);
}

static int bench_one(const struct bench *b, uint32_t requests, uint32_t blocks, const struct bench_pattern *p, struct result *out) {
  struct message m;
  int rc = EXIT_FAILED;
  if (!message_make(&m, requests, blocks, p)) {
    fprintf(stderr, "rd2h bench plan: no memory for %u x %u blocks\n", requests, blocks);
    goto done;
  }
  int status = plan_message(&m);
  if (status != RD2H_OK || m.descs.n != m.descs.cap) {
    fprintf(stderr, "rd2h bench plan: %u x %u blocks gave %u descriptors of %u: %s\n", requests, blocks, m.descs.n, m.descs.cap,
            rd2h_status_text(status));
    goto done;
  }
  *out = (struct result){.requests = requests, .blocks = blocks, .pattern = p->name, .descriptors = m.descs.n};
  measure(&m, b->runs, out);
  rc = EXIT_OK;
done:
  message_free(&m);
  return rc;
}

static double ns_per_block(const struct result *r) {
  return r->ns / ((double)r->requests * r->blocks);
}

static void print_table(const struct result *r, int n, uint64_t runs) {
  static const char *const headers[] = {"requests", "blocks", "<ids", "descriptors", "us/message", "ns/descriptor", "ns/block",
                                        "bare ns/descriptor", "times bare", NULL};
  struct table t;
  if (!table_begin(&t, headers))
    return;
  printf("Planning one layer message; a block is K 131072 B, V 16384 B, indexer 16384 B, scale 256 B. Medians of %llu runs.\n\n",
         (unsigned long long)runs);
  for (int i = 0; i < n; i++) {
    table_cell(&t, "%u", r[i].requests);
    table_cell(&t, "%u", r[i].blocks);
    table_cell(&t, "%s", r[i].pattern);
    table_cell(&t, "%llu", (unsigned long long)r[i].descriptors);
    table_cell(&t, "%.1f", r[i].ns / 1e3);
    table_cell(&t, "%.2f", r[i].ns / (double)r[i].descriptors);
    table_cell(&t, "%.2f", ns_per_block(&r[i]));
    table_cell(&t, "%.2f", r[i].bare_ns / (double)r[i].descriptors);
    table_cell(&t, "%.2f", r[i].ratio);
    table_row_end(&t);
  }
  table_end(&t);
  printf("\n%sbare: a loop that reads the ids and writes as many descriptors, without checks or merging.%s\n", color_dim(),
         color_off());
}

/* Time a block at 256 x 1024 against that at 64 x 256, once as planned and once in the bare loop: what is beyond the bare loop's
 * own growth (caches) is ours. */
static bool linearity(const struct result *r, int n, const char *pattern, double *ours, double *bare) {
  const struct result *small = NULL, *large = NULL;
  for (int i = 0; i < n; i++) {
    if (strcmp(r[i].pattern, pattern))
      continue;
    small = r[i].requests == 64 && r[i].blocks == 256 ? &r[i] : small;
    large = r[i].requests == 256 && r[i].blocks == 1024 ? &r[i] : large;
  }
  if (!small || !large)
    return false;
  *ours = ns_per_block(large) / ns_per_block(small);
  *bare = large->bare_ns / small->bare_ns / 16;
  return true;
}

static void print_linearity(const struct result *r, int n) {
  double ours, bare;
  for (int p = 0; p < BENCH_PATTERNS; p++)
    if (linearity(r, n, bench_patterns[p].name, &ours, &bare))
      printf("%s: 16 times the blocks (64 x 256 to 256 x 1024) take 16 x %.2f the time; the bare loop takes 16 x %.2f\n",
             bench_patterns[p].name, ours, bare);
}

static void print_json(const struct result *r, int n, uint64_t runs) {
  double ours, bare;
  const char *comma = "";
  printf("{\"bench\":\"plan\",\"version\":\"%s\",\"part_bytes\":[%llu,%llu,%llu,%llu],\"runs\":%llu,\"rows\":[", rd2h_version(),
         (unsigned long long)bench_part_bytes[0], (unsigned long long)bench_part_bytes[1], (unsigned long long)bench_part_bytes[2],
         (unsigned long long)bench_part_bytes[3], (unsigned long long)runs);
  for (int i = 0; i < n; i++, comma = ",")
    printf("%s\n{\"requests\":%u,\"blocks\":%u,\"pattern\":\"%s\",\"descriptors\":%llu,\"ns\":%.1f,\"ns_per_descriptor\":%.4f,"
           "\"ns_per_block\":%.4f,\"bare_ns_per_descriptor\":%.4f,\"times_bare\":%.4f}", comma, r[i].requests, r[i].blocks,
           r[i].pattern, (unsigned long long)r[i].descriptors, r[i].ns, r[i].ns / (double)r[i].descriptors, ns_per_block(&r[i]),
           r[i].bare_ns / (double)r[i].descriptors, r[i].ratio);
  printf("],\n\"linearity\":{");
  comma = "";
  for (int p = 0; p < BENCH_PATTERNS; p++)
    if (linearity(r, n, bench_patterns[p].name, &ours, &bare)) {
      printf("%s\"%s\":{\"planned\":%.4f,\"bare\":%.4f}", comma, bench_patterns[p].name, ours, bare);
      comma = ",";
    }
  printf("}}\n");
}

static void usage(void) {
  puts("usage: rd2h bench plan [OPTION...]\n"
       "\n"
       "How long it takes to turn the block ids of one layer message into read descriptors: every id is checked, neighbours are\n"
       "merged, K, V, indexer and scale are planned for each block. Without --requests and --blocks a table of sizes is measured.\n"
       "\n"
       "  --requests N   requests of the message (1 when only --blocks is given)\n"
       "  --blocks N     blocks of a request (256 when only --requests is given)\n"
       "  --pattern P    ids: scatter (no two neighbours continue), runs8 (runs of eight), contig (one run a request);\n"
       "                 default: scatter and contig\n"
       "  --runs N       measure N times and take medians (15)\n"
       "  --json         one JSON object; linearity: time a block at 256 x 1024 over that at 64 x 256\n"
       "\n"
       "example: rd2h bench plan --requests 64 --blocks 256 --pattern runs8");
}

/* EXIT_OK to go on, EXIT_USAGE, or -1 when help was printed. */
static int parse(int argc, char **argv, struct bench *b) {
  static const struct option options[] = {{"requests", required_argument, NULL, 'r'}, {"blocks", required_argument, NULL, 'b'},
                                          {"pattern", required_argument, NULL, 'p'},  {"runs", required_argument, NULL, 'n'},
                                          {"json", no_argument, NULL, 'j'},           {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
  *b = (struct bench){.runs = 15};
  bool fine = true;
  opterr = 0;
  for (int c; fine && (c = getopt_long(argc, argv, ":h", options, NULL)) != -1;) {
    switch (c) {
    case 'r': fine = parse_number("--requests", optarg, 1, 65536, &b->requests); break;
    case 'b': fine = parse_number("--blocks", optarg, 1, 1u << 20, &b->blocks); break;
    case 'p': fine = (b->pattern = bench_pattern("--pattern", optarg)) != NULL; break;
    case 'n': fine = parse_number("--runs", optarg, 1, BENCH_RUNS_MAX, &b->runs); break;
    case 'j': b->json = true; break;
    case 'h': usage(); return -1;
    default: fine = option_refused("rd2h bench plan", c, argv[optind - 1]);
    }
  }
  if (fine && optind < argc)
    fine = option_refused("rd2h bench plan", '?', argv[optind]);
  if (b->requests || b->blocks) { /* one of them is enough */
    b->requests = b->requests ? b->requests : 1;
    b->blocks = b->blocks ? b->blocks : 256;
  }
  if (fine && b->requests * b->blocks > BLOCKS_MAX) {
    fprintf(stderr, "rd2h bench plan: --requests %llu x --blocks %llu is more than %u\n", (unsigned long long)b->requests,
            (unsigned long long)b->blocks, BLOCKS_MAX);
    fine = false;
  }
  return fine ? EXIT_OK : EXIT_USAGE;
}

int bench_plan(int argc, char **argv) {
  static const uint32_t sizes[][2] = {{1, 32}, {1, 1024}, {16, 256}, {64, 256}, {256, 1024}};
  struct bench b;
  struct result r[2 * sizeof sizes / sizeof sizes[0]];
  int n = 0, rc = parse(argc, argv, &b);
  if (rc != EXIT_OK)
    return rc < 0 ? EXIT_OK : rc;
  for (int p = 0; p < BENCH_PATTERNS; p++) {
    if (b.pattern ? b.pattern != &bench_patterns[p] : bench_patterns[p].run > 1)
      continue;
    for (size_t s = 0; s < (b.requests ? 1 : sizeof sizes / sizeof sizes[0]); s++) {
      uint32_t requests = b.requests ? (uint32_t)b.requests : sizes[s][0];
      uint32_t blocks = b.requests ? (uint32_t)b.blocks : sizes[s][1];
      rc = bench_one(&b, requests, blocks, &bench_patterns[p], &r[n++]);
      if (rc != EXIT_OK)
        return rc;
    }
  }
  if (b.json) {
    print_json(r, n, b.runs);
  } else {
    print_table(r, n, b.runs);
    print_linearity(r, n);
  }
  return EXIT_OK;
}
