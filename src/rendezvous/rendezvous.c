/* SPDX-License-Identifier: Apache-2.0 */
/* The caller's side: a table of jobs, and lists that say where each one is. */
#include "rendezvous/internal.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define MAX_URL 4096u
#define MAX_BODY (1u << 20)

void rd2h_rdv_push(struct job_list *l, struct job *j) {
  j->next = NULL;
  j->prev = l->last;
  if (l->last)
    l->last->next = j;
  else
    l->first = j;
  l->last = j;
}

void rd2h_rdv_unlink(struct job_list *l, struct job *j) {
  if (j->prev)
    j->prev->next = j->next;
  else
    l->first = j->next;
  if (j->next)
    j->next->prev = j->prev;
  else
    l->last = j->prev;
  j->prev = j->next = NULL;
}

void rd2h_rdv_job_free(struct rd2h_rendezvous *r, struct job *j) {
  rd2h_free(j->id);
  rd2h_free(j->url);
  rd2h_free(j->body);
  rd2h_free(j->text);
  rd2h_slab_give(&r->jobs, j->index);
}

void rd2h_rdv_notify(int fd) {
  uint64_t one = 1;
  while (write(fd, &one, sizeof one) < 0 && errno == EINTR)
    ;
}

void rd2h_rdv_quiet(int fd) {
  uint64_t count;
  while (read(fd, &count, sizeof count) < 0 && errno == EINTR)
    ;
}

/* ---- life ---- */
static pthread_once_t curl_once = PTHREAD_ONCE_INIT;
static CURLcode curl_status;

static void curl_begin(void) {
  curl_status = curl_global_init(CURL_GLOBAL_DEFAULT);
}

static uint32_t or_default(uint32_t v, uint32_t otherwise) {
  return v ? v : otherwise;
}

static struct rd2h_rendezvous_opts with_defaults(const struct rd2h_rendezvous_opts *o) {
  return (struct rd2h_rendezvous_opts){
    .connect_timeout_ms = or_default(o->connect_timeout_ms, 3000), .max_attempts = or_default(o->max_attempts, 5),
    .answer_timeout_ms = or_default(o->answer_timeout_ms, 600000), .max_inflight = or_default(o->max_inflight, 4096),
    .max_queued = or_default(o->max_queued, 65536), .backoff_ms = or_default(o->backoff_ms, 100),
    .legacy_metaserver = o->legacy_metaserver};
}

/* Now, and not at the first request. */
static int check_ca(const char *path, struct rd2h_error *err) {
  char line[128];
  bool found = false;
  FILE *f = fopen(path, "re");
  if (!f)
    return rd2h_fail(err, RD2H_INVALID, "rendezvous_ca \"%.200s\" cannot be read: %s; name a PEM file with the metaserver's authority",
                     path, strerror(errno));
  while (!found && fgets(line, sizeof line, f))
    found = !strncmp(line, "-----BEGIN ", 11) && strstr(line, "CERTIFICATE-----");
  fclose(f);
  if (found)
    return RD2H_OK;
  return rd2h_fail(err, RD2H_INVALID, "rendezvous_ca \"%.200s\" holds no certificate (-----BEGIN CERTIFICATE-----); name a PEM file with "
                   "the metaserver's authority", path);
}

/* The engine's signal handlers are not for this thread, and a broken TLS connection must not raise SIGPIPE in the process. */
static int thread_start(struct rd2h_rendezvous *r) {
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  int rc = pthread_create(&r->thread, NULL, rd2h_rdv_loop, r);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  return rc;
}

static void release(struct rd2h_rendezvous *r) {
  rd2h_rdv_loop_destroy(r);
  for (uint32_t i = 0; i < r->jobs.next; i++)
    if (rd2h_slab_live(&r->jobs, i))
      rd2h_rdv_job_free(r, rd2h_slab_at(&r->jobs, i));
  rd2h_slab_free(&r->jobs);
  rd2h_map_destroy(r->map);
  if (r->wake_fd >= 0)
    close(r->wake_fd);
  if (r->result_fd >= 0)
    close(r->result_fd);
  pthread_mutex_destroy(&r->lock);
  rd2h_free((char *)r->o.ca);
  rd2h_free(r);
}

