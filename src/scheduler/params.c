/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/params.h"
#include "plan/plan.h"
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>

#define HEX_LEN (2 * RD2H_ATTEMPT_LEN)
#define MAX_URL 4096u

/* ---- fields: absent and null are the same ---- */
static const json_t *field(const json_t *o, const char *key) {
  const json_t *v = json_object_get(o, key);
  return json_is_null(v) ? NULL : v;
}

static int wrong_type(const char *key, const char *want, const json_t *v, struct rd2h_error *err) {
  static const char *const name[] = {[JSON_OBJECT] = "an object", [JSON_ARRAY] = "an array", [JSON_STRING] = "a string",
                                     [JSON_INTEGER] = "an integer", [JSON_REAL] = "a fraction", [JSON_TRUE] = "true",
                                     [JSON_FALSE] = "false", [JSON_NULL] = "null"};
  return rd2h_fail(err, RD2H_INVALID, "kv_transfer_params: \"%s\" must be %s and is %s", key, want, name[json_typeof(v)]);
}

static int missing(const char *key, const char *why, struct rd2h_error *err) {
  return rd2h_fail(err, RD2H_INVALID, "kv_transfer_params: \"%s\" is missing; %s", key, why);
}

static int get_bool(const json_t *o, const char *key, bool *out, struct rd2h_error *err) {
  const json_t *v = field(o, key);
  if (v && !json_is_boolean(v))
    return wrong_type(key, "true or false", v, err);
  *out = json_is_true(v);
  return RD2H_OK;
}

/* Leaves *out alone when the field is absent. */
static int get_uint(const json_t *o, const char *key, uint32_t min, uint32_t max, uint32_t *out, struct rd2h_error *err) {
  const json_t *v = field(o, key);
  if (!v)
    return RD2H_OK;
  if (!json_is_integer(v))
    return wrong_type(key, "an integer", v, err);
  json_int_t i = json_integer_value(v);
  if (i < (json_int_t)min || i > (json_int_t)max)
    return rd2h_fail(err, RD2H_RANGE, "kv_transfer_params: \"%s\" is %" JSON_INTEGER_FORMAT ", must be %" PRIu32 " to %" PRIu32,
                     key, i, min, max);
  *out = (uint32_t)i;
  return RD2H_OK;
}

/* *out is borrowed from o, NULL when the field is absent. Strings with NUL bytes are refused. */
static int get_str(const json_t *o, const char *key, size_t min, size_t max, const char **out, struct rd2h_error *err) {
  const json_t *v = field(o, key);
  *out = NULL;
  if (!v)
    return RD2H_OK;
  if (!json_is_string(v))
    return wrong_type(key, "a string", v, err);
  size_t n = json_string_length(v);
  if (n < min || n > max)
    return rd2h_fail(err, RD2H_RANGE, "kv_transfer_params: \"%s\" has %zu bytes, must have %zu to %zu", key, n, min, max);
  *out = json_string_value(v);
  return RD2H_OK;
}

static int parse(const char *json, json_t **out, struct rd2h_error *err) {
  json_error_t e;
  *out = NULL;
  if (!json)
    return RD2H_OK;
  json_t *o = json_loads(json, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &e);
  if (!o)
    return rd2h_fail(err, RD2H_INVALID, "kv_transfer_params is no JSON (line %d, column %d): %s", e.line, e.column, e.text);
  if (json_is_null(o)) {
    json_decref(o);
    return RD2H_OK;
  }
  if (!json_is_object(o)) {
    json_decref(o);
    return rd2h_fail(err, RD2H_INVALID, "kv_transfer_params must be a JSON object");
  }
  *out = o;
  return RD2H_OK;
}

