/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses of a host name, looked up in a thread of its own so that the event loop never waits for a name server. */
#ifndef RD2H_PROXY_RESOLVE_H
#define RD2H_PROXY_RESOLVE_H
#include <event2/event.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#define PX_MAX_ADDRESSES 8

struct px_addresses {
  size_t n;
  struct {
    struct sockaddr_storage address;
    socklen_t length;
  } of[PX_MAX_ADDRESSES];
};

/* At once, for what is an address already; false when it is a name. */
bool rd2h_px_resolve_numeric(const char *host, uint16_t port, struct px_addresses *out);

struct px_lookup;
/* error: NULL when there is an address at least. The lookup is gone afterwards. */
typedef void px_lookup_fn(void *user, const struct px_addresses *found, const char *error);
struct px_lookup *rd2h_px_lookup_start(struct event_base *base, const char *host, uint16_t port, px_lookup_fn *done, void *user);
void rd2h_px_lookup_cancel(struct px_lookup *l);
#endif
