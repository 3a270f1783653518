/* SPDX-License-Identifier: Apache-2.0 */
/* The Decode worker's frame: creation, the control thread's loop, the end. */
#include "worker/decode_worker.h"
#include "worker/engine_open.h"
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <unistd.h>

#define TOMBSTONES 4096u
#define MAX_PARKED 4096u
#define LEGACY_HOLD_MS 240000u /* what a Prefill peer holds its sources for at most */
#define HEARTBEAT_MS 1000
#define HEARTBEAT_TIMEOUT_MS 5000
/* Messages of one connection that nobody has read yet: above what a Prefill may have open there (2^18 batches), so that a correct one is
 * never held back, and its heartbeats with it. One that sends on and on waits in TCP. */
#define MAX_UNREAD (1 << 19)
#define ANSWERS_MAX (1 << 18) /* waiting for one peer: as many as a Prefill has open batches; one that reads none is lost */
#define ANSWER_BYTES 4096u /* set aside for an answer: more than any without statuses takes */
#define HELD_TOTAL_BYTES ((size_t)1 << 30)
#define HELD_PEER_BYTES ((size_t)256 << 20)
enum { KEY_ROUTER, KEY_COMMAND, KEY_DOORMAN, KEY_ENGINE };

/* ---- the control thread ---- */
static void turn_wait(rd2h_dw *w) {
  struct epoll_event ev[4];
  uint64_t deadline = rd2h_dm_next_deadline(w->dm);
  deadline = w->retry_at < deadline ? w->retry_at : deadline;
  w->burst = rd2h_zmq_readable(w->router);
  bool more = w->burst || (w->unpolled && rd2h_eng_caps(w->eng)->flags & RD2H_ENG_SUBMIT_COMPLETES);
  int timeout = more ? 0 : rd2h_epoll_timeout(deadline, rd2h_now_ns());
  epoll_wait(w->epoll, ev, RD2H_COUNT(ev), timeout); /* every source is looked at each turn, whichever woke us */
}

static void turned_away(void *arg, const char *address, const char *key) {
  rd2h_dw *w = arg;
  w->refused_keys++;
  if (dw_may_log(w))
    RD2H_WARN("decode rank %u: a connection from %s is refused: its key %s is not in curve_allow", w->o.tp_rank, address, key);
}

/* Where ZeroMQ's thread has to share a CPU with this one, what was sent goes before what is left of this turn. */
static void let_answers_out(rd2h_dw *w) {
  if (w->sent && !w->burst)
    sched_yield();
  w->sent = false;
}

static void *control_main(void *arg) {
  rd2h_dw *w = arg;
  rd2h_thread_brief();
  rd2h_dev_bind_thread(w->dev); /* a failure is said in the log; what the thread then cannot do fails by itself */
  for (;;) {
    w->now = rd2h_now_ns();
    if (!dw_run_commands(w))
      return NULL;
    rd2h_doorman_serve(&w->doorman, turned_away, w);
    dw_receive(w);
    dw_complete(w);
    w->retry_at = dw_retry_run(w);
    if (rd2h_dm_next_deadline(w->dm) <= w->now)
      rd2h_dm_tick(w->dm, w->now);
    dw_drain(w);
    let_answers_out(w);
    dw_publish(w);
    turn_wait(w);
  }
}

