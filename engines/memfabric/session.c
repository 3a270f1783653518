/* SPDX-License-Identifier: Apache-2.0 */
/* A session's thread: it alone enters the library for this peer, so that a peer that hangs holds up nobody else, and a read that
 * nobody waits for any more has somewhere to end. */
#include "engines/memfabric/client.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define PROBE_MS 500u
#define DYING_MS 50u   /* a process that dies closes its sockets one after the other: */
#define DYING_LOOKS 8u /* so often is looked again */
#define CLOSE_S 10     /* an engine that closes, */
#define EXIT_S 5       /* and a process that ends, wait for objects so long: they go one by one, in 1 s each or more */
#define POSTPONED_MS 100

pthread_mutex_t rd2h_mf_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t rd2h_mf_ended;
static uint32_t n_objects, n_threads, n_ending; /* ending: threads whose session nobody wants any more */
static bool exiting, gate;
static struct mf_session *threads; /* sessions that have one */

/* ---- the transfer object ---- */
static bool wanted(const struct mf_session *s, const struct mf_job *j) {
  return s->running == j && s->client && !exiting;
}

/* The library makes and takes down one object at a time. Who waits for its turn out here can still be called off. false: the job
 * that an object was to be made for was. The lock is held on entry and on return, not in between. */
static bool gate_enter(struct mf_session *s, const struct mf_job *j) {
  while (gate && (!j || wanted(s, j)))
    pthread_cond_wait(&rd2h_mf_ended, &rd2h_mf_lock);
  if (j && !wanted(s, j))
    return false;
  gate = true;
  pthread_mutex_unlock(&rd2h_mf_lock);
  return true;
}

static void gate_leave(void) {
  pthread_mutex_lock(&rd2h_mf_lock);
  gate = false;
  pthread_cond_broadcast(&rd2h_mf_ended);
}

/* The lock is held on entry and on return, not in between. */
static void drop_object(struct mf_session *s) {
  void *object = s->object;
  s->object = NULL;
  s->evict = false;
  if (!object)
    return;
  gate_enter(s, NULL);
  s->api->destroy(object, 0);
  gate_leave();
  n_objects--;
}

/* Of the sessions that have nothing to do, the one that was used longest ago gives its object back. */
static void evict_one(struct mf_client *c) {
  struct mf_session *oldest = NULL;
  for (struct mf_session *s = c->sessions; s; s = s->next) {
    if (s->evict)
      return; /* one is on its way */
    if (s->object && !s->running && !s->queue.head && (!oldest || s->used_ns < oldest->used_ns))
      oldest = s;
  }
  if (!oldest)
    return;
  RD2H_DEBUG("engine memfabric: %u transfer objects are the most that objects= allows: that of %s, unused for longest, goes",
             c->o.objects, oldest->id);
  oldest->evict = true;
  pthread_cond_signal(&oldest->work);
}

static bool wait_ms(uint32_t ms) {
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  uint64_t ns = (uint64_t)until.tv_nsec + ms * RD2H_MS;
  until.tv_sec += (time_t)(ns / 1000000000u);
  until.tv_nsec = (long)(ns % 1000000000u);
  return !pthread_cond_timedwait(&rd2h_mf_ended, &rd2h_mf_lock, &until);
}

/* Waits until there may be one more object. The lock is held. */
static int make_room(struct mf_session *s, struct mf_job *j, struct rd2h_error *err) {
  uint32_t most = s->o->objects, wait_s = s->o->init_s;
  uint64_t until = rd2h_now_ns() + wait_s * 1000 * RD2H_MS;
  while (n_objects >= most && wanted(s, j)) {
    if (rd2h_now_ns() >= until)
      return rd2h_fail(err, RD2H_LIMIT, "engine memfabric: %u transfer objects are in use for %u s, none is left for %s: raise the "
                       "option objects= (about 0.1 GB each when tuned)", most, wait_s, s->id);
    evict_one(s->client);
    wait_ms(POSTPONED_MS);
  }
  return RD2H_OK;
}

/* The name of an object in its store must be nobody else's: a port of this host that is held while the object is made. */
static int make_object(struct mf_session *s, const struct mf_options *o, const char *host, void **object, struct rd2h_error *err) {
  char id[MF_ID_MAX];
  uint16_t port = 0;
  int fd = rd2h_mf_hold_port(host, &port);
  if (fd < 0)
    return rd2h_fail(err, RD2H_LIMIT, "engine memfabric: no port can be had at %s: it must be an address of this host", host);
  rd2h_mf_id(host, port, id);
  int rc = rd2h_mf_create(s->api, o, MF_RECEIVER, s->id, id, object, err);
  close(fd);
  return rc;
}

