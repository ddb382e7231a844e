/* SPDX-License-Identifier: Apache-2.0 */
/* clip_over: one norm of gradients that are cut over some groups and the same
 * on the ranks of others.
 *
 * There is one sum of squares for each set of groups that parameters are cut
 * over. In each group, one after the other, all sums are added up; to a sum
 * that is not cut over the group only its rank 0 contributes, the others give
 * 0. So every number counts once, and after the last group all ranks have the
 * same bits: those of the sums, added up in the order of the sets. */
#include <math.h>
#include <string.h>

#include <oarsong/collective.h>

#include "base/call_site.h"
#include "base/status.h"
#include "parallel/grads/grads_over.h"

enum { SETS = 1 << OAR_OVER_GROUPS };

oar_status oari_over_check(const char *what, int groups,
                           oar_group *const *group)
{
    if (groups < 0 || groups > OAR_OVER_GROUPS || (groups > 0 && group == NULL))
        return oari_fail(OAR_E_ARG, "%s over %d groups: 0 to %d, in an array",
                         what, groups, OAR_OVER_GROUPS);
    return OAR_OK;
}

oar_status oari_over_failed(const char *what, const oar_error *own)
{
    if (own->status != OAR_OK)
        return oari_fail_with(own);
    return oari_fail(OAR_E_STATE,
                     "%s: another rank could not take part; its own error says "
                     "why",
                     what);
}

/* Whether the parameter of a part is in the list before it. */
static int is_repeated(const oar_clip_part *part, int i)
{
    for (int k = 0; k < i; k++)
        if (part[k].param == part[i].param)
            return 1;
    return 0;
}

/* Adds this rank's squares to the sums of their sets. */
static oar_status add_squares(int groups, int count, const oar_clip_part *part,
                              double limit, double *sum)
{
    if (count < 0 || (count > 0 && part == NULL))
        return oari_fail(
            OAR_E_ARG, "clip_grad_norm_over %d parameters: none given", count);
    if (!(limit >= 0))
        return oari_fail(OAR_E_ARG, "clip_grad_norm_over to %g: below zero",
                         limit);
    for (int i = 0; i < count; i++) {
        double squares;

        if (part[i].cut >> groups != 0)
            return oari_fail(OAR_E_ARG,
                             "clip_grad_norm_over: parameter %d is cut over "
                             "groups 0x%x, of which there are %d",
                             i, part[i].cut, groups);
        OARI_TRY(oar_grad_squares(1, &part[i].param, &squares));
        if (!part[i].uncounted && !is_repeated(part, i))
            sum[part[i].cut] += squares;
    }
    return OAR_OK;
}

/* Adds up the sums over group `index`, and the number of ranks that failed,
 * which stands behind them. */
static oar_status merge_sums(oar_group *group, int index, int sets, double *sum)
{
    if (group == NULL)
        return OAR_OK;
    for (int s = 0; s < sets; s++)
        if (!(s >> index & 1) && oar_group_rank(group) != 0)
            sum[s] = 0;
    return oar_all_reduce(
        group, oar_span_of(sum, (size_t)sets + 1, OAR_F64), OAR_SUM,
        OAR_OPTS(oar_call_opts, .label = "gradient norm", .canonical = 1),
        NULL);
}

oar_status oar_clip_grad_norm_over_at(const char *file, int line, int groups,
                                      oar_group *const *group, int count,
                                      const oar_clip_part *part, double limit,
                                      double *norm)
{
    OARI_CALLED_FROM(file, line);
    const double guard = 1e-6; /* as oar_clip_grad_norm has it */
    double sum[SETS + 1] = { 0 }, squares = 0, total, factor;
    oar_error own = { .status = OAR_OK };
    int sets;

    OARI_TRY(oari_over_check("clip_grad_norm_over", groups, group));
    sets = 1 << groups;
    if (add_squares(groups, count, part, limit, sum) != OAR_OK) {
        own = *oar_last_error();
        sum[sets] = 1;
    }
    for (int g = 0; g < groups; g++)
        OARI_TRY(merge_sums(group[g], g, sets, sum));
    if (sum[sets] > 0)
        return oari_over_failed("clip_grad_norm_over", &own);
    for (int s = 0; s < sets; s++)
        squares += sum[s];
    total = sqrt(squares);
    factor = limit / (total + guard);
    for (int i = 0; i < count && isfinite(total) && factor < 1; i++)
        if (!is_repeated(part, i))
            OARI_TRY(oar_grad_scale(1, &part[i].param, factor));
    if (norm != NULL)
        *norm = total;
    return OAR_OK;
}
