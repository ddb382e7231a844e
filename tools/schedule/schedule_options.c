/* SPDX-License-Identifier: Apache-2.0 */
/* oarsong schedule: its options, and lists of numbers among them. */
#include "schedule.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tool.h"

void schedule_explain_options(void)
{
    printf(
        "  -n, --ranks N       ranks\n"
        "  -m, --micro M       micro-batches\n"
        "  --chunks V          stages on each rank; best: parts of each "
        "rank's layers (2)\n"
        "  --ahead A           a receive is posted so many actions before it "
        "is needed (1)\n"
        "  --forward-only      for evaluation\n"
        "  --all               prints sends and receives, too\n"
        "  --format F          draws text (default), svg or chrome (a trace "
        "for Perfetto)\n"
        "  --forward LIST      what F takes, in any unit: a number for each "
        "stage, or one for\n"
        "                      all (1)\n"
        "  --inputs LIST       what I takes (1)\n"
        "  --weights LIST      what W takes (1); B takes both\n"
        "  --hop T             what a message takes (0)\n"
        "  --held LIST         bytes from F to B or I, such as 4M (1)\n"
        "  --half LIST         bytes from I to W (as --held)\n"
        "  --message LIST      bytes that a stage sends forward (0)\n"
        "  --bytes SIZE        most that a rank has for all that\n");
}

/* ---- options ------------------------------------------------------------- */

static int read_real(const char *text, double *number)
{
    char *tail;

    *number = strtod(text, &tail);
    return tail != text && *tail == '\0' && *number >= 0 && *number < 1e300;
}

static int read_format(const char *text, oar_picture *picture)
{
    static const char *const word[] = { "text", "svg", "chrome" };

    for (int i = 0; i < 3; i++)
        if (strcmp(text, word[i]) == 0) {
            *picture = (oar_picture)i;
            return 1;
        }
    return 0;
}

/* Reads an option with a value. Returns 1, 0 if it cannot be that, -1 if there
 * is no such option. */
static int read_value(const char *name, const char *value, schedule_options *o)
{
    const struct {
        const char *name, *other;
        size_t *number, high;
        const char **list;
    } options[] = {
        { "--ranks", "-n", &o->ranks, 65536, NULL },
        { "--micro", "-m", &o->micro, 65536, NULL },
        { "--chunks", NULL, &o->chunks, 65536, NULL },
        { "--bytes", NULL, &o->bytes, SIZE_MAX >> 1, NULL },
        { "--forward", NULL, NULL, 0, &o->cost.forward },
        { "--inputs", NULL, NULL, 0, &o->cost.inputs },
        { "--weights", NULL, NULL, 0, &o->cost.weights },
        { "--held", NULL, NULL, 0, &o->cost.held },
        { "--half", NULL, NULL, 0, &o->cost.half },
        { "--message", NULL, NULL, 0, &o->cost.message },
    };
    size_t ahead;

    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        if (strcmp(name, options[i].name) != 0 &&
            (options[i].other == NULL || strcmp(name, options[i].other) != 0))
            continue;
        if (value == NULL)
            return 0;
        if (options[i].number != NULL)
            return tool_number(value, 1, options[i].high, options[i].number);
        *options[i].list = value;
        return 1;
    }
    if (strcmp(name, "--hop") == 0)
        return value != NULL && read_real(value, &o->cost.hop);
    if (strcmp(name, "--format") == 0)
        return value != NULL && read_format(value, &o->picture);
    if (strcmp(name, "--ahead") != 0)
        return -1;
    if (value == NULL || !tool_number(value, 0, 64, &ahead))
        return 0;
    o->ahead = ahead == 0 ? -1 : (int)ahead;
    return 1;
}

static int read_flag(const char *name, schedule_options *o)
{
    if (strcmp(name, "--all") == 0)
        o->all = 1;
    else if (strcmp(name, "--forward-only") == 0)
        o->forward_only = 1;
    else
        return 0;
    return 1;
}

