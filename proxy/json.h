/* SPDX-License-Identifier: Apache-2.0 */
/* JSON as spans of its own text. Bodies pass through byte for byte: a number is never rewritten, an unknown key never lost. A text
 * is checked once, whole; everything below that takes a value relies on it. */
#ifndef RD2H_PROXY_JSON_H
#define RD2H_PROXY_JSON_H
#include "proxy/text.h"

#define PX_JSON_DEPTH 256 /* nested arrays and objects; deeper text is refused */

/* Whether the text is one JSON value by RFC 8259 in UTF-8 (blanks around it allowed). *why: what is wrong at byte *at. (scan.c) */
bool rd2h_px_json_check(struct px_span text, size_t *at, const char **why);

/* Goes over the members of an object or the elements of an array. */
struct px_json_iter {
  const char *p, *end;
  bool object;
};
/* kind: '{' or '['; false when the value is something else. */
bool rd2h_px_json_open(struct px_span value, char kind, struct px_json_iter *it);
/* key: with its quotes, unset in an array. */
bool rd2h_px_json_next(struct px_json_iter *it, struct px_span *key, struct px_span *value);

/* A string token (with quotes) against a text, after decoding. */
bool rd2h_px_json_is(struct px_span token, struct px_span text);
/* Adds the decoded string; lone surrogates become U+FFFD. False when the value is no string. */
bool rd2h_px_json_decode(struct px_span value, struct px_buf *out);
/* The last member of that name, as readers of duplicate keys take it. */
bool rd2h_px_json_get(struct px_span object, const char *name, struct px_span *value);

enum px_how {
  PX_SET,        /* replaced, added when it is not there */
  PX_SET_IF_THERE,
  PX_POINT, /* the same, by bytes of the text itself; for ropes, which do not copy them */
  PX_DROP,
};
struct px_rule {
  const char *key;
  enum px_how how;
  struct px_span value;
};
/* Writes the object with the rules applied to every member of that name; all other bytes stay. At most 32 rules. */
void rd2h_px_json_edit(struct px_span object, const struct px_rule *rule, size_t n, struct px_buf *out);

/* {"error":{...}} in OpenAI's form. */
void rd2h_px_error_body(struct px_buf *out, int status, struct px_span message);
#endif
