/* SPDX-License-Identifier: Apache-2.0 */
/* oarsong ckpt: checkpoints, looked at and changed without ranks. */
#include "ckpt.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tool.h"

/* ---- the subcommands ----------------------------------------------------- */

static const struct {
    const char *name;
    int (*run)(const ckpt_options *options);
    int least, most; /* paths and names */
    const char *options;
    const char *usage, *text;
} commands[] = {
    { "ls", ckpt_ls, 1, 1, "--json", "DIR [--json]",
      "the generations of a folder: step, time, size, ranks, and whether each "
      "is\n      complete, or why not" },
    { "show", ckpt_show, 1, 2, "--json --section",
      "PATH [NAME] [--section S] [--json]",
      "values and tensors of a generation, or one tensor with its statistics" },
    { "verify", ckpt_verify, 1, 1, "", "PATH",
      "reads every byte and compares all checksums" },
    { "diff", ckpt_diff, 2, 2, "--section", "PATH PATH [--section S]",
      "names, dtypes, shapes and numbers that differ. Returns 0 if nothing "
      "does, 1 if\n      something does, 2 if one cannot be read" },
    { "prune", ckpt_prune, 1, 1, "--keep --keep-every --dry-run",
      "DIR --keep N [--keep-every M] [--dry-run]",
      "removes old generations. Incomplete ones stay, and those saved with "
      ".keep" },
    { "export", ckpt_export, 2, 2,
      "--dtype --max-file-bytes --format --section --heads",
      "PATH OUT [--format F] [--dtype D] [--max-file-bytes SIZE]",
      "writes the model for other programs, into the new folder OUT (llmc: the "
      "file OUT)" },
    { "import", ckpt_import, 2, 2, "--step --dtype --gpt2 --trim",
      "SRC DIR [--step N] [--dtype D] [--gpt2] [--trim]",
      "makes a generation of a safetensors file, a folder of Hugging Face or a "
      "model\n      file of llm.c (.bin)" },
    { "reshard", ckpt_reshard, 2, 2, "--ranks", "PATH DIR --ranks N",
      "writes a generation into another folder as N ranks would have" },
};
enum { COMMANDS = sizeof commands / sizeof *commands };

static void print_command(FILE *to, int i)
{
    fprintf(to, "  oarsong ckpt %s %s\n      %s\n", commands[i].name,
            commands[i].usage, commands[i].text);
}

static int usage(FILE *to)
{
    fprintf(to, "oarsong ckpt SUBCOMMAND PATH... [options]\n\n"
                "Looks at checkpoints and changes them, without ranks. PATH is "
                "a folder of generations,\nof which the newest complete one is "
                "taken, or the folder of one generation.\n\n");
    for (int i = 0; i < COMMANDS; i++)
        print_command(to, i);
    fprintf(to,
            "\n"
            "  --json                  for programs\n"
            "  --section S             only this section: model, optim, ...\n"
            "  --keep N                complete generations that stay\n"
            "  --keep-every M          and those whose step is a multiple\n"
            "  --dry-run               only says what would be removed\n"
            "  --format F              safetensors (default: any model, under "
            "its own names), hf (a GPT\n"
            "                          as transformers' GPT-2) or llmc\n"
            "  --dtype D               floats become f32, f64, f16 or bf16\n"
            "  --max-file-bytes SIZE   most data of a file, such as 2G; "
            "default: one file\n"
            "  --heads N               of the GPT that hf and llmc write; "
            "default: width / 64\n"
            "  --step N                of the new generation (0)\n"
            "  --gpt2                  SRC is a GPT-2, which gets the names "
            "that oar_gpt_create gives\n"
            "  --trim                  without llm.c's padding of the "
            "vocabulary\n"
            "  --ranks N               that would have written the files\n\n"
            "Returns 0, 1 if it failed or something is damaged, 2 if the "
            "command line is wrong.\n");
    return to == stdout ? TOOL_OK : TOOL_USAGE;
}

/* ---- options ------------------------------------------------------------- */

typedef struct option {
    const char *name;
    int *flag; /* or */
    const char **text;
    size_t *number; /* from low to high */
    size_t low, high;
} option;

