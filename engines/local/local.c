/* SPDX-License-Identifier: Apache-2.0 */
/* Engine local: Decode copies out of the Prefill process of the same host. Prefill only stands still and lets itself be read;
 * where its memory is shared memory (rd2h/memory.h), it hands that over once to each Decode. */
#include "engines/local/local.h"
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#define SLICE_DEFAULT (8u << 20) /* bytes between two looks at the stop flag: about 2 ms */
#define SLICE_MIN 4096u
#define SLICE_MAX (1u << 30) /* below the kernel's limit a call */
#define EVENTS_A_CALL 16

/* Engines of this process that have opened it to every process of its user; the last one takes that back. */
static atomic_uint yama_users;

static int parse_options(const struct rd2h_engine_opts *o, bool *yama_any, struct rd2h_error *err) {
  *yama_any = true;
  for (const char *const *p = o->options; p && *p; p++) {
    if (strcmp(*p, "yama=any") && strcmp(*p, "yama=keep"))
      return rd2h_fail(err, RD2H_INVALID, "engine local: unknown option \"%s\": it has yama=any and yama=keep", *p);
    *yama_any = !strcmp(*p, "yama=any");
  }
  return RD2H_OK;
}

static int make_nonce(rd2h_engine *e, struct rd2h_error *err) {
  size_t len = (size_t)sysconf(_SC_PAGESIZE);
  int rc = rd2h_random(e->self.nonce, LOCAL_NONCE);
  if (rc)
    return rd2h_fail(err, rc, "engine local: no random bytes for its nonce");
  void *page = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED)
    return rd2h_nomem(err, "the nonce page");
  memcpy(page, e->self.nonce, LOCAL_NONCE);
  mprotect(page, len, PROT_READ);
  e->nonce_page = page;
  e->self.nonce_addr = (uintptr_t)page;
  return RD2H_OK;
}

static void allow_readers(rd2h_engine *e) {
  if (rd2h_local_yama() < 1 || prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY))
    return;
  e->opened_yama = true;
  if (!atomic_fetch_add(&yama_users, 1))
    RD2H_INFO("engine local: Yama restricts readers; this process lets every process of its user read it (PR_SET_PTRACER_ANY, "
              "engine option yama=keep leaves it)");
}

static int open_prefill(rd2h_engine *e, bool yama_any, struct rd2h_error *err) {
  int rc = make_nonce(e, err);
  if (!rc && yama_any)
    allow_readers(e);
  return rc;
}

static int open_decode(rd2h_engine *e, struct rd2h_error *err) {
  char from = 1, to = 0;
  struct iovec l = {&to, 1}, r = {&from, 1};
  if (process_vm_readv(getpid(), &l, 1, &r, 1, 0) != 1)
    return rd2h_fail(err, RD2H_UNSUPPORTED, "engine local: process_vm_readv does not work here: %s; allow it in the container's "
                     "seccomp profile, or choose another transfer engine", strerror(errno));
  e->epoll = epoll_create1(EPOLL_CLOEXEC);
  if (e->epoll < 0)
    return rd2h_fail(err, RD2H_LIMIT, "engine local: cannot open its event descriptor: %s", strerror(errno));
  return RD2H_OK;
}

static void local_close(rd2h_engine *e) {
  rd2h_local_offer_close(e->offer);
  if (e->opened_yama && atomic_fetch_sub(&yama_users, 1) == 1)
    prctl(PR_SET_PTRACER, 0);
  if (e->nonce_page)
    munmap(e->nonce_page, (size_t)sysconf(_SC_PAGESIZE));
  if (e->epoll >= 0)
    close(e->epoll);
  rd2h_free(e);
}

