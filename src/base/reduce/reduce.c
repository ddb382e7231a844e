/* SPDX-License-Identifier: Apache-2.0 */
/* reduce: chooses the kernel of a reduction.
 *
 * The instruction sets are listed from the plainest to the best. Each one that
 * this machine has gets a table, made once; it inherits the kernels that it
 * lacks from the one before it. The table in use is an atomic pointer, so that
 * a test can change it while other threads reduce. */
#include "base/reduce/reduce.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/dtype.h"
#include "base/reduce/reduce_isa.h"
#include "base/status.h"

static const oari_reduce_set *const isa[] = {
    &oari_reduce_scalar,
#if defined(__x86_64__)
    &oari_reduce_avx2,
    &oari_reduce_avx512,
#elif defined(__aarch64__)
    &oari_reduce_neon,
#if defined(OARI_REDUCE_HAS_ARM_EXTENSIONS)
    &oari_reduce_neon_f16, &oari_reduce_neon_bf16, &oari_reduce_sve,
#endif
#endif
};

enum { ISAS = sizeof isa / sizeof isa[0] };

typedef struct choice {
    const char *name; /* NULL: not on this machine */
    oari_reduce_table table;
} choice;

static choice choices[ISAS];
static _Atomic(const choice *) in_use;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_tables(void)
{
    static oari_reduce_table table;
    const choice *best = NULL;

    for (int i = 0; i < ISAS; i++) {
        oari_reduce_fit fit = isa[i]->fit();

        if (fit == OARI_ISA_ABSENT)
            continue;
        for (int s = 0; s < OARI_SHAPES; s++)
            for (int k = 0; k < OAR_REDUCE_OP_COUNT; k++)
                for (int d = 0; d < OAR_DTYPE_COUNT; d++)
                    if (isa[i]->table.fn[s][k][d] != NULL)
                        table.fn[s][k][d] = isa[i]->table.fn[s][k][d];
        choices[i].table = table;
        choices[i].name = isa[i]->name;
        if (fit == OARI_ISA_WANTED)
            best = &choices[i];
    }
    atomic_store(&in_use, best);
}

static const choice *current_choice(void)
{
    const choice *now = atomic_load_explicit(&in_use, memory_order_acquire);

    if (now != NULL)
        return now;
    pthread_once(&once, make_tables);
    return atomic_load(&in_use);
}

const char *oari_reduce_isa(void)
{
    return current_choice()->name;
}

oar_status oari_reduce_use(const char *name)
{
    pthread_once(&once, make_tables);
    for (int i = 0; i < ISAS; i++)
        if (choices[i].name != NULL && strcmp(choices[i].name, name) == 0) {
            atomic_store(&in_use, &choices[i]);
            return OAR_OK;
        }
    return oari_fail(OAR_E_UNAVAILABLE, "no instruction set \"%s\" here", name);
}

static oari_reduce_shape shape_of(const oari_reduction *r)
{
    if (r->factor != NULL || r->divisor != 0)
        return OARI_SCALED;
    if (r->sources == 2 && r->destinations == 1)
        return OARI_TWO_TO_ONE;
    if (r->sources == 2 && r->destinations == 2)
        return OARI_TWO_TO_TWO;
    return OARI_ANY_SHAPE;
}

/* Copies all bits unchanged, those of NaNs too; only a bool becomes 0 or 1. */
static void copy_source(const oari_reduction *r, size_t bytes)
{
    const oari_reduce_table *table = &current_choice()->table;
    oar_dtype dtype = r->dtype == OAR_BOOL ? OAR_BOOL : OAR_U8;

    if (r->destinations == 1 && dtype != OAR_BOOL) {
        if (r->destination[0] != r->source[0])
            memcpy(r->destination[0], r->source[0], bytes);
        return;
    }
    table->fn[OARI_ANY_SHAPE][OAR_REDUCE_OP_BOR][dtype](r, bytes);
}

void oari_reduce(const oari_reduction *r, size_t count)
{
    size_t bytes = count * oar_dtype_size(r->dtype);
    const oari_reduce_table *table = &current_choice()->table;
    oar_reduce_op_kind kind = oari_computed_kind(r->kind);
    oari_reduce_shape shape = shape_of(r);
    oari_reduce_fn *fn;

    if (bytes == 0)
        return;
    if (r->sources == 1 && shape != OARI_SCALED) {
        copy_source(r, bytes);
        return;
    }
    fn = table->fn[shape][kind][r->dtype];
    if (fn == NULL && shape == OARI_SCALED && kind == OAR_REDUCE_OP_SUM &&
        r->dtype != OAR_BOOL)
        fn = oari_reduce_scaled_integers;
    else if (fn == NULL)
        fn = table->fn[OARI_ANY_SHAPE][kind][r->dtype];
    fn(r, bytes);
}

double oari_divisor(oar_reduce_op_kind kind, int sources, const double *factor)
{
    double sum = 0;

    if (kind == OAR_REDUCE_OP_AVG)
        return sources;
    if (kind != OAR_REDUCE_OP_WEIGHTED_MEAN)
        return 0;
    for (int s = 0; s < sources; s++)
        sum += factor[s];
    return sum;
}
