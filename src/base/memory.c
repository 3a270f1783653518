/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"
#include <stdatomic.h>
#include <stdlib.h>

static void *std_alloc(void *user, size_t n) {
  (void)user;
  return malloc(n);
}

static void *std_realloc(void *user, void *p, size_t n) {
  (void)user;
  return realloc(p, n);
}

static void std_free(void *user, void *p) {
  (void)user;
  free(p);
}

static const struct rd2h_allocator std_hooks = {std_alloc, std_realloc, std_free, NULL};
static struct rd2h_allocator hooks = {std_alloc, std_realloc, std_free, NULL};
static atomic_uint_fast64_t calls;
static atomic_uint_fast64_t fail_at; /* value of `calls` at which an allocation fails; 0: never */

int rd2h_allocator_set(const struct rd2h_allocator *h) {
  if (!h || (!h->alloc && !h->realloc && !h->free)) {
    hooks = std_hooks;
    return RD2H_OK;
  }
  if (!h->alloc || !h->realloc || !h->free)
    return RD2H_INVALID;
  hooks = *h;
  return RD2H_OK;
}

/* Counts one allocation; true when a test wants it to fail. */
static bool must_fail(void) {
  uint64_t call = atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed) + 1;
  return call == atomic_load_explicit(&fail_at, memory_order_relaxed);
}

uint64_t rd2h_alloc_count(void) {
  return atomic_load_explicit(&calls, memory_order_relaxed);
}

void rd2h_alloc_fail_at(uint64_t n) {
  atomic_store_explicit(&fail_at, n ? rd2h_alloc_count() + n : 0, memory_order_relaxed);
}

void *rd2h_alloc(size_t n) {
  return must_fail() ? NULL : hooks.alloc(hooks.user, n ? n : 1);
}

void *rd2h_zalloc(size_t n) {
  void *p = rd2h_alloc(n);
  return p ? memset(p, 0, n) : NULL;
}

void *rd2h_realloc(void *p, size_t n) {
  return must_fail() ? NULL : hooks.realloc(hooks.user, p, n ? n : 1);
}

void *rd2h_calloc(size_t n, size_t size) {
  size_t bytes;
  return __builtin_mul_overflow(n, size, &bytes) ? NULL : rd2h_zalloc(bytes);
}

char *rd2h_strndup(const char *s, size_t n) {
  size_t len = strnlen(s, n);
  char *copy = rd2h_alloc(len + 1);
  if (!copy)
    return NULL;
  memcpy(copy, s, len);
  copy[len] = 0;
  return copy;
}

char *rd2h_strdup(const char *s) {
  return rd2h_strndup(s, strlen(s));
}

void rd2h_free(void *p) {
  if (p)
    hooks.free(hooks.user, p);
}
