/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_TCP_SERVER_H
#define RD2H_TCP_SERVER_H
/* Inside of Prefill's side. The server's thread owns the links; regions are shared with the callers of reg and dereg. */
#include "engines/tcp/tcp.h"

enum link_state { LINK_HELLO, LINK_REQUEST, LINK_LIST, LINK_REPLY, LINK_REFUSED };
struct tcp_server;

/* One stream of one reader. It reads the next request only when it has answered the one before: a reader's backlog stays in the
 * reader and in the kernel's buffers, which are bounded. */
struct tcp_link {
  struct tcp_link *prev, *next;
  int fd;
  enum link_state state;
  bool wants_out;
  uint64_t deadline; /* of the hello, of a refused link's end; else RD2H_NEVER */
  uint32_t got;      /* bytes of what is being received */
  struct tcp_request q;
  /* ---- the reply ---- */
  int status;        /* below 0: what is left of the promised bytes is sent as zeros, the tail says why */
  uint32_t at;       /* the descriptor to blame */
  uint32_t i, off;   /* next byte to send: descriptor and offset in it */
  uint64_t left;     /* bytes of payload */
  uint32_t framed;   /* bytes sent of head and tail together */
  bool bare;         /* the head alone is the answer */
  bool careful;      /* a call has met a hole: page by page from here, so that what lies before it goes out and it is found */
  uint64_t epoch;    /* of regions and tokens when the list was checked */
  uint64_t reader;   /* whose token it showed; 0: the engine's own */
  uint8_t in[TCP_HELLO];
  uint8_t list[TCP_DESC_MAX * TCP_DESC];
};

struct tcp_token {
  uint64_t reader;
  uint8_t token[TCP_TOKEN];
};

struct tcp_server {
  struct rd2h_tcp_conn self;
  uint64_t timeout;
  int listener, epoll, wake, quiet; /* quiet: what the engine hands out as its descriptor */
  pthread_t thread;
  bool started;
  struct tcp_link *waiting, *proven; /* before and after a good hello; the oldest last */
  uint32_t n_waiting, n_proven;
  uint64_t listen_again; /* accepting rests until then; RD2H_NEVER: it does not rest */
  struct iovec iov[TCP_IOVECS];

  pthread_mutex_t lock; /* guards what follows */
  pthread_cond_t idle;
  struct tcp_regions regions;
  struct tcp_token *token;
  uint32_t n_tokens, cap_tokens;
  uint64_t epoch;       /* grows with every region and token that goes */
  uint64_t copies;      /* system calls that read regions: finished so far */
  bool copying, stop;
};

/* The lock is held: what has gone is not read any more when it returns. */
void rd2h_tcp_server_settle(struct tcp_server *);
/* tokens.c: a hello as rd2h_tcp_hello_check judges it, and whose token it shows; the lock is held for the second. */
int rd2h_tcp_server_greet(struct tcp_server *, const uint8_t hello[TCP_HELLO], uint64_t *reader);
bool rd2h_tcp_server_knows(const struct tcp_server *, uint64_t reader);

/* link.c: the link can go on (true), or must be closed. */
bool rd2h_tcp_link_run(struct tcp_server *, struct tcp_link *);
/* Tells the reader why and stops listening to it; it is closed when the reader has gone or the deadline passes. */
void rd2h_tcp_link_refuse(struct tcp_server *, struct tcp_link *, int status);
#endif
