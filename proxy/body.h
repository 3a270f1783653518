/* SPDX-License-Identifier: Apache-2.0 */
/* What the proxy reads in a client's request, and what it makes of it for either engine. */
#ifndef RD2H_PROXY_BODY_H
#define RD2H_PROXY_BODY_H
#include "proxy/scan.h"

enum px_api { PX_COMPLETIONS, PX_CHAT };

struct px_ask {
  enum px_api api;
  bool stream;
  bool list;        /* "prompt" is a list of prompts */
  uint32_t prompts; /* of the list, else 1 */
  uint32_t n;       /* answers to each prompt */
};

/* What is looked for in a body while it comes in. max_elements is the caller's. */
extern const struct px_scan_plan rd2h_px_body_plan;
/* 0, or 400 with the reason added to *why; ends the scan. max_children bounds prompts x n. */
int rd2h_px_ask_read(struct px_span body, struct px_scan *scan, enum px_api api, uint32_t max_children, struct px_ask *out,
                     struct px_buf *why);
/* Decode's body: kv_transfer_params with the metaserver's address, nothing else changed. */
void rd2h_px_body_decode(struct px_span body, const struct px_scan *scan, struct px_span metaserver, struct px_rope *out);
/* Prefill's body: one token, no stream, these parameters. only: the index of the one prompt of a list that is sent, or -1. */
void rd2h_px_body_prefill(struct px_span body, const struct px_scan *scan, struct px_span params, int64_t only, struct px_rope *out);
#endif
