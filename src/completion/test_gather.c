/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks in threads and processes: the same ends, in the same step and order, on all of them. */
#include "base/base.h"
#include <pthread.h>
#include <rd2h/completion.h>
#include <rd2h/pool.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#define RANKS 3u
#define CHECK(x) \
  do { \
    if (!(x)) { \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x); \
      abort(); \
    } \
  } while (0)

/* A collective as an engine has it. */
struct meeting {
  pthread_barrier_t barrier;
  uint8_t all[RANKS][4096];
  uint32_t calls;
};
struct rank {
  struct meeting *meeting; /* NULL: the built-in exchange */
  uint32_t rank;
  rd2h_gather *g;
  void (*script)(struct rank *);
  char seen[512]; /* what collect gave, step by step */
};

static int meet(void *user, const void *mine, uint64_t len, void *all) {
  struct rank *r = user;
  memcpy(r->meeting->all[r->rank], mine, len);
  pthread_barrier_wait(&r->meeting->barrier);
  for (uint32_t i = 0; i < RANKS; i++)
    memcpy((uint8_t *)all + i * len, r->meeting->all[i], len);
  __atomic_add_fetch(&r->meeting->calls, 1, __ATOMIC_RELAXED);
  pthread_barrier_wait(&r->meeting->barrier);
  return 0;
}

static void step(struct rank *r) {
  struct rd2h_gathered out[2];
  struct rd2h_error err;
  size_t at = strlen(r->seen);
  int rc = rd2h_gather_step(r->g, &err);
  at += (size_t)snprintf(r->seen + at, sizeof r->seen - at, "%s;", rc ? rd2h_status_name(rc) : "");
  for (uint32_t n; !rc && (n = rd2h_gather_collect(r->g, out, 2));)
    for (uint32_t i = 0; i < n; i++)
      at += (size_t)snprintf(r->seen + at, sizeof r->seen - at, " %s %s %u", out[i].id, rd2h_status_name(out[i].status), out[i].rank);
}

static void *run(void *arg) {
  struct rank *r = arg;
  r->script(r);
  return NULL;
}

static rd2h_gather *make(struct rank *r, const char *handle, uint64_t deadline_ms) {
  struct rd2h_gather_opts o = {.size = sizeof o, .rank = r->rank, .ranks = RANKS, .max_requests = 8, .exchange_ms = 5000,
                               .deadline_ms = deadline_ms, .all_gather = r->meeting ? meet : NULL, .user = r, .handle = handle};
  struct rd2h_error err = {0};
  rd2h_gather *g = NULL;
  if (rd2h_gather_create(&o, &g, &err))
    fail_msg("%s", err.text);
  return g;
}

/* All ranks see `expect`, in both forms of the exchange. */
static void play(void (*script)(struct rank *), uint64_t deadline_ms, const char *expect) {
  for (uint32_t form = 0; form < 2; form++) {
    static struct meeting m;
    struct rank r[RANKS];
    pthread_t thread[RANKS];
    m.calls = 0;
    pthread_barrier_init(&m.barrier, NULL, RANKS);
    for (uint32_t i = 0; i < RANKS; i++) {
      r[i] = (struct rank){.meeting = form ? &m : NULL, .rank = i, .script = script};
      r[i].g = make(&r[i], i ? rd2h_gather_handle(r[0].g) : NULL, deadline_ms);
    }
    for (uint32_t i = 0; i < RANKS; i++)
      assert_int_equal(pthread_create(&thread[i], NULL, run, &r[i]), 0);
    for (uint32_t i = 0; i < RANKS; i++)
      pthread_join(thread[i], NULL);
    for (uint32_t i = 0; i < RANKS; i++) {
      assert_string_equal(r[i].seen, expect);
      rd2h_gather_destroy(r[i].g);
    }
    pthread_barrier_destroy(&m.barrier);
  }
}

