/* SPDX-License-Identifier: Apache-2.0 */
#include "proxy/resolve.h"

#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Held by the loop and by the thread; the last of them frees it. */
struct px_lookup {
  atomic_int holders;
  int fd; /* readable when the thread is through */
  struct event *event;
  px_lookup_fn *done;
  void *user;
  struct px_addresses found;
  int rc;
  char port[8], host[];
};

static void release(struct px_lookup *l) {
  if (atomic_fetch_sub(&l->holders, 1) > 1)
    return;
  close(l->fd);
  free(l);
}

static int look_up(const char *host, const char *port, int flags, struct px_addresses *out) {
  const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = flags | AI_NUMERICSERV};
  struct addrinfo *list = NULL;
  int rc = getaddrinfo(host, port, &hints, &list);
  out->n = 0;
  for (const struct addrinfo *a = rc ? NULL : list; a && out->n < PX_MAX_ADDRESSES; a = a->ai_next) {
    memcpy(&out->of[out->n].address, a->ai_addr, a->ai_addrlen);
    out->of[out->n++].length = a->ai_addrlen;
  }
  if (list)
    freeaddrinfo(list);
  return rc ? rc : out->n ? 0 : EAI_NONAME;
}

bool rd2h_px_resolve_numeric(const char *host, uint16_t port, struct px_addresses *out) {
  char text[8];
  snprintf(text, sizeof text, "%u", port);
  return look_up(host, text, AI_NUMERICHOST, out) == 0;
}

static void *thread_main(void *arg) {
  struct px_lookup *l = arg;
  l->rc = look_up(l->host, l->port, 0, &l->found);
  if (write(l->fd, &(uint64_t){1}, sizeof(uint64_t)) < 0)
    (void)0; /* a counter at 0 always takes a 1 */
  release(l);
  return NULL;
}

static void on_done(evutil_socket_t fd, short what, void *arg) {
  struct px_lookup *l = arg;
  (void)fd, (void)what;
  event_free(l->event);
  l->done(l->user, &l->found, l->rc ? gai_strerror(l->rc) : NULL);
  release(l);
}

struct px_lookup *rd2h_px_lookup_start(struct event_base *base, const char *host, uint16_t port, px_lookup_fn *done, void *user) {
  struct px_lookup *l = calloc(1, sizeof *l + strlen(host) + 1);
  pthread_attr_t attributes;
  pthread_t thread;
  if (!l)
    return NULL;
  strcpy(l->host, host);
  snprintf(l->port, sizeof l->port, "%u", port);
  l->done = done;
  l->user = user;
  atomic_init(&l->holders, 2);
  l->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  l->event = l->fd < 0 ? NULL : event_new(base, l->fd, EV_READ, on_done, l);
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  bool good = l->event && event_add(l->event, NULL) == 0 && pthread_create(&thread, &attributes, thread_main, l) == 0;
  pthread_attr_destroy(&attributes);
  if (good)
    return l;
  if (l->event)
    event_free(l->event);
  if (l->fd >= 0)
    close(l->fd);
  free(l);
  return NULL;
}

void rd2h_px_lookup_cancel(struct px_lookup *l) {
  event_free(l->event);
  release(l);
}
