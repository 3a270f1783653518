/* SPDX-License-Identifier: Apache-2.0 */
/* Rendezvous over https: whom the client trusts. The server is a process of its own, with a certificate for "localhost" made here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <arpa/inet.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "rendezvous/rendezvous.h"

#define OK_TEXT "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"

/* Its own authority. */
struct identity {
  EVP_PKEY *key;
  X509 *cert;
  char path[40]; /* the certificate as PEM */
};

static void identity_make(struct identity *i, const char *names) {
  X509V3_CTX ctx;
  i->key = EVP_EC_gen("P-256");
  i->cert = X509_new();
  X509_set_version(i->cert, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(i->cert), 1);
  X509_gmtime_adj(X509_getm_notBefore(i->cert), -3600);
  X509_gmtime_adj(X509_getm_notAfter(i->cert), 3600);
  X509_NAME *name = X509_get_subject_name(i->cert);
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)"rd2h test", -1, -1, 0);
  X509_set_issuer_name(i->cert, name);
  X509_set_pubkey(i->cert, i->key);
  X509V3_set_ctx(&ctx, i->cert, i->cert, NULL, NULL, 0);
  X509_EXTENSION *x = X509V3_EXT_conf_nid(NULL, &ctx, NID_subject_alt_name, names);
  assert_non_null(x);
  X509_add_ext(i->cert, x, -1);
  X509_EXTENSION_free(x);
  assert_true(X509_sign(i->cert, i->key, EVP_sha256()) > 0);
  snprintf(i->path, sizeof i->path, "/tmp/rd2h-test-ca-XXXXXX");
  FILE *f = fdopen(mkstemp(i->path), "w");
  assert_true(f && PEM_write_X509(f, i->cert) && !fclose(f));
}

static void identity_drop(struct identity *i) {
  unlink(i->path);
  X509_free(i->cert);
  EVP_PKEY_free(i->key);
}

/* ---- the server's process ---- */
static void serve_one(SSL_CTX *ctx, int fd) {
  char buf[4096];
  int n = 0, got;
  SSL *s = SSL_new(ctx);
  SSL_set_fd(s, fd);
  if (SSL_accept(s) == 1) {
    do {
      got = SSL_read(s, buf + n, (int)sizeof buf - 1 - n);
      n += got > 0 ? got : 0;
      buf[n] = 0;
    } while (got > 0 && !strstr(buf, "\r\n\r\nreq"));
    if (got > 0)
      SSL_write(s, OK_TEXT, sizeof OK_TEXT - 1);
    SSL_shutdown(s);
  }
  SSL_free(s);
  close(fd);
}

static void serve(const struct identity *i, int fd) {
  SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
  SSL_CTX_use_certificate(ctx, i->cert);
  SSL_CTX_use_PrivateKey(ctx, i->key);
  for (;;)
    serve_one(ctx, accept(fd, NULL, NULL));
}

static struct identity server, stranger;
static uint16_t port;
static pid_t child;

static int set_up(void **state) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof a;
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  (void)state;
  identity_make(&server, "DNS:localhost");
  identity_make(&stranger, "DNS:localhost,IP:127.0.0.1");
  if (bind(fd, (struct sockaddr *)&a, sizeof a) || listen(fd, 16) || getsockname(fd, (struct sockaddr *)&a, &len))
    return -1;
  port = ntohs(a.sin_port);
  child = fork();
  if (!child) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    serve(&server, fd);
  }
  close(fd);
  return child > 0 ? 0 : -1;
}

static int tear_down(void **state) {
  (void)state;
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  identity_drop(&server);
  identity_drop(&stranger);
  return 0;
}

/* ---- cases ---- */
static struct rd2h_rendezvous_result post(const char *ca, const char *host) {
  struct rd2h_rendezvous_result res;
  rd2h_rendezvous *r;
  char url[80];
  assert_int_equal(rd2h_rendezvous_create(&(struct rd2h_rendezvous_opts){.ca = ca, .max_attempts = 3, .backoff_ms = 1}, &r, NULL), RD2H_OK);
  snprintf(url, sizeof url, "https://%s:%u/v1/metaserver", host, port);
  assert_int_equal(rd2h_rendezvous_post(r, "req", url, "req", 3, NULL), RD2H_OK);
  assert_int_equal(poll(&(struct pollfd){.fd = rd2h_rendezvous_fd(r), .events = POLLIN}, 1, 10000), 1);
  assert_int_equal(rd2h_rendezvous_poll(r, &res, 1), 1);
  rd2h_rendezvous_destroy(r);
  rd2h_free(res.id);
  return res;
}

/* At the first attempt, with a line that says what to do. */
static void refused(const char *ca, const char *host) {
  struct rd2h_rendezvous_result res = post(ca, host);
  assert_int_equal(res.status, RD2H_IO);
  assert_int_equal(res.http, 0);
  if (!strstr(res.text, "attempt 1 of 3: its certificate is refused: it must name this address, and rendezvous_ca") ||
      strchr(res.text, '\n'))
    fail_msg("\"%s\"", res.text);
  rd2h_free(res.text);
}

static void its_authority_is_trusted(void **state) {
  (void)state;
  struct rd2h_rendezvous_result res = post(server.path, "localhost");
  assert_int_equal(res.status, RD2H_OK);
  assert_int_equal(res.http, 200);
  assert_null(res.text);
}

static void another_authority_is_refused(void **state) {
  (void)state;
  refused(stranger.path, "localhost");
}

static void the_machine_does_not_know_it(void **state) {
  (void)state;
  refused(NULL, "localhost");
}

static void another_name_is_refused(void **state) {
  (void)state;
  refused(server.path, "127.0.0.1");
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(its_authority_is_trusted), cmocka_unit_test(another_authority_is_refused),
    cmocka_unit_test(the_machine_does_not_know_it), cmocka_unit_test(another_name_is_refused),
  };
  return cmocka_run_group_tests_name("rendezvous over https", tests, set_up, tear_down);
}
