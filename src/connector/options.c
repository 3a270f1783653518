/* SPDX-License-Identifier: Apache-2.0 */
#include "connector/options.h"
#include "layout/layout.h"
#include "worker/worker.h"

#define HOST_MAX 255u
#define RANKS_MAX 65535u
#define HOUR_MS 3600000u
#define RETRIES_MAX 10u /* the last waits five seconds */
#define READ_TIMEOUT_MS 31000u /* the longest call of a known engine */

struct bound {
  const char *name;
  uint32_t *value, fallback, low, high; /* fallback: what 0 stands for */
};

static int apply(const char *role, const struct bound *b, size_t n, struct rd2h_error *err) {
  for (; n; n--, b++) {
    if (!*b->value)
      *b->value = b->fallback;
    if (*b->value < b->low || *b->value > b->high)
      return rd2h_fail(err, RD2H_INVALID, "%s: %s is %u, it must be 0 (default %u) or from %u to %u", role, b->name, *b->value,
                       b->fallback, b->low, b->high);
  }
  return RD2H_OK;
}

/* A caller built with older headers hands in a shorter struct: what it does not know stays 0. */
static int copy(const char *role, const void *in, uint32_t in_size, void *out, size_t size, struct rd2h_error *err) {
  if (in_size < sizeof(uint32_t) + sizeof(void *) || in_size > size)
    return rd2h_fail(err, RD2H_INVALID, "%s: options of %u bytes, this library knows up to %zu: set .size, and use headers and "
                     "library of one version", role, in_size, size);
  memset(out, 0, size);
  memcpy(out, in, in_size);
  return RD2H_OK;
}

static int check_rank(const char *role, const char *what, uint32_t rank, uint32_t size, struct rd2h_error *err) {
  if (size && size <= RANKS_MAX && rank < size)
    return RD2H_OK;
  return rd2h_fail(err, RD2H_INVALID, "%s: %s rank %u of %u is not possible", role, what, rank, size);
}

static int check_memory(const char *role, const struct rd2h_memory *m, uint32_t n, struct rd2h_error *err) {
  uint64_t end;
  if (n && !m)
    return rd2h_fail(err, RD2H_INVALID, "%s: %u storage areas are announced and none is given", role, n);
  for (uint32_t i = 0; i < n; i++)
    if (!m[i].base || !m[i].len || __builtin_add_overflow(m[i].base, m[i].len, &end))
      return rd2h_fail(err, RD2H_INVALID, "%s: storage area %u (base 0x%llx, %llu bytes) is empty or passes the end of memory",
                       role, i, (unsigned long long)m[i].base, (unsigned long long)m[i].len);
  return RD2H_OK;
}

static int check_text(const char *role, const char *name, const char *value, struct rd2h_error *err) {
  size_t n = strlen(value);
  if (n && n <= HOST_MAX && !strpbrk(value, " \t\r\n"))
    return RD2H_OK;
  return rd2h_fail(err, RD2H_INVALID, "%s: %s \"%.100s\" must be 1 to %u characters without spaces", role, name, value, HOST_MAX);
}

static int check_common(const char *role, const rd2h_layout *layout, const char *engine, struct rd2h_error *err) {
  if (!layout || !layout->n_layers)
    return rd2h_fail(err, RD2H_INVALID, "%s: a layout with at least one layer is needed, none was given", role);
  if (!engine || !*engine)
    return rd2h_fail(err, RD2H_INVALID, "%s: no transfer engine is named: choose auto, local, tcp or noop", role);
  return RD2H_OK;
}

static int check_digest(const char *role, enum rd2h_digest digest, const char *device, struct rd2h_error *err) {
  if ((unsigned)digest > RD2H_DIGEST_FAIL)
    return rd2h_fail(err, RD2H_INVALID, "%s: digest is %d, choose off (%d), log (%d) or fail (%d)", role, (int)digest, RD2H_DIGEST_OFF,
                     RD2H_DIGEST_LOG, RD2H_DIGEST_FAIL);
  if (digest && device && *device && strcmp(device, "host"))
    return rd2h_fail(err, RD2H_UNSUPPORTED, "%s: digest needs KV in host memory, device is \"%s\": set digest to off", role, device);
  return RD2H_OK;
}

/* A read may take as long as the engine lets it, after a park: times below that end requests that only wait. */
static void warn_times(const struct rd2h_decode_opts *o) {
  uint64_t least = o->read_timeout_ms + o->park_ms;
  if (o->progress_ms <= least)
    RD2H_WARN("decode rank %u: progress_ms (%u) should be above read_timeout_ms + park_ms (%llu): a single slow read ends its request, "
              "and Prefill's hold_ms should be above progress_ms", o->tp_rank, o->progress_ms, (unsigned long long)least);
}

