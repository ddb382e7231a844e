/* SPDX-License-Identifier: Apache-2.0 */
/* oarsong autopsy: what a job did last, from its recorder files. */
#include "tool.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include <oarsong/oarsong.h>

typedef struct autopsy_options {
    const char *folder;
    int json, last; /* last: -1: not said */
} autopsy_options;

static int usage(FILE *to)
{
    fprintf(to,
            "oarsong autopsy DIR [--json] [--last N]\n\n"
            "Reads the *.oarrec files in DIR (OARSONG_RECORDER_DIR of a job, or"
            " the folder that\n`oarsong run` names) and says what is wrong: "
            "which rank is missing in which call,\nsince when, and what every "
            "rank did last. The ranks may be alive, hang or be dead.\n\n"
            "  --json     the same as JSON (docs/autopsy.md)\n"
            "  --last N   with --json: the last N records of each rank (16)\n\n"
            "Returns 0 if nothing is wrong, 1 if something is, 2 if DIR cannot "
            "be read.\n");
    return to == stdout ? TOOL_OK : TOOL_USAGE;
}

/* 0: not understood. */
static int read_options(int argc, char **argv, autopsy_options *o)
{
    for (int i = 1; i < argc; i++) {
        size_t last;

        if (strcmp(argv[i], "--json") == 0)
            o->json = 1;
        else if (strcmp(argv[i], "--last") == 0 && i + 1 < argc) {
            if (!tool_number(argv[++i], 0, INT_MAX, &last))
                return 0;
            o->last = (int)last;
        } else if (argv[i][0] != '-' && o->folder == NULL)
            o->folder = argv[i];
        else
            return 0;
    }
    return o->folder != NULL && (o->last < 0 || o->json);
}

static int failed(void)
{
    tool_failed("autopsy");
    return TOOL_USAGE;
}

static int print(const oar_autopsy *a, const autopsy_options *o)
{
    char *text = NULL;
    oar_status status = !o->json ? oar_autopsy_text(a, &text)
                        : o->last >= 0
                            ? oar_autopsy_json_last(a, o->last, &text)
                            : oar_autopsy_json(a, &text);

    if (status != OAR_OK)
        return failed();
    fputs(text, stdout);
    if (o->json)
        putchar('\n');
    oar_free(text);
    if (fflush(stdout) != 0)
        return TOOL_USAGE;
    return oar_autopsy_wrong(a) ? TOOL_FAILED : TOOL_OK;
}

int tool_autopsy(int argc, char **argv)
{
    autopsy_options o = { NULL, 0, -1 };
    oar_autopsy *a = NULL;
    int code;

    if (argc > 1 && strcmp(argv[1], "--help") == 0)
        return usage(stdout);
    if (!read_options(argc, argv, &o))
        return usage(stderr);
    if (oar_autopsy_open(o.folder, &a) != OAR_OK)
        return failed();
    code = print(a, &o);
    oar_autopsy_destroy(a);
    return code;
}
