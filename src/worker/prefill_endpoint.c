/* SPDX-License-Identifier: Apache-2.0 */
/* Epochs: one DEALER socket each, never reconnected, with a monitor that tells of its beginning and end. */
#include "worker/curve.h"
#include "worker/prefill_worker.h"
#include <errno.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <zmq.h>

#define MAX_REPLY_BYTES (((int64_t)1 << 20) + 65536) /* an acknowledgement with the largest extension; answers are far below */
/* Messages of one Decode that nobody has read yet. It owes an answer for each open batch, of which a rank has 2^18, a CANCEL for each
 * request, and an empty frame now and then: a correct one does not get there, however long the sender was held up. One that sends on
 * and on is held back by TCP instead of filling the memory. Nothing is lost by that, but heartbeats stand behind it: when none of it
 * is read for liveness_ms the connection ends. */
#define MAX_UNREAD (1 << 19)
#define LOOK_MESSAGES 4096u /* between two looks at timers: a reader that sends on and on holds up nobody */
#define UP_EVENTS ZMQ_EVENT_HANDSHAKE_SUCCEEDED
#define HANDSHAKE_FAILED (ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)
#define DOWN_EVENTS (ZMQ_EVENT_CLOSED | ZMQ_EVENT_DISCONNECTED | HANDSHAKE_FAILED)

bool pw_endpoint_room(rd2h_pw *w, uint32_t endpoint) {
  if (endpoint < w->n_endpoints)
    return true;
  uint32_t n = w->n_endpoints ? w->n_endpoints : 8;
  while (n <= endpoint)
    n *= 2;
  struct pw_endpoint *e = rd2h_realloc(w->endpoint, n * sizeof *e);
  if (!e)
    return false;
  w->endpoint = e;
  memset(e + w->n_endpoints, 0, (n - w->n_endpoints) * sizeof *e);
  uint32_t *dirty = rd2h_realloc(w->dirty, n * sizeof *dirty);
  if (!dirty)
    return false;
  w->dirty = dirty;
  w->n_endpoints = n;
  return true;
}

void pw_endpoint_mark(rd2h_pw *w, uint32_t endpoint, uint8_t what) {
  if (endpoint >= w->n_endpoints)
    return;
  uint8_t before = w->endpoint[endpoint].dirty;
  w->endpoint[endpoint].dirty |= what;
  if (!before)
    w->dirty[w->n_dirty++] = endpoint;
}

/* ---- opening and closing ---- */
static int set_options(const rd2h_pw *w, void *s, const char *address, struct rd2h_error *err) {
  int live = (int)w->o.liveness_ms, third = live / 3 > 0 ? live / 3 : 1;
  const int options[][2] = {{ZMQ_RECONNECT_IVL, -1}, {ZMQ_IMMEDIATE, 1}, {ZMQ_SNDHWM, 0}, {ZMQ_RCVHWM, MAX_UNREAD}, {ZMQ_LINGER, 0},
                            {ZMQ_CONNECT_TIMEOUT, (int)w->o.handshake_ms}, {ZMQ_HANDSHAKE_IVL, (int)w->o.handshake_ms},
                            {ZMQ_HEARTBEAT_IVL, third}, {ZMQ_HEARTBEAT_TIMEOUT, live - third}, {ZMQ_IPV6, address[0] == '['}};
  int64_t most = MAX_REPLY_BYTES;
  for (size_t i = 0; i < RD2H_COUNT(options); i++)
    if (rd2h_zmq_set(s, options[i][0], options[i][1]))
      return rd2h_fail(err, RD2H_INTERNAL, "control socket, option %d: %s", options[i][0], zmq_strerror(errno));
  zmq_setsockopt(s, ZMQ_MAXMSGSIZE, &most, sizeof most);
  return w->curve_secret ? rd2h_curve_client(s, w->curve_secret, w->curve_servers, address, err) : RD2H_OK;
}

