/* SPDX-License-Identifier: Apache-2.0 */
/* oarsong: the command. */
#include "tool.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/oarsong.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *usage, *text;
} commands[] = {
    { "run", tool_run, "-n N PROGRAM ARGS...",
      "start N ranks on this machine" },
    { "autopsy", tool_autopsy, "DIR [--json]",
      "what a job did last, from its recorder files" },
    { "bench", tool_bench, "KIND [options]", "time a collective, or messages" },
    { "ckpt", tool_ckpt, "SUBCOMMAND PATH...",
      "look at checkpoints, convert and prune them" },
    { "conform", tool_conform, "[options]",
      "the whole matrix on a backend, every value checked" },
    { "info", tool_info, "", "version, machine, and the backends that work" },
    { "report", tool_report, "DIR [-o FILE]",
      "the trace of a job as one page" },
    { "schedule", tool_schedule, "SUBCOMMAND",
      "what the ranks of a pipeline do: made, checked, drawn" },
    { "top", tool_top, "[RUN_ID|PID|DIR]",
      "what the ranks of a running job do now" },
    { "trace", tool_trace, "DIR [-o FILE]",
      "what all ranks of a job did, for a viewer" },
};
enum { COMMANDS = sizeof commands / sizeof *commands };

int tool_failed(const char *what)
{
    const oar_error *e = oar_last_error();

    fprintf(stderr, "oarsong %s: %s (%s)\n", what, e->text,
            oar_status_name(e->status));
    return TOOL_FAILED;
}

int tool_refuse(const char *what, const char *format, ...)
{
    va_list args;

    fprintf(stderr, "oarsong %s: ", what);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, " (--help says more)\n");
    return 0;
}

int tool_bad_option(const char *what, const char *name, const char *value,
                    int known)
{
    if (known < 0)
        return tool_refuse(what, "%s is no option", name);
    if (value == NULL)
        return tool_refuse(what, "%s needs a value", name);
    return tool_refuse(what, "%s cannot be \"%s\"", name, value);
}

int tool_number(const char *text, size_t low, size_t high, size_t *value)
{
    char *tail;
    unsigned long long number, unit = 1;

    errno = 0;
    number = strtoull(text, &tail, 10);
    if (*tail == 'K' || *tail == 'k')
        unit = 1ull << 10;
    if (*tail == 'M' || *tail == 'm')
        unit = 1ull << 20;
    if (*tail == 'G' || *tail == 'g')
        unit = 1ull << 30;
    if (unit != 1)
        tail++;
    if (errno != 0 || tail == text || *tail != 0 || *text == '-' ||
        number > high / unit || number * unit < low)
        return 0;
    *value = (size_t)(number * unit);
    return 1;
}

static int usage(FILE *to)
{
    fprintf(to, "Oarsong %s: distributed training in C\n\n", OAR_VERSION_TEXT);
    for (int i = 0; i < COMMANDS; i++)
        fprintf(to, "  oarsong %-8s %-21s %s\n", commands[i].name,
                commands[i].usage, commands[i].text);
    fprintf(to, "\n`oarsong COMMAND --help` says more.\n");
    return to == stdout ? TOOL_OK : TOOL_USAGE;
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return usage(stderr);
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
        return usage(stdout);
    if (strcmp(argv[1], "--version") == 0) {
        printf("oarsong %s\n", OAR_VERSION_TEXT);
        return TOOL_OK;
    }
    for (int i = 0; i < COMMANDS; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    fprintf(stderr, "oarsong: there is no command \"%s\"\n\n", argv[1]);
    return usage(stderr);
}
