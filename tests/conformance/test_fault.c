/* SPDX-License-Identifier: Apache-2.0 */
/* The wrapper keeps every promise of the engine behind it, also when each read begins late. */
#include "tests/conformance/conformance.h"
#include <stddef.h>

int main(int argc, char **argv) {
  static const char *const late[] = {"delay_ms=1", NULL};
  static const struct conformance fault = {.engine = "fault:local", .options = late, .moves_data = true, .needs_conn = true};
  return conformance_main(argc, argv, &fault);
}
