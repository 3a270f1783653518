/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/conformance/cases.h"
#include <stdlib.h>

#define CANARY 0xC3
#define SCATTERED 4000u
#define SCATTERED_MAX 600u
#define PEERS 8u

void one_descriptor(void **state) {
  struct link l;
  struct load b;
  (void)state;
  link_open(&l, MIB);
  memset(l.dst, CANARY, MIB);
  load_init(&b, 1, 1);
  load_add(&b, l.dst + 100, l.source.base + 4097, 5000);
  submit_ok(l.eng, l.peer, &b);
  expect_ok(l.eng, &b);
  if (conf->moves_data) {
    assert_pattern(l.dst + 100, &l.source, 4097, 5000);
    assert_filled(l.dst, CANARY, 100);
    assert_filled(l.dst + 5100, CANARY, MIB - 5100);
  }
  load_free(&b);
  link_close(&l);
}

void empty_batch(void **state) {
  struct link l;
  struct load b;
  (void)state;
  link_open(&l, 4 * KIB);
  load_init(&b, 2, 0);
  submit_ok(l.eng, l.peer, &b);
  expect_ok(l.eng, &b);
  load_free(&b);
  link_close(&l);
}

void empty_descriptors(void **state) {
  struct link l;
  struct load b;
  (void)state;
  link_open(&l, MIB);
  memset(l.dst, CANARY, MIB);
  load_init(&b, 3, 5);
  load_add(&b, NULL, 0, 0);
  load_add(&b, l.dst, l.source.base, 100);
  load_add(&b, l.dst + 50, l.source.base + 500, 0);
  load_add(&b, l.dst + 200, l.source.base + 200, 100);
  load_add(&b, NULL, 0, 0);
  submit_ok(l.eng, l.peer, &b);
  expect_ok(l.eng, &b);
  if (conf->moves_data) {
    assert_pattern(l.dst, &l.source, 0, 100);
    assert_filled(l.dst + 100, CANARY, 100);
    assert_pattern(l.dst + 200, &l.source, 200, 100);
  }
  load_free(&b);
  link_close(&l);
}

/* Every destination stands in a slot of its own with canaries after it; sources overlap and come in no order. */
void small_scattered(void **state) {
  struct link l;
  struct load b;
  struct dice d = {1};
  const uint64_t slot = SCATTERED_MAX + 8, bytes = 4 * MIB;
  (void)state;
  link_open(&l, bytes);
  memset(l.dst, CANARY, bytes);
  load_init(&b, 4, SCATTERED);
  for (uint64_t i = 0; i < SCATTERED; i++) {
    uint64_t len = 1 + dice_roll(&d, SCATTERED_MAX);
    load_add(&b, l.dst + (i * 1237 % SCATTERED) * slot, l.source.base + dice_roll(&d, bytes - len), len);
  }
  submit_ok(l.eng, l.peer, &b);
  expect_ok(l.eng, &b);
  for (uint32_t i = 0; conf->moves_data && i < SCATTERED; i++) {
    assert_pattern(b.local[i], &l.source, b.remote[i] - l.source.base, b.len[i]);
    assert_filled((uint8_t *)b.local[i] + b.len[i], CANARY, slot - b.len[i]);
  }
  assert_filled(l.dst + SCATTERED * slot, CANARY, bytes - SCATTERED * slot);
  load_free(&b);
  link_close(&l);
}

/* n descriptors of up to three slices, neighbours in the destination, so that one byte too many or too few shows. */
static void read_n(struct link *l, uint32_t n, uint64_t max, uint64_t id) {
  struct load b;
  struct dice d = {n};
  uint64_t at = 0;
  load_init(&b, id, n);
  memset(l->dst, CANARY, l->source.bytes);
  for (uint32_t i = 0; i < n; i++) {
    uint64_t len = 1 + dice_roll(&d, max);
    load_add(&b, l->dst + at, l->source.base + dice_roll(&d, l->source.bytes - len), len);
    at += len;
  }
  assert_true(at < l->source.bytes);
  submit_ok(l->eng, l->peer, &b);
  expect_ok(l->eng, &b);
  for (uint32_t i = 0; conf->moves_data && i < n; i++)
    assert_pattern(b.local[i], &l->source, b.remote[i] - l->source.base, b.len[i]);
  assert_filled(l->dst + at, CANARY, l->source.bytes - at);
  load_free(&b);
}

void iovec_boundaries(void **state) {
  static const uint32_t counts[] = {1022, 1023, 1024, 1025, 2047, 2048, 2049};
  struct link l;
  (void)state;
  link_open(&l, 8 * MIB);
  for (uint32_t i = 0; i < RD2H_COUNT(counts); i++)
    read_n(&l, counts[i], 40, 100 + i);
  read_n(&l, 1024, SLICE / 1024 * 2, 200);
  read_n(&l, 60, 3 * SLICE / 2, 201);
  link_close(&l);
}

void one_large_descriptor(void **state) {
  struct link l;
  struct load b;
  const uint64_t bytes = 5 * MIB;
  (void)state;
  link_open(&l, bytes);
  memset(l.dst, CANARY, bytes);
  load_init(&b, 5, 1);
  load_add(&b, l.dst + 3, l.source.base + 1, bytes - 10);
  submit_ok(l.eng, l.peer, &b);
  expect_ok(l.eng, &b);
  if (conf->moves_data)
    assert_pattern(l.dst + 3, &l.source, 1, bytes - 10);
  assert_filled(l.dst + bytes - 7, CANARY, 7);
  load_free(&b);
  link_close(&l);
}

void many_peers(void **state) {
  struct source s[PEERS];
  rd2h_eng_peer *p[PEERS];
  struct load b[PEERS];
  struct rd2h_completion c[PEERS];
  const uint64_t bytes = 512 * KIB;
  uint8_t *dst = calloc(PEERS, bytes);
  rd2h_eng *e = engine_open(SLICE);
  (void)state;
  for (uint32_t i = 0; i < PEERS; i++) {
    source_start(&s[i], bytes, 10 + i);
    p[i] = engine_connect(e, &s[i], i);
    load_init(&b[i], i, 1);
    load_add(&b[i], dst + i * bytes, s[i].base, bytes);
  }
  for (uint32_t i = 0; i < PEERS; i++)
    submit_ok(e, p[i], &b[i]);
  collect(e, c, PEERS);
  for (uint32_t i = 0; i < PEERS; i++) {
    assert_int_equal(c[i].status, RD2H_OK);
    if (conf->moves_data)
      assert_pattern(dst + i * bytes, &s[i], 0, bytes);
  }
  for (uint32_t i = 0; i < PEERS; i++) {
    rd2h_eng_disconnect(e, p[i]);
    load_free(&b[i]);
    source_end(&s[i]);
  }
  rd2h_eng_close(e);
  free(dst);
}
