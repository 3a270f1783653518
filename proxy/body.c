/* SPDX-License-Identifier: Apache-2.0 */
#include "proxy/body.h"

/* All that is read or replaced in here, and what decides whether a request can be continued. */
static const char *const NAME[] = {
  "stream", "n", "prompt", "messages", "max_tokens", "min_tokens", "max_completion_tokens", "stream_options", "kv_transfer_params", "echo",
  "tools", "response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "logprobs",
  "continue_final_message", "add_generation_prompt", NULL};
const struct px_scan_plan rd2h_px_body_plan = {.name = NAME, .list = "prompt"};

static uint32_t small_number(struct px_span v, uint32_t otherwise) {
  uint64_t n;
  return rd2h_px_uint(v, UINT32_MAX, &n) && n > 0 ? (uint32_t)n : otherwise;
}

int rd2h_px_ask_read(struct px_span body, struct px_scan *scan, enum px_api api, uint32_t max_children, struct px_ask *out,
                     struct px_buf *why) {
  struct px_span v;
  if (!rd2h_px_scan_end(scan, body)) {
    rd2h_px_printf(why, "the body is not JSON: %s at byte %zu", scan->why, scan->at);
    return 400;
  }
  if (scan->kind != '{') {
    rd2h_px_puts(why, "the body must be a JSON object");
    return 400;
  }
  *out = (struct px_ask){.api = api, .prompts = 1, .n = 1};
  out->stream = rd2h_px_scan_get(scan, body, "stream", &v) && px_equal(v, PX_LIT("true"));
  if (rd2h_px_scan_get(scan, body, "n", &v))
    out->n = small_number(v, 1);
  size_t prompts = 1;
  /* [1, 2, 3] is one prompt of tokens; ["a", "b"] and [[1], [2]] are two prompts. */
  if (api == PX_COMPLETIONS && scan->listed) {
    out->list = true;
    prompts = scan->count;
  }
  if (prompts > max_children || out->n > max_children / prompts) {
    rd2h_px_printf(why, "%zu prompts with %u answers each are more than this proxy's limit of %u; send fewer in one request, or raise "
                   "max-children", prompts, out->n, max_children);
    return 400;
  }
  out->prompts = (uint32_t)prompts;
  return 0;
}

void rd2h_px_body_decode(struct px_span body, const struct px_scan *scan, struct px_span metaserver, struct px_rope *out) {
  struct px_buf params = {0};
  rd2h_px_puts(&params, "{\"do_remote_decode\":false,\"do_remote_prefill\":true,\"metaserver\":");
  rd2h_px_put_json(&params, metaserver);
  rd2h_px_puts(&params, "}");
  const struct px_rule rule = {"kv_transfer_params", PX_SET, px_of(&params)};
  rd2h_px_scan_edit(scan, body, &rule, 1, out);
  out->failed |= params.failed;
  rd2h_px_free(&params);
}

void rd2h_px_body_prefill(struct px_span body, const struct px_scan *scan, struct px_span params, int64_t only, struct px_rope *out) {
  struct px_rule rule[8] = {
    {"stream", PX_SET, PX_LIT("false")},
    {"max_tokens", PX_SET, PX_LIT("1")},
    {"min_tokens", PX_SET, PX_LIT("1")},
    {"max_completion_tokens", PX_SET_IF_THERE, PX_LIT("1")},
    {"stream_options", PX_DROP, {NULL, 0}},
    {"kv_transfer_params", PX_SET, params},
  };
  size_t n = 6;
  if (only >= 0)
    rule[n++] = (struct px_rule){"n", PX_SET_IF_THERE, PX_LIT("1")};
  if (only >= 0 && scan->listed)
    rule[n++] = (struct px_rule){"prompt", PX_POINT, rd2h_px_scan_element(scan, body, (size_t)only)};
  rd2h_px_scan_edit(scan, body, rule, n, out);
}
