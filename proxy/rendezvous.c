/* SPDX-License-Identifier: Apache-2.0 */
/* What Decode posts: whose it is, whether it may, what it must hold. */
#include "proxy/flow_inner.h"

#include <stdlib.h>

/* [<i>_]cmpl-<uuid>-<k> or [<i>_]chatcmpl-<uuid>, as vLLM makes them from X-Request-Id. */
static bool read_number(struct px_span *s, char end, uint64_t *out) {
  const char *stop = end ? memchr(s->p, end, s->n) : s->p + s->n;
  /* Only in the form in which vLLM writes it: no leading zeros. */
  if (!stop || (stop - s->p > 1 && *s->p == '0') || !rd2h_px_uint((struct px_span){s->p, (size_t)(stop - s->p)}, UINT32_MAX, out))
    return false;
  size_t n = (size_t)(stop - s->p) + (end != 0);
  s->p += n;
  s->n -= n;
  return true;
}

static bool skip(struct px_span *s, struct px_span prefix) {
  if (s->n < prefix.n || memcmp(s->p, prefix.p, prefix.n) != 0)
    return false;
  s->p += prefix.n;
  s->n -= prefix.n;
  return true;
}

static struct px_child *find_child(struct px_flow *f, struct px_span id) {
  uint64_t answer = 0, prompt = 0;
  bool numbered = id.n && *id.p >= '0' && *id.p <= '9';
  if (numbered && !read_number(&id, '_', &answer))
    return NULL;
  bool chat = skip(&id, PX_LIT("chatcmpl-"));
  if ((!chat && !skip(&id, PX_LIT("cmpl-"))) || id.n < 36)
    return NULL;
  struct px_parent *p = rd2h_px_parent_find(f, (struct px_span){id.p, 36});
  id.p += 36;
  id.n -= 36;
  if (!p || chat != (p->ask.api == PX_CHAT) || numbered != (p->ask.n > 1))
    return NULL;
  if (chat ? id.n != 0 : !skip(&id, PX_LIT("-")) || !read_number(&id, 0, &prompt))
    return NULL;
  return prompt < p->ask.prompts && answer < p->ask.n ? p->child + prompt * p->ask.n + answer : NULL;
}

/* ---- what it holds ---- */
static bool good_host(struct px_span v) {
  struct px_buf host = {0};
  bool good = rd2h_px_json_decode(v, &host) && host.n > 0 && !memchr(host.p, 0, host.n);
  rd2h_px_put(&host, (struct px_span){"", 1});
  good = good && !host.failed && !rd2h_px_check_host(host.p);
  rd2h_px_free(&host);
  return good;
}

static bool good_port(struct px_span v) {
  uint64_t n;
  return rd2h_px_uint(v, UINT16_MAX, &n) && n > 0;
}

static bool good_size(struct px_span v) {
  uint64_t n;
  return rd2h_px_uint(v, UINT16_MAX, &n) && n > 0;
}

static bool good_tokens(struct px_span v) {
  uint64_t n;
  return rd2h_px_uint(v, UINT32_MAX, &n);
}

static bool good_text(struct px_span v) {
  return *v.p == '"' && v.n <= 1024;
}

static bool good_true(struct px_span v) {
  return px_equal(v, PX_LIT("true"));
}

static const struct {
  const char *key;
  bool required;
  bool (*good)(struct px_span v);
  const char *why;
} FIELD[] = {
  {"do_remote_decode", true, good_true, "do_remote_decode must be true"},
  {"remote_engine_id", false, good_text, "remote_engine_id must be a text of at most 1024 bytes"},
  {"remote_host", true, good_host, "remote_host must be an address or a host name"},
  {"remote_port", true, good_port, "remote_port must be a number from 1 to 65535"},
  {"remote_tp_size", false, good_size, "remote_tp_size must be a number from 1 to 65535"},
  {"remote_pcp_size", false, good_size, "remote_pcp_size must be a number from 1 to 65535"},
  {"remote_dcp_size", false, good_size, "remote_dcp_size must be a number from 1 to 65535"},
  {"remote_cached_tokens", false, good_tokens, "remote_cached_tokens must be a number"},
};

