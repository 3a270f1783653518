/* SPDX-License-Identifier: Apache-2.0 */
/* An engine that runs out of room may give a request up ("recomputed"): the prompt and what was generated are sent again, for the tokens
 * that are left. Where that would not give the client the text it asked for, the request ends with an error instead. */
#include "proxy/flow_inner.h"

#include <stdio.h>

enum { COMPLETIONS_DEFAULT_TOKENS = 16 }; /* vLLM's max_tokens where a request names none */

static bool truthy(struct px_span v) {
  static const char *const FALSE[] = {"false", "null", "0", "[]", "{}", "\"\""};
  for (size_t i = 0; i < sizeof FALSE / sizeof *FALSE; i++)
    if (px_equal(v, px_str(FALSE[i])))
      return false;
  return true;
}

static bool has(struct px_span object, const char *key) {
  struct px_span v;
  return rd2h_px_json_get(object, key, &v) && truthy(v);
}

/* ---- what was generated ---- */
static void note_usage(struct px_parent *p, struct px_span json) {
  struct px_span usage, v;
  uint64_t n;
  if (!rd2h_px_json_get(json, "usage", &usage))
    return;
  if (rd2h_px_json_get(usage, "completion_tokens", &v) && rd2h_px_uint(v, UINT32_MAX, &n))
    p->tokens = n;
  if (!p->continuations && rd2h_px_json_get(usage, "prompt_tokens", &v) && rd2h_px_uint(v, UINT32_MAX, &n))
    p->prompt_tokens = n;
}

static bool first_choice(struct px_span json, struct px_span *choice) {
  struct px_json_iter it;
  struct px_span choices, k;
  return rd2h_px_json_get(json, "choices", &choices) && rd2h_px_json_open(choices, '[', &it) && rd2h_px_json_next(&it, &k, choice) &&
         *choice->p == '{';
}

/* The member that holds the text, or the one that holds its holder. */
static struct px_span inner_of(struct px_span choice) {
  struct px_span v;
  return rd2h_px_json_get(choice, "delta", &v) || rd2h_px_json_get(choice, "message", &v) ? v : choice;
}

static void note_choice(struct px_parent *p, struct px_span choice, bool *recomputed) {
  static const char *const BEYOND[] = {"tool_calls", "function_call", "reasoning_content", "reasoning", "refusal", "audio"};
  struct px_span inner = inner_of(choice), v, reason;
  size_t before = p->text.n;
  *recomputed = rd2h_px_json_get(choice, "stop_reason", &reason) && rd2h_px_json_is(reason, PX_LIT("recomputed"));
  if (rd2h_px_json_get(choice, "text", &v) || rd2h_px_json_get(inner, "content", &v))
    rd2h_px_json_decode(v, &p->text);
  for (size_t i = 0; i < sizeof BEYOND / sizeof *BEYOND; i++)
    p->cannot_continue = p->cannot_continue || has(inner, BEYOND[i]);
  bool opening = p->text.n == before && rd2h_px_json_get(inner, "role", &v);
  if (p->ask.stream && !*recomputed && !opening)
    p->tokens++;
}

static bool mentions(struct px_span s) {
  return memmem(s.p, s.n, "recomputed", 10) != NULL;
}

void rd2h_px_continue_note(struct px_parent *p, struct px_span json, bool *recomputed) {
  struct px_span choice, id;
  size_t at;
  const char *why;
  bool single = p->n_child == 1;
  /* Of several answers only the word matters. */
  if (!p->flow->limits.max_continuations || (!single && !mentions(json)) || !rd2h_px_json_check(json, &at, &why))
    return;
  if (p->first_id.n == 0 && rd2h_px_json_get(json, "id", &id))
    rd2h_px_put(&p->first_id, id);
  if (first_choice(json, &choice))
    note_choice(p, choice, recomputed);
  note_usage(p, json);
}

/* ---- the next part's body ---- */
static bool asked(const struct px_parent *p, const char *key, struct px_span *value) {
  return rd2h_px_scan_get(&p->scan, px_of(&p->body), key, value);
}

