/* SPDX-License-Identifier: Apache-2.0 */
/* tp_gpt: one small GPT, of which each rank computes a part, learns the text of
 * a file.
 *     oarsong run -n 4 tp_gpt [options] [file]
 *
 * The ranks are a mesh: --tensor of them share a model (tensor parallel), and
 * the copies of it take parts of each batch (DDP). The default is one model for
 * all ranks. With --sequence, activations between the layers are spread over
 * the ranks, too. Every byte of the file is a token.
 */
#include <getopt.h>
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

enum { CONTEXT = 64, STRIDE = 8, BATCH = 24, WORDS = 256 };
enum { DATA, TENSOR }; /* the dims of the mesh */

/* Everything that a run holds. */
typedef struct run {
    const char *file;
    int64_t steps, tensor;
    int sequence;
    oar_group *world;
    oar_mesh *mesh;
    oar_dataset *data;
    oar_loader *loader;
    oar_module *network;
    oar_optim *adam;
    oar_tape *tape;
} run;

/* Ranks that share a model read the same part of each batch. */
static oar_status make_data(run *r)
{
    int copies = oar_mesh_size(r->mesh, DATA);

    TRY(oar_dataset_tokens(r->file, OAR_U8, CONTEXT, STRIDE, &r->data));
    TRY(oar_loader_create(
        r->data,
        OAR_OPTS(oar_loader_opts,
                 .rank = oar_group_rank(oar_mesh_group(r->mesh, DATA)),
                 .ranks = copies, .batch = BATCH / copies),
        &r->loader));
    return oar_loader_start(r->loader, 0, 0);
}

/* The network is lazy: each rank makes its part only. */
static oar_status make_network(run *r)
{
    oar_module *gpt;
    oar_status status;

    oar_lazy(1);
    status = oar_gpt_create(OAR_OPTS(oar_gpt_opts, .vocabulary = WORDS,
                                     .context = CONTEXT, .width = 65,
                                     .heads = 5, .layers = 3),
                            &gpt);
    oar_lazy(0);
    TRY(status);
    TRY(oar_tp_parallelize_gpt(gpt, oar_mesh_group(r->mesh, TENSOR),
                               OAR_OPTS(oar_tp_opts, .sequence = r->sequence)));
    TRY(oar_ddp_wrap(gpt, oar_mesh_group(r->mesh, DATA), NULL, &r->network));
    return oar_adamw_create(r->network, OAR_OPTS(oar_adam_opts, .lr = 3e-3),
                            &r->adam);
}

static oar_status train_step(run *r, double *loss)
{
    oar_tensor *field[2], *logits, *value;
    uint64_t epoch;
    int64_t sample;
    int more;

    TRY(oar_loader_next(r->loader, field, &more));
    if (!more) {
        TRY(oar_loader_position(r->loader, &epoch, &sample));
        TRY(oar_loader_start(r->loader, epoch + 1, 0));
        TRY(oar_loader_next(r->loader, field, &more));
    }
    logits = oar_forward(r->tape, r->network, field[0]); /* some of the words */
    value = oar_tp_cross_entropy(r->tape, logits,
                                 oar_reshape(r->tape, field[1], OAR_SHAPE(-1)),
                                 oar_mesh_group(r->mesh, TENSOR), WORDS, NULL);
    TRY(oar_backward(r->tape, value));
    TRY(oar_tensor_item(value, loss));
    TRY(oar_tp_clip_grad_norm(r->network, 1, NULL));
    TRY(oar_optim_step(r->adam));
    oar_optim_zero_grad(r->adam);
    oar_tape_reset(r->tape);
    return oar_all_reduce(r->world, oar_span_of(loss, 1, OAR_F64), OAR_AVG,
                          NULL, NULL);
}

static oar_status train(run *r)
{
    int ranks = oar_group_size(r->world);
    int tensor = r->tensor > 0 ? (int)r->tensor : ranks;
    double loss;

    TRY(oar_mesh_create(r->world, 2, (int[]){ -1, tensor },
                        (const char *[]){ "data", "tensor" }, NULL, &r->mesh));
    TRY(make_data(r));
    TRY(make_network(r));
    TRY(oar_tape_create(&r->tape));
    oar_tape_share(r->tape, 4096); /* so that ranks add in place */
    for (int64_t step = 1; step <= r->steps; step++) {
        TRY(train_step(r, &loss));
        if (oar_group_rank(r->world) == 0 &&
            (step % (r->steps / 10 + 1) == 0 || step == r->steps))
            printf("step %d/%d  loss %.4f on %d x %d ranks\n", (int)step,
                   (int)r->steps, loss, ranks / tensor, tensor);
        fflush(stdout);
    }
    return OAR_OK;
}

/* Returns 0 if the arguments make no sense. */
static int read_options(int argc, char **argv, run *r)
{
    static const struct option option[] = {
        { "steps", 1, NULL, 0 },
        { "tensor", 1, NULL, 1 },
        { "sequence", 0, NULL, 2 },
        { NULL, 0, NULL, 0 },
    };
    int64_t *const number[] = { &r->steps, &r->tensor };
    int which;

    while ((which = getopt_long(argc, argv, "", option, NULL)) >= 0) {
        if (which > 2 || (which < 2 && (*number[which] = atoll(optarg)) < 1))
            return 0;
        r->sequence |= which == 2;
    }
    if (optind < argc)
        r->file = argv[optind++];
    return optind == argc;
}

int main(int argc, char **argv)
{
    run r = { .steps = 300, .file = OARSONG_SOURCE "/LICENSE" };
    oar_status status;

    if (!read_options(argc, argv, &r)) {
        fputs("usage: tp_gpt [--steps N] [--tensor RANKS] [--sequence] "
              "[file]\n",
              stderr);
        return 2;
    }
    status = oar_group_from_env(NULL, &r.world);
    if (status == OAR_OK)
        status = train(&r);
    if (status != OAR_OK)
        fprintf(stderr, "tp_gpt: %s\n", oar_last_error_text());
    oar_tape_destroy(r.tape);
    oar_optim_destroy(r.adam);
    oar_module_release(r.network);
    oar_loader_destroy(r.loader);
    oar_dataset_destroy(r.data);
    oar_mesh_release(r.mesh);
    oar_group_destroy(r.world);
    return status == OAR_OK ? 0 : 1;
}
