/* SPDX-License-Identifier: Apache-2.0 */
/* Decode: peers, and reads handed to the threads of their sessions. */
#include "engines/memfabric/client.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define SLICE (64u << 20) /* each call begins and ends a pipeline of the library: smaller ones cost a tenth */
#define FENCE_WARN_S 31

static void lock(void) {
  pthread_mutex_lock(&rd2h_mf_lock);
}

static void unlock(void) {
  pthread_mutex_unlock(&rd2h_mf_lock);
}

/* ---- open and close ---- */
static int add_fd(int epoll, int fd) {
  struct epoll_event ev = {.events = EPOLLIN};
  return fd < 0 ? -1 : epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &ev);
}

static int open_fds(struct mf_client *c, struct rd2h_error *err) {
  c->timer = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
  c->epoll = epoll_create1(EPOLL_CLOEXEC);
  if (!rd2h_ready_open(&c->ready) || c->epoll < 0 || add_fd(c->epoll, c->ready.fd) || add_fd(c->epoll, c->timer))
    return rd2h_fail(err, RD2H_LIMIT, "engine memfabric: event descriptors: %s; raise the limit of open files (ulimit -n)",
                     strerror(errno));
  return RD2H_OK;
}

static void free_client(struct mf_client *c) {
  const int fds[] = {c->epoll, c->timer};
  for (size_t i = 0; i < RD2H_COUNT(fds); i++)
    if (fds[i] >= 0)
      close(fds[i]);
  rd2h_ready_close(&c->ready);
  rd2h_free(c->job);
  rd2h_free(c->err);
  rd2h_free(c);
}

int rd2h_mf_client_open(const struct mf_api *api, const struct mf_options *o, const char *host, const struct rd2h_engine_opts *opts,
                        struct mf_client **out, struct rd2h_error *err) {
  struct mf_client *c = rd2h_zalloc(sizeof *c);
  if (!c)
    return rd2h_nomem(err, "engine memfabric");
  c->api = api;
  c->o = *o;
  c->slice = opts->slice_bytes ? opts->slice_bytes : SLICE;
  c->ready.fd = c->timer = c->epoll = -1;
  snprintf(c->host, sizeof c->host, "%s", host);
  c->job = rd2h_calloc(MF_JOBS, sizeof *c->job);
  c->err = rd2h_calloc(MF_JOBS, sizeof *c->err);
  int rc = c->job && c->err ? open_fds(c, err) : rd2h_nomem(err, "engine memfabric");
  if (rc) {
    free_client(c);
    return rc;
  }
  rd2h_mf_sessions_begin();
  for (uint32_t i = MF_JOBS; i--;) {
    c->job[i].err = &c->err[i];
    rd2h_mf_give(c, &c->job[i]);
  }
  *out = c;
  return RD2H_OK;
}

void rd2h_mf_client_close(struct mf_client *c) {
  while (c->peers)
    rd2h_mf_client_disconnect(c, c->peers);
  lock();
  rd2h_mf_sessions_end();
  unlock();
  free_client(c);
}

/* ---- peers ---- */
/* A peer that published none is a MemFabric user of another kind: its session alone says where it is. */
static int who(struct mf_client *c, struct rd2h_blob session, struct rd2h_blob conn, struct mf_conn *out, struct rd2h_error *err) {
  if (conn.len) {
    int rc = rd2h_mf_conn_decode(conn, out, err);
    if (rc || out->op == c->o.protocol->op)
      return rc;
    const struct mf_protocol *theirs = rd2h_mf_protocol(out->op);
    rd2h_free(out->range);
    return rd2h_fail(err, RD2H_UNSUPPORTED, "engine memfabric: Prefill moves bytes by %s, Decode by %s: set the same protocol= on both "
                     "sides", theirs ? theirs->name : "a protocol unknown here", c->o.protocol->name);
  }
  if (!rd2h_mf_session_ok(session.p, session.len))
    return rd2h_fail(err, RD2H_MALFORMED, "engine memfabric: the peer's session \"%.*s\" is no numeric address with a port",
                     session.len < 128 ? (int)session.len : 128, (const char *)session.p);
  *out = (struct mf_conn){.n = 0};
  memcpy(out->id, session.p, session.len);
  return RD2H_OK;
}

