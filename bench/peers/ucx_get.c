/* SPDX-License-Identifier: Apache-2.0 */
/* UCX between two processes, one ucp_get_nbx a block: ucx_get ROUNDS PATTERN BLOCK..., a JSON line a block size. The workload is that
 * of workload.py. The reader decides by UCX_TLS how bytes travel; the source makes progress all the time, as tcp needs it. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

#define POOL (256ull << 20)
#define SAMPLE (8ull << 20)
#define BLOCKS_MAX 4096u
#define STEPS_MAX 8u
#define ROUNDS_MAX 100u

static ucp_context_h context;
static ucp_worker_h worker;
static ucp_ep_h endpoint;
static ucp_rkey_h rkey;
static ucp_mem_h local;
static uint8_t *pool;
static uint64_t remote, open_gets;
static ucs_status_t failure = UCS_OK;

static void check(ucs_status_t s, const char *what) {
  if (s == UCS_OK)
    return;
  fprintf(stderr, "ucx_get: %s: %s\n", what, ucs_status_string(s));
  exit(1);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void all(int fd, void *p, size_t n, bool out) {
  for (uint8_t *at = p; n;) {
    ssize_t k = out ? write(fd, at, n) : read(fd, at, n);
    if (k <= 0)
      exit(1);
    at += k;
    n -= (size_t)k;
  }
}

static ucp_mem_h start(int fill) {
  ucp_params_t p = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_RMA};
  ucp_worker_params_t w = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SINGLE};
  ucp_mem_h mem;
  pool = mmap(NULL, POOL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pool == MAP_FAILED)
    exit(1);
  memset(pool, fill, POOL);
  check(ucp_init(&p, NULL, &context), "ucp_init");
  check(ucp_worker_create(context, &w, &worker), "worker");
  ucp_mem_map_params_t m = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH, .address = pool,
                            .length = POOL};
  check(ucp_mem_map(context, &m, &mem), "mem_map");
  return mem;
}

static void source(int fd) {
  void *key;
  ucp_address_t *address;
  size_t n[2];
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  check(ucp_rkey_pack(context, start(1), &key, &n[0]), "rkey_pack");
  check(ucp_worker_get_address(worker, &address, &n[1]), "address");
  remote = (uintptr_t)pool;
  all(fd, &remote, sizeof remote, true);
  all(fd, n, sizeof n, true);
  all(fd, key, n[0], true);
  all(fd, address, n[1], true);
  for (;;)
    ucp_worker_progress(worker);
}

static void connect_to(int fd) {
  size_t n[2];
  all(fd, &remote, sizeof remote, false);
  all(fd, n, sizeof n, false);
  void *key = malloc(n[0]), *address = malloc(n[1]);
  all(fd, key, n[0], false);
  all(fd, address, n[1], false);
  local = start(0);
  ucp_ep_params_t e = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, .address = address};
  check(ucp_ep_create(worker, &e, &endpoint), "endpoint");
  check(ucp_ep_rkey_unpack(endpoint, key, &rkey), "rkey_unpack");
}

static void landed(void *request, ucs_status_t s, void *user) {
  (void)user;
  open_gets--;
  failure = s == UCS_OK ? failure : s;
  ucp_request_free(request);
}

static double sample(const uint32_t *from, const uint32_t *to, uint32_t n, uint64_t block) {
  ucp_request_param_t p = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_MEMH, .cb.send = landed, .memh = local};
  double begin = now();
  for (uint32_t i = 0; i < n; i++) {
    void *r = ucp_get_nbx(endpoint, pool + to[i] * block, block, remote + from[i] * block, rkey, &p);
    if (UCS_PTR_IS_ERR(r))
      check(UCS_PTR_STATUS(r), "get");
    open_gets += r != NULL;
  }
  while (open_gets)
    ucp_worker_progress(worker);
  check(failure, "get");
  return now() - begin;
}

static uint32_t *ids(uint32_t cache, uint32_t n, bool contiguous, uint64_t seed) {
  uint32_t *v = malloc(cache * sizeof *v);
  for (uint32_t i = 0; i < cache; i++)
    v[i] = i;
  for (uint32_t i = 0; i < n && !contiguous; i++) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    uint32_t k = i + (uint32_t)((seed >> 33) % (cache - i)), was = v[i];
    v[i] = v[k];
    v[k] = was;
  }
  return v;
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void measure(uint64_t block, const char *pattern, uint32_t rounds) {
  static double took[STEPS_MAX * ROUNDS_MAX];
  uint32_t cache = (uint32_t)(POOL / block), n = SAMPLE / block > BLOCKS_MAX ? BLOCKS_MAX : (uint32_t)(SAMPLE / block), k = 0;
  n = n ? n : 1;
  uint32_t steps = cache / n < STEPS_MAX ? cache / n : STEPS_MAX;
  uint32_t *from = ids(cache, n * steps, !strcmp(pattern, "contig"), 1), *to = ids(cache, n * steps, !strcmp(pattern, "contig"), 2);
  for (uint32_t r = 0; r <= rounds; r++) /* the first round is not counted */
    for (uint32_t s = 0; s < steps; s++) {
      double t = sample(from + s * n, to + s * n, n, block);
      if (r)
        took[k++] = t;
    }
  qsort(took, k, sizeof *took, by_value);
  double bytes = (double)n * (double)block / 1e9;
  printf("{\"block\":%llu,\"pattern\":\"%s\",\"blocks\":%u,\"gb_s\":%.4f,\"best_gb_s\":%.4f}\n", (unsigned long long)block, pattern, n,
         bytes / took[k / 2], bytes / took[0]);
  fflush(stdout);
  free(from);
  free(to);
}

int main(int argc, char **argv) {
  int pair[2];
  uint32_t rounds = argc > 3 ? (uint32_t)atoi(argv[1]) : 0;
  if (!rounds || rounds > ROUNDS_MAX || socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
    return 2;
  pid_t child = fork();
  if (!child)
    source(pair[1]);
  close(pair[1]);
  connect_to(pair[0]);
  for (int i = 3; i < argc; i++)
    measure(strtoull(argv[i], NULL, 10), argv[2], rounds);
  kill(child, SIGKILL);
  _exit(0);
}
