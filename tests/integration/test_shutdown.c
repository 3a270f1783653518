/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that are told to end, or are killed, in the middle of a transfer: how long it takes, what the other side sees, what stays
 * behind. Children are forked before this process has threads. */
#include "tests/integration/rig.h"
#include <setjmp.h>
#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define DRAIN_MS 200u
#define END_MS 5000u /* drain, settle, and a machine with other work */

static const struct rig_shape shape = {.layers = 4, .blocks = 32};

/* From here on SIGTERM is what wait_term() waits for. */
static int term_fd(void) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigprocmask(SIG_BLOCK, &set, NULL);
  return signalfd(-1, &set, SFD_CLOEXEC);
}

static void wait_term(int term) {
  struct signalfd_siginfo info;
  RIG_CHECK(read(term, &info, sizeof info) == sizeof info);
}

/* Each gets SIGTERM while a read hangs, drains for as long as it was told, and ends. */
static void decode_child(int in, int out) {
  int term = term_fd();
  struct rig_side dst;
  struct rig_request r;
  struct rd2h_outcome o;
  rig_side_open(&dst, &shape);
  uint16_t port = (uint16_t)rig_get(in);
  rd2h_decode *d = rig_decode(&dst, &(struct rd2h_decode_opts){.engine = "fault:local,hang_every=2", .port = port});
  rig_request(&r, "half", 8, 0, 0);
  rig_install(d, &r);
  rig_put(out, rd2h_decode_port(d));
  int expected = -(int)rig_get(in);
  wait_term(term);
  RIG_CHECK(rd2h_decode_drain(d, DRAIN_MS) == expected);
  if (!expected)
    RIG_CHECK(rig_outcome(d, "half", NULL) == RD2H_PEER_LOST);
  rig_request(&r, "late", 8, 0, 0);
  rig_install(d, &r);
  RIG_CHECK(rig_outcome(d, "late", NULL) == RD2H_REFUSED);
  RIG_CHECK(!rd2h_decode_collect(d, &o, 1)); /* after a time-out "half" is fenced: its read hangs */
  rd2h_decode_destroy(d);
  rig_side_close(&dst);
}

static void prefill_child(int in, int out) {
  int term = term_fd();
  struct rig_side src;
  struct rig_request r;
  struct rd2h_step_send send;
  rig_side_open(&src, &shape);
  uint16_t port = (uint16_t)rig_get(in);
  rd2h_prefill *p = rig_prefill(&src, &(struct rd2h_prefill_opts){.settle_ms = DRAIN_MS});
  rig_request(&r, "half", 8, 0, 0);
  rig_send(&send, &r, port, 0, 8, true);
  rig_step(p, &send, 1, NULL);
  rig_layers(p, 4);
  rig_put(out, 0);
  int expected = -(int)rig_get(in);
  wait_term(term);
  RIG_CHECK(rd2h_prefill_drain(p, DRAIN_MS) == expected);
  rd2h_prefill_destroy(p);
  rig_side_close(&src);
}

static uint32_t shm_files(void) {
  uint32_t n = 0;
  DIR *dir = opendir("/dev/shm");
  while (dir && readdir(dir))
    n++;
  if (dir)
    closedir(dir);
  return n;
}

/* Others on the machine may have theirs there for a while. */
static void nothing_stays_in_shm(uint32_t most) {
  for (int i = 0; i < 1000 && shm_files() > most; i++)
    poll(NULL, 0, 10);
  assert_true(shm_files() <= most);
}

static void stop(struct rig_child *c, int signal, bool clean) {
  uint64_t begun = rd2h_now_ns();
  int status = rig_reap(c, signal);
  assert_true(rd2h_now_ns() - begun < END_MS * RD2H_MS);
  assert_true(clean ? WIFEXITED(status) && !WEXITSTATUS(status) : WIFSIGNALED(status));
}

/* A pair of processes with a request in the middle; d_end, p_end: what the drain of each is to say. */
static void begin(struct rig_child *d, struct rig_child *p, uint16_t *port, int d_end, int p_end) {
  rig_put(d->to, *port);
  *port = (uint16_t)rig_get(d->from);
  rig_put(p->to, *port);
  assert_int_equal(rig_get(p->from), 0);
  rig_put(d->to, (uint32_t)-d_end);
  rig_put(p->to, (uint32_t)-p_end);
}

static void L16_told_to_end(void **state) {
  (void)state;
  struct rig_child d = rig_fork(decode_child), p = rig_fork(prefill_child), d2 = rig_fork(decode_child), p2 = rig_fork(prefill_child);
  uint32_t shm = shm_files();
  uint16_t port = 0;
  begin(&d, &p, &port, RD2H_TIMEOUT, RD2H_OK); /* after Decode's end Prefill waits for nobody */
  stop(&d, SIGTERM, true);
  stop(&p, SIGTERM, true);
  begin(&d2, &p2, &port, RD2H_OK, RD2H_TIMEOUT); /* at the same port, and Prefill first this time */
  stop(&p2, SIGTERM, true);
  stop(&d2, SIGTERM, true);
  nothing_stays_in_shm(shm);
}

/* kill -9 of both, over and over: the port is free at once, nothing stays in shared memory, the next pair begins as the first. */
static void L16_killed_and_started_again(void **state) {
  (void)state;
  enum { TIMES = 5 };
  struct rig_child d[TIMES], p[TIMES];
  uint32_t shm = shm_files();
  uint16_t port = 0;
  for (int i = 0; i < TIMES; i++) {
    d[i] = rig_fork(decode_child);
    p[i] = rig_fork(prefill_child);
  }
  for (int i = 0; i < TIMES; i++) {
    begin(&d[i], &p[i], &port, RD2H_OK, RD2H_OK);
    stop(i % 2 ? &d[i] : &p[i], SIGKILL, false);
    stop(i % 2 ? &p[i] : &d[i], SIGKILL, false);
  }
  nothing_stays_in_shm(shm);
}

/* A drain that has nothing to wait for, or whose last request ends in time, does not wait. */
static void drained_in_time(void **state) {
  (void)state;
  struct rig_side side;
  struct rig_request r;
  rig_side_open(&side, &shape);
  rd2h_decode *d = rig_decode(&side, NULL);
  rd2h_prefill *p = rig_prefill(&side, NULL);
  uint64_t begun = rd2h_now_ns();
  assert_int_equal(rd2h_prefill_drain(p, RIG_WAIT_MS), RD2H_OK);
  rig_request(&r, "one", 4, 0, 0);
  rig_install(d, &r);
  assert_int_equal(rd2h_decode_abort(d, "one"), RD2H_OK);
  assert_int_equal(rd2h_decode_drain(d, RIG_WAIT_MS), RD2H_OK);
  assert_true(rd2h_now_ns() - begun < RIG_WAIT_MS * RD2H_MS / 2);
  assert_int_equal(rig_outcome(d, "one", NULL), RD2H_ABORTED);
  rd2h_prefill_destroy(p);
  rd2h_decode_destroy(d);
  rig_side_close(&side);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(L16_told_to_end), cmocka_unit_test(L16_killed_and_started_again),
                                     cmocka_unit_test(drained_in_time)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
