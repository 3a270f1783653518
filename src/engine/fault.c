/* SPDX-License-Identifier: Apache-2.0 */
/* Injects faults in front of any engine: every N-th read fails unread, or hangs until it is cancelled or its peer disconnected, or ends
 * with one bit of its first destination wrong, and each read may begin late. Reads not handed on at once are held here; a timer makes
 * the fd readable when one is due. */
#include "engine/face.h"
#include <errno.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define HELD_MAX 1024u
#define MARKED_MAX 64u
#define OWN_TEXT "injected by the fault engine"

enum held_end { PASS, FAIL, CANCEL };
struct held {
  const struct rd2h_batch *batch;
  rd2h_eng_peer *peer;
  uint64_t due; /* RD2H_NEVER: hangs */
  enum held_end end;
  bool refused; /* the inner engine's queue was full: its next completion, not the timer, brings the next try */
};
struct fault {
  struct rd2h_eng eng;
  rd2h_eng *inner;
  struct rd2h_fault_opts opts;
  uint64_t submitted, handed;
  struct held *held; /* in order of submission */
  uint32_t n_held;
  struct held marked[MARKED_MAX]; /* with the inner engine, to come back damaged */
  uint32_t n_marked;
  int timer, epoll;
  struct rd2h_engine_stats own;
};

static bool nth(uint64_t every, uint64_t i) {
  return every && i % every == 0;
}

/* Armed for the first held read that waits for a time; a time that has passed makes the timer readable at once. */
static void arm(struct fault *f) {
  uint64_t due = RD2H_NEVER;
  struct itimerspec at = {0};
  for (uint32_t i = 0; i < f->n_held; i++)
    if (!f->held[i].refused && f->held[i].due < due)
      due = f->held[i].due;
  if (due != RD2H_NEVER) {
    at.it_value.tv_sec = (time_t)(due / 1000000000u);
    at.it_value.tv_nsec = (long)(due % 1000000000u) + !due;
  }
  timerfd_settime(f->timer, TFD_TIMER_ABSTIME, &at, NULL);
}

static int hand_on(struct fault *f, rd2h_eng_peer *p, const struct rd2h_batch *b) {
  int rc = rd2h_eng_submit(f->inner, p, b);
  if (rc == RD2H_OK && nth(f->opts.corrupt_every, ++f->handed) && f->n_marked < MARKED_MAX)
    f->marked[f->n_marked++] = (struct held){.batch = b, .peer = p};
  return rc;
}

static uint32_t drop_peer(struct held *h, uint32_t n, const rd2h_eng_peer *p) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < n; i++)
    if (h[i].peer != p)
      h[kept++] = h[i];
  return kept;
}

static void damage(struct fault *f, const struct rd2h_completion *c) {
  for (uint32_t i = 0; i < f->n_marked; i++)
    if (f->marked[i].batch->id == c->id) {
      if (c->status == RD2H_OK)
        *(uint8_t *)f->marked[i].batch->local[0] ^= 1;
      f->marked[i] = f->marked[--f->n_marked];
      return;
    }
}

static int fault_submit(rd2h_eng *e, rd2h_eng_peer *p, const struct rd2h_batch *b) {
  struct fault *f = (struct fault *)e;
  uint64_t i = f->submitted + 1;
  bool hang = nth(f->opts.hang_every, i), fail = nth(f->opts.fail_every, i);
  if (!hang && !fail && !f->opts.delay_ms) {
    int rc = hand_on(f, p, b);
    f->submitted += rc == RD2H_OK;
    return rc;
  }
  if (f->n_held == HELD_MAX)
    return RD2H_AGAIN;
  f->submitted = i;
  uint64_t due = hang ? RD2H_NEVER : rd2h_now_ns() + f->opts.delay_ms * RD2H_MS;
  f->held[f->n_held++] = (struct held){b, p, due, fail ? FAIL : PASS, false};
  arm(f);
  return RD2H_OK;
}

static void fault_cancel(rd2h_eng *e, uint64_t id) {
  struct fault *f = (struct fault *)e;
  for (uint32_t i = 0; i < f->n_held; i++)
    if (f->held[i].batch->id == id) {
      f->held[i].due = rd2h_now_ns();
      f->held[i].end = CANCEL;
      f->held[i].refused = false;
      arm(f);
      return;
    }
  rd2h_eng_cancel(f->inner, id);
}

/* Ends or hands on a read that is due. True when it is held no longer. */
static bool settle(struct fault *f, struct held *h, struct rd2h_completion *c, int n, int *got) {
  int status = h->end == CANCEL ? RD2H_CANCELED : RD2H_IO;
  if (h->end == PASS) {
    status = hand_on(f, h->peer, h->batch);
    h->refused = status == RD2H_AGAIN;
    if (status == RD2H_OK || h->refused)
      return status == RD2H_OK;
    h->end = FAIL;
  }
  if (*got == n)
    return false;
  f->own.reads++;
  f->own.descriptors += h->batch->n;
  f->own.canceled += h->end == CANCEL;
  f->own.failures += h->end == FAIL;
  c[(*got)++] = (struct rd2h_completion){h->batch->id, status, UINT32_MAX, 0};
  return true;
}

static int fault_poll(rd2h_eng *e, struct rd2h_completion *c, int n) {
  struct fault *f = (struct fault *)e;
  int got = rd2h_eng_poll(f->inner, c, n);
  for (int i = 0; i < got && f->n_marked; i++)
    damage(f, &c[i]);
  uint64_t now = f->n_held ? rd2h_now_ns() : 0;
  uint32_t kept = 0, had = f->n_held;
  for (uint32_t i = 0; i < had; i++)
    if (f->held[i].due > now || !settle(f, &f->held[i], c, n, &got))
      f->held[kept++] = f->held[i];
  f->n_held = kept;
  if (had)
    arm(f);
  return got;
}

