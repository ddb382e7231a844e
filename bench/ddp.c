/* SPDX-License-Identifier: Apache-2.0 */
/* ddp: what data-parallel training costs. Every rank has the model (models.h)
 * twice, once wrapped in DDP and once on its own, and trains the two in turns:
 * a block of steps together, a block of steps alone, all ranks at the same
 * time. So both meet the same machine, memory and cores.
 *
 *     oarsong run -n 2 --no-tag ddp mlp|gpt|gpt2 [OPTION=VALUE...]
 *         seconds=3    of measuring, in all
 *         width=1024   of the mlp
 *         bucket=0     bucket_bytes
 *         first=0      first_bucket_bytes
 *         alone=1      0: only together
 *         name=        what the lines say instead of the model's name
 *         device=cuda  on GPUs, over hybrid unless OARSONG_BACKEND names
 *                      another. Times are means of blocks, the phases 0
 *         replay=0     1: steps on a GPU are replayed
 *
 * Rank 0 prints
 *     train,oarsong,NAME,ddp|alone,RANKS,BATCH,STEPS,p50_us,p10_us,samples/s,
 *         tokens/s,forward_us,backward_us,optimizer_us
 *     ddp,oarsong,NAME,RANKS,PARAMETERS,kept%,BUCKETS,reduced_bytes,
 *         copied_bytes,communication_us,exposed_us,hidden%,private_bytes,
 *         last_communication_us,last_exposed_us,last_hidden%
 * Steps are those of the rank whose median is the longest, samples of all
 * ranks. kept is how much of the samples/s alone is left. The rest is from the
 * statistics of each pass: medians on rank 0, but copied_bytes is the sum over
 * all passes. hidden is what was under way while backward ran, of all
 * communication. private_bytes is of gradients that peers on this host could
 * not reach where they are, so that an all_reduce would copy them. last_ is the
 * same of the rank that was last in each pass (of all ranks' times the
 * shortest): the others' are also time in which they wait for it, which no
 * communication could make shorter.
 */
#include <stdio.h>

#include "models.h"

enum { MAX_STEPS = 100000, WARM_UP = 4, BLOCK_US = 200000, LEAST_BLOCK = 3 };
enum { LEAST_BLOCKS = 3 };

typedef struct settings {
    const char *name;
    double seconds;
    int64_t width;
    size_t bucket, first;
    int alone, replay;
    const char *device; /* NULL: the cpu */
} settings;

/* One of the two, and what was measured of it. */
typedef struct side {
    model m;
    const char *mode;
    double *step, *forward, *backward, *optimizer;
    int steps;
    oar_device device;
    oar_replay *replay; /* NULL: steps run as they are */
} side;

/* By pass. */
typedef struct passes {
    double *communication, *exposed, copied;
    oar_ddp_stats last;
} passes;

static passes seen;

/* ---- the two models ------------------------------------------------------ */

static oar_status make_room(side *s)
{
    s->step = calloc((size_t)4 * MAX_STEPS, sizeof *s->step);
    if (s->step == NULL)
        return OAR_E_NOMEM;
    s->forward = s->step + MAX_STEPS;
    s->backward = s->forward + MAX_STEPS;
    s->optimizer = s->backward + MAX_STEPS;
    return OAR_OK;
}

static oar_status make_side(side *s, const char *which, const settings *set,
                            oar_group *world)
{
    uint64_t seed = 1000 * (1 + (uint64_t)oar_group_rank(world));

    TRY(make_model(&s->m, which, set->width, seed));
    if (set->device != NULL) {
        TRY(oar_device_parse(set->device, &s->device));
        TRY(move_model(&s->m, s->device));
    }
    if (strcmp(s->mode, "ddp") == 0)
        TRY(oar_ddp_wrap(s->m.net, world,
                         OAR_OPTS(oar_ddp_opts, .bucket_bytes = set->bucket,
                                  .first_bucket_bytes = set->first),
                         &s->m.net));
    if (getenv("KEEP") != NULL)
        oar_tape_rebuild(s->m.tape, 0);
    TRY(make_optim(&s->m));
    if (set->device != NULL && set->replay)
        TRY(oar_replay_create(s->device, step_in_place, &s->m,
                              OAR_OPTS(oar_replay_opts, .strict = 1),
                              &s->replay));
    return make_room(s);
}

/* ---- training ------------------------------------------------------------ */

static oar_status note_pass(side *s)
{
    seen.last = oar_ddp_stats_init();
    TRY(oar_ddp_read_stats(s->m.net, &seen.last));
    seen.communication[s->steps] = seen.last.communication_s * 1e6;
    seen.exposed[s->steps] = seen.last.exposed_s * 1e6;
    seen.copied += (double)seen.last.copied_bytes;
    return OAR_OK;
}

