/* SPDX-License-Identifier: Apache-2.0 */
/* oarsong ckpt diff: what differs between two generations. */
#include "ckpt.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "tool.h"

enum { DIFFERENT = TOOL_FAILED, UNREADABLE = TOOL_USAGE };

typedef struct comparison {
    oar_catalog *side[2];
    const char *section;
    int64_t equal, different;
} comparison;

/* ---- numbers ------------------------------------------------------------- */

typedef struct difference {
    const oar_tensor *other;
    const unsigned char *bytes[2]; /* of both, if they have one dtype */
    size_t element;
    int64_t count, first; /* elements that differ, and the first */
    double most, sum, value[2];
    oar_tensor *line; /* the other one, flat */
    oar_status status;
    double *number; /* of it */
} difference;

/* Elements of one dtype differ if their bytes do. */
static int differs(const difference *d, int64_t i, double a, double b)
{
    if (d->bytes[0] != NULL)
        return memcmp(d->bytes[0] + (size_t)i * d->element,
                      d->bytes[1] + (size_t)i * d->element, d->element) != 0;
    return a != b && !(isnan(a) && isnan(b));
}

static void compare_numbers(void *arg, int64_t first, int64_t count,
                            const double *number)
{
    difference *d = arg;
    oar_tensor *part = oar_narrow(NULL, d->line, 0, first, count);

    if (d->status == OAR_OK)
        d->status = oar_tensor_read(part, OAR_F64, d->number);
    oar_tensor_release(part);
    for (int64_t i = 0; i < count && d->status == OAR_OK; i++) {
        double a = number[i], b = d->number[i], apart = fabs(a - b);

        if (!differs(d, first + i, a, b))
            continue;
        if (d->count++ == 0) {
            d->first = first + i;
            d->value[0] = a;
            d->value[1] = b;
        }
        if (!(apart <= d->most)) /* NaN stays */
            d->most = isnan(d->most) ? d->most : apart;
        d->sum += apart;
    }
}

/* Prints the place of an element: "[2, 3]". */
static void print_place(oar_shape shape, int64_t element)
{
    char text[200];

    for (int d = shape.ndim - 1; d >= 0; d--) {
        int64_t extent = shape.dim[d];

        shape.dim[d] = element % extent;
        element /= extent;
    }
    printf("%s", ckpt_shape_text(shape, text));
}

static void print_difference(const oar_catalog_entry *e, const difference *d,
                             int64_t count)
{
    printf("%s/%s: %" PRId64 " of %" PRId64 " differ, by at most %.6g and %.6g "
           "on the average, first at ",
           e->section, e->name, d->count, count, d->most,
           d->sum / (double)count);
    print_place(e->shape, d->first);
    printf(": %.9g and %.9g\n", d->value[0], d->value[1]);
}

/* Compares the numbers of two tensors of one shape. */
static oar_status compare_tensors(comparison *c, const oar_catalog_entry *e,
                                  int *same)
{
    static double number[1 << 16]; /* as many as ckpt_read_numbers gives */
    difference d = { .number = number, .status = OAR_OK };
    oar_tensor *a = oar_catalog_tensor(c->side[0], e->section, e->name);
    oar_tensor *b =
        a != NULL ? oar_catalog_tensor(c->side[1], e->section, e->name) : NULL;
    int64_t count = oar_tensor_count(a);
    oar_status status = b == NULL ? oar_last_error()->status : OAR_OK;

    if (status == OAR_OK && oar_tensor_dtype(a) == oar_tensor_dtype(b)) {
        d.bytes[0] = oar_tensor_const_data(a);
        d.bytes[1] = oar_tensor_const_data(b);
        d.element = oar_dtype_size(oar_tensor_dtype(a));
    }
    if (status == OAR_OK && count > 0 &&
        (d.bytes[0] == NULL ||
         memcmp(d.bytes[0], d.bytes[1], (size_t)count * d.element) != 0)) {
        d.line = oar_reshape(NULL, b, OAR_SHAPE(count));
        status = d.line == NULL ? oar_last_error()->status
                                : ckpt_read_numbers(a, compare_numbers, &d);
        if (status == OAR_OK)
            status = d.status;
    }
    if (status == OAR_OK && d.count > 0)
        print_difference(e, &d, count);
    *same = d.count == 0;
    oar_tensor_release(d.line);
    oar_tensor_release(a);
    oar_tensor_release(b);
    return status;
}

/* ---- names --------------------------------------------------------------- */