static void ends_on_all(struct rank *r) {
  struct rd2h_error err;
  step(r); /* nothing is live: nothing is exchanged, no rank needs another */
  CHECK(!rd2h_gather_add(r->g, "a", &err) && !rd2h_gather_add(r->g, "b", &err) && !rd2h_gather_add(r->g, "c", &err));
  CHECK(!rd2h_gather_end(r->g, "b", 0));
  if (r->rank != 1)
    CHECK(!rd2h_gather_end(r->g, "a", 0));
  step(r); /* b everywhere, a not on rank 1 */
  if (r->rank == 1)
    CHECK(!rd2h_gather_end(r->g, "a", RD2H_OK));
  CHECK(!rd2h_gather_end(r->g, "c", r->rank == 2 ? RD2H_PEER_LOST : RD2H_OK));
  step(r);
  step(r);
}

static void on_all_ranks(void **state) {
  (void)state;
  play(ends_on_all, 0, ";; b OK 0; a OK 0 c PEER_LOST 2;");
}

static void odd_ids(struct rank *r) {
  struct rd2h_error err;
  CHECK(rd2h_gather_end(r->g, "x", 0) == RD2H_NOT_FOUND && rd2h_gather_remove(r->g, "x") == RD2H_NOT_FOUND);
  CHECK(!rd2h_gather_add(r->g, "x", &err) && !rd2h_gather_add(r->g, "y", &err) && !rd2h_gather_add(r->g, "z", &err));
  CHECK(rd2h_gather_add(r->g, "x", &err) == RD2H_EXISTS);
  CHECK(rd2h_gather_end(r->g, "x", 5) == RD2H_INVALID && rd2h_gather_end(r->g, "x", INT32_MIN) == RD2H_INVALID);
  CHECK(!rd2h_gather_end(r->g, "x", RD2H_ABORTED) && rd2h_gather_end(r->g, "x", RD2H_OK) == RD2H_EXISTS); /* the first one stays */
  CHECK(!rd2h_gather_remove(r->g, "y") && rd2h_gather_end(r->g, "y", 0) == RD2H_NOT_FOUND);
  step(r);
  CHECK(rd2h_gather_end(r->g, "x", 0) == RD2H_NOT_FOUND); /* late */
  CHECK(!rd2h_gather_add(r->g, "x", &err) && !rd2h_gather_end(r->g, "x", 0) && !rd2h_gather_end(r->g, "z", 0));
  step(r);
  for (uint32_t i = 0; i < 8; i++) {
    char id[8];
    snprintf(id, sizeof id, "%u", i);
    CHECK(!rd2h_gather_add(r->g, id, &err));
  }
  CHECK(rd2h_gather_add(r->g, "8", &err) == RD2H_LIMIT);
}

static void duplicates_late_and_unknown(void **state) {
  (void)state;
  play(odd_ids, 0, "; x ABORTED 0; z OK 0 x OK 0");
}

/* Rank 1 never ends it; all ranks hear so in the same step, though only rank 0 looks at its clock. */
static void a_rank_is_late(struct rank *r) {
  struct rd2h_error err;
  CHECK(!rd2h_gather_add(r->g, "slow", &err) && !rd2h_gather_add(r->g, "fine", &err) && !rd2h_gather_end(r->g, "fine", 0));
  if (r->rank != 1)
    CHECK(!rd2h_gather_end(r->g, "slow", 0));
  uint64_t until = rd2h_now_ns() + 60 * RD2H_MS;
  while (rd2h_now_ns() < until)
    sched_yield();
  step(r);
  CHECK(rd2h_gather_end(r->g, "slow", 0) == RD2H_NOT_FOUND);
}

static void the_deadline(void **state) {
  (void)state;
  play(a_rank_is_late, 50, "; slow TIMEOUT 1 fine OK 0");
}

static void other_requests(struct rank *r) {
  struct rd2h_error err;
  CHECK(!rd2h_gather_add(r->g, r->rank == 2 ? "other" : "same", &err));
  step(r);
  step(r);
}

static void ranks_disagree(void **state) {
  (void)state;
  play(other_requests, 0, "STATE;STATE;");
}

