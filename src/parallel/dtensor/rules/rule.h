/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/dtensor/rules/rule.h: how operations on DTensors are described, and
 * run on local tensors.
 *
 * An operation gives its form, as einsum is written: every dim of its inputs
 * and results has a letter, and dims with the same letter go together. A mesh
 * dim can cut a letter: then it cuts that dim of all tensors that have it; an
 * input without the letter is replicated; a result without it is partial. Or
 * inputs in which the operation is linear are partial, and the result is.
 *
 *     matmul   ik, kj -> ij     linear in either input
 *     add      ij, j -> ij      linear in both together
 *
 * Which letter each mesh dim cuts is chosen by what moving the inputs costs.
 * The gradient of an input that is replicated along a mesh dim where a result
 * is not, is a sum over the ranks of that row; rules need not think of it.
 *
 * To add an operation: a form function, a run function that calls the plain
 * operation on local tensors, and a public function that fills a call. */
#ifndef OARI_PARALLEL_DTENSOR_RULES_RULE_H
#define OARI_PARALLEL_DTENSOR_RULES_RULE_H

#include <stdatomic.h>

#include <oarsong/dtensor_ops.h>

#include "parallel/dtensor/move_plan.h"

enum {
    OARI_RULE_INPUTS = 8,
    OARI_RULE_RESULTS = 2,
    OARI_RULE_LETTERS = 24,
    OARI_RULE_LINEARS = 4,
    OARI_RULE_NUMBERS = 12,
    OARI_WHOLE = -1 /* instead of a letter: no mesh dim may cut the dim */
};

typedef struct oari_rule oari_rule;
typedef struct oari_decision oari_decision;

/* The letters of one tensor's dims. */
typedef struct oari_letters {
    signed char of[OAR_MAX_DIMS];
    int64_t rows[OAR_MAX_DIMS]; /* of this dim for each step of the letter, of
                                   which there are fewer then; 0: 1 */
} oari_letters;

typedef struct oari_form {
    int letters;
    int64_t size[OARI_RULE_LETTERS];
    unsigned whole; /* bits of letters that no mesh dim may cut */
    oari_letters in[OARI_RULE_INPUTS], out[OARI_RULE_RESULTS];
    int results;
    oar_shape shape[OARI_RULE_RESULTS]; /* of the whole results */
    int reduces; /* letters that a result does not have may be cut; it is then
                    partial, by this operator */
    oar_reduce_op_kind reduce_op;
    unsigned merges; /* bits of letters that, if they are cut and a result does
                        not have them, leave it replicated: the run function
                        sees to it */
    unsigned summed; /* bits of inputs whose local gradient the run function has
                        added up over the ranks already */
    /* Sets of inputs, as bits: if those of one set are partial sums and the
     * others replicated, the result is a partial sum. */
    int linears;
    unsigned linear[OARI_RULE_LINEARS];
    int moves_only; /* the numbers stay as they are: partial by any operator is
                       as good as sums */
    int flat;       /* every element for itself: flat cuts are fine */
    int flat_reduces; /* and leave a result that is partial by reduce_op */
    /* The result has only some steps of a letter: those from first on, each
     * `step` further. They stay where they are, so parts of any size result. */
    int windows; /* 0: of none */
    int window_letter;
    int64_t window_first, window_step;
} oari_form;

/* One call of an operation. The caller leaves the rest zero. */
typedef struct oari_rule_call {
    const oari_rule *rule;
    oar_tape *tape;
    int inputs;
    oar_dtensor in[OARI_RULE_INPUTS];
    int numbers; /* what else the form depends on */
    int64_t number[OARI_RULE_NUMBERS];
    double real[3];   /* what it does not depend on */
    const void *opts; /* the same; for the run function */
} oari_rule_call;

