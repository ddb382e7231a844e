/* SPDX-License-Identifier: Apache-2.0 */
/* exec_combine: partial results, which travel between ranks before they are
 * finished. A contribution is promoted to a partial result: widened (half types
 * to f32, so that they are rounded once, in the end) and multiplied by this
 * rank's factor. A partial result is finished by dividing it and narrowing it
 * again, or widening it where the output is wider than the input. Blocks that
 * must change their type go through a little memory that
 * stays in the first cache level; all else is one pass. */
#include "base/dtype.h"
#include "base/reduce/reduce.h"
#include "comm/exec/exec_run.h"

enum { BLOCK = 1024 }; /* elements */

typedef union block {
    unsigned char bytes[8 * BLOCK];
    double align;
} block;

/* How elements are combined, and of what type they are. */
typedef struct form {
    oar_reduce_op_kind kind;
    oar_dtype dtype, wide, out; /* of inputs, partial and finished results */
    double divisor;
} form;

oar_dtype oari_partial_dtype(oar_reduce_op_kind op, oar_dtype dtype)
{
    int rounds = op != OAR_REDUCE_OP_MIN && op != OAR_REDUCE_OP_MAX;

    return oari_dtype_is_half(dtype) && rounds ? OAR_F32 : dtype;
}

double oari_exec_divisor(const oari_exec *exec)
{
    return oari_divisor(exec->call->op.kind, exec->ranks, exec->factor);
}

static form form_of(const oari_exec *exec, int finish)
{
    oar_reduce_op_kind kind = exec->call->op.kind;
    oar_dtype dtype = oari_call_input_dtype(exec->call);
    oar_dtype wide = oari_partial_dtype(kind, dtype);

    return (form){ oari_computed_kind(kind), dtype, wide,
                   finish ? exec->call->out.dtype : wide,
                   finish ? oari_exec_divisor(exec) : 0 };
}

static void reduce_sources(const form *f, int sources,
                           const void *const *source, const double *factor,
                           double divisor, void *to, size_t count)
{
    oari_reduce(&(oari_reduction){ .kind = f->kind,
                                   .dtype = f->wide,
                                   .sources = sources,
                                   .source = source,
                                   .factor = factor,
                                   .divisor = divisor,
                                   .destinations = 1,
                                   .destination = &to },
                count);
}

/* Promotes a contribution. Returns where the partial result is: where the
 * contribution was, or `room`. */
static const void *promote(const form *f, const void *from,
                           const double *factor, void *room, size_t count)
{
    if (f->dtype != f->wide) {
        oari_convert(room, f->wide, from, f->dtype, count);
        from = room;
    }
    if (factor == NULL)
        return from;
    reduce_sources(f, 1, &from, factor, 0, room, count);
    return room;
}

/* ---- two operands -------------------------------------------------------- */

static const void *partial_of(oari_exec *exec, const form *f,
                              oari_buffer buffer, size_t at, block *room,
                              size_t count)
{
    const void *from = oari_exec_locate(exec, buffer, -1, at);
    int factors = oari_needs_factors(exec->call->op.kind);

    if (buffer != OARI_IN)
        return from;
    return promote(f, from, factors ? &exec->factor[exec->rank] : NULL, room,
                   count);
}

static void combine_block(oari_exec *exec, const form *f, const oari_step *step,
                          size_t at, size_t count)
{
    block left, right, result;
    void *to = oari_exec_locate(exec, step->to, -1, step->to_at + at);
    int converts = f->out != f->wide;
    const void *source[2] = {
        partial_of(exec, f, step->from, step->from_at + at, &left, count), NULL
    };
    int sources = step->with != OARI_NOWHERE ? 2 : 1;

    if (sources == 2)
        source[1] =
            partial_of(exec, f, step->with, step->with_at + at, &right, count);
    reduce_sources(f, sources, source, NULL, f->divisor,
                   converts ? result.bytes : to, count);
    if (converts)
        oari_convert(to, f->out, result.bytes, f->wide, count);
}

void oari_exec_combine(oari_exec *exec, const oari_step *step)
{
    form f = form_of(exec, step->finish);
    int promotes = f.dtype != f.wide || f.out != f.wide ||
                   oari_needs_factors(exec->call->op.kind);
    size_t size = promotes ? BLOCK : step->count;

    for (size_t at = 0; at < step->count; at += size) {
        size_t left = step->count - at;
        combine_block(exec, &f, step, at, left < size ? left : size);
    }
}

/* ---- many sources -------------------------------------------------------- */

/* Combines at most BLOCK elements of the sources, in their order. */
static void reduce_block(oari_exec *exec, const form *f, int sources, size_t at,
                         void *sum, size_t count)
{
    int factors = oari_needs_factors(exec->call->op.kind);
    block room;

    for (int s = 0; s < sources; s++) {
        const unsigned char *from = exec->source[s];
        double divisor = s == sources - 1 ? f->divisor : 0;
        const void *pair[2] = { sum, NULL };

        pair[s != 0] = promote(f, from + at * exec->element,
                               factors ? &exec->scale[s] : NULL,
                               s == 0 ? sum : (void *)&room, count);
        if (s != 0 || divisor != 0 || pair[0] != sum)
            reduce_sources(f, s == 0 ? 1 : 2, pair, NULL, divisor, sum, count);
    }
}

void oari_exec_reduce_partial(oari_exec *exec, int sources, void *to,
                              size_t count)
{
    form f = form_of(exec, 0);
    int factors = oari_needs_factors(exec->call->op.kind);

    if (f.dtype == f.wide) {
        reduce_sources(&f, sources, exec->source, factors ? exec->scale : NULL,
                       0, to, count);
        return;
    }
    for (size_t at = 0; at < count; at += BLOCK)
        reduce_block(exec, &f, sources, at,
                     (unsigned char *)to + at * oar_dtype_size(f.wide),
                     count - at < BLOCK ? count - at : BLOCK);
}

void oari_exec_reduce_wide(oari_exec *exec, int sources, void *to, size_t count)
{
    form f = form_of(exec, 1);
    block room;

    for (size_t at = 0; at < count; at += BLOCK) {
        size_t length = count - at < BLOCK ? count - at : BLOCK;
        unsigned char *out = (unsigned char *)to + at * exec->out_element;

        reduce_block(exec, &f, sources, at,
                     f.out != f.wide ? (void *)&room : out, length);
        if (f.out != f.wide)
            oari_convert(out, f.out, &room, f.wide, length);
    }
}
