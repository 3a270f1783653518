/* SPDX-License-Identifier: Apache-2.0 */
/* The thread: libcurl's sockets in an epoll, its timer and the pauses between attempts as the wait's end. Idle, it sleeps. */
#include "rendezvous/internal.h"
#include <errno.h>
#include <limits.h>
#include <sys/epoll.h>
#include <unistd.h>

#define MAX_EVENTS 64
#define MAX_STARTING 128u /* attempts that are not connected yet: libcurl makes a thread a lookup */
#define MAX_PAUSE_MS 5000u
#define MAX_IDLE_CONNECTIONS 64L

static int on_socket(CURL *easy, curl_socket_t fd, int what, void *arg, void *per_socket) {
  struct rd2h_rendezvous *r = arg;
  struct epoll_event ev = {.data.fd = fd};
  (void)easy, (void)per_socket;
  if (what == CURL_POLL_REMOVE) {
    epoll_ctl(r->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
    return 0;
  }
  ev.events = (what & CURL_POLL_IN ? EPOLLIN : 0) | (what & CURL_POLL_OUT ? EPOLLOUT : 0);
  if (!epoll_ctl(r->epoll_fd, EPOLL_CTL_MOD, fd, &ev))
    return 0;
  if (errno != ENOENT || epoll_ctl(r->epoll_fd, EPOLL_CTL_ADD, fd, &ev))
    RD2H_ERR("rendezvous: a connection cannot be watched (%s) and will time out; raise the limit of epoll watches",
             strerror(errno));
  return 0;
}

static int on_timer(CURLM *multi, long ms, void *arg) {
  struct rd2h_rendezvous *r = arg;
  (void)multi;
  r->curl_due = ms < 0 ? RD2H_NEVER : rd2h_now_ns() + (uint64_t)ms * RD2H_MS;
  return 0;
}

static bool multi_set_up(struct rd2h_rendezvous *r) {
  bool bad = curl_multi_setopt(r->multi, CURLMOPT_SOCKETFUNCTION, on_socket) != CURLM_OK;
  bad |= curl_multi_setopt(r->multi, CURLMOPT_SOCKETDATA, r) != CURLM_OK;
  bad |= curl_multi_setopt(r->multi, CURLMOPT_TIMERFUNCTION, on_timer) != CURLM_OK;
  bad |= curl_multi_setopt(r->multi, CURLMOPT_TIMERDATA, r) != CURLM_OK;
  bad |= curl_multi_setopt(r->multi, CURLMOPT_MAXCONNECTS, MAX_IDLE_CONNECTIONS) != CURLM_OK;
  return !bad;
}

static bool header_add(struct rd2h_rendezvous *r, const char *line) {
  struct curl_slist *more = curl_slist_append(r->headers, line);
  if (more)
    r->headers = more;
  return more;
}

int rd2h_rdv_loop_create(struct rd2h_rendezvous *r, struct rd2h_error *err) {
  struct epoll_event ev = {.events = EPOLLIN, .data.fd = r->wake_fd};
  r->multi = curl_multi_init();
  /* An empty Expect: without it large bodies wait for a 100 that many servers never send. */
  if (!r->multi || !multi_set_up(r) || !header_add(r, "Content-Type: application/json") || !header_add(r, "Expect:"))
    return rd2h_nomem(err, "the rendezvous client");
  r->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  if (r->epoll_fd < 0 || epoll_ctl(r->epoll_fd, EPOLL_CTL_ADD, r->wake_fd, &ev))
    return rd2h_fail(err, RD2H_LIMIT, "the rendezvous client needs an epoll: %s; raise the limit of open files", strerror(errno));
  return RD2H_OK;
}

void rd2h_rdv_loop_destroy(struct rd2h_rendezvous *r) {
  for (uint32_t i = 0; i < r->jobs.next; i++) {
    struct job *j = rd2h_slab_at(&r->jobs, i);
    if (rd2h_slab_live(&r->jobs, i) && j->easy)
      rd2h_rdv_drop(r, j);
  }
  if (r->multi)
    curl_multi_cleanup(r->multi);
  curl_slist_free_all(r->headers);
  rd2h_heap_free(&r->pauses);
  if (r->epoll_fd >= 0)
    close(r->epoll_fd);
}

/* ---- between waits ---- */
static void to_result(struct rd2h_rendezvous *r, struct job *j) {
  if (!r->result.first)
    rd2h_rdv_notify(r->result_fd);
  j->place = JOB_RESULT;
  rd2h_rdv_push(&r->result, j);
}

static void pause_job(struct rd2h_rendezvous *r, struct job *j) {
  uint64_t ms = (uint64_t)r->o.backoff_ms << (j->attempts - 1 < 16 ? j->attempts - 1 : 16);
  ms = ms < MAX_PAUSE_MS ? ms : MAX_PAUSE_MS;
  uint64_t due = rd2h_now_ns() + (ms > j->later_ms ? ms : j->later_ms) * RD2H_MS;
  j->place = JOB_PAUSED;
  if (!rd2h_heap_push(&r->pauses, due, (uint64_t)j->serial << 32 | j->index))
    return;
  rd2h_rdv_say(j, RD2H_NOMEM, "metaserver %.120s, rendezvous of %.80s: out of memory", j->url, j->id);
  to_result(r, j);
}

/* The attempt is off the wire. */
static void settle(struct rd2h_rendezvous *r, struct job *j, bool final) {
  r->on_wire--;
  pthread_mutex_lock(&r->lock);
  if (j->place == JOB_DROPPED) {
    rd2h_rdv_unlink(&r->dropped, j);
    rd2h_rdv_job_free(r, j);
  } else if (final) {
    to_result(r, j);
  } else {
    pause_job(r, j);
  }
  pthread_mutex_unlock(&r->lock);
}

static void take_off_dropped(struct rd2h_rendezvous *r) {
  for (;;) {
    pthread_mutex_lock(&r->lock);
    struct job *j = r->dropped.first;
    pthread_mutex_unlock(&r->lock);
    if (!j)
      return;
    rd2h_rdv_drop(r, j);
    settle(r, j, true);
  }
}

/* Under the lock. A pause whose job was canceled meanwhile means nothing. */
static void end_pauses(struct rd2h_rendezvous *r) {
  uint64_t key, now = rd2h_now_ns();
  while (rd2h_heap_pop(&r->pauses, now, &key)) {
    struct job *j = rd2h_slab_at(&r->jobs, (uint32_t)key);
    if (!rd2h_slab_live(&r->jobs, (uint32_t)key) || j->serial != key >> 32 || j->place != JOB_PAUSED)
      continue;
    j->place = JOB_READY;
    rd2h_rdv_push(&r->ready, j);
  }
}

/* The next job that may go on the wire, or NULL. */
static struct job *take_ready(struct rd2h_rendezvous *r) {
  struct job *j = NULL;
  pthread_mutex_lock(&r->lock);
  end_pauses(r);
  if (r->on_wire < r->o.max_inflight && r->starting < MAX_STARTING && (j = r->ready.first)) {
    rd2h_rdv_unlink(&r->ready, j);
    j->place = JOB_WIRE;
    r->on_wire++;
  }
  pthread_mutex_unlock(&r->lock);
  return j;
}

static void start_ready(struct rd2h_rendezvous *r) {
  struct job *j;
  while ((j = take_ready(r))) {
    if (rd2h_rdv_start(r, j))
      continue;
    rd2h_rdv_say(j, RD2H_NOMEM, "metaserver %.120s, rendezvous of %.80s: out of memory", j->url, j->id);
    settle(r, j, true);
  }
}

static void reap(struct rd2h_rendezvous *r) {
  CURLMsg *m;
  int left;
  while ((m = curl_multi_info_read(r->multi, &left))) {
    struct job *j = NULL;
    CURLcode end = m->data.result; /* gone with the handle */
    if (m->msg != CURLMSG_DONE || curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&j) || !j)
      continue;
    settle(r, j, rd2h_rdv_end(r, j, end));
  }
}

