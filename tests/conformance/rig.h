/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_TEST_RIG_H
#define RD2H_TEST_RIG_H
/* What the cases stand on: a Prefill process to read from, batches, and waiting for completions with a bound. */
#include "engine/engine.h"
#include "tests/conformance/conformance.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/types.h>
#include <cmocka.h>

#define KIB 1024ull
#define MIB (1024ull * KIB)
#define WAIT_MS 20000   /* no case waits longer for anything; reached only by a failure */
#define SILENCE_MS 50   /* how long "nothing happens" is watched */
#define BEGIN_MS 3      /* enough for a read to have begun; a case that needs it looks whether it had */
#define SLICE (64 * KIB) /* small, so that every batch crosses it */
#define COOKIE 0x1234567890ull

extern const struct conformance *conf;

/* A process of its own that holds `bytes` of pattern and lets itself be read. */
struct source {
  pid_t pid;
  int control;
  uint64_t base, bytes, seed;
  uint32_t conn_len;
  uint8_t conn[4096];
};
int source_main(int control, uint64_t bytes, uint64_t seed);
void source_start(struct source *, uint64_t bytes, uint64_t seed);
void source_hole(struct source *, uint64_t offset, uint64_t len); /* unmaps; page multiples */
void source_signal(const struct source *, int signal);             /* SIGKILL: returns when it is dead */
void source_end(struct source *);
/* The pattern's byte at an offset of a source's memory. */
uint8_t pattern_byte(uint64_t seed, uint64_t offset);
void pattern_fill(void *p, uint64_t seed, uint64_t offset, uint64_t n);

/* A batch under construction; its arrays grow to `cap` descriptors. */
struct load {
  struct rd2h_batch b;
  void **local;
  uint64_t *remote, *len;
  uint32_t cap;
};
void load_init(struct load *, uint64_t id, uint32_t cap);
void load_add(struct load *, void *local, uint64_t remote, uint64_t len);
void load_free(struct load *);
/* Takes very long to read (cap * len bytes), all from and to the same place. */
void load_long(struct load *, uint64_t id, void *local, const struct source *);

rd2h_eng *engine_open(uint64_t slice_bytes);
rd2h_eng_peer *engine_connect(rd2h_eng *, const struct source *, uint64_t cookie);
uint32_t engine_flags(rd2h_eng *);
bool fd_ready(rd2h_eng *, int ms);
/* Polls until n completions came; fails the case when they do not. */
void collect(rd2h_eng *, struct rd2h_completion *, int n);
void expect_ok(rd2h_eng *, const struct load *);   /* submits, collects, checks the completion */
void submit_ok(rd2h_eng *, rd2h_eng_peer *, const struct load *);
void expect_silence(rd2h_eng *);                    /* no completion, and the fd stays quiet */
void let_begin(rd2h_eng *);                         /* time for a long read to begin; nothing may complete */
void expect_event_down(rd2h_eng *, uint64_t cookie);
void assert_pattern(const void *p, const struct source *, uint64_t offset, uint64_t n);
void assert_filled(const void *p, uint8_t byte, uint64_t n);

/* Cheap and repeatable. */
struct dice {
  uint64_t state;
};
uint64_t dice_roll(struct dice *, uint64_t below);

/* A source, an engine and a connection between them: what most cases begin with. */
struct link {
  struct source source;
  rd2h_eng *eng;
  rd2h_eng_peer *peer;
  uint8_t *dst;
};
void link_open(struct link *, uint64_t bytes);
void link_close(struct link *);
#endif