/* Each step of the block counts as their mean. */
static oar_status train_gpu_block(side *s, int steps)
{
    double start = now_us();

    if (steps > MAX_STEPS - s->steps)
        steps = MAX_STEPS - s->steps;
    TRY(run_in_place(&s->m, s->replay, steps));
    TRY(oar_stream_synchronize(s->device, oar_stream_current(s->device)));
    for (int i = 0; i < steps; i++)
        s->step[s->steps + i] = (now_us() - start) / steps;
    for (int i = 0; i < steps; i++, s->steps++)
        if (strcmp(s->mode, "ddp") == 0)
            TRY(note_pass(s));
    return OAR_OK;
}

/* A step ends where the next begins. */
static oar_status train_block(side *s, oar_group *world, int steps)
{
    phases at;

    TRY(oar_barrier(world, NULL, NULL));
    if (s->device.kind != OAR_CPU)
        return train_gpu_block(s, steps);
    for (int i = 0; i < steps && s->steps < MAX_STEPS; i++) {
        TRY(train_step(&s->m, i, &at));
        s->step[s->steps] = at.optimizer - at.start;
        s->forward[s->steps] = at.forward - at.start;
        s->backward[s->steps] = at.backward - at.forward;
        s->optimizer[s->steps] = at.optimizer - at.backward;
        if (strcmp(s->mode, "ddp") == 0)
            TRY(note_pass(s));
        s->steps++;
    }
    return OAR_OK;
}

/* How many steps take BLOCK_US, the same on all ranks. */
static oar_status warm_up(side *s, oar_group *world, int64_t *steps)
{
    double start;
    int64_t found;

    TRY(train_block(s, world, WARM_UP));
    start = now_us();
    TRY(train_block(s, world, LEAST_BLOCK));
    found = (int64_t)(BLOCK_US * LEAST_BLOCK / (now_us() - start));
    *steps = found > LEAST_BLOCK ? found : LEAST_BLOCK;
    s->steps = 0;
    seen.copied = 0;
    return oar_broadcast(world, oar_span_of(steps, 1, OAR_I64), 0, NULL, NULL);
}

/* Rank 0's clock decides for all. */
static oar_status goes_on(oar_group *world, double end, int32_t *more)
{
    *more = now_us() < end;
    return oar_broadcast(world, oar_span_of(more, 1, OAR_I32), 0, NULL, NULL);
}

static oar_status train(side *s, int sides, oar_group *world, double seconds)
{
    int64_t steps[2];
    int32_t more = 1;
    double end;

    for (int i = 0; i < sides; i++)
        TRY(warm_up(&s[i], world, &steps[i]));
    end = now_us() + seconds * 1e6;
    for (int block = 0; more || block < LEAST_BLOCKS; block++) {
        for (int i = 0; i < sides; i++)
            TRY(train_block(&s[i], world, (int)steps[i]));
        TRY(goes_on(world, end, &more));
    }
    return OAR_OK;
}

/* ---- printing ------------------------------------------------------------ */

/* The longest of all ranks' numbers. */
static oar_status slowest(oar_group *world, double *us)
{
    return oar_all_reduce(world, oar_span_of(us, 1, OAR_F64), OAR_MAX, NULL,
                          NULL);
}

static oar_status print_side(side *s, const settings *set, oar_group *world,
                             double *p50)
{
    int ranks = oar_group_size(world), n = s->steps;
    double p10, rate;

    *p50 = median(s->step, n);
    p10 = s->step[n / 10];
    TRY(slowest(world, p50));
    TRY(slowest(world, &p10));
    rate = ranks * s->m.batch / *p50 * 1e6;
    if (oar_group_rank(world) == 0)
        printf("train,oarsong,%s,%s,%d,%d,%d,%.1f,%.1f,%.1f,%.1f,%.1f,%.1f,"
               "%.1f\n",
               set->name, s->mode, ranks, s->m.batch, n, *p50, p10, rate,
               rate * s->m.sequence, median(s->forward, n),
               median(s->backward, n), median(s->optimizer, n));
    return OAR_OK;
}

static int64_t parameters(const model *m)
{
    int64_t count = 0;

    for (int i = 0; i < oar_module_params(m->net); i++)
        count += oar_tensor_count(oar_module_param(m->net, i));
    return count;
}

/* All ranks call it: one more pass, to look where its gradients are. */
static oar_status count_private(model *m, uint64_t *sum)
{
    oar_tensor *logits;

    *sum = 0;
    if (oar_tensor_device(m->x[0]).kind != OAR_CPU)
        return OAR_OK;
    logits = oar_forward(m->tape, m->net, m->x[0]);
    TRY(oar_backward(m->tape, oar_cross_entropy(m->tape, logits, m->y[0])));
    for (int i = 0; i < oar_module_params(m->net); i++) {
        oar_tensor *grad = oar_tensor_grad(oar_module_param(m->net, i));
        size_t bytes = (size_t)oar_tensor_count(grad) * sizeof(float);

        if (!oar_shared_reachable(oar_tensor_const_data(grad), bytes))
            *sum += bytes;
    }
    oar_optim_zero_grad(m->optim);
    oar_tape_reset(m->tape);
    return OAR_OK;
}

