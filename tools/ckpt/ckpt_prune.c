/* SPDX-License-Identifier: Apache-2.0 */
/* oarsong ckpt prune: removes old generations. */
#include "ckpt.h"

#include <inttypes.h>

#include "tool.h"

typedef struct pruning {
    int dry_run, count;
} pruning;

static void print_step(void *arg, int64_t step)
{
    pruning *p = arg;

    printf("%s step %" PRId64 "\n", p->dry_run ? "would remove" : "removes",
           step);
    p->count++;
}

int ckpt_prune(const ckpt_options *o)
{
    oar_checkpoint_opts opts = oar_checkpoint_opts_init();
    pruning p = { o->dry_run, 0 };
    oar_checkpoint *runs = NULL;
    oar_generation *list;
    oar_status status;
    int count;

    if (o->keep == 0) {
        tool_refuse("ckpt", "prune needs --keep N");
        return TOOL_USAGE;
    }
    /* A folder that is not there must not be made. */
    if (oar_generations(o->path[0], &count, &list) != OAR_OK)
        return tool_failed("ckpt prune");
    oar_free(list);
    opts.keep = (int)o->keep;
    opts.keep_every = (int64_t)o->keep_every;
    opts.read_only = o->dry_run;
    status = oar_checkpoint_open(NULL, o->path[0], &opts, &runs);
    if (status == OAR_OK)
        status = oar_checkpoint_prune(runs, print_step, &p);
    oar_checkpoint_close(runs);
    if (status != OAR_OK)
        return tool_failed("ckpt prune");
    if (p.count == 0)
        printf("nothing to remove\n");
    return TOOL_OK;
}