/* ---- creation ---- */
static int bind_router(rd2h_dw *w, struct rd2h_error *err) {
  char address[300];
  bool v6 = strchr(w->o.bind_host, ':') != NULL;
  const int options[][2] = {{ZMQ_ROUTER_MANDATORY, 1}, {ZMQ_SNDHWM, ANSWERS_MAX}, {ZMQ_RCVHWM, MAX_UNREAD}, {ZMQ_LINGER, 0},
                            {ZMQ_IPV6, v6}, {ZMQ_HEARTBEAT_IVL, HEARTBEAT_MS}, {ZMQ_HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS},
                            {ZMQ_BACKLOG, 1024}};
  int64_t most = (int64_t)w->o.max_message_mb << 20;
  size_t n = sizeof address;
  if (!(w->router = zmq_socket(w->ctx, ZMQ_ROUTER)))
    return rd2h_fail(err, RD2H_LIMIT, "control socket: %s; raise the limit of open files (ulimit -n)", zmq_strerror(errno));
  for (size_t i = 0; i < RD2H_COUNT(options); i++)
    if (rd2h_zmq_set(w->router, options[i][0], options[i][1]))
      return rd2h_fail(err, RD2H_INTERNAL, "control socket, option %d: %s", options[i][0], zmq_strerror(errno));
  zmq_setsockopt(w->router, ZMQ_MAXMSGSIZE, &most, sizeof most);
  int rc = w->o.curve_secret ? rd2h_doorman_open(&w->doorman, w->ctx, w->router, w->o.curve_secret, w->o.curve_allow, err) : RD2H_OK;
  if (rc)
    return rc;
  snprintf(address, sizeof address, w->o.port ? "tcp://%s%s%s:%u" : "tcp://%s%s%s:*", v6 ? "[" : "", w->o.bind_host,
           v6 ? "]" : "", w->o.port);
  if (zmq_bind(w->router, address))
    return rd2h_fail(err, RD2H_IO, "Decode rank %u cannot listen at %s: %s; choose a free kv_port and a host of this machine",
                     w->o.tp_rank, address, zmq_strerror(errno));
  if (zmq_getsockopt(w->router, ZMQ_LAST_ENDPOINT, address, &n))
    return rd2h_fail(err, RD2H_INTERNAL, "control socket: %s", zmq_strerror(errno));
  unsigned port = 0;
  sscanf(strrchr(address, ':'), ":%u", &port);
  w->port = (uint16_t)port;
  return RD2H_OK;
}

static int open_engine(rd2h_dw *w, struct rd2h_error *err) {
  struct rd2h_engine_opts eo = {.size = sizeof eo, .host = w->o.bind_host, .read_timeout_ns = w->o.read_timeout_ms * RD2H_MS,
                                .threads = w->o.engine_threads, .legacy_session = w->o.legacy_session,
                                .bind_thread = rd2h_dev_bind_thread, .bind_arg = w->dev};
  return rd2h_worker_engine(w->o.engine, &eo, w->o.memory, w->o.n_memory, &w->eng, err);
}

static int open_machine(rd2h_dw *w, struct rd2h_error *err) {
  struct rd2h_dm_cfg cfg = {.layout = w->o.layout, .main_rank = w->o.main_rank, .main_ranks = w->o.main_ranks,
                            .max_peers = w->o.max_peers, .max_requests = w->o.max_requests, .max_parked = MAX_PARKED,
                            .tombstones = TOMBSTONES, .park_ns = w->o.park_ms * RD2H_MS, .queue_ns = w->o.queue_ms * RD2H_MS,
                            .progress_ns = w->o.progress_ms * RD2H_MS, .probe_ns = w->o.probe_ms * RD2H_MS,
                            .legacy_hold_ns = LEGACY_HOLD_MS * RD2H_MS, .reply_on_read_failure = w->o.reply_on_read_failure};
  if (rd2h_random(w->incarnation, sizeof w->incarnation))
    return rd2h_fail(err, RD2H_IO, "getrandom: %s", strerror(errno));
  memcpy(cfg.incarnation, w->incarnation, sizeof cfg.incarnation);
  return rd2h_dm_create(&cfg, &w->dm, err);
}

static int open_loop(rd2h_dw *w, struct rd2h_error *err) {
  w->epoll = epoll_create1(EPOLL_CLOEXEC);
  w->command_fd = rd2h_eventfd_open(err);
  w->outcome_fd = rd2h_eventfd_open(err);
  if (w->epoll < 0 || w->command_fd < 0 || w->outcome_fd < 0)
    return rd2h_fail(err, RD2H_LIMIT, "event descriptors: %s; raise the limit of open files (ulimit -n)", strerror(errno));
  int engine_fd = rd2h_eng_caps(w->eng)->flags & RD2H_ENG_SUBMIT_COMPLETES ? -1 : rd2h_eng_fd(w->eng);
  int rc = rd2h_epoll_add(w->epoll, rd2h_zmq_fd(w->router), KEY_ROUTER, err);
  rc = rc ? rc : rd2h_epoll_add(w->epoll, w->command_fd, KEY_COMMAND, err);
  if (!rc && w->doorman.socket)
    rc = rd2h_epoll_add(w->epoll, rd2h_zmq_fd(w->doorman.socket), KEY_DOORMAN, err);
  return rc || engine_fd < 0 ? rc : rd2h_epoll_add(w->epoll, engine_fd, KEY_ENGINE, err);
}

