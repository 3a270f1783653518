/* SPDX-License-Identifier: Apache-2.0 */
#include "proxy/scan.h"

#include <stdlib.h>

enum { MAX_MEMBERS = 64 }; /* noted of one text; more than that are copies of each other */
enum state { VALUE, IN_ARRAY, IN_OBJECT, KEY, COLON, STRING, MINUS, ZERO, INTEGER, POINT, FRACTION, EXP, EXP_SIGN, EXP_DIGITS, AFTER, END,
             WRONG };

/* Takes what it can of p..end and returns what it did not take. Nothing taken and the same state: it needs more bytes. */
typedef const char *step(struct px_scan *s, const char *p, const char *end);

static const char *blanks(const char *p, const char *end) {
  while (p < end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t'))
    p++;
  return p;
}

static const char *wrong(struct px_scan *s, const char *at, const char *why) {
  s->state = WRONG;
  s->why = why;
  return at;
}

static const char *wrong_token(struct px_scan *s, const char *why) {
  return wrong(s, s->base + s->token, why);
}

static bool in_object(const struct px_scan *s, unsigned depth) {
  return s->object[(depth - 1) / 8] >> (depth - 1) % 8 & 1;
}

/* ---- what is noted ---- */
static const char *name_of(const struct px_scan *s, struct px_span key) {
  for (const char *const *name = s->plan ? s->plan->name : NULL; name && *name; name++)
    if (rd2h_px_json_is(key, px_str(*name)))
      return *name;
  return NULL;
}

/* Whether the member being read is the plan's list of that name. */
static bool inside(const struct px_scan *s, const char *list) {
  return s->name && list && strcmp(s->name, list) == 0 && in_object(s, 1) && s->depth > 1 && !in_object(s, 2);
}

static void note_key(struct px_scan *s, const char *stop) {
  struct px_span key = {s->base + s->token, (size_t)(stop - s->base) - s->token};
  if (s->depth == 1) {
    s->key = s->token;
    s->name = name_of(s, key);
    if (s->name && s->plan->list && strcmp(s->name, s->plan->list) == 0) {
      s->count = 0;
      s->listed = false;
      rd2h_px_clear(&s->elements);
    }
  } else if (s->depth == 3 && s->plan && inside(s, s->plan->in)) {
    s->deep = rd2h_px_json_is(key, px_str(s->plan->key));
  }
}

static void note_element(struct px_scan *s, const char *p, size_t at) {
  if (s->count == 0)
    s->listed = *p == '"' || *p == '[' || *p == '{';
  if (s->listed && s->count < s->plan->max_elements)
    rd2h_px_put(&s->elements, (struct px_span){(const char *)&at, sizeof at});
  s->count++;
}

static void note_value(struct px_scan *s, const char *p) {
  size_t at = (size_t)(p - s->base);
  if (s->depth == 0)
    s->kind = *p;
  else if (s->depth == 1)
    s->value = at;
  else if (s->depth == 2 && s->plan && inside(s, s->plan->list))
    note_element(s, p, at);
  else if (s->depth == 3 && s->deep)
    s->deep_value = at;
}

static const char *value_end(struct px_scan *s, const char *p) {
  size_t at = (size_t)(p - s->base);
  s->state = s->depth ? AFTER : END;
  if (s->depth == 1 && in_object(s, 1)) {
    const struct px_member m = {s->name, s->last, s->key, s->value, at};
    if (s->name && s->members.n >= MAX_MEMBERS * sizeof m)
      return wrong(s, p, "its members are there too often");
    if (s->name)
      rd2h_px_put(&s->members, (struct px_span){(const char *)&m, sizeof m});
    s->name = NULL;
    s->last = at;
  } else if (s->depth == 3 && s->deep) {
    s->found = s->found || rd2h_px_json_is((struct px_span){s->base + s->deep_value, at - s->deep_value}, px_str(s->plan->value));
    s->deep = false;
  }
  return p;
}

/* ---- containers ---- */
static const char *push(struct px_scan *s, bool object, const char *p) {
  if (s->depth == PX_JSON_DEPTH)
    return wrong(s, p, "values are nested too deep");
  uint8_t bit = (uint8_t)(1u << s->depth % 8), *byte = s->object + s->depth / 8;
  *byte = (uint8_t)(object ? *byte | bit : *byte & ~bit);
  s->depth++;
  s->state = object ? KEY : VALUE;
  return p;
}

static const char *step_in_array(struct px_scan *s, const char *p, const char *end) {
  p = blanks(p, end);
  if (p == end)
    return p;
  return *p == ']' ? value_end(s, p + 1) : push(s, false, p);
}

static const char *step_in_object(struct px_scan *s, const char *p, const char *end) {
  p = blanks(p, end);
  if (p == end)
    return p;
  return *p == '}' ? value_end(s, p + 1) : push(s, true, p);
}

static const char *step_key(struct px_scan *s, const char *p, const char *end) {
  p = blanks(p, end);
  if (p == end)
    return p;
  if (*p != '"')
    return wrong(s, p, "a key in quotes is expected");
  s->token = (size_t)(p - s->base);
  s->is_key = true;
  s->state = STRING;
  return p + 1;
}

static const char *step_colon(struct px_scan *s, const char *p, const char *end) {
  p = blanks(p, end);
  if (p == end)
    return p;
  if (*p != ':')
    return wrong(s, p, "a colon is expected");
  s->state = VALUE;
  return p + 1;
}

static const char *step_after(struct px_scan *s, const char *p, const char *end) {
  bool object = in_object(s, s->depth);
  p = blanks(p, end);
  if (p == end)
    return p;
  if (*p == ',') {
    s->state = object ? KEY : VALUE;
    return p + 1;
  }
  if (*p != (object ? '}' : ']'))
    return wrong(s, p, object ? "a comma or } is expected" : "a comma or ] is expected");
  s->depth--;
  return value_end(s, p + 1);
}

static const char *step_end(struct px_scan *s, const char *p, const char *end) {
  p = blanks(p, end);
  return p == end ? p : wrong(s, p, "something follows the value");
}

/* ---- values ---- */
static const char *word(struct px_scan *s, const char *p, const char *end) {
  static const struct px_span WORD[] = {{"true", 4}, {"false", 5}, {"null", 4}};
  size_t n = (size_t)(end - p);
  for (size_t i = 0; i < sizeof WORD / sizeof *WORD; i++) {
    size_t have = n < WORD[i].n ? n : WORD[i].n;
    if (memcmp(p, WORD[i].p, have) != 0)
      continue;
    if (have < WORD[i].n && !s->final)
      return p;
    if (have < WORD[i].n)
      break;
    note_value(s, p);
    return value_end(s, p + have);
  }
  return wrong(s, p, "a value is expected");
}

static const char *step_value(struct px_scan *s, const char *p, const char *end) {
  p = blanks(p, end);
  if (p == end)
    return p;
  bool digit = *p >= '0' && *p <= '9';
  enum state next = *p == '{' ? IN_OBJECT : *p == '[' ? IN_ARRAY : *p == '"' ? STRING : *p == '-' ? MINUS : *p == '0' ? ZERO : INTEGER;
  if (next == INTEGER && !digit)
    return word(s, p, end);
  s->token = (size_t)(p - s->base);
  note_value(s, p);
  s->is_key = false;
  s->state = next;
  if (s->depth == 0)
    s->begin = s->last = s->token + 1;
  return p + 1;
}

/* ---- strings ---- */
/* p: at a backslash. Returns what follows the escape, p: it needs more. */
static const char *escape(struct px_scan *s, const char *p, const char *end) {
  size_t n = (size_t)(end - p);
  if (n < 2 || (p[1] == 'u' && n < 6))
    return s->final ? wrong_token(s, "a string does not end") : p;
  if (p[1] && strchr("\"\\/bfnrt", p[1]))
    return p + 2;
  if (p[1] != 'u')
    return wrong(s, p + 1, "a string has an unknown escape");
  for (int i = 2; i < 6; i++) {
    char c = (char)(p[i] | 0x20);
    if (!(p[i] >= '0' && p[i] <= '9') && !(c >= 'a' && c <= 'f'))
      return wrong(s, p + 1, "\\u needs four hex digits");
  }
  return p + 6;
}

static const char *string_end(struct px_scan *s, const char *p) {
  if (!s->is_key)
    return value_end(s, p);
  note_key(s, p);
  s->state = COLON;
  return p;
}

/* Eight bytes at a time, past those that stand for themselves. */
static const char *plain(const char *p, const char *end) {
  const uint64_t ones = 0x0101010101010101u, high = 0x8080808080808080u;
  for (uint64_t v; end - p >= 8; p += 8) {
    memcpy(&v, p, 8);
    uint64_t quote = v ^ ones * '"', slash = v ^ ones * '\\';
    if ((v | (v - ones * 0x20) | ((quote - ones) & ~quote) | ((slash - ones) & ~slash)) & high)
      break;
  }
  return p;
}

static const char *step_string(struct px_scan *s, const char *p, const char *end) {
  while ((p = plain(p, end)) < end) {
    unsigned char c = (unsigned char)*p;
    const char *from = p;
    if (c == '"')
      return string_end(s, p + 1);
    if (c == '\\') {
      p = escape(s, p, end);
      if (p == from || s->state == WRONG)
        return p;
    } else if (c < 0x20) {
      return wrong(s, p, "a string has a control character");
    } else if (c < 0x80) {
      p++;
    } else {
      size_t n = rd2h_px_utf8(p, end);
      if (n == 0)
        return end - p < 4 && !s->final ? p : wrong(s, p, "a string is not UTF-8");
      p += n;
    }
  }
  return p;
}

/* ---- numbers ---- */
static bool digit_at(const char *p) {
  return *p >= '0' && *p <= '9';
}

static const char *digits(const char *p, const char *end) {
  while (p < end && digit_at(p))
    p++;
  return p;
}

static const char *step_minus(struct px_scan *s, const char *p, const char *end) {
  (void)end;
  if (!digit_at(p))
    return wrong_token(s, "a value is expected");
  s->state = *p == '0' ? ZERO : INTEGER;
  return p + 1;
}

/* Behind the digits of the whole part or of a fraction. */
static const char *behind(struct px_scan *s, const char *p, bool point) {
  bool exp = *p == 'e' || *p == 'E';
  if (!exp && !(point && *p == '.'))
    return value_end(s, p);
  s->state = exp ? EXP : POINT;
  return p + 1;
}

static const char *step_zero(struct px_scan *s, const char *p, const char *end) {
  (void)end;
  return digit_at(p) ? wrong_token(s, "a value is expected") : behind(s, p, true);
}

static const char *step_integer(struct px_scan *s, const char *p, const char *end) {
  p = digits(p, end);
  return p == end ? p : behind(s, p, true);
}

static const char *step_point(struct px_scan *s, const char *p, const char *end) {
  (void)end;
  if (!digit_at(p))
    return wrong_token(s, "a number has no digits behind its point");
  s->state = FRACTION;
  return p;
}

static const char *step_fraction(struct px_scan *s, const char *p, const char *end) {
  p = digits(p, end);
  return p == end ? p : behind(s, p, false);
}

static const char *step_exp(struct px_scan *s, const char *p, const char *end) {
  (void)end;
  s->state = EXP_SIGN;
  return p + (*p == '+' || *p == '-');
}

static const char *step_exp_sign(struct px_scan *s, const char *p, const char *end) {
  (void)end;
  if (!digit_at(p))
    return wrong_token(s, "a number has an empty exponent");
  s->state = EXP_DIGITS;
  return p;
}

static const char *step_exp_digits(struct px_scan *s, const char *p, const char *end) {
  p = digits(p, end);
  return p == end ? p : value_end(s, p);
}

/* ---- the whole ---- */
static step *const STEP[] = {
  [VALUE] = step_value, [IN_ARRAY] = step_in_array, [IN_OBJECT] = step_in_object, [KEY] = step_key, [COLON] = step_colon,
  [STRING] = step_string, [MINUS] = step_minus, [ZERO] = step_zero, [INTEGER] = step_integer, [POINT] = step_point,
  [FRACTION] = step_fraction, [EXP] = step_exp, [EXP_SIGN] = step_exp_sign, [EXP_DIGITS] = step_exp_digits, [AFTER] = step_after,
  [END] = step_end,
};

void rd2h_px_scan_begin(struct px_scan *s, const struct px_scan_plan *plan) {
  rd2h_px_scan_free(s);
  s->plan = plan;
}

void rd2h_px_scan_free(struct px_scan *s) {
  rd2h_px_free(&s->members);
  rd2h_px_free(&s->elements);
  *s = (struct px_scan){0};
}

void rd2h_px_scan_more(struct px_scan *s, struct px_span text) {
  if (text.n == 0)
    return;
  const char *p = text.p + s->at, *end = text.p + text.n, *from = NULL;
  unsigned state = WRONG;
  s->base = text.p;
  while (p < end && s->state != WRONG && (p != from || s->state != state)) {
    from = p;
    state = s->state;
    p = STEP[state](s, p, end);
  }
  s->at = (size_t)(p - text.p);
  s->base = NULL;
}

static bool is_number(unsigned state) {
  return state == ZERO || state == INTEGER || state == FRACTION || state == EXP_DIGITS;
}

bool rd2h_px_scan_end(struct px_scan *s, struct px_span text) {
  s->final = true;
  rd2h_px_scan_more(s, text);
  if (s->depth == 0 && is_number(s->state))
    s->state = END;
  if (s->state == END && !s->members.failed && !s->elements.failed)
    return true;
  if (s->state == END)
    s->why = "memory ran out";
  else if (s->state == STRING) {
    s->at = s->token;
    s->why = "a string does not end";
  } else if (s->state != WRONG)
    s->why = text.n ? "the text ends too early" : "the text is empty";
  s->state = WRONG;
  return false;
}

bool rd2h_px_json_check(struct px_span text, size_t *at, const char **why) {
  struct px_scan s = {0};
  bool good = rd2h_px_scan_end(&s, text);
  if (!good) {
    *at = s.at;
    *why = s.why;
  }
  return good;
}

/* ---- asking ---- */
bool rd2h_px_scan_get(const struct px_scan *s, struct px_span text, const char *name, struct px_span *value) {
  for (size_t i = s->why ? 0 : px_members(s); i-- > 0;) {
    const struct px_member *m = px_member(s, i);
    if (strcmp(m->name, name) != 0)
      continue;
    *value = (struct px_span){text.p + m->value, m->end - m->value};
    return true;
  }
  return false;
}

struct px_span rd2h_px_scan_element(const struct px_scan *s, struct px_span text, size_t index) {
  const size_t *at = (const size_t *)(const void *)s->elements.p;
  struct px_span value, k, v = {NULL, 0};
  struct px_json_iter it = {0};
  if (index < s->elements.n / sizeof *at && rd2h_px_scan_get(s, text, s->plan->list, &value)) {
    it.p = text.p + at[index];
    it.end = value.p + value.n - 1;
    rd2h_px_json_next(&it, &k, &v);
  }
  return v;
}