/* Every member of a name is looked at: readers differ in which of two they take. */
static const char *check_fields(struct px_span body) {
  for (size_t i = 0; i < sizeof FIELD / sizeof *FIELD; i++) {
    struct px_json_iter it;
    struct px_span k, v;
    bool seen = false;
    rd2h_px_json_open(body, '{', &it);
    while (rd2h_px_json_next(&it, &k, &v))
      if (rd2h_px_json_is(k, px_str(FIELD[i].key))) {
        if (seen || !FIELD[i].good(v))
          return FIELD[i].why;
        seen = true;
      }
    if (FIELD[i].required && !seen)
      return FIELD[i].why;
  }
  return NULL;
}

static int refuse(int status, const char *text, const char **why) {
  *why = text;
  return status;
}

static struct px_child *child_of(struct px_flow *f, struct px_span body) {
  struct px_buf id = {0};
  struct px_span v;
  struct px_child *c = NULL;
  if (rd2h_px_json_get(body, "request_id", &v) && v.n <= 256 && rd2h_px_json_decode(v, &id) && !id.failed && id.n)
    c = find_child(f, px_of(&id));
  rd2h_px_free(&id);
  return c;
}

static int wait_for(struct px_child *c, void *rendezvous, struct px_waiter **out, const char **why) {
  uint32_t n = 0;
  for (struct px_waiter *w = c->waiters; w; w = w->next)
    n++;
  if (n >= c->parent->flow->limits.max_waiters)
    return refuse(429, "this rendezvous is being waited for already", why);
  struct px_waiter *w = calloc(1, sizeof *w);
  if (!w)
    return refuse(503, "memory ran out", why);
  *w = (struct px_waiter){c->waiters, c, rendezvous};
  c->waiters = w;
  *out = w;
  return 0;
}

static void take(struct px_child *c, struct px_span body) {
  struct px_parent *p = c->parent;
  struct px_span ours;
  rd2h_px_clear(&c->params);
  rd2h_px_put(&c->params, body);
  if (!c->posted) {
    c->posted = true;
    p->n_posted++;
    if (p->n_posted == p->n_child)
      p->posted_at = p->flow->now;
    /* Engines of this project look a child up under the id in its parameters, so each can go alone. */
    if (p->flow->limits.mode == PX_DISPATCH_AUTO && rd2h_px_json_get(body, "rd2h", &ours))
      p->each = true;
  }
}

int rd2h_px_flow_rendezvous(struct px_flow *f, struct px_span body, struct px_span token, bool allowed, void *rendezvous, int64_t now,
                            struct px_waiter **waiter, const char **why) {
  struct px_child *c = child_of(f, body);
  f->now = now;
  if (!c)
    return refuse(404, "no such request", why);
  struct px_parent *p = c->parent;
  if (!allowed && !(f->limits.tokens && rd2h_px_same_secret(token, px_str(p->token))))
    return refuse(403, "this sender may not post rendezvous: it is no configured Decode engine and has not the request's token", why);
  if ((*why = check_fields(body)) != NULL)
    return 400;
  enum px_dispatch_state state = c->dispatch ? c->dispatch->state : PX_FAILED;
  if (state == PX_SUCCEEDED) {
    *why = NULL;
    return 200;
  }
  int rc = wait_for(c, rendezvous, waiter, why);
  if (rc)
    return rc;
  p->touched = now;
  if (state == PX_FAILED) {
    take(c, body);
    if (c->params.failed)
      rd2h_px_parent_fail(p, 503, "memory ran out");
    else
      rd2h_px_prefill_posted(p, c);
  }
  return 0;
}

void rd2h_px_flow_waiter_gone(struct px_waiter *w) {
  struct px_waiter **at = &w->child->waiters;
  while (*at != w)
    at = &(*at)->next;
  *at = w->next;
  free(w);
}
