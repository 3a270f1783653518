/* SPDX-License-Identifier: Apache-2.0 */
/* Over the real library; tests/memfabric/run.py brings it. */
#include "tests/conformance/conformance.h"
#include <stddef.h>

int main(int argc, char **argv) {
  static const char *const options[] = {"protocol=host_tcp", "init_s=5", NULL};
  static const struct conformance memfabric = {.engine = "memfabric", .options = options, .moves_data = true, .holes_kill = true,
                                               .late_death = true, .served = true};
  return conformance_main(argc, argv, &memfabric);
}