static struct mf_session *session_of(struct mf_client *c, const char *id) {
  struct mf_session *s = c->sessions;
  while (s && (s->lost || strcmp(s->id, id)))
    s = s->next;
  return s ? s : rd2h_mf_session_new(c, id);
}

int rd2h_mf_client_connect(struct mf_client *c, struct rd2h_blob session, struct rd2h_blob conn, uint64_t cookie, rd2h_peer **out,
                           struct rd2h_error *err) {
  struct mf_conn at;
  int rc = who(c, session, conn, &at, err);
  if (rc)
    return rc;
  rd2h_peer *p = rd2h_zalloc(sizeof *p);
  lock();
  struct mf_session *s = p ? session_of(c, at.id) : NULL;
  if (s) {
    *p = (rd2h_peer){.session = s, .cookie = cookie, .conn = at, .next = c->peers};
    c->peers = p;
    s->peers++;
  }
  unlock();
  if (!s) {
    rd2h_free(p);
    rd2h_free(at.range);
    return rd2h_nomem(err, "engine peer");
  }
  *out = p;
  return RD2H_OK;
}

static void drop_jobs(struct mf_client *c, struct mf_list *l, const rd2h_peer *p) {
  struct mf_list all = mf_list_take(l);
  struct mf_job *j;
  while ((j = mf_list_pop(&all)))
    if (j->peer == p)
      rd2h_mf_give(c, j);
    else
      mf_list_push(l, j);
}

/* While the object is still being made nothing is written: the job is simply taken away. Else its call must end. */
static void fence(struct mf_client *c, struct mf_session *s, const rd2h_peer *p) {
  if (s->running && s->running->peer == p && !s->reading) {
    rd2h_mf_give(c, s->running);
    s->running = NULL;
  }
  if (s->running && s->running->peer == p)
    __atomic_store_n(&s->running->stop, true, __ATOMIC_RELAXED);
  while (s->running && s->running->peer == p) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += FENCE_WARN_S;
    if (pthread_cond_timedwait(&rd2h_mf_ended, &rd2h_mf_lock, &until) == ETIMEDOUT)
      RD2H_ERR("engine memfabric: a read from %s has not come back for %d s; still waiting, its destinations cannot be given back",
               s->id, FENCE_WARN_S);
  }
}

void rd2h_mf_client_disconnect(struct mf_client *c, rd2h_peer *p) {
  struct mf_session *s = p->session;
  lock();
  drop_jobs(c, &s->queue, p);
  fence(c, s, p);
  drop_jobs(c, &c->done, p);
  rd2h_peer **at = &c->peers;
  while (*at != p)
    at = &(*at)->next;
  *at = p->next;
  c->downs -= p->tell_down;
  rd2h_mf_set_signal(c);
  if (!--s->peers)
    rd2h_mf_session_drop(s);
  unlock();
  rd2h_free(p->conn.range);
  rd2h_free(p);
}

/* ---- reads ---- */
static void refuse(struct mf_client *c, struct mf_job *j, const struct rd2h_batch *b, uint32_t at) {
  rd2h_fail(j->err, RD2H_RANGE, "engine memfabric: descriptor %u of %u, %llu bytes at 0x%llx, lies in no area that %s announced", at, b->n,
            (unsigned long long)b->len[at], (unsigned long long)b->remote[at], j->peer->session->id);
  rd2h_mf_finish(c, j, RD2H_RANGE, 0);
}

int rd2h_mf_client_submit(struct mf_client *c, rd2h_peer *p, const struct rd2h_batch *b) {
  struct mf_session *s = p->session;
  uint32_t outside = p->conn.range ? rd2h_mf_outside(p->conn.range, p->conn.n, b) : UINT32_MAX;
  int rc = RD2H_OK;
  lock();
  struct mf_job *j = c->free_jobs;
  if (s->lost)
    rc = RD2H_PEER_LOST;
  else if (s->suspect)
    rc = RD2H_TIMEOUT;
  else if (!j || p->n == MF_JOBS_PER_PEER)
    rc = RD2H_AGAIN;
  else
    rc = rd2h_mf_session_wake(s);
  if (!rc) {
    c->free_jobs = j->next;
    *j = (struct mf_job){.batch = b, .id = b->id, .peer = p, .err = j->err, .taken = true};
    j->err->text[0] = 0;
    p->n++;
    if (outside != UINT32_MAX)
      refuse(c, j, b, outside);
    else
      mf_list_push(&s->queue, j);
  }
  unlock();
  return rc;
}