static int open_monitor(rd2h_pw *w, struct pw_endpoint *e, struct rd2h_error *err) {
  char name[64];
  snprintf(name, sizeof name, "inproc://monitor-%u", w->next_monitor++);
  if (zmq_socket_monitor(e->socket, name, UP_EVENTS | DOWN_EVENTS) || !(e->monitor = zmq_socket(w->ctx, ZMQ_PAIR)) ||
      zmq_connect(e->monitor, name))
    return rd2h_fail(err, RD2H_LIMIT, "monitor of a control socket: %s; raise the limit of open files (ulimit -n)",
                     zmq_strerror(errno));
  return RD2H_OK;
}

int pw_endpoint_open(rd2h_pw *w, uint32_t endpoint, uint32_t epoch, struct rd2h_error *err) {
  struct pw_endpoint *e = &w->endpoint[endpoint];
  const char *address = rd2h_pm_endpoint_address(w->pm, endpoint);
  char target[340];
  snprintf(target, sizeof target, "tcp://%s", address);
  e->epoch = epoch;
  e->unanswered = 0;
  e->reader = ++w->last_reader;
  if (!(e->socket = zmq_socket(w->ctx, ZMQ_DEALER)))
    return rd2h_fail(err, RD2H_LIMIT, "control socket: %s; raise the limit of open files (ulimit -n)", zmq_strerror(errno));
  int rc = set_options(w, e->socket, address, err);
  rc = rc ? rc : open_monitor(w, e, err);
  rc = rc ? rc : rd2h_epoll_add(w->epoll, rd2h_zmq_fd(e->socket), endpoint * 2, err);
  rc = rc ? rc : rd2h_epoll_add(w->epoll, rd2h_zmq_fd(e->monitor), endpoint * 2 + 1, err);
  if (!rc && zmq_connect(e->socket, target))
    rc = rd2h_fail(err, RD2H_INVALID, "%s: %s; the host must be an address or a name of a Decode rank", target,
                   zmq_strerror(errno));
  pw_endpoint_mark(w, endpoint, PW_SOCKET | PW_MONITOR);
  return rc;
}

static void forget_fd(rd2h_pw *w, void *socket) {
  epoll_ctl(w->epoll, EPOLL_CTL_DEL, rd2h_zmq_fd(socket), NULL);
}

void pw_endpoint_close(rd2h_pw *w, uint32_t endpoint) {
  struct pw_endpoint *e = endpoint < w->n_endpoints ? &w->endpoint[endpoint] : NULL;
  if (!e || !e->socket)
    return;
  rd2h_eng_revoke(w->eng, e->reader);
  zmq_socket_monitor(e->socket, NULL, 0);
  if (e->monitor) {
    forget_fd(w, e->monitor);
    rd2h_zmq_set(e->monitor, ZMQ_LINGER, 0);
    zmq_close(e->monitor);
  }
  forget_fd(w, e->socket);
  zmq_close(e->socket);
  e->socket = e->monitor = NULL;
}

/* ---- out ---- */
void pw_endpoint_send(rd2h_pw *w, uint32_t endpoint, const void *p, size_t n) {
  struct pw_endpoint *e = &w->endpoint[endpoint];
  if (!e->socket)
    return;
  if (rd2h_zmq_send(e->socket, p, n, false))
    rd2h_pm_disconnected(w->pm, endpoint, e->epoch, errno == EAGAIN ? "its connection is closed" : zmq_strerror(errno), w->now);
  else
    w->bytes_sent += n;
  pw_endpoint_mark(w, endpoint, PW_SOCKET);
}

/* ---- in ---- */
static void on_reply(rd2h_pw *w, uint32_t endpoint, const uint8_t *p, size_t n) {
  uint32_t epoch = w->endpoint[endpoint].epoch;
  struct rd2h_error err = {0};
  struct rd2h_wire_reply r;
  struct rd2h_wire_cancel c;
  int rc, kind = rd2h_wire_kind(p, n);
  if (kind == RD2H_MSG_PONG)
    return;
  if (kind == RD2H_MSG_CANCEL) {
    rc = rd2h_wire_decode_cancel(p, n, &c, &err);
    if (!rc)
      rd2h_pm_peer_cancel(w->pm, endpoint, epoch, &c, w->now);
  } else {
    rd2h_arena_reset(&w->reply_arena);
    rc = rd2h_arena_reserve(&w->reply_arena, rd2h_wire_arena_need(n));
    rc = rc ? rd2h_nomem(&err, "a reply") : rd2h_wire_decode_reply(p, n, &w->reply_arena, &r, &err);
    if (!rc)
      rd2h_pm_reply(w->pm, endpoint, epoch, &r, w->now);
  }
  if (rc)
    rd2h_pm_garbage(w->pm, endpoint, epoch, err.text, w->now);
}

