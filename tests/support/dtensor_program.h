/* SPDX-License-Identifier: Apache-2.0 */
/* support/dtensor_program.h: random operations on DTensors and on the same
 * tensors whole, from a seed. */
#ifndef TESTS_SUPPORT_DTENSOR_PROGRAM_H
#define TESTS_SUPPORT_DTENSOR_PROGRAM_H

#include <oarsong/dtensor_ops.h>

enum { PROGRAM_VALUES = 96 };

/* The same tensor whole and in parts. Leaves have gradients. */
typedef struct program_value {
    oar_tensor *whole;
    oar_dtensor spread;
    int is_leaf, is_index;
} program_value;

typedef struct dtensor_program {
    uint64_t seed, state;
    oar_mesh *mesh;
    oar_device device; /* of the parts; what is whole is on the cpu */
    oar_tape *tape;
    int values;
    program_value value[PROGRAM_VALUES];
    size_t at;
    char text[2000];
} dtensor_program;

/* Returns a number below `below`. */
int program_random(dtensor_program *p, int below);

/* Adds a tensor that nothing was computed from. Returns its number, or -1. */
int program_add_leaf(dtensor_program *p, oar_shape shape, int64_t index_below);

/* Applies a random operation to random values. Returns 1, or 0 if there are
 * none that suit it, or -1 if it failed whole or in parts. */
int program_step(dtensor_program *p);

/* Runs the program of a seed, of 5 to 20 operations, forward and backward, and
 * compares it with the same on one rank. Says what differs. */
oar_status program_check(oar_mesh *mesh, oar_device device, uint64_t seed);

#endif
