/* SPDX-License-Identifier: Apache-2.0 */
/* Prefill's end of shared mappings: hands the memfds of its registered shared memory to whoever asks on a UNIX socket and may
 * read this process anyway. One thread, which sleeps but for that; it waits for no one: an answer is one message on a fresh
 * connection, which the kernel takes at once. */
#include "engines/local/local.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKLOG 1024
#define NO_ROOM_MS 100 /* before accepting again when there are no descriptors left */

struct rd2h_local_offer {
  pthread_mutex_t lock; /* of the list */
  struct rd2h_shared *held[LOCAL_MAPS_MAX]; /* ascending addresses */
  uint32_t n;
  uint8_t nonce[LOCAL_NONCE];
  int listener, stop;
  pthread_t thread;
  bool started;
};

void rd2h_local_socket_name(uint64_t id, struct sockaddr_un *a, socklen_t *len) {
  *a = (struct sockaddr_un){.sun_family = AF_UNIX};
  int n = snprintf(a->sun_path + 1, sizeof a->sun_path - 1, "rd2h-local-%016llx", (unsigned long long)id);
  *len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static bool may_ask(int fd) {
  struct ucred who;
  socklen_t len = sizeof who;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) || len != sizeof who)
    return false;
  if (!who.uid || who.uid == geteuid())
    return true;
  RD2H_WARN("engine local: process %d of user id %u asked for this process's shared memory and got nothing: it must run as user "
            "id %u or 0", (int)who.pid, who.uid, geteuid());
  return false;
}

static void answer(struct rd2h_local_offer *o, int fd) {
  struct rd2h_local_hand h = {.magic = LOCAL_HAND_MAGIC, .version = LOCAL_HAND_VERSION};
  union {
    struct cmsghdr align;
    char room[CMSG_SPACE(LOCAL_MAPS_MAX * sizeof(int))];
  } control = {0};
  struct iovec v = {.iov_base = &h};
  struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &control};
  int fds[LOCAL_MAPS_MAX];
  memcpy(h.nonce, o->nonce, sizeof h.nonce);
  pthread_mutex_lock(&o->lock);
  h.n = o->n;
  for (uint32_t i = 0; i < h.n; i++) {
    h.map[i] = (struct rd2h_local_hand_map){(uintptr_t)o->held[i]->base, o->held[i]->len};
    fds[i] = o->held[i]->fd;
  }
  pthread_mutex_unlock(&o->lock);
  v.iov_len = offsetof(struct rd2h_local_hand, map) + h.n * sizeof h.map[0];
  m.msg_controllen = CMSG_SPACE(h.n * sizeof(int));
  struct cmsghdr *c = CMSG_FIRSTHDR(&m);
  *c = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(h.n * sizeof(int))};
  memcpy(CMSG_DATA(c), fds, h.n * sizeof(int));
  if (sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
    RD2H_WARN("engine local: could not hand shared memory to a Decode: %s; it copies by system calls instead", strerror(errno));
}

static void *offer_main(void *arg) {
  struct rd2h_local_offer *o = arg;
  struct pollfd fd[2] = {{.fd = o->stop, .events = POLLIN}, {.fd = o->listener, .events = POLLIN}};
  while (poll(fd, 2, -1) < 0 || !fd[0].revents) {
    int peer = accept4(o->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (peer < 0) {
      if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
        poll(fd, 1, NO_ROOM_MS);
      continue;
    }
    if (may_ask(peer))
      answer(o, peer);
    close(peer);
  }
  return NULL;
}

static int listen_at(struct rd2h_local_offer *o, uint64_t *id, struct rd2h_error *err) {
  struct sockaddr_un a;
  socklen_t len;
  int rc = rd2h_random(id, sizeof *id);
  if (rc)
    return rd2h_fail(err, rc, "engine local: no random bytes for the name of its socket");
  *id |= 1; /* 0: no socket */
  rd2h_local_socket_name(*id, &a, &len);
  o->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (o->listener < 0 || bind(o->listener, (struct sockaddr *)&a, len) || listen(o->listener, BACKLOG))
    return rd2h_fail(err, RD2H_LIMIT, "engine local: cannot listen on the UNIX socket @%s: %s", a.sun_path + 1, strerror(errno));
  return RD2H_OK;
}

/* Signals are the application's. */
static int start(struct rd2h_local_offer *o, struct rd2h_error *err) {
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  int rc = pthread_create(&o->thread, NULL, offer_main, o);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  if (rc)
    return rd2h_fail(err, RD2H_LIMIT, "engine local: cannot start the thread that hands over shared memory: %s", strerror(rc));
  o->started = true;
  pthread_setname_np(o->thread, "rd2h-offer");
  return RD2H_OK;
}

static int open_offer(const uint8_t nonce[LOCAL_NONCE], struct rd2h_local_offer **out, uint64_t *id, struct rd2h_error *err) {
  struct rd2h_local_offer *o = rd2h_zalloc(sizeof *o);
  if (!o)
    return rd2h_nomem(err, "engine local");
  pthread_mutex_init(&o->lock, NULL);
  memcpy(o->nonce, nonce, LOCAL_NONCE);
  o->listener = -1;
  o->stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  int rc = o->stop < 0 ? rd2h_fail(err, RD2H_LIMIT, "engine local: eventfd: %s", strerror(errno)) : listen_at(o, id, err);
  if (!rc)
    rc = start(o, err);
  if (rc)
    rd2h_local_offer_close(o);
  else
    *out = o;
  return rc;
}

/* Takes s over, unless it is held already. */
static bool add(struct rd2h_local_offer *o, struct rd2h_shared *s) {
  uint32_t at = 0;
  pthread_mutex_lock(&o->lock);
  while (at < o->n && o->held[at]->base < s->base)
    at++;
  bool room = o->n < LOCAL_MAPS_MAX && (at == o->n || o->held[at] != s);
  if (room) {
    memmove(&o->held[at + 1], &o->held[at], (o->n - at) * sizeof o->held[0]);
    o->held[at] = s;
    o->n++;
  }
  pthread_mutex_unlock(&o->lock);
  return room;
}

int rd2h_local_offer_add(struct rd2h_local_offer **offer, uint64_t *id, const uint8_t nonce[LOCAL_NONCE],
                         const struct rd2h_region *r, struct rd2h_error *err) {
  struct rd2h_shared *s = rd2h_shared_hold(r->base, r->len);
  if (!s)
    return RD2H_OK;
  int rc = *offer ? RD2H_OK : open_offer(nonce, offer, id, err);
  if (rc || !add(*offer, s))
    rd2h_shared_drop(s);
  return rc;
}

void rd2h_local_offer_close(struct rd2h_local_offer *o) {
  const uint64_t one = 1;
  if (!o)
    return;
  if (o->started && write(o->stop, &one, sizeof one) == sizeof one)
    pthread_join(o->thread, NULL);
  if (o->listener >= 0)
    close(o->listener);
  if (o->stop >= 0)
    close(o->stop);
  for (uint32_t i = 0; i < o->n; i++)
    rd2h_shared_drop(o->held[i]);
  pthread_mutex_destroy(&o->lock);
  rd2h_free(o);
}
