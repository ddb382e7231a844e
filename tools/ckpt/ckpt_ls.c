/* SPDX-License-Identifier: Apache-2.0 */
/* oarsong ckpt ls: the generations of a folder. */
#include "ckpt.h"

#include <inttypes.h>

#include "tool.h"

static void print_table(int count, const oar_generation *g)
{
    char size[24], when[24];

    printf("%12s  %-19s  %9s  %5s  %s\n", "step", "saved", "size", "ranks",
           "state");
    for (int i = 0; i < count; i++, g++) {
        printf("%12" PRId64 "  %-19s  %9s  %5d  %s%s", g->step,
               g->saved_unix_s > 0 ? ckpt_time_text(g->saved_unix_s, when) : "",
               g->bytes > 0 ? ckpt_size_text(g->bytes, size) : "", g->ranks,
               g->complete ? "complete" : "incomplete: ", g->why);
        printf("%s%s%s\n", g->keep ? ", kept" : "",
               g->note[0] != '\0' ? ", " : "", g->note);
    }
}

int ckpt_ls(const ckpt_options *o)
{
    oar_generation *list;
    int count;

    if (oar_generations(o->path[0], &count, &list) != OAR_OK)
        return tool_failed("ckpt ls");
    if (o->json) {
        printf("[");
        for (int i = 0; i < count; i++) {
            printf("%s{", i > 0 ? ",\n" : "");
            ckpt_print_json(&list[i]);
            printf("}");
        }
        printf("]\n");
    } else if (count == 0) {
        printf("%s has no generation\n", o->path[0]);
    } else {
        print_table(count, list);
    }
    oar_free(list);
    return TOOL_OK;
}
