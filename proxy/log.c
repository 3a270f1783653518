/* SPDX-License-Identifier: Apache-2.0 */
#include "proxy/log.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static const char *const LEVEL[] = {[PX_ERROR] = "error", [PX_WARNING] = "warning", [PX_INFO] = "info", [PX_DEBUG] = "debug"};

static void stamp(char out[40]) {
  struct timespec t;
  struct tm tm;
  clock_gettime(CLOCK_REALTIME, &t);
  gmtime_r(&t.tv_sec, &tm);
  size_t n = strftime(out, 32, "%Y-%m-%dT%H:%M:%S", &tm);
  snprintf(out + n, 40 - n, ".%03ldZ", t.tv_nsec / 1000000);
}

static int open_log(const char *path) {
  if (!*path)
    return -1;
  return strcmp(path, "-") == 0 ? STDOUT_FILENO : open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
}

bool rd2h_px_log_open(struct px_log *l, const char *level, const char *path) {
  l->level = PX_INFO;
  for (enum px_level i = PX_ERROR; i <= PX_DEBUG; i++)
    if (strcmp(level, LEVEL[i]) == 0)
      l->level = i;
  l->path = path;
  l->fd = open_log(path);
  return l->fd >= 0 || !*path;
}

void rd2h_px_log_close(struct px_log *l) {
  if (l->fd > STDERR_FILENO)
    close(l->fd);
  l->fd = -1;
}

void rd2h_px_log_reopen(struct px_log *l) {
  rd2h_px_log_close(l);
  l->fd = open_log(l->path);
}

void rd2h_px_log(const struct px_log *l, enum px_level level, const char *id, const char *format, ...) {
  char time[40], text[1024];
  va_list args;
  if (level > l->level)
    return;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  for (char *p = text; *p; p++)
    if ((unsigned char)*p < 0x20)
      *p = ' '; /* one line each, whatever an engine wrote */
  stamp(time);
  fprintf(stderr, "%s %s rd2h-proxy%s%s: %s\n", time, LEVEL[level], id ? " id=" : "", id ? id : "", text);
}

static void text_member(struct px_buf *b, const char *key, const char *value) {
  if (!value || !*value)
    return;
  rd2h_px_printf(b, ",\"%s\":", key);
  rd2h_px_put_json(b, px_str(value));
}

static void span_member(struct px_buf *b, const char *key, int64_t from, int64_t to) {
  if (from && to >= from)
    rd2h_px_printf(b, ",\"%s\":%lld", key, (long long)(to - from));
}

static void parent_members(struct px_buf *b, const struct px_parent *p, int64_t now) {
  rd2h_px_printf(b, ",\"stream\":%s,\"prompts\":%u,\"n\":%u,\"attempts\":%u", p->ask.stream ? "true" : "false", p->ask.prompts, p->ask.n,
                 p->attempt);
  if (p->continuations)
    rd2h_px_printf(b, ",\"continuations\":%u", p->continuations);
  text_member(b, "decode", p->decode_name);
  text_member(b, "prefill", p->prefill_name);
  span_member(b, "rendezvous_ms", p->started, p->posted_at);
  span_member(b, "prefill_ms", p->prefill_began, p->prefilled_at);
  span_member(b, "first_ms", p->started, p->first_at);
  span_member(b, "total_ms", p->started, now);
  rd2h_px_printf(b, ",\"bytes_out\":%llu", (unsigned long long)p->bytes_out);
  if (p->status >= 400)
    text_member(b, "phase", rd2h_px_phase_name[p->phase]);
}

void rd2h_px_log_access(const struct px_log *l, const struct px_access *a) {
  struct px_buf b = {0};
  char time[40];
  if (l->fd < 0)
    return;
  stamp(time);
  rd2h_px_printf(&b, "{\"time\":\"%s\",\"id\":\"%s\"", time, a->id);
  text_member(&b, "client_id", a->client_id);
  text_member(&b, "peer", a->peer);
  text_member(&b, "path", a->path);
  rd2h_px_printf(&b, ",\"status\":%d,\"bytes_in\":%zu", a->status, a->bytes_in);
  if (a->parent)
    parent_members(&b, a->parent, a->now);
  text_member(&b, "error", a->error);
  rd2h_px_puts(&b, "}\n");
  if (!b.failed && write(l->fd, b.p, b.n) < 0)
    (void)0; /* nowhere to say it */
  rd2h_px_free(&b);
}
