/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt: what saving and loading the state of a run cost. The state is GPT-2
 * 124M with AdamW: parameters and two moments, 1.49 GB.
 *
 *     oarsong run -n 2 --no-tag ckpt MODE[,MODE...] FOLDER [OPTION=VALUE...]
 *         save     blocking saves
 *         load     loads from a cold cache what save has saved
 *         copy     one copy in memory of the bytes that a rank writes
 *         stall    saves in the background, from a state that does not change
 *         train    steps of training, with and without saves back to back
 *         reshard  what N ranks have saved, loaded by M, for each cut: how much
 *                  is read for what is wanted (only; needs 2 ranks or more)
 *     OPTION
 *         rounds=5       of all modes, in turns
 *         cut=whole      the same on all ranks, as under DDP; or rows, columns,
 *                        flat: each rank has its part
 *         buffered=0, threads=0, block=0, sync=1, verify=1 as of checkpoint.h
 *         tokens=32, steps=4   of a step of training; of a round
 *         lazy=0         1: train saves lazily
 *         tiny=0         1: a model of 20 MB, to try this program out
 *         device=cpu     cuda: the state is on a GPU (cut=whole; oarsong run
 *                        with --backend ipc). copy is one copy to pinned
 *                        memory; a stall lasts until the stream goes on
 *
 * FOLDER is made, and what it holds in the end is the last generation. Rank 0
 * prints medians of the rounds, each of the rank that took longest:
 *     ckpt,oarsong,save,CUT,RANKS,BYTES,s,GB/s,plan_s,write_s,commit_s
 *     ckpt,oarsong,load,CUT,RANKS,WANTED,s,GB/s,READ,cold|advised|warm
 *     ckpt,memory,copy,CUT,RANKS,BYTES,s,GB/s
 *     ckpt,oarsong,stall,CUT,RANKS,BYTES,s,GB/s,total_s
 *     ckpt,oarsong,train,CUT,RANKS,STEPS,step_s,slower%,step_while_saving_s,
 *         stall_s,SAVES
 *     ckpt,oarsong,reshard,CUT,FROM,TO,WANTED,READ,times
 * BYTES are those of all ranks. cold: all caches were dropped; advised: the
 * system was asked to drop these files, without root; warm: it refused. Steps
 * are timed without the calls that save, which are the stall.
 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "models.h"

enum { MAX_ROUNDS = 100, NAME = 200 };

typedef enum cut { WHOLE, ROWS, COLUMNS, FLAT, CUTS } cut;
static const char *const cut_name[] = { "whole", "rows", "columns", "flat" };

typedef struct settings {
    const char *folder;
    cut cut;
    int rounds, buffered, threads, block, sync, verify, tiny;
    int tokens, steps, lazy, cuda;
} settings;

/* The model, and the state of this rank: all of it, or parts of its own. */
typedef struct subject {
    oar_module *net;
    oar_optim *adam;
    oar_tape *tape;
    oar_state *state;
} subject;

/* Seconds of one kind, one for each round. */
typedef struct samples {
    double s[MAX_ROUNDS];
    int count;
} samples;

typedef struct bench {
    const settings *set;
    oar_group *world;
    int rank, ranks;
    subject is;
    oar_checkpoint *runs;
    int64_t step;
    samples save, plan, write, commit, load, copy;
    samples stall, total;          /* of background saves */
    samples alone, saving, waited; /* steps of training, and saves */
    uint64_t bytes, wanted, read;
    const char *cache; /* what load found in it */
    void *memory;      /* for copy */
} bench;

/* ---- the state ----------------------------------------------------------- */

/* Numbers that no disk can make smaller. */
static void fill(oar_tensor *t, uint64_t seed)
{
    size_t words = (size_t)oar_tensor_count(t) * sizeof(float) / 8;
    int there = oar_tensor_device(t).kind != OAR_CPU;
    oar_tensor *host =
        there ? oar_empty(NULL, oar_tensor_dtype(t), oar_tensor_shape(t)) : t;
    uint64_t *at = oar_tensor_data(host), x = seed * 2 + 1;

    for (size_t i = 0; i < words; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        at[i] = x;
    }
    if (there) {
        (void)oar_tensor_copy(t, host);
        oar_tensor_release(host);
    }
}

