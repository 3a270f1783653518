/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's own parts, and what a library does that the real one cannot be made to do: $STANDIN is the folder of libraries in its
 * place, lib<name>.so for versions 13, 12, 10, 20 and none. */
#include "engine/engine.h"
#include "engines/memfabric/memfabric.h"
#include "standin.h"
#include <dlfcn.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#define WAIT_MS 10000
#define BYTES (64u << 10)
#define SET(field, value) __atomic_store_n(&(field), value, __ATOMIC_RELAXED)
#define GET(field) __atomic_load_n(&(field), __ATOMIC_RELAXED)

/* ---- pure parts ---- */
static void ranges_that_touch_become_one(void **state) {
  struct mf_range r[8];
  uint32_t n = 0;
  (void)state;
  n = rd2h_mf_add(r, n, (struct mf_range){100, 10});
  n = rd2h_mf_add(r, n, (struct mf_range){300, 10});
  n = rd2h_mf_add(r, n, (struct mf_range){50, 10});
  assert_int_equal(n, 3);
  assert_int_equal(r[0].base, 50);
  n = rd2h_mf_add(r, n, (struct mf_range){60, 40}); /* touches both neighbours */
  assert_int_equal(n, 2);
  assert_int_equal(r[0].base, 50);
  assert_int_equal(r[0].len, 60);
  n = rd2h_mf_add(r, n, (struct mf_range){70, 5}); /* inside */
  assert_int_equal(n, 2);
  n = rd2h_mf_add(r, n, (struct mf_range){0, 1000}); /* around all */
  assert_int_equal(n, 1);
  assert_int_equal(r[0].len, 1000);
}

static void registrations_never_share_a_page(void **state) {
  const struct mf_range r[] = {{10 * (uint64_t)MF_PAGE, 100}, {10 * (uint64_t)MF_PAGE + 50000, 100}, {11 * (uint64_t)MF_PAGE, 100},
                               {20 * (uint64_t)MF_PAGE - 8192, 8192}, {20 * (uint64_t)MF_PAGE + 4096, 10}, {30 * (uint64_t)MF_PAGE, 10}};
  struct mf_range out[6];
  (void)state;
  assert_int_equal(rd2h_mf_merge(r, 6, out), 4);
  assert_int_equal(out[0].len, 50100);             /* one page */
  assert_int_equal(out[1].base, 11 * (uint64_t)MF_PAGE); /* the next */
  assert_int_equal(out[2].len, 8192 + 4096 + 10);  /* the gap is no more than 4 KiB */
  assert_int_equal(out[3].len, 10);
}

static void descriptors_lie_inside(void **state) {
  const struct mf_range r[] = {{1000, 100}, {2000, 100}, {5000, 1}};
  uint64_t at[] = {1000, 2000, 2099, 0, 5000}, len[] = {100, 100, 1, 0, 1};
  struct rd2h_batch b = {.n = 5, .remote = at, .len = len};
  (void)state;
  assert_int_equal(rd2h_mf_outside(r, 3, &b), UINT32_MAX);
  len[2] = 2;
  assert_int_equal(rd2h_mf_outside(r, 3, &b), 2);
  len[2] = UINT64_MAX;
  assert_int_equal(rd2h_mf_outside(r, 3, &b), 2);
  at[0] = 999;
  assert_int_equal(rd2h_mf_outside(r, 3, &b), 0);
  assert_int_equal(rd2h_mf_outside(r, 0, &b), 0);
}

