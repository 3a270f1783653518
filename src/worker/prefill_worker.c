/* SPDX-License-Identifier: Apache-2.0 */
/* The Prefill worker's frame: creation, the sender thread's loop, the end. */
#include "layout/layout.h"
#include "worker/engine_open.h"
#include "worker/prefill_worker.h"
#include <errno.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <unistd.h>
#include <zmq.h>

#define MAX_ENDPOINTS 4096u
#define MAX_REQUESTS 65536u
#define MAX_BATCHES 262144u

/* ---- the sender thread ---- */
/* Readers get settle_ms to end, then every epoch is closed: nothing is read from this rank's memory afterwards. */
static void settle_all(rd2h_pw *w) {
  struct rd2h_pm_stats st;
  uint64_t until = rd2h_now_ns() + w->o.settle_ms * RD2H_MS;
  for (;;) {
    pw_turn(w);
    pw_publish(w, true);
    rd2h_pm_stats(w->pm, &st);
    if ((!st.outstanding && !w->todo) || w->now >= until)
      break;
    pw_sleep(w, until);
    w->now = rd2h_now_ns();
    pw_run_items(w);
  }
  pw_drop_items(w);
  if (st.outstanding)
    RD2H_WARN("prefill rank %u: shuts down with %u messages unanswered after %u ms (settle_ms)", w->o.tp_rank, st.outstanding,
              w->o.settle_ms);
  rd2h_pm_close_all(w->pm, w->now);
  pw_drain(w);
}

static void *sender_main(void *arg) {
  rd2h_pw *w = arg;
  rd2h_thread_brief();
  rd2h_dev_bind_thread(w->dev); /* a failure is said in the log; what the thread then cannot do fails by itself */
  pthread_mutex_lock(&w->role);
  for (;;) {
    w->now = rd2h_now_ns();
    bool go_on = pw_run_items(w);
    if (!go_on)
      break;
    pw_turn(w);
    pw_publish(w, true);
    pw_sleep(w, RD2H_NEVER);
  }
  settle_all(w);
  pthread_mutex_unlock(&w->role);
  return NULL;
}

/* ---- creation ---- */
static int open_engine(rd2h_pw *w, struct rd2h_error *err) {
  struct rd2h_engine_opts eo = {.size = sizeof eo, .prefill = true, .host = w->o.host, .bind_thread = rd2h_dev_bind_thread,
                                .bind_arg = w->dev};
  int rc = rd2h_worker_engine(w->o.engine, &eo, w->o.memory, w->o.n_memory, &w->eng, err);
  const char *session = rc ? NULL : rd2h_eng_session(w->eng);
  if (session)
    snprintf(w->session, sizeof w->session, "%s", session);
  return rc;
}

static int open_machine(rd2h_pw *w, struct rd2h_error *err) {
  struct rd2h_pm_cfg cfg = {.pp_rank = w->o.pp_rank, .pp_size = w->o.pp_size, .last_layer = w->n_layers - 1,
                            .max_endpoints = MAX_ENDPOINTS, .max_requests = MAX_REQUESTS, .max_batches = MAX_BATCHES,
                            .handshake_ns = w->o.handshake_ms * RD2H_MS, .hold_ns = w->o.hold_ms * RD2H_MS,
                            .idle_ns = w->o.idle_ms * RD2H_MS};
  return rd2h_pm_create(&cfg, &w->pm, err);
}

static int start(rd2h_pw *w, struct rd2h_error *err) {
  char name[16];
  rd2h_nofile_raise(MAX_ENDPOINTS * 4);
  w->ending = rd2h_map_create();
  w->unsent = rd2h_map_create();
  if (w->o.on_read_failure == RD2H_RAISE)
    w->failure = rd2h_calloc(w->n_layers, sizeof *w->failure);
  bool have = w->ending && w->unsent && (w->o.on_read_failure != RD2H_RAISE || w->failure);
  if (w->o.curve_secret) {
    w->curve_secret = rd2h_strdup(w->o.curve_secret);
    w->curve_servers = rd2h_strdup(w->o.curve_servers);
    have &= w->curve_secret && w->curve_servers;
  }
  if (!have || rd2h_gate_init(&w->gate, w->o.layout->n_slots))
    return rd2h_nomem(err, "Prefill worker");
  if (!(w->ctx = rd2h_zmq_context(MAX_ENDPOINTS * 3, err)))
    return err->status;
  int rc = rd2h_dev_open(w->o.device, &w->dev, err);
  rc = rc ? rc : rd2h_dev_events(w->dev, err);
  rc = rc ? rc : open_engine(w, err);
  rc = rc ? rc : open_machine(w, err);
  if (!rc && rd2h_random(w->incarnation, sizeof w->incarnation))
    rc = rd2h_fail(err, RD2H_IO, "getrandom: %s", strerror(errno));
  rc = rc ? rc : pw_make_meta(w, 0, err);
  rc = rc ? rc : pw_turn_open(w, err);
  if (rc)
    return rc;
  snprintf(name, sizeof name, "rd2h-p%u", w->o.tp_rank);
  rc = rd2h_thread_start(&w->thread, name, sender_main, w, err);
  w->started = !rc;
  return rc;
}