static oar_gpt_opts gpt2(int tiny)
{
    oar_gpt_opts opts = { .size = sizeof opts,
                          .vocabulary = tiny ? 2000 : 50257,
                          .context = tiny ? 128 : 1024,
                          .width = tiny ? 192 : 768,
                          .layers = tiny ? 3 : 12,
                          .heads = tiny ? 3 : 12,
                          .tied = 1,
                          .seed = 1 };

    return opts;
}

static oar_status make_whole(subject *is, oar_group *world)
{
    TRY(oar_adamw_create(is->net, OAR_OPTS(oar_adam_opts, .lr = 1e-5),
                         &is->adam));
    for (int i = 0; i < oar_optim_params(is->adam); i++)
        for (int slot = 0; slot < 2; slot++)
            fill(oar_optim_state(is->adam, i, slot), (uint64_t)(2 * i + slot));
    TRY(oar_state_add_module(is->state, is->net, NULL));
    TRY(oar_state_add_optim(is->state, is->adam, is->net, NULL));
    return oar_ddp_wrap(is->net, world, NULL, &is->net);
}

/* Adds this rank's part of a tensor. */
static oar_status add_part(subject *is, const char *section, const char *name,
                           oar_shape whole, cut how, oar_group *group)
{
    int rank = oar_group_rank(group), ranks = oar_group_size(group);
    oar_place place = { .size = sizeof place, .whole = whole };
    int64_t count = 1;
    oar_shape shape;
    oar_tensor *part;
    oar_status status;

    for (int d = 0; d < whole.ndim; d++)
        count *= whole.dim[d];
    place.flat = how == FLAT;
    place.first = how == FLAT ? rank * count / ranks : 0;
    shape = OAR_SHAPE((rank + 1) * count / ranks - place.first);
    if (how != FLAT)
        TRY(oar_place_of_rank(whole, how == COLUMNS ? whole.ndim - 1 : 0, rank,
                              ranks, &place, &shape));
    part = oar_empty(NULL, OAR_F32, shape);
    if (part == NULL)
        return oar_last_error()->status;
    fill(part, (uint64_t)place.first + 7);
    status = oar_state_add_tensor(is->state, section, name, part, &place);
    oar_tensor_release(part); /* the state has it */
    return status;
}

/* Adds parts with the names and shapes of the whole. */
static oar_status make_parts(oar_module *net, cut how, oar_group *group,
                             subject *is)
{
    static const char *const slot[] = { "exp_avg", "exp_avg_sq" };
    char name[NAME], full[NAME + 32];

    for (int i = 0; i < oar_module_params(net); i++) {
        oar_tensor *t = oar_module_param(net, i);

        if (i > 0 && t == oar_module_param(net, 0))
            continue; /* the head is the token table */
        TRY(oar_module_param_name(net, i, name, sizeof name));
        TRY(add_part(is, "model", name, oar_tensor_shape(t), how, group));
        for (int k = 0; k < 2; k++) {
            snprintf(full, sizeof full, "state.%s.%s", name, slot[k]);
            TRY(add_part(is, "optim", full, oar_tensor_shape(t), how, group));
        }
    }
    return OAR_OK;
}

static oar_status make_subject(bench *b)
{
    oar_gpt_opts opts = gpt2(b->set->tiny);
    subject *is = &b->is;

    TRY(oar_gpt_create(&opts, &is->net));
    if (b->set->cuda)
        TRY(oar_module_to(is->net, oar_device_current()));
    TRY(oar_tape_create(&is->tape));
    TRY(oar_state_create(&is->state));
    return b->set->cut == WHOLE
               ? make_whole(is, b->world)
               : make_parts(is->net, b->set->cut, b->world, is);
}

/* ---- the folder ---------------------------------------------------------- */

static int remove_entry(const char *path, const struct stat *st, int kind,
                        struct FTW *ftw)
{
    (void)st, (void)kind, (void)ftw;
    return remove(path);
}

static int forget_entry(const char *path, const struct stat *st, int kind,
                        struct FTW *ftw)
{
    int fd = kind == FTW_F ? open(path, O_RDONLY) : -1, failed;