/* ---- waiting ---- */
static int wait_ms(const struct rd2h_rendezvous *r) {
  uint64_t due = rd2h_heap_next(&r->pauses), now = rd2h_now_ns();
  due = r->curl_due < due ? r->curl_due : due;
  if (due == RD2H_NEVER)
    return -1;
  uint64_t ms = due > now ? (due - now + RD2H_MS - 1) / RD2H_MS : 0;
  return ms < INT_MAX ? (int)ms : INT_MAX;
}

static void serve(struct rd2h_rendezvous *r, const struct epoll_event *ev) {
  int running, mask = (ev->events & EPOLLIN ? CURL_CSELECT_IN : 0) | (ev->events & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
                      (ev->events & (EPOLLERR | EPOLLHUP) ? CURL_CSELECT_ERR : 0);
  if (ev->data.fd == r->wake_fd)
    rd2h_rdv_quiet(r->wake_fd);
  else
    curl_multi_socket_action(r->multi, ev->data.fd, mask, &running);
}

static void wait_and_serve(struct rd2h_rendezvous *r) {
  struct epoll_event ev[MAX_EVENTS];
  int running, n = epoll_wait(r->epoll_fd, ev, MAX_EVENTS, wait_ms(r));
  for (int i = 0; i < n; i++)
    serve(r, &ev[i]);
  if (rd2h_now_ns() < r->curl_due)
    return;
  r->curl_due = RD2H_NEVER;
  curl_multi_socket_action(r->multi, CURL_SOCKET_TIMEOUT, 0, &running);
}

static bool is_stopped(struct rd2h_rendezvous *r) {
  pthread_mutex_lock(&r->lock);
  bool stop = r->stop;
  pthread_mutex_unlock(&r->lock);
  return stop;
}

void *rd2h_rdv_loop(void *arg) {
  struct rd2h_rendezvous *r = arg;
  pthread_setname_np(pthread_self(), "rd2h-rendezvous");
  while (!is_stopped(r)) {
    take_off_dropped(r);
    start_ready(r);
    wait_and_serve(r);
    reap(r);
  }
  return NULL;
}