/* One message, which may have empty frames in front (a ROUTER's delimiter). False: nothing there. */
static bool receive_one(rd2h_pw *w, uint32_t endpoint) {
  zmq_msg_t frame;
  bool more = true, got = false;
  zmq_msg_init(&frame);
  while (more && zmq_msg_recv(&frame, w->endpoint[endpoint].socket, ZMQ_DONTWAIT) >= 0) {
    got = true;
    more = zmq_msg_more(&frame);
    if (zmq_msg_size(&frame))
      on_reply(w, endpoint, zmq_msg_data(&frame), zmq_msg_size(&frame));
  }
  zmq_msg_close(&frame);
  return got;
}

static void take_replies(rd2h_pw *w, uint32_t endpoint) {
  while (w->endpoint[endpoint].socket && receive_one(w, endpoint))
    pw_drain(w);
}

static const char *why_down(uint32_t event) {
  if (event & HANDSHAKE_FAILED)
    return "it does not speak the control protocol, refuses our key, or only one side has keys (curve_secret)";
  return event == ZMQ_EVENT_DISCONNECTED ? "its connection was closed" : "no connection: refused, unreachable or timed out";
}

static void on_event(rd2h_pw *w, uint32_t endpoint, uint32_t event) {
  uint32_t epoch = w->endpoint[endpoint].epoch;
  if (event & UP_EVENTS) {
    rd2h_pm_connected(w->pm, endpoint, epoch, w->now);
  } else if (event & DOWN_EVENTS) {
    take_replies(w, endpoint); /* answers that came before the end count */
    rd2h_eng_revoke(w->eng, w->endpoint[endpoint].reader); /* before its sources may be written to */
    rd2h_pm_disconnected(w->pm, endpoint, epoch, why_down(event), w->now);
  }
  pw_drain(w);
}

/* A monitor message: 2 bytes of event and 4 of a value that depends on it, then a frame with the address. */
static bool monitor_one(rd2h_pw *w, uint32_t endpoint) {
  zmq_msg_t frame;
  uint16_t event = 0;
  void *monitor = w->endpoint[endpoint].monitor;
  zmq_msg_init(&frame);
  bool got = zmq_msg_recv(&frame, monitor, ZMQ_DONTWAIT) >= 0;
  if (got && zmq_msg_size(&frame) >= sizeof event)
    memcpy(&event, zmq_msg_data(&frame), sizeof event);
  for (bool more = got && zmq_msg_more(&frame); more && zmq_msg_recv(&frame, monitor, ZMQ_DONTWAIT) >= 0;)
    more = zmq_msg_more(&frame);
  zmq_msg_close(&frame);
  if (event)
    on_event(w, endpoint, event);
  return got;
}

/* It goes behind the others, so that they have their turn first. */
static void look_later(rd2h_pw *w, uint32_t endpoint) {
  pw_endpoint_mark(w, endpoint, PW_SOCKET);
  w->dirty[w->n_dirty - 1] = w->dirty[0];
  w->dirty[0] = endpoint;
}

void pw_endpoints_look(rd2h_pw *w) {
  uint32_t left = LOOK_MESSAGES;
  while (w->n_dirty && left) {
    uint32_t endpoint = w->dirty[--w->n_dirty];
    uint8_t what = w->endpoint[endpoint].dirty;
    w->endpoint[endpoint].dirty = 0;
    while (what & PW_MONITOR && w->endpoint[endpoint].monitor && rd2h_zmq_readable(w->endpoint[endpoint].monitor) &&
           monitor_one(w, endpoint))
      ;
    while (left && w->endpoint[endpoint].socket && rd2h_zmq_readable(w->endpoint[endpoint].socket) && receive_one(w, endpoint)) {
      left--;
      pw_drain(w);
    }
    if (!left && !w->endpoint[endpoint].dirty)
      look_later(w, endpoint);
  }
}
