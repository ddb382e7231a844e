/* SPDX-License-Identifier: Apache-2.0 */
/* ddp_gpt: a small GPT that learns to write like the source of this library.
 *     ddp_gpt [options] [folder]
 *     oarsong run -n 4 ddp_gpt --steps 300
 *     oarsong run -n 2 ddp_gpt --device cuda
 *     oarsong run -n 3 ddp_gpt --checkpoint FOLDER --resume
 *
 * Rank 0 reads the *.c, *.h and *.md files under the folder (up to 2 MB, in
 * sorted order) and gives the text to all. Every character is a token. Each
 * rank takes its own part of each batch, and gradients are averaged while
 * backward runs. At the end rank 0 lets the network write. With --checkpoint
 * the run is saved now and then, and any number of ranks can go on with it.
 */
#include <dirent.h>
#include <getopt.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

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

enum { MOST_BYTES = 2 << 20, MOST_PATH = 4096, MOST_SAMPLE = 300 };

typedef struct settings {
    int64_t steps, batch, context, width, layers, heads;
    double lr;
    uint64_t seed;
    const char *folder;
    const char *from;       /* a GPT-2 of Hugging Face; NULL: a new network */
    const char *checkpoint; /* folder of generations, or NULL */
    int64_t every;          /* so many steps the run is saved there */
    int resume;
    const char *device;  /* "cuda"; NULL: the cpu */
    int64_t die_in_save; /* of this step: the last rank is killed; 0: never */
    int64_t sample;      /* so many tokens it writes at the end */
} settings;

/* Everything that a run holds. */
typedef struct run {
    settings set;
    oar_device device;
    oar_group *world;
    char *text;
    int64_t bytes;
    oar_tokenizer *tokenizer;
    int64_t *token;
    size_t tokens;
    oar_dataset *data;
    oar_loader *loader;
    oar_module *gpt;     /* the model itself */
    oar_module *network; /* the model, or the wrapper around it */
    oar_optim *adam;
    oar_tensor **param; /* of adam, for clipping */
    oar_tape *tape;
    oar_state *state; /* what a generation has */
    oar_checkpoint *generations;
    int64_t step; /* the last one that is done */
    double loss;  /* about what the last tenth of the steps had */
} run;

static double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* This rank's part of a batch. */
static int64_t rows_of(const run *r)
{
    int64_t rows = r->set.batch / oar_group_size(r->world);

    return rows > 0 ? rows : 1;
}

/* ---- the text ------------------------------------------------------------ */

static int is_wanted(const struct dirent *entry)
{
    return entry->d_name[0] != '.' && strncmp(entry->d_name, "build", 5) != 0;
}

static int is_text(const char *path)
{
    const char *dot = strrchr(path, '.');

    return dot != NULL && (strcmp(dot, ".c") == 0 || strcmp(dot, ".h") == 0 ||
                           strcmp(dot, ".md") == 0);
}

/* Adds a file, as much as there is room for, unless it is not UTF-8. */
static void read_file(run *r, const char *path)
{
    char *here = r->text + r->bytes;
    FILE *file = fopen(path, "rb");
    oar_tokenizer *probe;
    size_t got;

    if (file == NULL)
        return;
    got = fread(here, 1, (size_t)(MOST_BYTES - r->bytes), file);
    fclose(file);
    if (oar_tokenizer_characters(here, got, &probe) != OAR_OK) {
        oar_clear_error();
        return;
    }
    oar_tokenizer_destroy(probe);
    r->bytes += (int64_t)got;
}

static void read_folder(run *r, const char *folder)
{
    struct dirent **entry;
    int count = scandir(folder, &entry, is_wanted, alphasort);

    for (int i = 0; i < count; i++) {
        char path[MOST_PATH];
        struct stat st;
        int length =
            snprintf(path, sizeof path, "%s/%s", folder, entry[i]->d_name);

        free(entry[i]);
        if (length >= MOST_PATH || lstat(path, &st) != 0)
            continue;
        if (S_ISDIR(st.st_mode))
            read_folder(r, path);
        else if (S_ISREG(st.st_mode) && is_text(path))
            read_file(r, path);
    }
    if (count >= 0)
        free(entry);
}