/* Waits until so many threads are none, at most so long. The lock is held. */
static bool wait_threads(const uint32_t *n, uint32_t seconds) {
  struct timespec until;
  int late = 0;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_sec += seconds;
  while (*n && !late)
    late = pthread_cond_timedwait(&rd2h_mf_ended, &rd2h_mf_lock, &until);
  return !*n;
}

/* The library's own clean-up at exit meets its own threads, which still look for a store that is gone, and ends in a fault; and with a
 * thread inside a call in a dead-lock. So the process ends before it (docs/decisions/0022-memfabric-exit.md). */
static void at_exit(int status, void *unused) {
  (void)unused;
  pthread_mutex_lock(&rd2h_mf_lock);
  __atomic_store_n(&exiting, true, __ATOMIC_RELAXED);
  pthread_cond_broadcast(&rd2h_mf_ended);
  for (struct mf_session *s = threads; s; s = s->next_thread)
    pthread_cond_signal(&s->work);
  if (!wait_threads(&n_threads, EXIT_S))
    RD2H_WARN("engine memfabric: %u transfer objects are not down after %d s, the process ends with them", n_threads, EXIT_S);
  fflush(NULL);
  _exit(status);
}

/* Handlers run in reverse order, and the library adds its own whenever it does something for the first time: ours must come before
 * them, too. */
static void hook_exit(bool *hooked) {
  if (!*hooked)
    *hooked = !on_exit(at_exit, NULL);
}

void rd2h_mf_sessions_end(void) {
  bool again = false;
  if (!wait_threads(&n_ending, CLOSE_S))
    hook_exit(&again);
}

/* OK: there is an object, or the job was taken away meanwhile. The lock is held on entry and on return, not in between. */
static int ensure_object(struct mf_session *s, struct mf_job *j, struct rd2h_error *err) {
  int rc = s->object ? RD2H_OK : make_room(s, j, err);
  if (rc || s->object || !wanted(s, j))
    return rc;
  static bool hooked;
  struct mf_options o = s->client->o;
  char host[MF_HOST_MAX];
  void *object = NULL;
  memcpy(host, s->client->host, sizeof host);
  n_objects++;
  if (gate_enter(s, j)) {
    rc = make_object(s, &o, host, &object, err);
    gate_leave();
  }
  n_objects -= !object;
  s->object = object;
  s->fresh = true;
  if (object)
    hook_exit(&hooked);
  return rc;
}

/* ---- one read ---- */
/* Why a call failed: the library has one code for a peer that is gone and for much else. */
static int explain(const struct mf_session *s, const struct mf_read *r, struct rd2h_error *err) {
  char said[RD2H_ERROR_TEXT];
  enum mf_probe p = rd2h_mf_probe(s->id, PROBE_MS);
  for (uint32_t i = 0; p == MF_PROBE_ANSWERS && r->code == MF_ERROR && i < DYING_LOOKS; i++) {
    nanosleep(&(struct timespec){.tv_nsec = DYING_MS * RD2H_MS}, NULL);
    p = rd2h_mf_probe(s->id, PROBE_MS);
  }
  snprintf(said, sizeof said, "%s", err->text);
  if (p == MF_PROBE_GONE)
    return rd2h_fail(err, RD2H_PEER_LOST, "%.380s; nobody listens at %s any more: the peer's process has ended", said, s->id);
  if (r->longest_ns > MF_SUSPECT_NS)
    return rd2h_fail(err, RD2H_TIMEOUT, "%.380s; after %.0f s: the peer hangs or cannot be reached", said, (double)r->longest_ns / 1e9);
  if (r->code == MF_INVALID)
    return rd2h_fail(err, RD2H_RANGE, "%.330s; the peer has not registered this range as one, or is no Prefill of the same protocol",
                     said);
  return RD2H_IO;
}

/* Nothing of the session can be read any more: all its peers are told, what waits fails. The lock is held. */
static void lose(struct mf_session *s, const char *why) {
  s->lost = true;
  rd2h_mf_fail_queued(s, RD2H_PEER_LOST, why);
  for (rd2h_peer *p = s->client->peers; p; p = p->next)
    if (p->session == s && !p->tell_down) {
      p->tell_down = true;
      s->client->downs++;
    }
}

