/* SPDX-License-Identifier: Apache-2.0 */
/* The side that reads: learns what is there, reads it, compares, tells. */
#include "pd_read.h"
#include "table.h"
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#define DESCRIPTOR (UINT64_C(1) << 20)
#define BATCH 64u              /* descriptors a batch, where the engine takes so many */
#define OFFERS_MAX 8u
#define LOOK_MS 50
#define COOKIE 1u
#define SAID 300u              /* of the engine, about a connection */

struct offer {
  json_t *message;
  uint64_t base, bytes;
  uint32_t n;
  struct rd2h_eng_offer engine[OFFERS_MAX];
  uint8_t *conn[OFFERS_MAX];
};

static uint8_t *unhex(const char *text, uint32_t *n) {
  size_t len = strlen(text);
  uint8_t *out = len % 2 ? NULL : rd2h_alloc(len / 2 + 1);
  for (size_t i = 0; out && i < len / 2; i++) {
    char pair[3] = {text[2 * i], text[2 * i + 1], 0}, *end;
    out[i] = (uint8_t)strtoul(pair, &end, 16);
    if (end != pair + 2) {
      rd2h_free(out);
      return NULL;
    }
  }
  *n = (uint32_t)(len / 2);
  return out;
}

static void forget_offer(struct offer *o) {
  for (uint32_t i = 0; i < o->n; i++)
    rd2h_free(o->conn[i]);
  json_decref(o->message);
}

static int parse_offer(const struct pd_read *r, struct offer *o, struct rd2h_error *err) {
  json_t *list = json_object_get(o->message, "offers"), *one;
  size_t i;
  o->base = (uint64_t)json_integer_value(json_object_get(o->message, "base"));
  o->bytes = (uint64_t)json_integer_value(json_object_get(o->message, "bytes"));
  json_array_foreach(list, i, one) {
    const char *name = pd_text(one, "engine");
    uint32_t len = 0;
    uint8_t *conn = o->n < OFFERS_MAX ? unhex(pd_text(one, "conn"), &len) : NULL;
    if (!conn)
      return rd2h_fail(err, RD2H_MALFORMED, "what Prefill at %s says of its engines is damaged", r->peer);
    o->engine[o->n] = (struct rd2h_eng_offer){.name = {name, (uint32_t)strlen(name)}, .conn = {conn, len}};
    o->conn[o->n++] = conn;
  }
  return o->base && o->bytes ? RD2H_OK : rd2h_fail(err, RD2H_MALFORMED, "what Prefill at %s says of its memory is damaged",
                                                   r->peer);
}

static int ask(struct pd_read *r, struct offer *o, struct rd2h_error *err) {
  int rc = pd_send(r, json_pack("{s:s, s:s}", "rd2h", rd2h_version(), "engine", r->engine), err);
  if (!rc)
    rc = pd_receive(r, "before it had offered anything", r->deadline, &o->message, err);
  if (rc)
    return rc;
  if (*pd_text(o->message, "refused"))
    return rd2h_fail(err, RD2H_REFUSED, "%.400s", pd_text(o->message, "refused"));
  if (strcmp(pd_text(o->message, "rd2h"), rd2h_version()))
    return rd2h_fail(err, RD2H_UNSUPPORTED, "Prefill at %s is rd2h %.40s, Decode is %s: install one version on both hosts",
                     r->peer, pd_text(o->message, "rd2h"), rd2h_version());
  return parse_offer(r, o, err);
}

/* ---- reading ---- */
static int wait_completion(struct pd_read *r, struct rd2h_completion *c, struct rd2h_error *err) {
  struct pollfd p = {.fd = rd2h_eng_fd(r->eng), .events = POLLIN};
  struct rd2h_peer_event ev;
  while (!rd2h_eng_poll(r->eng, c, 1)) {
    rd2h_eng_events(r->eng, &ev, 1);
    poll(&p, 1, LOOK_MS);
    if (pd_hung_up(r)) {
      if (rd2h_eng_poll(r->eng, c, 1))
        break;
      return rd2h_fail(err, RD2H_PEER_LOST, "Prefill at %s has ended while it was read; what it printed says why", r->peer);
    }
    if (rd2h_now_ns() > r->deadline)
      return rd2h_fail(err, RD2H_TIMEOUT, "engine %s: a read did not end within %llu s (--timeout): Prefill hangs, or a firewall lets "
                       "the control port through and not the engine's", r->chosen, (unsigned long long)r->timeout_s);
  }
  return RD2H_OK;
}

