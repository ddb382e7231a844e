/* SPDX-License-Identifier: Apache-2.0 */
/* fsdp_units: which modules are units, and which unit a parameter belongs to.
 *
 * Units form a tree, that of the modules with all others left out. A parameter
 * belongs to the innermost unit around it; one that is used in several places
 * to the innermost unit around all of them, which is whole whenever one of them
 * runs.
 */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/name_match.h"
#include "base/status.h"
#include "base/vec.h"
#include "parallel/fsdp/fsdp.h"

enum { NAME = 256, LEAST_BYTES = 64 << 10 };

/* ---- which modules ------------------------------------------------------- */

/* What decides that a module is a unit. */
typedef struct unit_rule {
    const char *const *pattern; /* NULL: children of `parent` of this class */
    const oar_module *parent;
    const char *class_name;
    int *used; /* by pattern */
} unit_rule;

static int is_unit(const unit_rule *rule, const oar_module *parent,
                   const oar_module *module, const char *name)
{
    int fits = 0;

    if (rule->pattern == NULL)
        return parent == rule->parent &&
               strcmp(oar_module_name(module), rule->class_name) == 0;
    for (int i = 0; rule->pattern[i] != NULL; i++) {
        const char *pattern = rule->pattern[i];
        int by_class = strncmp(pattern, "class:", 6) == 0;

        if (by_class ? strcmp(pattern + 6, oar_module_name(module)) == 0
                     : oari_name_fits(pattern, name, 0))
            fits = rule->used[i] = 1;
    }
    return fits;
}

static size_t param_bytes(const oar_tensor *param)
{
    return (size_t)oar_tensor_count(param) *
           oar_dtype_size(oar_tensor_dtype(param));
}

static size_t module_bytes(const oar_module *module)
{
    size_t bytes = 0;

    for (int i = 0; i < oar_module_params(module); i++)
        bytes += param_bytes(oar_module_param(module, i));
    return bytes;
}

/* Finds the children of one class that hold most: at least two of them. */
static void find_largest_row(const oar_module *module, unit_rule *rule,
                             size_t *most)
{
    for (int i = 0; i < oar_module_children(module); i++) {
        const char *name = oar_module_name(oar_module_child(module, i));
        size_t bytes = 0;
        int alike = 0;

        for (int k = 0; k < oar_module_children(module); k++) {
            const oar_module *child = oar_module_child(module, k);
            if (strcmp(oar_module_name(child), name) != 0)
                continue;
            alike++;
            bytes += module_bytes(child);
        }
        if (alike > 1 && bytes > *most) {
            *most = bytes;
            rule->parent = module;
            rule->class_name = name;
        }
    }
    for (int i = 0; i < oar_module_children(module); i++)
        find_largest_row(oar_module_child(module, i), rule, most);
}

/* ---- the walk ------------------------------------------------------------ */

static oar_status add_unit(oari_fsdp *d, oar_module *module, const char *name,
                           int parent)
{
    oari_fsdp_unit *u;

    OARI_TRY(oari_array_reserve(d->unit, d->units, d->unit_room, 1));
    u = &d->unit[d->units];
    *u = (oari_fsdp_unit){ .module = module, .parent = parent };
    u->name = oari_strdup(name);
    if (u->name == NULL)
        return OAR_E_NOMEM;
    d->units++;
    return OAR_OK;
}

static int depth_of(const oari_fsdp *d, int unit)
{
    int depth = 0;

    while (d->unit[unit].parent >= 0) {
        unit = d->unit[unit].parent;
        depth++;
    }
    return depth;
}

/* Returns the innermost unit around both. */
static int unit_around(const oari_fsdp *d, int a, int b)
{
    while (a != b)
        if (depth_of(d, a) >= depth_of(d, b))
            a = d->unit[a].parent;
        else
            b = d->unit[b].parent;
    return a;
}

