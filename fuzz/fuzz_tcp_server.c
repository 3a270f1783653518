/* SPDX-License-Identifier: Apache-2.0 */
/* Whatever a reader sends after a good hello (first byte even) or instead of one: no memory but the region's is read, and without
 * the token nothing but a refusal goes out. */
#include "engines/tcp/server.h"
#include <sys/mman.h>
#include <unistd.h>

#define PLACE 0x10000000ul /* fixed, so that inputs can name it */
#define LEN 4096ul
#define TURNS 100

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static uint8_t sink[1 << 20];
  static struct tcp_server s = {.self.token = "\x93\x1c\xe2\x5b\x07\xd8\x4f\xaa",
                                .lock = PTHREAD_MUTEX_INITIALIZER, .idle = PTHREAD_COND_INITIALIZER};
  static struct tcp_link l;
  static struct rd2h_region region = {.len = LEN};
  uint8_t hello[TCP_HELLO];
  int pair[2];
  if (!size || size > 32768 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair))
    return 0;
  if (!region.base)
    region.base = mmap((void *)PLACE, LEN, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  s.regions = (struct tcp_regions){.n = 1, .r = &region};
  l = (struct tcp_link){.fd = pair[0], .deadline = 0};
  rd2h_tcp_hello_encode(s.self.token, hello);
  bool good = data[0] % 2 == 0 && send(pair[1], hello, sizeof hello, 0) == (ssize_t)sizeof hello;
  if (send(pair[1], data + 1, size - 1, 0) < 0 || shutdown(pair[1], SHUT_WR))
    good = false;
  for (int i = 0; i < TURNS && rd2h_tcp_link_run(&s, &l); i++) {
    ssize_t n = recv(pair[1], sink, sizeof sink, 0);
    if (!good && n > (ssize_t)TCP_REPLY && data[0] % 2)
      __builtin_trap(); /* more than a refusal without the token */
  }
  close(pair[0]);
  close(pair[1]);
  return 0;
}
