/* SPDX-License-Identifier: Apache-2.0 */
/* The sweep as a picture: bandwidth against block size, both axes logarithmic, two lines. */
#include "pd_read.h"
#include "table.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>

#define WIDTH 760.0
#define HEIGHT 440.0
#define LEFT 70.0
#define RIGHT 130.0
#define TOP 56.0
#define BOTTOM 64.0

struct axes {
  double x0, x1, y0, y1; /* logarithms */
};

static double x_of(const struct axes *a, double block) {
  return LEFT + (log2(block) - a->x0) / (a->x1 - a->x0) * (WIDTH - LEFT - RIGHT);
}

static double y_of(const struct axes *a, double gb_s) {
  return HEIGHT - BOTTOM - (log10(gb_s) - a->y0) / (a->y1 - a->y0) * (HEIGHT - TOP - BOTTOM);
}

static void text(FILE *f, double x, double y, const char *anchor, const char *style, const char *what) {
  fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" %s>", x, y, anchor, style);
  for (; *what; what++)
    if (*what == '<' || *what == '&')
      fprintf(f, "&#%d;", *what);
    else
      fputc(*what, f);
  fputs("</text>\n", f);
}

static struct axes fit(const struct pd_row *rows, uint32_t n) {
  double low = INFINITY, high = 0;
  for (uint32_t i = 0; i < n; i++) {
    low = fmin(low, fmin(rows[i].contiguous, rows[i].scattered));
    high = fmax(high, fmax(rows[i].contiguous, rows[i].scattered));
  }
  return (struct axes){log2((double)rows[0].block) - 0.25, log2((double)rows[n - 1].block) + 0.25, log10(low) - 0.12,
                       log10(high) + 0.12};
}

static void grid(FILE *f, const struct axes *a, const struct pd_row *rows, uint32_t n) {
  static const double steps[] = {1, 2, 5};
  char label[32];
  for (int decade = -4; decade < 5; decade++)
    for (int k = 0; k < 3; k++) {
      double v = steps[k] * pow(10, decade);
      if (log10(v) < a->y0 || log10(v) > a->y1)
        continue;
      fprintf(f, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#e4e7eb\"/>\n", LEFT, WIDTH - RIGHT, y_of(a, v),
              y_of(a, v));
      snprintf(label, sizeof label, "%g", v);
      text(f, LEFT - 9, y_of(a, v) + 4, "end", "class=\"tick\"", label);
    }
  for (uint32_t i = 0; i < n; i++)
    text(f, x_of(a, (double)rows[i].block), HEIGHT - BOTTOM + 22, "middle", "class=\"tick\"", size_text(rows[i].block, label));
  fprintf(f, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#cbd2d9\"/>\n", LEFT, WIDTH - RIGHT, HEIGHT - BOTTOM,
          HEIGHT - BOTTOM);
}

static void curve(FILE *f, const struct axes *a, const struct pd_row *rows, uint32_t n, bool scattered, const char *colour) {
  fprintf(f, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2.4\" stroke-linejoin=\"round\" points=\"", colour);
  for (uint32_t i = 0; i < n; i++)
    fprintf(f, "%.1f,%.1f ", x_of(a, (double)rows[i].block), y_of(a, scattered ? rows[i].scattered : rows[i].contiguous));
  fputs("\"/>\n", f);
  for (uint32_t i = 0; i < n; i++)
    fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.4\" fill=\"%s\"/>\n", x_of(a, (double)rows[i].block),
            y_of(a, scattered ? rows[i].scattered : rows[i].contiguous), colour);
}

/* Names stand where the lines end, one above the other. */
static void names(FILE *f, const struct axes *a, const struct pd_row *last) {
  double c = y_of(a, last->contiguous), s = y_of(a, last->scattered), x = x_of(a, (double)last->block) + 12;
  if (fabs(c - s) < 18) {
    double middle = (c + s) / 2, away = c <= s ? -9 : 9;
    c = middle + away;
    s = middle - away;
  }
  text(f, x, c + 4, "start", "fill=\"#0b6bcb\" font-weight=\"600\"", "contiguous");
  text(f, x, s + 4, "start", "fill=\"#d1495b\" font-weight=\"600\"", "scattered");
}

int pd_plot(const char *path, const char *title, const struct pd_row *rows, uint32_t n, struct rd2h_error *err) {
  FILE *f = fopen(path, "w");
  if (!f)
    return rd2h_fail(err, RD2H_IO, "--plot %.300s cannot be written: %s", path, strerror(errno));
  const struct axes a = fit(rows, n);
  fprintf(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" "
          "font-family=\"Helvetica Neue, Helvetica, Arial, DejaVu Sans, sans-serif\" font-size=\"13\" fill=\"#1f2933\">\n"
          "<style>.tick{fill:#7b8794;font-size:12px}</style>\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
          WIDTH, HEIGHT, WIDTH, HEIGHT);
  text(f, LEFT, 30, "start", "font-size=\"15\" font-weight=\"700\"", title);
  text(f, LEFT - 44, TOP - 8, "start", "class=\"tick\"", "GB/s");
  text(f, LEFT + (WIDTH - LEFT - RIGHT) / 2, HEIGHT - 16, "middle", "", "block size");
  grid(f, &a, rows, n);
  curve(f, &a, rows, n, true, "#d1495b");
  curve(f, &a, rows, n, false, "#0b6bcb");
  names(f, &a, &rows[n - 1]);
  fputs("</svg>\n", f);
  bool bad = ferror(f);
  return fclose(f) || bad ? rd2h_fail(err, RD2H_IO, "--plot %.300s could not be written to its end: %s", path,
                                      strerror(errno)) : RD2H_OK;
}
