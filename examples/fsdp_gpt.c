/* SPDX-License-Identifier: Apache-2.0 */
/* fsdp_gpt: a small GPT, spread over the ranks, learns the text of a file.
 *     oarsong run -n 4 fsdp_gpt [options] [file]
 *     oarsong run -n 3 fsdp_gpt --checkpoint FOLDER --resume
 *     oarsong run -n 4 --keep-going fsdp_gpt --survive --die 120
 *
 * Every rank keeps and steps its part of the parameters, and takes its part of
 * each batch. Every byte of the file is a token. With --checkpoint the run is
 * saved now and then, and any number of ranks can go on with it. With --survive
 * the others go on at once if a rank dies, from the step where it died.
 */
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include <oarsong/oarsong.h>

#ifndef OARSONG_SOURCE
#define OARSONG_SOURCE "." /* the build says where the sources are */
#endif
#define TRY(call)                 \
    do {                          \
        oar_status try_ = (call); \
        if (try_ != OAR_OK)       \
            return try_;          \
    } while (0)

enum { CONTEXT = 64, STRIDE = 8, BATCH = 24 }; /* 1, 2, 3 and 4 divide it */

/* Everything that a run holds. */
typedef struct run {
    const char *checkpoint, *file;
    int64_t step, steps, every, die; /* die: the last rank, after this step */
    int resume, survive;
    uint64_t epoch; /* where the batch of this step is */
    int64_t sample;
    oar_group *world;
    oar_dataset *data;
    oar_loader *loader;
    oar_module *network;
    oar_optim *adam;
    oar_tape *tape;
    oar_state *state;
    oar_checkpoint *generations;
} run;

static oar_status make_loader(run *r)
{
    TRY(oar_loader_create(r->data,
                          OAR_OPTS(oar_loader_opts,
                                   .rank = oar_group_rank(r->world),
                                   .ranks = oar_group_size(r->world),
                                   .batch = BATCH / oar_group_size(r->world)),
                          &r->loader));
    return oar_loader_seek(r->loader, r->epoch, r->sample);
}

/* The network is lazy: no rank ever makes all of it. */
static oar_status make_network(run *r)
{
    oar_tensor *const *param;
    oar_module *gpt;
    oar_status status;
    int count;

    oar_lazy(1);
    status = oar_gpt_create(
        OAR_OPTS(oar_gpt_opts, .context = CONTEXT, .width = 64, .layers = 3),
        &gpt);
    oar_lazy(0);
    TRY(status);
    TRY(oar_fsdp_wrap(gpt, r->world, NULL, &r->network));
    param = oar_fsdp_params(r->network, &count);
    TRY(oar_adamw_create_over(count, param, OAR_OPTS(oar_adam_opts, .lr = 3e-3),
                              &r->adam));
    return r->survive ? oar_fsdp_keep_state(r->network, r->adam) : OAR_OK;
}

/* Names everything that the run needs to go on. With --resume it goes on where
 * the newest generation was saved; without one it begins. */
static oar_status open_checkpoint(run *r)
{
    int64_t newest;
    oar_status status;

    if (r->checkpoint == NULL)
        return OAR_OK;
    TRY(oar_state_create(&r->state));
    TRY(oar_state_add_module(r->state, r->network, NULL));
    TRY(oar_state_add_optim(r->state, r->adam, r->network, NULL));
    TRY(oar_state_add_loader(r->state, "text", r->loader));
    TRY(oar_state_add_i64(r->state, "step", &r->step));
    TRY(oar_checkpoint_open(r->world, r->checkpoint, NULL, &r->generations));
    status = r->resume ? oar_checkpoint_newest(r->generations, &newest)
                       : OAR_E_NOT_FOUND;
    if (status == OAR_OK)
        return oar_checkpoint_load(r->generations, r->state, newest, NULL);
    return status == OAR_E_NOT_FOUND ? OAR_OK : status;
}

static oar_status train_step(run *r, double *loss)
{
    oar_tensor *field[2], *value;
    uint64_t epoch;
    int64_t sample;
    int more;

    TRY(oar_loader_next(r->loader, field, &more));
    if (!more) {
        TRY(oar_loader_position(r->loader, &epoch, &sample));
        TRY(oar_loader_start(r->loader, epoch + 1, 0));
        TRY(oar_loader_next(r->loader, field, &more));
    }
    value =
        oar_cross_entropy(r->tape, oar_forward(r->tape, r->network, field[0]),
                          oar_reshape(r->tape, field[1], OAR_SHAPE(-1)));
    TRY(oar_backward(r->tape, value)); /* the shards get mean gradients */
    TRY(oar_tensor_item(value, loss));
    TRY(oar_fsdp_clip_grad_norm(r->network, 1, NULL));
    TRY(oar_optim_step(r->adam));
    oar_optim_zero_grad(r->adam);
    oar_tape_reset(r->tape);
    return oar_all_reduce(r->world, oar_span_of(loss, 1, OAR_F64), OAR_AVG,
                          NULL, NULL);
}

