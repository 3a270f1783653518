/* SPDX-License-Identifier: Apache-2.0 */
/* Engine ucx beside a bare UCX reader that posts the same gets, alternating in one run. Both read the same memory of the same Prefill
 * process, whose engine answers for either. The bare reader is what a careful UCX program is: one worker, one thread that makes
 * progress without pause, registered destination, no peer failure handling, no cancel. UCX_TLS chooses the way.
 * bench/run.py builds it. A JSON line a load. Usage: UCX_TLS=posix,cma ucx_raw [ROUNDS] */
#include "engine/engine.h"
#include "engines/ucx/ucx.h"
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

#define POOL (384ull << 20)
#define MAX_DESC 4096u
#define MAX_ROUNDS 64u

static const struct load {
  const char *name;
  uint32_t n;
  uint64_t len;
} loads[] = {{"4000 x 256 B", 4000, 256}, {"1000 x 16 KiB", 1000, 16384}, {"1000 x 128 KiB", 1000, 131072},
             {"1 x 256 MiB", 1, 256u << 20}};

static uint8_t *memory;
static uint64_t remote_base;
static struct rd2h_blob conn;
static rd2h_eng *eng;
static rd2h_eng_peer *peer;
static ucp_context_h context;
static ucp_worker_h worker;
static ucp_ep_h endpoint;
static ucp_rkey_h rkey;
static ucp_mem_h memh;
static uint32_t under_way;
static void *local[MAX_DESC];
static uint64_t from[MAX_DESC], len[MAX_DESC];

static void check(bool ok, const char *what) {
  if (ok)
    return;
  fprintf(stderr, "ucx_raw: %s\n", what);
  exit(1);
}

static void open_engine(bool prefill) {
  const struct rd2h_engine_opts o = {.size = sizeof o, .prefill = prefill, .host = "127.0.0.1"};
  struct rd2h_error err = {0};
  uint32_t region;
  check(!rd2h_eng_open("ucx", &o, &eng, &err), err.text);
  check(!rd2h_eng_reg(eng, &(struct rd2h_region){.base = memory, .len = POOL}, &region, &err), err.text);
}

static void source(int fd) {
  struct rd2h_buf b = {0};
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  memset(memory, 1, POOL);
  open_engine(true);
  check(!rd2h_eng_publish(eng, &b, NULL), "publish");
  uint64_t base = (uintptr_t)memory;
  check(write(fd, &base, 8) == 8 && write(fd, b.p, b.len) == (ssize_t)b.len, "control");
  for (;;)
    pause();
}

static void open_bare(void) {
  const ucp_params_t p = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_RMA};
  const ucp_worker_params_t w = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SINGLE};
  const ucp_mem_map_params_t m = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
                                  .address = memory,
                                  .length = POOL};
  struct ucx_conn at;
  check(!rd2h_ucx_conn_decode(conn, &at, NULL), "connection data");
  const ucp_ep_params_t e = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, .address = (const ucp_address_t *)at.address};
  check(ucp_init(&p, NULL, &context) == UCS_OK && ucp_worker_create(context, &w, &worker) == UCS_OK, "UCX");
  check(ucp_mem_map(context, &m, &memh) == UCS_OK && ucp_ep_create(worker, &e, &endpoint) == UCS_OK, "endpoint");
  check(ucp_ep_rkey_unpack(endpoint, at.key[0].key, &rkey) == UCS_OK, "key");
}

static void landed(void *request, ucs_status_t status, void *user) {
  (void)user;
  check(status == UCS_OK, "get");
  under_way--;
  ucp_request_free(request);
}

static double read_bare(uint32_t n) {
  const ucp_request_param_t p = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_MEMH, .cb.send = landed,
                                 .memh = memh};
  uint64_t begin = rd2h_now_ns();
  for (uint32_t i = 0; i < n; i++) {
    void *r = ucp_get_nbx(endpoint, local[i], len[i], from[i], rkey, &p);
    check(!UCS_PTR_IS_ERR(r), "get");
    under_way += r != NULL;
  }
  while (under_way)
    ucp_worker_progress(worker);
  return (double)(rd2h_now_ns() - begin);
}