static oar_status add_param(oari_fsdp *d, oar_tensor *tensor, const char *name,
                            int place, int unit)
{
    oari_fsdp_param *p;

    for (int i = 0; i < d->params; i++)
        if (d->param[i].tensor == tensor) {
            d->param[i].unit = unit_around(d, d->param[i].unit, unit);
            return OAR_OK;
        }
    OARI_TRY(oari_array_reserve(d->param, d->params, d->param_room, 1));
    p = &d->param[d->params];
    *p = (oari_fsdp_param){ .tensor = tensor, .first = place, .unit = unit };
    p->name = oari_strdup(name);
    if (p->name == NULL)
        return OAR_E_NOMEM;
    d->params++;
    return OAR_OK;
}

static int has_unit(const oari_fsdp *d, const oar_module *module)
{
    for (int u = 0; u < d->units; u++)
        if (d->unit[u].module == module)
            return 1;
    return 0;
}

/* Adds the units below a module. One that is used in two places is a unit in
 * the first only: its parameters belong to the unit around both. */
static oar_status visit_children(oari_fsdp *d, const unit_rule *rule,
                                 const oar_module *module, const char *name,
                                 int unit)
{
    char below[NAME];

    for (int i = 0; i < oar_module_children(module); i++) {
        oar_module *child = oar_module_child(module, i);
        int inner = unit;

        snprintf(below, sizeof below, "%s%s%s", name, name[0] ? "." : "",
                 oar_module_child_name(module, i));
        if (is_unit(rule, module, child, below) && !has_unit(d, child)) {
            OARI_TRY(add_unit(d, child, below, unit));
            inner = d->units - 1;
        }
        OARI_TRY(visit_children(d, rule, child, below, inner));
    }
    return OAR_OK;
}

/* Returns the innermost unit that the parameter of this name is in. */
static int unit_of_name(const oari_fsdp *d, const char *name)
{
    int unit = 0;

    for (int u = 1; u < d->units; u++) { /* inner ones come after outer ones */
        size_t n = strlen(d->unit[u].name);
        if (strncmp(d->unit[u].name, name, n) == 0 && name[n] == '.')
            unit = u;
    }
    return unit;
}

static int count_patterns(const char *const *pattern)
{
    int count = 0;

    while (pattern != NULL && pattern[count] != NULL)
        count++;
    return count;
}

static oar_status check_patterns(const char *const *pattern, const int *used)
{
    for (int i = 0; i < count_patterns(pattern); i++)
        if (!used[i])
            return oari_fail(OAR_E_NOT_FOUND,
                             "fsdp_wrap: no part of the model fits \"%s\"",
                             pattern[i]);
    return OAR_OK;
}

/* ---- parameters ---------------------------------------------------------- */

/* Marks the parameters that a pattern fits, under any of their names. */
static oar_status mark_ignored(const oari_fsdp *d, const oar_module *module,
                               unsigned char *ignored, int *used)
{
    const char *const *pattern = d->opts.ignored;
    int params = oar_module_params(module);
    char name[NAME];

    for (int i = 0; i < params; i++) {
        OARI_TRY(oar_module_param_name(module, i, name, sizeof name));
        for (int k = 0; pattern != NULL && pattern[k] != NULL; k++)
            if (oari_name_fits(pattern[k], name, 1))
                ignored[i] = 1, used[k] = 1;
        for (int k = 0; ignored[i] && k < params; k++)
            ignored[k] |=
                oar_module_param(module, k) == oar_module_param(module, i);
    }
    return check_patterns(pattern, used);
}

static oar_status add_params(oari_fsdp *d, const oar_module *module,
                             const unsigned char *ignored)
{
    char name[NAME];

    for (int i = 0; i < oar_module_params(module); i++) {
        oar_tensor *param = oar_module_param(module, i);

        if (ignored[i]) {
            OARI_TRY(oar_tensor_realize(param));
            continue;
        }
        OARI_TRY(oar_module_param_name(module, i, name, sizeof name));
        OARI_TRY(add_param(d, param, name, i, unit_of_name(d, name)));
    }
    return OAR_OK;
}

