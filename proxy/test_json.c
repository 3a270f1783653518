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

static int read_ask(const char *body, enum px_api api, struct px_ask *a, struct px_buf *why) {
  struct px_scan_plan plan = rd2h_px_body_plan;
  struct px_scan scan = {0};
  plan.max_elements = 100;
  rd2h_px_scan_begin(&scan, &plan);
  int status = rd2h_px_ask_read(px_str(body), &scan, api, 100, a, why);
  rd2h_px_scan_free(&scan);
  return status;
}

static void ask(const char *body, enum px_api api, bool list, uint32_t prompts, uint32_t n) {
  struct px_buf why = {0};
  struct px_ask a;
  assert_int_equal(read_ask(body, api, &a, &why), 0);
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
  ask("{\"prompt\":[\"a\",\"b\"],\"prompt\":\"c\"}", PX_COMPLETIONS, false, 1, 1);
  ask("{\"prompt\":\"c\",\"prompt\":[\"a\",{\"b\":[1,2]},\"c\"]}", PX_COMPLETIONS, true, 3, 1);
  assert_int_equal(read_ask("{\"prompt\":[\"a\",\"b\"],\"n\":51}", PX_COMPLETIONS, &a, &why), 400);
  assert_int_equal(read_ask("{\"n\":4294967295,\"prompt\":[\"a\",\"b\"]}", PX_COMPLETIONS, &a, &why), 400);
  rd2h_px_free(&why);
}

static void prefill(const char *body, int64_t only, const char *want) {
  struct px_scan_plan plan = rd2h_px_body_plan;
  struct px_scan scan = {0};
  struct px_rope rope = {0};
  struct px_buf b = {0};
  plan.max_elements = 100;
  rd2h_px_scan_begin(&scan, &plan);
  assert_true(rd2h_px_scan_end(&scan, px_str(body)));
  rd2h_px_body_prefill(px_str(body), &scan, PX_LIT("{}"), only, &rope);
  rd2h_px_rope_put(&rope, &b);
  assert_int_equal(b.n, rope.n);
  assert_true(px_equal(px_of(&b), px_str(want)));
  rd2h_px_free(&b);
  rd2h_px_rope_free(&rope);
  rd2h_px_scan_free(&scan);
}

static void test_prefill_body(void **state) {
  (void)state;
  prefill("{\"prompt\":[\"a\",\"b\"],\"n\":2,\"stream\":true,\"stream_options\":{}}", 1,
          "{\"prompt\":\"b\",\"n\":1,\"stream\":false,\"max_tokens\":1,\"min_tokens\":1,\"kv_transfer_params\":{}}");
  prefill("{\"prompt\":[5,6],\"n\":2}", 0,
          "{\"prompt\":[5,6],\"n\":1,\"stream\":false,\"max_tokens\":1,\"min_tokens\":1,\"kv_transfer_params\":{}}");
}

/* ---- scans ---- */
static const char *const SCANNED[] = {"k", "list", "choices", NULL};
static const struct px_scan_plan PLAN = {.name = SCANNED, .list = "list", .max_elements = 2, .in = "choices", .key = "stop_reason",
                                         .value = "recomputed"};
static const char *const TEXT[] = {
  "{}", "{\"a\":1,\"k\" : [1, 2] ,\"\\u006b\":\"x\\\"y\",\"b\":{\"k\":5}}", " {\"k\":-0.5e+10 , \"k\":true}  ",
  "{\"list\":[\"a\", {\"b\":[1]} ,[\"c\"],4],\"k\":null}", "{\"list\":[1,\"a\"],\"list\":[ ]}", "[1,{\"k\":2}]", "12e-3",
  "\"\\ud83d\\ude00\xF0\x9F\x98\x80\"",
  "{\"choices\":[{\"index\":0,\"stop_reason\":null},{\"logprobs\":{\"stop_reason\":\"no\"},\"stop_reason\":\"recomputed\"}],"
  "\"k\":{\"choices\":[]}}",
  "{\"choices\":[{\"text\":\"stop_reason\",\"x\":[{\"stop_reason\":\"recomputed\"}],\"stop_reason\":[\"recomputed\"]}],"
  "\"list\":[[[]]]}",
  "{\"choices\":{\"stop_reason\":\"recomputed\"},\"k\":[{\"stop_reason\":\"recomputed\"}]}",
  "{\"k\":\"eight or more bytes that are plain\"}",
};

