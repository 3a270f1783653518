/* SPDX-License-Identifier: Apache-2.0 */
/* The side that is read from: pattern, engine, what Decode must know; then it stands still until Decode says what it got. */
#include "pd_read.h"
#include "table.h"
#include <stdio.h>
#include <unistd.h>

#define KNOCK_NS (3000 * RD2H_MS) /* how long a newcomer may take to say who it is */

static json_t *hex(const uint8_t *p, size_t n) {
  static const char digits[] = "0123456789abcdef";
  char *text = rd2h_alloc(2 * n + 1);
  if (!text)
    return NULL;
  for (size_t i = 0; i < n; i++) {
    text[2 * i] = digits[p[i] >> 4];
    text[2 * i + 1] = digits[p[i] & 15];
  }
  json_t *out = json_stringn(text, 2 * n);
  rd2h_free(text);
  return out;
}

/* What each engine that this one stands for tells its readers. */
static int offers(struct pd_read *r, json_t **out, struct rd2h_error *err) {
  json_t *all = json_array();
  int rc = RD2H_OK;
  rd2h_eng *part;
  for (uint32_t i = 0; !rc && (part = rd2h_eng_part(r->eng, i)); i++) {
    struct rd2h_buf conn = {0};
    rc = rd2h_eng_publish(part, &conn, err);
    if (!rc)
      json_array_append_new(all, json_pack("{s:s, s:o}", "engine", rd2h_eng_name(part), "conn", hex(conn.p, conn.len)));
    rd2h_buf_free(&conn);
  }
  if (rc)
    json_decref(all);
  else
    *out = all;
  return rc;
}

/* What peers call this process: as the engine wants it, else where it is reached. */
static void session_of(struct pd_read *r, char out[PD_PEER_NAME + 8]) {
  const char *session = NULL;
  rd2h_eng *part;
  for (uint32_t i = 0; !session && (part = rd2h_eng_part(r->eng, i)); i++)
    session = rd2h_eng_session(part);
  if (session)
    snprintf(out, PD_PEER_NAME + 8, "%s", session);
  else
    snprintf(out, PD_PEER_NAME + 8, strchr(r->local_ip, ':') ? "[%.50s]:%llu" : "%.50s:%llu", r->local_ip, (unsigned long long)r->port);
}

static int prepare(struct pd_read *r, json_t **offer, char sha[PD_SHA_HEX], struct rd2h_error *err) {
  const struct rd2h_engine_opts o = {.size = sizeof o, .prefill = true, .host = r->local_ip, .options = r->option,
                                     .read_timeout_ns = r->timeout_s * 1000 * RD2H_MS};
  char session[PD_PEER_NAME + 8];
  uint32_t region;
  json_t *list;
  int rc = rd2h_random(&r->seed, sizeof r->seed);
  r->seed &= INT64_MAX; /* JSON's integers are signed */
  rc = rc ? rc : pd_memory_open(r, err);
  rc = rc ? rc : pd_sha256(r, sha, err);
  rc = rc ? rc : rd2h_eng_open(r->engine, &o, &r->eng, err);
  rc = rc ? rc : rd2h_eng_reg(r->eng, &(struct rd2h_region){.base = r->memory_base, .len = r->bytes}, &region, err);
  rc = rc ? rc : offers(r, &list, err);
  if (rc)
    return rc;
  session_of(r, session);
  *offer = json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:s, s:o}", "rd2h", rd2h_version(), "engine", r->engine, "session", session,
                     "base", (json_int_t)(uintptr_t)r->memory_base, "bytes", (json_int_t)r->bytes, "seed", (json_int_t)r->seed, "sha256",
                     sha, "offers", list);
  return *offer ? RD2H_OK : rd2h_nomem(err, "the offer");
}

/* Versions and engines must be the same on both sides; says so to both. */
static int check_hello(struct pd_read *r, const json_t *hello, struct rd2h_error *err) {
  struct rd2h_error why = {0};
  if (strcmp(pd_text(hello, "rd2h"), rd2h_version()))
    rd2h_fail(&why, RD2H_UNSUPPORTED, "Prefill is rd2h %s, Decode at %s is %.40s: install one version on both hosts",
              rd2h_version(), r->peer,
              pd_text(hello, "rd2h"));
  else if (strcmp(pd_text(hello, "engine"), r->engine))
    rd2h_fail(&why, RD2H_INVALID, "Prefill was started with --engine %s, Decode at %s with --engine %.40s: use one on both sides",
              r->engine, r->peer, pd_text(hello, "engine"));
  if (!why.status)
    return RD2H_OK;
  pd_send(r, json_pack("{s:s}", "refused", why.text), NULL);
  return rd2h_fail(err, why.status, "%s", why.text);
}

/* The first that introduces itself as Decode; others are sent away. */
static int wait_for_decode(struct pd_read *r, int listener, struct rd2h_error *err) {
  for (;;) {
    json_t *hello;
    struct rd2h_error why;
    int rc = pd_accept(r, listener, err);
    if (rc)
      return rc;
    rc = pd_receive(r, "before it had said who it is", rd2h_now_ns() + KNOCK_NS, &hello, &why);
    if (!rc) {
      rc = check_hello(r, hello, err);
      json_decref(hello);
      return rc;
    }
    pd_note(r, "ignored", "a connection of %s: it is no rd2h pd-read", r->peer);
    close(r->control);
    r->control = -1;
  }
}

static int serve(struct pd_read *r, json_t *offer, const char *sha, struct rd2h_error *err) {
  json_t *result;
  pd_step(r);
  int rc = pd_send(r, json_incref(offer), err);
  if (!rc)
    rc = pd_receive(r, "while it was reading", RD2H_NEVER, &result, err);
  if (rc)
    return rc;
  bool same = !strcmp(pd_text(result, "sha256"), sha), good = same && json_is_true(json_object_get(result, "ok"));
  if (*pd_text(result, "sha256"))
    pd_note(r, "SHA-256", "%.16s… here, %s at Decode", sha, same ? "the same" : "another");
  if (!good)
    rd2h_fail(err, RD2H_IO, "Decode at %s: %.400s", r->peer, *pd_text(result, "error") ? pd_text(result, "error") : "its hash "
              "differs");
  snprintf(r->chosen, sizeof r->chosen, "%s", pd_text(result, "engine"));
  json_decref(result);
  pd_send(r, json_pack("{s:b}", "ok", good), NULL);
  return good ? RD2H_OK : err->status;
}

int pd_prefill(struct pd_read *r, struct rd2h_error *err) {
  char sha[PD_SHA_HEX] = "", size[32];
  json_t *offer = NULL;
  uint16_t port;
  int listener = -1, rc = pd_listen(r, &listener, &port, err);
  if (rc)
    return rc;
  r->port = port;
  rc = prepare(r, &offer, sha, err);
  if (!rc) {
    pd_note(r, "memory", "%s of pattern, SHA-256 %.16s…", size_text(r->bytes, size), sha);
    pd_note(r, "engine", "%s", r->engine);
    pd_note(r, "waiting", "for Decode at %s port %llu, %llu s", r->local_ip, (unsigned long long)r->port,
            (unsigned long long)r->timeout_s);
    pd_step(r);
    rc = wait_for_decode(r, listener, err);
  }
  if (!rc)
    pd_note(r, "control", "Decode at %s has come", r->peer);
  rc = rc ? rc : serve(r, offer, sha, err);
  json_decref(offer);
  close(listener);
  return rc;
}
