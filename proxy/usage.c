/* SPDX-License-Identifier: Apache-2.0 */
/* How much of the prompt came out of a prefix cache is Prefill's knowledge: Decode gets all of it from elsewhere and counts that. So where
 * Decode's answer has the count, it gets Prefill's. */
#include "proxy/flow_inner.h"

#include <stdio.h>

static bool details_of(struct px_span usage, struct px_span *details) {
  return *usage.p == '{' && rd2h_px_json_get(usage, "prompt_tokens_details", details);
}

void rd2h_px_usage_note(struct px_parent *p, const struct px_dispatch *d) {
  struct px_span answer = px_of(&d->leg.answer), usage, details, v;
  uint64_t n;
  /* A continuation's prompt is longer than the client's; of several answers to a prompt one counts. */
  if (p->continuations || (d->child > 0 && d->child % p->ask.n) || !rd2h_px_scan_get(&d->leg.scan, answer, "usage", &usage) ||
      !details_of(usage, &details) || !rd2h_px_json_get(details, "cached_tokens", &v) || !rd2h_px_uint(v, UINT32_MAX, &n))
    return;
  p->cached_known = true;
  p->cached += n;
}

bool rd2h_px_usage_differs(const struct px_parent *p, struct px_span json) {
  return p->cached_known && json.n && memmem(json.p, json.n, "prompt_tokens_details", 21) != NULL;
}

bool rd2h_px_usage_edit(const struct px_parent *p, struct px_span usage, struct px_buf *out) {
  struct px_span details;
  struct px_buf inner = {0};
  char number[24];
  if (!details_of(usage, &details))
    return false;
  snprintf(number, sizeof number, "%llu", (unsigned long long)p->cached);
  struct px_rule rule = {"cached_tokens", PX_SET, px_str(number)};
  rd2h_px_json_edit(*details.p == '{' ? details : PX_LIT("{}"), &rule, 1, &inner);
  rule = (struct px_rule){"prompt_tokens_details", PX_SET, px_of(&inner)};
  rd2h_px_json_edit(usage, &rule, 1, out);
  out->failed |= inner.failed;
  rd2h_px_free(&inner);
  return true;
}

void rd2h_px_usage_write(const struct px_parent *p, struct px_span json, struct px_buf *out) {
  struct px_span usage;
  struct px_buf edited = {0};
  const char *why;
  size_t at;
  if (!rd2h_px_json_check(json, &at, &why) || !rd2h_px_json_get(json, "usage", &usage) || !rd2h_px_usage_edit(p, usage, &edited)) {
    rd2h_px_put(out, json);
    return;
  }
  const struct px_rule rule = {"usage", PX_SET, px_of(&edited)};
  rd2h_px_json_edit(json, &rule, 1, out);
  out->failed |= edited.failed;
  rd2h_px_free(&edited);
}