static void sessions(void **state) {
  static const char *const good[] = {"127.0.0.1:1", "10.0.0.1:65535", "[::1]:80", "[fe80::1]:1234"};
  static const char *const bad[] = {"", ":", "1", "127.0.0.1", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:080",
                                    "127.0.0.1:+8", "host:80", "::1:80", "[::1:80", "[::1]80", "[127.0.0.1]:8", "127.0.0.1:99999999999",
                                    "127.0.0.1:80 ", "1:2:3:4:5:6:7:8:9:1", "[]:1", "[:1"};
  (void)state;
  for (size_t i = 0; i < RD2H_COUNT(good); i++)
    if (!rd2h_mf_session_ok(good[i], strlen(good[i])))
      fail_msg("\"%s\" is refused", good[i]);
  for (size_t i = 0; i < RD2H_COUNT(bad); i++)
    if (rd2h_mf_session_ok(bad[i], strlen(bad[i])))
      fail_msg("\"%s\" is taken", bad[i]);
  assert_false(rd2h_mf_session_ok("127.0.0.1\0:1", 12));
}

static void options_are_checked(void **state) {
  static const struct {
    const char *option, *complaint;
  } bad[] = {{"protocol=rdma", "host_tcp"}, {"protocol=sdma", "device=N"}, {"device=x", "0 to 65535"}, {"port=0", "1 to 65535"},
             {"objects=0", "1 to 512"}, {"init_s=-1", "1 to 600"}, {"nic=eth0", "numeric"}, {"lib=", "unknown option"},
             {"nic_port=40000", "32767"}, {"what=1", "unknown option"}};
  struct mf_options o;
  struct rd2h_error err;
  (void)state;
  for (size_t i = 0; i < RD2H_COUNT(bad); i++) {
    const char *list[] = {bad[i].option, NULL};
    assert_int_equal(rd2h_mf_options(list, "127.0.0.1", &o, &err), RD2H_INVALID);
    if (!strstr(err.text, bad[i].complaint))
      fail_msg("%s: %s", bad[i].option, err.text);
  }
  assert_int_equal(rd2h_mf_options(NULL, "prefill-0.cluster", &o, &err), RD2H_INVALID);
  const char *list[] = {"device=3", "objects=5", "nic_port=20000", NULL};
  assert_int_equal(rd2h_mf_options(list, "10.0.0.1", &o, &err), RD2H_OK);
  assert_string_equal(o.protocol->name, "sdma");
  assert_string_equal(o.nic, "10.0.0.1");
  assert_int_equal(o.device * 100000 + o.objects * 10000 + o.nic_port, 370000);
}

static void every_code_has_its_name(void **state) {
  (void)state;
  assert_string_equal(rd2h_mf_code(-2014), "NOT_CONNECTED (-2014)");
  assert_string_equal(rd2h_mf_code(-7), "of the memory layer (-7)");
  assert_string_equal(rd2h_mf_code(-100), "UNSUPPORTED (-100)");
  assert_string_equal(rd2h_mf_code(12345), "unknown (12345)");
}

/* ---- libraries ---- */
static const char *library(const char *name) {
  static char path[2][512];
  static int turn;
  char *p = path[turn++ % 2];
  snprintf(p, sizeof path[0], "lib=%s/lib%s.so", getenv("STANDIN"), name);
  return p;
}

static int open_with(const char *lib, const char *more, bool prefill, rd2h_eng **e, struct rd2h_error *err) {
  const char *const list[] = {lib, "protocol=host_tcp", more ? more : "init_s=2", NULL};
  struct rd2h_engine_opts o = {.size = sizeof o, .prefill = prefill, .options = list, .slice_bytes = 4096};
  return rd2h_eng_open("memfabric", &o, e, err);
}

static void library_missing(void **state) {
  struct rd2h_error err;
  rd2h_eng *e;
  (void)state;
  assert_int_equal(open_with("lib=/nowhere/libmf_smem.so", NULL, false, &e, &err), RD2H_NOT_FOUND);
  assert_non_null(strstr(err.text, "/nowhere/libmf_smem.so"));
  assert_non_null(strstr(err.text, "lib="));
}

static void library_of_another_abi(void **state) {
  struct rd2h_error err;
  rd2h_eng *e;
  (void)state;
  assert_int_equal(open_with(library("20"), NULL, false, &e, &err), RD2H_UNSUPPORTED);
  assert_non_null(strstr(err.text, "ABI 2.0"));
  assert_int_equal(open_with(library("none"), NULL, false, &e, &err), RD2H_UNSUPPORTED);
  assert_non_null(strstr(err.text, "smem_trans_batch_read"));
}

