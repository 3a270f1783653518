/* SPDX-License-Identifier: Apache-2.0 */
/* Prefill's side: a listening socket, one thread for all readers, and the regions that they may read. */
#include "engines/tcp/server.h"
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define PROVEN_MAX 8192u
#define WAITING_MAX 128u              /* streams that have not shown the token: a newcomer displaces the oldest */
#define HELLO_NS (5000 * RD2H_MS)
#define REST_NS (100 * RD2H_MS)       /* without descriptors or memory for a newcomer */
#define BACKLOG 1024
#define EVENTS_A_CALL 64

/* ---- links ---- */
static void list_push(struct tcp_link **head, struct tcp_link *l) {
  l->prev = NULL;
  l->next = *head;
  if (*head)
    (*head)->prev = l;
  *head = l;
}

static void list_drop(struct tcp_link **head, struct tcp_link *l) {
  if (l->prev)
    l->prev->next = l->next;
  else
    *head = l->next;
  if (l->next)
    l->next->prev = l->prev;
}

static bool is_waiting(const struct tcp_link *l) {
  return l->deadline != RD2H_NEVER;
}

static void end_link(struct tcp_server *s, struct tcp_link *l, bool waiting) {
  list_drop(waiting ? &s->waiting : &s->proven, l);
  *(waiting ? &s->n_waiting : &s->n_proven) -= 1;
  epoll_ctl(s->epoll, EPOLL_CTL_DEL, l->fd, NULL); /* a child process may hold the descriptor a little longer */
  close(l->fd);
  rd2h_free(l);
}

static void run_link(struct tcp_server *s, struct tcp_link *l) {
  bool waited = is_waiting(l);
  if (!rd2h_tcp_link_run(s, l)) {
    end_link(s, l, waited);
    return;
  }
  if (waited != is_waiting(l)) {
    list_drop(waited ? &s->waiting : &s->proven, l);
    list_push(waited ? &s->proven : &s->waiting, l);
    s->n_waiting += waited ? -1u : 1u;
    s->n_proven += waited ? 1u : -1u;
  }
  bool out = l->state == LINK_REPLY;
  struct epoll_event ev = {.events = out ? EPOLLOUT : EPOLLIN, .data.ptr = l};
  if (out != l->wants_out && epoll_ctl(s->epoll, EPOLL_CTL_MOD, l->fd, &ev)) {
    end_link(s, l, is_waiting(l));
    return;
  }
  l->wants_out = out;
}

/* Closes what has waited too long; returns the next such time. */
static uint64_t expire(struct tcp_server *s, uint64_t now) {
  uint64_t next = RD2H_NEVER;
  struct tcp_link *after;
  for (struct tcp_link *l = s->waiting; l; l = after) {
    after = l->next;
    if (l->deadline <= now)
      end_link(s, l, true);
    else if (l->deadline < next)
      next = l->deadline;
  }
  return next;
}

/* ---- newcomers ---- */
static void listen_for(struct tcp_server *s, bool on) {
  struct epoll_event ev = {.events = on ? EPOLLIN : 0, .data.ptr = s};
  epoll_ctl(s->epoll, EPOLL_CTL_MOD, s->listener, &ev);
  s->listen_again = on ? RD2H_NEVER : rd2h_now_ns() + REST_NS;
}

static void make_room(struct tcp_server *s) {
  struct tcp_link *oldest = s->waiting;
  while (oldest->next)
    oldest = oldest->next;
  end_link(s, oldest, true);
}

static bool admit(struct tcp_server *s, int fd) {
  struct tcp_link *l = s->n_proven < PROVEN_MAX ? rd2h_alloc(sizeof *l) : NULL;
  if (!l)
    return false;
  memset(l, 0, offsetof(struct tcp_link, list));
  l->fd = fd;
  l->deadline = rd2h_now_ns() + HELLO_NS;
  struct epoll_event ev = {.events = EPOLLIN, .data.ptr = l};
  if (epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &ev)) {
    rd2h_free(l);
    return false;
  }
  rd2h_tcp_socket_options(fd, s->timeout);
  list_push(&s->waiting, l);
  s->n_waiting++;
  return true;
}