/* The same text for all ranks, though only rank 0 looks for it. */
static oar_status share_text(run *r)
{
    r->text = malloc(MOST_BYTES);
    if (r->text == NULL)
        return OAR_E_NOMEM;
    if (oar_group_rank(r->world) == 0)
        read_folder(r, r->set.folder);
    TRY(oar_broadcast(r->world, oar_span_of(&r->bytes, 1, OAR_I64), 0, NULL,
                      NULL));
    return oar_broadcast(r->world,
                         oar_span_of(r->text, (size_t)r->bytes, OAR_U8), 0,
                         NULL, NULL);
}

/* The loss of one who knows how often each token comes, and no more. */
static double unigram_loss(const run *r)
{
    int64_t kinds = oar_tokenizer_count(r->tokenizer);
    double *times = calloc((size_t)kinds, sizeof *times), loss = 0;

    for (size_t i = 0; times != NULL && i < r->tokens; i++)
        times[r->token[i]]++;
    for (int64_t i = 0; times != NULL && i < kinds; i++)
        if (times[i] > 0)
            loss -= times[i] / (double)r->tokens *
                    log(times[i] / (double)r->tokens);
    free(times);
    return loss;
}

/* The characters of the text, or the byte pairs of the model to start from. */
static oar_status make_tokens(run *r)
{
    char vocab[MOST_PATH], merges[MOST_PATH];

    if (r->set.from != NULL) {
        snprintf(vocab, sizeof vocab, "%s/vocab.json", r->set.from);
        snprintf(merges, sizeof merges, "%s/merges.txt", r->set.from);
        TRY(oar_tokenizer_bpe(vocab, merges, &r->tokenizer));
    } else
        TRY(oar_tokenizer_characters(r->text, (size_t)r->bytes, &r->tokenizer));
    return oar_tokenizer_encode(r->tokenizer, r->text, (size_t)r->bytes,
                                &r->token, &r->tokens);
}

/* Cuts the tokens into samples: row i of x is `context` tokens, row i of y the
 * ones that follow each of them. Both are views of the same memory. An epoch is
 * a whole number of batches, so that it is the same on any number of ranks. */
static oar_status make_data(run *r)
{
    int64_t length = r->set.context, rows;
    int64_t batch = rows_of(r) * oar_group_size(r->world);
    oar_tensor *all, *flat[2], *part[2];
    oar_status status;

    rows = ((int64_t)r->tokens - 1) / length / batch * batch;
    if (rows == 0) { /* on every rank: all have the same text */
        fprintf(stderr, "ddp_gpt: rank %d: %zu tokens under %s: too few\n",
                oar_group_rank(r->world), r->tokens, r->set.folder);
        return OAR_E_ARG;
    }
    all = oar_from_data(NULL, OAR_I64, OAR_SHAPE((int64_t)r->tokens), r->token);
    for (int i = 0; i < 2; i++) {
        flat[i] = oar_narrow(NULL, all, 0, i, rows * length);
        part[i] = oar_reshape(NULL, flat[i], OAR_SHAPE(rows, length));
    }
    status = oar_dataset_tensors(2, part, &r->data);
    for (int i = 0; i < 2; i++) {
        oar_tensor_release(flat[i]);
        oar_tensor_release(part[i]);
    }
    oar_tensor_release(all);
    TRY(status);
    TRY(oar_loader_create(
        r->data,
        OAR_OPTS(oar_loader_opts, .rank = oar_group_rank(r->world),
                 .ranks = oar_group_size(r->world), .batch = rows_of(r),
                 .seed = r->set.seed, .device = &r->device),
        &r->loader));
    return oar_loader_start(r->loader, 0, 0);
}

/* ---- the network --------------------------------------------------------- */

