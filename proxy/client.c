/* SPDX-License-Identifier: Apache-2.0 */
#include "proxy/client.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>

enum { BUFFER_BYTES = 16 << 10, POOL = 256 };

struct px_client {
  struct event_base *base;
  struct px_client_limits limits;
  CURLM *multi;
  struct event *timer, *reaper;
  struct px_call *cancelled; /* freed from the loop: libcurl may be on their stack */
  struct px_call *starting;  /* asked for from inside libcurl, which takes no new ones there */
  bool inside;
  CURL *idle[POOL];
  size_t n_idle, open;
};

struct px_call {
  struct px_client *client;
  struct px_call *next;
  CURL *easy;
  struct curl_slist *headers;
  const struct px_call_events *events; /* NULL: cancelled */
  void *user;
  struct px_span body; /* what is still to be sent */
  bool head_told, paused, queued;
  char error[CURL_ERROR_SIZE], retry_after[32];
};

/* ---- handles ---- */
static CURL *take_easy(struct px_client *c) {
  return c->n_idle ? c->idle[--c->n_idle] : curl_easy_init();
}

static void give_easy(struct px_client *c, CURL *easy) {
  if (c->n_idle == POOL) {
    curl_easy_cleanup(easy);
    return;
  }
  curl_easy_reset(easy);
  c->idle[c->n_idle++] = easy;
}

static void call_free(struct px_call *call) {
  struct px_client *c = call->client;
  curl_multi_remove_handle(c->multi, call->easy);
  give_easy(c, call->easy);
  curl_slist_free_all(call->headers);
  c->open--;
  free(call);
}

/* ---- what libcurl says of a call ---- */
static void tell_head(struct px_call *call) {
  long status = 0;
  char *type = NULL;
  if (call->head_told || !call->events)
    return;
  call->head_told = true;
  curl_easy_getinfo(call->easy, CURLINFO_RESPONSE_CODE, &status);
  curl_easy_getinfo(call->easy, CURLINFO_CONTENT_TYPE, &type);
  call->events->head(call->user, (int)status, type ? type : "", call->retry_after);
}

static size_t on_data(char *p, size_t size, size_t n, void *arg) {
  struct px_call *call = arg;
  struct px_client *c = call->client;
  bool taken = false;
  c->inside = true;
  tell_head(call);
  if (call->events)
    taken = call->events->data(call->user, (struct px_span){p, size * n});
  c->inside = false;
  if (taken)
    return size * n;
  if (!call->events)
    return 0; /* cancelled */
  call->paused = true;
  return CURL_WRITEFUNC_PAUSE;
}

/* With CURLOPT_POSTFIELDS libcurl would send a body again, of itself, when a kept connection ends without an answer. It cannot wind this
 * one back, so whether a request is repeated is decided by its sender alone. */
static size_t on_read(char *to, size_t size, size_t n, void *arg) {
  struct px_call *call = arg;
  size_t room = size * n, take = call->body.n < room ? call->body.n : room;
  if (!call->events)
    return CURL_READFUNC_ABORT;
  if (take)
    memcpy(to, call->body.p, take);
  call->body.p += take;
  call->body.n -= take;
  return take;
}

static size_t on_header(char *p, size_t size, size_t n, void *arg) {
  struct px_call *call = arg;
  size_t length = size * n, value = 12;
  if (length > value && rd2h_px_equal_nocase((struct px_span){p, value}, PX_LIT("retry-after:"))) {
    while (value < length && p[value] == ' ')
      value++;
    snprintf(call->retry_after, sizeof call->retry_after, "%.*s", (int)(length - value), p + value);
    call->retry_after[strcspn(call->retry_after, "\r\n")] = 0;
  }
  return length;
}

static void reap(struct px_client *c) {
  CURLMsg *m;
  int left;
  while ((m = curl_multi_info_read(c->multi, &left)) != NULL) {
    struct px_call *call;
    CURLcode rc = m->data.result;
    char error[CURL_ERROR_SIZE + 64];
    if (m->msg != CURLMSG_DONE)
      continue;
    curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&call);
    if (!call->events)
      continue; /* cancelled: the reaper frees it */
    if (rc == CURLE_OK)
      tell_head(call);
    const struct px_call_events *events = call->events;
    void *user = call->user;
    snprintf(error, sizeof error, "%s", call->error[0] ? call->error : curl_easy_strerror(rc));
    if (!events)
      continue;
    call_free(call);
    events->done(user, rc == CURLE_OK ? NULL : error);
  }
}