int pd_read_batch(struct pd_read *r, struct pd_remote *remote, const struct rd2h_batch *b, struct rd2h_error *err) {
  struct rd2h_completion c = {0};
  int rc = rd2h_eng_submit(r->eng, remote->peer, b);
  if (rc)
    return rd2h_fail(err, rc, "engine %s does not take a read of %u pieces: %s", r->chosen, b->n, rd2h_status_text(rc));
  rc = wait_completion(r, &c, err);
  if (rc) { /* the batch is the caller's again only behind the fence */
    rd2h_eng_disconnect(r->eng, remote->peer);
    remote->peer = NULL;
    return rc;
  }
  return c.status ? rd2h_fail(err, c.status, "%s", rd2h_eng_last_error(r->eng, c.id)) : RD2H_OK;
}

static int read_all(struct pd_read *r, struct pd_remote *remote, double *seconds, struct rd2h_error *err) {
  void *local[BATCH];
  uint64_t from[BATCH], len[BATCH], at = 0, begin = rd2h_now_ns();
  uint32_t cap = rd2h_eng_caps(r->eng)->max_desc;
  cap = cap && cap < BATCH ? cap : BATCH;
  for (uint64_t id = 1; at < r->bytes; id++) {
    struct rd2h_batch b = {.id = id, .local = local, .remote = from, .len = len};
    for (; b.n < cap && at < r->bytes; b.n++, at += len[b.n - 1]) {
      len[b.n] = r->bytes - at < DESCRIPTOR ? r->bytes - at : DESCRIPTOR;
      local[b.n] = r->memory_base + at;
      from[b.n] = remote->base + at;
      b.bytes += len[b.n];
    }
    r->deadline = rd2h_now_ns() + r->timeout_s * 1000 * RD2H_MS;
    int rc = pd_read_batch(r, remote, &b, err);
    if (rc)
      return rc;
    pd_progress(r, "reading %3.0f %%", 100.0 * (double)at / (double)r->bytes);
  }
  *seconds = (double)(rd2h_now_ns() - begin) / 1e9;
  pd_progress_end(r);
  return RD2H_OK;
}

/* ---- comparing ---- */
static int compare(struct pd_read *r, const char *theirs, char sha[PD_SHA_HEX], struct rd2h_error *err) {
  int rc = pd_sha256(r, sha, err);
  if (rc || !strcmp(sha, theirs))
    return rc;
  uint64_t at = pd_pattern_differs(r->memory_base, r->seed, 0, r->bytes);
  if (at == r->bytes)
    return rd2h_fail(err, RD2H_IO, "SHA-256 differs (%.16s… here, %.16s… at Prefill), and yet all bytes are the pattern: "
                     "Prefill's memory has changed since it was hashed", sha, theirs);
  uint8_t want[8];
  pd_pattern(want, r->seed, at / 8 * 8, 8);
  return rd2h_fail(err, RD2H_IO, "SHA-256 differs (%.16s… here, %.16s… at Prefill): the first wrong byte is at offset %llu of "
                   "%llu, 0x%02x instead of 0x%02x", sha, theirs, (unsigned long long)at, (unsigned long long)r->bytes,
                   r->memory_base[at], want[at % 8]);
}

/* Says the result to Prefill, who must agree. */
static int tell(struct pd_read *r, int rc, const char *sha, struct rd2h_error *err) {
  json_t *verdict;
  struct rd2h_error why;
  pd_step(r);
  json_t *result = json_pack("{s:b, s:s, s:s, s:s}", "ok", !rc, "sha256", sha, "engine", r->chosen, "error", rc ? err->text : "");
  if (pd_send(r, result, &why) || pd_receive(r, "before it had compared", r->deadline, &verdict, &why))
    return rc ? rc : rd2h_fail(err, why.status, "%s", why.text);
  bool agreed = json_is_true(json_object_get(verdict, "ok"));
  json_decref(verdict);
  return rc || agreed ? rc : rd2h_fail(err, RD2H_IO, "Prefill at %s found another SHA-256", r->peer);
}

/* What the engine says of the connection; only what people must see goes on to them. */
static void on_line(void *user, int level, const char *line) {
  char *said = user;
  const char *text = strncmp(line, "engine ", 7) ? NULL : strstr(line, ": connected to ");
  if (text)
    snprintf(said, SAID, "%s", text + 2);
  else if (level <= RD2H_LOG_WARN)
    fprintf(stderr, "%s\n", line);
}

