/* SPDX-License-Identifier: Apache-2.0 */
#include "proxy/body.h"

static uint32_t small_number(struct px_span v, uint32_t otherwise) {
  uint64_t n;
  return rd2h_px_uint(v, UINT32_MAX, &n) && n > 0 ? (uint32_t)n : otherwise;
}

/* [1, 2, 3] is one prompt of tokens; ["a", "b"] and [[1], [2]] are two prompts. */
static bool is_list(struct px_span prompt) {
  struct px_json_iter it;
  struct px_span k, v;
  return rd2h_px_json_open(prompt, '[', &it) && rd2h_px_json_next(&it, &k, &v) && (*v.p == '"' || *v.p == '[' || *v.p == '{');
}

int rd2h_px_ask_read(struct px_span body, enum px_api api, uint32_t max_children, struct px_ask *out, struct px_buf *why) {
  struct px_json_iter it;
  struct px_span v;
  const char *text;
  size_t at;
  if (!rd2h_px_json_check(body, &at, &text)) {
    rd2h_px_printf(why, "the body is not JSON: %s at byte %zu", text, at);
    return 400;
  }
  if (!rd2h_px_json_open(body, '{', &it)) {
    rd2h_px_puts(why, "the body must be a JSON object");
    return 400;
  }
  *out = (struct px_ask){.api = api, .prompts = 1, .n = 1};
  out->stream = rd2h_px_json_get(body, "stream", &v) && px_equal(v, PX_LIT("true"));
  if (rd2h_px_json_get(body, "n", &v))
    out->n = small_number(v, 1);
  size_t prompts = 1;
  if (api == PX_COMPLETIONS && rd2h_px_json_get(body, "prompt", &v) && is_list(v)) {
    out->list = true;
    prompts = rd2h_px_json_count(v);
  }
  if (prompts > max_children || out->n > max_children / prompts) {
    rd2h_px_printf(why, "%zu prompts with %u answers each are more than this proxy's limit of %u; send fewer in one request, or raise "
                   "max-children", prompts, out->n, max_children);
    return 400;
  }
  out->prompts = (uint32_t)prompts;
  return 0;
}

void rd2h_px_body_decode(struct px_span body, struct px_span metaserver, struct px_buf *out) {
  struct px_buf params = {0};
  rd2h_px_puts(&params, "{\"do_remote_decode\":false,\"do_remote_prefill\":true,\"metaserver\":");
  rd2h_px_put_json(&params, metaserver);
  rd2h_px_puts(&params, "}");
  const struct px_rule rule = {"kv_transfer_params", PX_SET, px_of(&params)};
  rd2h_px_json_edit(body, &rule, 1, out);
  out->failed |= params.failed;
  rd2h_px_free(&params);
}

/* One prompt of a list; the prompt itself when it is none. */
static struct px_span element(struct px_span body, int64_t index) {
  struct px_json_iter it;
  struct px_span k, v = {NULL, 0};
  if (rd2h_px_json_get(body, "prompt", &v) && is_list(v) && rd2h_px_json_open(v, '[', &it))
    while (index-- >= 0 && rd2h_px_json_next(&it, &k, &v))
      continue;
  return v;
}

void rd2h_px_body_prefill(struct px_span body, struct px_span params, int64_t only, struct px_buf *out) {
  struct px_rule rule[8] = {
    {"stream", PX_SET, PX_LIT("false")},
    {"max_tokens", PX_SET, PX_LIT("1")},
    {"min_tokens", PX_SET, PX_LIT("1")},
    {"max_completion_tokens", PX_SET_IF_THERE, PX_LIT("1")},
    {"stream_options", PX_DROP, {NULL, 0}},
    {"kv_transfer_params", PX_SET, params},
  };
  size_t n = 6;
  if (only >= 0) {
    rule[n++] = (struct px_rule){"n", PX_SET_IF_THERE, PX_LIT("1")};
    rule[n++] = (struct px_rule){"prompt", PX_SET_IF_THERE, element(body, only)};
  }
  rd2h_px_json_edit(body, rule, n, out);
}
