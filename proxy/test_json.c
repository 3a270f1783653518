/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>

#include "proxy/body.h"

static bool check(const char *text, size_t n) {
  size_t at;
  const char *why;
  return rd2h_px_json_check((struct px_span){text, n}, &at, &why);
}

static void edit(const char *in, const struct px_rule *rule, size_t n, const char *want) {
  struct px_buf out = {0};
  assert_true(check(in, strlen(in)));
  rd2h_px_json_edit(px_str(in), rule, n, &out);
  rd2h_px_put(&out, (struct px_span){"", 1});
  assert_false(out.failed);
  assert_string_equal(out.p, want);
  rd2h_px_free(&out);
}

static void test_accepts(void **state) {
  static const char *const good[] = {"0", "-0", "1.5e+7", "-1E-3", "12345678901234567890123", "true", "null", "\"\"", "[]", "{}",
                                     " [ ] ", "{\"a\":{\"b\":[1,{\"c\":null}]}}", "\"\\u00e9\\ud83d\\ude00\\/\\\"\"",
                                    "\"\xF0\x9F\x98\x80\"", "[1,2,3]\n",
                                     "\"\\ud800\"", "{\"a\":1,\"a\":2}", "[[],[[]],{}]"};
  (void)state;
  for (size_t i = 0; i < sizeof good / sizeof *good; i++)
    assert_true(check(good[i], strlen(good[i])));
}

static void test_refuses(void **state) {
  static const char *const bad[] = {"", " ", "01", "-", "+1", ".5", "1.", "1e", "1e+", "NaN", "Infinity", "tru", "nulll",
                                    "\"", "\"\\x\"",
                                    "\"\\u12g4\"", "\"\\u12\"", "\"\n\"", "\"\xC0\x80\"", "\"\xED\xA0\x80\"",
                                    "\"\xF5\x80\x80\x80\"",
                                    "\"\xE2\x82\"",
                                    "[", "]", "[1", "[1,", "[1,]", "[,1]", "[1 2]", "{", "{1:2}", "{\"a\"}", "{\"a\":}",
                                    "{\"a\":1,}", "{,}",
                                    "{\"a\" 1}", "[1}", "{\"a\":1]", "1 2", "{}{}", "\xEF\xBB\xBF{}", "[1]x", "'a'",
                                    "{\"a\":1 \"b\":2}"};
  (void)state;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    if (check(bad[i], strlen(bad[i])))
      fail_msg("accepted: %s", bad[i]);
  assert_false(check("\"a\0b\"", 5));
}

/* Every beginning of a text is refused or a value of its own, and nothing behind its end is read (the copy has its exact size). */
static void test_prefixes(void **state) {
  static const char text[] = "{\"a\":[1.5e3,\"\\u00e9\\\\\xC3\xA9\",true,{\"b\":null}],\"c\":-0}";
  (void)state;
  for (size_t n = 0; n < sizeof text - 1; n++) {
    char *copy = malloc(n ? n : 1);
    memcpy(copy, text, n);
    assert_false(check(copy, n));
    free(copy);
  }
}

static void test_depth(void **state) {
  char text[2 * PX_JSON_DEPTH + 2];
  (void)state;
  memset(text, '[', PX_JSON_DEPTH + 1);
  memset(text + PX_JSON_DEPTH + 1, ']', PX_JSON_DEPTH + 1);
  assert_true(check(text + 1, 2 * PX_JSON_DEPTH));
  assert_true(check(text, sizeof text)); /* the innermost pair is empty and takes no level */
  char deeper[2 * PX_JSON_DEPTH + 5];
  memset(deeper, '[', PX_JSON_DEPTH + 2);
  deeper[PX_JSON_DEPTH + 2] = '1';
  memset(deeper + PX_JSON_DEPTH + 3, ']', PX_JSON_DEPTH + 2);
  assert_false(check(deeper, sizeof deeper));
}

static void test_keys(void **state) {
  (void)state;
  assert_true(rd2h_px_json_is(PX_LIT("\"stream\""), PX_LIT("stream")));
  assert_true(rd2h_px_json_is(PX_LIT("\"str\\u0065am\""), PX_LIT("stream")));
  assert_true(rd2h_px_json_is(PX_LIT("\"\\u0073\\u0074ream\""), PX_LIT("stream")));
  assert_false(rd2h_px_json_is(PX_LIT("\"stream \""), PX_LIT("stream")));
  assert_false(rd2h_px_json_is(PX_LIT("\"strea\""), PX_LIT("stream")));
  assert_true(rd2h_px_json_is(PX_LIT("\"\\ud83d\\ude00\""), PX_LIT("\xF0\x9F\x98\x80")));
}

