/* SPDX-License-Identifier: Apache-2.0 */
/* A C11 program that knows only the installed headers and library. */
#include <oarsong/oarsong.h>
#include <stdio.h>

static int library_is_not_these_headers(void)
{
    if (oar_version() == OAR_VERSION_CODE)
        return 0;
    fprintf(stderr, "headers of %d, library of %d\n", OAR_VERSION_CODE,
            oar_version());
    return 1;
}

/* One layer, forward and backward, one step. */
static int train_one_step(void)
{
    int failed = 1;
    oar_tape *tape = NULL;
    oar_module *layer = NULL;
    oar_optim *sgd = NULL;
    oar_tensor *x = oar_full(NULL, OAR_F32, OAR_SHAPE(3, 5), 1.0);
    if (oar_tape_create(&tape) || oar_linear_create(5, 2, 7, NULL, &layer) ||
        oar_sgd_create(layer, OAR_OPTS(oar_sgd_opts, .lr = 0.1), &sgd))
        goto done;
    oar_tensor *loss = oar_mean(tape, oar_forward(tape, layer, x));
    failed = oar_backward(tape, loss) || oar_optim_step(sgd);
done:
    if (failed)
        fprintf(stderr, "%s\n", oar_last_error_text());
    oar_optim_destroy(sgd);
    oar_module_release(layer);
    oar_tape_destroy(tape);
    oar_tensor_release(x);
    return failed;
}

int main(void)
{
    if (library_is_not_these_headers() || train_one_step())
        return 1;
    puts("C consumer: ok, " OAR_VERSION_TEXT);
    return 0;
}
