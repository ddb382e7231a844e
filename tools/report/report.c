/* SPDX-License-Identifier: Apache-2.0 */
/* oarsong report: the trace of a job as one page. */
#include "report.h"

#include <errno.h>
#include <string.h>

#include <oarsong/oarsong.h>

#include "tool.h"

static int usage(FILE *to)
{
    fprintf(to,
            "oarsong report DIR [-o report.html] [--machine FILE]\n\n"
            "Reads the *.oartrace files in DIR (`oarsong run --trace DIR`) and "
            "writes one page of\nHTML: how long steps took, what of it was "
            "communication and what of that was hidden,\nwhich rank is late, "
            "where operations are called, and three steps as time lines.\n\n"
            "  -o FILE         the page (report.html)\n"
            "  --machine FILE  lines of `oarsong bench --format csv`: what the "
            "machine reaches\n");
    return to == stdout ? TOOL_OK : TOOL_USAGE;
}

static int write_page(const oar_trace *t, const char *folder, const char *file,
                      const char *machine)
{
    report r;
    FILE *to = NULL;
    int ok = report_make(t, &r);

    if (ok && machine != NULL && !report_machine_read(&r, machine))
        fprintf(stderr, "oarsong report: %s has no results of a bench\n",
                machine);
    if (ok)
        to = fopen(file, "w");
    ok = to != NULL;
    if (ok) {
        report_write(&r, folder, to);
        ok = !ferror(to);
    }
    if (to != NULL && fclose(to) != 0)
        ok = 0;
    if (!ok)
        fprintf(stderr, "oarsong report: cannot write %s: %s\n", file,
                strerror(errno));
    report_free(&r);
    return ok;
}

int tool_report(int argc, char **argv)
{
    const char *folder = NULL, *file = "report.html", *machine = NULL;
    oar_trace *t;
    int ok;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return usage(stdout);
        if (strcmp(argv[i], "-o") == 0 && i + 1 < argc)
            file = argv[++i];
        else if (strcmp(argv[i], "--machine") == 0 && i + 1 < argc)
            machine = argv[++i];
        else if (argv[i][0] != '-' && folder == NULL)
            folder = argv[i];
        else {
            tool_bad_option("report", argv[i], NULL,
                            argv[i][1] == 'o' ? 1 : -1);
            return TOOL_USAGE;
        }
    }
    if (folder == NULL)
        return usage(stderr);
    if (oar_trace_open(folder, &t) != OAR_OK)
        return tool_failed("report");
    ok = write_page(t, folder, file, machine);
    oar_trace_close(t);
    if (ok)
        printf("%s\n", file);
    return ok ? TOOL_OK : TOOL_FAILED;
}
