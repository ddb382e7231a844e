/* SPDX-License-Identifier: Apache-2.0 */
/* oarsong run: N ranks of a program on this machine. */
#include "tool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/oarsong.h>

static int usage(FILE *to)
{
    fprintf(to,
            "oarsong run -n N [--backend B] PROGRAM ARGS...\n\n"
            "Starts N ranks of PROGRAM on this machine and waits for them. When"
            " one fails, the\nothers are ended, and the exit code is that of "
            "the first that failed.\n\n"
            "  -n N         how many ranks (also -np N)\n"
            "  --backend B  sets OARSONG_BACKEND\n");
    return to == stdout ? TOOL_OK : TOOL_USAGE;
}

/* Reads options up to the program; returns its index in argv, or 0. */
static int read_options(int argc, char **argv, size_t *ranks)
{
    int i = 1;

    for (; i < argc && argv[i][0] == '-'; i += 2) {
        if (i + 1 == argc)
            return 0;
        if (strcmp(argv[i], "-n") == 0 || strcmp(argv[i], "-np") == 0) {
            if (!tool_number(argv[i + 1], 1, 1024, ranks))
                return 0;
        } else if (strcmp(argv[i], "--backend") == 0)
            setenv("OARSONG_BACKEND", argv[i + 1], 1);
        else
            return 0;
    }
    return i < argc && *ranks != 0 ? i : 0;
}

int tool_run(int argc, char **argv)
{
    oar_launch_result result = oar_launch_result_init();
    size_t ranks = 0;
    int program;

    if (argc > 1 && strcmp(argv[1], "--help") == 0)
        return usage(stdout);
    program = read_options(argc, argv, &ranks);
    if (program == 0)
        return usage(stderr);
    if (oar_launch((int)ranks, argv + program, NULL, &result) == OAR_OK)
        return TOOL_OK;
    tool_failed("run");
    return result.exit_code != 0 ? result.exit_code : TOOL_FAILED;
}
