/* SPDX-License-Identifier: Apache-2.0 */
/* JSON looked at while it comes in: whether it is JSON by RFC 8259 in UTF-8, and where in the outermost object the members lie that will
 * be asked for. Each byte is looked at once, so that no text, however long, takes the loop's time when it is whole. */
#ifndef RD2H_PROXY_SCAN_H
#define RD2H_PROXY_SCAN_H
#include "proxy/json.h"

/* What is noted on the way; constant, lives longer than the scan. */
struct px_scan_plan {
  const char *const *name; /* members of the outermost object; NULL ends them */
  const char *list;        /* one of them (or NULL): where its elements begin, unless the first is a number */
  size_t max_elements;     /* so many are noted; all are counted */
  /* Or NULL: whether an object in the list `in`, one of the names, has a member `key` that is the text `value`. */
  const char *in, *key, *value;
};

/* Places are bytes of the text. */
struct px_member {
  const char *name; /* the plan's */
  size_t lead, key, value, end; /* lead: where the member before it ends */
};

struct px_scan {
  const struct px_scan_plan *plan;
  const char *why; /* what is wrong at `at` */
  size_t at, token;
  uint16_t depth;
  uint8_t state;
  bool final, is_key, deep, found, listed;
  char kind; /* the first byte of the value */
  uint8_t object[PX_JSON_DEPTH / 8];
  const char *base, *name;
  size_t begin, last; /* of the outermost object: behind its {, behind its last member */
  size_t key, value, deep_value, count;
  struct px_buf members, elements; /* struct px_member, size_t */
};

static inline size_t px_members(const struct px_scan *s) {
  return s->members.n / sizeof(struct px_member);
}

static inline const struct px_member *px_member(const struct px_scan *s, size_t i) {
  return (const struct px_member *)(const void *)s->members.p + i;
}

/* plan: NULL when only the form matters. */
void rd2h_px_scan_begin(struct px_scan *s, const struct px_scan_plan *plan);
/* The text, longer than the last time; it may have moved. */
void rd2h_px_scan_more(struct px_scan *s, struct px_span text);
/* It is whole. False: it is no JSON, s->why and s->at say where; or memory ran out. */
bool rd2h_px_scan_end(struct px_scan *s, struct px_span text);
void rd2h_px_scan_free(struct px_scan *s);

/* The last member of that name (one of the plan's), as readers of duplicate keys take it. False when the scan did not end well, too. */
bool rd2h_px_scan_get(const struct px_scan *s, struct px_span text, const char *name, struct px_span *value);
/* One of the elements that were noted. */
struct px_span rd2h_px_scan_element(const struct px_scan *s, struct px_span text, size_t index);

/* ---- rope.c ---- */
/* The object with the rules applied to every member of a name; all other bytes stay, where they are. The text must stay as long as the
 * rope does; what the rules put in is copied. At most 32 rules, their keys among the plan's names. */
struct px_rope {
  struct px_span *part;
  size_t parts, room, n; /* n: bytes */
  struct px_buf own;
  bool failed;
};
void rd2h_px_scan_edit(const struct px_scan *s, struct px_span text, const struct px_rule *rule, size_t n, struct px_rope *out);
void rd2h_px_rope_free(struct px_rope *r);
/* As one text. */
void rd2h_px_rope_put(const struct px_rope *r, struct px_buf *out);
#endif
