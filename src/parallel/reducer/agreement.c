/* SPDX-License-Identifier: Apache-2.0 */
/* agreement: every rank describes its options and its items, such as parameters
 * and buffers, in a line each and compares the lines with rank 0's. All ranks
 * report the lowest line that differs on any rank, and the lowest such rank. */
#include "parallel/reducer/agreement.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"

enum {
    LINE = 400,
    NAME = 200,
    FEW = 4 /* lines that need no memory from the heap */
};

static int tensors_of(const oar_module *module)
{
    return oar_module_params(module) + oar_module_buffers(module);
}

/* Parameters first, then buffers. */
static oar_tensor *tensor_of(const oar_module *module, int index)
{
    int params = oar_module_params(module);

    return index < params ? oar_module_param(module, index)
                          : oar_module_buffer(module, index - params);
}

/* ---- lines --------------------------------------------------------------- */

static void describe_tensor(const void *of, int64_t number, char *line,
                            size_t bytes)
{
    const oar_module *module = of;
    int index = (int)number, is_param = index < oar_module_params(module), n;
    oar_tensor *t = tensor_of(module, index);
    oar_shape shape = oar_tensor_shape(t);
    char name[NAME] = "?";

    if (is_param)
        oar_module_param_name(module, index, name, NAME);
    else
        oar_module_buffer_name(module, index - oar_module_params(module), name,
                               NAME);
    n = snprintf(line, bytes, "%s %s %s [", is_param ? "parameter" : "buffer",
                 name, oar_dtype_name(oar_tensor_dtype(t)));
    for (int d = 0; d < shape.ndim; d++)
        n += snprintf(line + n, bytes - (size_t)n, "%s%lld", d > 0 ? ", " : "",
                      (long long)shape.dim[d]);
    snprintf(line + n, bytes - (size_t)n, "]%s",
             is_param && !oar_tensor_requires_grad(t) ? ", frozen" : "");
}

/* Line 0 is the options, the others the items. */
static void describe_line(const oari_manifest *a, int64_t index,
                          char line[LINE])
{
    memset(line, 0, LINE);
    if (index > a->items)
        snprintf(line, LINE, "nothing");
    else if (index > 0)
        a->describe(a->of, index - 1, line, LINE);
    else
        snprintf(line, LINE, "%s", a->options);
}

/* ---- comparing ----------------------------------------------------------- */

static oar_status broadcast_bytes(oar_group *group, int rank, void *data,
                                  size_t bytes)
{
    return oar_broadcast(group, oar_span_of(data, bytes, OAR_U8), rank, NULL,
                         NULL);
}

static oar_status all_reduce_min(oar_group *group, int64_t *number)
{
    return oar_all_reduce(group, oar_span_of(number, 1, OAR_I64), OAR_MIN, NULL,
                          NULL);
}

/* Returns the first line that differs from rank 0's; INT64_MAX if none. */
static int64_t first_difference(const oari_manifest *a, int64_t lines,
                                const char *theirs)
{
    char mine[LINE];

    for (int64_t i = 0; i < lines; i++) {
        describe_line(a, i, mine);
        if (memcmp(mine, theirs + i * LINE, LINE) != 0)
            return i;
    }
    return 1 + a->items == lines ? INT64_MAX : lines;
}

/* Fails on every rank with the same text: rank 0's line, and that of the first
 * rank that has another. */
static oar_status report_difference(const oari_manifest *a, oar_group *group,
                                    int64_t index, int mine_differs)
{
    int64_t rank = mine_differs ? oar_group_rank(group) : INT64_MAX;
    char first[LINE], other[LINE];

    OARI_TRY(all_reduce_min(group, &rank));
    describe_line(a, index, first);
    describe_line(a, index, other);
    OARI_TRY(broadcast_bytes(group, 0, first, LINE));
    OARI_TRY(broadcast_bytes(group, (int)rank, other, LINE));
    first[LINE - 1] = other[LINE - 1] = 0;
    if (index == 0)
        return oari_fail(OAR_E_MISMATCH,
                         "the ranks %s with different options: %s on rank 0 "
                         "and %s on rank %lld",
                         a->does, first, other, (long long)rank);
    return oari_fail(OAR_E_MISMATCH,
                     "the ranks have different %s: number %lld is %s on "
                     "rank 0 and %s on rank %lld",
                     a->has, (long long)index - 1, first, other,
                     (long long)rank);
}

