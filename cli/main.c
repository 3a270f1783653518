/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"
#include <rd2h/rd2h.h>
#include <stdio.h>
#include <string.h>

static const struct command commands[] = {
  {"bench", cmd_bench, "measure parts of the library on this machine"},
  {"demo", cmd_demo, "move a prompt list from a Prefill to a Decode process and compare every byte"},
  {"keys", cmd_keys, "make a pair of keys for the control channel"},
  {"doctor", cmd_doctor, "what works on this host, what does not and why"},
  {"pd-read", cmd_pd_read, "read memory of another host or process by an engine alone, compare it, measure it"},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static void usage(void) {
  puts("rd2h: remote device to host transfer of KV cache\n"
       "\n"
       "Prefill computes the KV cache of a prompt and says, layer by layer, when it is ready; Decode pulls each layer into its own\n"
       "blocks and says when a request is complete. This program shows and measures what the library does.\n"
       "\n"
       "usage: rd2h COMMAND [OPTION...]\n");
  command_list(commands, N_COMMANDS);
  puts("\n"
       "rd2h COMMAND --help    what a command does and takes\n"
       "rd2h --version         version of the library and of the headers it was built with\n"
       "\n"
       "Environment: RD2H_LOG=error|warn|info|debug sets what is logged to standard error; NO_COLOR=1 turns colours off.");
}

int main(int argc, char **argv) {
  if (argc > 1 && (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-V"))) {
    printf("rd2h %s (headers %s)\n", rd2h_version(), RD2H_VERSION_STRING);
    return EXIT_OK;
  }
  return command_dispatch("rd2h", commands, N_COMMANDS, argc, argv, usage);
}
