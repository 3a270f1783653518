/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/curve.h"
#include "worker/thread.h"
#include "worker/worker.h"
#include <errno.h>
#include <stdio.h>
#include <zmq.h>

#define DOMAIN "rd2h" /* makes libzmq ask the doorman, and refuse everybody while there is none */
#define DOORMAN "inproc://zeromq.zap.01"
#define ENTRY_MAX 400u
#define FRAME_MAX 256u

/* ---- keys ---- */
static int need_curve(struct rd2h_error *err) {
  if (zmq_has("curve"))
    return RD2H_OK;
  return rd2h_fail(err, RD2H_UNSUPPORTED, "the installed libzmq was built without CURVE: install one with it (libsodium), or leave the "
                   "keys out");
}

int rd2h_keys_new(char public_key[RD2H_KEY_CHARS + 1], char secret_key[RD2H_KEY_CHARS + 1], struct rd2h_error *err) {
  int rc = need_curve(err);
  if (rc)
    return rc;
  return zmq_curve_keypair(public_key, secret_key) ? rd2h_fail(err, RD2H_IO, "no keys: %s", zmq_strerror(errno)) : RD2H_OK;
}

int rd2h_keys_public(const char *secret, char public_key[RD2H_KEY_CHARS + 1], struct rd2h_error *err) {
  uint8_t raw[32];
  int rc = need_curve(err);
  if (rc)
    return rc;
  if (!secret || strlen(secret) != RD2H_KEY_CHARS || !zmq_z85_decode(raw, secret) || zmq_curve_public(public_key, secret))
    return rd2h_fail(err, RD2H_INVALID, "a secret key must be the %d characters that `rd2h keys` prints", RD2H_KEY_CHARS);
  return RD2H_OK;
}

/* ---- lists ---- */
/* The next entry of the list, copied; false at its end. An entry that is too long comes cut, and is no key then. */
static bool next_entry(const char **at, char entry[ENTRY_MAX]) {
  const char *p = *at + strspn(*at, " \t\r\n,");
  size_t n = strcspn(p, " \t\r\n,");
  *at = p + n;
  if (n >= ENTRY_MAX)
    n = ENTRY_MAX - 1;
  memcpy(entry, p, n);
  entry[n] = 0;
  return n > 0;
}

/* KEY, or HOST=KEY, or HOST:PORT=KEY: the key is the last 40 characters, since it may hold any of these signs. */
static const char *key_of(char entry[ENTRY_MAX], uint8_t raw[32]) {
  size_t n = strlen(entry);
  if (n < RD2H_KEY_CHARS || (n > RD2H_KEY_CHARS && (n < RD2H_KEY_CHARS + 2 || entry[n - RD2H_KEY_CHARS - 1] != '=')))
    return NULL;
  const char *key = entry + n - RD2H_KEY_CHARS;
  return zmq_z85_decode(raw, key) ? key : NULL;
}

static int check_list(const char *option, const char *list, bool named, struct rd2h_error *err) {
  char entry[ENTRY_MAX];
  uint8_t raw[32];
  uint32_t n = 0;
  for (const char *at = list ? list : ""; next_entry(&at, entry); n++)
    if (!key_of(entry, raw) || (!named && strlen(entry) != RD2H_KEY_CHARS))
      return rd2h_fail(err, RD2H_INVALID, "%s: entry %u is no public key%s", option, n + 1, /* unseen: it may be a secret one */
                       named ? ", and no HOST=KEY or HOST:PORT=KEY" : "");
  return n ? RD2H_OK : rd2h_fail(err, RD2H_INVALID, "%s is empty: name the public keys of the other side", option);
}

static int check_secret(const char *secret, struct rd2h_error *err) {
  char public_key[RD2H_KEY_CHARS + 1];
  struct rd2h_error why = {0};
  int rc = rd2h_keys_public(secret, public_key, &why);
  return rc ? rd2h_fail(err, rc, "curve_secret: %s", why.text) : RD2H_OK;
}