/* One a turn: to make room ends a link, and events of this turn may still name it. */
static void accept_one(struct tcp_server *s) {
  if (s->n_waiting >= WAITING_MAX)
    make_room(s);
  int fd = accept4(s->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) {
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
      listen_for(s, false);
  } else if (!admit(s, fd)) {
    close(fd);
    listen_for(s, false);
  }
}

/* ---- the thread ---- */
static int timeout_ms(uint64_t at, uint64_t now) {
  if (at == RD2H_NEVER)
    return -1;
  return at <= now ? 0 : at - now > 60000 * RD2H_MS ? 60000 : (int)((at - now) / RD2H_MS + 1);
}

static bool stopped(struct tcp_server *s) {
  pthread_mutex_lock(&s->lock);
  bool stop = s->stop;
  pthread_mutex_unlock(&s->lock);
  return stop;
}

static void *serve(void *arg) {
  struct tcp_server *s = arg;
  struct epoll_event ev[EVENTS_A_CALL];
  uint64_t next = RD2H_NEVER;
  while (!stopped(s)) {
    int n = epoll_wait(s->epoll, ev, EVENTS_A_CALL, timeout_ms(next < s->listen_again ? next : s->listen_again, rd2h_now_ns()));
    bool newcomer = false;
    for (int i = 0; i < n && !stopped(s); i++) {
      if (ev[i].data.ptr == s)
        newcomer = true;
      else if (ev[i].data.ptr)
        run_link(s, ev[i].data.ptr);
    }
    uint64_t now = rd2h_now_ns();
    next = s->waiting ? expire(s, now) : RD2H_NEVER;
    if (s->listen_again <= now)
      listen_for(s, true);
    if (newcomer) {
      accept_one(s);
      next = now; /* its deadline counts from the next turn on */
    }
  }
  return NULL;
}

/* ---- regions ---- */
int rd2h_tcp_server_reg(struct tcp_server *s, const struct rd2h_region *r, uint32_t *region, struct rd2h_error *err) {
  int rc = RD2H_OK;
  pthread_mutex_lock(&s->lock);
  if (s->regions.n == TCP_REGIONS_MAX) {
    rc = rd2h_fail(err, RD2H_LIMIT, "engine tcp: more than %u regions: register fewer and larger ones", TCP_REGIONS_MAX);
  } else {
    *region = s->regions.n;
    s->regions.r[s->regions.n++] = *r;
  }
  pthread_mutex_unlock(&s->lock);
  return rc;
}

void rd2h_tcp_server_settle(struct tcp_server *s) {
  s->epoch++;
  for (uint64_t running = s->copies; s->copying && s->copies == running;)
    pthread_cond_wait(&s->idle, &s->lock);
}

void rd2h_tcp_server_dereg(struct tcp_server *s, uint32_t region) {
  pthread_mutex_lock(&s->lock);
  if (region < s->regions.n) {
    s->regions.r[region].base = NULL; /* its number is never given again: readers hold it */
    rd2h_tcp_server_settle(s);
  }
  pthread_mutex_unlock(&s->lock);
}

const struct rd2h_tcp_conn *rd2h_tcp_server_conn(const struct tcp_server *s) {
  return &s->self;
}

int rd2h_tcp_server_fd(const struct tcp_server *s) {
  return s->quiet;
}

