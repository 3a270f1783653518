/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_BASE_H
#define RD2H_BASE_H
/* The room everything stands on: memory, log, clock, errors, containers. Includes nothing of the other rooms. */
#include <rd2h/log.h>
#include <rd2h/memory.h>
#include <rd2h/status.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define RD2H_PRINTF(a, b) __attribute__((format(printf, a, b)))
#define RD2H_RARELY __attribute__((cold)) /* branches that call it stand apart from the code that runs */
#define RD2H_COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define RD2H_INDEX_NONE UINT32_MAX

/* ---- memory: all of librd2h's goes through the hooks ---- */
void *rd2h_alloc(size_t n);                 /* NULL when out of memory */
void *rd2h_zalloc(size_t n);
void *rd2h_realloc(void *p, size_t n);
void *rd2h_calloc(size_t n, size_t size);   /* checks the product, zeroed */
char *rd2h_strdup(const char *s);
char *rd2h_strndup(const char *s, size_t n);
void rd2h_free(void *p);
uint64_t rd2h_alloc_count(void);            /* calls so far, for the tests that count them */
/* Fails the n-th allocation from now (1: the next); 0: never. For tests. */
void rd2h_alloc_fail_at(uint64_t n);

/* ---- errors: fills err (may be NULL) and returns status ---- */
int rd2h_fail(struct rd2h_error *err, int status, const char *fmt, ...) RD2H_PRINTF(3, 4) RD2H_RARELY;
int rd2h_nomem(struct rd2h_error *err, const char *what) RD2H_RARELY;

/* ---- causes: what a request ended with, as the counters tell them apart ---- */
enum rd2h_cause { RD2H_CAUSE_NONE, RD2H_CAUSE_ABORTED, RD2H_CAUSE_TRANSPORT, RD2H_CAUSE_PEER, RD2H_CAUSE_LAYOUT,
                  RD2H_CAUSE_EXPIRED, RD2H_CAUSE_OTHER };
enum rd2h_cause rd2h_status_cause(int status);

/* ---- log ---- */
bool rd2h_log_on(int level);
void rd2h_logf(int level, const char *fmt, ...) RD2H_PRINTF(2, 3) RD2H_RARELY;
#define RD2H_ERR(...) rd2h_logf(RD2H_LOG_ERROR, __VA_ARGS__)
#define RD2H_WARN(...) rd2h_logf(RD2H_LOG_WARN, __VA_ARGS__)
#define RD2H_INFO(...) do { if (rd2h_log_on(RD2H_LOG_INFO)) rd2h_logf(RD2H_LOG_INFO, __VA_ARGS__); } while (0)
#define RD2H_DEBUG(...) do { if (rd2h_log_on(RD2H_LOG_DEBUG)) rd2h_logf(RD2H_LOG_DEBUG, __VA_ARGS__); } while (0)

/* ---- clock ---- */
uint64_t rd2h_now_ns(void); /* CLOCK_BOOTTIME */
#define RD2H_MS UINT64_C(1000000)
#define RD2H_NEVER UINT64_MAX
int rd2h_random(void *p, size_t n); /* getrandom; 0 or IO */

/* ---- trace (rd2h/trace.h): now is 0 and emit does nothing while nobody listens; emit sets end_ns ---- */
struct rd2h_trace;
uint64_t rd2h_trace_now(void);
void rd2h_trace_emit(struct rd2h_trace *);

/* ---- views and arena ---- */
struct rd2h_str {
  const char *p;
  uint32_t n;
};
/* Bump allocator over one block that grows only when told to; alloc returns NULL when full. 16-byte aligned. */
struct rd2h_arena {
  uint8_t *p;
  size_t used, cap;
};
int rd2h_arena_reserve(struct rd2h_arena *, size_t cap); /* grows the (empty) arena to at least cap; NOMEM */
void *rd2h_arena_alloc(struct rd2h_arena *, size_t n);
void rd2h_arena_reset(struct rd2h_arena *);
void rd2h_arena_free(struct rd2h_arena *);

/* ---- growable byte buffer ---- */
struct rd2h_buf {
  uint8_t *p;
  size_t len, cap;
  bool failed; /* an append ran out of memory: checked once at the end */
};
void rd2h_buf_put(struct rd2h_buf *, const void *p, size_t n);
bool rd2h_buf_room(struct rd2h_buf *, size_t n); /* makes room for n more */
void rd2h_buf_line(struct rd2h_buf *, const char *fmt, ...) RD2H_PRINTF(2, 3); /* one line, cut to 1000 bytes, and its newline */
void rd2h_buf_reset(struct rd2h_buf *);          /* keeps the memory */
void rd2h_buf_free(struct rd2h_buf *);

