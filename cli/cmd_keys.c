/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"
#include <rd2h/security.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void usage(void) {
  puts("usage: rd2h keys [FILE] [--json]\n"
       "\n"
       "Makes a pair of keys for the control channel between Prefill and Decode. With FILE the secret key goes there, readable by its\n"
       "owner alone (curve_secret_file), and the public key to FILE.pub: its line goes into the file of the other side\n"
       "(curve_peers_file). Files that exist are left alone. One pair for each engine, or one for all Prefill and one for all Decode\n"
       "engines. docs/security.md says what that protects.");
}

static bool write_key(const char *path, int mode, const char *key) {
  char line[RD2H_KEY_CHARS + 2];
  int n = snprintf(line, sizeof line, "%s\n", key), fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  bool good = fd >= 0 && write(fd, line, (size_t)n) == n;
  if (!good)
    fprintf(stderr, "rd2h keys: %s: %s\n", path, strerror(errno));
  if (fd >= 0)
    close(fd);
  if (fd >= 0 && !good)
    unlink(path); /* ours, and of no use */
  return good;
}

static bool write_pair(const char *path, const char *public_key, const char *secret_key) {
  char of_public[4096];
  if ((size_t)snprintf(of_public, sizeof of_public, "%s.pub", path) >= sizeof of_public) {
    fprintf(stderr, "rd2h keys: the name of the file is too long\n");
    return false;
  }
  if (!write_key(path, 0600, secret_key))
    return false;
  if (write_key(of_public, 0644, public_key))
    return true;
  unlink(path);
  return false;
}

static void print_json(const char *public_key, const char *name, const char *value) {
  json_t *all = json_pack("{s:s, s:s}", "public", public_key, name, value);
  json_dumpf(all, stdout, JSON_PRESERVE_ORDER);
  puts("");
  json_decref(all);
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
  const char *file = optind < argc ? argv[optind] : NULL;
  if (optind + 1 < argc) {
    fprintf(stderr, "rd2h keys: \"%s\" is one word too many; see rd2h keys --help\n", argv[optind + 1]);
    return EXIT_USAGE;
  }
  if (rd2h_keys_new(public_key, secret_key, &err)) {
    fprintf(stderr, "rd2h keys: %s\n", err.text);
    return EXIT_FAILED;
  }
  if (file && !write_pair(file, public_key, secret_key))
    return EXIT_FAILED;
  if (json)
    print_json(public_key, file ? "file" : "secret", file ? file : secret_key);
  else
    printf("public  %s\nsecret  %s%s\n", public_key, file ? "in " : "", file ? file : secret_key);
  return EXIT_OK;
}
