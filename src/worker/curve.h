/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_WORKER_CURVE_H
#define RD2H_WORKER_CURVE_H
/* CURVE on the control channel: Decode is the server and lets in whose key it lists; Prefill is a client that knows the key of each
 * Decode it talks to. A side with keys never falls back to plain. */
#include "base/base.h"
#include <rd2h/security.h>

/* Who may connect: answers the questions that libzmq asks for each connection of a socket (its "ZAP" handler). One thread. */
struct rd2h_doorman {
  void *socket;
  uint8_t (*key)[32];
  uint32_t n_keys;
  bool anybody; /* with any key */
};
/* Before `router` is bound. */
int rd2h_doorman_open(struct rd2h_doorman *, void *ctx, void *router, const char *secret, const char *allow, struct rd2h_error *);
void rd2h_doorman_close(struct rd2h_doorman *);
/* Answers what has been asked; refused(arg, address, key) for each that may not come in. */
void rd2h_doorman_serve(struct rd2h_doorman *, void (*refused)(void *, const char *address, const char *key), void *arg);

/* Before `dealer` connects to address ("host:port"). NOT_FOUND: no key of it is configured. */
int rd2h_curve_client(void *dealer, const char *secret, const char *servers, const char *address, struct rd2h_error *);
#endif
