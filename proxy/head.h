/* SPDX-License-Identifier: Apache-2.0 */
/* Strict reading of HTTP/1.x requests. Whatever two readers could take for different requests is refused: bare LF, folded lines, a blank
 * before the colon, two lengths, a length beside a transfer coding, signs and prefixes in sizes. No sockets in here. */
#ifndef RD2H_PROXY_HEAD_H
#define RD2H_PROXY_HEAD_H
#include "proxy/text.h"

#define PX_MAX_HEADERS 100

struct px_header {
  struct px_span name, value;
};

struct px_head {
  struct px_span method, target; /* target: path and query, begins with / */
  bool http10, keep_alive, chunked, expect;
  uint64_t length; /* of the body, when it is not chunked */
  size_t n;
  struct px_header header[PX_MAX_HEADERS];
};

/* text: from the request line to the empty line, both included. Returns 0, or the status to answer with, and *why. The head points
 * into the text. */
int rd2h_px_head_read(struct px_span text, struct px_head *out, const char **why);
/* The value of a header that is there once or more (the first), or an empty span. */
struct px_span rd2h_px_head_get(const struct px_head *h, const char *name);

/* Whether a comma-separated list has the word, in any case. */
bool rd2h_px_lists(struct px_span list, struct px_span word);

/* An engine's answer. */
struct px_answer {
  int status;
  bool keep_alive, chunked, until_close;
  uint64_t length; /* of the body, in the other cases */
  struct px_span type, retry_after;
};
/* text: from the status line to the empty line, both included. False: *why. */
bool rd2h_px_answer_read(struct px_span text, struct px_answer *out, const char **why);
/* Length of a head with its empty line, 0: not there yet. Bytes before *scanned are not looked at again. */
size_t rd2h_px_head_length(struct px_span text, size_t *scanned);

struct px_chunks {
  uint64_t left;  /* of the current chunk */
  uint32_t state;
  uint32_t digits; /* read of the size, or bytes of an extension or of trailers */
  bool trailers;   /* they are read and dropped; otherwise refused */
};
enum px_chunk_result { PX_CHUNK_MORE, PX_CHUNK_DATA, PX_CHUNK_END, PX_CHUNK_BAD };
/* Takes from *in what it can: MORE: all of it, DATA: *data is part of the body, call again, END: the body is whole. */
enum px_chunk_result rd2h_px_chunks_read(struct px_chunks *c, struct px_span *in, struct px_span *data);
#endif
