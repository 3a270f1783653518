/* SPDX-License-Identifier: Apache-2.0 */
/* Connections: UCX endpoints with their peers' keys, from the first byte of connection data to the fence. On the engine's thread. */
#include "engines/ucx/ucx.h"
#include <poll.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <unistd.h>

#define TRANSPORTS_MAX 16u
#define DRAIN_NS (200 * RD2H_MS) /* a healthy peer's gets under way end long before */

bool rd2h_ucx_peer_died(const rd2h_peer *p) {
  struct pollfd fd = {.fd = p->pidfd, .events = POLLIN};
  return p->pidfd >= 0 && poll(&fd, 1, 0) == 1;
}

static void on_failure(void *arg, void *ep, ucx_status st) {
  rd2h_peer *p = arg;
  (void)ep;
  if (!p->failure)
    p->failure = st;
  atomic_store(&p->e->attention, true);
}

/* By force: UCX ends what is under way once its transport can no longer write, and then the endpoint. The thread looks after it. */
static void close_endpoint(rd2h_engine *e, rd2h_peer *p) {
  const struct ucx_request_param force = {.mask = UCX_OP_FLAGS, .flags = UCX_CLOSE_FORCE};
  if (!p->ep)
    return;
  void *request = e->ucx->ep_close_nbx(p->ep, &force);
  p->ep = NULL;
  p->closing = request && !UCX_FAILED(request) ? request : NULL;
  p->closed_ns = rd2h_now_ns();
  rd2h_ucx_busy(e, p);
}

static void unwatch(rd2h_engine *e, rd2h_peer *p) {
  if (p->pidfd >= 0) {
    epoll_ctl(e->epoll, EPOLL_CTL_DEL, p->pidfd, NULL);
    close(p->pidfd);
  }
  p->pidfd = -1;
}

void rd2h_ucx_peer_free(rd2h_engine *e, rd2h_peer *p) {
  rd2h_peer **at;
  for (at = &e->peers; *at && *at != p; at = &(*at)->next)
    ;
  if (*at)
    *at = p->next;
  for (uint32_t i = 0; p->rkey && i < p->n; i++)
    if (p->rkey[i])
      e->ucx->rkey_destroy(p->rkey[i]);
  if (p->trial.rkey)
    e->ucx->rkey_destroy(p->trial.rkey);
  unwatch(e, p);
  rd2h_free(p->rkey);
  rd2h_free(p->key);
  rd2h_free(p);
}

void rd2h_ucx_peer_lose(rd2h_engine *e, rd2h_peer *p, const char *why) {
  if (p->lost)
    return;
  p->lost = true;
  for (struct ucx_slot *s = p->queue.head; s; s = s->next)
    if (!s->status && !atomic_load(&s->cancel))
      s->status = rd2h_fail(s->err, RD2H_PEER_LOST, "engine ucx: the connection to %s is lost: %s%s", p->name, why,
                            rd2h_ucx_said());
  close_endpoint(e, p); /* ends what is under way */
  pthread_mutex_lock(&e->lock);
  p->told = true;
  ucx_downs_push(&e->down, p);
  rd2h_ucx_signal(e);
  pthread_mutex_unlock(&e->lock);
}

/* ---- connect ---- */
static bool is_rdma(const char *transport) {
  static const char *const families[] = {"rc", "dc", "ud", "srd", "gga"};
  for (size_t i = 0; i < RD2H_COUNT(families); i++) {
    size_t n = strlen(families[i]);
    if (!strncmp(transport, families[i], n) && (!transport[n] || transport[n] == '_'))
      return true;
  }
  return false;
}

