/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"
#include "base/fifo.h"
#include "base/ready.h"
#include <setjmp.h>
#include <cmocka.h>
#include <poll.h>
#include <sys/resource.h>

#define N 4

struct thing {
  int number;
  struct thing *link, *other;
};
RD2H_FIFO(things, struct thing, link);
RD2H_FIFO(others, struct thing, other);

static struct thing thing[N];

static void fill(struct things *l, int n) {
  *l = (struct things){0};
  for (int i = 0; i < n; i++) {
    thing[i] = (struct thing){.number = i, .link = &thing[N - 1]}; /* what the link was before does not matter */
    things_push(l, &thing[i]);
  }
}

/* All but those whose bit is set in `gone`, in order; and it can be used on. */
static void expect_rest(struct things *l, int n, unsigned gone) {
  struct thing more = {.number = N};
  things_push(l, &more);
  for (int i = 0; i < n; i++)
    if (!(gone >> i & 1))
      assert_ptr_equal(things_pop(l), &thing[i]);
  assert_ptr_equal(things_pop(l), &more);
  assert_null(things_pop(l));
  assert_null(l->head);
  assert_null(l->tail);
}

static void first_in_first_out(void **state) {
  struct things l;
  (void)state;
  for (int n = 0; n <= N; n++) {
    fill(&l, n);
    expect_rest(&l, n, 0);
  }
}

static void any_can_be_removed(void **state) {
  struct things l;
  (void)state;
  for (int n = 1; n <= N; n++)
    for (int i = 0; i < n; i++) {
      fill(&l, n);
      assert_true(things_remove(&l, &thing[i]));
      assert_false(things_remove(&l, &thing[i]));
      expect_rest(&l, n, 1u << i);
    }
  fill(&l, 0);
  assert_false(things_remove(&l, &thing[0]));
}

static void the_whole_can_be_taken(void **state) {
  struct things l, all;
  (void)state;
  fill(&l, 3);
  all = things_take(&l);
  expect_rest(&l, 0, 0);
  expect_rest(&all, 3, 0);
  all = things_take(&l);
  expect_rest(&all, 0, 0);
}

static void a_record_in_two_lists(void **state) {
  struct others o = {0};
  struct things l;
  (void)state;
  fill(&l, 2);
  others_push(&o, &thing[1]);
  others_push(&o, &thing[0]);
  assert_true(others_remove(&o, &thing[1]));
  assert_ptr_equal(others_pop(&o), &thing[0]);
  expect_rest(&l, 2, 0);
}

/* ---- ready ---- */
static bool readable(const struct rd2h_ready *r) {
  return poll(&(struct pollfd){.fd = r->fd, .events = POLLIN}, 1, 0) == 1;
}

static void up_exactly_while_something_waits(void **state) {
  struct rd2h_ready r;
  eventfd_t v;
  (void)state;
  assert_true(rd2h_ready_open(&r));
  assert_false(readable(&r));
  rd2h_ready_set(&r, false); /* a read would find nothing */
  assert_false(r.up);
  for (int i = 0; i < 3; i++) {
    rd2h_ready_set(&r, true);
    rd2h_ready_set(&r, true); /* no second write */
    assert_true(readable(&r));
    assert_int_equal(eventfd_read(r.fd, &v), 0);
    assert_int_equal(v, 1);
    assert_int_equal(eventfd_write(r.fd, 1), 0);
    rd2h_ready_set(&r, false);
    assert_false(readable(&r));
  }
  rd2h_ready_close(&r);
  assert_int_equal(r.fd, -1);
  rd2h_ready_close(&r);
}

static void no_descriptor_to_be_had(void **state) {
  struct rlimit was, none;
  struct rd2h_ready r;
  (void)state;
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
  none = was;
  none.rlim_cur = 0;
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
  bool opened = rd2h_ready_open(&r);
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
  assert_false(opened);
  rd2h_ready_close(&r);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(first_in_first_out),     cmocka_unit_test(any_can_be_removed),
    cmocka_unit_test(the_whole_can_be_taken), cmocka_unit_test(a_record_in_two_lists),
    cmocka_unit_test(up_exactly_while_something_waits), cmocka_unit_test(no_descriptor_to_be_had),
  };
  return cmocka_run_group_tests_name("fifo", tests, NULL, NULL);
}
