/* SPDX-License-Identifier: Apache-2.0 */
/* What a read has brought, compared with the digests that Prefill made of it. */
#include "worker/decode_worker.h"
#include <stdio.h>

struct check {
  rd2h_dw *w;
  const struct dw_batch *b;
  bool again; /* what is wrong is read once more */
  uint32_t wrong;
};

static void wrong(struct check *c, const struct rd2h_dm_block *x, uint32_t have) {
  rd2h_dw *w = c->w;
  char text[DW_TEXT];
  w->count.digests_wrong++;
  c->wrong++;
  snprintf(text, sizeof text, "layer %.120s, tensor %u: block %u of Prefill %s arrived with digest %08x, it left with %08x",
           rd2h_layout_layer_name(w->o.layout, rd2h_dm_batch_layer(w->dm, c->b->handle)), x->part, x->block,
           w->peer[c->b->peer]->session, have, x->digest);
  if (w->o.digest == RD2H_DIGEST_FAIL && !c->again)
    rd2h_dm_wrong_digest(w->dm, c->b->handle, x, text, w->now); /* the line that ends the request says it */
  else if (dw_may_log(w))
    RD2H_WARN("decode rank %u: request %.*s: %s%s", w->o.tp_rank, (int)x->id.n, x->id.p, text, c->again ? "; read once more" : "");
}

static void see(void *arg, const struct rd2h_dm_block *x) {
  struct check *c = arg;
  uint32_t have = rd2h_crc32c(x->p, x->len);
  c->w->count.digests_checked++;
  if (have != x->digest)
    wrong(c, x, have);
}

/* Damage on the way does not come twice, mostly: who fails by it reads the message once more first. */
bool dw_check_digests(rd2h_dw *w, struct dw_batch *b) {
  struct check c = {.w = w, .b = b, .again = w->o.digest == RD2H_DIGEST_FAIL && !b->reread};
  w->count.digests_missing += !rd2h_dm_digests(w->dm, b->handle, see, &c);
  if (!c.again || !c.wrong)
    return true;
  b->reread = true;
  dw_retry_rest(w, b);
  return false;
}
