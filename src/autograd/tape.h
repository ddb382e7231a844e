/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/tape.h: what a tape is made of.
 *
 * Nodes stand in the order they were recorded, so every node comes after what
 * it was computed from, and backward is one walk from the last to the first. A
 * node has one result. Its inputs are edges: to an earlier node, to a leaf, or
 * to nothing that needs a gradient. */
#ifndef OARI_AUTOGRAD_TAPE_H
#define OARI_AUTOGRAD_TAPE_H

#include <oarsong/tape.h>

#include "base/vec.h"
#include "tensor/tensor_pool.h"

enum {
    OARI_MAX_INPUTS = 8,
    OARI_MAX_SAVED = 6,
    OARI_READS_ALL = (1 << OARI_MAX_SAVED) - 1,
    OARI_READS_NONE = 1 << OARI_MAX_SAVED
};

typedef struct oari_node oari_node;

/* A kind of operation, as backward sees it. */
typedef struct oari_op_class {
    const char *name;
    /* to (+)= the gradient of input i, given that of the result, node->grad.
     * `to` has the input's shape and is row-major. */
    oar_status (*backward)(oari_node *node, int i, const oari_array *to,
                           int add);
    /* Computes the gradients of all inputs at once, in place of `backward`: see
     * fused_backward.h. Only the first input asked for reads node->grad. */
    oar_status (*fused_backward)(oari_node *node, const oari_array *to,
                                 int add);
    /* Bit k of reads[i]: the gradient of input i is computed from saved[k]; it
     * needs none if OARI_READS_NONE is set, and all of them if this is 0. */
    unsigned char reads[OARI_MAX_INPUTS];
    /* `to` may lie in the memory of node->grad if the counts are the same. */
    int in_place;
    /* `to` may be f32 where the input is a half. Fused ones can all do it. */
    int widens;
    /* The gradient of an input with the result's shape is node->grad itself. */
    int passes;
    /* (optional) Counts what backward will give to leaves that are no inputs.*/
    void (*reach)(oari_node *node);
    void (*drop)(oari_node *node); /* (optional) gives up what extra owns */
    /* (optional) Computes the result once more, to `to`, the same bits. */
    oar_status (*rebuild)(oari_node *node, const oari_array *to);
    unsigned rebuild_from; /* bit k: it needs saved[k], which may be NULL */
    int costly;            /* to rebuild: only where memory would grow */
    int custom; /* extra.custom has the caller's name and backward for it */
} oari_op_class;

/* What an operation wants remembered besides tensors. */
typedef union oari_extra {
    double factor;
    int64_t padding; /* a row; -1: none */
    int64_t groups;
    int sloped; /* instead of the input, its slope is saved */
    struct {
        int kind;   /* an oari_unary_kind */
        int sloped; /* the node's gradient is that of what the function is of */
    } act;
    struct {
        int d0, d1;
    } dims;
    struct {
        int dim;
        int64_t start, length;
    } range;
    struct {
        int dim;
        int drops; /* the result does not have the dim */
    } picked;
    struct {
        int dim;
        int64_t start, length, step;
    } slice;
    oar_dims order;
    double number[2]; /* what an operation with numbers was given */
    struct {
        oar_shape kept; /* the result's, reduced dims with size 1 */
        double factor;
    } reduce;
    struct {
        int dim, stacked;
        int64_t start[2]; /* of each input in the result */
    } join;
    struct {
        double p;
        uint64_t seed;
        int64_t first, stride[OAR_MAX_DIMS]; /* of its positions */
    } dropout;
    struct {
        int64_t ignore;
        int has_ignore;
        int each; /* the losses of the rows stay apart */
        double smoothing;
        double divisor; /* of their sum */
        /* Of a part of the classes: where it begins, how many there are in all,
         * and their weights together. */
        int64_t first, classes;
        double total;
    } loss;
    struct {
        int kind, each; /* an oari_pair_kind; the losses stay apart */
        double edge;
        double divisor; /* of their sum */
    } pairs;
    struct {
        int fixed;                                /* by running statistics */
        const struct oar_batch_norm_merge *merge; /* or NULL */
        double count; /* of numbers that the statistics are of */
    } norm;
    struct {
        int kernel[2], stride[2], padding[2], dilation[2], groups;
    } window;
    struct {
        double scale;
        /* Of packed q, and of k and v each; 0: they are three tensors. */
        int64_t heads, kv_heads;
        int causal;
        double dropout;
        uint64_t seed;
        int all_heads, first_head; /* of its positions; 0: these heads */
    } attention;
    struct {
        double base;
        int64_t first;
        int64_t heads, turned; /* side by side, and how many of them turn */
    } rotary;
    struct {
        struct oar_module *module; /* a reference */
        int64_t first, count;      /* of the tape's seeds */
    } recompute;
    struct {
        const char *name;
        oar_status (*backward)(void *arg, int i, const oar_tensor *grad,
                               oar_tensor *to, int add);
        void (*drop)(void *arg); /* or NULL */
        void *arg;
    } custom;
} oari_extra;

typedef enum oari_node_state {
    OARI_RECORDED = 0,
    OARI_HELD, /* the inputs half has run, the weights half has not: only
                  what that one reads is still saved */
    OARI_SPENT /* what was saved is gone */
} oari_node_state;

typedef enum oari_edge_kind {
    OARI_EDGE_NONE = 0,
    OARI_EDGE_NODE,
    OARI_EDGE_INPUT, /* a leaf made by oar_tape_input */
    OARI_EDGE_LEAF   /* any other leaf */
} oari_edge_kind;

typedef struct oari_edge {
    oari_edge_kind kind;
    oari_node *node; /* OARI_EDGE_NODE */
    int64_t leaf;    /* the others: which of the tape's */
} oari_edge;

