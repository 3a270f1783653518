/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/integration/throttle.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SIP 256u    /* bytes that the relay lets through at once */
#define PAGE 4096u
#define PAIRS 16u
#define FDS_SEARCHED 1024

struct throttle {
  pthread_t thread;
  bool runs;
  int wake;
  uint64_t sip_ns, page_ns; /* 0: at once */
  bool released, stop;
  /* ---- the relay ---- */
  int listener;
  struct sockaddr_in server;
  uint32_t n;
  int down[PAIRS], up[PAIRS]; /* to Decode, to Prefill */
  /* ---- pages ---- */
  int fault;
  uint8_t *base, *saved;
  uint64_t len;
};

static uint64_t pace(const uint64_t *ns, const struct throttle *t) {
  return __atomic_load_n(&t->released, __ATOMIC_ACQUIRE) ? 0 : __atomic_load_n(ns, __ATOMIC_ACQUIRE);
}

static bool stopped(const struct throttle *t) {
  return __atomic_load_n(&t->stop, __ATOMIC_ACQUIRE);
}

/* So long, or until it is woken. */
static void rest(struct throttle *t, uint64_t ns) {
  struct pollfd wake = {.fd = t->wake, .events = POLLIN};
  struct timespec ts = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
  eventfd_t v;
  if (ns && ppoll(&wake, 1, &ts, NULL) > 0)
    eventfd_read(t->wake, &v);
}

static struct throttle *make(void) {
  struct throttle *t = calloc(1, sizeof *t);
  RIG_CHECK(t);
  t->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  t->listener = t->fault = -1;
  RIG_CHECK(t->wake >= 0);
  return t;
}

static void start(struct throttle *t, void *(*fn)(void *)) {
  RIG_CHECK(!pthread_create(&t->thread, NULL, fn, t));
  t->runs = true;
}

/* ---- the relay ---- */
/* The engine listens at a port of the system's choice: the one listening socket of this process at that address. */
static bool listens(int fd, struct sockaddr_in *at) {
  int yes = 0;
  socklen_t n = sizeof yes, len = sizeof *at;
  return !getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &yes, &n) && yes && !getsockname(fd, (struct sockaddr *)at, &len) &&
         at->sin_family == AF_INET && at->sin_addr.s_addr == inet_addr(THROTTLE_BIND);
}

static bool all(int fd, const uint8_t *p, ssize_t n) {
  for (ssize_t k; n > 0; n -= k, p += k)
    if ((k = send(fd, p, (size_t)n, MSG_NOSIGNAL)) <= 0)
      return false;
  return true;
}

static void greet(struct throttle *t) {
  int down = accept4(t->listener, NULL, NULL, SOCK_CLOEXEC), up = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  RIG_CHECK(t->n < PAIRS && down >= 0 && !connect(up, (struct sockaddr *)&t->server, sizeof t->server));
  t->down[t->n] = down;
  t->up[t->n++] = up;
}

/* At most `most` bytes; an end on one side is one on the other. */
static void pass(int *from, int *to, size_t most) {
  uint8_t buf[65536];
  ssize_t n = recv(*from, buf, most < sizeof buf ? most : sizeof buf, 0);
  if (n > 0 && all(*to, buf, n))
    return;
  close(*from);
  close(*to);
  *from = *to = -1;
}

static void *relay(void *arg) {
  struct throttle *t = arg;
  while (!stopped(t)) {
    struct pollfd fd[2 + 2 * PAIRS] = {{.fd = t->wake, .events = POLLIN}, {.fd = t->listener, .events = POLLIN}};
    uint64_t ns = pace(&t->sip_ns, t);
    uint32_t n = t->n;
    for (uint32_t i = 0; i < n; i++) {
      fd[2 + 2 * i] = (struct pollfd){.fd = t->down[i], .events = POLLIN};
      fd[3 + 2 * i] = (struct pollfd){.fd = t->up[i], .events = POLLIN};
    }
    RIG_CHECK(poll(fd, 2 + 2 * n, -1) > 0 || errno == EINTR);
    eventfd_t v;
    if (fd[0].revents)
      eventfd_read(t->wake, &v);
    if (fd[1].revents)
      greet(t);
    for (uint32_t i = 0; i < n; i++) {
      if (fd[2 + 2 * i].revents)
        pass(&t->down[i], &t->up[i], SIZE_MAX);
      if (fd[3 + 2 * i].revents && t->up[i] >= 0) {
        pass(&t->up[i], &t->down[i], ns ? SIP : SIZE_MAX);
        rest(t, ns);
      }
    }
  }
  return NULL;
}