static oar_status make_network(run *r)
{
    const settings *s = &r->set;

    if (s->from != NULL)
        TRY(oar_gpt_from_hf(s->from, OAR_F32, &r->gpt, NULL));
    else
        TRY(oar_gpt_create(
            OAR_OPTS(oar_gpt_opts,
                     .vocabulary = oar_tokenizer_count(r->tokenizer),
                     .context = s->context, .width = s->width,
                     .layers = (int)s->layers, .heads = (int)s->heads,
                     .seed = s->seed),
            &r->gpt));
    oar_module_train(r->gpt, 1);
    if (r->device.kind != OAR_CPU)
        TRY(oar_module_to(r->gpt, r->device));
    r->network = oar_module_retain(r->gpt);
    if (oar_group_size(r->world) == 1)
        return OAR_OK;
    return oar_ddp_wrap(r->network, r->world, NULL, &r->network);
}

/* Matrices are decayed; biases and norms, in a group of their own, are not. */
static oar_status make_optim(run *r)
{
    int count = oar_module_params(r->gpt), ends[2] = { 0, count };

    r->param = malloc((size_t)count * sizeof(oar_tensor *));
    if (r->param == NULL)
        return OAR_E_NOMEM;
    for (int i = 0; i < count; i++) {
        oar_tensor *p = oar_module_param(r->gpt, i);

        r->param[oar_tensor_shape(p).ndim > 1 ? ends[0]++ : --ends[1]] = p;
    }
    TRY(oar_adamw_create_over(ends[0], r->param,
                              OAR_OPTS(oar_adam_opts, .lr = r->set.lr,
                                       .beta2 = 0.99, .weight_decay = 0.1),
                              &r->adam));
    return oar_optim_add_group(r->adam, count - ends[1], r->param + ends[1], 1,
                               0);
}

/* ---- checkpoints --------------------------------------------------------- */

/* Names everything that the run needs to go on. With --resume it goes on where
 * the newest generation was saved; without one it begins. */
static oar_status open_checkpoint(run *r)
{
    int64_t newest;
    oar_status status;

    TRY(oar_state_create(&r->state));
    TRY(oar_state_add_module(r->state, r->gpt, NULL));
    TRY(oar_state_add_optim(r->state, r->adam, r->gpt, NULL));
    TRY(oar_state_add_loader(r->state, "text", r->loader));
    TRY(oar_state_add_i64(r->state, "step", &r->step));
    TRY(oar_state_add_f64(r->state, "loss", &r->loss));
    TRY(oar_checkpoint_open(r->world, r->set.checkpoint,
                            OAR_OPTS(oar_checkpoint_opts, .keep = 3),
                            &r->generations));
    if (!r->set.resume)
        return OAR_OK;
    status = oar_checkpoint_newest(r->generations, &newest);
    if (status == OAR_OK)
        return oar_checkpoint_load(r->generations, r->state, newest, NULL);
    if (status == OAR_E_NOT_FOUND)
        oar_clear_error();
    return status == OAR_E_NOT_FOUND ? OAR_OK : status;
}

/* For --die-in-save. The library calls fsync for each file that it has written,
 * and the linker finds this one before the C library's: so the rank dies while
 * it is writing, not before and not after. */
static atomic_int dies_at_sync;

__attribute__((visibility("default"))) int fsync(int fd)
{
    if (dies_at_sync)
        raise(SIGKILL);
    return (int)syscall(SYS_fsync, fd);
}

/* Saves in the background: the next steps go on while the files are written. */
static oar_status save(run *r)
{
    if (r->step == r->set.die_in_save) {
        TRY(oar_checkpoint_wait(r->generations)); /* for the save before */
        dies_at_sync = oar_group_rank(r->world) == oar_group_size(r->world) - 1;
    }
    return oar_checkpoint_save(r->generations, r->state, r->step,
                               OAR_OPTS(oar_save_opts, .background = 1));
}

/* -------------------------------------------------------------------------- */

static oar_status set_up(run *r)
{
    if (r->set.device != NULL)
        TRY(oar_device_parse(r->set.device, &r->device));
    TRY(share_text(r));
    TRY(make_tokens(r));
    TRY(make_data(r));
    TRY(make_network(r));
    TRY(make_optim(r));
    TRY(oar_tape_create(&r->tape));
    return r->set.checkpoint != NULL ? open_checkpoint(r) : OAR_OK;
}

