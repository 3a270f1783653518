/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_CLI_DOCTOR_H
#define RD2H_CLI_DOCTOR_H
/* rd2h doctor: a list of findings, each with what was seen and, where it is not well, what to do. */
#include "base/base.h"

#define DOCTOR_FINDINGS 64u
#define DOCTOR_TEXT 480u

enum doctor_state { DOCTOR_OK, DOCTOR_WARN, DOCTOR_MISSING }; /* missing: what needs it does not work here */

struct doctor_finding {
  const char *group, *name;
  enum doctor_state state;
  char text[DOCTOR_TEXT], advice[DOCTOR_TEXT];
};
struct doctor {
  uint32_t n;
  struct doctor_finding finding[DOCTOR_FINDINGS];
  const char *engine; /* the one that is asked about; NULL: any */
};

/* The new finding, so that advice can be added; never NULL: past the limit the last one is written over. */
struct doctor_finding *doctor_add(struct doctor *, const char *group, const char *name, enum doctor_state, const char *fmt, ...)
  RD2H_PRINTF(5, 6);
void doctor_advise(struct doctor_finding *, const char *fmt, ...) RD2H_PRINTF(2, 3);
/* First line of a small file without its newline; false: not there. */
bool doctor_read(const char *path, char *out, size_t cap);

void doctor_engines(struct doctor *); /* each opened in a process of its own */
void doctor_system(struct doctor *);  /* permissions, limits, memory */
void doctor_network(struct doctor *); /* addresses, ports */
void doctor_devices(struct doctor *); /* accelerators, RDMA */
#endif