/* A place in the record that is no operation: the two ends of a module.
 * Backward calls fn at `end` and then at `begin` if it went through anything
 * between. */
typedef oar_status (*oari_mark_fn)(oar_tape *tape, void *arg, int at_end);

typedef struct oari_mark {
    oari_mark_fn fn;
    void (*drop)(void *arg); /* gives up arg, which the `begin` mark owns */
    void *arg;
    int is_end;
    int64_t end;   /* of a begin: where its end is; 0: there is none yet */
    int64_t above; /* of an end: how many nodes after it were reached */
} oari_mark;

struct oari_node {
    const oari_op_class *op; /* NULL: a mark */
    oar_tape *tape;
    oar_tensor *out; /* borrowed: the tape owns it until reset */
    int inputs;
    oari_edge input[OARI_MAX_INPUTS];
    oar_tensor *saved[OARI_MAX_SAVED]; /* references: see saved.h */
    uint64_t version[OARI_MAX_SAVED];  /* theirs at that time */
    /* Gradients of inputs that were computed along with that of another, until
     * backward asks for them; references. */
    oar_tensor *fused_grad[OARI_MAX_INPUTS];
    oari_extra extra;
    oari_mark mark;
    oari_node_state state;
    int reached;      /* by the pass that runs: so many gradients come here,
                         a root's own among them */
    int root;         /* a pass began here: out can be read until reset */
    oar_tensor *grad; /* of out, in the pass that runs; a reference */
};

/* Returns the name of a node's operation, for messages. */
static inline const char *oari_node_name(const oari_node *node)
{
    return node->op->custom ? node->extra.custom.name : node->op->name;
}

/* A leaf that something on the tape was computed from. */
typedef struct oari_leaf {
    oar_tensor *tensor; /* a reference */
    int64_t pending;    /* contributions that the running pass still owes it */
    unsigned rebases;   /* the tensor's when the tape met it */
} oari_leaf;

typedef struct oari_leaves {
    oari_leaf *leaf;
    int64_t count, room;
    int64_t *index; /* hash of the pointer -> place + 1; 0: free */
    int64_t slots;  /* a power of two, twice the room */
} oari_leaves;

typedef struct oari_deferred {
    oar_defer_fn fn;
    void *arg;
} oari_deferred;

typedef struct oari_end_call {
    oar_pass_end_fn fn;
    void *arg;
} oari_end_call;

typedef struct oari_owned_object {
    void *object;
    void (*drop)(void *object);
} oari_owned_object;

struct oar_tape {
    oari_pool pool;
    int recording;
    int rebuilds;  /* products too, where memory would grow */
    oar_pass pass; /* the backward pass that runs */
    int halved;    /* a first half has run whose second has not */
    oari_node **node;
    int64_t nodes, nodes_made, nodes_room; /* made ones are kept for reuse */
    oari_leaves leaves;
    OARI_VEC(oari_deferred) deferred;
    int64_t deferred_running; /* of them, that are being run now */
    OARI_VEC(oari_end_call) end_calls;
    OARI_VEC(oari_owned_object) objects;
    OARI_VEC(uint64_t) seeds; /* that recomputed parts drew, in order */
    /* Recomputation (replay.c): the tape that parts of this one run on, and on
     * such a tape, whose part it runs. */
    oar_tape *inner, *outer;
    int replaying;              /* the second time */
    int64_t seed_at, seeds_end; /* of outer's seeds, while replaying */
};

static inline oari_pool *oari_tape_pool(oar_tape *tape)
{
    return tape != NULL ? &tape->pool : NULL;
}

/* Returns the next node, blank; NULL with the last error set. The node is on
 * the tape once `nodes` counts it. */
oari_node *oari_tape_node(oar_tape *tape);

/* Calls what oar_tape_on_end asked for, with the status of the pass that has
 * ended. Leaves the last error as it is. */
void oari_tape_tell_end(oar_tape *tape, oar_status status);

/* Gives back what a node saved for backward. */
void oari_node_spend(oari_node *node);

/* Returns the place of a leaf among the tape's, which it makes for a new one;
 * -1 on failure. */
int64_t oari_leaves_find(oari_leaves *leaves, oar_tensor *leaf);
void oari_leaves_reset(oari_leaves *leaves, oari_pool *pool);
void oari_leaves_close(oari_leaves *leaves, oari_pool *pool);

/* Marks where a module begins and ends. `begin` gives the mark's index, which
 * `end` takes, and takes arg; on failure the caller keeps arg. A begin without
 * an end is never called. */
oar_status oari_mark_begin(oar_tape *tape, oari_mark_fn fn,
                           void (*drop)(void *arg), void *arg, int64_t *index);
oar_status oari_mark_end(oar_tape *tape, int64_t begin);

/* Makes the memory of a leaf's gradient if there is none, from pool for leaves
 * that belong to the tape. */
oar_status oari_grad_slot_open(oari_pool *pool, oar_tensor *leaf);
oar_status oari_grad_slot_ready(oar_tensor *leaf); /* runs hooks */
/* Calls the first hook for a part of the gradient, of which `done` elements are
 * ready. *next: how many must be ready for the next call. */
oar_status oari_grad_slot_part(oar_tensor *leaf, int64_t done, int64_t *next);

/* Calls oari_grad_slot_part for an operation that computes the gradient of its
 * input i, `count` elements, in parts. Calls no hook, and sets *next to
 * `count`, unless this is the leaf's last contribution in this pass. */
oar_status oari_part_done(const oari_node *node, int i, int64_t done,
                          int64_t count, int64_t *next);

/* Gives the node's gradient memory of its own if it shares that of another
 * node, before it is written to. */
oar_status oari_own_grad(oari_node *node);

#endif