/* ---- reads through the stand-in: this process is the peer, too ---- */
struct peer {
  int store;
  char session[MF_ID_MAX];
  rd2h_eng_peer *peer;
};
struct bench {
  rd2h_eng *e;
  struct standin *lib;
  struct peer p[3];
  uint8_t *src, *dst;
};

static void peer_open(struct bench *b, uint32_t i) {
  struct rd2h_error err = {0};
  uint16_t port;
  struct peer *p = &b->p[i];
  p->store = rd2h_mf_hold_port("127.0.0.1", &port);
  assert_int_equal(listen(p->store, 1024), 0);
  rd2h_mf_id("127.0.0.1", port, p->session);
  struct rd2h_blob at = {(const uint8_t *)p->session, (uint32_t)strlen(p->session)};
  assert_int_equal(rd2h_eng_connect(b->e, at, (struct rd2h_blob){0}, i, &p->peer, &err), RD2H_OK);
}

static struct standin *state_of(const char *name) {
  struct standin *(*get)(void);
  void *so = dlopen(strchr(library(name), '/'), RTLD_NOW | RTLD_NOLOAD);
  assert_non_null(so);
  *(void **)&get = dlsym(so, "standin_state");
  return get();
}

static void bench_open(struct bench *b, const char *name, const char *more) {
  struct rd2h_error err = {0};
  memset(b, 0, sizeof *b);
  if (open_with(library(name), more, false, &b->e, &err))
    fail_msg("%s", err.text);
  b->lib = state_of(name);
  memset(b->lib, 0, sizeof *b->lib);
  b->src = malloc(BYTES);
  b->dst = calloc(1, BYTES);
  for (uint32_t i = 0; i < BYTES; i++)
    b->src[i] = (uint8_t)(i * 7 + 1);
  peer_open(b, 0);
}

static void bench_close(struct bench *b) {
  for (int i = 0; i < 3; i++)
    if (b->p[i].peer) {
      rd2h_eng_disconnect(b->e, b->p[i].peer);
      close(b->p[i].store);
    }
  rd2h_eng_close(b->e);
  assert_int_equal(b->lib->objects, 0);
  free(b->src);
  free(b->dst);
}

/* n descriptors of len bytes each, one after the other. */
struct load {
  struct rd2h_batch b;
  void *local[64];
  uint64_t remote[64], len[64];
};

static void load_set(struct load *l, const struct bench *b, uint64_t id, uint32_t n, uint64_t len) {
  l->b = (struct rd2h_batch){.id = id, .n = n, .bytes = n * len, .local = l->local, .remote = l->remote, .len = l->len};
  for (uint32_t i = 0; i < n; i++) {
    l->local[i] = b->dst + i * len;
    l->remote[i] = (uintptr_t)b->src + i * len;
    l->len[i] = len;
  }
}

static struct rd2h_completion next(rd2h_eng *e, const char **why) {
  struct rd2h_completion c = {0};
  uint64_t until = rd2h_now_ns() + WAIT_MS * RD2H_MS;
  while (!rd2h_eng_poll(e, &c, 1)) {
    assert_true(rd2h_now_ns() < until);
    poll(&(struct pollfd){.fd = rd2h_eng_fd(e), .events = POLLIN}, 1, 100);
  }
  *why = c.status ? rd2h_eng_last_error(e, c.id) : "";
  return c;
}

static struct rd2h_completion read_now(struct bench *b, uint32_t peer, const struct load *l, const char **why) {
  assert_int_equal(rd2h_eng_submit(b->e, b->p[peer].peer, &l->b), RD2H_OK);
  return next(b->e, why);
}

