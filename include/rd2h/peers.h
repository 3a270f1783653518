/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_PEERS_H
#define RD2H_PEERS_H
/* What a rank's peers are read by and whom it waits for, in a few rows whatever the number of peers: for metrics. The whole of it, for
 * people, is rd2h_decode_dump and rd2h_prefill_dump. */
#include <rd2h/decode.h>
#include <rd2h/prefill.h>
#ifdef __cplusplus
extern "C" {
#endif

#define RD2H_PEERS_ROWS 8 /* of each table */

struct rd2h_peers_transport {
  char engine[24]; /* "local", "tcp" ... */
  char way[104];   /* "shared mapping", or an engine's transports and devices; "": the engine has one way only */
  uint32_t peers;
};
struct rd2h_peers_wait {
  char peer[64];
  uint32_t waiting; /* Decode: requests; Prefill: layer messages without an answer */
  uint32_t wait_ms; /* how long the oldest of them has waited */
};
struct rd2h_peers {
  uint32_t n_transports, n_waits; /* rows that are used */
  uint32_t connected;             /* peers of all transports */
  uint32_t awaited;               /* peers that are waited for, also those without a row */
  /* Decode: how many Prefill ranks are read in this way; on Prefill no row, since a reader does not say. Where there are more ways
   * than rows the last one stands for the rest, by the name "other". */
  struct rd2h_peers_transport transport[RD2H_PEERS_ROWS];
  /* Those waited for longest, the longest first. Decode: Prefill ranks by their session; "": requests that no Prefill rank has begun
   * to send. Prefill: Decode ranks by their control address. */
  struct rd2h_peers_wait wait[RD2H_PEERS_ROWS];
};
/* Any thread. Waits for the rank's own thread to say it, at most timeout_ms: OK, or TIMEOUT, and then out is what it said last (nothing
 * before the first time). 0: out is what it said to the last call, and it is asked again; never waits, for who calls regularly. */
RD2H_API int rd2h_decode_peers(rd2h_decode *, uint32_t timeout_ms, struct rd2h_peers *out);
RD2H_API int rd2h_prefill_peers(rd2h_prefill *, uint32_t timeout_ms, struct rd2h_peers *out);

#ifdef __cplusplus
}
#endif
#endif