static void start_queued(struct px_client *c) {
  while (c->starting) {
    struct px_call *call = c->starting;
    const struct px_call_events *events = call->events;
    void *user = call->user;
    c->starting = call->next;
    call->queued = false;
    if (events && curl_multi_add_handle(c->multi, call->easy) == CURLM_OK)
      continue;
    call_free(call);
    if (events)
      events->done(user, "the request could not be started");
  }
}

static void on_reaper(evutil_socket_t fd, short what, void *arg) {
  struct px_client *c = arg;
  (void)fd, (void)what;
  start_queued(c);
  while (c->cancelled) {
    struct px_call *call = c->cancelled;
    c->cancelled = call->next;
    call_free(call);
  }
  reap(c);
}

/* ---- libcurl's sockets and timer on the loop ---- */
static void on_socket_event(evutil_socket_t fd, short what, void *arg) {
  struct px_client *c = arg;
  int running, mask = (what & EV_READ ? CURL_CSELECT_IN : 0) | (what & EV_WRITE ? CURL_CSELECT_OUT : 0);
  curl_multi_socket_action(c->multi, fd, mask, &running);
  reap(c);
}

static void on_timeout(evutil_socket_t fd, short what, void *arg) {
  struct px_client *c = arg;
  int running;
  (void)fd, (void)what;
  curl_multi_socket_action(c->multi, CURL_SOCKET_TIMEOUT, 0, &running);
  reap(c);
}

static int want_timer(CURLM *multi, long ms, void *arg) {
  struct px_client *c = arg;
  const struct timeval tv = {ms / 1000, ms % 1000 * 1000};
  (void)multi;
  if (ms < 0)
    evtimer_del(c->timer);
  else
    evtimer_add(c->timer, &tv);
  return 0;
}

static int want_socket(CURL *easy, curl_socket_t fd, int what, void *arg, void *slot) {
  struct px_client *c = arg;
  struct event *e = slot;
  (void)easy;
  if (what == CURL_POLL_REMOVE) {
    if (e)
      event_free(e);
    return 0;
  }
  short flags = (short)(EV_PERSIST | (what & CURL_POLL_IN ? EV_READ : 0) | (what & CURL_POLL_OUT ? EV_WRITE : 0));
  if (e) {
    if (event_get_events(e) == flags)
      return 0;
    event_del(e);
    event_assign(e, c->base, fd, flags, on_socket_event, c);
  } else {
    e = event_new(c->base, fd, flags, on_socket_event, c);
    if (!e)
      return -1;
    curl_multi_assign(c->multi, fd, e);
  }
  return event_add(e, NULL);
}

/* ---- calls ---- */
static void set_options(struct px_call *call, const struct px_request *r) {
  const struct px_client_limits *l = &call->client->limits;
  CURL *e = call->easy;
  curl_easy_setopt(e, CURLOPT_URL, r->url);
  curl_easy_setopt(e, CURLOPT_PRIVATE, call);
  curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(e, CURLOPT_PROXY, "");
  curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(e, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
  curl_easy_setopt(e, CURLOPT_BUFFERSIZE, (long)BUFFER_BYTES);
  curl_easy_setopt(e, CURLOPT_ERRORBUFFER, call->error);
  curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, on_data);
  curl_easy_setopt(e, CURLOPT_WRITEDATA, call);
  curl_easy_setopt(e, CURLOPT_HEADERFUNCTION, on_header);
  curl_easy_setopt(e, CURLOPT_HEADERDATA, call);
  curl_easy_setopt(e, CURLOPT_HTTPHEADER, call->headers);
  curl_easy_setopt(e, CURLOPT_TCP_NODELAY, 1L);
  curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT_MS, (long)l->connect_ms);
  curl_easy_setopt(e, CURLOPT_TIMEOUT_MS, (long)r->limit_ms);
  curl_easy_setopt(e, CURLOPT_SSL_VERIFYPEER, l->verify ? 1L : 0L);
  curl_easy_setopt(e, CURLOPT_SSL_VERIFYHOST, l->verify ? 2L : 0L);
  if (l->ca_file)
    curl_easy_setopt(e, CURLOPT_CAINFO, l->ca_file);
  if (r->post) {
    curl_easy_setopt(e, CURLOPT_POST, 1L);
    curl_easy_setopt(e, CURLOPT_READFUNCTION, on_read);
    curl_easy_setopt(e, CURLOPT_READDATA, call);
    curl_easy_setopt(e, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)r->body.n);
  }
}