struct throttle *throttle_relay(void) {
  return make();
}

void throttle_relay_start(struct throttle *t) {
  struct sockaddr_in at = {.sin_family = AF_INET};
  for (int fd = 0; fd < FDS_SEARCHED && !t->server.sin_port; fd++)
    if (listens(fd, &at))
      t->server = at;
  RIG_CHECK(t->server.sin_port);
  at.sin_addr.s_addr = inet_addr(THROTTLE_HOST);
  t->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  RIG_CHECK(!bind(t->listener, (struct sockaddr *)&at, sizeof at) && !listen(t->listener, PAIRS));
  start(t, relay);
}

/* ---- pages ---- */
static void *give_pages(void *arg) {
  struct throttle *t = arg;
  struct pollfd fd[] = {{.fd = t->wake, .events = POLLIN}, {.fd = t->fault, .events = POLLIN}};
  while (!stopped(t)) {
    struct uffd_msg m;
    RIG_CHECK(poll(fd, 2, -1) > 0 || errno == EINTR);
    eventfd_t v;
    if (fd[0].revents)
      eventfd_read(t->wake, &v);
    if (read(t->fault, &m, sizeof m) != sizeof m || m.event != UFFD_EVENT_PAGEFAULT)
      continue;
    rest(t, pace(&t->page_ns, t));
    uint64_t at = m.arg.pagefault.address / PAGE * PAGE;
    struct uffdio_copy copy = {.dst = at, .src = (uintptr_t)t->saved + (at - (uintptr_t)t->base), .len = PAGE};
    RIG_CHECK(!ioctl(t->fault, UFFDIO_COPY, &copy) || errno == EEXIST);
  }
  return NULL;
}

struct throttle *throttle_pages(void *base, uint64_t len) {
  struct throttle *t = make();
  struct uffdio_api api = {.api = UFFD_API};
  struct uffdio_register all = {.range = {(uintptr_t)base, len}, .mode = UFFDIO_REGISTER_MODE_MISSING};
  t->base = base;
  t->len = len;
  t->saved = malloc(len);
  t->fault = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
  RIG_CHECK(t->saved && len % PAGE == 0 && sysconf(_SC_PAGESIZE) == PAGE);
  memcpy(t->saved, base, len);
  if (t->fault < 0 || ioctl(t->fault, UFFDIO_API, &api) || ioctl(t->fault, UFFDIO_REGISTER, &all)) {
    throttle_close(t);
    return NULL;
  }
  RIG_CHECK(!madvise(base, len, MADV_DONTNEED));
  start(t, give_pages);
  return t;
}

/* ---- both ---- */
void throttle_pace(struct throttle *t, uint64_t message_ns, uint64_t message_bytes) {
  __atomic_store_n(&t->sip_ns, message_ns * SIP / message_bytes, __ATOMIC_RELEASE);
  __atomic_store_n(&t->page_ns, message_ns, __ATOMIC_RELEASE);
  eventfd_write(t->wake, 1);
}

void throttle_release(struct throttle *t) {
  __atomic_store_n(&t->released, true, __ATOMIC_RELEASE);
  eventfd_write(t->wake, 1);
}

void throttle_close(struct throttle *t) {
  if (!t)
    return;
  __atomic_store_n(&t->stop, true, __ATOMIC_RELEASE);
  eventfd_write(t->wake, 1);
  if (t->runs)
    pthread_join(t->thread, NULL);
  for (uint32_t i = 0; i < t->n; i++) {
    close(t->up[i]);
    close(t->down[i]);
  }
  if (t->listener >= 0)
    close(t->listener);
  if (t->fault >= 0)
    close(t->fault);
  close(t->wake);
  free(t->saved);
  free(t);
}
