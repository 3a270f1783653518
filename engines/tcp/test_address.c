/* SPDX-License-Identifier: Apache-2.0 */
/* What engine tcp is told from outside before it opens a socket: connection data, where it may lead, options. */
#include "base/le.h"
#include "engine/engine.h"
#include "engines/tcp/tcp.h"
#include <setjmp.h>
#include <cmocka.h>

/* Connection data that is whole, but cannot be true. */
static void connection_data(void **state) {
  static const struct {
    const char *text;
    bool v6, good;
    uint8_t addr[16];
  } addresses[] = {
    {"127.0.0.1", false, true, {127, 0, 0, 1}},   {"10.0.0.7", false, true, {10, 0, 0, 7}},
    {"::1", true, true, {[15] = 1}},              {"fd00::7", true, true, {0xfd, [15] = 7}},
    {"::ffff:10.0.0.7", true, true, {[10] = 0xff, 0xff, 10, 0, 0, 7}},
    {"0.0.0.0", false, false, {0}},               {"::", true, false, {0}},
    {"::ffff:0.0.0.0", true, false, {[10] = 0xff, 0xff}},
    {"224.0.0.1", false, false, {224, 0, 0, 1}},  {"255.255.255.255", false, false, {255, 255, 255, 255}},
    {"169.254.1.1", false, false, {169, 254, 1, 1}}, {"ff02::1", true, false, {0xff, 2, [15] = 1}},
    {"fe80::1", true, false, {0xfe, 0x80, [15] = 1}},
  };
  static const struct {
    uint32_t at;
    uint8_t value;
    int status;
  } damage[] = {
    {0, 1, RD2H_UNSUPPORTED}, {0, 3, RD2H_UNSUPPORTED}, {1, 0, RD2H_MALFORMED},  {1, 5, RD2H_MALFORMED},
    {1, 10, RD2H_MALFORMED},  {2, 0, RD2H_MALFORMED},   {12, 1, RD2H_MALFORMED}, {23, 1, RD2H_MALFORMED},
  };
  struct rd2h_tcp_conn c = {.port = 80, .addr = {10, 0, 0, 7}, .token = "token"}, back;
  uint8_t b[TCP_CONN];
  struct rd2h_error err;
  (void)state;
  for (size_t i = 0; i < RD2H_COUNT(damage); i++) {
    rd2h_tcp_conn_encode(&c, b);
    b[damage[i].at] = damage[i].value;
    rd2h_le_put(b + 4, rd2h_sum_but(b, TCP_CONN, 4), 4);
    assert_int_equal(rd2h_tcp_conn_decode((struct rd2h_blob){b, TCP_CONN}, &back, &err), damage[i].status);
  }
  rd2h_tcp_conn_encode(&c, b);
  for (uint32_t n = 0; n < TCP_CONN; n++)
    assert_int_equal(rd2h_tcp_conn_decode((struct rd2h_blob){b, n}, &back, &err), RD2H_MALFORMED);
  for (size_t i = 0; i < RD2H_COUNT(addresses); i++) {
    c.v6 = addresses[i].v6;
    memcpy(c.addr, addresses[i].addr, sizeof c.addr);
    rd2h_tcp_conn_encode(&c, b);
    int rc = rd2h_tcp_conn_decode((struct rd2h_blob){b, TCP_CONN}, &back, &err);
    if (rc != (addresses[i].good ? RD2H_OK : RD2H_MALFORMED))
      fail_msg("address %s: %d", addresses[i].text, rc);
  }
}