static bool add_header(struct px_call *call, const char *line) {
  struct curl_slist *l = curl_slist_append(call->headers, line);
  if (l)
    call->headers = l;
  return l != NULL;
}

struct px_call *rd2h_px_call(struct px_client *c, const struct px_request *r, const struct px_call_events *events, void *user) {
  struct px_call *call = calloc(1, sizeof *call);
  bool good = call && (call->easy = take_easy(c)) != NULL;
  if (!good)
    goto fail;
  call->client = c;
  call->events = events;
  call->user = user;
  call->body = r->body;
  for (size_t i = 0; good && i < r->n_header; i++)
    good = add_header(call, r->header[i]);
  good = good && add_header(call, "Expect:") && add_header(call, "Accept-Encoding: identity");
  if (!good)
    goto fail;
  set_options(call, r);
  if (c->inside) {
    call->queued = true;
    call->next = c->starting;
    c->starting = call;
    event_active(c->reaper, EV_TIMEOUT, 1);
  } else if (curl_multi_add_handle(c->multi, call->easy) != CURLM_OK) {
    goto fail;
  }
  c->open++;
  return call;

fail:
  if (call) {
    curl_slist_free_all(call->headers);
    if (call->easy)
      curl_easy_cleanup(call->easy);
  }
  free(call);
  return NULL;
}

void rd2h_px_call_cancel(struct px_call *call) {
  struct px_client *c = call->client;
  if (!call->events)
    return;
  call->events = NULL;
  if (call->queued)
    return;
  call->next = c->cancelled;
  c->cancelled = call;
  event_active(c->reaper, EV_TIMEOUT, 1);
}

void rd2h_px_call_resume(struct px_call *call) {
  if (!call->paused || !call->events)
    return;
  call->paused = false;
  curl_easy_pause(call->easy, CURLPAUSE_CONT);
  event_active(call->client->reaper, EV_TIMEOUT, 1);
}

size_t rd2h_px_client_open(const struct px_client *c) {
  return c->open;
}

struct px_client *rd2h_px_client_new(struct event_base *base, const struct px_client_limits *limits) {
  struct px_client *c = calloc(1, sizeof *c);
  if (!c)
    return NULL;
  c->base = base;
  c->limits = *limits;
  c->multi = curl_multi_init();
  c->timer = evtimer_new(base, on_timeout, c);
  c->reaper = evtimer_new(base, on_reaper, c);
  if (!c->multi || !c->timer || !c->reaper) {
    rd2h_px_client_free(c);
    return NULL;
  }
  curl_multi_setopt(c->multi, CURLMOPT_SOCKETFUNCTION, want_socket);
  curl_multi_setopt(c->multi, CURLMOPT_SOCKETDATA, c);
  curl_multi_setopt(c->multi, CURLMOPT_TIMERFUNCTION, want_timer);
  curl_multi_setopt(c->multi, CURLMOPT_TIMERDATA, c);
  curl_multi_setopt(c->multi, CURLMOPT_PIPELINING, (long)CURLPIPE_NOTHING);
  curl_multi_setopt(c->multi, CURLMOPT_MAXCONNECTS, (long)limits->max_idle);
  curl_multi_setopt(c->multi, CURLMOPT_MAX_HOST_CONNECTIONS, limits->max_connections);
  return c;
}

void rd2h_px_client_free(struct px_client *c) {
  if (!c)
    return;
  if (c->reaper)
    on_reaper(-1, 0, c);
  while (c->n_idle)
    curl_easy_cleanup(c->idle[--c->n_idle]);
  if (c->multi)
    curl_multi_cleanup(c->multi);
  if (c->timer)
    event_free(c->timer);
  if (c->reaper)
    event_free(c->reaper);
  free(c);
}