static int local_open(const struct rd2h_host *host, const struct rd2h_engine_opts *o, rd2h_engine **out,
                      struct rd2h_engine_caps *caps, struct rd2h_error *err) {
  bool yama_any;
  int rc = parse_options(o, &yama_any, err);
  (void)host;
  if (rc)
    return rc;
  rd2h_engine *e = rd2h_zalloc(sizeof *e);
  if (!e)
    return rd2h_nomem(err, "engine local");
  uint64_t slice = o->slice_bytes ? o->slice_bytes : SLICE_DEFAULT;
  e->slice = slice < SLICE_MIN ? SLICE_MIN : slice > SLICE_MAX ? SLICE_MAX : slice;
  e->legacy_session = o->legacy_session;
  e->prefill = o->prefill;
  e->epoll = -1;
  e->copier = rd2h_local_best_copier();
  rc = rd2h_local_self(&e->self, err);
  if (!rc)
    rc = o->prefill ? open_prefill(e, yama_any, err) : open_decode(e, err);
  if (rc) {
    local_close(e);
    return rc;
  }
  *caps = (struct rd2h_engine_caps){.flags = RD2H_ENG_BLOCKS | RD2H_ENG_CANCEL | RD2H_ENG_PEER_DOWN |
                                             RD2H_ENG_LOCAL_UNREGISTERED | RD2H_ENG_IN_ORDER | RD2H_ENG_PARALLEL};
  *out = e;
  return RD2H_OK;
}

/* Any memory of a process can be read: regions only get their numbers, and shared memory is offered. What is registered after a
 * peer has connected is read by system calls. */
static int local_reg(rd2h_engine *e, const struct rd2h_region *r, uint32_t *region, struct rd2h_error *err) {
  int rc = e->prefill ? rd2h_local_offer_add(&e->offer, &e->self.socket, e->self.nonce, r, err) : RD2H_OK;
  if (!rc)
    *region = e->regions++;
  return rc;
}

static void local_dereg(rd2h_engine *e, uint32_t region) {
  (void)e, (void)region;
}

static int local_publish(rd2h_engine *e, uint8_t *buf, uint32_t cap, uint32_t *len) {
  uint8_t data[LOCAL_CONN_MAX];
  if (!e->prefill) {
    *len = 0; /* nobody reads from Decode */
    return RD2H_OK;
  }
  *len = rd2h_local_encode(&e->self, data);
  if (cap < *len)
    return RD2H_RANGE;
  memcpy(buf, data, *len);
  return RD2H_OK;
}

static void hex(const uint8_t id[16], char out[33]) {
  for (int i = 0; i < 16; i++)
    snprintf(out + 2 * i, 3, "%02x", id[i]);
}

/* Can this process see the peer's pid at all? */
static int same_host(const rd2h_engine *e, const struct rd2h_local_conn *c, struct rd2h_error *err) {
  char theirs[33], ours[33];
  if (memcmp(c->boot_id, e->self.boot_id, sizeof c->boot_id)) {
    hex(c->boot_id, theirs);
    hex(e->self.boot_id, ours);
    return rd2h_fail(err, RD2H_UNSUPPORTED, "engine local: Prefill runs on host %s (boot id %s), this process on %s (boot id "
                     "%s): it reads within one host only; choose another transfer engine", c->host, theirs, e->self.host, ours);
  }
  if (c->pid_ns && e->self.pid_ns && c->pid_ns != e->self.pid_ns)
    return rd2h_fail(err, RD2H_UNSUPPORTED, "engine local: Prefill's process ids belong to pid namespace %llu, this process to "
                     "%llu: start both containers with one pid namespace, or choose another transfer engine",
                     (unsigned long long)c->pid_ns, (unsigned long long)e->self.pid_ns);
  return RD2H_OK;
}

static int check_start(const rd2h_peer *p, struct rd2h_error *err) {
  uint64_t start;
  int rc = rd2h_local_start_time(p->at.pid, &start);
  if (rc == ENOENT || rc == ESRCH)
    return rd2h_local_lost(p, "has ended", err);
  if (rc)
    return rd2h_fail(err, RD2H_UNSUPPORTED, "engine local: cannot read /proc/%u/stat: %s", p->at.pid, strerror(rc));
  if (start != p->at.start)
    return rd2h_fail(err, RD2H_PEER_LOST, "engine local: process %u started at tick %llu, Prefill's at %llu: Prefill has ended "
                     "and its pid is another's; Prefill must connect again", p->at.pid, (unsigned long long)start,
                     (unsigned long long)p->at.start);
  return RD2H_OK;
}