static void stop(struct mf_client *c, struct mf_job *j) {
  struct mf_session *s = j->peer->session;
  if (s->running == j && s->reading) {
    __atomic_store_n(&j->stop, true, __ATOMIC_RELAXED);
    return;
  }
  if (s->running == j)
    s->running = NULL;
  else
    mf_list_remove(&s->queue, j);
  rd2h_fail(j->err, RD2H_CANCELED, "engine memfabric: canceled before it was read");
  rd2h_mf_finish(c, j, RD2H_CANCELED, 0);
}

void rd2h_mf_client_cancel(struct mf_client *c, uint64_t id) {
  lock();
  for (uint32_t i = 0; i < MF_JOBS; i++)
    if (c->job[i].taken && c->job[i].id == id && c->job[i].peer && c->job[i].batch) {
      stop(c, &c->job[i]);
      break;
    }
  unlock();
}

/* A call that has lasted for a second: whatever else waits for this peer fails now, nothing new is taken until it has ended. */
static void look_after(struct mf_client *c) {
  uint64_t expirations, now = rd2h_now_ns();
  if (!c->armed || read(c->timer, &expirations, sizeof expirations) != (ssize_t)sizeof expirations)
    return;
  struct itimerspec t = {.it_value = {.tv_sec = c->running > 0}};
  timerfd_settime(c->timer, 0, &t, NULL);
  c->armed = c->running > 0;
  for (struct mf_session *s = c->sessions; s; s = s->next) {
    uint64_t since = __atomic_load_n(&s->call_since, __ATOMIC_RELAXED);
    if (!s->reading || !since || now < since + MF_SUSPECT_NS || s->suspect) /* a call may have begun after now was taken */
      continue;
    char why[200];
    s->suspect = true;
    snprintf(why, sizeof why, "engine memfabric: a read from %s has hung for %.1f s; no other is begun before it ends", s->id,
             (double)(now - since) / 1e9);
    RD2H_WARN("%s", why);
    rd2h_mf_fail_queued(s, RD2H_TIMEOUT, why);
  }
}

static void forget_told(struct mf_client *c) {
  struct mf_job *j;
  while ((j = mf_list_pop(&c->told)))
    rd2h_mf_give(c, j);
}

int rd2h_mf_client_poll(struct mf_client *c, struct rd2h_completion *out, int n) {
  struct mf_job *j;
  int got = 0;
  lock();
  forget_told(c);
  look_after(c);
  while (got < n && (j = mf_list_pop(&c->done))) {
    out[got++] = (struct rd2h_completion){j->id, j->status, UINT32_MAX, j->bytes};
    j->peer->n--;
    j->peer = NULL;
    if (j->status)
      mf_list_push(&c->told, j);
    else
      rd2h_mf_give(c, j);
  }
  rd2h_mf_set_signal(c);
  unlock();
  return got;
}

int rd2h_mf_client_events(struct mf_client *c, struct rd2h_peer_event *ev, int n) {
  int got = 0;
  lock();
  look_after(c);
  for (rd2h_peer *p = c->peers; p && got < n && c->downs; p = p->next)
    if (p->tell_down) {
      p->tell_down = false;
      c->downs--;
      ev[got++] = (struct rd2h_peer_event){.cookie = p->cookie, .up = false, .status = RD2H_PEER_LOST};
    }
  rd2h_mf_set_signal(c);
  unlock();
  return got;
}

int rd2h_mf_client_fd(const struct mf_client *c) {
  return c->epoll;
}

void rd2h_mf_client_stats(struct mf_client *c, struct rd2h_engine_stats *s) {
  lock();
  *s = c->stats;
  unlock();
}

const char *rd2h_mf_client_error(struct mf_client *c, uint64_t id) {
  for (const struct mf_job *j = c->told.head; j; j = j->next)
    if (j->id == id && j->err->text[0])
      return j->err->text;
  return NULL;
}
