/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/conformance/rig.h"
#include <poll.h>
#include <stdlib.h>
#include <sys/mman.h>

#define LONG_DESCRIPTORS 4096u
#ifdef __SANITIZE_THREAD__
void AnnotateBenignRaceSized(const char *file, int line, const volatile void *p, size_t n, const char *why); /* of libtsan */
#endif

const struct conformance *conf;

uint64_t dice_roll(struct dice *d, uint64_t below) {
  d->state = d->state * 6364136223846793005ull + 1442695040888963407ull;
  return (d->state >> 33) % below;
}

void load_init(struct load *l, uint64_t id, uint32_t cap) {
  *l = (struct load){.b = {.id = id}, .cap = cap};
  l->local = calloc(cap + 1, sizeof *l->local);
  l->remote = calloc(cap + 1, sizeof *l->remote);
  l->len = calloc(cap + 1, sizeof *l->len);
  assert_true(l->local && l->remote && l->len);
  l->b.local = l->local;
  l->b.remote = l->remote;
  l->b.len = l->len;
}

void load_add(struct load *l, void *local, uint64_t remote, uint64_t len) {
  assert_true(l->b.n < l->cap);
  l->local[l->b.n] = local;
  l->remote[l->b.n] = remote;
  l->len[l->b.n++] = len;
  l->b.bytes += len;
}

void load_free(struct load *l) {
  free(l->local);
  free(l->remote);
  free(l->len);
}

/* All of it lands in one place, in any order: it is to be long, and nobody looks at what it leaves. */
void load_long(struct load *l, uint64_t id, void *local, const struct source *s) {
#ifdef __SANITIZE_THREAD__
  AnnotateBenignRaceSized(__FILE__, __LINE__, local, s->bytes, "pieces of a long load, read by several threads");
#endif
  load_init(l, id, LONG_DESCRIPTORS);
  for (uint32_t i = 0; i < LONG_DESCRIPTORS; i++)
    load_add(l, local, s->base, s->bytes);
}

rd2h_eng *engine_open(uint64_t slice_bytes) {
  struct rd2h_engine_opts o = {.size = sizeof o, .host = "127.0.0.1", .slice_bytes = slice_bytes, .options = conf->options};
  struct rd2h_error err = {0};
  rd2h_eng *e = NULL;
  int rc = rd2h_eng_open(conf->engine, &o, &e, &err);
  if (rc)
    print_message("%s\n", err.text);
  assert_int_equal(rc, RD2H_OK);
  return e;
}

uint32_t engine_flags(rd2h_eng *e) {
  return rd2h_eng_caps(e)->flags;
}

rd2h_eng_peer *engine_connect(rd2h_eng *e, const struct source *s, uint64_t cookie) {
  const char *session = "127.0.0.1:1";
  struct rd2h_error err = {0};
  rd2h_eng_peer *p = NULL;
  int rc = rd2h_eng_connect(e, (struct rd2h_blob){(const uint8_t *)session, (uint32_t)strlen(session)},
                            (struct rd2h_blob){s->conn, s->conn_len}, cookie, &p, &err);
  if (rc)
    print_message("%s\n", err.text);
  assert_int_equal(rc, RD2H_OK);
  if (conf->connected)
    conf->connected(p);
  return p;
}

bool fd_ready(rd2h_eng *e, int ms) {
  struct pollfd fd = {.fd = rd2h_eng_fd(e), .events = POLLIN};
  return poll(&fd, 1, ms) == 1;
}

void collect(rd2h_eng *e, struct rd2h_completion *c, int n) {
  uint64_t until = rd2h_now_ns() + WAIT_MS * RD2H_MS;
  struct rd2h_peer_event ev;
  for (int got = 0; got < n;) {
    int more = rd2h_eng_poll(e, c + got, n - got);
    assert_in_range(more, 0, n - got);
    got += more;
    if (!more) {
      rd2h_eng_events(e, &ev, 1);
      assert_true(rd2h_now_ns() < until);
      fd_ready(e, WAIT_MS);
    }
  }
}

void submit_ok(rd2h_eng *e, rd2h_eng_peer *p, const struct load *l) {
  assert_int_equal(rd2h_eng_submit(e, p, &l->b), RD2H_OK);
}

void expect_ok(rd2h_eng *e, const struct load *l) {
  struct rd2h_completion c;
  collect(e, &c, 1);
  if (c.status)
    print_message("%s\n", rd2h_eng_last_error(e, c.id));
  assert_int_equal(c.status, RD2H_OK);
  assert_int_equal(c.id, l->b.id);
  assert_int_equal(c.bytes, l->b.bytes);
  assert_int_equal(c.failed_at, UINT32_MAX);
}

void expect_silence(rd2h_eng *e) {
  struct rd2h_completion c;
  assert_false(fd_ready(e, SILENCE_MS));
  assert_int_equal(rd2h_eng_poll(e, &c, 1), 0);
}

void let_begin(rd2h_eng *e) {
  struct rd2h_completion c;
  for (int i = 0; i < 2; i++) {
    fd_ready(e, BEGIN_MS);
    assert_int_equal(rd2h_eng_poll(e, &c, 1), 0);
  }
}

void expect_event_down(rd2h_eng *e, uint64_t cookie) {
  struct rd2h_peer_event ev = {0};
  int n = 0;
  for (int tries = 0; !n && tries < 100; tries++) {
    assert_true(fd_ready(e, WAIT_MS));
    n = rd2h_eng_events(e, &ev, 1);
  }
  assert_int_equal(n, 1);
  assert_false(ev.up);
  assert_int_equal(ev.cookie, cookie);
  assert_int_equal(ev.status, RD2H_PEER_LOST);
}

void assert_pattern(const void *p, const struct source *s, uint64_t offset, uint64_t n) {
  const uint8_t *got = p;
  uint8_t want[4096];
  uint64_t same = 0;
  for (uint64_t len; same < n; same += len) {
    len = n - same < sizeof want ? n - same : sizeof want;
    pattern_fill(want, s->seed, offset + same, len);
    if (memcmp(got + same, want, len))
      break;
  }
  for (uint64_t i = same; i < n; i++)
    if (got[i] != pattern_byte(s->seed, offset + i))
      fail_msg("byte %llu of %llu is 0x%02x, the source's at offset %llu is 0x%02x", (unsigned long long)i, (unsigned long long)n,
               got[i], (unsigned long long)(offset + i), pattern_byte(s->seed, offset + i));
}

void assert_filled(const void *p, uint8_t byte, uint64_t n) {
  const uint8_t *got = p;
  if (!n || (got[0] == byte && !memcmp(got, got + 1, n - 1)))
    return;
  for (uint64_t i = 0; i < n; i++)
    if (got[i] != byte)
      fail_msg("byte %llu of %llu is 0x%02x, written outside the batch; expected 0x%02x", (unsigned long long)i,
               (unsigned long long)n, got[i], byte);
}

void link_open(struct link *l, uint64_t bytes) {
  source_start(&l->source, bytes, 7);
  l->eng = engine_open(SLICE);
  l->peer = engine_connect(l->eng, &l->source, COOKIE);
  l->dst = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_ptr_not_equal(l->dst, MAP_FAILED);
}

void link_close(struct link *l) {
  rd2h_eng_disconnect(l->eng, l->peer);
  rd2h_eng_close(l->eng);
  munmap(l->dst, l->source.bytes);
  source_end(&l->source);
}
