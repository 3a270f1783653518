/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_SRC_DEVICE_H
#define RD2H_SRC_DEVICE_H
/* The device whose memory holds KV: what a thread needs before it may touch it, and when what a stream writes is there.
 *
 * A device is named by a spec, "<backend>[,option=value...]" (include/rd2h/device.h). Waiting never blocks the thread that asks:
 * a thread of the device's waits for one event at a time, in the order of the questions, and wakes the asker by a descriptor. */
#include "base/base.h"
#include <rd2h/device.h>

typedef struct rd2h_dev rd2h_dev;
typedef struct rd2h_dev_event rd2h_dev_event;

/* spec: NULL or "" is "host". Errors: NOT_FOUND (no such backend, or its library is not here), INVALID (options), UNSUPPORTED (the
 * library lacks a function), IO (a call of it failed: its name and return code are in the text). */
int rd2h_dev_open(const char *spec, rd2h_dev **, struct rd2h_error *);
/* From the thread that opened it; takes NULL. Bounded: what the device's thread waits for is left after at most 0.1 s. */
void rd2h_dev_close(rd2h_dev *);
const char *rd2h_dev_name(const rd2h_dev *);
/* Makes the device the calling thread's. */
int rd2h_dev_bind(rd2h_dev *, struct rd2h_error *);
int rd2h_dev_bind_thread(void *dev); /* the same as rd2h_engine_opts.bind_thread takes it: says in the log what went wrong */

/* Before the first event: starts the thread that waits for them. Nothing to do on a device without streams. */
int rd2h_dev_events(rd2h_dev *, struct rd2h_error *);
/* Caller's thread, whose device it must be already: an event behind all that the stream has been given so far. *out is NULL on a
 * device without streams, where what has been written is there. */
int rd2h_dev_record(rd2h_dev *, void *stream, rd2h_dev_event **out, struct rd2h_error *);
/* Asks for one event at a time, until it is over. OK: everything before it is there. AGAIN: not yet, rd2h_dev_fd becomes readable
 * when it is worth asking again. TIMEOUT: not by the deadline (clock of rd2h_now_ns). IO: the device says that it never will. */
int rd2h_dev_reached(rd2h_dev *, rd2h_dev_event *, uint64_t deadline, struct rd2h_error *);
/* Takes NULL. An event that was not over is kept until the device is closed. */
void rd2h_dev_release(rd2h_dev *, rd2h_dev_event *);
int rd2h_dev_fd(const rd2h_dev *); /* -1 where nothing is waited for */

/* Pins host memory, so that the device may read and write it. */
int rd2h_dev_pin(rd2h_dev *, void *p, uint64_t len, struct rd2h_error *);
void rd2h_dev_unpin(rd2h_dev *, void *p);
#endif