static int open_pidfd(rd2h_peer *p, struct rd2h_error *err) {
  p->pidfd = pidfd_open((pid_t)p->at.pid, 0);
  if (p->pidfd >= 0)
    return RD2H_OK;
  if (errno == ESRCH || errno == EINVAL) /* EINVAL: the pid is a thread's */
    return rd2h_local_lost(p, "does not exist", err);
  return rd2h_fail(err, errno == EMFILE || errno == ENFILE ? RD2H_LIMIT : RD2H_UNSUPPORTED, "engine local: cannot watch process "
                   "%u: %s; it needs a file descriptor a peer (ulimit -n) and Linux 5.3", p->at.pid, strerror(errno));
}

static int identify(const rd2h_engine *e, struct rd2h_blob session, struct rd2h_blob conn, rd2h_peer *p, struct rd2h_error *err) {
  p->has_nonce = conn.len != 0;
  if (conn.len) {
    int rc = rd2h_local_decode(conn, &p->at, err);
    return rc ? rc : same_host(e, &p->at, err);
  }
  if (!e->legacy_session)
    return rd2h_fail(err, RD2H_UNSUPPORTED, "engine local: the peer \"%.*s\" published no connection data for this engine: it is "
                     "no rd2h, or was started with another transfer engine", session.len < 128 ? (int)session.len : 128,
                     (const char *)session.p);
  return rd2h_local_legacy_pid(session, &p->at.pid, err);
}

static int attach(rd2h_engine *e, rd2h_peer *p, struct rd2h_error *err) {
  struct epoll_event ev = {.events = EPOLLIN, .data.ptr = p};
  int rc = open_pidfd(p, err);
  if (!rc && p->has_nonce)
    rc = check_start(p, err);
  else if (!rc)
    p->at.uid = rd2h_local_uid(p->at.pid, e->self.uid);
  if (!rc)
    rc = rd2h_local_probe(e, p, err);
  if (!rc && epoll_ctl(e->epoll, EPOLL_CTL_ADD, p->pidfd, &ev))
    rc = rd2h_fail(err, RD2H_LIMIT, "engine local: cannot watch process %u: %s", p->at.pid, strerror(errno));
  return rc;
}

static void local_disconnect(rd2h_engine *e, rd2h_peer *p) {
  (void)e;
  rd2h_local_unmap(p);
  if (p->pidfd >= 0)
    close(p->pidfd); /* leaves the epoll set with it */
  pthread_mutex_destroy(&p->lock);
  rd2h_free(p);
}

static int local_connect(rd2h_engine *e, struct rd2h_blob session, struct rd2h_blob conn, uint64_t cookie, rd2h_peer **out,
                         struct rd2h_error *err) {
  rd2h_peer *p = rd2h_zalloc(sizeof *p);
  if (!p)
    return rd2h_nomem(err, "engine peer");
  p->cookie = cookie;
  p->pidfd = p->sock = -1;
  p->settled = true;
  pthread_mutex_init(&p->lock, NULL);
  int rc = identify(e, session, conn, p, err);
  if (!rc)
    rc = attach(e, p, err);
  if (rc) {
    local_disconnect(e, p);
    return rc;
  }
  rd2h_local_ask(p);
  *out = p;
  return RD2H_OK;
}

/* A pidfd becomes readable when its process has ended. Each is told once. */
static int local_events(rd2h_engine *e, struct rd2h_peer_event *out, int n) {
  struct epoll_event ev[EVENTS_A_CALL];
  int got = n < 1 ? 0 : epoll_wait(e->epoll, ev, n < EVENTS_A_CALL ? n : EVENTS_A_CALL, 0);
  for (int i = 0; i < got; i++) {
    const rd2h_peer *p = ev[i].data.ptr;
    epoll_ctl(e->epoll, EPOLL_CTL_DEL, p->pidfd, NULL);
    out[i] = (struct rd2h_peer_event){.cookie = p->cookie, .up = false, .status = RD2H_PEER_LOST};
  }
  return got < 0 ? 0 : got;
}

static int local_fd(rd2h_engine *e) {
  return e->epoll;
}

const struct rd2h_engine_ops rd2h_engine_local = {
  .abi = RD2H_ENGINE_ABI, .size = sizeof rd2h_engine_local, .name = "local", .open = local_open, .close = local_close,
  .reg = local_reg, .dereg = local_dereg, .publish = local_publish, .connect = local_connect, .disconnect = local_disconnect,
  .events = local_events, .fd = local_fd, .read = rd2h_local_read, .way = rd2h_local_way,
};
