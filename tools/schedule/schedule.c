/* SPDX-License-Identifier: Apache-2.0 */
/* oarsong schedule: schedules of pipelines, made, checked, drawn and compared.
 * No ranks are needed. */
#include "schedule.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tool.h"

static int usage(FILE *to)
{
    fprintf(to, "oarsong schedule SUBCOMMAND [KIND | FILE] [options]\n\n"
                "What each rank of a pipeline does, as rows of actions in "
                "PyTorch's notation.\nFILE is such a text or a CSV; - is "
                "standard input. KIND needs -n and -m and is one of\n");
    for (int k = 0; k < OAR_SCHEDULE_KINDS; k++)
        fprintf(to, "%s%s", k > 0 ? ", " : "",
                oar_schedule_kind_name((oar_schedule_kind)k));
    fprintf(to,
            ".\n\n"
            "  oarsong schedule make KIND -n N -m M\n"
            "      prints a schedule\n"
            "  oarsong schedule check KIND | FILE\n"
            "      whether it can run, and its time, bubble and memory\n"
            "  oarsong schedule draw KIND | FILE\n"
            "      a picture over time: digits are F, letters B or I, dots W\n"
            "  oarsong schedule best -n N -m M\n"
            "      tries all kinds and prints a table, the best one first\n\n");
    if (to == stdout) {
        schedule_explain_options();
        printf("\nReturns 0, 1 if the schedule cannot run or there is none, 2 "
               "if the command line\nis wrong.\n");
    }
    return to == stdout ? TOOL_OK : TOOL_USAGE;
}

/* ---- which schedule ------------------------------------------------------ */

static int kind_of(const char *word)
{
    for (int k = 0; k < OAR_SCHEDULE_KINDS; k++)
        if (strcmp(word, oar_schedule_kind_name((oar_schedule_kind)k)) == 0)
            return k;
    return -1;
}

/* Makes or loads what the options name. Returns the exit code. */
static int open_schedule(const schedule_options *o, int kinds_only,
                         oar_schedule **schedule)
{
    oar_schedule_opts opts = oar_schedule_opts_init();
    int kind = kind_of(o->what);
    oar_status status;

    opts.chunks = (int)o->chunks;
    opts.ahead = o->ahead;
    opts.forward_only = o->forward_only;
    if (kind < 0 && kinds_only) {
        tool_refuse("schedule", "there is no kind \"%s\"", o->what);
        return TOOL_USAGE;
    }
    if (kind >= 0 && (o->ranks == 0 || o->micro == 0)) {
        tool_refuse("schedule", "%s needs -n and -m", o->what);
        return TOOL_USAGE;
    }
    if (kind >= 0)
        status = oar_schedule_make((oar_schedule_kind)kind, (int)o->ranks,
                                   (int)o->micro, &opts, schedule);
    else
        status = oar_schedule_load(strcmp(o->what, "-") == 0 ? "/dev/stdin"
                                                             : o->what,
                                   &opts, schedule);
    return status == OAR_OK ? TOOL_OK : tool_failed("schedule");
}

/* ---- make ---------------------------------------------------------------- */

static int make_schedule(const schedule_options *o)
{
    oar_schedule *s = NULL;
    int code = open_schedule(o, 1, &s);
    size_t bytes;
    char *text;

    if (code != TOOL_OK)
        return code;
    bytes = oar_schedule_text(s, o->all, NULL, 0) + 1;
    text = malloc(bytes);
    if (text != NULL) {
        oar_schedule_text(s, o->all, text, bytes);
        fputs(text, stdout);
    }
    code = text != NULL ? TOOL_OK : TOOL_FAILED;
    free(text);
    oar_schedule_release(s);
    return code;
}

/* ---- check --------------------------------------------------------------- */

/* Prints why a schedule cannot run, in full. */
static int print_reason(const oar_schedule *s)
{
    size_t bytes = oar_schedule_explain(s, NULL, 0) + 1;
    char *text = bytes > 1 ? malloc(bytes) : NULL;

    if (text == NULL)
        return tool_failed("schedule check");
    oar_schedule_explain(s, text, bytes);
    printf("it cannot run: %s\n", text);
    free(text);
    return TOOL_FAILED;
}

static int print_report(const schedule_options *o, const oar_schedule *s,
                        const oar_schedule_report *r)
{
    int fits = o->bytes == 0 || r->most_bytes <= o->bytes;

    printf("%d ranks, %d stages, %d micro-batches: it can run\n",
           oar_schedule_ranks(s), oar_schedule_stages(s),
           oar_schedule_micro(s));
    printf("time       %.6g\n", r->time);
    printf("bubble     %.1f %%\n", 100 * r->bubble);
    printf("in flight  %d, at most, on a rank\n", r->in_flight);
    printf("memory     %" PRIu64 " bytes on rank %d%s\n", r->most_bytes,
           r->most_rank, fits ? "" : ": too many");
    printf("gradients  are%s added in the order of the micro-batches\n",
           r->ascending ? "" : " not");
    return fits ? TOOL_OK : TOOL_FAILED;
}

