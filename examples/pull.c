/* SPDX-License-Identifier: Apache-2.0 */
/* A Prefill and a Decode engine in one file: the child computes the KV cache of one prompt, the parent pulls it.
 *
 *   cc pull.c $(pkg-config --cflags --libs rd2h) -o pull && ./pull
 *
 * What the two halves of a real system exchange by HTTP (the rendezvous) goes through a pipe here: Decode's port. */
#include <poll.h>
#include <rd2h/rd2h.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LAYERS = 2, BLOCKS = 16, BLOCK_TOKENS = 16, PROMPT_TOKENS = 70, PROMPT_BLOCKS = 5, WAIT_MS = 10000 };
enum { MAIN_BYTES = 16 * 1152, INDEXER_BYTES = 16 * 132 }; /* of a block: MLA in one tensor, indexer keys with their scale */
#define REQUEST "cmpl-example-0-0123abcd" /* the engine's id */
#define EXTERNAL "cmpl-example-0"         /* the one both engines know: without the random end */
#define ATTEMPT "000102030405060708090a0b0c0d0e0f"

struct cache { /* [layer][block][byte] */
  unsigned char main[LAYERS][BLOCKS][MAIN_BYTES], indexer[LAYERS][BLOCKS][INDEXER_BYTES];
};
static struct cache kv; /* after the fork each process has its own */
static const uint32_t source[PROMPT_BLOCKS] = {3, 4, 5, 12, 1}, destination[PROMPT_BLOCKS] = {9, 2, 3, 4, 15};

static void check(int status, const struct rd2h_error *err, const char *what) {
  if (status >= 0)
    return;
  fprintf(stderr, "pull: %s: %s\n", what, err ? err->text : rd2h_status_text(status));
  exit(1);
}

static rd2h_layout *describe(void) {
  struct rd2h_kv_tensor t[2 * LAYERS];
  char name[2 * LAYERS][64];
  struct rd2h_layout_opts o = {.size = sizeof o, .num_blocks = BLOCKS, .main_group = 0, .indexer_group = 1};
  struct rd2h_error err;
  rd2h_layout *layout;
  for (int l = 0; l < LAYERS; l++) {
    snprintf(name[2 * l], sizeof name[0], "model.layers.%d.self_attn.attn", l);
    snprintf(name[2 * l + 1], sizeof name[0], "model.layers.%d.self_attn.indexer.k_cache", l);
    t[2 * l] = (struct rd2h_kv_tensor){name[2 * l], 0, (uintptr_t)kv.main[l], MAIN_BYTES, BLOCKS};
    t[2 * l + 1] = (struct rd2h_kv_tensor){name[2 * l + 1], 1, (uintptr_t)kv.indexer[l], INDEXER_BYTES, BLOCKS};
  }
  check(rd2h_layout_create(t, 2 * LAYERS, &o, &layout, &err), &err, "layout");
  return layout;
}

/* What "the model" writes into a block: a byte that tells layer and place in the prompt. */
static int content(int layer, int place) { return 1 + layer * PROMPT_BLOCKS + place; }

/* ---- Prefill ---- */
static void track(rd2h_prefill_scheduler *half, unsigned port) {
  char params[512];
  struct rd2h_block_table blocks = {.n_groups = 2, .ids = {source, source}, .count = {PROMPT_BLOCKS, PROMPT_BLOCKS}};
  struct rd2h_error err;
  snprintf(params, sizeof params, "{\"do_remote_decode\": true, \"remote_engine_id\": \"example\", \"remote_host\": \"127.0.0.1\", "
           "\"remote_port\": %u, \"remote_tp_size\": 1, \"remote_cached_tokens\": 0, "
           "\"rd2h\": {\"v\": 1, \"attempt\": \"" ATTEMPT "\", \"inc\": \"" ATTEMPT "\"}}", port);
  check(rd2h_prefill_scheduler_alloc(half, REQUEST, params, PROMPT_TOKENS, &blocks, &err), &err, "request on Prefill");
}

static void end_step(rd2h_prefill_scheduler *half, rd2h_prefill *rank) {
  struct rd2h_bytes step;
  struct rd2h_error err;
  check(rd2h_prefill_scheduler_step_end(half, &step, &err), &err, "step on Prefill");
  check(rd2h_prefill_step(rank, step.p, step.len, &err), &err, "step on Prefill");
}

