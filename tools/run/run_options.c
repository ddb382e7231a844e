/* SPDX-License-Identifier: Apache-2.0 */
/* run_options: options of torchrun, mpirun and our own, from one table. Words
 * in a name may be joined by '-' or '_'; a value follows as a word or after
 * '='. */
#include "run_options.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tool.h"

enum { RANKS_MAX = 1024 };

typedef struct run_option run_option;

/* Takes the value (NULL for those that have none). Returns NULL, or what the
 * value should have been. */
typedef const char *(*option_fn)(run_options *o, const run_option *which,
                                 const char *value);

struct run_option {
    const char *name, *other; /* with their dashes; other may be NULL */
    const char *value;        /* what it is called; NULL: there is none */
    option_fn take;
    size_t into; /* where in run_options, for those that only store */
    const char *help;
};

/* ---- values -------------------------------------------------------------- */

static int whole(const char *text, int low, int high, int *value)
{
    size_t number;

    if (!tool_number(text, (size_t)low, (size_t)high, &number))
        return 0;
    *value = (int)number;
    return 1;
}

static void *place(run_options *o, const run_option *which)
{
    return (char *)o + which->into;
}

static const char *take_text(run_options *o, const run_option *which,
                             const char *value)
{
    *(const char **)place(o, which) = value;
    return NULL;
}

static const char *take_flag(run_options *o, const run_option *which,
                             const char *value)
{
    *(int *)place(o, which) = 1;
    return NULL;
}

static const char *take_count(run_options *o, const run_option *which,
                              const char *value)
{
    return whole(value, 0, 1000000, place(o, which)) ? NULL
                                                     : "a number from 0 on";
}

/* Seconds, with a fraction; below 0 is passed on as such. */
static int seconds(const char *text, int64_t *ms)
{
    char *tail;
    double value;

    errno = 0;
    value = strtod(text, &tail);
    if (errno != 0 || tail == text || *tail != 0 || !isfinite(value) ||
        value > 1e9)
        return 0;
    *ms = value < 0                    ? -1
          : value > 0 && value < 0.001 ? 1
                                       : (int64_t)(value * 1e3);
    return 1;
}

static const char *take_seconds(run_options *o, const run_option *which,
                                const char *value)
{
    return seconds(value, place(o, which)) ? NULL : "a number of seconds";
}

/* 0 seconds mean at once here, and in the library the default. */
static const char *take_grace(run_options *o, const run_option *which,
                              const char *value)
{
    if (!seconds(value, &o->launch.grace_ms))
        return "a number of seconds";
    if (o->launch.grace_ms == 0)
        o->launch.grace_ms = -1;
    return NULL;
}

static const char *take_stall(run_options *o, const run_option *which,
                              const char *value)
{
    if (!seconds(value, &o->launch.stall_ms))
        return "a number of seconds, 0 for never";
    if (o->launch.stall_ms == 0)
        o->launch.stall_ms = -1;
    return NULL;
}

static const char *take_ranks(run_options *o, const run_option *which,
                              const char *value)
{
    if (strcmp(value, "auto") == 0 || strcmp(value, "cpu") == 0) {
        o->ranks = OAR_LAUNCH_AUTO;
        return NULL;
    }
    return whole(value, 1, RANKS_MAX, &o->ranks)
               ? NULL
               : "a number from 1 to 1024, auto or cpu";
}

static const char *take_nodes(run_options *o, const run_option *which,
                              const char *value)
{
    static const char should[] = "N or MIN:MAX, from 1 to 1024";
    const char *colon = strchr(value, ':');
    char low[16];

    snprintf(low, sizeof low, "%.*s",
             colon != NULL ? (int)(colon - value) : (int)strlen(value), value);
    if (!whole(low, 1, RANKS_MAX, &o->launch.min_nodes) ||
        !whole(colon != NULL ? colon + 1 : value, 1, RANKS_MAX,
               &o->launch.max_nodes) ||
        o->launch.min_nodes > o->launch.max_nodes)
        return should;
    return NULL;
}

static const char *take_port(run_options *o, const run_option *which,
                             const char *value)
{
    return whole(value, 1, 65535, &o->master_port) ? NULL
                                                   : "a port, 1 to 65535";
}

