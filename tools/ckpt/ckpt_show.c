/* SPDX-License-Identifier: Apache-2.0 */
/* oarsong ckpt show: what a generation holds, or one tensor of it. */
#include "ckpt.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tool.h"

/* ---- a generation -------------------------------------------------------- */

static void print_entry(const oar_catalog_entry *e)
{
    char shape[200], size[24];

    printf("%-8s  %-5s  %-16s  %9s  %6" PRId64 "  %s", e->section,
           oar_dtype_name(e->dtype), ckpt_shape_text(e->shape, shape),
           ckpt_size_text(e->bytes, size), e->chunks, e->name);
    if (e->alias_of != NULL)
        printf(" = %s", e->alias_of);
    printf("\n");
}

static void print_json_entry(const oar_catalog_entry *e)
{
    char shape[200];

    printf("{\"section\":");
    ckpt_print_quoted(e->section);
    printf(",\"name\":");
    ckpt_print_quoted(e->name);
    printf(",\"dtype\":\"%s\",\"shape\":%s,\"bytes\":%" PRIu64
           ",\"chunks\":%" PRId64 ",\"alias_of\":",
           oar_dtype_name(e->dtype), ckpt_shape_text(e->shape, shape), e->bytes,
           e->chunks);
    if (e->alias_of != NULL)
        ckpt_print_quoted(e->alias_of);
    else
        printf("null");
}

/* A value's text is a number, unless it is not one. */
static int is_number(const char *text)
{
    text += *text == '-';
    return *text != '\0' && strspn(text, "0123456789") == strlen(text);
}

/* Prints a value: floats, which are in hexadecimal, as people read them. */
static void print_value(const char *name, const char *text)
{
    char *end;
    double number = strtod(text, &end);

    printf("  %-40s  %s", name, text);
    if (strchr(text, 'x') != NULL && *end == '\0')
        printf("  (%.17g)", number);
    printf("\n");
}

static void print_text(const oar_catalog *catalog, const oar_generation *g,
                       const char *section)
{
    oar_catalog_entry e = oar_catalog_entry_init();
    const char *name, *text;
    char size[24], when[24];

    printf("%s: step %" PRId64 ", %s, saved %s by %d rank%s%s%s%s\n", g->name,
           g->step, ckpt_size_text(g->bytes, size),
           ckpt_time_text(g->saved_unix_s, when), g->ranks,
           g->ranks == 1 ? "" : "s", g->keep ? ", kept" : "",
           g->note[0] != '\0' ? ", " : "", g->note);
    for (int64_t i = 0; section == NULL && i < oar_catalog_values(catalog); i++)
        if (oar_catalog_value_at(catalog, i, &name, &text) == OAR_OK)
            print_value(name, text);
    printf("\n%-8s  %-5s  %-16s  %9s  %6s  name\n", "section", "dtype", "shape",
           "size", "chunks");
    for (int64_t i = 0; i < oar_catalog_tensors(catalog); i++)
        if (oar_catalog_entry_at(catalog, i, &e) == OAR_OK &&
            (section == NULL || strcmp(section, e.section) == 0))
            print_entry(&e);
}

static void print_json(const oar_catalog *catalog, const oar_generation *g,
                       const char *section)
{
    oar_catalog_entry e = oar_catalog_entry_init();
    const char *name, *text, *separator = "";

    printf("{");
    ckpt_print_json(g);
    printf(",\n\"values\":{");
    for (int64_t i = 0; i < oar_catalog_values(catalog); i++) {
        if (oar_catalog_value_at(catalog, i, &name, &text) != OAR_OK)
            continue;
        printf("%s", i > 0 ? "," : "");
        ckpt_print_quoted(name);
        printf(":");
        if (is_number(text))
            printf("%s", text);
        else
            ckpt_print_quoted(text);
    }
    printf("},\n\"tensors\":[");
    for (int64_t i = 0; i < oar_catalog_tensors(catalog); i++) {
        if (oar_catalog_entry_at(catalog, i, &e) != OAR_OK ||
            (section != NULL && strcmp(section, e.section) != 0))
            continue;
        printf("%s", separator);
        print_json_entry(&e);
        printf("}");
        separator = ",\n";
    }
    printf("]}\n");
}

/* ---- a tensor ------------------------------------------------------------ */

typedef struct statistics {
    int64_t finite, zeros, nans, infinities;
    double least, most, mean, squares; /* of those that are finite: Welford */
} statistics;

static void count_numbers(void *arg, int64_t first, int64_t count,
                          const double *number)
{
    statistics *s = arg;

    (void)first;
    for (int64_t i = 0; i < count; i++) {
        double x = number[i], from;

        s->nans += isnan(x) != 0;
        s->infinities += isinf(x) != 0;
        if (!isfinite(x))
            continue;
        s->zeros += x == 0;
        if (s->finite == 0 || x < s->least)
            s->least = x;
        if (s->finite == 0 || x > s->most)
            s->most = x;
        from = x - s->mean;
        s->finite++;
        s->mean += from / (double)s->finite;
        s->squares += from * (x - s->mean);
    }
}

static void print_statistics(const statistics *s, int json)
{
    double deviation = s->finite > 0 ? sqrt(s->squares / (double)s->finite) : 0;

    printf(json ? ",\"min\":%.17g,\"max\":%.17g,\"mean\":%.17g,"
                  "\"deviation\":%.17g,\"zeros\":%" PRId64 ",\"nan\":%" PRId64
                  ",\"inf\":%" PRId64 "}\n"
                : "min %.9g, max %.9g, mean %.9g, deviation %.9g, %" PRId64
                  " zeros, %" PRId64 " NaN, %" PRId64 " infinite\n",
           s->least, s->most, s->mean, deviation, s->zeros, s->nans,
           s->infinities);
}

static int show_tensor(oar_catalog *catalog, const ckpt_options *o)
{
    oar_catalog_entry e = oar_catalog_entry_init();
    statistics s = { 0, 0, 0, 0, 0, 0, 0, 0 };
    oar_tensor *tensor = NULL;
    oar_status status = oar_catalog_find(catalog, o->section, o->path[1], &e);
    char *text = NULL;
    size_t length;

    if (status == OAR_OK) {
        tensor = oar_catalog_tensor(catalog, e.section, o->path[1]);
        status = tensor == NULL ? oar_last_error()->status
                                : ckpt_read_numbers(tensor, count_numbers, &s);
    }
    if (status == OAR_OK && o->json) {
        print_json_entry(&e);
        print_statistics(&s, 1);
    } else if (status == OAR_OK) {
        length = oar_tensor_text(tensor, NULL, 0);
        text = malloc(length + 1);
        if (text != NULL)
            oar_tensor_text(tensor, text, length + 1);
        print_entry(&e);
        printf("%s\n", text != NULL ? text : "");
        print_statistics(&s, 0);
        free(text);
    }
    oar_tensor_release(tensor);
    return status == OAR_OK ? TOOL_OK : tool_failed("ckpt show");
}

int ckpt_show(const ckpt_options *o)
{
    oar_catalog *catalog;
    oar_generation g;
    int code = TOOL_OK;

    if (oar_catalog_open(o->path[0], &catalog) != OAR_OK)
        return tool_failed("ckpt show");
    if (o->path[1] != NULL)
        code = show_tensor(catalog, o);
    else if (oar_catalog_describe(catalog, &g) != OAR_OK)
        code = tool_failed("ckpt show");
    else if (o->json)
        print_json(catalog, &g, o->section);
    else
        print_text(catalog, &g, o->section);
    oar_catalog_close(catalog);
    return code;
}