static int start(rd2h_dw *w, struct rd2h_error *err) {
  char name[16];
  rd2h_nofile_raise(w->o.max_peers + 256);
  w->by_identity = rd2h_map_create();
  w->live = rd2h_map_create();
  if (!w->by_identity || !w->live || !rd2h_buf_room(&w->out, ANSWER_BYTES))
    return rd2h_nomem(err, "Decode worker");
  if (!(w->ctx = rd2h_zmq_context(w->o.max_peers + 64, err)))
    return err->status;
  int rc = rd2h_dev_open(w->o.device, &w->dev, err);
  rc = rc ? rc : open_engine(w, err);
  rc = rc ? rc : open_machine(w, err);
  rc = rc ? rc : bind_router(w, err);
  rc = rc ? rc : open_loop(w, err);
  if (rc)
    return rc;
  snprintf(name, sizeof name, "rd2h-d%u", w->o.tp_rank);
  rc = rd2h_thread_start(&w->thread, name, control_main, w, err);
  w->started = !rc;
  return rc;
}

int rd2h_dw_create(const struct rd2h_decode_opts *o, rd2h_dw **out, struct rd2h_error *err) {
  struct rd2h_error local = {0};
  rd2h_dw *w = rd2h_zalloc(sizeof *w);
  err = err ? err : &local;
  if (!w)
    return rd2h_nomem(err, "Decode worker");
  w->o = *o;
  w->epoll = w->command_fd = w->outcome_fd = -1;
  w->pool.held_max = HELD_TOTAL_BYTES;
  w->pool.peer_max = HELD_PEER_BYTES;
  pthread_mutex_init(&w->mu, NULL);
  rd2h_dump_init(&w->dump);
  rd2h_ask_init(&w->peers.ask);
  rd2h_cond_init(&w->none_live);
  rd2h_slab_init(&w->live_slot, sizeof(struct dw_request *), 0);
  zmq_msg_init(&w->identity);
  zmq_msg_init(&w->frame);
  zmq_msg_init(&w->payload);
  int rc = start(w, err);
  if (rc) {
    rd2h_dw_destroy(w);
    return rc;
  }
  RD2H_INFO("decode rank %u of %u: listening at %s:%u, engine %s", w->o.tp_rank, w->o.tp_size, w->o.bind_host, w->port,
            rd2h_eng_name(w->eng));
  *out = w;
  return RD2H_OK;
}

/* ---- the end ---- */
static void stop_thread(rd2h_dw *w) {
  pthread_mutex_lock(&w->mu);
  w->stop = true;
  pthread_mutex_unlock(&w->mu);
  rd2h_eventfd_set(w->command_fd);
  pthread_join(w->thread, NULL);
}

static void close_fd(int fd) {
  if (fd >= 0)
    close(fd);
}

void rd2h_dw_destroy(rd2h_dw *w) {
  if (!w)
    return;
  if (w->started)
    stop_thread(w);
  for (uint32_t i = 0; i < w->n_peers; i++)
    dw_forget_peer(w, i);
  rd2h_eng_close(w->eng); /* from here on nothing is written to destinations any more */
  rd2h_dev_close(w->dev);
  dw_batches_free(w);
  rd2h_dm_destroy(w->dm);
  zmq_msg_close(&w->identity);
  zmq_msg_close(&w->frame);
  zmq_msg_close(&w->payload);
  if (w->router)
    zmq_close(w->router);
  rd2h_doorman_close(&w->doorman);
  if (w->ctx)
    zmq_ctx_term(w->ctx);
  for (uint32_t i = 0; i < w->n_peers; i++)
    rd2h_free(w->peer[i]);
  rd2h_free(w->peer);
  rd2h_map_destroy(w->by_identity);
  rd2h_msgpool_free(&w->pool);
  rd2h_arena_free(&w->scratch);
  rd2h_buf_free(&w->out);
  dw_commands_free(w);
  close_fd(w->epoll);
  close_fd(w->command_fd);
  close_fd(w->outcome_fd);
  rd2h_dump_free(&w->dump);
  rd2h_ask_free(&w->peers.ask);
  pthread_cond_destroy(&w->none_live);
  pthread_mutex_destroy(&w->mu);
  rd2h_free(w);
}

uint16_t rd2h_dw_port(const rd2h_dw *w) {
  return w->port;
}
