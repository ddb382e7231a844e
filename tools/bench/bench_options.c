/* SPDX-License-Identifier: Apache-2.0 */
/* bench_options: the command line of `oarsong bench`. */
#include "bench.h"

#include <stdio.h>
#include <string.h>

#include "tool.h"

int bench_usage(void)
{
    printf("oarsong bench KIND [options]\n\nKIND is one of");
    for (int k = 0; k < BENCH_KINDS; k++)
        printf(" %s", bench_kind_name((bench_kind)k));
    printf(
        " rpc\n(p2p: a ping-pong, one way; stream: many messages from rank 0 "
        "to "
        "rank 1;\nrpc: calls, see oarsong bench rpc --help).\nWhere "
        "OARSONG_RANK and OARSONG_SIZE are set, it starts "
        "no ranks and is one rank\nof that job; all ranks must get the same "
        "options.\n\n"
        "  --ranks N         processes to start (2)\n"
        "  --hosts H         as if on several hosts: 3+1, or 2 to deal the "
        "ranks in turn\n"
        "  --backend B       native, shm, tcp, mpi (which starts its ranks by "
        "mpirun), gloo,\n                    ucc, or the path of a plugin\n"
        "  --min B, --max B  sizes in bytes (8 to 64M)\n"
        "  --step-factor N   from one size to the next (2)\n"
        "  --dtype T         f32, bf16, i8, ... (f32)\n"
        "  --op O            sum, avg, prod, min, max, band, bor, bxor (sum)"
        "\n"
        "  --memory M        shared or private (shared)\n"
        "  --device D        cpu, or cuda: buffers on a GPU (then B is hybrid, "
        "nccl, ipc, or any\n                    with "
        "OARSONG_ENABLE_GPU_FALLBACK=1)\n"
        "  --row N           cuda: operations on a stream before it is waited "
        "for (1 below\n                    1 MiB: latency; else 10)\n"
        "  --algo A          force an algorithm by name\n"
        "  --iters N         iterations a size (as many as fit 200 ms)\n"
        "  --budget-ms N     instead of 200\n"
        "  --warmup N        iterations before (20)\n"
        "  --no-check        do not compare results\n"
        "  --no-bind         do not bind ranks to cores\n"
        "  --peer NAME       first column of csv (oarsong)\n"
        "  --format F        nccl, osu, csv or json (nccl)\n");
    return TOOL_OK;
}

static int read_kind(const char *text, bench_kind *kind)
{
    for (int k = 0; k < BENCH_KINDS; k++)
        if (strcmp(text, bench_kind_name((bench_kind)k)) == 0) {
            *kind = (bench_kind)k;
            return 1;
        }
    return 0;
}

static int read_op(const char *text, oar_reduce_op *op)
{
    for (int k = 0; k <= OAR_REDUCE_OP_BXOR; k++)
        if (strcmp(text, oar_reduce_op_name((oar_reduce_op_kind)k)) == 0) {
            *op = OAR_REDUCE_OP((oar_reduce_op_kind)k, 0);
            return 1;
        }
    return 0;
}

static int read_format(const char *text, bench_format *f)
{
    static const char *const names[] = { "nccl", "osu", "csv", "json" };

    for (int i = 0; i < 4; i++)
        if (strcmp(text, names[i]) == 0) {
            *f = (bench_format)i;
            return 1;
        }
    return 0;
}

static int read_memory(const char *text, int *private_memory)
{
    *private_memory = strcmp(text, "private") == 0;
    return *private_memory || strcmp(text, "shared") == 0;
}

static int read_device(const char *text, int *gpu)
{
    *gpu = strcmp(text, "cuda") == 0;
    return *gpu || strcmp(text, "cpu") == 0;
}

/* "8,1K,64K". The largest becomes the maximum. */
static int read_sizes(bench_plan *p, const char *text)
{
    char one[32];
    size_t length;

    p->min = p->max = 0;
    for (p->sizes = 0; p->sizes < BENCH_MAX_SIZES; text += length + 1) {
        length = strcspn(text, ",");
        snprintf(one, sizeof one, "%.*s", (int)length, text);
        if (length >= sizeof one ||
            !tool_number(one, 0, (size_t)1 << 40, &p->size[p->sizes]))
            return 0;
        if (p->size[p->sizes] > p->max)
            p->max = p->size[p->sizes];
        p->sizes++;
        if (text[length] == 0)
            return 1;
    }
    return 0;
}

