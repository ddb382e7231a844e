/* SPDX-License-Identifier: Apache-2.0 */
/* support/dtensor_truth.h: operations on DTensors of random placements against
 * the same on one rank, with gradients. */
#ifndef TESTS_SUPPORT_DTENSOR_TRUTH_H
#define TESTS_SUPPORT_DTENSOR_TRUTH_H

#include <oarsong/dtensor_ops.h>

enum { TRUTH_INPUTS = 8 };

/* What inputs hold. */
typedef enum truth_kind {
    TRUTH_NORMAL = 0, /* f64, about zero */
    TRUTH_POSITIVE,   /* f64, from 0.5 to 2.5 */
    TRUTH_MASK,       /* bool */
    TRUTH_INDEX       /* i64 from 0 to index_below - 1 */
} truth_kind;

typedef struct truth_case {
    const char *name;
    int inputs;
    oar_shape shape[TRUTH_INPUTS];
    truth_kind kind[TRUTH_INPUTS];
    int64_t index_below;
    /* The same operation of whole tensors and of DTensors, in one of three
     * forms. A result that has no gradient is compared only. */
    oar_tensor *(*plain)(oar_tape *tape, oar_tensor *const *in);
    oar_dtensor (*spread)(oar_tape *tape, const oar_dtensor *in);
    oar_tensor *(*plain1)(oar_tape *tape, oar_tensor *a);
    oar_dtensor (*spread1)(oar_tape *tape, oar_dtensor a);
    oar_tensor *(*plain2)(oar_tape *tape, oar_tensor *a, oar_tensor *b);
    oar_dtensor (*spread2)(oar_tape *tape, oar_dtensor a, oar_dtensor b);
} truth_case;

/* Returns a number below `below` from a seed, which moves on. */
int truth_random(uint64_t *seed, int below);

/* Returns a random spec. partial: partial sums may be among the placements. */
const oar_spec *truth_random_spec(oar_mesh *mesh, oar_shape shape, int partial,
                                  uint64_t *seed);

/* Gives this rank's part of a whole tensor that every rank has: the caller's.
 * What is partial is cut into summands that are not zero. */
oar_tensor *truth_part(oar_tensor *whole, const oar_spec *spec, uint64_t seed);

/* Compares a case with inputs of these specs with one rank. Says what differs.
 */
oar_status truth_check(const truth_case *c, oar_mesh *mesh,
                       const oar_spec *const *spec, uint64_t seed);

/* The same with random specs, `rounds` times on each of several meshes. Fails
 * the test if any rank does. */
void truth_run(const truth_case *cases, int count, int rounds);

#endif
