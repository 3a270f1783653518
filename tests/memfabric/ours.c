/* SPDX-License-Identifier: Apache-2.0 */
/* Our side of the interoperability tests, a process a rank; says what it has as one JSON line, and waits for a line.
 *   ours engine-prefill BYTES                serves a pattern; the engine alone
 *   ours engine-decode SESSION BASE BYTES    reads it out of a peer that published a session only, in scattered pieces
 *   ours decode                              the whole Decode rank: takes one request, compares every block
 *   ours prefill PORT                        the whole Prefill rank: sends that request to the Decode rank at PORT
 * The engine's options stand in $ENGINE. */
#include "engine/engine.h"
#include "tests/integration/rig.h"
#include <poll.h>
#include <time.h>

#define PIECES 3000u
#define LAYERS 3u
#define BLOCKS 32u
#define PEER_MS 60000 /* until a peer in Python has started and sent */
#define REQUEST "moved-12345678"
#define EXTERNAL "moved"

static const char *const protocol[] = {"protocol=host_rdma", NULL};

static uint8_t pattern(uint64_t i) {
  return (uint8_t)(i * 131 + (i >> 8) * 7 + 3);
}

static void wait_line(void) {
  char line[64];
  fflush(stdout);
  RIG_CHECK(fgets(line, sizeof line, stdin));
}

/* ---- the engine alone ---- */
static int engine_prefill(uint64_t bytes) {
  struct rd2h_engine_opts o = {.size = sizeof o, .prefill = true, .options = protocol};
  struct rd2h_error err;
  struct rd2h_buf conn = {0};
  rd2h_eng *e;
  uint32_t region;
  uint8_t *p = malloc(bytes);
  for (uint64_t i = 0; i < bytes; i++)
    p[i] = pattern(i);
  RIG_OK(rd2h_eng_open("memfabric", &o, &e, &err), &err);
  RIG_OK(rd2h_eng_reg(e, &(struct rd2h_region){.base = p, .len = bytes}, &region, &err), &err);
  RIG_OK(rd2h_eng_publish(e, &conn, &err), &err);
  printf("{\"session\": \"%s\", \"base\": %llu}\n", rd2h_eng_session(e), (unsigned long long)(uintptr_t)p);
  wait_line();
  rd2h_eng_close(e);
  rd2h_buf_free(&conn);
  free(p);
  return 0;
}

static void poll_one(rd2h_eng *e, struct rd2h_completion *c) {
  for (int tries = 0; rd2h_eng_poll(e, c, 1) != 1; tries++) {
    RIG_CHECK(tries < RIG_WAIT_MS / 10);
    nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
  }
}

static int engine_decode(const char *session, uint64_t base, uint64_t bytes) {
  static void *local[PIECES];
  static uint64_t remote[PIECES], len[PIECES];
  struct rd2h_engine_opts o = {.size = sizeof o, .options = protocol};
  struct rd2h_batch b = {.id = 1, .n = PIECES, .local = local, .remote = remote, .len = len};
  struct rd2h_completion c;
  struct rd2h_error err;
  rd2h_eng_peer *peer;
  rd2h_eng *e;
  uint64_t piece = bytes / PIECES, wrong = 0;
  uint8_t *p = calloc(1, bytes);
  for (uint32_t i = 0; i < PIECES; i++) { /* backwards, each with a byte that stays */
    local[i] = p + i * piece;
    remote[i] = base + (PIECES - 1 - i) * piece + 1;
    len[i] = piece - 1;
    b.bytes += len[i];
  }
  RIG_OK(rd2h_eng_open("memfabric", &o, &e, &err), &err);
  struct rd2h_blob at = {(const uint8_t *)session, (uint32_t)strlen(session)};
  RIG_OK(rd2h_eng_connect(e, at, (struct rd2h_blob){0}, 1, &peer, &err), &err);
  RIG_CHECK(!rd2h_eng_submit(e, peer, &b));
  poll_one(e, &c);
  for (uint32_t i = 0; i < PIECES; i++)
    for (uint64_t k = 0; k < piece; k++)
      wrong += p[i * piece + k] != (k < len[i] ? pattern(remote[i] - base + k) : 0);
  printf("{\"status\": %d, \"bytes\": %llu, \"wrong\": %llu, \"why\": \"%s\"}\n", c.status, (unsigned long long)c.bytes,
         (unsigned long long)wrong, c.status ? rd2h_eng_last_error(e, 1) : "");
  rd2h_eng_disconnect(e, peer);
  rd2h_eng_close(e);
  free(p);
  return c.status || wrong;
}

/* ---- whole ranks ---- */
static void side_open(struct rig_side *s, struct rig_request *r) {
  struct rig_shape shape = {.layers = LAYERS, .blocks = BLOCKS, .indexer_mask = 7};
  rig_side_open(s, &shape);
  rig_request(r, REQUEST, 6, 1, 4);
  r->ext = EXTERNAL;
}

static int decode(const char *engine) {
  char text[RD2H_ERROR_TEXT];
  struct rig_side s;
  struct rig_request r;
  struct rd2h_decode_stats st;
  side_open(&s, &r);
  rd2h_decode *d = rig_decode(&s, &(struct rd2h_decode_opts){.engine = engine});
  rig_install(d, &r);
  printf("{\"port\": %u}\n", rd2h_decode_port(d));
  fflush(stdout);
  poll(&(struct pollfd){.fd = rd2h_decode_fd(d), .events = POLLIN}, 1, PEER_MS);
  int status = rig_outcome(d, REQUEST, text);
  if (!status)
    rig_expect(&s, &r, 1);
  rd2h_decode_stats(d, &st);
  printf("{\"status\": %d, \"bytes\": %llu, \"why\": \"%s\"}\n", status, (unsigned long long)st.bytes, status ? text : "");
  wait_line();
  rd2h_decode_destroy(d);
  rig_side_close(&s);
  return status;
}

static int prefill(const char *engine, uint16_t port) {
  struct rig_side s;
  struct rig_request r;
  struct rd2h_step_send send;
  side_open(&s, &r);
  for (uint32_t l = 0; l < LAYERS; l++)
    rig_write(&s, l, 1);
  rd2h_prefill *p = rig_prefill(&s, &(struct rd2h_prefill_opts){.engine = engine, .host = "127.0.0.1"});
  rig_send(&send, &r, port, 0, r.n, true);
  rig_step(p, &send, 1, NULL);
  rig_layers(p, LAYERS);
  rig_step(p, NULL, 0, REQUEST);
  printf("{\"status\": %d}\n", rig_settled(p, REQUEST));
  wait_line();
  rd2h_prefill_destroy(p);
  rig_side_close(&s);
  return 0;
}

int main(int argc, char **argv) {
  const char *engine = getenv("ENGINE");
  engine = engine ? engine : "memfabric,protocol=host_rdma";
  if (argc == 3 && !strcmp(argv[1], "engine-prefill"))
    return engine_prefill(strtoull(argv[2], NULL, 10));
  if (argc == 5 && !strcmp(argv[1], "engine-decode"))
    return engine_decode(argv[2], strtoull(argv[3], NULL, 10), strtoull(argv[4], NULL, 10));
  if (argc == 2 && !strcmp(argv[1], "decode"))
    return decode(engine);
  if (argc == 3 && !strcmp(argv[1], "prefill"))
    return prefill(engine, (uint16_t)atoi(argv[2]));
  return 64;
}
