/* SPDX-License-Identifier: Apache-2.0 */
/* One attempt of one POST: how it is set up, and what its end means. The verdict is the status line: an answer whose headers came
 * whole is an answer, whatever happened to its body. */
#include "base/msgpack.h"
#include "base/text.h"
#include "rendezvous/internal.h"
#include <rd2h/version.h>
#include <stdio.h>

#define MAX_ANSWER (64u << 10) /* bytes of headers and body that are read */
#define HTTP_LATER 503
#define MAX_LATER_S 1000000u /* of Retry-After: no more is understood */
#define READ_BUFFER 4096L      /* thousands of open exchanges only wait: small buffers */

void rd2h_rdv_say(struct job *j, int status, const char *fmt, ...) {
  va_list ap;
  j->status = status;
  va_start(ap, fmt);
  vsnprintf(j->text, RDV_TEXT, fmt, ap);
  va_end(ap);
  rd2h_text_one_line(j->text);
  j->text[rd2h_utf8_prefix(j->text, strlen(j->text))] = 0;
}

static void leave_start(struct job *j) {
  j->owner->starting -= j->starting;
  j->starting = false;
}

static int on_connected(void *arg, char *remote, char *local, int remote_port, int local_port) {
  struct job *j = arg;
  (void)remote, (void)local, (void)remote_port, (void)local_port;
  j->sent = true;
  leave_start(j);
  return CURL_PREREQFUNC_OK;
}

static size_t on_header(char *line, size_t size, size_t count, void *arg) {
  struct job *j = arg;
  size_t n = size * count;
  j->received += n;
  if (line[0] == '\r' || line[0] == '\n') {
    curl_easy_getinfo(j->easy, CURLINFO_RESPONSE_CODE, &j->http);
    j->headers = j->http >= 200;
  }
  return j->received > MAX_ANSWER ? 0 : n;
}

static size_t on_body(char *p, size_t size, size_t count, void *arg) {
  struct job *j = arg;
  size_t n = size * count, room = sizeof j->quote - j->quoted;
  room = n < room ? n : room;
  memcpy(j->quote + j->quoted, p, room);
  j->quoted += (uint32_t)room;
  j->received += n;
  return j->received > MAX_ANSWER ? 0 : n;
}

/* No proxy, whatever the environment says: the metaserver is a neighbour. Redirects are off by default. A resolver that hangs is
 * left behind (QUICK_EXIT) instead of waited for when the attempt ends. */
