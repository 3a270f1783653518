/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/conformance/conformance.h"
#include <stddef.h>

int main(int argc, char **argv) {
  static const struct conformance tcp = {.engine = "tcp", .moves_data = true, .needs_conn = true, .served = true};
  return conformance_main(argc, argv, &tcp);
}