static void tear_down(run *r)
{
    oar_checkpoint_close(r->generations);
    oar_state_destroy(r->state);
    oar_tape_destroy(r->tape);
    oar_optim_destroy(r->adam);
    oar_module_release(r->network);
    oar_module_release(r->gpt);
    oar_loader_destroy(r->loader);
    oar_dataset_destroy(r->data);
    oar_tokenizer_destroy(r->tokenizer);
    oar_free(r->token);
    free(r->param);
    free(r->text);
}

/* ---- training ------------------------------------------------------------ */

/* The next batch, of the next epoch if this one is over. */
static oar_status next_batch(run *r, oar_tensor **field)
{
    uint64_t epoch;
    int64_t sample;
    int more;

    TRY(oar_loader_next(r->loader, field, &more));
    if (more)
        return OAR_OK;
    TRY(oar_loader_position(r->loader, &epoch, &sample));
    TRY(oar_loader_start(r->loader, epoch + 1, 0));
    return oar_loader_next(r->loader, field, &more);
}

/* On a GPU the loss is read now and then only: the host would wait for it. */
static int reads_loss(const run *r)
{
    const int64_t seldom = 10;

    return r->device.kind == OAR_CPU || r->step % seldom == 1 ||
           r->step == r->set.steps;
}

static oar_status train_step(run *r, double rate, double *loss)
{
    oar_tensor *field[2], *logits, *value;

    TRY(next_batch(r, field));
    logits = oar_forward(r->tape, r->network, field[0]);
    value = oar_cross_entropy(r->tape, logits,
                              oar_reshape(r->tape, field[1], OAR_SHAPE(-1)));
    TRY(oar_backward(r->tape, value)); /* gradients arrive averaged */
    if (reads_loss(r))
        TRY(oar_tensor_item(value, loss));
    TRY(oar_optim_set_lr(r->adam, rate));
    TRY(oar_optim_step_with(r->adam, OAR_OPTS(oar_step_opts, .clip = 1)));
    oar_optim_zero_grad(r->adam);
    oar_tape_reset(r->tape);
    if (!reads_loss(r))
        return OAR_OK;
    return oar_all_reduce(r->world, oar_span_of(loss, 1, OAR_F64), OAR_AVG,
                          NULL, NULL);
}

/* One line that is written over on a terminal, a few plain lines elsewhere.
 * first: the step after which this process began, at `start`. */
static void progress(const run *r, double loss, int64_t first, double start)
{
    int64_t steps = r->set.steps, done = r->step - first;
    double spent = seconds() - start;
    double tokens =
        (double)(done * rows_of(r) * r->set.context) * oar_group_size(r->world);
    int live = isatty(STDOUT_FILENO);

    if (r->step != steps && r->step % (live ? 5 : steps / 10 + 1) != 0)
        return;
    printf("%sstep %lld/%lld  loss %.4f  %.0f tokens/s  %.0f s left%s",
           live ? "\r" : "", (long long)r->step, (long long)steps, loss,
           tokens / spent, spent / (double)done * (double)(steps - r->step),
           live && r->step != steps ? "   " : "\n");
    fflush(stdout);
}

static oar_status train(run *r)
{
    const settings *s = &r->set;
    const oar_lr_schedule *schedule =
        OAR_OPTS(oar_lr_schedule, .kind = OAR_LR_COSINE,
                 .warmup = s->steps / 20, .steps = s->steps, .final = 0.1);
    double start = seconds(), keep = 1 - 10 / (double)(s->steps + 10);
    double loss = r->loss;
    int64_t first = r->step;

    while (r->step < s->steps) {
        r->step++;
        TRY(train_step(r, s->lr * oar_lr_schedule_at(schedule, r->step),
                       &loss));
        oar_metric("loss", loss);
        oar_step(r->step);
        r->loss = r->step == 1 ? loss : keep * r->loss + (1 - keep) * loss;
        if (oar_group_rank(r->world) == 0)
            progress(r, loss, first, start);
        if (r->generations != NULL &&
            (r->step % s->every == 0 || r->step == s->steps))
            TRY(save(r));
    }
    return r->generations != NULL ? oar_checkpoint_wait(r->generations)
                                  : OAR_OK;
}