/* The library gets the batch's own arrays, in calls of at most a slice; a descriptor beyond that in pieces, an empty one not at all. */
static void arrays_are_not_copied(void **state) {
  struct bench b;
  struct load l;
  const char *why;
  (void)state;
  bench_open(&b, "13", NULL);
  load_set(&l, &b, 1, 8, 1024); /* slices of 4096: two calls */
  assert_int_equal(read_now(&b, 0, &l, &why).bytes, 8192);
  assert_int_equal(b.lib->reads, 2);
  assert_ptr_equal(b.lib->local, l.local + 4);
  assert_ptr_equal(b.lib->len, l.len + 4);
  assert_memory_equal(b.dst, b.src, 8192);
  load_set(&l, &b, 2, 3, 10000);
  l.len[1] = 0;
  l.b.bytes = 20000;
  assert_int_equal(read_now(&b, 0, &l, &why).bytes, 20000);
  assert_int_equal(b.lib->reads, 2 + 3 + 3);
  assert_memory_equal(b.dst + 20000, b.src + 20000, 10000);
  bench_close(&b);
}

static void configuration(void **state) {
  struct bench b;
  struct load l;
  const char *why;
  (void)state;
  bench_open(&b, "13", "init_s=7");
  load_set(&l, &b, 1, 1, 100);
  assert_int_equal(read_now(&b, 0, &l, &why).status, RD2H_OK);
  assert_int_equal(b.lib->role, MF_RECEIVER);
  assert_int_equal(b.lib->op, 6);
  assert_int_equal(b.lib->init_timeout_s, 7);
  assert_int_equal(b.lib->device, 0);
  assert_memory_equal(b.lib->nic, "tcp://127.0.0.1:", 16);
  assert_memory_equal(b.lib->url, "tcp://", 6);
  assert_string_equal(b.lib->url + 6, b.p[0].session);
  assert_true(rd2h_mf_session_ok(b.lib->id, strlen(b.lib->id)));
  bench_close(&b);
}

static void a_late_link_is_waited_for(void **state) {
  struct bench b;
  struct load l;
  const char *why;
  (void)state;
  bench_open(&b, "13", NULL);
  SET(b.lib->invisible, 3);
  load_set(&l, &b, 1, 1, 100);
  assert_int_equal(read_now(&b, 0, &l, &why).status, RD2H_OK);
  assert_int_equal(b.lib->reads, 4);
  SET(b.lib->invisible, 1); /* later it is a mistake */
  assert_int_equal(read_now(&b, 0, &l, &why).status, RD2H_RANGE);
  bench_close(&b);
}

static void codes_in_errors(void **state) {
  static const int32_t codes[] = {-1, -2001, -2004, -2012, -2014, -9};
  struct bench b;
  struct load l;
  const char *why;
  (void)state;
  bench_open(&b, "13", NULL);
  for (size_t i = 0; i < RD2H_COUNT(codes); i++) {
    char name[64];
    SET(b.lib->read_code, codes[i]);
    load_set(&l, &b, i, 2, 100);
    assert_int_equal(read_now(&b, 0, &l, &why).status, RD2H_IO);
    snprintf(name, sizeof name, "%s", rd2h_mf_code(codes[i]));
    assert_non_null(strstr(why, name));
    assert_non_null(strstr(why, "descriptors 0 to 1, 200 bytes"));
    assert_non_null(strstr(why, "said by the library"));
    assert_null(strchr(why, '\n'));
  }
  SET(b.lib->read_code, 0); /* each got a new object */
  assert_int_equal(read_now(&b, 0, &l, &why).status, RD2H_OK);
  bench_close(&b);
}

static void no_object_can_be_made(void **state) {
  struct bench b;
  struct load l;
  const char *why;
  (void)state;
  bench_open(&b, "13", NULL);
  b.lib->create_code = -1;
  load_set(&l, &b, 1, 1, 100);
  assert_int_equal(read_now(&b, 0, &l, &why).status, RD2H_IO);
  assert_non_null(strstr(why, "no transfer object"));
  assert_non_null(strstr(why, "said by the library"));
  b.lib->create_code = 0;
  assert_int_equal(read_now(&b, 0, &l, &why).status, RD2H_OK);
  bench_close(&b);
}

