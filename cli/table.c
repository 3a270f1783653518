/* SPDX-License-Identifier: Apache-2.0 */
#include "table.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool colored(void) {
  const char *term = getenv("TERM"), *no = getenv("NO_COLOR");
  return isatty(STDOUT_FILENO) && !(no && *no) && term && strcmp(term, "dumb");
}

const char *color_bold(void) {
  return colored() ? "\033[1m" : "";
}

const char *color_dim(void) {
  return colored() ? "\033[2m" : "";
}

const char *color_off(void) {
  return colored() ? "\033[0m" : "";
}

const char *size_text(uint64_t bytes, char out[32]) {
  static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double v = (double)bytes;
  int u = 0;
  for (; v >= 1024 && u < 4; u++)
    v /= 1024;
  snprintf(out, 32, "%.4g %s", v, units[u]);
  return out;
}

bool table_begin(struct table *t, const char *const *headers) {
  *t = (struct table){.rows = 1, .cell = calloc(TABLE_ROWS, sizeof *t->cell)};
  if (!t->cell)
    return false;
  for (; t->columns < TABLE_COLUMNS && headers[t->columns]; t->columns++) {
    const char *h = headers[t->columns];
    t->left[t->columns] = *h == '<';
    snprintf(t->cell[0][t->columns], TABLE_CELL, "%s", h + (*h == '<'));
  }
  return true;
}

void table_cell(struct table *t, const char *fmt, ...) {
  if (t->rows == TABLE_ROWS || t->at == t->columns)
    return;
  va_list args;
  va_start(args, fmt);
  vsnprintf(t->cell[t->rows][t->at++], TABLE_CELL, fmt, args);
  va_end(args);
}

void table_row_end(struct table *t) {
  t->at = 0;
  if (t->rows < TABLE_ROWS)
    t->rows++;
}

static int width_of(const struct table *t, int column) {
  int width = 0;
  for (int r = 0; r < t->rows; r++) {
    int n = (int)strlen(t->cell[r][column]);
    width = n > width ? n : width;
  }
  return width;
}

void table_end(struct table *t) {
  for (int r = 0; r < t->rows; r++) {
    fputs(r ? "" : color_bold(), stdout);
    for (int c = 0; c < t->columns; c++) {
      int width = width_of(t, c);
      printf("  %*s", t->left[c] ? -width : width, t->cell[r][c]);
    }
    printf("%s\n", r ? "" : color_off());
  }
  free(t->cell);
  *t = (struct table){0};
}
