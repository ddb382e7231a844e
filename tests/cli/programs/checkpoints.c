/* SPDX-License-Identifier: Apache-2.0 */
/* Saves generations of a small GPT: checkpoints DIR STEP... A step with a '+'
 * behind it is kept. Bias 0 of the last norm is the step.
 *   checkpoints DIR hold: opens the folder, prints a line, and waits until its
 *   input ends. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/oarsong.h>

#define TRY(call)                                                      \
    do {                                                               \
        if ((call) != OAR_OK) {                                        \
            fprintf(stderr, "%s: %s\n", #call, oar_last_error_text()); \
            exit(1);                                                   \
        }                                                              \
    } while (0)

static void save_steps(oar_checkpoint *runs, int count, char **text)
{
    oar_gpt_opts gpt = { .size = sizeof gpt,
                         .vocabulary = 11,
                         .context = 8,
                         .width = 64,
                         .layers = 2,
                         .heads = 1,
                         .activation = OAR_GELU_TANH,
                         .tied = 1 };
    oar_adam_opts adam = { .size = sizeof adam, .lr = 0.01 };
    oar_module *net;
    oar_optim *optim;
    oar_state *state;
    int64_t step = 0;

    TRY(oar_gpt_create(&gpt, &net));
    TRY(oar_adamw_create(net, &adam, &optim));
    TRY(oar_state_create(&state));
    TRY(oar_state_add_module(state, net, NULL));
    TRY(oar_state_add_optim(state, optim, net, NULL));
    TRY(oar_state_add_i64(state, "step", &step));
    for (int i = 0; i < count; i++) {
        float *bias = oar_tensor_data(oar_module_find(net, "norm.bias"));
        oar_save_opts opts = { .size = sizeof opts,
                               .keep = strchr(text[i], '+') != NULL,
                               .note = "a \"note\"" };

        step = atol(text[i]);
        bias[0] = (float)step;
        TRY(oar_checkpoint_save(runs, state, step, &opts));
    }
    oar_state_destroy(state);
    oar_optim_destroy(optim);
    oar_module_release(net);
}

int main(int argc, char **argv)
{
    oar_checkpoint_opts opts = { .size = sizeof opts, .no_sync = 1 };
    oar_checkpoint *runs;
    oar_group *group;

    if (argc < 3)
        return 2;
    TRY(oar_group_from_env(NULL, &group));
    TRY(oar_checkpoint_open(group, argv[1], &opts, &runs));
    if (strcmp(argv[2], "hold") == 0) {
        puts("held");
        fflush(stdout);
        (void)getchar();
    } else {
        save_steps(runs, argc - 2, argv + 2);
    }
    oar_checkpoint_close(runs);
    oar_group_destroy(group);
    return 0;
}
