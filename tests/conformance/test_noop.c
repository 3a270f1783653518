/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/conformance/conformance.h"
#include <stddef.h>

int main(int argc, char **argv) {
  static const struct conformance noop = {.engine = "noop", .moves_data = false, .needs_conn = false};
  return conformance_main(argc, argv, &noop);
}