static bool asks(const struct px_parent *p, const char *key) {
  struct px_span v;
  return asked(p, key, &v) && truthy(v);
}

static const char *obstacle(const struct px_parent *p) {
  static const struct {
    const char *key, *why;
  } KEY[] = {
    {"echo", "the answer repeats the prompt (echo)"},
    {"tools", "tools are in use"},
    {"response_format", "the answer has a prescribed form (response_format)"},
    {"structured_outputs", "the answer has a prescribed form (structured_outputs)"},
    {"guided_json", "the answer has a prescribed form (guided_json)"},
    {"guided_regex", "the answer has a prescribed form (guided_regex)"},
    {"guided_choice", "the answer has a prescribed form (guided_choice)"},
    {"guided_grammar", "the answer has a prescribed form (guided_grammar)"},
    {"continue_final_message", "it continues a message already (continue_final_message)"},
  };
  struct px_span v;
  if (p->n_child != 1 || p->ask.list)
    return "it has several answers";
  if (p->continuations >= p->flow->limits.max_continuations)
    return "it was continued too often";
  if (p->cannot_continue)
    return "it has answered with more than text";
  for (size_t i = 0; i < sizeof KEY / sizeof *KEY; i++)
    if (asks(p, KEY[i].key))
      return KEY[i].why;
  if (!p->ask.stream && asks(p, "logprobs"))
    return "log probabilities of the parts cannot be joined";
  if (p->ask.api == PX_COMPLETIONS && (!asked(p, "prompt", &v) || *v.p != '"'))
    return "its prompt is not text";
  return p->text.failed || p->first_id.failed ? "memory ran out" : NULL;
}

/* The prompt, or the messages, with the text generated so far. */
static void longer_prompt(const struct px_parent *p, struct px_buf *out) {
  struct px_span v = PX_LIT("[]"), k, first;
  struct px_json_iter it;
  bool chat = p->ask.api == PX_CHAT;
  if (!asked(p, chat ? "messages" : "prompt", &v) || v.n < 2)
    out->failed = true;
  else
    rd2h_px_put(out, (struct px_span){v.p, v.n - 1});
  if (!chat) {
    rd2h_px_put_json_inner(out, px_of(&p->text));
    rd2h_px_puts(out, "\"");
    return;
  }
  bool some = rd2h_px_json_open(v, '[', &it) && rd2h_px_json_next(&it, &k, &first);
  rd2h_px_puts(out, some ? ",{\"role\":\"assistant\",\"content\":" : "{\"role\":\"assistant\",\"content\":");
  rd2h_px_put_json(out, px_of(&p->text));
  rd2h_px_puts(out, "}]");
}

/* What is left of a number of the body after `used`; false when the body names none. */
static bool left_of(const struct px_parent *p, const char *key, uint64_t *out) {
  struct px_span v;
  uint64_t n, used = p->tokens_before;
  if (!asked(p, key, &v) || !rd2h_px_uint(v, INT32_MAX, &n))
    return false;
  *out = n > used ? n - used : 0;
  return true;
}

static size_t add_number(struct px_rule *rule, size_t n, const char *key, uint64_t value, char text[24]) {
  snprintf(text, 24, "%llu", (unsigned long long)value);
  rule[n] = (struct px_rule){key, PX_SET, px_str(text)};
  return n + 1;
}