int schedule_read_options(const char *subcommand, int argc, char **argv,
                          schedule_options *o)
{
    int best = strcmp(subcommand, "best") == 0;

    for (int i = 2; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        int known;

        if (name[0] != '-' || name[1] == '\0') {
            if (best || o->what != NULL)
                return tool_refuse("schedule", "%s takes no \"%s\"", subcommand,
                                   name);
            o->what = name;
            continue;
        }
        if (read_flag(name, o))
            continue;
        known = read_value(name, value, o);
        if (known != 1)
            return tool_bad_option("schedule", name, value, known);
        i++;
    }
    if (!best && o->what == NULL)
        return tool_refuse("schedule", "%s needs a kind%s", subcommand,
                           strcmp(subcommand, "make") == 0 ? "" : " or a file");
    if (best && (o->ranks == 0 || o->micro == 0))
        return tool_refuse("schedule", "best needs -n and -m");
    return 1;
}

/* ---- lists --------------------------------------------------------------- */

static int read_bytes(const char *text, uint64_t *bytes)
{
    size_t number;
    int good = tool_number(text, 0, SIZE_MAX >> 1, &number);

    *bytes = good ? number : 0;
    return good;
}

/* Reads one item into a time or into bytes; the other is NULL. */
static int read_item(const char *text, size_t length, double *time,
                     uint64_t *bytes)
{
    char item[64];

    if (length >= sizeof item)
        return 0;
    memcpy(item, text, length);
    item[length] = '\0';
    return time != NULL ? read_real(item, time) : read_bytes(item, bytes);
}

/* Reads a list with a number for each stage, or one for all. */
static int read_list(const char *name, const char *text, int stages,
                     double *time, uint64_t *bytes)
{
    int count = 0;

    for (const char *at = text;; at++) {
        size_t length = strcspn(at, ",");

        if (count == stages ||
            !read_item(at, length, time != NULL ? &time[count] : NULL,
                       bytes != NULL ? &bytes[count] : NULL))
            return tool_refuse("schedule",
                               "%s cannot be \"%s\": it is a number for each "
                               "of %d stages, or one for all",
                               name, text, stages);
        count++;
        at += length;
        if (*at == '\0')
            break;
    }
    if (count != 1 && count != stages)
        return tool_refuse("schedule", "%s has %d numbers for %d stages", name,
                           count, stages);
    for (int i = count; i < stages; i++)
        if (time != NULL)
            time[i] = time[0];
        else
            bytes[i] = bytes[0];
    return 1;
}

int schedule_read_costs(const schedule_costs *c, int stages,
                        schedule_numbers *n)
{
    static const char *const time_name[] = { "--forward", "--inputs",
                                             "--weights" };
    static const char *const bytes_name[] = { "--held", "--half", "--message" };
    const char *time[] = { c->forward, c->inputs, c->weights };
    const char *bytes[] = { c->held, c->half, c->message };

    for (int i = 0; i < 3; i++) {
        n->time[i] = calloc((size_t)stages, sizeof *n->time[i]);
        n->bytes[i] = calloc((size_t)stages, sizeof *n->bytes[i]);
        if (n->time[i] == NULL || n->bytes[i] == NULL)
            return tool_refuse("schedule", "out of memory");
        if (time[i] != NULL &&
            !read_list(time_name[i], time[i], stages, n->time[i], NULL))
            return 0;
        if (bytes[i] != NULL &&
            !read_list(bytes_name[i], bytes[i], stages, NULL, n->bytes[i]))
            return 0;
    }
    n->cost = oar_schedule_cost_init();
    n->cost.forward = c->forward != NULL ? n->time[0] : NULL;
    n->cost.inputs = c->inputs != NULL ? n->time[1] : NULL;
    n->cost.weights = c->weights != NULL ? n->time[2] : NULL;
    n->cost.hop = c->hop;
    n->cost.held = c->held != NULL ? n->bytes[0] : NULL;
    n->cost.half = c->half != NULL ? n->bytes[1] : NULL;
    n->cost.message = c->message != NULL ? n->bytes[2] : NULL;
    return 1;
}

void schedule_free_costs(schedule_numbers *n)
{
    for (int i = 0; i < 3; i++) {
        free(n->time[i]);
        free(n->bytes[i]);
    }
}
