/* SPDX-License-Identifier: Apache-2.0 */
/* scaler_over: one decision of all ranks whether to step. What each rank has
 * found is merged by its maximum, group after group. */
#include <oarsong/collective.h>

#include "base/call_site.h"
#include "base/status.h"
#include "parallel/grads/grads_over.h"

/* What ranks tell each other; the largest counts. */
enum { FAILED, NOT_FINITE, SCALE, LESS_SCALE, FACTS };

static oar_status agree(int groups, oar_group *const *group, double *fact)
{
    for (int g = 0; g < groups; g++)
        if (group[g] != NULL)
            OARI_TRY(oar_all_reduce(
                group[g], oar_span_of(fact, FACTS, OAR_F64), OAR_MAX,
                OAR_OPTS(oar_call_opts, .label = "loss scale"), NULL));
    return OAR_OK;
}

oar_status oar_scaler_step_over_at(const char *file, int line, int groups,
                                   oar_group *const *group, oar_scaler *scaler,
                                   oar_optim *optim, int *stepped)
{
    OARI_CALLED_FROM(file, line);
    double scale = oar_scaler_scale(scaler);
    double fact[FACTS] = { [SCALE] = scale, [LESS_SCALE] = -scale };
    oar_error own = { .status = OAR_OK };
    int finite = 1;

    OARI_TRY(oari_over_check("scaler_step_over", groups, group));
    if (oar_scaler_found(scaler, optim, &finite) != OAR_OK) {
        own = *oar_last_error();
        fact[FAILED] = 1;
    }
    fact[NOT_FINITE] = !finite;
    OARI_TRY(agree(groups, group, fact));
    if (fact[FAILED] > 0)
        return oari_over_failed("scaler_step_over", &own);
    if (fact[SCALE] != -fact[LESS_SCALE])
        return oari_fail(OAR_E_MISMATCH,
                         "scaler_step_over: the scales of the ranks lie "
                         "between %g and %g; this rank's is %g",
                         -fact[LESS_SCALE], fact[SCALE], scale);
    if (!oar_scaler_has_unscaled(scaler, optim))
        OARI_TRY(oar_scaler_unscale(scaler, optim, NULL));
    return oar_scaler_step_if(scaler, optim, fact[NOT_FINITE] == 0, stepped);
}
