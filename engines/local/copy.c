/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of blocks. What is copied was written by another process and goes where the next reader is far away: from a size on it
 * is faster to write past the caches (streaming stores: the destination's lines are not fetched first) and to ask for the source
 * ahead. The size at which that begins to pay is measured: docs/decisions/0007-process-vm-readv.md. */
#include "engines/local/local.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define STREAM_MIN_AVX2 2048u
#define STREAM_MIN_SSE2 8192u
#define LINE 64u
#define AHEAD 512u /* bytes between what is copied and what is asked for */

#if defined(__x86_64__)
/* The destination is aligned to a line, n is a multiple of it. */
static void lines_sse2(uint8_t *to, const uint8_t *from, size_t n) {
  for (size_t at = 0; at < n; at += LINE) {
    const __m128i *f = (const __m128i *)(const void *)(from + at);
    __m128i *t = (__m128i *)(void *)(to + at);
    _mm_prefetch((const char *)from + at + AHEAD, _MM_HINT_NTA);
    __m128i a = _mm_loadu_si128(f), b = _mm_loadu_si128(f + 1), c = _mm_loadu_si128(f + 2), d = _mm_loadu_si128(f + 3);
    _mm_stream_si128(t, a);
    _mm_stream_si128(t + 1, b);
    _mm_stream_si128(t + 2, c);
    _mm_stream_si128(t + 3, d);
  }
}

__attribute__((target("avx2"))) static void lines_avx2(uint8_t *to, const uint8_t *from, size_t n) {
  for (size_t at = 0; at < n; at += LINE) {
    const __m256i *f = (const __m256i *)(const void *)(from + at);
    __m256i *t = (__m256i *)(void *)(to + at);
    _mm_prefetch((const char *)from + at + AHEAD, _MM_HINT_NTA);
    __m256i a = _mm256_loadu_si256(f), b = _mm256_loadu_si256(f + 1);
    _mm256_stream_si256(t, a);
    _mm256_stream_si256(t + 1, b);
  }
}

static void stream(void (*lines)(uint8_t *, const uint8_t *, size_t), void *to, const void *from, size_t n) {
  size_t head = -(uintptr_t)to % LINE, body = (n - head) / LINE * LINE;
  memcpy(to, from, head);
  lines((uint8_t *)to + head, (const uint8_t *)from + head, body);
  memcpy((uint8_t *)to + head + body, (const uint8_t *)from + head + body, n - head - body);
}

static void copy_sse2(void *to, const void *from, size_t n) {
  if (n < STREAM_MIN_SSE2)
    memcpy(to, from, n);
  else
    stream(lines_sse2, to, from, n);
}

static void copy_avx2(void *to, const void *from, size_t n) {
  if (n < STREAM_MIN_AVX2)
    memcpy(to, from, n);
  else
    stream(lines_avx2, to, from, n);
}

/* Streaming stores are not ordered with the stores that follow: nobody may be told before this. */
static void settle(void) {
  _mm_sfence();
}

static bool always(void) {
  return true;
}

static bool has_avx2(void) {
  return __builtin_cpu_supports("avx2");
}
#endif

static void copy_plain(void *to, const void *from, size_t n) {
  memcpy(to, from, n);
}

static void settle_plain(void) {
}

const struct rd2h_local_copier *rd2h_local_copier(uint32_t i) {
  static const struct rd2h_local_copier all[] = {
#if defined(__x86_64__)
    {"avx2", has_avx2, copy_avx2, settle},
    {"sse2", always, copy_sse2, settle},
#endif
    {"plain", NULL, copy_plain, settle_plain},
  };
  return i < RD2H_COUNT(all) ? &all[i] : NULL;
}

const struct rd2h_local_copier *rd2h_local_best_copier(void) {
  for (uint32_t i = 0;; i++) {
    const struct rd2h_local_copier *c = rd2h_local_copier(i);
    if (!c->works || c->works())
      return c;
  }
}