/* In pieces cut anywhere, each in memory of its own, so that nothing behind it can be read: the same as at once. */
static void test_scan_in_pieces(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof TEXT / sizeof *TEXT; i++)
    for (size_t step = 1; step <= strlen(TEXT[i]); step++) {
      struct px_scan whole = {0}, s = {0};
      struct px_span text = px_str(TEXT[i]);
      rd2h_px_scan_begin(&whole, &PLAN);
      rd2h_px_scan_begin(&s, &PLAN);
      assert_true(rd2h_px_scan_end(&whole, text));
      for (size_t n = step; n < text.n; n += step) {
        char *copy = malloc(n);
        memcpy(copy, text.p, n);
        rd2h_px_scan_more(&s, (struct px_span){copy, n});
        free(copy);
      }
      assert_true(rd2h_px_scan_end(&s, text));
      assert_true(px_equal(px_of(&s.members), px_of(&whole.members)) && px_equal(px_of(&s.elements), px_of(&whole.elements)));
      assert_true(s.kind == whole.kind && s.found == whole.found && s.count == whole.count && s.listed == whole.listed);
      assert_true(s.begin == whole.begin && s.last == whole.last);
      rd2h_px_scan_free(&whole);
      rd2h_px_scan_free(&s);
    }
}

static void test_scan_notes(void **state) {
  static const bool found[] = {[8] = true, [sizeof TEXT / sizeof *TEXT - 1] = false};
  struct px_span v;
  (void)state;
  for (size_t i = 0; i < sizeof TEXT / sizeof *TEXT; i++) {
    struct px_scan s = {0};
    struct px_span text = px_str(TEXT[i]);
    rd2h_px_scan_begin(&s, &PLAN);
    assert_true(rd2h_px_scan_end(&s, text));
    assert_int_equal(s.found, found[i]);
    if (i == 1)
      assert_true(rd2h_px_scan_get(&s, text, "k", &v) && px_equal(v, PX_LIT("\"x\\\"y\"")));
    if (i == 3) {
      assert_true(s.listed && s.count == 4 && px_equal(rd2h_px_scan_element(&s, text, 1), PX_LIT("{\"b\":[1]}")));
      assert_int_equal(rd2h_px_scan_element(&s, text, 2).n, 0); /* not noted any more */
    }
    rd2h_px_scan_free(&s);
  }
}

static void test_scan_edits_alike(void **state) {
  const struct px_rule rule[] = {{"k", PX_DROP, PX_LIT("")}, {"list", PX_SET, PX_LIT("{}")}, {"choices", PX_SET_IF_THERE, PX_LIT("0")}};
  (void)state;
  for (size_t i = 0; i < sizeof TEXT / sizeof *TEXT; i++)
    for (size_t n = 0; n <= 3; n++) {
      struct px_scan s = {0};
      struct px_rope rope = {0};
      struct px_buf a = {0}, b = {0};
      rd2h_px_scan_begin(&s, &PLAN);
      assert_true(rd2h_px_scan_end(&s, px_str(TEXT[i])));
      rd2h_px_json_edit(px_str(TEXT[i]), rule, n, &a);
      rd2h_px_scan_edit(&s, px_str(TEXT[i]), rule, n, &rope);
      rd2h_px_rope_put(&rope, &b);
      assert_int_equal(a.failed, b.failed);
      if (!a.failed)
        assert_true(px_equal(px_of(&a), px_of(&b)));
      rd2h_px_free(&a);
      rd2h_px_free(&b);
      rd2h_px_rope_free(&rope);
      rd2h_px_scan_free(&s);
    }
}

/* A member that is there a thousand times would cost more memory than the text. */
static void test_scan_is_bounded(void **state) {
  struct px_buf text = {0};
  struct px_scan s = {0};
  (void)state;
  rd2h_px_puts(&text, "{\"k\":0");
  for (int i = 0; i < 1000; i++)
    rd2h_px_puts(&text, ",\"k\":0");
  rd2h_px_puts(&text, "}");
  rd2h_px_scan_begin(&s, &PLAN);
  assert_false(rd2h_px_scan_end(&s, px_of(&text)));
  assert_true(s.members.room < 8192);
  rd2h_px_scan_free(&s);
  rd2h_px_free(&text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_accepts), cmocka_unit_test(test_refuses), cmocka_unit_test(test_prefixes), cmocka_unit_test(test_depth),
    cmocka_unit_test(test_keys),    cmocka_unit_test(test_edits),   cmocka_unit_test(test_decode),   cmocka_unit_test(test_ask),
    cmocka_unit_test(test_prefill_body), cmocka_unit_test(test_scan_in_pieces), cmocka_unit_test(test_scan_notes),
    cmocka_unit_test(test_scan_edits_alike), cmocka_unit_test(test_scan_is_bounded),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
