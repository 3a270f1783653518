/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_CLI_TABLE_H
#define RD2H_CLI_TABLE_H
/* Tables of aligned columns for people. Cells are copied; cells past the limits are dropped. */
#include <stdbool.h>
#include <stdint.h>

#define TABLE_COLUMNS 12
#define TABLE_ROWS 256
#define TABLE_CELL 48

struct table {
  int columns, rows, at; /* at: next cell of the row being filled */
  bool left[TABLE_COLUMNS];
  char (*cell)[TABLE_COLUMNS][TABLE_CELL]; /* row 0: headers */
};

/* Headers end with NULL; one that begins with '<' makes a column of words (left), else of numbers (right). False: no memory. */
bool table_begin(struct table *, const char *const *headers);
void table_cell(struct table *, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void table_row_end(struct table *);
/* Prints to standard output and frees. */
void table_end(struct table *);

/* "64 MiB" */
const char *size_text(uint64_t bytes, char out[32]);

/* Escape sequence for standard output, "" where that is no terminal or NO_COLOR is set. */
const char *color_bold(void);
const char *color_dim(void);
const char *color_off(void);
#endif
