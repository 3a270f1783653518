/* SPDX-License-Identifier: Apache-2.0 */
/* Every option from one table: flag, environment (RD2H_PROXY_<NAME>), file (name = value), in this order of precedence. */
#ifndef RD2H_PROXY_OPTIONS_H
#define RD2H_PROXY_OPTIONS_H
#include "proxy/text.h"

struct px_list {
  char **item;
  size_t n;
};

struct px_options {
  char *host, *advertise, *config, *dispatch, *api_key, *admin_key, *engine_ca, *tls_cert, *tls_key, *access_log, *log_level;
  struct px_list prefiller_hosts, prefiller_ports, decoder_hosts, decoder_ports;
  int64_t port, max_retries, max_connections, max_requests, max_children, max_open_children, max_continuations;
  int64_t eject_after, engine_connections;
  int64_t max_header, max_body, max_buffered, max_answer;
  /* milliseconds */
  int64_t retry_delay, connect_timeout, engine_keepalive, rendezvous_timeout, prefill_timeout, first_byte_timeout, idle_timeout;
  int64_t request_timeout, prefill_grace, header_timeout, body_timeout, body_total_timeout, keepalive_timeout, send_timeout, drain_timeout;
  int64_t health_interval, health_interval_down;
  bool rendezvous_token, engine_tls, engine_insecure;
};

enum px_options_result { PX_OPTIONS_RUN, PX_OPTIONS_SHOWN, PX_OPTIONS_WRONG };
/* WRONG: *why names the argument and what to do. env: as main() has it. */
enum px_options_result rd2h_px_options_read(struct px_options *o, int argc, char **argv, char **env, struct px_buf *why);
void rd2h_px_options_free(struct px_options *o);
#endif
