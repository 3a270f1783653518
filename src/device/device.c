/* SPDX-License-Identifier: Apache-2.0 */
/* Finding a backend by its spec; its events, and the thread that waits for them. */
#include "device/backend.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define WAIT_MS 50u /* one call of the library: so often its thread looks whether it is to end */

static const struct dev_backend *const backends[] = {&dev_host, &dev_ascend};

enum event_state { EV_RECORDED, EV_WAITING, EV_OVER };

struct rd2h_dev_event {
  rd2h_dev_event *next, *also; /* idle ones; all of them */
  void *handle;
  enum event_state state;
  uint64_t deadline;
  int status; /* once over */
  struct rd2h_error err;
};

struct rd2h_dev {
  const struct dev_backend *backend;
  void *self;
  int fd;
  pthread_t thread;
  bool started;
  pthread_mutex_t mu; /* guards: */
  pthread_cond_t work;
  bool stop;
  rd2h_dev_event *waiting, *idle, *all;
};

/* ---- specs ---- */
int dev_option_number(const char *backend, const struct dev_option *o, uint32_t most, uint32_t *out, struct rd2h_error *err) {
  char *end;
  errno = 0;
  unsigned long v = strtoul(o->value, &end, 10);
  if (errno || end == o->value || *end || *o->value == '-' || v > most)
    return rd2h_fail(err, RD2H_INVALID, "device %s: %s is \"%.40s\", it must be a number from 0 to %u", backend, o->name, o->value,
                     most);
  *out = (uint32_t)v;
  return RD2H_OK;
}

/* Cuts the copy of a spec at its commas and equal signs. */
static int split(char *spec, struct dev_option option[DEV_OPTIONS], uint32_t *n, struct rd2h_error *err) {
  char *rest = spec, *name;
  strsep(&rest, ",");
  for (*n = 0; (name = strsep(&rest, ",")); ++*n) {
    char *value = name;
    strsep(&value, "=");
    if (!value || *n == DEV_OPTIONS)
      return rd2h_fail(err, RD2H_INVALID, "device %.40s: %s \"%.60s\"", spec,
                       value ? "too many options, from" : "an option without a value:", name);
    option[*n] = (struct dev_option){name, value};
  }
  return RD2H_OK;
}

static const struct dev_backend *find(const char *name) {
  for (size_t i = 0; i < RD2H_COUNT(backends); i++)
    if (!strcmp(backends[i]->name, name))
      return backends[i];
  return NULL;
}

static int open_backend(const char *spec, const struct dev_backend **backend, void **self, struct rd2h_error *err) {
  struct dev_option option[DEV_OPTIONS];
  uint32_t n;
  char *copy = rd2h_strdup(spec && *spec ? spec : "host");
  if (!copy)
    return rd2h_nomem(err, "a device");
  int rc = split(copy, option, &n, err);
  *backend = rc ? NULL : find(copy);
  if (!rc && !*backend)
    rc = rd2h_fail(err, RD2H_NOT_FOUND, "there is no device \"%.60s\": choose host or ascend", copy);
  rc = rc ? rc : (*backend)->open(option, n, self, err);
  rd2h_free(copy);
  return rc;
}

/* ---- the thread that waits ---- */
static bool set(int fd) {
  uint64_t one = 1;
  return write(fd, &one, sizeof one) == (ssize_t)sizeof one;
}

static void clear(int fd) {
  uint64_t n;
  if (read(fd, &n, sizeof n) < 0)
    return; /* EAGAIN: it was clear */
}

static int wait_once(rd2h_dev *d, rd2h_dev_event *e, uint64_t deadline, struct rd2h_error *err) {
  uint64_t now = rd2h_now_ns(), left = now < deadline ? (deadline - now) / RD2H_MS + 1 : 0;
  return left ? d->backend->wait(d->self, e->handle, left < WAIT_MS ? (uint32_t)left : WAIT_MS, err) : RD2H_TIMEOUT;
}

