/* SPDX-License-Identifier: Apache-2.0 */
/* How the processes of the demonstration wait for each other, and where they find each other. */
#include "demo.h"
#include <errno.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PORT_FIRST 12000u /* below the ports that systems hand out by themselves */
#define PORT_END 32000u
#define PORT_TRIES 200
#define LOOK_NS 50000000u /* how long a signal is not noticed */

uint64_t demo_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_BOOTTIME, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int demo_fail(struct demo_rank *r, const char *why) {
  snprintf(r->result.text, sizeof r->result.text, "%s: %.400s", r->name, why);
  r->result.failed = true;
  return 1;
}

void demo_post(uint32_t *counter) {
  __atomic_add_fetch(counter, 1, __ATOMIC_RELEASE);
  syscall(SYS_futex, counter, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

bool demo_await(const struct demo *d, const uint32_t *counter, uint32_t want, const char *what, struct rd2h_error *err) {
  uint64_t until = demo_now() + DEMO_WAIT_MS * UINT64_C(1000000);
  for (uint32_t have; (have = __atomic_load_n(counter, __ATOMIC_ACQUIRE)) < want;) {
    uint64_t now = demo_now();
    if (now >= until || demo_stopped(d)) {
      snprintf(err->text, sizeof err->text, "%u of %u %s after %d s", have, want, what, DEMO_WAIT_MS / 1000);
      return false;
    }
    syscall(SYS_futex, counter, FUTEX_WAIT, have, &(struct timespec){.tv_nsec = LOOK_NS}, NULL, 0);
  }
  return true;
}

/* All at once, so that none of them is counted twice. */
static bool all_free(uint32_t base, uint32_t n) {
  int fd[DEMO_MAX_TP];
  uint32_t made = 0;
  for (bool fine = true; made < n && fine; made += fine) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)(base + made)), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    fd[made] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    fine = fd[made] >= 0 && !bind(fd[made], (struct sockaddr *)&a, sizeof a);
    if (!fine && fd[made] >= 0)
      close(fd[made]);
  }
  for (uint32_t i = 0; i < made; i++)
    close(fd[i]);
  return made == n;
}

bool demo_find_ports(struct demo *d) {
  uint64_t state = demo_now() ^ (uint64_t)getpid() << 32;
  uint32_t all = d->d_engines * d->d_tp;
  for (int i = 0; i < PORT_TRIES; i++) {
    uint32_t base = PORT_FIRST + (uint32_t)(demo_random(&state) % (PORT_END - PORT_FIRST - all)), e = 0;
    while (e < d->d_engines && all_free(base + e * d->d_tp, d->d_tp)) {
      d->port[e] = (uint16_t)(base + e * d->d_tp);
      e++;
    }
    if (e == d->d_engines)
      return true;
  }
  return false;
}
