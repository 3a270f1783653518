/* SPDX-License-Identifier: Apache-2.0 */
/* A TCP connection on the event loop, with TLS or without. Bytes go out at once as far as the socket takes them; the rest waits. */
#ifndef RD2H_PROXY_LINK_H
#define RD2H_PROXY_LINK_H
#include "proxy/text.h"

#include <event2/event.h>

struct px_link;

/* A link may be freed inside any of its events. */
struct px_link_events {
  /* Connected, and TLS agreed upon. May be NULL. */
  void (*open)(void *user);
  /* The bytes lie in a buffer that all links share; they may be changed and are gone after the call. */
  void (*data)(void *user, char *p, size_t n);
  /* Some of what waited has gone out. */
  void (*sent)(void *user);
  /* Nothing comes any more. error: NULL when the other side ended in order. */
  void (*closed)(void *user, const char *error);
};

enum px_link_side { PX_ACCEPTED, PX_CONNECTING };

/* Takes over the descriptor, and the SSL object (or NULL) when it succeeds. send_ms: so long the other side may take nothing of what
 * waits for it; 0: for ever. NULL: memory ran out. */
struct px_link *rd2h_px_link_new(struct event_base *base, evutil_socket_t fd, void *ssl, enum px_link_side side, int64_t send_ms,
                                 const struct px_link_events *events, void *user);
void rd2h_px_link_free(struct px_link *l);
/* The parts one behind the other, up to 8. Never calls an event. */
void rd2h_px_link_send(struct px_link *l, const struct px_span *part, size_t n);
/* A text, and behind it parts that stay where they are, themselves too, until they have gone out or the link is freed. */
void rd2h_px_link_lend(struct px_link *l, struct px_span own, const struct px_span *lent, size_t parts);
/* The same, up to 6 parts; what lies in *from is not copied when it is much: the memory is taken over. from: or NULL. */
void rd2h_px_link_give(struct px_link *l, struct px_span own, const struct px_span *part, size_t parts, struct px_buf *from);
/* Goes out with what is sent next. */
void rd2h_px_link_add(struct px_link *l, struct px_span s);
size_t rd2h_px_link_backlog(const struct px_link *l);
/* Nothing can be sent any more; closed comes once all that had come in is read. */
bool rd2h_px_link_failed(const struct px_link *l);
/* Memory that waits with it. */
size_t rd2h_px_link_room(const struct px_link *l);
evutil_socket_t rd2h_px_link_fd(const struct px_link *l);
/* Whether data is read; nothing is lost meanwhile. */
void rd2h_px_link_read(struct px_link *l, bool on);
/* Nothing is sent any more, once all has been. */
void rd2h_px_link_shut(struct px_link *l);
#endif