static int prefill(unsigned port) {
  rd2h_layout *layout = describe();
  struct rd2h_memory memory = {(uintptr_t)&kv, sizeof kv};
  struct rd2h_prefill_opts o = {.size = sizeof o, .layout = layout, .memory = &memory, .n_memory = 1, .tp_size = 1, .pp_size = 1,
                                .engine = "auto"};
  struct rd2h_prefill_scheduler_opts so = {.size = sizeof so, .n_groups = 2, .block_size = {BLOCK_TOKENS, BLOCK_TOKENS},
                                           .main_group = 0, .indexer_group = 1};
  struct rd2h_error err;
  rd2h_prefill *rank;
  rd2h_prefill_scheduler *half;
  check(rd2h_prefill_create(&o, &rank, &err), &err, "Prefill");
  check(rd2h_prefill_scheduler_create(&so, &half, &err), &err, "Prefill's scheduler half");

  track(half, port);
  rd2h_prefill_scheduler_step_begin(half);
  check(rd2h_prefill_scheduler_step_add(half, REQUEST, 0, PROMPT_TOKENS, 0, NULL, false, &err), &err, "step on Prefill");
  end_step(half, rank);
  for (int l = 0; l < LAYERS; l++) {
    for (int i = 0; i < PROMPT_BLOCKS; i++) {
      memset(kv.main[l][source[i]], content(l, i), MAIN_BYTES);
      memset(kv.indexer[l][source[i]], content(l, i), INDEXER_BYTES);
    }
    check(rd2h_prefill_layer(rank, l, &err), &err, "layer"); /* Decode reads it while the next one is computed */
  }

  /* The blocks stay until every reader has answered. */
  struct rd2h_settled settled = {.status = RD2H_OK};
  struct pollfd fd = {.fd = rd2h_prefill_fd(rank), .events = POLLIN};
  bool held = rd2h_prefill_scheduler_finish(half, REQUEST, false) == 1;
  rd2h_prefill_scheduler_step_begin(half);
  end_step(half, rank);
  while (held && !rd2h_prefill_collect(rank, &settled, 1))
    if (poll(&fd, 1, WAIT_MS) <= 0)
      check(RD2H_TIMEOUT, NULL, "Decode's answers");
  check(settled.status, NULL, "request on Prefill");
  rd2h_prefill_destroy(rank);
  rd2h_prefill_scheduler_destroy(half);
  rd2h_layout_destroy(layout);
  return 0;
}

/* ---- Decode ---- */
static int differing(void) {
  int bad = 0;
  for (int l = 0; l < LAYERS; l++)
    for (int i = 0; i < PROMPT_BLOCKS; i++) {
      unsigned char want[MAIN_BYTES];
      memset(want, content(l, i), sizeof want);
      bad += memcmp(kv.main[l][destination[i]], want, MAIN_BYTES) != 0;
      bad += memcmp(kv.indexer[l][destination[i]], want, INDEXER_BYTES) != 0;
    }
  return bad;
}

static int decode(int to_prefill, pid_t prefill_process) {
  rd2h_layout *layout = describe();
  struct rd2h_memory memory = {(uintptr_t)&kv, sizeof kv};
  struct rd2h_decode_opts o = {.size = sizeof o, .layout = layout, .memory = &memory, .n_memory = 1, .tp_size = 1, .main_ranks = 1,
                               .engine = "auto"};
  struct rd2h_grant grant = {.id = REQUEST, .ext_id = EXTERNAL, .main = destination, .indexer = destination,
                             .n_main = PROMPT_BLOCKS, .n_indexer = PROMPT_BLOCKS, .main_need = PROMPT_BLOCKS,
                             .indexer_need = PROMPT_BLOCKS};
  struct rd2h_error err;
  rd2h_decode *rank;
  for (int i = 0; i < RD2H_ATTEMPT_BYTES; i++)
    grant.attempt[i] = (uint8_t)i;
  check(rd2h_decode_create(&o, &rank, &err), &err, "Decode");
  check(rd2h_decode_install(rank, &grant, &err), &err, "destinations");
  dprintf(to_prefill, "%u\n", rd2h_decode_port(rank));

  struct rd2h_outcome outcome;
  struct pollfd fd = {.fd = rd2h_decode_fd(rank), .events = POLLIN};
  while (!rd2h_decode_collect(rank, &outcome, 1))
    if (poll(&fd, 1, WAIT_MS) <= 0)
      check(RD2H_TIMEOUT, NULL, "the KV cache");
  printf("%s: %s\n", outcome.id, rd2h_status_text(outcome.status));

  struct rd2h_decode_stats stats;
  rd2h_decode_stats(rank, &stats);
  int bad = differing();
  printf("%d layers, %llu reads, %llu bytes, %d of %d blocks differ\n", LAYERS, (unsigned long long)stats.reads,
         (unsigned long long)stats.bytes, bad, 2 * LAYERS * PROMPT_BLOCKS);

  int status; /* Decode stays until Prefill has its last answer */
  waitpid(prefill_process, &status, 0);
  if (status == 0)
    puts("Prefill: every reader has answered, its blocks are free");
  rd2h_decode_destroy(rank);
  rd2h_layout_destroy(layout);
  return outcome.status || bad || status;
}

int main(void) {
  int rendezvous[2];
  if (pipe(rendezvous))
    return perror("pull: pipe"), 1;
  pid_t child = fork(); /* before any object of the library exists */
  if (child < 0)
    return perror("pull: fork"), 1;
  if (!child) {
    char port[16] = "";
    close(rendezvous[1]);
    return read(rendezvous[0], port, sizeof port - 1) > 0 ? prefill((unsigned)atoi(port)) : 1;
  }
  close(rendezvous[0]);
  return decode(rendezvous[1], child) != 0;
}
