/* SPDX-License-Identifier: Apache-2.0 */
/* dist/bucket.h: gradients that are reduced together: views of one piece of
 * shared memory, so that no gradient is copied, unless somebody has bound it
 * elsewhere since. */
#ifndef OARI_DIST_BUCKET_H
#define OARI_DIST_BUCKET_H

#include <oarsong/collective.h>
#include <oarsong/tensor.h>

typedef struct oari_bucket {
    oar_dtype dtype;
    int params;    /* how many parameters have their gradient here */
    int ready;     /* of them, in this backward pass */
    int64_t count; /* elements, the gaps between gradients included */
    oar_storage *storage;
    oar_work *work; /* its all_reduce, or NULL */
} oari_bucket;

/* One parameter and where its gradient is. */
typedef struct oari_slot {
    struct oari_reducer *owner;
    oar_tensor *param; /* a reference */
    oar_hook *hook;
    int bucket;
    int64_t first;    /* element in the bucket */
    oar_tensor *home; /* the view of the bucket that begins there */
    int copied;       /* in this pass, from where the gradient really is */
} oari_slot;

typedef struct oari_reducer {
    oar_group *group;
    int slots, buckets;
    int ready;    /* gradients of this pass so far */
    int launched; /* buckets 0 .. launched-1 are on their way */
    oari_slot *slot;
    oari_bucket *bucket;
    uint64_t reduced_bytes, copied_bytes; /* of the last pass */
} oari_reducer;

/* Takes references to the parameters, cuts them into buckets of about
 * bucket_bytes (0: no limit), last parameter first because backward reaches it
 * first, and moves their gradients there. */
oar_status oari_reducer_init(oari_reducer *r, oar_group *group, int params,
                             oar_tensor *const *param, size_t bucket_bytes);
void oari_reducer_clear(oari_reducer *r); /* copes with a half-made one */

/* Ends a backward pass: reduces what is left, and waits for all. */
oar_status oari_reducer_finish(oari_reducer *r);

/* Waits for what a failed pass left behind, and starts afresh. */
void oari_reducer_reset(oari_reducer *r);

#endif