/* Whether the peer is gone, answers, or fails at once. A question may hang for half a minute, but holds up nobody. */
static bool may_go_down(const struct mf_session *s, const struct rd2h_batch *b) {
  static uint8_t byte; /* a late answer may come after this has returned */
  void *local = &byte;
  uint32_t i = 0;
  while (i + 1 < b->n && !b->len[i])
    i++;
  const void *remote = (const void *)(uintptr_t)b->remote[i];
  size_t len = 1;
  if (rd2h_mf_probe(s->id, PROBE_MS) == MF_PROBE_GONE)
    return true;
  uint64_t begin = rd2h_now_ns();
  return !s->api->batch_read(s->object, &local, s->id, &remote, &len, 1, 0) || rd2h_now_ns() - begin <= MF_SUSPECT_NS;
}

struct mf_patience rd2h_mf_patience = {.silent_ns = 100000 * RD2H_MS, .again_ns = 60000 * RD2H_MS};

/* The peers are told, so that their requests end; the one read keeps its destinations. The lock is held. */
static void give_up(struct mf_session *s, uint64_t since) {
  char why[240];
  snprintf(why, sizeof why, "engine memfabric: %s has been silent for %.0f s after a read of it failed: the session is given up", s->id,
           (double)(rd2h_now_ns() - since) / 1e9);
  RD2H_ERR("%s; what that read was to write to cannot be given back before the peer answers or is gone, which is looked for every "
           "%.0f s", why, (double)rd2h_mf_patience.again_ns / 1e9);
  lose(s, why);
}

/* The lock is held on entry and on return, not in between. */
static void rest(void) {
  const uint64_t until = rd2h_now_ns() + rd2h_mf_patience.again_ns;
  for (uint64_t now = rd2h_now_ns(); now < until && !exiting; now = rd2h_now_ns())
    wait_ms((uint32_t)((until - now) / RD2H_MS) + 1);
}

/* A call that has failed may still be answered, late: its destinations are held until the object is down. The library would take none
 * down while its peer hangs, and let nobody else read meanwhile, so the peer is asked first. The lock is held on entry and on return,
 * not in between. */
static void take_down(struct mf_session *s, const struct mf_job *j) {
  const uint64_t begin = rd2h_now_ns();
  while (!exiting) {
    pthread_mutex_unlock(&rd2h_mf_lock);
    bool may = may_go_down(s, j->batch);
    pthread_mutex_lock(&rd2h_mf_lock);
    if (may)
      break;
    if (rd2h_now_ns() - begin > rd2h_mf_patience.silent_ns) {
      if (!s->lost)
        give_up(s, begin);
      rest();
    }
  }
  drop_object(s);
}

/* The library looks at all addresses before it moves anything. */
static bool refused(const struct mf_read *r) {
  return (r->code == MF_INVALID || r->code == MF_NO_OPERATOR) && r->longest_ns <= MF_SUSPECT_NS;
}

/* The first read through an object: bytes that are known. A wrong device would deliver what a model turns into plausible text. */
static int try_way(struct mf_session *s, const struct mf_conn *conn, struct mf_read *r, struct rd2h_error *err) {
  void *local = s->got;
  const uint64_t len = RD2H_PATTERN;
  const struct rd2h_batch trial = {.n = 1, .bytes = len, .local = &local, .remote = &conn->pattern, .len = &len};
  const struct rd2h_batch *batch = r->batch;
  r->batch = &trial;
  int rc = rd2h_mf_read(r, err);
  r->batch = batch;
  r->done = 0;
  uint32_t at = rc ? RD2H_PATTERN : rd2h_pattern_wrong(s->got, conn->seed);
  if (at == RD2H_PATTERN)
    return rc;
  RD2H_ERR("engine memfabric: nothing is read of %s: what came by %s is not its pattern: byte %u is 0x%02x, it should be 0x%02x; look at "
           "device= and nic= on both sides", s->id, s->o->protocol->name, at, s->got[at], rd2h_pattern_byte(conn->seed, at));
  return rd2h_fail(err, RD2H_PEER_LOST, "engine memfabric: what comes from %s by %s is not what it holds: byte %u of its pattern is wrong",
                   s->id, s->o->protocol->name, at);
}