/* One more session than there may be objects: the one unused for longest gives its own back, and gets another when it is read. */
static void objects_are_bounded(void **state) {
  struct bench b;
  struct load l;
  const char *why;
  (void)state;
  bench_open(&b, "13", "objects=2");
  peer_open(&b, 1);
  peer_open(&b, 2);
  load_set(&l, &b, 1, 1, 100);
  for (uint32_t i = 0; i < 9; i++)
    assert_int_equal(read_now(&b, i % 3, &l, &why).status, RD2H_OK);
  assert_int_equal(b.lib->most_objects, 2);
  bench_close(&b);
}

/* What hangs holds up its own session alone; of that, what waits fails; a call that failed late costs the object first. */
static void a_session_that_hangs(void **state) {
  struct bench b;
  struct load slow, waits, other;
  const char *why;
  (void)state;
  bench_open(&b, "13", NULL);
  peer_open(&b, 1);
  load_set(&slow, &b, 1, 1, 100);
  load_set(&waits, &b, 2, 1, 100);
  load_set(&other, &b, 3, 1, 100);
  assert_int_equal(read_now(&b, 0, &slow, &why).status, RD2H_OK);
  SET(b.lib->hang_ms, 2500);
  SET(b.lib->read_code, -1);
  assert_int_equal(rd2h_eng_submit(b.e, b.p[0].peer, &slow.b), RD2H_OK);
  assert_int_equal(rd2h_eng_submit(b.e, b.p[0].peer, &waits.b), RD2H_OK);
  struct rd2h_completion c = next(b.e, &why);
  assert_int_equal(c.id, 2);
  assert_int_equal(c.status, RD2H_TIMEOUT);
  assert_int_equal(rd2h_eng_submit(b.e, b.p[0].peer, &waits.b), RD2H_TIMEOUT);
  SET(b.lib->hang_ms, 0);
  SET(b.lib->read_code, 0);
  assert_int_equal(read_now(&b, 1, &other, &why).id, 3);
  SET(b.lib->read_code, -1);
  c = next(b.e, &why);
  assert_int_equal(c.id, 1);
  assert_int_equal(c.status, RD2H_TIMEOUT);
  assert_int_equal(b.lib->objects, 1);
  bench_close(&b);
}

/* However soon a call fails: what it was to write to is given back only once the object is down. */
static void destinations_outlive_the_object(void **state) {
  static const int32_t codes[] = {-1, -2004};
  struct bench b;
  struct load l;
  const char *why;
  (void)state;
  bench_open(&b, "13", NULL);
  load_set(&l, &b, 1, 1, 100);
  for (size_t i = 0; i < RD2H_COUNT(codes); i++) {
    SET(b.lib->read_code, 0);
    assert_int_equal(read_now(&b, 0, &l, &why).status, RD2H_OK);
    SET(b.lib->destroy_ms, 300);
    SET(b.lib->read_code, codes[i]);
    assert_int_equal(read_now(&b, 0, &l, &why).status, RD2H_IO);
    assert_int_equal(GET(b.lib->objects), 0);
    SET(b.lib->destroy_ms, 0);
  }
  SET(b.lib->read_code, 0);
  assert_int_equal(read_now(&b, 0, &l, &why).status, RD2H_OK);
  SET(b.lib->invisible, 1); /* refused before anything moves */
  assert_int_equal(read_now(&b, 0, &l, &why).status, RD2H_RANGE);
  assert_int_equal(GET(b.lib->objects), 1);
  bench_close(&b);
}

/* It is given up after a time: its peers are told, others are served, and only the read that hung keeps its destinations until the
 * peer answers. */