static bool set_up(const struct rd2h_rendezvous *r, struct job *j) {
  CURL *c = j->easy;
  const long timeout = (long)r->o.connect_timeout_ms + (long)r->o.answer_timeout_ms;
  bool bad = false;
#define SET(option, value) bad |= curl_easy_setopt(c, CURLOPT_##option, value) != CURLE_OK
  SET(URL, j->url);
  SET(PROTOCOLS_STR, "http,https");
  SET(PROXY, "");
  if (r->o.ca) {
    SET(CAINFO, r->o.ca);
    SET(CAPATH, NULL); /* else the machine's authorities count as well */
  }
  SET(HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
  SET(HTTPHEADER, r->headers);
  SET(USERAGENT, "rd2h/" RD2H_VERSION_STRING);
  SET(POST, 1L);
  SET(POSTFIELDS, j->body);
  SET(POSTFIELDSIZE_LARGE, (curl_off_t)j->len);
  SET(CONNECTTIMEOUT_MS, (long)r->o.connect_timeout_ms);
  SET(TIMEOUT_MS, timeout);
  SET(TCP_KEEPALIVE, 1L);
  SET(NOSIGNAL, 1L);
  SET(QUICK_EXIT, 1L);
  SET(BUFFERSIZE, READ_BUFFER);
  SET(ERRORBUFFER, j->curl_text);
  SET(PRIVATE, j);
  SET(PREREQFUNCTION, on_connected);
  SET(PREREQDATA, j);
  SET(HEADERFUNCTION, on_header);
  SET(HEADERDATA, j);
  SET(WRITEFUNCTION, on_body);
  SET(WRITEDATA, j);
#undef SET
  return !bad;
}

bool rd2h_rdv_start(struct rd2h_rendezvous *r, struct job *j) {
  if (!j->attempts++)
    j->until = rd2h_now_ns() + (uint64_t)r->o.answer_timeout_ms * RD2H_MS;
  j->sent = j->headers = false;
  j->received = j->quoted = 0;
  j->http = 0;
  j->later_ms = 0;
  j->curl_text[0] = 0;
  j->easy = curl_easy_init();
  if (!j->easy)
    return false;
  j->starting = true;
  r->starting++;
  if (set_up(r, j) && curl_multi_add_handle(r->multi, j->easy) == CURLM_OK)
    return true;
  rd2h_rdv_drop(r, j);
  return false;
}

void rd2h_rdv_drop(struct rd2h_rendezvous *r, struct job *j) {
  leave_start(j);
  curl_multi_remove_handle(r->multi, j->easy); /* nothing when it was never added */
  curl_easy_cleanup(j->easy);
  j->easy = NULL;
}

/* The beginning of the answer's body; bytes that are no UTF-8 become "?". */
static const char *quote(struct job *j, char out[RDV_QUOTE + 1]) {
  uint32_t n = 0;
  while (n < j->quoted) {
    uint32_t good = (uint32_t)rd2h_utf8_prefix(j->quote + n, j->quoted - n);
    memcpy(out + n, j->quote + n, good);
    n += good;
    if (n < j->quoted)
      out[n++] = '?';
  }
  out[n] = 0;
  for (uint32_t i = 0; i < n; i++)
    out[i] = out[i] ? out[i] : ' ';
  return out;
}

static void answered(const struct rd2h_rendezvous *r, struct job *j) {
  char body[RDV_QUOTE + 1];
  if (j->http < 300) {
    j->status = RD2H_OK;
    return;
  }
  char attempt[40] = "";
  if (j->http == HTTP_LATER)
    snprintf(attempt, sizeof attempt, ", attempt %u of %u", j->attempts, r->o.max_attempts);
  rd2h_rdv_say(j, RD2H_REFUSED, "metaserver %.120s answered %ld to the rendezvous of %.80s%s%s%s", j->url, j->http, j->id, attempt,
               j->http < 400 ? "; redirects are not followed" : j->quoted ? ": " : "",
               j->http < 400 ? "" : quote(j, body));
  if (!r->o.legacy_metaserver)
    return;
  RD2H_WARN("%s; taken as delivered (legacy_metaserver)", j->text);
  j->status = RD2H_OK;
}

/* "Not now": the metaserver took nothing. One that says so of what it did take sees the same id and attempt once more. The pause that
 * it asks for is kept, where it ends in time. */
static bool may_come_later(const struct rd2h_rendezvous *r, const struct job *j) {
  return j->http == HTTP_LATER && !r->o.legacy_metaserver && j->attempts < r->o.max_attempts &&
         rd2h_now_ns() + j->later_ms * RD2H_MS < j->until;
}

static void note_pause(struct job *j) {
  curl_off_t s = 0;
  curl_easy_getinfo(j->easy, CURLINFO_RETRY_AFTER, &s);
  j->later_ms = s > 0 ? (s < MAX_LATER_S ? (uint64_t)s : MAX_LATER_S) * 1000 : 0;
}

/* Only what cannot have reached the metaserver whole. libcurl itself repeats a request at once, on a new connection, when one
 * kept open from before turns out dead without a byte of answer. */
static bool may_repeat(const struct job *j, CURLcode end) {
  if (end == CURLE_SEND_ERROR)
    return true;
  return !j->sent && (end == CURLE_COULDNT_RESOLVE_HOST || end == CURLE_COULDNT_CONNECT || end == CURLE_OPERATION_TIMEDOUT ||
                      end == CURLE_SSL_CONNECT_ERROR);
}

static const char *cause(CURLcode end) {
  switch (end) {
  case CURLE_UNSUPPORTED_PROTOCOL: case CURLE_WEIRD_SERVER_REPLY:
    return "what answers there does not speak HTTP";
  case CURLE_OK: case CURLE_GOT_NOTHING: case CURLE_RECV_ERROR: case CURLE_PARTIAL_FILE: /* OK: cut off in the headers */
    return "the connection ended before the answer was complete";
  case CURLE_PEER_FAILED_VERIFICATION:
    return "its certificate is refused: it must name this address, and rendezvous_ca (or the machine's store) its authority";
  default:
    return "not reachable";
  }
}

static void unanswered(const struct rd2h_rendezvous *r, struct job *j, CURLcode end) {
  const char *detail = j->curl_text[0] ? j->curl_text : end ? curl_easy_strerror(end) : "headers cut off";
  j->http = 0;
  if (end == CURLE_OPERATION_TIMEDOUT && j->sent)
    rd2h_rdv_say(j, RD2H_TIMEOUT, "metaserver %.120s did not answer the rendezvous of %.80s within %u ms", j->url, j->id,
                 r->o.answer_timeout_ms);
  else if (end == CURLE_WRITE_ERROR)
    rd2h_rdv_say(j, RD2H_IO, "metaserver %.120s, rendezvous of %.80s: headers of more than %u bytes", j->url, j->id, MAX_ANSWER);
  else
    rd2h_rdv_say(j, RD2H_IO, "metaserver %.120s, rendezvous of %.80s, attempt %u of %u: %s (%.120s)", j->url, j->id, j->attempts,
                 r->o.max_attempts, cause(end), detail);
}

bool rd2h_rdv_end(struct rd2h_rendezvous *r, struct job *j, CURLcode end) {
  bool again;
  note_pause(j);
  rd2h_rdv_drop(r, j);
  if (j->headers) {
    answered(r, j);
    again = may_come_later(r, j);
  } else {
    unanswered(r, j, end);
    again = may_repeat(j, end) && j->attempts < r->o.max_attempts;
  }
  if (!again)
    return true;
  RD2H_INFO("%s; it will be repeated", j->text);
  return false;
}
