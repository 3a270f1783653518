/* SPDX-License-Identifier: Apache-2.0 */
/* What the conformance suite cannot see from outside: peers that lie, on either side; what is revoked. */
#include "engine/engine.h"
#include "engines/tcp/tcp.h"
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#define WAIT_MS 20000 /* reached only by a failure */
#define LEN 4096u
#define OLD 0xC3
#define NEW 0x5A
#define SHORT_NS (150 * RD2H_MS)

static uint8_t memory[8u << 20], dst[8u << 20];

/* ---- Prefill's side, the real one ---- */
struct prefill {
  rd2h_engine *e;
  uint8_t conn[TCP_CONN];
  struct rd2h_tcp_conn at;
};

static void prefill_open(struct prefill *p, const char *host) {
  struct rd2h_engine_opts o = {.size = sizeof o, .prefill = true, .host = host};
  struct rd2h_engine_caps caps;
  struct rd2h_region r = {.base = memory, .len = sizeof memory / 2};
  uint32_t region, len;
  assert_int_equal(rd2h_engine_tcp.open(NULL, &o, &p->e, &caps, NULL), RD2H_OK);
  assert_int_equal(rd2h_engine_tcp.reg(p->e, &r, &region, NULL), RD2H_OK);
  assert_int_equal(region, 0);
  assert_int_equal(rd2h_engine_tcp.publish(p->e, p->conn, sizeof p->conn, &len), RD2H_OK);
  assert_int_equal(rd2h_tcp_conn_decode((struct rd2h_blob){p->conn, len}, &p->at, NULL), RD2H_OK);
}

static void prefill_close(struct prefill *p) {
  rd2h_engine_tcp.close(p->e);
}

/* ---- Decode's side, the real one ---- */
static rd2h_eng *decode_open(uint64_t timeout_ns, const char *option) {
  const char *const options[] = {option, NULL};
  struct rd2h_engine_opts o = {.size = sizeof o, .read_timeout_ns = timeout_ns, .options = options};
  rd2h_eng *e = NULL;
  assert_int_equal(rd2h_eng_open("tcp", &o, &e, NULL), RD2H_OK);
  return e;
}

static rd2h_eng_peer *decode_connect(rd2h_eng *e, const uint8_t conn[TCP_CONN], uint64_t cookie) {
  rd2h_eng_peer *p = NULL;
  assert_int_equal(rd2h_eng_connect(e, (struct rd2h_blob){0}, (struct rd2h_blob){conn, TCP_CONN}, cookie, &p, NULL), RD2H_OK);
  return p;
}

/* Two descriptors of LEN bytes: from the start of memory, and right behind. */
struct two {
  struct rd2h_batch b;
  void *local[2];
  uint64_t remote[2], len[2];
};
static void two_init(struct two *t, uint64_t id) {
  *t = (struct two){.local = {dst, dst + LEN}, .remote = {(uintptr_t)memory, (uintptr_t)memory + LEN}, .len = {LEN, LEN}};
  t->b = (struct rd2h_batch){.id = id, .n = 2, .bytes = 2 * LEN, .local = t->local, .remote = t->remote, .len = t->len};
}

static struct rd2h_completion complete(rd2h_eng *e) {
  struct pollfd fd = {.fd = rd2h_eng_fd(e), .events = POLLIN};
  struct rd2h_completion c;
  struct rd2h_peer_event ev;
  for (int tries = 0; tries < 100; tries++) {
    if (rd2h_eng_poll(e, &c, 1) == 1)
      return c;
    rd2h_eng_events(e, &ev, 1);
    assert_int_equal(poll(&fd, 1, WAIT_MS), 1);
  }
  fail_msg("no completion");
  return c;
}

static int down(rd2h_eng *e) {
  struct pollfd fd = {.fd = rd2h_eng_fd(e), .events = POLLIN};
  struct rd2h_peer_event ev = {0};
  assert_int_equal(poll(&fd, 1, WAIT_MS), 1);
  assert_int_equal(rd2h_eng_events(e, &ev, 1), 1);
  assert_false(ev.up);
  assert_int_equal(ev.cookie, 7);
  return ev.status;
}

static void filled(const uint8_t *p, uint8_t byte, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (p[i] != byte)
      fail_msg("byte %zu is 0x%02x, expected 0x%02x", i, p[i], byte);
}

/* ---- a Prefill that lies: this program's own socket ---- */
struct liar {
  int listener, fd;
  uint8_t conn[TCP_CONN];
};

static void liar_open(struct liar *l) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof a;
  struct rd2h_tcp_conn at = {.addr = {127, 0, 0, 1}, .token = "token"};
  l->fd = -1;
  l->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(bind(l->listener, (struct sockaddr *)&a, sizeof a) | listen(l->listener, 4), 0);
  assert_int_equal(getsockname(l->listener, (struct sockaddr *)&a, &len), 0);
  at.port = ntohs(a.sin_port);
  rd2h_tcp_conn_encode(&at, l->conn);
}