static int check_schedule(const schedule_options *o)
{
    oar_schedule_report report = oar_schedule_report_init();
    schedule_numbers n = { { NULL }, { NULL }, { 0 } };
    oar_schedule *s = NULL;
    int code = open_schedule(o, 0, &s);

    if (code != TOOL_OK)
        return code;
    if (oar_schedule_explain(s, NULL, 0) > 0)
        code = print_reason(s);
    else if (!schedule_read_costs(&o->cost, oar_schedule_stages(s), &n))
        code = TOOL_USAGE;
    else if (oar_schedule_check(s, &n.cost, &report) != OAR_OK)
        code = tool_failed("schedule check");
    else
        code = print_report(o, s, &report);
    schedule_free_costs(&n);
    oar_schedule_release(s);
    return code;
}

/* ---- draw ---------------------------------------------------------------- */

static int draw_schedule(const schedule_options *o)
{
    schedule_numbers n = { { NULL }, { NULL }, { 0 } };
    oar_schedule *s = NULL;
    char *text = NULL;
    int code = open_schedule(o, 0, &s);

    if (code != TOOL_OK)
        return code;
    if (!schedule_read_costs(&o->cost, oar_schedule_stages(s), &n))
        code = TOOL_USAGE;
    else if (oar_schedule_draw(s, &n.cost, o->picture, &text) != OAR_OK)
        code = tool_failed("schedule draw");
    else
        fputs(text, stdout);
    oar_free(text);
    schedule_free_costs(&n);
    oar_schedule_release(s);
    return code;
}

/* ---- best ---------------------------------------------------------------- */

enum { MOST_CHOICES = 64 };

static void print_choices(int count, const oar_schedule_choice *list)
{
    printf("%-12s %6s %12s %8s %9s %16s\n", "kind", "chunks", "time", "bubble",
           "in flight", "bytes");
    for (int i = 0; i < count && i < MOST_CHOICES; i++) {
        const oar_schedule_report *r = &list[i].report;

        printf("%-12s %6d %12.6g %6.1f %% %9d %16" PRIu64 "%s\n",
               oar_schedule_kind_name(list[i].kind), list[i].chunks, r->time,
               100 * r->bubble, r->in_flight, r->most_bytes,
               list[i].fits ? "" : "  too many");
    }
}

static int best_schedule(const schedule_options *o)
{
    oar_schedule_choice list[MOST_CHOICES];
    schedule_numbers n = { { NULL }, { NULL }, { 0 } };
    int chunks = o->chunks != 0 ? (int)o->chunks : 2, count = MOST_CHOICES;
    oar_schedule *s = NULL;
    int code = TOOL_OK;

    if (o->ranks * (size_t)chunks > 65536) {
        tool_refuse("schedule", "more than 65536 stages");
        return TOOL_USAGE;
    }
    for (int i = 0; i < MOST_CHOICES; i++)
        list[i] = oar_schedule_choice_init();
    if (!schedule_read_costs(&o->cost, (int)o->ranks * chunks, &n)) {
        code = TOOL_USAGE;
    } else {
        if (oar_schedule_best((int)o->ranks, (int)o->micro, chunks, &n.cost,
                              o->bytes, &s, &count, list) != OAR_OK) {
            code = tool_failed("schedule best");
            count = list[0].report.time > 0 ? count : 0;
        }
        if (count > 0)
            print_choices(count, list);
    }
    schedule_free_costs(&n);
    oar_schedule_release(s);
    return code;
}

/* ---- the command --------------------------------------------------------- */

int tool_schedule(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(const schedule_options *options);
    } commands[] = {
        { "make", make_schedule },
        { "check", check_schedule },
        { "draw", draw_schedule },
        { "best", best_schedule },
    };
    schedule_options o = { .what = NULL };

    if (argc < 2)
        return usage(stderr);
    if (strcmp(argv[1], "--help") == 0 ||
        (argc > 2 && strcmp(argv[2], "--help") == 0))
        return usage(stdout);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        int code;

        if (strcmp(argv[1], commands[i].name) != 0)
            continue;
        if (!schedule_read_options(argv[1], argc, argv, &o))
            return TOOL_USAGE;
        code = commands[i].run(&o);
        if (fflush(stdout) != 0 && code == TOOL_OK)
            code = TOOL_FAILED;
        return code;
    }
    tool_refuse("schedule", "there is no \"%s\"", argv[1]);
    return TOOL_USAGE;
}
