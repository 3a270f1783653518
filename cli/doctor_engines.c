/* SPDX-License-Identifier: Apache-2.0 */
/* Each engine is opened as Decode does it, in a child process: a library that hangs or crashes takes nothing along. */
#include "doctor.h"
#include "engine/engine.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define OPEN_MS 20000
#define KNOWN_ENGINES 4u

struct answer {
  int status;
  char text[DOCTOR_TEXT]; /* why not; or what the engine said of itself */
};
static const struct {
  const char *name, *what;
  const char *options[3];
} engines[KNOWN_ENGINES] = {
  {"local", "within this host: copies of shared memory, process_vm_readv for the rest", {NULL}},
  {"ucx", "RDMA, shared memory or TCP by UCX", {NULL}},
  {"tcp", "between any two hosts", {NULL}},
  {"memfabric", "Ascend NPUs, and host memory over RDMA or TCP, by MemFabric", {"protocol=host_tcp", "init_s=5"}},
};

/* Lines that begin "engine NAME: " tell what was found; the last one counts. */
static void on_line(void *user, int level, const char *line) {
  struct answer *a = user;
  const char *text = strncmp(line, "engine ", 7) ? NULL : strstr(line, ": ");
  if (text && level >= RD2H_LOG_INFO)
    snprintf(a->text, sizeof a->text, "%s", text + 2);
}

static void child(uint32_t i, int out) {
  struct answer a = {0};
  struct rd2h_error err = {0};
  const struct rd2h_engine_opts o = {.size = sizeof o, .host = "127.0.0.1", .options = engines[i].options};
  rd2h_eng *e;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  rd2h_log_set(on_line, &a, RD2H_LOG_INFO);
  a.status = rd2h_eng_open(engines[i].name, &o, &e, &err);
  if (a.status)
    snprintf(a.text, sizeof a.text, "%s", err.text);
  ssize_t n = write(out, &a, sizeof a);
  _exit(n == sizeof a ? 0 : 1); /* nothing is closed: what hangs or crashes then is of no interest */
}

/* Waits for the answer; false and a text when there is none. */
static bool ask(uint32_t i, struct answer *a) {
  int pair[2], status = 0;
  if (pipe(pair)) {
    snprintf(a->text, sizeof a->text, "cannot be tried: pipe: %s", strerror(errno));
    return false;
  }
  fflush(NULL);
  pid_t pid = fork();
  if (!pid)
    child(i, pair[1]);
  close(pair[1]);
  struct pollfd p = {.fd = pair[0], .events = POLLIN};
  bool came = pid > 0 && poll(&p, 1, OPEN_MS) == 1, good = came && read(pair[0], a, sizeof *a) == sizeof *a;
  close(pair[0]);
  if (pid > 0) {
    kill(pid, came ? 0 : SIGKILL);
    waitpid(pid, &status, 0);
  }
  if (!good && !came)
    snprintf(a->text, sizeof a->text, "did not open within %d s: its library hangs", OPEN_MS / 1000);
  else if (!good)
    snprintf(a->text, sizeof a->text, "its process ended by %s %d while the library was loaded: the library is damaged, or built for "
             "another system", WIFSIGNALED(status) ? "signal" : "status", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
  return good;
}

void doctor_engines(struct doctor *d) {
  for (uint32_t i = 0; i < KNOWN_ENGINES; i++) {
    struct answer a = {0};
    const char *why = a.text, *said = a.text;
    char own[32];
    bool answered = ask(i, &a);
    if (answered && a.status == RD2H_NOT_FOUND && strstr(a.text, "there is no transfer engine"))
      continue; /* this build has none of that name */
    int n = snprintf(own, sizeof own, "engine %s: ", engines[i].name);
    if (!strncmp(a.text, own, (size_t)n))
      why += n;
    if (answered && !a.status)
      doctor_add(d, "engines", engines[i].name, DOCTOR_OK, "%s%s%s", engines[i].what, *said ? "; " : "", said);
    else
      doctor_add(d, "engines", engines[i].name, DOCTOR_MISSING, "%s", why);
  }
}
