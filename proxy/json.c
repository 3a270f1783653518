/* SPDX-License-Identifier: Apache-2.0 */
#include "proxy/json.h"

#include <stdlib.h>

static const char *blanks(const char *p, const char *end) {
  while (p < end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t'))
    p++;
  return p;
}

static int hex_digit(char h) {
  if (h >= '0' && h <= '9')
    return h - '0';
  if (h >= 'a' && h <= 'f')
    return h - 'a' + 10;
  return h >= 'A' && h <= 'F' ? h - 'A' + 10 : -1;
}

/* ---- going over checked text ---- */
static const char *skip_string(const char *p) {
  for (p++; *p != '"'; p++)
    p += *p == '\\';
  return p + 1;
}

static const char *skip_value(const char *p, const char *end) {
  if (*p == '"')
    return skip_string(p);
  if (*p != '{' && *p != '[') {
    while (p < end && !strchr(",]} \t\r\n", *p))
      p++;
    return p;
  }
  for (size_t depth = 0;;) {
    if (*p == '"') {
      p = skip_string(p);
      continue;
    }
    depth += *p == '{' || *p == '[';
    depth -= *p == '}' || *p == ']';
    p++;
    if (depth == 0)
      return p;
  }
}

static struct px_span trim(struct px_span s) {
  const char *p = blanks(s.p, s.p + s.n), *end = s.p + s.n;
  while (end > p && strchr(" \n\r\t", end[-1]))
    end--;
  return (struct px_span){p, (size_t)(end - p)};
}

bool rd2h_px_json_open(struct px_span value, char kind, struct px_json_iter *it) {
  value = trim(value);
  if (value.n < 2 || *value.p != kind)
    return false;
  *it = (struct px_json_iter){value.p + 1, value.p + value.n - 1, kind == '{'};
  return true;
}

bool rd2h_px_json_next(struct px_json_iter *it, struct px_span *key, struct px_span *value) {
  const char *p = blanks(it->p, it->end);
  if (p < it->end && *p == ',')
    p = blanks(p + 1, it->end);
  if (p == it->end)
    return false;
  if (it->object) {
    const char *stop = skip_string(p);
    *key = (struct px_span){p, (size_t)(stop - p)};
    p = blanks(blanks(stop, it->end) + 1, it->end);
  }
  it->p = skip_value(p, it->end);
  *value = (struct px_span){p, (size_t)(it->p - p)};
  return true;
}

static unsigned hex4(const char *p) {
  unsigned v = 0;
  for (int i = 0; i < 4; i++)
    v = v << 4 | (unsigned)hex_digit(p[i]);
  return v;
}

static size_t put_utf8(unsigned cp, char out[4]) {
  static const unsigned char lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
  size_t n = cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
  for (size_t i = n; i-- > 1; cp >>= 6)
    out[i] = (char)(0x80 | (cp & 0x3F));
  out[0] = (char)(lead[n == 1 ? 0 : n] | cp);
  return n;
}

/* Decodes one character at *p, which it moves on; out has room for 4 bytes. */
static size_t decode_char(const char **p, const char *end, char out[4]) {
  static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
  const char *q = *p;
  if (*q != '\\') {
    out[0] = *q;
    *p = q + 1;
    return 1;
  }
  if (q[1] != 'u') {
    out[0] = to[strchr(from, q[1]) - from];
    *p = q + 2;
    return 1;
  }
  unsigned cp = hex4(q + 2), low;
  q += 6;
  if (cp >= 0xD800 && cp <= 0xDBFF && end - q >= 6 && q[0] == '\\' && q[1] == 'u' && (low = hex4(q + 2)) >= 0xDC00 && low <= 0xDFFF) {
    cp = 0x10000 + ((cp - 0xD800) << 10) + (low - 0xDC00);
    q += 6;
  } else if (cp >= 0xD800 && cp <= 0xDFFF) {
    cp = 0xFFFD;
  }
  *p = q;
  return put_utf8(cp, out);
}

bool rd2h_px_json_is(struct px_span token, struct px_span text) {
  if (token.n < 2 || *token.p != '"')
    return false;
  const char *p = token.p + 1, *end = token.p + token.n - 1;
  size_t at = 0;
  char c[4];
  while (p < end) {
    size_t n = decode_char(&p, end, c);
    if (n > text.n - at || memcmp(text.p + at, c, n) != 0)
      return false;
    at += n;
  }
  return at == text.n;
}

bool rd2h_px_json_decode(struct px_span value, struct px_buf *out) {
  if (value.n < 2 || *value.p != '"')
    return false;
  const char *p = value.p + 1, *end = value.p + value.n - 1;
  char c[4];
  while (p < end) {
    const char *stop = memchr(p, '\\', (size_t)(end - p));
    stop = stop ? stop : end;
    rd2h_px_put(out, (struct px_span){p, (size_t)(stop - p)});
    p = stop;
    if (p < end) {
      size_t n = decode_char(&p, end, c);
      rd2h_px_put(out, (struct px_span){c, n});
    }
  }
  return true;
}

bool rd2h_px_json_get(struct px_span object, const char *name, struct px_span *value) {
  struct px_json_iter it;
  struct px_span k, v;
  bool found = false;
  if (!rd2h_px_json_open(object, '{', &it))
    return false;
  while (rd2h_px_json_next(&it, &k, &v))
    if (rd2h_px_json_is(k, px_str(name))) {
      *value = v;
      found = true;
    }
  return found;
}

/* ---- editing ---- */
static const struct px_rule *rule_of(struct px_span key, const struct px_rule *rule, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (rd2h_px_json_is(key, px_str(rule[i].key)))
      return rule + i;
  return NULL;
}

/* The bytes between two members; without its comma for the first one written. */
static void put_lead(struct px_span lead, bool first, struct px_buf *out) {
  const char *comma = first && lead.n ? memchr(lead.p, ',', lead.n) : NULL;
  if (!comma) {
    rd2h_px_put(out, lead);
    return;
  }
  rd2h_px_put(out, (struct px_span){lead.p, (size_t)(comma - lead.p)});
  rd2h_px_put(out, (struct px_span){comma + 1, (size_t)(lead.p + lead.n - comma - 1)});
}

void rd2h_px_json_edit(struct px_span object, const struct px_rule *rule, size_t n, struct px_buf *out) {
  struct px_json_iter it;
  struct px_span key, value;
  uint32_t seen = 0;
  bool first = true;
  if (!rd2h_px_json_open(object, '{', &it)) {
    out->failed = true;
    return;
  }
  const char *from = it.p; /* what is not yet written begins here */
  rd2h_px_put(out, (struct px_span){object.p, (size_t)(from - object.p)});
  while (rd2h_px_json_next(&it, &key, &value)) {
    const struct px_rule *r = rule_of(key, rule, n);
    const char *end = value.p + value.n;
    if (!r || r->how != PX_DROP) {
      put_lead((struct px_span){from, (size_t)(key.p - from)}, first, out);
      rd2h_px_put(out, (struct px_span){key.p, (size_t)(value.p - key.p)});
      rd2h_px_put(out, r ? r->value : value);
      first = false;
    }
    if (r)
      seen |= 1u << (r - rule);
    from = end;
  }
  for (size_t i = 0; i < n; i++)
    if (rule[i].how == PX_SET && !(seen & 1u << i)) {
      rd2h_px_printf(out, "%s\"%s\":", first ? "" : ",", rule[i].key);
      rd2h_px_put(out, rule[i].value);
      first = false;
    }
  rd2h_px_put(out, (struct px_span){from, (size_t)(object.p + object.n - from)});
}

/* ---- errors ---- */
static const char *type_of(int status) {
  static const struct {
    int status;
    const char *type;
  } TYPE[] = {{401, "authentication_error"}, {403, "permission_error"}, {404, "not_found_error"}, {429, "rate_limit_error"}};
  for (size_t i = 0; i < sizeof TYPE / sizeof *TYPE; i++)
    if (TYPE[i].status == status)
      return TYPE[i].type;
  return status >= 500 ? "server_error" : "invalid_request_error";
}

void rd2h_px_error_body(struct px_buf *out, int status, struct px_span message) {
  rd2h_px_puts(out, "{\"error\":{\"message\":");
  rd2h_px_put_json(out, message);
  rd2h_px_printf(out, ",\"type\":\"%s\",\"param\":null,\"code\":%d}}", type_of(status), status);
}