static const char *fault_last_error(rd2h_eng *e, uint64_t id) {
  struct fault *f = (struct fault *)e;
  const char *text = f->inner->face->last_error(f->inner, id);
  return text ? text : OWN_TEXT;
}

static int fault_fd(rd2h_eng *e) {
  return ((struct fault *)e)->epoll;
}

static int fault_events(rd2h_eng *e, struct rd2h_peer_event *ev, int n) {
  return rd2h_eng_events(((struct fault *)e)->inner, ev, n);
}

static void fault_stats(rd2h_eng *e, struct rd2h_engine_stats *s) {
  struct fault *f = (struct fault *)e;
  rd2h_eng_stats(f->inner, s);
  s->reads += f->own.reads;
  s->descriptors += f->own.descriptors;
  s->failures += f->own.failures;
  s->canceled += f->own.canceled;
}

static int fault_reg(rd2h_eng *e, const struct rd2h_region *r, uint32_t *region, struct rd2h_error *err) {
  return rd2h_eng_reg(((struct fault *)e)->inner, r, region, err);
}

static int fault_publish(rd2h_eng *e, uint64_t reader, struct rd2h_buf *buf, struct rd2h_error *err) {
  return rd2h_eng_publish_for(((struct fault *)e)->inner, reader, buf, err);
}

static void fault_revoke(rd2h_eng *e, uint64_t reader) {
  rd2h_eng_revoke(((struct fault *)e)->inner, reader);
}

static int fault_connect(rd2h_eng *e, struct rd2h_blob session, struct rd2h_blob conn, uint64_t cookie, rd2h_eng_peer **out,
                         struct rd2h_error *err) {
  return rd2h_eng_connect(((struct fault *)e)->inner, session, conn, cookie, out, err);
}

static rd2h_eng *fault_part(rd2h_eng *e, uint32_t i) {
  return rd2h_eng_part(((struct fault *)e)->inner, i);
}

static int fault_choose(rd2h_eng *e, struct rd2h_blob session, const struct rd2h_eng_offer *offer, uint32_t n, uint64_t cookie,
                        rd2h_eng_peer **out, const char **chosen, struct rd2h_error *err) {
  return rd2h_eng_choose(((struct fault *)e)->inner, session, offer, n, cookie, out, chosen, err);
}

static void fault_disconnect(rd2h_eng *e, rd2h_eng_peer *p) {
  struct fault *f = (struct fault *)e;
  f->n_held = drop_peer(f->held, f->n_held, p);
  f->n_marked = drop_peer(f->marked, f->n_marked, p);
  arm(f);
  rd2h_eng_disconnect(f->inner, p);
}

static void free_fault(struct fault *f) {
  if (f->epoll >= 0)
    close(f->epoll);
  if (f->timer >= 0)
    close(f->timer);
  rd2h_free(f->held);
  rd2h_free(f);
}

static void fault_close(rd2h_eng *e) {
  struct fault *f = (struct fault *)e;
  rd2h_eng_close(f->inner);
  free_fault(f);
}

static const char *fault_session(rd2h_eng *e) {
  return rd2h_eng_session(((struct fault *)e)->inner);
}

static const char *fault_way(rd2h_eng *e, rd2h_eng_peer *p) {
  return rd2h_eng_way(((struct fault *)e)->inner, p);
}

static const struct rd2h_eng_face fault_face = {
  .close = fault_close, .reg = fault_reg, .publish = fault_publish, .revoke = fault_revoke, .part = fault_part, .connect = fault_connect,
  .choose = fault_choose, .disconnect = fault_disconnect,
  .submit = fault_submit, .cancel = fault_cancel, .poll = fault_poll, .events = fault_events, .fd = fault_fd,
  .stats = fault_stats, .last_error = fault_last_error, .session = fault_session, .way = fault_way,
};

static int open_fds(struct fault *f, struct rd2h_error *err) {
  struct epoll_event ev = {.events = EPOLLIN};
  f->timer = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
  f->epoll = epoll_create1(EPOLL_CLOEXEC);
  if (f->timer < 0 || f->epoll < 0 || epoll_ctl(f->epoll, EPOLL_CTL_ADD, f->timer, &ev) ||
      epoll_ctl(f->epoll, EPOLL_CTL_ADD, rd2h_eng_fd(f->inner), &ev))
    return rd2h_fail(err, RD2H_LIMIT, "fault engine: cannot open its event descriptors: %s", strerror(errno));
  return RD2H_OK;
}

int rd2h_fault_open(rd2h_eng *inner, const struct rd2h_fault_opts *opts, rd2h_eng **out, struct rd2h_error *err) {
  struct fault *f = rd2h_zalloc(sizeof *f);
  if (!f)
    return rd2h_nomem(err, "engine");
  f->eng = *inner;
  f->eng.face = &fault_face;
  f->eng.caps.flags &= ~(uint32_t)RD2H_ENG_SUBMIT_COMPLETES; /* what is held back ends later */
  f->inner = inner;
  f->opts = *opts;
  f->timer = f->epoll = -1;
  f->held = rd2h_calloc(HELD_MAX, sizeof *f->held);
  int rc = f->held ? open_fds(f, err) : rd2h_nomem(err, "the fault engine's queue");
  if (rc) {
    free_fault(f);
    return rc;
  }
  *out = &f->eng;
  return RD2H_OK;
}