static int same_shape(oar_shape a, oar_shape b)
{
    return a.ndim == b.ndim &&
           memcmp(a.dim, b.dim, (size_t)a.ndim * sizeof a.dim[0]) == 0;
}

/* Compares an entry of the first side with its namesake. */
static oar_status compare_entry(comparison *c, const oar_catalog_entry *e)
{
    oar_catalog_entry other = oar_catalog_entry_init();
    char shape[2][200];
    int same = 1, numbers = 1;

    if (oar_catalog_find(c->side[1], e->section, e->name, &other) != OAR_OK) {
        printf("%s/%s: only in the first\n", e->section, e->name);
        c->different++;
        return OAR_OK;
    }
    if (e->dtype != other.dtype) {
        printf("%s/%s: %s and %s\n", e->section, e->name,
               oar_dtype_name(e->dtype), oar_dtype_name(other.dtype));
        same = 0;
    }
    if (!same_shape(e->shape, other.shape)) {
        printf("%s/%s: %s and %s\n", e->section, e->name,
               ckpt_shape_text(e->shape, shape[0]),
               ckpt_shape_text(other.shape, shape[1]));
        same = 0;
    } else {
        oar_status status = compare_tensors(c, e, &numbers);

        if (status != OAR_OK)
            return status;
    }
    if (same && numbers)
        c->equal++;
    else
        c->different++;
    return OAR_OK;
}

static oar_status compare_entries(comparison *c)
{
    oar_catalog_entry e = oar_catalog_entry_init(), other = e;
    oar_status status = OAR_OK;

    for (int side = 0; side < 2; side++)
        for (int64_t i = 0;
             i < oar_catalog_tensors(c->side[side]) && status == OAR_OK; i++) {
            status = oar_catalog_entry_at(c->side[side], i, &e);
            if (status != OAR_OK ||
                (c->section != NULL && strcmp(c->section, e.section) != 0))
                continue;
            if (side == 0) {
                status = compare_entry(c, &e);
            } else if (oar_catalog_find(c->side[0], e.section, e.name,
                                        &other) != OAR_OK) {
                printf("%s/%s: only in the second\n", e.section, e.name);
                c->different++;
            }
        }
    return status;
}

/* Values are sorted by name on both sides. */
static void compare_values(comparison *c)
{
    int64_t at[2] = { 0, 0 };

    for (;;) {
        const char *name[2] = { NULL, NULL }, *text[2] = { NULL, NULL };
        int order;

        for (int side = 0; side < 2; side++)
            if (at[side] < oar_catalog_values(c->side[side]))
                (void)oar_catalog_value_at(c->side[side], at[side], &name[side],
                                           &text[side]);
        if (name[0] == NULL && name[1] == NULL)
            return;
        order = name[0] == NULL   ? 1
                : name[1] == NULL ? -1
                                  : strcmp(name[0], name[1]);
        if (order != 0)
            printf("value %s: only in the %s\n", name[order > 0],
                   order < 0 ? "first" : "second");
        else if (strcmp(text[0], text[1]) != 0)
            printf("value %s: %s and %s\n", name[0], text[0], text[1]);
        if (order != 0 || strcmp(text[0], text[1]) != 0)
            c->different++;
        at[0] += order <= 0;
        at[1] += order >= 0;
    }
}

int ckpt_diff(const ckpt_options *o)
{
    comparison c = { { NULL, NULL }, o->section, 0, 0 };
    oar_status status = oar_catalog_open(o->path[0], &c.side[0]);

    if (status == OAR_OK)
        status = oar_catalog_open(o->path[1], &c.side[1]);
    if (status == OAR_OK)
        status = compare_entries(&c);
    if (status == OAR_OK && o->section == NULL)
        compare_values(&c);
    if (status == OAR_OK && o->section != NULL && c.equal + c.different == 0) {
        tool_refuse("ckpt", "neither %s nor %s has tensors in \"%s\"",
                    o->path[0], o->path[1], o->section);
        status = OAR_E_NOT_FOUND;
    } else if (status == OAR_OK)
        printf("%" PRId64 " tensors are equal, %" PRId64 " things differ\n",
               c.equal, c.different);
    else
        tool_failed("ckpt diff");
    oar_catalog_close(c.side[0]);
    oar_catalog_close(c.side[1]);
    return status != OAR_OK  ? UNREADABLE
           : c.different > 0 ? DIFFERENT
                             : TOOL_OK;
}
