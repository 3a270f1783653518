/* SPDX-License-Identifier: Apache-2.0 */
#include "proxy/head.h"

enum { MAX_METHOD = 16, MAX_SIZE_DIGITS = 8, MAX_EXTENSION = 256, MAX_TRAILERS = 8 << 10 };

static bool token_char(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c && strchr("!#$%&'*+-.^_`|~", c));
}

static bool all(struct px_span s, bool (*good)(char)) {
  for (size_t i = 0; i < s.n; i++)
    if (!good(s.p[i]))
      return false;
  return true;
}

static bool value_char(char c) {
  return c == '\t' || ((unsigned char)c >= 0x20 && c != 0x7F);
}

static bool visible(char c) {
  return c > 0x20 && c < 0x7F;
}

/* The next line without its CRLF; false when there is none, or a CR or LF stands elsewhere. */
static bool next_line(struct px_span *text, struct px_span *line) {
  const char *lf = text->n ? memchr(text->p, '\n', text->n) : NULL;
  if (!lf || lf == text->p || lf[-1] != '\r')
    return false;
  *line = (struct px_span){text->p, (size_t)(lf - 1 - text->p)};
  text->n -= (size_t)(lf + 1 - text->p);
  text->p = lf + 1;
  return !line->n || !memchr(line->p, '\r', line->n);
}

static int bad(int status, const char *text, const char **why) {
  *why = text;
  return status;
}

static int read_request_line(struct px_span line, struct px_head *h, const char **why) {
  const char *end = line.p + line.n, *a = memchr(line.p, ' ', line.n);
  const char *b = a ? memchr(a + 1, ' ', (size_t)(end - a - 1)) : NULL;
  if (!b)
    return bad(400, "the request line needs a method, a target and a version", why);
  h->method = (struct px_span){line.p, (size_t)(a - line.p)};
  h->target = (struct px_span){a + 1, (size_t)(b - a - 1)};
  struct px_span version = {b + 1, (size_t)(end - b - 1)};
  if (h->method.n == 0 || h->method.n > MAX_METHOD || !all(h->method, token_char))
    return bad(400, "the method is not a token", why);
  if (h->target.n == 0 || *h->target.p != '/' || !all(h->target, visible))
    return bad(400, "the target must begin with / and have visible characters only", why);
  if (version.n != 8 || memcmp(version.p, "HTTP/", 5) != 0)
    return bad(400, "the request line does not end with a version", why);
  if (!px_equal(version, PX_LIT("HTTP/1.1")) && !px_equal(version, PX_LIT("HTTP/1.0")))
    return bad(505, "HTTP/1.1 and HTTP/1.0 are served here", why);
  h->http10 = version.p[7] == '0';
  return 0;
}

static struct px_span trim(struct px_span s) {
  for (; s.n && (*s.p == ' ' || *s.p == '\t'); s.n--)
    s.p++;
  while (s.n && (s.p[s.n - 1] == ' ' || s.p[s.n - 1] == '\t'))
    s.n--;
  return s;
}

static int read_header(struct px_span line, struct px_head *h, const char **why) {
  const char *colon = line.n ? memchr(line.p, ':', line.n) : NULL;
  if (!colon || colon == line.p)
    return bad(400, "a header line needs a name and a colon", why);
  struct px_span name = {line.p, (size_t)(colon - line.p)}, value = {colon + 1, (size_t)(line.p + line.n - colon - 1)};
  if (!all(name, token_char)) /* a folded line and a blank before the colon, too */
    return bad(400, "a header's name is not a token", why);
  value = trim(value);
  if (!all(value, value_char))
    return bad(400, "a header's value has a control character", why);
  if (h->n == PX_MAX_HEADERS)
    return bad(431, "too many headers", why);
  h->header[h->n++] = (struct px_header){name, value};
  return 0;
}

bool rd2h_px_lists(struct px_span v, struct px_span word) {
  while (v.n) {
    const char *comma = memchr(v.p, ',', v.n);
    struct px_span one = {v.p, comma ? (size_t)(comma - v.p) : v.n};
    v.p += one.n + (comma != NULL);
    v.n -= one.n + (comma != NULL);
    if (rd2h_px_equal_nocase(trim(one), word))
      return true;
  }
  return false;
}

/* ---- what the headers mean for framing ---- */
struct seen {
  unsigned host, length, coding;
};

static int on_host(struct px_span v, struct px_head *h, struct seen *s, const char **why) {
  (void)h;
  if (s->host++ || !all(v, visible))
    return bad(400, "one Host is expected", why);
  return 0;
}

static int on_length(struct px_span v, struct px_head *h, struct seen *s, const char **why) {
  if (s->length++)
    return bad(400, "Content-Length is there twice", why);
  if (!rd2h_px_uint(v, UINT64_MAX >> 2, &h->length))
    return bad(400, "Content-Length must be digits only", why);
  return 0;
}

