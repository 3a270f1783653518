/* SPDX-License-Identifier: Apache-2.0 */
/* The whole path over each pair of engines that the two sides can be given: chunks, storage that is overwritten as soon as its
 * gate is open, and which engine was chosen. */
#include "tests/integration/rig.h"
#include <pthread.h>
#include <setjmp.h>
#include <cmocka.h>

/* Both sides are in this process, and what orders Prefill's last look at a block before the block is written again is bytes through
 * sockets, which ThreadSanitizer does not follow. */
const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void) {
  return "race:send_some\n";
}

#define LAYERS 6u
#define CHUNKS 4u
#define CHUNK 10u

static struct {
  pthread_mutex_t lock;
  uint32_t n;
  char engine[16], line[RD2H_ERROR_TEXT];
} chosen = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void on_line(void *user, int level, const char *line) {
  const char *at = strstr(line, "is connected, engine ");
  (void)user, (void)level;
  pthread_mutex_lock(&chosen.lock);
  if (at) {
    chosen.n++;
    snprintf(chosen.engine, sizeof chosen.engine, "%s", at + strlen("is connected, engine "));
  }
  if (strstr(line, "is refused"))
    snprintf(chosen.line, sizeof chosen.line, "%s", line);
  pthread_mutex_unlock(&chosen.lock);
}

static void open_pair(struct rig_pair *x, const char *prefill, const char *decode) {
  static const struct rig_shape shape = {.layers = LAYERS, .blocks = 128, .slots = 2, .indexer_mask = 0x2b};
  chosen.n = 0;
  chosen.engine[0] = chosen.line[0] = 0;
  rig_pair_open(x, &shape, &(struct rd2h_prefill_opts){.engine = prefill}, &(struct rd2h_decode_opts){.engine = decode});
}

static void move(struct rig_pair *x, struct rig_request *r) {
  struct rd2h_step_send send;
  rig_request(r, "moved", CHUNKS * CHUNK, 0, 0);
  rig_install(x->d, r);
  for (uint32_t c = 0; c < CHUNKS; c++) {
    rig_send(&send, r, rd2h_decode_port(x->d), c * CHUNK, (c + 1) * CHUNK, c == CHUNKS - 1);
    rig_step(x->p, &send, 1, NULL);
    rig_produce(x->p, &x->src, 7);
  }
}

static void over_every_pair(void **state) {
  static const struct {
    const char *prefill, *decode, *engine;
  } pairs[] = {
    {"tcp", "tcp", "tcp"},   {"tcp", "tcp,streams=5", "tcp"}, {"auto", "auto", "local"},           {"auto", "tcp", "tcp"},
    {"tcp", "auto", "tcp"},  {"auto", "local", "local"},      {"local", "auto,streams=3", "local"},
    {"tcp", "fault:tcp,delay_ms=1", "tcp"},                   {"fault:auto", "fault:auto,delay_ms=1", "local"},
  };
  (void)state;
  for (size_t i = 0; i < RD2H_COUNT(pairs); i++) {
    struct rig_pair x;
    struct rig_request r;
    open_pair(&x, pairs[i].prefill, pairs[i].decode);
    move(&x, &r);
    assert_int_equal(rig_outcome(x.d, "moved", NULL), RD2H_OK);
    rig_expect(&x.dst, &r, 7);
    rig_step(x.p, NULL, 0, "moved");
    assert_int_equal(rig_settled(x.p, "moved"), RD2H_OK);
    rig_pair_close(&x);
    assert_string_equal(chosen.engine, pairs[i].engine);
    assert_int_equal(chosen.n, 1); /* told once a peer */
  }
}

static void nothing_in_common(void **state) {
  struct rig_pair x;
  struct rig_request r;
  struct rd2h_step_send send;
  (void)state;
  open_pair(&x, "local", "tcp");
  rig_request(&r, "none", 4, 0, 0);
  rig_install(x.d, &r);
  rig_send(&send, &r, rd2h_decode_port(x.d), 0, 4, true);
  rig_step(x.p, &send, 1, NULL);
  rig_layers(x.p, LAYERS);
  rig_step(x.p, NULL, 0, "none");
  assert_int_not_equal(rig_settled(x.p, "none"), RD2H_OK);
  rig_pair_close(&x);
  assert_non_null(strstr(chosen.line, "offers the engine local"));
  assert_non_null(strstr(chosen.line, "Decode has tcp"));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(over_every_pair), cmocka_unit_test(nothing_in_common)};
  rd2h_log_set(on_line, NULL, RD2H_LOG_INFO);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