static double read_engine(uint32_t n) {
  const struct rd2h_batch b = {.id = 1, .n = n, .bytes = n * len[0], .local = local, .remote = from, .len = len};
  struct rd2h_completion c;
  struct pollfd fd = {.fd = rd2h_eng_fd(eng), .events = POLLIN};
  uint64_t begin = rd2h_now_ns();
  check(!rd2h_eng_submit(eng, peer, &b), "submit");
  while (!rd2h_eng_poll(eng, &c, 1))
    poll(&fd, 1, 1000);
  check(!c.status, rd2h_eng_last_error(eng, 1));
  return (double)(rd2h_now_ns() - begin);
}

/* Slots of the pool in random order, none twice; others every round. */
static void draw(const struct load *l, uint64_t seed) {
  static uint32_t a[POOL / 256], b[POOL / 256];
  uint32_t slots = (uint32_t)(POOL / l->len);
  for (uint32_t i = 0; i < slots; i++)
    a[i] = b[i] = i;
  for (uint32_t i = 0; i < l->n; i++) {
    uint32_t *ids[] = {a, b};
    for (int k = 0; k < 2; k++) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      uint32_t j = i + (uint32_t)((seed >> 33) % (slots - i)), was = ids[k][i];
      ids[k][i] = ids[k][j];
      ids[k][j] = was;
    }
    local[i] = memory + a[i] * l->len;
    from[i] = remote_base + b[i] * l->len;
    len[i] = l->len;
  }
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void compare(const struct load *l, uint32_t rounds) {
  double bare[MAX_ROUNDS], ours[MAX_ROUNDS], ratio[MAX_ROUNDS], bytes = (double)l->n * (double)l->len;
  for (uint32_t r = 0; r < rounds; r++) {
    draw(l, r);
    bool first = r % 2;
    bare[r] = first ? read_bare(l->n) : 0;
    ours[r] = read_engine(l->n);
    bare[r] = first ? bare[r] : read_bare(l->n);
    ratio[r] = bare[r] / ours[r];
  }
  qsort(bare, rounds, sizeof *bare, by_value);
  qsort(ours, rounds, sizeof *ours, by_value);
  qsort(ratio, rounds, sizeof *ratio, by_value);
  printf("{\"load\": \"%s\", \"bare_gb_s\": %.4f, \"engine_gb_s\": %.4f, \"best_bare_gb_s\": %.4f, \"best_engine_gb_s\": %.4f, "
         "\"relative\": %.3f}\n", l->name, bytes / bare[rounds / 2], bytes / ours[rounds / 2], bytes / bare[0], bytes / ours[0],
         ratio[rounds / 2]);
  fflush(stdout);
}

int main(int argc, char **argv) {
  static uint8_t data[UCX_CONN_MAX];
  static const char session[] = "source";
  const char *chosen;
  uint32_t rounds = argc > 1 ? (uint32_t)atoi(argv[1]) : 15;
  int pair[2];
  check(rounds && rounds <= MAX_ROUNDS && !socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), "usage: ucx_raw [ROUNDS]");
  memory = mmap(NULL, POOL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  check(memory != MAP_FAILED, "memory");
  pid_t child = fork();
  if (!child)
    source(pair[1]);
  check(read(pair[0], &remote_base, 8) == 8, "the source ended");
  conn = (struct rd2h_blob){data, (uint32_t)read(pair[0], data, sizeof data)};
  memset(memory, 0, POOL);
  open_engine(false);
  struct rd2h_error err = {0};
  struct rd2h_eng_offer offer = {.name = {"ucx", 3}, .conn = conn};
  check(!rd2h_eng_choose(eng, (struct rd2h_blob){(const uint8_t *)session, 6}, &offer, 1, 1, &peer, &chosen, &err), err.text);
  open_bare();
  for (size_t i = 0; i < RD2H_COUNT(loads); i++)
    compare(&loads[i], rounds);
  kill(child, SIGKILL);
  return 0;
}