static int on_coding(struct px_span v, struct px_head *h, struct seen *s, const char **why) {
  if (s->coding++)
    return bad(400, "Transfer-Encoding is there twice", why);
  if (!rd2h_px_equal_nocase(v, PX_LIT("chunked")))
    return bad(501, "of the transfer codings only chunked is served", why);
  h->chunked = true;
  return 0;
}

static int on_connection(struct px_span v, struct px_head *h, struct seen *s, const char **why) {
  (void)s, (void)why;
  if (rd2h_px_lists(v, PX_LIT("close")))
    h->keep_alive = false;
  else if (h->http10 && rd2h_px_lists(v, PX_LIT("keep-alive")))
    h->keep_alive = true;
  return 0;
}

static int on_expect(struct px_span v, struct px_head *h, struct seen *s, const char **why) {
  (void)s;
  if (!rd2h_px_equal_nocase(v, PX_LIT("100-continue")))
    return bad(417, "of expectations only 100-continue is met", why);
  h->expect = !h->http10;
  return 0;
}

static const struct {
  const char *name;
  int (*take)(struct px_span v, struct px_head *h, struct seen *s, const char **why);
} FRAMING[] = {
  {"host", on_host},   {"content-length", on_length}, {"transfer-encoding", on_coding}, {"connection", on_connection},
  {"expect", on_expect},
};

static int read_framing(struct px_head *h, const char **why) {
  struct seen s = {0};
  h->keep_alive = !h->http10;
  for (size_t i = 0; i < h->n; i++)
    for (size_t k = 0; k < sizeof FRAMING / sizeof *FRAMING; k++)
      if (rd2h_px_equal_nocase(h->header[i].name, px_str(FRAMING[k].name))) {
        int status = FRAMING[k].take(h->header[i].value, h, &s, why);
        if (status)
          return status;
      }
  if (!h->http10 && s.host != 1)
    return bad(400, "one Host is expected", why);
  if (s.length && s.coding)
    return bad(400, "Content-Length beside Transfer-Encoding", why);
  if (s.coding && h->http10)
    return bad(400, "HTTP/1.0 has no transfer codings", why);
  return 0;
}

int rd2h_px_head_read(struct px_span text, struct px_head *out, const char **why) {
  struct px_span line;
  out->n = 0;
  out->length = 0;
  out->http10 = out->keep_alive = out->chunked = out->expect = false;
  if (!next_line(&text, &line))
    return bad(400, "lines must end with CR LF", why);
  int status = read_request_line(line, out, why);
  while (!status) {
    if (!next_line(&text, &line))
      return bad(400, "lines must end with CR LF", why);
    if (line.n == 0)
      return read_framing(out, why);
    status = read_header(line, out, why);
  }
  return status;
}

struct px_span rd2h_px_head_get(const struct px_head *h, const char *name) {
  for (size_t i = 0; i < h->n; i++)
    if (rd2h_px_equal_nocase(h->header[i].name, px_str(name)))
      return h->header[i].value;
  return (struct px_span){NULL, 0};
}

/* ---- answers ---- */
static bool read_status_line(struct px_span line, struct px_head *h, int *status) {
  uint64_t n;
  if (line.n < 12 || memcmp(line.p, "HTTP/1.", 7) != 0 || (line.p[7] != '0' && line.p[7] != '1') || line.p[8] != ' ' ||
      (line.n > 12 && line.p[12] != ' ') || !rd2h_px_uint((struct px_span){line.p + 9, 3}, 599, &n) || n < 100)
    return false;
  h->http10 = line.p[7] == '0';
  *status = (int)n;
  return true;
}

static const struct {
  const char *name;
  int (*take)(struct px_span v, struct px_head *h, struct seen *s, const char **why);
} ANSWER_FRAMING[] = {{"content-length", on_length}, {"transfer-encoding", on_coding}, {"connection", on_connection}};

static bool answer_framing(struct px_head *h, struct px_answer *out, const char **why) {
  struct seen s = {0};
  h->keep_alive = !h->http10;
  for (size_t i = 0; i < h->n; i++)
    for (size_t k = 0; k < sizeof ANSWER_FRAMING / sizeof *ANSWER_FRAMING; k++)
      if (rd2h_px_equal_nocase(h->header[i].name, px_str(ANSWER_FRAMING[k].name)) &&
          ANSWER_FRAMING[k].take(h->header[i].value, h, &s, why))
        return false;
  *why = "Content-Length beside Transfer-Encoding";
  if (s.length && s.coding)
    return false;
  bool bare = out->status < 200 || out->status == 204 || out->status == 304;
  out->chunked = h->chunked && !bare;
  out->length = bare ? 0 : h->length;
  out->until_close = !bare && !s.length && !s.coding;
  out->keep_alive = h->keep_alive && !out->until_close;
  return true;
}