/* Rank 2 does not come; then rank 0 is killed: both are errors in time, not a wait without end. */
static void a_rank_is_gone(void **state) {
  (void)state;
  int fd[2];
  char handle[128] = "";
  struct rd2h_error err = {0};
  rd2h_gather *g;
  assert_int_equal(pipe(fd), 0);
  pid_t pid = fork();
  if (!pid) {
    alarm(20);
    struct rd2h_gather_opts o = {.size = sizeof o, .ranks = RANKS};
    if (rd2h_gather_create(&o, &g, &err) || write(fd[1], rd2h_gather_handle(g), RD2H_POOL_HANDLE) < 0)
      _exit(1);
    pause();
    _exit(0);
  }
  assert_true(read(fd[0], handle, sizeof handle - 1) > 0);
  for (uint32_t killed = 0; killed < 2; killed++) {
    struct rd2h_gather_opts o = {.size = sizeof o, .rank = 1, .ranks = RANKS, .handle = handle, .exchange_ms = killed ? 10000 : 50};
    assert_int_equal(rd2h_gather_create(&o, &g, &err), RD2H_OK);
    assert_int_equal(rd2h_gather_add(g, "a", &err), RD2H_OK);
    if (killed) {
      kill(pid, SIGKILL);
      waitpid(pid, NULL, 0);
    }
    assert_int_equal(rd2h_gather_step(g, &err), killed ? RD2H_PEER_LOST : RD2H_TIMEOUT);
    assert_non_null(strstr(err.text, killed ? "rank 0" : "rank 0 of 3 has not come to step 1 within 50 ms"));
    assert_int_equal(rd2h_gather_step(g, &err), RD2H_STATE);
    rd2h_gather_destroy(g);
  }
  close(fd[0]);
  close(fd[1]);
}

static int broken_collective(void *user, const void *mine, uint64_t len, void *all) {
  (void)user, (void)mine, (void)len, (void)all;
  return RD2H_IO;
}

static void bad_options(void **state) {
  (void)state;
  struct rd2h_error err = {0};
  rd2h_gather *g = NULL;
  struct rd2h_gather_opts o = {.size = sizeof o, .rank = 1, .ranks = 1};
  assert_int_equal(rd2h_gather_create(&o, &g, &err), RD2H_INVALID);
  o.ranks = 2;
  assert_int_equal(rd2h_gather_create(&o, &g, &err), RD2H_INVALID);
  assert_non_null(strstr(err.text, "handle of rank 0"));
  o.handle = "nonsense";
  assert_int_equal(rd2h_gather_create(&o, &g, &err), RD2H_INVALID);
  o.size = 4;
  assert_int_equal(rd2h_gather_create(&o, &g, &err), RD2H_INVALID);
  o = (struct rd2h_gather_opts){.size = sizeof o, .ranks = 2, .all_gather = broken_collective};
  for (uint64_t n = 1; n <= 3; n++) {
    rd2h_alloc_fail_at(n);
    int rc = rd2h_gather_create(&o, &g, &err);
    rc = rc ? rc : rd2h_gather_add(g, "a", &err);
    rd2h_alloc_fail_at(0);
    assert_int_equal(rc, RD2H_NOMEM);
    if (n > 2)
      rd2h_gather_destroy(g);
  }
  assert_int_equal(rd2h_gather_create(&o, &g, &err), RD2H_OK);
  assert_string_equal(rd2h_gather_handle(g), "");
  assert_int_equal(rd2h_gather_step(g, &err), RD2H_OK);
  assert_int_equal(rd2h_gather_add(g, "a", &err), RD2H_OK);
  assert_int_equal(rd2h_gather_step(g, &err), RD2H_IO);
  assert_non_null(strstr(err.text, "collective failed"));
  rd2h_gather_destroy(g);
  rd2h_gather_destroy(NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(on_all_ranks), cmocka_unit_test(duplicates_late_and_unknown),
                                     cmocka_unit_test(the_deadline), cmocka_unit_test(ranks_disagree), cmocka_unit_test(a_rank_is_gone),
                                     cmocka_unit_test(bad_options)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
