/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_ENGINE_POOL_H
#define RD2H_ENGINE_POOL_H
/* Inside of the pool: threads for engines whose read() blocks. Each peer has a queue, of which one read is begun at a time; peers with
 * work stand in a ring and a thread takes a piece of the first one's read, so that a busy peer delays the others by a piece, not by its
 * queue. A peer whose read takes far longer than its bytes explain is slow: it stands in a ring of its own, which never gets the
 * threads that the others count on. The control thread calls the functions of the face; it shares the structs with the pool's threads
 * under `lock`. */
#include "base/fifo.h"
#include "base/ready.h"
#include "engine/face.h"
#include <pthread.h>

#define POOL_JOBS 1024u       /* reads taken and not yet polled, all peers */
#define POOL_THREADS_MAX 64u  /* those for slow peers included */
enum { POOL_QUICK, POOL_SLOW, POOL_RINGS };

struct pool_peer;
struct pool_job {
  const struct rd2h_batch *batch; /* gone once polled */
  uint64_t id, bytes, deadline;
  struct pool_peer *peer;
  struct pool_job *next;
  struct rd2h_error *err;
  int status;
  uint32_t failed_at;
  uint32_t at;     /* the first descriptor that no thread has been given */
  uint32_t inside; /* threads that read a piece of it */
  bool taken, late, stop; /* stop: read by the engine while it runs, so always by atomic access */
};
RD2H_FIFO(pool_list, struct pool_job, next);
struct pool_peer {
  struct rd2h_eng_peer base;
  struct pool_list queue;
  struct pool_job *running;
  struct pool_peer *next; /* in its ring */
  bool in_ring, slow;
  uint32_t n; /* taken, not yet polled */
};
RD2H_FIFO(pool_ring, struct pool_peer, next);
struct pool_thread {
  struct pool *pool;
  pthread_t thread;
  struct pool_job *job; /* what it is inside of, since when, how many bytes */
  uint64_t begun, bytes;
  bool told; /* its read has been reported as one that does not end */
};
struct pool {
  struct rd2h_module m;
  uint64_t timeout;    /* ns a read may take from its submission; 0: for ever */
  uint32_t base;       /* threads that quick peers can count on */
  bool parallel;       /* reads are cut into pieces */
  int (*bind)(void *); /* of the options: what a thread does first */
  void *bind_arg;
  pthread_mutex_t lock;
  pthread_cond_t work, ended, watch; /* a peer has work or the pool closes; a read has ended; the watch is wanted */
  struct pool_ring ring[POOL_RINGS];
  struct pool_list done, told; /* told: failures that the latest poll yielded, kept for last_error */
  struct pool_job *free_jobs, *job;
  uint32_t high;          /* jobs that were ever taken: the first so many */
  struct rd2h_error *err; /* one a job */
  struct rd2h_ready ready; /* while a completion waits */
  int epoll;              /* joins it with the engine's own fd, where it has one; else -1 */
  bool closing;
  bool touched, watched; /* a read was submitted since the watch looked; the watch is awake */
  uint32_t n_threads;
  struct rd2h_engine_stats stats;
  struct pool_thread thread[POOL_THREADS_MAX];
  pthread_t watcher;
  bool watcher_runs;
};

/* With the lock held, all but open and join. */
void pool_ring_put(struct pool *, struct pool_peer *); /* where it belongs; no-op when it has nothing to give out */
void pool_ring_drop(struct pool *, struct pool_peer *);
void pool_finish(struct pool *, struct pool_job *, int status); /* a read that nobody is inside of */
void pool_stop(struct pool *, struct pool_job *, int status); /* CANCELED, TIMEOUT: ends as soon as may be */
void pool_say_stopped(const struct pool *, struct pool_job *, int status);
/* pool_threads.c */
int pool_threads_open(struct pool *, struct rd2h_error *);
void pool_threads_join(struct pool *);
#endif