bool rd2h_px_answer_read(struct px_span text, struct px_answer *out, const char **why) {
  struct px_head h = {.n = 0};
  struct px_span line;
  *why = "no HTTP/1.1 or 1.0 status line";
  if (!next_line(&text, &line) || !read_status_line(line, &h, &out->status))
    return false;
  for (;;) {
    *why = "lines must end with CR LF";
    if (!next_line(&text, &line))
      return false;
    if (line.n == 0)
      break;
    if (read_header(line, &h, why))
      return false;
  }
  out->type = rd2h_px_head_get(&h, "content-type");
  out->retry_after = rd2h_px_head_get(&h, "retry-after");
  return answer_framing(&h, out, why);
}

size_t rd2h_px_head_length(struct px_span text, size_t *scanned) {
  const char *p = text.p + *scanned, *end = text.p + text.n;
  while (p < end && (p = memchr(p, '\n', (size_t)(end - p))) != NULL) {
    if (end - p >= 2 && p[1] == '\n')
      return (size_t)(p + 2 - text.p);
    if (end - p >= 3 && p[1] == '\r' && p[2] == '\n')
      return (size_t)(p + 3 - text.p);
    if (end - p < 3) {
      *scanned = (size_t)(p - text.p);
      return 0;
    }
    p++;
  }
  *scanned = text.n;
  return 0;
}

/* ---- chunked bodies ---- */
enum state { SIZE, EXTENSION, SIZE_LF, DATA, DATA_CR, DATA_LF, LAST_CR, LAST_LF, TRAILER, TRAILER_LF, DONE, BROKEN };

static int hex(char c) {
  if (c >= '0' && c <= '9')
    return c - '0';
  c |= 0x20;
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static enum state on_size(struct px_chunks *c, char ch) {
  int v = hex(ch);
  if (v >= 0) {
    c->left = c->left << 4 | (unsigned)v;
    return ++c->digits > MAX_SIZE_DIGITS ? BROKEN : SIZE;
  }
  if (c->digits == 0)
    return BROKEN;
  c->digits = 0;
  return ch == '\r' ? SIZE_LF : ch == ';' ? EXTENSION : BROKEN;
}

static enum state on_extension(struct px_chunks *c, char ch) {
  if (ch == '\r')
    return SIZE_LF;
  return value_char(ch) && ++c->digits <= MAX_EXTENSION ? EXTENSION : BROKEN;
}

static enum state on_size_lf(struct px_chunks *c, char ch) {
  c->digits = 0;
  return ch != '\n' ? BROKEN : c->left ? DATA : LAST_CR;
}

static enum state on_data_cr(struct px_chunks *c, char ch) {
  (void)c;
  return ch == '\r' ? DATA_LF : BROKEN;
}

static enum state on_data_lf(struct px_chunks *c, char ch) {
  (void)c;
  return ch == '\n' ? SIZE : BROKEN;
}

/* Nobody here could use trailers: a client's are refused, an engine's are dropped. */
static enum state on_last_cr(struct px_chunks *c, char ch) {
  if (ch == '\r')
    return LAST_LF;
  return c->trailers && token_char(ch) && ++c->digits <= MAX_TRAILERS ? TRAILER : BROKEN;
}

static enum state on_trailer(struct px_chunks *c, char ch) {
  if (ch == '\r')
    return TRAILER_LF;
  return value_char(ch) && ++c->digits <= MAX_TRAILERS ? TRAILER : BROKEN;
}

static enum state on_trailer_lf(struct px_chunks *c, char ch) {
  (void)c;
  return ch == '\n' ? LAST_CR : BROKEN;
}

static enum state on_last_lf(struct px_chunks *c, char ch) {
  (void)c;
  return ch == '\n' ? DONE : BROKEN;
}

static enum state (*const STEP[])(struct px_chunks *, char) = {
  [SIZE] = on_size,       [EXTENSION] = on_extension, [SIZE_LF] = on_size_lf, [DATA_CR] = on_data_cr,
  [DATA_LF] = on_data_lf, [LAST_CR] = on_last_cr,     [LAST_LF] = on_last_lf, [TRAILER] = on_trailer,
  [TRAILER_LF] = on_trailer_lf,
};

enum px_chunk_result rd2h_px_chunks_read(struct px_chunks *c, struct px_span *in, struct px_span *data) {
  while (in->n && c->state < DONE) {
    if (c->state == DATA) {
      size_t n = in->n < c->left ? in->n : (size_t)c->left;
      *data = (struct px_span){in->p, n};
      in->p += n;
      in->n -= n;
      c->left -= n;
      c->state = c->left ? DATA : DATA_CR;
      return PX_CHUNK_DATA;
    }
    c->state = STEP[c->state](c, *in->p);
    in->p++;
    in->n--;
  }
  return c->state == DONE ? PX_CHUNK_END : c->state == BROKEN ? PX_CHUNK_BAD : PX_CHUNK_MORE;
}
