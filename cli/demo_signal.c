/* SPDX-License-Identifier: Apache-2.0 */
/* Signals of the demonstration: one that ends it in order, one at which every rank says where it stands. */
#include "demo.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define DUMP_BYTES 65536u

static struct demo *shared;
static volatile sig_atomic_t asked;

static void on_stop(int sig) {
  __atomic_store_n(&shared->stopped, (uint32_t)sig, __ATOMIC_RELAXED);
}

static void on_dump(int sig) {
  (void)sig;
  asked = 1;
}

void demo_signals(struct demo *d) {
  struct sigaction stop = {.sa_handler = on_stop, .sa_flags = SA_RESTART}, dump = {.sa_handler = on_dump, .sa_flags = SA_RESTART};
  shared = d;
  sigaction(SIGTERM, &stop, NULL);
  sigaction(SIGINT, &stop, NULL);
  sigaction(SIGUSR1, &dump, NULL);
}

void demo_signals_end(void) {
  signal(SIGTERM, SIG_DFL);
  signal(SIGINT, SIG_DFL);
  signal(SIGUSR1, SIG_DFL);
}

uint32_t demo_stopped(const struct demo *d) {
  return __atomic_load_n(&d->stopped, __ATOMIC_RELAXED);
}

bool demo_dump_asked(void) {
  return __atomic_exchange_n(&asked, 0, __ATOMIC_RELAXED); /* one that comes in between is not lost */
}

void demo_dump_block(bool block) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  pthread_sigmask(block ? SIG_BLOCK : SIG_UNBLOCK, &set, NULL);
}

/* ---- a rank ---- */
static struct {
  pthread_t thread;
  bool runs;
  uint32_t over;
  const struct demo_rank *rank;
  size_t (*dump)(void *, char *, size_t);
  void *object;
} speaker;

/* One write a rank, so that ranks do not speak at once. */
static void speak(char *text) {
  size_t n = (size_t)snprintf(text, DUMP_BYTES, "---- %s, process %d\n", speaker.rank->name, (int)getpid());
  size_t more = speaker.dump(speaker.object, text + n, DUMP_BYTES - n);
  n += more < DUMP_BYTES - n ? more : DUMP_BYTES - n - 1;
  if (write(STDERR_FILENO, text, n) < 0)
    perror("rd2h demo");
}

static void *wait_and_speak(void *text) {
  sigset_t set;
  int sig;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  while (!sigwait(&set, &sig) && !__atomic_load_n(&speaker.over, __ATOMIC_ACQUIRE))
    speak(text);
  free(text);
  return NULL;
}

void demo_speaker(const struct demo_rank *r, size_t (*dump)(void *, char *, size_t), void *object) {
  char *text = malloc(DUMP_BYTES);
  speaker.rank = r;
  speaker.dump = dump;
  speaker.object = object;
  speaker.runs = text && !pthread_create(&speaker.thread, NULL, wait_and_speak, text);
  if (!speaker.runs)
    free(text);
}

void demo_speaker_end(void) {
  if (!speaker.runs)
    return;
  __atomic_store_n(&speaker.over, 1, __ATOMIC_RELEASE);
  pthread_kill(speaker.thread, SIGUSR1);
  pthread_join(speaker.thread, NULL);
}