static void over(rd2h_dev *d, rd2h_dev_event *e, int status, const struct rd2h_error *err) {
  e->status = status;
  e->err = *err;
  e->state = EV_OVER;
  d->waiting = NULL;
  set(d->fd);
}

static void *wait_main(void *arg) {
  rd2h_dev *d = arg;
  struct rd2h_error err = {0}, bound = {0};
  int bad = d->backend->bind(d->self, &bound);
  pthread_mutex_lock(&d->mu);
  while (!d->stop) {
    rd2h_dev_event *e = d->waiting;
    if (!e) {
      pthread_cond_wait(&d->work, &d->mu);
      continue;
    }
    uint64_t deadline = e->deadline;
    pthread_mutex_unlock(&d->mu);
    int rc = bad ? bad : wait_once(d, e, deadline, &err);
    pthread_mutex_lock(&d->mu);
    if (rc != RD2H_AGAIN)
      over(d, e, rc, bad ? &bound : &err);
  }
  pthread_mutex_unlock(&d->mu);
  return NULL;
}

int rd2h_dev_events(rd2h_dev *d, struct rd2h_error *err) {
  sigset_t every, old;
  if (!d->backend->wait || d->started)
    return RD2H_OK;
  d->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (d->fd < 0)
    return rd2h_fail(err, RD2H_LIMIT, "eventfd: %s; raise the limit of open files (ulimit -n)", strerror(errno));
  sigfillset(&every);
  pthread_sigmask(SIG_SETMASK, &every, &old);
  int rc = pthread_create(&d->thread, NULL, wait_main, d);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  if (rc)
    return rd2h_fail(err, RD2H_NOMEM, "the thread of device %s could not be started: %s", d->backend->name, strerror(rc));
  pthread_setname_np(d->thread, "rd2h-event");
  d->started = true;
  return RD2H_OK;
}

/* ---- life ---- */
int rd2h_dev_open(const char *spec, rd2h_dev **out, struct rd2h_error *err) {
  rd2h_dev *d = rd2h_zalloc(sizeof *d);
  if (!d)
    return rd2h_nomem(err, "a device");
  d->fd = -1;
  int rc = open_backend(spec, &d->backend, &d->self, err);
  if (rc) {
    rd2h_free(d);
    return rc;
  }
  pthread_mutex_init(&d->mu, NULL);
  pthread_cond_init(&d->work, NULL);
  *out = d;
  return RD2H_OK;
}

void rd2h_dev_close(rd2h_dev *d) {
  if (!d)
    return;
  if (d->started) {
    pthread_mutex_lock(&d->mu);
    d->stop = true;
    pthread_cond_signal(&d->work);
    pthread_mutex_unlock(&d->mu);
    pthread_join(d->thread, NULL);
  }
  for (rd2h_dev_event *e = d->all, *next; e; e = next) {
    next = e->also;
    d->backend->event_destroy(d->self, e->handle);
    rd2h_free(e);
  }
  if (d->fd >= 0)
    close(d->fd);
  pthread_cond_destroy(&d->work);
  pthread_mutex_destroy(&d->mu);
  d->backend->close(d->self);
  rd2h_free(d);
}

const char *rd2h_dev_name(const rd2h_dev *d) {
  return d->backend->name;
}

int rd2h_dev_fd(const rd2h_dev *d) {
  return d->fd;
}

int rd2h_dev_bind(rd2h_dev *d, struct rd2h_error *err) {
  return d->backend->bind(d->self, err);
}

int rd2h_dev_bind_thread(void *dev) {
  struct rd2h_error err;
  int rc = rd2h_dev_bind(dev, &err);
  if (rc)
    RD2H_ERR("a thread cannot use its device: %s", err.text);
  return rc;
}

int rd2h_dev_pin(rd2h_dev *d, void *p, uint64_t len, struct rd2h_error *err) {
  return d->backend->pin(d->self, p, len, err);
}

void rd2h_dev_unpin(rd2h_dev *d, void *p) {
  struct rd2h_error err;
  if (d->backend->unpin(d->self, p, &err))
    RD2H_WARN("%s", err.text);
}