int rd2h_curve_check_server(const char *secret, const char *allow, struct rd2h_error *err) {
  if (!secret)
    return allow ? rd2h_fail(err, RD2H_INVALID, "curve_allow lists keys, but curve_secret is not set") : RD2H_OK;
  int rc = check_secret(secret, err);
  return rc || (allow && !strcmp(allow, "*")) ? rc : check_list("curve_allow", allow, false, err);
}

int rd2h_curve_check_client(const char *secret, const char *servers, struct rd2h_error *err) {
  if (!secret)
    return servers ? rd2h_fail(err, RD2H_INVALID, "curve_servers lists keys, but curve_secret is not set") : RD2H_OK;
  int rc = check_secret(secret, err);
  return rc ? rc : check_list("curve_servers", servers, true, err);
}

/* ---- Decode ---- */
static int read_allowed(struct rd2h_doorman *d, const char *allow, struct rd2h_error *err) {
  char entry[ENTRY_MAX];
  uint32_t n = 0;
  d->anybody = !strcmp(allow, "*");
  if (d->anybody)
    return RD2H_OK;
  for (const char *at = allow; next_entry(&at, entry);)
    n++;
  if (!(d->key = rd2h_calloc(n, sizeof *d->key)))
    return rd2h_nomem(err, "the list of keys");
  for (const char *at = allow; d->n_keys < n && next_entry(&at, entry); d->n_keys++)
    if (!key_of(entry, d->key[d->n_keys]))
      return rd2h_fail(err, RD2H_INVALID, "curve_allow: entry %u is no public key", d->n_keys + 1);
  return RD2H_OK;
}

int rd2h_doorman_open(struct rd2h_doorman *d, void *ctx, void *router, const char *secret, const char *allow, struct rd2h_error *err) {
  *d = (struct rd2h_doorman){0};
  int rc = read_allowed(d, allow, err);
  if (rc)
    return rc;
  if (!(d->socket = zmq_socket(ctx, ZMQ_ROUTER)) || rd2h_zmq_set(d->socket, ZMQ_LINGER, 0) || zmq_bind(d->socket, DOORMAN))
    return rd2h_fail(err, RD2H_LIMIT, "socket of the key check: %s", zmq_strerror(errno));
  if (rd2h_zmq_set(router, ZMQ_CURVE_SERVER, 1) || zmq_setsockopt(router, ZMQ_CURVE_SECRETKEY, secret, RD2H_KEY_CHARS + 1) ||
      zmq_setsockopt(router, ZMQ_ZAP_DOMAIN, DOMAIN, sizeof DOMAIN - 1))
    return rd2h_fail(err, RD2H_INTERNAL, "control socket, CURVE: %s", zmq_strerror(errno));
  return RD2H_OK;
}

void rd2h_doorman_close(struct rd2h_doorman *d) {
  if (d->socket)
    zmq_close(d->socket);
  rd2h_free(d->key);
  *d = (struct rd2h_doorman){0};
}

/* A question: the asking pipe, an empty frame, then version, id, domain, address, identity, mechanism, key. */
enum { Q_PIPE, Q_EMPTY, Q_VERSION, Q_ID, Q_DOMAIN, Q_ADDRESS, Q_IDENTITY, Q_MECHANISM, Q_KEY, Q_FRAMES };
struct frame {
  size_t n;
  char p[FRAME_MAX + 1];
};

/* False: nothing was asked. Frames past the last known and longer ones are cut: then the question is not answered with yes. */
static bool read_question(void *socket, struct frame q[Q_FRAMES], uint32_t *n) {
  bool more = true;
  for (*n = 0; more; ++*n) {
    struct frame spare, *f = *n < Q_FRAMES ? &q[*n] : &spare;
    int got = zmq_recv(socket, f->p, FRAME_MAX, ZMQ_DONTWAIT);
    if (got < 0)
      return false;
    f->n = (size_t)got > FRAME_MAX ? FRAME_MAX : (size_t)got;
    f->p[f->n] = 0;
    int left = 0;
    size_t size = sizeof left;
    more = !zmq_getsockopt(socket, ZMQ_RCVMORE, &left, &size) && left;
  }
  return true;
}

