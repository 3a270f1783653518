/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_SRC_LAYOUT_NAMES_H
#define RD2H_SRC_LAYOUT_NAMES_H
/* What a KV layer's name says. */
#include <stdbool.h>
#include <stdint.h>

/* "indexer" in any case, anywhere. */
bool rd2h_name_is_indexer(const char *name);
/* The n of the first "layers.<n>"; RD2H_NONE when there is none, or none below 2^31. */
uint32_t rd2h_name_number(const char *name);
#endif