/* What a form function sees of a call. */
typedef struct oari_form_call {
    const char *name;
    int inputs;
    oar_shape shape[OARI_RULE_INPUTS]; /* of the whole inputs */
    oar_dtype dtype[OARI_RULE_INPUTS];
    const int64_t *number;
} oari_form_call;

struct oari_rule {
    const char *name;
    /* Fills a form that is all zeros, or fails with a sentence about the
     * shapes. The same on all ranks. */
    oar_status (*form)(const oari_form_call *call, oari_form *form);
    /* Computes the local result from local inputs, on call->tape. A second
     * result goes to *second. NULL on failure. */
    oar_tensor *(*run)(const oari_rule_call *call,
                       const oari_decision *decision, oar_tensor *const *in,
                       oar_tensor **second);
};

/* How an input gets to where the local operation reads it. */
typedef struct oari_input_plan {
    const oar_spec *spec; /* there */
    oari_move_path *path; /* NULL: it is there */
    const oar_spec *grad; /* where the local gradient lies; NULL: as the
                             gradient of spec does */
} oari_input_plan;

/* What is known about calls of one operation with the same specs, dtypes and
 * numbers. Kept by the mesh. */
struct oari_decision {
    oari_decision *next;
    const oari_rule *rule;
    int inputs, numbers;
    uint64_t dtypes;
    const oar_spec *given[OARI_RULE_INPUTS];
    int64_t number[OARI_RULE_NUMBERS];
    int plain; /* no input moves or needs its gradient added up */
    int unfit; /* some input is cut where the operation allows no cut */
    int results;
    uint64_t most_bytes; /* that any rank receives in moves of inputs */
    double us;
    oari_cuts cuts; /* of letters */
    oari_input_plan in[OARI_RULE_INPUTS];
    const oar_spec *out[OARI_RULE_RESULTS];
    uint64_t key; /* the same on all ranks */
    char label[200];
};

/* Chooses what to do, by form and costs. Pure: nothing is sent. `element` has
 * the bytes of an element for each input. The caller fills given and inputs.
 * OAR_E_NOMEM. */
oar_status oari_rule_choose(oar_mesh *mesh, const oari_form *form,
                            const size_t *element, oari_decision *decision);

/* Frees a row of a mesh's table of decisions. */
void oari_decisions_free(oari_decision *decision);

/* Runs a call. A failed input gives a failed result. */
oar_dtensor oari_rule_run(const oari_rule_call *call, oar_dtensor *second);

/* Returns whether some mesh dim cuts a letter. */
int oari_decision_cuts(const oari_decision *decision, int letter);

/* ---- forms --------------------------------------------------------------- */

/* Gives the letters a, b, .. to the dims of the first input, which the result
 * has, too. */
void oari_form_same(const oari_form_call *call, oari_form *form);

/* Gives letters to inputs whose shapes broadcast, and to the result.
 * OAR_E_SHAPE if they do not. */
oar_status oari_form_broadcast(const oari_form_call *call, oari_form *form);

/* Adds a set of inputs in which the operation is linear. */
static inline void oari_form_linear(oari_form *form, unsigned inputs)
{
    form->linear[form->linears++] = inputs;
}

/* Returns how many of the steps that a window takes lie before a position. */
static inline int64_t oari_window_before(int64_t first, int64_t step,
                                         int64_t position)
{
    return position <= first ? 0 : (position - first + step - 1) / step;
}

/* Reads a dim that may count from the end. OAR_E_ARG if there is none. */
oar_status oari_form_dim(const oari_form_call *call, int64_t number, int ndim,
                         int *dim);

/* Checks a list of dims, whose length is a number of the call. OAR_E_ARG if it
 * is longer than any tensor has. */
oar_status oari_form_list(const oari_form_call *call, int64_t count);

static inline int oari_is_float(oar_dtype dtype)
{
    return dtype == OAR_F32 || dtype == OAR_F64 || dtype == OAR_F16 ||
           dtype == OAR_BF16;
}

#endif