/* Names what was chosen; with require_rdma anything else is refused. */
static int check_transports(rd2h_engine *e, rd2h_peer *p, struct rd2h_error *err) {
  struct ucx_transport t[TRANSPORTS_MAX] = {0};
  struct ucx_ep_attr a = {.mask = UCX_EP_ATTR_TRANSPORTS, .transports = {t, TRANSPORTS_MAX, sizeof *t}};
  char *text = p->way;
  bool rdma = false, tcp = false;
  ucx_status st = e->ucx->ep_query(p->ep, &a);
  for (unsigned i = 0; st == UCX_OK && i < a.transports.n && i < TRANSPORTS_MAX; i++) {
    size_t n = strlen(text);
    snprintf(text + n, sizeof p->way - n, "%s%s over %s", n ? ", " : "", t[i].name, t[i].device);
    rdma |= is_rdma(t[i].name);
    tcp |= !strcmp(t[i].name, "tcp");
  }
  RD2H_INFO("engine ucx: connected to %s by %s%s", p->name, *text ? text : "transports that UCX does not name",
            rdma ? " (RDMA)" : "");
  if (e->require_rdma && !rdma)
    return rd2h_fail(err, RD2H_UNSUPPORTED, "engine ucx: require_rdma is set, and UCX reaches %s by %s only: set up RDMA on both "
                     "hosts, or choose another transfer engine", p->name, *text ? text : "nothing that it names");
  if (tcp && !rdma && !e->warned)
    RD2H_WARN("engine ucx: %s is read by %s, without RDMA: slow. If both hosts have RDMA, look at tls= and devices= (or UCX_TLS, "
              "UCX_NET_DEVICES); engine option require_rdma=1 refuses TCP. Said once; level info names the way to each peer", p->name,
              text);
  e->warned |= tcp && !rdma;
  return RD2H_OK;
}

static int open_endpoint(rd2h_engine *e, rd2h_peer *p, const void *address, struct rd2h_error *err) {
  struct ucx_ep_params params = {.mask = UCX_EP_REMOTE_ADDRESS | UCX_EP_ERR_MODE | UCX_EP_ERR_HANDLER, .address = address,
                                 .err_mode = UCX_ERR_MODE_PEER, .err_handler = {on_failure, p}};
  rd2h_ucx_said();
  ucx_status st = e->ucx->ep_create(e->worker, &params, &p->ep);
  if (st == UCX_OK)
    return RD2H_OK;
  p->ep = NULL;
  return rd2h_fail(err, st == UCX_NO_MEMORY ? RD2H_NOMEM : RD2H_UNSUPPORTED, "engine ucx: no way to %s: %s%s; both sides need a "
                   "transport in common (engine option tls=, UCX_TLS)", p->name, e->ucx->status_text(st), rd2h_ucx_said());
}

static int unpack_keys(rd2h_engine *e, rd2h_peer *p, const struct ucx_conn *at, struct rd2h_error *err) {
  for (uint32_t i = 0; i < p->n; i++) {
    p->key[i] = at->key[i];
    p->key[i].key = NULL;
    if (!at->key[i].len)
      continue;
    ucx_status st = e->ucx->ep_rkey_unpack(p->ep, at->key[i].key, &p->rkey[i]);
    if (st == UCX_OK)
      continue;
    p->rkey[i] = NULL;
    return rd2h_fail(err, RD2H_UNSUPPORTED, "engine ucx: the key of region %u of %s cannot be used here: %s%s", i, p->name,
                     e->ucx->status_text(st), rd2h_ucx_said());
  }
  return RD2H_OK;
}

static int make(rd2h_engine *e, const struct ucx_connect *c, rd2h_peer *p, struct rd2h_error *err) {
  p->key = rd2h_calloc(c->at.n + 1, sizeof *p->key);
  p->rkey = rd2h_calloc(c->at.n + 1, sizeof *p->rkey);
  if (!p->key || !p->rkey)
    return rd2h_nomem(err, "engine peer");
  p->n = c->at.n;
  int rc = rd2h_ucx_watch(&e->self, &c->at.process, &p->pidfd, err);
  if (!rc)
    rc = open_endpoint(e, p, c->at.address, err);
  if (!rc)
    rc = check_transports(e, p, err);
  if (!rc)
    rc = unpack_keys(e, p, &c->at, err);
  struct epoll_event ev = {.events = EPOLLIN, .data.ptr = p};
  if (!rc && p->pidfd >= 0 && epoll_ctl(e->epoll, EPOLL_CTL_ADD, p->pidfd, &ev))
    rc = rd2h_fail(err, RD2H_LIMIT, "engine ucx: cannot watch the process of %s", p->name);
  return rc ? rc : rd2h_ucx_trial_begin(e, p, &c->at, err); /* last: from here on UCX may write to the peer */
}

