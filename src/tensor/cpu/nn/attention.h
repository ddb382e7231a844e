/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cpu/nn/attention.h: attention, head by head, a block of rows at a
 * time.
 *
 * Forward keeps one number per row: the logarithm of its sum of exponentials.
 * Backward makes the probabilities again from that. */
#ifndef OARI_TENSOR_CPU_NN_ATTENTION_H
#define OARI_TENSOR_CPU_NN_ATTENTION_H

#include "tensor/tensor.h"

/* Where the heads of one operand lie: [outer, head, position, width], the last
 * without gaps. Strides in elements. */
typedef struct oari_head_strides {
    void *data; /* NULL: not wanted */
    int64_t outer, head, row;
    int64_t shared; /* heads of the result that use one head of this */
} oari_head_strides;

typedef struct oari_attention {
    oar_device device;
    oar_dtype dtype; /* f32 or f64; on a GPU halves too */
    int64_t outer, heads;
    int64_t t, s, d, e; /* q is t x d, k s x d, v s x e, the result t x e */
    double scale;
    int causal;
    double dropout; /* of probabilities; which ones follows from seed */
    uint64_t seed;
    int64_t all_heads, first_head; /* of the positions for that */
    oari_array mask;               /* see below; .data NULL: none */
    oari_head_strides q, k, v;
    oari_head_strides out; /* the result, in backward its gradient */
    void *lse;             /* [outer, heads, t] */
    void *scratch; /* as the table of kernels asks for; f32, f64 for f64 */
    /* Backward only. */
    oari_head_strides result; /* on a GPU; may be NULL, and is slow then */
    oari_head_strides dq, dk, dv;
    int add_q, add_k, add_v;
    oari_array
        dmask;       /* f32, f64 for f64; is added to; .data NULL: not wanted */
    oari_pool *pool; /* on a GPU, for that; may be NULL */
} oari_attention;

/* A mask is [.., heads, t, s], repeated by strides of 0 where it is smaller:
 * bool, where a 0 hides a key, or of the dtype above, which is added to the
 * scores and may hide by minus infinity. A row all of whose keys are hidden
 * gives zeros. */

/* Whether the array's heads can be used where they lie: a dtype that the
 * device's kernels take, at most two leading dims, no gaps in the last. If so,
 * *strip says where. */
int oari_head_strides_of(const oari_array *a, oari_head_strides *strip);

/* Returns how many numbers of scratch memory a pass needs. */
int64_t oari_attend_scratch(const oari_attention *a);
oar_status oari_attend(const oari_attention *a);
oar_status oari_attend_back(const oari_attention *a);

#endif
