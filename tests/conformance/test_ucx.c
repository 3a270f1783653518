/* SPDX-License-Identifier: Apache-2.0 */
/* Engine ucx over the transports that every host has, one a run: shared memory (cma, posix) and TCP. Where no UCX can be loaded, the
 * suite is skipped with the reason. */
#include "tests/conformance/rig.h"
#include <stdio.h>
#include <stdlib.h>

#define WAY_TCP "conformance_ucx_tcp"

static bool usable(const struct conformance *c) {
  struct rd2h_engine_opts o = {.size = sizeof o, .host = "127.0.0.1", .options = c->options};
  struct rd2h_error err = {0};
  rd2h_eng *e;
  if (rd2h_eng_open(c->engine, &o, &e, &err)) {
    printf("1..1\nok 1 - conformance # skip %s\n", err.text);
    return false;
  }
  rd2h_eng_close(e);
  return true;
}

int main(int argc, char **argv) {
  static const char *const memory[] = {"tls=posix+cma", NULL}, *const network[] = {"tls=tcp", NULL};
  struct conformance ucx = {.engine = "ucx", .options = memory, .moves_data = true, .needs_conn = true, .holes_kill = true};
  if (strstr(argv[0], WAY_TCP)) /* the program's name decides; its sources learn it from the environment */
    setenv(WAY_TCP, "1", 1);
  if (getenv(WAY_TCP)) {
    ucx.options = network;
    ucx.served = true;
  }
  return argc > 1 || usable(&ucx) ? conformance_main(argc, argv, &ucx) : 0;
}
