/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/standin/ascendcl.h"
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NO_DEVICE 107002
#define BAD_DEVICE 107001
#define NOT_YET 507047

struct event {
  struct standin_stream *stream;
  uint64_t at;
};

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static uint32_t count[STANDIN_CALLS], events, pinned, threads[STANDIN_DEVICES];
static int fails[STANDIN_CALLS];
static unsigned life; /* of the counts: a thread that sets its device again counts again after a reset */
static __thread int32_t mine = -1;
static __thread unsigned counted = (unsigned)-1;

/* ---- what the tests say and ask ---- */
void standin_reset(void) {
  pthread_mutex_lock(&mu);
  memset(count, 0, sizeof count);
  memset(fails, 0, sizeof fails);
  memset(threads, 0, sizeof threads);
  life++;
  pthread_mutex_unlock(&mu);
}

void standin_fail(enum standin_call call, int code) {
  pthread_mutex_lock(&mu);
  fails[call] = code;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&mu);
}

static uint32_t get(const uint32_t *p) {
  pthread_mutex_lock(&mu);
  uint32_t n = *p;
  pthread_mutex_unlock(&mu);
  return n;
}

uint32_t standin_count(enum standin_call call) {
  return get(&count[call]);
}

uint32_t standin_events(void) {
  return get(&events);
}

uint32_t standin_pinned(void) {
  return get(&pinned);
}

static void after(struct timespec *t, uint32_t ms) {
  clock_gettime(CLOCK_REALTIME, t);
  t->tv_sec += ms / 1000;
  t->tv_nsec += (long)(ms % 1000) * 1000000;
  if (t->tv_nsec >= 1000000000) {
    t->tv_sec++;
    t->tv_nsec -= 1000000000;
  }
}

static bool await(const uint32_t *p, uint32_t want, uint32_t ms) {
  struct timespec until;
  after(&until, ms);
  pthread_mutex_lock(&mu);
  while (*p < want && pthread_cond_timedwait(&changed, &mu, &until) != ETIMEDOUT)
    ;
  bool there = *p >= want;
  pthread_mutex_unlock(&mu);
  return there;
}

bool standin_await(enum standin_call call, uint32_t n, uint32_t ms) {
  return await(&count[call], n, ms);
}

bool standin_await_threads(int32_t device, uint32_t n, uint32_t ms) {
  return await(&threads[device], n, ms);
}

void standin_run(struct standin_stream *s, uint64_t n) {
  pthread_mutex_lock(&mu);
  s->reached = s->given - s->reached < n ? s->given : s->reached + n;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&mu);
}

/* ---- the library's functions; with the lock held between enter and leave ---- */
static int enter(enum standin_call call, bool needs_device) {
  pthread_mutex_lock(&mu);
  count[call]++;
  pthread_cond_broadcast(&changed);
  return fails[call] ? fails[call] : needs_device && mine < 0 ? NO_DEVICE : 0;
}

static int leave(int code) {
  pthread_mutex_unlock(&mu);
  return code;
}

int aclInit(const char *config);
int aclInit(const char *config) {
  (void)config;
  return leave(enter(STANDIN_INIT, false));
}

const char *aclGetRecentErrMsg(void);
const char *aclGetRecentErrMsg(void) {
  return "E30003: said by the stand-in\nand more";
}

const char *aclrtGetSocName(void);
const char *aclrtGetSocName(void) {
  return "Standin910";
}

int aclrtGetDeviceCount(uint32_t *n);
int aclrtGetDeviceCount(uint32_t *n) {
  *n = STANDIN_DEVICES;
  return leave(enter(STANDIN_DEVICE_COUNT, false));
}

int aclrtSetDevice(int32_t device);
int aclrtSetDevice(int32_t device) {
  int code = enter(STANDIN_SET_DEVICE, false);
  if (!code && (device < 0 || device >= STANDIN_DEVICES))
    code = BAD_DEVICE;
  if (!code) {
    mine = device;
    threads[device] += counted != life;
    counted = life;
  }
  return leave(code);
}

int aclrtCreateEvent(void **event);
int aclrtCreateEvent(void **event) {
  int code = enter(STANDIN_CREATE_EVENT, true);
  *event = code ? NULL : calloc(1, sizeof(struct event));
  events += *event != NULL;
  return leave(code);
}

int aclrtDestroyEvent(void *event);
int aclrtDestroyEvent(void *event) {
  int code = enter(STANDIN_DESTROY_EVENT, true);
  events--;
  free(event);
  return leave(code);
}

int aclrtRecordEvent(void *event, void *stream);
int aclrtRecordEvent(void *event, void *stream) {
  struct event *e = event;
  struct standin_stream *s = stream;
  int code = enter(STANDIN_RECORD_EVENT, true);
  if (!code) {
    *e = (struct event){s, ++s->given};
    s->reached = s->held ? s->reached : s->given;
  }
  return leave(code);
}

static bool reached(const struct event *e) {
  return e->stream && e->stream->reached >= e->at;
}

int aclrtQueryEventStatus(void *event, int *status);
int aclrtQueryEventStatus(void *event, int *status) {
  int code = enter(STANDIN_QUERY_EVENT, true);
  *status = reached(event);
  return leave(code);
}

int aclrtSynchronizeEventWithTimeout(void *event, int32_t ms);
int aclrtSynchronizeEventWithTimeout(void *event, int32_t ms) {
  struct timespec until;
  after(&until, (uint32_t)ms);
  int code = enter(STANDIN_WAIT_EVENT, true);
  while (!code && !reached(event)) {
    if (pthread_cond_timedwait(&changed, &mu, &until) == ETIMEDOUT)
      code = NOT_YET;
    if (fails[STANDIN_WAIT_EVENT])
      code = fails[STANDIN_WAIT_EVENT];
  }
  return leave(code);
}

int aclrtHostRegister(void *p, uint64_t len, int type, void **device);
int aclrtHostRegister(void *p, uint64_t len, int type, void **device) {
  int code = enter(STANDIN_REGISTER_HOST, true);
  *device = p;
  code = code ? code : !len || type ? 107000 : 0;
  pinned += !code;
  return leave(code);
}

int aclrtHostUnregister(void *p);
int aclrtHostUnregister(void *p) {
  int code = enter(STANDIN_UNREGISTER_HOST, true);
  (void)p;
  pinned -= !code;
  return leave(code);
}
