/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"
#include <stdio.h>

static const struct command benches[] = {
  {"plan", bench_plan, "descriptors from block ids: ns per descriptor, beside a bare loop"},
  {"decode", bench_decode, "a Decode rank without memory for a driver of your own: CPU per message"},
  {"read", bench_read, "bytes a second by engine and block size, beside bare ways"},
  {"e2e", bench_e2e, "a whole prompt: what of its transfer is visible behind the computation"},
  {"peers", bench_peers, "a Decode rank with very many Prefill ranks: CPU per message, memory"},
  {"pair", bench_pair, "a layer's round trip between two ranks, beside two bare sockets"},
};
enum { N_BENCHES = sizeof benches / sizeof benches[0] };

static void usage(void) {
  puts("usage: rd2h bench WHAT [OPTION...]\n"
       "\n"
       "Measures one part of the library on this machine, beside what the machine itself can do at best in the same moment: compare\n"
       "ratios, absolute figures of a busy machine say little.\n");
  command_list(benches, N_BENCHES);
  puts("\n"
       "Every bench takes --json (one object on standard output, for scripts) and --help.");
}

int cmd_bench(int argc, char **argv) {
  return command_dispatch("rd2h bench", benches, N_BENCHES, argc, argv, usage);
}
