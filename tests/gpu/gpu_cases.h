/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_cases.h: the cases of the cpu's tests, goldens and gradient checks, on a
 * GPU. For tests, one file each. Functions return 0 if all is well. */
#ifndef OARI_TESTS_GPU_CASES_H
#define OARI_TESTS_GPU_CASES_H

#include "support/gpu.h"

#include "golden/golden.h"
#include "unit/gradcheck.h"

static const oar_device gpu_cases_on = { OAR_CUDA, 0 };

enum { GPU_CASES_MOST = 2048 };

typedef struct gpu_numbers {
    int64_t count;
    double number[GPU_CASES_MOST];
} gpu_numbers;

static inline int gpu_case_fails(const char *name)
{
    print_error("%s: %s\n", name, oar_last_error_text());
    return 1;
}

/* Takes the reference to a leaf and gives one on a device, which wants a
 * gradient if it did. NULL for NULL. */
static inline oar_tensor *leaf_on(oar_device device, oar_tensor *here)
{
    oar_tensor *there;

    if (here == NULL || device.kind == OAR_CPU)
        return here;
    there = oar_to(NULL, here, device);
    if (there != NULL)
        oar_tensor_require_grad(there, oar_tensor_requires_grad(here));
    oar_tensor_release(here);
    return there;
}

static inline int read_numbers(const oar_tensor *t, gpu_numbers *n)
{
    n->count = t != NULL ? oar_tensor_count(t) : -1;
    return n->count < 0 || n->count > GPU_CASES_MOST ||
           oar_tensor_read(t, OAR_F64, n->number) != OAR_OK;
}

/* Bit by bit, but for NaNs, which none of the cases has. */
static inline int same_numbers(const gpu_numbers *a, const gpu_numbers *b)
{
    int same = a->count == b->count;

    for (int64_t i = 0; same && i < a->count; i++)
        same = a->number[i] == b->number[i];
    return same;
}

/* ---- goldens ------------------------------------------------------------- */

/* A case that has run: its result and the gradients of its inputs. */
typedef struct golden_outcome {
    gpu_numbers out, grad[GOLDEN_INPUTS];
} golden_outcome;

static inline int run_golden(const golden_case *of, oar_device device,
                             oar_dtype dtype, int spread, golden_outcome *o)
{
    oar_tensor *leaf[GOLDEN_INPUTS], *in[GOLDEN_INPUTS], *out;
    oar_tensor *seed =
        leaf_on(device, golden_tensor(golden_get(of->name, "seed"), dtype));
    oar_tape *tape;
    int bad;

    if (oar_tape_create(&tape) != OAR_OK)
        return gpu_case_fails(of->name);
    for (int i = 0; i < GOLDEN_INPUTS; i++) {
        leaf[i] = leaf_on(device, golden_input(of->name, i, dtype, spread));
        in[i] =
            leaf[i] != NULL && spread ? golden_view(tape, leaf[i]) : leaf[i];
    }
    out = of->fn(tape, in);
    bad = out == NULL || oar_tensor_device(out).kind != device.kind ||
          read_numbers(out, &o->out) ||
          oar_backward_from(tape, 1, &out, &seed) != OAR_OK;
    for (int i = 0; i < GOLDEN_INPUTS; i++) {
        oar_tensor *grad, *view;

        o->grad[i].count = 0;
        if (!bad && golden_part(of->name, "grad", i) != NULL) {
            grad = oar_tensor_grad(leaf[i]);
            view = grad != NULL && spread ? golden_view(NULL, grad)
                                          : oar_tensor_retain(grad);
            bad = read_numbers(view, &o->grad[i]);
            oar_tensor_release(view);
        }
        oar_tensor_release(leaf[i]);
    }
    oar_tensor_release(seed);
    oar_tape_destroy(tape);
    return bad ? gpu_case_fails(of->name) : 0;
}

