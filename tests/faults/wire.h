/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_TESTS_FAULTS_WIRE_H
#define RD2H_TESTS_FAULTS_WIRE_H
/* Two network namespaces of this test's own and a wire between them that loses packets, delays none, and can be cut: the kernel's TCP
 * on both ends, every packet through one process. It needs no qdisc of the kernel's; nothing leaves the two namespaces. */
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define WIRE_SIDES 2
struct wire_state { /* shared with the process that carries the packets */
  uint32_t loss_permille;
  bool cut;
  uint64_t packets, lost;
};
struct wire {
  struct wire_state *state;
  pid_t pid;
  int net[WIRE_SIDES]; /* descriptors of the namespaces */
  struct wire_end {
    int net;
  } end[WIRE_SIDES]; /* argument of wire_enter */
  char why[160];
};
const char *wire_address(int side);
bool wire_open(struct wire *, uint64_t seed); /* false: this machine does not let us, `why` says what */
void wire_close(struct wire *);
int wire_enter(void *wire_end); /* moves the calling process into a side's namespace */
#endif
