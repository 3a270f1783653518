/* SPDX-License-Identifier: Apache-2.0 */
#include "layout/layout.h"
#include "layout/names.h"

bool rd2h_name_is_indexer(const char *name) {
  return strcasestr(name, "indexer") != NULL;
}

static bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

uint32_t rd2h_name_number(const char *name) {
  static const char mark[] = "layers.";
  const char *p = name;
  while ((p = strstr(p, mark)) && !is_digit(p[sizeof mark - 1]))
    p++;
  if (!p)
    return RD2H_NONE;
  uint64_t n = 0;
  for (p += sizeof mark - 1; is_digit(*p) && n <= INT32_MAX; p++)
    n = n * 10 + (uint64_t)(*p - '0');
  return n <= INT32_MAX ? (uint32_t)n : RD2H_NONE;
}

int rd2h_layout_groups(const char *const *names, const uint32_t *counts, uint32_t n_groups, uint32_t *main_group,
                       uint32_t *indexer_group, struct rd2h_error *err) {
  uint32_t main_at = RD2H_NONE, indexer_at = RD2H_NONE;
  const char *const *name = names;
  for (uint32_t g = 0; g < n_groups; g++)
    for (uint32_t i = 0; i < counts[g]; i++, name++) {
      uint32_t *at = rd2h_name_is_indexer(*name) ? &indexer_at : &main_at;
      if (*at == RD2H_NONE)
        *at = g;
    }
  if (main_at == RD2H_NONE)
    return rd2h_fail(err, RD2H_INVALID, "none of the %u KV cache groups holds a main layer%s", n_groups,
                     indexer_at == RD2H_NONE ? ": they name no layer at all" : ": all names contain \"indexer\"");
  *main_group = main_at;
  *indexer_group = indexer_at == RD2H_NONE ? main_at : indexer_at;
  return RD2H_OK;
}