int rd2h_rendezvous_create(const struct rd2h_rendezvous_opts *opts, rd2h_rendezvous **out, struct rd2h_error *err) {
  int rc;
  pthread_once(&curl_once, curl_begin);
  if (curl_status)
    return rd2h_fail(err, RD2H_INTERNAL, "libcurl does not start: %s", curl_easy_strerror(curl_status));
  rc = opts->ca ? check_ca(opts->ca, err) : RD2H_OK;
  if (rc)
    return rc;
  struct rd2h_rendezvous *r = rd2h_zalloc(sizeof *r);
  if (!r)
    return rd2h_nomem(err, "the rendezvous client");
  r->o = with_defaults(opts);
  r->o.ca = opts->ca ? rd2h_strdup(opts->ca) : NULL;
  r->epoll_fd = -1;
  r->curl_due = RD2H_NEVER;
  pthread_mutex_init(&r->lock, NULL);
  rd2h_slab_init(&r->jobs, sizeof(struct job), 0);
  r->map = rd2h_map_create();
  r->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  r->result_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (!r->map || (opts->ca && !r->o.ca))
    rc = rd2h_nomem(err, "the rendezvous client");
  else if (r->wake_fd < 0 || r->result_fd < 0)
    rc = rd2h_fail(err, RD2H_LIMIT, "the rendezvous client needs two eventfds: %s; raise the limit of open files",
                   strerror(errno));
  else
    rc = rd2h_rdv_loop_create(r, err);
  if (!rc && thread_start(r))
    rc = rd2h_fail(err, RD2H_LIMIT, "the rendezvous client cannot start its thread; raise the limit of threads");
  if (rc)
    release(r);
  else
    *out = r;
  return rc;
}

void rd2h_rendezvous_destroy(rd2h_rendezvous *r) {
  if (!r)
    return;
  pthread_mutex_lock(&r->lock);
  r->stop = true;
  pthread_mutex_unlock(&r->lock);
  rd2h_rdv_notify(r->wake_fd);
  pthread_join(r->thread, NULL);
  release(r);
}

/* ---- posting ---- */
static int check_url(const char *url, struct rd2h_error *err) {
  CURLU *u = curl_url();
  char *scheme = NULL;
  CURLUcode rc = u ? curl_url_set(u, CURLUPART_URL, url, CURLU_DISALLOW_USER) : CURLUE_OUT_OF_MEMORY;
  if (!rc)
    rc = curl_url_get(u, CURLUPART_SCHEME, &scheme, 0);
  bool http = !rc && (!strcmp(scheme, "http") || !strcmp(scheme, "https"));
  curl_free(scheme);
  curl_url_cleanup(u);
  if (rc == CURLUE_OUT_OF_MEMORY)
    return rd2h_nomem(err, "a metaserver's address");
  if (rc || !http || strlen(url) > MAX_URL)
    return rd2h_fail(err, RD2H_INVALID, "metaserver \"%.200s\" cannot be used (%s); it must be http://host:port/path or "
                                        "https://…", url, rc ? curl_url_strerror(rc) : http ? "too long" : "another scheme");
  return RD2H_OK;
}

/* Under the lock. Takes over the strings of `from` on success. */
static int enter(struct rd2h_rendezvous *r, const struct job *from, struct rd2h_error *err) {
  size_t n = strlen(from->id);
  uint64_t cap = (uint64_t)r->o.max_inflight + r->o.max_queued;
  if (rd2h_map_get(r->map, from->id, n) != RD2H_INDEX_NONE)
    return rd2h_fail(err, RD2H_EXISTS, "request %.128s: its rendezvous is open already", from->id);
  if (rd2h_map_size(r->map) >= cap)
    return rd2h_fail(err, RD2H_LIMIT, "request %.128s: %u rendezvous are open already, no more are queued; is the "
                                      "metaserver alive?", from->id, rd2h_map_size(r->map));
  uint32_t i = rd2h_slab_take(&r->jobs);
  if (i == RD2H_INDEX_NONE)
    return rd2h_nomem(err, "a rendezvous");
  if (rd2h_map_put(r->map, from->id, n, i)) {
    rd2h_slab_give(&r->jobs, i);
    return rd2h_nomem(err, "a rendezvous");
  }
  struct job *j = rd2h_slab_at(&r->jobs, i);
  *j = *from;
  j->index = i;
  j->serial = r->serial++;
  rd2h_rdv_push(&r->ready, j);
  return RD2H_OK;
}

