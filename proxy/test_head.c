/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "proxy/head.h"

#define OK "HTTP/1.1 200 OK\r\n"
#define L "Content-Length: 5\r\n"
#define T "Transfer-Encoding: chunked\r\n"

static void test_answers(void **state) {
  static const struct {
    const char *text;
    int status;
    bool keep_alive, chunked, until_close;
    uint64_t length;
  } GOOD[] = {
    {OK L "\r\n", 200, true, false, false, 5},
    {OK L "Connection: close\r\n\r\n", 200, false, false, false, 5},
    {OK T "\r\n", 200, true, true, false, 0},
    {OK "\r\n", 200, false, false, true, 0},
    {"HTTP/1.0 200 OK\r\n" L "\r\n", 200, false, false, false, 5},
    {"HTTP/1.0 200 OK\r\n" L "Connection: keep-alive\r\n\r\n", 200, true, false, false, 5},
    {"HTTP/1.1 100 Continue\r\n\r\n", 100, true, false, false, 0},
    {"HTTP/1.1 204\r\n\r\n", 204, true, false, false, 0},
    {"HTTP/1.1 304 Not Modified\r\n" L "\r\n", 304, true, false, false, 0},
    {"HTTP/1.1 503 \r\n" L "Retry-After: 3\r\n\r\n", 503, true, false, false, 5},
  };
  (void)state;
  for (size_t i = 0; i < sizeof GOOD / sizeof *GOOD; i++) {
    struct px_answer a;
    const char *why = "";
    assert_true(rd2h_px_answer_read(px_str(GOOD[i].text), &a, &why));
    assert_int_equal(a.status, GOOD[i].status);
    assert_int_equal(a.keep_alive, GOOD[i].keep_alive);
    assert_int_equal(a.chunked, GOOD[i].chunked);
    assert_int_equal(a.until_close, GOOD[i].until_close);
    assert_int_equal(a.length, GOOD[i].length);
  }
}

static void test_answers_refused(void **state) {
  static const char *const BAD[] = {
    "\r\n", "HTTP/2 200\r\n\r\n", "HTTP/1.1 20\r\n\r\n", "HTTP/1.1 2000\r\n\r\n", "HTTP/1.1 099 x\r\n\r\n", "HTTP/1.1 600 x\r\n\r\n",
    "HTTP/1.1  200 x\r\n\r\n", "http/1.1 200 OK\r\n\r\n", OK L L "\r\n", OK L T "\r\n", OK T T "\r\n", OK "Transfer-Encoding: gzip\r\n\r\n",
    OK "Content-Length: +5\r\n\r\n", OK "Content-Length: 0x5\r\n\r\n", OK "A : b\r\n\r\n", OK "A: b\r\n c\r\n\r\n", OK "A: b\n\r\n",
    OK "A: \x01\r\n\r\n", OK L,
  };
  (void)state;
  for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
    struct px_answer a;
    const char *why = NULL;
    assert_false(rd2h_px_answer_read(px_str(BAD[i]), &a, &why));
    assert_non_null(why);
  }
}

/* Byte by byte, nothing before the end that was found is looked at twice. */
static void test_length(void **state) {
  static const char text[] = OK "A: b\r\n\r\nbody\r\n\r\n";
  size_t scanned = 0, end = sizeof OK "A: b\r\n\r\n" - 1;
  (void)state;
  for (size_t n = 1; n < end; n++) {
    assert_int_equal(rd2h_px_head_length((struct px_span){text, n}, &scanned), 0);
    assert_true(scanned <= n && n - scanned < 3);
  }
  assert_int_equal(rd2h_px_head_length((struct px_span){text, end}, &scanned), end);
  scanned = 0;
  assert_int_equal(rd2h_px_head_length(px_str(text), &scanned), end);
}

static void test_trailers(void **state) {
  static const char text[] = "3\r\nabc\r\n0\r\nX-Sum: 1\r\nY: 2\r\n\r\nnext";
  struct px_chunks c = {.trailers = true}, strict = {0};
  struct px_span in = px_str(text), data;
  (void)state;
  assert_int_equal(rd2h_px_chunks_read(&c, &in, &data), PX_CHUNK_DATA);
  assert_true(px_equal(data, PX_LIT("abc")));
  assert_int_equal(rd2h_px_chunks_read(&c, &in, &data), PX_CHUNK_END);
  assert_true(px_equal(in, PX_LIT("next")));
  in = px_str(text);
  assert_int_equal(rd2h_px_chunks_read(&strict, &in, &data), PX_CHUNK_DATA);
  assert_int_equal(rd2h_px_chunks_read(&strict, &in, &data), PX_CHUNK_BAD);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_answers), cmocka_unit_test(test_answers_refused), cmocka_unit_test(test_length), cmocka_unit_test(test_trailers),
  };
  return cmocka_run_group_tests_name("proxy_head", tests, NULL, NULL);
}
