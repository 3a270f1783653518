/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/faults/wire.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define PACKET 2048

static const char *const addresses[WIRE_SIDES] = {"10.213.0.1", "10.213.0.2"};

const char *wire_address(int side) {
  return addresses[side];
}

static int set_address(int s, struct ifreq *ifr, int request, const char *address) {
  struct sockaddr_in in = {.sin_family = AF_INET};
  inet_pton(AF_INET, address, &in.sin_addr);
  memcpy(&ifr->ifr_addr, &in, sizeof in);
  return ioctl(s, (unsigned long)request, ifr);
}

/* A namespace with a point-to-point device; what is sent there is read from `tun`. This process is in it afterwards. */
static int make_side(int side, int *tun) {
  struct ifreq ifr = {.ifr_flags = IFF_TUN | IFF_NO_PI}, lo = {.ifr_flags = IFF_UP};
  int s = -1;
  strcpy(ifr.ifr_name, "rd2h0");
  strcpy(lo.ifr_name, "lo");
  *tun = -1;
  if (unshare(CLONE_NEWNET) || (s = socket(AF_INET, SOCK_DGRAM, 0)) < 0 || (*tun = open("/dev/net/tun", O_RDWR | O_CLOEXEC)) < 0)
    return errno;
  if (ioctl(*tun, TUNSETIFF, &ifr) || set_address(s, &ifr, SIOCSIFADDR, addresses[side]) ||
      set_address(s, &ifr, SIOCSIFNETMASK, "255.255.255.0"))
    return errno;
  ifr.ifr_flags = IFF_UP | IFF_RUNNING;
  int bad = ioctl(s, SIOCSIFFLAGS, &ifr) || ioctl(s, SIOCSIFFLAGS, &lo);
  close(s);
  return bad ? errno : 0;
}

static uint64_t next(uint64_t *state) { /* splitmix64 */
  uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}

static void carry(struct wire_state *st, const int tun[WIRE_SIDES], uint64_t seed) {
  char packet[PACKET];
  struct pollfd p[WIRE_SIDES] = {{tun[0], POLLIN, 0}, {tun[1], POLLIN, 0}};
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (;;) {
    poll(p, WIRE_SIDES, -1);
    for (int i = 0; i < WIRE_SIDES; i++) {
      ssize_t n = p[i].revents ? read(tun[i], packet, sizeof packet) : 0;
      if (n <= 0)
        continue;
      st->packets++;
      if (st->cut || next(&seed) % 1000 < st->loss_permille || write(tun[1 - i], packet, (size_t)n) != n)
        st->lost++;
    }
  }
}

bool wire_open(struct wire *w, uint64_t seed) {
  int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC), tun[WIRE_SIDES] = {-1, -1}, bad = 0;
  *w = (struct wire){.net = {-1, -1}};
  w->state = mmap(NULL, sizeof *w->state, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  for (int i = 0; i < WIRE_SIDES && !bad; i++) {
    bad = make_side(i, &tun[i]);
    w->net[i] = w->end[i].net = bad ? -1 : open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
  }
  if (setns(home, CLONE_NEWNET) && !bad)
    bad = errno;
  close(home);
  fflush(NULL);
  if (!bad && !(w->pid = fork()))
    carry(w->state, tun, seed);
  for (int i = 0; i < WIRE_SIDES; i++)
    if (tun[i] >= 0)
      close(tun[i]);
  if (bad) {
    snprintf(w->why, sizeof w->why, "no network namespace with a device of its own: %s", strerror(bad));
    wire_close(w);
  }
  return !bad;
}

void wire_close(struct wire *w) {
  if (w->pid > 0) {
    kill(w->pid, SIGKILL);
    waitpid(w->pid, NULL, 0);
  }
  for (int i = 0; i < WIRE_SIDES; i++)
    if (w->net[i] >= 0)
      close(w->net[i]);
  munmap(w->state, sizeof *w->state);
}

int wire_enter(void *end) {
  return setns(((struct wire_end *)end)->net, CLONE_NEWNET);
}