/* Ours meet in our own way, whatever it is called. */
static const char *take_rdzv_backend(run_options *o, const run_option *which,
                                     const char *value)
{
    return strcmp(value, "c10d") == 0 || strcmp(value, "static") == 0
               ? NULL
               : "c10d or static (both mean ours)";
}

static const char *take_conf_word(run_options *o, const char *word)
{
    static const struct {
        const char *name;
        size_t into;
    } known[] = {
        { "join_timeout=", offsetof(run_options, launch.join_ms) },
        { "last_call_timeout=", offsetof(run_options, launch.last_call_ms) },
        { "lease_timeout=", offsetof(run_options, launch.lease_ms) },
    };

    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        size_t bytes = strlen(known[i].name);
        int64_t *into = (int64_t *)(void *)((char *)o + known[i].into);
        if (strncmp(word, known[i].name, bytes) == 0)
            return seconds(word + bytes, into) && *into > 0
                       ? NULL
                       : "seconds behind each name";
    }
    return "join_timeout=S,last_call_timeout=S,lease_timeout=S";
}

static const char *take_conf(run_options *o, const run_option *which,
                             const char *value)
{
    char word[64];

    for (;;) {
        size_t bytes = strcspn(value, ",");
        const char *should;
        snprintf(word, sizeof word, "%.*s", (int)bytes, value);
        if ((should = take_conf_word(o, word)) != NULL || value[bytes] == 0)
            return should;
        value += bytes + 1;
    }
}

/* Both of mpirun's forms; a variable that is set is passed on anyway. */
static const char *take_env(run_options *o, const run_option *which,
                            const char *value)
{
    if (value[0] == 0 || value[0] == '=')
        return "NAME or NAME=VALUE";
    if (strchr(value, '=') == NULL)
        return getenv(value) != NULL ? NULL
                                     : "the name of a variable that is "
                                       "set, or NAME=VALUE";
    if (o->envs == RUN_ENV_MAX)
        return "given at most 256 times";
    o->env[o->envs++] = value;
    return NULL;
}

static const char *take_backend(run_options *o, const run_option *which,
                                const char *value)
{
    setenv("OARSONG_BACKEND", value, 1);
    return NULL;
}

/* Ranks may work in other folders: the path is made whole. */
static const char *take_trace(run_options *o, const run_option *which,
                              const char *value)
{
    char path[4096];

    if (value[0] == 0 || (mkdir(value, 0777) != 0 && errno != EEXIST) ||
        realpath(value, path) == NULL)
        return "a folder that exists or can be made";
    setenv("OARSONG_TRACE", path, 1);
    return NULL;
}

static const char *ignore(run_options *o, const run_option *which,
                          const char *value)
{
    return NULL;
}

/* ---- the table ----------------------------------------------------------- */

#define INTO(field) offsetof(run_options, field)

