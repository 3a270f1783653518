/* SPDX-License-Identifier: Apache-2.0 */
/* An engine's answer as it comes in: head, body by length, in chunks or until the end, and what its taker does not want yet. */
#include "proxy/client_inner.h"

#include <stdio.h>

enum { MAX_HEAD = 64 << 10 };

/* Both return whether the call is still there. */
static bool tell_head(struct px_call *call, const struct px_answer *a) {
  char type[256], retry_after[64];
  bool gone = false;
  snprintf(type, sizeof type, "%.*s", (int)(a->type.n < 255 ? a->type.n : 255), a->type.n ? a->type.p : "");
  snprintf(retry_after, sizeof retry_after, "%.*s", (int)(a->retry_after.n < 63 ? a->retry_after.n : 63),
           a->retry_after.n ? a->retry_after.p : "");
  call->head_told = true;
  call->chunked = a->chunked;
  call->until_close = a->until_close;
  call->left = a->length;
  call->keep = a->keep_alive;
  call->whole = !a->chunked && !a->until_close && a->length == 0;
  call->gone = &gone;
  call->events->head(call->user, a->status, type, retry_after);
  if (gone)
    return false;
  call->gone = NULL;
  return true;
}

static bool tell_data(struct px_call *call, struct px_span s) {
  bool gone = false;
  call->gone = &gone;
  bool taken = call->events->data(call->user, s);
  if (gone)
    return false;
  call->gone = NULL;
  if (taken)
    return true;
  call->paused = true;
  rd2h_px_put(&call->held, s);
  if (call->wire)
    rd2h_px_link_read(call->wire->link, false);
  return true;
}

/* Chunks are joined where they lie, so that what came together goes on together. False: malformed. */
static bool take_chunks(struct px_call *call, char *p, size_t n, size_t *body) {
  struct px_span in = {p, n}, part;
  enum px_chunk_result r;
  char *to = p;
  while ((r = rd2h_px_chunks_read(&call->chunks, &in, &part)) == PX_CHUNK_DATA) {
    memmove(to, part.p, part.n);
    to += part.n;
  }
  *body = (size_t)(to - p);
  call->whole = r == PX_CHUNK_END;
  call->keep = call->keep && !(call->whole && in.n); /* something follows that nobody asked for */
  return r != PX_CHUNK_BAD;
}

static void take_body(struct px_call *call, char *p, size_t n) {
  size_t body = n;
  if (call->chunked) {
    if (!take_chunks(call, p, n, &body)) {
      rd2h_px_call_finish(call, "its answer's chunks are malformed");
      return;
    }
  } else if (!call->until_close) {
    body = n < call->left ? n : (size_t)call->left;
    call->left -= body;
    call->whole = call->left == 0;
    call->keep = call->keep && body == n;
  }
  if (body && !tell_data(call, (struct px_span){p, body}))
    return;
  if (call->held.failed)
    rd2h_px_call_finish(call, "memory ran out");
  else if (call->whole && !call->paused)
    rd2h_px_call_finish(call, NULL);
}

/* Takes one head off. Returns its length, 0: it is not whole, SIZE_MAX: the call is gone. */
static size_t take_head(struct px_call *call, struct px_span s) {
  struct px_answer a;
  const char *why;
  char text[128];
  size_t n = rd2h_px_head_length(s, &call->scanned);
  if (n == 0 && s.n <= MAX_HEAD)
    return 0;
  if (n == 0 || n > MAX_HEAD || !rd2h_px_answer_read((struct px_span){s.p, n}, &a, &why)) {
    snprintf(text, sizeof text, "its answer is no HTTP: %s", n && n <= MAX_HEAD ? why : "its head is too long");
    rd2h_px_call_finish(call, text);
    return SIZE_MAX;
  }
  call->scanned = 0;
  if (a.status == 101) {
    rd2h_px_call_finish(call, "it changes the protocol unasked");
    return SIZE_MAX;
  }
  return a.status < 200 || tell_head(call, &a) ? n : SIZE_MAX;
}

/* Heads (100 Continue may come before the real one), then the body. p: of n bytes, may be changed. */
static void take(struct px_call *call, char *p, size_t n, size_t *used) {
  *used = 0;
  while (!call->head_told) {
    size_t head = take_head(call, (struct px_span){p + *used, n - *used});
    if (head == SIZE_MAX)
      *used = SIZE_MAX;
    if (head == 0 || head == SIZE_MAX)
      return;
    *used += head;
  }
  char *body = p + *used;
  size_t rest = n - *used;
  *used = SIZE_MAX;
  if (rest || !call->whole)
    take_body(call, body, rest);
  else
    rd2h_px_call_finish(call, NULL);
}

void rd2h_px_answer_data(struct px_call *call, char *p, size_t n) {
  size_t used;
  call->any = true;
  if (call->head_told) {
    take_body(call, p, n);
    return;
  }
  if (call->text.n == 0) {
    take(call, p, n, &used);
    if (used == SIZE_MAX)
      return;
    rd2h_px_put(&call->text, (struct px_span){p + used, n - used});
  } else {
    rd2h_px_put(&call->text, (struct px_span){p, n});
    struct px_buf text = call->text; /* the call may go while it is looked at */
    if (!text.failed) {
      call->text = (struct px_buf){0};
      take(call, text.p, text.n, &used);
      if (used == SIZE_MAX) {
        rd2h_px_free(&text);
        return;
      }
      call->text = text;
      rd2h_px_shift(&call->text, used);
    }
  }
  if (call->text.failed)
    rd2h_px_call_finish(call, "memory ran out");
}

void rd2h_px_answer_closed(struct px_call *call, const char *error) {
  char text[160];
  if (call->head_told && call->until_close && !error) {
    call->whole = true;
    if (!call->paused)
      rd2h_px_call_finish(call, NULL);
    return;
  }
  if (call->any)
    snprintf(text, sizeof text, "its answer was cut off%s%s", error ? ": " : "", error ? error : "");
  else
    snprintf(text, sizeof text, "it closed the connection without an answer%s%s", error ? ": " : "", error ? error : "");
  rd2h_px_call_finish(call, text);
}

void rd2h_px_answer_go_on(struct px_call *call) {
  struct px_buf held = call->held;
  call->held = (struct px_buf){0};
  bool there = held.n == 0 || tell_data(call, px_of(&held));
  rd2h_px_free(&held);
  if (!there || (call->paused && !call->held.failed))
    return;
  if (call->held.failed)
    rd2h_px_call_finish(call, "memory ran out");
  else if (call->whole)
    rd2h_px_call_finish(call, NULL);
  else
    rd2h_px_link_read(call->wire->link, true);
}