/* ---- writing ------------------------------------------------------------- */

/* One of the tokens, by the softmax of a row of logits that are first made
 * sharper. uniform is in [0, 1). */
static int64_t draw(float *logit, int64_t kinds, double uniform)
{
    const float sharper = 1.25f;
    float top = logit[0];
    double sum = 0;

    for (int64_t i = 1; i < kinds; i++)
        top = logit[i] > top ? logit[i] : top;
    for (int64_t i = 0; i < kinds; i++) {
        logit[i] = expf((logit[i] - top) * sharper);
        sum += (double)logit[i];
    }
    uniform *= sum;
    for (int64_t i = 0; i < kinds; i++)
        if ((uniform -= (double)logit[i]) < 0)
            return i;
    return kinds - 1;
}

/* Appends a token to the `count` that are there. */
static oar_status write_one(run *r, int64_t *token, int64_t count,
                            double uniform)
{
    int64_t kinds = oar_tokenizer_count(r->tokenizer);
    int64_t seen = count < r->set.context ? count : r->set.context;
    oar_tensor *x = oar_from_data(r->tape, OAR_I64, OAR_SHAPE(1, seen),
                                  token + count - seen);
    oar_tensor *there =
        r->device.kind != OAR_CPU ? oar_to(r->tape, x, r->device) : x;
    oar_tensor *logits = oar_forward(r->tape, r->gpt, there);
    float *row = malloc((size_t)kinds * sizeof *row);
    oar_status status = OAR_E_NOMEM;

    if (row != NULL)
        status = oar_tensor_read(oar_narrow(r->tape, logits, 0, seen - 1, 1),
                                 OAR_F32, row);
    if (status == OAR_OK)
        token[count] = draw(row, kinds, uniform);
    free(row);
    oar_tape_reset(r->tape);
    return status;
}

static oar_status write_sample(run *r)
{
    int64_t token[MOST_SAMPLE + 1] = { r->token[0] };
    float uniform[MOST_SAMPLE];
    oar_tensor *random =
        oar_uniform(NULL, OAR_F32, OAR_SHAPE(MOST_SAMPLE), r->set.seed, 0, 1);
    char *text;
    int count = (int)r->set.sample;

    TRY(oar_tensor_read(random, OAR_F32, uniform));
    oar_tensor_release(random);
    oar_module_train(r->gpt, 0);
    oar_tape_record(r->tape, 0);
    for (int i = 0; i < count; i++)
        TRY(write_one(r, token, i + 1, (double)uniform[i]));
    TRY(oar_tokenizer_decode(r->tokenizer, token, (size_t)count + 1, &text,
                             NULL));
    printf("---- it writes:\n%s\n----\n", text);
    oar_free(text);
    return OAR_OK;
}

static oar_status run_all(run *r)
{
    double start = seconds();
    int first = oar_group_rank(r->world) == 0;

    TRY(set_up(r));
    if (first)
        printf("%zu %s, %lld kinds; %d ranks\n", r->tokens,
               r->set.from != NULL ? "tokens" : "characters",
               (long long)oar_tokenizer_count(r->tokenizer),
               oar_group_size(r->world));
    if (first && r->step > 0)
        printf("goes on after step %lld\n", (long long)r->step);
    TRY(train(r));
    if (r->network != r->gpt)
        TRY(oar_ddp_check_replicas(r->network));
    if (!first)
        return OAR_OK;
    TRY(write_sample(r));
    printf("%lld steps in %.1f s; loss %.3f; counting tokens alone would "
           "give %.3f\nall parameters are bitwise the same on %d ranks\n",
           (long long)r->set.steps, seconds() - start, r->loss, unigram_loss(r),
           oar_group_size(r->world));
    return OAR_OK;
}

/* ---- the command line ---------------------------------------------------- */