static oar_status compare_lines(const oari_manifest *a, oar_group *group,
                                int64_t lines, char *theirs)
{
    int64_t mine, lowest;

    if (oar_group_rank(group) == 0)
        for (int64_t i = 0; i < lines; i++)
            describe_line(a, i, theirs + i * LINE);
    OARI_TRY(broadcast_bytes(group, 0, theirs, (size_t)lines * LINE));
    lowest = mine = first_difference(a, lines, theirs);
    OARI_TRY(all_reduce_min(group, &lowest));
    if (lowest == INT64_MAX)
        return OAR_OK;
    return report_difference(a, group, lowest, mine == lowest);
}

oar_status oari_agree(const oari_manifest *manifest, oar_group *group)
{
    int64_t lines = 1 + manifest->items;
    char few[FEW * LINE], *theirs;
    oar_status status;

    OARI_TRY(broadcast_bytes(group, 0, &lines, sizeof lines));
    if (lines <= FEW)
        return compare_lines(manifest, group, lines, few);
    theirs = oari_alloc((size_t)lines + 1, LINE);
    if (theirs == NULL)
        return OAR_E_NOMEM;
    status = compare_lines(manifest, group, lines, theirs);
    oari_free(theirs);
    return status;
}

oar_status oari_agree_on_status(oar_group *group, oar_status status,
                                const char *call)
{
    enum { STATUSES = 64 };
    oar_error why = *oar_last_error();
    int ranks = oar_group_size(group), rank;
    int worst = 0; /* the lowest rank counts most */
    oar_status told;

    if (status != OAR_OK)
        worst = (ranks - oar_group_rank(group)) * STATUSES + (int)status;
    told = oar_all_reduce(group, oar_span_of(&worst, 1, OAR_I32), OAR_MAX,
                          OAR_OPTS(oar_call_opts, .label = call), NULL);
    if (status != OAR_OK)
        return oari_fail_with(&why);
    if (told != OAR_OK || worst == 0)
        return told;
    rank = ranks - worst / STATUSES;
    status = (oar_status)(worst % STATUSES);
    return oari_about(rank, oari_fail(status,
                                      "%s: rank %d could not make its part: "
                                      "%s",
                                      call, rank, oar_status_text(status)));
}

oar_status oari_agree_on_model(const oar_module *module, const char *options,
                               oar_group *group)
{
    oari_manifest manifest = { .options = options,
                               .does = "wrap",
                               .has = "models",
                               .items = tensors_of(module),
                               .of = module,
                               .describe = describe_tensor };

    return oari_agree(&manifest, group);
}

/* ---- copying ------------------------------------------------------------- */

oar_status oari_broadcast_state(const oar_module *module, oar_group *group)
{
    oar_status status = OAR_OK;
    int64_t refused;
    oar_span span;

    /* A rank that failed in the middle would leave the others waiting. */
    for (int i = 0; i < tensors_of(module) && status == OAR_OK; i++)
        status = oar_tensor_span(tensor_of(module, i), &span);
    refused = status != OAR_OK ? oar_group_rank(group) : -1;
    OARI_TRY(oar_all_reduce(group, oar_span_of(&refused, 1, OAR_I64), OAR_MAX,
                            NULL, NULL));
    OARI_TRY(status);
    if (refused >= 0)
        return oari_fail(OAR_E_STATE,
                         "rank %lld has a parameter or buffer that cannot take "
                         "rank 0's numbers",
                         (long long)refused);
    for (int i = 0; i < tensors_of(module); i++) {
        OARI_TRY(oar_tensor_span(tensor_of(module, i), &span));
        OARI_TRY(oar_tensor_touch(tensor_of(module, i)));
        OARI_TRY(oar_broadcast(group, span, 0, NULL, NULL));
    }
    return OAR_OK;
}