int rd2h_pw_create(const struct rd2h_prefill_opts *o, rd2h_pw **out, struct rd2h_error *err) {
  struct rd2h_error local = {0};
  rd2h_pw *w = rd2h_zalloc(sizeof *w);
  err = err ? err : &local;
  if (!w)
    return rd2h_nomem(err, "Prefill worker");
  w->o = *o;
  w->n_layers = o->layout->n_layers;
  w->epoll = w->sleep = w->item_fd = w->ended_fd = -1;
  snprintf(w->session, sizeof w->session, strchr(o->host, ':') ? "[%s]:%ld" : "%s:%ld", o->host, (long)getpid());
  pthread_mutex_init(&w->mu, NULL);
  rd2h_dump_init(&w->dump);
  rd2h_ask_init(&w->peers.ask);
  pthread_mutex_init(&w->role, NULL);
  rd2h_slab_init(&w->ending_slot, sizeof(struct pw_ended *), 0);
  int rc = start(w, err);
  if (rc) {
    rd2h_pw_destroy(w);
    return rc;
  }
  RD2H_INFO("prefill rank %u of %u, stage %u of %u: session %s, engine %s, device %s", o->tp_rank, o->tp_size, o->pp_rank,
            o->pp_size, w->session, rd2h_eng_name(w->eng), rd2h_dev_name(w->dev));
  *out = w;
  return RD2H_OK;
}

/* ---- the end ---- */
static void stop_thread(rd2h_pw *w) {
  pthread_mutex_lock(&w->mu);
  w->stop = true;
  pthread_mutex_unlock(&w->mu);
  pw_wake(w);
  pthread_join(w->thread, NULL);
}

static void close_fd(int fd) {
  if (fd >= 0)
    close(fd);
}

static void free_buffers(rd2h_pw *w) {
  rd2h_buf_free(&w->meta);
  rd2h_buf_free(&w->out);
  rd2h_buf_free(&w->digest);
  rd2h_arena_free(&w->ask);
  rd2h_arena_free(&w->reply_arena);
  rd2h_free(w->endpoint);
  rd2h_free(w->dirty);
  rd2h_free(w->idx);
  rd2h_free(w->wire);
  rd2h_free(w->failure);
  if (w->curve_secret)
    explicit_bzero(w->curve_secret, strlen(w->curve_secret));
  rd2h_free(w->curve_secret);
  rd2h_free(w->curve_servers);
}

void rd2h_pw_destroy(rd2h_pw *w) {
  if (!w)
    return;
  if (w->started)
    stop_thread(w);
  for (uint32_t i = 0; i < w->n_endpoints; i++)
    pw_endpoint_close(w, i);
  if (w->ctx)
    zmq_ctx_term(w->ctx);
  if (w->step)
    pw_step_unref(w, w->step);
  rd2h_pm_destroy(w->pm);
  rd2h_eng_close(w->eng); /* last: memory is taken back only when no epoch is left that could read it */
  rd2h_dev_close(w->dev);
  pw_queue_free(w);
  pw_steps_free(w);
  rd2h_gate_free(&w->gate);
  free_buffers(w);
  close_fd(w->sleep);
  close_fd(w->epoll);
  close_fd(w->item_fd);
  close_fd(w->ended_fd);
  pthread_mutex_destroy(&w->role);
  rd2h_dump_free(&w->dump);
  rd2h_ask_free(&w->peers.ask);
  pthread_mutex_destroy(&w->mu);
  rd2h_free(w);
}