/* ---- events ---- */
static rd2h_dev_event *take_idle(rd2h_dev *d) {
  pthread_mutex_lock(&d->mu);
  rd2h_dev_event *e = d->idle;
  if (e)
    d->idle = e->next;
  pthread_mutex_unlock(&d->mu);
  return e;
}

static int make_event(rd2h_dev *d, rd2h_dev_event **out, struct rd2h_error *err) {
  rd2h_dev_event *e = rd2h_zalloc(sizeof *e);
  if (!e)
    return rd2h_nomem(err, "an event");
  int rc = d->backend->event_create(d->self, &e->handle, err);
  if (rc) {
    rd2h_free(e);
    return rc;
  }
  pthread_mutex_lock(&d->mu);
  e->also = d->all;
  d->all = e;
  pthread_mutex_unlock(&d->mu);
  *out = e;
  return RD2H_OK;
}

int rd2h_dev_record(rd2h_dev *d, void *stream, rd2h_dev_event **out, struct rd2h_error *err) {
  rd2h_dev_event *e = NULL;
  *out = NULL;
  if (!d->backend->record)
    return RD2H_OK;
  int rc = (e = take_idle(d)) ? RD2H_OK : make_event(d, &e, err);
  if (rc)
    return rc;
  e->state = EV_OVER; /* nothing is recorded yet */
  rc = d->backend->record(d->self, e->handle, stream, err);
  if (rc) {
    rd2h_dev_release(d, e);
    return rc;
  }
  e->state = EV_RECORDED;
  *out = e;
  return RD2H_OK;
}

/* With the lock held. */
static int outcome(rd2h_dev *d, rd2h_dev_event *e, struct rd2h_error *err) {
  clear(d->fd);
  if (e->status == RD2H_TIMEOUT)
    return rd2h_fail(err, RD2H_TIMEOUT, "device %s did not get to its event in time", d->backend->name);
  if (e->status && err)
    *err = e->err;
  return e->status;
}

int rd2h_dev_reached(rd2h_dev *d, rd2h_dev_event *e, uint64_t deadline, struct rd2h_error *err) {
  pthread_mutex_lock(&d->mu);
  bool first = e->state == EV_RECORDED; /* nobody else has it yet */
  pthread_mutex_unlock(&d->mu);
  int rc = first ? d->backend->query(d->self, e->handle, err) : RD2H_AGAIN;
  pthread_mutex_lock(&d->mu);
  if (first && rc != RD2H_AGAIN) {
    e->state = EV_OVER;
  } else if (first) {
    e->state = EV_WAITING;
    e->deadline = deadline;
    d->waiting = e;
    pthread_cond_signal(&d->work);
  } else if (e->state == EV_OVER) {
    rc = outcome(d, e, err);
  }
  pthread_mutex_unlock(&d->mu);
  return rc;
}

void rd2h_dev_release(rd2h_dev *d, rd2h_dev_event *e) {
  if (!e)
    return;
  pthread_mutex_lock(&d->mu);
  if (e->state == EV_OVER) {
    e->next = d->idle;
    d->idle = e;
  }
  pthread_mutex_unlock(&d->mu);
}

/* ---- public ---- */
int rd2h_device_probe(const char *device, struct rd2h_device_info *out, struct rd2h_error *err) {
  const struct dev_backend *backend;
  struct rd2h_device_info info = {0};
  void *self;
  if (!out || out->size < sizeof info)
    return rd2h_fail(err, RD2H_INVALID, "rd2h_device_probe: %u bytes for an answer of %zu: set .size, and use headers and library "
                     "of one version", out ? out->size : 0, sizeof info);
  int rc = open_backend(device, &backend, &self, err);
  if (rc)
    return rc;
  info.size = out->size;
  info.streams = backend->record != NULL;
  rc = backend->probe(self, &info, err);
  backend->close(self);
  if (!rc)
    *out = info;
  return rc;
}
