/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"
#include <rd2h/security.h>
#include <getopt.h>
#include <stdio.h>

static void usage(void) {
  puts("usage: rd2h keys [--json]\n"
       "\n"
       "Makes a pair of keys for the control channel between Prefill and Decode. The secret key belongs in a file that only its owner\n"
       "can read (curve_secret_file); the public key goes into the file of the other side (curve_peers_file). One pair for each engine,\n"
       "or one for all Prefill and one for all Decode engines. docs/security.md says what that protects.");
}

int cmd_keys(int argc, char **argv) {
  static const struct option options[] = {{"json", no_argument, NULL, 'j'}, {"help", no_argument, NULL, 'h'}, {0}};
  char public_key[RD2H_KEY_CHARS + 1], secret_key[RD2H_KEY_CHARS + 1];
  struct rd2h_error err = {0};
  bool json = false;
  for (int c; (c = getopt_long(argc, argv, ":h", options, NULL)) != -1;) {
    if (c == 'h') {
      usage();
      return EXIT_OK;
    }
    if (c != 'j') {
      option_refused("rd2h keys", c, argv[optind - 1]);
      return EXIT_USAGE;
    }
    json = true;
  }
  if (optind < argc) {
    fprintf(stderr, "rd2h keys: \"%s\" is not understood; see rd2h keys --help\n", argv[optind]);
    return EXIT_USAGE;
  }
  if (rd2h_keys_new(public_key, secret_key, &err)) {
    fprintf(stderr, "rd2h keys: %s\n", err.text);
    return EXIT_FAILED;
  }
  printf(json ? "{\"public\": \"%s\", \"secret\": \"%s\"}\n" : "public  %s\nsecret  %s\n", public_key, secret_key);
  return EXIT_OK;
}
