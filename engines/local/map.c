/* SPDX-License-Identifier: Apache-2.0 */
/* Decode's end of shared mappings: asks Prefill's socket for its memfds and maps them. Nothing here waits: until the answer is
 * there, and for good when it is not one to trust, the peer's memory is read by system calls. */
#include "engines/local/local.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define PAGE 4096u
/* The file cannot lose a page while it is mapped: no access can raise a signal. */
#define NEED_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)

static void give_up(rd2h_peer *p, const char *why, const char *more) {
  RD2H_WARN("engine local: the shared memory of process %u is not used: %s%s; it is read by process_vm_readv, which is slower",
            p->at.pid, why, more);
}

static void hang_up(rd2h_peer *p) {
  if (p->sock >= 0)
    close(p->sock);
  p->sock = -1;
}

void rd2h_local_ask(rd2h_peer *p) {
  struct sockaddr_un a;
  struct ucred who = {0};
  socklen_t len, who_len = sizeof who;
  p->settled = true;
  if (!p->at.socket)
    return;
  rd2h_local_socket_name(p->at.socket, &a, &len);
  p->sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (p->sock < 0 || connect(p->sock, (struct sockaddr *)&a, len)) {
    give_up(p, errno == ECONNREFUSED ? "its socket is not in this network namespace: " : "its socket: ", strerror(errno));
    hang_up(p);
  } else if (getsockopt(p->sock, SOL_SOCKET, SO_PEERCRED, &who, &who_len) || (uint32_t)who.pid != p->at.pid) {
    give_up(p, "another process listens at its socket", "");
    hang_up(p);
  } else {
    p->settled = false;
  }
}

const char *rd2h_local_hand_check(const struct rd2h_local_hand *h, size_t len, const uint8_t nonce[LOCAL_NONCE], uint32_t n_fds) {
  const size_t head = offsetof(struct rd2h_local_hand, map);
  uint64_t end = 0;
  if (len < head || h->magic != LOCAL_HAND_MAGIC || h->version != LOCAL_HAND_VERSION)
    return "what its socket says is of no known version";
  if (!h->n || h->n > LOCAL_MAPS_MAX || len != head + h->n * sizeof h->map[0] || n_fds != h->n)
    return "what its socket says has another length than it claims";
  if (memcmp(h->nonce, nonce, LOCAL_NONCE))
    return "its socket is another engine's";
  for (uint32_t i = 0; i < h->n; i++) {
    const struct rd2h_local_hand_map *m = &h->map[i];
    if (!m->base || !m->len || (m->base | m->len) % PAGE || m->base < end || __builtin_add_overflow(m->base, m->len, &end))
      return "the ranges it names overlap or are no pages";
  }
  return NULL;
}

static const char *map_one(const struct rd2h_local_hand_map *m, int fd, struct rd2h_local_map *out) {
  struct stat st;
  int seals = fcntl(fd, F_GET_SEALS);
  if (fstat(fd, &st) || !S_ISREG(st.st_mode) || seals < 0 || (seals & NEED_SEALS) != NEED_SEALS)
    return "a file of it could be cut while it is read: it is not sealed";
  if (st.st_size < 0 || (uint64_t)st.st_size < m->len)
    return "a file of it is shorter than its memory";
  void *at = rd2h_map_aligned(m->len, PROT_READ, fd);
  if (!at)
    return "it cannot be mapped here";
  *out = (struct rd2h_local_map){.base = m->base, .len = m->len, .at = at};
  return NULL;
}

void rd2h_local_unmap(rd2h_peer *p) {
  hang_up(p);
  for (uint32_t i = 0; i < p->n_maps; i++)
    munmap((void *)p->map[i].at, p->map[i].len);
  rd2h_free(p->map);
  p->map = NULL;
  p->n_maps = 0;
}

static void map_all(rd2h_peer *p, const struct rd2h_local_hand *h, const int *fd) {
  const char *bad = NULL;
  uint64_t bytes = 0;
  p->map = rd2h_calloc(h->n, sizeof *p->map);
  if (!p->map)
    bad = "out of memory";
  for (; !bad && p->n_maps < h->n; p->n_maps += !bad) {
    bad = map_one(&h->map[p->n_maps], fd[p->n_maps], &p->map[p->n_maps]);
    bytes += h->map[p->n_maps].len;
  }
  if (bad) {
    rd2h_local_unmap(p);
    give_up(p, bad, "");
  } else {
    RD2H_INFO("engine local: %llu MiB of process %u are mapped", (unsigned long long)bytes >> 20, p->at.pid);
  }
}

/* All descriptors of a message; they are the caller's to close. */
static uint32_t take_fds(struct msghdr *m, int fd[LOCAL_MAPS_MAX]) {
  uint32_t n = 0;
  for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
      continue;
    uint32_t more = (uint32_t)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    memcpy(fd + n, CMSG_DATA(c), more * sizeof(int)); /* room for LOCAL_MAPS_MAX is all that the kernel was given */
    n += more;
  }
  return n;
}

/* False: the answer is not there yet. */
static bool receive(rd2h_peer *p) {
  struct rd2h_local_hand h;
  union {
    struct cmsghdr align;
    char room[CMSG_SPACE(LOCAL_MAPS_MAX * sizeof(int))];
  } control;
  int fd[LOCAL_MAPS_MAX];
  struct iovec v = {&h, sizeof h};
  struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  ssize_t got = recvmsg(p->sock, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0 && (errno == EAGAIN || errno == EINTR))
    return false;
  hang_up(p);
  uint32_t n = got < 0 ? 0 : take_fds(&m, fd);
  const char *bad = got <= 0                                       ? "its socket was closed without an answer"
                    : m.msg_flags & (MSG_TRUNC | MSG_CTRUNC) ? "not all of it arrived: raise the limit of open files (ulimit -n)"
                                                             : rd2h_local_hand_check(&h, (size_t)got, p->at.nonce, n);
  if (bad)
    give_up(p, bad, "");
  else
    map_all(p, &h, fd);
  for (uint32_t i = 0; i < n; i++)
    close(fd[i]);
  return true;
}

bool rd2h_local_receive(rd2h_peer *p) {
  if (__atomic_load_n(&p->settled, __ATOMIC_ACQUIRE))
    return true;
  pthread_mutex_lock(&p->lock);
  if (!p->settled && receive(p))
    __atomic_store_n(&p->settled, true, __ATOMIC_RELEASE);
  bool settled = p->settled;
  pthread_mutex_unlock(&p->lock);
  return settled;
}

const struct rd2h_local_map *rd2h_local_find(const rd2h_peer *p, uint64_t at, uint64_t len) {
  uint32_t low = 0, high = p->n_maps;
  while (low < high) { /* the first that begins behind it */
    uint32_t mid = low + (high - low) / 2;
    if (p->map[mid].base <= at)
      low = mid + 1;
    else
      high = mid;
  }
  const struct rd2h_local_map *m = low ? &p->map[low - 1] : NULL;
  return m && rd2h_local_inside(m, at, len) ? m : NULL;
}