static bool readable(int fd, int ms) {
  struct pollfd p = {.fd = fd, .events = POLLIN};
  return poll(&p, 1, ms) == 1;
}

static void get(int fd, void *p, size_t n) {
  uint8_t *to = p;
  for (ssize_t got; n; n -= (size_t)got, to += got) {
    assert_true(readable(fd, WAIT_MS));
    got = recv(fd, to, n, 0);
    assert_true(got > 0);
  }
}

static void put(int fd, const void *p, size_t n) {
  assert_int_equal(send(fd, p, n, MSG_NOSIGNAL), (ssize_t)n);
}

static void liar_accept(struct liar *l) {
  uint8_t hello[TCP_HELLO];
  assert_true(readable(l->listener, WAIT_MS));
  l->fd = accept(l->listener, NULL, NULL);
  get(l->fd, hello, sizeof hello);
  assert_int_equal(rd2h_tcp_hello_check(hello, (const uint8_t *)"token\0\0\0\0\0\0\0\0\0\0"), RD2H_OK);
}

/* The request of a struct two. */
static void liar_request(struct liar *l, struct tcp_request *q) {
  uint8_t head[TCP_HEAD], list[2 * TCP_DESC];
  get(l->fd, head, sizeof head);
  assert_int_equal(rd2h_tcp_request_decode(head, q), RD2H_OK);
  assert_int_equal(q->n, 2);
  assert_int_equal(q->bytes, 2 * LEN);
  get(l->fd, list, sizeof list);
  assert_int_equal(rd2h_tcp_desc_decode(list + TCP_DESC).addr, (uintptr_t)memory + LEN);
}

static void liar_say(struct liar *l, enum tcp_reply_kind kind, uint32_t seq, int status, uint32_t at) {
  uint8_t out[TCP_REPLY];
  rd2h_tcp_reply_encode(&(struct tcp_reply){kind, seq, status, at}, out);
  put(l->fd, out, sizeof out);
}

static void liar_pay(struct liar *l, size_t n) {
  uint8_t new[2 * LEN];
  memset(new, NEW, sizeof new);
  put(l->fd, new, n);
}

static void liar_close(struct liar *l) {
  if (l->fd >= 0)
    close(l->fd);
  close(l->listener);
}

/* ---- lies, and what becomes of the read and of the peer ---- */
enum { OK_SEQ = 0, STAYS = 1 };
static void say_garbage(struct liar *l) {
  static const char text[] = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
  put(l->fd, text, sizeof text - 1);
}
static void say_more_in_a_head(struct liar *l) {
  uint8_t out[TCP_REPLY];
  rd2h_tcp_reply_encode(&(struct tcp_reply){TCP_REPLY_HEAD, OK_SEQ, 0, UINT32_MAX}, out);
  out[TCP_REPLY - 1] = 1;
  put(l->fd, out, sizeof out);
}
static void say_other_number(struct liar *l) {
  liar_say(l, TCP_REPLY_HEAD, 9, 0, UINT32_MAX);
}
static void say_tail_first(struct liar *l) {
  liar_say(l, TCP_REPLY_TAIL, OK_SEQ, 0, UINT32_MAX);
}
static void say_head_for_tail(struct liar *l) {
  liar_say(l, TCP_REPLY_HEAD, OK_SEQ, 0, UINT32_MAX);
  liar_pay(l, 2 * LEN);
  liar_say(l, TCP_REPLY_HEAD, OK_SEQ, 0, UINT32_MAX);
}
static void say_foreign_status(struct liar *l) {
  liar_say(l, TCP_REPLY_HEAD, OK_SEQ, RD2H_PEER_LOST, UINT32_MAX);
}
static void say_unknown_token(struct liar *l) {
  liar_say(l, TCP_REPLY_REFUSED, 0, RD2H_PERMISSION, UINT32_MAX);
}
static void say_other_version(struct liar *l) {
  liar_say(l, TCP_REPLY_REFUSED, 0, RD2H_UNSUPPORTED, UINT32_MAX);
}
static void say_refused_for_nothing(struct liar *l) {
  liar_say(l, TCP_REPLY_REFUSED, 0, RD2H_AGAIN, UINT32_MAX);
}
static void hang_up(struct liar *l) {
  liar_say(l, TCP_REPLY_HEAD, OK_SEQ, 0, UINT32_MAX);
  liar_pay(l, 100);
  close(l->fd);
  l->fd = -1;
}
static void say_nothing(struct liar *l) {
  (void)l;
}
static void say_range(struct liar *l) {
  liar_say(l, TCP_REPLY_HEAD, OK_SEQ, RD2H_RANGE, 1);
}
static void say_range_of_nothing(struct liar *l) {
  liar_say(l, TCP_REPLY_HEAD, OK_SEQ, RD2H_RANGE, 999);
}
static void say_revoked(struct liar *l) {
  liar_say(l, TCP_REPLY_HEAD, OK_SEQ, 0, UINT32_MAX);
  liar_pay(l, 2 * LEN);
  liar_say(l, TCP_REPLY_TAIL, OK_SEQ, RD2H_STATE, 0);
}
static void stop_half_way(struct liar *l) {
  liar_say(l, TCP_REPLY_HEAD, OK_SEQ, 0, UINT32_MAX);
  liar_pay(l, LEN);
}

