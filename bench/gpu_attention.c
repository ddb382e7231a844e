/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_attention: attention of bf16 on a GPU, forward and backward.
 *
 *     gpu_attention [SEQUENCES HEADS POSITIONS WIDTH CAUSAL]
 *
 * by default four shapes of GPT-2's size. Prints lines
 * attention,ours,SHAPE,forward ms,TFLOP/s,backward ms,TFLOP/s: medians of
 * 15 runs; 4 T T d FLOP a head forward, half of it if causal, and 2.5 times
 * that backward. gpu_attention_torch.py prints the same of PyTorch. */
#include <stdio.h>

#include "models.h"

enum { ROUNDS = 18, WARM_UP = 3 };

typedef struct problem {
    int outer, heads, t, d, causal;
} problem;

typedef struct bench {
    oar_device gpu;
    void *event[3];
    oar_tape *tape;
} bench;

/* Random numbers, the same for every sequence. Heads lie side by side in a row,
 * as a linear layer makes them. */
static oar_tensor *make_heads(const bench *b, const problem *p, uint64_t seed)
{
    oar_shape shape = OAR_SHAPE(p->outer, p->t, p->heads, p->d);
    oar_tensor *here = oar_normal(
        NULL, OAR_BF16, OAR_SHAPE(1, p->t, p->heads, p->d), seed, 0, 1);
    oar_tensor *there = here == NULL ? NULL : oar_to(NULL, here, b->gpu);
    oar_tensor *wide = there == NULL ? NULL : oar_expand(NULL, there, shape);
    oar_tensor *rows = wide == NULL ? NULL : oar_contiguous(NULL, wide);
    oar_tensor *made = rows == NULL ? NULL : oar_transpose(NULL, rows, 1, 2);

    oar_tensor_release(here);
    oar_tensor_release(there);
    oar_tensor_release(wide);
    oar_tensor_release(rows);
    return made;
}

static oar_status run_once(bench *b, const problem *p, oar_tensor *const *leaf,
                           oar_tensor *seed, double ms[2])
{
    oar_attention_opts opts = oar_attention_opts_init();
    void *stream = oar_stream_current(b->gpu);
    oar_tensor *out;

    opts.causal = p->causal;
    TRY(oar_event_record(b->gpu, b->event[0], stream));
    out = oar_attention(b->tape, leaf[0], leaf[1], leaf[2], &opts);
    if (out == NULL)
        return oar_last_error()->status;
    TRY(oar_event_record(b->gpu, b->event[1], stream));
    TRY(oar_backward_from(b->tape, 1, &out, &seed));
    TRY(oar_event_record(b->gpu, b->event[2], stream));
    TRY(oar_event_synchronize(b->gpu, b->event[2]));
    for (int i = 0; i < 2; i++)
        TRY(oar_event_elapsed(b->gpu, b->event[i], b->event[i + 1], &ms[i]));
    for (int i = 0; i < 3; i++)
        oar_tensor_clear_grad(leaf[i]);
    oar_tape_reset(b->tape);
    return OAR_OK;
}

static oar_status time_problem(bench *b, const problem *p)
{
    double ahead[ROUNDS], behind[ROUNDS], ms[2], flop;
    oar_tensor *leaf[3], *seed;

    for (int i = 0; i < 3; i++) {
        leaf[i] = make_heads(b, p, (uint64_t)i + 1);
        if (leaf[i] == NULL)
            return oar_last_error()->status;
        TRY(oar_tensor_require_grad(leaf[i], 1));
    }
    if ((seed = make_heads(b, p, 4)) == NULL)
        return oar_last_error()->status;
    for (int i = 0; i < ROUNDS; i++) {
        TRY(run_once(b, p, leaf, seed, ms));
        ahead[i] = ms[0];
        behind[i] = ms[1];
    }
    ms[0] = median(ahead + WARM_UP, ROUNDS - WARM_UP);
    ms[1] = median(behind + WARM_UP, ROUNDS - WARM_UP);
    flop = 4.0 * p->t * p->t * p->d * p->heads * p->outer /
           (p->causal ? 2 : 1) * 1e-9;
    printf("attention,ours,%dx%dx%dx%d%s,%.3f,%.0f,%.3f,%.0f\n", p->outer,
           p->heads, p->t, p->d, p->causal ? " causal" : "", ms[0],
           flop / ms[0], ms[1], 2.5 * flop / ms[1]);
    fflush(stdout);
    for (int i = 0; i < 3; i++)
        oar_tensor_release(leaf[i]);
    oar_tensor_release(seed);
    return OAR_OK;
}

static oar_status run_all(bench *b, int argc, char **argv)
{
    static const problem usual[] = { { 64, 12, 1024, 64, 1 },
                                     { 64, 12, 1024, 64, 0 },
                                     { 32, 12, 1024, 128, 1 },
                                     { 32, 12, 1024, 128, 0 } };
    int number[5];

    if (argc == 6) {
        for (int i = 0; i < 5; i++)
            number[i] = atoi(argv[i + 1]);
        return time_problem(b, &(problem){ number[0], number[1], number[2],
                                           number[3], number[4] });
    }
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
        TRY(time_problem(b, &usual[i]));
    return OAR_OK;
}

int main(int argc, char **argv)
{
    bench b = { 0 };
    oar_status status = oar_device_parse("cuda", &b.gpu);

    for (int i = 0; i < 3 && status == OAR_OK; i++)
        status = oar_event_create(b.gpu, 1, &b.event[i]);
    if (status == OAR_OK)
        status = oar_tape_create(&b.tape);
    if (status == OAR_OK)
        status = run_all(&b, argc, argv);
    if (status != OAR_OK)
        fprintf(stderr, "gpu_attention: %s\n", oar_last_error_text());
    oar_tape_destroy(b.tape);
    for (int i = 0; i < 3; i++)
        oar_event_destroy(b.gpu, b.event[i]);
    return status == OAR_OK ? 0 : 1;
}