static const run_option table[] = {
    { "--help", "-h", NULL, take_flag, INTO(help), "this text" },
    { "-n", "-np", "N", take_ranks, 0, "ranks to start here" },
    { "--nproc-per-node", NULL, "N", take_ranks, 0,
      "the same: a number, auto or cpu (one for each core)" },
    { "--backend", NULL, "B", take_backend, 0, "sets OARSONG_BACKEND" },
    { "-x", NULL, "VAR[=VALUE]", take_env, 0,
      "a variable for the ranks (again for more)" },
    { "--hostfile", "-hostfile", "FILE", take_text, INTO(launch.hostfile),
      "as many ranks as this host has slots there" },
    { "--bind-to", NULL, "WHAT", take_text, INTO(launch.bind),
      "core, socket, numa or none: where each rank may run" },
    { "--numa-binding", NULL, "WHAT", take_text, INTO(launch.bind),
      "node, socket, exclusive or core-complex: the same" },
    { "--role", NULL, "NAME", take_text, INTO(launch.role),
      "ROLE_NAME of the ranks" },
    { NULL, NULL, NULL, NULL, 0, "Output" },
    { "--no-tag", NULL, NULL, take_flag, INTO(no_tag),
      "no \"[rank] \" before each line" },
    { "--log-dir", NULL, "DIR", take_text, INTO(launch.log_dir),
      "keep it in DIR/RUN_ID/attempt_N/RANK/{stdout,stderr}.log" },
    { "--redirects", "-r", "WHAT", take_text, INTO(launch.redirects),
      "to a file only: 0 none, 1 stdout, 2 stderr, 3 both, or by local rank: "
      "0:1,1:2" },
    { "--tee", "-t", "WHAT", take_text, INTO(launch.tee),
      "the same: to a file as well" },
    { "--trace", NULL, "DIR", take_trace, 0,
      "keep there what the ranks do, for `oarsong trace`" },
    { "--web", NULL, "[=ADDR:PORT]", take_text, INTO(web),
      "a live page of the job, for this host unless told otherwise" },
    { "--local-ranks-filter", NULL, "RANKS", take_text, INTO(launch.show_ranks),
      "show only what these write: 0,2" },
    { NULL, NULL, NULL, NULL, 0, "When something goes wrong" },
    { "--max-restarts", NULL, "N", take_count, INTO(launch.max_restarts),
      "start all ranks again up to N times (0)" },
    { "--keep-going", NULL, NULL, take_flag, INTO(launch.keep_going),
      "a rank that fails does not end the others" },
    { "--respawn", NULL, "N", take_count, INTO(launch.max_respawns),
      "the same, and each rank that fails is started again up to N times (0)" },
    { "--grace-s", NULL, "S", take_grace, 0,
      "from SIGTERM to SIGKILL for the others (2)" },
    { "--timeout-s", NULL, "S", take_seconds, INTO(launch.timeout_ms),
      "end the run after S seconds, with code 124" },
    { "--stall-s", NULL, "S", take_stall, 0,
      "report an operation that waits longer (30; 0: never)" },
    { "--monitor-interval", NULL, "S", take_seconds, INTO(launch.monitor_ms),
      "how often stalls and nodes are looked at (0.2)" },
    { NULL, NULL, NULL, NULL, 0, "Several nodes: the same on each of them" },
    { "--nnodes", NULL, "N|MIN:MAX", take_nodes, 0, "how many (1)" },
    { "--rdzv-endpoint", NULL, "HOST:PORT", take_text, INTO(launch.endpoint),
      "where they meet; the one on HOST serves" },
    { "--rdzv-id", NULL, "ID", take_text, INTO(launch.run_id),
      "the name of the run" },
    { "--rdzv-conf", NULL, "K=S,...", take_conf, 0,
      "join_timeout (600), last_call_timeout (5), lease_timeout (5)" },
    { "--rdzv-backend", NULL, "NAME", take_rdzv_backend, 0,
      "c10d or static; means ours" },
    { "--node-rank", NULL, "N", take_count, INTO(node_rank),
      "this node's place among them (0: by arrival)" },
    { "--master-addr", NULL, "HOST", take_text, INTO(master_addr),
      "with --master-port: as --rdzv-endpoint; for one node, MASTER_ADDR" },
    { "--master-port", NULL, "PORT", take_port, 0, "see there (29500)" },
    { "--standalone", NULL, NULL, take_flag, INTO(standalone),
      "this node only (as without --nnodes)" },
    { "--no-python", NULL, NULL, ignore, 0, "accepted; there is none" },
};
enum { OPTIONS = sizeof table / sizeof *table };

void run_options_print(FILE *to)
{
    char left[64];

    for (int i = 0; i < OPTIONS; i++) {
        const run_option *o = &table[i];
        if (o->name == NULL) {
            fprintf(to, "\n%s:\n", o->help);
            continue;
        }
        snprintf(left, sizeof left, "%s%s%s%s%s", o->name,
                 o->other != NULL ? ", " : "", o->other != NULL ? o->other : "",
                 o->value != NULL && o->value[0] != '[' ? " " : "",
                 o->value != NULL ? o->value : "");
        fprintf(to, "  %-28s  %s\n", left, o->help);
    }
}

/* ---- finding ------------------------------------------------------------- */

static char dashed(char c)
{
    return c == '_' ? '-' : c;
}

/* Whether the first `bytes` of text are the name. "_" counts as "-" inside. */
static int is_name(const char *text, size_t bytes, const char *name)
{
    size_t i = 0;

    if (name == NULL || strlen(name) != bytes)
        return 0;
    while (i < bytes && (i < 2 ? text[i] : dashed(text[i])) == name[i])
        i++;
    return i == bytes;
}

