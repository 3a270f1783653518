/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/dump.h"
#include "worker/thread.h"
#include <errno.h>
#include <stdio.h>

#define WAIT_MS 1000u
#define WAY_MAX (sizeof((struct rd2h_peers_transport *)0)->way - 1)

int rd2h_ask_init(struct rd2h_ask *a) {
  *a = (struct rd2h_ask){0};
  return rd2h_cond_init(&a->made_one);
}

void rd2h_ask_free(struct rd2h_ask *a) {
  pthread_cond_destroy(&a->made_one);
}

bool rd2h_ask_wanted(const struct rd2h_ask *a) {
  return a->made != a->asked;
}

void rd2h_ask_made(struct rd2h_ask *a) {
  a->made = a->asked;
  pthread_cond_broadcast(&a->made_one);
}

/* True: the owner has answered this very question. */
static bool ask(struct rd2h_ask *a, pthread_mutex_t *mu, void (*wake)(void *), void *arg, uint32_t timeout_ms) {
  struct timespec until;
  rd2h_monotonic_after(&until, timeout_ms);
  uint64_t mine = ++a->asked;
  wake(arg);
  while (timeout_ms && a->made < mine)
    if (pthread_cond_timedwait(&a->made_one, mu, &until) == ETIMEDOUT)
      break;
  return a->made >= mine;
}

/* ---- the state for people ---- */
int rd2h_dump_init(struct rd2h_dump *d) {
  *d = (struct rd2h_dump){0};
  return rd2h_ask_init(&d->ask);
}

void rd2h_dump_free(struct rd2h_dump *d) {
  rd2h_ask_free(&d->ask);
  rd2h_buf_free(&d->text);
}

static size_t hand_over(const void *text, size_t n, char *out, size_t cap) {
  size_t fits = !cap ? 0 : n < cap ? n : cap - 1;
  if (fits)
    memcpy(out, text, fits);
  if (cap)
    out[fits] = 0;
  return n;
}

size_t rd2h_dump_ask(struct rd2h_dump *d, pthread_mutex_t *mu, void (*wake)(void *), void *arg, const char *who, char *out,
                     size_t cap) {
  char line[200];
  pthread_mutex_lock(mu);
  size_t n;
  if (ask(&d->ask, mu, wake, arg, WAIT_MS)) {
    n = hand_over(d->text.p, d->text.len, out, cap);
  } else {
    int len = snprintf(line, sizeof line, "%s: its thread has not answered for %u ms\n", who, WAIT_MS);
    n = hand_over(line, (size_t)len, out, cap);
  }
  pthread_mutex_unlock(mu);
  return n;
}

bool rd2h_dump_wanted(struct rd2h_dump *d) {
  if (!rd2h_ask_wanted(&d->ask))
    return false;
  rd2h_buf_reset(&d->text);
  return true;
}

/* ---- rows of peers ---- */
int rd2h_peers_ask(struct rd2h_peers_view *v, pthread_mutex_t *mu, void (*wake)(void *), void *arg, uint32_t timeout_ms,
                   struct rd2h_peers *out) {
  pthread_mutex_lock(mu);
  bool fresh = ask(&v->ask, mu, wake, arg, timeout_ms);
  uint64_t now = rd2h_now_ns();
  *out = v->rows;
  for (uint32_t i = 0; i < out->n_waits; i++)
    out->wait[i].wait_ms = now > v->since[i] ? (uint32_t)((now - v->since[i]) / RD2H_MS) : 0;
  pthread_mutex_unlock(mu);
  return fresh ? RD2H_OK : RD2H_TIMEOUT;
}

bool rd2h_peers_wanted(struct rd2h_peers_view *v) {
  if (!rd2h_ask_wanted(&v->ask))
    return false;
  v->rows = (struct rd2h_peers){0};
  return true;
}

void rd2h_peers_connected(struct rd2h_peers_view *v, const char *engine, const char *way) {
  struct rd2h_peers *r = &v->rows;
  uint32_t i = 0;
  r->connected++;
  while (i < r->n_transports && (strcmp(r->transport[i].engine, engine) || strncmp(r->transport[i].way, way, WAY_MAX)))
    i++;
  bool full = i == RD2H_PEERS_ROWS;
  if (full)
    i--;
  if (full || i == r->n_transports) {
    snprintf(r->transport[i].engine, sizeof r->transport[i].engine, "%s", full ? "other" : engine);
    snprintf(r->transport[i].way, sizeof r->transport[i].way, "%s", full ? "" : way);
  }
  r->n_transports += i == r->n_transports;
  r->transport[i].peers++;
}

void rd2h_peers_awaited(struct rd2h_peers_view *v, const char *peer, uint32_t waiting, uint64_t since) {
  struct rd2h_peers *r = &v->rows;
  uint32_t i = r->n_waits;
  r->awaited++;
  while (i && v->since[i - 1] > since)
    i--;
  if (i == RD2H_PEERS_ROWS)
    return;
  uint32_t n = r->n_waits < RD2H_PEERS_ROWS ? r->n_waits++ : RD2H_PEERS_ROWS - 1;
  memmove(&r->wait[i + 1], &r->wait[i], (n - i) * sizeof r->wait[0]);
  memmove(&v->since[i + 1], &v->since[i], (n - i) * sizeof v->since[0]);
  snprintf(r->wait[i].peer, sizeof r->wait[i].peer, "%s", peer);
  r->wait[i].waiting = waiting;
  v->since[i] = since;
}