static oar_status list_params(oari_fsdp *d, const oar_module *module)
{
    unsigned char *ignored =
        oari_alloc((size_t)oar_module_params(module) + 1, 1);
    int *used =
        oari_alloc((size_t)count_patterns(d->opts.ignored) + 1, sizeof *used);
    oar_status status = OAR_E_NOMEM;

    if (ignored != NULL && used != NULL)
        status = mark_ignored(d, module, ignored, used);
    if (status == OAR_OK)
        status = add_params(d, module, ignored);
    oari_free(ignored);
    oari_free(used);
    return status;
}

/* ---- small units --------------------------------------------------------- */

/* Gives the parameters of units that are too small to the unit around them, the
 * innermost ones first, and numbers those that stay. */
static void join_small_units(oari_fsdp *d)
{
    size_t least = d->opts.least_bytes != 0 ? d->opts.least_bytes : LEAST_BYTES;
    int kept = 0;

    for (int i = 0; i < d->params; i++)
        d->unit[d->param[i].unit].bytes += param_bytes(d->param[i].tensor);
    for (int u = d->units - 1; u > 0; u--) {
        oari_fsdp_unit *unit = &d->unit[u];

        if (unit->bytes >= least)
            continue;
        unit->joined = 1;
        d->unit[unit->parent].bytes += unit->bytes;
        for (int i = 0; i < d->params; i++)
            if (d->param[i].unit == u)
                d->param[i].unit = unit->parent;
    }
    for (int u = 0; u < d->units; u++)
        d->unit[u].index = d->unit[u].joined ? -1 : kept++;
}

static oar_status explain_absences(oari_fsdp *d)
{
    char text[NAME + 100];

    for (int u = 0; u < d->units; u++) {
        oari_fsdp_unit *unit = &d->unit[u];

        unit->fsdp = d;
        snprintf(text, sizeof text,
                 "that is in unit \"%s\" of FSDP, which does not run now: make "
                 "what uses it part of that unit",
                 unit->name);
        unit->absent = oari_strdup(text);
        if (unit->absent == NULL)
            return OAR_E_NOMEM;
    }
    for (int i = 0; i < d->params; i++) {
        d->param[i].fsdp = d;
        d->param[i].array = i;
    }
    return OAR_OK;
}

oar_status oari_fsdp_find_units(oari_fsdp *d, oar_module *module)
{
    unit_rule rule = { .pattern = d->opts.units };
    size_t most = 0;
    oar_status status;

    rule.used =
        oari_alloc((size_t)count_patterns(rule.pattern) + 1, sizeof *rule.used);
    if (rule.used == NULL)
        return OAR_E_NOMEM;
    if (rule.pattern == NULL)
        find_largest_row(module, &rule, &most);
    status = add_unit(d, module, "", -1);
    if (status == OAR_OK)
        status = visit_children(d, &rule, module, "", 0);
    if (status == OAR_OK)
        status = check_patterns(rule.pattern, rule.used);
    if (status == OAR_OK)
        status = list_params(d, module);
    oari_free(rule.used);
    OARI_TRY(status);
    join_small_units(d);
    return explain_absences(d);
}

void oari_fsdp_forget_units(oari_fsdp *d)
{
    for (int u = 0; u < d->units; u++) {
        oari_free(d->unit[u].name);
        oari_free(d->unit[u].absent);
    }
    for (int i = 0; i < d->params; i++)
        oari_free(d->param[i].name);
    oari_free(d->unit);
    oari_free(d->param);
}

int oari_fsdp_find(const oari_fsdp *d, const char *name)
{
    for (int u = 0; u < d->units; u++)
        if (!d->unit[u].joined && strcmp(d->unit[u].name, name) == 0)
            return u;
    return -1;
}