/* ---- our own key: {"v": 1, "attempt": 32 hex digits, "inc": 32 hex digits} ---- */
static int hex_digit(char c) {
  return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static int get_hex(const json_t *o, const char *key, uint8_t out[RD2H_ATTEMPT_LEN], struct rd2h_error *err) {
  const char *s;
  int rc = get_str(o, key, HEX_LEN, HEX_LEN, &s, err);
  if (rc)
    return rc;
  if (!s)
    return missing(key, "the key \"rd2h\" carries it always; use a proxy that forwards the rendezvous unchanged", err);
  for (uint32_t i = 0; i < RD2H_ATTEMPT_LEN; i++) {
    int hi = hex_digit(s[2 * i]), lo = hex_digit(s[2 * i + 1]);
    if (hi < 0 || lo < 0)
      return rd2h_fail(err, RD2H_INVALID, "kv_transfer_params: \"%s\" must be %u lower-case hex digits", key, HEX_LEN);
    out[i] = (uint8_t)(hi << 4 | lo);
  }
  return RD2H_OK;
}

static void put_hex(const uint8_t *p, char out[HEX_LEN + 1]) {
  for (uint32_t i = 0; i < RD2H_ATTEMPT_LEN; i++)
    snprintf(out + 2 * i, 3, "%02x", p[i]);
}

/* Unknown later versions still carry these two; only their meaning is promised to stay. */
static int read_extension(const json_t *o, struct rd2h_send_params *p, char inc[HEX_LEN + 1], struct rd2h_error *err) {
  const json_t *x = field(o, "rd2h");
  uint8_t incarnation[RD2H_ATTEMPT_LEN];
  inc[0] = 0;
  if (!x)
    return RD2H_OK;
  if (!json_is_object(x))
    return wrong_type("rd2h", "an object", x, err);
  int rc = get_hex(x, "attempt", p->attempt, err);
  if (!rc)
    rc = get_hex(x, "inc", incarnation, err);
  if (rc)
    return rc;
  p->has_attempt = true;
  put_hex(incarnation, inc);
  return RD2H_OK;
}

/* ---- Prefill ---- */
static int read_endpoint(const json_t *o, const char **host, struct rd2h_send_params *p, struct rd2h_error *err) {
  uint16_t last;
  int rc = get_str(o, "remote_host", 1, RD2H_STEP_MAX_HOST, host, err);
  if (!rc)
    rc = get_uint(o, "remote_port", 1, UINT16_MAX, &p->base_port, err);
  if (!rc)
    rc = get_uint(o, "remote_tp_size", 1, UINT16_MAX, &p->d_tp, err);
  if (!rc)
    rc = get_uint(o, "remote_cached_tokens", 0, RD2H_PARAMS_MAX_TOKENS, &p->cached_tokens, err);
  if (rc)
    return rc;
  if (!*host || !p->base_port)
    return missing(*host ? "remote_port" : "remote_host", "do_remote_decode needs the Decode engine's control address", err);
  return p->d_tp ? rd2h_plan_port(p->base_port, p->d_tp - 1, p->d_tp, &last, err) : RD2H_OK;
}

static int own_strings(struct rd2h_send_params *p, const char *host, const char *engine, const char *inc,
                       struct rd2h_error *err) {
  size_t room = strlen(engine) + strlen(inc) + 2;
  p->host = rd2h_strdup(host);
  p->engine_id = rd2h_alloc(room);
  if (!p->host || !p->engine_id)
    return rd2h_nomem(err, "a request's endpoint");
  snprintf(p->engine_id, room, "%s%s%s", engine, *inc ? "/" : "", inc);
  return RD2H_OK;
}

static int read_send(const json_t *o, struct rd2h_send_params *p, struct rd2h_error *err) {
  const char *host, *engine;
  char inc[HEX_LEN + 1];
  int rc = read_endpoint(o, &host, p, err);
  if (!rc)
    rc = get_str(o, "remote_engine_id", 0, RD2H_STEP_MAX_ENGINE - HEX_LEN - 1, &engine, err);
  if (!rc)
    rc = read_extension(o, p, inc, err);
  if (rc)
    return rc;
  /* One child of a prompt list that comes alone has another id here than on Decode. */
  const char *ext_id = NULL;
  rc = p->has_attempt ? get_str(o, "request_id", 1, RD2H_STEP_MAX_ID, &ext_id, err) : RD2H_OK;
  if (rc)
    return rc;
  p->has_dspark = field(o, "dspark_context_generation") != NULL;
  if (ext_id && !(p->ext_id = rd2h_strdup(ext_id)))
    return rd2h_nomem(err, "a request's id on Decode");
  return own_strings(p, host, engine ? engine : "", inc, err);
}

/* Params of a prompt list hold those of every child under its external id. */
static int pick_child(const json_t **o, struct rd2h_str ext_id, struct rd2h_error *err) {
  const json_t *batch = field(*o, "batch_kv_transfer_params");
  if (!batch)
    return RD2H_OK;
  if (!json_is_object(batch))
    return wrong_type("batch_kv_transfer_params", "an object", batch, err);
  const json_t *child = json_object_getn(batch, ext_id.p, ext_id.n);
  if (!json_is_object(child))
    return rd2h_fail(err, RD2H_INVALID, "kv_transfer_params: \"batch_kv_transfer_params\" names %zu requests, none is %.*s; its "
                     "rendezvous did not reach the proxy", json_object_size(batch), (int)ext_id.n, ext_id.p);
  *o = child;
  return RD2H_OK;
}

int rd2h_send_params_read(const char *json, struct rd2h_str ext_id, struct rd2h_send_params *out, struct rd2h_error *err) {
  struct rd2h_send_params p = {0};
  json_t *root;
  const json_t *o;
  int rc = parse(json, &root, err);
  if (rc)
    return rc;
  o = root;
  rc = get_bool(o, "do_remote_decode", &p.wanted, err);
  if (!rc && p.wanted)
    rc = pick_child(&o, ext_id, err);
  if (!rc && p.wanted)
    rc = read_send(o, &p, err);
  json_decref(root);
  if (rc)
    rd2h_send_params_free(&p);
  else
    *out = p;
  return rc;
}

void rd2h_send_params_free(struct rd2h_send_params *p) {
  rd2h_free(p->host);
  rd2h_free(p->engine_id);
  rd2h_free(p->ext_id);
  *p = (struct rd2h_send_params){0};
}

/* ---- Decode ---- */
int rd2h_recv_params_read(const char *json, struct rd2h_recv_params *out, struct rd2h_error *err) {
  struct rd2h_recv_params p = {0};
  const char *url = NULL;
  json_t *o;
  int rc = parse(json, &o, err);
  if (rc)
    return rc;
  rc = get_bool(o, "do_remote_prefill", &p.wanted, err);
  if (!rc && p.wanted)
    rc = get_bool(o, "do_virtual", &p.is_virtual, err);
  if (!rc && p.wanted)
    rc = get_str(o, "metaserver", 1, MAX_URL, &url, err);
  if (!rc && url && !(p.metaserver = rd2h_strdup(url)))
    rc = rd2h_nomem(err, "a metaserver's address");
  json_decref(o);
  if (!rc)
    *out = p;
  return rc;
}

void rd2h_recv_params_free(struct rd2h_recv_params *p) {
  rd2h_free(p->metaserver);
  *p = (struct rd2h_recv_params){0};
}

/* ---- rendezvous ---- */
static int append(const char *p, size_t n, void *buf) {
  rd2h_buf_put(buf, p, n);
  return 0;
}

int rd2h_rendezvous_body_write(const struct rd2h_rendezvous_body *b, struct rd2h_buf *out, struct rd2h_error *err) {
  char attempt[HEX_LEN + 1], inc[HEX_LEN + 1];
  json_error_t e;
  put_hex(b->attempt, attempt);
  put_hex(b->incarnation, inc);
  json_t *o = json_pack_ex(&e, 0, "{s:s% s:b s:b s:s s:s s:i s:i s:i s:i s:I s:{s:i s:s s:s}}", "request_id", b->ext_id.p,
                           (size_t)b->ext_id.n, "do_remote_prefill", 0, "do_remote_decode", 1, "remote_engine_id", b->engine_id,
                           "remote_host", b->host, "remote_port", (int)b->base_port, "remote_tp_size", (int)b->tp_size,
                           "remote_pcp_size", 1, "remote_dcp_size", 1, "remote_cached_tokens", (json_int_t)b->cached_tokens,
                           "rd2h", "v", 1, "attempt", attempt, "inc", inc);
  if (!o)
    return rd2h_fail(err, RD2H_INVALID, "rendezvous of %.*s cannot be written: %s", (int)b->ext_id.n, b->ext_id.p, e.text);
  int bad = json_dump_callback(o, append, out, JSON_COMPACT);
  json_decref(o);
  return bad || out->failed ? rd2h_nomem(err, "a rendezvous") : RD2H_OK;
}
