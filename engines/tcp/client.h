/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_TCP_CLIENT_H
#define RD2H_TCP_CLIENT_H
/* Inside of Decode's side. One thread owns peers, streams and reads in flight; callers hand it reads and orders under the lock
 * and take completions under it. Bytes land only inside of that thread's calls of readv: what it has given up cannot be written. */
#include "base/fifo.h"
#include "base/ready.h"
#include "engines/tcp/tcp.h"

#define TCP_SLOTS 1024u      /* reads taken and not yet polled, all peers */
#define TCP_SLOTS_PEER 64u   /* of one peer */
#define TCP_DEPTH 4u         /* requests under way on one stream: the wire never waits for the next list */
#define TCP_SCRATCH 65536u

/* Where in a batch: descriptor and offset in it. */
struct tcp_cursor {
  uint32_t i;
  uint64_t off;
};

/* A read from submit to the poll after the one that yielded it. */
struct tcp_slot {
  struct tcp_slot *next;       /* in one of the lists below */
  struct tcp_slot *older, *newer; /* among all in flight, by submission */
  const struct rd2h_batch *b;
  rd2h_peer *peer;
  uint64_t id, submitted, bytes; /* bytes: landed */
  uint32_t under_way;          /* requests */
  uint64_t piece;              /* bytes that one request asks for */
  struct tcp_cursor at;        /* next byte to ask for */
  bool live;                   /* submitted and not completed; guarded by the lock */
  bool cancel;                 /* guarded by the lock */
  int status;
  uint32_t failed_at;
  struct rd2h_error *err;
};
RD2H_FIFO(tcp_list, struct tcp_slot, next);

/* A request on its way. */
struct tcp_asked {
  struct tcp_slot *slot; /* NULL: given up, its bytes are thrown away */
  struct tcp_cursor from, at; /* first byte of it; next byte to land */
  uint32_t seq;
  uint64_t left;
};

struct tcp_stream {
  rd2h_peer *peer;
  int fd;
  bool up, wants_out; /* connected; EPOLLOUT is asked for */
  bool paying;        /* the first request's head is in: payload, then tail */
  bool careful;       /* a call has met a destination that is not there: page by page until the request ends, to find it */
  uint32_t seq, first, n; /* next number; ring of requests */
  struct tcp_asked asked[TCP_DEPTH];
  uint64_t under_way;     /* bytes asked for and not come */
  uint32_t ctl_n;
  uint8_t ctl[2 * TCP_REPLY];
  uint32_t out_n, out_at; /* bytes to send, sent */
  uint8_t out[TCP_HEAD + TCP_DESC_MAX * TCP_DESC];
};

struct rd2h_peer {
  rd2h_peer *next_order, *next_down;
  struct rd2h_tcp_conn at;
  char name[64]; /* "address:port" */
  uint64_t cookie, heard; /* when bytes came last */
  bool ordered, open_wanted, close_wanted, closed; /* guarded by the lock */
  bool lost, told;        /* written under the lock; told: it is in the list of events */
  int why;                /* status of that event */
  uint32_t taken;         /* slots of it, guarded by the lock */
  struct tcp_list queue;  /* reads not wholly asked for */
  uint32_t n_streams;
  struct tcp_stream stream[];
};
RD2H_FIFO(tcp_downs, rd2h_peer, next_down);

struct tcp_client {
  uint32_t streams;
  uint64_t timeout;
  int epoll;
  pthread_t thread;
  bool started;

  /* ---- the thread's own ---- */
  struct tcp_slot *oldest, *newest; /* in flight, by submission: the first one's deadline is the next */
  struct iovec iov[TCP_IOVECS];
  uint8_t scratch[TCP_SCRATCH];

  pthread_mutex_t lock; /* guards what follows */
  pthread_cond_t obeyed;
  struct tcp_list inbox, done, told; /* told: failures that the latest poll yielded, kept for their texts */
  struct tcp_slot *free_slots, *slot;
  uint32_t high;        /* slots that were ever taken: the first so many */
  struct rd2h_ready wake;  /* the thread's: while something is handed over */
  struct rd2h_ready ready; /* the caller's: while a completion or an event waits */
  struct tcp_downs down;
  rd2h_peer *orders;
  bool cancels, stop;
  struct rd2h_engine_stats stats;
  struct rd2h_error *errs; /* one a slot */
};

/* slots.c */
/* The lock is held. */
void rd2h_tcp_signal(struct tcp_client *);
void rd2h_tcp_free_slot(struct tcp_client *, struct tcp_slot *); /* the lock is held */
void rd2h_tcp_begin(struct tcp_client *, struct tcp_slot *);     /* the thread takes it over */
/* The thread is done with it: whatever of it is still on its way is thrown away. Its text is in slot->err. */
void rd2h_tcp_end(struct tcp_client *, struct tcp_slot *, int status);
/* The same without a completion. */
void rd2h_tcp_forget(struct tcp_client *, struct tcp_slot *);
/* Sends requests as far as streams have room. */
void rd2h_tcp_deal(struct tcp_client *, rd2h_peer *);
/* The descriptor of the batch that the k-th descriptor of a request comes from. */
uint32_t rd2h_tcp_blame(const struct tcp_asked *, uint32_t k);
void rd2h_tcp_close_streams(struct tcp_client *, rd2h_peer *);
/* All streams end, all reads fail with `status`, and an event tells. */
void rd2h_tcp_lose(struct tcp_client *, rd2h_peer *, int status, const char *why);

/* stream.c: on false the peer has been lost. */
bool rd2h_tcp_stream_flush(struct tcp_client *, struct tcp_stream *);
bool rd2h_tcp_stream_run(struct tcp_client *, struct tcp_stream *, uint32_t events);
bool rd2h_tcp_stream_watch(struct tcp_client *, struct tcp_stream *, bool out);

/* loop.c */
void *rd2h_tcp_client_main(void *client);
#endif
