/* SPDX-License-Identifier: Apache-2.0 */
/* The public Decode rank: arguments are checked here, the worker does the rest. */
#include "connector/options.h"
#include "worker/worker.h"

struct rd2h_decode {
  rd2h_dw *worker;
};

int rd2h_decode_create(const struct rd2h_decode_opts *opts, rd2h_decode **out, struct rd2h_error *err) {
  struct rd2h_decode_opts full;
  if (!opts || !out)
    return rd2h_fail(err, RD2H_INVALID, "Decode: options and a place for the object are needed");
  int rc = rd2h_decode_options(opts, &full, err);
  if (rc)
    return rc;
  rd2h_decode *d = rd2h_alloc(sizeof *d);
  if (!d)
    return rd2h_nomem(err, "Decode rank");
  rc = rd2h_dw_create(&full, &d->worker, err);
  if (rc) {
    rd2h_free(d);
    return rc;
  }
  *out = d;
  return RD2H_OK;
}

void rd2h_decode_destroy(rd2h_decode *d) {
  if (!d)
    return;
  rd2h_dw_destroy(d->worker);
  rd2h_free(d);
}

uint16_t rd2h_decode_port(const rd2h_decode *d) {
  return rd2h_dw_port(d->worker);
}

int rd2h_decode_step(rd2h_decode *d, const void *meta, size_t len, struct rd2h_error *err) {
  struct rd2h_error local;
  if (len && !meta)
    return rd2h_fail(err, RD2H_INVALID, "Decode step: %zu bytes at no address", len);
  return rd2h_dw_step(d->worker, meta, len, err ? err : &local);
}

static int check_grant(const struct rd2h_grant *g, struct rd2h_error *err) {
  if (!g->id || !*g->id || !g->ext_id || !*g->ext_id)
    return rd2h_fail(err, RD2H_INVALID, "install: a request needs an id and an external id");
  if ((g->n_main && !g->main) || (g->n_indexer && !g->indexer))
    return rd2h_fail(err, RD2H_INVALID, "install of %s: block lists of %u and %u entries at no address", g->id, g->n_main,
                     g->n_indexer);
  if (g->main_floor > g->n_main || g->main_need > g->n_main)
    return rd2h_fail(err, RD2H_INVALID, "install of %s: main floor %u and need %u do not fit %u blocks", g->id, g->main_floor,
                     g->main_need, g->n_main);
  if (g->indexer_floor > g->n_indexer || g->indexer_need > g->n_indexer)
    return rd2h_fail(err, RD2H_INVALID, "install of %s: indexer floor %u and need %u do not fit %u blocks", g->id,
                     g->indexer_floor, g->indexer_need, g->n_indexer);
  return RD2H_OK;
}

int rd2h_decode_install(rd2h_decode *d, const struct rd2h_grant *g, struct rd2h_error *err) {
  int rc = check_grant(g, err);
  return rc ? rc : rd2h_dw_install(d->worker, g, err);
}

static struct rd2h_str str_of(const char *s) {
  return (struct rd2h_str){s ? s : "", s ? (uint32_t)strlen(s) : 0};
}

int rd2h_decode_abort(rd2h_decode *d, const char *id) {
  return rd2h_dw_end(d->worker, str_of(id), RD2H_ABORTED, str_of("aborted by the engine"));
}

int rd2h_decode_fail(rd2h_decode *d, const char *id, int status, const char *why) {
  return status < 0 ? rd2h_dw_end(d->worker, str_of(id), status, str_of(why)) : RD2H_INVALID;
}

uint32_t rd2h_decode_collect(rd2h_decode *d, struct rd2h_outcome *out, uint32_t cap) {
  return rd2h_dw_collect(d->worker, out, cap);
}

int rd2h_decode_fd(const rd2h_decode *d) {
  return rd2h_dw_fd(d->worker);
}

int rd2h_decode_drain(rd2h_decode *d, uint32_t timeout_ms) {
  return rd2h_dw_drain(d->worker, timeout_ms);
}

size_t rd2h_decode_dump(rd2h_decode *d, char *out, size_t cap) {
  return rd2h_dw_dump(d->worker, out, cap);
}

int rd2h_decode_peers(rd2h_decode *d, uint32_t timeout_ms, struct rd2h_peers *out) {
  return rd2h_dw_peers(d->worker, timeout_ms, out);
}

void rd2h_decode_stats(rd2h_decode *d, struct rd2h_decode_stats *s) {
  rd2h_dw_stats(d->worker, s);
}