static const char usage[] =
    "usage: ddp_gpt [options] [folder]\n"
    "  folder               the texts to learn from\n"
    "  --steps N            how many; --batch N rows each, of all ranks\n"
    "                       together, each of --context N tokens\n"
    "  --width N --layers N --heads N --lr X --seed N\n"
    "  --device cuda        trains on GPUs, which ranks may share\n"
    "  --from DIR           starts from a GPT-2 of Hugging Face, with its\n"
    "                       vocab.json and merges.txt, instead of a new "
    "network\n"
    "  --checkpoint DIR     saves the run there, --every N steps\n"
    "  --resume             goes on where the newest of them was saved\n"
    "  --die-in-save STEP   kills the last rank while it is writing\n"
    "  --sample N           how much it writes at the end, at most 300 "
    "tokens\n";

/* Returns 0 if the arguments make no sense. */
static int read_settings(int argc, char **argv, settings *s)
{
    enum { NUMBERS = 9, LR = NUMBERS, SEED, FROM, CHECKPOINT, DEVICE, RESUME };
    static const struct option option[] = {
        { "steps", 1, NULL, 0 },
        { "batch", 1, NULL, 1 },
        { "context", 1, NULL, 2 },
        { "width", 1, NULL, 3 },
        { "layers", 1, NULL, 4 },
        { "heads", 1, NULL, 5 },
        { "every", 1, NULL, 6 },
        { "die-in-save", 1, NULL, 7 },
        { "sample", 1, NULL, 8 },
        { "lr", 1, NULL, LR },
        { "seed", 1, NULL, SEED },
        { "from", 1, NULL, FROM },
        { "checkpoint", 1, NULL, CHECKPOINT },
        { "device", 1, NULL, DEVICE },
        { "resume", 0, NULL, RESUME },
        { NULL, 0, NULL, 0 },
    };
    int64_t *const number[NUMBERS] = { &s->steps, &s->batch,       &s->context,
                                       &s->width, &s->layers,      &s->heads,
                                       &s->every, &s->die_in_save, &s->sample };
    int which;

    while ((which = getopt_long(argc, argv, "", option, NULL)) >= 0) {
        if (which < NUMBERS && (*number[which] = atoll(optarg)) < 1)
            return 0;
        if (which == LR)
            s->lr = atof(optarg);
        else if (which == SEED)
            s->seed = strtoull(optarg, NULL, 10);
        else if (which == FROM)
            s->from = optarg;
        else if (which == CHECKPOINT)
            s->checkpoint = optarg;
        else if (which == DEVICE)
            s->device = optarg;
        else if (which == RESUME)
            s->resume = 1;
        else if (which > RESUME)
            return 0;
    }
    if (optind < argc)
        s->folder = argv[optind++];
    return optind == argc && s->lr > 0 && s->sample <= MOST_SAMPLE &&
           (!s->resume || s->checkpoint != NULL);
}

int main(int argc, char **argv)
{
    run r = { .set = { .steps = 1200,
                       .batch = 24, /* 1, 2, 3 and 4 divide it */
                       .context = 64,
                       .width = 96,
                       .layers = 3,
                       .heads = 4,
                       .lr = 3e-3,
                       .seed = 1,
                       .folder = OARSONG_SOURCE,
                       .every = 100,
                       .sample = MOST_SAMPLE } };
    oar_status status;

    if (!read_settings(argc, argv, &r.set)) {
        fputs(usage, stderr);
        return 2;
    }
    status = oar_group_from_env(
        OAR_OPTS(oar_group_opts,
                 .backend =
                     r.set.device != NULL && getenv("OARSONG_BACKEND") == NULL
                         ? "hybrid"
                         : NULL),
        &r.world);
    if (status == OAR_OK)
        status = run_all(&r);
    if (status != OAR_OK && oar_last_error()->status != OAR_OK)
        fprintf(stderr, "ddp_gpt: rank %d: %s\n", oar_group_rank(r.world),
                oar_last_error_text());
    tear_down(&r);
    oar_group_destroy(r.world);
    return status == OAR_OK ? 0 : 1;
}
