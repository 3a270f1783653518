/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"
#include "doctor.h"
#include "table.h"
#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/utsname.h>
#include <unistd.h>

#define WIDTH_DEFAULT 118
#define WIDTH_MIN 60
#define INDENT 27 /* where texts begin */

static const char *const state_names[] = {"ok", "warn", "missing"};

static void usage(void) {
  puts("usage: rd2h doctor [--engine NAME] [--json]\n"
       "\n"
       "Says what works on this host, what does not, why, and what to do: transfer engines and their libraries, permissions, "
       "limits,\n"
       "memory, network, devices. It changes nothing; each engine is opened once, in a process of its own.\n"
       "\n"
       "  ok        works\n"
       "  warn      works, but not as well as it could, or not in every case\n"
       "  missing   what needs it does not work here; often that is as it should be\n"
       "\n"
       "  --engine NAME   the exit status is about this engine: local, ucx, tcp or memfabric\n"
       "  --json          one object on standard output, for scripts\n"
       "\n"
       "Exit status: 0 at least one engine works (or the one named), 1 none does, 2 the command line is wrong.\n"
       "Whether two hosts reach each other is tried by rd2h pd-read.");
}

/* ---- findings ---- */
struct doctor_finding *doctor_add(struct doctor *d, const char *group, const char *name, enum doctor_state state, const char *fmt,
                                  ...) {
  struct doctor_finding *f = &d->finding[d->n < DOCTOR_FINDINGS ? d->n++ : DOCTOR_FINDINGS - 1];
  va_list args;
  *f = (struct doctor_finding){.group = group, .name = name, .state = state};
  va_start(args, fmt);
  vsnprintf(f->text, sizeof f->text, fmt, args);
  va_end(args);
  return f;
}

void doctor_advise(struct doctor_finding *f, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  vsnprintf(f->advice, sizeof f->advice, fmt, args);
  va_end(args);
}

/* ---- the table ---- */
static int width(void) {
  struct winsize w;
  if (!isatty(STDOUT_FILENO) || ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) || !w.ws_col)
    return WIDTH_DEFAULT;
  return w.ws_col < WIDTH_MIN ? WIDTH_MIN : w.ws_col;
}

/* Words of text in lines of at most so many columns, the first of which has begun. */
static void wrap(const char *text, int columns) {
  int at = INDENT;
  while (*text) {
    int n = (int)strcspn(text, " ");
    if (at > INDENT && at + 1 + n > columns) {
      printf("\n%*s", INDENT, "");
      at = INDENT;
    } else if (at > INDENT) {
      putchar(' ');
      at++;
    }
    printf("%.*s", n, text);
    at += n;
    text += n + (text[n] == ' ');
  }
  putchar('\n');
}

static void print_finding(const struct doctor_finding *f, int columns) {
  const char *tone = f->state == DOCTOR_OK ? "" : f->state == DOCTOR_WARN ? color_bold() : color_dim();
  printf("  %s%-8s%s %-15s ", tone, state_names[f->state], color_off(), f->name);
  wrap(f->text, columns);
  if (*f->advice) {
    printf("%*s", INDENT - 3, "");
    fputs("-> ", stdout);
    wrap(f->advice, columns);
  }
}

static void print_all(const struct doctor *d) {
  static const char *const groups[][2] = {{"engines", "Transfer engines"}, {"libraries", "Libraries"}, {"permissions",
                                                                                                        "Permissions and limits"},
                                          {"memory", "Memory"}, {"network", "Network"}, {"devices", "Devices"}};
  struct utsname u;
  uname(&u);
  printf("%srd2h doctor%s  rd2h %s, %s %s, %s, %ld CPUs\n", color_bold(), color_off(), rd2h_version(), u.sysname, u.release,
         u.machine,
         sysconf(_SC_NPROCESSORS_ONLN));
  for (size_t g = 0; g < RD2H_COUNT(groups); g++) {
    printf("\n%s%s%s\n", color_bold(), groups[g][1], color_off());
    for (uint32_t i = 0; i < d->n; i++)
      if (!strcmp(d->finding[i].group, groups[g][0]))
        print_finding(&d->finding[i], width());
  }
}

/* ---- the sum ---- */
static bool counts(const struct doctor *d, const struct doctor_finding *f) {
  return !strcmp(f->group, "engines") && f->state == DOCTOR_OK && (!d->engine || !strcmp(d->engine, f->name));
}

static bool works(const struct doctor *d) {
  bool any = false;
  for (uint32_t i = 0; i < d->n; i++)
    any |= counts(d, &d->finding[i]);
  return any;
}

static void print_sum(const struct doctor *d) {
  uint32_t n[3] = {0};
  for (uint32_t i = 0; i < d->n; i++)
    n[d->finding[i].state]++;
  printf("\n%u ok, %u warn, %u missing. ", n[DOCTOR_OK], n[DOCTOR_WARN], n[DOCTOR_MISSING]);
  if (d->engine)
    printf("Engine %s %s here.\n", d->engine, works(d) ? "works" : "does not work");
  else
    puts(works(d) ? "Whether two hosts reach each other: rd2h pd-read." : "No engine works here.");
}

static void print_json(const struct doctor *d) {
  json_t *engines = json_array(), *checks = json_array();
  for (uint32_t i = 0; i < d->n; i++) {
    const struct doctor_finding *f = &d->finding[i];
    if (!strcmp(f->group, "engines") && f->state == DOCTOR_OK)
      json_array_append_new(engines, json_string(f->name));
    json_array_append_new(checks, json_pack("{s:s, s:s, s:s, s:s, s:s}", "group", f->group, "name", f->name, "state",
                                            state_names[f->state], "text", f->text, "advice", f->advice));
  }
  json_t *all = json_pack("{s:b, s:s, s:o, s:o}", "ok", works(d), "rd2h", rd2h_version(), "engines", engines, "checks", checks);
  json_dumpf(all, stdout, JSON_INDENT(1));
  puts("");
  json_decref(all);
}

static bool known(const char *name) {
  static const char *const names[] = {"local", "ucx", "tcp", "memfabric"};
  for (size_t i = 0; i < RD2H_COUNT(names); i++)
    if (!strcmp(names[i], name))
      return true;
  fprintf(stderr, "rd2h doctor: --engine \"%s\": local, ucx, tcp or memfabric is wanted\n", name);
  return false;
}

int cmd_doctor(int argc, char **argv) {
  static const struct option words[] = {{"json", no_argument, NULL, 'j'}, {"engine", required_argument, NULL, 'e'},
                                        {"help", no_argument, NULL, 'h'}, {0}};
  static struct doctor d;
  bool json = false;
  int c;
  opterr = 0;
  while ((c = getopt_long(argc, argv, ":h", words, NULL)) != -1) {
    if (c == 'h') {
      usage();
      return EXIT_OK;
    }
    if (c == '?' || c == ':') {
      option_refused("rd2h doctor", c, argv[optind - 1]);
      return EXIT_USAGE;
    }
    json |= c == 'j';
    d.engine = c == 'e' ? optarg : d.engine;
  }
  if (optind < argc) {
    option_refused("rd2h doctor", '?', argv[optind]);
    return EXIT_USAGE;
  }
  if (d.engine && !known(d.engine))
    return EXIT_USAGE;
  doctor_engines(&d);
  doctor_system(&d);
  doctor_network(&d);
  doctor_devices(&d);
  if (json) {
    print_json(&d);
  } else {
    print_all(&d);
    print_sum(&d);
  }
  return works(&d) ? EXIT_OK : EXIT_FAILED;
}
