/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of the demonstration. */
#include "cli.h"
#include "demo.h"
#include <getopt.h>
#include <stdio.h>
#include <string.h>

static void usage(void) {
  puts("rd2h demo: Prefill and Decode engines, every rank a process, move a prompt list; every byte is checked\n"
       "\n"
       "Prefill \"computes\" (writes) the KV cache chunk by chunk and layer by layer and publishes each layer at once; Decode reads it\n"
       "out of Prefill's memory while the next layer is computed. The ranks of a Decode engine pull disjoint parts of main KV into one\n"
       "shared pool, and indexers whole, each for itself. Block ids are random everywhere, some prompts have a prefix that Decode or\n"
       "Prefill holds already. At the end every byte of Decode's memory is compared: what was pulled, and what nobody may touch.\n"
       "\n"
       "usage: rd2h demo [OPTION...]\n"
       "\n"
       "  --prefill-tp N, --prefill-pp N, --decode-tp N   ranks and pipeline stages of an engine (1); any sizes go together\n"
       "  --prefills N, --decodes N                       engines (1); prompts are spread over them\n"
       "  --model NAME       deepseek-v3.2, glm-5 (deepseek-v3.2)\n"
       "  --layers N         layers (those of the model: 61, 78)\n"
       "  --lic8, --bf16-indexer   indexer of 128 bytes a token and a scale of 2 (LIC8), or of 256 bytes (LIC8)\n"
       "  --requests N       prompts in the list (4)\n"
       "  --prompt-tokens N  tokens of a prompt, about (4096)\n"
       "  --chunk N          tokens that one prefill step computes at most; half of it at least (2048)\n"
       "  --block-tokens N   tokens of a block, a multiple of 4 (128)\n"
       "  --reuse-buffers N  storage slots that layers share on Prefill, main and indexers each; a slot is overwritten the instant its\n"
       "                     gate opens (0: every layer has its own)\n"
       "  --independent-layers N   layers of a stage that keep storage of their own beside those slots (0)\n"
       "  --compute-us N     least time that a layer's computation takes, microseconds (0: as long as writing it takes)\n"
       "  --mismatch WHAT    build Prefill differently and see it refused: indexer, layers, heads\n"
       "  --engine NAME      transfer engine: auto, local, tcp, ... (auto)\n"
       "  --seed N           lengths, prefixes, chunks, block ids, contents (1)\n"
       "  --trace FILE       timeline by layer and rank, as Chrome trace JSON (opens in Perfetto)\n"
       "  --json             the figures as JSON, no progress\n"
       "\n"
       "SIGTERM or SIGINT: every rank ends in order, in 10 s at most (else it is killed), and leaves no memory; status 128 + signal\n"
       "SIGUSR1: every rank writes to standard error where it stands: peers, requests, what it waits for");
}

enum { WORD = 256 }; /* options that take no number */
enum { MODEL = WORD, LIC8, BF16, MISMATCH, ENGINE, SEED, TRACE, JSON, HELP };

/* Numbers: getopt's value is the place here. */
#define FIELD(f) offsetof(struct demo, f)
static const struct number {
  const char *name;
  size_t field;
  uint32_t min, max;
} numbers[] = {{"prefill-tp", FIELD(p_tp), 1, DEMO_MAX_TP},
               {"prefill-pp", FIELD(p_pp), 1, DEMO_MAX_PP},
               {"decode-tp", FIELD(d_tp), 1, DEMO_MAX_TP},
               {"prefills", FIELD(p_engines), 1, DEMO_MAX_ENGINES},
               {"decodes", FIELD(d_engines), 1, DEMO_MAX_ENGINES},
               {"layers", FIELD(layers), 1, DEMO_MAX_LAYERS},
               {"requests", FIELD(n_requests), 1, DEMO_MAX_REQUESTS},
               {"prompt-tokens", FIELD(prompt_tokens), 2, 1u << 20},
               {"chunk", FIELD(chunk), 1, 1u << 20},
               {"block-tokens", FIELD(block_tokens), 4, 1024},
               {"reuse-buffers", FIELD(reuse), 0, DEMO_MAX_REUSE},
               {"independent-layers", FIELD(independent), 0, DEMO_MAX_LAYERS},
               {"compute-us", FIELD(compute_us), 0, 1000000}};
enum { N_NUMBERS = sizeof numbers / sizeof numbers[0] };

