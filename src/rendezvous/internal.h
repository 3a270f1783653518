/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_RENDEZVOUS_INTERNAL_H
#define RD2H_RENDEZVOUS_INTERNAL_H
/* One lock guards the table of jobs, its lists and the map. libcurl is touched by the loop's thread alone, never under the
 * lock. */
#include "rendezvous/rendezvous.h"
#include <curl/curl.h>
#include <pthread.h>

#define RDV_TEXT 480u  /* bytes of a result's line */
#define RDV_QUOTE 200u /* bytes of an answer that are quoted in it */

enum job_place {
  JOB_READY,  /* in `ready`: waits for a place on the wire, in order */
  JOB_WIRE,   /* libcurl has it */
  JOB_PAUSED, /* in `pauses`, until its next attempt */
  JOB_RESULT, /* in `result`: ended, not polled yet */
  JOB_DROPPED /* in `dropped`: canceled while on the wire, out of the map; the loop takes it off */
};

struct job {
  struct job *prev, *next;
  enum job_place place;
  uint32_t index, serial; /* serial: tells a pause of an earlier owner of the index */
  char *id, *url, *body;
  size_t len;
  /* ---- the loop's own until the job is a result ---- */
  struct rd2h_rendezvous *owner;
  uint32_t attempts;
  uint64_t until;    /* a metaserver that says "later" is asked again until then */
  uint64_t later_ms; /* so long it wants to be left alone, 0: did not say */
  int status;
  long http;
  char *text; /* RDV_TEXT bytes, allocated with the job: a result never lacks it */
  CURL *easy;
  char curl_text[CURL_ERROR_SIZE];
  bool starting; /* counted in the loop's `starting` */
  bool sent;     /* the connection stands, the request goes out */
  bool headers;  /* status and headers of the answer are complete */
  size_t received; /* bytes of the answer, headers too */
  char quote[RDV_QUOTE];
  uint32_t quoted;
};

struct job_list {
  struct job *first, *last;
};

struct rd2h_rendezvous {
  struct rd2h_rendezvous_opts o; /* defaults filled in; ca is a copy */
  pthread_t thread;
  int wake_fd, result_fd;
  /* ---- under the lock ---- */
  pthread_mutex_t lock;
  bool stop;
  struct rd2h_map *map; /* id -> job */
  struct rd2h_slab jobs;
  struct job_list ready, result, dropped;
  uint32_t serial;
  /* ---- the loop's own ---- */
  CURLM *multi;
  struct curl_slist *headers;
  int epoll_fd;
  uint64_t curl_due; /* when libcurl wants to be called, RD2H_NEVER */
  struct rd2h_heap pauses;
  uint32_t on_wire, starting;
};

/* rendezvous.c */
void rd2h_rdv_push(struct job_list *, struct job *);
void rd2h_rdv_unlink(struct job_list *, struct job *);
void rd2h_rdv_job_free(struct rd2h_rendezvous *, struct job *); /* of no list, out of the map; under the lock */
void rd2h_rdv_notify(int fd);
void rd2h_rdv_quiet(int fd);

/* loop.c: the thread */
int rd2h_rdv_loop_create(struct rd2h_rendezvous *, struct rd2h_error *);
void rd2h_rdv_loop_destroy(struct rd2h_rendezvous *);
void *rd2h_rdv_loop(void *);

/* exchange.c: one attempt */
bool rd2h_rdv_start(struct rd2h_rendezvous *, struct job *); /* false: out of memory */
/* Says how the attempt ended in status, http and text. True: final; false: another attempt is due. */
bool rd2h_rdv_end(struct rd2h_rendezvous *, struct job *, CURLcode);
void rd2h_rdv_drop(struct rd2h_rendezvous *, struct job *); /* takes the attempt off the wire, wherever it stands */
void rd2h_rdv_say(struct job *, int status, const char *fmt, ...) RD2H_PRINTF(3, 4);
#endif
