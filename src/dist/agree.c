/* SPDX-License-Identifier: Apache-2.0 */
/* agree: rank 0 describes its parameters, one line each; every rank compares
 * with its own; the lowest line that differs anywhere is everybody's answer. */
#include "dist/agree.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"

enum { LINE = 320 };

static void describe(const oar_module *module, int index, char line[LINE])
{
    oar_tensor *param = oar_module_param(module, index);
    oar_shape shape = oar_tensor_shape(param);
    char name[200] = "?";
    int n;

    memset(line, 0, LINE);
    oar_module_param_name(module, index, name, sizeof name);
    n = snprintf(line, LINE, "%s %s [", name,
                 oar_dtype_name(oar_tensor_dtype(param)));
    for (int d = 0; d < shape.ndim; d++)
        n += snprintf(line + n, (size_t)(LINE - n), "%s%lld", d > 0 ? ", " : "",
                      (long long)shape.dim[d]);
    snprintf(line + n, (size_t)(LINE - n), "]");
}

static oar_status take_from_0(oar_group *group, void *data, size_t bytes)
{
    return oar_broadcast(group, oar_span_of(data, bytes, OAR_U8), 0, NULL,
                         NULL);
}

/* The first line that differs from mine; `lines` if none. */
static int64_t first_difference(const oar_module *module, int64_t lines,
                                const char *theirs)
{
    char mine[LINE];

    for (int64_t i = 0; i < lines; i++) {
        if (i >= oar_module_params(module))
            return i;
        describe(module, (int)i, mine);
        if (memcmp(mine, theirs + i * LINE, LINE) != 0)
            return i;
    }
    return lines;
}

static oar_status report(const oar_module *module, oar_group *group,
                         int64_t index, int64_t lines, const char *theirs)
{
    char mine[LINE] = "no such parameter";

    if (index < oar_module_params(module))
        describe(module, (int)index, mine);
    return oari_fail(
        OAR_E_MISMATCH,
        "the ranks have different models: parameter %lld is %s on rank 0 and "
        "%s on rank %d",
        (long long)index,
        index < lines ? theirs + index * LINE : "no such parameter", mine,
        oar_group_rank(group));
}

static oar_status compare(const oar_module *module, oar_group *group,
                          int64_t lines, char *theirs)
{
    int64_t differs;

    if (oar_group_rank(group) == 0)
        for (int64_t i = 0; i < lines; i++)
            describe(module, (int)i, theirs + i * LINE);
    OARI_TRY(take_from_0(group, theirs, (size_t)lines * LINE));
    differs = first_difference(module, lines, theirs);
    if (differs == lines && oar_module_params(module) == lines)
        differs = INT64_MAX;
    OARI_TRY(oar_all_reduce(group, oar_span_of(&differs, 1, OAR_I64), OAR_MIN,
                            NULL, NULL));
    if (differs == INT64_MAX)
        return OAR_OK;
    return report(module, group, differs, lines, theirs);
}

oar_status oari_agree_on_params(const oar_module *module, oar_group *group)
{
    int64_t lines = oar_module_params(module);
    char *theirs;
    oar_status status;

    OARI_TRY(take_from_0(group, &lines, sizeof lines));
    theirs = oari_alloc((size_t)lines + 1, LINE);
    if (theirs == NULL)
        return OAR_E_NOMEM;
    status = compare(module, group, lines, theirs);
    oari_free(theirs);
    return status;
}

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

/* Whether every rank can take rank 0's numbers, in all of its tensors: a rank
 * that found out in the middle would leave the others waiting. */
static oar_status check_spans(const oar_module *module, oar_group *group)
{
    oar_status status = OAR_OK;
    oar_span span;
    int64_t refused;

    for (int i = 0; i < tensors_of(module) && status == OAR_OK; i++)
        status = oar_tensor_span(tensor_of(module, i), &span);
    refused = status != OAR_OK ? oar_group_rank(group) : -1;
    OARI_TRY(oar_all_reduce(group, oar_span_of(&refused, 1, OAR_I64), OAR_MAX,
                            NULL, NULL));
    if (refused < 0 || status != OAR_OK)
        return status;
    return oari_fail(OAR_E_STATE,
                     "rank %lld has a parameter or buffer that cannot take "
                     "rank 0's numbers",
                     (long long)refused);
}

oar_status oari_broadcast_state(const oar_module *module, oar_group *group)
{
    OARI_TRY(check_spans(module, group));
    for (int i = 0; i < tensors_of(module); i++) {
        oar_span span;

        OARI_TRY(oar_tensor_span(tensor_of(module, i), &span));
        OARI_TRY(oar_broadcast(group, span, 0, NULL, NULL));
    }
    return OAR_OK;
}
