/* SPDX-License-Identifier: Apache-2.0 */
/* Clients, a Prefill and a Decode engine for measuring a proxy between them: one thread, so cheap that the proxy is what is measured.
 *
 *   proxy-load        prints the ports of Prefill and Decode, then obeys lines on stdin with one line of JSON each:
 *     run PORT CLIENTS REQUESTS EVENTS GAP_MS    EVENTS 0: answers that are no streams; GAP_MS 0: all events at once, each in a send
 *     hold PORT STREAMS                          opens streams that get one event and wait
 *     release                                    and lets them end
 *
 * Decode posts its rendezvous on connections that it keeps, and answers when Prefill has. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAX_FD = 1 << 17, BUFFER = 64 << 10, LIMIT_S = 120 };
enum kind { NONE, LISTEN_PREFILL, LISTEN_DECODE, PREFILL, DECODE, RENDEZVOUS, CLIENT };

struct conn {
  enum kind kind;
  int fd;
  char *text; /* what has come of a message */
  size_t n, room;
  /* Decode's: the answer that is being sent; a client's: the one it waits for */
  int owner; /* a rendezvous': Decode's connection */
  bool stream, in_body, chunked;
  int sent, newlines, status;
  char last;
  size_t left;
  double due, begun;
};

static struct conn at[MAX_FD];
static int poller, spare[MAX_FD], spares; /* spare: kept rendezvous connections */
static int streams[MAX_FD], n_streams;    /* Decode's connections that still have events to send */
static struct {
  int port, events, left, open, failed, done, holding, held;
  double gap;
  double *took;
  char request[2048];
} job;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void die(const char *what) {
  fprintf(stderr, "proxy-load: %s: %s\n", what, strerror(errno));
  exit(1);
}

/* ---- connections ---- */
static struct conn *adopt(int fd, enum kind kind) {
  struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
  if (fd < 0 || fd >= MAX_FD)
    die("a connection (ulimit -n)");
  struct conn *c = at + fd;
  c->kind = kind;
  c->fd = fd;
  c->n = 0;
  c->in_body = c->stream = false;
  c->owner = -1;
  if (epoll_ctl(poller, EPOLL_CTL_ADD, fd, &e))
    die("epoll");
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
  return c;
}

static struct conn *dial(enum kind kind) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)job.port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0)
    die("socket (ulimit -n)");
  if (connect(fd, (struct sockaddr *)&a, sizeof a)) {
    close(fd);
    return NULL;
  }
  fcntl(fd, F_SETFL, O_NONBLOCK);
  return adopt(fd, kind);
}

static void drop(struct conn *c) {
  for (int i = 0; i < spares; i++)
    if (spare[i] == c->fd)
      spare[i--] = spare[--spares];
  for (int i = 0; i < n_streams; i++)
    if (streams[i] == c->fd)
      streams[i--] = streams[--n_streams];
  c->kind = NONE;
  free(c->text);
  c->text = NULL;
  c->room = c->n = 0;
  close(c->fd);
}

static int listen_on(enum kind kind) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t n = sizeof a;
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  if (fd < 0 || bind(fd, (struct sockaddr *)&a, n) || listen(fd, 8192) || getsockname(fd, (struct sockaddr *)&a, &n))
    die("listen");
  adopt(fd, kind);
  return ntohs(a.sin_port);
}

/* Small messages into empty sockets: all of it or nothing. */
static void say(struct conn *c, const char *text, size_t n) {
  if (send(c->fd, text, n, MSG_NOSIGNAL) != (ssize_t)n)
    job.failed++;
}

/* ---- messages ---- */
static const char *header(struct conn *c, const char *name, size_t head) {
  size_t n = strlen(name);
  for (const char *p = c->text, *end = p + head; p + n < end; p = (const char *)memchr(p, '\n', (size_t)(end - p)) + 1)
    if (strncasecmp(p, name, n) == 0)
      return p + n;
  return NULL;
}