static void a_peer_that_stays_silent(void **state) {
  const struct mf_patience before = rd2h_mf_patience;
  struct rd2h_peer_event ev = {.up = true};
  struct bench b;
  struct load slow, other;
  const char *why;
  (void)state;
  bench_open(&b, "13", NULL);
  peer_open(&b, 1);
  load_set(&slow, &b, 1, 1, 100);
  load_set(&other, &b, 2, 1, 100);
  assert_int_equal(read_now(&b, 1, &other, &why).status, RD2H_OK);
  rd2h_mf_patience = (struct mf_patience){.silent_ns = 1, .again_ns = 200 * RD2H_MS};
  SET(b.lib->hang_ms, 1200);
  SET(b.lib->read_code, -1);
  assert_int_equal(rd2h_eng_submit(b.e, b.p[0].peer, &slow.b), RD2H_OK);
  const uint64_t until = rd2h_now_ns() + WAIT_MS * RD2H_MS;
  while (!rd2h_eng_events(b.e, &ev, 1)) {
    assert_true(rd2h_now_ns() < until);
    poll(&(struct pollfd){.fd = rd2h_eng_fd(b.e), .events = POLLIN}, 1, 100);
  }
  assert_int_equal(ev.cookie, 0);
  assert_int_equal(ev.status, RD2H_PEER_LOST);
  assert_int_equal(rd2h_eng_submit(b.e, b.p[0].peer, &other.b), RD2H_PEER_LOST);
  assert_int_equal(rd2h_eng_poll(b.e, &(struct rd2h_completion){0}, 1), 0);
  assert_int_equal(GET(b.lib->objects), 2);
  SET(b.lib->hang_ms, 0);
  SET(b.lib->read_code, 0);
  for (uint32_t i = 0; i < 2; i++) { /* in whichever order */
    if (!i)
      assert_int_equal(rd2h_eng_submit(b.e, b.p[1].peer, &other.b), RD2H_OK);
    struct rd2h_completion c = next(b.e, &why);
    assert_int_equal(c.status, c.id == 1 ? RD2H_TIMEOUT : RD2H_OK);
  }
  assert_int_equal(GET(b.lib->objects), 1);
  rd2h_mf_patience = before;
  bench_close(&b);
}

/* Peer 1 has a pattern, of which byte `bad` is wrong (RD2H_PATTERN: none). */
static void peer_with_pattern(struct bench *b, uint8_t *pattern, uint32_t bad) {
  struct mf_range all = {(uintptr_t)b->src, BYTES};
  struct mf_conn c = {.op = 6, .n = 1, .range = &all, .pattern = (uintptr_t)pattern, .seed = 77};
  struct rd2h_error err = {0};
  uint8_t data[256];
  peer_open(b, 1);
  rd2h_eng_disconnect(b->e, b->p[1].peer);
  snprintf(c.id, sizeof c.id, "%s", b->p[1].session);
  rd2h_pattern_fill(pattern, c.seed);
  if (bad < RD2H_PATTERN)
    pattern[bad] ^= 4;
  rd2h_mf_conn_encode(&c, data);
  struct rd2h_blob at = {(const uint8_t *)c.id, (uint32_t)strlen(c.id)}, conn = {data, rd2h_mf_conn_bytes(&c)};
  assert_int_equal(rd2h_eng_connect(b->e, at, conn, 1, &b->p[1].peer, &err), RD2H_OK);
}