bool rd2h_px_continue_body(struct px_parent *p, const char **why) {
  struct px_buf prompt = {0}, next = {0};
  struct px_rope rope = {0};
  struct px_rule rule[8];
  char number[3][24];
  uint64_t left;
  size_t n = 0;
  p->tokens_before += p->tokens;
  p->tokens = 0;
  if ((*why = obstacle(p)) != NULL)
    return false;
  bool named = left_of(p, "max_completion_tokens", &left);
  if (named)
    n = add_number(rule, n, "max_completion_tokens", left, number[0]);
  else if ((named = left_of(p, "max_tokens", &left)) || p->ask.api == PX_COMPLETIONS) {
    if (!named)
      left = p->tokens_before < COMPLETIONS_DEFAULT_TOKENS ? COMPLETIONS_DEFAULT_TOKENS - p->tokens_before : 0;
    named = true;
    n = add_number(rule, n, "max_tokens", left, number[1]);
  }
  *why = "its tokens are used up";
  if (named && left == 0)
    return false;
  if (left_of(p, "min_tokens", &left))
    n = add_number(rule, n, "min_tokens", left, number[2]);
  if (p->text.n) {
    longer_prompt(p, &prompt);
    rule[n++] = (struct px_rule){p->ask.api == PX_CHAT ? "messages" : "prompt", PX_SET, px_of(&prompt)};
    if (p->ask.api == PX_CHAT) {
      rule[n++] = (struct px_rule){"add_generation_prompt", PX_SET, PX_LIT("false")};
      rule[n++] = (struct px_rule){"continue_final_message", PX_SET, PX_LIT("true")};
    }
  }
  rd2h_px_scan_edit(&p->scan, px_of(&p->body), rule, n, &rope);
  rd2h_px_rope_put(&rope, &next);
  next.failed |= prompt.failed;
  rd2h_px_free(&prompt);
  rd2h_px_rope_free(&rope);
  rd2h_px_free(&p->current);
  p->current = next;
  rd2h_px_scan_begin(&p->current_scan, p->scan.plan);
  *why = "memory ran out";
  return !next.failed && rd2h_px_scan_end(&p->current_scan, px_of(&next));
}

/* ---- what the client sees of it ---- */
static void whole_usage(const struct px_parent *p, struct px_span usage, struct px_buf *out) {
  uint64_t total = p->tokens_before + p->tokens, prompt = p->prompt_tokens;
  struct px_span v;
  uint64_t n;
  char number[3][24];
  struct px_rule rule[3];
  if (!prompt && rd2h_px_json_get(usage, "prompt_tokens", &v) && rd2h_px_uint(v, UINT32_MAX, &n))
    prompt = n > p->tokens_before ? n - p->tokens_before : n;
  add_number(rule, 0, "prompt_tokens", prompt, number[0]);
  add_number(rule, 1, "completion_tokens", total, number[1]);
  add_number(rule, 2, "total_tokens", prompt + total, number[2]);
  rd2h_px_json_edit(usage, rule, 3, out);
}

static void whole_choices(const struct px_parent *p, struct px_span choice, struct px_buf *out) {
  struct px_buf text = {0}, message = {0};
  struct px_span inner;
  rd2h_px_put_json(&text, px_of(&p->text));
  struct px_rule rule = {"text", PX_SET, px_of(&text)};
  if (rd2h_px_json_get(choice, "message", &inner)) {
    rule.key = "content";
    rd2h_px_json_edit(inner, &rule, 1, &message);
    rule = (struct px_rule){"message", PX_SET, px_of(&message)};
  }
  rd2h_px_puts(out, "[");
  rd2h_px_json_edit(choice, &rule, 1, out);
  rd2h_px_puts(out, "]");
  out->failed |= text.failed || message.failed;
  rd2h_px_free(&text);
  rd2h_px_free(&message);
}

void rd2h_px_continue_rewrite(const struct px_parent *p, struct px_span json, struct px_buf *out) {
  struct px_buf usage = {0}, choices = {0};
  struct px_rule rule[3];
  struct px_span v;
  size_t n = 0, at;
  const char *why;
  if (!rd2h_px_json_check(json, &at, &why) || *json.p != '{') {
    rd2h_px_put(out, json);
    return;
  }
  if (p->first_id.n)
    rule[n++] = (struct px_rule){"id", PX_SET_IF_THERE, px_of(&p->first_id)};
  if (rd2h_px_json_get(json, "usage", &v) && *v.p == '{') {
    whole_usage(p, v, &usage);
    rule[n++] = (struct px_rule){"usage", PX_SET, px_of(&usage)};
  }
  if (!p->ask.stream && first_choice(json, &v)) {
    whole_choices(p, v, &choices);
    rule[n++] = (struct px_rule){"choices", PX_SET, px_of(&choices)};
  }
  rd2h_px_json_edit(json, rule, n, out);
  out->failed |= usage.failed || choices.failed;
  rd2h_px_free(&usage);
  rd2h_px_free(&choices);
}