static inline int far_from(const char *name, const char *part, oar_dtype dtype,
                           double tolerance, const gpu_numbers *got,
                           const double *want, int64_t count)
{
    if (got->count != count) {
        print_error("%s.%s: %ld numbers, not %ld\n", name, part,
                    (long)got->count, (long)count);
        return 1;
    }
    for (int64_t i = 0; i < count; i++)
        if (!(fabs(got->number[i] - want[i]) <=
              tolerance * (1 + fabs(want[i])))) {
            print_error("%s.%s[%ld] (%s): %.17g, not %.17g\n", name, part,
                        (long)i, oar_dtype_name(dtype), got->number[i],
                        want[i]);
            return 1;
        }
    return 0;
}

/* Two units in the last place of a half: what it is compared with rounds in
 * between. */
static inline double gpu_tolerance(oar_dtype dtype)
{
    return dtype == OAR_F64   ? 1e-10
           : dtype == OAR_F32 ? 1e-5
           : dtype == OAR_F16 ? 0x1p-9
                              : 0x1p-6;
}

/* Against PyTorch's numbers; those of halves are parts of their own. */
static inline int gpu_golden(const golden_case *of, oar_dtype dtype, int spread)
{
    static golden_outcome o;
    int half = dtype == OAR_F16 || dtype == OAR_BF16;
    char part[32];

    if (run_golden(of, gpu_cases_on, dtype, spread, &o))
        return 1;
    for (int i = -1; i < GOLDEN_INPUTS; i++) {
        const golden *want;

        if (i >= 0 && golden_part(of->name, "grad", i) == NULL)
            continue;
        snprintf(part, sizeof part, i < 0 ? "%s%sout" : "%s%sgrad%d",
                 half ? oar_dtype_name(dtype) : "", half ? "." : "", i);
        want = golden_get(of->name, part);
        if (far_from(of->name, part, dtype, gpu_tolerance(dtype),
                     i < 0 ? &o.out : &o.grad[i], want->number,
                     (int64_t)want->count))
            return 1;
    }
    return 0;
}

/* Against the cpu in the same dtype; and twice with the same bits. */
static inline int gpu_agrees(const golden_case *of, oar_dtype dtype)
{
    static golden_outcome here, there, again;

    if (run_golden(of, (oar_device){ OAR_CPU, 0 }, dtype, 0, &here) ||
        run_golden(of, gpu_cases_on, dtype, 0, &there) ||
        run_golden(of, gpu_cases_on, dtype, 0, &again) ||
        far_from(of->name, "out", dtype, gpu_tolerance(dtype), &there.out,
                 here.out.number, here.out.count))
        return 1;
    for (int i = 0; i < GOLDEN_INPUTS; i++)
        if (far_from(of->name, "grad", dtype, gpu_tolerance(dtype),
                     &there.grad[i], here.grad[i].number, here.grad[i].count))
            return 1;
    for (int i = -1; i < GOLDEN_INPUTS; i++)
        if (!same_numbers(i < 0 ? &there.out : &there.grad[i],
                          i < 0 ? &again.out : &again.grad[i])) {
            print_error("%s: a second run gives other bits\n", of->name);
            return 1;
        }
    return 0;
}

/* Cases whose goldens are of f32 and f64: views in f32, halves as the cpu. */
static inline int gpu_goldens(const golden_case *c, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (gpu_golden(&c[i], OAR_F64, 0) || gpu_golden(&c[i], OAR_F32, 1) ||
            gpu_agrees(&c[i], OAR_F16) || gpu_agrees(&c[i], OAR_BF16))
            return 1;
    return 0;
}

/* ---- gradients ----------------------------------------------------------- */

/* A case of gradcheck.h on a GPU, with its numbers on the host too. */
typedef struct gpu_slopes {
    const gradcheck *of;
    oar_tensor *in[GRADCHECK_LEAVES];
    gpu_numbers x[GRADCHECK_LEAVES], grad[GRADCHECK_LEAVES];
    int leaves;
} gpu_slopes;

