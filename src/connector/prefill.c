/* SPDX-License-Identifier: Apache-2.0 */
/* The public Prefill rank: arguments are checked here, the worker does the rest. */
#include "connector/options.h"
#include "worker/worker.h"

struct rd2h_prefill {
  rd2h_pw *worker;
};

int rd2h_prefill_create(const struct rd2h_prefill_opts *opts, rd2h_prefill **out, struct rd2h_error *err) {
  struct rd2h_prefill_opts full;
  if (!opts || !out)
    return rd2h_fail(err, RD2H_INVALID, "Prefill: options and a place for the object are needed");
  int rc = rd2h_prefill_options(opts, &full, err);
  if (rc)
    return rc;
  rd2h_prefill *p = rd2h_alloc(sizeof *p);
  if (!p)
    return rd2h_nomem(err, "Prefill rank");
  rc = rd2h_pw_create(&full, &p->worker, err);
  if (rc) {
    rd2h_free(p);
    return rc;
  }
  *out = p;
  return RD2H_OK;
}

void rd2h_prefill_destroy(rd2h_prefill *p) {
  if (!p)
    return;
  rd2h_pw_destroy(p->worker);
  rd2h_free(p);
}

static int check_bytes(const void *meta, size_t len, struct rd2h_error *err) {
  return len && !meta ? rd2h_fail(err, RD2H_INVALID, "Prefill step: %zu bytes at no address", len) : RD2H_OK;
}

int rd2h_prefill_step(rd2h_prefill *p, const void *meta, size_t len, struct rd2h_error *err) {
  struct rd2h_error local;
  int rc = check_bytes(meta, len, err);
  return rc ? rc : rd2h_pw_step(p->worker, meta, len, err ? err : &local);
}

int rd2h_prefill_layer(rd2h_prefill *p, uint32_t layer, struct rd2h_error *err) {
  return rd2h_pw_layer(p->worker, layer, NULL, false, err);
}

int rd2h_prefill_layer_on(rd2h_prefill *p, uint32_t layer, void *stream, struct rd2h_error *err) {
  return rd2h_pw_layer(p->worker, layer, stream, true, err);
}

int rd2h_prefill_wait_layer(rd2h_prefill *p, uint32_t layer, uint32_t timeout_ms, struct rd2h_error *err) {
  return rd2h_pw_wait_layer(p->worker, layer, timeout_ms, err);
}

int rd2h_prefill_wait_preempted(rd2h_prefill *p, const void *meta, size_t len, uint32_t timeout_ms, struct rd2h_error *err) {
  int rc = check_bytes(meta, len, err);
  return rc ? rc : rd2h_pw_wait_preempted(p->worker, meta, len, timeout_ms, err);
}

uint32_t rd2h_prefill_collect(rd2h_prefill *p, struct rd2h_settled *out, uint32_t cap) {
  return rd2h_pw_collect(p->worker, out, cap);
}

int rd2h_prefill_fd(const rd2h_prefill *p) {
  return rd2h_pw_fd(p->worker);
}

int rd2h_prefill_drain(rd2h_prefill *p, uint32_t timeout_ms) {
  return rd2h_pw_drain(p->worker, timeout_ms);
}

size_t rd2h_prefill_dump(rd2h_prefill *p, char *out, size_t cap) {
  return rd2h_pw_dump(p->worker, out, cap);
}

int rd2h_prefill_peers(rd2h_prefill *p, uint32_t timeout_ms, struct rd2h_peers *out) {
  return rd2h_pw_peers(p->worker, timeout_ms, out);
}

void rd2h_prefill_stats(rd2h_prefill *p, struct rd2h_prefill_stats *s) {
  rd2h_pw_stats(p->worker, s);
}