/* A rank was lost: the others take over its shards and do its part of the
 * batches. A step that has begun counts; one that has not is done again. */
static oar_status go_on_without(run *r)
{
    oar_group *smaller;

    oar_tape_reset(r->tape);
    TRY(oar_group_shrink(r->world, NULL, &smaller));
    TRY(oar_fsdp_regroup(r->network, smaller, r->adam));
    if (oar_optim_steps(r->adam) > r->step) {
        TRY(oar_loader_position(r->loader, &r->epoch, &r->sample));
        r->step++;
    }
    oar_checkpoint_close(
        r->generations); /* what is saved has other parts now */
    oar_state_destroy(r->state);
    oar_loader_destroy(r->loader);
    oar_group_destroy(r->world);
    r->generations = NULL;
    r->state = NULL;
    r->loader = NULL;
    r->world = smaller;
    r->resume = 0;
    TRY(make_loader(r));
    return open_checkpoint(r);
}

static void report(const run *r, double loss)
{
    if (oar_group_rank(r->world) == 0 &&
        (r->step % (r->steps / 10 + 1) == 0 || r->step == r->steps))
        printf("step %d/%d  loss %.4f on %d ranks\n", (int)r->step,
               (int)r->steps, loss, oar_group_size(r->world));
    fflush(stdout);
}

static oar_status train(run *r)
{
    oar_status status;
    double loss;

    TRY(oar_dataset_tokens(r->file, OAR_U8, CONTEXT, STRIDE, &r->data));
    TRY(make_loader(r));
    TRY(make_network(r));
    TRY(oar_tape_create(&r->tape));
    TRY(open_checkpoint(r));
    if (oar_group_rank(r->world) == 0 && r->step > 0)
        printf("goes on after step %d\n", (int)r->step);
    while (r->step < r->steps) {
        TRY(oar_loader_position(r->loader, &r->epoch, &r->sample));
        status = train_step(r, &loss);
        if (status != OAR_OK && r->survive) {
            TRY(go_on_without(r));
            continue;
        }
        TRY(status);
        r->step++;
        report(r, loss);
        if (r->checkpoint != NULL &&
            (r->step % r->every == 0 || r->step == r->steps))
            TRY(oar_checkpoint_save(r->generations, r->state, r->step,
                                    OAR_OPTS(oar_save_opts, .background = 1)));
        if (r->step == r->die &&
            oar_group_rank(r->world) == oar_group_size(r->world) - 1)
            raise(SIGKILL);
    }
    return r->checkpoint != NULL ? oar_checkpoint_wait(r->generations) : OAR_OK;
}

/* Returns 0 if the arguments make no sense. */
static int read_options(int argc, char **argv, run *r)
{
    static const struct option option[] = {
        { "steps", 1, NULL, 0 },  { "every", 1, NULL, 1 },
        { "die", 1, NULL, 2 },    { "checkpoint", 1, NULL, 3 },
        { "resume", 0, NULL, 4 }, { "survive", 0, NULL, 5 },
        { NULL, 0, NULL, 0 },
    };
    int64_t *const number[] = { &r->steps, &r->every, &r->die };
    int which;

    while ((which = getopt_long(argc, argv, "", option, NULL)) >= 0) {
        if (which > 5 || (which < 3 && (*number[which] = atoll(optarg)) < 1))
            return 0;
        if (which == 3)
            r->checkpoint = optarg;
        r->resume |= which == 4;
        r->survive |= which == 5;
    }
    if (optind < argc)
        r->file = argv[optind++];
    return optind == argc && (!r->resume || r->checkpoint != NULL);
}

int main(int argc, char **argv)
{
    run r = { .steps = 300, .every = 50, .file = OARSONG_SOURCE "/LICENSE" };
    oar_status status;

    if (!read_options(argc, argv, &r)) {
        fputs("usage: fsdp_gpt [--steps N] [--checkpoint FOLDER] [--every N]\n"
              "[--resume] [--survive] [--die STEP] [file]\n",
              stderr);
        return 2;
    }
    status = oar_group_from_env(NULL, &r.world);
    if (status == OAR_OK)
        status = train(&r);
    if (status != OAR_OK)
        fprintf(stderr, "fsdp_gpt: %s\n", oar_last_error_text());
    oar_checkpoint_close(r.generations);
    oar_state_destroy(r.state);
    oar_tape_destroy(r.tape);
    oar_optim_destroy(r.adam);
    oar_module_release(r.network);
    oar_loader_destroy(r.loader);
    oar_dataset_destroy(r.data);
    oar_group_destroy(r.world);
    return status == OAR_OK ? 0 : 1;
}