/* Connection data comes from outside: where it may send Decode. */
static void targets(void **state) {
  static const struct {
    const char *list, *address, *session;
    int status;
  } cases[] = {
    {NULL, "10.1.2.3", "10.1.2.3:77", RD2H_OK},          {NULL, "10.1.2.3", "10.1.2.4:77", RD2H_PERMISSION},
    {NULL, "fd00::7", "[fd00::7]:77", RD2H_OK},          {NULL, "fd00::8", "[fd00::7]:77", RD2H_PERMISSION},
    {NULL, "::ffff:10.1.2.3", "10.1.2.3:77", RD2H_OK},   {NULL, "10.1.2.3", "prefill-0.cluster:77", RD2H_OK},
    {NULL, "10.1.2.3", "", RD2H_OK},                     {"any", "10.1.2.3", "10.9.9.9:1", RD2H_OK},
    {"10.0.0.0/8", "10.1.2.3", "10.9.9.9:1", RD2H_OK},   {"10.0.0.0/8", "11.1.2.3", "11.1.2.3:1", RD2H_PERMISSION},
    {"10.1.2.0/23", "10.1.3.9", "", RD2H_OK},            {"10.1.2.0/23", "10.1.4.9", "", RD2H_PERMISSION},
    {"10.1.2.3+fd00::/8", "fd12::1", "", RD2H_OK},       {"10.1.2.3+fd00::/8", "fe00::1", "", RD2H_PERMISSION},
    {"0.0.0.0/0", "8.8.8.8", "", RD2H_OK},               {"0.0.0.0/0", "fd12::1", "", RD2H_PERMISSION},
  };
  static const char *const bad[] = {"", "10.1.2.3/33", "10.1.2.3/", "10.1.2", "fd00::/129", "10.1.2.3+", "10.0.0.0/8x", "Any"};
  struct tcp_targets t;
  struct rd2h_tcp_conn at;
  struct rd2h_error err;
  (void)state;
  for (size_t i = 0; i < RD2H_COUNT(cases); i++) {
    struct rd2h_blob session = {(const uint8_t *)cases[i].session, (uint32_t)strlen(cases[i].session)};
    t = (struct tcp_targets){0};
    if (cases[i].list)
      assert_int_equal(rd2h_tcp_targets_parse(cases[i].list, &t, &err), RD2H_OK);
    assert_int_equal(rd2h_tcp_resolve(cases[i].address, &at, &err), RD2H_OK);
    if (rd2h_tcp_targets_check(&t, &at, session, &err) != cases[i].status)
      fail_msg("targets %s, %s offered by %s: not %d", cases[i].list ? cases[i].list : "-", cases[i].address, cases[i].session,
               cases[i].status);
  }
  for (size_t i = 0; i < RD2H_COUNT(bad); i++)
    if (rd2h_tcp_targets_parse(bad[i], &t, &err) != RD2H_INVALID)
      fail_msg("targets=%s is taken", bad[i]);
}

static void options(void **state) {
  static const struct {
    bool prefill;
    const char *host, *option, *text;
  } bad[] = {
    {false, NULL, "streams=0", "from 1 to 16"},       {false, NULL, "streams=17", "from 1 to 16"},
    {false, NULL, "streams=-1", "from 1 to 16"},      {false, NULL, "streams=2x", "from 1 to 16"},
    {false, NULL, "streams=", "from 1 to 16"},        {false, NULL, "stream=2", "unknown option"},
    {false, NULL, "targets=10.0.0.0/8+nowhere", "nowhere"},
    {true, NULL, "bind=", "unknown option"},          {true, "no host", NULL, "no address"},
    {true, "0.0.0.0", NULL, "bind=0.0.0.0"},          {true, "fe80::1", NULL, "link-local"},
    {true, "192.0.2.1", NULL, "bind=ADDRESS"},
  };
  rd2h_eng *e = NULL;
  (void)state;
  for (size_t i = 0; i < RD2H_COUNT(bad); i++) {
    const char *const list[] = {bad[i].option, NULL};
    struct rd2h_engine_opts o = {.size = sizeof o, .prefill = bad[i].prefill, .host = bad[i].host, .options = list};
    struct rd2h_error err = {0};
    assert_int_equal(rd2h_eng_open("tcp", &o, &e, &err), RD2H_INVALID);
    if (!strstr(err.text, bad[i].text))
      fail_msg("\"%s\" does not say \"%s\"", err.text, bad[i].text);
  }
  const char *const elsewhere[] = {"bind=127.0.0.1", NULL};
  struct rd2h_engine_opts o = {.size = sizeof o, .prefill = true, .host = "192.0.2.1", .options = elsewhere};
  assert_int_equal(rd2h_eng_open("tcp", &o, &e, NULL), RD2H_OK);
  rd2h_eng_close(e);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(connection_data), cmocka_unit_test(targets), cmocka_unit_test(options)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