    (void)st, (void)ftw;
    if (fd < 0)
        return kind == FTW_F;
    failed = posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
    return failed != 0;
}

/* Removes a generation, outside what is timed. */
static void remove_step(const bench *b, int64_t step)
{
    char path[PATH_MAX];

    snprintf(path, sizeof path, "%s/step-%012lld", b->set->folder,
             (long long)step);
    (void)nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* Empties the page cache: of all files, or at least of these. */
static const char *drop_cache(const char *folder)
{
    int fd = open("/proc/sys/vm/drop_caches", O_WRONLY);
    int dropped = fd >= 0 && write(fd, "1", 1) == 1;

    if (fd >= 0)
        close(fd);
    if (dropped)
        return "cold";
    return nftw(folder, forget_entry, 16, FTW_PHYS) == 0 ? "advised" : "warm";
}

static oar_status open_runs(const settings *set, oar_group *group, int keep,
                            oar_checkpoint **runs)
{
    return oar_checkpoint_open(
        group, set->folder,
        OAR_OPTS(oar_checkpoint_opts, .block_bytes = (size_t)set->block,
                 .threads = set->threads, .buffered = set->buffered,
                 .no_sync = !set->sync, .keep = keep),
        runs);
}

/* ---- the modes ----------------------------------------------------------- */

static oar_status longest(oar_group *world, double *s)
{
    return oar_all_reduce(world, oar_span_of(s, 1, OAR_F64), OAR_MAX, NULL,
                          NULL);
}

static oar_status add_up(oar_group *world, uint64_t *n)
{
    return oar_all_reduce(world, oar_span_of(n, 1, OAR_U64), OAR_SUM, NULL,
                          NULL);
}

static oar_status note(bench *b, samples *to, double s)
{
    TRY(longest(b->world, &s));
    if (to->count < MAX_ROUNDS)
        to->s[to->count++] = s;
    return OAR_OK;
}

static oar_status time_save(bench *b)
{
    oar_checkpoint_stats stats = oar_checkpoint_stats_init();
    double start;

    TRY(oar_barrier(b->world, NULL, NULL));
    start = now_us();
    TRY(oar_checkpoint_save(b->runs, b->is.state, ++b->step, NULL));
    TRY(note(b, &b->save, (now_us() - start) * 1e-6));
    TRY(oar_checkpoint_read_stats(b->runs, &stats));
    TRY(note(b, &b->plan, stats.plan_s));
    TRY(note(b, &b->write, stats.write_s));
    TRY(note(b, &b->commit, stats.commit_s));
    b->bytes = stats.all_bytes;
    if (b->rank == 0)
        remove_step(b, b->step - 1);
    return OAR_OK;
}

static oar_status time_load(bench *b)
{
    oar_checkpoint_stats stats = oar_checkpoint_stats_init();
    double start;

    if (b->rank == 0)
        b->cache = drop_cache(b->set->folder);
    TRY(oar_barrier(b->world, NULL, NULL));
    start = now_us();
    TRY(oar_checkpoint_load(
        b->runs, b->is.state, OAR_NEWEST,
        OAR_OPTS(oar_load_opts, .no_verify = !b->set->verify)));
    TRY(note(b, &b->load, (now_us() - start) * 1e-6));
    TRY(oar_checkpoint_read_stats(b->runs, &stats));
    b->wanted = stats.wanted_bytes;
    b->read = stats.bytes;
    TRY(add_up(b->world, &b->wanted));
    return add_up(b->world, &b->read);
}

/* All ranks copy at once as many bytes as each of them writes, from the largest
 * tensor, again and again, to memory that has been used before. */
static oar_status time_copy_of_gpu(bench *b, const oar_tensor *from,
                                   size_t size, size_t bytes)
{
    oar_device gpu = oar_tensor_device(from), cpu = oar_device_of(OAR_CPU, 0);
    double start;

    if (b->memory == NULL)
        TRY(oar_pinned_alloc(bytes, &b->memory));
    TRY(oar_barrier(b->world, NULL, NULL));
    TRY(oar_stream_synchronize(gpu, oar_stream_current(gpu)));
    start = now_us();
    for (size_t at = 0; at < bytes; at += size)
        TRY(oar_device_copy(
            (char *)b->memory + at, cpu, oar_tensor_const_data(from), gpu,
            bytes - at < size ? bytes - at : size, oar_stream_current(gpu)));
    TRY(oar_stream_synchronize(gpu, oar_stream_current(gpu)));
    return note(b, &b->copy, (now_us() - start) * 1e-6);
}

static oar_status time_copy(bench *b)
{
    oar_tensor *from = oar_module_param(b->is.net, 0);
    size_t size = (size_t)oar_tensor_count(from) * sizeof(float);
    size_t bytes = (size_t)b->bytes / (size_t)b->ranks;
    double start;

    if (b->set->cuda)
        return time_copy_of_gpu(b, from, size, bytes);
    if (b->memory == NULL) {
        b->memory = malloc(bytes);
        if (b->memory == NULL)
            return OAR_E_NOMEM;
        memset(b->memory, 1, bytes);
    }
    TRY(oar_barrier(b->world, NULL, NULL));
    start = now_us();
    for (size_t at = 0; at < bytes; at += size)
        memcpy((char *)b->memory + at, oar_tensor_const_data(from),
               bytes - at < size ? bytes - at : size);
    return note(b, &b->copy, (now_us() - start) * 1e-6);
}

static oar_status time_stall(bench *b)
{
    double start;

    TRY(oar_barrier(b->world, NULL, NULL));
    start = now_us();
    TRY(oar_checkpoint_save(b->runs, b->is.state, ++b->step,
                            OAR_OPTS(oar_save_opts, .background = 1)));
    if (b->set->cuda)
        TRY(oar_stream_synchronize(oar_device_current(),
                                   oar_stream_current(oar_device_current())));
    TRY(note(b, &b->stall, (now_us() - start) * 1e-6));
    TRY(oar_checkpoint_wait(b->runs));
    TRY(note(b, &b->total, (now_us() - start) * 1e-6));
    if (b->rank == 0)
        remove_step(b, b->step - 1);
    return OAR_OK;
}

/* ---- training ------------------------------------------------------------ */

/* Starts a save if no rank has one under way. */
static oar_status save_again(bench *b)
{
    int done;
    int32_t all;
    double start;

    TRY(oar_checkpoint_test(b->runs, &done));
    all = done;
    TRY(oar_all_reduce(b->world, oar_span_of(&all, 1, OAR_I32), OAR_MIN, NULL,
                       NULL));
    if (!all)
        return OAR_OK;
    start = now_us();
    TRY(oar_checkpoint_save(
        b->runs, b->is.state, ++b->step,
        OAR_OPTS(oar_save_opts, .background = 1, .lazy = b->set->lazy)));
    return note(b, &b->waited, (now_us() - start) * 1e-6);
}

static oar_status train_steps(bench *b, int steps, samples *to, int saves)
{
    int64_t n = b->set->tokens, words = b->set->tiny ? 2000 : 50257;
    model m = { .net = b->is.net, .optim = b->is.adam, .tape = b->is.tape };
    phases at;

    for (int i = 0; i < BATCHES; i++) {
        m.x[i] = oar_uniform(NULL, OAR_I64, OAR_SHAPE(1, n), 1, 0, words);
        m.y[i] = oar_uniform(NULL, OAR_I64, OAR_SHAPE(n), 2, 0, words);
    }
    for (int i = 0; i < steps; i++) {
        if (saves)
            TRY(save_again(b));
        TRY(oar_barrier(b->world, NULL, NULL));
        TRY(train_step(&m, i, &at));
        if (to != NULL)
            TRY(note(b, to, (at.optimizer - at.start) * 1e-6));
    }
    for (int i = 0; i < BATCHES; i++) {
        oar_tensor_release(m.x[i]);
        oar_tensor_release(m.y[i]);
    }
    return OAR_OK;
}

static oar_status time_train(bench *b)
{
    if (b->alone.count == 0) { /* memory of the first step and of the save */
        TRY(train_steps(b, 1, NULL, 1));
        TRY(oar_checkpoint_wait(b->runs));
        b->waited.count = 0;
    }
    TRY(train_steps(b, b->set->steps, &b->alone, 0));
    TRY(train_steps(b, b->set->steps, &b->saving, 1));
    return oar_checkpoint_wait(b->runs);
}

static void print_train(bench *b)
{
    int steps = b->saving.count, saves = b->waited.count;
    double alone, saving;

    if (b->rank != 0 || steps == 0)
        return;
    alone = median(b->alone.s, b->alone.count);
    saving = median(b->saving.s, steps);
    printf("ckpt,oarsong,train,%s,%d,%d,%.4f,%.1f,%.4f,%.4f,%d\n",
           cut_name[b->set->cut], b->ranks, steps, alone,
           100 * (saving / alone - 1), saving, median(b->waited.s, saves),
           saves);
}

/* ---- resharding ---------------------------------------------------------- */

/* Saves or loads the parts of the world's first `count` ranks; loading adds to
 * what was wanted and read. */
static oar_status move_parts(bench *b, cut how, int count, int64_t step,
                             int loads)
{
    oar_checkpoint_stats stats = oar_checkpoint_stats_init();
    subject is = { 0 };
    oar_checkpoint *runs;
    oar_group *group;

    TRY(oar_group_split(b->world, b->rank < count ? 0 : -1, b->rank, &group));
    if (group == NULL)
        return OAR_OK;
    TRY(oar_state_create(&is.state));
    TRY(make_parts(b->is.net, how, group, &is));
    TRY(open_runs(b->set, group, 1, &runs));
    TRY(loads ? oar_checkpoint_load(runs, is.state, step, NULL)
              : oar_checkpoint_save(runs, is.state, step, NULL));
    TRY(oar_checkpoint_read_stats(runs, &stats));
    if (loads) {
        b->wanted = stats.wanted_bytes;
        b->read = stats.bytes;
    }
    oar_checkpoint_close(runs);
    oar_state_destroy(is.state);
    oar_group_destroy(group);
    return OAR_OK;
}

static oar_status reshard(bench *b)
{
    static const int pair[][2] = { { 1, 2 }, { 2, 1 }, { 2, 3 }, { 3, 2 },
                                   { 2, 4 }, { 4, 3 }, { 3, 8 }, { 8, 5 } };
    int64_t step = 0;

    for (cut how = ROWS; how < CUTS; how++)
        for (size_t i = 0; i < sizeof pair / sizeof pair[0]; i++) {
            int from = pair[i][0], to = pair[i][1];

            if (from > b->ranks || to > b->ranks)
                continue;
            b->wanted = b->read = 0;
            TRY(move_parts(b, how, from, ++step, 0));
            TRY(move_parts(b, how, to, step, 1));
            TRY(add_up(b->world, &b->wanted));
            TRY(add_up(b->world, &b->read));
            if (b->rank == 0)
                printf("ckpt,oarsong,reshard,%s,%d,%d,%llu,%llu,%.3f\n",
                       cut_name[how], from, to, (unsigned long long)b->wanted,
                       (unsigned long long)b->read,
                       (double)b->read / (double)b->wanted);
        }
    return OAR_OK;
}

/* ---- printing ------------------------------------------------------------ */

/* Prints up to the speed; the line goes on. 0 if there is nothing to print. */
static int print_speed(const bench *b, const char *mode, samples *s,
                       uint64_t bytes)
{
    double p50;

    if (b->rank != 0 || s->count == 0)
        return 0;
    p50 = median(s->s, s->count);
    printf("ckpt,%s,%s,%d,%llu,%.4f,%.3f", mode, cut_name[b->set->cut],
           b->ranks, (unsigned long long)bytes, p50,
           (double)bytes / p50 * 1e-9);
    return 1;
}

static void print_all(bench *b)
{
    if (print_speed(b, "oarsong,save", &b->save, b->bytes))
        printf(",%.4f,%.4f,%.4f\n", median(b->plan.s, b->plan.count),
               median(b->write.s, b->write.count),
               median(b->commit.s, b->commit.count));
    if (print_speed(b, "oarsong,load", &b->load, b->wanted))
        printf(",%llu,%s\n", (unsigned long long)b->read, b->cache);
    if (print_speed(b, "memory,copy", &b->copy, b->bytes))
        printf("\n");
    if (print_speed(b, "oarsong,stall", &b->stall, b->bytes))
        printf(",%.4f\n", median(b->total.s, b->total.count));
    print_train(b);
}

/* ---- the command line ---------------------------------------------------- */

typedef oar_status mode_fn(bench *b);
typedef struct mode {
    const char *name;
    mode_fn *run;
} mode;

static const mode modes[] = {
    { "save", time_save },   { "load", time_load },   { "copy", time_copy },
    { "stall", time_stall }, { "train", time_train },
};

/* Whether a word is among those of a list with commas. */
static int has_word(const char *list, const char *word)
{
    size_t n = strlen(word);

    for (; list != NULL; list = strchr(list, ',')) {
        list += *list == ',';
        if (strncmp(list, word, n) == 0 && (list[n] == ',' || list[n] == '\0'))
            return 1;
    }
    return 0;
}

static oar_status run(bench *b, const char *list)
{
    oar_gpt_opts opts = gpt2(b->set->tiny);
    oar_status status = OAR_OK;

    b->rank = oar_group_rank(b->world);
    b->ranks = oar_group_size(b->world);
    if (has_word(list, "reshard")) {
        TRY(oar_gpt_create(&opts, &b->is.net));
        return reshard(b);
    }
    TRY(make_subject(b));
    TRY(open_runs(b->set, b->world, has_word(list, "train"), &b->runs));
    if (oar_checkpoint_newest(b->runs, &b->step) != OAR_OK)
        oar_clear_error(); /* the first one */
    for (int i = 0; i < b->set->rounds; i++)
        for (size_t m = 0; m < sizeof modes / sizeof modes[0]; m++)
            if (status == OAR_OK && has_word(list, modes[m].name))
                status = modes[m].run(b);
    print_all(b);
    oar_checkpoint_close(b->runs);
    return status;
}

static int read_cut(settings *set, const char *name)
{
    for (cut c = WHOLE; c < CUTS; c++)
        if (strcmp(cut_name[c], name) == 0) {
            set->cut = c;
            return 1;
        }
    return 0;
}

static int read_setting(settings *set, const char *arg)
{
    const struct {
        const char *key;
        int *to;
    } number[] = {
        { "rounds=", &set->rounds },   { "buffered=", &set->buffered },
        { "threads=", &set->threads }, { "block=", &set->block },
        { "sync=", &set->sync },       { "verify=", &set->verify },
        { "tiny=", &set->tiny },       { "tokens=", &set->tokens },
        { "steps=", &set->steps },     { "lazy=", &set->lazy },
    };

    for (size_t i = 0; i < sizeof number / sizeof number[0]; i++) {
        size_t n = strlen(number[i].key);

        if (strncmp(arg, number[i].key, n) == 0) {
            *number[i].to = atoi(arg + n);
            return 1;
        }
    }
    if (strcmp(arg, "device=cuda") == 0 || strcmp(arg, "device=cpu") == 0) {
        set->cuda = strcmp(arg, "device=cuda") == 0;
        return 1;
    }
    return strncmp(arg, "cut=", 4) == 0 && read_cut(set, arg + 4);
}

int main(int argc, char **argv)
{
    settings set = {
        .rounds = 5, .sync = 1, .verify = 1, .tokens = 32, .steps = 4
    };
    bench b = { .set = &set };
    oar_status status;

    if (argc < 3) {
        fprintf(stderr,
                "usage: ckpt MODE[,MODE...] FOLDER [OPTION=VALUE...]\n");
        return 2;
    }
    set.folder = argv[2];
    for (int i = 3; i < argc; i++)
        if (!read_setting(&set, argv[i])) {
            fprintf(stderr, "ckpt: what is \"%s\"?\n", argv[i]);
            return 2;
        }
    status = oar_group_from_env(NULL, &b.world);
    if (status == OAR_OK)
        status = run(&b, argv[1]);
    if (status != OAR_OK)
        fprintf(stderr, "ckpt: %s\n", oar_last_error_text());
    oar_group_destroy(b.world);
    return status == OAR_OK ? 0 : 1;
}