/* Before anything else is read through an object, and once. */
static void T04_a_pattern_is_read_first(void **state) {
  static uint8_t pattern[RD2H_PATTERN];
  static const uint32_t bad[] = {RD2H_PATTERN, 0, RD2H_PATTERN - 1};
  (void)state;
  for (size_t i = 0; i < RD2H_COUNT(bad); i++) {
    const bool good = bad[i] == RD2H_PATTERN;
    struct rd2h_peer_event ev = {.up = true};
    const char *why;
    struct bench b;
    struct load l;
    bench_open(&b, "13", NULL);
    peer_with_pattern(&b, pattern, bad[i]);
    load_set(&l, &b, 1, 1, 1000);
    struct rd2h_completion c = read_now(&b, 1, &l, &why);
    assert_int_equal(c.status, good ? RD2H_OK : RD2H_PEER_LOST);
    assert_int_equal(c.bytes, good ? 1000 : 0);
    assert_int_equal(b.dst[999], good ? b.src[999] : 0);
    assert_int_equal(GET(b.lib->reads), good ? 2 : 1);
    if (good) {
      assert_int_equal(read_now(&b, 1, &l, &why).status, RD2H_OK);
      assert_int_equal(GET(b.lib->reads), 3);
    } else {
      assert_non_null(strstr(why, "pattern is wrong"));
      assert_int_equal(rd2h_eng_events(b.e, &ev, 1), 1);
      assert_int_equal(ev.cookie, 1);
      assert_int_equal(rd2h_eng_submit(b.e, b.p[1].peer, &l.b), RD2H_PEER_LOST);
    }
    bench_close(&b);
  }
}

static void closing_waits_for_no_other_engine(void **state) {
  struct rd2h_error err;
  struct bench b;
  struct load l;
  const char *why;
  rd2h_eng *second;
  (void)state;
  bench_open(&b, "13", NULL);
  load_set(&l, &b, 1, 1, 100);
  assert_int_equal(read_now(&b, 0, &l, &why).status, RD2H_OK);
  assert_int_equal(open_with(library("13"), NULL, false, &second, &err), RD2H_OK);
  uint64_t begin = rd2h_now_ns();
  rd2h_eng_close(second);
  assert_true(rd2h_now_ns() - begin < 5000 * RD2H_MS);
  bench_close(&b);
}

static void a_peer_that_is_gone(void **state) {
  struct bench b;
  struct load l;
  struct rd2h_peer_event ev;
  const char *why;
  (void)state;
  bench_open(&b, "13", NULL);
  load_set(&l, &b, 1, 1, 100);
  assert_int_equal(read_now(&b, 0, &l, &why).status, RD2H_OK);
  shutdown(b.p[0].store, SHUT_RDWR);
  SET(b.lib->read_code, -1);
  assert_int_equal(read_now(&b, 0, &l, &why).status, RD2H_PEER_LOST);
  assert_non_null(strstr(why, "has ended"));
  assert_int_equal(rd2h_eng_events(b.e, &ev, 1), 1);
  assert_int_equal(ev.status, RD2H_PEER_LOST);
  assert_int_equal(rd2h_eng_submit(b.e, b.p[0].peer, &l.b), RD2H_PEER_LOST);
  bench_close(&b);
}

static void store_tls_where_it_works(void **state) {
  struct rd2h_error err = {0};
  struct bench b;
  rd2h_eng *e;
  (void)state;
  bench_open(&b, "13", NULL);
  bench_close(&b);
  assert_int_equal(open_with(library("13"), "store_tls=tlsCert: /x", false, &e, &err), RD2H_UNSUPPORTED);
  assert_non_null(strstr(err.text, "plain text"));
  b.lib->tls_code = -2000;
  assert_int_equal(open_with(library("13"), "store_tls=tlsCert: /x", false, &e, &err), RD2H_OK);
  rd2h_eng_close(e);
  assert_int_equal(open_with(library("13"), "store_tls=nonsense", false, &e, &err), RD2H_INVALID);
}

/* ---- Prefill, and the older versions: each in a process of its own, which has one library and one role ---- */
static void in_a_process(void (*run)(const char *), const char *argument) {
  int status;
  fflush(NULL);
  pid_t pid = fork();
  if (!pid) {
    run(argument);
    exit(0);
  }
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_int_equal(status, 0);
}

#define CHECK(x) \
  do { \
    if (!(x)) { \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x); \
      _exit(1); \
    } \
  } while (0)