static const struct lie {
  void (*tell)(struct liar *);
  int status, event; /* of the read, of the peer's end; 0: it stays */
  uint32_t failed_at;
  const char *text;
} lies[] = {
  {say_garbage, RD2H_MALFORMED, RD2H_MALFORMED, UINT32_MAX, "no reply"},
  {say_more_in_a_head, RD2H_MALFORMED, RD2H_MALFORMED, UINT32_MAX, "no reply"},
  {say_other_number, RD2H_MALFORMED, RD2H_MALFORMED, UINT32_MAX, "not asked"},
  {say_tail_first, RD2H_MALFORMED, RD2H_MALFORMED, UINT32_MAX, "not asked"},
  {say_head_for_tail, RD2H_MALFORMED, RD2H_MALFORMED, UINT32_MAX, "not asked"},
  {say_foreign_status, RD2H_MALFORMED, RD2H_MALFORMED, UINT32_MAX, "status"},
  {say_unknown_token, RD2H_PEER_LOST, RD2H_PEER_LOST, UINT32_MAX, "token"},
  {say_other_version, RD2H_UNSUPPORTED, RD2H_UNSUPPORTED, UINT32_MAX, "version"},
  {say_refused_for_nothing, RD2H_MALFORMED, RD2H_MALFORMED, UINT32_MAX, "refused"},
  {hang_up, RD2H_PEER_LOST, RD2H_PEER_LOST, UINT32_MAX, "connection broke"},
  {say_nothing, RD2H_TIMEOUT, RD2H_PEER_LOST, UINT32_MAX, "0 bytes came"},
  {say_range, RD2H_RANGE, 0, 1, "descriptor 1 of 2"},
  {say_range_of_nothing, RD2H_RANGE, 0, UINT32_MAX, "registered"},
  {say_revoked, RD2H_STATE, 0, 0, "descriptor 0 of 2"},
  {stop_half_way, RD2H_TIMEOUT, 0, UINT32_MAX, "4096 bytes came"},
};

/* An honest peer of the same engine is read as if nothing were. */
static void expect_other_goes_on(rd2h_eng *e, rd2h_eng_peer *honest) {
  struct two t;
  two_init(&t, 99);
  memset(dst, OLD, sizeof dst);
  assert_int_equal(rd2h_eng_submit(e, honest, &t.b), RD2H_OK);
  struct rd2h_completion c = complete(e);
  assert_int_equal(c.id, 99);
  assert_int_equal(c.status, RD2H_OK);
  assert_memory_equal(dst, memory, 2 * LEN);
}

static void tell(const struct lie *lie, struct prefill *honest) {
  rd2h_eng *e = decode_open(SHORT_NS, "streams=1");
  rd2h_eng_peer *other = decode_connect(e, honest->conn, 1);
  struct liar l;
  struct tcp_request q;
  struct two t;
  liar_open(&l);
  rd2h_eng_peer *p = decode_connect(e, l.conn, 7);
  two_init(&t, 1);
  memset(dst, OLD, sizeof dst);
  assert_int_equal(rd2h_eng_submit(e, p, &t.b), RD2H_OK);
  liar_accept(&l);
  liar_request(&l, &q);
  assert_int_equal(q.seq, OK_SEQ);
  lie->tell(&l);
  if (lie->event && lie->tell != say_nothing)
    assert_int_equal(down(e), lie->event);
  struct rd2h_completion c = complete(e);
  assert_int_equal(c.status, lie->status);
  assert_int_equal(c.failed_at, lie->failed_at);
  if (!strstr(rd2h_eng_last_error(e, 1), lie->text))
    fail_msg("\"%s\" does not say \"%s\"", rd2h_eng_last_error(e, 1), lie->text);
  if (lie->tell == stop_half_way)
    liar_pay(&l, LEN); /* what still comes lands nowhere */
  expect_other_goes_on(e, other);
  filled(dst + 2 * LEN, OLD, sizeof dst - 2 * LEN);
  int rc = rd2h_eng_submit(e, p, &t.b);
  assert_int_equal(rc, lie->event ? RD2H_PEER_LOST : RD2H_OK);
  rd2h_eng_disconnect(e, p);
  rd2h_eng_close(e);
  liar_close(&l);
}