/* Whether a whole message with Content-Length is there; *body: where it begins. */
static bool whole(struct conn *c, size_t *body) {
  char *end = c->n ? memmem(c->text, c->n, "\r\n\r\n", 4) : NULL;
  if (!end)
    return false;
  *body = (size_t)(end + 4 - c->text);
  const char *length = header(c, "content-length:", *body);
  return c->n >= *body + (length ? strtoul(length, NULL, 10) : 0);
}

static void answer_json(struct conn *c, const char *json) {
  char text[512];
  say(c, text, (size_t)snprintf(text, sizeof text, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                                strlen(json), json));
}

/* ---- Decode ---- */
static void post_rendezvous(struct conn *d, const char *id, const char *path) {
  char body[512], text[1024];
  struct conn *r = spares ? at + spare[--spares] : dial(RENDEZVOUS);
  if (!r) {
    job.failed++;
    return;
  }
  r->owner = d->fd;
  int n = snprintf(body, sizeof body, "{\"request_id\":\"cmpl-%s-0\",\"do_remote_prefill\":false,\"do_remote_decode\":true,"
                   "\"remote_engine_id\":\"e\",\"remote_host\":\"127.0.0.1\",\"remote_port\":20050,\"remote_tp_size\":1,"
                   "\"remote_pcp_size\":1,\"remote_dcp_size\":1,\"remote_cached_tokens\":0}", id);
  n = snprintf(text, sizeof text, "POST %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
               "Content-Length: %d\r\n\r\n%s", path, job.port, n, body);
  say(r, text, (size_t)n);
}

static void on_decode(struct conn *c, size_t body) {
  char id[128] = "", path[256] = "";
  const char *rid = header(c, "x-request-id:", body), *url = memmem(c->text + body, c->n - body, "\"metaserver\"", 12);
  c->text[c->n - 1] = 0; /* the closing brace */
  if (!rid || !url || sscanf(rid, " %127[^\r]", id) != 1 || !(url = strstr(url, "://")) ||
      sscanf(strchr(url + 3, '/'), "%255[^\"]", path) != 1) {
    fprintf(stderr, "proxy-load: a request without id or metaserver\n");
    exit(1);
  }
  c->stream = strstr(c->text + body, "\"stream\": true") || strstr(c->text + body, "\"stream\":true");
  post_rendezvous(c, id, path);
}

static bool send_event(struct conn *c) {
  char event[256], text[300];
  int n = c->sent < job.events
    ? snprintf(event, sizeof event, "data: {\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":1,\"model\":\"tiny\",\"choices\":"
               "[{\"index\":0,\"text\":\" token%d\",\"logprobs\":null,\"finish_reason\":null,\"stop_reason\":null}],\"usage\":null}\n\n",
               c->sent)
    : snprintf(event, sizeof event, "data: [DONE]\n\n");
  bool last = c->sent++ == job.events;
  say(c, text, (size_t)snprintf(text, sizeof text, "%x\r\n%s\r\n%s", n, event, last ? "0\r\n\r\n" : ""));
  return !last;
}

