/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_MEMFABRIC_CLIENT_H
#define RD2H_MEMFABRIC_CLIENT_H
/* Inside of the Decode side. One lock, rd2h_mf_lock, guards all of it: sessions outlive the engine they were made for, until their
 * thread has taken the transfer object down. */
#include "base/fifo.h"
#include "base/ready.h"
#include "engines/memfabric/memfabric.h"
#include <pthread.h>

#define MF_JOBS 1024u         /* reads taken and not yet polled, all peers */
#define MF_JOBS_PER_PEER 64u
#define MF_SUSPECT_NS (1000 * RD2H_MS) /* a call of a slice that takes longer: the peer hangs */

struct mf_job {
  const struct rd2h_batch *batch; /* gone once it has ended */
  uint64_t id, bytes;
  rd2h_peer *peer;
  struct mf_job *next;
  struct rd2h_error *err;
  int status;
  bool taken, stop; /* stop: read while the job runs, so always by atomic access */
};
RD2H_FIFO(mf_list, struct mf_job, next);

/* What is read from one Prefill process: its transfer object, and the thread that alone makes, uses and takes it down. */
struct mf_session {
  char id[MF_ID_MAX];
  struct mf_client *client; /* NULL: nobody wants it any more, its thread ends it */
  struct mf_session *next, *next_thread;
  const struct mf_api *api;
  const struct mf_options *o; /* of the client: not once client is NULL */
  pthread_cond_t work;
  bool threaded, lost, suspect, evict, fresh;
  bool reading;        /* a job's destinations may be written to */
  uint32_t peers;
  struct mf_list queue;
  struct mf_job *running; /* NULL also when the job was taken away before it read anything */
  void *object;
  uint64_t call_since, used_ns;
  uint8_t got[RD2H_PATTERN]; /* lives as long as the object */
};

struct rd2h_peer {
  struct mf_session *session;
  uint64_t cookie;
  struct mf_conn conn; /* its ranges; n 0 and range NULL: the peer announced none */
  uint32_t n;          /* reads taken, not yet polled */
  bool tell_down;
  rd2h_peer *next;
};

struct mf_client {
  const struct mf_api *api;
  struct mf_options o;
  char host[MF_HOST_MAX];
  uint64_t slice;
  struct mf_session *sessions;
  rd2h_peer *peers;
  struct mf_list done, told; /* told: failures that the latest poll yielded */
  struct mf_job *free_jobs, *job;
  struct rd2h_error *err;
  uint32_t running; /* sessions that read */
  uint32_t downs;   /* peers with tell_down */
  struct rd2h_ready ready; /* while a completion or an event waits */
  int timer, epoll;        /* epoll joins both */
  bool armed;
  struct rd2h_engine_stats stats;
};

extern pthread_mutex_t rd2h_mf_lock;
/* Told when a job has ended, an object is gone, a thread is gone. CLOCK_MONOTONIC. */
extern pthread_cond_t rd2h_mf_ended;

/* ---- jobs.c; the lock is held ---- */
void rd2h_mf_give(struct mf_client *, struct mf_job *);
/* Hands a job over to poll; its err is filled where status is not OK. */
void rd2h_mf_finish(struct mf_client *, struct mf_job *, int status, uint64_t bytes);
void rd2h_mf_fail_queued(struct mf_session *, int status, const char *why);
void rd2h_mf_set_signal(struct mf_client *);
/* A session begins or ends to read: keeps the timer that looks after those that hang. */
void rd2h_mf_reading(struct mf_session *, bool on);

/* ---- session.c ---- */
void rd2h_mf_sessions_begin(void); /* before the first session of a process: makes rd2h_mf_ended */
struct mf_session *rd2h_mf_session_new(struct mf_client *, const char *id); /* NULL: no memory */
int rd2h_mf_session_wake(struct mf_session *); /* starts the thread where there is none; LIMIT. The lock is held */
/* An engine closes: waits for the objects, bounded; what is not down then is waited for at exit. */
void rd2h_mf_sessions_end(void);
void rd2h_mf_session_drop(struct mf_session *); /* the last peer is gone, nothing runs. The lock is held */
#endif
