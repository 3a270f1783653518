/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies for engines as pieces of the client's, with what is put in between: nothing large is copied, however often it is sent. */
#include "proxy/scan.h"

#include <stdlib.h>
static void put_part(struct px_rope *r, struct px_span s) {
  struct px_span *last = r->parts ? r->part + r->parts - 1 : NULL;
  if (s.n == 0 || r->failed)
    return;
  r->n += s.n;
  if (last && last->p + last->n == s.p) {
    last->n += s.n;
    return;
  }
  if (r->parts == r->room) {
    size_t room = r->room ? 2 * r->room : 8;
    struct px_span *part = realloc(r->part, room * sizeof *part);
    if (!part) {
      r->failed = true;
      return;
    }
    r->part = part;
    r->room = room;
  }
  r->part[r->parts++] = s;
}

static void put_own(struct px_rope *r, struct px_span s) {
  size_t at = r->own.n;
  rd2h_px_put(&r->own, s);
  put_part(r, (struct px_span){r->own.p + at, s.n});
}

static void put_value(struct px_rope *r, const struct px_rule *rule) {
  if (rule->how == PX_POINT)
    put_part(r, rule->value);
  else
    put_own(r, rule->value);
}

static const struct px_rule *rule_of(const char *name, const struct px_rule *rule, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (strcmp(name, rule[i].key) == 0)
      return rule + i;
  return NULL;
}

/* Parts keep pointers into it, so it has its size from the beginning. False: memory ran out. */
static bool make_own(const struct px_scan *s, const struct px_rule *rule, size_t n, struct px_rope *out) {
  size_t bytes = 1;
  for (size_t i = 0; i < n; i++)
    bytes += (rule[i].how == PX_POINT ? 0 : rule[i].value.n) + strlen(rule[i].key) + 4;
  for (size_t i = 0; i < px_members(s); i++) {
    const struct px_rule *r = rule_of(px_member(s, i)->name, rule, n);
    bytes += r && r->how != PX_POINT ? r->value.n : 0;
  }
  out->own = (struct px_buf){.p = malloc(bytes), .room = bytes};
  return out->own.p != NULL;
}

/* A stretch of members with the comma before them, but for the first that is written. */
static void put_members(struct px_rope *r, struct px_span text, size_t from, size_t to, bool *first) {
  const char *p = text.p + from, *end = text.p + to, *at = p;
  if (from == to)
    return;
  while (at < end && strchr(" \n\r\t", *at))
    at++;
  if (*first && at < end && *at == ',') {
    put_part(r, (struct px_span){p, (size_t)(at - p)});
    p = at + 1;
  }
  put_part(r, (struct px_span){p, (size_t)(end - p)});
  *first = false;
}

void rd2h_px_scan_edit(const struct px_scan *s, struct px_span text, const struct px_rule *rule, size_t n, struct px_rope *out) {
  size_t from = s->begin; /* what is not yet written begins here */
  uint32_t seen = 0;
  bool first = true;
  rd2h_px_rope_free(out);
  if (s->kind != '{' || !make_own(s, rule, n, out)) {
    out->failed = true;
    return;
  }
  put_part(out, (struct px_span){text.p, from});
  for (size_t i = 0; i < px_members(s); i++) {
    const struct px_member *m = px_member(s, i);
    const struct px_rule *r = rule_of(m->name, rule, n);
    if (!r)
      continue;
    put_members(out, text, from, m->lead, &first);
    if (r->how != PX_DROP) {
      put_members(out, text, m->lead, m->value, &first);
      put_value(out, r);
    }
    seen |= 1u << (r - rule);
    from = m->end;
  }
  put_members(out, text, from, s->last, &first);
  for (size_t i = 0; i < n; i++)
    if (rule[i].how == PX_SET && !(seen & 1u << i)) {
      put_own(out, first ? PX_LIT("\"") : PX_LIT(",\""));
      put_own(out, px_str(rule[i].key));
      put_own(out, PX_LIT("\":"));
      put_value(out, rule + i);
      first = false;
    }
  put_part(out, (struct px_span){text.p + s->last, text.n - s->last});
}

void rd2h_px_rope_free(struct px_rope *r) {
  free(r->part);
  rd2h_px_free(&r->own);
  *r = (struct px_rope){0};
}

void rd2h_px_rope_put(const struct px_rope *r, struct px_buf *out) {
  for (size_t i = 0; i < r->parts; i++)
    rd2h_px_put(out, r->part[i]);
  out->failed |= r->failed;
}