static bool allowed(const struct rd2h_doorman *d, const struct frame q[Q_FRAMES], uint32_t n) {
  if (n != Q_FRAMES || strcmp(q[Q_VERSION].p, "1.0") || strcmp(q[Q_MECHANISM].p, "CURVE") || q[Q_KEY].n != sizeof d->key[0])
    return false;
  for (uint32_t i = 0; i < d->n_keys; i++)
    if (!memcmp(d->key[i], q[Q_KEY].p, sizeof d->key[i]))
      return true;
  return d->anybody;
}

static void answer(void *socket, const struct frame q[Q_FRAMES], bool yes) {
  const struct {
    const char *p;
    size_t n;
  } frames[] = {{q[Q_PIPE].p, q[Q_PIPE].n}, {"", 0}, {"1.0", 3}, {q[Q_ID].p, q[Q_ID].n}, {yes ? "200" : "400", 3},
                {yes ? "OK" : "no", 2}, {"", 0}, {"", 0}};
  for (size_t i = 0; i < RD2H_COUNT(frames); i++)
    if (zmq_send(socket, frames[i].p, frames[i].n, ZMQ_DONTWAIT | (i + 1 < RD2H_COUNT(frames) ? ZMQ_SNDMORE : 0)) < 0)
      return; /* the connection has gone meanwhile */
}

void rd2h_doorman_serve(struct rd2h_doorman *d, void (*refused)(void *, const char *, const char *), void *arg) {
  struct frame q[Q_FRAMES];
  uint32_t n;
  while (d->socket && rd2h_zmq_readable(d->socket) && read_question(d->socket, q, &n)) {
    char key[RD2H_KEY_CHARS + 1] = "";
    bool yes = allowed(d, q, n);
    if (n > Q_ID)
      answer(d->socket, q, yes);
    if (yes)
      continue;
    if (n == Q_FRAMES && q[Q_KEY].n == 32)
      zmq_z85_encode(key, (const uint8_t *)q[Q_KEY].p, 32);
    refused(arg, n > Q_ADDRESS ? q[Q_ADDRESS].p : "", key);
  }
}

/* ---- Prefill ---- */
/* How well the entry's name fits: 3 host and port, 2 host, 1 no name; 0: it is another's. */
static int fits(const char *entry, const char *address) {
  size_t n = strlen(entry) - RD2H_KEY_CHARS, host = (size_t)(strrchr(address, ':') - address);
  if (!n)
    return 1;
  if (n - 1 == strlen(address) && !memcmp(entry, address, n - 1))
    return 3;
  return n - 1 == host && !memcmp(entry, address, host) ? 2 : 0;
}

static bool find_server(const char *servers, const char *address, char key[RD2H_KEY_CHARS + 1]) {
  char entry[ENTRY_MAX];
  uint8_t raw[32];
  int best = 0;
  for (const char *at = servers; next_entry(&at, entry);) {
    const char *k = key_of(entry, raw);
    int fit = k && strchr(address, ':') ? fits(entry, address) : 0;
    if (fit <= best)
      continue;
    best = fit;
    memcpy(key, k, RD2H_KEY_CHARS + 1);
  }
  return best > 0;
}

int rd2h_curve_client(void *dealer, const char *secret, const char *servers, const char *address, struct rd2h_error *err) {
  char public_key[RD2H_KEY_CHARS + 1], server[RD2H_KEY_CHARS + 1];
  int rc = rd2h_keys_public(secret, public_key, err);
  if (rc)
    return rc;
  if (!find_server(servers, address, server))
    return rd2h_fail(err, RD2H_NOT_FOUND, "no public key of Decode at %s is in curve_servers", address);
  if (zmq_setsockopt(dealer, ZMQ_CURVE_SERVERKEY, server, RD2H_KEY_CHARS + 1) ||
      zmq_setsockopt(dealer, ZMQ_CURVE_PUBLICKEY, public_key, RD2H_KEY_CHARS + 1) ||
      zmq_setsockopt(dealer, ZMQ_CURVE_SECRETKEY, secret, RD2H_KEY_CHARS + 1))
    return rd2h_fail(err, RD2H_INTERNAL, "control socket, CURVE: %s", zmq_strerror(errno));
  return RD2H_OK;
}
