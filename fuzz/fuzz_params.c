/* SPDX-License-Identifier: Apache-2.0 */
/* kv_transfer_params, which clients may write: refused with one line, or read into something whole. The first byte says for whom. */
#include "scheduler/params.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_line(const struct rd2h_error *e) {
  if (!e->text[0] || strchr(e->text, '\n'))
    abort();
}

static void send_params(const char *json) {
  struct rd2h_send_params p;
  struct rd2h_error err = {0};
  if (rd2h_send_params_read(json, (struct rd2h_str){"cmpl-1-0", 8}, &p, &err)) {
    check_line(&err);
    return;
  }
  if (p.wanted && (!p.host || !p.engine_id || !p.base_port))
    abort();
  rd2h_send_params_free(&p);
}

static void recv_params(const char *json) {
  struct rd2h_recv_params p;
  struct rd2h_error err = {0};
  if (rd2h_recv_params_read(json, &p, &err)) {
    check_line(&err);
    return;
  }
  if (p.metaserver && !p.wanted)
    abort();
  rd2h_recv_params_free(&p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (!size)
    return 0;
  char *json = malloc(size);
  memcpy(json, data + 1, size - 1);
  json[size - 1] = 0;
  (data[0] & 1 ? send_params : recv_params)(json);
  free(json);
  return 0;
}
