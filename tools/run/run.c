/* SPDX-License-Identifier: Apache-2.0 */
/* oarsong run: N ranks of a program, on this machine or several. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <oarsong/oarsong.h>

#include "run_options.h"
#include "tool.h"

static int usage(FILE *to)
{
    fprintf(to,
            "oarsong run -n N [options] [--] PROGRAM ARGS...\n\n"
            "Starts N ranks of PROGRAM and waits for them. When one fails, the "
            "others are ended,\nand the exit code is that of the first that "
            "failed. Options may be written with - or\n_ between words, and "
            "values as the next word or behind =.\n\n");
    run_options_print(to);
    fprintf(to, "\ndocs/launcher.md says more.\n");
    return to == stdout ? TOOL_OK : TOOL_USAGE;
}

static int complain(const char *text)
{
    fprintf(stderr, "oarsong run: %s (--help says more)\n", text);
    return TOOL_USAGE;
}

/* torchrun starts one where it is told nothing; that is rarely meant here. */
static int check(int argc, int program, const run_options *o)
{
    if (o->ranks == 0 && o->launch.max_nodes <= 1 && !o->standalone)
        return complain("how many ranks? -n N");
    if (program == argc)
        return complain("which program?");
    return TOOL_OK;
}

/* One rank alone writes where we do: there is nothing to sort out. */
static void choose_lines(run_options *o)
{
    o->launch.lines = o->ranks != 1 || o->launch.max_nodes > 1;
    o->launch.narrate = 1;
    o->launch.sole = 1;
}

/* Returns whether the program is a script of Python's that cannot be started
 * by itself. */
static int wants_python(const char *program)
{
    size_t length = strlen(program);

    return length > 3 && strcmp(program + length - 3, ".py") == 0 &&
           access(program, X_OK) != 0;
}

/* Makes the command line of the ranks, which free() frees. NULL: no memory. */
static char **make_command(int argc, char **argv, int program)
{
    char **command = calloc((size_t)(argc - program) + 2, sizeof *command);
    static char usual[] = "python3";
    char *python = getenv("OARSONG_PYTHON");
    int at = 0;

    if (command == NULL)
        return NULL;
    if (wants_python(argv[program]))
        command[at++] = python != NULL ? python : usual;
    for (int i = program; i < argc; i++)
        command[at++] = argv[i];
    return command;
}

int tool_run(int argc, char **argv)
{
    oar_launch_result result = oar_launch_result_init();
    run_options options;
    int program = run_options_read(argc, argv, &options);
    oar_status status;
    char **command;

    if (program == 0)
        return TOOL_USAGE;
    if (options.help)
        return usage(stdout);
    if (check(argc, program, &options) != TOOL_OK)
        return TOOL_USAGE;
    if (options.ranks == 0)
        options.ranks = 1;
    choose_lines(&options);
    if (options.web != NULL &&
        !tool_web_start(options.web,
                        options.launch.max_nodes > 1 ? options.launch.endpoint
                                                     : NULL,
                        options.launch.run_id))
        return TOOL_FAILED;
    if ((command = make_command(argc, argv, program)) == NULL)
        return complain("out of memory");
    status = oar_launch(options.ranks, command, &options.launch, &result);
    free(command);
    if (status == OAR_OK)
        return TOOL_OK;
    fprintf(stderr, "oarsong run: %s\n", oar_last_error_text());
    if (status == OAR_E_ARG)
        return TOOL_USAGE;
    return result.exit_code != 0 ? result.exit_code : TOOL_FAILED;
}