/* ---- open and close ---- */
static int open_listener(struct tcp_server *s, const char *host, const char *bind_host, struct rd2h_error *err) {
  static const uint8_t nowhere[16];
  struct rd2h_tcp_conn at;
  struct sockaddr_storage a;
  char text[64];
  int rc = rd2h_tcp_resolve(host, &s->self, err);
  rc = rc ? rc : rd2h_tcp_resolve(bind_host ? bind_host : host, &at, err);
  if (rc)
    return rc;
  if (!memcmp(s->self.addr, nowhere, sizeof nowhere))
    return rd2h_fail(err, RD2H_INVALID, "engine tcp: readers cannot connect to \"%.100s\": set the host that Prefill is reached "
                     "under, and the engine option bind=%.100s to listen on every address", host, host);
  socklen_t len = rd2h_tcp_sockaddr(&at, &a);
  rd2h_tcp_address_text(&at, text);
  s->listener = socket(a.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (s->listener < 0 || bind(s->listener, (struct sockaddr *)&a, len) || listen(s->listener, BACKLOG) ||
      getsockname(s->listener, (struct sockaddr *)&a, &len))
    return rd2h_fail(err, errno == EMFILE || errno == ENFILE ? RD2H_LIMIT : RD2H_INVALID, "engine tcp: cannot listen on %s: %s; "
                     "the engine option bind=ADDRESS listens on another address than the one that readers connect to", text,
                     strerror(errno));
  s->self.port = ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port : ((struct sockaddr_in *)&a)->sin_port);
  return RD2H_OK;
}

static int open_fds(struct tcp_server *s, struct rd2h_error *err) {
  struct epoll_event listener = {.events = EPOLLIN, .data.ptr = s}, wake = {.events = EPOLLIN};
  s->epoll = epoll_create1(EPOLL_CLOEXEC);
  s->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  s->quiet = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (s->epoll < 0 || s->wake < 0 || s->quiet < 0 || epoll_ctl(s->epoll, EPOLL_CTL_ADD, s->wake, &wake) ||
      epoll_ctl(s->epoll, EPOLL_CTL_ADD, s->listener, &listener))
    return rd2h_fail(err, RD2H_LIMIT, "engine tcp: cannot open its event descriptors: %s", strerror(errno));
  return RD2H_OK;
}

static int start(struct tcp_server *s, struct rd2h_error *err) {
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old); /* signals are the application's */
  int rc = pthread_create(&s->thread, NULL, serve, s);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  if (rc)
    return rd2h_fail(err, RD2H_LIMIT, "engine tcp: cannot start its thread: %s", strerror(rc));
  pthread_setname_np(s->thread, "rd2h-tcp-serve");
  s->started = true;
  return RD2H_OK;
}

int rd2h_tcp_server_open(const char *host, const char *bind_host, uint64_t timeout_ns, struct tcp_server **out,
                         struct rd2h_error *err) {
  struct tcp_server *s = rd2h_zalloc(sizeof *s);
  if (!s)
    return rd2h_nomem(err, "engine tcp");
  s->timeout = timeout_ns;
  s->listener = s->epoll = s->wake = s->quiet = -1;
  s->listen_again = RD2H_NEVER;
  pthread_mutex_init(&s->lock, NULL);
  pthread_cond_init(&s->idle, NULL);
  s->regions.r = rd2h_calloc(TCP_REGIONS_MAX, sizeof *s->regions.r);
  int rc = s->regions.r ? open_listener(s, host, bind_host, err) : rd2h_nomem(err, "regions of engine tcp");
  if (!rc && (rc = rd2h_random(s->self.token, TCP_TOKEN)))
    rd2h_fail(err, rc, "engine tcp: no random bytes for its token");
  rc = rc ? rc : open_fds(s, err);
  rc = rc ? rc : start(s, err);
  if (rc) {
    rd2h_tcp_server_close(s);
    return rc;
  }
  *out = s;
  return RD2H_OK;
}

static void close_fd(int fd) {
  if (fd >= 0)
    close(fd);
}

void rd2h_tcp_server_close(struct tcp_server *s) {
  pthread_mutex_lock(&s->lock);
  s->stop = true;
  pthread_mutex_unlock(&s->lock);
  if (s->started) {
    eventfd_write(s->wake, 1);
    pthread_join(s->thread, NULL);
  }
  while (s->waiting)
    end_link(s, s->waiting, true);
  while (s->proven)
    end_link(s, s->proven, false);
  close_fd(s->listener);
  close_fd(s->epoll);
  close_fd(s->wake);
  close_fd(s->quiet);
  pthread_cond_destroy(&s->idle);
  pthread_mutex_destroy(&s->lock);
  rd2h_free(s->regions.r);
  rd2h_free(s->token);
  rd2h_free(s);
}
