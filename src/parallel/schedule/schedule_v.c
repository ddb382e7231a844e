/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_v: zb_v and dualpipe_v, in which stages go down the ranks and up
 * again: rank r has stage r on the way down and stage 2 * ranks - 1 - r on the
 * way up. Both are those of PyTorch, action by action.
 */
#include "parallel/schedule/schedule.h"

enum { DOWN, UP };

/* ---- zb_v ---------------------------------------------------------------- */

/* The row of one rank, with at least 2 * ranks - 1 micro-batches: those beyond
 * the real number are counted but not added. */
typedef struct zb_row {
    oari_schedule_draft *draft;
    int micro;
    int stage[2];
    int forward[2], inputs[2], weights[2]; /* how many were counted */
} zb_row;

static void add_real(zb_row *z, int way, oar_act act, int micro)
{
    if (micro < z->micro)
        oari_schedule_add(z->draft, z->stage[way], act, micro);
}

static void zb_forward(zb_row *z, int way)
{
    add_real(z, way, OAR_ACT_F, z->forward[way]++);
}

static void zb_inputs(zb_row *z, int way)
{
    add_real(z, way, OAR_ACT_I, z->inputs[way]++);
}

static void zb_weights(zb_row *z, int way)
{
    add_real(z, way, OAR_ACT_W, z->weights[way]++);
}

static void zb_both_halves(zb_row *z, int way)
{
    zb_inputs(z, way);
    zb_weights(z, way);
}

/* Fills the pipeline, until the first micro-batch is back. */
static void zb_begin(zb_row *z, int rank, int ranks)
{
    for (int i = 0; i < 2 * (ranks - rank) - 1; i++)
        zb_forward(z, DOWN);
    for (int i = 0; i < rank; i++) {
        zb_forward(z, UP);
        zb_forward(z, DOWN);
    }
    for (int i = 0; i < ranks - rank; i++) {
        zb_forward(z, UP);
        zb_both_halves(z, UP);
    }
}

static void zb_middle(zb_row *z, int micro)
{
    while (z->forward[UP] < z->forward[DOWN] || z->forward[DOWN] < micro) {
        if (z->forward[DOWN] < micro)
            zb_forward(z, DOWN);
        zb_both_halves(z, DOWN);
        zb_forward(z, UP);
        zb_both_halves(z, UP);
    }
}

/* Empties it; weight halves fill what would be gaps. */
static void zb_end(zb_row *z, int rank, int ranks)
{
    for (int i = 0; i < rank; i++) {
        zb_inputs(z, DOWN);
        zb_inputs(z, UP);
    }
    for (int i = 0; i < ranks - rank; i++)
        zb_both_halves(z, DOWN);
    while (z->weights[UP] < z->inputs[UP])
        zb_weights(z, UP);
    while (z->weights[DOWN] < z->inputs[DOWN])
        zb_weights(z, DOWN);
}

void oari_make_zb_v(oari_schedule_draft *d, const oari_schedule_size *size)
{
    int ranks = size->ranks;
    int micro = size->micro > 2 * ranks - 1 ? size->micro : 2 * ranks - 1;

    for (int r = d->rank = 0; r < ranks; r = ++d->rank) {
        zb_row z = { .draft = d,
                     .micro = size->micro,
                     .stage = { r, 2 * ranks - 1 - r } };

        zb_begin(&z, r, ranks);
        zb_middle(&z, micro);
        zb_end(&z, r, ranks);
    }
}

/* ---- dualpipe_v ---------------------------------------------------------- */

typedef struct dual_row {
    oari_schedule_draft *draft;
    int stage[2];
    int forward[2], backward[2];
    OARI_VEC(oar_action) owed; /* W of each I so far */
    int64_t paid;              /* how many of them were added */
} dual_row;

static void dual_forward(dual_row *d, int way)
{
    oari_schedule_add(d->draft, d->stage[way], OAR_ACT_F, d->forward[way]++);
}

/* The whole backward, or only its first half. */
static void dual_backward(dual_row *d, int way, int half)
{
    oar_action later = { d->stage[way], OAR_ACT_W, d->backward[way], 0 };

    oari_schedule_add(d->draft, d->stage[way], half ? OAR_ACT_I : OAR_ACT_B,
                      d->backward[way]++);
    if (half && d->draft->status == OAR_OK)
        d->draft->status = oari_vec_push(&d->owed, later);
}

/* A forward and a backward that PyTorch overlaps. */
static void dual_pair(dual_row *d, int forward, int backward)
{
    oari_action_row *row = &d->draft->schedule->row[d->draft->rank];

    dual_forward(d, forward);
    if (d->draft->status == OAR_OK && !d->draft->forward_only)
        row->data[row->count - 1].joined = 1;
    dual_backward(d, backward, 0);
}

static void dual_weights(dual_row *d)
{
    if (d->paid < d->owed.count) {
        const oar_action *a = &d->owed.data[d->paid++];

        oari_schedule_add(d->draft, a->stage, OAR_ACT_W, a->micro);
    }
}

static void dual_begin(dual_row *d, int rank, int ranks)
{
    for (int i = 0; i < 2 * (ranks - rank - 1); i++)
        dual_forward(d, DOWN);
    for (int i = 0; i < rank + 1; i++) {
        dual_forward(d, DOWN);
        dual_forward(d, UP);
    }
    for (int i = 0; i < ranks - rank - 1; i++) {
        dual_backward(d, UP, 1);
        dual_weights(d);
        dual_forward(d, UP);
    }
}

static void dual_middle(dual_row *d, int rank, int ranks, int micro)
{
    for (int i = 0; i < micro - 2 * ranks + rank + 1; i++) {
        if (i == 0 && rank == ranks - 1) { /* apart: a smaller bubble */
            dual_forward(d, DOWN);
            dual_backward(d, UP, 0);
        } else {
            dual_pair(d, DOWN, UP);
        }
        dual_pair(d, UP, DOWN);
    }
    for (int i = 0; i < ranks - rank - 1; i++) {
        dual_backward(d, UP, 0);
        dual_pair(d, UP, DOWN);
    }
}

/* The second half of the last backwards is in halves. */
static void dual_end(dual_row *d, int rank, int ranks)
{
    int half = 0;

    for (int i = 0; i < rank + 1; i++) {
        half |= i == (rank + 1) / 2 && rank % 2 == 1;
        dual_backward(d, UP, half);
        half |= i == (rank + 1) / 2 && rank % 2 == 0;
        dual_backward(d, DOWN, half);
    }
    for (int i = 0; i < ranks - rank - 1; i++) {
        dual_weights(d);
        dual_backward(d, DOWN, half);
    }
    for (int i = 0; i < rank + 1; i++)
        dual_weights(d);
}

void oari_make_dualpipe_v(oari_schedule_draft *draft,
                          const oari_schedule_size *size)
{
    int ranks = size->ranks;

    for (int r = draft->rank = 0; r < ranks; r = ++draft->rank) {
        dual_row d = { .draft = draft, .stage = { r, 2 * ranks - 1 - r } };

        dual_begin(&d, r, ranks);
        dual_middle(&d, r, ranks, size->micro);
        dual_end(&d, r, ranks);
        oari_vec_free(&d.owed);
    }
}