static int is_option_of(int command, const char *name)
{
    const char *at = commands[command].options;
    size_t length = strlen(name);

    for (; (at = strstr(at, name)) != NULL; at += length)
        if (at[length] == ' ' || at[length] == '\0')
            return 1;
    return 0;
}

/* Reads one option at argv[*i]. Returns 0, with a sentence, if it is wrong. */
static int read_option(int command, char **argv, int argc, int *i,
                       ckpt_options *o)
{
    const option options[] = {
        { "--json", &o->json, NULL, NULL, 0, 0 },
        { "--dry-run", &o->dry_run, NULL, NULL, 0, 0 },
        { "--gpt2", &o->gpt2, NULL, NULL, 0, 0 },
        { "--trim", &o->trim, NULL, NULL, 0, 0 },
        { "--section", NULL, &o->section, NULL, 0, 0 },
        { "--format", NULL, &o->format, NULL, 0, 0 },
        { "--dtype", NULL, &o->dtype_name, NULL, 0, 0 },
        { "--keep", NULL, NULL, &o->keep, 1, 1000000 },
        { "--keep-every", NULL, NULL, &o->keep_every, 1, 999999999999 },
        { "--step", NULL, NULL, &o->step, 0, 999999999999 },
        { "--ranks", NULL, NULL, &o->ranks, 1, 99999 },
        { "--heads", NULL, NULL, &o->heads, 1, 65536 },
        { "--max-file-bytes", NULL, NULL, &o->file_bytes, 1, SIZE_MAX >> 1 },
    };
    const char *name = argv[*i], *value = *i + 1 < argc ? argv[*i + 1] : NULL;

    for (size_t k = 0; k < sizeof options / sizeof *options; k++) {
        const option *x = &options[k];

        if (strcmp(name, x->name) != 0)
            continue;
        if (!is_option_of(command, name))
            return tool_refuse("ckpt", "%s takes no %s", commands[command].name,
                               name);
        if (x->flag != NULL) {
            *x->flag = 1;
            return 1;
        }
        ++*i;
        if (value == NULL || (x->number != NULL &&
                              !tool_number(value, x->low, x->high, x->number)))
            return tool_bad_option("ckpt", name, value, 0);
        if (x->text != NULL)
            *x->text = value;
        return 1;
    }
    return tool_bad_option("ckpt", name, NULL, -1);
}

static int check_dtype(ckpt_options *o)
{
    if (o->dtype_name == NULL)
        return 1;
    for (int d = 0; d < OAR_DTYPE_COUNT; d++) {
        const char *name = oar_dtype_name((oar_dtype)d);

        if (strcmp(o->dtype_name, name) != 0 ||
            (name[0] != 'f' && strcmp(name, "bf16") != 0))
            continue;
        o->has_dtype = 1;
        o->dtype = (oar_dtype)d;
        return 1;
    }
    return tool_bad_option("ckpt", "--dtype", o->dtype_name, 0);
}

/* Returns 0, with a sentence, if the command line is wrong. */
static int read_options(int command, int argc, char **argv, ckpt_options *o)
{
    int paths = 0, plain = 0;

    for (int i = 2; i < argc; i++) {
        if (!plain && strcmp(argv[i], "--") == 0) {
            plain = 1;
        } else if (!plain && argv[i][0] == '-' && argv[i][1] != '\0') {
            if (!read_option(command, argv, argc, &i, o))
                return 0;
        } else if (paths == commands[command].most) {
            return tool_refuse("ckpt", "%s takes no \"%s\"",
                               commands[command].name, argv[i]);
        } else {
            o->path[paths++] = argv[i];
        }
    }
    if (paths < commands[command].least)
        return tool_refuse("ckpt", "%s needs %s", commands[command].name,
                           commands[command].usage);
    return check_dtype(o);
}