/* Medians over all passes. */
typedef struct shares {
    double communication, exposed;
} shares;

static double hidden(shares s)
{
    return s.communication > 0 ? 100 * (1 - s.exposed / s.communication) : 0;
}

/* The median of what the rank with the least had in each pass. */
static oar_status least(const double *mine, int steps, oar_group *world,
                        double *found)
{
    size_t count = (size_t)steps;
    double *of_all = calloc(count, sizeof *of_all);
    oar_status status;

    if (of_all == NULL)
        return OAR_E_NOMEM;
    memcpy(of_all, mine, count * sizeof *of_all);
    status = oar_all_reduce(world, oar_span_of(of_all, count, OAR_F64), OAR_MIN,
                            NULL, NULL);
    *found = median(of_all, steps);
    free(of_all);
    return status;
}

static oar_status print_passes(const side *s, const settings *set,
                               oar_group *world, double kept, uint64_t private)
{
    shares mine, last;

    TRY(least(seen.communication, s->steps, world, &last.communication));
    TRY(least(seen.exposed, s->steps, world, &last.exposed));
    if (oar_group_rank(world) != 0)
        return OAR_OK;
    mine.communication = median(seen.communication, s->steps);
    mine.exposed = median(seen.exposed, s->steps);
    printf("ddp,oarsong,%s,%d,%lld,%.1f,%d,%llu,%.0f,%.1f,%.1f,%.1f,%llu,%.1f,"
           "%.1f,%.1f\n",
           set->name, oar_group_size(world), (long long)parameters(&s->m),
           100 * kept, seen.last.buckets,
           (unsigned long long)seen.last.reduced_bytes, seen.copied,
           mine.communication, mine.exposed, hidden(mine),
           (unsigned long long)private, last.communication, last.exposed,
           hidden(last));
    return OAR_OK;
}

static oar_status run(const char *which, const settings *set, oar_group *world)
{
    side s[2] = { { .mode = "ddp" }, { .mode = "alone" } };
    int sides = set->alone ? 2 : 1;
    double p50[2] = { 0 };
    uint64_t private;

    seen.communication = calloc(MAX_STEPS, sizeof(double));
    seen.exposed = calloc(MAX_STEPS, sizeof(double));
    if (seen.communication == NULL || seen.exposed == NULL)
        return OAR_E_NOMEM;
    for (int i = 0; i < sides; i++)
        TRY(make_side(&s[i], which, set, world));
    TRY(train(s, sides, world, set->seconds));
    for (int i = 0; i < sides; i++)
        TRY(print_side(&s[i], set, world, &p50[i]));
    TRY(count_private(&s[0].m, &private));
    return print_passes(&s[0], set, world, p50[1] / p50[0], private);
}

/* ---- the command line ---------------------------------------------------- */

/* The value of an argument KEY=VALUE, or NULL. */
static const char *value_of(const char *arg, const char *key)
{
    size_t n = strlen(key);

    return strncmp(arg, key, n) == 0 && arg[n] == '=' ? arg + n + 1 : NULL;
}

static int read_setting(settings *set, const char *arg)
{
    const char *value;

    if ((value = value_of(arg, "seconds")) != NULL)
        set->seconds = atof(value);
    else if ((value = value_of(arg, "width")) != NULL)
        set->width = atoll(value);
    else if ((value = value_of(arg, "bucket")) != NULL)
        set->bucket = strtoull(value, NULL, 10);
    else if ((value = value_of(arg, "first")) != NULL)
        set->first = strtoull(value, NULL, 10);
    else if ((value = value_of(arg, "alone")) != NULL)
        set->alone = atoi(value);
    else if ((value = value_of(arg, "name")) != NULL)
        set->name = value;
    else if ((value = value_of(arg, "device")) != NULL)
        set->device = value;
    else if ((value = value_of(arg, "replay")) != NULL)
        set->replay = atoi(value);
    return value != NULL;
}

int main(int argc, char **argv)
{
    const char *which = argc > 1 ? argv[1] : "mlp";
    settings set = {
        .name = which, .seconds = 3, .width = MLP_WIDTH, .alone = 1
    };
    oar_group *world = NULL;
    oar_status status;

    for (int i = 2; i < argc; i++)
        if (!read_setting(&set, argv[i])) {
            fprintf(stderr, "ddp: what is \"%s\"?\n", argv[i]);
            return 2;
        }
    status = oar_group_from_env(
        OAR_OPTS(oar_group_opts,
                 .backend =
                     set.device != NULL && getenv("OARSONG_BACKEND") == NULL
                         ? "hybrid"
                         : NULL),
        &world);
    if (status == OAR_OK)
        status = run(which, &set, world);
    if (status != OAR_OK)
        fprintf(stderr, "ddp: %s\n", oar_last_error_text());
    oar_group_destroy(world);
    return status == OAR_OK ? 0 : 1;
}