/* A number: 1; 0 if the value is bad, -1 if there is no such option. */
static int read_number(bench_plan *p, const char *name, const char *value)
{
    const struct {
        const char *name;
        size_t low, high, *to;
    } numbers[] = {
        { "--row", 1, 1000, &p->row },
        { "--min", 0, (size_t)1 << 40, &p->min },
        { "--max", 0, (size_t)1 << 40, &p->max },
        { "--step-factor", 2, 1 << 20, &p->factor },
        { "--iters", 1, BENCH_MAX_ITERS, &p->iters },
        { "--warmup", 1, BENCH_MAX_ITERS, &p->warm_up },
        { "--budget-ms", 1, 100000, &p->budget_ms },
    };

    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (strcmp(name, numbers[i].name) == 0)
            return tool_number(value, numbers[i].low, numbers[i].high,
                               numbers[i].to);
    return -1;
}

/* An option with a value: 1; 0 if the value is bad, -1 if there is none such.
 */
static int read_option(bench_plan *p, const char *name, const char *value)
{
    size_t ranks = 0;
    int good = 1;

    if (strcmp(name, "--ranks") == 0) {
        good = tool_number(value, 1, BENCH_MAX_RANKS, &ranks);
        p->ranks = (int)ranks;
    } else if (strcmp(name, "--backend") == 0)
        p->backend = value;
    else if (strcmp(name, "--hosts") == 0)
        p->hosts = value;
    else if (strcmp(name, "--algo") == 0)
        p->algo = value;
    else if (strcmp(name, "--peer") == 0)
        p->peer = value;
    else if (strcmp(name, "--memory") == 0)
        good = read_memory(value, &p->private_memory);
    else if (strcmp(name, "--device") == 0)
        good = read_device(value, &p->gpu);
    else if (strcmp(name, "--dtype") == 0)
        good = oar_dtype_parse(value, &p->dtype) == OAR_OK;
    else if (strcmp(name, "--op") == 0)
        good = read_op(value, &p->op);
    else if (strcmp(name, "--sizes") == 0)
        good = read_sizes(p, value);
    else if (strcmp(name, "--format") == 0)
        good = read_format(value, &p->format);
    else
        good = read_number(p, name, value);
    return good;
}

/* What only together makes no sense. */
static int fits(bench_plan *p)
{
    if (p->kind == BENCH_BARRIER)
        p->min = p->max = p->sizes = 0;
    if (p->hosts != NULL &&
        !tool_hosts(p->hosts, BENCH_MAX_RANKS, &p->ranks, p->host))
        return tool_refuse("bench",
                           "--hosts %s and %d ranks do not fit: 3+1, or 2 to "
                           "deal the ranks in turn",
                           p->hosts, p->ranks);
    if ((p->kind == BENCH_P2P || p->kind == BENCH_STREAM) && p->ranks < 2)
        return tool_refuse("bench", "%s needs two ranks",
                           bench_kind_name(p->kind));
    if (bench_kind_folds(p->kind) &&
        oar_reduce_op_check(p->op, p->dtype) != OAR_OK) {
        tool_failed("bench");
        return 0;
    }
    if (p->min > p->max)
        return tool_refuse("bench", "--min %zu is more than --max %zu", p->min,
                           p->max);
    return 1;
}

/* A flag; 0: there is none of that name. */
static int read_flag(bench_plan *p, const char *name)
{
    if (strcmp(name, "--no-check") == 0)
        p->check = 0;
    else if (strcmp(name, "--check") == 0)
        p->check = 1;
    else if (strcmp(name, "--no-bind") == 0)
        p->bind = 0;
    else
        return 0;
    return 1;
}

static int refuse_kind(const char *name)
{
    fprintf(stderr, "oarsong bench: ");
    if (name == NULL)
        fprintf(stderr, "what? One of");
    else
        fprintf(stderr, "\"%s\" is nothing to time: one of", name);
    for (int k = 0; k < BENCH_KINDS; k++)
        fprintf(stderr, " %s", bench_kind_name((bench_kind)k));
    fprintf(stderr, "\n");
    return 0;
}

int bench_read_options(bench_plan *p, int argc, char **argv)
{
    if (argc < 2 || !read_kind(argv[1], &p->kind))
        return refuse_kind(argv[1]);
    for (int i = 2; i < argc; i++) {
        int good;
        if (read_flag(p, argv[i]))
            continue;
        good = read_option(p, argv[i], i + 1 < argc ? argv[i + 1] : "");
        if (good != 1 || i + 1 == argc)
            return tool_bad_option("bench", argv[i], argv[i + 1], good);
        i++;
    }
    return fits(p);
}
