/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_WORKER_H
#define RD2H_WORKER_H
/* The only room with threads: sockets, timers and engine progress around the state machines of src/protocol. The functions
 * are those of rd2h/decode.h and rd2h/prefill.h, which say what they do; options come complete (no zero stands for a default)
 * and checked. No process may fork and go on using a worker in the child: neither its thread nor its sockets exist there. */
#include "base/base.h"
#include <rd2h/decode.h>
#include <rd2h/peers.h>
#include <rd2h/prefill.h>

/* Keys of the control channel, as the options have them: lists are texts, their entries parted by blanks or commas. Both checks: OK, or
 * INVALID that names the option. */
int rd2h_curve_check_server(const char *secret, const char *allow, struct rd2h_error *);
int rd2h_curve_check_client(const char *secret, const char *servers, struct rd2h_error *);

typedef struct rd2h_dw rd2h_dw;
int rd2h_dw_create(const struct rd2h_decode_opts *, rd2h_dw **, struct rd2h_error *);
void rd2h_dw_destroy(rd2h_dw *);
uint16_t rd2h_dw_port(const rd2h_dw *);
int rd2h_dw_step(rd2h_dw *, const void *meta, size_t len, struct rd2h_error *);
int rd2h_dw_install(rd2h_dw *, const struct rd2h_grant *, struct rd2h_error *);
int rd2h_dw_end(rd2h_dw *, struct rd2h_str id, int status, struct rd2h_str text); /* NOT_FOUND when the id is not live */
uint32_t rd2h_dw_collect(rd2h_dw *, struct rd2h_outcome *, uint32_t cap);
int rd2h_dw_fd(const rd2h_dw *);
void rd2h_dw_stats(rd2h_dw *, struct rd2h_decode_stats *);
int rd2h_dw_drain(rd2h_dw *, uint32_t timeout_ms);
size_t rd2h_dw_dump(rd2h_dw *, char *out, size_t cap);
int rd2h_dw_peers(rd2h_dw *, uint32_t timeout_ms, struct rd2h_peers *);

typedef struct rd2h_pw rd2h_pw;
int rd2h_pw_create(const struct rd2h_prefill_opts *, rd2h_pw **, struct rd2h_error *);
void rd2h_pw_destroy(rd2h_pw *);
int rd2h_pw_step(rd2h_pw *, const void *meta, size_t len, struct rd2h_error *);
int rd2h_pw_layer(rd2h_pw *, uint32_t layer, void *stream, bool on_stream, struct rd2h_error *);
int rd2h_pw_wait_layer(rd2h_pw *, uint32_t layer, uint32_t timeout_ms, struct rd2h_error *);
int rd2h_pw_wait_preempted(rd2h_pw *, const void *meta, size_t len, uint32_t timeout_ms, struct rd2h_error *);
uint32_t rd2h_pw_collect(rd2h_pw *, struct rd2h_settled *, uint32_t cap);
int rd2h_pw_fd(const rd2h_pw *);
void rd2h_pw_stats(rd2h_pw *, struct rd2h_prefill_stats *);
int rd2h_pw_drain(rd2h_pw *, uint32_t timeout_ms);
size_t rd2h_pw_dump(rd2h_pw *, char *out, size_t cap);
int rd2h_pw_peers(rd2h_pw *, uint32_t timeout_ms, struct rd2h_peers *);
#endif
