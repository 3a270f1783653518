/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_WIRE_TEST_GEN_H
#define RD2H_WIRE_TEST_GEN_H
/* For tests: random messages from a seed. Their arrays lie in the generator's arena until the next gen_start. */
#include "wire/wire.h"

struct gen {
  uint64_t state;
  struct rd2h_arena arena;
};
void gen_start(struct gen *, uint64_t seed);
void gen_free(struct gen *);
uint64_t gen_u64(struct gen *);
uint32_t gen_below(struct gen *, uint32_t end);
uint64_t gen_number(struct gen *, uint64_t max); /* any magnitude up to max equally likely */
struct rd2h_str gen_str(struct gen *, uint32_t max);
void gen_ext(struct gen *, struct rd2h_wire_ext *);
void gen_meta(struct gen *, struct rd2h_wire_meta *);
void gen_ready(struct gen *, struct rd2h_wire_ready *);
void gen_cancel(struct gen *, struct rd2h_wire_cancel *);
/* Requests with statuses, as a reply reports them. */
struct rd2h_wire_req *gen_outcomes(struct gen *, uint32_t n);
#endif