/* ---- hash map: bytes -> uint32_t (an index); open addressing, keys copied ---- */
struct rd2h_map;
struct rd2h_map *rd2h_map_create(void);
void rd2h_map_destroy(struct rd2h_map *);
uint32_t rd2h_map_get(const struct rd2h_map *, const void *key, size_t n);  /* RD2H_INDEX_NONE: absent */
/* For many keys at once, of a map that is larger than the caches: the first asks memory for the key's slot, the second looks there. */
uint64_t rd2h_map_expect(const struct rd2h_map *, const void *key, size_t n);
uint32_t rd2h_map_get_expected(const struct rd2h_map *, uint64_t expected, const void *key, size_t n);
int rd2h_map_put(struct rd2h_map *, const void *key, size_t n, uint32_t v); /* inserts or replaces; NOMEM */
uint32_t rd2h_map_del(struct rd2h_map *, const void *key, size_t n);        /* returns the old value or NONE */
uint32_t rd2h_map_size(const struct rd2h_map *);
/* Iteration in no order; *it starts at 0; returns false at the end. The map must not change meanwhile. */
bool rd2h_map_next(const struct rd2h_map *, uint32_t *it, const void **key, size_t *n, uint32_t *v);

/* ---- slab: stable indices for fixed-size records, freed ones reused ---- */
struct rd2h_slab {
  uint8_t **chunk; /* chunks of 64 records: a record never moves */
  uint32_t item, n_chunk, cap_chunk, free_head, live, limit, next;
};
void rd2h_slab_init(struct rd2h_slab *, size_t item_size, uint32_t limit); /* item_size >= 4 */
uint32_t rd2h_slab_take(struct rd2h_slab *); /* zeroed record; NONE: out of memory or at the limit */
int rd2h_slab_reserve(struct rd2h_slab *, uint32_t n); /* the next n takes need no memory; NOMEM, or LIMIT where they pass it */
void rd2h_slab_give(struct rd2h_slab *, uint32_t i);
void *rd2h_slab_at(const struct rd2h_slab *, uint32_t i);
bool rd2h_slab_live(const struct rd2h_slab *, uint32_t i);
void rd2h_slab_free(struct rd2h_slab *);

/* ---- min-heap of deadlines; a key may be in it several times, the owner checks on pop whether it still means something ---- */
struct rd2h_heap {
  struct rd2h_heap_item {
    uint64_t at;
    uint64_t key;
  } *item;
  uint32_t n, cap;
};
int rd2h_heap_reserve(struct rd2h_heap *, uint32_t more); /* the next `more` pushes need no memory */
int rd2h_heap_push(struct rd2h_heap *, uint64_t at, uint64_t key);
bool rd2h_heap_pop(struct rd2h_heap *, uint64_t now, uint64_t *key); /* pops one item with at <= now */
uint64_t rd2h_heap_next(const struct rd2h_heap *);                   /* RD2H_NEVER when empty */
void rd2h_heap_free(struct rd2h_heap *);

/* ---- memory that other processes can map: rd2h/memory.h ---- */
#define RD2H_SHARED_ALIGN (2u << 20)
struct rd2h_shared {
  uint8_t *base;
  uint64_t len;
  int fd; /* sealed memfd; base is its first byte */
  uint32_t refs;
  struct rd2h_shared *next;
};
/* The allocation in which the range lies, NULL: none. Its fd stays open until it is dropped, whenever the memory is freed. */
struct rd2h_shared *rd2h_shared_hold(const void *p, uint64_t len);
void rd2h_shared_drop(struct rd2h_shared *); /* takes NULL */
/* Maps the first len bytes of the file, shared, at a multiple of RD2H_SHARED_ALIGN. NULL: errno says why. */
void *rd2h_map_aligned(uint64_t len, int prot, int fd);

/* ---- sums ---- */
/* CRC-32 by Castagnoli's polynomial (RFC 3720) of n bytes: by the processor's own instruction where it has one, else by table. */
uint32_t rd2h_crc32c(const void *p, size_t n);
uint32_t rd2h_crc32c_table(const void *p, size_t n); /* always by table */

/* ---- a library that is loaded at run time: locate.c ---- */
#define RD2H_LOCATE_MAX 1024u /* of a path, with the zero at its end */
/* Where the file is: where (the file, or a folder that holds it) if it is not NULL; else in the folder that the variable env names,
 * or in that folder of a Python package which VIRTUAL_ENV, this program's prefix, /usr/local or /usr have; else the bare name. */
void rd2h_locate(const char *file, const char *package, const char *env, const char *where, char out[RD2H_LOCATE_MAX]);

#endif
