/* SPDX-License-Identifier: Apache-2.0 */
/* Whatever a Prefill answers: bytes land in the destination alone, and not after the read has ended. */
#include "engines/tcp/client.h"
#include <sys/epoll.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static uint8_t dst[64], after[64];
  static struct tcp_client c = {.epoll = -1, .wake.fd = -1, .ready.fd = -1, .lock = PTHREAD_MUTEX_INITIALIZER};
  static struct rd2h_error err;
  static rd2h_peer *p;
  void *local[] = {dst + 16};
  const uint64_t remote[] = {0}, len[] = {32};
  const struct rd2h_batch b = {.n = 1, .bytes = 32, .local = local, .remote = remote, .len = len};
  struct tcp_slot slot = {.b = &b, .live = true, .err = &err};
  int pair[2];
  if (size > 4096 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair))
    return 0;
  p = p ? p : rd2h_zalloc(sizeof *p + sizeof p->stream[0]);
  *p = (rd2h_peer){.n_streams = 1, .name = "fuzz"};
  struct tcp_stream *s = &p->stream[0];
  memset(s, 0, offsetof(struct tcp_stream, out));
  *s = (struct tcp_stream){.peer = p, .fd = pair[0], .up = true};
  slot.peer = p;
  c.down = (struct tcp_downs){0};
  c.done = (struct tcp_list){0};
  memset(dst, 0, sizeof dst);
  rd2h_tcp_begin(&c, &slot);
  rd2h_tcp_deal(&c, p);
  if (send(pair[1], data, size, 0) < 0 || shutdown(pair[1], SHUT_WR))
    rd2h_tcp_lose(&c, p, RD2H_IO, "send");
  bool ended = false;
  for (int i = 0; i < 1000 && !p->lost; i++) {
    rd2h_tcp_stream_run(&c, s, EPOLLIN);
    if (ended && memcmp(dst, after, sizeof dst))
      __builtin_trap();
    ended = c.done.head != NULL;
    memcpy(after, dst, sizeof dst);
  }
  for (size_t i = 0; i < sizeof dst; i++)
    if ((i < 16 || i >= 48) && dst[i])
      __builtin_trap();
  if (!p->lost || !c.done.head || c.oldest)
    __builtin_trap();
  close(pair[1]);
  return 0;
}