int tool_ckpt(int argc, char **argv)
{
    ckpt_options o = { { NULL, NULL }, 0,    0,    0, 0,      0, 0, 0, 0, 0, 0,
                       NULL,           NULL, NULL, 0, OAR_F32 };

    if (argc < 2)
        return usage(stderr);
    if (strcmp(argv[1], "--help") == 0)
        return usage(stdout);
    for (int i = 0; i < COMMANDS; i++) {
        int code;

        if (strcmp(argv[1], commands[i].name) != 0)
            continue;
        if (argc > 2 && strcmp(argv[2], "--help") == 0) {
            print_command(stdout, i);
            printf("\n`oarsong ckpt --help` explains the options.\n");
            return TOOL_OK;
        }
        if (!read_options(i, argc, argv, &o))
            return TOOL_USAGE;
        code = commands[i].run(&o);
        if (fflush(stdout) != 0 && code == TOOL_OK)
            code = TOOL_FAILED;
        return code;
    }
    tool_refuse("ckpt", "there is no \"%s\"", argv[1]);
    return TOOL_USAGE;
}

/* ---- texts --------------------------------------------------------------- */

const char *ckpt_size_text(uint64_t bytes, char text[24])
{
    static const char *const unit[] = { "B",   "KiB", "MiB", "GiB",
                                        "TiB", "PiB", "EiB" };
    double size = (double)bytes;
    int u = 0;

    for (; size >= 1000 && u < 6; u++)
        size /= 1024;
    snprintf(text, 24, u == 0 ? "%.0f %s" : "%.3g %s", size, unit[u]);
    return text;
}

const char *ckpt_time_text(int64_t unix_s, char text[24])
{
    time_t seconds = (time_t)unix_s;
    struct tm parts;

    if (localtime_r(&seconds, &parts) == NULL ||
        strftime(text, 24, "%Y-%m-%d %H:%M:%S", &parts) == 0)
        snprintf(text, 24, "%" PRId64, unix_s);
    return text;
}

const char *ckpt_shape_text(oar_shape shape, char text[200])
{
    int length = snprintf(text, 200, "[");

    for (int d = 0; d < shape.ndim; d++)
        length += snprintf(text + length, 200 - (size_t)length, "%s%" PRId64,
                           d > 0 ? ", " : "", shape.dim[d]);
    snprintf(text + length, 200 - (size_t)length, "]");
    return text;
}

void ckpt_print_quoted(const char *text)
{
    putchar('"');
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;

        if (c == '"' || c == '\\')
            printf("\\%c", c);
        else if (c < 0x20)
            printf("\\u%04x", c);
        else
            putchar(c);
    }
    putchar('"');
}

void ckpt_print_json(const oar_generation *g)
{
    printf("\"step\":%" PRId64 ",\"name\":", g->step);
    ckpt_print_quoted(g->name);
    printf(",\"complete\":%s,\"why\":", g->complete ? "true" : "false");
    ckpt_print_quoted(g->why);
    printf(",\"bytes\":%" PRIu64 ",\"saved_unix_s\":%" PRId64
           ",\"ranks\":%d,\"keep\":%s,\"note\":",
           g->bytes, g->saved_unix_s, g->ranks, g->keep ? "true" : "false");
    ckpt_print_quoted(g->note);
}

/* ---- numbers ------------------------------------------------------------- */

oar_status ckpt_read_numbers(oar_tensor *tensor, ckpt_numbers_fn *fn, void *arg)
{
    enum { AT_ONCE = 1 << 16 };
    int64_t count = oar_tensor_count(tensor);
    oar_tensor *line = oar_reshape(NULL, tensor, OAR_SHAPE(count));
    double *number = malloc(AT_ONCE * sizeof *number);
    oar_status status = line == NULL || number == NULL ? OAR_E_NOMEM : OAR_OK;

    for (int64_t at = 0; at < count && status == OAR_OK; at += AT_ONCE) {
        int64_t n = count - at < AT_ONCE ? count - at : AT_ONCE;
        oar_tensor *part = oar_narrow(NULL, line, 0, at, n);

        status = oar_tensor_read(part, OAR_F64, number);
        if (status == OAR_OK)
            fn(arg, at, n, number);
        oar_tensor_release(part);
    }
    free(number);
    oar_tensor_release(line);
    return status;
}