static void serve(const char *name) {
  struct rd2h_error err = {0};
  struct rd2h_buf conn = {0};
  rd2h_eng *e;
  uint32_t region;
  uint8_t *p = aligned_alloc(MF_PAGE, 4 * MF_PAGE);
  CHECK(!open_with(library(name), NULL, true, &e, &err));
  struct standin *lib = state_of(name);
  CHECK(lib->role == MF_SENDER && !strcmp(lib->id, rd2h_eng_session(e)) && !strcmp(lib->url + 6, lib->id));
  for (uint32_t i = 0; i < 3; i++) /* two share a page */
    CHECK(!rd2h_eng_reg(e, &(struct rd2h_region){.base = p + i * MF_PAGE / 2 * 3, .len = 100}, &region, &err));
  lib->register_code = -2009;
  CHECK(rd2h_eng_publish(e, &conn, &err) == RD2H_IO && !conn.len);
  lib->register_code = 0;
  CHECK(!rd2h_eng_publish(e, &conn, &err) && lib->registrations == 5); /* one that failed, and the pattern */
  struct mf_conn c;
  CHECK(!rd2h_mf_conn_decode((struct rd2h_blob){conn.p, (uint32_t)conn.len}, &c, &err) && c.n == 3 && c.range[1].len == 100);
  CHECK(c.pattern && c.pattern == lib->registered[4][0] && rd2h_pattern_wrong((uint8_t *)(uintptr_t)c.pattern, c.seed) == RD2H_PATTERN);
  CHECK(rd2h_eng_reg(e, &(struct rd2h_region){.base = &c, .len = 8}, &region, &err) == RD2H_STATE);
  CHECK(rd2h_eng_connect(e, (struct rd2h_blob){0}, (struct rd2h_blob){0}, 1, NULL, &err) == RD2H_STATE);
  rd2h_free(c.range);
  rd2h_buf_free(&conn);
  rd2h_eng_close(e);
  CHECK(!lib->objects);
  free(p);
}

static void prefill_registers_merged_areas(void **state) {
  (void)state;
  in_a_process(serve, "13");
}

static void read_with(const char *name) {
  struct bench b;
  struct load l;
  const char *why;
  bench_open(&b, name, NULL);
  load_set(&l, &b, 1, 4, 1000);
  CHECK(!read_now(&b, 0, &l, &why).status && !memcmp(b.src, b.dst, 4000) && b.lib->op == 6 && !b.lib->nic[0]);
  bench_close(&b);
}

static void older_libraries(void **state) {
  (void)state;
  in_a_process(read_with, "12");
  in_a_process(read_with, "10");
}

int main(void) {
  const struct CMUnitTest cases[] = {
    cmocka_unit_test(ranges_that_touch_become_one), cmocka_unit_test(registrations_never_share_a_page),
    cmocka_unit_test(descriptors_lie_inside), cmocka_unit_test(sessions), cmocka_unit_test(options_are_checked),
    cmocka_unit_test(every_code_has_its_name), cmocka_unit_test(library_missing), cmocka_unit_test(library_of_another_abi),
    cmocka_unit_test(prefill_registers_merged_areas), cmocka_unit_test(older_libraries), cmocka_unit_test(arrays_are_not_copied),
    cmocka_unit_test(configuration), cmocka_unit_test(a_late_link_is_waited_for), cmocka_unit_test(codes_in_errors),
    cmocka_unit_test(no_object_can_be_made), cmocka_unit_test(objects_are_bounded), cmocka_unit_test(a_session_that_hangs),
    cmocka_unit_test(destinations_outlive_the_object), cmocka_unit_test(a_peer_that_stays_silent),
    cmocka_unit_test(T04_a_pattern_is_read_first),
    cmocka_unit_test(closing_waits_for_no_other_engine), cmocka_unit_test(a_peer_that_is_gone), cmocka_unit_test(store_tls_where_it_works),
  };
  return cmocka_run_group_tests_name("memfabric", cases, NULL, NULL);
}