/* Reads, and says how it went. The lock is held on entry and on return, not in between. */
static int read_job(struct mf_session *s, struct mf_job *j, uint64_t *bytes) {
  struct mf_read r = {.api = s->api, .object = s->object, .id = s->id, .batch = j->batch, .slice = s->client->slice, .stop = &j->stop,
                      .call_since = &s->call_since, .fresh = s->fresh};
  rd2h_mf_reading(s, true);
  pthread_mutex_unlock(&rd2h_mf_lock);
  int rc = r.fresh && j->peer->conn.pattern && j->batch->n ? try_way(s, &j->peer->conn, &r, j->err) : RD2H_OK;
  if (!rc)
    rc = rd2h_mf_read(&r, j->err);
  if (rc == RD2H_IO)
    rc = explain(s, &r, j->err);
  pthread_mutex_lock(&rd2h_mf_lock);
  s->fresh = r.fresh;
  if (rc == RD2H_PEER_LOST)
    lose(s, j->err->text);
  if (r.code && !refused(&r))
    take_down(s, j);
  s->suspect = false;
  rd2h_mf_reading(s, false);
  *bytes = r.done;
  return rc;
}

/* One job from the queue to its end. The lock is held on entry and on return. */
static void run(struct mf_session *s) {
  struct mf_job *j = s->running = mf_list_pop(&s->queue);
  struct rd2h_error err = {0};
  uint64_t bytes = 0;
  int rc = ensure_object(s, j, &err);
  if (!wanted(s, j)) /* canceled, or its peer is gone: it was never read */
    return;
  if (rc)
    *j->err = err;
  else
    rc = read_job(s, j, &bytes);
  s->running = NULL;
  s->used_ns = rd2h_now_ns();
  if (rc == RD2H_PEER_LOST && !s->lost)
    lose(s, j->err->text);
  rd2h_mf_finish(s->client, j, rc, bytes);
  pthread_cond_broadcast(&rd2h_mf_ended);
  if (rc && rc != RD2H_CANCELED && (rc != RD2H_RANGE || s->fresh)) /* whatever is wrong with it, the next read gets a new one */
    drop_object(s);
}

static void *thread_main(void *arg) {
  struct mf_session *s = arg;
  pthread_mutex_lock(&rd2h_mf_lock);
  while (s->client && !exiting) {
    if (s->evict)
      drop_object(s);
    else if (s->queue.head)
      run(s);
    else
      pthread_cond_wait(&s->work, &rd2h_mf_lock);
  }
  drop_object(s);
  bool orphan = !s->client;
  struct mf_session **p = &threads;
  while (*p != s)
    p = &(*p)->next_thread;
  *p = s->next_thread;
  s->threaded = false;
  n_threads--;
  n_ending -= orphan;
  pthread_cond_broadcast(&rd2h_mf_ended);
  pthread_mutex_unlock(&rd2h_mf_lock);
  if (orphan) {
    pthread_cond_destroy(&s->work);
    rd2h_free(s);
  }
  return NULL;
}

/* ---- life ---- */
struct mf_session *rd2h_mf_session_new(struct mf_client *c, const char *id) {
  struct mf_session *s = rd2h_zalloc(sizeof *s);
  if (!s)
    return NULL;
  snprintf(s->id, sizeof s->id, "%s", id);
  s->client = c;
  s->api = c->api;
  s->o = &c->o;
  pthread_cond_init(&s->work, NULL);
  s->next = c->sessions;
  c->sessions = s;
  return s;
}

int rd2h_mf_session_wake(struct mf_session *s) {
  sigset_t all, old;
  pthread_attr_t detached;
  pthread_t thread;
  if (s->threaded) {
    pthread_cond_signal(&s->work);
    return RD2H_OK;
  }
  if (exiting)
    return RD2H_STATE;
  sigfillset(&all);
  pthread_attr_init(&detached);
  pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  s->threaded = !pthread_create(&thread, &detached, thread_main, s);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  pthread_attr_destroy(&detached);
  if (!s->threaded)
    return RD2H_LIMIT;
  pthread_setname_np(thread, "rd2h-memfabric");
  n_threads++;
  s->next_thread = threads;
  threads = s;
  return RD2H_OK;
}

void rd2h_mf_session_drop(struct mf_session *s) {
  struct mf_session **p = &s->client->sessions;
  while (*p != s)
    p = &(*p)->next;
  *p = s->next;
  s->client = NULL;
  if (s->threaded) {
    n_ending++;
    pthread_cond_signal(&s->work);
    return;
  }
  pthread_cond_destroy(&s->work);
  rd2h_free(s);
}

void rd2h_mf_sessions_begin(void) {
  static bool begun;
  pthread_mutex_lock(&rd2h_mf_lock);
  if (!begun) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&rd2h_mf_ended, &monotonic);
    pthread_condattr_destroy(&monotonic);
    begun = true;
  }
  pthread_mutex_unlock(&rd2h_mf_lock);
}