static inline oar_tensor *gpu_loss(const gpu_slopes *s, oar_tape *tape)
{
    oar_tensor *out = s->of->fn(tape, s->in), *weight;

    if (out == NULL)
        return NULL;
    weight = oar_uniform(tape, OAR_F64, oar_tensor_shape(out), 99, 0.5, 1.5);
    return oar_sum(tape, oar_mul(tape, out, beside(tape, weight, out)));
}

/* The loss with all leaves moved by `step` along a direction from a seed. */
static inline int moved_loss(gpu_slopes *s, oar_tape *tape, double step,
                             uint64_t seed, double *value)
{
    static double moved[GPU_CASES_MOST];
    int bad = 0;

    for (int i = 0; i < s->leaves && !bad; i++) {
        for (int64_t k = 0; k < s->x[i].count; k++)
            moved[k] =
                s->x[i].number[k] +
                step * cos((double)(k + 1) * (double)(seed + (uint64_t)i));
        bad = oar_tensor_write(s->in[i], OAR_F64, moved) != OAR_OK;
    }
    bad = bad || oar_tensor_item(gpu_loss(s, tape), value) != OAR_OK;
    oar_tape_reset(tape);
    return bad;
}

static inline int check_direction(gpu_slopes *s, oar_tape *tape, uint64_t seed)
{
    double high, low, want, got = 0;

    for (int i = 0; i < s->leaves; i++)
        for (int64_t k = 0; k < s->x[i].count; k++)
            got += s->grad[i].number[k] *
                   cos((double)(k + 1) * (double)(seed + (uint64_t)i));
    if (moved_loss(s, tape, gradcheck_step, seed, &high) ||
        moved_loss(s, tape, -gradcheck_step, seed, &low))
        return gpu_case_fails(s->of->name);
    want = (high - low) / (2 * gradcheck_step);
    if (fabs(got - want) <= 1e-7 * (1 + fabs(want)))
        return 0;
    print_error("%s: the slope is %.12g, differences say %.12g\n", s->of->name,
                got, want);
    return 1;
}

/* Two passes add up; then the slope along two directions. */
static inline int gpu_slope(const gradcheck *of)
{
    static gpu_slopes s;
    oar_tape *tape;
    int bad = 0;

    memset(&s, 0, sizeof s);
    s.of = of;
    if (oar_tape_create(&tape) != OAR_OK)
        return gpu_case_fails(of->name);
    for (; s.leaves < GRADCHECK_LEAVES && of->shape[s.leaves].ndim >= 0;
         s.leaves++) {
        oar_tensor *here =
            gradcheck_leaf(of->shape[s.leaves], 7 + (uint64_t)s.leaves);

        bad = bad || read_numbers(here, &s.x[s.leaves]);
        s.in[s.leaves] = leaf_on(gpu_cases_on, here);
    }
    for (int pass = 0; pass < 2 && !bad; pass++) {
        oar_tensor *loss = gpu_loss(&s, tape);

        bad = loss == NULL ||
              oar_backward(tape, oar_scale(tape, loss, 0.5)) != OAR_OK;
        oar_tape_reset(tape);
    }
    for (int i = 0; i < s.leaves && !bad; i++)
        bad = read_numbers(oar_tensor_grad(s.in[i]), &s.grad[i]);
    bad = bad ? gpu_case_fails(of->name) : 0;
    oar_tape_record(tape, 0);
    bad = bad || check_direction(&s, tape, 3) || check_direction(&s, tape, 5);
    for (int i = 0; i < s.leaves; i++)
        oar_tensor_release(s.in[i]);
    oar_tape_destroy(tape);
    return bad;
}

static inline int gpu_slopes_of(const gradcheck *c, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (gpu_slope(&c[i]))
            return 1;
    return 0;
}

#endif
