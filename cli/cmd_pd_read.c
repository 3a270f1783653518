/* SPDX-License-Identifier: Apache-2.0 */
#include "pd_read.h"
#include "table.h"
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define SHOW_AFTER_NS (2000 * RD2H_MS)
#define SHOW_EACH_NS (200 * RD2H_MS)     /* on a terminal */
#define SHOW_LINE_NS (10000 * RD2H_MS)   /* elsewhere */
#define BYTES_DEFAULT (UINT64_C(64) << 20)
#define PORT_DEFAULT 29599u
#define TIMEOUT_DEFAULT 60u

enum { ROLE = 256, LOCAL_IP, PREFILL_IP, DEVICE, PORT, BYTES, MEMORY, POOL, TIMEOUT, ENGINE, ENGINE_OPTION, SWEEP, PLOT, JSON,
      HELP };
static const struct option words[] = {
  {"role", required_argument, NULL, ROLE}, {"local-ip", required_argument, NULL, LOCAL_IP},
  {"prefill-ip", required_argument, NULL, PREFILL_IP}, {"device-id", required_argument, NULL, DEVICE},
  {"control-port", required_argument, NULL, PORT}, {"num-bytes", required_argument, NULL, BYTES},
  {"dst-memory", required_argument, NULL, MEMORY}, {"dram-pool-gb", required_argument, NULL, POOL},
  {"timeout", required_argument, NULL, TIMEOUT}, {"engine", required_argument, NULL, ENGINE},
  {"engine-option", required_argument, NULL, ENGINE_OPTION}, {"sweep", no_argument, NULL, SWEEP}, {"plot", required_argument,
                                                                                                   NULL, PLOT},
  {"json", no_argument, NULL, JSON}, {"help", no_argument, NULL, HELP}, {0}};

static void usage(void) {
  puts("usage: rd2h pd-read --role prefill --local-ip ADDRESS [OPTION...]      on the first host, first\n"
       "       rd2h pd-read --role decode --prefill-ip ADDRESS [OPTION...]     on the second\n"
       "\n"
       "Moves bytes by a transfer engine between two hosts, or two processes, with nothing else around it: no vLLM, no\n"
       "requests. Prefill fills memory with a pattern and lets it be read; Decode reads all of it; both compare its SHA-256.\n"
       "Use it when a deployment does not work, to learn whether the engine and the network do. The two talk over a TCP\n"
       "port of their own.\n"
       "\n"
       "  --role prefill|decode     the side that is read from, or the one that reads\n"
       "  --local-ip ADDRESS        Prefill: where to listen, as Decode can reach it (127.0.0.1); Decode: where to come from\n"
       "  --prefill-ip ADDRESS      Decode: where Prefill listens\n"
       "  --control-port PORT       of the two's own talk (29599); 0 on Prefill: a free one, which is printed\n"
       "  --num-bytes N             Prefill: how much is moved (64M); K, M, G and T are powers of 1024\n"
       "  --engine NAME             auto (default), local, ucx, tcp or memfabric: the same on both sides\n"
       "  --engine-option K=V       an option of the engine; may be given several times\n"
       "  --device-id N             accelerator that memfabric uses (its option device=N)\n"
       "  --dst-memory offload      Decode: host memory, as sparse offload's pool (default); device: not served yet\n"
       "  --dram-pool-gb N          Decode: GiB of that pool; by default as much as is read\n"
       "  --timeout SECONDS         longest wait for the other side, and for one piece of the transfer (60)\n"
       "  --sweep                   Decode: then GB/s by block size from 256 B to 16 MiB, contiguous and scattered\n"
       "  --plot FILE.svg           Decode: draws the sweep\n"
       "  --json                    one object on standard output instead\n"
       "\n"
       "The last line is PASS or FAIL; a failure's cause and what to do about it are on standard error.\n"
       "Exit status: 0 all bytes were right, 1 they were not or did not come, 2 the command line is wrong.\n"
       "\n"
       "Both sides on one host:\n"
       "  rd2h pd-read --role prefill --num-bytes 1G &\n"
       "  rd2h pd-read --role decode --prefill-ip 127.0.0.1 --sweep --plot sweep.svg");
}

