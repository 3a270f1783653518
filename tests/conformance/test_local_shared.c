/* SPDX-License-Identifier: Apache-2.0 */
/* The second way of engine local: the source's memory is shared memory, and every case begins once it is mapped. */
#include "engine/face.h"
#include "engines/local/local.h"
#include "tests/conformance/rig.h"
#include <time.h>

static void wait_mapped(struct rd2h_eng_peer *p) {
  uint64_t until = rd2h_now_ns() + WAIT_MS * RD2H_MS;
  for (rd2h_local_receive(p->peer); !p->peer->n_maps; rd2h_local_receive(p->peer)) {
    assert_true(rd2h_now_ns() < until);
    nanosleep(&(struct timespec){.tv_nsec = RD2H_MS}, NULL);
  }
}

int main(int argc, char **argv) {
  static const struct conformance local = {.engine = "local", .moves_data = true, .needs_conn = true, .shared = true,
                                           .connected = wait_mapped};
  return conformance_main(argc, argv, &local);
}