int rd2h_ucx_peer_connect(rd2h_engine *e, void *connect, struct rd2h_error *err) {
  struct ucx_connect *c = connect;
  rd2h_peer *p = rd2h_zalloc(sizeof *p);
  if (!p)
    return rd2h_nomem(err, "engine peer");
  p->e = e;
  p->cookie = c->cookie;
  p->pidfd = -1;
  snprintf(p->name, sizeof p->name, "%.*s", c->session.len < sizeof p->name ? (int)c->session.len : (int)sizeof p->name - 1,
           (const char *)c->session.p);
  int rc = make(e, c, p, err);
  p->leaving = rc != RD2H_OK;
  p->next = e->peers;
  e->peers = p;
  c->peer = p;
  rd2h_ucx_busy(e, p);
  return rc;
}

/* ---- disconnect ---- */
static bool of_peer(const struct ucx_slot *s, const rd2h_peer *p) {
  return s->peer == p && !s->open;
}

/* Reads of it that UCX cannot write for any more. The lock is held. */
static void drop_slots(rd2h_engine *e, struct ucx_list *l, const rd2h_peer *p) {
  struct ucx_list all = ucx_list_take(l);
  for (struct ucx_slot *s; (s = ucx_list_pop(&all));) {
    if (!of_peer(s, p)) {
      ucx_list_push(l, s);
      continue;
    }
    s->live = false;
    s->next = e->free_slots;
    e->free_slots = s;
  }
}

/* From here on nothing of it is begun, ended or told. */
int rd2h_ucx_peer_leave(rd2h_engine *e, void *leave, struct rd2h_error *err) {
  struct ucx_leave *l = leave;
  rd2h_peer *p = l->peer;
  (void)err;
  p->leaving = true;
  p->left_ns = rd2h_now_ns();
  p->fenced = &l->fenced;
  rd2h_ucx_busy(e, p);
  pthread_mutex_lock(&e->lock);
  ucx_downs_remove(&e->down, p);
  drop_slots(e, &e->submitted, p);
  drop_slots(e, &e->done, p);
  rd2h_ucx_signal(e);
  pthread_mutex_unlock(&e->lock);
  return RD2H_OK;
}

/* Gets under way end by themselves, or with their endpoint. Only when none of a read is left its memory is the caller's again. */
static void leave_on(rd2h_engine *e, rd2h_peer *p) {
  if (!p->open || p->lost || p->failure || e->now > p->left_ns + DRAIN_NS)
    close_endpoint(e, p);
  pthread_mutex_lock(&e->lock);
  drop_slots(e, &p->queue, p);
  if (p->fenced && !p->queue.head) {
    *p->fenced = true;
    p->fenced = NULL;
    pthread_cond_broadcast(&e->ordered);
  }
  pthread_mutex_unlock(&e->lock);
}

bool rd2h_ucx_peer_ending(rd2h_engine *e, rd2h_peer *p) {
  if (p->leaving)
    leave_on(e, p);
  if (p->closing && e->ucx->request_check_status(p->closing) != UCX_INPROGRESS) {
    e->ucx->request_free(p->closing);
    p->closing = NULL;
  }
  if (p->queue.head && p->open && p->closed_ns && !p->deaf && e->now > p->closed_ns + e->deaf_ns) {
    p->deaf = true;
    RD2H_ERR("engine ucx: UCX %s has not ended %u gets of %s, whose connection was closed %llu ms ago: their requests end when they "
             "do, what they read into cannot be given back before", rd2h_ucx_version(), p->open, p->name,
             (unsigned long long)((e->now - p->closed_ns) / RD2H_MS));
  }
  return p->closing || (p->leaving && (p->ep || p->open));
}