/* ---- what is shown ---- */
void pd_note(const struct pd_read *r, const char *label, const char *fmt, ...) {
  va_list args;
  if (r->json)
    return;
  printf("  %-9s ", label);
  va_start(args, fmt);
  vprintf(fmt, args);
  va_end(args);
  putchar('\n');
  fflush(stdout);
}

void pd_step(struct pd_read *r) {
  pd_progress_end(r);
  r->deadline = rd2h_now_ns() + r->timeout_s * 1000 * RD2H_MS;
  r->progress_ns = rd2h_now_ns() + SHOW_AFTER_NS;
}

void pd_progress(struct pd_read *r, const char *fmt, ...) {
  uint64_t now = rd2h_now_ns();
  bool live = isatty(STDERR_FILENO);
  va_list args;
  if (now < r->progress_ns)
    return;
  r->progress_ns = now + (live ? SHOW_EACH_NS : SHOW_LINE_NS);
  r->progress_shown = live;
  fputs(live ? "\r\033[K  ... " : "  ... ", stderr);
  va_start(args, fmt);
  vfprintf(stderr, fmt, args);
  va_end(args);
  if (!live)
    fputc('\n', stderr);
}

void pd_progress_end(struct pd_read *r) {
  if (r->progress_shown)
    fputs("\r\033[K", stderr);
  r->progress_shown = false;
}

/* ---- the command line ---- */
static bool refuse(const char *option, const char *text, const char *wanted) {
  fprintf(stderr, "rd2h pd-read: %s \"%s\": %s\n", option, text, wanted);
  return false;
}

static bool set_bytes(struct pd_read *r) {
  static const char units[] = "KMGT";
  char *end;
  errno = 0;
  unsigned long long v = strtoull(optarg, &end, 10), max = UINT64_C(1) << 42;
  const char *unit = *end ? strchr(units, *end) : NULL;
  unsigned shift = unit ? 10 * (unsigned)(unit - units + 1) : 0;
  if (*optarg < '0' || *optarg > '9' || errno || (*end && (!unit || end[1])) || !v || v > max >> shift)
    return refuse("--num-bytes", optarg, "a number of bytes from 1 to 4T is wanted, such as 67108864, 64M or 2G");
  r->bytes = v << shift;
  return true;
}

static bool set_address(const char *option, const char **out) {
  struct sockaddr_storage a;
  socklen_t len;
  if (!pd_address(optarg, 0, &a, &len))
    return refuse(option, optarg, "a numeric address is wanted, such as 192.0.2.7 or 2001:db8::7");
  *out = optarg;
  return true;
}

static bool add_option(struct pd_read *r, const char *text) {
  uint32_t n = 0;
  while (r->option[n])
    n++;
  if (n == PD_ENGINE_OPTIONS || !strchr(text, '='))
    return refuse("--engine-option", text, "NAME=VALUE is wanted, 16 times at most");
  r->option[n] = text;
  return true;
}

static bool set_role(struct pd_read *r, bool *has_role) {
  *has_role = true;
  r->prefill = !strcmp(optarg, "prefill");
  return r->prefill || !strcmp(optarg, "decode") || refuse("--role", optarg, "prefill or decode is wanted");
}

static bool set_engine(struct pd_read *r) {
  static const char *const names[] = {"auto", "local", "ucx", "tcp", "memfabric"};
  for (size_t i = 0; i < RD2H_COUNT(names); i++)
    if (!strcmp(names[i], optarg)) {
      r->engine = names[i];
      return true;
    }
  return refuse("--engine", optarg, "auto, local, ucx, tcp or memfabric is wanted");
}