int rd2h_decode_options(const struct rd2h_decode_opts *in, struct rd2h_decode_opts *o, struct rd2h_error *err) {
  static const char role[] = "Decode";
  int rc = copy(role, in, in->size, o, sizeof *o, err);
  const struct bound bounds[] = {
      {"tp_size", &o->tp_size, 1, 1, RANKS_MAX},
      {"main_ranks", &o->main_ranks, 1, 1, RANKS_MAX},
      {"engine_threads", &o->engine_threads, 2, 1, 64},
      {"park_ms", &o->park_ms, 2000, 1, HOUR_MS},
      {"queue_ms", &o->queue_ms, 600000, 1, 24 * HOUR_MS},
      {"progress_ms", &o->progress_ms, 120000, 1, 24 * HOUR_MS},
      {"probe_ms", &o->probe_ms, 1000, 1, HOUR_MS},
      {"max_peers", &o->max_peers, 4096, 1, 1u << 20},
      {"max_requests", &o->max_requests, 65536, 1, 1u << 24},
      {"max_message_mb", &o->max_message_mb, 64, 1, 1024},
  };
  rc = rc ? rc : check_common(role, o->layout, o->engine, err);
  rc = rc ? rc : apply(role, bounds, RD2H_COUNT(bounds), err);
  rc = rc ? rc : check_rank(role, "tensor-parallel", o->tp_rank, o->tp_size, err);
  rc = rc ? rc : check_rank(role, "main-share", o->main_rank, o->main_ranks, err);
  rc = rc ? rc : check_memory(role, o->memory, o->n_memory, err);
  if (rc)
    return rc;
  o->bind_host = o->bind_host ? o->bind_host : "127.0.0.1";
  o->read_timeout_ms = o->read_timeout_ms ? o->read_timeout_ms : READ_TIMEOUT_MS;
  if (o->read_retries > RETRIES_MAX)
    return rd2h_fail(err, RD2H_INVALID, "Decode: read_retries is %u, at most %u are possible", o->read_retries, RETRIES_MAX);
  if (o->read_timeout_ms > HOUR_MS)
    return rd2h_fail(err, RD2H_INVALID, "Decode: read_timeout_ms is %llu, at most %u are possible",
                     (unsigned long long)o->read_timeout_ms, HOUR_MS);
  warn_times(o);
  rc = check_text(role, "bind_host", o->bind_host, err);
  rc = rc ? rc : check_digest(role, o->digest, o->device, err);
  return rc ? rc : rd2h_curve_check_server(o->curve_secret, o->curve_allow, err);
}

int rd2h_prefill_options(const struct rd2h_prefill_opts *in, struct rd2h_prefill_opts *o, struct rd2h_error *err) {
  static const char role[] = "Prefill";
  int rc = copy(role, in, in->size, o, sizeof *o, err);
  const struct bound bounds[] = {
      {"tp_size", &o->tp_size, 1, 1, RANKS_MAX},
      {"pp_size", &o->pp_size, 1, 1, RANKS_MAX},
      {"handshake_ms", &o->handshake_ms, 10000, 1, HOUR_MS},
      {"hold_ms", &o->hold_ms, 240000, 1, 24 * HOUR_MS},
      {"liveness_ms", &o->liveness_ms, 5000, 10, HOUR_MS},
      {"max_queue_bytes_mb", &o->max_queue_bytes_mb, 256, 1, 65536},
      {"settle_ms", &o->settle_ms, 2000, 1, HOUR_MS},
      {"idle_ms", &o->idle_ms, 600000, 1, 24 * HOUR_MS},
      {"event_ms", &o->event_ms, 60000, 1, HOUR_MS},
  };
  rc = rc ? rc : check_common(role, o->layout, o->engine, err);
  rc = rc ? rc : apply(role, bounds, RD2H_COUNT(bounds), err);
  rc = rc ? rc : check_rank(role, "tensor-parallel", o->tp_rank, o->tp_size, err);
  rc = rc ? rc : check_rank(role, "pipeline", o->pp_rank, o->pp_size, err);
  rc = rc ? rc : check_memory(role, o->memory, o->n_memory, err);
  if (rc)
    return rc;
  if (o->on_read_failure != RD2H_ISOLATE && o->on_read_failure != RD2H_RAISE)
    return rd2h_fail(err, RD2H_INVALID, "Prefill: on_read_failure is %d, choose isolate (%d) or raise (%d)",
                     (int)o->on_read_failure, RD2H_ISOLATE, RD2H_RAISE);
  o->host = o->host ? o->host : "127.0.0.1";
  rc = check_text(role, "host", o->host, err);
  rc = rc ? rc : check_digest(role, o->digest, o->device, err);
  return rc ? rc : rd2h_curve_check_client(o->curve_secret, o->curve_servers, err);
}
