/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"
#include <fcntl.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>

static int fds[2];

static int setup(void **state) {
  (void)state;
  return pipe2(fds, O_NONBLOCK | O_CLOEXEC);
}

static int teardown(void **state) {
  (void)state;
  rd2h_log_fd_set(-1, 0);
  close(fds[0]);
  close(fds[1]);
  return 0;
}

static const char *read_all(void) {
  static char text[1 << 17];
  ssize_t n = read(fds[0], text, sizeof text - 1);
  text[n > 0 ? n : 0] = 0;
  return text;
}

static void test_lines(void **state) {
  (void)state;
  rd2h_log_fd_set(fds[1], RD2H_LOG_INFO);
  RD2H_ERR("peer %d lost", 7);
  RD2H_INFO("pulled");
  RD2H_DEBUG("not shown");
  assert_string_equal(read_all(), "1 peer 7 lost\n3 pulled\n");
}

/* A reader that does not read costs lines, never time; afterwards it learns how many. */
static void test_full_pipe(void **state) {
  (void)state;
  char line[1000];
  memset(line, 'x', sizeof line - 1);
  line[sizeof line - 1] = 0;
  rd2h_log_fd_set(fds[1], RD2H_LOG_WARN);
  int sent = 2000, arrived = 0;
  for (int i = 0; i < sent; i++)
    RD2H_WARN("%s", line);
  for (const char *text = read_all(); *text; text = read_all())
    for (; *text; text++)
      arrived += *text == '\n';
  assert_true(arrived > 0 && arrived < sent);
  RD2H_WARN("again");
  char want[128];
  snprintf(want, sizeof want, "2 %d log lines were dropped: their reader is too slow\n2 again\n", sent - arrived);
  assert_string_equal(read_all(), want);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(test_lines, setup, teardown),
    cmocka_unit_test_setup_teardown(test_full_pipe, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