static int connect_to(struct pd_read *r, const struct offer *o, struct pd_remote *remote, struct rd2h_error *err) {
  const struct rd2h_engine_opts opts = {.size = sizeof opts, .host = r->local_ip ? r->local_ip : "127.0.0.1",
                                        .options = r->option, .read_timeout_ns = r->timeout_s * 1000 * RD2H_MS};
  const char *session = pd_text(o->message, "session"), *chosen = "";
  static char said[SAID]; /* the hook stays: engines have threads */
  uint32_t region;
  if (!getenv("RD2H_LOG"))
    rd2h_log_set(on_line, said, RD2H_LOG_INFO);
  int rc = rd2h_eng_open(r->engine, &opts, &r->eng, err);
  rc = rc ? rc : rd2h_eng_reg(r->eng, &(struct rd2h_region){.base = r->memory_base, .len = r->bytes}, &region, err);
  rc = rc ? rc : rd2h_eng_choose(r->eng, (struct rd2h_blob){(const uint8_t *)session, (uint32_t)strlen(session)}, o->engine, o->n,
                                 COOKIE, &remote->peer, &chosen, err);
  if (rc)
    return rc;
  snprintf(r->chosen, sizeof r->chosen, "%s", chosen);
  remote->base = o->base;
  pd_note(r, "engine", strcmp(r->engine, chosen) ? "%s, chosen by %s" : "%s", chosen, r->engine);
  if (*said)
    pd_note(r, "way", "%s", said);
  return RD2H_OK;
}

static int transfer(struct pd_read *r, const struct offer *o, char sha[PD_SHA_HEX], struct pd_row *rows, uint32_t *n_rows,
                    double *seconds, struct rd2h_error *err) {
  struct pd_remote remote = {0};
  char size[32];
  int rc = pd_memory_open(r, err);
  rc = rc ? rc : connect_to(r, o, &remote, err);
  pd_step(r);
  rc = rc ? rc : read_all(r, &remote, seconds, err);
  if (!rc)
    pd_note(r, "read", "%s in %.3f s, %.2f GB/s", size_text(r->bytes, size), *seconds, (double)r->bytes / *seconds / 1e9);
  rc = rc ? rc : compare(r, pd_text(o->message, "sha256"), sha, err);
  if (!rc)
    pd_note(r, "SHA-256", "%.16s… here, the same at Prefill", sha);
  if (!rc && r->sweep)
    rc = pd_sweep(r, &remote, rows, n_rows, err);
  rd2h_eng_disconnect(r->eng, remote.peer);
  return rc;
}

static void report(const struct pd_read *r, int rc, const struct rd2h_error *err, const char *sha, const struct pd_row *rows,
                   uint32_t n, double seconds) {
  json_t *list = json_array();
  for (uint32_t i = 0; i < n; i++)
    json_array_append_new(list, json_pack("{s:I, s:I, s:f, s:f}", "block", (json_int_t)rows[i].block, "blocks",
                                          (json_int_t)rows[i].blocks,
                                          "contiguous_gb_s", rows[i].contiguous, "scattered_gb_s", rows[i].scattered));
  json_t *all = json_pack("{s:b, s:s, s:s, s:s, s:I, s:f, s:f, s:s, s:s, s:o}", "ok", !rc, "role", "decode", "engine", r->chosen,
                          "peer",
                          r->peer, "bytes", (json_int_t)r->bytes, "seconds", seconds, "gb_s",
                          seconds > 0 ? (double)r->bytes / seconds / 1e9 : 0.0, "sha256", sha, "error", rc ? err->text : "",
                          "sweep", list);
  json_dumpf(all, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
  puts("");
  json_decref(all);
}

int pd_decode(struct pd_read *r, struct rd2h_error *err) {
  struct offer o = {0};
  struct pd_row rows[PD_ROWS];
  char sha[PD_SHA_HEX] = "", size[32], title[96];
  uint32_t n = 0;
  double seconds = 0;
  pd_step(r);
  int rc = pd_dial(r, err);
  rc = rc ? rc : ask(r, &o, err);
  if (!rc) {
    r->bytes = o.bytes;
    r->seed = (uint64_t)json_integer_value(json_object_get(o.message, "seed"));
    pd_note(r, "control", "Prefill at %s offers %s", r->peer, size_text(o.bytes, size));
    rc = transfer(r, &o, sha, rows, &n, &seconds, err);
    rc = tell(r, rc, sha, err);
  }
  forget_offer(&o);
  if (r->json)
    report(r, rc, err, sha, rows, n, seconds);
  else if (n)
    pd_sweep_table(rows, n);
  snprintf(title, sizeof title, "rd2h pd-read, engine %s", r->chosen);
  if (!rc && n && r->plot) {
    rc = pd_plot(r->plot, title, rows, n, err);
    if (!rc)
      pd_note(r, "plot", "%s", r->plot);
  }
  return rc;
}