static const struct option words[] = {
    {"model", required_argument, NULL, MODEL}, {"lic8", no_argument, NULL, LIC8},          {"bf16-indexer", no_argument, NULL, BF16},
    {"mismatch", required_argument, NULL, MISMATCH}, {"engine", required_argument, NULL, ENGINE}, {"seed", required_argument, NULL, SEED},
    {"trace", required_argument, NULL, TRACE}, {"json", no_argument, NULL, JSON},          {"help", no_argument, NULL, HELP}};
enum { N_WORDS = sizeof words / sizeof words[0] };

static bool choose_model(struct demo *d) {
  for (const struct demo_model *m = demo_models; m->name; m++)
    if (!strcmp(m->name, optarg)) {
      d->model = m;
      return true;
    }
  fprintf(stderr, "rd2h demo: --model \"%s\": deepseek-v3.2 or glm-5 is wanted\n", optarg);
  return false;
}

static bool choose_mismatch(struct demo *d) {
  static const char *const names[] = {"none", "indexer", "layers", "heads"};
  for (uint32_t i = 0; i < sizeof names / sizeof names[0]; i++)
    if (!strcmp(names[i], optarg)) {
      d->mismatch = (enum demo_mismatch)i;
      return true;
    }
  fprintf(stderr, "rd2h demo: --mismatch \"%s\": indexer, layers or heads is wanted\n", optarg);
  return false;
}

static bool set_number(const struct number *n, struct demo *d) {
  char option[40];
  uint64_t v;
  snprintf(option, sizeof option, "--%s", n->name);
  if (!parse_number(option, optarg, n->min, n->max, &v))
    return false;
  *(uint32_t *)(void *)((char *)d + n->field) = (uint32_t)v;
  return true;
}

static bool set_word(int c, struct demo *d) {
  switch (c) {
  case MODEL: return choose_model(d);
  case LIC8: d->lic8 = true; return true;
  case BF16: d->lic8 = false; return true;
  case MISMATCH: return choose_mismatch(d);
  case ENGINE: return snprintf(d->engine, sizeof d->engine, "%s", optarg) > 0;
  case SEED: return parse_number("--seed", optarg, 0, UINT64_MAX, &d->seed);
  case TRACE: return snprintf(d->trace, sizeof d->trace, "%s", optarg) > 0;
  default: d->json = true; return true;
  }
}

/* What only fits together or not. */
static bool consistent(struct demo *d) {
  uint32_t ranks = d->p_engines * d->p_pp * d->p_tp + d->d_engines * d->d_tp;
  d->layers = d->layers ? d->layers : d->model->layers;
  if (ranks > DEMO_MAX_RANKS)
    fprintf(stderr, "rd2h demo: %u Prefill and Decode ranks in all, at most %u can be started\n", ranks, DEMO_MAX_RANKS);
  else if (d->layers < d->p_pp)
    fprintf(stderr, "rd2h demo: --layers %u is less than --prefill-pp %u: every stage needs a layer\n", d->layers, d->p_pp);
  else if (d->block_tokens % 4)
    fprintf(stderr, "rd2h demo: --block-tokens %u is no multiple of 4\n", d->block_tokens);
  else if (d->mismatch == DEMO_OTHER_LAYERS && d->layers < 2)
    fprintf(stderr, "rd2h demo: --mismatch layers leaves one out: --layers %u is too few\n", d->layers);
  else
    return true;
  return false;
}

int demo_parse(int argc, char **argv, struct demo *d) {
  struct option options[N_NUMBERS + N_WORDS + 1] = {0};
  int c;
  for (int i = 0; i < N_NUMBERS; i++)
    options[i] = (struct option){numbers[i].name, required_argument, NULL, i};
  memcpy(options + N_NUMBERS, words, sizeof words);
  opterr = 0;
  while ((c = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
    if (c == HELP || c == 'h') {
      usage();
      return EXIT_OK;
    }
    if (c == '?' || c == ':') {
      option_refused("rd2h demo", c, argv[optind - 1]);
      return EXIT_USAGE;
    }
    if (c < N_NUMBERS ? !set_number(&numbers[c], d) : !set_word(c, d))
      return EXIT_USAGE;
  }
  if (optind < argc) {
    option_refused("rd2h demo", '?', argv[optind]);
    return EXIT_USAGE;
  }
  return consistent(d) ? -1 : EXIT_USAGE;
}