int rd2h_rendezvous_post(rd2h_rendezvous *r, const char *id, const char *url, const char *body, size_t len,
                         struct rd2h_error *err) {
  int rc = check_url(url, err);
  if (rc)
    return rc;
  if (len > MAX_BODY)
    return rd2h_fail(err, RD2H_LIMIT, "request %.128s: a rendezvous of %zu bytes, at most %u are sent", id, len, MAX_BODY);
  struct job j = {.owner = r, .place = JOB_READY, .id = rd2h_strdup(id), .url = rd2h_strdup(url), .body = rd2h_alloc(len),
                  .len = len, .text = rd2h_zalloc(RDV_TEXT)};
  if (!j.id || !j.url || !j.body || !j.text) {
    rc = rd2h_nomem(err, "a rendezvous");
  } else {
    memcpy(j.body, body, len);
    pthread_mutex_lock(&r->lock);
    rc = enter(r, &j, err);
    pthread_mutex_unlock(&r->lock);
  }
  if (!rc) {
    rd2h_rdv_notify(r->wake_fd);
    return RD2H_OK;
  }
  rd2h_free(j.id);
  rd2h_free(j.url);
  rd2h_free(j.body);
  rd2h_free(j.text);
  return rc;
}

void rd2h_rendezvous_cancel(rd2h_rendezvous *r, const char *id) {
  pthread_mutex_lock(&r->lock);
  uint32_t i = rd2h_map_del(r->map, id, strlen(id));
  struct job *j = i == RD2H_INDEX_NONE ? NULL : rd2h_slab_at(&r->jobs, i);
  bool wire = j && j->place == JOB_WIRE;
  if (wire) {
    j->place = JOB_DROPPED;
    rd2h_rdv_push(&r->dropped, j);
  } else if (j) {
    if (j->place == JOB_READY)
      rd2h_rdv_unlink(&r->ready, j);
    else if (j->place == JOB_RESULT)
      rd2h_rdv_unlink(&r->result, j);
    if (!r->result.first)
      rd2h_rdv_quiet(r->result_fd);
    rd2h_rdv_job_free(r, j);
  }
  pthread_mutex_unlock(&r->lock);
  if (wire)
    rd2h_rdv_notify(r->wake_fd);
}

/* ---- results ---- */
static struct rd2h_rendezvous_result take_result(struct rd2h_rendezvous *r, struct job *j) {
  struct rd2h_rendezvous_result out = {.id = j->id, .status = j->status, .http = j->http};
  rd2h_rdv_unlink(&r->result, j);
  rd2h_map_del(r->map, j->id, strlen(j->id));
  j->id = NULL;
  if (j->status != RD2H_OK) {
    out.text = j->text;
    j->text = NULL;
  }
  rd2h_rdv_job_free(r, j);
  return out;
}

uint32_t rd2h_rendezvous_poll(rd2h_rendezvous *r, struct rd2h_rendezvous_result *out, uint32_t cap) {
  uint32_t n = 0;
  pthread_mutex_lock(&r->lock);
  while (n < cap && r->result.first)
    out[n++] = take_result(r, r->result.first);
  if (!r->result.first)
    rd2h_rdv_quiet(r->result_fd);
  pthread_mutex_unlock(&r->lock);
  return n;
}

int rd2h_rendezvous_fd(const rd2h_rendezvous *r) {
  return r->result_fd;
}

uint32_t rd2h_rendezvous_open(const rd2h_rendezvous *r) {
  struct rd2h_rendezvous *w = (struct rd2h_rendezvous *)r;
  pthread_mutex_lock(&w->lock);
  uint32_t n = rd2h_map_size(w->map);
  pthread_mutex_unlock(&w->lock);
  return n;
}