static void every_lie(void **state) {
  struct prefill honest;
  (void)state;
  memset(memory, 0x11, sizeof memory);
  prefill_open(&honest, "127.0.0.1");
  for (size_t i = 0; i < RD2H_COUNT(lies); i++)
    tell(&lies[i], &honest);
  prefill_close(&honest);
}

/* More than was asked for: the read is good, the peer is not. */
static void extra_bytes(void **state) {
  rd2h_eng *e = decode_open(SHORT_NS, "streams=1");
  struct liar l;
  struct tcp_request q;
  struct two t;
  (void)state;
  liar_open(&l);
  rd2h_eng_peer *p = decode_connect(e, l.conn, 7);
  two_init(&t, 1);
  memset(dst, OLD, sizeof dst);
  assert_int_equal(rd2h_eng_submit(e, p, &t.b), RD2H_OK);
  liar_accept(&l);
  liar_request(&l, &q);
  liar_say(&l, TCP_REPLY_HEAD, q.seq, 0, UINT32_MAX);
  liar_pay(&l, 2 * LEN);
  liar_say(&l, TCP_REPLY_TAIL, q.seq, 0, UINT32_MAX);
  assert_int_equal(complete(e).status, RD2H_OK);
  filled(dst, NEW, 2 * LEN);
  liar_pay(&l, LEN);
  assert_int_equal(down(e), RD2H_MALFORMED);
  filled(dst + 2 * LEN, OLD, LEN);
  rd2h_eng_disconnect(e, p);
  rd2h_eng_close(e);
  liar_close(&l);
}

/* The late rest of a read that was given up goes nowhere, and the next read is answered behind it. */
static void late_payload(void **state) {
  rd2h_eng *e = decode_open(0, "streams=1");
  struct liar l;
  struct tcp_request q;
  struct two t;
  (void)state;
  liar_open(&l);
  rd2h_eng_peer *p = decode_connect(e, l.conn, 7);
  two_init(&t, 1);
  assert_int_equal(rd2h_eng_submit(e, p, &t.b), RD2H_OK);
  liar_accept(&l);
  liar_request(&l, &q);
  liar_say(&l, TCP_REPLY_HEAD, q.seq, 0, UINT32_MAX);
  liar_pay(&l, 100);
  rd2h_eng_cancel(e, 1);
  assert_int_equal(complete(e).status, RD2H_CANCELED);
  memset(dst, OLD, sizeof dst);
  t.b.id = 2;
  t.remote[1] = t.remote[0] + LEN;
  assert_int_equal(rd2h_eng_submit(e, p, &t.b), RD2H_OK);
  uint32_t first = q.seq;
  liar_request(&l, &q);
  liar_pay(&l, 2 * LEN - 100);
  liar_say(&l, TCP_REPLY_TAIL, first, 0, UINT32_MAX);
  assert_false(readable(rd2h_eng_fd(e), 30));
  filled(dst, OLD, 2 * LEN);
  liar_say(&l, TCP_REPLY_HEAD, q.seq, 0, UINT32_MAX);
  liar_pay(&l, 2 * LEN);
  liar_say(&l, TCP_REPLY_TAIL, q.seq, 0, UINT32_MAX);
  struct rd2h_completion c = complete(e);
  assert_int_equal(c.id, 2);
  assert_int_equal(c.status, RD2H_OK);
  filled(dst, NEW, 2 * LEN);
  rd2h_eng_disconnect(e, p);
  rd2h_eng_close(e);
  liar_close(&l);
}

static void bad_destination(void **state) {
  struct prefill honest;
  struct two t;
  (void)state;
  prefill_open(&honest, "127.0.0.1");
  rd2h_eng *e = decode_open(0, "streams=1");
  rd2h_eng_peer *p = decode_connect(e, honest.conn, 7);
  two_init(&t, 1);
  t.local[1] = (void *)16;
  assert_int_equal(rd2h_eng_submit(e, p, &t.b), RD2H_OK);
  struct rd2h_completion c = complete(e);
  assert_int_equal(c.status, RD2H_IO);
  assert_int_equal(c.failed_at, 1);
  assert_non_null(strstr(rd2h_eng_last_error(e, 1), "0x10"));
  expect_other_goes_on(e, p);
  rd2h_eng_close(e);
  prefill_close(&honest);
}