static void test_edits(void **state) {
  const struct px_rule set = {"k", PX_SET, PX_LIT("9")}, there = {"k", PX_SET_IF_THERE, PX_LIT("9")}, drop = {"k", PX_DROP, PX_LIT("")};
  (void)state;
  edit("{}", &set, 1, "{\"k\":9}");
  edit(" { } ", &set, 1, " {\"k\":9 } ");
  edit("{\"a\":1}", &set, 1, "{\"a\":1,\"k\":9}");
  edit("{\"k\" : {\"k\":1} , \"a\":0.10}", &set, 1, "{\"k\" : 9 , \"a\":0.10}");
  edit("{\"k\":1,\"\\u006b\":2,\"a\":{\"k\":3}}", &set, 1, "{\"k\":9,\"\\u006b\":9,\"a\":{\"k\":3}}");
  edit("{\"a\":1}", &there, 1, "{\"a\":1}");
  edit("{\"k\":1}", &drop, 1, "{}");
  edit("{\"k\":1,\"a\":2}", &drop, 1, "{\"a\":2}");
  edit("{\"a\":2, \"k\":1}", &drop, 1, "{\"a\":2}");
  edit("{\"k\":0,\"a\":2, \"k\":1 ,\"b\":3,\"k\":4}", &drop, 1, "{\"a\":2 ,\"b\":3}");
  const struct px_rule both[] = {drop, {"x", PX_SET, PX_LIT("[]")}};
  edit("{\"k\":1}", both, 2, "{\"x\":[]}");
}

static void test_decode(void **state) {
  struct px_buf b = {0};
  (void)state;
  assert_true(rd2h_px_json_decode(PX_LIT("\"a\\n\\u00e9\\ud83d\\ude00\\ud800x\""), &b));
  assert_true(px_equal(px_of(&b), PX_LIT("a\n\xC3\xA9\xF0\x9F\x98\x80\xEF\xBF\xBDx")));
  rd2h_px_clear(&b);
  rd2h_px_put_json(&b, PX_LIT("q\"\\\n\x01\xC3\xA9\xFF"));
  assert_true(px_equal(px_of(&b), PX_LIT("\"q\\\"\\\\\\n\\u0001\xC3\xA9\xEF\xBF\xBD\"")));
  rd2h_px_free(&b);
}

static void ask(const char *body, enum px_api api, bool list, uint32_t prompts, uint32_t n) {
  struct px_buf why = {0};
  struct px_ask a;
  assert_int_equal(rd2h_px_ask_read(px_str(body), api, 100, &a, &why), 0);
  assert_int_equal(a.list, list);
  assert_int_equal(a.prompts, prompts);
  assert_int_equal(a.n, n);
  rd2h_px_free(&why);
}

static void test_ask(void **state) {
  struct px_buf why = {0};
  struct px_ask a;
  (void)state;
  ask("{\"prompt\":\"a\"}", PX_COMPLETIONS, false, 1, 1);
  ask("{\"prompt\":[1,2,3]}", PX_COMPLETIONS, false, 1, 1);
  ask("{\"prompt\":[\"a\",\"b\"],\"n\":3}", PX_COMPLETIONS, true, 2, 3);
  ask("{\"prompt\":[[1],[2],[3]]}", PX_COMPLETIONS, true, 3, 1);
  ask("{\"prompt\":[]}", PX_COMPLETIONS, false, 1, 1);
  ask("{\"prompt\":[\"a\",\"b\"],\"n\":2}", PX_CHAT, false, 1, 2);
  ask("{\"n\":-1}", PX_CHAT, false, 1, 1);
  ask("{\"n\":1.5}", PX_CHAT, false, 1, 1);
  assert_int_equal(rd2h_px_ask_read(PX_LIT("{\"prompt\":[\"a\",\"b\"],\"n\":51}"), PX_COMPLETIONS, 100, &a, &why), 400);
  assert_int_equal(rd2h_px_ask_read(PX_LIT("{\"n\":4294967295,\"prompt\":[\"a\",\"b\"]}"), PX_COMPLETIONS, 100, &a, &why), 400);
  rd2h_px_free(&why);
}

static void test_prefill_body(void **state) {
  struct px_buf b = {0};
  (void)state;
  rd2h_px_body_prefill(PX_LIT("{\"prompt\":[\"a\",\"b\"],\"n\":2,\"stream\":true,\"stream_options\":{}}"), PX_LIT("{}"), 1, &b);
  assert_true(px_equal(px_of(&b),
                       PX_LIT("{\"prompt\":\"b\",\"n\":1,\"stream\":false,\"max_tokens\":1,\"min_tokens\":1,\"kv_transfer_params\":{}}")));
  rd2h_px_clear(&b);
  rd2h_px_body_prefill(PX_LIT("{\"prompt\":[5,6],\"n\":2}"), PX_LIT("{}"), 0, &b);
  assert_true(px_equal(px_of(&b),
                       PX_LIT("{\"prompt\":[5,6],\"n\":1,\"stream\":false,\"max_tokens\":1,\"min_tokens\":1,\"kv_transfer_params\":{}}")));
  rd2h_px_free(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_accepts), cmocka_unit_test(test_refuses), cmocka_unit_test(test_prefixes), cmocka_unit_test(test_depth),
    cmocka_unit_test(test_keys),    cmocka_unit_test(test_edits),   cmocka_unit_test(test_decode),   cmocka_unit_test(test_ask),
    cmocka_unit_test(test_prefill_body),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