static const run_option *find_option(const char *text, size_t bytes)
{
    for (int i = 0; i < OPTIONS; i++)
        if (is_name(text, bytes, table[i].name) ||
            is_name(text, bytes, table[i].other))
            return &table[i];
    return NULL;
}

static int least(int a, int b, int c)
{
    int d = a < b ? a : b;

    return d < c ? d : c;
}

/* Returns how many letters have to be changed, added or dropped to make one
 * word of the other. */
static int distance(const char *a, size_t a_bytes, const char *b)
{
    int row[64], b_bytes = (int)strlen(b);

    if (a_bytes > 60 || b_bytes > 60)
        return 99;
    for (int j = 0; j <= b_bytes; j++)
        row[j] = j;
    for (int i = 1; i <= (int)a_bytes; i++) {
        int corner = row[0];
        row[0] = i;
        for (int j = 1; j <= b_bytes; j++) {
            int change = corner + (dashed(a[i - 1]) != b[j - 1]);
            corner = row[j];
            row[j] = least(row[j] + 1, row[j - 1] + 1, change);
        }
    }
    return row[b_bytes];
}

static const char *nearest(const char *text, size_t bytes)
{
    const char *best = "--help";
    int shortest = 99;

    for (int i = 0; i < OPTIONS; i++) {
        int d =
            table[i].name != NULL ? distance(text, bytes, table[i].name) : 99;
        if (d < shortest) {
            shortest = d;
            best = table[i].name;
        }
    }
    return best;
}

/* ---- reading ------------------------------------------------------------- */

static int complain(const char *name, int bytes, const char *what,
                    const char *more)
{
    fprintf(stderr, "oarsong run: %.*s %s%s\n", bytes, name, what, more);
    return 0;
}

/* Takes the option at argv[i]; returns the index behind it, or 0. */
static int take(int argc, char **argv, int i, run_options *o)
{
    const char *text = argv[i], *equals = strchr(text, '='), *value = NULL;
    const char *should;
    size_t bytes = equals != NULL ? (size_t)(equals - text) : strlen(text);
    const run_option *found = find_option(text, bytes);

    if (found == NULL)
        return complain(text, (int)bytes, "is no option; the nearest is ",
                        nearest(text, bytes));
    if (found->value == NULL && equals != NULL)
        return complain(text, (int)bytes, "takes no value", "");
    if (found->value != NULL && found->value[0] == '[')
        value = equals != NULL ? equals + 1 : "";
    else if (found->value != NULL)
        value = equals != NULL ? equals + 1 : ++i < argc ? argv[i] : NULL;
    if (found->value != NULL && value == NULL)
        return complain(text, (int)bytes, "needs a value: ", found->value);
    should = found->take(o, found, value);
    if (should != NULL)
        return complain(text, (int)bytes, "should be ", should);
    return i + 1;
}

/* Several nodes may also meet at a master's address, as torchrun's static ones
 * do; on one node that is only for programs that look at MASTER_ADDR. */
static void settle(run_options *o)
{
    oar_launch_opts *l = &o->launch;

    l->env = o->env;
    l->node_order = o->node_rank;
    l->tags = !o->no_tag;
    if (o->standalone) {
        l->min_nodes = l->max_nodes = 1;
        l->endpoint = NULL;
    }
    if (l->max_nodes > 1 && l->endpoint == NULL && o->master_addr != NULL) {
        snprintf(o->endpoint, sizeof o->endpoint,
                 strchr(o->master_addr, ':') != NULL ? "[%.255s]:%d"
                                                     : "%.255s:%d",
                 o->master_addr, o->master_port > 0 ? o->master_port : 29500);
        l->endpoint = o->endpoint;
    } else if (l->max_nodes <= 1) {
        l->master_addr = o->master_addr;
        l->master_port = o->master_port;
    }
    if (o->ranks == 0)
        o->ranks = l->hostfile != NULL ? OAR_LAUNCH_AUTO : 0;
}

int run_options_read(int argc, char **argv, run_options *options)
{
    int i = 1;

    *options = (run_options){ .launch = oar_launch_opts_init() };
    while (i < argc && argv[i][0] == '-' && argv[i][1] != 0) {
        if (strcmp(argv[i], "--") == 0) {
            i++;
            break;
        }
        if ((i = take(argc, argv, i, options)) == 0)
            return 0;
        if (options->help)
            return argc;
    }
    settle(options);
    return i;
}