static bool set(struct pd_read *r, int c, bool *has_role) {
  switch (c) {
  case ROLE: return set_role(r, has_role);
  case LOCAL_IP: return set_address("--local-ip", &r->local_ip);
  case PREFILL_IP: return set_address("--prefill-ip", &r->prefill_ip);
  case DEVICE: return parse_number("--device-id", optarg, 0, 65535, &r->device);
  case PORT: return parse_number("--control-port", optarg, 0, 65535, &r->port);
  case BYTES: return set_bytes(r);
  case MEMORY:
    r->memory = !strcmp(optarg, "device") ? PD_DEVICE : PD_OFFLOAD;
    return r->memory == PD_DEVICE || !strcmp(optarg, "offload") || refuse("--dst-memory", optarg, "offload or device is wanted");
  case POOL: return parse_number("--dram-pool-gb", optarg, 1, 4096, &r->pool_gb);
  case TIMEOUT: return parse_number("--timeout", optarg, 1, 86400, &r->timeout_s);
  case ENGINE: return set_engine(r);
  case ENGINE_OPTION: return add_option(r, optarg);
  case SWEEP: return r->sweep = true;
  case PLOT: r->plot = optarg; return true;
  default: return r->json = true;
  }
}

/* What only fits together or not. */
static bool consistent(struct pd_read *r, bool has_role) {
  const char *why = !has_role ? "--role prefill or --role decode is needed"
                  : !r->prefill && !r->prefill_ip ? "Decode needs --prefill-ip, where Prefill listens"
                  : r->prefill && r->prefill_ip ? "--prefill-ip is for Decode; Prefill has --local-ip"
                  : !r->prefill && !r->port ? "--control-port 0 is for Prefill, who says which one it got"
                  : r->prefill && (r->sweep || r->plot || r->pool_gb || r->memory == PD_DEVICE)
                    ? "--sweep, --plot, --dst-memory and --dram-pool-gb are for Decode"
                  : r->plot && !r->sweep ? "--plot draws what --sweep measures: give both" : NULL;
  if (why)
    fprintf(stderr, "rd2h pd-read: %s; see rd2h pd-read --help\n", why);
  if (!why && r->prefill && !r->local_ip)
    r->local_ip = "127.0.0.1";
  if (why || r->device == PD_NONE || strcmp(r->engine, "memfabric"))
    return !why;
  snprintf(r->device_option, sizeof r->device_option, "device=%" PRIu64, r->device);
  return add_option(r, r->device_option);
}

/* Below 0: go on; else the exit status. */
static int parse(int argc, char **argv, struct pd_read *r) {
  bool has_role = false;
  int c;
  opterr = 0;
  while ((c = getopt_long(argc, argv, ":h", words, NULL)) != -1) {
    if (c == HELP || c == 'h') {
      usage();
      return EXIT_OK;
    }
    if (c == '?' || c == ':') {
      option_refused("rd2h pd-read", c, argv[optind - 1]);
      return EXIT_USAGE;
    }
    if (!set(r, c, &has_role))
      return EXIT_USAGE;
  }
  if (optind < argc) {
    option_refused("rd2h pd-read", '?', argv[optind]);
    return EXIT_USAGE;
  }
  return consistent(r, has_role) ? -1 : EXIT_USAGE;
}

int cmd_pd_read(int argc, char **argv) {
  struct pd_read r = {.engine = "auto", .port = PORT_DEFAULT, .bytes = BYTES_DEFAULT, .timeout_s = TIMEOUT_DEFAULT,
                      .device = PD_NONE, .control = -1};
  struct rd2h_error err = {0};
  int rc = parse(argc, argv, &r);
  if (rc >= 0)
    return rc;
  pd_note(&r, r.prefill ? "Prefill" : "Decode", "rd2h %s", rd2h_version());
  pd_step(&r);
  rc = r.prefill ? pd_prefill(&r, &err) : pd_decode(&r, &err);
  pd_progress_end(&r);
  if (r.control >= 0)
    close(r.control);
  rd2h_eng_close(r.eng);
  pd_memory_close(&r);
  if (rc)
    fprintf(stderr, "rd2h pd-read: %s\n", err.text);
  if (!r.json)
    printf("%s%s%s\n", color_bold(), rc ? "FAIL" : "PASS", color_off());
  else if (r.prefill)
    printf("{\"ok\": %s, \"role\": \"prefill\", \"engine\": \"%s\", \"bytes\": %" PRIu64 "}\n", rc ? "false" : "true", r.chosen,
           r.bytes);
  return rc ? EXIT_FAILED : EXIT_OK;
}