/* ---- a Decode that lies ---- */
static int dial(const struct prefill *p, const uint8_t token[TCP_TOKEN]) {
  struct sockaddr_storage a;
  uint8_t hello[TCP_HELLO];
  socklen_t len = rd2h_tcp_sockaddr(&p->at, &a);
  int fd = socket(a.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(connect(fd, (struct sockaddr *)&a, len), 0);
  if (token) {
    rd2h_tcp_hello_encode(token, hello);
    put(fd, hello, sizeof hello);
  }
  return fd;
}

static struct tcp_reply hear(int fd) {
  uint8_t in[TCP_REPLY];
  struct tcp_reply r;
  get(fd, in, sizeof in);
  assert_int_equal(rd2h_tcp_reply_decode(in, &r), RD2H_OK);
  return r;
}

/* Refused with this status and not a byte more; then it hangs up. */
static void expect_refused(int fd, int status) {
  uint8_t more;
  struct tcp_reply r = hear(fd);
  assert_int_equal(r.kind, TCP_REPLY_REFUSED);
  assert_int_equal(r.status, status);
  assert_true(readable(fd, WAIT_MS));
  assert_true(recv(fd, &more, 1, 0) <= 0);
  close(fd);
}

static void bad_hello(void **state) {
  struct prefill p;
  uint8_t token[TCP_TOKEN], hello[TCP_HELLO];
  (void)state;
  prefill_open(&p, "127.0.0.1");
  memcpy(token, p.at.token, sizeof token);
  token[15] ^= 1;
  expect_refused(dial(&p, token), RD2H_PERMISSION);
  static const struct {
    uint32_t at;
    int status;
  } damage[] = {{0, RD2H_MALFORMED}, {8, RD2H_UNSUPPORTED}, {12, RD2H_MALFORMED}};
  for (size_t i = 0; i < RD2H_COUNT(damage); i++) {
    int fd = dial(&p, NULL);
    rd2h_tcp_hello_encode(p.at.token, hello);
    hello[damage[i].at] ^= 1;
    put(fd, hello, sizeof hello);
    expect_refused(fd, damage[i].status);
  }
  prefill_close(&p);
}

static void request(int fd, uint32_t seq, uint32_t n, uint64_t bytes, const struct tcp_desc *d, uint32_t sent) {
  uint8_t out[TCP_HEAD + 4 * TCP_DESC];
  rd2h_tcp_request_encode(&(struct tcp_request){seq, n, bytes}, out);
  for (uint32_t i = 0; i < sent; i++)
    rd2h_tcp_desc_encode(&d[i], out + TCP_HEAD + i * TCP_DESC);
  put(fd, out, TCP_HEAD + sent * TCP_DESC);
}

static void bad_requests(void **state) {
  struct prefill p;
  const uint64_t base = (uintptr_t)memory;
  (void)state;
  prefill_open(&p, "127.0.0.1");
  const struct {
    uint32_t n;
    uint64_t bytes;
    struct tcp_desc d;
  } bad[] = {
    {0, 0, {0}},
    {TCP_DESC_MAX + 1, 1 << 20, {0}},
    {UINT32_MAX, 1 << 20, {0}},
    {1, 0, {base, 0, 0}},
    {1, TCP_PIECE_MAX + 1, {base, TCP_PIECE_MAX + 1, 0}},
    {1, UINT64_MAX, {base, UINT32_MAX, 0}},
    {1, 100, {base, 99, 0}},
    {1, 100, {base, 101, 0}},
    {2, 2, {base, 2, 0}},
  };
  for (size_t i = 0; i < RD2H_COUNT(bad); i++) {
    int fd = dial(&p, p.at.token);
    struct tcp_desc d[2] = {bad[i].d, {base, 0, 0}};
    request(fd, 0, bad[i].n, bad[i].bytes, d, bad[i].n <= 2 ? bad[i].n : 0);
    expect_refused(fd, RD2H_MALFORMED);
  }
  prefill_close(&p);
}

/* No byte outside of registered memory goes out, however the numbers are chosen; the stream stays good. */
static void outside_of_regions(void **state) {
  struct prefill p;
  struct rd2h_region second = {.base = memory + 6 * (1 << 20), .len = 4096};
  uint32_t region;
  const uint64_t base = (uintptr_t)memory, end = base + sizeof memory / 2, b2 = (uintptr_t)second.base;
  uint8_t got[64];
  (void)state;
  prefill_open(&p, "127.0.0.1");
  assert_int_equal(rd2h_engine_tcp.reg(p.e, &second, &region, NULL), RD2H_OK);
  assert_int_equal(region, 1);
  const struct tcp_desc bad[] = {
    {base - 1, 64, 0}, {end - 63, 64, 0}, {end, 64, 0}, {0, 64, 0}, {UINT64_MAX - 10, 64, 0}, {UINT64_MAX - 63, 64, 0},
    {base, 64, 1}, {base, 64, 2}, {base, 64, UINT32_MAX - 1}, {b2, 64, 0}, {end, 64, UINT32_MAX}, {b2 + 4090, 64, UINT32_MAX},
  };
  int fd = dial(&p, p.at.token);
  for (uint32_t i = 0; i < RD2H_COUNT(bad); i++) {
    struct tcp_desc d[2] = {{base, 64, 0}, bad[i]};
    request(fd, i, 2, 128, d, 2);
    struct tcp_reply r = hear(fd);
    assert_int_equal(r.kind, TCP_REPLY_HEAD);
    assert_int_equal(r.seq, i);
    assert_int_equal(r.status, RD2H_RANGE);
    assert_int_equal(r.at, 1);
  }
  const struct tcp_desc good[] = {{base, 64, 0}, {end - 64, 64, UINT32_MAX}, {b2 + 4032, 64, 1}, {b2, 64, UINT32_MAX}};
  for (uint32_t i = 0; i < RD2H_COUNT(good); i++) {
    request(fd, 100 + i, 1, 64, &good[i], 1);
    assert_int_equal(hear(fd).status, RD2H_OK);
    get(fd, got, sizeof got);
    assert_int_equal(hear(fd).status, RD2H_OK);
    assert_memory_equal(got, (void *)(uintptr_t)good[i].addr, sizeof got);
  }
  close(fd);
  prefill_close(&p);
}

/* A region that goes while it is sent: on return of dereg nothing of it is read, and the reader learns that its bytes are bad. */
static void revoked_while_sent(void **state) {
  enum { REQUESTS = 24 };
  struct prefill p;
  const struct tcp_desc d = {(uintptr_t)memory, TCP_PIECE_MAX, 0};
  struct tcp_reply r;
  (void)state;
  memset(memory, 0x11, sizeof memory);
  prefill_open(&p, "127.0.0.1");
  int fd = dial(&p, p.at.token);
  for (uint32_t i = 0; i < REQUESTS; i++) /* more than buffers hold: the last ones are checked after the region has gone */
    request(fd, i, 1, d.len, &d, 1);
  assert_int_equal(hear(fd).status, RD2H_OK);
  rd2h_engine_tcp.dereg(p.e, 0);
  memset(memory, NEW, sizeof memory);
  bool told = false;
  for (uint32_t i = 0; i < REQUESTS; i++) {
    r = i ? hear(fd) : (struct tcp_reply){.status = RD2H_OK};
    assert_true(r.status == RD2H_OK || r.status == RD2H_RANGE); /* RANGE at once where it went between two replies */
    told |= r.status == RD2H_RANGE;
    if (r.status)
      continue;
    get(fd, dst, d.len);
    for (size_t k = 0; k < d.len; k++)
      if (dst[k] != 0x11 && dst[k])
        fail_msg("byte %zu of reply %u is 0x%02x: neither of the region nor zero", k, i, dst[k]);
    r = hear(fd);
    assert_int_equal(r.kind, TCP_REPLY_TAIL);
    assert_true(r.status == RD2H_STATE || (r.status == RD2H_OK && !told));
    told |= r.status == RD2H_STATE;
  }
  assert_true(told);
  close(fd);
  prefill_close(&p);
}

/* Data that was published for one connection of a reader ends with it; others read on. */
static void one_reader_is_revoked(void **state) {
  struct prefill p;
  uint8_t conn[2][TCP_CONN];
  uint32_t len;
  rd2h_eng *e = decode_open(0, "streams=2");
  rd2h_eng_peer *peer[2];
  struct two t;
  (void)state;
  memset(memory, 0x33, sizeof memory);
  prefill_open(&p, "127.0.0.1");
  for (uint64_t i = 0; i < 2; i++) {
    assert_int_equal(rd2h_engine_tcp.publish_for(p.e, i + 1, conn[i], TCP_CONN, &len), RD2H_OK);
    peer[i] = decode_connect(e, conn[i], i);
    two_init(&t, i);
    assert_int_equal(rd2h_eng_submit(e, peer[i], &t.b), RD2H_OK);
    assert_int_equal(complete(e).status, RD2H_OK);
  }
  assert_true(memcmp(conn[0] + 24, conn[1] + 24, TCP_TOKEN) && memcmp(conn[0] + 24, p.conn + 24, TCP_TOKEN));
  rd2h_engine_tcp.revoke(p.e, 1);
  memset(memory, NEW, sizeof memory);
  memset(dst, OLD, sizeof dst);
  two_init(&t, 2);
  assert_int_equal(rd2h_eng_submit(e, peer[0], &t.b), RD2H_OK);
  assert_int_equal(complete(e).status, RD2H_PEER_LOST);
  for (size_t i = 0; i < 2 * LEN; i++)
    assert_int_equal(dst[i], OLD);
  expect_other_goes_on(e, peer[1]);
  rd2h_engine_tcp.revoke(p.e, 1);
  rd2h_eng_disconnect(e, peer[0]);
  peer[0] = decode_connect(e, conn[0], 7);
  assert_int_equal(down(e), RD2H_PEER_LOST);
  rd2h_eng_close(e);
  prefill_close(&p);
}

/* The same in the middle of its replies: on return of revoke nothing is read for it. */
static void revoked_reader_while_sent(void **state) {
  enum { REQUESTS = 24 };
  struct prefill p;
  uint8_t conn[TCP_CONN];
  const struct tcp_desc d = {(uintptr_t)memory, TCP_PIECE_MAX, 0};
  struct rd2h_tcp_conn at;
  uint32_t len;
  (void)state;
  memset(memory, 0x11, sizeof memory);
  prefill_open(&p, "127.0.0.1");
  assert_int_equal(rd2h_engine_tcp.publish_for(p.e, 7, conn, TCP_CONN, &len), RD2H_OK);
  assert_int_equal(rd2h_tcp_conn_decode((struct rd2h_blob){conn, TCP_CONN}, &at, NULL), RD2H_OK);
  int fd = dial(&p, at.token);
  for (uint32_t i = 0; i < REQUESTS; i++)
    request(fd, i, 1, d.len, &d, 1);
  assert_int_equal(hear(fd).status, RD2H_OK);
  rd2h_engine_tcp.revoke(p.e, 7);
  memset(memory, NEW, sizeof memory);
  struct tcp_reply r = {.kind = TCP_REPLY_HEAD};
  for (uint32_t i = 0; i < REQUESTS && r.kind != TCP_REPLY_REFUSED; i++) {
    r = i ? hear(fd) : r;
    if (r.kind == TCP_REPLY_REFUSED)
      break;
    get(fd, dst, d.len);
    for (size_t k = 0; k < d.len; k++)
      if (dst[k] != 0x11 && dst[k])
        fail_msg("byte %zu of reply %u is 0x%02x: neither of the region nor zero", k, i, dst[k]);
    hear(fd);
  }
  assert_int_equal(r.kind, TCP_REPLY_REFUSED);
  assert_int_equal(r.status, RD2H_PERMISSION);
  close(fd);
  prefill_close(&p);
}

/* Streams that never say who they are cannot keep readers out. */
static void silent_crowd(void **state) {
  enum { CROWD = 300 };
  struct prefill p;
  int fd[CROWD];
  (void)state;
  memset(memory, 0x22, sizeof memory);
  prefill_open(&p, "127.0.0.1");
  for (uint32_t i = 0; i < CROWD; i++)
    fd[i] = dial(&p, NULL);
  rd2h_eng *e = decode_open(0, "streams=3");
  rd2h_eng_peer *peer = decode_connect(e, p.conn, 7);
  expect_other_goes_on(e, peer);
  rd2h_eng_close(e);
  for (uint32_t i = 0; i < CROWD; i++)
    close(fd[i]);
  prefill_close(&p);
}

/* A reader that asks and never takes what comes delays nobody, and no region. */
static void deaf_reader(void **state) {
  struct prefill p;
  const struct tcp_desc d = {(uintptr_t)memory, TCP_PIECE_MAX, 0};
  (void)state;
  memset(memory, 0x44, sizeof memory);
  prefill_open(&p, "127.0.0.1");
  int fd = dial(&p, p.at.token);
  for (uint32_t i = 0; i < 24; i++) /* more than buffers hold */
    request(fd, i, 1, d.len, &d, 1);
  assert_int_equal(hear(fd).status, RD2H_OK);
  rd2h_eng *e = decode_open(0, "streams=2");
  expect_other_goes_on(e, decode_connect(e, p.conn, 7));
  rd2h_engine_tcp.dereg(p.e, 0); /* returns although a reply out of it is stuck */
  rd2h_eng_close(e);
  close(fd);
  prefill_close(&p);
}

/* What was asked for well is answered; what comes behind it ends the stream, and an end of sending does not cut the answer off. */
static void behind_a_good_request(void **state) {
  static const char garbage[] = "GET / HTTP/1.1\r\nHost: prefill\r\n\r\n";
  const struct tcp_desc d = {(uintptr_t)memory, 64, 0};
  struct prefill p;
  uint8_t got[64], more;
  (void)state;
  memset(memory, 0x55, sizeof memory);
  prefill_open(&p, "127.0.0.1");
  for (int half_open = 0; half_open < 2; half_open++) {
    int fd = dial(&p, p.at.token);
    request(fd, 3, 1, 64, &d, 1);
    if (half_open)
      assert_int_equal(shutdown(fd, SHUT_WR), 0);
    else
      put(fd, garbage, sizeof garbage - 1);
    assert_int_equal(hear(fd).seq, 3);
    get(fd, got, sizeof got);
    assert_memory_equal(got, memory, sizeof got);
    assert_int_equal(hear(fd).kind, TCP_REPLY_TAIL);
    if (!half_open) {
      expect_refused(fd, RD2H_MALFORMED);
      continue;
    }
    assert_true(readable(fd, WAIT_MS));
    assert_int_equal(recv(fd, &more, 1, 0), 0);
    close(fd);
  }
  int fd = dial(&p, p.at.token);
  request(fd, 0, 4, 256, &d, 1); /* three descriptors of four never come */
  rd2h_eng *e = decode_open(0, "streams=1");
  expect_other_goes_on(e, decode_connect(e, p.conn, 7));
  rd2h_eng_close(e);
  close(fd);
  prefill_close(&p);
}

/* The kernel takes the connection for a Prefill that never does: the read ends in time and says so. */
static void nobody_accepts(void **state) {
  rd2h_eng *e = decode_open(SHORT_NS, "streams=2");
  struct liar l;
  struct two t;
  (void)state;
  liar_open(&l);
  rd2h_eng_peer *p = decode_connect(e, l.conn, 7);
  two_init(&t, 1);
  assert_int_equal(rd2h_eng_submit(e, p, &t.b), RD2H_OK);
  assert_int_equal(down(e), RD2H_PEER_LOST);
  assert_int_equal(complete(e).status, RD2H_TIMEOUT);
  assert_int_equal(rd2h_eng_submit(e, p, &t.b), RD2H_PEER_LOST);
  rd2h_eng_disconnect(e, p);
  rd2h_eng_close(e);
  liar_close(&l);
}

/* ---- addresses ---- */
static void many_streams_and_ip_version_6(void **state) {
  struct prefill p;
  struct rd2h_engine_opts o = {.size = sizeof o, .prefill = true, .host = "::1"};
  rd2h_eng *probe = NULL;
  (void)state;
  if (rd2h_eng_open("tcp", &o, &probe, NULL))
    skip(); /* this host has no IPv6 */
  rd2h_eng_close(probe);
  for (size_t i = 0; i < sizeof memory; i++)
    memory[i] = (uint8_t)(i * 2654435761u >> 13);
  memset(dst, OLD, sizeof dst);
  prefill_open(&p, "::1");
  rd2h_eng *e = decode_open(0, "streams=16");
  rd2h_eng_peer *peer = decode_connect(e, p.conn, 7);
  void *local[] = {dst + 1};
  uint64_t remote[] = {(uintptr_t)memory}, len[] = {sizeof memory / 2};
  uint32_t region[] = {0};
  struct rd2h_batch b = {.id = 5, .n = 1, .bytes = len[0], .local = local, .remote = remote, .len = len, .remote_region = region};
  assert_int_equal(rd2h_eng_submit(e, peer, &b), RD2H_OK);
  assert_int_equal(complete(e).status, RD2H_OK);
  assert_memory_equal(dst + 1, memory, sizeof memory / 2);
  assert_int_equal(dst[0], OLD);
  region[0] = 1;
  assert_int_equal(rd2h_eng_submit(e, peer, &b), RD2H_OK);
  assert_int_equal(complete(e).status, RD2H_RANGE);
  rd2h_eng_close(e);
  prefill_close(&p);
}

/* The engine asks before it connects. */
static void a_target_is_refused(void **state) {
  struct prefill p;
  struct rd2h_error err;
  rd2h_eng_peer *peer = NULL;
  rd2h_eng *e = decode_open(0, "targets=10.0.0.0/8");
  (void)state;
  prefill_open(&p, "127.0.0.1");
  assert_int_equal(rd2h_eng_connect(e, (struct rd2h_blob){0}, (struct rd2h_blob){p.conn, TCP_CONN}, 1, &peer, &err), RD2H_PERMISSION);
  assert_non_null(strstr(err.text, "127.0.0.1"));
  rd2h_eng_close(e);
  prefill_close(&p);
}

/* Nobody listens there: known when connecting or by an event, and never by waiting for a read's deadline. */
static void nobody_listens(void **state) {
  struct liar l;
  struct rd2h_error err = {0};
  rd2h_eng *e = decode_open(0, "streams=2");
  rd2h_eng_peer *p = NULL;
  (void)state;
  liar_open(&l);
  liar_close(&l);
  int rc = rd2h_eng_connect(e, (struct rd2h_blob){0}, (struct rd2h_blob){l.conn, TCP_CONN}, 7, &p, &err);
  if (rc)
    assert_int_equal(rc, RD2H_PEER_LOST);
  else
    assert_int_equal(down(e), RD2H_PEER_LOST);
  rd2h_eng_disconnect(e, p);
  rd2h_eng_close(e);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_lie), cmocka_unit_test(extra_bytes), cmocka_unit_test(late_payload),
    cmocka_unit_test(bad_destination), cmocka_unit_test(bad_hello), cmocka_unit_test(bad_requests),
    cmocka_unit_test(outside_of_regions), cmocka_unit_test(revoked_while_sent), cmocka_unit_test(silent_crowd),
    cmocka_unit_test(many_streams_and_ip_version_6), cmocka_unit_test(nobody_listens),
    cmocka_unit_test(one_reader_is_revoked), cmocka_unit_test(revoked_reader_while_sent),
    cmocka_unit_test(a_target_is_refused), cmocka_unit_test(deaf_reader), cmocka_unit_test(behind_a_good_request),
    cmocka_unit_test(nobody_accepts),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
