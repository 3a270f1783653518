/* SPDX-License-Identifier: Apache-2.0 */
/* Who may read: the engine's own token, or one made for a single connection of a reader, which ends with that connection. */
#include "engines/tcp/server.h"

#define READERS_MAX 8192u

static struct tcp_token *find(const struct tcp_server *s, uint64_t reader) {
  for (uint32_t i = 0; i < s->n_tokens; i++)
    if (s->token[i].reader == reader)
      return &s->token[i];
  return NULL;
}

static bool make_room(struct tcp_server *s) {
  if (s->n_tokens < s->cap_tokens)
    return true;
  uint32_t cap = s->cap_tokens ? s->cap_tokens * 2 : 16;
  struct tcp_token *t = cap <= READERS_MAX ? rd2h_realloc(s->token, cap * sizeof *t) : NULL;
  if (!t)
    return false;
  s->token = t;
  s->cap_tokens = cap;
  return true;
}

int rd2h_tcp_server_admit(struct tcp_server *s, uint64_t reader, uint8_t token[TCP_TOKEN]) {
  struct tcp_token fresh = {.reader = reader};
  if (!reader || rd2h_random(fresh.token, TCP_TOKEN))
    return RD2H_IO;
  pthread_mutex_lock(&s->lock);
  struct tcp_token *t = find(s, reader);
  bool room = t || make_room(s);
  if (room)
    *(t ? t : &s->token[s->n_tokens++]) = fresh;
  pthread_mutex_unlock(&s->lock);
  if (!room)
    return RD2H_LIMIT;
  memcpy(token, fresh.token, TCP_TOKEN);
  return RD2H_OK;
}

void rd2h_tcp_server_revoke(struct tcp_server *s, uint64_t reader) {
  pthread_mutex_lock(&s->lock);
  struct tcp_token *t = find(s, reader);
  if (t) {
    *t = s->token[--s->n_tokens];
    rd2h_tcp_server_settle(s);
  }
  pthread_mutex_unlock(&s->lock);
}

/* All are compared, each in constant time: how long it takes tells nothing about them. */
int rd2h_tcp_server_greet(struct tcp_server *s, const uint8_t hello[TCP_HELLO], uint64_t *reader) {
  int rc = rd2h_tcp_hello_check(hello, s->self.token);
  *reader = 0;
  if (rc != RD2H_PERMISSION)
    return rc;
  pthread_mutex_lock(&s->lock);
  for (uint32_t i = 0; i < s->n_tokens; i++)
    if (!rd2h_tcp_hello_check(hello, s->token[i].token)) {
      *reader = s->token[i].reader;
      rc = RD2H_OK;
    }
  pthread_mutex_unlock(&s->lock);
  return rc;
}

bool rd2h_tcp_server_knows(const struct tcp_server *s, uint64_t reader) {
  return !reader || find(s, reader);
}
