/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes that are moved: where they lie, what they must be, their hash. */
#include "pd_read.h"
#include <openssl/evp.h>
#include <rd2h/memory.h>
#include <rd2h/pool.h>
#include <stdio.h>

#define POOL_BLOCK 65536u
#define CHUNK (UINT64_C(16) << 20) /* bytes between two looks at the clock */

static uint64_t word(uint64_t seed, uint64_t i) {
  uint64_t z = seed + (i + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  return z ^ z >> 29;
}

void pd_pattern(void *p, uint64_t seed, uint64_t offset, uint64_t n) {
  uint8_t *out = p;
  for (uint64_t i = 0, k; i < n; i += k) {
    uint64_t w = word(seed, (offset + i) / 8);
    k = n - i < 8 ? n - i : 8;
    memcpy(out + i, &w, k);
  }
}

uint64_t pd_pattern_differs(const uint8_t *p, uint64_t seed, uint64_t offset, uint64_t n) {
  uint64_t want[512];
  for (uint64_t i = 0, k; i < n; i += k) {
    k = n - i < sizeof want ? n - i : sizeof want;
    pd_pattern(want, seed, offset + i, k);
    if (!memcmp(p + i, want, k))
      continue;
    while (!memcmp(p + i, (const uint8_t *)want + i % sizeof want, 1))
      i++;
    return i;
  }
  return n;
}

static int open_pool(struct pd_read *r, struct rd2h_error *err) {
  uint64_t need = (r->bytes + POOL_BLOCK - 1) / POOL_BLOCK, have = r->pool_gb << 30;
  if (have && have < r->bytes)
    return rd2h_fail(err, RD2H_LIMIT, "--dram-pool-gb %llu is less than --num-bytes %llu", (unsigned long long)r->pool_gb,
                     (unsigned long long)r->bytes);
  const struct rd2h_pool_opts o = {.size = sizeof o, .shape = {.layers = 1, .arrays = 1,
                                                               .blocks = have ? have / POOL_BLOCK : need,
                                                               .block_bytes = {POOL_BLOCK}}};
  int rc = rd2h_pool_create(&o, &r->pool, err);
  if (!rc)
    r->memory_base = rd2h_pool_array(r->pool, 0, 0);
  return rc;
}

int pd_memory_open(struct pd_read *r, struct rd2h_error *err) {
  if (r->memory == PD_DEVICE)
    return rd2h_fail(err, RD2H_UNSUPPORTED, "--dst-memory device: this program has no way to allocate device memory; read into "
                     "the host memory that sparse offload uses (--dst-memory offload)");
  if (!r->prefill)
    return open_pool(r, err);
  r->memory_base = rd2h_shared_alloc(r->bytes, 0, err);
  if (!r->memory_base)
    return err->status;
  for (uint64_t at = 0, n; at < r->bytes; at += n) {
    n = r->bytes - at < CHUNK ? r->bytes - at : CHUNK;
    pd_pattern(r->memory_base + at, r->seed, at, n);
    pd_progress(r, "filling %3.0f %%", 100.0 * (double)at / (double)r->bytes);
  }
  pd_progress_end(r);
  return RD2H_OK;
}

void pd_memory_close(struct pd_read *r) {
  if (r->prefill)
    rd2h_shared_free(r->memory_base);
  rd2h_pool_destroy(r->pool);
}

int pd_sha256(struct pd_read *r, char hex[PD_SHA_HEX], struct rd2h_error *err) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned n = 0;
  EVP_MD_CTX *ctx = EVP_MD_CTX_new();
  bool good = ctx && EVP_DigestInit_ex(ctx, EVP_sha256(), NULL);
  for (uint64_t at = 0, k; good && at < r->bytes; at += k) {
    k = r->bytes - at < CHUNK ? r->bytes - at : CHUNK;
    good = EVP_DigestUpdate(ctx, r->memory_base + at, k);
    pd_progress(r, "hashing %3.0f %%", 100.0 * (double)at / (double)r->bytes);
  }
  pd_progress_end(r);
  good = good && EVP_DigestFinal_ex(ctx, digest, &n) && 2 * n + 1 == PD_SHA_HEX;
  EVP_MD_CTX_free(ctx);
  if (!good)
    return rd2h_fail(err, RD2H_INTERNAL, "the cryptographic library gives no SHA-256");
  for (unsigned i = 0; i < n; i++)
    snprintf(hex + 2 * (size_t)i, 3, "%02x", digest[i]);
  return RD2H_OK;
}
