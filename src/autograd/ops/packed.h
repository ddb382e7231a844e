/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/ops/packed.h: attention on what one linear layer makes: q, k and v
 * of all heads side by side, [n, t, (heads + 2 kv_heads) width of a head], used
 * and differentiated where they lie. */
#ifndef OARI_AUTOGRAD_OPS_PACKED_H
#define OARI_AUTOGRAD_OPS_PACKED_H

#include <oarsong/ops.h>

/* Returns the attention of each head, side by side: [n, t, heads width of a
 * head]. The mask of the options is not used. */
oar_tensor *oari_packed_attention(oar_tape *tape, oar_tensor *qkv, int heads,
                                  int kv_heads, const oar_attention_opts *opts);

/* Returns a copy with q and k rotated as by oar_rotary, from position 0. */
oar_tensor *oari_packed_rotary(oar_tape *tape, oar_tensor *qkv, int heads,
                               int kv_heads, double base);

#endif