static void answer_decode(struct conn *c) {
  static const char head[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n";
  if (!c->stream) {
    answer_json(c, "{\"id\":\"cmpl-1\",\"choices\":[{\"index\":0,\"text\":\" ok\",\"stop_reason\":null}],"
                "\"usage\":{\"completion_tokens\":1}}");
    return;
  }
  say(c, head, sizeof head - 1);
  c->sent = 0;
  c->due = now();
  while (!job.holding && job.gap == 0 && send_event(c))
    continue;
  if (job.gap == 0 && !job.holding)
    return;
  send_event(c);
  c->due += job.gap;
  streams[n_streams++] = c->fd;
}

static void send_due(double t) {
  for (int i = 0; i < n_streams && !job.holding; i++) {
    struct conn *c = at + streams[i];
    if (c->due > t)
      continue;
    c->due += job.gap;
    if (!send_event(c))
      streams[i--] = streams[--n_streams];
  }
}

/* ---- clients ---- */
static void ask(struct conn *c) {
  job.left--;
  c->in_body = false;
  c->newlines = 0;
  c->n = 0;
  c->begun = now();
  say(c, job.request, strlen(job.request));
}

static void open_client(void) {
  struct conn *c = dial(CLIENT);
  if (!c) {
    job.failed++;
    job.left--;
    return;
  }
  job.open++;
  ask(c);
}

static void answered(struct conn *c, bool good) {
  double took = now() - c->begun;
  if (good)
    job.took[job.done++] = took;
  else
    job.failed++;
  if (good && job.left > 0) {
    ask(c);
    return;
  }
  job.open--;
  drop(c);
  if (job.left > 0)
    open_client();
}

/* Events are counted by their empty lines, the end is that of the last chunk. (The reference sends every answer in chunks.) */
static void on_stream(struct conn *c, const char *p, size_t n) {
  bool first = c->newlines == 0;
  for (size_t i = 0; i < n; i++) {
    c->newlines += p[i] == '\n' && c->last == '\n';
    c->last = p[i];
  }
  job.held += first && c->newlines > 0;
  if (n >= 5 && memcmp(p + n - 5, "0\r\n\r\n", 5) == 0)
    answered(c, c->status == 200 && c->newlines == (job.events ? job.events + 1 : 0));
}

static void on_client(struct conn *c) {
  size_t body;
  char *end = memmem(c->text, c->n, "\r\n\r\n", 4);
  if (!end)
    return;
  body = (size_t)(end + 4 - c->text);
  c->status = atoi(c->text + 9);
  c->chunked = header(c, "transfer-encoding:", body) != NULL;
  if (c->chunked) {
    size_t rest = c->n - body;
    c->in_body = true;
    c->last = 0;
    c->n = 0;
    on_stream(c, end + 4, rest);
  } else if (whole(c, &body)) {
    answered(c, c->status == 200 && job.events == 0);
  }
}

/* ---- the loop ---- */
static void take(struct conn *c, const char *p, size_t n) {
  size_t body;
  if (c->kind == CLIENT && c->in_body) {
    on_stream(c, p, n);
    return;
  }
  if (c->n + n + 1 > c->room) {
    c->room = 2 * (c->n + n + 1);
    c->text = realloc(c->text, c->room);
  }
  memcpy(c->text + c->n, p, n);
  c->n += n;
  c->text[c->n] = 0;
  if (c->kind == CLIENT) {
    on_client(c);
    return;
  }
  if (!whole(c, &body))
    return;
  if (strncmp(c->text, "GET", 3) == 0 || c->kind == PREFILL)
    answer_json(c, "{\"choices\":[{\"text\":\"x\"}]}");
  else if (c->kind == DECODE)
    on_decode(c, body);
  if (c->kind == RENDEZVOUS) {
    struct conn *d = at + c->owner;
    if (strncmp(c->text + 9, "200", 3) == 0)
      answer_decode(d);
    else
      drop(d);
    spare[spares++] = c->fd;
  }
  c->n = 0;
}

static void on_readable(struct conn *c) {
  static char buffer[BUFFER];
  if (c->kind == LISTEN_PREFILL || c->kind == LISTEN_DECODE) {
    for (int fd; (fd = accept4(c->fd, NULL, NULL, SOCK_NONBLOCK)) >= 0;)
      adopt(fd, c->kind == LISTEN_PREFILL ? PREFILL : DECODE);
    return;
  }
  ssize_t n = recv(c->fd, buffer, sizeof buffer, 0);
  if (n > 0) {
    take(c, buffer, (size_t)n);
  } else if (n == 0 || errno != EAGAIN) {
    if (c->kind == CLIENT)
      answered(c, false);
    else
      drop(c);
  }
}

static void turn(int wait_ms) {
  static struct epoll_event e[1024];
  int n = epoll_wait(poller, e, 1024, wait_ms);
  for (int i = 0; i < n; i++)
    if (e[i].data.fd != STDIN_FILENO && at[e[i].data.fd].kind != NONE)
      on_readable(at + e[i].data.fd);
  if (n_streams && !job.holding)
    send_due(now());
}

static int by_size(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void prepare(int port, int requests, int events, double gap_ms) {
  static const char body[] = "{\"model\":\"tiny\",\"prompt\":\"%s\",\"max_tokens\":%d,\"stream\":%s}";
  char prompt[201], text[512];
  memset(prompt, 'x', 200);
  prompt[200] = 0;
  int n = snprintf(text, sizeof text, body, prompt, events ? events : 1, events ? "true" : "false");
  snprintf(job.request, sizeof job.request, "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
           "Content-Length: %d\r\n\r\n%s", port, n, text);
  while (spares) /* of another proxy, perhaps */
    drop(at + spare[spares - 1]);
  free(job.took);
  job.took = calloc((size_t)requests, sizeof *job.took);
  job.port = port;
  job.events = events;
  job.gap = gap_ms / 1000;
  job.left = requests;
  job.failed = job.done = job.open = job.held = 0;
}

static void run(int port, int clients, int requests, int events, double gap_ms) {
  prepare(port, requests, events, gap_ms);
  double begin = now();
  for (int i = 0; i < clients && job.left > 0; i++)
    open_client();
  while (job.open > 0 && now() - begin < LIMIT_S)
    turn(n_streams ? 1 : 100);
  int late = job.open;
  for (int fd = 0; fd < MAX_FD && job.open; fd++)
    if (at[fd].kind == CLIENT) {
      drop(at + fd);
      job.open--;
    }
  qsort(job.took, (size_t)job.done, sizeof *job.took, by_size);
  double nominal = (double)events * job.gap; /* what the events take of themselves */
  double p50 = job.done ? job.took[job.done / 2] : nominal, p99 = job.done ? job.took[job.done * 99 / 100] : nominal;
  printf("{\"done\":%d,\"failed\":%d,\"seconds\":%.4f,\"p50_ms\":%.3f,\"p99_ms\":%.3f}\n", job.done, job.failed + late, now() - begin,
         1000 * (p50 - nominal), 1000 * (p99 - nominal));
}

static void hold(int port, int count) {
  prepare(port, count, 4, 0);
  job.holding = 1;
  double begin = now();
  for (int i = 0; i < count; i++) {
    open_client();
    turn(0);
  }
  while (job.held < count && !job.failed && now() - begin < LIMIT_S)
    turn(10);
  printf("{\"open\":%d,\"held\":%d,\"failed\":%d}\n", job.open, job.held, job.failed);
}

static void release(void) {
  double begin = now();
  job.holding = 0;
  while (job.open > 0 && now() - begin < LIMIT_S)
    turn(1);
  printf("{\"done\":%d,\"failed\":%d}\n", job.done, job.failed + job.open);
}

int main(void) {
  struct rlimit r;
  char line[256];
  int a, b, c, d;
  double gap;
  if (getrlimit(RLIMIT_NOFILE, &r) == 0) {
    r.rlim_cur = r.rlim_max > MAX_FD ? MAX_FD : r.rlim_max;
    setrlimit(RLIMIT_NOFILE, &r);
  }
  poller = epoll_create1(EPOLL_CLOEXEC);
  int p = listen_on(LISTEN_PREFILL), q = listen_on(LISTEN_DECODE);
  printf("{\"prefill\":%d,\"decode\":%d,\"descriptors\":%llu}\n", p, q, (unsigned long long)r.rlim_cur);
  fflush(stdout);
  /* Engines answer probes between two orders, too. */
  struct epoll_event in = {.events = EPOLLIN, .data.fd = STDIN_FILENO};
  epoll_ctl(poller, EPOLL_CTL_ADD, STDIN_FILENO, &in);
  fcntl(STDIN_FILENO, F_SETFL, O_NONBLOCK);
  for (;;) {
    ssize_t n = read(STDIN_FILENO, line, sizeof line - 1);
    if (n == 0)
      return 0;
    if (n < 0) {
      turn(20);
      continue;
    }
    line[n] = 0;
    if (sscanf(line, "run %d %d %d %d %lf", &a, &b, &c, &d, &gap) == 5)
      run(a, b, c, d, gap);
    else if (sscanf(line, "hold %d %d", &a, &b) == 2)
      hold(a, b);
    else if (strncmp(line, "release", 7) == 0)
      release();
    fflush(stdout);
  }
}
